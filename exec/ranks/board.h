/* What ranks leave behind for the launcher that starts them again: a page of memory that outlives them.
 *
 * Ranks that fall together all end with the same status, whoever was to blame. So each writes here whom the failure was
 * told of, and rank 0 how far the run has come; the launcher reads it when they have ended. The page is a memory file
 * whose descriptor the ranks inherit (DTPLAN_BOARD). Under another launcher there is none, and nothing is written. */
#ifndef DTP_BOARD_H
#define DTP_BOARD_H

#include "base/rank_loss.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DTP_BOARD_RANKS 1024u

struct dtp_board {
    _Atomic uint64_t furthest;            /* step that has ended, of any generation */
    atomic_uint stepping;                 /* 1 + generation that has ended a step */
    atomic_bool finished;                 /* all steps are done, or the user stopped the run */
    atomic_bool regrouped;                /* ranks ended on purpose, to begin again with others */
    _Atomic double stepped_s;             /* of clock.h: when that generation's last step ended */
    _Atomic double noticed_s;             /* when the first rank was told that another had failed; 0: none was */
    atomic_uint accused[DTP_BOARD_RANKS]; /* by rank: 1 + the one it was told had failed */
    atomic_uint how[DTP_BOARD_RANKS];     /* by rank: enum dtp_rank_loss of that one */
};

/* The launcher makes it, for as long as it lives. NULL: no memory. */
struct dtp_board *dtp_board_make(void);
/* A rank finds its launcher's; NULL: it has none. */
struct dtp_board *dtp_board_find(void);
void dtp_board_accuse(struct dtp_board *board, uint32_t rank, uint32_t failed, enum dtp_rank_loss how);
/* Whom most of `ranks` were told of, himself not counted; of two with as many the later, for a rank that is cut off
 * blames rank 0. UINT32_MAX: nobody. *how: as they were told. */
uint32_t dtp_board_blamed(const struct dtp_board *board, uint32_t ranks, enum dtp_rank_loss *how);
/* Forgets who was accused and when, before the next generation. */
void dtp_board_clear(struct dtp_board *board);

#endif
