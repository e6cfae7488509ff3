/* The ranks of a run as training sees them: who they are, what they tell each other between steps, and what carries
 * their collectives. One rank needs none of it, and every verb here then does nothing. */
#ifndef DTP_WORLD_H
#define DTP_WORLD_H

#include "communicator.h"

struct dtp_world {
    struct dtp_ranks ranks; /* world 1 without a launcher */
    struct dtp_control *control;
    struct dtp_communicator *communicator;
    const struct dtp_program *program; /* to say where a rank failed; borrowed */
    struct dtp_communicator_choice choice; /* set before connecting, where the library is not to choose */
};

/* Meets the other ranks, who must run the same program; NULL: none yet, `program` of *out is set later. From then on a
 * rank that fails ends all: each says which it was and in which operation, and exits with DTP_ENVIRONMENT. */
enum dtp_status dtp_world_join(const struct dtp_ranks *ranks, const struct dtp_program *program, struct dtp_world *out,
                               struct dtp_faults *faults);
/* Makes the communicator, of shared memory or NCCL: for the program's groups, or for others. */
enum dtp_status dtp_world_connect(struct dtp_world *world, bool cuda, struct dtp_faults *faults);
enum dtp_status dtp_world_connect_groups(struct dtp_world *world, const struct dtp_program_group *groups, uint32_t count,
                                         bool cuda, struct dtp_faults *faults);
/* Ends the communicator, before the memory goes that it carried; `failed`: collectives may still be in flight. */
void dtp_world_disconnect(struct dtp_world *world, bool failed);
void dtp_world_leave(struct dtp_world *world);

/* The worst status of all ranks. Where this rank's is bad but others must hear why, give it `faults` of it. */
enum dtp_status dtp_world_agree(struct dtp_world *world, enum dtp_status mine);

/* Once a step: sums over ranks. */
struct dtp_world_sums {
    double loss_sum, stops;
};
enum dtp_status dtp_world_sum(struct dtp_world *world, struct dtp_world_sums *sums, struct dtp_faults *faults);

/* Where this rank is, and by when it must be somewhere else (0: never). */
void dtp_world_at(struct dtp_world *world, uint64_t step, uint32_t op);
void dtp_world_deadline(struct dtp_world *world, double seconds);

#endif
