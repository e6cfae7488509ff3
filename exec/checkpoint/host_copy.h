/* A copy of a rank's state in memory of the host, from which threads write while training goes on.
 *
 * State changes in the optimizer's step alone, so it is copied between two steps: that is what training stands still
 * for, and all of it: bytes over the rate at which the device copies to the host. The copy has the parts of the
 * original with values of its own, and is what snapshots and asynchronous checkpoints are written from. */
#ifndef DTP_HOST_COPY_H
#define DTP_HOST_COPY_H

#include "checkpoint/checkpoint.h"

struct dtp_host_copy {
    struct dtp_device *device;
    struct dtp_state_part *parts; /* one behind the other in memory */
    size_t count;
    char *memory; /* of allocate_host: pinned on CUDA */
    uint64_t bytes;
};

/* Room for these parts; nothing is copied yet. Caller releases. DTP_NO: the host does not have it. */
enum dtp_status dtp_host_copy_make(struct dtp_device *device, const struct dtp_state_part *parts, size_t count,
                                   struct dtp_host_copy *out, struct dtp_faults *faults);
/* Copies the parts' values, which must be those it was made for. Device streams must be idle. DTP_ENVIRONMENT: the
 * device failed. */
enum dtp_status dtp_host_copy_take(struct dtp_host_copy *copy, const struct dtp_state_part *parts,
                                   struct dtp_faults *faults);
void dtp_host_copy_release(struct dtp_host_copy *copy);

#endif
