/* Collectives of tensor parallel ranks, where the operators of a layer make them necessary (Shoeybi 2019; Korthikanti
 * 2022).
 *
 * Matrices that read the residual stream are cut by columns: each rank makes some heads and some of the MLP's width.
 * Those behind them are cut by rows, so that the ranks' results are terms of a sum. Their input's gradients are such
 * terms for the former. So a layer sums twice forward and twice backward:
 *
 *   all of the stream everywhere    an all-reduce of [T, h] each time
 *   sequence parallel: T/t tokens   a reduce-scatter where a sum was, and an all-gather where the whole is read: the
 *   of the stream on each rank      input of the former forward, the result's gradient of the latter backward
 *
 * A runtime that keeps no gathered input gathers it again for the weight gradient. With tp_overlap a collective is cut
 * into pieces that run beside pieces of the matmul next to it, through a buffer of the stream's size that stands for
 * the whole step (Transformer Engine's user buffers, of which one is counted). Here the share of it that stays exposed
 * stands before or behind the matmul with the data it moves, and the rest runs beside the matmul, in that buffer.
 * Without tensor parallel ranks nothing here makes an operation. */
#include "lower/block_forward.h"

#include "base/bytes.h"
#include "cost/calibration.h"
#include "plan/second_matmuls.h"

/* ---- one collective ---------------------------------------------------------------------------------------------- */

bool dtp_lower_spreads(const struct dtp_lowering *l)
{
    return l->tp > 1 && l->plan->sequence_shards > 1;
}

/* Where each rank routes all tokens, a matrix that it has whole, or whose result is summed with the experts' rows
 * (lower_routed_experts.c). */
static bool stands_alone(const struct dtp_lowering *l, int matrix)
{
    enum dtp_layer_matrix_id id = l->matrix[matrix].id;
    bool whole = id == DTP_MATRIX_ROUTER || id == DTP_MATRIX_Q_A || id == DTP_MATRIX_KV_A;
    return l->tensors.kind.routes_all && (whole || id >= DTP_MATRIX_SHARED_GATE);
}

bool dtp_lower_reads_gathered(const struct dtp_lowering *l, int matrix)
{
    if (!l->tensors.kind.routes_all)
        return dtp_lower_cut_by_columns(l, matrix);
    return !l->matrix[matrix].own_rows && dtp_layer_lies_between_matmuls(l->tensors.input[matrix]);
}

bool dtp_lower_cut_by_rows(const struct dtp_lowering *l, int matrix)
{
    enum dtp_layer_matrix_id id = l->matrix[matrix].id;
    return l->tp > 1 && !l->matrix[matrix].own_rows && !stands_alone(l, matrix) &&
           (id == DTP_MATRIX_OUTPUT || id == DTP_MATRIX_DOWN || id == DTP_MATRIX_SHARED_DOWN);
}

bool dtp_lower_cut_by_columns(const struct dtp_lowering *l, int matrix)
{
    return l->tp > 1 && !l->matrix[matrix].own_rows && !dtp_lower_cut_by_rows(l, matrix) && !stands_alone(l, matrix);
}

bool dtp_lower_shares_input(const struct dtp_lowering *l, int matrix)
{
    return l->matrix[matrix].rank && l->plan->adapter_ranks > 1 && !l->plan->tp_overlap;
}

uint64_t dtp_lower_whole_stream(const struct dtp_lowering *l, uint64_t element_bytes)
{
    return dtp_bytes_product(l->tokens, element_bytes * l->transformer->hidden);
}

uint64_t dtp_lower_whole_input(const struct dtp_lowering *l, int index)
{
    enum dtp_layer_tensor input = l->tensors.input[index];
    uint64_t elements = dtp_bytes_product(l->tokens, l->matrix[index].in);
    if (l->adapts && dtp_plan_gathers_casts(l->plan) && !l->matrix[index].rank) /* else they are as they are kept */
        return dtp_fp8_bytes(l->plan->precision.fp8_recipe, elements);
    return dtp_bytes_product(elements, l->tensor_bytes[input] * dtp_lower_token_parts(l) / elements);
}

/* What each rank sends of a tensor that all of them have together, or as terms of a sum. */
static double sent_bytes(const struct dtp_lowering *l, enum dtp_op_kind kind, uint64_t whole_bytes)
{
    return (kind == DTP_OP_ALL_REDUCE ? 2 : 1) * (double)dtp_lower_ring(whole_bytes, l->tp);
}

static dtp_op_id issue(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t whole_bytes, double share)
{
    draft->op.stream = DTP_STREAM_TENSOR;
    draft->op.group = l->tp_group;
    draft->op.demand.sent_bytes = share * sent_bytes(l, draft->op.kind, whole_bytes);
    draft->op.demand.bytes = share * (double)whole_bytes;
    draft->op.demand.kernels = 1;
    dtp_draft_after(draft, l->last_op[DTP_STREAM_COMPUTE]);
    return dtp_draft_end(l, draft);
}

/* Of a collective in pieces. A gather begins with the matmul of the rank's own piece and never stands before one; of a
 * sum the last piece has no matmul left to run beside. */
static double exposed(const struct dtp_lowering *l, enum dtp_op_kind kind)
{
    if (!l->plan->tp_overlap)
        return 1;
    return kind == DTP_OP_ALL_GATHER ? 0 : 1 / dtp_calibration.tp_overlap_pieces;
}

void dtp_lower_tensor_make(struct dtp_lowering *l)
{
    l->user_buffer = DTP_NO_BUFFER;
    if (l->tp == 1)
        return;
    l->tp_group = dtp_program_add_group(l->program, (struct dtp_program_group){l->tp, l->tp_stride});
    if (l->plan->tp_overlap)
        l->user_buffer = dtp_lower_buffer(l, "user buffer", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
                                          dtp_lower_whole_stream(l, l->compute), true);
}

dtp_op_id dtp_lower_tensor_end(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t whole_bytes, bool in_pieces)
{
    return issue(l, draft, whole_bytes, in_pieces ? exposed(l, draft->op.kind) : 1);
}

dtp_op_id dtp_lower_tensor_beside(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name, uint64_t whole_bytes)
{
    struct dtp_draft draft;
    if (exposed(l, kind) >= 1)
        return DTP_NO_OP;
    dtp_draft_begin(l, &draft, kind, name);
    dtp_draft_use(&draft, l->user_buffer, DTP_UPDATE);
    return issue(l, &draft, whole_bytes, 1 - exposed(l, kind));
}

/* ---- parameters that each rank has whole ------------------------------------------------------------------------- */

/* Norms of q and k, one for all heads, see a rank's heads alone; weights of each head go with it. */
static uint64_t head_norm_elements(const struct dtp_layer_kind *kind)
{
    bool split = kind->qk_norm_wide || kind->qk_norm_weight == DTP_QK_NORM_BY_HEAD;
    return split ? 0 : dtp_layer_qk_norm_elements(kind);
}

static uint64_t norm_elements(const struct dtp_transformer *t, bool present)
{
    return present ? t->hidden * dtp_transformer_norm_vectors(t) : 0;
}

/* Routers and matrices to latents, which each rank has whole and multiplies with its own tokens (Megatron-Core's
 * TELinear, parallel_mode duplicated: its gradients are summed as those of norms are). */
static uint64_t whole_matrices(const struct dtp_lowering *l)
{
    uint64_t of_layer[DTP_LAYER_MLPS] = {0}, elements = 0;
    for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++) {
        const struct dtp_layer_kind *kind = &l->kind[mlp].tensors.kind;
        for (int i = 0; i < kind->matrices; i++)
            of_layer[mlp] +=
                kind->matrix[i].own_rows && !kind->matrix[i].expert ? kind->matrix[i].out * kind->matrix[i].in : 0;
    }
    for (uint64_t layer = 0; layer < l->transformer->layers; layer++)
        elements += of_layer[dtp_lower_mlp(l, layer)];
    return elements;
}

/* Where each has rows of the stream, norms and biases behind matrices cut by rows; the norms of q and k always. */
uint64_t dtp_lower_replicated_elements(const struct dtp_lowering *l)
{
    const struct dtp_layer_kind *kind = &l->tensors.kind;
    const struct dtp_transformer *t = l->transformer;
    uint64_t layer = head_norm_elements(kind), root = 0;
    if (l->tp == 1 || l->plan->adapter_ranks > 1) /* of adapters each has its own, and nothing else is trained */
        return 0;
    if (dtp_lower_spreads(l)) {
        layer = dtp_layer_vector_elements(kind) - dtp_layer_bias_elements(kind);
        for (int i = 0; i < l->matrices; i++)
            layer += l->matrix[i].bias && dtp_lower_cut_by_rows(l, i) ? l->matrix[i].out : 0;
        root = norm_elements(t, t->embedding_norm) + norm_elements(t, t->final_norm) +
               t->ahead_layers * DTP_AHEAD_NORMS * norm_elements(t, true);
    }
    return t->layers * layer + whole_matrices(l) + root;
}

/* ---- what they are for ------------------------------------------------------------------------------------------- */

dtp_buffer_id dtp_lower_gather_rows(struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_owner owner,
                                    uint64_t whole_bytes, dtp_op_id *beside)
{
    dtp_buffer_id gathered = dtp_draft_new(l, draft, "gathered rows", owner, whole_bytes, DTP_WRITE);
    l->awaited = dtp_lower_tensor_end(l, draft, whole_bytes, beside != NULL);
    if (beside)
        *beside = dtp_lower_tensor_beside(l, DTP_OP_ALL_GATHER, draft->op.name, whole_bytes);
    return gathered;
}

void dtp_lower_sum_norm_gradient(struct dtp_lowering *l, int part, uint64_t width)
{
    if (dtp_lower_spreads(l) && l->plan->runtime->dtensor)
        dtp_lower_sum_in_place(l, "norm gradient", dtp_lower_state(l)->gradient[part], l->compute * width, false);
}

void dtp_lower_sum_in_place(struct dtp_lowering *l, const char *name, dtp_buffer_id buffer, uint64_t bytes,
                            bool in_pieces)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_REDUCE, name);
    dtp_draft_use(&draft, buffer, DTP_UPDATE);
    l->awaited = dtp_lower_tensor_end(l, &draft, bytes, in_pieces);
}

uint32_t dtp_lower_held_terms(const struct dtp_lowering *l)
{
    return l->plan->runtime->records_terms ? DTP_DEFER : 0;
}

/* Rows of so many bytes. */
static dtp_buffer_id scatter(struct dtp_lowering *l, const char *name, dtp_buffer_id terms, uint32_t access,
                             const char *result, enum dtp_owner owner, uint64_t row_bytes, bool in_pieces)
{
    uint64_t whole = dtp_bytes_product(l->tokens, row_bytes);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_REDUCE_SCATTER, name);
    dtp_buffer_id sum =
        dtp_draft_new(l, &draft, result, owner, dtp_divide_up(whole, dtp_lower_token_parts(l)), DTP_WRITE);
    dtp_draft_use(&draft, terms, access & DTP_FREE ? access | dtp_lower_held_terms(l) : access);
    l->awaited = dtp_lower_tensor_end(l, &draft, whole, in_pieces);
    return sum;
}

dtp_buffer_id dtp_lower_scatter_sum(struct dtp_lowering *l, const char *name, dtp_buffer_id terms, uint32_t access,
                                    const char *result, uint64_t element, bool in_pieces)
{
    return scatter(l, name, terms, access, result, DTP_OWNER_ACTIVATIONS, element * l->transformer->hidden, in_pieces);
}

dtp_buffer_id dtp_lower_sum_of_rows(struct dtp_lowering *l, const char *name, dtp_buffer_id terms, uint32_t access,
                                    uint64_t width)
{
    if (dtp_lower_spreads(l))
        return scatter(l, name, terms, access, "input gradient", DTP_OWNER_WORKSPACE, l->compute * width, false);
    dtp_lower_sum_in_place(l, name, terms, dtp_bytes_product(l->tokens, l->compute * width), false);
    return terms;
}

uint32_t dtp_forward_keep_terms(const struct pass *pass, int matrix, dtp_buffer_id terms)
{
    const struct dtp_lowering *l = pass->l;
    const bool last = matrix == l->matrices - 1;
    if (!l->tensors.terms_kept || !last || pass->replay || !dtp_lower_checkpointed(l, l->layer))
        return DTP_READ | DTP_FREE;
    pass->module->terms = terms;
    return DTP_READ;
}

void dtp_forward_drop_terms(const struct pass *pass, struct dtp_draft *draft)
{
    dtp_draft_use(draft, pass->module->terms, DTP_FREE);
    pass->module->terms = DTP_NO_BUFFER;
}

bool dtp_forward_multiplies_again(const struct pass *pass, int matrix)
{
    const struct dtp_lowering *l = pass->l;
    return pass->replay && dtp_keeps_eager_sums(l->plan) && dtp_lower_cut_by_rows(l, matrix) &&
           !dtp_second_matmul(&l->tensors.kind, matrix);
}
