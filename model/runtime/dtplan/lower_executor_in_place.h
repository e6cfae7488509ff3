/* Backward of what works in place on results (executor_in_place.h): the gradients of what is learned; the results' own
 * goes on as it is. */
#ifndef DTP_LOWER_EXECUTOR_IN_PLACE_H
#define DTP_LOWER_EXECUTOR_IN_PLACE_H

#include "runtime/dtplan/lower_executor_state.h"

void dtp_executor_sinks_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op);
void dtp_executor_expert_bias_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op);

#endif
