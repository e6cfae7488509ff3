/* Published models with experts, by their config.json on the Hugging Face hub. */
#ifndef TEST_EXPERT_MODELS_H
#define TEST_EXPERT_MODELS_H

#include "net/transformer.h"

#include <assert.h>
#include <string.h>

/* X(name, layers, hidden, heads, kv_heads, head_dim, vocab, experts, experts_per_token, expert_ffn, shared_expert_ffn,
 *   dense_layers, ffn) */
#define EXPERT_MODELS(X)                                                                                               \
    X("deepseek-v3", 61, 7168, 128, 128, 192, 129280, 256, 8, 2048, 2048, 3, 18432)                                    \
    X("kimi-k2", 61, 7168, 64, 64, 192, 163840, 384, 8, 2048, 2048, 1, 18432)                                          \
    X("deepseek-v2", 60, 5120, 128, 128, 192, 102400, 160, 6, 1536, 3072, 1, 12288)                                    \
    X("deepseek-v2-lite", 27, 2048, 16, 16, 192, 102400, 64, 6, 1408, 2816, 1, 10944)                                  \
    X("mixtral-8x7b", 32, 4096, 32, 8, 128, 32000, 8, 2, 14336, 0, 0, 14336)                                           \
    X("mixtral-8x22b", 56, 6144, 48, 8, 128, 32768, 8, 2, 16384, 0, 0, 16384)                                          \
    X("qwen3-30b-a3b", 48, 2048, 32, 4, 128, 151936, 128, 8, 768, 0, 0, 6144)                                          \
    X("qwen3-235b-a22b", 94, 4096, 64, 4, 128, 151936, 128, 8, 1536, 0, 0, 12288)                                      \
    X("gpt-oss-120b", 36, 2880, 64, 8, 64, 201088, 128, 4, 2880, 0, 0, 2880)                                           \
    X("gpt-oss-20b", 24, 2880, 64, 8, 64, 201088, 32, 4, 2880, 0, 0, 2880)                                             \
    X("llama-4-maverick", 48, 5120, 40, 8, 128, 202048, 128, 1, 8192, 8192, 0, 16384)                                  \
    X("llama-4-scout", 48, 5120, 40, 8, 128, 202048, 16, 1, 8192, 8192, 0, 16384)

/* What few of them have. */
static inline void expert_model_details(const char *name, struct dtp_transformer *t)
{
    bool deepseek = strncmp(name, "deepseek", 8) == 0, kimi = strcmp(name, "kimi-k2") == 0;
    if (deepseek || kimi) {
        t->kv_latent = 512, t->rope_head_dim = 64, t->value_head_dim = 128;
        t->q_latent = strcmp(name, "deepseek-v2-lite") ? 1536 : 0;
    }
    if (strcmp(name, "deepseek-v3") == 0)
        t->router = DTP_ROUTER_SIGMOID, t->expert_groups = 8, t->groups_per_token = 4;
    t->qk_norm = strncmp(name, "qwen3", 5) == 0;
    if (strncmp(name, "gpt-oss", 7) == 0)
        t->qkv_bias = t->attention_output_bias = t->expert_bias = t->router_bias = t->attention_sinks = true;
    if (strcmp(name, "llama-4-maverick") == 0)
        t->expert_layer_step = 2;
}

static inline struct dtp_transformer expert_model(const char *wanted)
{
    struct dtp_transformer t = dtp_transformer_default();
#define EXPERT_MODEL(name_, layers_, hidden_, heads_, kv_heads_, head_dim_, vocab_, experts_, per_token_, width_,      \
                     shared_, dense_, ffn_)                                                                            \
    if (strcmp(wanted, name_) == 0) {                                                                                  \
        t.layers = layers_, t.hidden = hidden_, t.heads = heads_, t.kv_heads = kv_heads_, t.head_dim = head_dim_;      \
        t.vocab = vocab_, t.experts = experts_, t.experts_per_token = per_token_, t.expert_ffn = width_;               \
        t.shared_expert_ffn = shared_, t.dense_layers = dense_, t.ffn = ffn_;                                          \
    }
    EXPERT_MODELS(EXPERT_MODEL)
#undef EXPERT_MODEL
    assert(t.layers);
    expert_model_details(wanted, &t);
    return t;
}

#endif
