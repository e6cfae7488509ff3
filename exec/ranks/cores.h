/* Which cores of its machine a rank works on: those near its GPU, shared out among the ranks that would take the same.
 *
 * A rank's threads (that issue, NCCL's, AdamW's) inherit what the first one is bound to, and memory they touch first
 * lies near them. Launchers that bind ranks themselves (srun --cpu-bind) are obeyed: nothing outside of that is taken.
 */
#ifndef DTP_CORES_H
#define DTP_CORES_H

#include "ranks/world.h"

#include <sched.h>

struct dtp_cores_claim {
    uint64_t machine; /* equal on ranks of one machine */
    cpu_set_t pool;   /* what the rank may run on; of that what is near its GPU, where that is known */
};

/* "0-15,64-79" as /sys writes it; false where it is none. */
bool dtp_cores_parse(const char *list, cpu_set_t *out);

/* What the rank would take were it alone. `numa_node` of its GPU, -1: unknown, or the machine has but one. */
void dtp_cores_claim(int numa_node, struct dtp_cores_claim *out);
/* The rank's even part of its pool among the ranks of the same machine and pool, in their order; the whole pool where
 * it has fewer cores than they are. */
void dtp_cores_share(const struct dtp_cores_claim *claims, uint32_t ranks, uint32_t rank, cpu_set_t *out);

/* Binds the calling thread to its rank's share; all ranks of the world call it. A system that refuses costs speed only,
 * so only the exchange fails (DTP_ENVIRONMENT). */
enum dtp_status dtp_cores_take(struct dtp_world *world, int numa_node, struct dtp_faults *faults);

#endif
