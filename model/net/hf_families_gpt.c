/* Families of config.json with LayerNorm: GPT's heirs, with learned positions and biases everywhere but where they are
 * said, and those that are like LLaMA but for their norms.
 *
 * Source of names and defaults: transformers, src/transformers/models/TYPE/configuration_TYPE.py; of biases and norms:
 * modeling_TYPE.py beside it. MPT also follows llm-foundry, whose configs carry the same model_type. */
#include "net/hf_family.h"

#include <inttypes.h>
#include <string.h>

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
    uint64_t embedding = dtp_hf_integer(reader, "word_embed_proj_dim", t->hidden, 1, DTP_HF_MAX_WIDTH);
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
    t->kv_heads = grouped  ? dtp_hf_integer(reader, "num_kv_heads", t->heads, 1, DTP_HF_MAX_WIDTH)
                  : single ? 1
                           : t->heads;
    t->parallel_block = !parallel               ? DTP_PARALLEL_NONE
                        : grouped && norms == 2 ? DTP_PARALLEL_TWO_NORMS
                                                : DTP_PARALLEL_ONE_NORM;
    t->qkv_bias = t->attention_output_bias = t->mlp_bias = dtp_hf_switch(reader, "bias", false);
}

/* One key head for all queries, unless multi_query is false: GPTBigCodeAttention. */
static void finish_gpt_bigcode(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->positions = t->max_sequence;
    t->kv_heads = dtp_hf_switch(reader, "multi_query", true) ? 1 : t->heads;
}

/* LayerNorms of width head_dim with biases: PhiAttention, PersimmonAttention. */
static void read_qk_layernorm(struct dtp_hf_reader *reader, bool absent, struct dtp_transformer *t)
{
    t->qk_norm = t->qk_layer_norm = t->qk_norm_bias = dtp_hf_switch(reader, "qk_layernorm", absent);
}

/* Biases everywhere, the head included; attention and MLP read one norm: PhiDecoderLayer. */
static void finish_phi(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->position = DTP_POSITION_ROPE;
    t->parallel_block = DTP_PARALLEL_ONE_NORM;
    t->head_bias = true;
    read_qk_layernorm(reader, false, t);
}

static void finish_persimmon(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->position = DTP_POSITION_ROPE;
    read_qk_layernorm(reader, true, t);
}

/* use_bias: on all linear layers; the norms have biases always. */
static void finish_starcoder2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->position = DTP_POSITION_ROPE;
    t->qkv_bias = t->attention_output_bias = t->mlp_bias = dtp_hf_switch(reader, "use_bias", true);
    dtp_hf_read_window(reader, DTP_HF_MAX_SEQUENCE, t);
}

/* Norms multiply by 1 + weight, which begins at 0: the same function as the plain one (NemotronLayerNorm1P). */
static void finish_nemotron(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->position = DTP_POSITION_ROPE;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    t->mlp_bias = dtp_hf_switch(reader, "mlp_bias", false);
}

/* ---- like LLaMA but for the norms ------------------------------------------------------------------------------- */

/* Norms of q and k with weights for each head, without biases: StableLmLayerNormPerHead, CohereLayerNorm. */
static void set_head_norms(struct dtp_transformer *t)
{
    t->qk_norm = t->qk_layer_norm = true;
    t->qk_norm_weight = DTP_QK_NORM_BY_HEAD;
}

static void finish_stablelm(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->norm = DTP_LAYER_NORM;
    t->norm_bias = true;
    t->qkv_bias = dtp_hf_switch(reader, "use_qkv_bias", false);
    if (dtp_hf_switch(reader, "use_parallel_residual", false))
        t->parallel_block = DTP_PARALLEL_ONE_NORM;
    if (dtp_hf_switch(reader, "qk_layernorm", false))
        set_head_norms(t);
}

/* Norms without biases, one for attention and MLP: CohereDecoderLayer. */
static void finish_cohere(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->norm = DTP_LAYER_NORM;
    t->parallel_block = DTP_PARALLEL_ONE_NORM;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
    if (dtp_hf_switch(reader, "use_qk_norm", false))
        set_head_norms(t);
}

/* Three of four layers slide; the fourth has no RoPE, which has no parameters: Cohere2Attention. */
static void finish_cohere2(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    finish_cohere(reader, t);
    dtp_hf_read_window_pattern(reader, 4096, 4, t);
}

/* Norms without weights, of epsilon 1e-5: OlmoLayerNorm. */
static void finish_olmo(struct dtp_hf_reader *reader, struct dtp_transformer *t)
{
    t->norm = DTP_LAYER_NORM;
    t->norm_without_weight = true;
    t->qkv_bias = t->attention_output_bias = dtp_hf_switch(reader, "attention_bias", false);
}

/* ---- MPT -------------------------------------------------------------------------------------------------------- */

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
        t->kv_heads = dtp_hf_integer(&attention, "kv_n_heads", t->heads, 1, DTP_HF_MAX_WIDTH);
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

/* clang-format off */
const struct dtp_hf_family dtp_hf_families_gpt[] = {
    {.type = "gpt2", .fused_qkv = true,
     .layers = {"n_layer|num_hidden_layers", 12}, .hidden = {"n_embd|hidden_size", 768},
     .heads = {"n_head|num_attention_heads", 12}, .ffn = {"n_inner", 0}, .vocab = {"vocab_size", 50257},
     .max_sequence = {"n_positions|max_position_embeddings", 1024}, .activation = {"activation_function", "gelu_new"},
     .tied = true, .finish = finish_gpt2},
    {.type = "gpt_bigcode", .fused_qkv = true,
     .layers = {"n_layer|num_hidden_layers", 12}, .hidden = {"n_embd|hidden_size", 768},
     .heads = {"n_head|num_attention_heads", 12}, .ffn = {"n_inner", 0}, .vocab = {"vocab_size", 50257},
     .max_sequence = {"n_positions|max_position_embeddings", 1024},
     .activation = {"activation_function", "gelu_pytorch_tanh"}, .tied = true, .finish = finish_gpt_bigcode},
    {.type = "opt", .layers = {"num_hidden_layers", 12}, .hidden = {"hidden_size|d_model", 768},
     .heads = {"num_attention_heads", 12}, .ffn = {"ffn_dim", 3072}, .vocab = {"vocab_size", 50272},
     .max_sequence = {"max_position_embeddings", 2048}, .activation = {"activation_function", "relu"},
     .tied = true, .finish = finish_opt},
    {.type = "bloom", .fused_qkv = true,
     .layers = {"n_layer|num_hidden_layers", 2}, .hidden = {"n_embed|hidden_size", 64},
     .heads = {"n_head|num_attention_heads", 8}, .vocab = {"vocab_size", 250880}, .max_sequence = {"seq_length", 0},
     .activation = {NULL, "gelu"}, .tied = true, .finish = finish_bloom},
    {.type = "mpt", .fused_qkv = true,
     .layers = {"n_layers|num_hidden_layers", 24}, .hidden = {"d_model|hidden_size", 2048},
     .heads = {"n_heads|num_attention_heads", 16}, .vocab = {"vocab_size", 50368},
     .max_sequence = {"max_seq_len", 2048}, .activation = {NULL, "gelu"}, .tied = true, .finish = finish_mpt},
    {.type = "gpt_neox", .fused_qkv = true,
     .layers = {"num_hidden_layers", 44}, .hidden = {"hidden_size", 6144},
     .heads = {"num_attention_heads", 64}, .ffn = {"intermediate_size", 24576}, .vocab = {"vocab_size", 50432},
     .max_sequence = {"max_position_embeddings", 2048}, .activation = {"hidden_act", "gelu"},
     .finish = finish_gpt_neox},
    {.type = "gptj", .layers = {"n_layer|num_hidden_layers", 28}, .hidden = {"n_embd|hidden_size", 4096},
     .heads = {"n_head|num_attention_heads", 16}, .ffn = {"n_inner", 0}, .vocab = {"vocab_size", 50400},
     .max_sequence = {"n_positions|max_position_embeddings", 2048}, .activation = {"activation_function", "gelu_new"},
     .finish = finish_gptj},
    {.type = "falcon", .fused_qkv = true,
     .layers = {"num_hidden_layers|n_layer", 32}, .hidden = {"hidden_size", 4544},
     .heads = {"num_attention_heads|n_head", 71}, .ffn = {"ffn_hidden_size", 0}, .vocab = {"vocab_size", 65024},
     .max_sequence = {"max_position_embeddings", 2048}, .activation = {"activation", "gelu"}, .tied = true,
     .finish = finish_falcon},
    {.type = "codegen", .fused_qkv = true,
     .layers = {"n_layer|num_hidden_layers", 28}, .hidden = {"n_embd|hidden_size", 4096},
     .heads = {"n_head|num_attention_heads", 16}, .ffn = {"n_inner", 0}, .vocab = {"vocab_size", 50400},
     .max_sequence = {"n_positions|max_position_embeddings", 2048}, .activation = {"activation_function", "gelu_new"},
     .finish = finish_gptj},
    {.type = "phi", DTP_HF_SHAPE(24, 2048, 32, 0, 0, 8192, 51200, 2048), .activation = {"hidden_act", "gelu_new"},
     .finish = finish_phi},
    {.type = "persimmon", .fused_qkv = true,
     DTP_HF_SIZES(4096, 64, 16384, 262144, 16384), .layers = {"num_hidden_layers", 36},
     .activation = {"hidden_act", "relu2"}, .finish = finish_persimmon},
    {.type = "starcoder2", DTP_HF_SHAPE(30, 3072, 24, 2, 0, 12288, 49152, 4096),
     .activation = {"hidden_act", "gelu_pytorch_tanh"}, .tied = true, .epsilon_keys = "norm_epsilon",
     .finish = finish_starcoder2},
    {.type = "nemotron", DTP_HF_SHAPE(32, 6144, 48, 0, 0, 24576, 256000, 4096), .activation = {"hidden_act", "relu2"},
     .epsilon_keys = "norm_eps", .finish = finish_nemotron},
    {.type = "stablelm", DTP_HF_MODERN(32, 2560, 32, 32, 0, 6912, 50304, 4096), .epsilon_keys = "layer_norm_eps",
     .epsilon = 1e-5, .finish = finish_stablelm},
    {.type = "cohere", DTP_HF_MODERN(40, 8192, 64, 0, 0, 22528, 256000, 8192), .epsilon_keys = "layer_norm_eps",
     .epsilon = 1e-5, .tied = true, .finish = finish_cohere},
    {.type = "cohere2", DTP_HF_MODERN(40, 8192, 64, 0, 0, 22528, 256000, 8192), .epsilon_keys = "layer_norm_eps",
     .epsilon = 1e-5, .tied = true, .finish = finish_cohere2},
    {.type = "olmo", DTP_HF_MODERN(32, 4096, 32, 0, 0, 11008, 50304, 2048), .epsilon_keys = "layer_norm_eps",
     .epsilon = 1e-5, .finish = finish_olmo},
    {.type = NULL},
};
/* clang-format on */
