/* Host time of PyTorch's tensor parallel ranks, whose layers are DTensors.
 *
 * Eager, each call on DTensors looks its rule up in Python, for hundreds of microseconds (dtensor_launch_s), while what
 * stands between works on local tensors at any kernel's launch. So the host bounds such steps long before the GPU does,
 * and collectives and the optimizer, which are calls too, hide in its time. Counted is torchtitan's Llama block
 * (models/llama3, parallelize.py): a linear wraps its input, multiplies and unwraps its result, a norm is one call
 * forward and three backward (compiled two), one more adds the vectors' gradients, whose sums over the ranks are one
 * each; around attention and around the MLP rows are gathered and summed. Compiled layers are wrapped around alone.
 * Of another block only the number of matrices is its own: two norms a layer, one behind them and an untied head stay
 * as in Llama, so norms of heads or behind branches are left out. */
#ifndef DTP_TENSOR_CALLS_H
#define DTP_TENSOR_CALLS_H

#include "net/transformer.h"
#include "plan/plan.h"

/* Seconds beyond those that a slice's kernels take at any kernel's launch, and its blocks' calls. */
struct dtp_tensor_calls {
    double layer_s; /* of a layer in a micro-step, both ways, and again where it is checkpointed */
    double ends_s;  /* of embedding, head and loss in a micro-step */
    double table_s; /* of these the embedding, which is another stage's than head and loss */
    double step_s;  /* of the optimizer, of a layer or of both ends: in a step, all of it */
};

/* All 0 where no layer is a DTensor. */
struct dtp_tensor_calls dtp_tensor_calls_of(const struct dtp_transformer *transformer,
                                            const struct dtp_cluster *cluster, const struct dtp_plan *plan);

#endif
