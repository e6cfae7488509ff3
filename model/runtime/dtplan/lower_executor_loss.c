/* Final norm, head and cross entropy, chunk by chunk of the rows, so that logits never are there whole. A chunk's
 * logits become their gradient in place; its input gradient takes the place of the rows of the final norm that it was
 * made of, which nobody reads any more. Tensor parallel ranks read the final norm's rows gathered, and each has a part
 * of the columns (lower_executor_tensor.c). */
#include "runtime/dtplan/lower_executor_tensor.h"

#include "runtime/dtplan/batch_layout.h"

static struct dtp_executor_module *head_module(struct dtp_executor *x)
{
    return x->t->tied_head ? &x->modules[0] : dtp_executor_head(x);
}

static enum dtp_parameter head_weight(const struct dtp_executor *x)
{
    return x->t->tied_head ? DTP_PARAMETER_EMBEDDING : DTP_PARAMETER_HEAD;
}

static void final_norm(struct dtp_executor *x)
{
    dtp_executor_norm_forward(x, dtp_executor_head(x), "final norm", DTP_PARAMETER_FINAL_NORM, x->stream_input,
                              &x->final_norm, &x->final_statistics);
    if (!dtp_executor_is_cut(x))
        return;
    dtp_buffer_id rows = x->final_norm;
    x->final_norm = dtp_executor_gather_rows(x, "final norm", rows);
    dtp_executor_free(x, rows, "final norm");
}

/* Rows [begin, begin + rows) of the micro-step. */
struct chunk {
    struct dtp_executor *x;
    uint64_t begin, rows;
    dtp_buffer_id logits, losses;
    bool first, last;
};

/* The rows' place in the final norm's result. */
static uint64_t chunk_offset_bytes(const struct chunk *c)
{
    return c->begin * c->x->h * c->x->element_bytes;
}

static void logits(struct chunk *c)
{
    struct dtp_executor *x = c->x;
    struct dtp_executor_module *module = dtp_executor_head(x);
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, "head");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->final_norm, DTP_READ, chunk_offset_bytes(c));
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, head_module(x), head_weight(x));
    if (dtp_executor_has(module, DTP_PARAMETER_HEAD_BIAS))
        dtp_executor_weight(x, &draft, DTP_ROLE_BIAS, module, DTP_PARAMETER_HEAD_BIAS);
    if (c->first)
        c->logits = dtp_executor_new(x, &draft, DTP_ROLE_RESULT, "logits", DTP_OWNER_LOGITS,
                                     x->rules.chunk_tokens * x->rules.vocab_stride * x->element_bytes, DTP_WRITE);
    else
        dtp_draft_role(&draft, DTP_ROLE_RESULT, c->logits, DTP_WRITE, 0);
    dtp_executor_matmul(x, &draft, c->rows, x->rules.vocab_stride, x->h);
    dtp_executor_end(x, &draft);
}

/* Of tensor parallel ranks: what each says of its columns, from all of them. */
static dtp_buffer_id loss_parts(const struct chunk *c)
{
    struct dtp_executor *x = c->x;
    struct dtp_draft draft;
    uint64_t targets = dtp_batch_layout_of(x->rules.tokens).targets_offset_bytes;
    if (!dtp_executor_is_cut(x))
        return DTP_NO_BUFFER;
    dtp_executor_begin(x, &draft, DTP_OP_LOSS_PARTS, "loss");
    dtp_draft_role(&draft, DTP_ROLE_INPUT, c->logits, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_BATCH, dtp_executor_batch(x), DTP_READ, targets + 4 * c->begin);
    dtp_buffer_id parts = dtp_executor_new(x, &draft, DTP_ROLE_STATISTICS, "loss parts", DTP_OWNER_LOGITS,
                                           c->rows * DTP_EXECUTOR_LOSS_PART_BYTES, DTP_WRITE);
    dtp_executor_memory(&draft, c->rows, dtp_executor_loss_parts_bytes(x, c->rows), 1);
    dtp_executor_end(x, &draft);
    return dtp_executor_gather_parts(x, parts, c->rows);
}

static void logits_gradient(struct chunk *c)
{
    struct dtp_executor *x = c->x;
    struct dtp_draft draft;
    uint64_t targets = dtp_batch_layout_of(x->rules.tokens).targets_offset_bytes;
    dtp_buffer_id parts = loss_parts(c);
    dtp_executor_begin(x, &draft, DTP_OP_LOSS_BACKWARD, "loss");
    dtp_draft_role(&draft, DTP_ROLE_RESULT, c->logits, DTP_UPDATE, 0);
    if (parts.index != DTP_NO_INDEX)
        dtp_draft_role(&draft, DTP_ROLE_SAVED, parts, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_BATCH, dtp_executor_batch(x), DTP_READ, targets + 4 * c->begin);
    if (x->rules.scales_loss)
        dtp_draft_role(&draft, DTP_ROLE_SCALARS, x->scalars, DTP_READ, 0);
    if (c->first)
        c->losses = dtp_executor_new(x, &draft, DTP_ROLE_STATISTICS, "row losses", DTP_OWNER_LOGITS,
                                     4 * x->rules.tokens, DTP_WRITE);
    else
        dtp_draft_role(&draft, DTP_ROLE_STATISTICS, c->losses, DTP_WRITE, 4 * c->begin);
    dtp_executor_memory(&draft, c->rows, dtp_executor_loss_bytes(x, c->rows), 1);
    dtp_executor_end(x, &draft);
}

static void head_weight_gradient(struct chunk *c)
{
    struct dtp_executor *x = c->x;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, "head weight gradient");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, c->logits, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->final_norm, DTP_READ, chunk_offset_bytes(c));
    dtp_executor_gradient(&draft, DTP_ROLE_WEIGHT_GRADIENT, head_module(x), head_weight(x));
    if (dtp_executor_has(dtp_executor_head(x), DTP_PARAMETER_HEAD_BIAS))
        dtp_executor_gradient(&draft, DTP_ROLE_BIAS_GRADIENT, dtp_executor_head(x), DTP_PARAMETER_HEAD_BIAS);
    dtp_executor_matmul(x, &draft, x->rules.vocab_stride, x->h, c->rows);
    dtp_executor_end(x, &draft);
}

static void head_input_gradient(struct chunk *c)
{
    struct dtp_executor *x = c->x;
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MATMUL, "head input gradient");
    dtp_draft_role(&draft, DTP_ROLE_GRADIENT, c->logits, DTP_READ | (c->last ? DTP_FREE : 0), 0);
    dtp_executor_weight(x, &draft, DTP_ROLE_WEIGHT, head_module(x), head_weight(x));
    dtp_draft_role(&draft, DTP_ROLE_INPUT_GRADIENT, x->final_norm, DTP_WRITE, chunk_offset_bytes(c));
    dtp_executor_matmul(x, &draft, c->rows, x->h, x->rules.vocab_stride);
    dtp_executor_end(x, &draft);
}

static void sum_losses(struct dtp_executor *x, dtp_buffer_id losses)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_LOSS, "loss");
    dtp_draft_role(&draft, DTP_ROLE_STATISTICS, losses, DTP_READ | DTP_FREE, 0);
    dtp_draft_role(&draft, DTP_ROLE_SCALARS, x->scalars, DTP_UPDATE, 0);
    dtp_executor_memory(&draft, x->rules.tokens, 4 * (double)x->rules.tokens, 1);
    dtp_executor_end(x, &draft);
}

void dtp_executor_loss(struct dtp_executor *x)
{
    struct dtp_executor_module *head = dtp_executor_head(x);
    struct chunk chunk = {.x = x, .first = true};
    final_norm(x);
    if (!x->shape->adapted)
        dtp_executor_open_gradient(x, head);
    if (head_module(x) != head && !x->shape->adapted)
        dtp_executor_open_gradient(x, head_module(x));
    for (; chunk.begin < x->rules.tokens; chunk.begin += chunk.rows, chunk.first = false) {
        uint64_t left = x->rules.tokens - chunk.begin;
        chunk.rows = left < x->rules.chunk_tokens ? left : x->rules.chunk_tokens;
        chunk.last = chunk.rows == left;
        logits(&chunk);
        logits_gradient(&chunk);
        if (!x->shape->adapted)
            head_weight_gradient(&chunk);
        head_input_gradient(&chunk);
    }
    sum_losses(x, chunk.losses);
    x->gradient = DTP_NO_BUFFER;
    if (dtp_executor_is_cut(x))
        x->final_norm = dtp_executor_scatter_sum(x, "final norm gradient", x->final_norm, "final norm gradient",
                                                 DTP_OWNER_WORKSPACE);
    struct dtp_executor_norm_gradient norm = {.name = "final norm",
                                              .weight = DTP_PARAMETER_FINAL_NORM,
                                              .gradient = x->final_norm,
                                              .input = x->stream_input,
                                              .statistics = x->final_statistics,
                                              .amax = dtp_executor_fp8_stream_slot(x, x->t->layers, -1),
                                              .bytes = dtp_executor_final_norm_backward_bytes(x->shape)};
    dtp_executor_norm_backward(x, head, &norm);
    if (!x->shape->adapted)
        dtp_executor_close_gradient(x, head);
}
