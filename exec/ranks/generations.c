#include "ranks/generations.h"

#include "base/append.h"
#include "base/clock.h"
#include "ranks/launcher.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRUITLESS_MOST 3      /* generations that came no further */
#define FRUITLESS_PAUSE_S 1.0 /* before the next attempt, where the last came no further */

struct launching {
    const struct dtp_elastic_launch *of;
    struct dtp_board *board;
    struct dtp_generation generation;
    uint32_t slots[DTP_SLOTS_MAX]; /* of the generation's ranks */
    double back_s[DTP_SLOTS_MAX];  /* by slot: when it may be used again; 0: now */
    struct dtp_rank_end ends[DTP_SLOTS_MAX];
    bool stopped, asked; /* by the user; ranks to regroup */
    uint64_t furthest;
    uint32_t fruitless;
};

/* ---- who takes part ---------------------------------------------------------------------------------------------- */

/* The most ranks that a plan can be made for, of the slots that are there at `time_s`; 0: fewer than may be. */
static uint32_t ranks_at(const struct launching *l, double time_s)
{
    uint32_t there = 0;
    for (uint32_t slot = 0; slot < l->of->most; slot++)
        there += l->back_s[slot] <= time_s;
    while (there >= l->of->least && !l->of->possible(l->of->context, there))
        there--;
    return there >= l->of->least ? there : 0;
}

static void take_slots(struct launching *l, double time_s)
{
    uint32_t taken = 0;
    for (uint32_t slot = 0; slot < l->of->most && taken < l->generation.ranks; slot++)
        if (l->back_s[slot] <= time_s)
            l->slots[taken++] = slot;
}

/* Waits until enough slots are back; false: a signal said to stop. */
static bool gather_slots(struct launching *l)
{
    const struct timespec pause = {.tv_nsec = 200000000};
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    for (bool said = false; (l->generation.ranks = ranks_at(l, dtp_now_s())) == 0; said = true) {
        if (!said)
            l->of->say(l->of->context, &l->generation);
        if (sigtimedwait(&stops, NULL, &pause) > 0)
            return false;
    }
    take_slots(l, dtp_now_s());
    return true;
}

/* ---- while they train -------------------------------------------------------------------------------------------- */

static void tell_rank(void *launching, uint32_t rank)
{
    const struct launching *l = launching;
    char text[16];
    snprintf(text, sizeof text, "%u", l->slots[rank]);
    setenv("DTPLAN_SLOT", text, 1);
    snprintf(text, sizeof text, "%u", l->generation.number);
    setenv("DTPLAN_GENERATION", text, 1);
}

/* Ranks are asked to regroup once, when more of them could train and they have ended a step themselves. */
static int regroup_signal(void *launching)
{
    struct launching *l = launching;
    bool stepping = atomic_load(&l->board->stepping) == l->generation.number + 1;
    if (l->asked || !stepping || ranks_at(l, dtp_now_s()) <= l->generation.ranks)
        return 0;
    l->asked = true;
    return SIGUSR1;
}

/* ---- when they have ended ---------------------------------------------------------------------------------------- */

static void lose(struct launching *l, uint32_t rank, const char *how)
{
    dtp_append(l->generation.why, sizeof l->generation.why, "%srank %u %s", l->generation.why[0] ? ", " : "", rank,
               how);
    l->back_s[l->slots[rank]] = l->of->waits ? 0 : dtp_now_s() + l->of->return_after_s;
}

static const char *words_of(enum dtp_rank_loss how)
{
    static const char *const words[DTP_LOSS_COUNT] = {
        [DTP_LOSS_UNKNOWN] = "failed",    [DTP_LOSS_CLOSED] = "was cut off or ended without a word",
        [DTP_LOSS_SILENT] = "was silent", [DTP_LOSS_HUNG] = "made no progress before its deadline",
        [DTP_LOSS_GAVE_UP] = "gave up",
    };
    return words[how];
}

/* When a rank knew first, and when all had ended. A rank that a signal ended before any had met is noticed by the
 * launcher alone. */
static void find_times(struct launching *l, double begun_s, double ended_s)
{
    bool stepped = atomic_load(&l->board->stepping) == l->generation.number + 1;
    double since_s = stepped ? atomic_load(&l->board->stepped_s) : begun_s,
           noticed_s = atomic_load(&l->board->noticed_s);
    l->generation.noticed_s = noticed_s > 0 ? noticed_s - since_s : (double)NAN;
    l->generation.ended_s = ended_s - since_s;
}

/* Marks the slots of those who were lost. A rank that had to be killed may be one that was slow to end with the others,
 * so that counts last. */
static void find_lost(struct launching *l)
{
    char how[64];
    l->generation.why[0] = '\0';
    for (uint32_t rank = 0; rank < l->generation.ranks; rank++)
        if (l->ends[rank].signal) {
            snprintf(how, sizeof how, "was ended by signal %d", l->ends[rank].signal);
            lose(l, rank, how);
        }
    enum dtp_rank_loss told;
    uint32_t blamed = dtp_board_blamed(l->board, l->generation.ranks, &told);
    l->generation.how = l->generation.why[0] ? DTP_LOSS_CLOSED : told;
    if (blamed != UINT32_MAX && !l->generation.why[0])
        lose(l, blamed, words_of(told));
    for (uint32_t rank = 0; rank < l->generation.ranks && !l->generation.why[0]; rank++)
        if (l->ends[rank].killed)
            lose(l, rank, "did not end and was killed");
    if (!l->generation.why[0])
        snprintf(l->generation.why, sizeof l->generation.why, "the ranks ended without one of them to blame");
}

static enum dtp_status worst_of(const struct launching *l)
{
    enum dtp_status worst = DTP_OK;
    for (uint32_t rank = 0; rank < l->generation.ranks; rank++)
        worst = dtp_worse(worst, l->ends[rank].status);
    return worst;
}

/* Whether another generation is to be started; else *status is the run's. */
static bool goes_on(struct launching *l, enum dtp_status *status, struct dtp_faults *faults)
{
    enum dtp_status worst = worst_of(l);
    *status = worst;
    if (l->stopped || atomic_load(&l->board->finished))
        return false;
    if (worst == DTP_OK && atomic_load(&l->board->regrouped)) {
        snprintf(l->generation.why, sizeof l->generation.why, "ranks came back");
        l->generation.how = DTP_LOSS_UNKNOWN;
        return true;
    }
    /* What is wrong with the plan or the numbers is so for any ranks. A rank that a signal ended counts as environment,
     * so the others' status is looked at by itself. */
    for (uint32_t rank = 0; rank < l->generation.ranks; rank++)
        if (l->ends[rank].status == DTP_NO || l->ends[rank].status == DTP_BAD_INPUT) {
            *status = l->ends[rank].status;
            return false;
        }
    find_lost(l);
    uint64_t furthest = atomic_load(&l->board->furthest);
    l->fruitless = furthest > l->furthest ? 0 : l->fruitless + 1;
    l->furthest = furthest;
    if (l->fruitless < FRUITLESS_MOST)
        return true;
    *status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                        "%d times in a row ranks were lost before they came beyond step %llu (%s); the run ends there",
                        FRUITLESS_MOST, (unsigned long long)furthest, l->generation.why);
    return false;
}

static enum dtp_status run_generations(struct launching *l, struct dtp_faults *faults)
{
    const struct timespec pause = {.tv_sec = (time_t)FRUITLESS_PAUSE_S};
    enum dtp_status status = DTP_OK;
    for (bool on = true; on; l->generation.number++) {
        struct dtp_faults unsaid = {0}; /* who ended how is in the words of the next generation */
        if (l->fruitless > 0)
            nanosleep(&pause, NULL);
        if (!gather_slots(l))
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "stopped by a signal while waiting for lost ranks");
        l->of->say(l->of->context, &l->generation);
        dtp_board_clear(l->board);
        l->asked = false;
        const struct dtp_launch launch = {.argv = l->of->argv,
                                          .ranks = l->generation.ranks,
                                          .grace_s = DTP_LOST_GRACE_S,
                                          .tell = tell_rank,
                                          .tick = regroup_signal,
                                          .context = l,
                                          .ends = l->ends,
                                          .stopped = &l->stopped};
        memset(l->ends, 0, sizeof l->ends);
        double begun_s = dtp_now_s();
        status = dtp_launch_ranks(&launch, &unsaid);
        find_times(l, begun_s, dtp_now_s());
        on = goes_on(l, &status, faults);
    }
    return status;
}

enum dtp_status dtp_launch_elastic(const struct dtp_elastic_launch *launch, struct dtp_faults *faults)
{
    sigset_t held, before;
    struct launching *l = calloc(1, sizeof *l);
    struct dtp_board *board = dtp_board_make();
    if (!l || !board) {
        free(l);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to launch ranks with");
    }
    l->of = launch;
    l->board = board;
    l->generation.slots = l->slots;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigprocmask(SIG_BLOCK, &held, &before); /* between generations too, where nobody else would hear of them */
    enum dtp_status status = run_generations(l, faults);
    sigprocmask(SIG_SETMASK, &before, NULL);
    free(l);
    return status;
}
