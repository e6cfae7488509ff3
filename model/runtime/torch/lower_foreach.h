/* What an optimizer's step makes and gives back (plan/optimizer_state.h): foreach AdamW of PyTorch a list of sqrt(v) of
 * all local parameters; Adafactor estimates of a tensor, while those of the tensor before still have a name. */
#ifndef DTP_LOWER_FOREACH_H
#define DTP_LOWER_FOREACH_H

#include "lower/lowering.h"

/* Makes it for `elements`, where the plan's optimizer makes any on the device; DTP_NO_BUFFER where not. */
dtp_buffer_id dtp_lower_foreach_begin(struct dtp_lowering *l, uint64_t elements);
void dtp_lower_foreach_end(struct dtp_lowering *l, dtp_buffer_id made);

#endif
