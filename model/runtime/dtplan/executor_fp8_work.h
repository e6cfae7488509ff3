#ifndef DTP_EXECUTOR_FP8_WORK_H
#define DTP_EXECUTOR_FP8_WORK_H

#include "runtime/dtplan/executor_block.h"

/* A cast of so many elements into this form, by rows, by columns or both: bytes read and written, and launches. Where
 * scales are of parts, the largest of rows are found in a row's second reading, out of cache, those of columns in a
 * pass before, and those of blocks in the cast itself. Scales are left out, 3 % of a cast at most. */
struct dtp_executor_traffic dtp_executor_cast_traffic(enum dtp_form form, double elements, bool by_rows,
                                                      bool by_columns);

/* Of a block and a micro-step, beside what its operators move in bf16: forward, a checkpointed block's forward and
 * replay, backward of either; the weights' amax once a step. Zeros where the plan is not in fp8. A checkpointed block
 * keeps `keeps` and runs the operators of `again` once more. */
struct dtp_executor_fp8_work {
    struct dtp_executor_traffic forward, checkpointed_forward, again, backward, checkpointed_backward, weights_amax;
};
struct dtp_executor_fp8_work dtp_executor_fp8_work(const struct dtp_executor_block *block,
                                                   enum dtp_checkpoint_keeps keeps, uint32_t again);

/* What is moved where scales of so many tensors are made of what was largest in earlier steps. */
static inline double dtp_executor_history_bytes(double tensors)
{
    return tensors * (2.0 * 4 * DTP_EXECUTOR_AMAX_HISTORY + 8);
}

/* Gradient of a projection's bias, whose sums are a pass of their own: bytes of the result's gradient read and of
 * partial sums written and read. */
double dtp_executor_bias_gradient_bytes(const struct dtp_executor_block *block, const struct dtp_layer_matrix *matrix);
/* Elements of the biases of all projections whose gradients are such passes: 0 where the plan is not in fp8. */
uint64_t dtp_executor_fp8_bias_elements(const struct dtp_executor_block *block);

#endif
