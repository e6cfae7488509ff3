/* torchtitan's checkpointing by operators (selective_ac_option "op"): what its policy keeps of a layer's forward beside
 * its input (distributed/activation_checkpoint.py, _apply_op_sac; the lists of models/NAME/infra/parallelize.py, 0.2.2;
 * measured: its own trainer, live tensors at a step's peak, reports/h200/torchtitan_runs.md).
 *
 * Of matmuls every second one's result stays, from the first on in the order they run. A router's is not counted
 * (per_op_sac_force_recompute_mm_shapes_by_fqns), grouped ones of experts are no aten.mm. Of attention's fused kernels
 * the result and its log-sum-exp stay. What a reduce-scatter makes of tensor parallel ranks' terms stays: a matmul that
 * is not kept runs again for terms that nobody sums, of one that is they stay besides; a compiler drops such terms, and
 * the last result, which nobody reads. What all-to-all brings and takes back stays in models with latent attention: the
 * lists of others have it not (Qwen3's). */
#ifndef DTP_SECOND_MATMULS_H
#define DTP_SECOND_MATMULS_H

#include "plan/layer_tensors.h"

/* Whether the policy keeps what this matmul of the layer makes; and whether it runs again. */
bool dtp_second_matmul(const struct dtp_layer_kind *kind, int matrix);
bool dtp_second_matmul_again(const struct dtp_layer_kind *kind, const struct dtp_plan *plan, int matrix);
/* Sets, bits by enum dtp_layer_tensor. The last matmul's result nobody reads again: an eager cache keeps it, a compiler
 * drops it. */
uint64_t dtp_second_matmuls(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan);
/* Beside packed weights all matmuls' results (DTP_KEEPS_PACKED_MATMULS). */
uint64_t dtp_packed_matmuls(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan);
/* Whether sums over tensor parallel ranks are kept as eager operators leave them: with the last matmul's terms, if it
 * is one that is kept. */
bool dtp_keeps_eager_sums(const struct dtp_plan *plan);
bool dtp_keeps_terms(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan);

#endif
