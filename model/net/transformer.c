#include "net/transformer.h"

#include "net/layer_kind.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_LAYERS 100000u
#define MAX_WIDTH 100000000u /* any one dimension of a matrix */
#define MAX_MTP_LAYERS 1000u
#define MAX_EXPERTS 65536u
#define MAX_ROUTER_SCALE 1e6
#define MAX_SEQUENCE 1000000000u
#define MAX_PARAMETERS 1e15
#define MIN_SOFTCAP 1e-3 /* smaller ones leave nothing of the scores, in the end not even a float */
#define MAX_SOFTCAP 1e6

struct dtp_transformer dtp_transformer_default(void)
{
    return (struct dtp_transformer){.norm = DTP_RMS_NORM,
                                    .norm_epsilon = DTP_NORM_EPSILON,
                                    .activation = DTP_SWIGLU,
                                    .position = DTP_POSITION_ROPE,
                                    .final_norm = true};
}

/* ---- check ----------------------------------------------------------------------------------------------------- */

/* Where the faults of one shape go. */
struct place {
    const char *where;
    size_t line;
    struct dtp_faults *faults;
    enum dtp_status status;
};

#define FAULT(place, ...)                                                                                              \
    ((place)->status = dtp_fault((place)->faults, DTP_BAD_INPUT, (place)->where, (place)->line, __VA_ARGS__))

static void check_range(struct place *place, const char *field, uint64_t value, uint64_t maximum)
{
    if (!value)
        FAULT(place, "%s is 0; a transformer needs at least 1", field);
    else if (value > maximum)
        FAULT(place, "%s is %" PRIu64 "; at most %" PRIu64 " is supported", field, value, maximum);
}

static bool is_softcap(double cap)
{
    return cap == 0 || (cap >= MIN_SOFTCAP && cap <= MAX_SOFTCAP);
}

static void check_dimensions(const struct dtp_transformer *t, struct place *place)
{
    check_range(place, "layers", t->layers, MAX_LAYERS);
    check_range(place, "hidden", t->hidden, MAX_WIDTH);
    check_range(place, "heads", t->heads, MAX_WIDTH);
    check_range(place, "kv_heads", t->kv_heads, MAX_WIDTH);
    check_range(place, "head_dim", t->head_dim, MAX_WIDTH);
    check_range(place, "ffn", t->ffn, MAX_WIDTH);
    check_range(place, "vocab", t->vocab, MAX_WIDTH);
    if (t->max_sequence > MAX_SEQUENCE)
        FAULT(place, "max_sequence is %" PRIu64 "; at most %u is supported", t->max_sequence, MAX_SEQUENCE);
    if (t->sliding_window > MAX_SEQUENCE)
        FAULT(place, "sliding_window is %" PRIu64 "; at most %u is supported", t->sliding_window, MAX_SEQUENCE);
    if (t->sliding_window_pattern > MAX_LAYERS)
        FAULT(place, "sliding_window_pattern is %" PRIu64 "; at most %u is supported", t->sliding_window_pattern,
              MAX_LAYERS);
    if (t->sliding_window_pattern && !t->sliding_window)
        FAULT(place,
              "sliding_window_pattern says which layers have no sliding_window, and there is none; give its tokens");
    if (t->chunked_attention && !t->sliding_window)
        FAULT(place, "chunked_attention cuts sequences into pieces of sliding_window tokens; give these");
    if (t->mtp_layers > MAX_MTP_LAYERS)
        FAULT(place, "mtp_layers is %" PRIu64 "; at most %u is supported", t->mtp_layers, MAX_MTP_LAYERS);
    if (t->heads && t->kv_heads && t->heads % t->kv_heads)
        FAULT(place, "kv_heads %" PRIu64 " do not divide heads %" PRIu64, t->kv_heads, t->heads);
    if (t->heads && t->head_dim > MAX_WIDTH / t->heads)
        FAULT(place, "heads x head_dim is %" PRIu64 " x %" PRIu64 "; at most %u is supported", t->heads, t->head_dim,
              MAX_WIDTH);
}

static void check_qk_norm(const struct dtp_transformer *t, struct place *place)
{
    if ((unsigned)t->qk_norm_weight > DTP_QK_NORM_UNWEIGHTED)
        FAULT(place, "qk_norm_weight %d is no kind of weights", (int)t->qk_norm_weight);
    if (t->qk_norm_wide && !t->qk_norm)
        FAULT(place, "qk_norm_wide says how wide the norms of q and k are; it needs qk_norm");
    if ((t->qk_layer_norm || t->qk_norm_weight != DTP_QK_NORM_SHARED) && !t->qk_norm)
        FAULT(place, "%s says which norms q and k have; it needs qk_norm",
              t->qk_layer_norm ? "qk_layer_norm" : "qk_norm_weight");
    if (t->qk_norm_wide && t->qk_norm_weight == DTP_QK_NORM_BY_HEAD)
        FAULT(place, "qk_norm_weight by_head is of norms of each head; with qk_norm_wide leave it out");
    if (t->qk_norm_bias && (!t->qk_layer_norm || t->qk_norm_weight == DTP_QK_NORM_UNWEIGHTED))
        FAULT(place, "qk_norm_bias needs qk_layer_norm, with weights; other norms of q and k have no bias");
}

static void check_latents(const struct dtp_transformer *t, struct place *place)
{
    if (!t->kv_latent) {
        if (t->q_latent || t->rope_head_dim || t->value_head_dim)
            FAULT(place, "q_latent, rope_head_dim and value_head_dim are latent attention's; give kv_latent");
        return;
    }
    check_range(place, "kv_latent", t->kv_latent, MAX_WIDTH);
    check_range(place, "rope_head_dim", t->rope_head_dim, MAX_WIDTH);
    check_range(place, "value_head_dim", t->value_head_dim, MAX_WIDTH);
    if (t->q_latent > MAX_WIDTH)
        FAULT(place, "q_latent is %" PRIu64 "; at most %u is supported", t->q_latent, MAX_WIDTH);
    if (t->rope_head_dim >= t->head_dim || t->rope_head_dim % 2)
        FAULT(place, "rope_head_dim is %" PRIu64 "; it is an even part of head_dim %" PRIu64, t->rope_head_dim,
              t->head_dim);
    if (t->heads && t->value_head_dim > MAX_WIDTH / t->heads)
        FAULT(place, "heads x value_head_dim is %" PRIu64 " x %" PRIu64 "; at most %u is supported", t->heads,
              t->value_head_dim, MAX_WIDTH);
    if (t->kv_heads != t->heads)
        FAULT(place, "kv_heads is %" PRIu64 "; latent attention has keys of all %" PRIu64 " heads", t->kv_heads,
              t->heads);
    if (t->position != DTP_POSITION_ROPE || t->qk_norm || t->qkv_bias)
        FAULT(place, "kv_latent needs position rope, no qk_norm and no qkv_bias; others are not modelled");
}

static void check_routing(const struct dtp_transformer *t, struct place *place)
{
    uint64_t groups = t->expert_groups ? t->expert_groups : 1;
    if (!(t->router_scale >= 0 && t->router_scale <= MAX_ROUTER_SCALE))
        FAULT(place, "router_scale is %g; 0 (none) to %g is supported", t->router_scale, MAX_ROUTER_SCALE);
    if ((unsigned)t->router > DTP_ROUTER_SIGMOID)
        FAULT(place, "router %d is no router", (int)t->router);
    if (t->experts_per_token > t->experts)
        FAULT(place, "experts_per_token is %" PRIu64 ", and a layer has %" PRIu64 " experts", t->experts_per_token,
              t->experts);
    if (t->experts % groups)
        FAULT(place, "expert_groups %" PRIu64 " do not divide experts %" PRIu64, groups, t->experts);
    if (t->groups_per_token > groups)
        FAULT(place, "groups_per_token is %" PRIu64 ", and there are %" PRIu64 " groups", t->groups_per_token, groups);
    else if (t->groups_per_token && t->groups_per_token * (t->experts / groups) < t->experts_per_token)
        FAULT(place, "experts_per_token %" PRIu64 " are more than groups_per_token have", t->experts_per_token);
    if (!dtp_transformer_expert_layers(t, t->layers))
        FAULT(place, "dense_layers and expert_layer_step leave no layer that has experts");
}

static void check_experts(const struct dtp_transformer *t, struct place *place)
{
    if (!t->experts) {
        if (t->experts_per_token || t->expert_ffn || t->shared_expert_ffn || t->dense_layers || t->expert_layer_step ||
            t->expert_groups || t->groups_per_token || t->expert_bias || t->router_bias || t->shared_expert_gate ||
            t->router_norm || t->router_scale > 0 || t->router_on_input)
            FAULT(place, "experts_per_token, expert_ffn and other choices of experts need experts");
        return;
    }
    check_range(place, "experts", t->experts, MAX_EXPERTS);
    check_range(place, "experts_per_token", t->experts_per_token, MAX_EXPERTS);
    check_range(place, "expert_ffn", t->expert_ffn, MAX_WIDTH);
    if (t->experts == 1)
        FAULT(place, "experts is 1; one expert is an MLP, leave experts out");
    if (t->shared_expert_ffn > MAX_WIDTH)
        FAULT(place, "shared_expert_ffn is %" PRIu64 "; at most %u is supported", t->shared_expert_ffn, MAX_WIDTH);
    if (t->dense_layers > MAX_LAYERS || t->expert_layer_step > MAX_LAYERS)
        FAULT(place, "dense_layers and expert_layer_step are at most %u", MAX_LAYERS);
    if (t->shared_expert_gate && !t->shared_expert_ffn)
        FAULT(place, "shared_expert_gate weighs what shared experts add; give shared_expert_ffn");
    if (t->parallel_block)
        FAULT(place, "experts need parallel_block none; beside attention they are not modelled");
    if (place->status == DTP_OK)
        check_routing(t, place);
}

static void check_choices(const struct dtp_transformer *t, struct place *place)
{
    if ((unsigned)t->norm > DTP_RMS_NORM)
        FAULT(place, "norm %d is no norm", (int)t->norm);
    if ((unsigned)t->activation > DTP_GELU_NEW)
        FAULT(place, "activation %d is no activation", (int)t->activation);
    if ((unsigned)t->position > DTP_POSITION_NONE)
        FAULT(place, "position %d is no position scheme", (int)t->position);
    if ((unsigned)t->parallel_block > DTP_PARALLEL_TWO_NORMS)
        FAULT(place, "parallel_block %d is no way to join attention and MLP", (int)t->parallel_block);
    if ((unsigned)t->norm_place > DTP_NORMS_BOTH)
        FAULT(place, "norm_place %d is no place of norms", (int)t->norm_place);
    if (t->parallel_block && t->norm_place != DTP_NORMS_BEFORE)
        FAULT(place, "parallel_block needs norm_place before; parallel blocks with other norms are not modelled");
    check_qk_norm(t, place);
    if (t->norm_without_weight && (t->norm_bias || t->norm_unit_offset))
        FAULT(place,
              "norm_without_weight says that norms have no parameters; norm_bias and norm_unit_offset need some");
    if (t->norm == DTP_RMS_NORM && t->norm_bias)
        FAULT(place, "norm_bias needs norm layer_norm; RMSNorm has no bias");
    if (t->norm != DTP_RMS_NORM && t->norm_unit_offset)
        FAULT(place, "norm_unit_offset needs norm rms_norm; LayerNorm multiplies by its weight");
    if (!(t->norm_epsilon > 0 && t->norm_epsilon <= 1))
        FAULT(place, "norm_eps is %g; a number above 0 and up to 1 is needed", t->norm_epsilon);
    if (!is_softcap(t->attention_softcap))
        FAULT(place, "attention_softcap is %g; 0 (none) or %g to %g is supported", t->attention_softcap, MIN_SOFTCAP,
              MAX_SOFTCAP);
    if (!is_softcap(t->final_softcap))
        FAULT(place, "final_softcap is %g; 0 (none) or %g to %g is supported", t->final_softcap, MIN_SOFTCAP,
              MAX_SOFTCAP);
    if (t->position == DTP_POSITION_ROPE && t->head_dim % 2)
        FAULT(place, "head_dim is %" PRIu64 "; rope turns pairs, so it must be even", t->head_dim);
    if (t->position == DTP_POSITION_LEARNED) {
        check_range(place, "positions", t->positions, MAX_WIDTH);
        if (t->max_sequence > t->positions)
            FAULT(place, "max_sequence %" PRIu64 " is longer than the position table of %" PRIu64 " rows",
                  t->max_sequence, t->positions);
    } else if (t->positions) {
        FAULT(place, "positions is %" PRIu64 "; only learned positions have a table, leave it 0", t->positions);
    }
}

/* Upper estimate of the count in double, so that no product can wrap: block matrices + embedding, head, positions +
 * vectors (at most 8 of each width). Relative rounding of doubles (1e-15) does not matter for a limit. */
static double rough_count(const struct dtp_transformer *t)
{
    double h = (double)t->hidden, f = (double)t->ffn, d_q = (double)t->heads * (double)t->head_dim;
    double block = h * (4 * d_q + 3 * f) + 8 * (h + f + d_q);
    double latents = (double)t->q_latent * (h + d_q) + (double)(t->kv_latent + t->rope_head_dim) * (h + 2 * d_q) +
                     (double)t->heads * (double)t->value_head_dim * (h + (double)t->kv_latent);
    double experts = 3 * h * ((double)t->experts * (double)t->expert_ffn + (double)t->shared_expert_ffn) +
                     (double)t->experts * (5 * h + 3 * (double)t->expert_ffn);
    double layers = (double)t->layers + (double)(t->mtp_layers - t->ahead_layers);
    return layers * (block + latents + experts) + (double)t->mtp_layers * (2 * h + 3) * h +
           h * (2 * (double)t->vocab + (double)t->positions) + (double)t->vocab;
}

enum dtp_status dtp_transformer_check(const struct dtp_transformer *transformer, const char *where, size_t line,
                                      struct dtp_faults *faults)
{
    struct place place = {where, line, faults, DTP_OK};
    check_dimensions(transformer, &place);
    check_choices(transformer, &place);
    check_latents(transformer, &place);
    check_experts(transformer, &place);
    /* The exact count fits uint64_t once the rough one is far below 2^64 = 1.8e19. */
    if (place.status == DTP_OK && rough_count(transformer) > 10 * MAX_PARAMETERS)
        FAULT(&place, "the shape has about %.3g parameters; at most %.0g are supported", rough_count(transformer),
              MAX_PARAMETERS);
    if (place.status == DTP_OK && (double)dtp_transformer_count(transformer).total > MAX_PARAMETERS)
        FAULT(&place, "the shape has %" PRIu64 " parameters; at most %.0g are supported",
              dtp_transformer_count(transformer).total, MAX_PARAMETERS);
    return place.status;
}

/* ---- count ----------------------------------------------------------------------------------------------------- */

/* Parameters of one norm over `width` features. */
static uint64_t count_norm(const struct dtp_transformer *t, uint64_t width)
{
    return dtp_transformer_norm_vectors(t) * width;
}

bool dtp_transformer_layer_has_experts(const struct dtp_transformer *transformer, uint64_t layer)
{
    const struct dtp_transformer *t = transformer;
    return t->experts && layer >= t->dense_layers &&
           (t->expert_layer_step < 2 || (layer + 1) % t->expert_layer_step == 0);
}

uint64_t dtp_transformer_expert_layers(const struct dtp_transformer *transformer, uint64_t end)
{
    const struct dtp_transformer *t = transformer;
    uint64_t step = t->expert_layer_step < 2 ? 1 : t->expert_layer_step;
    return t->experts && end > t->dense_layers ? end / step - t->dense_layers / step : 0;
}

struct dtp_transformer dtp_transformer_all_alike(const struct dtp_transformer *transformer, bool experts)
{
    struct dtp_transformer alike = *transformer;
    alike.dense_layers = alike.expert_layer_step = 0;
    if (experts)
        return alike;
    alike.experts = alike.experts_per_token = alike.expert_ffn = alike.shared_expert_ffn = 0;
    alike.expert_groups = alike.groups_per_token = 0;
    alike.expert_bias = alike.router_bias = alike.shared_expert_gate = alike.router_norm = false;
    alike.router_on_input = false;
    alike.router_scale = 0;
    return alike;
}

struct dtp_transformer dtp_transformer_trained(const struct dtp_transformer *transformer)
{
    struct dtp_transformer trained = *transformer;
    trained.layers += trained.mtp_layers - trained.ahead_layers;
    trained.ahead_layers = trained.mtp_layers;
    return trained;
}

struct dtp_transformer dtp_transformer_told(const struct dtp_transformer *transformer)
{
    struct dtp_transformer told = *transformer;
    told.layers -= told.ahead_layers;
    told.ahead_layers = 0;
    return told;
}

/* A layer of the kind of the last, behind a projection of two rows side by side and their two norms, and a norm before
 * the head (DeepSeek-V3's modeling code; arXiv 2412.19437, 2.2). `t` as it is trained. */
static void count_ahead(const struct dtp_transformer *t, struct dtp_parameter_count *count)
{
    bool experts = t->ahead_layers && dtp_transformer_layer_has_experts(t, t->layers - 1);
    uint64_t layer = experts ? count->expert_block : count->block, projection = dtp_transformer_ahead_elements(t);
    count->ahead = t->ahead_layers * (projection + DTP_AHEAD_NORMS * count_norm(t, t->hidden));
    count->mtp = t->ahead_layers * layer + count->ahead;
    count->total += count->ahead;
    count->active += count->ahead;
    count->matmul += t->ahead_layers * (projection + t->vocab * t->hidden);
}

static void count_layers(const struct dtp_transformer *t, struct dtp_parameter_count *count)
{
    struct dtp_layer_kind dense, experts;
    /* counts are the same however projections are stored */
    dtp_layer_kind_of(t, DTP_LAYER_DENSE, true, true, &dense);
    count->block_matmul = dtp_layer_matrix_elements(&dense);
    count->block_vectors = dtp_layer_vector_elements(&dense);
    count->block = count->block_matmul + count->block_vectors;
    count->expert_layers = dtp_transformer_expert_layers(t, t->layers);
    uint64_t plain = t->layers - count->expert_layers;
    count->layers = count->active = plain * count->block;
    count->layers_matmul = plain * count->block_matmul;
    if (!count->expert_layers)
        return;
    dtp_layer_kind_of(t, DTP_LAYER_EXPERTS, true, true, &experts);
    count->expert_block_matmul = dtp_layer_matrix_elements(&experts);
    count->expert_block_vectors = dtp_layer_vector_elements(&experts);
    count->expert_block = count->expert_block_matmul + count->expert_block_vectors;
    uint64_t active = dtp_layer_active_elements(&experts);
    uint64_t idle_biases = (t->experts - t->experts_per_token) * dtp_layer_expert_bias_elements(&experts);
    count->layers += count->expert_layers * count->expert_block;
    count->active += count->expert_layers * (active + count->expert_block_vectors - idle_biases);
    count->layers_matmul += count->expert_layers * active;
}

static struct dtp_parameter_count count_all(const struct dtp_transformer *transformer)
{
    const struct dtp_transformer trained = dtp_transformer_trained(transformer), *t = &trained;
    struct dtp_parameter_count count = {0};
    count_layers(t, &count);
    count.embedding = t->vocab * t->hidden;                                              /* [V, h] */
    count.position = t->position == DTP_POSITION_LEARNED ? t->positions * t->hidden : 0; /* [positions, h] */
    count.embedding_norm = t->embedding_norm ? count_norm(t, t->hidden) : 0;
    count.final_norm = t->final_norm ? count_norm(t, t->hidden) : 0;
    count.head = (t->tied_head ? 0 : t->vocab * t->hidden) + (t->head_bias ? t->vocab : 0); /* [h, V] */
    uint64_t outside = count.embedding + count.position + count.embedding_norm + count.final_norm + count.head;
    count.total = outside + count.layers;
    count.active += outside;
    count.matmul = count.layers_matmul + t->vocab * t->hidden;
    count_ahead(t, &count);
    return count;
}

/* Whoever tries plans asks for the count of one model some times for each of them: a thread remembers the last. */
struct dtp_parameter_count dtp_transformer_count(const struct dtp_transformer *transformer)
{
    static _Thread_local struct {
        bool made;
        struct dtp_transformer of;
        struct dtp_parameter_count count;
    } last;
    if (!last.made || memcmp(&last.of, transformer, sizeof last.of) != 0) {
        last.of = *transformer;
        last.count = count_all(transformer);
        last.made = true;
    }
    return last.count;
}

static bool sees_all(const struct dtp_transformer *t, uint64_t layer)
{
    return t->sliding_window_pattern && (layer + 1) % t->sliding_window_pattern == 0;
}

bool dtp_transformer_layer_turns(const struct dtp_transformer *transformer, uint64_t layer)
{
    return !transformer->chunked_attention || !sees_all(transformer, layer);
}

uint64_t dtp_transformer_layer_window(const struct dtp_transformer *transformer, uint64_t layer, uint64_t sequence)
{
    const struct dtp_transformer *t = transformer;
    return sees_all(t, layer) || t->sliding_window >= sequence ? 0 : t->sliding_window;
}

struct dtp_attention_shape dtp_transformer_attention(const struct dtp_transformer *transformer, uint64_t layer,
                                                     uint64_t sequence)
{
    uint64_t window = dtp_transformer_layer_window(transformer, layer, sequence);
    bool chunks = window && transformer->chunked_attention; /* each a sequence of its own */
    return (struct dtp_attention_shape){.heads = (uint32_t)transformer->heads,
                                        .kv_heads = (uint32_t)transformer->kv_heads,
                                        .head_dim = (uint32_t)transformer->head_dim,
                                        .value_dim = (uint32_t)transformer->value_head_dim,
                                        .window = chunks ? 0 : (uint32_t)window,
                                        .queries = chunks ? window : sequence,
                                        .keys = chunks ? window : sequence,
                                        .causal = true,
                                        .alibi = transformer->position == DTP_POSITION_ALIBI,
                                        .softcap = transformer->attention_softcap};
}

/* With a window w the i-th token sees min(i, w) tokens: w - w^2/(2s) on average, where s/2 makes s the plain length.
 * The last q of k tokens see k - q/2. */
double dtp_attention_length(const struct dtp_attention_shape *shape)
{
    double s = (double)shape->keys, w = (double)shape->window;
    if (shape->causal && shape->queries < shape->keys)
        return 2 * s - (double)shape->queries;
    return w <= 0 || s <= w ? s : 2 * w - w * w / s;
}

double dtp_transformer_layer_attention_length(const struct dtp_transformer *transformer, uint64_t layer,
                                              uint64_t sequence)
{
    struct dtp_attention_shape shape = dtp_transformer_attention(transformer, layer, sequence);
    return dtp_attention_length(&shape);
}

double dtp_transformer_attention_length(const struct dtp_transformer *transformer, uint64_t sequence)
{
    const struct dtp_transformer *t = transformer;
    double windowed = dtp_transformer_layer_attention_length(t, 0, sequence);
    if (t->sliding_window_pattern < 2) /* layer 0 is as all others */
        return windowed;
    uint64_t whole = t->layers / t->sliding_window_pattern;
    return ((double)whole * (double)sequence + (double)(t->layers - whole) * windowed) / (double)t->layers;
}

/* 2 FLOPs per weight and token forward, twice that backward: 6 per weight. Attention: q k^T and p v are each
 * 2 d_q s FLOPs per token over a full square, half of it under the causal mask: 2 * 2 * d_q * s / 2 forward, times 3
 * for forward and backward = 6 d_q s a layer; where values are narrower than keys (latent attention), the half each.
 * The embedding is a look-up, norms and activations are not counted. */
double dtp_transformer_model_flops_per_token(const struct dtp_transformer *transformer, uint64_t sequence)
{
    const struct dtp_transformer trained = dtp_transformer_trained(transformer), *t = &trained;
    double s = dtp_transformer_attention_length(t, sequence);
    double attention = 6.0 * (double)t->layers * dtp_transformer_core_width(t) * s;
    return 6.0 * (double)dtp_transformer_count(transformer).matmul + attention;
}
