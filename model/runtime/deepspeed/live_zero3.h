/* Live bytes of what ZeRO stage 3 fetches and reduces, without operations. Fetches run as many layers ahead as there is
 * room for, and buckets are full anywhere in a layer, so a step of few layers does neither like the whole one. In one
 * that is read for its live bytes lower_zero3.c only tells when a module uses a parameter, when the operation that
 * reads it is through and when a gradient is made; here stands, for the sum over all layers (program/live_runs.h), what
 * then comes and goes, to the byte what its operations allocate and free.
 *
 * Not of ZeRO++, of a single rank, of experts, and of gradients larger than the bucket. */
#ifndef DTP_LIVE_ZERO3_H
#define DTP_LIVE_ZERO3_H

#include "runtime/deepspeed/lower_zero3.h"

/* What is told: one of these; of the latter two with the part of the module added. */
enum dtp_zero3_told {
    DTP_ZERO3_TOLD_UNFETCH = 1,
    DTP_ZERO3_TOLD_BEGIN, /* of a micro-step */
    DTP_ZERO3_TOLD_BEGIN_LAST,
    DTP_ZERO3_TOLD_END,
    DTP_ZERO3_TOLD_FETCH = DTP_ZERO3_PARTS,
    DTP_ZERO3_TOLD_GRADIENT = 2 * DTP_ZERO3_PARTS
};

bool dtp_zero3_may_tell(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* Fills the teller; `shape` is of the whole net. */
enum dtp_status dtp_zero3_teller(const struct dtp_lowering *l, const struct dtp_zero3_shape *shape,
                                 struct dtp_live_teller *out);
/* `what` at the module at hand, in a step that is read for its live bytes. */
void dtp_zero3_tell(struct dtp_lowering *l, int what);

#endif
