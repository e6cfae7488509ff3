/* The forward of a block as its files share it: one pass over the operators, and what a step of it does with tensors.
 *
 * lower_forward.c has the pass, lower_experts.c the steps around experts. */
#ifndef DTP_LOWER_BLOCK_FORWARD_H
#define DTP_LOWER_BLOCK_FORWARD_H

#include "base/bytes.h"
#include "lower/lowering.h"

/* One pass over a block: `save` survives it. */
struct pass {
    struct dtp_lowering *l;
    struct dtp_flight_module *module;
    uint64_t save;
    bool replay;
};

static inline bool exists(const struct pass *pass, enum dtp_layer_tensor tensor)
{
    return pass->module->alive & UINT64_C(1) << tensor;
}

/* True when `tensor` is a tensor of this runtime and must be made. */
static inline bool missing(const struct pass *pass, enum dtp_layer_tensor tensor)
{
    return pass->l->tensor_bytes[tensor] && !exists(pass, tensor);
}

/* A selective replay makes only what backward lacks and what leads to it. */
static inline bool wanted(const struct pass *pass, enum dtp_layer_tensor tensor)
{
    if (!missing(pass, tensor))
        return false;
    if (!pass->replay)
        return true;
    if (pass->l->checkpointing.keeps == DTP_KEEPS_PARTS)
        return pass->l->tensors.again & UINT64_C(1) << tensor;
    return pass->l->checkpointing.keeps != DTP_KEEPS_ALL_BUT_CORE || (pass->save & UINT64_C(1) << tensor);
}

/* Of experts that are called, those of one where they do not survive the pass. */
static inline uint64_t made_bytes(const struct pass *pass, enum dtp_layer_tensor tensor)
{
    const struct dtp_layer_kind *kind = &pass->l->tensors.kind;
    uint64_t bit = UINT64_C(1) << tensor, bytes = pass->l->tensor_bytes[tensor];
    return dtp_layer_called_tensors(kind) & bit & ~pass->save ? dtp_divide_up(bytes, dtp_layer_calls(kind)) : bytes;
}

static inline void make(const struct pass *pass, struct dtp_draft *draft, enum dtp_layer_tensor tensor)
{
    if (!missing(pass, tensor))
        return;
    pass->module->tensor[tensor] = dtp_draft_new(pass->l, draft, dtp_layer_tensor_text(tensor), DTP_OWNER_ACTIVATIONS,
                                                 made_bytes(pass, tensor), DTP_WRITE);
    pass->module->alive |= UINT64_C(1) << tensor;
    pass->module->gathered &= ~(UINT64_C(1) << tensor);
}

static inline void drop(const struct pass *pass, enum dtp_layer_tensor tensor)
{
    pass->module->alive &= ~(UINT64_C(1) << tensor);
    pass->module->tensor[tensor] = DTP_NO_BUFFER;
}

/* A variable of the layer's function names it. */
static inline bool named(const struct pass *pass, enum dtp_layer_tensor tensor)
{
    return (pass->replay ? pass->l->tensors.locals_again : pass->l->tensors.locals) & UINT64_C(1) << tensor;
}

/* Reads a tensor; at its `last` use in forward it goes, unless it is saved or a variable still names it. */
static inline void read(const struct pass *pass, struct dtp_draft *draft, enum dtp_layer_tensor tensor, bool last)
{
    if (!exists(pass, tensor))
        return;
    bool held = pass->save & UINT64_C(1) << tensor || named(pass, tensor);
    dtp_draft_use(draft, pass->module->tensor[tensor], last && !held ? DTP_READ | DTP_FREE : DTP_READ);
    if (last && !held)
        drop(pass, tensor);
}

/* lower_forward.c: what an operator of the layer becomes. */
void dtp_forward_operator(const struct pass *pass, int index);
/* lower_exchange_rows.c: all before `end` but those that another one has run beside its exchange; these, beside the
 * exchange of rows that compute would wait for next. */
void dtp_forward_until(const struct pass *pass, int end);
void dtp_forward_beside_exchange(const struct pass *pass, enum dtp_exchange exchange);

static inline double per_token(const struct dtp_lowering *l, double bytes)
{
    return bytes * (double)l->tokens;
}

/* lower_tensor_parallel.c: of spread rows a matrix reads those of all ranks. Terms of the last matmul's sum that a
 * checkpoint keeps (plan/second_matmuls.h): how the sum uses them, and their end in a replay. A replay makes the terms
 * of a sum again that alone was kept. */
bool dtp_lower_reads_gathered(const struct dtp_lowering *l, int matrix);
uint32_t dtp_forward_keep_terms(const struct pass *pass, int matrix, dtp_buffer_id terms);
void dtp_forward_drop_terms(const struct pass *pass, struct dtp_draft *draft);
bool dtp_forward_multiplies_again(const struct pass *pass, int matrix);

/* lower_activation.c */
void dtp_forward_activation(const struct pass *pass, uint64_t makes);

/* lower_wide_norms.c, beside fp32 norms (dtp_plan_widens_norms): whether a matrix reads fp32, the cast of that which
 * its product reads (DTP_NO_BUFFER: none), and the product, whose result is cast; `draft` ends. */
bool dtp_lower_reads_wide(const struct dtp_lowering *l, int matrix);
dtp_buffer_id dtp_forward_narrow_input(const struct pass *pass, int matrix);
void dtp_forward_narrow_product(const struct pass *pass, struct dtp_draft *draft, int matrix);
/* Queries, keys and values for attention. */
void dtp_forward_narrow_heads(const struct pass *pass);
/* What its adapter reads, kept; then the sum with what it made. */
dtp_buffer_id dtp_forward_narrow_adapter_input(const struct pass *pass, int matrix, bool keeps);
void dtp_forward_add_narrow(const struct pass *pass, int matrix, dtp_buffer_id made);

/* lower_recast_adapters.c, of fp32 adapters under autocast: whether x of a matrix's adapter is cast there and back;
 * what its product reads, and keeps where `keeps` says so. */
bool dtp_lower_recasts_adapter(const struct dtp_lowering *l, int matrix);
dtp_buffer_id dtp_forward_recast(const struct pass *pass, int matrix, bool keeps);

/* lower_folded.c: W + B A of a matrix that is folded, which stands until the experts' module returns, or its backward
 * has read it. */
dtp_buffer_id dtp_forward_folded(const struct pass *pass, int matrix);
void dtp_forward_end_folded(const struct pass *pass);
/* lower_adapters.c: whether what an adapter reads stays for its backward. */
bool dtp_adapter_keeps(const struct pass *pass);
/* Adds an adapter's result to that of its matrix, which stands. `alone`: x A^T is all that is made again, for backward
 * reads nothing behind it. */
void dtp_forward_adapter(const struct pass *pass, int matrix, bool alone);
/* lower_divided_adapters.c: what an adapter reads, whole; x A^T, and what B made of it, of all ranks. */
void dtp_forward_gather_adapter_input(const struct pass *pass, int matrix);
dtp_buffer_id dtp_forward_whole_low(const struct pass *pass, int matrix, dtp_buffer_id low);
dtp_buffer_id dtp_forward_whole_adapted(const struct pass *pass, int matrix, dtp_buffer_id wide);
/* lower_magnitudes.c: DoRA's part of an adapted linear. `keeps`: what its backward reads stays. */
void dtp_forward_magnitudes(const struct pass *pass, int matrix, dtp_buffer_id wide, bool keeps);
void dtp_lower_clear_adapters(struct dtp_flight_module *module);
/* Operators that a replay goes through; with adapters, where it would end with the first `end`. */
int dtp_lower_replay_end(const struct dtp_lowering *l);
int dtp_adapters_replay_end(const struct dtp_lowering *l, int end);
/* The replay ends within the adapter of this matrix. */
bool dtp_adapter_ends_replay(const struct pass *pass, int matrix);
/* Its weight stays unpacked from forward to backward. */
bool dtp_adapter_stays_unpacked(const struct pass *pass, int matrix);

/* lower_experts.c: forward and, for block_backward.h, backward of what stands around the experts' matmuls. */
void dtp_forward_router(const struct pass *pass);
void dtp_forward_permute(const struct pass *pass, const struct dtp_layer_operator *op);
/* Behind a matmul of experts that has biases; nothing behind others. */
void dtp_forward_expert_bias(const struct pass *pass, int matrix);
void dtp_forward_unpermute(const struct pass *pass, const struct dtp_layer_operator *op);
/* lower_routed_experts.c: what the layer of experts adds, whole or a term of a sum, then that sum (of no terms: none).
 */
dtp_buffer_id dtp_forward_make_terms(const struct pass *pass, struct dtp_draft *draft);
void dtp_forward_sum_terms(const struct pass *pass, dtp_buffer_id terms);
/* lower_sorted_experts.c: of experts whose rows are sorted for grouped matmuls. */
void dtp_forward_sorted_unpermute(const struct pass *pass, const struct dtp_layer_operator *op);
/* lower_called_experts.c: of experts that are called one after the other. */
void dtp_forward_called_router(const struct pass *pass);
void dtp_forward_called_permute(const struct pass *pass, const struct dtp_layer_operator *op);
void dtp_forward_called_unpermute(const struct pass *pass, const struct dtp_layer_operator *op);
void dtp_forward_slotted_router(const struct pass *pass);
void dtp_forward_slotted_permute(const struct pass *pass, const struct dtp_layer_operator *op);
void dtp_forward_slotted_unpermute(const struct pass *pass);
/* lower_sinks.c: the core's result, weighed. */
void dtp_forward_sinks(const struct pass *pass);
/* lower_latent.c: of latent attention. */
void dtp_forward_latent_norm(const struct pass *pass, const struct dtp_layer_operator *op);
void dtp_forward_latent_heads(const struct pass *pass);

#endif
