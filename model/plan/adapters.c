#include "plan/adapters.h"

#include "base/bytes.h"
#include "base/nearest.h"
#include "plan/rules.h"
#include "plan/slice.h"

#include <stdio.h>
#include <string.h>

/* Sizes of the packed formats: bitsandbytes and torchao take the same blocks (functional.py, quantize_4bit;
 * dtypes/nf4tensor.py), AutoGPTQ groups of 128 by default. */
#define NF4_BLOCK 64u
#define NF4_SCALES 256u
#define GPTQ_GROUP 128u

bool dtp_plan_defends_results(const struct dtp_plan *plan)
{
    return dtp_plan_layers(plan)->defends_results && plan->adapters.base != DTP_BASE_NONE;
}

bool dtp_plan_casts_to_adapters(const struct dtp_plan *plan)
{
    return plan->adapters.rank && plan->adapters.dtype == DTP_FP32 && dtp_plan_layers(plan)->casts_to_adapters &&
           dtp_plan_compute_bytes(plan) < 4;
}

bool dtp_plan_widens_adapters(const struct dtp_plan *plan)
{
    return dtp_plan_casts_to_adapters(plan) && !plan->precision.autocast;
}

bool dtp_plan_recasts_adapters(const struct dtp_plan *plan)
{
    return dtp_plan_casts_to_adapters(plan) && plan->precision.autocast && plan->adapters.base == DTP_BASE_NONE &&
           !dtp_plan_shards_params(plan);
}

bool dtp_plan_widens_norms(const struct dtp_plan *plan)
{
    return plan->adapters.rank && plan->adapters.prepare_kbit;
}

bool dtp_plan_widens_ends(const struct dtp_plan *plan)
{
    return dtp_plan_widens_norms(plan) && plan->adapters.fp32_ends;
}

unsigned dtp_plan_stream_bytes(const struct dtp_plan *plan)
{
    return dtp_plan_autocast(plan) || dtp_plan_widens_norms(plan) ? 4 : dtp_plan_compute_bytes(plan);
}

unsigned dtp_plan_result_bytes(const struct dtp_plan *plan)
{
    return dtp_plan_widens_norms(plan) ? 4 : dtp_plan_compute_bytes(plan);
}

enum dtp_dtype dtp_plan_adapter_dtype(const struct dtp_plan *plan)
{
    const enum dtp_dtype compute = plan->precision.compute;
    return dtp_plan_widens_adapters(plan) ? DTP_FP32 : compute == DTP_FP8 ? DTP_BF16 : compute;
}

unsigned dtp_plan_adapter_bytes(const struct dtp_plan *plan)
{
    return dtp_plan_widens_adapters(plan) ? 4 : dtp_plan_compute_bytes(plan);
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* The first word of a value is the one that is printed. */
static const struct {
    const char *text;
    enum dtp_base base;
} base_words[] = {{"none", DTP_BASE_NONE},        {"nf4", DTP_BASE_NF4},   {"nf4-double", DTP_BASE_NF4_DOUBLE},
                  {"int8", DTP_BASE_INT8},        {"fp8", DTP_BASE_FP8},   {"int4", DTP_BASE_INT4},
                  {"bf16", DTP_BASE_NONE},        {"gptq", DTP_BASE_INT4}, {"8bit", DTP_BASE_INT8},
                  {"nf4-dq", DTP_BASE_NF4_DOUBLE}};

const char *dtp_base_text(enum dtp_base base)
{
    for (size_t i = 0; i < sizeof base_words / sizeof *base_words; i++)
        if (base_words[i].base == base)
            return base_words[i].text;
    return "unknown";
}

bool dtp_base_parse(const char *text, enum dtp_base *out)
{
    for (size_t i = 0; i < sizeof base_words / sizeof *base_words; i++)
        if (dtp_names_equal(text, base_words[i].text)) {
            *out = base_words[i].base;
            return true;
        }
    return false;
}

static const char *const target_words[DTP_TARGET_COUNT] = {
#define TARGET_WORD(suffix, text) text,
    DTP_ADAPTER_TARGET_TABLE(TARGET_WORD)
#undef TARGET_WORD
};

void dtp_targets_text(uint32_t targets, char out[DTP_TARGETS_BYTES])
{
    size_t used = 0;
    bool all = targets == DTP_TARGETS_ALL;
    if (all || targets == DTP_TARGETS_ATTENTION) {
        snprintf(out, DTP_TARGETS_BYTES, "%s", all ? "all" : "attention");
        return;
    }
    out[0] = '\0';
    for (int i = 0; i < DTP_TARGET_COUNT; i++)
        if (targets & 1u << i)
            used += (size_t)snprintf(out + used, DTP_TARGETS_BYTES - used, "%s%s", used ? "+" : "", target_words[i]);
}

static const char *const parameter_words[] = {"none", "gate_up", "down", "gate_up+down"};

const char *dtp_parameters_text(uint32_t parameters)
{
    return parameter_words[(parameters >> DTP_TARGET_UP & 1) + 2 * (parameters >> DTP_TARGET_DOWN & 1)];
}

bool dtp_parameters_parse(const char *text, uint32_t *out)
{
    uint32_t found = 0;
    bool none = strcmp(text, parameter_words[0]) == 0;
    while (!none && *text) {
        size_t length = strcspn(text, ",+"), i = 1;
        while (i < 3 && (strlen(parameter_words[i]) != length || memcmp(text, parameter_words[i], length) != 0))
            i++;
        if (i == 3)
            return false;
        found |= i == 1 ? 1u << DTP_TARGET_UP : 1u << DTP_TARGET_DOWN;
        text += length + (text[length] != '\0');
    }
    if (found || none)
        *out = found;
    return found || none;
}

/* One of a list's words, with or without the "_proj" of Transformers' names; several where they are one linear. */
static bool parse_target(const char *word, size_t length, uint32_t *targets)
{
    static const char suffix[] = "_proj";
    size_t tail = sizeof suffix - 1;
    if (length > tail && !memcmp(word + length - tail, suffix, tail))
        length -= tail;
    if (length == 3 && !memcmp(word, "qkv", length))
        return *targets |= DTP_TARGETS_QKV, true;
    if (length == 7 && !memcmp(word, "gate_up", length))
        return *targets |= DTP_TARGETS_UP, true;
    for (int i = 0; i < DTP_TARGET_COUNT; i++)
        if (strlen(target_words[i]) == length && !memcmp(word, target_words[i], length)) {
            *targets |= 1u << i;
            return true;
        }
    return false;
}

bool dtp_targets_parse(const char *text, uint32_t *out)
{
    uint32_t targets = 0;
    if (dtp_names_equal(text, "all") || dtp_names_equal(text, "all-linear")) {
        *out = DTP_TARGETS_ALL;
        return true;
    }
    if (dtp_names_equal(text, "attention")) {
        *out = DTP_TARGETS_ATTENTION;
        return true;
    }
    while (*text) {
        size_t length = strcspn(text, ",+");
        if (!parse_target(text, length, &targets))
            return false;
        text += length + (text[length] != '\0');
    }
    if (targets)
        *out = targets;
    return targets != 0;
}

/* ---- which weights ----------------------------------------------------------------------------------------------- */

/* The targets that a matrix is, several where it is one of them side by side; 0: none. */
static uint32_t targets_of(const struct dtp_layer_kind *kind, enum dtp_layer_matrix_id id)
{
    switch (id) {
    case DTP_MATRIX_QKV: return DTP_TARGETS_QKV;
    case DTP_MATRIX_Q: return 1u << DTP_TARGET_Q;
    case DTP_MATRIX_K: return 1u << DTP_TARGET_K;
    case DTP_MATRIX_V: return 1u << DTP_TARGET_V;
    case DTP_MATRIX_OUTPUT: return 1u << DTP_TARGET_OUTPUT;
    case DTP_MATRIX_GATE:
    case DTP_MATRIX_SHARED_GATE: return 1u << DTP_TARGET_GATE;
    case DTP_MATRIX_UP: return kind->packs_up && !kind->experts ? DTP_TARGETS_UP : 1u << DTP_TARGET_UP;
    case DTP_MATRIX_SHARED_UP: return 1u << DTP_TARGET_UP;
    case DTP_MATRIX_DOWN:
    case DTP_MATRIX_SHARED_DOWN: return 1u << DTP_TARGET_DOWN;
    default: return 0; /* routers; latents, which are refused */
    }
}

void dtp_plan_widen_kind(const struct dtp_plan *plan, struct dtp_layer_kind *kind)
{
    const uint32_t linears = plan->bf16_linears;
    for (int i = 0; i < kind->matrices && linears; i++) {
        const uint32_t targets = targets_of(kind, kind->matrix[i].id);
        kind->matrix[i].wide |= targets && (linears & targets) == targets;
    }
}

bool dtp_plan_divides_adapters(const struct dtp_plan *plan)
{
    return plan->tp > 1 && plan->adapters.rank && plan->runtime->adapters_as_weights;
}

/* Beside a matrix whose ranks have columns each, a rank has rows of A and its own columns' of B; beside one of which
 * they have rows each, A's columns for these, and of B as much as it is divided into (linear_in and linear_out of
 * Megatron-Bridge's ParallelLinearAdapter). */
static void divide_adapter(const struct dtp_plan *plan, struct dtp_layer_matrix *matrix)
{
    const bool by_rows = matrix->id == DTP_MATRIX_OUTPUT || matrix->id == DTP_MATRIX_DOWN;
    const uint32_t ranks = plan->adapter_ranks ? plan->adapter_ranks : 1;
    matrix->a_rows = by_rows ? matrix->rank : dtp_divide_up(matrix->rank, ranks);
    matrix->b_rows = !matrix->rank ? 0 : by_rows ? dtp_divide_up(matrix->out, ranks) : matrix->out;
}

void dtp_plan_adapt_kind(const struct dtp_plan *plan, struct dtp_layer_kind *kind)
{
    const struct dtp_adapter_choice *choice = &plan->adapters;
    dtp_plan_widen_kind(plan, kind);
    if (!choice->rank)
        return;
    kind->adapted = true;
    const bool parameters =
        !dtp_plan_calls_experts(plan); /* experts are, and no linears (Transformers 5, torchtitan) */
    for (int i = 0; i < kind->matrices; i++) {
        const uint32_t targets = targets_of(kind, kind->matrix[i].id);
        kind->matrix[i].frozen = true;
        bool named = targets && (choice->targets & targets) == targets;
        kind->matrix[i].folded = kind->matrix[i].expert && choice->parameters & targets;
        named = kind->matrix[i].expert && parameters ? kind->matrix[i].folded : named;
        kind->matrix[i].rank = named ? choice->rank : 0;
        kind->matrix[i].magnitudes = choice->dora && kind->matrix[i].rank ? kind->matrix[i].out : 0;
        divide_adapter(plan, &kind->matrix[i]);
    }
}

/* Elements of norms and biases of the whole model. */
static uint64_t vectors_of(const struct dtp_transformer *t, const struct dtp_layer_kind *kind)
{
    uint64_t norms = (t->final_norm ? 1u : 0) + (t->embedding_norm ? 1u : 0);
    return t->layers * dtp_layer_vector_elements(kind) + norms * dtp_transformer_norm_vectors(t) * t->hidden +
           (t->head_bias ? t->vocab : 0);
}

static uint64_t ends_of(const struct dtp_transformer *transformer)
{
    const struct dtp_parameter_count count = dtp_transformer_count(transformer);
    return count.embedding + count.position + (transformer->tied_head ? 0 : count.embedding);
}

uint64_t dtp_plan_trained_ends(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    return plan->adapters.train_ends ? ends_of(transformer) : 0;
}

uint64_t dtp_plan_gradients_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                  uint64_t trained)
{
    uint64_t ends = dtp_plan_trained_ends(transformer, plan), each = dtp_dtype_bytes(plan->adapters.dtype);
    return each * (trained - ends) + dtp_plan_ends_gradient_bytes(plan) * ends;
}

void dtp_plan_trained(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                      struct dtp_trained_count *out)
{
    const struct dtp_parameter_count count = dtp_transformer_count(transformer);
    uint64_t params = dtp_dtype_bytes(plan->precision.params), matrices = 0, packed = 0, adapters = 0, active = 0;
    struct dtp_layer_kind kind;
    if (!dtp_plan_adapts(plan)) {
        *out = (struct dtp_trained_count){.trained = count.total};
        return;
    }
    const struct dtp_transformer kept = dtp_plan_packed_experts(transformer, plan);
    struct dtp_plan whole = *plan;
    if (plan->tp > 1) /* else it is a slice, which has its part */
        whole.adapter_ranks = 1;
    dtp_layer_kind_of(&kept, dtp_layer_mlp_of(transformer), plan->fused_qkv, plan->fused_gate_up, &kind);
    dtp_plan_adapt_kind(&whole, &kind);
    for (int i = 0; i < kind.matrices; i++) {
        const struct dtp_layer_matrix *matrix = &kind.matrix[i];
        adapters += dtp_adapter_elements(matrix);
        active += dtp_adapter_active_elements(&kind, matrix);
        matrices += matrix->groups * matrix->out * matrix->in;
        packed += matrix->groups * dtp_base_bytes(plan->adapters.base, matrix->out, matrix->in, params);
    }
    uint64_t ends = dtp_plan_trained_ends(transformer, plan);
    *out = (struct dtp_trained_count){.adapters = transformer->layers * adapters,
                                      .active_adapters = transformer->layers * active};
    out->trained = out->adapters + ends;
    out->frozen = count.total - (dtp_plan_layers(plan)->copies_trained ? 0 : ends);
    out->frozen_bytes = transformer->layers * packed + params * (out->frozen - transformer->layers * matrices);
    if (dtp_plan_widens_norms(plan))
        out->frozen_bytes += (4 - params) * vectors_of(transformer, &kind);
    if (dtp_plan_widens_ends(plan))
        out->frozen_bytes += (4 - params) * ends_of(transformer);
}

double dtp_plan_model_flops_per_token(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    double all = dtp_transformer_model_flops_per_token(transformer, plan->sequence);
    struct dtp_trained_count trained;
    if (!dtp_plan_adapts(plan))
        return all;
    dtp_plan_trained(transformer, plan, &trained);
    double frozen = (double)dtp_transformer_count(transformer).matmul;
    if (plan->adapters.train_ends) /* the head's */
        frozen -= (double)(transformer->vocab * transformer->hidden);
    return all - 2 * frozen + 6 * (double)trained.active_adapters;
}

/* ---- how they are kept ------------------------------------------------------------------------------------------- */

uint64_t dtp_base_bytes(enum dtp_base base, uint64_t rows, uint64_t width, uint64_t element_bytes)
{
    uint64_t elements = rows * width, blocks = dtp_divide_up(elements, NF4_BLOCK);
    switch (base) {
    case DTP_BASE_NF4: return dtp_divide_up(elements, 2) + 4 * blocks;
    case DTP_BASE_NF4_DOUBLE: return dtp_divide_up(elements, 2) + blocks + 4 * dtp_divide_up(blocks, NF4_SCALES);
    case DTP_BASE_INT8: return elements + 4 * rows;
    case DTP_BASE_FP8: return elements + 4;
    case DTP_BASE_INT4: {
        uint64_t groups = rows * dtp_divide_up(width, GPTQ_GROUP);
        return dtp_divide_up(elements, 2) + 2 * groups + dtp_divide_up(groups, 2) + 4 * width;
    }
    case DTP_BASE_NONE:
    case DTP_BASE_COUNT: break;
    }
    return element_bytes * elements;
}

static uint64_t nibbles(uint64_t elements)
{
    return dtp_divide_up(elements, 2);
}

bool dtp_plan_keeps_scales(const struct dtp_plan *plan)
{
    const enum dtp_base base = plan->adapters.base;
    return dtp_plan_layers(plan)->bitsandbytes && dtp_plan_shards_params(plan) &&
           (base == DTP_BASE_NF4 || base == DTP_BASE_NF4_DOUBLE);
}

bool dtp_plan_holds_inputs(const struct dtp_plan *plan)
{
    return plan->adapters.rank && plan->adapters.base == DTP_BASE_INT8 && dtp_plan_layers(plan)->bitsandbytes;
}

uint64_t dtp_plan_base_shard_bytes(const struct dtp_plan *plan, uint64_t rows, uint64_t width, uint64_t element_bytes)
{
    return dtp_plan_keeps_scales(plan) ? nibbles(rows * width)
                                       : dtp_base_bytes(plan->adapters.base, rows, width, element_bytes);
}

uint64_t dtp_plan_scale_bytes(const struct dtp_plan *plan, uint64_t rows, uint64_t width)
{
    return dtp_plan_keeps_scales(plan) ? dtp_base_bytes(plan->adapters.base, rows, width, 0) - nibbles(rows * width)
                                       : 0;
}

/* torchao's NF4Tensor.get_original_weight is a chain of PyTorch's operators (dtypes/nf4tensor.py). Of two elements, c
 * bytes each: a byte is shifted 1 + 1 and masked 1 + 1, both are made 64-bit indices 2 (1 + 8), which look up 2 (8 +
 * c); the scales are repeated 2 c, multiplied 2 (2 c + c), and both halves are laid side by side 2 c + 2 c: 38 + 14 c.
 * The indices, what they looked up and its products stand until the function returns: 8 + 2 c of an element. A compiler
 * makes one kernel of it, and others have one: packed in, c out. */
bool dtp_base_stays_unpacked(const struct dtp_plan *plan)
{
    return plan->compile || plan->adapters.gptq_operators;
}

/* auto-gptq's (nn_modules/qlinear/qlinear_cuda_old.py, from 128 tokens on): of an element, packed in half a byte, the
 * shift writes 4, the cast 4 + 1, the mask 1 + 1 in place, zeros taken off 1 + 1, scales 1 + 2: 16.5, in five kernels,
 * and four of zeros, which are one for 128. Integers of 4 and 1 bytes stand at once, where the result is not made yet.
 */
static struct dtp_unpacking gptq_unpacking(uint64_t elements)
{
    return (struct dtp_unpacking){16.5 * (double)elements, 9, 3 * elements, false};
}

/* bitsandbytes' (functional.py, dequantize_4bit, of 0.43.3 and 0.50.1 alike): packed scales are unpacked to fp32 first,
 * 4 written, and shifted in place 4 + 4, one for a block, which stand until the kernel has read them. */
static struct dtp_unpacking nf4_unpacking(bool packed_scales, uint64_t packed_bytes, uint64_t elements, uint64_t c)
{
    uint64_t scales = packed_scales ? 4 * dtp_divide_up(elements, NF4_BLOCK) : 0;
    return (struct dtp_unpacking){(double)(packed_bytes + 4 * scales + c * elements), packed_scales ? 3 : 1, scales,
                                  true};
}

struct dtp_unpacking dtp_base_unpacking(const struct dtp_plan *plan, uint64_t rows, uint64_t width)
{
    uint64_t c = dtp_plan_compute_bytes(plan), elements = rows * width;
    if (plan->runtime->unpacks_by_operators && !plan->compile && plan->adapters.base == DTP_BASE_NF4_DOUBLE)
        return (struct dtp_unpacking){(double)((19 + 7 * c) * elements), 16, (8 + 2 * c) * elements, false};
    if (plan->adapters.gptq_operators && !plan->compile)
        return gptq_unpacking(elements);
    const uint64_t packed = dtp_base_bytes(plan->adapters.base, rows, width, c);
    const bool scales = plan->adapters.base == DTP_BASE_NF4_DOUBLE;
    if (dtp_plan_layers(plan)->bitsandbytes && (scales || plan->adapters.base == DTP_BASE_NF4))
        return nf4_unpacking(scales, packed, elements, c);
    return (struct dtp_unpacking){(double)(packed + c * elements), 1, 0, false};
}

/* ---- DoRA -------------------------------------------------------------------------------------------------------- */

/* peft's DoraLinearLayer.forward (tuners/lora/dora.py), in one dtype of c bytes; and with x in fp32, w bytes, beside
 * results of c that autocast has made. Bytes of an element:
 *   identity  written c; or w, which autocast casts w + c
 *   norm      s B A 2 c, W added 3 c, rows' norms c; or W and B A cast 2 (c + w), then the same in w
 *   terms     (m / n - 1) y 2 c, m / n wide 2 c, s of that 2 c, both added 3 c; or c + w, c + w, 2 w, 3 w
 *   added     3 c; or c + 2 w and a cast back w + c
 *   backward  s g 2 c, times m / n 2 c, with wide and summed 4 c, with y 4 c; or g cast, for y back, 2 (c + w), then
 *             2 w, 2 w and a cast w + c, and twice 2 w + c and w
 *   for y     g (m / n - 1) 2 c; or 2 w and a cast w + c
 * Two of norm's kernels, m / n and that less one, are of a number a row. */
struct dtp_magnitude_passes dtp_plan_magnitude_passes(const struct dtp_plan *plan)
{
    const uint64_t c = dtp_plan_compute_bytes(plan), w = 4;
    if (!dtp_plan_recasts_adapters(plan))
        return (struct dtp_magnitude_passes){.identity = c,
                                             .identity_kernels = 2,
                                             .norm = 6 * c,
                                             .norm_kernels = 5,
                                             .norm_workspace = 2 * c,
                                             .product = c,
                                             .terms = 9 * c,
                                             .terms_kernels = 4,
                                             .terms_workspace = 2 * c,
                                             .sum = c,
                                             .added = 3 * c,
                                             .added_kernels = 1,
                                             .back = 12 * c,
                                             .back_kernels = 6,
                                             .back_workspace = 2 * c,
                                             .back_wanted = 2 * c,
                                             .back_wanted_kernels = 1};
    return (struct dtp_magnitude_passes){.identity = 2 * w + c,
                                         .identity_kernels = 3,
                                         .casts = 2 * (c + w),
                                         .cast_kernels = 2,
                                         .norm = 6 * w,
                                         .norm_kernels = 5,
                                         .norm_elements = 1, /* B A lies by columns */
                                         .norm_workspace = 2 * w,
                                         .product = 2 * w,
                                         .terms = 2 * (c + w) + 5 * w,
                                         .terms_kernels = 4,
                                         .terms_elements = 2,
                                         .terms_workspace = 2 * w,
                                         .sum = w,
                                         .added = 2 * c + 3 * w,
                                         .added_kernels = 2,
                                         .added_elements = 1,
                                         .back = 2 * (c + w) + 4 * w + (w + c) + 2 * (2 * w + c) + 2 * w,
                                         .back_kernels = 9,
                                         .back_elements = 4,
                                         .back_workspace = 3 * w,
                                         .back_wanted = 2 * w + w + c,
                                         .back_wanted_kernels = 2,
                                         .back_wanted_elements = 1};
}
