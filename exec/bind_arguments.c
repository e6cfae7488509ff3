/* One function per kind of operation: roles, shapes and element types become the arguments of a kernel. */
#include "bind.h"

#include "batch_layout.h"
#include "element.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Epsilon of norms: LLaMA's and GPT-2's configuration classes (transformers: rms_norm_eps 1e-5 of LLaMA 2, layer_norm_epsilon
 * 1e-5). AdamW's comes with the settings. */
#define NORM_EPSILON 1e-5f

/* What is being bound; `missing` collects roles that the kind needs and the operation lacks. */
struct binder {
    const struct dtp_binding *binding;
    const struct dtp_op *op;
    struct dtp_faults *faults;
    uint32_t missing; /* a bit per role */
};

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static const struct dtp_operand *operand(const struct binder *b, enum dtp_role role)
{
    const struct dtp_operand *operands = dtp_program_operands(b->binding->job.program, b->op);
    for (uint32_t i = 0; i < b->op->operand_count; i++)
        if (operands[i].role == role)
            return &operands[i];
    return NULL;
}

static const struct dtp_buffer *buffer_of(const struct binder *b, const struct dtp_operand *o)
{
    return &dtp_program_buffers(b->binding->job.program)[o->buffer.index];
}

/* Ranks among which `shard` cuts a buffer, and this rank's place among them. */
static struct dtp_program_group shard_group(const struct binder *b)
{
    if (b->op->group != DTP_NO_INDEX)
        return dtp_program_groups(b->binding->job.program)[b->op->group];
    return (struct dtp_program_group){(uint32_t)b->binding->rules.shard_ranks, 1};
}

static uint32_t group_index(const struct binder *b)
{
    struct dtp_program_group group = shard_group(b);
    return dtp_group_place(&group, b->binding->job.rank).index;
}

/* Bytes of the buffer that belong to the operand, from its offset on. */
static uint64_t operand_bytes(const struct binder *b, const struct dtp_operand *o)
{
    uint64_t bytes = buffer_of(b, o)->bytes;
    return o->shard ? bytes / shard_group(b).ranks : bytes - o->offset_bytes;
}

/* NULL where the operation has no such operand. */
static void *maybe(const struct binder *b, enum dtp_role role)
{
    const struct dtp_operand *o = operand(b, role);
    char *base = o ? dtp_binding_address(b->binding, o->buffer) : NULL;
    if (!base)
        return NULL;
    uint64_t shard = o->shard ? group_index(b) * operand_bytes(b, o) : 0;
    return base + shard + o->offset_bytes;
}

static void *need(struct binder *b, enum dtp_role role)
{
    void *address = maybe(b, role);
    if (!address)
        b->missing |= 1u << role;
    return address;
}

static bool updates(const struct binder *b, enum dtp_role role)
{
    const struct dtp_operand *o = operand(b, role);
    return o && (o->access & DTP_UPDATE) == DTP_UPDATE;
}

/* ---- element types ----------------------------------------------------------------------------------------------- */

enum dtp_element dtp_bind_element(enum dtp_dtype dtype)
{
    return dtype == DTP_FP32 ? DTP_ELEMENT_FP32 : DTP_ELEMENT_BF16;
}

uint64_t dtp_bind_module_of(const struct dtp_binding *binding, dtp_buffer_id id)
{
    const struct dtp_buffer *buffer = &dtp_program_buffers(binding->job.program)[id.index];
    if (buffer->layer != DTP_NO_LAYER)
        return (uint64_t)buffer->layer + 1;
    return strncmp(buffer->name, "embedding", strlen("embedding")) == 0 ? 0 : binding->job.transformer->layers + 1;
}

enum dtp_element dtp_bind_gradient_element(const struct dtp_binding *binding, uint64_t module)
{
    uint64_t head = binding->job.transformer->tied_head ? 0 : binding->job.transformer->layers + 1;
    return dtp_bind_element(module == head ? binding->rules.head_gradient : binding->rules.gradient);
}

static enum dtp_element compute(const struct binder *b)
{
    return dtp_bind_element(b->binding->rules.compute);
}

/* Of the gradient buffer that operand `role` lies in. */
static enum dtp_element gradient(const struct binder *b, enum dtp_role role)
{
    const struct dtp_operand *o = operand(b, role);
    return o ? dtp_bind_gradient_element(b->binding, dtp_bind_module_of(b->binding, o->buffer)) : compute(b);
}

/* Of an operand of `count` elements that fills what it lies in. */
static enum dtp_element by_size(struct binder *b, enum dtp_role role, uint64_t count)
{
    const struct dtp_operand *o = operand(b, role);
    uint64_t bytes = o ? operand_bytes(b, o) : 0;
    if (bytes != 4 * count && bytes != 2 * count)
        b->missing |= 1u << role;
    return bytes == 4 * count ? DTP_ELEMENT_FP32 : DTP_ELEMENT_BF16;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static const struct dtp_transformer *shape(const struct binder *b)
{
    return b->binding->job.transformer;
}

static uint64_t rows(const struct binder *b)
{
    return (uint64_t)b->op->demand.tokens;
}

static uint32_t hidden(const struct binder *b)
{
    return (uint32_t)shape(b)->hidden;
}

static uint32_t sequence(const struct binder *b)
{
    return (uint32_t)b->binding->job.plan->sequence;
}

static enum dtp_activation_kind activation_kind(const struct binder *b)
{
    switch (shape(b)->activation) {
    case DTP_GELU: return DTP_ACTIVATION_GELU;
    case DTP_RELU: return DTP_ACTIVATION_RELU;
    case DTP_SWIGLU: break;
    }
    return DTP_ACTIVATION_SWIGLU;
}

/* ---- embedding and norms ----------------------------------------------------------------------------------------- */

static void fill_embedding(struct binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_embedding;
    out->arguments.embedding = (struct dtp_embedding_args){.tokens = need(b, DTP_ROLE_BATCH),
                                                           .table = need(b, DTP_ROLE_WEIGHT),
                                                           .positions = maybe(b, DTP_ROLE_POSITION),
                                                           .result = need(b, DTP_ROLE_RESULT),
                                                           .rows = rows(b),
                                                           .width = hidden(b),
                                                           .vocab = (uint32_t)shape(b)->vocab,
                                                           .sequence = sequence(b),
                                                           .element = compute(b),
                                                           .result_element = compute(b)};
}

static void fill_embedding_backward(struct binder *b, struct dtp_bound_op *out)
{
    struct dtp_batch_layout layout = dtp_batch_layout_of(rows(b));
    const char *batch = need(b, DTP_ROLE_BATCH);
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
                                             .width = hidden(b),
                                             .vocab = (uint32_t)shape(b)->vocab,
                                             .sequence = sequence(b),
                                             .element = compute(b),
                                             .gradient_element = gradient(b, DTP_ROLE_WEIGHT_GRADIENT),
                                             .accumulate_positions = updates(b, DTP_ROLE_POSITION_GRADIENT)};
}

static void fill_norm(struct binder *b, struct dtp_bound_op *out)
{
    float *statistics = need(b, DTP_ROLE_STATISTICS);
    out->kernel = DTP_KERNEL_norm;
    if (!statistics)
        return;
    out->arguments.norm = (struct dtp_norm_args){.x = need(b, DTP_ROLE_INPUT),
                                                 .weight = need(b, DTP_ROLE_WEIGHT),
                                                 .bias = maybe(b, DTP_ROLE_BIAS),
                                                 .result = need(b, DTP_ROLE_RESULT),
                                                 .inverse_deviation = statistics,
                                                 .mean = shape(b)->norm == DTP_LAYER_NORM ? statistics + rows(b) : NULL,
                                                 .rows = rows(b),
                                                 .width = hidden(b),
                                                 .epsilon = NORM_EPSILON,
                                                 .element = compute(b),
                                                 .weight_element = compute(b)};
}

static void fill_norm_backward(struct binder *b, struct dtp_bound_op *out)
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
                                        .mean = shape(b)->norm == DTP_LAYER_NORM ? statistics + rows(b) : NULL,
                                        .residual_gradient = need(b, DTP_ROLE_RESIDUAL_GRADIENT),
                                        .weight_gradient = need(b, DTP_ROLE_WEIGHT_GRADIENT),
                                        .bias_gradient = maybe(b, DTP_ROLE_BIAS_GRADIENT),
                                        .workspace = need(b, DTP_ROLE_WORKSPACE),
                                        .rows = rows(b),
                                        .width = hidden(b),
                                        .element = compute(b),
                                        .weight_element = compute(b),
                                        .gradient_element = gradient(b, DTP_ROLE_WEIGHT_GRADIENT),
                                        .add_to_residual = updates(b, DTP_ROLE_RESIDUAL_GRADIENT),
                                        .accumulate = updates(b, DTP_ROLE_WEIGHT_GRADIENT)};
}

/* ---- matmuls ----------------------------------------------------------------------------------------------------- */

/* Logits are the only matrix whose rows are further apart than they are long; the head's matmuls are those without a layer. */
static uint64_t stride_of(const struct binder *b, uint64_t width)
{
    bool logits = b->op->layer == DTP_NO_LAYER && width == shape(b)->vocab;
    return logits ? b->binding->rules.vocab_stride : width;
}

static void fill_matmul_forward(struct binder *b, struct dtp_matmul_args *g)
{
    g->a = need(b, DTP_ROLE_INPUT);
    g->b = need(b, DTP_ROLE_WEIGHT);
    g->b_transposed = true;
    g->bias = maybe(b, DTP_ROLE_BIAS);
    g->addend = maybe(b, DTP_ROLE_ADDEND);
    g->result = need(b, DTP_ROLE_RESULT);
    g->aux = maybe(b, DTP_ROLE_AUX);
    g->epilogue = g->aux ? DTP_EPILOGUE_GELU_AUX : DTP_EPILOGUE_NONE;
    g->lda = g->ldb = g->k;
    g->ldd = stride_of(b, g->n);
    g->result_element = compute(b);
}

static void fill_matmul_input_gradient(struct binder *b, struct dtp_matmul_args *g)
{
    g->a = need(b, DTP_ROLE_GRADIENT);
    g->b = need(b, DTP_ROLE_WEIGHT);
    g->result = need(b, DTP_ROLE_INPUT_GRADIENT);
    g->aux = maybe(b, DTP_ROLE_AUX);
    g->epilogue = g->aux ? DTP_EPILOGUE_DGELU : DTP_EPILOGUE_NONE;
    g->lda = stride_of(b, g->k);
    g->ldb = g->ldd = g->n;
    g->result_element = compute(b);
}

static void fill_matmul_weight_gradient(struct binder *b, struct dtp_matmul_args *g)
{
    g->a = need(b, DTP_ROLE_GRADIENT);
    g->a_transposed = true;
    g->b = need(b, DTP_ROLE_INPUT);
    g->result = need(b, DTP_ROLE_WEIGHT_GRADIENT);
    g->addend = updates(b, DTP_ROLE_WEIGHT_GRADIENT) ? g->result : NULL;
    g->bias_gradient = maybe(b, DTP_ROLE_BIAS_GRADIENT);
    g->lda = stride_of(b, g->m);
    g->ldb = g->ldd = g->n;
    g->result_element = gradient(b, DTP_ROLE_WEIGHT_GRADIENT);
}

static void fill_matmul(struct binder *b, struct dtp_bound_op *out)
{
    struct dtp_matmul_args g = {.m = (uint64_t)b->op->demand.m, .n = (uint64_t)b->op->demand.n,
                                .k = (uint64_t)b->op->demand.k, .element = compute(b)};
    const struct dtp_operand *workspace = operand(b, DTP_ROLE_WORKSPACE);
    g.workspace = maybe(b, DTP_ROLE_WORKSPACE);
    g.workspace_bytes = workspace ? operand_bytes(b, workspace) : 0;
    if (operand(b, DTP_ROLE_WEIGHT_GRADIENT))
        fill_matmul_weight_gradient(b, &g);
    else if (operand(b, DTP_ROLE_INPUT_GRADIENT))
        fill_matmul_input_gradient(b, &g);
    else
        fill_matmul_forward(b, &g);
    out->kernel = DTP_KERNEL_matmul;
    out->arguments.matmul = g;
}

/* ---- attention and activations ----------------------------------------------------------------------------------- */

static void fill_rotary(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_transformer *t = shape(b);
    const float *cosines = need(b, DTP_ROLE_TABLES);
    out->kernel = DTP_KERNEL_rotary;
    if (!cosines)
        return;
    out->arguments.rotary = (struct dtp_rotary_args){.qkv = need(b, DTP_ROLE_RESULT),
                                                     .cosines = cosines,
                                                     .sines = cosines + sequence(b) * (t->head_dim / 2),
                                                     .rows = rows(b),
                                                     .sequence = sequence(b),
                                                     .heads = (uint32_t)t->heads,
                                                     .kv_heads = (uint32_t)t->kv_heads,
                                                     .head_dim = (uint32_t)t->head_dim,
                                                     .element = compute(b),
                                                     .inverse = b->op->kind == DTP_OP_ROTARY_BACKWARD};
}

static void fill_attention(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_transformer *t = shape(b);
    const struct dtp_operand *workspace = operand(b, DTP_ROLE_WORKSPACE);
    out->kernel = DTP_KERNEL_attention;
    out->arguments.attention = (struct dtp_attention_args){.qkv = need(b, DTP_ROLE_INPUT),
                                                           .result = need(b, DTP_ROLE_RESULT),
                                                           .log_sum_exp = need(b, DTP_ROLE_STATISTICS),
                                                           .workspace = maybe(b, DTP_ROLE_WORKSPACE),
                                                           .workspace_bytes = workspace ? operand_bytes(b, workspace) : 0,
                                                           .batch = b->binding->job.plan->micro_batch,
                                                           .sequence = sequence(b),
                                                           .heads = (uint32_t)t->heads,
                                                           .kv_heads = (uint32_t)t->kv_heads,
                                                           .head_dim = (uint32_t)t->head_dim,
                                                           .scale = (float)(1 / sqrt((double)t->head_dim)),
                                                           .element = compute(b)};
}

static void fill_attention_backward(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_transformer *t = shape(b);
    const struct dtp_operand *workspace = operand(b, DTP_ROLE_WORKSPACE);
    out->kernel = DTP_KERNEL_attention_backward;
    out->arguments.attention_backward =
        (struct dtp_attention_backward_args){.qkv = need(b, DTP_ROLE_INPUT),
                                             .result = need(b, DTP_ROLE_SAVED),
                                             .gradient = need(b, DTP_ROLE_GRADIENT),
                                             .log_sum_exp = need(b, DTP_ROLE_STATISTICS),
                                             .qkv_gradient = need(b, DTP_ROLE_INPUT_GRADIENT),
                                             .workspace = maybe(b, DTP_ROLE_WORKSPACE),
                                             .workspace_bytes = workspace ? operand_bytes(b, workspace) : 0,
                                             .batch = b->binding->job.plan->micro_batch,
                                             .sequence = sequence(b),
                                             .heads = (uint32_t)t->heads,
                                             .kv_heads = (uint32_t)t->kv_heads,
                                             .head_dim = (uint32_t)t->head_dim,
                                             .scale = (float)(1 / sqrt((double)t->head_dim)),
                                             .element = compute(b)};
}

static void fill_activation(struct binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_activation;
    out->arguments.activation = (struct dtp_activation_args){.up = need(b, DTP_ROLE_INPUT),
                                                             .result = need(b, DTP_ROLE_RESULT),
                                                             .rows = rows(b),
                                                             .width = (uint32_t)shape(b)->ffn,
                                                             .kind = activation_kind(b),
                                                             .element = compute(b)};
}

static void fill_activation_backward(struct binder *b, struct dtp_bound_op *out)
{
    void *up = need(b, DTP_ROLE_INPUT), *apart = maybe(b, DTP_ROLE_INPUT_GRADIENT);
    out->kernel = DTP_KERNEL_activation_backward;
    out->arguments.activation_backward = (struct dtp_activation_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                                                               .up = up,
                                                                               .up_gradient = apart ? apart : up,
                                                                               .result = maybe(b, DTP_ROLE_RESULT),
                                                                               .rows = rows(b),
                                                                               .width = (uint32_t)shape(b)->ffn,
                                                                               .kind = activation_kind(b),
                                                                               .element = compute(b)};
}

static void fill_bias_backward(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *result = operand(b, DTP_ROLE_BIAS_GRADIENT);
    out->kernel = DTP_KERNEL_bias_backward;
    out->arguments.bias_backward = (struct dtp_bias_backward_args){.gradient = need(b, DTP_ROLE_GRADIENT),
                                                                   .bias_gradient = need(b, DTP_ROLE_BIAS_GRADIENT),
                                                                   .workspace = need(b, DTP_ROLE_WORKSPACE),
                                                                   .rows = rows(b),
                                                                   .width = (uint32_t)b->op->demand.n,
                                                                   .element = compute(b),
                                                                   .gradient_element = gradient(b, DTP_ROLE_BIAS_GRADIENT),
                                                                   .accumulate = result && updates(b, DTP_ROLE_BIAS_GRADIENT)};
}

/* ---- loss -------------------------------------------------------------------------------------------------------- */

static void fill_loss_backward(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_bind_job *job = &b->binding->job;
    double tokens = (double)b->binding->rules.tokens * job->plan->accumulate * job->cluster->gpus;
    out->kernel = DTP_KERNEL_loss;
    out->arguments.loss = (struct dtp_loss_args){.logits = need(b, DTP_ROLE_RESULT),
                                                 .targets = need(b, DTP_ROLE_BATCH),
                                                 .row_loss = need(b, DTP_ROLE_STATISTICS),
                                                 .rows = rows(b),
                                                 .vocab = (uint32_t)shape(b)->vocab,
                                                 .stride = (uint32_t)b->binding->rules.vocab_stride,
                                                 .scale = (float)(1 / tokens),
                                                 .element = compute(b)};
}

static void fill_loss(struct binder *b, struct dtp_bound_op *out)
{
    struct dtp_step_scalars *scalars = need(b, DTP_ROLE_SCALARS);
    out->kernel = DTP_KERNEL_sum;
    out->arguments.sum = (struct dtp_sum_args){.values = need(b, DTP_ROLE_STATISTICS),
                                               .total = scalars ? &scalars->loss_sum : NULL,
                                               .count = rows(b),
                                               .accumulate = true};
}

/* ---- optimizer --------------------------------------------------------------------------------------------------- */

static void fill_zero(struct binder *b, struct dtp_bound_op *out)
{
    out->kernel = DTP_KERNEL_zero;
    out->arguments.zero = (struct dtp_zero_args){need(b, DTP_ROLE_RESULT), (uint64_t)b->op->demand.bytes};
}

static void fill_square_sum(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *input = operand(b, DTP_ROLE_INPUT);
    enum dtp_element element = gradient(b, DTP_ROLE_INPUT);
    out->kernel = DTP_KERNEL_square_sum;
    out->arguments.square_sum =
        (struct dtp_square_sum_args){.values = need(b, DTP_ROLE_INPUT),
                                     .partial = need(b, DTP_ROLE_PARTIALS),
                                     .count = input ? operand_bytes(b, input) / dtp_element_bytes(element) : 0,
                                     .element = element};
}

static void fill_clip_scale(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_operand *partials = operand(b, DTP_ROLE_PARTIALS);
    out->kernel = DTP_KERNEL_clip_scale;
    out->arguments.clip_scale = (struct dtp_clip_scale_args){.partials = need(b, DTP_ROLE_PARTIALS),
                                                             .count = partials ? operand_bytes(b, partials) / 4 : 0,
                                                             .clip = (float)b->binding->job.plan->clip_norm,
                                                             .scalars = need(b, DTP_ROLE_SCALARS)};
}

/* Where weight decay applies among elements [first, first + count) of a module. Neighbours that both decay are one range:
 * the padding between them is zero and stays so. */
static enum dtp_status decay_ranges(const struct binder *b, uint64_t module, uint64_t first, struct dtp_adamw_args *out)
{
    struct dtp_parameter_module layout;
    dtp_parameter_module(shape(b), b->binding->rules.shard_ranks, module, &layout);
    bool follows = false;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *t = &layout.tensor[i];
        uint64_t begin = t->offset_elements, end = begin + t->rows * t->columns, last = first + out->count;
        if (!t->exists)
            continue;
        begin = begin > first ? begin : first;
        end = end < last ? end : last;
        bool decays = t->decays && begin < end;
        if (decays && follows) {
            out->range_end[out->range_count - 1] = end - first;
        } else if (decays) {
            if (out->range_count == DTP_DECAY_RANGES)
                return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0, "module %" PRIu64 " has more than %u ranges of decay",
                                 module, DTP_DECAY_RANGES);
            out->range_begin[out->range_count] = begin - first;
            out->range_end[out->range_count++] = end - first;
        }
        follows = decays;
    }
    return DTP_OK;
}

static enum dtp_status fill_optimizer(struct binder *b, struct dtp_bound_op *out)
{
    const struct dtp_bind_job *job = &b->binding->job;
    const struct dtp_operand *moment = operand(b, DTP_ROLE_MOMENT1), *weight = operand(b, DTP_ROLE_WEIGHT);
    if (!moment || !weight) {
        b->missing |= 1u << DTP_ROLE_MOMENT1;
        return DTP_OK;
    }
    struct dtp_parameter_module layout;
    uint64_t module = dtp_bind_module_of(b->binding, moment->buffer);
    dtp_parameter_module(shape(b), b->binding->rules.shard_ranks, module, &layout);
    struct dtp_adamw_args g = {.gradient = need(b, DTP_ROLE_WEIGHT_GRADIENT),
                               .weights = need(b, DTP_ROLE_WEIGHT),
                               .master = maybe(b, DTP_ROLE_MASTER),
                               .moment1 = need(b, DTP_ROLE_MOMENT1),
                               .moment2 = need(b, DTP_ROLE_MOMENT2),
                               .beta1 = job->optimizer.beta1,
                               .beta2 = job->optimizer.beta2,
                               .epsilon = job->optimizer.epsilon,
                               .decay = job->optimizer.decay,
                               .scalars = need(b, DTP_ROLE_SCALARS),
                               .gradient_element = dtp_bind_gradient_element(b->binding, module),
                               .weight_element = compute(b),
                               .moment_element = dtp_bind_element(b->binding->rules.moments),
                               .stochastic_rounding = job->plan->stochastic_rounding};
    g.count = operand_bytes(b, moment) / dtp_element_bytes(g.moment_element);
    bool part = g.count < layout.elements;
    uint64_t first = part ? group_index(b) * layout.shard_elements : 0;
    g.first_element = dtp_parameter_element_key(module, first);
    if (g.count != layout.elements && g.count != layout.shard_elements)
        b->missing |= 1u << DTP_ROLE_MOMENT1;
    out->kernel = DTP_KERNEL_adamw;
    enum dtp_status status = decay_ranges(b, module, first, &g);
    out->arguments.adamw = g;
    return status;
}

/* The same roles, all of them in host memory. */
static enum dtp_status fill_host_optimizer(struct binder *b, struct dtp_bound_op *out)
{
    enum dtp_status status = fill_optimizer(b, out);
    struct dtp_adamw_args adamw = out->arguments.adamw;
    out->kind = DTP_BOUND_HOST;
    out->arguments.host = (struct dtp_host_update){b->binding->adam, adamw};
    return status;
}

/* ---- element by element, copies, collectives ---------------------------------------------------------------------- */

static void fill_cast(struct binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b);
    out->kernel = DTP_KERNEL_cast;
    out->arguments.cast = (struct dtp_cast_args){.values = need(b, DTP_ROLE_INPUT),
                                                 .result = need(b, DTP_ROLE_RESULT),
                                                 .count = count,
                                                 .element = by_size(b, DTP_ROLE_INPUT, count),
                                                 .result_element = by_size(b, DTP_ROLE_RESULT, count)};
}

static void fill_add(struct binder *b, struct dtp_bound_op *out)
{
    uint64_t count = rows(b);
    out->kernel = DTP_KERNEL_add;
    out->arguments.add = (struct dtp_add_args){.values = need(b, DTP_ROLE_INPUT),
                                               .total = need(b, DTP_ROLE_RESULT),
                                               .count = count,
                                               .element = gradient(b, DTP_ROLE_INPUT),
                                               .total_element = gradient(b, DTP_ROLE_RESULT)};
}

static void fill_copy(struct binder *b, struct dtp_bound_op *out)
{
    out->kind = DTP_BOUND_COPY;
    out->arguments.copy = (struct dtp_copy_args){need(b, DTP_ROLE_RESULT), need(b, DTP_ROLE_INPUT),
                                                 (uint64_t)b->op->demand.sent_bytes};
}

/* Partial sums of squares are fp32, all else is a module's weights or gradients. */
static enum dtp_element collective_element(const struct binder *b, const struct dtp_operand *input)
{
    switch (buffer_of(b, input)->owner) {
    case DTP_OWNER_PARAMS:
    case DTP_OWNER_WEIGHTS:
    case DTP_OWNER_GATHER: return compute(b);
    case DTP_OWNER_GRADS:
    case DTP_OWNER_REDUCE: return gradient(b, DTP_ROLE_INPUT);
    default: break;
    }
    return DTP_ELEMENT_FP32;
}

/* The whole is what all_gather receives and the others are given; operands may lie in larger buffers. */
static enum dtp_status fill_collective(struct binder *b, struct dtp_bound_op *out)
{
    enum dtp_collective collective = dtp_op_kind_collective(b->op->kind);
    const struct dtp_operand *input = operand(b, DTP_ROLE_INPUT), *result = operand(b, DTP_ROLE_RESULT);
    uint64_t ranks = dtp_program_groups(b->binding->job.program)[b->op->group].ranks;
    struct dtp_collective_args g = {.collective = collective, .group = b->op->group, .input = need(b, DTP_ROLE_INPUT),
                                    .result = need(b, DTP_ROLE_RESULT)};
    if (!b->binding->job.world)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0, "%s in a run of one rank", dtp_op_kind_text(b->op->kind));
    if (!input || !result)
        return DTP_OK;
    uint64_t given = operand_bytes(b, input), received = operand_bytes(b, result);
    g.element = collective_element(b, input);
    g.bytes = collective == DTP_ALL_GATHER ? given * ranks : given;
    uint64_t part = collective == DTP_REDUCE_SCATTER ? given / ranks : g.bytes;
    uint64_t unit = dtp_element_bytes(g.element) * (collective == DTP_ALL_REDUCE ? 1 : ranks);
    if (part > received || g.bytes % unit != 0)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0,
                         "%s \"%s\" gives %" PRIu64 " bytes and has room for %" PRIu64 " among %" PRIu64 " ranks",
                         dtp_op_kind_text(b->op->kind), b->op->name, given, received, ranks);
    out->kind = DTP_BOUND_COLLECTIVE;
    out->arguments.collective = g;
    return DTP_OK;
}

/* ---- all kinds --------------------------------------------------------------------------------------------------- */

static enum dtp_status fill(struct binder *b, struct dtp_bound_op *out)
{
    out->kind = DTP_BOUND_COMPUTE;
    switch (b->op->kind) {
    case DTP_OP_EMBEDDING: fill_embedding(b, out); return DTP_OK;
    case DTP_OP_EMBEDDING_BACKWARD: fill_embedding_backward(b, out); return DTP_OK;
    case DTP_OP_NORM: fill_norm(b, out); return DTP_OK;
    case DTP_OP_NORM_BACKWARD: fill_norm_backward(b, out); return DTP_OK;
    case DTP_OP_MATMUL: fill_matmul(b, out); return DTP_OK;
    case DTP_OP_ROTARY:
    case DTP_OP_ROTARY_BACKWARD: fill_rotary(b, out); return DTP_OK;
    case DTP_OP_ATTENTION: fill_attention(b, out); return DTP_OK;
    case DTP_OP_ATTENTION_BACKWARD: fill_attention_backward(b, out); return DTP_OK;
    case DTP_OP_ACTIVATION: fill_activation(b, out); return DTP_OK;
    case DTP_OP_ACTIVATION_BACKWARD: fill_activation_backward(b, out); return DTP_OK;
    case DTP_OP_BIAS_BACKWARD: fill_bias_backward(b, out); return DTP_OK;
    case DTP_OP_LOSS_BACKWARD: fill_loss_backward(b, out); return DTP_OK;
    case DTP_OP_LOSS: fill_loss(b, out); return DTP_OK;
    case DTP_OP_ZERO: fill_zero(b, out); return DTP_OK;
    case DTP_OP_SQUARE_SUM: fill_square_sum(b, out); return DTP_OK;
    case DTP_OP_CLIP_SCALE: fill_clip_scale(b, out); return DTP_OK;
    case DTP_OP_OPTIMIZER: return fill_optimizer(b, out);
    case DTP_OP_HOST_OPTIMIZER: return fill_host_optimizer(b, out);
    case DTP_OP_CAST: fill_cast(b, out); return DTP_OK;
    case DTP_OP_ACCUMULATE: fill_add(b, out); return DTP_OK;
    case DTP_OP_UPLOAD:
    case DTP_OP_DOWNLOAD: fill_copy(b, out); return DTP_OK;
    case DTP_OP_ALL_GATHER:
    case DTP_OP_REDUCE_SCATTER:
    case DTP_OP_ALL_REDUCE: return fill_collective(b, out);
    case DTP_OP_ALLOC:
    case DTP_OP_FREE:
    case DTP_OP_MARK: out->kind = DTP_BOUND_NOTHING; return DTP_OK;
    default: break;
    }
    return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0, "the executor has no way to run \"%s\" (%s)",
                     dtp_op_kind_text(b->op->kind), b->op->name);
}

enum dtp_status dtp_bind_arguments(const struct dtp_binding *binding, const struct dtp_op *op, struct dtp_bound_op *out,
                                   struct dtp_faults *faults)
{
    struct binder b = {.binding = binding, .op = op, .faults = faults};
    memset(&out->arguments, 0, sizeof out->arguments);
    enum dtp_status status = fill(&b, out);
    for (int role = 0; role < DTP_ROLE_COUNT && status == DTP_OK; role++)
        if (b.missing & 1u << role)
            status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                               "the program's %s \"%s\" (operation %zu) has no operand \"%s\" that fits it",
                               dtp_op_kind_text(op->kind), op->name, (size_t)(op - dtp_program_ops(binding->job.program)),
                               dtp_role_text((enum dtp_role)role));
    return status;
}
