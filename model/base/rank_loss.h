/* How a run that several ranks train notices that one of them was lost, and how long that takes. What ranks and their
 * launcher wait by and what reports predict is the same numbers. */
#ifndef DTP_RANK_LOSS_H
#define DTP_RANK_LOSS_H

#include <math.h>

#define DTP_BEAT_S 0.5       /* between a rank's heartbeats */
#define DTP_SILENCE_S 10.0   /* without one, after which a rank counts as stopped */
#define DTP_LOST_GRACE_S 2.0 /* that an elastic run's other ranks have to end, once one has; then they are told to */
/* A rank whose step takes longer than this and so many times the last one hangs; the first loads libraries and
 * connects. */
#define DTP_SLOW_FIRST_STEP_S 600.0
#define DTP_SLOW_STEP_S 60.0
#define DTP_SLOW_STEPS 30.0

#define DTP_RANK_LOSS_TABLE(X)                                                                                         \
    X(UNKNOWN, "unknown")       /* nobody was told, or the run is regrouped */                                         \
    X(CLOSED, "connection")     /* its connections ended: it died, or its network was cut */                           \
    X(SILENT, "silence")        /* nothing was heard of it: it is stopped, or what it sends is dropped */              \
    X(HUNG, "deadline")         /* it is there and made no progress */                                                 \
    X(GAVE_UP, "its own words") /* it told the others why it ends */
enum dtp_rank_loss {
#define X(name, words) DTP_LOSS_##name,
    DTP_RANK_LOSS_TABLE(X)
#undef X
        DTP_LOSS_COUNT
};

/* How a lost rank is noticed, as reports name it; of no such number as of UNKNOWN. */
static inline const char *dtp_rank_loss_words(unsigned how)
{
    static const char *const words[] = {
#define X(name, words) words,
        DTP_RANK_LOSS_TABLE(X)
#undef X
    };
    return words[how < DTP_LOSS_COUNT ? how : DTP_LOSS_UNKNOWN];
}

/* Seconds that a step may take; the last one took `last_step_s`, 0: there was none. */
static inline double dtp_step_deadline_s(double last_step_s)
{
    return (last_step_s > 0 ? DTP_SLOW_STEP_S : DTP_SLOW_FIRST_STEP_S) + DTP_SLOW_STEPS * last_step_s;
}

/* From the end of the last step until another rank knows, expected, where steps take `step_s`. What happens to a rank
 * happens in the middle of a step on average, half a beat after its last one; silence is looked for about once a beat.
 * A deadline runs from the step's begin. NAN: not known. */
static inline double dtp_rank_loss_noticed_s(enum dtp_rank_loss how, double step_s)
{
    switch (how) {
    case DTP_LOSS_CLOSED:
    case DTP_LOSS_GAVE_UP: return step_s / 2;
    case DTP_LOSS_SILENT: return step_s / 2 + DTP_SILENCE_S;
    case DTP_LOSS_HUNG: return dtp_step_deadline_s(step_s);
    case DTP_LOSS_UNKNOWN:
    case DTP_LOSS_COUNT: break;
    }
    return (double)NAN;
}

/* Until all ranks of an elastic run have ended. Who was told ends at once; one that is silent does not hear of it, and
 * is ended when the others' grace is over. */
static inline double dtp_rank_loss_ended_s(enum dtp_rank_loss how, double step_s)
{
    return dtp_rank_loss_noticed_s(how, step_s) + (how == DTP_LOSS_SILENT ? DTP_LOST_GRACE_S : 0);
}

#endif
