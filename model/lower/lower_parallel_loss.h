/* Cross entropy of tensor parallel ranks, who have columns of the logits each; of model/lower alone. */
#ifndef DTP_LOWER_PARALLEL_LOSS_H
#define DTP_LOWER_PARALLEL_LOSS_H

#include "lower/lowering.h"

/* How the last reader uses the logits: it lets them go, unless the stage holds them. */
uint32_t dtp_lower_last_of_logits(const struct dtp_lowering *l);
/* Statistics of rows over all ranks' columns; none where a rank has all columns. */
dtp_buffer_id dtp_lower_reduce_rows(struct dtp_lowering *l, uint64_t tokens);
/* PyTorch's loss_parallel, compiled: whether it is the loss; its forward; the gradient of the logits. */
bool dtp_lower_compiled_in_parallel(const struct dtp_lowering *l);
void dtp_lower_parallel_loss(struct dtp_lowering *l, uint64_t tokens);
void dtp_lower_parallel_gradient(struct dtp_lowering *l, uint64_t tokens);
/* The same, eager: whether; the gradient of `logits` logits in fp32, `wide_bytes` of them all. */
bool dtp_lower_parallel_in_python(const struct dtp_lowering *l);
void dtp_lower_parallel_python_gradient(struct dtp_lowering *l, double logits, uint64_t wide_bytes);
/* Each rank gathers all columns of the logits (gathered_logits): whether; the logits of all, side by side; of their
 * gradient the rank's columns. */
static inline bool dtp_lower_gathers_logits(const struct dtp_lowering *l)
{
    return l->plan->gathered_logits && l->plan->vocab_ranks > 1;
}
void dtp_lower_gather_logits(struct dtp_lowering *l);
void dtp_lower_cut_logits_gradient(struct dtp_lowering *l);

#endif
