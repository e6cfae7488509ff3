/* Families of config.json with a mixture of experts.
 *
 * Source of names and defaults: transformers, src/transformers/models/TYPE/configuration_TYPE.py; of biases, norms and
 * of which layers have experts: modeling_TYPE.py beside it; kimi_k2: the files of these names in its repository. */
#include "net/hf_family.h"

#include <inttypes.h>
#include <string.h>

#define MAX_EXPERTS 65536u

static void read_experts(struct dtp_hf_reader *reader, const char *key, uint64_t experts, uint64_t per_token,
                         struct dtp_transformer *t)
{
    t->experts = dtp_hf_integer(reader, key, experts, 1, MAX_EXPERTS);
    t->experts_per_token = dtp_hf_integer(reader, "num_experts_per_tok", per_token, 1, MAX_EXPERTS);
}

/* Of models that ask: Qwen and DeepSeek. Others divide always (MixtralTopKRouter; GraniteMoeTopKGating and
 * GptOssTopKRouter take the softmax of the chosen alone, which is that) or never (Llama4Router's sigmoids; phimoe's
 * sparsemixer, whose softmax is over experts close to the best alone). */
static void read_weights(struct dtp_hf_reader *reader, bool divides, double scale, struct dtp_transformer *t)
{
    t->router_norm = dtp_hf_switch(reader, "norm_topk_prob", divides);
    if (scale > 0)
        t->router_scale = dtp_hf_number(reader, "routed_scaling_factor", scale, 1e6);
}

/* Each expert is as wide as intermediate_size says. */
static void finish_mixtral(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_experts(reader, "num_local_experts", 8, 2, t);
    t->expert_ffn = t->ffn;
    t->router_norm = true;
    dtp_hf_read_window(reader, DTP_HF_MAX_SEQUENCE, t);
}

/* LayerNorms with biases, under the key of an RMSNorm: PhimoeDecoderLayer. */
static void finish_phimoe(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_experts(reader, "num_local_experts", 16, 2, t);
    t->expert_ffn = t->ffn;
    t->norm = DTP_LAYER_NORM;
    t->norm_bias = true;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->head_bias = dtp_hf_switch(reader, "lm_head_bias", false);
    dtp_hf_read_window(reader, DTP_HF_MAX_SEQUENCE, t);
}

static void finish_granitemoe(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_experts(reader, "num_local_experts", 8, 2, t);
    t->expert_ffn = t->ffn;
    t->router_norm = true;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
}

/* Norms of q and k over all heads: OlmoeAttention. */
static void finish_olmoe(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_experts(reader, "num_experts", 64, 8, t);
    read_weights(reader, false, 0, t);
    t->expert_ffn = t->ffn;
    t->qk_norm = t->qk_norm_wide = true;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
}

/* Every decoder_sparse_step-th layer has experts, but for those that mlp_only_layers names; the first few, or none, are
 * modelled of these. */
static void read_qwen_experts(struct dtp_hf_reader *reader, uint64_t experts, uint64_t per_token, uint64_t width,
                              struct dtp_transformer *t)
{
    read_experts(reader, "num_experts", experts, per_token, t);
    read_weights(reader, false, 0, t);
    t->expert_ffn = dtp_hf_integer(reader, "moe_intermediate_size", width, 1, DTP_HF_MAX_WIDTH);
    t->expert_layer_step = dtp_hf_integer(reader, "decoder_sparse_step", 1, 1, DTP_HF_MAX_LAYERS);
    const json_t *dense = dtp_hf_value(reader, "mlp_only_layers");
    if (dense && !json_is_array(dense))
        dtp_hf_refuse(reader, "mlp_only_layers", "is no list; a list of layers is needed");
    t->dense_layers = json_array_size(dense);
    for (size_t i = 0; i < json_array_size(dense); i++)
        if (!json_is_integer(json_array_get(dense, i)) ||
            json_integer_value(json_array_get(dense, i)) != (json_int_t)i) {
            dtp_hf_refuse(reader, "mlp_only_layers",
                          "is not 0, 1, 2 ...; only first layers without experts are modelled");
            break;
        }
}

static void finish_qwen2_moe(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_qwen_experts(reader, 60, 4, 1408, t);
    t->shared_expert_ffn = dtp_hf_integer(reader, "shared_expert_intermediate_size", 5632, 0, DTP_HF_MAX_WIDTH);
    t->shared_expert_gate = t->shared_expert_ffn > 0;
    t->qkv_bias = dtp_hf_switch(reader, "qkv_bias", true);
    dtp_hf_read_qwen_window(reader, t);
}

static void finish_qwen3_moe(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_qwen_experts(reader, 128, 8, 768, t);
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->qk_norm = true;
    dtp_hf_read_qwen_window(reader, t);
}

/* Biases of all linear layers, a sink for each head, a window in every second layer. Its configuration class has no
 * attention_bias, which its attention reads; published files say true. */
static void finish_gpt_oss(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_experts(reader, "num_local_experts", 128, 4, t);
    t->expert_ffn = t->ffn;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", true);
    t->expert_bias = t->router_bias = t->attention_sinks = t->router_norm = true;
    t->activation = DTP_SWIGLU_CLAMPED;
    dtp_hf_read_window_pattern(reader, 128, 2, t);
}

/* ---- DeepSeek and those that route like it ---------------------------------------------------------------------- */

static void read_groups(struct dtp_hf_reader *reader, uint64_t groups, uint64_t per_token, struct dtp_transformer *t)
{
    t->expert_groups = dtp_hf_integer(reader, "n_group", groups, 1, MAX_EXPERTS);
    t->groups_per_token = dtp_hf_integer(reader, "topk_group", per_token, 1, MAX_EXPERTS);
}

static void read_routed(struct dtp_hf_reader *reader, const struct dtp_transformer *absent, uint64_t shared,
                        struct dtp_transformer *t)
{
    read_experts(reader, "n_routed_experts", absent->experts, absent->experts_per_token, t);
    t->expert_ffn = dtp_hf_integer(reader, "moe_intermediate_size", absent->expert_ffn, 1, DTP_HF_MAX_WIDTH);
    t->dense_layers = dtp_hf_integer(reader, "first_k_dense_replace", absent->dense_layers, 0, DTP_HF_MAX_LAYERS);
    if (json_is_null(json_object_get(reader->object, "n_shared_experts")))
        shared = 0;
    t->shared_expert_ffn = t->expert_ffn * dtp_hf_integer(reader, "n_shared_experts", shared, 0, MAX_EXPERTS);
    if (dtp_hf_integer(reader, "moe_layer_freq", 1, 0, DTP_HF_MAX_LAYERS) != 1)
        dtp_hf_refuse(reader, "moe_layer_freq", "is not 1; all layers behind the first have experts");
}

/* Heads are as wide as what has rope and what has none; q_lora_rank null: queries are projected directly. */
static void read_latents(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    bool direct = json_is_null(json_object_get(reader->object, "q_lora_rank"));
    t->q_latent = dtp_hf_integer(reader, "q_lora_rank", direct ? 0 : 1536, 1, DTP_HF_MAX_WIDTH);
    t->kv_latent = dtp_hf_integer(reader, "kv_lora_rank", 512, 1, DTP_HF_MAX_WIDTH);
    t->rope_head_dim = dtp_hf_integer(reader, "qk_rope_head_dim", 64, 1, DTP_HF_MAX_WIDTH);
    t->value_head_dim = dtp_hf_integer(reader, "v_head_dim", 128, 1, DTP_HF_MAX_WIDTH);
    t->head_dim = t->rope_head_dim + dtp_hf_integer(reader, "qk_nope_head_dim", 128, 1, DTP_HF_MAX_WIDTH);
    if (dtp_hf_switch(reader, "attention_bias", false))
        dtp_hf_refuse(reader, "attention_bias", "is true; biases of latent attention are not modelled");
}

static void finish_deepseek_v2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    const struct dtp_transformer absent = {.experts = 64, .experts_per_token = 6, .expert_ffn = 1407};
    read_routed(reader, &absent, 2, t);
    read_latents(reader, t);
    read_weights(reader, false, 1, t);
    if (strcmp(dtp_hf_text(reader, "topk_method", "greedy"), "greedy") != 0) /* which looks at no groups */
        read_groups(reader, 0, 0, t);
}

/* DeepSeek-V3 and Kimi K2. num_nextn_predict_layers is left to --mtp-layers: the class in transformers has none. */
static void finish_deepseek_v3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    const struct dtp_transformer absent = {
        .experts = 256, .experts_per_token = 8, .expert_ffn = 2048, .dense_layers = 3};
    read_routed(reader, &absent, 1, t);
    read_latents(reader, t);
    read_groups(reader, 8, 4, t);
    read_weights(reader, true, 2.5, t);
    t->router = DTP_ROUTER_SIGMOID;
}

/* attention_bias: on q, k and v alone: Glm4MoeAttention. */
static void finish_glm4_moe(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    const struct dtp_transformer absent = {
        .experts = 128, .experts_per_token = 8, .expert_ffn = 1408, .dense_layers = 1};
    read_routed(reader, &absent, 1, t);
    read_groups(reader, 1, 1, t);
    read_weights(reader, true, 1, t);
    t->router = DTP_ROUTER_SIGMOID;
    t->qkv_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->qk_norm = dtp_hf_switch(reader, "use_qk_norm", false);
}

/* ---- Llama 4 ---------------------------------------------------------------------------------------------------- */

/* moe_layers, where the file has it, has to name those that interleave_moe_layer_step says. */
static void check_moe_layers(struct dtp_hf_reader *reader, const struct dtp_transformer *t)
{
    const json_t *layers = dtp_hf_value(reader, "moe_layers");
    uint64_t step = t->expert_layer_step;
    if (!layers)
        return;
    bool same = json_is_array(layers) && json_array_size(layers) == t->layers / step;
    for (size_t i = 0; same && i < json_array_size(layers); i++)
        same = json_is_integer(json_array_get(layers, i)) &&
               json_integer_value(json_array_get(layers, i)) == (json_int_t)((i + 1) * step - 1);
    if (!same)
        dtp_hf_refuse(reader, "moe_layers", "names other layers than interleave_moe_layer_step; no other are modelled");
}

/* Layers that turn queries and keys see their own chunk, every fourth turns nothing and sees all (no_rope_layers; the
 * same of both: Llama4TextConfig's layer_types). */
static void read_chunks(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->sliding_window = dtp_hf_integer(reader, "attention_chunk_size", 8192, 1, DTP_HF_MAX_SEQUENCE);
    t->sliding_window_pattern = dtp_hf_integer(reader, "no_rope_layer_interval", 4, 0, DTP_HF_MAX_LAYERS);
    t->chunked_attention = true;
}

/* intermediate_size is that of an expert and of the shared one, intermediate_size_mlp that of other layers: norms of q
 * and k have no weights (Llama4TextL2Norm). */
static void finish_llama4(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_experts(reader, "num_local_experts", 16, 1, t);
    t->expert_ffn = t->shared_expert_ffn = t->ffn;
    t->ffn = dtp_hf_integer(reader, "intermediate_size_mlp", 16384, 1, DTP_HF_MAX_WIDTH);
    t->expert_layer_step = dtp_hf_integer(reader, "interleave_moe_layer_step", 1, 1, DTP_HF_MAX_LAYERS);
    check_moe_layers(reader, t);
    read_chunks(reader, t);
    t->router = DTP_ROUTER_SIGMOID;
    t->router_on_input = true;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    if (dtp_hf_switch(reader, "use_qk_norm", true)) {
        t->qk_norm = true;
        t->qk_norm_weight = DTP_QK_NORM_UNWEIGHTED;
    }
}

/* clang-format off */
/* Heads of latent attention have a width of their own. */
#define LATENT(L, h, n, f, V, s)                                                                    \
    DTP_HF_SIZES(h, n, f, V, s), .layers = {"num_hidden_layers", L}, .head_dim = {NULL, 1},         \
    .activation = {"hidden_act", "silu"}, .modern = true, .gated = true, .experts = true

const struct dtp_hf_family dtp_hf_families_experts[] = {
    {.type = "mixtral", DTP_HF_MODERN(32, 4096, 32, 8, 0, 14336, 32000, 131072), .epsilon = 1e-5, .experts = true,
     .finish = finish_mixtral},
    {.type = "qwen2_moe", DTP_HF_MODERN(24, 2048, 16, 16, 0, 5632, 151936, 32768), .experts = true,
     .finish = finish_qwen2_moe},
    {.type = "qwen3_moe", DTP_HF_MODERN(24, 2048, 32, 4, 0, 6144, 151936, 32768), .experts = true,
     .finish = finish_qwen3_moe},
    {.type = "deepseek_v2", LATENT(32, 4096, 32, 11008, 32000, 2048), .finish = finish_deepseek_v2},
    {.type = "deepseek_v3", LATENT(61, 7168, 128, 18432, 129280, 4096), .finish = finish_deepseek_v3},
    {.type = "kimi_k2", LATENT(61, 7168, 64, 18432, 163840, 131072), .finish = finish_deepseek_v3},
    {.type = "gpt_oss", DTP_HF_MODERN(36, 2880, 64, 8, 64, 2880, 201088, 131072), .epsilon = 1e-5, .experts = true,
     .finish = finish_gpt_oss},
    {.type = "llama4_text", DTP_HF_MODERN(48, 5120, 40, 8, 128, 8192, 202048, 131072), .epsilon = 1e-5,
     .experts = true, .finish = finish_llama4},
    {.type = "olmoe", DTP_HF_MODERN(16, 2048, 16, 0, 0, 2048, 50304, 4096), .epsilon = 1e-5, .experts = true,
     .finish = finish_olmoe},
    {.type = "granitemoe", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 32000, 2048), .experts = true,
     .finish = finish_granitemoe},
    {.type = "glm4_moe", DTP_HF_MODERN(46, 4096, 96, 8, 0, 10944, 151552, 131072), .epsilon = 1e-5, .experts = true,
     .finish = finish_glm4_moe},
    {.type = "phimoe", DTP_HF_MODERN(32, 4096, 32, 8, 0, 6400, 32064, 131072), .epsilon = 1e-5, .experts = true,
     .finish = finish_phimoe},
    {.type = NULL},
};
/* clang-format on */
