/* Muon's update of the matrices of a block: products, then passes over them (plan/optimizer_state.h). */
#ifndef DTP_LOWER_MUON_H
#define DTP_LOWER_MUON_H

#include "lower/lowering.h"

/* Of module `index`, where the plan has that optimizer. Returned: elements that it updates, 0 elsewhere. */
uint64_t dtp_lower_muon(struct dtp_lowering *l, const struct dtp_lower_module *module, uint64_t index);

#endif
