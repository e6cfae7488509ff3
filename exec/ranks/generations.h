/* Ranks that are started again: dtp_launch for runs that go on when ranks are lost.
 *
 * A generation is ranks that train together. When one of them is lost all end, as they always do (control.h), and the
 * next generation goes on from the last snapshot, which lies in memory that outlives processes. Who was lost is the
 * rank that a signal ended, that had to be killed, or that the others were told of (board.h). The launcher numbers its
 * places for ranks, slots; a rank learns its own, by which it finds its memory.
 *
 * The rule: `wait`, and every slot is started again at once; or shrink, and the slots that were lost stay out until
 * return_after_s have passed, while as many of the others go on as the plan can be made for, `least` at the fewest;
 * where fewer are left, the launcher waits for those. When slots come back, ranks are asked to end between two steps
 * (SIGUSR1), and the larger world begins where they stopped. A run that comes no further in three generations ends. */
#ifndef DTP_GENERATIONS_H
#define DTP_GENERATIONS_H

#include "base/status.h"
#include "ranks/board.h"

#include <stdint.h>

#define DTP_SLOTS_MAX DTP_BOARD_RANKS

struct dtp_generation {
    uint32_t number;        /* from 0 */
    uint32_t ranks;         /* 0: it waits for ranks that were lost */
    const uint32_t *slots;  /* of its ranks */
    char why[256];          /* "" for the first: what ended the one before */
    enum dtp_rank_loss how; /* the rank that it names first was noticed */
    double noticed_s;       /* from the last step's end, or the generation's begin, until a rank knew; NAN: none did */
    double ended_s;         /* the same until all of its ranks had ended */
};

struct dtp_elastic_launch {
    char *const *argv; /* as of dtp_launch */
    uint32_t least, most;
    bool waits;
    double return_after_s;
    bool (*possible)(void *context, uint32_t ranks);                     /* whether a plan of so many can be made */
    void (*say)(void *context, const struct dtp_generation *generation); /* before it is started, or waited for */
    void *context;
};

/* Until all steps are done, the user stops the run, or nothing more can be done: then the worst status, with faults.
 * Ranks learn slot and generation by DTPLAN_SLOT and DTPLAN_GENERATION. */
enum dtp_status dtp_launch_elastic(const struct dtp_elastic_launch *launch, struct dtp_faults *faults);

#endif
