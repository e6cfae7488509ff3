/* A decoder-only transformer as the numbers that decide its memory, FLOPs and bytes.
 *
 * GPT, LLaMA, MPT, BLOOM, OPT, Qwen ... differ only in a few choices; each choice is one field here, so that no
 * formula ever asks for a family by name. Shapes: hidden h, heads n_h of width d_h, kv_heads n_kv, d_q = n_h*d_h,
 * d_kv = n_kv*d_h, ffn f, vocab V, layers L, sequence s. */
#ifndef DTP_TRANSFORMER_H
#define DTP_TRANSFORMER_H

#include "base/status.h"

#include <stdint.h>

#define DTP_NAME_BYTES 64

enum dtp_norm { DTP_LAYER_NORM, DTP_RMS_NORM };
/* SwiGLU and GEGLU have a gate matrix beside up; RELU2 is the square of ReLU (Persimmon, Nemotron). SWIGLU_CLAMPED is
 * gpt-oss': gate and up are clamped, the gate times a sigmoid of its multiple, times up plus one. */
enum dtp_activation { DTP_GELU, DTP_RELU, DTP_SWIGLU, DTP_GEGLU, DTP_RELU2, DTP_SWIGLU_CLAMPED, DTP_GELU_NEW };
/* Attention and MLP one after the other, or both from the block's input and added up at its end: behind one norm that
 * both read (GPT-J, Falcon 7B), or each behind its own (GPT-NeoX, Falcon 40B). */
enum dtp_parallel_block { DTP_PARALLEL_NONE, DTP_PARALLEL_ONE_NORM, DTP_PARALLEL_TWO_NORMS };
/* Norms of attention and MLP: of what they read (LLaMA), of what they add to the residual stream (OLMo-2), or of both
 * (Gemma 2). */
enum dtp_norm_place { DTP_NORMS_BEFORE, DTP_NORMS_AFTER, DTP_NORMS_BOTH };
/* Weights of the norms of q and k: one of head_dim for all heads (Qwen3), for each head its own (Cohere), none (Llama
 * 4). */
enum dtp_qk_norm_weight { DTP_QK_NORM_SHARED, DTP_QK_NORM_BY_HEAD, DTP_QK_NORM_UNWEIGHTED };
/* Of what a token's affinity to each expert is: softmax over all experts (Mixtral, Qwen), or a sigmoid of each
 * (DeepSeek-V3, Llama 4). */
enum dtp_router { DTP_ROUTER_SOFTMAX, DTP_ROUTER_SIGMOID };
enum dtp_position { DTP_POSITION_LEARNED, DTP_POSITION_ROPE, DTP_POSITION_ALIBI, DTP_POSITION_NONE };

struct dtp_transformer {
    char name[DTP_NAME_BYTES];
    uint64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    uint64_t positions;    /* rows of the learned position table (0 unless DTP_POSITION_LEARNED) */
    uint64_t max_sequence; /* longest sequence the source states; 0 if unknown */
    enum dtp_norm norm;
    enum dtp_activation activation;
    enum dtp_position position;
    enum dtp_parallel_block parallel_block;
    enum dtp_norm_place norm_place;
    double norm_epsilon;      /* what norms add to the mean square before its root */
    bool norm_bias;           /* LayerNorm has a bias vector */
    bool norm_without_weight; /* OLMo 1: norms scale to unit variance and multiply by nothing */
    bool norm_unit_offset;    /* Gemma: RMSNorm multiplies by 1 + weight, and weights begin at 0 */
    bool qkv_bias;            /* Qwen: bias on q, k, v only */
    bool attention_output_bias;
    bool mlp_bias;
    bool tied_head; /* lm_head shares the embedding matrix */
    bool head_bias;
    bool embedding_scale; /* Gemma: rows of the embedding times sqrt(hidden) */
    bool embedding_norm;  /* BLOOM: LayerNorm after the embedding */
    bool qk_norm;         /* Qwen3: RMSNorm of width head_dim on q and on k */
    bool qk_norm_wide;    /* OLMo-2: these span all heads, with a weight for each feature */
    bool qk_layer_norm;   /* Persimmon, Cohere: these are LayerNorms */
    bool qk_norm_bias;    /* Persimmon: with biases */
    enum dtp_qk_norm_weight qk_norm_weight;
    bool final_norm;
    double attention_softcap,
        final_softcap;               /* c: scores x of attention, logits, become c tanh(x / c) (Gemma 2); 0: not */
    uint64_t sliding_window;         /* tokens that attention sees, its own the last of them (Mistral); 0: all before */
    uint64_t sliding_window_pattern; /* every so-manieth layer has no window (Gemma 2: 2); 0: all layers have it */

    /* Mixture of experts: in place of the MLP, E small ones, of which each token goes to a few. `ffn` is the width of
     * layers without experts. */
    uint64_t experts;           /* E of a layer; 0: no layer has any */
    uint64_t experts_per_token; /* k: so many of them a token goes to */
    uint64_t expert_ffn;        /* inner width of one */
    uint64_t shared_expert_ffn; /* of the experts that every token goes to, all together; 0: none */
    uint64_t dense_layers;      /* the first layers, which have no experts (DeepSeek: first_k_dense_replace) */
    uint64_t expert_layer_step; /* of the others, every so-manieth of the model has experts: layers n - 1, 2n - 1, ...
                                 * counted from 0 (Llama 4: interleave_moe_layer_step); 0, 1: all */
    enum dtp_router router;
    bool router_on_input; /* these weigh what experts read, not what they return (Llama 4) */
    bool router_norm;    /* affinities to a token's experts are divided by their sum (Mixtral, Qwen3: norm_topk_prob) */
    double router_scale; /* and multiplied by this (DeepSeek: routed_scaling_factor); 0: 1 */
    uint32_t expert_tensor_ranks, /* so many ranks have a part of each expert's width; 0, 1: all of it */
        expert_ranks;    /* of a rank's slice of a model: so many ranks divide the experts; 0, 1: it has all of them */
    bool experts_packed; /* of a slice: gate and up of an expert are one matrix */
    bool shared_packed;  /* the same of its shared experts */
    uint64_t expert_groups;    /* groups that experts are routed in (DeepSeek: n_group); 0: one */
    uint64_t groups_per_token; /* a token's experts are of so many groups (topk_group); 0: all */
    bool expert_bias;          /* biases of the experts (gpt-oss) */
    bool router_bias;          /* the router's matrix has a bias (gpt-oss) */
    bool shared_expert_gate;   /* what the shared experts add is weighed by a sigmoid of h -> 1 (Qwen2-MoE) */
    bool chunked_attention;    /* the sequence is cut into pieces of sliding_window tokens, of which each sees its own,
                                * in the layers that have the window; the others turn no queries and keys and do not
                                * norm them (Llama 4: no_rope_layers) */
    bool attention_sinks;      /* a learned score of each head that stands beside those of keys (gpt-oss) */

    /* Latent attention (DeepSeek-V2, MLA): keys and values are projected from a narrow latent. `head_dim` is then a
     * query's width, with rope and without together; kv_heads are heads. */
    uint64_t q_latent;       /* width of the latent that queries are projected from; 0: they are projected directly */
    uint64_t kv_latent;      /* the same of keys and values; 0: attention is plain */
    uint64_t rope_head_dim;  /* of head_dim, what rope turns; of keys one for all heads */
    uint64_t value_head_dim; /* of one head */
    /* Modules that predict a token further ahead (DeepSeek-V3, MTP): each a layer of the kind of the last, behind a
     * projection, 2 h -> h, of two rows side by side, each behind a norm of its own: the token's that follows, from
     * the model's embedding, and what the model's last layer made. Behind it a norm, then the model's head once more
     * with a loss of its own. */
    uint64_t mtp_layers;   /* how many; as a model is told they are none of `layers` */
    uint32_t ahead_ranks;  /* of a slice: tensor parallel ranks that divide the projections' rows; else 0 */
    uint64_t ahead_layers; /* as it is trained (dtp_transformer_trained): of `layers`, the last so many; else 0 */
};

/* Parameters of each part; total is exact. `block` is one layer without experts = `block_matmul` (weights [in, out] of
 * its matmuls) + `block_vectors` (norms and biases); `expert_block` likewise one that has them. `head` is 0 when tied,
 * but for a bias. */
struct dtp_parameter_count {
    uint64_t embedding, position, embedding_norm, block, block_matmul, block_vectors, final_norm, head;
    uint64_t expert_block, expert_block_matmul, expert_block_vectors;
    uint64_t expert_layers; /* layers that have experts; the others are `block` */
    uint64_t layers;        /* of all layers, those of modules that predict further ahead too: their parameters */
    uint64_t mtp;           /* of such modules: their layers, of `layers`, and what is around these */
    uint64_t ahead;         /* of `mtp`, what is around: projections and norms; embedding and head are the model's */
    uint64_t total;
    uint64_t active; /* of total, without the experts that a token does not go to; the embedding is counted whole */
    uint64_t layers_matmul; /* weights that multiply a token in all layers: of E experts k */
    uint64_t matmul; /* the same of the model: layers_matmul, projections, vocab*hidden for each loss (head, tied or
                      * not) */
};

/* Elements of such a module's projection that a rank has: all, or its rows. */
static inline uint64_t dtp_transformer_ahead_rows(const struct dtp_transformer *t)
{
    return t->ahead_ranks > 1 ? (t->hidden + t->ahead_ranks - 1) / t->ahead_ranks : t->hidden;
}
static inline uint64_t dtp_transformer_ahead_elements(const struct dtp_transformer *t)
{
    return 2 * t->hidden * dtp_transformer_ahead_rows(t);
}
#define DTP_AHEAD_NORMS                                                                                                \
    3 /* of a module that predicts further ahead: of both sides of its projection, of its result                       \
       */

/* As it is trained: modules that predict further ahead are its last layers (ahead_layers). As it is told: they are
 * none. Of either both give the same. */
struct dtp_transformer dtp_transformer_trained(const struct dtp_transformer *transformer);
struct dtp_transformer dtp_transformer_told(const struct dtp_transformer *transformer);

/* Whether layer 0 .. L - 1 has experts. */
bool dtp_transformer_layer_has_experts(const struct dtp_transformer *transformer, uint64_t layer);
/* How many of the layers before `end` have them. */
uint64_t dtp_transformer_expert_layers(const struct dtp_transformer *transformer, uint64_t end);
/* Whether any layer has an MLP of `ffn` columns; where all have experts that width is nobody's. */
static inline bool dtp_transformer_has_mlp(const struct dtp_transformer *transformer)
{
    return !transformer->experts ||
           dtp_transformer_expert_layers(transformer, transformer->layers) < transformer->layers;
}
/* All layers are of one kind, with experts or without. */
static inline bool dtp_transformer_is_uniform(const struct dtp_transformer *transformer)
{
    uint64_t with = transformer->experts ? dtp_transformer_expert_layers(transformer, transformer->layers) : 0;
    return with == 0 || with == transformer->layers;
}
/* The same model with all its layers of one of its kinds: what is reckoned of such a layer holds for each of them. */
struct dtp_transformer dtp_transformer_all_alike(const struct dtp_transformer *transformer, bool experts);
/* Layers after which kinds repeat, behind the first that differ from all others (dtp_transformer_first_layers). */
static inline uint64_t dtp_transformer_kind_period(const struct dtp_transformer *transformer)
{
    return transformer->experts && transformer->expert_layer_step > 1 ? transformer->expert_layer_step : 1;
}
static inline uint64_t dtp_transformer_first_layers(const struct dtp_transformer *transformer)
{
    return transformer->experts ? transformer->dense_layers : 0;
}

/* SwiGLU, GEGLU: silu or gelu (tanh form) of a gate times up. */
static inline bool dtp_activation_is_gated(enum dtp_activation activation)
{
    return activation == DTP_SWIGLU || activation == DTP_GEGLU || activation == DTP_SWIGLU_CLAMPED;
}

/* The same function but for rounding, of which others than Transformers' files have one kernel. */
static inline bool dtp_activation_is_gelu(enum dtp_activation activation)
{
    return activation == DTP_GELU || activation == DTP_GELU_NEW;
}

/* Vectors of parameters of one norm: its weight, its bias. */
static inline uint64_t dtp_transformer_norm_vectors(const struct dtp_transformer *transformer)
{
    return transformer->norm_without_weight ? 0 : transformer->norm_bias ? 2 : 1;
}

/* LLaMA 2's and GPT-2's (rms_norm_eps, layer_norm_epsilon of their configs). */
#define DTP_NORM_EPSILON 1e-5
/* Transformers' DeepseekV3Attention makes q_a_layernorm and kv_a_layernorm without a word of their epsilon, so with
 * RMSNorm's default there, whatever the model's rms_norm_eps is (modeling_deepseek_v3.py). */
#define DTP_LATENT_NORM_EPSILON 1e-6

/* LLaMA-like defaults with all dimensions zero (the caller fills them). */
struct dtp_transformer dtp_transformer_default(void);

/* Reports every impossible field at once (zero dimension, heads*head_dim overflow, kv_heads not dividing heads, ...).
 * Upper limits are far beyond any real model and keep all later arithmetic inside uint64_t: layers <= 1e5,
 * hidden, heads, head_dim, heads*head_dim, ffn, vocab, positions <= 1e8, max_sequence <= 1e9, total parameters <= 1e15.
 * `where` (may be NULL) and `line` (0: none) are the place the shape came from, for the messages. */
enum dtp_status dtp_transformer_check(const struct dtp_transformer *transformer, const char *where, size_t line,
                                      struct dtp_faults *faults);

/* Exact when the transformer passed dtp_transformer_check. */
struct dtp_parameter_count dtp_transformer_count(const struct dtp_transformer *transformer);

/* Tokens that attention of layer 0 .. L - 1 sees at length `sequence`, or that a piece of it has where it is cut into
 * chunks; 0 where no window cuts anything. */
uint64_t dtp_transformer_layer_window(const struct dtp_transformer *transformer, uint64_t layer, uint64_t sequence);

/* Whether it turns queries and keys, and norms them, where the model's layers do. */
bool dtp_transformer_layer_turns(const struct dtp_transformer *transformer, uint64_t layer);

/* The sequence length s of plain causal attention that costs as much as this model's at length `sequence`, of one layer
 * and on average over all: `sequence` itself, or less where a sliding window cuts what a token sees. A causal token
 * sees s/2 others on average. */
double dtp_transformer_layer_attention_length(const struct dtp_transformer *transformer, uint64_t layer,
                                              uint64_t sequence);
double dtp_transformer_attention_length(const struct dtp_transformer *transformer, uint64_t sequence);

/* FLASH: the fastest fused kernel of today's PyTorch (cuDNN's on Hopper and Blackwell, FlashAttention-2 before);
 * FLASH2, FLASH1: the kernels of 2024 and of 2022-23, for judging older stacks. They differ in time, not in memory. */
enum dtp_attention { DTP_ATTENTION_FLASH, DTP_ATTENTION_MATH, DTP_ATTENTION_FLASH2, DTP_ATTENTION_FLASH1 };
#define DTP_ATTENTION_COUNT 4

/* One attention core, as an operation of a program says it. Queries and keys are tokens of a sequence. */
struct dtp_attention_shape {
    uint32_t heads, kv_heads, head_dim; /* of queries; of keys and values; width of each */
    uint32_t window;                    /* tokens it reaches back; 0: all of them */
    uint64_t queries, keys;             /* fewer queries are the last of the keys' tokens */
    bool causal;
    uint8_t kernel;     /* enum dtp_attention */
    bool wide;          /* of math attention: scores of 16-bit inputs are fp32; of norms of q and k: over all heads */
    bool atomic;        /* of backward: gradients of queries are summed by atomics, in any order */
    bool dropout;       /* of math attention: probabilities go through dropout, a kernel of its own */
    bool alibi;         /* a bias by distance is added to scores */
    bool narrow;        /* in MXFP8, whose backward computes what a window hides, too */
    uint8_t zero[5];    /* no hole lies here: equal shapes are equal bytes */
    uint32_t value_dim; /* width of a value where it is another than of keys; else 0 */
    double softcap;     /* c: scores x become c tanh(x / c); 0: not */
};
/* Of the layer, by the kernel that is 0. */
struct dtp_attention_shape dtp_transformer_attention(const struct dtp_transformer *transformer, uint64_t layer,
                                                     uint64_t sequence);
/* What queries' and keys' width is in FLOPs of the core, given that of values: QK^T is made of the former, the weighted
 * sum of the latter. Forward has one of each; backward three of keys (QK^T again, dQ, dK) and two of values (dP, dV).
 */
static inline double dtp_attention_forward_width(const struct dtp_attention_shape *shape)
{
    double key = (double)shape->head_dim, value = shape->value_dim ? (double)shape->value_dim : key;
    return (key + value) / 2;
}
static inline double dtp_attention_backward_width(const struct dtp_attention_shape *shape)
{
    double key = (double)shape->head_dim, value = shape->value_dim ? (double)shape->value_dim : key;
    return (3 * key + 2 * value) / 2;
}
/* As dtp_transformer_layer_attention_length. */
double dtp_attention_length(const struct dtp_attention_shape *shape);

/* What FLOPs of attention go by: queries' width of all heads, or half of it and half of the values' where these are
 * others (latent attention). */
static inline double dtp_transformer_core_width(const struct dtp_transformer *transformer)
{
    uint64_t values = transformer->kv_latent ? transformer->value_head_dim : transformer->head_dim;
    return (double)(transformer->heads * (transformer->head_dim + values)) / 2;
}

/* Model FLOPs of one token, forward and backward, no recompute, at sequence length `sequence`: 6 * matmul parameters
 * + 6*L*d_q*s (causal attention counted half; Megatron-LM num_floating_point_operations, torchtitan), s the attention
 * length above. */
double dtp_transformer_model_flops_per_token(const struct dtp_transformer *transformer, uint64_t sequence);

/* Reads a Hugging Face config.json (jansson, at most DTP_HF_CONFIG_MAX_BYTES). Understands model_type llama, mistral,
 * qwen2, qwen3, phi3, gpt2, opt, bloom, mpt and gpt_neox, with the defaults of their configuration classes for missing
 * keys, and refuses others (mixture of experts included) by name with the known ones listed. All faults at once, with
 * the line of the key. The shape is named after the file, or its folder where the file is called config.json; in the
 * hub's cache (models--ORG--NAME/snapshots/HASH/config.json) after the repository, ORG/NAME. A quantised model is
 * refused: what fine-tuning it needs and takes is not modelled. */
#define DTP_HF_CONFIG_MAX_BYTES (1u << 20)
/* A shape with what the file says besides that training may depend on and no prediction uses. */
struct dtp_hf_config {
    struct dtp_transformer transformer;
    bool fused_qkv,
        fused_gate_up; /* Transformers' modeling file of its type has one linear of q, k and v; of gate and up */
    char unused[256];  /* "attention_dropout 0.1, torch_dtype bfloat16", or "" */
};
enum dtp_status dtp_hf_config_read(const char *path, struct dtp_hf_config *out, struct dtp_faults *faults);
/* The same from memory; `name` stands for the file in messages. For tests and the fuzzer. */
enum dtp_status dtp_hf_config_parse(const char *name, const char *text, size_t bytes, struct dtp_hf_config *out,
                                    struct dtp_faults *faults);

/* The rule behind `--params N` alone. Pattern: of a fixed list of LLaMA-like shapes (llama2.c's 0.26M, 15M, 42M, 110M,
 * TinyLlama 1.1B, Llama 3.2 3B, Llama 2 7B, Llama 3 8B, Llama 2 13B, LLaMA 33B, Llama 3 70B, Llama 3.1 405B) the one of
 * nearest count on a log scale; the list is no part of a catalogue, so that a user's rows never change the answer.
 * A pattern within 2 % of N is taken as it is, under its own name. Otherwise its vocabulary, head width, kv ratio and
 * tied head stay, and heads, layers and ffn are chosen so that layers/hidden and ffn/hidden stay nearest to the
 * pattern's while the count is within 2 % of N (mostly within 0.3 %); heads in multiples of 4 where that gives a like
 * shape. The name reads "llama-like 7.0B"; max_sequence is 0 (no limit stated). Deterministic; allocates nothing.
 * DTP_BAD_INPUT when no shape comes within 2 % (some N below 7e4, N above 9e14, NaN), naming the nearest count. */
enum dtp_status dtp_transformer_from_parameters(double parameters, struct dtp_transformer *out,
                                                struct dtp_faults *faults);
/* Pattern `index` of that list, or false past its end. For tests and for showing the rule. */
bool dtp_transformer_pattern(size_t index, struct dtp_transformer *out);
/* Index of the pattern that N = `parameters` takes. */
size_t dtp_transformer_nearest_pattern(double parameters);

#endif
