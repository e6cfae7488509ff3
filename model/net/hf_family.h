/* A family of Hugging Face's config.json: the spellings of its dimensions, the defaults of its configuration class and
 * a function for what is its own; rows of them in hf_families_NAME.c. */
#ifndef DTP_HF_FAMILY_H
#define DTP_HF_FAMILY_H

#include "net/hf_reader.h"

#define DTP_HF_MAX_WIDTH 100000000u /* as dtp_transformer_check, so that each fault names its own key and line */
#define DTP_HF_MAX_LAYERS 100000u
#define DTP_HF_MAX_SEQUENCE 1000000000u

struct dtp_hf_dimension {
    const char *keys; /* NULL: this family has no such key */
    uint64_t absent;  /* 0 where the rest decides: kv_heads = heads, head_dim = hidden / heads, ffn = 4 hidden */
};

struct dtp_hf_family {
    const char *type;
    struct dtp_hf_dimension layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_sequence;
    struct {
        const char *keys, *absent;
    } activation;
    const char *epsilon_keys; /* NULL: rms_norm_eps, of GPT-like ones layer_norm_epsilon or layer_norm_eps */
    double epsilon;           /* of norms, where the file says none; 0: 1e-6 of LLaMA-like ones, else 1e-5 */
    bool modern; /* LLaMA-like: RMSNorm, RoPE, no biases; else GPT-like: LayerNorm, learned positions, biases everywhere
                  */
    bool gated;  /* the MLP has a gate */
    bool fused_qkv, fused_gate_up; /* one linear of them in Transformers' modeling file (c_attn, query_key_value, Wqkv,
                                      qkv_proj; gate_up_proj) */
    bool experts;                  /* of this family's own; of others they are refused */
    bool tied;                     /* default of tie_word_embeddings */
    void (*finish)(struct dtp_hf_reader *reader, struct dtp_transformer *t); /* may be NULL */
};

/* Rows, ended by one without a type. */
extern const struct dtp_hf_family dtp_hf_families_llama[], dtp_hf_families_gpt[], dtp_hf_families_experts[];

/* clang-format off */
/* The spellings that LLaMA's heirs share: layers, hidden, heads, kv_heads, head_dim, ffn, vocab, max_sequence. */
#define DTP_HF_SIZES(h, n, f, V, s)                                                                 \
    .hidden = {"hidden_size", h}, .heads = {"num_attention_heads", n}, .ffn = {"intermediate_size", f}, \
    .vocab = {"vocab_size", V}, .max_sequence = {"max_position_embeddings", s}
#define DTP_HF_SHAPE(L, h, n, kv, d, f, V, s)                                                       \
    DTP_HF_SIZES(h, n, f, V, s), .layers = {"num_hidden_layers", L},                                \
    .kv_heads = {"num_key_value_heads", kv}, .head_dim = {"head_dim", d}
#define DTP_HF_MODERN(L, h, n, kv, d, f, V, s)                                                      \
    DTP_HF_SHAPE(L, h, n, kv, d, f, V, s), .activation = {"hidden_act", "silu"}, .modern = true, .gated = true
/* clang-format on */

/* ---- hf_window.c: which layers slide ---- */

/* The tokens of a window, `absent` where the file says none; null is none. A window as long as the longest sequence
 * never cuts anything. */
void dtp_hf_read_window(struct dtp_hf_reader *reader, uint64_t absent, struct dtp_transformer *t);
/* Likewise, in all layers but every `step`-th, unless layer_types or sliding_window_pattern says otherwise. */
void dtp_hf_read_window_pattern(struct dtp_hf_reader *reader, uint64_t absent, uint64_t step,
                                struct dtp_transformer *t);
/* Qwen's keys: use_sliding_window, max_window_layers or layer_types. */
void dtp_hf_read_qwen_window(struct dtp_hf_reader *reader, struct dtp_transformer *t);

/* ---- hf_unknown.c: types that are no family here ---- */

/* Refuses `type` (NULL: none is said) with what is missing, or with the keys of the file that no family has. */
void dtp_hf_refuse_type(struct dtp_hf_reader *reader, const char *type, const struct dtp_hf_family *const *lists);
/* The model_type of the text_config of a `type` that has a vision tower beside it and is planned without, else NULL. */
const char *dtp_hf_text_type(const char *type);

#endif
