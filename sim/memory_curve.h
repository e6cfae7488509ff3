/* Bytes on the device over the time of a step, by owner.
 *
 * The allocator hands out and takes back in the order in which the host issues, which may be far ahead of the device.
 * The curve keeps that order, so that its peak is the program's, and stretches it over the device's time: a point
 * stands where the compute stream comes to that place of the program. */
#ifndef DTP_MEMORY_CURVE_H
#define DTP_MEMORY_CURVE_H

#include "sim/simulate.h"

struct dtp_memory_point {
    double time_s;
    uint32_t op; /* after what it allocates, or frees */
    uint64_t bytes[DTP_OWNER_COUNT], total_bytes;
};

/* Points in the order of time, one at 0 and one wherever bytes change; they lie in `arena`. False: no memory. */
bool dtp_memory_curve(const struct dtp_program *program, const struct dtp_timeline *timeline,
                      struct dtp_host_arena *arena, const struct dtp_memory_point **points, size_t *count);

#endif
