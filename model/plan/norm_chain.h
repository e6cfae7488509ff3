/* RMSNorm as a chain of PyTorch's operators on a copy in fp32, as Transformers writes it (modeling_llama.py,
 * LlamaRMSNorm.forward; those of Mistral, Qwen2 and others are copies of it), and as PyTorch's own models and
 * torch.nn.RMSNorm had it before 2.8 (norm_chain): cast, square, mean, rsqrt, product, cast back, product with the
 * weight. A kernel each, and autograd keeps the copy; where the stream is fp32 already, that is what the chain reads,
 * and the normed rows beside for the weight's gradient. */
#ifndef DTP_NORM_CHAIN_H
#define DTP_NORM_CHAIN_H

#include "plan/rules.h"

/* The plan's norms are such chains: RMSNorm, and neither compiled nor replaced by one kernel; or LayerNorm that
 * autocast runs in fp32 on a cast of a 16-bit stream (autocast), which each linear behind it casts. */
bool dtp_plan_chains_norms(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* So are the norms of queries and keys. */
bool dtp_plan_chains_qk_norms(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* Of an element of what is normed: bytes that its kernels read and write, without casts that linears behind it make
 * under autocast and without the sum of its gradient and the stream's; how many kernels they are; and bytes that stay
 * for backward beside the norm's input. `trained`: its weight. */
struct dtp_norm_chain {
    double forward, backward;
    double forward_elements, backward_elements; /* that kernels take one at a time (op_cost.h) */
    uint32_t forward_kernels, backward_kernels;
    uint64_t saved;
};
struct dtp_norm_chain dtp_norm_chain_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                        bool trained);
bool dtp_plan_casts_norms(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* The same elements of a norm that is one kernel forward and two backward: rows are summed, of LayerNorm twice. */
double dtp_norm_elements(const struct dtp_transformer *transformer, bool backward);

/* The same of the final norm alone, in bytes that stay; 0: it is no chain. */
uint64_t dtp_norm_chain_head(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* Sums over rows that backward of one norm of a block launches by themselves: compiled kernels sum a weight's gradient
 * by thread blocks, and torch._inductor leaves the second half, over what they summed, to aten::sum, one a vector
 * (reports/h200/torch_kernels.csv, jobs 1, 8, 9, 10). Eager and fused norms sum within what is counted of them. */
double dtp_norm_column_sums(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
