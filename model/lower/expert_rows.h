/* Rows of tokens around experts' matmuls, and whose way they take. */
#ifndef DTP_EXPERT_ROWS_H
#define DTP_EXPERT_ROWS_H

#include "base/bytes.h"
#include "lower/block_backward.h"
#include "lower/block_forward.h"
#include "lower/lower_exchange_rows.h"

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

/* Of tensor parallel ranks, who route so many parts of the tokens. */
static inline uint64_t routed_parts(const struct dtp_lowering *l)
{
    return dtp_plan_routes_all(l->plan) ? 1 : dtp_lower_token_parts(l);
}

/* Bytes of all tokens that the rank routes: of tensor parallel ranks each has some, or all; of those whose rows it
 * sends to experts. */
static inline uint64_t local_bytes(const struct dtp_lowering *l, uint64_t bytes_per_token)
{
    return dtp_divide_up(dtp_bytes_product(l->tokens, bytes_per_token), routed_parts(l));
}
static inline uint64_t sending_bytes(const struct dtp_lowering *l, uint64_t bytes_per_token)
{
    return dtp_divide_up(dtp_bytes_product(l->tokens, bytes_per_token), l->plan->expert_shards);
}
/* Rows that it sends, over those that it routes. */
static inline double sending(const struct dtp_lowering *l)
{
    return (double)routed_parts(l) / (double)l->plan->expert_shards;
}

/* Rows that the rank's experts get, for each that it sends. */
static inline double received(const struct dtp_lowering *l)
{
    return l->tensors.received / l->tensors.sent;
}

/* Bytes of a token's rows that are put from the order of ranks into that of experts, or back: as many are read as
 * written, but for tokens whose rows for several experts of a rank came as one. */
static inline double ordered_bytes(const struct dtp_lowering *l)
{
    struct rows r = rows_of(l);
    return received(l) * (1 + l->tensors.arriving) * r.c * r.k * r.h;
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

/* DeepSpeed's. */
static inline bool slots(const struct dtp_lowering *l)
{
    return l->tensors.kind.slots_rows;
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

/* So does torchtitan beside tensor parallelism: a row of zeros behind what came, and behind what goes back. */
static inline bool appends(const struct dtp_lowering *l)
{
    return stacks(l) || (l->tensors.kind.routes_all && dtp_layer_reorders(&l->tensors.kind));
}

/* Transformers 5's grouped matmuls. */
static inline bool sorts(const struct dtp_lowering *l)
{
    return l->tensors.kind.sorts_rows;
}

/* A kernel, or several, that moves so many bytes of each token. */
static inline void draft_eager(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes_per_token,
                               uint32_t kernels)
{
    dtp_draft_memory(l, draft, bytes_per_token * (double)l->tokens / (double)routed_parts(l), kernels);
    draft->op.demand.memory_kernel = weighs(l) ? DTP_KERNEL_FUSED : DTP_KERNEL_EAGER;
}

/* When compute has waited for the exchange that read it, or for the one behind. */
static inline void let_go(const struct pass *pass, enum dtp_layer_tensor tensor)
{
    struct dtp_draft draft;
    dtp_draft_begin(pass->l, &draft, DTP_OP_FREE, dtp_layer_tensor_text(tensor));
    dtp_draft_use(&draft, pass->module->tensor[tensor], DTP_FREE);
    dtp_draft_end(pass->l, &draft);
    drop(pass, tensor);
}

/* Whether another still reads the gradient. */
static inline bool stays(const struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    return gradient.index == b->l->flight->gradient.index || dtp_backward_shared(b, gradient);
}

static inline void use_and_let_go(const struct dtp_block_backward *b, struct dtp_draft *draft, dtp_buffer_id gradient)
{
    dtp_draft_use(draft, gradient, stays(b, gradient) ? DTP_READ : DTP_READ | DTP_FREE);
}

/* The gradient of what an all-to-all returned is exchanged the other way. */
static inline dtp_buffer_id exchange_back(struct dtp_block_backward *b, dtp_buffer_id gradient,
                                          enum dtp_exchange exchange, uint64_t made_bytes)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_TO_ALL, exchange == DTP_EXCHANGE_COMBINE ? "combine" : "dispatch");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, "gradient of rows", made_bytes, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_lower_exchange_rows(l, &draft, dtp_lower_exchanged_bytes(l));
    dtp_backward_beside_exchange(b, exchange);
    if (exchange == DTP_EXCHANGE_DISPATCH)
        dtp_lower_host_around_experts(l);
    if (dtp_plan_sends_tokens(l->plan) && stays(b, gradient))
        return made;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradient of rows");
    dtp_draft_use(&draft, gradient, DTP_FREE);
    dtp_draft_end(l, &draft);
    return made;
}

#endif
