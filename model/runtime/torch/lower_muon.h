/* Muon's update of the matrices of a block: products, then passes over them (plan/optimizer_state.h). */
#ifndef DTP_LOWER_MUON_H
#define DTP_LOWER_MUON_H

#include "lower/lowering.h"

/* A product [m, k] x [k, n] of the optimizer's step on the parameters of a module, so many times in a row. */
struct dtp_optimizer_product {
    dtp_buffer_id params;
    double m, n, k;
    uint32_t times;
    enum dtp_dtype dtype;
};
void dtp_lower_optimizer_product(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name,
                                 const struct dtp_optimizer_product *product);

/* Of module `index`, where the plan has that optimizer. Returned: elements that it updates, 0 elsewhere. */
uint64_t dtp_lower_muon(struct dtp_lowering *l, const struct dtp_lower_module *module, uint64_t index);

#endif
