/* AdamW on the CPU, for optimizer state that lives in host memory (ZeRO-Offload: Ren et al. 2021).
 *
 * Bound by host memory: for each parameter it reads the gradient (4 B, 2 in bf16), master and both moments (12 B), and
 * writes these three (12 B) and the new weight (4 or 2 B), some 30 B. So the loops are vectorised for the processor at
 * hand and stay in L1 (host_adam_update.c), and threads on cores of their own take piece after piece, so that one which
 * the system holds up does not hold up the others. Arithmetic is fp32, as in the device's kernel. */
#ifndef DTP_HOST_ADAM_H
#define DTP_HOST_ADAM_H

#include "kernels/kernels.h"
#include "base/status.h"

struct dtp_host_adam; /* the threads */

/* Threads on the part `index` of `parts` of the cores this process may use (the ranks of a machine share them); 0: one
 * per core of that part, but `spare` of them where it has eight or more, for the threads that issue and move data. */
struct dtp_host_adam_options {
    uint32_t threads, index, parts, spare;
};
/* Caller destroys. DTP_ENVIRONMENT: no thread could be started. */
enum dtp_status dtp_host_adam_create(const struct dtp_host_adam_options *options, struct dtp_host_adam **out,
                                     struct dtp_faults *faults);
void dtp_host_adam_destroy(struct dtp_host_adam *adam);
uint32_t dtp_host_adam_threads(const struct dtp_host_adam *adam);

/* Fills with zero, by all threads: pages that nobody has touched before come to lie near their cores. */
void dtp_host_adam_touch(struct dtp_host_adam *adam, void *memory, uint64_t bytes);

/* One update; one at a time. All pointers of `args` are to host memory. Returns when it is done. */
void dtp_host_adam_step(struct dtp_host_adam *adam, const struct dtp_adamw_args *args);

#endif
