/* The models of make_goldens.py, in words of jobs. */
#ifndef TEST_GOLDEN_WORDS_H
#define TEST_GOLDEN_WORDS_H

#define GOLDEN_SMALL "layers=2 hidden=16 heads=2 head_dim=8 ffn=40 vocab=50 seq=8 micro_batch=2 "
#define GOLDEN_LLAMA_GQA GOLDEN_SMALL "kv_heads=1 "
#define GOLDEN_LLAMA_TIED GOLDEN_SMALL "tied_head=true "
#define GOLDEN_QWEN3 GOLDEN_LLAMA_GQA "qk_norm=true "
#define GOLDEN_UNWEIGHTED GOLDEN_QWEN3 "qk_norm_weight=none "
#define GOLDEN_WINDOWS GOLDEN_LLAMA_GQA "sliding_window=3 sliding_window_pattern=2 "
#define GOLDEN_GEMMA GOLDEN_QWEN3 "activation=geglu norm_unit_offset=true attention_softcap=2 final_softcap=3 "
#define GOLDEN_GPT2                                                                                                    \
    GOLDEN_SMALL                                                                                                       \
    "positions=8 norm=layer_norm activation=gelu position=learned bias=true tied_head=true "
#define GOLDEN_PARALLEL GOLDEN_SMALL "norm=layer_norm activation=gelu "
#define GOLDEN_GPT_J GOLDEN_PARALLEL "mlp_bias=true head_bias=true parallel_block=one_norm "
#define GOLDEN_GPT_J_PLAIN GOLDEN_PARALLEL "mlp_bias=true parallel_block=one_norm "
#define GOLDEN_FALCON GOLDEN_PARALLEL "kv_heads=1 tied_head=true parallel_block=one_norm "
#define GOLDEN_GPT_NEOX GOLDEN_PARALLEL "bias=true parallel_block=two_norms "
#define GOLDEN_OLMO2 GOLDEN_LLAMA_GQA "norm_place=after qk_norm=true qk_norm_wide=true "
#define GOLDEN_ALIBI GOLDEN_SMALL "position=alibi "
#define GOLDEN_BLOOM                                                                                                   \
    GOLDEN_SMALL                                                                                                       \
    "hidden=24 heads=3 norm=layer_norm activation=gelu position=alibi bias=true tied_head=true embedding_norm=true "
#define GOLDEN_GEMMA2                                                                                                  \
    "layers=2 hidden=24 heads=2 kv_heads=1 head_dim=8 ffn=40 vocab=50 seq=8 micro_batch=2 sliding_window=3 "           \
    "sliding_window_pattern=2 embedding_scale=true norm_eps=1e-3 norm_place=both tied_head=true activation=geglu "     \
    "norm_unit_offset=true attention_softcap=2 final_softcap=3 "
#define GOLDEN_ODD_WIDTHS "layers=2 hidden=24 heads=2 kv_heads=1 head_dim=12 ffn=44 vocab=50 seq=8 micro_batch=2 "
#define GOLDEN_EXPERTS GOLDEN_LLAMA_GQA "experts=5 experts_per_token=2 expert_ffn=24 "
#define GOLDEN_EXPERTS_SHARED                                                                                          \
    GOLDEN_LLAMA_GQA                                                                                                   \
    "tied_head=true experts=5 experts_per_token=2 expert_ffn=24 shared_expert_ffn=32 shared_expert_gate=true "
#define GOLDEN_EXPERTS_NORM                                                                                            \
    GOLDEN_LLAMA_GQA "qk_norm=true experts=4 experts_per_token=2 expert_ffn=24 router_norm=true "
/* Behind a layer that has none. */
#define GOLDEN_EXPERTS_LATE                                                                                            \
    GOLDEN_LLAMA_GQA                                                                                                   \
    "layers=3 vocab=23 experts=5 experts_per_token=2 expert_ffn=24 shared_expert_ffn=16 dense_layers=1 "
#define GOLDEN_EXPERTS_SIGMOID                                                                                         \
    GOLDEN_LLAMA_GQA                                                                                                   \
    "experts=5 experts_per_token=2 expert_ffn=24 shared_expert_ffn=16 router=sigmoid router_norm=true "                \
    "router_scale=2.5 "
#define GOLDEN_EXPERTS_GROUPS                                                                                          \
    GOLDEN_LLAMA_GQA                                                                                                   \
    "experts=8 experts_per_token=2 expert_ffn=24 router=sigmoid router_norm=true router_scale=2.5 expert_groups=4 "    \
    "groups_per_token=2 "
#define GOLDEN_EXPERTS_GROUPS_SOFTMAX                                                                                  \
    GOLDEN_LLAMA_GQA                                                                                                   \
    "experts=8 experts_per_token=2 expert_ffn=24 shared_expert_ffn=16 router_scale=2.5 expert_groups=4 "               \
    "groups_per_token=3 "
#define GOLDEN_GPT_OSS                                                                                                 \
    GOLDEN_WINDOWS                                                                                                     \
    "qkv_bias=true attention_output_bias=true attention_sinks=true activation=swiglu_clamped experts=5 "               \
    "experts_per_token=2 expert_ffn=24 router_norm=true router_bias=true expert_bias=true "
#define GOLDEN_LLAMA_4                                                                                                 \
    GOLDEN_UNWEIGHTED                                                                                                  \
    "layers=4 sliding_window=4 sliding_window_pattern=2 chunked_attention=true experts=3 experts_per_token=1 "         \
    "expert_ffn=24 shared_expert_ffn=16 router=sigmoid router_on_input=true "
#define GOLDEN_LATENT                                                                                                  \
    "layers=2 hidden=16 heads=2 head_dim=24 ffn=40 vocab=50 seq=8 micro_batch=2 kv_latent=16 q_latent=24 "             \
    "rope_head_dim=8 value_head_dim=16 "
#define GOLDEN_LATENT_DIRECT                                                                                           \
    "layers=2 hidden=16 heads=2 head_dim=24 ffn=40 vocab=50 seq=8 micro_batch=2 kv_latent=16 rope_head_dim=16 "        \
    "value_head_dim=24 tied_head=true "
#define GOLDEN_LATENT_EXPERTS                                                                                          \
    "layers=2 hidden=16 heads=2 head_dim=24 ffn=40 vocab=50 seq=8 micro_batch=2 kv_latent=16 rope_head_dim=8 "         \
    "value_head_dim=16 experts=5 experts_per_token=2 expert_ffn=24 shared_expert_ffn=16 router=sigmoid "               \
    "router_norm=true router_scale=2.5 "
#define GOLDEN_LLAMA_WIDE "layers=1 hidden=64 heads=1 head_dim=64 ffn=88 vocab=101 seq=128 micro_batch=2 "
#define GOLDEN_TRAINED "layers=2 hidden=64 heads=2 kv_heads=1 head_dim=32 ffn=96 vocab=101 seq=128 micro_batch=2 "
#define GOLDEN_FOLLOWED "layers=1 hidden=32 heads=2 kv_heads=1 head_dim=16 ffn=48 vocab=53 seq=32 micro_batch=4 "
#define GOLDEN_BIASED                                                                                                  \
    "layers=1 hidden=64 heads=2 kv_heads=1 head_dim=32 ffn=96 vocab=101 seq=128 micro_batch=2 positions=128 "          \
    "norm=layer_norm activation=gelu position=learned bias=true "

#endif
