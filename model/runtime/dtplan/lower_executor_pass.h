/* A pass over a block's operators, and what lowers one of them takes and makes. */
#ifndef DTP_LOWER_EXECUTOR_PASS_H
#define DTP_LOWER_EXECUTOR_PASS_H

#include "runtime/dtplan/lower_executor_tensor.h"

/* One pass over a block: forward, or operators of it once more, which keep all that backward reads. */
struct dtp_executor_pass {
    struct dtp_executor *x;
    uint64_t layer;
    uint64_t kept;
    uint32_t runs; /* operators, as bits */
};

static inline dtp_buffer_id *tensor_of(const struct dtp_executor_pass *pass, int tensor)
{
    return &pass->x->tensors[pass->layer][tensor];
}

/* Whether the tensor is read behind operator `index`, in this pass or later: of sums those that anybody reads. */
static inline bool is_wanted(const struct dtp_executor_pass *pass, int index, int tensor)
{
    const struct dtp_executor_block *block = pass->x->shape;
    for (int i = index + 1; i < block->count; i++)
        if (pass->runs & 1u << i && (block->op[i].operand == tensor || block->op[i].reads & DTP_EXECUTOR_BIT(tensor) ||
                                     (block->op[i].addend == tensor && is_wanted(pass, i, block->op[i].result))))
            return true;
    return pass->kept & DTP_EXECUTOR_BIT(tensor);
}

/* A chunk of a result, which the first makes and the last frees where nobody reads it. */
static inline void make_chunk(const struct dtp_executor_pass *pass, struct dtp_draft *draft, enum dtp_role role,
                              int index, int tensor, uint32_t chunk, uint32_t chunks)
{
    struct dtp_executor *x = pass->x;
    dtp_buffer_id *buffer = tensor_of(pass, tensor);
    const bool there = buffer->index != DTP_NO_INDEX; /* a kept one is written once more */
    const bool goes = (chunk || !there) && chunk + 1 == chunks && !is_wanted(pass, index, tensor);
    if (there) {
        dtp_draft_role(draft, role, *buffer, DTP_WRITE | (goes ? DTP_FREE : 0), 0);
    } else {
        const bool queries = tensor == DTP_TENSOR_Q_RAW && x->shape->kind.kv_latent;
        const char *name = queries ? dtp_layer_tensor_text(DTP_TENSOR_Q_RAW) : dtp_executor_tensor_name(tensor);
        *buffer = dtp_executor_new(x, draft, role, name, DTP_OWNER_ACTIVATIONS,
                                   dtp_executor_tensor_bytes(x->shape, tensor), DTP_WRITE | (goes ? DTP_FREE : 0));
        if (dtp_executor_cast(tensor) >= 0 || dtp_executor_is_stored(x->shape, tensor))
            dtp_program_set_element(x->l->program, *buffer, DTP_FP8);
        if (tensor == DTP_EXECUTOR_SENT_WEIGHTS)
            dtp_program_set_element(x->l->program, *buffer, DTP_FP32);
    }
    if (goes)
        *buffer = DTP_NO_BUFFER;
}

/* A result; freed by the operation itself where nobody reads it. */
static inline void make(const struct dtp_executor_pass *pass, struct dtp_draft *draft, enum dtp_role role, int index,
                        int tensor)
{
    make_chunk(pass, draft, role, index, tensor, 0, 1);
}

/* An input; it goes where nobody reads it behind this. */
static inline void take(const struct dtp_executor_pass *pass, struct dtp_draft *draft, enum dtp_role role, int index,
                        int tensor)
{
    dtp_buffer_id *buffer = tensor_of(pass, tensor);
    bool goes = !is_wanted(pass, index, tensor);
    dtp_draft_role(draft, role, *buffer, DTP_READ | (goes ? DTP_FREE : 0), 0);
    if (goes)
        *buffer = DTP_NO_BUFFER;
}

static inline void take_weight(const struct dtp_executor_pass *pass, struct dtp_draft *draft,
                               const struct dtp_executor_operator *op, dtp_buffer_id unpacked)
{
    struct dtp_executor_module *module = dtp_executor_module_of(pass->x, pass->layer, op);
    dtp_executor_matrix(pass->x, draft, pass->layer, op, unpacked);
    if (op->kind != DTP_OP_QK_NORM && op->kind != DTP_OP_GROUPED_MATMUL && dtp_executor_has(module, op->weight + 1))
        dtp_executor_weight(pass->x, draft, DTP_ROLE_BIAS, module, op->weight + 1);
}

/* lower_executor_cut.c: of tensor parallel ranks: what it reads is gathered, its result a sum of which this rank has
 * its rows. */
void dtp_executor_cut_projection(const struct dtp_executor_pass *pass, int index);

#endif
