/* What a rank of a pipeline has of the slice's parameters, in bytes, and of what of them is trained: the same but
 * beside adapters, where gradients and state are of layers alone. */
#ifndef DTP_STAGE_SHARE_H
#define DTP_STAGE_SHARE_H

#include "closed/closed_form_hooks.h"

#include <math.h>

struct dtp_stage_share {
    double params, trained;
};

/* Of a rank with so many layers and tables (embedding, head); positions are the first stage's, under DeepSpeed's engine
 * taken for all, whose gradients are no owner's that is scaled. */
struct dtp_stage_share dtp_stage_share_of(const struct dtp_slice *slice, double layers, double tables, bool positions);

static inline double dtp_stage_share_of_owner(const struct dtp_stage_share *share, enum dtp_owner owner)
{
    return owner == DTP_OWNER_PARAMS ? share->params : share->trained;
}
static inline struct dtp_stage_share dtp_stage_share_larger(struct dtp_stage_share a, struct dtp_stage_share b)
{
    return (struct dtp_stage_share){fmax(a.params, b.params), fmax(a.trained, b.trained)};
}

#endif
