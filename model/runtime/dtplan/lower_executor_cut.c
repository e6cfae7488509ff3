/* Projections of tensor parallel ranks, forward, chunk by chunk (lower_executor_tensor.c says why). */
#include "runtime/dtplan/lower_executor_pass.h"

static void cut_result(const struct dtp_executor_pass *pass, struct dtp_draft *draft, enum dtp_role role, int index,
                       int tensor, uint32_t chunk)
{
    make_chunk(pass, draft, role, index, tensor, chunk, pass->x->rules.tensor_chunks);
    dtp_executor_cut(pass->x, draft, chunk, dtp_executor_tensor_bytes(pass->x->shape, tensor));
}

/* The product of tensor parallel ranks' rows of a chunk. `gathered`: what it reads, or none where its input is whole
 * here; `terms`: of a sum. */
static void cut_product(const struct dtp_executor_pass *pass, int index, uint32_t chunk, dtp_buffer_id gathered,
                        dtp_buffer_id *terms)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    const uint64_t tokens = x->rules.tokens, chunks = x->rules.tensor_chunks;
    const bool last = chunk + 1 == chunks;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, op->kind, op->name);
    if (op->gathers)
        dtp_draft_role(&draft, DTP_ROLE_INPUT, gathered, DTP_READ | (last ? DTP_FREE : 0), 0);
    else if (last)
        take(pass, &draft, DTP_ROLE_INPUT, index, op->input);
    else
        dtp_draft_role(&draft, DTP_ROLE_INPUT, *tensor_of(pass, op->input), DTP_READ, 0);
    dtp_executor_cut(x, &draft, chunk, tokens * op->matrix->in * x->element_bytes);
    if (op->gathers && last && !is_wanted(pass, index, op->input)) {
        dtp_draft_use(&draft, *tensor_of(pass, op->input), DTP_FREE);
        *tensor_of(pass, op->input) = DTP_NO_BUFFER;
    }
    take_weight(pass, &draft, op, DTP_NO_BUFFER);
    dtp_executor_matmul(x, &draft, tokens / chunks, op->matrix->out, op->matrix->in);
    if (op->aux != DTP_EXECUTOR_NONE)
        cut_result(pass, &draft, DTP_ROLE_AUX, index, op->aux, chunk);
    if (!op->sums) {
        cut_result(pass, &draft, DTP_ROLE_RESULT, index, op->result, chunk);
    } else {
        const uint64_t bytes = tokens * op->matrix->out * x->element_bytes;
        if (chunk)
            dtp_draft_role(&draft, DTP_ROLE_RESULT, *terms, DTP_WRITE, 0);
        else
            *terms = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "terms", DTP_OWNER_ACTIVATIONS, bytes, DTP_WRITE);
        dtp_executor_cut(x, &draft, chunk, bytes);
        draft.op.demand.form = DTP_FORM_TERMS;
    }
    dtp_executor_end(x, &draft);
}

/* What B makes of this rank's part of low, where operator `index` is one. */
static void add_adapter(const struct dtp_executor_pass *pass, int index, dtp_buffer_id terms)
{
    const struct dtp_executor_block *shape = pass->x->shape;
    if (index >= shape->count || shape->op[index].half != DTP_EXECUTOR_B)
        return;
    const struct dtp_executor_operator *op = &shape->op[index];
    dtp_buffer_id *low = tensor_of(pass, op->input);
    const bool goes = !is_wanted(pass, index, op->input);
    dtp_executor_adapter_forward(pass->x, pass->layer, op, *low, goes ? DTP_FREE : 0, &terms, false);
    if (goes)
        *low = DTP_NO_BUFFER;
}

void dtp_executor_cut_projection(const struct dtp_executor_pass *pass, int index)
{
    struct dtp_executor *x = pass->x;
    const struct dtp_executor_operator *op = &x->shape->op[index];
    dtp_buffer_id gathered = DTP_NO_BUFFER, terms = DTP_NO_BUFFER;
    dtp_op_id by[DTP_EXECUTOR_TENSOR_CHUNKS], sum = DTP_NO_OP;
    if (x->rows.index != DTP_NO_INDEX) /* for its adapter */
        gathered = x->rows, by[0] = DTP_NO_OP;
    else if (op->gathers)
        gathered = dtp_executor_gather_chunks(x, op->name, *tensor_of(pass, op->input), by);
    x->rows = DTP_NO_BUFFER;
    for (uint32_t chunk = 0; chunk < x->rules.tensor_chunks; chunk++) {
        struct dtp_draft draft;
        if (op->gathers)
            dtp_executor_await(x, DTP_STREAM_TENSOR, by[chunk]);
        cut_product(pass, index, chunk, gathered, &terms);
        if (!op->sums)
            continue;
        add_adapter(pass, index + 1, terms);
        dtp_executor_begin_sum(x, &draft, op->name, terms, chunk);
        make_chunk(pass, &draft, DTP_ROLE_RESULT, index, op->result, chunk, x->rules.tensor_chunks);
        sum = dtp_executor_end_sum(x, &draft, chunk);
    }
    if (!op->sums)
        return;
    dtp_executor_scattered(x, sum, terms);
    if (op->addend == DTP_EXECUTOR_NONE)
        return;
    bool goes = !is_wanted(pass, index, op->addend);
    dtp_executor_add_rows(x, "residual", *tensor_of(pass, op->addend), goes ? DTP_FREE : 0,
                          *tensor_of(pass, op->result));
    if (goes)
        *tensor_of(pass, op->addend) = DTP_NO_BUFFER;
}
