/* A lane: calls that a thread of its own makes in their order, beside the rank that asks for them.
 *
 * Of the host device, transfers between the stages of a pipeline run so: a rank that waited for each until the other
 * end has come would stand still where a schedule says that it computes, or for ever. */
#ifndef DTP_LANE_H
#define DTP_LANE_H

#include "base/status.h"

#include <stddef.h>

struct dtp_lane; /* opaque */

/* Bytes of an argument, which is copied. */
#define DTP_LANE_ARGUMENT_BYTES 128u

/* DTP_ENVIRONMENT: no thread, no memory. Destroying waits for all calls. */
enum dtp_status dtp_lane_create(struct dtp_lane **out, struct dtp_faults *faults);
void dtp_lane_destroy(struct dtp_lane *lane);
/* `call` returns 0, or a code that is kept if it is the first. 0, or the code of a lane without memory. */
#define DTP_LANE_NO_MEMORY (-1)
int dtp_lane_call(struct dtp_lane *lane, int (*call)(void *argument), const void *argument, size_t bytes);
/* Waits until all calls so far are done; the first code that one returned, and 0 where all did. */
int dtp_lane_drain(struct dtp_lane *lane);
int dtp_lane_code(struct dtp_lane *lane);

#endif
