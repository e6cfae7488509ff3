/* What goes to the host and comes back of checkpoints that wait there (activation_offload), in one micro-step. */
#ifndef DTP_CARRIED_H
#define DTP_CARRIED_H

#include "plan/plan.h"

struct dtp_carried_rows {
    uint64_t bytes;    /* of a copy: the residual stream of all tokens */
    uint64_t down, up; /* copies */
};
/* Beside kernels the final norm's input goes down as well, and what is still on its way when backward begins, that and
 * the last layer's, does not come up; between them each layer's goes and comes. All 0 without. */
struct dtp_carried_rows dtp_carried_rows_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
