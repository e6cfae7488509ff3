/* Rows of tokens around experts' matmuls, and whose way they take. */
#ifndef DTP_EXPERT_ROWS_H
#define DTP_EXPERT_ROWS_H

#include "base/bytes.h"
#include "lower/lowering.h"

/* Of a token: c bytes of the compute dtype, k rows of h, which are more where experts' are filled up to a capacity. */
struct rows {
    double c, k, h, experts;
};

static inline struct rows rows_of(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    return (struct rows){(double)l->compute, (double)kind->experts_per_token * l->tensors.sent, (double)kind->hidden,
                         (double)kind->experts};
}

/* Bytes of all of the rank's own tokens: of tensor parallel ranks each has some. */
static inline uint64_t local_bytes(const struct dtp_lowering *l, uint64_t bytes_per_token)
{
    return dtp_divide_up(dtp_bytes_product(l->tokens, bytes_per_token), dtp_lower_token_parts(l));
}

/* Rows that the rank's experts get, for each that it sends. */
static inline double received(const struct dtp_lowering *l)
{
    return l->tensors.received / l->tensors.sent;
}

/* Megatron-Core's way. */
static inline bool weighs(const struct dtp_lowering *l)
{
    return l->tensors.kind.weighs_rows;
}

/* Transformers'. */
static inline bool calls(const struct dtp_lowering *l)
{
    return l->tensors.kind.calls_experts;
}

/* Megatron-Core's, by PyTorch's kernels. */
static inline bool unfused(const struct dtp_lowering *l)
{
    return l->plan->megatron.unfused_permute;
}

/* AutoEP's. */
static inline bool stacks(const struct dtp_lowering *l)
{
    return l->tensors.kind.stacks_rows;
}

/* A kernel, or several, that moves so many bytes of each token. */
static inline void draft_eager(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes_per_token,
                               uint32_t kernels)
{
    dtp_draft_memory(l, draft, bytes_per_token * (double)l->tokens / (double)dtp_lower_token_parts(l), kernels);
    draft->op.demand.memory_kernel = weighs(l) ? DTP_KERNEL_FUSED : DTP_KERNEL_EAGER;
}

#endif
