/* Heartbeats: who is there and where, and who failed.
 *
 * A rank that hangs is rarely the one that is to blame: where one does not come to a collective, all others wait in it.
 * So a rank that misses its deadline asks rank 0, who knows where all are, and names the one furthest behind. */
#include "ranks/control_parts.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LAST_WORD_S 1.0 /* that the others may take to hear this rank's */
#define VERDICT_S 3.0   /* that a rank waits for rank 0's */

enum beat_kind { BEAT_ALIVE, BEAT_FAILURE, BEAT_GOODBYE, BEAT_STUCK };
/* What goes over the wire: where the sender is, or who failed. */
struct beat {
    uint16_t kind, how; /* enum beat_kind, enum dtp_rank_loss */
    uint32_t rank, status, op;
    uint64_t step;
    char words[sizeof((struct dtp_control_failure *)0)->words];
};
_Static_assert(sizeof(struct beat) == 2 * sizeof(uint16_t) + 3 * sizeof(uint32_t) + sizeof(uint64_t) +
                                          sizeof((struct dtp_control_failure *)0)->words,
               "every byte of a beat is somebody's: what nobody wrote is not sent");

static struct beat beat_of(enum beat_kind kind, const struct dtp_control_failure *about)
{
    struct beat beat = {(uint16_t)kind,  (uint16_t)about->how, about->rank, about->status,
                        about->place.op, about->place.step,    ""};
    snprintf(beat.words, sizeof beat.words, "%s", about->words);
    return beat;
}

/* A failure is never DTP_OK, whatever is received. */
static struct dtp_control_failure heard_of(const struct beat *beat)
{
    bool told = beat->status == DTP_NO || beat->status == DTP_BAD_INPUT;
    struct dtp_control_failure about = {.rank = beat->rank,
                                        .how = beat->how < DTP_LOSS_COUNT ? (enum dtp_rank_loss)beat->how
                                                                          : DTP_LOSS_UNKNOWN,
                                        .status = told ? (enum dtp_status)beat->status : DTP_ENVIRONMENT,
                                        .place = {beat->step, beat->op}};
    snprintf(about.words, sizeof about.words, "%.*s", (int)sizeof beat->words - 1, beat->words);
    return about;
}

struct dtp_control_place dtp_control_where(const struct dtp_control *c)
{
    struct dtp_control_place told = {atomic_load(&c->step), atomic_load(&c->op)};
    return c->options.where ? c->options.where(c->options.context, told) : told;
}

static void tell(struct dtp_control *c, enum beat_kind kind, const struct dtp_control_failure *about)
{
    struct beat beat = beat_of(kind, about);
    for (uint32_t i = 0; i < c->peer_count; i++)
        if (c->peer[i].socket[LINE_HEART] >= 0 && !c->peer[i].gone)
            dtp_socket_send(c->peer[i].socket[LINE_HEART], &beat, sizeof beat);
}

/* Whoever closes a connection on which something lies unread resets it, and what was said last may be lost on the other
 * side. So: no more from here, and reading until the others have done so too. */
static void say_no_more(struct dtp_control *c)
{
    struct pollfd *wait = calloc(c->peer_count + 1, sizeof *wait);
    double end_s = dtp_now_s() + LAST_WORD_S;
    uint32_t open = 0;
    char unread[4096];
    for (uint32_t i = 0; wait && i < c->peer_count; i++) {
        wait[i] = (struct pollfd){.fd = c->peer[i].socket[LINE_HEART], .events = POLLIN};
        open += wait[i].fd >= 0 && shutdown(wait[i].fd, SHUT_WR) == 0;
    }
    for (double left_s; open > 0 && (left_s = end_s - dtp_now_s()) > 0;) {
        if (poll(wait, c->peer_count, (int)(1e3 * left_s) + 1) <= 0)
            continue;
        for (uint32_t i = 0; i < c->peer_count; i++)
            if (wait[i].revents && recv(wait[i].fd, unread, sizeof unread, MSG_DONTWAIT) <= 0)
                wait[i].fd = -1, open -= open > 0;
    }
    free(wait);
}

static void tell_rank_0(struct dtp_control *c, const struct dtp_control_failure *self)
{
    struct beat beat = beat_of(BEAT_STUCK, self);
    dtp_socket_send(c->peer[0].socket[LINE_HEART], &beat, sizeof beat);
}

static void fail(struct dtp_control *c, const struct dtp_control_failure *failure)
{
    if (atomic_load(&c->failed))
        return;
    tell(c, BEAT_FAILURE, failure);
    say_no_more(c);
    atomic_store(&c->failed, true); /* who waits for it may end what carries collectives: the others know why */
    if (c->options.on_failure)
        c->options.on_failure(c->options.context, failure);
}

static void fail_peer(struct dtp_control *c, uint32_t peer, enum dtp_rank_loss how, const char *words)
{
    struct dtp_control_failure failure = {
        .rank = peer, .how = how, .status = DTP_ENVIRONMENT, .place = c->peer[peer].place};
    snprintf(failure.words, sizeof failure.words, "%s", words);
    fail(c, &failure);
}

/* ---- who hangs --------------------------------------------------------------------------------------------------- */

static bool is_before(const struct dtp_control_place *a, const struct dtp_control_place *b)
{
    return a->step != b->step ? a->step < b->step : a->op < b->op;
}

/* On rank 0, when a rank (`stuck`, which may be itself) has missed its deadline: names as failed the rank furthest
 * behind, which the others wait for. */
static void judge(struct dtp_control *c, const struct dtp_control_failure *stuck)
{
    struct dtp_control_failure last = *stuck;
    struct dtp_control_place mine = dtp_control_where(c);
    if (is_before(&mine, &last.place))
        last.rank = c->ranks.rank, last.place = mine;
    for (uint32_t i = 0; i < c->peer_count; i++)
        if (c->peer[i].told && !c->peer[i].gone && is_before(&c->peer[i].place, &last.place))
            last.rank = i, last.place = c->peer[i].place;
    if (last.rank != stuck->rank)
        snprintf(last.words, sizeof last.words, "is behind the others, who waited until their deadline:");
    fail(c, &last);
}

static void miss_deadline(struct dtp_control *c, double late_s)
{
    struct dtp_control_failure self = {c->ranks.rank, DTP_LOSS_HUNG, DTP_ENVIRONMENT, dtp_control_where(c),
                                       "made no progress before its deadline:"};
    if (c->ranks.rank == 0)
        judge(c, &self);
    else if (late_s > VERDICT_S)
        fail(c, &self);
    else if (!c->told_stuck)
        tell_rank_0(c, &self);
    c->told_stuck = true;
}

static void hear(struct dtp_control *c, uint32_t peer)
{
    struct beat beat;
    if (!dtp_socket_receive(c->peer[peer].socket[LINE_HEART], &beat, sizeof beat)) {
        if (!atomic_load(&c->leaving))
            fail_peer(c, peer, DTP_LOSS_CLOSED, "ended without a word, last heard of");
        c->peer[peer].gone = true;
        return;
    }
    c->peer[peer].heard_s = dtp_now_s();
    const struct dtp_control_failure about = heard_of(&beat);
    if (beat.kind == BEAT_FAILURE)
        fail(c, &about);
    else if (beat.kind == BEAT_STUCK)
        judge(c, &about);
    else if (beat.kind == BEAT_GOODBYE)
        c->peer[peer].gone = true;
    else
        c->peer[peer].place = about.place, c->peer[peer].told = true;
}

/* Whether a peer said something within that time. */
static bool listen_once(struct dtp_control *c, struct pollfd *wait, double most_s)
{
    bool heard = false;
    for (uint32_t i = 0; i < c->peer_count; i++)
        wait[i] = (struct pollfd){.fd = c->peer[i].gone ? -1 : c->peer[i].socket[LINE_HEART], .events = POLLIN};
    wait[c->peer_count] = (struct pollfd){.fd = c->wake, .events = POLLIN};
    if (poll(wait, c->peer_count + 1, (int)(1e3 * most_s)) <= 0)
        return false;
    for (uint32_t i = 0; i < c->peer_count; i++)
        if (wait[i].revents) {
            hear(c, i);
            heard = true;
        }
    return heard;
}

static void look_for_silence(struct dtp_control *c)
{
    char words[64];
    snprintf(words, sizeof words, "has been silent for %.0f s, last heard of", c->options.silence_s);
    for (uint32_t i = 0; i < c->peer_count; i++)
        if (c->peer[i].socket[LINE_HEART] >= 0 && !c->peer[i].gone &&
            dtp_now_s() - c->peer[i].heard_s > c->options.silence_s)
            fail_peer(c, i, DTP_LOSS_SILENT, words);
    double deadline_s = atomic_load(&c->deadline_s), late_s = dtp_now_s() - deadline_s;
    if (deadline_s > 0 && late_s > 0)
        miss_deadline(c, late_s);
    else
        c->told_stuck = false;
}

/* A rank that fails because another did learns of it by what carries its collectives, maybe before this thread has read
 * who it was. That one told so first: what has arrived by now counts before this rank's own words. */
static void give_up_if_asked(struct dtp_control *c, struct pollfd *wait)
{
    struct dtp_control_failure self = {.rank = c->ranks.rank, .how = DTP_LOSS_GAVE_UP};
    pthread_mutex_lock(&c->give_up);
    memcpy(self.words, c->words, sizeof self.words);
    self.status = c->status;
    pthread_mutex_unlock(&c->give_up);
    if (!self.words[0])
        return;
    while (!atomic_load(&c->failed) && listen_once(c, wait, 0))
        ;
    if (atomic_load(&c->failed))
        return;
    self.place = dtp_control_where(c);
    tell(c, BEAT_FAILURE, &self);
    say_no_more(c);
    atomic_store(&c->failed, true);
}

/* Beats until this rank leaves or a failure was dealt with; a stop of this very process is no silence of the others. */
void *dtp_control_heart(void *argument)
{
    struct dtp_control *c = argument;
    struct pollfd *wait = calloc(c->peer_count + 1, sizeof *wait);
    double beaten_s = 0, looked_s = dtp_now_s();
    while (wait && !atomic_load(&c->leaving) && !atomic_load(&c->failed)) {
        double time_s = dtp_now_s();
        if (time_s - looked_s > c->options.silence_s / 2) /* we slept: give the others time to be heard */
            for (uint32_t i = 0; i < c->peer_count; i++)
                c->peer[i].heard_s = time_s;
        looked_s = time_s;
        if (time_s - beaten_s >= DTP_BEAT_S) {
            struct dtp_control_failure alive = {.rank = c->ranks.rank, .place = dtp_control_where(c)};
            tell(c, BEAT_ALIVE, &alive);
            beaten_s = time_s;
        }
        listen_once(c, wait, DTP_BEAT_S);
        look_for_silence(c);
        give_up_if_asked(c, wait);
    }
    free(wait);
    return NULL;
}

void dtp_control_say_goodbye(struct dtp_control *c)
{
    struct dtp_control_failure self = {.rank = c->ranks.rank, .place = dtp_control_where(c)};
    tell(c, BEAT_GOODBYE, &self);
    say_no_more(c);
}
