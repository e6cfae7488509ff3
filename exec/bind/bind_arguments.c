/* One function per kind of operation: roles, shapes and element types become the arguments of a kernel. */
#include "bind/binder.h"

#include "runtime/dtplan/batch_layout.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum dtp_element dtp_bind_element(enum dtp_dtype dtype)
{
    switch (dtype) {
    case DTP_FP32: return DTP_ELEMENT_FP32;
    case DTP_FP16: return DTP_ELEMENT_FP16;
    case DTP_FP8: return DTP_ELEMENT_E4M3;
    case DTP_INT8: return DTP_ELEMENT_INT8;
    default: assert(dtype == DTP_BF16); return DTP_ELEMENT_BF16;
    }
}

bool dtp_bind_buffer_element(const struct dtp_buffer *buffer, enum dtp_element *out)
{
    enum dtp_dtype dtype = buffer->element == DTP_NO_ELEMENT ? DTP_DTYPE_COUNT : (enum dtp_dtype)(buffer->element - 1);
    bool known = dtype == DTP_FP32 || dtype == DTP_BF16 || dtype == DTP_FP16 || dtype == DTP_FP8 || dtype == DTP_INT8;
    if (known)
        *out = dtp_bind_element(dtype);
    return known;
}

static float norm_epsilon(const struct dtp_binder *b)
{
    return (float)(b->op->demand->epsilon > 0 ? b->op->demand->epsilon : DTP_NORM_EPSILON);
}

static float embedding_scale(const struct dtp_binder *b)
{
    return b->op->demand->scale > 0 ? (float)b->op->demand->scale : 1;
}

/* The part of the vocabulary that this rank has. */
static uint32_t own_vocab(const struct dtp_binder *b, uint32_t *first)
{
    struct dtp_tensor_place place = dtp_bind_tensor_place(&b->binding->job);
    uint64_t begin, count = dtp_parameter_vocab_slice((uint64_t)b->op->demand->k, place.ranks, place.index, &begin);
    *first = (uint32_t)begin;
    return (uint32_t)count;
}

/* ---- embedding and norms ----------------------------------------------------------------------------------------- */

static void fill_embedding(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint32_t first, vocab = own_vocab(b, &first);
    out->kernel = DTP_KERNEL_embedding;
    out->arguments.embedding = (struct dtp_embedding_args){.tokens = need(b, DTP_ROLE_BATCH),
                                                           .table = need(b, DTP_ROLE_WEIGHT),
                                                           .positions = maybe(b, DTP_ROLE_POSITION),
                                                           .result = need(b, DTP_ROLE_RESULT),
                                                           .rows = rows(b),
                                                           .width = width(b),
                                                           .vocab = vocab,
                                                           .first_token = first,
                                                           .sequence = sequence(b),
                                                           .scale = embedding_scale(b),
                                                           .element = element_of(b, DTP_ROLE_WEIGHT),
                                                           .result_element = element_of(b, DTP_ROLE_RESULT)};
}

static void fill_embedding_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    struct dtp_batch_layout layout = dtp_batch_layout_of(rows(b));
    const char *batch = need(b, DTP_ROLE_BATCH);
    uint32_t first, vocab = own_vocab(b, &first);
    out->kernel = DTP_KERNEL_embedding_backward;
    if (!batch)
        return;
    out->arguments.embedding_backward =
        (struct dtp_embedding_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                             .tokens = (const int32_t *)(batch + layout.tokens_offset_bytes),
                                             .order = (const int32_t *)(batch + layout.order_offset_bytes),
                                             .starts = (const int32_t *)(batch + layout.starts_offset_bytes),
                                             .distinct = (const int32_t *)(batch + layout.distinct_offset_bytes),
                                             .table_gradient = need(b, DTP_ROLE_WEIGHT_GRADIENT),
                                             .positions_gradient = maybe(b, DTP_ROLE_POSITION_GRADIENT),
                                             .rows = rows(b),
                                             .width = width(b),
                                             .vocab = vocab,
                                             .first_token = first,
                                             .sequence = sequence(b),
                                             .scale = embedding_scale(b),
                                             .element = element_of(b, DTP_ROLE_GRADIENT),
                                             .gradient_element = element_of(b, DTP_ROLE_WEIGHT_GRADIENT),
                                             .accumulate_positions = updates(b, DTP_ROLE_POSITION_GRADIENT)};
}

static void fill_norm(struct dtp_binder *b, struct dtp_bound_op *out)
{
    float *statistics = need(b, DTP_ROLE_STATISTICS);
    out->kernel = DTP_KERNEL_norm;
    if (!statistics)
        return;
    out->arguments.norm = (struct dtp_norm_args){.x = need(b, DTP_ROLE_INPUT),
                                                 .weight = need(b, DTP_ROLE_WEIGHT),
                                                 .bias = maybe(b, DTP_ROLE_BIAS),
                                                 .addend = maybe(b, DTP_ROLE_ADDEND),
                                                 .result = need(b, DTP_ROLE_RESULT),
                                                 .inverse_deviation = statistics,
                                                 .mean = has_mean(b) ? statistics + rows(b) : NULL,
                                                 .amax = maybe(b, DTP_ROLE_AMAX),
                                                 .rows = rows(b),
                                                 .width = width(b),
                                                 .x_row = norm_row(b),
                                                 .epsilon = norm_epsilon(b),
                                                 .weight_offset = weight_offset(b),
                                                 .element = element_of(b, DTP_ROLE_INPUT),
                                                 .weight_element = element_of(b, DTP_ROLE_WEIGHT)};
}

/* Where a norm's backward adds up the gradient of its weights; a frozen norm has neither that nor a workspace. */
static float *workspace_of_sums(struct dtp_binder *b)
{
    return operand(b, DTP_ROLE_WEIGHT_GRADIENT) ? need(b, DTP_ROLE_WORKSPACE) : NULL;
}

static void fill_norm_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const float *statistics = need(b, DTP_ROLE_STATISTICS);
    out->kernel = DTP_KERNEL_norm_backward;
    if (!statistics)
        return;
    out->arguments.norm_backward =
        (struct dtp_norm_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                        .x = need(b, DTP_ROLE_INPUT),
                                        .weight = need(b, DTP_ROLE_WEIGHT),
                                        .inverse_deviation = statistics,
                                        .mean = has_mean(b) ? statistics + rows(b) : NULL,
                                        .residual_gradient = need(b, DTP_ROLE_RESIDUAL_GRADIENT),
                                        .addend = maybe(b, DTP_ROLE_ADDEND),
                                        .weight_gradient = maybe(b, DTP_ROLE_WEIGHT_GRADIENT),
                                        .bias_gradient = maybe(b, DTP_ROLE_BIAS_GRADIENT),
                                        .workspace = workspace_of_sums(b),
                                        .amax = maybe(b, DTP_ROLE_AMAX),
                                        .rows = rows(b),
                                        .width = width(b),
                                        .x_row = norm_row(b),
                                        .weight_offset = weight_offset(b),
                                        .element = element_of(b, DTP_ROLE_GRADIENT),
                                        .weight_element = element_of(b, DTP_ROLE_WEIGHT),
                                        .gradient_element = element_of(b, DTP_ROLE_WEIGHT_GRADIENT),
                                        /* a norm of some columns overwrites these and leaves the row's others */
                                        .add_to_residual = updates(b, DTP_ROLE_RESIDUAL_GRADIENT) && !norm_row(b),
                                        .accumulate = updates(b, DTP_ROLE_WEIGHT_GRADIENT)};
}

/* ---- matmuls ----------------------------------------------------------------------------------------------------- */

static void fill_matmul_forward(struct dtp_binder *b, struct dtp_matmul_args *g)
{
    g->a = need(b, DTP_ROLE_INPUT);
    g->element = element_of(b, DTP_ROLE_INPUT);
    g->b = need(b, DTP_ROLE_WEIGHT);
    g->b_transposed = true;
    bool adds_bias = b->op->demand->form != DTP_FORM_TERMS || dtp_bind_tensor_place(&b->binding->job).index == 0;
    g->bias = adds_bias ? maybe(b, DTP_ROLE_BIAS) : NULL;
    g->result = need(b, DTP_ROLE_RESULT);
    g->addend = updates(b, DTP_ROLE_RESULT) ? g->result : maybe(b, DTP_ROLE_ADDEND);
    g->aux = maybe(b, DTP_ROLE_AUX);
    g->epilogue = g->aux ? DTP_EPILOGUE_GELU_AUX : DTP_EPILOGUE_NONE;
    g->lda = g->ldb = g->k;
    g->ldd = g->n;
    g->result_element = element_of(b, DTP_ROLE_RESULT);
}

static void fill_matmul_input_gradient(struct dtp_binder *b, struct dtp_matmul_args *g)
{
    g->a = need(b, DTP_ROLE_GRADIENT);
    g->element = element_of(b, DTP_ROLE_GRADIENT);
    g->b = need(b, DTP_ROLE_WEIGHT);
    g->result = need(b, DTP_ROLE_INPUT_GRADIENT);
    g->addend = updates(b, DTP_ROLE_INPUT_GRADIENT) ? g->result : maybe(b, DTP_ROLE_ADDEND);
    g->aux = maybe(b, DTP_ROLE_AUX);
    g->epilogue = g->aux ? DTP_EPILOGUE_DGELU : DTP_EPILOGUE_NONE;
    g->lda = g->k;
    g->ldb = g->ldd = g->n;
    g->result_element = element_of(b, DTP_ROLE_INPUT_GRADIENT);
}

static void fill_matmul_weight_gradient(struct dtp_binder *b, struct dtp_matmul_args *g)
{
    g->a = need(b, DTP_ROLE_GRADIENT);
    g->element = element_of(b, DTP_ROLE_GRADIENT);
    g->a_transposed = true;
    g->b = need(b, DTP_ROLE_INPUT);
    g->result = need(b, DTP_ROLE_WEIGHT_GRADIENT);
    g->addend = updates(b, DTP_ROLE_WEIGHT_GRADIENT) ? g->result : NULL;
    g->bias_gradient = maybe(b, DTP_ROLE_BIAS_GRADIENT);
    g->lda = g->m;
    g->ldb = g->ldd = g->n;
    g->result_element = element_of(b, DTP_ROLE_WEIGHT_GRADIENT);
}

/* DTP_FORM_COLUMNS: operands that have a row a token are some of the columns of a wider matrix, so that their rows are
 * as far apart as that is wide. */
static void fill_matmul_columns(struct dtp_binder *b, struct dtp_matmul_args *g)
{
    if (b->op->demand->form != DTP_FORM_COLUMNS)
        return;
    if (operand(b, DTP_ROLE_WEIGHT_GRADIENT)) {
        g->lda = dtp_bind_row_elements(b, DTP_ROLE_GRADIENT);
        g->ldb = dtp_bind_row_elements(b, DTP_ROLE_INPUT);
        return;
    }
    bool backward = operand(b, DTP_ROLE_INPUT_GRADIENT) != NULL;
    g->lda = dtp_bind_row_elements(b, backward ? DTP_ROLE_GRADIENT : DTP_ROLE_INPUT);
    g->ldd = dtp_bind_row_elements(b, backward ? DTP_ROLE_INPUT_GRADIENT : DTP_ROLE_RESULT);
}

static void fill_matmul(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const bool subtracted = b->op->demand->form == DTP_FORM_SUBTRACTED;
    struct dtp_matmul_args g = {.scale = (float)(subtracted ? -b->op->demand->scale : b->op->demand->scale),
                                .m = (uint64_t)b->op->demand->m,
                                .n = (uint64_t)b->op->demand->n,
                                .k = (uint64_t)b->op->demand->k,
                                .sms = dtp_program_execution(b->binding->job.program)->matmul_sms};
    const struct dtp_operand *workspace = operand(b, DTP_ROLE_WORKSPACE);
    g.workspace = maybe(b, DTP_ROLE_WORKSPACE);
    g.workspace_bytes = workspace ? operand_bytes(b, workspace) : 0;
    if (operand(b, DTP_ROLE_WEIGHT_GRADIENT))
        fill_matmul_weight_gradient(b, &g);
    else if (operand(b, DTP_ROLE_INPUT_GRADIENT))
        fill_matmul_input_gradient(b, &g);
    else
        fill_matmul_forward(b, &g);
    dtp_bind_matmul_fp8(b, &g);
    fill_matmul_columns(b, &g);
    out->kernel = DTP_KERNEL_matmul;
    out->arguments.matmul = g;
}

/* ---- attention and activations ----------------------------------------------------------------------------------- */

static void fill_rotary(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_attention_shape *t = heads(b);
    const float *cosines = need(b, DTP_ROLE_TABLES);
    out->kernel = DTP_KERNEL_rotary;
    if (!cosines)
        return;
    out->arguments.rotary = (struct dtp_rotary_args){.qkv = need(b, DTP_ROLE_RESULT),
                                                     .cosines = cosines,
                                                     .sines = cosines + sequence(b) * (t->head_dim / 2),
                                                     .rows = rows(b),
                                                     .sequence = sequence(b),
                                                     .heads = t->heads,
                                                     .kv_heads = t->kv_heads,
                                                     .head_dim = t->head_dim,
                                                     .element = element_of(b, DTP_ROLE_RESULT),
                                                     .inverse = b->op->kind == DTP_OP_ROTARY_BACKWARD};
}

static void fill_qk_norm(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_attention_shape *t = heads(b);
    out->kernel = DTP_KERNEL_qk_norm;
    out->arguments.qk_norm = (struct dtp_qk_norm_args){.qkv = need(b, DTP_ROLE_RESULT),
                                                       .weight = maybe(b, DTP_ROLE_WEIGHT),
                                                       .raw = need(b, DTP_ROLE_SAVED),
                                                       .inverse_deviation = need(b, DTP_ROLE_STATISTICS),
                                                       .rows = rows(b),
                                                       .heads = t->heads,
                                                       .kv_heads = t->kv_heads,
                                                       .head_dim = t->head_dim,
                                                       .epsilon = norm_epsilon(b),
                                                       .weight_offset = weight_offset(b),
                                                       .element = element_of(b, DTP_ROLE_RESULT),
                                                       .weight_element = element_of(b, DTP_ROLE_WEIGHT),
                                                       .wide = t->wide};
}

static void fill_qk_norm_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_attention_shape *t = heads(b);
    out->kernel = DTP_KERNEL_qk_norm_backward;
    out->arguments.qk_norm_backward =
        (struct dtp_qk_norm_backward_args){.qkv_gradient = need(b, DTP_ROLE_RESULT),
                                           .raw = need(b, DTP_ROLE_SAVED),
                                           .weight = maybe(b, DTP_ROLE_WEIGHT),
                                           .inverse_deviation = need(b, DTP_ROLE_STATISTICS),
                                           .weight_gradient = maybe(b, DTP_ROLE_WEIGHT_GRADIENT),
                                           .workspace = workspace_of_sums(b),
                                           .rows = rows(b),
                                           .heads = t->heads,
                                           .kv_heads = t->kv_heads,
                                           .head_dim = t->head_dim,
                                           .weight_offset = weight_offset(b),
                                           .element = element_of(b, DTP_ROLE_RESULT),
                                           .weight_element = element_of(b, DTP_ROLE_WEIGHT),
                                           .gradient_element = element_of(b, DTP_ROLE_WEIGHT_GRADIENT),
                                           .accumulate = updates(b, DTP_ROLE_WEIGHT_GRADIENT),
                                           .wide = t->wide};
}

static void fill_sinks(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_attention_shape *t = heads(b);
    out->kernel = DTP_KERNEL_sinks;
    out->arguments.sinks = (struct dtp_sinks_args){.result = need(b, DTP_ROLE_RESULT),
                                                   .log_sum_exp = need(b, DTP_ROLE_STATISTICS),
                                                   .sinks = need(b, DTP_ROLE_WEIGHT),
                                                   .batch = (uint32_t)(rows(b) / t->queries),
                                                   .sequence = sequence(b),
                                                   .heads = t->heads,
                                                   .head_dim = t->head_dim,
                                                   .element = element_of(b, DTP_ROLE_RESULT),
                                                   .sinks_element = element_of(b, DTP_ROLE_WEIGHT)};
}

static void fill_sinks_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_attention_shape *t = heads(b);
    out->kernel = DTP_KERNEL_sinks_backward;
    out->arguments.sinks_backward =
        (struct dtp_sinks_backward_args){.result = need(b, DTP_ROLE_SAVED),
                                         .gradient = need(b, DTP_ROLE_GRADIENT),
                                         .log_sum_exp = need(b, DTP_ROLE_STATISTICS),
                                         .sinks = need(b, DTP_ROLE_WEIGHT),
                                         .sinks_gradient = need(b, DTP_ROLE_WEIGHT_GRADIENT),
                                         .workspace = need(b, DTP_ROLE_WORKSPACE),
                                         .batch = (uint32_t)(rows(b) / t->queries),
                                         .sequence = sequence(b),
                                         .heads = t->heads,
                                         .head_dim = t->head_dim,
                                         .element = element_of(b, DTP_ROLE_SAVED),
                                         .sinks_element = element_of(b, DTP_ROLE_WEIGHT),
                                         .gradient_element = element_of(b, DTP_ROLE_WEIGHT_GRADIENT),
                                         .accumulate = updates(b, DTP_ROLE_WEIGHT_GRADIENT)};
}

static void fill_attention(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_attention_shape *t = heads(b);
    const struct dtp_operand *workspace = operand(b, DTP_ROLE_WORKSPACE);
    const struct dtp_context_step_place step = dtp_bind_context_step(b);
    out->kernel = DTP_KERNEL_attention;
    out->arguments.attention =
        (struct dtp_attention_args){.qkv = need(b, DTP_ROLE_INPUT),
                                    .keys = maybe(b, DTP_ROLE_KEYS),
                                    .result = need(b, DTP_ROLE_RESULT),
                                    .log_sum_exp = need(b, DTP_ROLE_STATISTICS),
                                    .workspace = maybe(b, DTP_ROLE_WORKSPACE),
                                    .workspace_bytes = workspace ? operand_bytes(b, workspace) : 0,
                                    .batch = (uint32_t)(rows(b) / t->queries),
                                    .sequence = sequence(b),
                                    .heads = t->heads,
                                    .kv_heads = t->kv_heads,
                                    .head_dim = t->head_dim,
                                    .value_dim = t->value_dim,
                                    .window = t->window,
                                    .first_query = step.first_query,
                                    .key_count = step.key_count,
                                    .scale = (float)(1 / sqrt((double)t->head_dim)),
                                    .softcap = (float)t->softcap,
                                    .alibi = t->alibi,
                                    .element = element_of(b, DTP_ROLE_INPUT)};
}

static void fill_attention_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_attention_shape *t = heads(b);
    const struct dtp_operand *workspace = operand(b, DTP_ROLE_WORKSPACE);
    const struct dtp_context_step_place step = dtp_bind_context_step(b);
    void *gradient = need(b, DTP_ROLE_INPUT_GRADIENT), *keys = maybe(b, DTP_ROLE_KEYS);
    out->kernel = DTP_KERNEL_attention_backward;
    out->arguments.attention_backward =
        (struct dtp_attention_backward_args){.qkv = need(b, DTP_ROLE_INPUT),
                                             .keys = keys,
                                             .result = need(b, DTP_ROLE_SAVED),
                                             .gradient = need(b, DTP_ROLE_GRADIENT),
                                             .log_sum_exp = need(b, DTP_ROLE_STATISTICS),
                                             .qkv_gradient = keys ? NULL : gradient,
                                             .query_gradient = keys ? gradient : NULL,
                                             .keys_gradient = keys ? need(b, DTP_ROLE_RESULT) : NULL,
                                             .workspace = maybe(b, DTP_ROLE_WORKSPACE),
                                             .workspace_bytes = workspace ? operand_bytes(b, workspace) : 0,
                                             .batch = (uint32_t)(rows(b) / t->queries),
                                             .sequence = sequence(b),
                                             .heads = t->heads,
                                             .kv_heads = t->kv_heads,
                                             .head_dim = t->head_dim,
                                             .value_dim = t->value_dim,
                                             .window = t->window,
                                             .first_query = step.first_query,
                                             .key_count = step.key_count,
                                             .scale = (float)(1 / sqrt((double)t->head_dim)),
                                             .softcap = (float)t->softcap,
                                             .atomic = t->atomic,
                                             .alibi = t->alibi,
                                             .element = element_of(b, DTP_ROLE_INPUT)};
}

static bool input_is_narrow(struct dtp_binder *b)
{
    return element_of(b, DTP_ROLE_INPUT) == DTP_ELEMENT_E4M3;
}

static void fill_activation(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_activation;
    out->arguments.activation = (struct dtp_activation_args){.up = need(b, DTP_ROLE_INPUT),
                                                             .result = need(b, DTP_ROLE_RESULT),
                                                             .stored = maybe(b, DTP_ROLE_SAVED),
                                                             .amax = maybe(b, DTP_ROLE_AMAX),
                                                             .rows = rows(b),
                                                             .width = width(b),
                                                             .kind = activation_kind(b),
                                                             .element = element_of(b, DTP_ROLE_RESULT),
                                                             .up_is_stored = input_is_narrow(b)};
}

static void fill_activation_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    void *up = need(b, DTP_ROLE_INPUT), *apart = maybe(b, DTP_ROLE_INPUT_GRADIENT);
    out->kernel = DTP_KERNEL_activation_backward;
    out->arguments.activation_backward =
        (struct dtp_activation_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                              .up = up,
                                              .up_gradient = apart ? apart : up,
                                              .result = maybe(b, DTP_ROLE_RESULT),
                                              .amax = maybe(b, DTP_ROLE_AMAX),
                                              .rows = rows(b),
                                              .width = width(b),
                                              .kind = activation_kind(b),
                                              .element = element_of(b, DTP_ROLE_GRADIENT),
                                              .up_is_stored = input_is_narrow(b)};
}

static void fill_bias_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *result = operand(b, DTP_ROLE_BIAS_GRADIENT);
    out->kernel = DTP_KERNEL_bias_backward;
    out->arguments.bias_backward =
        (struct dtp_bias_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                        .bias_gradient = need(b, DTP_ROLE_BIAS_GRADIENT),
                                        .workspace = need(b, DTP_ROLE_WORKSPACE),
                                        .rows = rows(b),
                                        .width = width(b),
                                        .element = element_of(b, DTP_ROLE_GRADIENT),
                                        .gradient_element = element_of(b, DTP_ROLE_BIAS_GRADIENT),
                                        .accumulate = result && updates(b, DTP_ROLE_BIAS_GRADIENT)};
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

static void fill_loss_backward(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint32_t first, vocab = own_vocab(b, &first);
    out->kernel = DTP_KERNEL_loss;
    out->arguments.loss = (struct dtp_loss_args){.logits = need(b, DTP_ROLE_RESULT),
                                                 .targets = need(b, DTP_ROLE_BATCH),
                                                 .row_loss = need(b, DTP_ROLE_STATISTICS),
                                                 .rows = rows(b),
                                                 .vocab = vocab,
                                                 .first_token = first,
                                                 .parts = maybe(b, DTP_ROLE_SAVED),
                                                 .part_count = dtp_bind_tensor_place(&b->binding->job).ranks,
                                                 .stride = width(b),
                                                 .scale = (float)(1 / b->op->demand->m),
                                                 .softcap = (float)heads(b)->softcap,
                                                 .scalars = maybe(b, DTP_ROLE_SCALARS),
                                                 .element = element_of(b, DTP_ROLE_RESULT)};
}

static void fill_loss_parts(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint32_t first, vocab = own_vocab(b, &first);
    out->kernel = DTP_KERNEL_loss_parts;
    out->arguments.loss_parts = (struct dtp_loss_parts_args){.logits = need(b, DTP_ROLE_INPUT),
                                                             .targets = need(b, DTP_ROLE_BATCH),
                                                             .part = need(b, DTP_ROLE_STATISTICS),
                                                             .rows = rows(b),
                                                             .vocab = vocab,
                                                             .stride = width(b),
                                                             .first_token = first,
                                                             .softcap = (float)heads(b)->softcap,
                                                             .element = element_of(b, DTP_ROLE_INPUT)};
}

static void fill_loss(struct dtp_binder *b, struct dtp_bound_op *out)
{
    struct dtp_step_scalars *scalars = need(b, DTP_ROLE_SCALARS);
    out->kernel = DTP_KERNEL_sum;
    out->arguments.sum = (struct dtp_sum_args){.values = need(b, DTP_ROLE_STATISTICS),
                                               .total = scalars ? &scalars->loss_sum : NULL,
                                               .count = rows(b),
                                               .accumulate = true};
}

/* ---- all kinds --------------------------------------------------------------------------------------------------- */

static enum dtp_status fill(struct dtp_binder *b, struct dtp_bound_op *out)
{
    out->kind = DTP_BOUND_COMPUTE;
    switch (b->op->kind) {
    case DTP_OP_EMBEDDING: fill_embedding(b, out); return DTP_OK;
    case DTP_OP_EMBEDDING_BACKWARD: fill_embedding_backward(b, out); return DTP_OK;
    case DTP_OP_NORM: fill_norm(b, out); return DTP_OK;
    case DTP_OP_NORM_BACKWARD: fill_norm_backward(b, out); return DTP_OK;
    case DTP_OP_MATMUL: fill_matmul(b, out); return DTP_OK;
    case DTP_OP_QUANTIZE: dtp_bind_quantize(b, out); return DTP_OK;
    case DTP_OP_ROTARY:
    case DTP_OP_ROTARY_BACKWARD: (dtp_bind_packs_heads(b) ? dtp_bind_latent_heads : fill_rotary)(b, out); return DTP_OK;
    case DTP_OP_QK_NORM: fill_qk_norm(b, out); return DTP_OK;
    case DTP_OP_QK_NORM_BACKWARD: fill_qk_norm_backward(b, out); return DTP_OK;
    case DTP_OP_SINKS: fill_sinks(b, out); return DTP_OK;
    case DTP_OP_SINKS_BACKWARD: fill_sinks_backward(b, out); return DTP_OK;
    case DTP_OP_ATTENTION: fill_attention(b, out); return DTP_OK;
    case DTP_OP_ATTENTION_BACKWARD: fill_attention_backward(b, out); return DTP_OK;
    case DTP_OP_ACTIVATION: (dtp_bind_has_routes(b) ? dtp_bind_expert : fill_activation)(b, out); return DTP_OK;
    case DTP_OP_ACTIVATION_BACKWARD:
        (dtp_bind_has_routes(b) ? dtp_bind_expert : fill_activation_backward)(b, out);
        return DTP_OK;
    case DTP_OP_GROUPED_MATMUL:
    case DTP_OP_ROUTER:
    case DTP_OP_ROUTER_BACKWARD:
    case DTP_OP_PERMUTE:
    case DTP_OP_PERMUTE_BACKWARD:
    case DTP_OP_EXPERT_BIAS:
    case DTP_OP_EXPERT_BIAS_BACKWARD:
    case DTP_OP_UNPERMUTE:
    case DTP_OP_UNPERMUTE_BACKWARD: dtp_bind_expert(b, out); return DTP_OK;
    case DTP_OP_BIAS_BACKWARD: fill_bias_backward(b, out); return DTP_OK;
    case DTP_OP_LOSS_PARTS: fill_loss_parts(b, out); return DTP_OK;
    case DTP_OP_LOSS_BACKWARD: fill_loss_backward(b, out); return DTP_OK;
    case DTP_OP_LOSS: fill_loss(b, out); return DTP_OK;
    case DTP_OP_ZERO: dtp_bind_zero(b, out); return DTP_OK;
    case DTP_OP_SQUARE_SUM: dtp_bind_square_sum(b, out); return DTP_OK;
    case DTP_OP_CLIP_SCALE: dtp_bind_clip_scale(b, out); return DTP_OK;
    case DTP_OP_NEWTON_SCHULZ: dtp_bind_product(b, out); return DTP_OK;
    case DTP_OP_OPTIMIZER: return dtp_bind_is_muon(b) ? dtp_bind_muon(b, out) : dtp_bind_optimizer(b, out);
    case DTP_OP_HOST_OPTIMIZER: return dtp_bind_host_optimizer(b, out);
    case DTP_OP_CAST: dtp_bind_cast(b, out); return DTP_OK;
    case DTP_OP_ACCUMULATE: dtp_bind_add(b, out); return DTP_OK;
    case DTP_OP_SUM_PARTS: dtp_bind_sum_parts(b, out); return DTP_OK;
    case DTP_OP_PACK8: dtp_bind_pack8(b, out); return DTP_OK;
    case DTP_OP_SUM_PACKED8: dtp_bind_sum_packed8(b, out); return DTP_OK;
    case DTP_OP_ORTHOGONALIZE: dtp_bind_orthogonalize(b, out); return DTP_OK;
    case DTP_OP_COPY_IN:
    case DTP_OP_COPY_OUT: dtp_bind_copied_columns(b, out); return DTP_OK;
    case DTP_OP_MERGE: dtp_bind_merge(b, out); return DTP_OK;
    case DTP_OP_SHIFT: return dtp_bind_shift(b, out);
    case DTP_OP_UPLOAD:
    case DTP_OP_DOWNLOAD: dtp_bind_copy(b, out); return DTP_OK;
    case DTP_OP_HOST_WAIT: dtp_bind_heard(b, out); return DTP_OK;
    case DTP_OP_ALL_GATHER:
    case DTP_OP_REDUCE_SCATTER:
    case DTP_OP_ALL_REDUCE: return dtp_bind_collective(b, out);
    case DTP_OP_ALL_TO_ALL: return dtp_bind_has_routes(b) ? dtp_bind_exchange(b, out) : dtp_bind_collective(b, out);
    case DTP_OP_SEND:
    case DTP_OP_RECV: return dtp_bind_transfer(b, out);
    case DTP_OP_ALLOC:
    case DTP_OP_FREE:
    case DTP_OP_HOST_GROUPS:
    case DTP_OP_HOST_REPLAY:
    case DTP_OP_HOST_HOOKS:
    case DTP_OP_HOST_CALL:
    case DTP_OP_MARK: out->kind = DTP_BOUND_NOTHING; return DTP_OK;
    default: break;
    }
    return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0, "the executor has no way to run \"%s\" (%s)",
                     dtp_op_kind_text(b->op->kind), b->op->name);
}

enum dtp_status dtp_bind_arguments(const struct dtp_binding *binding, const struct dtp_op *op, struct dtp_bound_op *out,
                                   struct dtp_faults *faults)
{
    struct dtp_binder b = {.binding = binding, .op = op, .faults = faults};
    memset(&out->arguments, 0, sizeof out->arguments);
    dtp_bind_room(&b);
    enum dtp_status status = b.missing ? DTP_OK : fill(&b, out);
    for (int role = 0; role < DTP_ROLE_COUNT && status == DTP_OK; role++)
        if (b.missing & 1u << role)
            status =
                dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                          "the program's %s \"%s\" (operation %zu) has no operand \"%s\" that fits it",
                          dtp_op_kind_text(op->kind), op->name, (size_t)(op - dtp_program_ops(binding->job.program)),
                          dtp_role_text((enum dtp_role)role));
    return status;
}
