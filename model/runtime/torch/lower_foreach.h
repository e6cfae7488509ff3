/* foreach AdamW of PyTorch makes a list of sqrt(v) of all local parameters while it steps. */
#ifndef DTP_LOWER_FOREACH_H
#define DTP_LOWER_FOREACH_H

#include "lower/lowering.h"

/* Makes it for `elements`, where the plan has that optimizer on the device; DTP_NO_BUFFER where not. */
dtp_buffer_id dtp_lower_foreach_begin(struct dtp_lowering *l, uint64_t elements);
void dtp_lower_foreach_end(struct dtp_lowering *l, dtp_buffer_id roots);

#endif
