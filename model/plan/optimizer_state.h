/* State and temporaries of optimizers whose bytes are not a number for each parameter but follow from the shape of each
 * tensor: Adafactor's sums over rows and columns (optimizer.def: FACTORS). */
#ifndef DTP_OPTIMIZER_STATE_H
#define DTP_OPTIMIZER_STATE_H

#include "plan/rules.h"

/* True where state is counted tensor by tensor. */
bool dtp_optimizer_by_tensor(const struct dtp_plan *plan);

/* Elements of its state beside a matrix, or several equal ones together, of so many rows and columns; a vector's are
 * its own. */
uint64_t dtp_optimizer_factor_elements(uint64_t rows, uint64_t columns);

/* Bytes of all state of a rank that holds the whole model: `elements` parameters. */
uint64_t dtp_optimizer_whole_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                   const struct dtp_element_bytes *bytes, uint64_t elements);

/* What a step on the device makes and gives back, of a rank that updates `elements` parameters: foreach AdamW's list of
 * square roots; Adafactor's estimates of two tensors. */
uint64_t dtp_optimizer_scratch_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                     uint64_t elements);

#endif
