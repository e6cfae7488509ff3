/* config.json of Hugging Face: one row of `families` per model_type, with its spellings of the dimensions and the
 * defaults of its configuration class, and a function for what is its own.
 *
 * Source of names and defaults: transformers, src/transformers/models/TYPE/configuration_TYPE.py; of biases and norms:
 * modeling_TYPE.py beside it. MPT also follows llm-foundry, whose configs carry the same model_type. */
#include "net/hf_reader.h"
#include "base/append.h"
#include "net/transformer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WIDTH 100000000u /* as dtp_transformer_check, so that each fault names its own key and line */
#define MAX_LAYERS 100000u
#define MAX_SEQUENCE 1000000000u

struct dimension {
    const char *keys; /* NULL: this family has no such key */
    uint64_t absent;  /* 0 where the rest decides: kv_heads = heads, head_dim = hidden / heads, ffn = 4 hidden */
};

struct family {
    const char *type;
    struct dimension layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_sequence;
    struct {
        const char *keys, *absent;
    } activation;
    double epsilon; /* of norms, where the file says none; 0: 1e-6 of LLaMA-like ones, else 1e-5 */
    bool gated;     /* LLaMA-like: RMSNorm, SwiGLU, RoPE, no biases; else GPT-like: LayerNorm and biases everywhere */
    bool gelu;      /* gated by GELU instead of SiLU, its word under hidden_activation: GeGLU */
    bool tied;      /* default of tie_word_embeddings */
    void (*finish)(struct dtp_hf_reader *reader, struct dtp_transformer *t);
};

/* clang-format off */
/* The spellings that LLaMA's heirs share. */
#define MODERN_KEYS(L, h, n, kv, d, f, V, s)                                                        \
    .layers = {"num_hidden_layers", L}, .hidden = {"hidden_size", h}, .heads = {"num_attention_heads", n}, \
    .kv_heads = {"num_key_value_heads", kv}, .head_dim = {"head_dim", d}, .ffn = {"intermediate_size", f}, \
    .vocab = {"vocab_size", V}, .max_sequence = {"max_position_embeddings", s},                     \
    .activation = {"hidden_act", "silu"}, .gated = true
/* clang-format on */

/* ---- what is each family's own ---------------------------------------------------------------------------------- */

/* attention_bias: on q, k, v and the output alike. */
static void finish_llama(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->mlp_bias = dtp_hf_switch(reader, "mlp_bias", false);
}

/* A window as long as the longest sequence never cuts anything. */
static void read_window(struct dtp_hf_reader *reader, uint64_t absent, struct dtp_transformer *t)
{
    uint64_t window = dtp_hf_integer(reader, "sliding_window", absent, 1, MAX_SEQUENCE);
    t->sliding_window = window < t->max_sequence ? window : 0;
}

/* MistralConfig's default window is 4096; a config that says null has none, which dtp_hf_integer cannot tell from an
 * absent key. */
static void finish_mistral(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_window(reader, json_object_get(reader->object, "sliding_window") ? MAX_SEQUENCE : 4096, t);
}

static void finish_phi3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    read_window(reader, MAX_SEQUENCE, t);
}

/* How many of the layers a list of layer_types lets slide. */
static uint64_t count_sliding(struct dtp_hf_reader *reader, const json_t *types)
{
    uint64_t sliding = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type)
            dtp_hf_refuse(reader, "layer_types", "holds something other than strings");
        else if (!strcmp(type, "sliding_attention"))
            sliding++;
        else if (strcmp(type, "full_attention"))
            dtp_hf_refuse(reader, "layer_types", "holds \"%.40s\"; full_attention and sliding_attention are modelled",
                          type);
    }
    return sliding;
}

/* Layers from max_window_layers on use the window, when it is used at all; layer_types says so layer by layer. */
static void read_qwen_window(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    if (!dtp_hf_switch(reader, "use_sliding_window", false))
        return;
    uint64_t full = dtp_hf_integer(reader, "max_window_layers", 28, 0, MAX_SEQUENCE);
    uint64_t sliding = full < t->layers ? t->layers - full : 0;
    const json_t *types = dtp_hf_value(reader, "layer_types");
    if (json_is_array(types))
        sliding = count_sliding(reader, types);
    else if (types)
        dtp_hf_refuse(reader, "layer_types", "is no list; a list of strings is needed");
    if (sliding == 0)
        return;
    read_window(reader, 4096, t);
    if (t->sliding_window && sliding < t->layers)
        dtp_hf_refuse(reader, "use_sliding_window",
                      "is true for %" PRIu64 " of %" PRIu64 " layers; all or none are modelled", sliding, t->layers);
}

/* Biases on q, k and v always, nowhere else: Qwen2Attention. */
static void finish_qwen2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = true;
    read_qwen_window(reader, t);
}

static void finish_qwen3(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->qk_norm = true;
    read_qwen_window(reader, t);
}

static void finish_gpt2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->positions = t->max_sequence;
    if (dtp_hf_switch(reader, "add_cross_attention", false))
        dtp_hf_refuse(reader, "add_cross_attention", "is true; only decoders without an encoder are modelled");
}

/* OPTLearnedPositionalEmbedding keeps two more rows than positions (fairseq's padding offset). */
static void finish_opt(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->positions = t->max_sequence + 2;
    bool biases = dtp_hf_switch(reader, "enable_bias", true);
    t->qkv_bias = t->attention_output_bias = t->mlp_bias = biases;
    t->final_norm = !dtp_hf_switch(reader, "_remove_final_layer_norm", false);
    if (!dtp_hf_switch(reader, "do_layer_norm_before", true))
        dtp_hf_refuse(reader, "do_layer_norm_before",
                      "is false (as in opt-350m); only norms before a block are modelled");
    if (!dtp_hf_switch(reader, "layer_norm_elementwise_affine", true))
        dtp_hf_refuse(reader, "layer_norm_elementwise_affine", "is false; norms without weights are not modelled");
    uint64_t embedding = dtp_hf_integer(reader, "word_embed_proj_dim", t->hidden, 1, MAX_WIDTH);
    if (embedding != t->hidden)
        dtp_hf_refuse(reader, "word_embed_proj_dim",
                      "is %" PRIu64 " beside a hidden_size of %" PRIu64 "; projected embeddings are not modelled",
                      embedding, t->hidden);
}

static void finish_bloom(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    (void)reader;
    t->position = DTP_POSITION_ALIBI;
    t->embedding_norm = true;
}

/* attention_bias: on the fused qkv and on the output; the MLP and the norms have biases always. */
static void finish_gpt_neox(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->position = DTP_POSITION_ROPE;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", true);
    bool parallel = dtp_hf_switch(reader, "use_parallel_residual", true);
    t->parallel_block = parallel ? DTP_PARALLEL_TWO_NORMS : DTP_PARALLEL_NONE;
}

/* Biases in the MLP and on the head alone; RoPE turns a part of each head, which costs what turning all of it does. */
static void finish_gptj(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    (void)reader;
    t->position = DTP_POSITION_ROPE;
    t->parallel_block = DTP_PARALLEL_ONE_NORM;
    t->qkv_bias = t->attention_output_bias = false;
    t->head_bias = true;
}

/* new_decoder_architecture (40B, 180B) has grouped keys and a norm for each of attention and MLP, 7B one key head
 * (multi_query) and one norm; RW models run one after the other, some with ALiBi. */
static void finish_falcon(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    bool grouped = dtp_hf_switch(reader, "new_decoder_architecture", false);
    bool single = dtp_hf_switch(reader, "multi_query", true);
    bool parallel = dtp_hf_switch(reader, "parallel_attn", true) || grouped;
    uint64_t norms = dtp_hf_integer(reader, "num_ln_in_parallel_attn", grouped ? 2 : 1, 1, 2);
    t->position = dtp_hf_switch(reader, "alibi", false) ? DTP_POSITION_ALIBI : DTP_POSITION_ROPE;
    t->kv_heads = grouped ? dtp_hf_integer(reader, "num_kv_heads", t->heads, 1, MAX_WIDTH) : single ? 1 : t->heads;
    t->parallel_block = !parallel               ? DTP_PARALLEL_NONE
                        : grouped && norms == 2 ? DTP_PARALLEL_TWO_NORMS
                                                : DTP_PARALLEL_ONE_NORM;
    t->qkv_bias = t->attention_output_bias = t->mlp_bias = dtp_hf_switch(reader, "bias", false);
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

/* Every second layer slides, norms stand on both sides of attention and MLP and multiply by 1 + weight, the embedding
 * is multiplied by sqrt(hidden), scores and logits are capped, heads are as wide as head_dim says: Gemma2Config,
 * Gemma2DecoderLayer, Gemma2Model. */
static void finish_gemma2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->norm_place = DTP_NORMS_BOTH;
    t->norm_unit_offset = t->embedding_scale = true;
    t->attention_softcap = read_cap(reader, "attn_logit_softcapping", 50);
    t->final_softcap = read_cap(reader, "final_logit_softcapping", 30);
    read_window(reader, json_object_get(reader->object, "sliding_window") ? MAX_SEQUENCE : 4096, t);
    t->sliding_window_pattern = t->sliding_window ? 2 : 0;
    const json_t *types = dtp_hf_value(reader, "layer_types");
    for (size_t i = 0; types && (!json_is_array(types) || i < json_array_size(types)); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && !strcmp(type, i % 2 ? "full_attention" : "sliding_attention"))
            continue;
        dtp_hf_refuse(reader, "layer_types",
                      "does not let every second layer slide, beginning with the first; no other order is modelled");
        break;
    }
}

/* Norms of q and k over all heads, and of what attention and MLP return, none of what they read: Olmo2DecoderLayer. */
static void finish_olmo2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->norm_place = DTP_NORMS_AFTER;
    t->qk_norm = t->qk_norm_wide = true;
}

/* An object inside the config, or an empty look-up when it is absent. */
static struct dtp_hf_reader inner(struct dtp_hf_reader *reader, const char *key)
{
    struct dtp_hf_reader found = *reader;
    found.parent = key;
    found.object = dtp_hf_value(reader, key);
    if (found.object && !json_is_object(found.object)) {
        dtp_hf_refuse(reader, key, "is no object; one with keys of its own is needed");
        found.object = NULL;
    }
    return found;
}

/* alibi and rope switch learned_pos_emb off (llm-foundry modeling_mpt.py); alibi is MptAttentionConfig's default. */
static void read_mpt_attention(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    struct dtp_hf_reader attention = inner(reader, "attn_config");
    bool learned = dtp_hf_switch(reader, "learned_pos_emb", true);
    if (dtp_hf_switch(&attention, "rope", false))
        t->position = DTP_POSITION_ROPE;
    else if (dtp_hf_switch(&attention, "alibi", true))
        t->position = DTP_POSITION_ALIBI;
    else
        t->position = learned ? DTP_POSITION_LEARNED : DTP_POSITION_NONE;
    t->positions = t->position == DTP_POSITION_LEARNED ? t->max_sequence : 0;
    const char *type = dtp_hf_text(&attention, "attn_type", "multihead_attention");
    if (!strcmp(type, "multiquery_attention"))
        t->kv_heads = 1;
    else if (!strcmp(type, "grouped_query_attention"))
        t->kv_heads = dtp_hf_integer(&attention, "kv_n_heads", t->heads, 1, MAX_WIDTH);
    else if (strcmp(type, "multihead_attention"))
        dtp_hf_refuse(
            &attention, "attn_type",
            "is \"%.40s\"; multihead_attention, grouped_query_attention and multiquery_attention are modelled", type);
    static const char *const not_modelled[] = {"qk_ln", "qk_gn", "prefix_lm"};
    for (size_t i = 0; i < sizeof not_modelled / sizeof *not_modelled; i++)
        if (dtp_hf_switch(&attention, not_modelled[i], false))
            dtp_hf_refuse(&attention, not_modelled[i], "is true, which is not modelled");
    int window = -1; /* llm-foundry's word for none */
    const json_t *value = dtp_hf_value(&attention, "sliding_window_size");
    if (value && !(json_is_integer(value) && json_integer_value(value) == window))
        dtp_hf_refuse(&attention, "sliding_window_size", "is not -1; windows of MPT are not modelled");
    reader->bad |= attention.bad;
}

static void read_mpt_norm(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    const char *norm = dtp_hf_text(reader, "norm_type", "low_precision_layernorm");
    if (!strcmp(norm, "rmsnorm") || !strcmp(norm, "low_precision_rmsnorm")) {
        t->norm = DTP_RMS_NORM;
        t->norm_bias = false;
    } else if (strcmp(norm, "layernorm") && strcmp(norm, "low_precision_layernorm"))
        dtp_hf_refuse(reader, "norm_type",
                      "is \"%.40s\"; layernorm and rmsnorm are modelled, with or without low_precision_", norm);
}

static void finish_mpt(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    bool biases = !dtp_hf_switch(reader, "no_bias", true);
    t->qkv_bias = t->attention_output_bias = t->mlp_bias = t->norm_bias = biases;
    t->ffn = t->hidden * dtp_hf_integer(reader, "expansion_ratio", 4, 1, 1000);
    read_mpt_norm(reader, t);
    read_mpt_attention(reader, t);
    struct dtp_hf_reader mlp = inner(reader, "ffn_config");
    const char *type = dtp_hf_text(&mlp, "ffn_type", "mptmlp");
    if (strcmp(type, "mptmlp"))
        dtp_hf_refuse(&mlp, "ffn_type", "is \"%.40s\"; mptmlp is modelled", type);
    reader->bad |= mlp.bad;
}

/* ---- the families ----------------------------------------------------------------------------------------------- */

/* clang-format off */
static const struct family families[] = {
    {.type = "llama", MODERN_KEYS(32, 4096, 32, 0, 0, 11008, 32000, 2048), .finish = finish_llama},
    {.type = "mistral", MODERN_KEYS(32, 4096, 32, 8, 0, 14336, 32000, 131072), .finish = finish_mistral},
    {.type = "qwen2", MODERN_KEYS(32, 4096, 32, 32, 0, 22016, 151936, 32768), .finish = finish_qwen2},
    {.type = "qwen3", MODERN_KEYS(32, 4096, 32, 32, 128, 22016, 151936, 32768), .finish = finish_qwen3},
    {.type = "phi3", MODERN_KEYS(32, 3072, 32, 0, 0, 8192, 32064, 4096), .epsilon = 1e-5, .finish = finish_phi3},
    {.type = "gemma2", MODERN_KEYS(26, 2304, 8, 4, 256, 9216, 256000, 8192), .gelu = true, .tied = true,
     .finish = finish_gemma2},
    {.type = "olmo2", MODERN_KEYS(32, 4096, 32, 0, 0, 11008, 50304, 2048), .epsilon = 1e-5,
     .finish = finish_olmo2},
    {.type = "gpt2", .layers = {"n_layer|num_hidden_layers", 12}, .hidden = {"n_embd|hidden_size", 768},
     .heads = {"n_head|num_attention_heads", 12}, .ffn = {"n_inner", 0}, .vocab = {"vocab_size", 50257},
     .max_sequence = {"n_positions|max_position_embeddings", 1024}, .activation = {"activation_function", "gelu_new"},
     .tied = true, .finish = finish_gpt2},
    {.type = "opt", .layers = {"num_hidden_layers", 12}, .hidden = {"hidden_size|d_model", 768},
     .heads = {"num_attention_heads", 12}, .ffn = {"ffn_dim", 3072}, .vocab = {"vocab_size", 50272},
     .max_sequence = {"max_position_embeddings", 2048}, .activation = {"activation_function", "relu"},
     .tied = true, .finish = finish_opt},
    {.type = "bloom", .layers = {"n_layer|num_hidden_layers", 2}, .hidden = {"n_embed|hidden_size", 64},
     .heads = {"n_head|num_attention_heads", 8}, .vocab = {"vocab_size", 250880}, .max_sequence = {"seq_length", 0},
     .activation = {NULL, "gelu"}, .tied = true, .finish = finish_bloom},
    {.type = "mpt", .layers = {"n_layers|num_hidden_layers", 24}, .hidden = {"d_model|hidden_size", 2048},
     .heads = {"n_heads|num_attention_heads", 16}, .vocab = {"vocab_size", 50368},
     .max_sequence = {"max_seq_len", 2048}, .activation = {NULL, "gelu"}, .tied = true, .finish = finish_mpt},
    {.type = "gpt_neox", .layers = {"num_hidden_layers", 44}, .hidden = {"hidden_size", 6144},
     .heads = {"num_attention_heads", 64}, .ffn = {"intermediate_size", 24576}, .vocab = {"vocab_size", 50432},
     .max_sequence = {"max_position_embeddings", 2048}, .activation = {"hidden_act", "gelu"},
     .finish = finish_gpt_neox},
    {.type = "gptj", .layers = {"n_layer|num_hidden_layers", 28}, .hidden = {"n_embd|hidden_size", 4096},
     .heads = {"n_head|num_attention_heads", 16}, .ffn = {"n_inner", 0}, .vocab = {"vocab_size", 50400},
     .max_sequence = {"n_positions|max_position_embeddings", 2048}, .activation = {"activation_function", "gelu_new"},
     .finish = finish_gptj},
    {.type = "falcon", .layers = {"num_hidden_layers|n_layer", 32}, .hidden = {"hidden_size", 4544},
     .heads = {"num_attention_heads|n_head", 71}, .ffn = {"ffn_hidden_size", 0}, .vocab = {"vocab_size", 65024},
     .max_sequence = {"max_position_embeddings", 2048}, .activation = {"activation", "gelu"}, .tied = true,
     .finish = finish_falcon},
};
/* clang-format on */
#define FAMILY_COUNT (sizeof families / sizeof *families)

/* Types people will try, and why the formulas do not hold for them. */
static const struct {
    const char *type, *reason;
} refused[] = {
    {"mixtral", "mixture of experts"},
    {"qwen2_moe", "mixture of experts"},
    {"qwen3_moe", "mixture of experts"},
    {"qwen3_next", "mixture of experts with linear attention"},
    {"deepseek_v2", "mixture of experts with latent attention"},
    {"deepseek_v3", "mixture of experts with latent attention"},
    {"gpt_oss", "mixture of experts"},
    {"llama4", "mixture of experts"},
    {"llama4_text", "mixture of experts"},
    {"olmoe", "mixture of experts"},
    {"phimoe", "mixture of experts"},
    {"granitemoe", "mixture of experts"},
    {"dbrx", "mixture of experts"},
    {"jamba", "mixture of experts with state space layers"},
    {"mamba", "state space layers instead of attention"},
    {"mamba2", "state space layers instead of attention"},
    {"rwkv", "no softmax attention"},
    {"gemma", "keys that are not read yet; its shape can be given with --activation geglu --norm-unit-offset"},
    {"gemma3", "a vision model beside the decoder"},
    {"gemma3_text", "another base of RoPE in the layers that slide, five of six"},
    {"phi", "keys that are not read yet; its shape can be given with --parallel-block one_norm"},
    {"cohere", "keys that are not read yet; its shape can be given with --parallel-block one_norm"},
    {"olmo", "norms without weights"},
    {"t5", "an encoder beside the decoder"},
    {"bart", "an encoder beside the decoder"},
    {"bert", "an encoder, not a decoder"},
};

static const struct family *find_family(struct dtp_hf_reader *reader)
{
    char known[160] = "";
    const char *type = dtp_hf_text(reader, "model_type", NULL);
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (type && !strcmp(type, families[i].type))
            return &families[i];
        dtp_append_part(known, sizeof known, ", ", "%s", families[i].type);
    }
    const char *reason = "unknown";
    for (size_t i = 0; type && i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(type, refused[i].type))
            reason = refused[i].reason;
    if (type)
        dtp_hf_refuse(reader, "model_type", "\"%.60s\" is not modelled (%s); known are %s", type, reason, known);
    else if (!reader->bad)
        dtp_hf_refuse(reader, "model_type", "is missing; known are %s", known);
    return NULL;
}

static void refuse_quantised(struct dtp_hf_reader *reader)
{
    if (dtp_hf_value(reader, "quantization_config"))
        dtp_hf_refuse(reader, "quantization_config",
                      "makes this a quantised model, whose fine-tuning is not modelled; take it out to predict full "
                      "training of the same shape");
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static uint64_t read_dimension(struct dtp_hf_reader *reader, const struct dimension *dimension, uint64_t maximum)
{
    return dimension->keys ? dtp_hf_integer(reader, dimension->keys, dimension->absent, 1, maximum) : dimension->absent;
}

static void read_dimensions(struct dtp_hf_reader *reader, const struct family *family, struct dtp_transformer *t)
{
    t->layers = read_dimension(reader, &family->layers, MAX_LAYERS);
    t->hidden = read_dimension(reader, &family->hidden, MAX_WIDTH);
    t->heads = read_dimension(reader, &family->heads, MAX_WIDTH);
    t->kv_heads = read_dimension(reader, &family->kv_heads, MAX_WIDTH);
    t->head_dim = read_dimension(reader, &family->head_dim, MAX_WIDTH);
    t->ffn = read_dimension(reader, &family->ffn, MAX_WIDTH);
    t->vocab = read_dimension(reader, &family->vocab, MAX_WIDTH);
    t->max_sequence = read_dimension(reader, &family->max_sequence, MAX_SEQUENCE);
    if (!t->kv_heads)
        t->kv_heads = t->heads;
    if (!t->ffn)
        t->ffn = 4 * t->hidden;
    if (t->head_dim)
        return;
    if (t->hidden % t->heads)
        dtp_hf_refuse(reader, family->heads.keys, "%" PRIu64 " do not divide the hidden size %" PRIu64, t->heads,
                      t->hidden);
    t->head_dim = t->hidden / t->heads;
}

static void read_activation(struct dtp_hf_reader *reader, const struct family *family, struct dtp_transformer *t)
{
    const char *keys = family->activation.keys, *word = family->activation.absent;
    if (keys)
        word = dtp_hf_text(reader, keys, word);
    if (family->gelu) {
        t->activation = DTP_GEGLU;
        word = dtp_hf_text(reader, "hidden_activation|hidden_act", "gelu_pytorch_tanh");
        if (strncmp(word, "gelu", 4))
            dtp_hf_refuse(reader, "hidden_activation|hidden_act", "is \"%.40s\"; the gelu kinds are modelled", word);
        return;
    }
    if (family->gated) {
        t->activation = DTP_SWIGLU;
        if (strcmp(word, "silu") && strcmp(word, "swish"))
            dtp_hf_refuse(reader, keys, "is \"%.40s\"; in a gated MLP silu is modelled", word);
        return;
    }
    t->activation = strcmp(word, "relu") ? DTP_GELU : DTP_RELU;
    /* gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, gelu_python: the same shape and nearly the same cost. */
    if (t->activation == DTP_GELU && strncmp(word, "gelu", 4))
        dtp_hf_refuse(reader, keys, "is \"%.40s\"; the gelu kinds and relu are modelled", word);
}

static void read_epsilon(struct dtp_hf_reader *reader, const struct family *family, struct dtp_transformer *t)
{
    const char *keys = family->gated ? "rms_norm_eps" : "layer_norm_epsilon|layer_norm_eps";
    double absent = family->epsilon > 0 ? family->epsilon : family->gated ? 1e-6 : 1e-5;
    t->norm_epsilon = dtp_hf_number(reader, keys, absent, 0, 1);
}

/* Keys that make another model of any family. */
static void refuse_experts(struct dtp_hf_reader *reader)
{
    static const char *const keys[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (dtp_hf_integer(reader, keys[i], 0, 0, MAX_WIDTH) > 1)
            dtp_hf_refuse(reader, keys[i], "is more than 1; mixtures of experts are not modelled");
}

static void read_family(struct dtp_hf_reader *reader, const struct family *family, struct dtp_transformer *t)
{
    *t = dtp_transformer_default();
    if (!family->gated) {
        t->norm = DTP_LAYER_NORM;
        t->position = DTP_POSITION_LEARNED;
        t->norm_bias = t->qkv_bias = t->attention_output_bias = t->mlp_bias = true;
    }
    read_dimensions(reader, family, t);
    read_activation(reader, family, t);
    read_epsilon(reader, family, t);
    t->tied_head = dtp_hf_switch(reader, "tie_word_embeddings", family->tied);
    refuse_experts(reader);
    refuse_quantised(reader);
    family->finish(reader, t);
}

static enum dtp_status read_object(struct dtp_hf_reader *reader, struct dtp_hf_config *out)
{
    struct dtp_transformer *t = &out->transformer;
    if (!json_is_object(reader->object))
        return dtp_fault(reader->faults, DTP_BAD_INPUT, reader->name, 1,
                         "the file holds no JSON object; a Hugging Face config.json is one");
    const struct family *family = find_family(reader);
    if (!family)
        return DTP_BAD_INPUT;
    read_family(reader, family, t);
    dtp_hf_list_unused(reader, &out->transformer, out->unused, sizeof out->unused);
    if (reader->bad)
        return DTP_BAD_INPUT;
    dtp_hf_name_after(reader->name, family->type, t->name, sizeof t->name);
    return dtp_transformer_check(t, reader->name, 0, reader->faults);
}

enum dtp_status dtp_hf_config_parse(const char *name, const char *text, size_t bytes, struct dtp_hf_config *out,
                                    struct dtp_faults *faults)
{
    *out = (struct dtp_hf_config){0};
    if (bytes > DTP_HF_CONFIG_MAX_BYTES)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "more than %u bytes; no config.json is that large",
                         DTP_HF_CONFIG_MAX_BYTES);
    if (bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) { /* UTF-8 byte order mark, as in scenario files and tables */
        text += 3;
        bytes -= 3;
    }
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root && json_error_code(&error) == json_error_out_of_memory)
        return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory");
    if (!root)
        return dtp_fault(faults, DTP_BAD_INPUT, name, error.line > 0 ? (size_t)error.line : 1, "no JSON: %s",
                         error.text);
    struct dtp_hf_reader reader = {.name = name, .text = text, .bytes = bytes, .object = root, .faults = faults};
    enum dtp_status status = read_object(&reader, out);
    json_decref(root);
    return status;
}

enum dtp_status dtp_hf_config_read(const char *path, struct dtp_hf_config *out, struct dtp_faults *faults)
{
    *out = (struct dtp_hf_config){0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return dtp_fault(faults, DTP_BAD_INPUT, path, 0, "cannot open: %s", strerror(errno));
    enum dtp_status status = DTP_OK;
    char *text = malloc(DTP_HF_CONFIG_MAX_BYTES + 1); /* one more byte tells a file that is too large */
    size_t bytes = text ? fread(text, 1, DTP_HF_CONFIG_MAX_BYTES + 1, file) : 0;
    if (!text)
        status = dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
    else if (ferror(file))
        status = dtp_fault(faults, DTP_BAD_INPUT, path, 0, "cannot read: %s%s", strerror(errno),
                           errno == EISDIR ? "; name the config.json in it" : "");
    else
        status = dtp_hf_config_parse(path, text, bytes, out, faults);
    free(text);
    fclose(file);
    return status;
}
