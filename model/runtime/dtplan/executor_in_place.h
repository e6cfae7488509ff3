/* What gpt-oss adds to a block, each in place on a result: attention sinks, biases of experts' matrices. */
#ifndef DTP_EXECUTOR_IN_PLACE_H
#define DTP_EXECUTOR_IN_PLACE_H

#include "runtime/dtplan/executor_block.h"

void dtp_executor_add_sinks(struct dtp_executor_block *block);
void dtp_executor_add_expert_bias(struct dtp_executor_block *block, const struct dtp_layer_matrix *matrix);
/* Elements of what is learned, and bytes through HBM of forward or backward. */
uint64_t dtp_executor_in_place_elements(const struct dtp_executor_block *block, const struct dtp_executor_operator *op);
struct dtp_executor_traffic dtp_executor_in_place_traffic(const struct dtp_executor_block *block,
                                                          const struct dtp_executor_operator *op, bool backward);

#endif
