/* The device a rank computes on, as settings and its place among the ranks of its machine say. */
#ifndef DTP_OPEN_DEVICE_H
#define DTP_OPEN_DEVICE_H

#include "device/device.h"
#include "base/execution.h"
#include "device/settings.h"
#include "ranks/world.h"

/* As the plan's kernels and collectives need it; NULL: as the default plan's, for any number of shapes
 * (brief_search). Caller destroys by device->verbs->destroy. DTP_ENVIRONMENT: no GPU of that number, or a build without
 * CUDA. */
enum dtp_status dtp_open_device(const struct dtp_settings *settings, const struct dtp_ranks *ranks,
                                const struct dtp_execution *execution, struct dtp_device **out,
                                struct dtp_faults *faults);

/* GPUs of this machine that --device cuda may use; 1 for the host device. No context is made.
 * DTP_ENVIRONMENT: a build without CUDA, no GPU, or no driver. */
enum dtp_status dtp_open_device_count(const struct dtp_settings *settings, uint32_t *out, struct dtp_faults *faults);

/* Which of them is this rank's; 0 for the host device. */
uint32_t dtp_open_device_ordinal(const struct dtp_settings *settings, const struct dtp_ranks *ranks);

/* Binds this rank to its share of its machine's cores (cores.h), where it drives a GPU; before anything makes threads,
 * which inherit it. All ranks call it. The host device's ranks may be more than there are cores. */
enum dtp_status dtp_take_cores(const struct dtp_settings *settings, struct dtp_world *world, struct dtp_faults *faults);

#endif
