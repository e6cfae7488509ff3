/* The ranks of a run as training sees them: who they are, what they tell each other between steps, and what carries
 * their collectives. One rank needs none of it, and every verb here then does nothing. */
#ifndef DTP_WORLD_H
#define DTP_WORLD_H

#include "ranks/board.h"
#include "ranks/communicator.h"
#include "program/program_set.h"

#include <pthread.h>

struct dtp_world {
    struct dtp_ranks ranks; /* world 1 without a launcher */
    struct dtp_control *control;
    struct dtp_communicator *communicator;
    const struct dtp_program *program;     /* to say where a rank failed; borrowed */
    const struct dtp_program_set *set;     /* whose role that is; NULL: all ranks run it. Borrowed */
    bool parted;                           /* all know that they end: dtp_world_begin_together */
    uint64_t step;                         /* that this rank is in */
    pthread_mutex_t watch;                 /* of `ended` */
    const volatile uint32_t *ended;        /* dtp_world_watch */
    const char *checkpoints;               /* folder whose partial ones go when ranks fail together; NULL: none */
    void (*clean)(const char *folder);     /* removes those; set where checkpoints is */
    struct dtp_board *board;               /* of the launcher that starts ranks again; NULL: of another */
    struct dtp_communicator_choice choice; /* set before connecting, where the library is not to choose */
};

/* Meets the other ranks, who must run the same program; NULL: none yet, `program` of *out is set later. From then on a
 * rank that fails ends all: each says which it was and in which operation, and exits with the status that one gave up
 * with; DTP_ENVIRONMENT where it could not say. */
enum dtp_status dtp_world_join(const struct dtp_ranks *ranks, const struct dtp_program *program, struct dtp_world *out,
                               struct dtp_faults *faults);
/* The same of ranks that run the roles of a set: all must have the same set. DTP_BAD_INPUT: it has other ranks. */
enum dtp_status dtp_world_join_set(const struct dtp_ranks *ranks, const struct dtp_program_set *set,
                                   struct dtp_world *out, struct dtp_faults *faults);
/* Makes the communicator, of shared memory or NCCL: for the program's groups, or for others. Statuses are those of
 * dtp_communicator_..._create. */
enum dtp_status dtp_world_connect(struct dtp_world *world, bool cuda, struct dtp_faults *faults);
enum dtp_status dtp_world_connect_groups(struct dtp_world *world, const struct dtp_program_group *groups,
                                         uint32_t count, bool cuda, struct dtp_faults *faults);
/* Ends the communicator, before the memory goes that it carried; `failed`: collectives may still be in flight. */
void dtp_world_disconnect(struct dtp_world *world, bool failed);
void dtp_world_leave(struct dtp_world *world);

/* The worst status of all ranks. A fault where they could not be heard, with the rank that does not answer. */
enum dtp_status dtp_world_agree(struct dtp_world *world, enum dtp_status mine, struct dtp_faults *faults);
/* The same before the first step, where all end if one cannot begin: each with that status, and without a further word
 * between them. Where only others' are bad, names them in `faults`; what all say in the same words, rank 0 says alone:
 * the others' `faults` are empty then. */
enum dtp_status dtp_world_begin_together(struct dtp_world *world, enum dtp_status mine, struct dtp_faults *faults);
/* Ends all others with `status`, and the last of `faults` as the reason, unless all have heard already that they end.
 */
void dtp_world_give_up(struct dtp_world *world, enum dtp_status status, const struct dtp_faults *faults);

/* Every rank's `bytes` to all, in the order of ranks: `all` has room for those of the world. DTP_ENVIRONMENT, here and
 * of sums: a rank is gone. */
enum dtp_status dtp_world_exchange(struct dtp_world *world, const void *mine, uint32_t bytes, void *all,
                                   struct dtp_faults *faults);

/* Once a step: sums over ranks; `loop_s` is a mean. */
struct dtp_world_sums {
    double loss_sum, loop_s;
    double stops, regroups;               /* ranks that a signal told to */
    double snapshots_busy, snapshots_bad; /* whose last snapshot is being written, or could not be */
    double saves_busy, saves_bad;         /* the same of checkpoints */
};
enum dtp_status dtp_world_sum(struct dtp_world *world, struct dtp_world_sums *sums, struct dtp_faults *faults);

/* ended[s], of stream s: index + 1 of the collective that ended last in this step, 0 before the first; written while
 * the step runs. On a GPU operations are issued long before they begin: the collective that hangs is the first that has
 * not ended. NULL: no such memory any more. */
void dtp_world_watch(struct dtp_world *world, const volatile uint32_t *ended);

/* Where this rank is, steps counted from 1 (0: before the first), and by when it must be somewhere else (0: never). */
void dtp_world_step(struct dtp_world *world, uint64_t step);
void dtp_world_at(struct dtp_world *world, uint32_t op);
void dtp_world_deadline(struct dtp_world *world, double seconds);

#endif
