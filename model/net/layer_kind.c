#include "net/layer_kind.h"

#include <stddef.h>
#include <string.h>

const char *dtp_layer_tensor_text(enum dtp_layer_tensor tensor)
{
    static const char *const texts[DTP_TENSOR_COUNT] = {
#define DTP_TENSOR(suffix, name, width, element, part) name,
#include "net/layer_kind.def"
    };
    return texts[tensor];
}

/* Of the matrix that makes `result`; each row of the table has its own, so that a compiler knows the answer. */
static inline bool is_wide(enum dtp_layer_tensor result)
{
    return result == DTP_TENSOR_ROUTER_SCORES || result == DTP_TENSOR_SHARED_WEIGHT;
}

static inline bool is_of_experts(const struct dtp_layer_kind *kind, enum dtp_layer_tensor result)
{
    return (result == DTP_TENSOR_GATE || result == DTP_TENSOR_UP || result == DTP_TENSOR_EXPERT_DOWN) && kind->experts;
}

static inline bool has_own_rows(const struct dtp_layer_kind *kind, enum dtp_layer_tensor result)
{
    return is_wide(result) || result == DTP_TENSOR_Q_LATENT || result == DTP_TENSOR_KV_LATENT ||
           is_of_experts(kind, result);
}

static void list_matrices(struct dtp_layer_kind *k)
{
#define DTP_MATRIX(suffix, word, copies, rows, columns, biased, to)                                                    \
    if ((rows) > 0) {                                                                                                  \
        k->matrix[k->matrices++] = (struct dtp_layer_matrix){.name = word,                                             \
                                                             .gradient_name = word " weight gradient",                 \
                                                             .input_gradient_name = word " input gradient",            \
                                                             .weight_name = word " weight",                            \
                                                             .out = rows,                                              \
                                                             .in = columns,                                            \
                                                             .groups = copies,                                         \
                                                             .bias = biased,                                           \
                                                             .expert = is_of_experts(k, to),                           \
                                                             .own_rows = has_own_rows(k, to),                          \
                                                             .wide = is_wide(to),                                      \
                                                             .id = DTP_MATRIX_##suffix,                                \
                                                             .result = to};                                            \
    }
#include "net/layer_kind.def"
}

static void list_vectors(struct dtp_layer_kind *k)
{
#define DTP_VECTOR(suffix, width, bias, exists)                                                                        \
    if (exists)                                                                                                        \
        k->vectors |= UINT32_C(1) << DTP_VECTOR_##suffix;
#include "net/layer_kind.def"
}

/* What an MLP of experts has otherwise than a plain one. */
static void set_experts(const struct dtp_transformer *t, struct dtp_layer_kind *k)
{
    k->experts = t->experts;
    k->own_experts = t->expert_ranks > 1 ? t->experts / t->expert_ranks : t->experts;
    k->exchanged = k->own_experts < k->experts;
    k->experts_per_token = t->experts_per_token;
    k->mlp_width = t->expert_tensor_ranks > 1 ? t->expert_ffn / t->expert_tensor_ranks : t->expert_ffn;
    k->ffn = t->experts_per_token * k->mlp_width;
    k->shared_ffn = t->shared_expert_ffn;
    k->packs_up = k->gated && t->experts_packed;
    k->packs_shared = k->gated && t->shared_packed;
    k->mlp_bias = t->expert_bias;
    k->router_bias = t->router_bias;
    k->shared_gate = t->shared_expert_gate && t->shared_expert_ffn;
}

static void set_latents(const struct dtp_transformer *t, struct dtp_layer_kind *k)
{
    k->q_latent = t->q_latent;
    k->kv_latent = t->kv_latent;
    k->rope_head_dim = t->rope_head_dim;
    k->d_core = k->d_v = t->heads * t->value_head_dim;
    k->packs_qkv = false;
}

void dtp_layer_kind_of(const struct dtp_transformer *transformer, enum dtp_layer_mlp mlp, bool packs_qkv, bool packs_up,
                       struct dtp_layer_kind *out)
{
    const struct dtp_transformer *t = transformer;
    bool gated = dtp_activation_is_gated(t->activation);
    memset(out, 0, offsetof(struct dtp_layer_kind, matrix)); /* which is large, and written matrix by matrix */
    out->hidden = t->hidden, out->ffn = out->mlp_width = t->ffn;
    out->heads = t->heads, out->kv_heads = t->kv_heads, out->head_dim = t->head_dim;
    out->d_q = out->d_core = t->heads * t->head_dim, out->d_kv = out->d_v = t->kv_heads * t->head_dim;
    out->experts_per_token = 1;
    out->norm_statistics = t->norm == DTP_RMS_NORM ? 1 : 2, out->qk_norm_statistics = t->qk_layer_norm ? 2 : 1;
    out->packs_qkv = packs_qkv, out->gated = gated, out->packs_up = gated && packs_up;
    out->rotary = t->position == DTP_POSITION_ROPE, out->parallel = t->parallel_block, out->sinks = t->attention_sinks;
    out->norms_before = t->norm_place != DTP_NORMS_AFTER, out->norms_after = t->norm_place != DTP_NORMS_BEFORE;
    out->norm_weights = !t->norm_without_weight, out->norm_bias = t->norm_bias;
    out->qk_norm = t->qk_norm, out->qk_norm_wide = t->qk_norm_wide, out->qk_norm_bias = t->qk_norm_bias;
    out->qk_norm_weight = t->qk_norm_weight;
    out->clamps = t->activation == DTP_SWIGLU_CLAMPED, out->squares = t->activation == DTP_RELU2;
    out->from_result = t->activation == DTP_RELU;
    out->qkv_bias = t->qkv_bias, out->output_bias = t->attention_output_bias, out->mlp_bias = t->mlp_bias;
    if (mlp == DTP_LAYER_EXPERTS)
        set_experts(t, out);
    if (t->kv_latent)
        set_latents(t, out);
    list_matrices(out);
    list_vectors(out);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

struct dtp_layer_sums dtp_layer_sums_of(const struct dtp_layer_kind *kind)
{
    struct dtp_layer_sums sums = {0};
    uint64_t before_output = 1;
    for (int i = 0; i < kind->matrices; i++) {
        const struct dtp_layer_matrix *matrix = &kind->matrix[i];
        const uint64_t one = matrix->out * matrix->in, elements = matrix->groups * one;
        before_output &= matrix->id != DTP_MATRIX_OUTPUT;
        sums.matrices += elements;
        sums.narrow += !matrix->wide * elements;
        sums.biases += matrix->bias * matrix->groups * matrix->out;
        sums.attention_inputs += before_output * one;
    }
    return sums;
}

uint64_t dtp_layer_matrix_elements(const struct dtp_layer_kind *kind)
{
    return dtp_layer_sums_of(kind).matrices;
}

uint64_t dtp_layer_narrow_elements(const struct dtp_layer_kind *kind)
{
    return dtp_layer_sums_of(kind).narrow;
}

uint64_t dtp_layer_active_elements(const struct dtp_layer_kind *kind)
{
    uint64_t elements = 0;
    for (int i = 0; i < kind->matrices; i++) {
        const struct dtp_layer_matrix *matrix = &kind->matrix[i];
        elements += (matrix->expert ? kind->experts_per_token : 1) * matrix->out * matrix->in;
    }
    return elements;
}

int dtp_layer_list_vectors(const struct dtp_layer_kind *kind, uint64_t out[DTP_LAYER_VECTORS])
{
    const struct dtp_layer_kind *k = kind;
    int count = 0;
    for (int i = 0; i < k->matrices; i++)
        if (k->matrix[i].bias)
            out[count++] = k->matrix[i].groups * k->matrix[i].out;
#define DTP_VECTOR(suffix, width, bias, exists)                                                                        \
    if (exists)                                                                                                        \
        out[count++] = width;                                                                                          \
    if ((exists) && (bias))                                                                                            \
        out[count++] = width;
#include "net/layer_kind.def"
    return count;
}

uint64_t dtp_layer_vector_elements(const struct dtp_layer_kind *kind)
{
    uint64_t vectors[DTP_LAYER_VECTORS], elements = 0;
    for (int i = dtp_layer_list_vectors(kind, vectors); i > 0; i--)
        elements += vectors[i - 1];
    return elements;
}

uint64_t dtp_layer_bias_elements(const struct dtp_layer_kind *kind)
{
    return dtp_layer_sums_of(kind).biases;
}

uint64_t dtp_layer_expert_bias_elements(const struct dtp_layer_kind *kind)
{
    uint64_t elements = 0;
    for (int i = 0; i < kind->matrices; i++)
        elements += kind->matrix[i].bias && kind->matrix[i].expert ? kind->matrix[i].out : 0;
    return elements;
}

uint64_t dtp_layer_qk_norm_elements(const struct dtp_layer_kind *kind)
{
    struct dtp_layer_kind without = *kind;
    without.qk_norm = false;
    return dtp_layer_vector_elements(kind) - dtp_layer_vector_elements(&without);
}

/* ---- tensors and operators --------------------------------------------------------------------------------------- */

uint64_t dtp_layer_tensor_width(const struct dtp_layer_kind *kind, enum dtp_layer_tensor tensor)
{
    const struct dtp_layer_kind *k = kind;
#define DTP_TENSOR(suffix, name, width, element, part)                                                                 \
    if (tensor == DTP_TENSOR_##suffix)                                                                                 \
        return width;
#include "net/layer_kind.def"
    return 0;
}

void dtp_layer_tensor_widths(const struct dtp_layer_kind *kind, uint64_t out[DTP_TENSOR_COUNT])
{
    const struct dtp_layer_kind *k = kind;
#define DTP_TENSOR(suffix, name, width, element, part) out[DTP_TENSOR_##suffix] = width;
#include "net/layer_kind.def"
}

const uint8_t dtp_layer_elements[DTP_TENSOR_COUNT] = {
#define DTP_TENSOR(suffix, name, width, element, part) DTP_LAYER_ELEMENT_##element,
#include "net/layer_kind.def"
};

const uint8_t dtp_layer_parts[DTP_TENSOR_COUNT] = {
#define DTP_TENSOR(suffix, name, width, element, part) DTP_PART_##part,
#include "net/layer_kind.def"
};

uint64_t dtp_layer_wide_of(enum dtp_layer_tensor tensor)
{
    static const uint64_t wide[DTP_TENSOR_COUNT] = {[DTP_TENSOR_NORM1] = DTP_TENSOR_BIT(WIDE1),
                                                    [DTP_TENSOR_NORM2] = DTP_TENSOR_BIT(WIDE2),
                                                    [DTP_TENSOR_MIDDLE] = DTP_TENSOR_BIT(WIDE_MIDDLE),
                                                    [DTP_TENSOR_DOWN] = DTP_TENSOR_BIT(WIDE_DOWN)};
    return wide[tensor];
}

#define BIT(suffix) DTP_TENSOR_BIT(suffix)
#define NEEDS(what) (uint32_t) DTP_NEEDS_##what

int dtp_layer_operators(const struct dtp_layer_kind *kind, struct dtp_layer_operator out[DTP_LAYER_OPERATORS])
{
    const struct dtp_layer_kind *k = kind;
    int count = 0;
#define DTP_OPERATOR(which, word, from, to, kept, reads_back, exists)                                                  \
    if (exists)                                                                                                        \
        out[count++] = (struct dtp_layer_operator){.kind = DTP_LAYER_OP_##which,                                       \
                                                   .name = word,                                                       \
                                                   .reads = from,                                                      \
                                                   .makes = to,                                                        \
                                                   .statistics = kept,                                                 \
                                                   .needs = reads_back};
#include "net/layer_kind.def"
    return count;
}
