#include "attention.h"
#include "attention_workspace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a tensor lies in memory: B batches, H query heads, G key heads, S positions, D = head_dim; P = (H + 2 G) D, a row of
 * the packed qkv. Rows and columns of the scores are queries and keys. */
enum layout {
    LAYOUT_QUERY,           /* [B, H, S, D] in the packed rows */
    LAYOUT_KEY,             /* [B, G, S, D] in the packed rows */
    LAYOUT_KEY_TRANSPOSED,  /* [B, G, D, S] of the same memory */
    LAYOUT_RESULT,          /* [B, H, S, D] in rows of H D */
    LAYOUT_HEADS,           /* [B, H, S, D] dense: cuDNN takes other strides of its fp32 sums and corrupts gradients */
    LAYOUT_SCORES,          /* [B, H, S, S] */
    LAYOUT_SCORES_TRANSPOSED,
    LAYOUT_ROWS,            /* [B, H, S, 1] dense */
    LAYOUT_ONE,
};

/* X(tensor, layout, type, storage). IO is bf16. */
#define TENSORS(X)                                                 \
    X(QUERY, QUERY, BFLOAT16, DEVICE)                              \
    X(KEY_TRANSPOSED, KEY_TRANSPOSED, BFLOAT16, DEVICE)            \
    X(VALUE, KEY, BFLOAT16, DEVICE)                                \
    X(VALUE_TRANSPOSED, KEY_TRANSPOSED, BFLOAT16, DEVICE)          \
    X(RESULT, RESULT, BFLOAT16, DEVICE)                            \
    X(LOG_SUM_EXP, ROWS, FLOAT, DEVICE)                            \
    X(SCALE, ONE, FLOAT, VALUE)                                    \
    X(MINUS_INFINITY, ONE, FLOAT, VALUE)                           \
    X(ONE, ONE, FLOAT, VALUE)                                      \
    X(SCORES, SCORES, FLOAT, VIRTUAL)                              \
    X(SCALED, SCORES, FLOAT, VIRTUAL)                              \
    X(ROW, SCORES, INT32, VIRTUAL)                                 \
    X(COLUMN, SCORES, INT32, VIRTUAL)                              \
    X(KEEP, SCORES, BOOLEAN, VIRTUAL)                              \
    X(MASKED, SCORES, FLOAT, VIRTUAL)                              \
    X(MAXIMUM, ROWS, FLOAT, VIRTUAL)                               \
    X(BELOW_MAXIMUM, SCORES, FLOAT, VIRTUAL)                       \
    X(EXPONENTIALS, SCORES, FLOAT, VIRTUAL)                        \
    X(SUM, ROWS, FLOAT, VIRTUAL)                                   \
    X(LOG_SUM, ROWS, FLOAT, VIRTUAL)                               \
    X(PROBABILITIES, SCORES, BFLOAT16, VIRTUAL)                    \
    X(RESULT_GRADIENT, RESULT, BFLOAT16, DEVICE)                   \
    X(QUERY_GRADIENT, QUERY, BFLOAT16, DEVICE)                     \
    X(KEY_GRADIENT, KEY, BFLOAT16, DEVICE)                         \
    X(VALUE_GRADIENT, KEY, BFLOAT16, DEVICE)                       \
    X(PRODUCT, RESULT, FLOAT, VIRTUAL)                             \
    X(PRODUCT_SUM, ROWS, FLOAT, VIRTUAL)                           \
    X(SOFTMAX_SUM, ROWS, FLOAT, DEVICE)                            \
    X(BELOW_LOG_SUM_EXP, SCORES, FLOAT, VIRTUAL)                   \
    X(SOFTMAX, SCORES, FLOAT, VIRTUAL)                             \
    X(SOFTMAX_TRANSPOSED, SCORES_TRANSPOSED, BFLOAT16, VIRTUAL)    \
    X(SOFTMAX_GRADIENT, SCORES, FLOAT, VIRTUAL)                    \
    X(CENTRED, SCORES, FLOAT, VIRTUAL)                             \
    X(SCORES_GRADIENT, SCORES, FLOAT, VIRTUAL)                     \
    X(SCALED_GRADIENT, SCORES, FLOAT, VIRTUAL)                     \
    X(SCALED_GRADIENT_TRANSPOSED, SCORES_TRANSPOSED, BFLOAT16, VIRTUAL) \
    X(KEY, KEY, BFLOAT16, VIRTUAL)                                 \
    X(QUERY_SUM, HEADS, FLOAT, DEVICE)                             \
    X(KEY_GRADIENT_HEADS, HEADS, BFLOAT16, VIRTUAL)                \
    X(VALUE_GRADIENT_HEADS, HEADS, BFLOAT16, VIRTUAL)

enum tensor {
    TENSOR_NONE = DTP_GRAPH_NONE,
#define X(name, layout, type, storage) TENSOR_##name,
    TENSORS(X)
#undef X
        TENSOR_COUNT
};

static const struct {
    enum layout layout;
    cudnnDataType_t type;
    enum dtp_graph_storage storage;
} tensor_table[TENSOR_COUNT] = {
#define X(name, layout, type, storage) [TENSOR_##name] = {LAYOUT_##layout, CUDNN_DATA_##type, DTP_GRAPH_##storage},
    TENSORS(X)
#undef X
};

/* Which shapes an operation is part of. */
enum when { ALWAYS, ONE_GROUP, GROUPS, ATOMIC, ORDERED };
struct step {
    enum when when;
    struct dtp_graph_operation operation;
};
#define MATMUL(when, a, b, y)                                                                                          \
    {when, {DTP_GRAPH_MATMUL, 0, TENSOR_##a, TENSOR_##b, TENSOR_NONE, TENSOR_##y, 0, CUDNN_DATA_FLOAT}}
#define COMPUTE_AS(type, mode, x, b, t, y, axis)                                                                       \
    {ALWAYS,                                                                                                           \
     {DTP_GRAPH_POINTWISE, CUDNN_POINTWISE_##mode, TENSOR_##x, TENSOR_##b, TENSOR_##t, TENSOR_##y, axis,              \
      CUDNN_DATA_##type}}
#define UNARY(mode, x, y) COMPUTE_AS(FLOAT, mode, x, NONE, NONE, y, 0)
#define BINARY(mode, x, b, y) COMPUTE_AS(FLOAT, mode, x, b, NONE, y, 0)
#define REDUCE(when, mode, x, y)                                                                                       \
    {when,                                                                                                             \
     {DTP_GRAPH_REDUCTION, CUDNN_REDUCE_TENSOR_##mode, TENSOR_##x, TENSOR_NONE, TENSOR_NONE, TENSOR_##y, 0,           \
      CUDNN_DATA_FLOAT}}
#define RESHAPE(x, y)                                                                                                  \
    {ALWAYS,                                                                                                           \
     {DTP_GRAPH_RESHAPE, 0, TENSOR_##x, TENSOR_NONE, TENSOR_NONE, TENSOR_##y, 0, CUDNN_DATA_FLOAT}}
/* A query sees keys up to its own position: x where row >= column, else minus infinity. */
#define CAUSAL_MASK(x)                                                                                                 \
    COMPUTE_AS(FLOAT, GEN_INDEX, x, NONE, NONE, ROW, 2), COMPUTE_AS(FLOAT, GEN_INDEX, x, NONE, NONE, COLUMN, 3),       \
        COMPUTE_AS(BOOLEAN, CMP_GE, ROW, COLUMN, NONE, KEEP, 0),                                                       \
        COMPUTE_AS(FLOAT, BINARY_SELECT, x, MINUS_INFINITY, KEEP, MASKED, 0)

static const struct step forward_steps[] = {
    MATMUL(ALWAYS, QUERY, KEY_TRANSPOSED, SCORES),
    BINARY(MUL, SCORES, SCALE, SCALED),
    CAUSAL_MASK(SCALED),
    REDUCE(ALWAYS, MAX, MASKED, MAXIMUM),
    BINARY(SUB, MASKED, MAXIMUM, BELOW_MAXIMUM),
    UNARY(EXP, BELOW_MAXIMUM, EXPONENTIALS),
    REDUCE(ALWAYS, ADD, EXPONENTIALS, SUM),
    UNARY(LOG, SUM, LOG_SUM),
    BINARY(ADD, MAXIMUM, LOG_SUM, LOG_SUM_EXP),
    BINARY(DIV, EXPONENTIALS, SUM, PROBABILITIES),
    MATMUL(ALWAYS, PROBABILITIES, VALUE, RESULT),
};

/* P = exp(scale Q K^T - lse) again; dV = P^T dO; dP = dO V^T; dS = P (dP - rowsum(dO O)) scale; dK = dS^T Q; dQ = dS K
 * (Dao et al. 2022, "FlashAttention", appendix B.2). The product by ONE stands where dropout would scale. */
static const struct step backward_steps[] = {
    BINARY(MUL, RESULT_GRADIENT, RESULT, PRODUCT),
    REDUCE(ALWAYS, ADD, PRODUCT, PRODUCT_SUM),
    BINARY(MUL, PRODUCT_SUM, ONE, SOFTMAX_SUM),
    MATMUL(ALWAYS, QUERY, KEY_TRANSPOSED, SCORES),
    BINARY(MUL, SCORES, SCALE, SCALED),
    BINARY(SUB, SCALED, LOG_SUM_EXP, BELOW_LOG_SUM_EXP),
    CAUSAL_MASK(BELOW_LOG_SUM_EXP),
    UNARY(EXP, MASKED, SOFTMAX),
    RESHAPE(SOFTMAX, SOFTMAX_TRANSPOSED),
    MATMUL(ONE_GROUP, SOFTMAX_TRANSPOSED, RESULT_GRADIENT, VALUE_GRADIENT),
    MATMUL(GROUPS, SOFTMAX_TRANSPOSED, RESULT_GRADIENT, VALUE_GRADIENT_HEADS),
    REDUCE(GROUPS, ADD, VALUE_GRADIENT_HEADS, VALUE_GRADIENT),
    MATMUL(ALWAYS, RESULT_GRADIENT, VALUE_TRANSPOSED, SOFTMAX_GRADIENT),
    BINARY(SUB, SOFTMAX_GRADIENT, SOFTMAX_SUM, CENTRED),
    BINARY(MUL, CENTRED, SOFTMAX, SCORES_GRADIENT),
    BINARY(MUL, SCORES_GRADIENT, SCALE, SCALED_GRADIENT),
    RESHAPE(SCALED_GRADIENT, SCALED_GRADIENT_TRANSPOSED),
    MATMUL(ONE_GROUP, SCALED_GRADIENT_TRANSPOSED, QUERY, KEY_GRADIENT),
    MATMUL(GROUPS, SCALED_GRADIENT_TRANSPOSED, QUERY, KEY_GRADIENT_HEADS),
    REDUCE(GROUPS, ADD, KEY_GRADIENT_HEADS, KEY_GRADIENT),
    RESHAPE(KEY_TRANSPOSED, KEY),
    MATMUL(ORDERED, SCALED_GRADIENT, KEY, QUERY_GRADIENT),
    MATMUL(ATOMIC, SCALED_GRADIENT, KEY, QUERY_SUM),
    {ATOMIC,
     {DTP_GRAPH_POINTWISE, CUDNN_POINTWISE_IDENTITY, TENSOR_QUERY_SUM, TENSOR_NONE, TENSOR_NONE, TENSOR_QUERY_GRADIENT,
      0, CUDNN_DATA_FLOAT}},
};
#define MOST_STEPS (sizeof backward_steps / sizeof backward_steps[0])

static bool takes_part(enum when when, const struct dtp_attention_shape *shape)
{
    bool grouped = shape->heads != shape->kv_heads;
    switch (when) {
    case ALWAYS: return true;
    case ONE_GROUP: return !grouped;
    case GROUPS: return grouped;
    case ATOMIC: return !shape->deterministic;
    case ORDERED: return shape->deterministic;
    }
    return false;
}

static void lay_out(enum layout layout, const struct dtp_attention_shape *shape, struct dtp_graph_tensor *out)
{
    const int64_t b = shape->batch, s = shape->sequence, h = shape->heads, g = shape->kv_heads, d = shape->head_dim;
    const int64_t packed = (h + 2 * g) * d;
    const struct {
        int64_t dimensions[4], strides[4];
    } layouts[] = {
        [LAYOUT_QUERY] = {{b, h, s, d}, {s * packed, d, packed, 1}},
        [LAYOUT_KEY] = {{b, g, s, d}, {s * packed, d, packed, 1}},
        [LAYOUT_KEY_TRANSPOSED] = {{b, g, d, s}, {s * packed, d, 1, packed}},
        [LAYOUT_RESULT] = {{b, h, s, d}, {s * h * d, d, h * d, 1}},
        [LAYOUT_HEADS] = {{b, h, s, d}, {h * s * d, s * d, d, 1}},
        [LAYOUT_SCORES] = {{b, h, s, s}, {h * s * s, s * s, s, 1}},
        [LAYOUT_SCORES_TRANSPOSED] = {{b, h, s, s}, {h * s * s, s * s, 1, s}},
        [LAYOUT_ROWS] = {{b, h, s, 1}, {h * s, s, 1, 1}},
        [LAYOUT_ONE] = {{1, 1, 1, 1}, {1, 1, 1, 1}},
    };
    memcpy(out->dimensions, layouts[layout].dimensions, sizeof out->dimensions);
    memcpy(out->strides, layouts[layout].strides, sizeof out->strides);
}

enum dtp_status dtp_attention_plan(const struct dtp_cudnn *cudnn, const struct dtp_attention_shape *shape,
                                   struct dtp_cudnn_plan *out, struct dtp_faults *faults)
{
    const struct step *steps = shape->backward ? backward_steps : forward_steps;
    const size_t step_count = shape->backward ? MOST_STEPS : sizeof forward_steps / sizeof forward_steps[0];
    struct dtp_graph_tensor tensors[TENSOR_COUNT] = {{0}};
    struct dtp_graph_operation operations[MOST_STEPS];
    uint32_t count = 0;
    char words[160];

    for (int i = 1; i < TENSOR_COUNT; i++) {
        tensors[i].storage = tensor_table[i].storage;
        tensors[i].type = tensor_table[i].type;
        lay_out(tensor_table[i].layout, shape, &tensors[i]);
    }
    for (size_t i = 0; i < step_count; i++)
        if (takes_part(steps[i].when, shape))
            operations[count++] = steps[i].operation;
    snprintf(words, sizeof words, "attention %s, batch %u, sequence %u, heads %u of %u, head_dim %u%s",
             shape->backward ? "backward" : "forward", shape->batch, shape->sequence, shape->heads, shape->kv_heads,
             shape->head_dim, shape->deterministic ? ", deterministic" : "");
    return dtp_cudnn_plan_build(cudnn, tensors, TENSOR_COUNT, operations, count, words, out, faults);
}

/* A shape and its plan. Few shapes occur in a program, so they are looked through one by one. */
struct prepared {
    struct dtp_attention_shape shape;
    struct dtp_cudnn_plan plan;
    uint64_t softmax_sum_bytes, query_sum_bytes; /* of the workspace, before cuDNN's part */
};

#define MOST_SHAPES 16
struct dtp_attention {
    struct dtp_cudnn cudnn;
    bool deterministic;
    uint32_t count;
    struct prepared prepared[MOST_SHAPES];
};

enum dtp_status dtp_attention_create(bool deterministic, struct dtp_attention **out, struct dtp_faults *faults)
{
    struct dtp_attention *attention = calloc(1, sizeof *attention);
    *out = NULL;
    if (!attention)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for attention's plans");
    attention->deterministic = deterministic;
    enum dtp_status status = dtp_cudnn_open(&attention->cudnn, faults);
    if (status == DTP_OK)
        *out = attention;
    else
        free(attention);
    return status;
}

void dtp_attention_destroy(struct dtp_attention *attention)
{
    if (!attention)
        return;
    for (uint32_t i = 0; i < attention->count; i++)
        dtp_cudnn_plan_free(&attention->prepared[i].plan);
    dtp_cudnn_close(&attention->cudnn);
    free(attention);
}

static bool shapes_equal(const struct dtp_attention_shape *a, const struct dtp_attention_shape *b)
{
    return a->batch == b->batch && a->sequence == b->sequence && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->backward == b->backward && a->deterministic == b->deterministic;
}

static const struct prepared *find(const struct dtp_attention *attention, const struct dtp_attention_shape *shape)
{
    for (uint32_t i = 0; i < attention->count; i++)
        if (shapes_equal(&attention->prepared[i].shape, shape))
            return &attention->prepared[i];
    return NULL;
}

static uint64_t whole_parts(uint64_t bytes)
{
    return (bytes + DTP_WORKSPACE_ALIGNMENT - 1) / DTP_WORKSPACE_ALIGNMENT * DTP_WORKSPACE_ALIGNMENT;
}

static enum dtp_status prepare(struct dtp_attention *attention, const struct dtp_attention_shape *shape,
                               uint64_t workspace_bytes, struct dtp_faults *faults)
{
    const struct prepared *known = find(attention, shape);
    if (!known) {
        struct prepared *next = &attention->prepared[attention->count];
        if (attention->count == MOST_SHAPES)
            return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "more than %d shapes of attention in one program",
                             MOST_SHAPES);
        enum dtp_status status = dtp_attention_plan(&attention->cudnn, shape, &next->plan, faults);
        if (status != DTP_OK)
            return status;
        const uint64_t rows = (uint64_t)shape->batch * shape->heads * shape->sequence;
        next->shape = *shape;
        next->softmax_sum_bytes = shape->backward ? whole_parts(rows * sizeof(float)) : 0;
        next->query_sum_bytes = shape->backward && !shape->deterministic
                                    ? whole_parts(rows * shape->head_dim * sizeof(float))
                                    : 0;
        attention->count++;
        known = next;
    }
    const uint64_t needed_bytes = known->softmax_sum_bytes + known->query_sum_bytes + known->plan.workspace_bytes;
    if (needed_bytes > workspace_bytes)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "attention %s of batch %u, sequence %u, heads %u of %u, head_dim %u: cuDNN %zu asks for a "
                         "workspace of %llu bytes where the plan has %llu; this version needs another rule in "
                         "model/attention_workspace.c",
                         shape->backward ? "backward" : "forward", shape->batch, shape->sequence, shape->heads,
                         shape->kv_heads, shape->head_dim, cudnnGetVersion(), (unsigned long long)needed_bytes,
                         (unsigned long long)workspace_bytes);
    return DTP_OK;
}

static struct dtp_attention_shape forward_shape(const struct dtp_attention_args *from)
{
    return (struct dtp_attention_shape){
        .batch = from->batch,
        .sequence = from->sequence,
        .heads = from->heads,
        .kv_heads = from->kv_heads,
        .head_dim = from->head_dim,
    };
}

static struct dtp_attention_shape backward_shape(const struct dtp_attention *attention,
                                                 const struct dtp_attention_backward_args *from)
{
    return (struct dtp_attention_shape){
        .batch = from->batch,
        .sequence = from->sequence,
        .heads = from->heads,
        .kv_heads = from->kv_heads,
        .head_dim = from->head_dim,
        .backward = true,
        .deterministic = attention->deterministic,
    };
}

enum dtp_status dtp_attention_prepare(struct dtp_attention *attention, const struct dtp_attention_args *arguments,
                                      struct dtp_faults *faults)
{
    const struct dtp_attention_shape shape = forward_shape(arguments);
    return prepare(attention, &shape, arguments->workspace_bytes, faults);
}

enum dtp_status dtp_attention_prepare_backward(struct dtp_attention *attention,
                                               const struct dtp_attention_backward_args *arguments,
                                               struct dtp_faults *faults)
{
    const struct dtp_attention_shape shape = backward_shape(attention, arguments);
    return prepare(attention, &shape, arguments->workspace_bytes, faults);
}

static cudnnStatus_t execute(const struct dtp_attention *attention, const struct prepared *prepared,
                             void *const addresses[TENSOR_COUNT], void *workspace, void *stream)
{
    void *pointers[DTP_GRAPH_TENSORS];
    for (int32_t i = 0; i < prepared->plan.tensor_count; i++)
        pointers[i] = addresses[prepared->plan.tensors[i]];
    return dtp_cudnn_plan_execute(&attention->cudnn, &prepared->plan, pointers, workspace, stream);
}

/* Where q, k and v begin in a packed row of bf16. */
struct packed {
    char *query, *key, *value;
};
static struct packed unpack(const void *qkv, uint32_t heads, uint32_t kv_heads, uint32_t head_dim)
{
    char *query = (char *)(uintptr_t)qkv; /* cuDNN takes inputs and results alike as void *, and reads inputs only */
    const size_t element_bytes = 2;
    char *key = query + (size_t)heads * head_dim * element_bytes;
    return (struct packed){query, key, key + (size_t)kv_heads * head_dim * element_bytes};
}

cudnnStatus_t dtp_attention_forward(struct dtp_attention *attention, const struct dtp_attention_args *arguments,
                                    void *stream)
{
    const struct dtp_attention_shape shape = forward_shape(arguments);
    const struct prepared *prepared = find(attention, &shape);
    if (!prepared)
        return CUDNN_STATUS_NOT_INITIALIZED;
    const struct packed in = unpack(arguments->qkv, arguments->heads, arguments->kv_heads, arguments->head_dim);
    float scale = arguments->scale, minus_infinity = -INFINITY;
    void *const addresses[TENSOR_COUNT] = {
        [TENSOR_QUERY] = in.query,
        [TENSOR_KEY_TRANSPOSED] = in.key,
        [TENSOR_VALUE] = in.value,
        [TENSOR_RESULT] = arguments->result,
        [TENSOR_LOG_SUM_EXP] = arguments->log_sum_exp,
        [TENSOR_SCALE] = &scale,
        [TENSOR_MINUS_INFINITY] = &minus_infinity,
    };
    return execute(attention, prepared, addresses, arguments->workspace, stream);
}

cudnnStatus_t dtp_attention_backward(struct dtp_attention *attention,
                                     const struct dtp_attention_backward_args *arguments, void *stream)
{
    const struct dtp_attention_shape shape = backward_shape(attention, arguments);
    const struct prepared *prepared = find(attention, &shape);
    if (!prepared)
        return CUDNN_STATUS_NOT_INITIALIZED;
    const struct packed in = unpack(arguments->qkv, arguments->heads, arguments->kv_heads, arguments->head_dim);
    const struct packed out =
        unpack(arguments->qkv_gradient, arguments->heads, arguments->kv_heads, arguments->head_dim);
    char *softmax_sum = arguments->workspace;
    char *query_sum = softmax_sum + prepared->softmax_sum_bytes;
    float scale = arguments->scale, minus_infinity = -INFINITY, one = 1;
    void *const addresses[TENSOR_COUNT] = {
        [TENSOR_QUERY] = in.query,
        [TENSOR_KEY_TRANSPOSED] = in.key,
        [TENSOR_VALUE_TRANSPOSED] = in.value,
        [TENSOR_RESULT] = (void *)(uintptr_t)arguments->result,
        [TENSOR_RESULT_GRADIENT] = (void *)(uintptr_t)arguments->gradient,
        [TENSOR_LOG_SUM_EXP] = (void *)(uintptr_t)arguments->log_sum_exp,
        [TENSOR_SCALE] = &scale,
        [TENSOR_MINUS_INFINITY] = &minus_infinity,
        [TENSOR_ONE] = &one,
        [TENSOR_QUERY_GRADIENT] = out.query,
        [TENSOR_KEY_GRADIENT] = out.key,
        [TENSOR_VALUE_GRADIENT] = out.value,
        [TENSOR_SOFTMAX_SUM] = softmax_sum,
        [TENSOR_QUERY_SUM] = query_sum,
    };
    return execute(attention, prepared, addresses, query_sum + prepared->query_sum_bytes, stream);
}
