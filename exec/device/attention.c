#include "device/attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a tensor lies in memory: B batches, H query heads, G key heads of the part that is computed, Q queries and K keys
 * of a sequence, D = head_dim. Rows hold all heads, whatever the part, and follow each other by the whole sequence,
 * whatever Q and K. Rows and columns of the scores are queries and keys. */
enum layout {
    LAYOUT_QUERY,          /* [B, H, Q, D] in the packed rows */
    LAYOUT_KEY,            /* [B, G, K, D] in the packed rows, of a step of a ring in rows of keys and values */
    LAYOUT_KEY_TRANSPOSED, /* [B, G, D, K] of the same memory */
    LAYOUT_RESULT,         /* [B, H, Q, D] in rows of all heads */
    LAYOUT_QUERY_GRADIENT, /* [B, H, Q, D] in the packed rows, of a step of a ring in rows of all heads */
    LAYOUT_QUERY_HEADS,    /* [B, H, Q, D] dense: cuDNN takes other strides of its fp32 sums and corrupts gradients */
    LAYOUT_KEY_HEADS,      /* [B, H, K, D] dense */
    LAYOUT_SCORES,         /* [B, H, Q, K] */
    LAYOUT_SCORES_TRANSPOSED,
    LAYOUT_ROWS, /* [B, H, Q, 1] dense: of statistics cuDNN takes other strides as well, and corrupts gradients */
    LAYOUT_ONE,
};

/* X(tensor, layout, type, storage). IO is bf16, or fp16 in its place. */
#define TENSORS(X)                                                                                                     \
    X(QUERY, QUERY, BFLOAT16, DEVICE)                                                                                  \
    X(KEY_TRANSPOSED, KEY_TRANSPOSED, BFLOAT16, DEVICE)                                                                \
    X(VALUE, KEY, BFLOAT16, DEVICE)                                                                                    \
    X(VALUE_TRANSPOSED, KEY_TRANSPOSED, BFLOAT16, DEVICE)                                                              \
    X(RESULT, RESULT, BFLOAT16, DEVICE)                                                                                \
    X(LOG_SUM_EXP, ROWS, FLOAT, DEVICE)                                                                                \
    X(SCALE, ONE, FLOAT, VALUE)                                                                                        \
    X(MINUS_INFINITY, ONE, FLOAT, VALUE)                                                                               \
    X(ONE, ONE, FLOAT, VALUE)                                                                                          \
    X(SCORES, SCORES, FLOAT, VIRTUAL)                                                                                  \
    X(SCALED, SCORES, FLOAT, VIRTUAL)                                                                                  \
    X(WINDOW, ONE, INT32, VALUE)                                                                                       \
    X(ROW, SCORES, INT32, VIRTUAL)                                                                                     \
    X(COLUMN, SCORES, INT32, VIRTUAL)                                                                                  \
    X(KEEP, SCORES, BOOLEAN, VIRTUAL)                                                                                  \
    X(CAUSAL, SCORES, FLOAT, VIRTUAL)                                                                                  \
    X(WINDOW_ROW, SCORES, INT32, VIRTUAL)                                                                              \
    X(WINDOW_COLUMN, SCORES, INT32, VIRTUAL)                                                                           \
    X(COLUMN_AND_WINDOW, SCORES, INT32, VIRTUAL)                                                                       \
    X(IN_WINDOW, SCORES, BOOLEAN, VIRTUAL)                                                                             \
    X(MASKED, SCORES, FLOAT, VIRTUAL)                                                                                  \
    X(MAXIMUM, ROWS, FLOAT, VIRTUAL)                                                                                   \
    X(BELOW_MAXIMUM, SCORES, FLOAT, VIRTUAL)                                                                           \
    X(EXPONENTIALS, SCORES, FLOAT, VIRTUAL)                                                                            \
    X(SUM, ROWS, FLOAT, VIRTUAL)                                                                                       \
    X(LOG_SUM, ROWS, FLOAT, VIRTUAL)                                                                                   \
    X(PROBABILITIES, SCORES, BFLOAT16, VIRTUAL)                                                                        \
    X(RESULT_GRADIENT, RESULT, BFLOAT16, DEVICE)                                                                       \
    X(QUERY_GRADIENT, QUERY_GRADIENT, BFLOAT16, DEVICE)                                                                \
    X(KEY_GRADIENT, KEY, BFLOAT16, DEVICE)                                                                             \
    X(VALUE_GRADIENT, KEY, BFLOAT16, DEVICE)                                                                           \
    X(PRODUCT, RESULT, FLOAT, VIRTUAL)                                                                                 \
    X(PRODUCT_SUM, ROWS, FLOAT, VIRTUAL)                                                                               \
    X(SOFTMAX_SUM, ROWS, FLOAT, DEVICE)                                                                                \
    X(BELOW_LOG_SUM_EXP, SCORES, FLOAT, VIRTUAL)                                                                       \
    X(SOFTMAX, SCORES, FLOAT, VIRTUAL)                                                                                 \
    X(SOFTMAX_TRANSPOSED, SCORES_TRANSPOSED, BFLOAT16, VIRTUAL)                                                        \
    X(SOFTMAX_GRADIENT, SCORES, FLOAT, VIRTUAL)                                                                        \
    X(CENTRED, SCORES, FLOAT, VIRTUAL)                                                                                 \
    X(SCORES_GRADIENT, SCORES, FLOAT, VIRTUAL)                                                                         \
    X(SCALED_GRADIENT, SCORES, FLOAT, VIRTUAL)                                                                         \
    X(SCALED_GRADIENT_TRANSPOSED, SCORES_TRANSPOSED, BFLOAT16, VIRTUAL)                                                \
    X(KEY, KEY, BFLOAT16, VIRTUAL)                                                                                     \
    X(QUERY_SUM, QUERY_HEADS, FLOAT, DEVICE)                                                                           \
    X(KEY_GRADIENT_HEADS, KEY_HEADS, BFLOAT16, VIRTUAL)                                                                \
    X(VALUE_GRADIENT_HEADS, KEY_HEADS, BFLOAT16, VIRTUAL)

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
enum when { ALWAYS, ONE_GROUP, GROUPS, ATOMIC, ORDERED, CAUSAL, WHOLE, WINDOWED, OPEN };
struct step {
    enum when when;
    struct dtp_graph_operation operation;
};
#define MATMUL(when, a, b, y)                                                                                          \
    {                                                                                                                  \
        when,                                                                                                          \
        {                                                                                                              \
            DTP_GRAPH_MATMUL, 0, TENSOR_##a, TENSOR_##b, TENSOR_NONE, TENSOR_##y, 0, CUDNN_DATA_FLOAT                  \
        }                                                                                                              \
    }
#define COMPUTE_AS(when, type, mode, x, b, t, y, axis)                                                                 \
    {                                                                                                                  \
        when,                                                                                                          \
        {                                                                                                              \
            DTP_GRAPH_POINTWISE, CUDNN_POINTWISE_##mode, TENSOR_##x, TENSOR_##b, TENSOR_##t, TENSOR_##y, axis,         \
                CUDNN_DATA_##type                                                                                      \
        }                                                                                                              \
    }
#define UNARY(mode, x, y) COMPUTE_AS(ALWAYS, FLOAT, mode, x, NONE, NONE, y, 0)
#define BINARY_OF(when, mode, x, b, y) COMPUTE_AS(when, FLOAT, mode, x, b, NONE, y, 0)
#define BINARY(mode, x, b, y) BINARY_OF(ALWAYS, mode, x, b, y)
#define REDUCE(when, mode, x, y)                                                                                       \
    {                                                                                                                  \
        when,                                                                                                          \
        {                                                                                                              \
            DTP_GRAPH_REDUCTION, CUDNN_REDUCE_TENSOR_##mode, TENSOR_##x, TENSOR_NONE, TENSOR_NONE, TENSOR_##y, 0,      \
                CUDNN_DATA_FLOAT                                                                                       \
        }                                                                                                              \
    }
#define RESHAPE(x, y)                                                                                                  \
    {                                                                                                                  \
        ALWAYS,                                                                                                        \
        {                                                                                                              \
            DTP_GRAPH_RESHAPE, 0, TENSOR_##x, TENSOR_NONE, TENSOR_NONE, TENSOR_##y, 0, CUDNN_DATA_FLOAT                \
        }                                                                                                              \
    }
/* y of x and b, MASKED: a query sees keys up to its own position: y where row >= column, else minus infinity. Under a
 * window also column + window > row: a mask of its own behind the causal one, with row and column made again, as
 * cuDNN's engines know it (cudnn-frontend, node/diagonal_band_mask.h). In later steps of a ring it sees all keys that
 * there are: y itself is what stands there. */
#define CAUSAL_MASK_TO(when, x, y) COMPUTE_AS(when, FLOAT, BINARY_SELECT, x, MINUS_INFINITY, KEEP, y, 0)
#define MASKED_BINARY(mode, x, b, y)                                                                                   \
    BINARY_OF(OPEN, mode, x, b, MASKED), BINARY_OF(CAUSAL, mode, x, b, y),                                             \
        COMPUTE_AS(CAUSAL, FLOAT, GEN_INDEX, y, NONE, NONE, ROW, 2),                                                   \
        COMPUTE_AS(CAUSAL, FLOAT, GEN_INDEX, y, NONE, NONE, COLUMN, 3),                                                \
        COMPUTE_AS(CAUSAL, BOOLEAN, CMP_GE, ROW, COLUMN, NONE, KEEP, 0), CAUSAL_MASK_TO(WHOLE, y, MASKED),             \
        CAUSAL_MASK_TO(WINDOWED, y, CAUSAL),                                                                           \
        COMPUTE_AS(WINDOWED, FLOAT, GEN_INDEX, CAUSAL, NONE, NONE, WINDOW_ROW, 2),                                     \
        COMPUTE_AS(WINDOWED, FLOAT, GEN_INDEX, CAUSAL, NONE, NONE, WINDOW_COLUMN, 3),                                  \
        COMPUTE_AS(WINDOWED, INT32, ADD, WINDOW_COLUMN, WINDOW, NONE, COLUMN_AND_WINDOW, 3),                           \
        COMPUTE_AS(WINDOWED, BOOLEAN, CMP_GT, COLUMN_AND_WINDOW, WINDOW_ROW, NONE, IN_WINDOW, 0),                      \
        COMPUTE_AS(WINDOWED, FLOAT, BINARY_SELECT, CAUSAL, MINUS_INFINITY, IN_WINDOW, MASKED, 0)

static const struct step forward_steps[] = {
    MATMUL(ALWAYS, QUERY, KEY_TRANSPOSED, SCORES),
    MASKED_BINARY(MUL, SCORES, SCALE, SCALED),
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
    MASKED_BINARY(SUB, SCALED, LOG_SUM_EXP, BELOW_LOG_SUM_EXP),
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

static bool takes_part(enum when when, const struct dtp_attention_size *size)
{
    bool grouped = size->heads != size->kv_heads;
    switch (when) {
    case ALWAYS: return true;
    case ONE_GROUP: return !grouped;
    case GROUPS: return grouped;
    case ATOMIC: return !size->deterministic;
    case ORDERED: return size->deterministic;
    case CAUSAL: return !size->key_count;
    case WHOLE: return !size->key_count && !size->window;
    case WINDOWED: return !size->key_count && size->window;
    case OPEN: return size->key_count;
    }
    return false;
}

static void lay_out(enum layout layout, const struct dtp_attention_size *size, struct dtp_graph_tensor *out)
{
    const struct dtp_attention_part part = dtp_attention_part(size);
    const int64_t b = part.batch, h = part.heads, g = part.kv_heads, s = size->sequence, d = size->head_dim;
    const int64_t q = dtp_attention_queries(size), k = dtp_attention_keys(size);
    const int64_t row = size->heads * d, of_keys = 2 * size->kv_heads * d, packed = row + of_keys;
    const int64_t key = size->key_count ? of_keys : packed, query_gradient = size->key_count ? row : packed;
    const struct {
        int64_t dimensions[4], strides[4];
    } layouts[] = {
        [LAYOUT_QUERY] = {{b, h, q, d}, {s * packed, d, packed, 1}},
        [LAYOUT_KEY] = {{b, g, k, d}, {s * key, d, key, 1}},
        [LAYOUT_KEY_TRANSPOSED] = {{b, g, d, k}, {s * key, d, 1, key}},
        [LAYOUT_RESULT] = {{b, h, q, d}, {s * row, d, row, 1}},
        [LAYOUT_QUERY_GRADIENT] = {{b, h, q, d}, {s * query_gradient, d, query_gradient, 1}},
        [LAYOUT_QUERY_HEADS] = {{b, h, q, d}, {h * q * d, q * d, d, 1}},
        [LAYOUT_KEY_HEADS] = {{b, h, k, d}, {h * k * d, k * d, d, 1}},
        [LAYOUT_SCORES] = {{b, h, q, k}, {h * q * k, q * k, k, 1}},
        [LAYOUT_SCORES_TRANSPOSED] = {{b, h, k, q}, {h * q * k, q * k, 1, k}},
        [LAYOUT_ROWS] = {{b, h, q, 1}, {h * q, q, 1, 1}},
        [LAYOUT_ONE] = {{1, 1, 1, 1}, {1, 1, 1, 1}},
    };
    memcpy(out->dimensions, layouts[layout].dimensions, sizeof out->dimensions);
    memcpy(out->strides, layouts[layout].strides, sizeof out->strides);
}

/* The shape in words. */
static void describe(const struct dtp_attention_size *size, char *words, size_t size_of_words)
{
    char step[64] = "";
    if (size->key_count)
        snprintf(step, sizeof step, ", queries from %u, %u keys", size->first_query, size->key_count);
    snprintf(words, size_of_words, "attention %s, batch %u, sequence %u, heads %u of %u, head_dim %u, window %u%s%s",
             size->backward ? "backward" : "forward", size->batch, size->sequence, size->heads, size->kv_heads,
             size->head_dim, size->window, step, size->deterministic ? ", deterministic" : "");
}

enum dtp_status dtp_attention_plan(const struct dtp_cudnn *cudnn, const struct dtp_attention_size *size,
                                   struct dtp_cudnn_plan *out, struct dtp_faults *faults)
{
    const struct step *steps = size->backward ? backward_steps : forward_steps;
    const size_t step_count = size->backward ? MOST_STEPS : sizeof forward_steps / sizeof forward_steps[0];
    struct dtp_graph_tensor tensors[TENSOR_COUNT] = {{0}};
    struct dtp_graph_operation operations[MOST_STEPS];
    uint32_t count = 0;
    char words[200];

    for (int i = 1; i < TENSOR_COUNT; i++) {
        tensors[i].storage = tensor_table[i].storage;
        tensors[i].type =
            tensor_table[i].type == CUDNN_DATA_BFLOAT16 && size->fp16 ? CUDNN_DATA_HALF : tensor_table[i].type;
        lay_out(tensor_table[i].layout, size, &tensors[i]);
    }
    for (size_t i = 0; i < step_count; i++)
        if (takes_part(steps[i].when, size))
            operations[count++] = steps[i].operation;
    describe(size, words, sizeof words);
    return dtp_cudnn_plan_build(cudnn, tensors, TENSOR_COUNT, operations, count, words, out, faults);
}

/* A shape and the plan of a part of it. Few shapes occur in a program, so they are looked through one by one. */
struct prepared {
    struct dtp_attention_size size;
    struct dtp_attention_part part;
    struct dtp_attention_workspace workspace;
    struct dtp_cudnn_plan plan;
};

#define MOST_SHAPES 128
struct dtp_attention_plans {
    struct dtp_cudnn cudnn;
    uint32_t count;
    struct prepared prepared[MOST_SHAPES];
};

enum dtp_status dtp_attention_create(struct dtp_attention_plans **out, struct dtp_faults *faults)
{
    struct dtp_attention_plans *attention = calloc(1, sizeof *attention);
    *out = NULL;
    if (!attention)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for attention's plans");
    enum dtp_status status = dtp_cudnn_open(&attention->cudnn, faults);
    if (status == DTP_OK)
        *out = attention;
    else
        free(attention);
    return status;
}

void dtp_attention_destroy(struct dtp_attention_plans *attention)
{
    if (!attention)
        return;
    for (uint32_t i = 0; i < attention->count; i++)
        dtp_cudnn_plan_free(&attention->prepared[i].plan);
    dtp_cudnn_close(&attention->cudnn);
    free(attention);
}

static bool sizes_equal(const struct dtp_attention_size *a, const struct dtp_attention_size *b)
{
    return a->batch == b->batch && a->sequence == b->sequence && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->window == b->window && a->backward == b->backward &&
           a->deterministic == b->deterministic && a->fp16 == b->fp16 && a->first_query == b->first_query &&
           a->key_count == b->key_count;
}

static const struct prepared *find(const struct dtp_attention_plans *attention, const struct dtp_attention_size *size)
{
    for (uint32_t i = 0; i < attention->count; i++)
        if (sizes_equal(&attention->prepared[i].size, size))
            return &attention->prepared[i];
    return NULL;
}

static enum dtp_status check_workspace(const struct dtp_attention_size *size, uint64_t asked_bytes,
                                       uint64_t given_bytes, const char *whose, struct dtp_faults *faults)
{
    char words[200];
    if (asked_bytes <= given_bytes)
        return DTP_OK;
    describe(size, words, sizeof words);
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                     "%s: cuDNN %zu takes a workspace of %llu bytes, %s has %llu; this version of cuDNN needs another "
                     "rule in model/cost/attention_workspace.c",
                     words, cudnnGetVersion(), (unsigned long long)asked_bytes, whose, (unsigned long long)given_bytes);
}

static enum dtp_status prepare(struct dtp_attention_plans *attention, const struct dtp_attention_size *size,
                               uint64_t workspace_bytes, struct dtp_faults *faults)
{
    enum dtp_status status =
        check_workspace(size, dtp_attention_workspace_bytes(size), workspace_bytes, "the program", faults);
    if (status != DTP_OK || find(attention, size))
        return status;
    if (attention->count == MOST_SHAPES)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "more than %d shapes of attention in one program",
                         MOST_SHAPES);
    struct prepared *next = &attention->prepared[attention->count];
    *next =
        (struct prepared){.size = *size, .part = dtp_attention_part(size), .workspace = dtp_attention_workspace(size)};
    status = dtp_attention_plan(&attention->cudnn, size, &next->plan, faults);
    if (status == DTP_OK)
        status =
            check_workspace(size, next->plan.workspace_bytes, next->workspace.engine_bytes, "the rule for it", faults);
    if (status == DTP_OK)
        attention->count++;
    else
        dtp_cudnn_plan_free(&next->plan);
    return status;
}

/* What both passes say of themselves. */
#define SIZE_OF(from)                                                                                                  \
    .batch = (from)->batch, .sequence = (from)->sequence, .heads = (from)->heads, .kv_heads = (from)->kv_heads,        \
    .head_dim = (from)->head_dim, .window = (from)->keys ? 0 : (from)->window,                                         \
    .fp16 = (from)->element == DTP_ELEMENT_FP16, .first_query = (from)->keys ? (from)->first_query : 0,                \
    .key_count = (from)->keys ? (from)->key_count : 0

static struct dtp_attention_size forward_size(const struct dtp_attention_args *from)
{
    return (struct dtp_attention_size){SIZE_OF(from)};
}

static struct dtp_attention_size backward_size(const struct dtp_attention_backward_args *from)
{
    return (struct dtp_attention_size){SIZE_OF(from), .backward = true, .deterministic = !from->atomic};
}

enum dtp_status dtp_attention_prepare(struct dtp_attention_plans *attention, const struct dtp_attention_args *arguments,
                                      struct dtp_faults *faults)
{
    const struct dtp_attention_size size = forward_size(arguments);
    return prepare(attention, &size, arguments->workspace_bytes, faults);
}

enum dtp_status dtp_attention_prepare_backward(struct dtp_attention_plans *attention,
                                               const struct dtp_attention_backward_args *arguments,
                                               struct dtp_faults *faults)
{
    const struct dtp_attention_size size = backward_size(arguments);
    return prepare(attention, &size, arguments->workspace_bytes, faults);
}

/* Addresses of one part: `batch` and `head` (of query heads) are where it begins. */
struct part_start {
    uint64_t batch, head;
};

/* That head of the part's first batch in rows of so many heads of 16-bit elements, from row `row` of the sequence on.
 * cuDNN takes inputs and results alike as void *; it only reads inputs. */
static void *head_at(const void *rows, const struct dtp_attention_size *size, const struct part_start *start,
                     uint64_t row, uint64_t heads, uint64_t head)
{
    const uint64_t at = (start->batch * size->sequence + row) * heads + head;
    return (char *)(uintptr_t)rows + 2 * at * size->head_dim;
}

/* q, k and v of a part, or their gradients: in packed rows, but for keys and values of a step of a ring, and for all
 * gradients that it makes. */
struct heads_of_part {
    void *query, *key, *value;
};
static void find_keys(const void *rows, const struct dtp_attention_size *size, const struct part_start *start,
                      uint64_t heads_before, struct heads_of_part *out)
{
    const uint64_t kv = size->kv_heads, heads = heads_before + 2 * kv, group = size->heads / kv;
    const uint64_t head = heads_before + start->head / group;
    out->key = head_at(rows, size, start, 0, heads, head);
    out->value = head_at(rows, size, start, 0, heads, head + kv);
}

static struct heads_of_part inputs_of(const void *qkv, const void *keys, const struct dtp_attention_size *size,
                                      const struct part_start *start)
{
    const uint64_t packed = size->heads + 2 * (uint64_t)size->kv_heads;
    struct heads_of_part in = {.query = head_at(qkv, size, start, size->first_query, packed, start->head)};
    find_keys(keys ? keys : qkv, size, start, keys ? 0 : size->heads, &in);
    return in;
}

static void *result_at(const void *result, const struct dtp_attention_size *size, const struct part_start *start)
{
    return head_at(result, size, start, size->first_query, size->heads, start->head);
}

static struct heads_of_part gradients_of(const struct dtp_attention_backward_args *arguments,
                                         const struct dtp_attention_size *size, const struct part_start *start)
{
    if (!arguments->keys)
        return inputs_of(arguments->qkv_gradient, NULL, size, start);
    struct heads_of_part out = {.query = result_at(arguments->query_gradient, size, start)};
    find_keys(arguments->keys_gradient, size, start, 0, &out);
    return out;
}

static cudnnStatus_t execute(const struct dtp_attention_plans *attention, const struct prepared *prepared,
                             void *const addresses[TENSOR_COUNT], void *workspace, void *stream)
{
    void *pointers[DTP_GRAPH_TENSORS];
    for (int32_t i = 0; i < prepared->plan.tensor_count; i++)
        pointers[i] = addresses[prepared->plan.tensors[i]];
    return dtp_cudnn_plan_execute(&attention->cudnn, &prepared->plan, pointers, workspace, stream);
}

cudnnStatus_t dtp_attention_forward(struct dtp_attention_plans *attention, const struct dtp_attention_args *arguments,
                                    void *stream)
{
    const struct dtp_attention_size size = forward_size(arguments);
    const struct prepared *prepared = find(attention, &size);
    const struct part_start all = {0, 0};
    if (!prepared)
        return CUDNN_STATUS_NOT_INITIALIZED;
    const struct heads_of_part in = inputs_of(arguments->qkv, arguments->keys, &size, &all);
    float scale = arguments->scale, minus_infinity = -INFINITY;
    int32_t window = (int32_t)arguments->window;
    void *const addresses[TENSOR_COUNT] = {
        [TENSOR_QUERY] = in.query,
        [TENSOR_KEY_TRANSPOSED] = in.key,
        [TENSOR_VALUE] = in.value,
        [TENSOR_RESULT] = result_at(arguments->result, &size, &all),
        [TENSOR_LOG_SUM_EXP] = arguments->log_sum_exp,
        [TENSOR_SCALE] = &scale,
        [TENSOR_MINUS_INFINITY] = &minus_infinity,
        [TENSOR_WINDOW] = &window,
    };
    return execute(attention, prepared, addresses, arguments->workspace, stream);
}

/* Log-sum-exps of a part's queries, dense. Where these begin later than the sequence they are copied to `room`. */
static cudnnStatus_t find_statistics(const struct dtp_attention_backward_args *arguments,
                                     const struct prepared *prepared, const struct part_start *start, float *room,
                                     void *stream, void **out)
{
    const struct dtp_attention_size *size = &prepared->size;
    const uint64_t queries = dtp_attention_queries(size), rows = start->batch * size->heads + start->head;
    const float *from = arguments->log_sum_exp + rows * size->sequence + size->first_query;
    *out = (float *)(uintptr_t)from;
    if (size->first_query == 0)
        return CUDNN_STATUS_SUCCESS;
    *out = room;
    const struct dtp_columns_args copied = {.from = from,
                                            .to = room,
                                            .width = queries,
                                            .count = {(uint64_t)prepared->part.batch * prepared->part.heads, 1, 1},
                                            .from_step = {size->sequence, 0, 0},
                                            .to_step = {queries, 0, 0},
                                            .element = DTP_ELEMENT_FP32};
    return dtp_cuda_columns(NULL, &copied, stream) ? CUDNN_STATUS_EXECUTION_FAILED_CUDART : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t backward_part(const struct dtp_attention_plans *attention, const struct prepared *prepared,
                                   const struct dtp_attention_backward_args *arguments, const struct part_start *start,
                                   void *stream)
{
    const struct dtp_attention_size *size = &prepared->size;
    const struct heads_of_part in = inputs_of(arguments->qkv, arguments->keys, size, start);
    const struct heads_of_part out = gradients_of(arguments, size, start);
    char *row_sums = (char *)arguments->workspace + prepared->workspace.statistics_bytes;
    char *query_sum = row_sums + prepared->workspace.row_sums_bytes;
    void *statistics = NULL;
    const cudnnStatus_t status = find_statistics(arguments, prepared, start, arguments->workspace, stream, &statistics);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    float scale = arguments->scale, minus_infinity = -INFINITY, one = 1;
    int32_t window = (int32_t)arguments->window;
    void *const addresses[TENSOR_COUNT] = {
        [TENSOR_QUERY] = in.query,
        [TENSOR_KEY_TRANSPOSED] = in.key,
        [TENSOR_VALUE_TRANSPOSED] = in.value,
        [TENSOR_RESULT] = result_at(arguments->result, size, start),
        [TENSOR_RESULT_GRADIENT] = result_at(arguments->gradient, size, start),
        [TENSOR_LOG_SUM_EXP] = statistics,
        [TENSOR_SCALE] = &scale,
        [TENSOR_MINUS_INFINITY] = &minus_infinity,
        [TENSOR_WINDOW] = &window,
        [TENSOR_ONE] = &one,
        [TENSOR_QUERY_GRADIENT] = out.query,
        [TENSOR_KEY_GRADIENT] = out.key,
        [TENSOR_VALUE_GRADIENT] = out.value,
        [TENSOR_SOFTMAX_SUM] = row_sums,
        [TENSOR_QUERY_SUM] = query_sum,
    };
    return execute(attention, prepared, addresses, query_sum + prepared->workspace.query_sum_bytes, stream);
}

cudnnStatus_t dtp_attention_backward(struct dtp_attention_plans *attention,
                                     const struct dtp_attention_backward_args *arguments, void *stream)
{
    const struct dtp_attention_size size = backward_size(arguments);
    const struct prepared *prepared = find(attention, &size);
    cudnnStatus_t status = prepared ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
    struct part_start start = {0, 0};
    while (status == CUDNN_STATUS_SUCCESS && start.batch < size.batch) {
        status = backward_part(attention, prepared, arguments, &start, stream);
        start.head += prepared->part.heads;
        if (start.head == size.heads)
            start = (struct part_start){start.batch + prepared->part.batch, 0};
    }
    return status;
}
