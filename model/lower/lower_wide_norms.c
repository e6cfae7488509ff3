/* Linears of bitsandbytes beside fp32 norms (dtp_plan_widens_norms): casts of what they read and return.
 *
 * Linear4bit.forward casts x to its compute dtype and its result back to that of x (bitsandbytes 0.43.3,
 * nn/modules.py); MatMul4Bit keeps neither. Under autocast an adapter's A casts x for itself, behind a dropout that
 * works in fp32, and keeps that; what B makes is in 16 bits, scaled so, and added to the fp32 result, a copy of it
 * (tuners/lora/bnb.py). Backward casts the gradient of each of the two, and both gradients of x back. Of an element of
 * n = 2 bytes narrow and w = 4 wide, kernel by kernel:
 *
 *   forward   x n + w; the result n + w; dropout 2 w + 1 and its result's cast n + w; scaled 2 n, copied 2 w, added up
 *             2 w + n
 *   backward  the result's gradient n + w, for the adapter n + w and scaled 2 n; of x n + w twice, dropout 2 w + 1, the
 *             sum 3 w
 *
 * Heads stand as attention reads them, cast. The gradient of an MLP's result is cast where the sum behind it hands it
 * over (lower_backward.c), that of experts' for each expert's rows here. The first layer's stream is in 16 bits until
 * its first MLP is added, for the embedding is: its input stands so, but its kernels are counted as those of others. */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

bool dtp_lower_reads_wide(const struct dtp_lowering *l, int index)
{
    enum dtp_layer_tensor input = l->tensors.input[index];
    return l->results != l->compute && input != DTP_TENSOR_CORE && input != DTP_TENSOR_CORE_COPY;
}

static uint32_t calls_of(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix)
{
    return matrix->expert ? (uint32_t)dtp_layer_calls(&l->tensors.kind) : 1;
}

static uint64_t elements_of(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, uint64_t width)
{
    return dtp_bytes_product(dtp_lower_matrix_rows(l, matrix), width);
}

/* Of one expert at a time, where they are called. */
static uint64_t standing(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, uint64_t bytes)
{
    return dtp_backward_called_bytes(l, matrix->expert, bytes);
}

/* Kernels that write fp32 of 16 bits take elements one at a time. */
static void cast(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix,
                 uint64_t width, bool widens)
{
    double elements = (double)elements_of(l, matrix, width);
    dtp_draft_pass(l, draft, (double)(l->compute + l->results) * elements, widens ? elements : 0, calls_of(l, matrix));
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* A projection's input goes with its last matrix, or that one's adapter. */
static bool reads_last(const struct dtp_lowering *l, int index)
{
    return dtp_layer_tensors_last_reader(&l->tensors, index) && !l->matrix[index].rank;
}

dtp_buffer_id dtp_forward_narrow_input(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    if (!dtp_lower_reads_wide(l, index))
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, matrix->name);
    read(pass, &draft, l->tensors.input[index], reads_last(l, index));
    dtp_buffer_id made = dtp_draft_new(l, &draft, "input in compute dtype", DTP_OWNER_WORKSPACE,
                                       standing(l, matrix, l->compute * elements_of(l, matrix, matrix->in)), DTP_WRITE);
    cast(l, &draft, matrix, matrix->in, false);
    dtp_draft_end(l, &draft);
    return made;
}

void dtp_forward_narrow_product(const struct pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    dtp_buffer_id narrow =
        dtp_draft_new(l, draft, "result in compute dtype", DTP_OWNER_WORKSPACE,
                      standing(l, matrix, l->compute * elements_of(l, matrix, matrix->out)), DTP_WRITE);
    dtp_draft_product(l, draft, matrix, DTP_PRODUCT_FORWARD);
    dtp_draft_end(l, draft);
    dtp_draft_begin(l, draft, DTP_OP_CAST, matrix->name);
    dtp_draft_use(draft, narrow, DTP_READ | DTP_FREE);
    make(pass, draft, matrix->result);
    cast(l, draft, matrix, matrix->out, true);
    dtp_draft_end(l, draft);
}

dtp_buffer_id dtp_forward_narrow_adapter_input(const struct pass *pass, int index, bool keeps)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    bool drops = l->plan->adapters.dropout > 0;
    uint64_t elements = elements_of(l, matrix, matrix->in), mask = drops ? 1 : 0;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, drops ? DTP_OP_ACTIVATION : DTP_OP_CAST, drops ? "dropout" : "input of an adapter");
    read(pass, &draft, l->tensors.input[index], dtp_layer_tensors_last_reader(&l->tensors, index));
    dtp_draft_new(l, &draft, "dropped out", DTP_OWNER_WORKSPACE, drops ? standing(l, matrix, l->results * elements) : 0,
                  DTP_UPDATE | DTP_FREE);
    uint64_t bytes = (l->compute + mask) * elements;
    dtp_buffer_id made =
        dtp_draft_new(l, &draft, drops ? "input of an adapter and its mask" : "cast input of an adapter",
                      DTP_OWNER_ACTIVATIONS, keeps ? bytes : standing(l, matrix, bytes), DTP_WRITE);
    uint64_t moved = l->compute + l->results + (drops ? 2 * l->results + 1 : 0);
    dtp_draft_memory(l, &draft, (double)moved * (double)elements, (drops ? 2 : 1) * calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    return made;
}

void dtp_forward_add_narrow(const struct pass *pass, int index, dtp_buffer_id wide)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    uint64_t elements = elements_of(l, matrix, matrix->out), narrow = l->compute * elements;
    dtp_buffer_id *result = &pass->module->tensor[matrix->result];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "scaled adapter");
    dtp_draft_use(&draft, wide, DTP_READ | DTP_FREE);
    dtp_buffer_id scaled =
        dtp_draft_new(l, &draft, "scaled adapter", DTP_OWNER_WORKSPACE, standing(l, matrix, narrow), DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)narrow, calls_of(l, matrix));
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "adapter");
    dtp_draft_new(l, &draft, "copied result", DTP_OWNER_WORKSPACE, standing(l, matrix, l->results * elements),
                  DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, *result, matrix->expert ? DTP_UPDATE : DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, scaled, DTP_READ | DTP_FREE);
    if (matrix->expert) /* as in lower_adapters.c */
        dtp_draft_new(l, &draft, "sum", DTP_OWNER_WORKSPACE, standing(l, matrix, l->results * elements),
                      DTP_UPDATE | DTP_FREE);
    else
        *result = dtp_draft_new(l, &draft, dtp_layer_tensor_text(matrix->result), DTP_OWNER_ACTIVATIONS,
                                l->tensor_bytes[matrix->result], DTP_WRITE);
    dtp_draft_pass(l, &draft, (double)((4 * l->results + l->compute) * elements), (double)elements,
                   2 * calls_of(l, matrix));
    dtp_draft_end(l, &draft);
}

void dtp_forward_narrow_heads(const struct pass *pass)
{
    static const enum dtp_layer_tensor tensors[] = {DTP_TENSOR_Q, DTP_TENSOR_K, DTP_TENSOR_V};
    struct dtp_lowering *l = pass->l;
    struct dtp_draft draft;
    if (l->results == l->compute)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "heads");
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        dtp_draft_use(&draft, pass->module->tensor[tensors[i]], DTP_UPDATE);
    double heads = (double)(l->d_q + 2 * l->d_kv);
    dtp_draft_pass(l, &draft, per_token(l, (double)(l->compute + l->results) * heads), 0, 3);
    dtp_draft_end(l, &draft);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* An MLP's result has one that was cast. */
static bool handed_narrow(const struct dtp_lowering *l, int index)
{
    return !dtp_lower_reads_wide(l, index) || l->matrix[index].result == DTP_TENSOR_DOWN;
}

static dtp_buffer_id narrow(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient, uint32_t access)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, matrix->input_gradient_name);
    dtp_draft_use(&draft, gradient, access);
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "gradient in compute dtype",
                               standing(l, matrix, l->compute * elements_of(l, matrix, matrix->out)), DTP_WRITE);
    cast(l, &draft, matrix, matrix->out, false);
    dtp_draft_end(l, &draft);
    return made;
}

dtp_buffer_id dtp_backward_narrow(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    if (handed_narrow(b->l, index))
        return gradient;
    bool stays = gradient.index == b->l->flight->gradient.index || dtp_backward_shared(b, gradient);
    return narrow(b, index, gradient, stays ? DTP_READ : DTP_READ | DTP_FREE);
}

dtp_buffer_id dtp_backward_narrow_for_adapter(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    return narrow(b, index, handed_narrow(b->l, index) ? b->l->flight->gradient : gradient, DTP_READ);
}

dtp_buffer_id dtp_backward_widen_input(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    struct dtp_draft draft;
    if (!dtp_lower_reads_wide(l, index))
        return gradient;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, matrix->input_gradient_name);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_buffer_id made =
        dtp_backward_workspace(l, &draft, "input gradient in fp32",
                               standing(l, matrix, l->results * elements_of(l, matrix, matrix->in)), DTP_WRITE);
    cast(l, &draft, matrix, matrix->in, true);
    dtp_draft_end(l, &draft);
    return made;
}

void dtp_backward_widen_heads(struct dtp_block_backward *b)
{
    static const enum dtp_layer_tensor tensors[] = {DTP_TENSOR_Q_RAW, DTP_TENSOR_K_RAW, DTP_TENSOR_V};
    struct dtp_lowering *l = b->l;
    if (l->results == l->compute)
        return;
    struct dtp_draft draft;
    uint64_t heads = 0;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "gradients of heads");
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        uint64_t width = i ? l->d_kv : l->d_q;
        dtp_draft_use(&draft, b->gradient[tensors[i]], DTP_READ | DTP_FREE);
        b->gradient[tensors[i]] = dtp_backward_workspace(l, &draft, dtp_layer_tensor_text(tensors[i]),
                                                         dtp_backward_token_bytes(l, l->results * width), DTP_WRITE);
        heads += width;
    }
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, (double)((l->compute + l->results) * heads)),
                   dtp_backward_per_token(l, (double)heads), 3);
    dtp_draft_end(l, &draft);
}
