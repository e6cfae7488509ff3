/* Tensor parallel ranks with sequence parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022): each has a part of
 * the heads, of the MLP's columns and of the vocabulary, and a part of the rows of the residual stream.
 *
 * Rows are gathered where a projection into heads or MLP reads them, forward and once more for its weight's gradient,
 * for what is kept is the rank's rows alone; sums over the ranks are scattered where one comes back into the stream. In
 * backward the two change places. The embedding is such a sum, in which each row has one term that is not zero; the
 * head reads gathered rows, and its loss needs of each rank's part of the vocabulary three numbers a row: the largest
 * logit, the sum of exponentials below it and the target's logit, where the rank has it.
 *
 * What all ranks have whole, the norms, has gradients of the rows that a rank saw: these are summed. Biases of what is
 * a sum are added by the first rank alone, and their gradients are made of gathered rows, the same on every rank.
 *
 * Collectives run on a stream of their own and their buffers come from compute's pool; what they read is freed by
 * operations of the compute stream that have waited for them.
 *
 * With plan.tp_overlap two of a gathering projection's three collectives have a product beside them: rows that its
 * weight's gradient reads are gathered beside the product that makes its input's, whose sum is scattered beside that of
 * the weight's. No value is made otherwise, so no bit differs.
 *
 * In C chunks (tp_chunks) the others have one, too: a chunk is T / C rows in the order of tokens, of which a rank has
 * the same part of each, so that what is gathered chunk by chunk lies as if at once. A projection that gathers reads
 * chunk c while chunk c + 1 comes, one that sums makes chunk c + 1 while chunk c is scattered, and the gradient of what
 * was summed comes so for the input's gradient. Exposed stays one chunk of each, 1 / C of six of a layer's ten. */
#include "runtime/dtplan/lower_executor_tensor.h"

#include "base/bytes.h"

void dtp_executor_tensor_make(struct dtp_executor *x)
{
    x->tensor_group = DTP_NO_INDEX;
    if (dtp_executor_is_cut(x))
        x->tensor_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){x->l->tp, x->l->tp_stride});
}

/* Behind all that compute was given so far. */
static dtp_op_id issue(struct dtp_executor *x, struct dtp_draft *draft, uint64_t sent_bytes)
{
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    return dtp_executor_collective(x, draft, DTP_STREAM_TENSOR, x->tensor_group, sent_bytes);
}

/* What compute is given next waits for it. */
static void end_collective(struct dtp_executor *x, struct dtp_draft *draft, uint64_t sent_bytes)
{
    dtp_executor_await(x, DTP_STREAM_TENSOR, issue(x, draft, sent_bytes));
}

static uint64_t whole_bytes(const struct dtp_executor *x)
{
    return dtp_bytes_product(x->rules.tokens, x->h * x->element_bytes);
}

/* ---- rows of the stream ------------------------------------------------------------------------------------------ */

void dtp_executor_cut(const struct dtp_executor *x, struct dtp_draft *draft, uint32_t chunk, uint64_t bytes)
{
    struct dtp_operand *operand = &draft->operands[draft->operand_count - 1];
    if (x->rules.tensor_chunks < 2)
        return;
    operand->bytes = bytes / x->rules.tensor_chunks;
    operand->offset_bytes = chunk * operand->bytes;
}

static uint64_t sent_of_chunk(const struct dtp_executor *x)
{
    return dtp_lower_ring(whole_bytes(x) / x->rules.tensor_chunks, x->rules.tensor_ranks);
}

dtp_buffer_id dtp_executor_gather_chunks(struct dtp_executor *x, const char *name, dtp_buffer_id rows, dtp_op_id *by)
{
    dtp_buffer_id whole = DTP_NO_BUFFER;
    for (uint32_t chunk = 0; chunk < x->rules.tensor_chunks; chunk++) {
        struct dtp_draft draft;
        dtp_draft_begin(x->l, &draft, DTP_OP_ALL_GATHER, name);
        dtp_draft_role(&draft, DTP_ROLE_INPUT, rows, DTP_READ, 0);
        dtp_executor_cut(x, &draft, chunk, whole_bytes(x) / x->rules.tensor_ranks);
        if (chunk)
            dtp_draft_role(&draft, DTP_ROLE_RESULT, whole, DTP_WRITE, 0);
        else
            whole = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "gathered rows", DTP_OWNER_WORKSPACE, whole_bytes(x),
                                     DTP_WRITE);
        dtp_executor_cut(x, &draft, chunk, whole_bytes(x));
        by[chunk] = issue(x, &draft, sent_of_chunk(x));
    }
    return whole;
}

struct dtp_executor_moved dtp_executor_gather_beside(struct dtp_executor *x, const char *name, dtp_buffer_id rows)
{
    dtp_op_id by[DTP_EXECUTOR_TENSOR_CHUNKS];
    const dtp_buffer_id whole = dtp_executor_gather_chunks(x, name, rows, by);
    return (struct dtp_executor_moved){whole, by[x->rules.tensor_chunks - 1]};
}

dtp_buffer_id dtp_executor_gather_rows(struct dtp_executor *x, const char *name, dtp_buffer_id rows)
{
    struct dtp_executor_moved whole = dtp_executor_gather_beside(x, name, rows);
    dtp_executor_await(x, DTP_STREAM_TENSOR, whole.by);
    return whole.buffer;
}

void dtp_executor_begin_sum(struct dtp_executor *x, struct dtp_draft *draft, const char *name, dtp_buffer_id terms,
                            uint32_t chunk)
{
    dtp_draft_begin(x->l, draft, DTP_OP_REDUCE_SCATTER, name);
    dtp_draft_role(draft, DTP_ROLE_INPUT, terms, DTP_READ, 0);
    dtp_executor_cut(x, draft, chunk, whole_bytes(x));
}

dtp_op_id dtp_executor_end_sum(struct dtp_executor *x, struct dtp_draft *draft, uint32_t chunk)
{
    dtp_executor_cut(x, draft, chunk, whole_bytes(x) / x->rules.tensor_ranks);
    return issue(x, draft, sent_of_chunk(x));
}

static struct dtp_executor_moved scatter_beside(struct dtp_executor *x, const char *name, dtp_buffer_id terms,
                                                const char *result, enum dtp_owner owner)
{
    struct dtp_executor_moved sum = {DTP_NO_BUFFER, DTP_NO_OP};
    for (uint32_t chunk = 0; chunk < x->rules.tensor_chunks; chunk++) {
        struct dtp_draft draft;
        dtp_executor_begin_sum(x, &draft, name, terms, chunk);
        if (chunk)
            dtp_draft_role(&draft, DTP_ROLE_RESULT, sum.buffer, DTP_WRITE, 0);
        else
            sum.buffer = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, result, owner,
                                          dtp_executor_tensor_bytes(x->shape, DTP_TENSOR_INPUT), DTP_WRITE);
        sum.by = dtp_executor_end_sum(x, &draft, chunk);
    }
    return sum;
}

void dtp_executor_scattered(struct dtp_executor *x, dtp_op_id by, dtp_buffer_id terms)
{
    dtp_executor_await(x, DTP_STREAM_TENSOR, by);
    dtp_executor_free(x, terms, "terms");
}

dtp_buffer_id dtp_executor_scatter_sum(struct dtp_executor *x, const char *name, dtp_buffer_id terms,
                                       const char *result, enum dtp_owner owner)
{
    struct dtp_executor_moved sum = scatter_beside(x, name, terms, result, owner);
    dtp_executor_scattered(x, sum.by, terms);
    return sum.buffer;
}

dtp_buffer_id dtp_executor_scatter_low(struct dtp_executor *x, dtp_buffer_id terms, uint64_t width)
{
    const uint64_t bytes = dtp_bytes_product(x->rules.tokens, width * x->element_bytes);
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, DTP_OP_REDUCE_SCATTER, "gradient of x A");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, terms, DTP_READ, 0);
    const dtp_buffer_id sum = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "gradient of x A", DTP_OWNER_WORKSPACE,
                                               bytes / x->rules.tensor_ranks, DTP_WRITE);
    dtp_executor_scattered(x, issue(x, &draft, dtp_lower_ring(bytes, x->rules.tensor_ranks)), terms);
    return sum;
}

void dtp_executor_add_rows(struct dtp_executor *x, const char *name, dtp_buffer_id values, uint32_t access,
                           dtp_buffer_id total)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ACCUMULATE, name);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, values, DTP_READ | access, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, total, DTP_UPDATE, 0);
    dtp_executor_memory(&draft, x->rules.stream_tokens * x->h, dtp_executor_added_bytes(x->shape), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_executor_end(x, &draft);
}

/* ---- backward of what reads gathered rows ------------------------------------------------------------------------ */

/* Products of each rank are terms of a sum of which each has its rows. */
static dtp_buffer_id input_terms(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                 dtp_buffer_id gradient, uint32_t access)
{
    const struct dtp_layer_matrix *matrix = op->matrix;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, matrix->input_gradient_name);
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, gradient, access, 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, dtp_executor_block(x, layer), op->weight);
    dtp_buffer_id terms = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, "terms", DTP_OWNER_WORKSPACE,
                                           x->rules.tokens * matrix->in * x->element_bytes, DTP_WRITE);
    dtp_executor_matmul(x, &draft, x->rules.tokens, matrix->in, matrix->out);
    dtp_executor_end(x, &draft);
    return terms;
}

static void replace(struct dtp_executor *x, const char *name, dtp_buffer_id sum, dtp_buffer_id *made)
{
    if (made->index != DTP_NO_INDEX)
        dtp_executor_add_rows(x, name, *made, dtp_executor_lets_go(x, *made), sum);
    *made = sum;
}

void dtp_executor_gathered_input_gradient(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id gradient,
                                          uint32_t access, dtp_buffer_id *made)
{
    const struct dtp_executor_operator *of = &x->shape->op[op];
    const char *name = of->matrix->input_gradient_name;
    dtp_buffer_id terms = input_terms(x, layer, of, gradient, access);
    replace(x, name, dtp_executor_scatter_sum(x, name, terms, name, DTP_OWNER_WORKSPACE), made);
}

void dtp_executor_overlapped_backward(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id gradient,
                                      dtp_buffer_id input, uint32_t input_frees, dtp_buffer_id *made)
{
    const struct dtp_executor_operator *of = &x->shape->op[op];
    const char *name = of->matrix->input_gradient_name;
    struct dtp_draft draft;
    struct dtp_executor_moved rows = dtp_executor_gather_beside(x, of->matrix->gradient_name, input);
    dtp_buffer_id terms = input_terms(x, layer, of, gradient, DTP_READ);
    struct dtp_executor_moved sum = scatter_beside(x, name, terms, name, DTP_OWNER_WORKSPACE);
    dtp_executor_weight_gradient(x, &draft, layer, op, gradient, DTP_FREE, input, input_frees, &rows);
    dtp_executor_end(x, &draft);
    dtp_executor_scattered(x, sum.by, terms);
    replace(x, name, sum.buffer, made);
}

/* ---- backward of what sums --------------------------------------------------------------------------------------- */

dtp_buffer_id dtp_executor_gradient_by_chunks(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id rows,
                                              dtp_buffer_id aux, dtp_buffer_id *made)
{
    const struct dtp_layer_matrix *matrix = x->shape->op[op].matrix;
    const uint64_t tokens = x->rules.tokens, bytes = tokens * matrix->in * x->element_bytes;
    dtp_op_id by[DTP_EXECUTOR_TENSOR_CHUNKS];
    const dtp_buffer_id whole = dtp_executor_gather_chunks(x, matrix->input_gradient_name, rows, by);
    for (uint32_t chunk = 0; chunk < x->rules.tensor_chunks; chunk++) {
        const bool last = chunk + 1 == x->rules.tensor_chunks;
        struct dtp_draft draft;
        dtp_executor_await(x, DTP_STREAM_TENSOR, by[chunk]);
        dtp_executor_begin(x, &draft, DTP_OP_MATMUL, matrix->input_gradient_name);
        dtp_draft_role(&draft, DTP_ROLE_GRADIENT, whole, DTP_READ, 0);
        dtp_executor_cut(x, &draft, chunk, tokens * matrix->out * x->element_bytes);
        dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, dtp_executor_block(x, layer), x->shape->op[op].weight);
        if (aux.index != DTP_NO_INDEX) {
            dtp_draft_role(&draft, DTP_ROLE_AUX, aux, DTP_READ | (last ? DTP_FREE : 0), 0);
            dtp_executor_cut(x, &draft, chunk, bytes);
        }
        if (chunk)
            dtp_draft_role(&draft, DTP_ROLE_INPUT_GRADIENT, *made, DTP_WRITE, 0);
        else
            *made = dtp_executor_new(x, &draft, DTP_ROLE_INPUT_GRADIENT, matrix->input_gradient_name,
                                     DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
        dtp_executor_cut(x, &draft, chunk, bytes);
        dtp_executor_matmul(x, &draft, tokens / x->rules.tensor_chunks, matrix->in, matrix->out);
        dtp_executor_end(x, &draft);
    }
    return whole;
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

dtp_buffer_id dtp_executor_gather_parts(struct dtp_executor *x, dtp_buffer_id parts, uint64_t rows)
{
    struct dtp_draft draft;
    uint64_t bytes = dtp_bytes_product(x->rules.tensor_ranks, rows * DTP_EXECUTOR_LOSS_PART_BYTES);
    dtp_draft_begin(x->l, &draft, DTP_OP_ALL_GATHER, "loss");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, parts, DTP_READ, 0);
    dtp_buffer_id all =
        dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "loss parts of all ranks", DTP_OWNER_LOGITS, bytes, DTP_WRITE);
    dtp_program_set_element(x->l->program, all, DTP_FP32);
    end_collective(x, &draft, dtp_lower_ring(bytes, x->rules.tensor_ranks));
    dtp_executor_free(x, parts, "loss parts");
    return all;
}

/* ---- gradients of what all ranks have whole ---------------------------------------------------------------------- */

/* Weights and biases of norms, and what scores experts: those of a module that follow each other, as one collective. */
static bool is_summed(enum dtp_parameter which)
{
    switch (which) {
    case DTP_PARAMETER_NORM1:
    case DTP_PARAMETER_NORM1_BIAS:
    case DTP_PARAMETER_NORM2:
    case DTP_PARAMETER_NORM2_BIAS:
    case DTP_PARAMETER_FINAL_NORM:
    case DTP_PARAMETER_FINAL_NORM_BIAS:
    case DTP_PARAMETER_QK_NORM:
    case DTP_PARAMETER_POST_NORM1:
    case DTP_PARAMETER_POST_NORM1_BIAS:
    case DTP_PARAMETER_POST_NORM2:
    case DTP_PARAMETER_POST_NORM2_BIAS:
    case DTP_PARAMETER_ROUTER:
    case DTP_PARAMETER_ROUTER_BIAS:
    case DTP_PARAMETER_SHARED_WEIGHT:
    case DTP_PARAMETER_SHARED_WEIGHT_BIAS:
    case DTP_PARAMETER_QKV_ADAPTER_A:
    case DTP_PARAMETER_OUTPUT_ADAPTER_B:
    case DTP_PARAMETER_UP_ADAPTER_A:
    case DTP_PARAMETER_DOWN_ADAPTER_B: return true;
    default: return false;
    }
}

uint64_t dtp_executor_summed_run(const struct dtp_parameter_module *layout, int *next, uint64_t *begin)
{
    uint64_t end = 0;
    *begin = 0;
    for (; *next < DTP_PARAMETER_COUNT; ++*next) {
        const struct dtp_parameter_tensor *tensor = &layout->tensor[*next];
        if (!tensor->exists)
            continue;
        bool summed = is_summed((enum dtp_parameter) * next);
        if (end && (!summed || tensor->offset_elements != end))
            break;
        if (!summed)
            continue;
        *begin = end ? *begin : tensor->offset_elements;
        end = tensor->offset_elements + tensor->extent_elements;
    }
    return end - *begin;
}

void dtp_executor_sum_replicated(struct dtp_executor *x, struct dtp_executor_module *module)
{
    uint64_t begin, elements;
    for (int next = 0; (elements = dtp_executor_summed_run(module->layout, &next, &begin)) > 0;) {
        struct dtp_draft draft;
        uint64_t offset = begin * module->gradient_element_bytes, bytes = elements * module->gradient_element_bytes;
        dtp_executor_begin_at(x, module, &draft, DTP_OP_ALL_REDUCE, "norm gradients");
        dtp_draft_role(&draft, DTP_ROLE_INPUT, module->gradient, DTP_READ, offset)->bytes = bytes;
        dtp_draft_role(&draft, DTP_ROLE_RESULT, module->gradient, DTP_WRITE, offset)->bytes = bytes;
        end_collective(x, &draft, 2 * dtp_lower_ring(bytes, x->rules.tensor_ranks));
    }
}
