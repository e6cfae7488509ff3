/* Families of config.json that are like LLaMA: RMSNorm, RoPE, a gated MLP, no biases but where they are said.
 *
 * Source of names and defaults: transformers, src/transformers/models/TYPE/configuration_TYPE.py; of biases and norms:
 * modeling_TYPE.py beside it. Those whose code lies beside their weights (baichuan, chatglm, exaone, internlm,
 * internlm2, internlm3, qwen): the files of these names in their repositories on the hub. */
#include "net/hf_family.h"

#include <inttypes.h>
#include <string.h>

/* attention_bias: on q, k, v and the output alike. */
static void read_biases(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->mlp_bias = dtp_hf_switch(reader, "mlp_bias", false);
}

static void finish_llama(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_biases(reader, t);
}

/* MistralConfig's default window is 4096. */
static void finish_mistral(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    dtp_hf_read_window(reader, 4096, t);
}

static void finish_phi3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    dtp_hf_read_window(reader, DTP_HF_MAX_SEQUENCE, t);
}

/* Biases on q, k and v always, nowhere else: Qwen2Attention. */
static void finish_qwen2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = true;
    dtp_hf_read_qwen_window(reader, t);
}

static void finish_qwen3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->qk_norm = true;
    dtp_hf_read_qwen_window(reader, t);
}

/* The first Qwen: intermediate_size is that of gate and up together; biases on q, k and v alone (QWenAttention). */
static void finish_qwen(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = true;
    if (t->ffn % 2)
        dtp_hf_refuse(reader, "intermediate_size", "is %" PRIu64 "; gate and up have the half of it each", t->ffn);
    t->ffn /= 2;
    if (!dtp_hf_switch(reader, "no_bias", true))
        t->attention_output_bias = t->mlp_bias = true;
}

/* Of a soft cap; one that is null caps nothing. */
static double read_cap(struct dtp_hf_reader *reader, const char *key, double absent)
{
    const json_t *value = dtp_hf_value(reader, key);
    if (!value)
        return json_object_get(reader->object, key) ? 0 : absent;
    if (json_is_number(value) && json_number_value(value) > 0 && json_number_value(value) <= 1e6)
        return json_number_value(value);
    dtp_hf_refuse(reader, key, "is no number above 0 and up to 1e6");
    return absent;
}

/* Norms multiply by 1 + weight, the embedding is multiplied by sqrt(hidden): GemmaRMSNorm, GemmaModel. */
static void finish_gemma(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->norm_unit_offset = t->embedding_scale = true;
}

/* Every second layer slides, norms stand on both sides of attention and MLP, scores and logits are capped, heads are as
 * wide as head_dim says: Gemma2Config, Gemma2DecoderLayer. */
static void finish_gemma2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    finish_gemma(reader, t);
    t->norm_place = DTP_NORMS_BOTH;
    t->attention_softcap = read_cap(reader, "attn_logit_softcapping", 50);
    t->final_softcap = read_cap(reader, "final_logit_softcapping", 30);
    dtp_hf_read_window_pattern(reader, 4096, 2, t);
}

/* Every sixth layer sees all, with another base of RoPE, which costs the same; norms of q and k, no caps unless they
 * are said: Gemma3TextConfig, Gemma3Attention. */
static void finish_gemma3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    finish_gemma(reader, t);
    t->norm_place = DTP_NORMS_BOTH;
    t->qk_norm = true;
    t->attention_softcap = read_cap(reader, "attn_logit_softcapping", 0);
    t->final_softcap = read_cap(reader, "final_logit_softcapping", 0);
    dtp_hf_read_window_pattern(reader, 4096, 6, t);
    if (dtp_hf_switch(reader, "use_bidirectional_attention", false))
        dtp_hf_refuse(reader, "use_bidirectional_attention", "is true; only causal attention is modelled");
}

/* Norms of q and k over all heads, and of what attention and MLP return, none of what they read: Olmo2DecoderLayer. */
static void finish_olmo2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->norm_place = DTP_NORMS_AFTER;
    t->qk_norm = t->qk_norm_wide = true;
}

/* Three of four layers slide: Olmo3Config. */
static void finish_olmo3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    finish_olmo2(reader, t);
    dtp_hf_read_window_pattern(reader, 4096, 4, t);
}

/* attention_bias: on q, k and v alone; GlmAttention. */
static void finish_glm(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = dtp_hf_switch(reader, "attention_bias", true);
}

/* Norms on both sides: Glm4DecoderLayer. */
static void finish_glm4(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    finish_glm(reader, t);
    t->norm_place = DTP_NORMS_BOTH;
}

/* ChatGLM2, ChatGLM3 and GLM-4 as first released: ChatGLMConfig, SelfAttention, MLP. */
static void finish_chatglm(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    bool biases = dtp_hf_switch(reader, "add_bias_linear", false);
    t->qkv_bias = dtp_hf_switch(reader, "add_qkv_bias", false) || biases;
    t->attention_output_bias = t->mlp_bias = biases;
    t->kv_heads = dtp_hf_switch(reader, "multi_query_attention", false)
                      ? dtp_hf_integer(reader, "multi_query_group_num", 1, 1, DTP_HF_MAX_WIDTH)
                      : t->heads;
    t->final_norm = dtp_hf_switch(reader, "post_layer_norm", true);
    if (!dtp_hf_switch(reader, "rmsnorm", true)) {
        t->norm = DTP_LAYER_NORM;
        t->norm_bias = true;
    }
    if (dtp_hf_switch(reader, "apply_residual_connection_post_layernorm", false))
        dtp_hf_refuse(reader, "apply_residual_connection_post_layernorm",
                      "is true; only residuals around the norm are modelled");
}

/* Every fourth layer has no RoPE, which has no parameters: SmolLM3Attention. A window slides in those alone. */
static void finish_smollm3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_biases(reader, t);
    if (dtp_hf_switch(reader, "use_sliding_window", false) && dtp_hf_value(reader, "sliding_window"))
        dtp_hf_refuse(reader, "use_sliding_window", "is true; windows of the layers without RoPE are not modelled");
}

/* bias: on q, k, v and the output; InternLMAttention, InternLM2Attention. */
static void finish_internlm(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "bias", true);
}

static void finish_internlm3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = dtp_hf_switch(reader, "qkv_bias", false);
    t->attention_output_bias = t->mlp_bias = dtp_hf_switch(reader, "bias", false);
}

/* 7B turns q and k, 13B has ALiBi. Nothing says which, but that the file of the latter calls its longest sequence
 * model_max_length and has no max_position_embeddings. */
static void finish_baichuan(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    if (dtp_hf_value(reader, "max_position_embeddings"))
        return;
    t->position = DTP_POSITION_ALIBI;
    t->max_sequence = dtp_hf_integer(reader, "model_max_length", 4096, 1, DTP_HF_MAX_SEQUENCE);
}

static void finish_seed_oss(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = dtp_hf_switch(reader, "attention_bias", true);
    t->attention_output_bias = dtp_hf_switch(reader, "attention_out_bias", false);
    t->mlp_bias = dtp_hf_switch(reader, "mlp_bias", false);
}

static void finish_ernie(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = t->mlp_bias = dtp_hf_switch(reader, "use_bias", false);
}

/* attention_bias: on q, k and v; HeliumAttention. */
static void finish_helium(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_biases(reader, t);
    t->attention_output_bias = false;
}

/* clang-format off */
const struct dtp_hf_family dtp_hf_families_llama[] = {
    {.type = "llama", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 32000, 2048), .finish = finish_llama},
    {.type = "mistral", DTP_HF_MODERN(32, 4096, 32, 8, 0, 14336, 32000, 131072), .finish = finish_mistral},
    {.type = "qwen2", DTP_HF_MODERN(32, 4096, 32, 32, 0, 22016, 151936, 32768), .finish = finish_qwen2},
    {.type = "qwen3", DTP_HF_MODERN(32, 4096, 32, 32, 128, 22016, 151936, 32768), .finish = finish_qwen3},
    {.type = "qwen", .layers = {"num_hidden_layers", 32}, .hidden = {"hidden_size", 4096},
     .heads = {"num_attention_heads", 32}, .head_dim = {"kv_channels", 128}, .ffn = {"intermediate_size", 22016},
     .vocab = {"vocab_size", 151936}, .max_sequence = {"max_position_embeddings|seq_length", 8192},
     .activation = {NULL, "silu"}, .modern = true, .gated = true, .epsilon_keys = "layer_norm_epsilon",
     .finish = finish_qwen},
    {.type = "phi3", .fused_qkv = true, .fused_gate_up = true,
     DTP_HF_MODERN(32, 3072, 32, 0, 0, 8192, 32064, 4096), .epsilon = 1e-5, .finish = finish_phi3},
    {.type = "gemma", DTP_HF_SHAPE(28, 3072, 16, 16, 256, 24576, 256000, 8192),
     .activation = {"hidden_activation|hidden_act", "gelu_pytorch_tanh"},
     .modern = true, .gated = true, .tied = true, .finish = finish_gemma},
    {.type = "gemma2", DTP_HF_SHAPE(26, 2304, 8, 4, 256, 9216, 256000, 8192),
     .activation = {"hidden_activation|hidden_act", "gelu_pytorch_tanh"},
     .modern = true, .gated = true, .tied = true, .finish = finish_gemma2},
    {.type = "gemma3_text", DTP_HF_SHAPE(26, 2304, 8, 4, 256, 9216, 262208, 131072),
     .activation = {"hidden_activation|hidden_act", "gelu_pytorch_tanh"},
     .modern = true, .gated = true, .tied = true, .finish = finish_gemma3},
    {.type = "olmo2", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 50304, 2048), .epsilon = 1e-5, .finish = finish_olmo2},
    {.type = "olmo3", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 50304, 2048), .epsilon = 1e-5, .finish = finish_olmo3},
    {.type = "glm", .fused_gate_up = true,
     DTP_HF_MODERN(40, 4096, 32, 2, 128, 13696, 151552, 131072), .epsilon = 1.5625e-7,
     .finish = finish_glm},
    {.type = "glm4", DTP_HF_MODERN(40, 4096, 32, 2, 128, 13696, 151552, 131072), .epsilon = 1.5625e-7,
     .finish = finish_glm4},
    {.type = "chatglm", .layers = {"num_layers", 28}, .hidden = {"hidden_size", 4096},
     .heads = {"num_attention_heads", 32}, .head_dim = {"kv_channels", 128}, .ffn = {"ffn_hidden_size", 13696},
     .vocab = {"padded_vocab_size", 65024}, .max_sequence = {"seq_length", 2048}, .activation = {NULL, "silu"},
     .modern = true, .gated = true, .epsilon_keys = "layernorm_epsilon", .epsilon = 1e-5, .finish = finish_chatglm},
    {.type = "smollm3", DTP_HF_MODERN(36, 2048, 16, 4, 0, 11008, 128256, 32768), .tied = true,
     .finish = finish_smollm3},
    {.type = "granite", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 32000, 2048), .finish = finish_llama},
    {.type = "internlm", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 103168, 2048), .finish = finish_internlm},
    {.type = "internlm2", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 103168, 2048), .finish = finish_internlm},
    {.type = "internlm3", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 128512, 32768), .finish = finish_internlm3},
    {.type = "baichuan", DTP_HF_SIZES(4096, 32, 11008, 64000, 4096), .layers = {"num_hidden_layers", 32},
     .activation = {"hidden_act", "silu"}, .modern = true, .gated = true, .finish = finish_baichuan},
    {.type = "exaone", DTP_HF_SIZES(2048, 32, 0, 102400, 2048), .layers = {"num_layers|num_hidden_layers", 32},
     .kv_heads = {"num_key_value_heads", 0}, .activation = {"activation_function|hidden_act", "silu"}, .modern = true,
     .gated = true, .epsilon_keys = "layer_norm_epsilon", .epsilon = 1e-5},
    {.type = "seed_oss", DTP_HF_MODERN(64, 4096, 80, 8, 128, 27648, 155136, 524288), .finish = finish_seed_oss},
    {.type = "ernie4_5", DTP_HF_MODERN(18, 1024, 16, 2, 128, 3072, 103424, 131072), .epsilon = 1e-5, .tied = true,
     .finish = finish_ernie},
    {.type = "arcee", DTP_HF_SHAPE(32, 2560, 32, 0, 0, 18432, 32000, 4096), .activation = {"hidden_act", "relu2"},
     .modern = true, .epsilon = 1e-5, .finish = finish_llama},
    {.type = "helium", DTP_HF_MODERN(24, 2560, 20, 20, 128, 7040, 48000, 4096), .epsilon = 1e-8,
     .finish = finish_helium},
    {.type = NULL},
};
/* clang-format on */
