/* What the operators around experts' matmuls move through HBM, beside executor_block.h's others. */
#ifndef DTP_EXECUTOR_EXPERT_TRAFFIC_H
#define DTP_EXECUTOR_EXPERT_TRAFFIC_H

#include "runtime/dtplan/executor_block.h"

struct dtp_executor_traffic dtp_executor_expert_forward_traffic(const struct dtp_executor_block *block,
                                                                const struct dtp_executor_operator *op);
struct dtp_executor_traffic dtp_executor_expert_backward_traffic(const struct dtp_executor_block *block,
                                                                 const struct dtp_executor_operator *op);

#endif
