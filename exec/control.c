#include "control.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_JOIN_TIMEOUT_S 25.0
#define TURN_TIMEOUT_S 600 /* of what is said in turn, while heartbeats watch the peers */
static const char magic[8] = "dtplan/1";

enum line { LINE_TURNS, LINE_HEART, LINE_COUNT };

/* What a rank says first on each connection, and rank 0's answer on the one for turns. */
struct hello {
    char magic[8];
    uint32_t line, rank, world;
    uint64_t hash;
};
struct answer {
    uint32_t status;
    char words[DTP_FAULT_TEXT_BYTES];
};
enum beat_kind { BEAT_ALIVE, BEAT_FAILURE, BEAT_GOODBYE };
struct beat {
    uint32_t kind;
    struct dtp_control_failure about; /* the sender, or who failed */
};

struct peer {
    int socket[LINE_COUNT]; /* -1: none */
    double heard_s;
    bool gone; /* said goodbye */
    struct dtp_control_place place;
};

struct dtp_control {
    struct dtp_ranks ranks;
    struct dtp_control_options options;
    uint32_t peer_count; /* rank 0: world, its own unused; others: 1, rank 0 */
    struct peer *peer;
    pthread_t thread;
    bool beating;
    atomic_bool leaving, failed;
    _Atomic uint64_t step;
    _Atomic uint32_t op;
    _Atomic double deadline_s; /* on the monotonic clock; 0: none */
    pthread_mutex_t give_up;   /* of `words` */
    char words[sizeof((struct dtp_control_failure *)0)->words];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- sockets ------------------------------------------------------------------------------------------------------
 */

static void set_timeout(int socket, double seconds)
{
    struct timeval t = {.tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)(1e6 * (seconds - (double)(time_t)seconds))};
    int one = 1;
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static bool send_all(int socket, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int socket, void *data, size_t bytes)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(socket, at, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static struct addrinfo *resolve(const struct dtp_ranks *ranks, bool listens, struct dtp_faults *faults)
{
    char port[8];
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    bool local = strcmp(ranks->host, "127.0.0.1") == 0 || strcmp(ranks->host, "localhost") == 0;
    snprintf(port, sizeof port, "%u", ranks->port);
    hints.ai_flags = listens && !local ? AI_PASSIVE : 0;
    int error = getaddrinfo(listens && !local ? NULL : ranks->host, port, &hints, &found);
    if (error == 0)
        return found;
    dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "MASTER_ADDR: no address of '%s' (%s)", ranks->host,
              gai_strerror(error));
    return NULL;
}

/* ---- rank 0 waits for all others ----------------------------------------------------------------------------------
 */

static int listen_for_ranks(const struct dtp_ranks *ranks, struct dtp_faults *faults)
{
    struct addrinfo *address = resolve(ranks, true, faults);
    if (!address)
        return -1;
    int one = 1, listener = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0)
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listener < 0 || bind(listener, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(listener, SOMAXCONN) != 0) {
        dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "port %u: %s; set MASTER_PORT to another one for all ranks",
                  ranks->port, strerror(errno));
        if (listener >= 0)
            close(listener);
        listener = -1;
    }
    freeaddrinfo(address);
    return listener;
}

/* NULL: it belongs to the run. */
static const char *objection(const struct dtp_control *c, const struct hello *hello, char *words, size_t bytes)
{
    if (hello->world != c->ranks.world)
        snprintf(words, bytes, "rank %u was started for %u ranks, rank 0 for %u", hello->rank, hello->world,
                 c->ranks.world);
    else if (hello->rank == 0 || hello->rank >= c->ranks.world)
        snprintf(words, bytes, "a second process calls itself rank %u of %u", hello->rank, hello->world);
    else if (c->peer[hello->rank].socket[hello->line] >= 0)
        snprintf(words, bytes, "two processes call themselves rank %u", hello->rank);
    else if (hello->hash != c->options.hash)
        snprintf(words, bytes, "rank %u has another plan, settings or version than rank 0", hello->rank);
    else
        return NULL;
    return words;
}

static void answer_all(const struct dtp_control *c, const struct answer *answer)
{
    for (uint32_t i = 1; i < c->peer_count; i++)
        if (c->peer[i].socket[LINE_TURNS] >= 0)
            send_all(c->peer[i].socket[LINE_TURNS], answer, sizeof *answer);
}

/* One that comes: true when it belongs to the run; strangers are hung up on. */
static bool admit(struct dtp_control *c, int socket, struct answer *answer)
{
    struct hello hello;
    set_timeout(socket, 2);
    if (!receive_all(socket, &hello, sizeof hello) || memcmp(hello.magic, magic, sizeof magic) != 0 ||
        hello.line >= LINE_COUNT) {
        close(socket);
        return false;
    }
    if (objection(c, &hello, answer->words, sizeof answer->words)) {
        answer->status = DTP_BAD_INPUT;
        if (hello.line == LINE_TURNS)
            send_all(socket, answer, sizeof *answer);
        close(socket);
        return false;
    }
    c->peer[hello.rank].socket[hello.line] = socket;
    set_timeout(socket, TURN_TIMEOUT_S);
    return true;
}

static void name_the_missing(const struct dtp_control *c, double waited_s, struct answer *answer)
{
    uint32_t missing = 0;
    size_t at = (size_t)snprintf(answer->words, sizeof answer->words,
                                 "after %.0f s these ranks of %u have not come:", waited_s, c->ranks.world);
    for (uint32_t i = 1; i < c->ranks.world; i++)
        if (c->peer[i].socket[LINE_HEART] < 0 && missing++ < 8 && at < sizeof answer->words)
            at += (size_t)snprintf(answer->words + at, sizeof answer->words - at, " %u", i);
    if (missing > 8 && at < sizeof answer->words)
        snprintf(answer->words + at, sizeof answer->words - at, " and %u more", missing - 8);
    answer->status = DTP_ENVIRONMENT;
}

static enum dtp_status wait_for_all(struct dtp_control *c, int listener, struct dtp_faults *faults)
{
    struct answer answer = {.status = DTP_OK};
    double timeout_s = c->options.join_timeout_s, end_s = now_s() + timeout_s;
    uint32_t open = 0;
    while (answer.status == DTP_OK && open < LINE_COUNT * (c->ranks.world - 1)) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        double left_s = end_s - now_s();
        int ready = left_s > 0 ? poll(&wait, 1, (int)(1e3 * left_s) + 1) : 0;
        int socket = ready > 0 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (socket >= 0)
            open += admit(c, socket, &answer);
        else if (ready == 0)
            name_the_missing(c, timeout_s, &answer);
    }
    answer_all(c, &answer);
    if (answer.status != DTP_OK)
        return dtp_fault(faults, (enum dtp_status)answer.status, NULL, 0, "%s", answer.words);
    return DTP_OK;
}

static enum dtp_status gather_ranks(struct dtp_control *c, struct dtp_faults *faults)
{
    int listener = listen_for_ranks(&c->ranks, faults);
    if (listener < 0)
        return DTP_ENVIRONMENT;
    enum dtp_status status = wait_for_all(c, listener, faults);
    close(listener);
    return status;
}

/* ---- the others come to rank 0 ------------------------------------------------------------------------------------
 */

/* Tries until rank 0 listens: ranks start in any order. */
static int connect_until(const struct addrinfo *address, double end_s)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    do {
        int s = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s < 0)
            return -1;
        if (connect(s, address->ai_addr, address->ai_addrlen) == 0)
            return s;
        close(s);
        nanosleep(&pause, NULL);
    } while (now_s() < end_s);
    return -1;
}

static enum dtp_status come_to_rank_0(struct dtp_control *c, struct dtp_faults *faults)
{
    struct addrinfo *address = resolve(&c->ranks, false, faults);
    if (!address)
        return DTP_ENVIRONMENT;
    struct hello hello = {.rank = c->ranks.rank, .world = c->ranks.world, .hash = c->options.hash};
    struct answer answer;
    double timeout_s = c->options.join_timeout_s, end_s = now_s() + timeout_s;
    bool open = true;
    memcpy(hello.magic, magic, sizeof magic);
    for (int line = 0; open && line < LINE_COUNT; line++)
        open = (c->peer[0].socket[line] = connect_until(address, end_s)) >= 0;
    for (uint32_t line = 0; open && line < LINE_COUNT; line++) {
        hello.line = line;
        set_timeout(c->peer[0].socket[line], timeout_s + 5);     /* rank 0 answers when the last has come, or not */
        send_all(c->peer[0].socket[line], &hello, sizeof hello); /* hung up on: the answer says why */
    }
    freeaddrinfo(address);
    if (!open || !receive_all(c->peer[0].socket[LINE_TURNS], &answer, sizeof answer))
        return dtp_fault(
            faults, DTP_ENVIRONMENT, NULL, 0,
            "rank %u: no answer from rank 0 at %s port %u within %.0f s; did it start, and can its port be reached?",
            c->ranks.rank, c->ranks.host, c->ranks.port, timeout_s);
    answer.words[sizeof answer.words - 1] = '\0';
    if (answer.status != DTP_OK)
        return dtp_fault(faults, answer.status == DTP_BAD_INPUT ? DTP_BAD_INPUT : DTP_ENVIRONMENT, NULL, 0, "%s",
                         answer.words);
    set_timeout(c->peer[0].socket[LINE_TURNS], TURN_TIMEOUT_S);
    return DTP_OK;
}

/* ---- heartbeats ---------------------------------------------------------------------------------------------------
 */

static struct dtp_control_place here(const struct dtp_control *c)
{
    return (struct dtp_control_place){atomic_load(&c->step), atomic_load(&c->op)};
}

static void tell(struct dtp_control *c, enum beat_kind kind, const struct dtp_control_failure *about)
{
    struct beat beat = {.kind = kind, .about = *about};
    for (uint32_t i = 0; i < c->peer_count; i++)
        if (c->peer[i].socket[LINE_HEART] >= 0 && !c->peer[i].gone && i != about->rank)
            send_all(c->peer[i].socket[LINE_HEART], &beat, sizeof beat);
}

static void fail(struct dtp_control *c, const struct dtp_control_failure *failure)
{
    if (atomic_exchange(&c->failed, true))
        return;
    tell(c, BEAT_FAILURE, failure);
    if (c->options.on_failure)
        c->options.on_failure(c->options.context, failure);
}

static void fail_peer(struct dtp_control *c, uint32_t peer, const char *words)
{
    struct dtp_control_failure failure = {.rank = peer, .place = c->peer[peer].place};
    snprintf(failure.words, sizeof failure.words, "%s", words);
    fail(c, &failure);
}

static void hear(struct dtp_control *c, uint32_t peer)
{
    struct beat beat;
    if (!receive_all(c->peer[peer].socket[LINE_HEART], &beat, sizeof beat)) {
        if (!atomic_load(&c->leaving))
            fail_peer(c, peer, "ended without a word");
        c->peer[peer].gone = true;
        return;
    }
    c->peer[peer].heard_s = now_s();
    beat.about.words[sizeof beat.about.words - 1] = '\0';
    if (beat.kind == BEAT_FAILURE)
        fail(c, &beat.about);
    else if (beat.kind == BEAT_GOODBYE)
        c->peer[peer].gone = true;
    else
        c->peer[peer].place = beat.about.place;
}

static void listen_once(struct dtp_control *c, struct pollfd *wait)
{
    for (uint32_t i = 0; i < c->peer_count; i++)
        wait[i] = (struct pollfd){.fd = c->peer[i].gone ? -1 : c->peer[i].socket[LINE_HEART], .events = POLLIN};
    if (poll(wait, c->peer_count, (int)(1e3 * DTP_CONTROL_BEAT_S)) <= 0)
        return;
    for (uint32_t i = 0; i < c->peer_count; i++)
        if (wait[i].revents)
            hear(c, i);
}

static void look_for_silence(struct dtp_control *c)
{
    char words[64];
    snprintf(words, sizeof words, "has been silent for %.0f s", c->options.silence_s);
    for (uint32_t i = 0; i < c->peer_count; i++)
        if (c->peer[i].socket[LINE_HEART] >= 0 && !c->peer[i].gone &&
            now_s() - c->peer[i].heard_s > c->options.silence_s)
            fail_peer(c, i, words);
    double deadline_s = atomic_load(&c->deadline_s);
    if (deadline_s > 0 && now_s() > deadline_s) {
        struct dtp_control_failure self = {c->ranks.rank, here(c), "made no progress before its deadline"};
        fail(c, &self);
    }
}

/* Beats until this rank leaves or a failure was dealt with; a stop of this very process is no silence of the others. */
static void *heart(void *argument)
{
    struct dtp_control *c = argument;
    struct pollfd *wait = calloc(c->peer_count, sizeof *wait);
    double beaten_s = 0, looked_s = now_s();
    while (wait && !atomic_load(&c->leaving) && !atomic_load(&c->failed)) {
        double time_s = now_s();
        if (time_s - looked_s > c->options.silence_s / 2) /* we slept: give the others time to be heard */
            for (uint32_t i = 0; i < c->peer_count; i++)
                c->peer[i].heard_s = time_s;
        looked_s = time_s;
        if (time_s - beaten_s >= DTP_CONTROL_BEAT_S) {
            struct dtp_control_failure alive = {.rank = c->ranks.rank, .place = here(c)};
            tell(c, BEAT_ALIVE, &alive);
            beaten_s = time_s;
        }
        listen_once(c, wait);
        look_for_silence(c);
        pthread_mutex_lock(&c->give_up);
        if (c->words[0] && !atomic_exchange(&c->failed, true)) {
            struct dtp_control_failure self = {.rank = c->ranks.rank, .place = here(c)};
            memcpy(self.words, c->words, sizeof self.words);
            tell(c, BEAT_FAILURE, &self);
        }
        pthread_mutex_unlock(&c->give_up);
    }
    free(wait);
    return NULL;
}

/* ---- coming and going ---------------------------------------------------------------------------------------------
 */

static void release(struct dtp_control *c)
{
    for (uint32_t i = 0; i < c->peer_count; i++)
        for (int line = 0; line < LINE_COUNT; line++)
            if (c->peer[i].socket[line] >= 0)
                close(c->peer[i].socket[line]);
    pthread_mutex_destroy(&c->give_up);
    free(c->peer);
    free(c);
}

static struct dtp_control *create(const struct dtp_ranks *ranks, const struct dtp_control_options *options)
{
    struct dtp_control *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->ranks = *ranks;
    c->options = *options;
    if (!(c->options.join_timeout_s > 0))
        c->options.join_timeout_s = DEFAULT_JOIN_TIMEOUT_S;
    if (!(c->options.silence_s > 0))
        c->options.silence_s = DTP_CONTROL_SILENCE_S;
    c->peer_count = ranks->world == 1 ? 0 : ranks->rank == 0 ? ranks->world : 1;
    c->peer = calloc(c->peer_count + 1, sizeof *c->peer);
    if (!c->peer) {
        free(c);
        return NULL;
    }
    for (uint32_t i = 0; i < c->peer_count; i++)
        c->peer[i].socket[LINE_TURNS] = c->peer[i].socket[LINE_HEART] = -1;
    pthread_mutex_init(&c->give_up, NULL);
    return c;
}

enum dtp_status dtp_control_join(const struct dtp_ranks *ranks, const struct dtp_control_options *options,
                                 struct dtp_control **out, struct dtp_faults *faults)
{
    *out = NULL;
    struct dtp_control *c = create(ranks, options);
    if (!c)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %u ranks", ranks->world);
    enum dtp_status status = DTP_OK;
    if (ranks->world > 1)
        status = ranks->rank == 0 ? gather_ranks(c, faults) : come_to_rank_0(c, faults);
    for (uint32_t i = 0; i < c->peer_count; i++)
        c->peer[i].heard_s = now_s();
    if (status == DTP_OK && ranks->world > 1 && pthread_create(&c->thread, NULL, heart, c) != 0)
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no thread for heartbeats");
    if (status != DTP_OK) {
        release(c);
        return status;
    }
    c->beating = ranks->world > 1;
    *out = c;
    return DTP_OK;
}

void dtp_control_leave(struct dtp_control *c)
{
    if (!c)
        return;
    if (c->beating) {
        struct dtp_control_failure self = {.rank = c->ranks.rank, .place = here(c)};
        atomic_store(&c->leaving, true);
        pthread_join(c->thread, NULL);
        if (!atomic_load(&c->failed))
            tell(c, BEAT_GOODBYE, &self);
    }
    release(c);
}

void dtp_control_at(struct dtp_control *c, struct dtp_control_place place)
{
    atomic_store_explicit(&c->step, place.step, memory_order_relaxed);
    atomic_store_explicit(&c->op, place.op, memory_order_relaxed);
}

void dtp_control_deadline(struct dtp_control *c, double seconds)
{
    atomic_store(&c->deadline_s, seconds > 0 ? now_s() + seconds : 0);
}

void dtp_control_give_up(struct dtp_control *c, const char *words)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    if (!c->beating)
        return;
    pthread_mutex_lock(&c->give_up);
    snprintf(c->words, sizeof c->words, "%s", words);
    pthread_mutex_unlock(&c->give_up);
    while (!atomic_load(&c->failed)) /* the thread tells it within a beat */
        nanosleep(&pause, NULL);
}

/* ---- said in turn -------------------------------------------------------------------------------------------------
 */

static enum dtp_status lost(const struct dtp_control *c, uint32_t peer, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "rank %u lost rank %u", c->ranks.rank, peer);
}

enum dtp_status dtp_control_broadcast(struct dtp_control *c, void *data, uint32_t bytes, struct dtp_faults *faults)
{
    if (c->ranks.world > 1 && c->ranks.rank != 0)
        return receive_all(c->peer[0].socket[LINE_TURNS], data, bytes) ? DTP_OK : lost(c, 0, faults);
    for (uint32_t i = 1; i < c->peer_count; i++)
        if (!send_all(c->peer[i].socket[LINE_TURNS], data, bytes))
            return lost(c, i, faults);
    return DTP_OK;
}

enum dtp_status dtp_control_gather(struct dtp_control *c, const void *data, uint32_t bytes, void *all,
                                   struct dtp_faults *faults)
{
    if (c->ranks.world > 1 && c->ranks.rank != 0)
        return send_all(c->peer[0].socket[LINE_TURNS], data, bytes) ? DTP_OK : lost(c, 0, faults);
    memcpy(all, data, bytes);
    for (uint32_t i = 1; i < c->peer_count; i++)
        if (!receive_all(c->peer[i].socket[LINE_TURNS], (char *)all + (size_t)i * bytes, bytes))
            return lost(c, i, faults);
    return DTP_OK;
}

enum dtp_status dtp_control_barrier(struct dtp_control *c, struct dtp_faults *faults)
{
    uint8_t here_now = 1, *all = c->ranks.rank == 0 ? malloc(c->ranks.world) : NULL;
    if (c->ranks.rank == 0 && !all)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %u ranks", c->ranks.world);
    enum dtp_status status = dtp_control_gather(c, &here_now, 1, all, faults);
    free(all);
    return status == DTP_OK ? dtp_control_broadcast(c, &here_now, 1, faults) : status;
}
