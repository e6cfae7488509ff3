/* Steps of GaLore and APOLLO over matrices of blocks under torch: products of each one's gradient with its projection,
 * and passes beside them (plan/optimizer_state.h: dtp_projection_of). */
#ifndef DTP_LOWER_PROJECTED_H
#define DTP_LOWER_PROJECTED_H

#include "lower/lowering.h"

/* Of the module at `index`; returns the elements whose step it is, 0 where the plan's optimizer projects nothing. */
uint64_t dtp_lower_projected(struct dtp_lowering *l, const struct dtp_lower_module *module, uint64_t index);

#endif
