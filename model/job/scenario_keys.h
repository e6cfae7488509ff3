/* Inside of the scenario: the table of keys with how each is read, and the draft that they fill.
 *
 * A draft holds every value a key can set, at the same types as the structs it ends up in, so that a row of the table
 * needs only an offset. Values are read twice: when they are set, to refuse them where they stand, and again when the
 * scenario is resolved, in table order. */
#ifndef DTP_SCENARIO_KEYS_H
#define DTP_SCENARIO_KEYS_H

#include "job/job_values.h"
#include "job/scenario.h"

struct dtp_draft {
    struct dtp_transformer transformer; /* only fields whose key was given mean something */
    struct dtp_plan plan;               /* starts as the default plan */
    double params, network_gbit_per_s, oversubscription;
    uint32_t leaf_nodes;
    enum dtp_network network;
    uint64_t global_batch;        /* sequences per step over all GPUs; 0 = by accumulate */
    uint64_t global_batch_tokens; /* the same in tokens */
    struct dtp_training training;
    uint32_t nodes, gpus, gpus_per_node;
    bool bias;
};

/* X(key, section, value, how, words). `how`: WHOLE32, WHOLE64 and BINARY64 (minimum, maximum), NUMBER (minimum,
 * maximum), SWITCH, SWITCH_OR (NAME of other values), PARSED (NAME) into a field of the draft, by parse_NAME and back
 * by write_NAME; TEXT (limit in bytes) keeps the words only. */
#define DTP_KEY_TABLE(X)                                                                                               \
    X(model, "model", "NAME|FILE.json", TEXT(4096), "preset (dtplan catalog models) or Hugging Face config.json")      \
    X(params, "model", "N", NUMBER(params, 1, 1e15),                                                                   \
      "parameters: alone, the nearest preset is scaled to N; beside a shape, its count must agree within 2 %")         \
    X(name, "model", "TEXT", TEXT(DTP_NAME_BYTES - 1), "name of the model in reports")                                 \
    X(layers, "model", "N", WHOLE64(transformer.layers, 1, 100000), "layers")                                          \
    X(hidden, "model", "N", WHOLE64(transformer.hidden, 1, 100000000), "hidden width")                                 \
    X(heads, "model", "N", WHOLE64(transformer.heads, 1, 100000000), "attention heads")                                \
    X(kv_heads, "model", "N", WHOLE64(transformer.kv_heads, 1, 100000000), "key/value heads; default heads")           \
    X(head_dim, "model", "N", WHOLE64(transformer.head_dim, 1, 100000000), "width of a head; default hidden / heads")  \
    X(ffn, "model", "N", WHOLE64(transformer.ffn, 1, 100000000),                                                       \
      "inner width of the MLP; default 4 hidden, with swiglu 8/3 hidden up to a multiple of 256")                      \
    X(vocab, "model", "N", WHOLE64(transformer.vocab, 1, 100000000), "vocabulary")                                     \
    X(positions, "model", "N", WHOLE64(transformer.positions, 1, 100000000),                                           \
      "rows of the learned position table; default seq")                                                               \
    X(norm, "model", "layer_norm|rms_norm", PARSED(transformer.norm, norm), "norm; default rms_norm")                  \
    X(activation, "model", "gelu|relu|swiglu", PARSED(transformer.activation, activation),                             \
      "activation of the MLP; default swiglu")                                                                         \
    X(position, "model", "learned|rope|alibi|none", PARSED(transformer.position, position),                            \
      "position scheme; default rope")                                                                                 \
    X(tied_head, "model", NULL, SWITCH(transformer.tied_head), "output head shares the embedding; default false")      \
    X(bias, "model", NULL, SWITCH(bias), "biases on all linear layers and LayerNorms of a block; default false")       \
    X(qkv_bias, "model", NULL, SWITCH(transformer.qkv_bias), "biases on q, k and v only")                              \
    X(attention_output_bias, "model", NULL, SWITCH(transformer.attention_output_bias), "bias after attention")         \
    X(mlp_bias, "model", NULL, SWITCH(transformer.mlp_bias), "biases in the MLP")                                      \
    X(norm_bias, "model", NULL, SWITCH(transformer.norm_bias), "biases of LayerNorms; default true with layer_norm")   \
    X(head_bias, "model", NULL, SWITCH(transformer.head_bias), "bias of the output head")                              \
    X(embedding_norm, "model", NULL, SWITCH(transformer.embedding_norm), "norm after the embedding (BLOOM)")           \
    X(qk_norm, "model", NULL, SWITCH(transformer.qk_norm), "norms of q and k (Qwen3)")                                 \
    X(parallel_block, "model", "none|one_norm|two_norms", PARSED(transformer.parallel_block, parallel_block),          \
      "attention and MLP side by side: behind one norm (GPT-J), behind two (GPT-NeoX); default none")                  \
    X(gpu, "cluster", "NAME", TEXT(64), "GPU (dtplan catalog gpus); default the machine's, else h100-sxm")             \
    X(machine, "cluster", "NAME|FILE.csv", TEXT(4096),                                                                 \
      "machine (dtplan catalog machines), or what dtplan probe measured of one; default the GPU's usual one")          \
    X(gpus, "cluster", "N", WHOLE32(gpus, 1, 1000000), "GPUs in all; default one machine if machine is given, else 1") \
    X(nodes, "cluster", "N", WHOLE32(nodes, 1, 1000000),                                                               \
      "nodes: GPUs are nodes x gpus_per_node; default as gpus says")                                                   \
    X(gpus_per_node, "cluster", "N", WHOLE32(gpus_per_node, 1, 1000000), "GPUs per node; default the machine's")       \
    X(network_gbit_per_s, "cluster", "GBIT", NUMBER(network_gbit_per_s, 1e-3, 1e6),                                    \
      "network of a whole node in Gbit/s, one direction; default the machine's")                                       \
    X(network, "cluster", "rdma|sockets", PARSED(network, network),                                                    \
      "how nodes talk; sockets: TCP through the CPU, network_gbit_per_s is one ring's all-gather; default rdma")       \
    X(oversubscription, "cluster", "F", NUMBER(oversubscription, 1, 1000),                                             \
      "of a leaf switch's uplinks; default 1 (none)")                                                                  \
    X(leaf_nodes, "cluster", "N", WHOLE32(leaf_nodes, 1, 1000000),                                                     \
      "nodes below one leaf switch, of a rail if rail-optimised; default 1, each climbs to the spine")                 \
    X(strategy, "plan", "ddp|zero1|zero2|zero3|full_shard|shard_grad_op|hybrid_shard|all",                             \
      PARSED(plan.strategy, strategy),                                                                                 \
      "what is sharded; all, or several with commas between: dtplan plan compares them; default full_shard")           \
    X(runtime, "plan", "torch|deepspeed|megatron|dtplan", PARSED(plan.runtime, runtime),                               \
      "whose rules; default torch, for zero2 deepspeed")                                                               \
    X(compile, "plan", NULL, SWITCH(plan.compile), "torch.compile of each block; default false")                       \
    X(compile_loss, "plan", NULL, SWITCH(plan.compile_loss), "with compile: of the loss too; default true")            \
    X(fsdp1, "plan", NULL, SWITCH(plan.fsdp1), "FullyShardedDataParallel instead of fully_shard; default false")       \
    X(limit_all_gathers, "plan", NULL, SWITCH(plan.limit_all_gathers),                                                 \
      "of FSDP1: the host waits for gathered units to be freed; default true")                                         \
    X(shard_group, "plan", "N", WHOLE32(plan.shard_group, 1, 1000000),                                                 \
      "GPUs that share one copy; default all, hybrid_shard a node")                                                    \
    X(tp, "plan", "N", WHOLE32(plan.tp, 1, 1000000), "tensor parallel GPUs (runtime megatron); default 1")             \
    X(pp, "plan", "N", WHOLE32(plan.pp, 1, 1000000), "pipeline stages (runtime megatron); default 1")                  \
    X(cp, "plan", "N", WHOLE32(plan.cp, 1, 1000000), "context parallel; only 1 so far")                                \
    X(sequence_parallel, "plan", NULL, SWITCH(plan.sequence_parallel),                                                 \
      "with tp: norms and residual stream are spread as well; default true")                                           \
    X(tp_overlap, "plan", NULL, SWITCH(plan.tp_overlap), "with tp: its collectives beside matmuls; default false")     \
    X(virtual_stages, "plan", "N", WHOLE32(plan.virtual_stages, 1, 100000),                                            \
      "with pp: chunks of the model per GPU, interleaved; default 1")                                                  \
    X(megatron_overlap, "plan", NULL, SWITCH(plan.megatron.overlap),                                                   \
      "Megatron's overlap_grad_reduce and overlap_param_gather; default false")                                        \
    X(micro_batch, "plan", "N", WHOLE32(plan.micro_batch, 1, 1000000), "sequences per GPU per micro-step; default 1")  \
    X(accumulate, "plan", "N", WHOLE32(plan.accumulate, 1, 1000000), "micro-steps per optimizer step; default 1")      \
    X(global_batch, "plan", "N", WHOLE64(global_batch, 1, 1000000000000), "sequences per step; sets accumulate")       \
    X(global_batch_tokens, "plan", "N", BINARY64(global_batch_tokens, 1, 1000000000000000),                            \
      "the same in tokens, 4M = 4194304; a multiple of seq")                                                           \
    X(accumulate_sync, "plan", NULL, SWITCH(plan.accumulate_sync),                                                     \
      "reduce gradients in every micro-step; default false (no_sync)")                                                 \
    X(seq, "plan", "N", BINARY64(plan.sequence, 1, 100000000),                                                         \
      "tokens per sequence, 8k = 8192; default 2048, or the position table where that is shorter")                     \
    X(checkpointing, "plan", "none|full|every-N|selective|selective-attention", PARSED(plan, checkpointing),           \
      "activations recomputed in backward; default none")                                                              \
    X(offload, "plan", "none|optimizer|params|nvme", PARSED(plan.offload, offload),                                    \
      "sharded state kept on the host; default none")                                                                  \
    X(precision, "plan", "fp32|bf16-mixed|bf16|bf16-pure|fp16-mixed|fp8-tensorwise|fp8-rowwise",                       \
      PARSED(plan.precision, precision), "recipe of number formats; default bf16-mixed")                               \
    X(param_dtype, "plan", "DTYPE", PARSED(plan.precision.params, dtype), "stored parameters")                         \
    X(compute_dtype, "plan", "DTYPE", PARSED(plan.precision.compute, dtype), "matmuls and activations")                \
    X(reduce_dtype, "plan", "DTYPE", PARSED(plan.precision.reduce, dtype), "gradients in reduction")                   \
    X(master_dtype, "plan", "DTYPE", PARSED(plan.precision.master, dtype), "the optimizer's copy of parameters")       \
    X(moment_dtype, "plan", "DTYPE", PARSED(plan.precision.moments, dtype), "Adam's moments")                          \
    X(fp8_all_gather, "plan", NULL, SWITCH(plan.precision.fp8_all_gather),                                             \
      "gather weights in fp8 (FSDP2, tensorwise); default true with fp8-tensorwise")                                   \
    X(attention, "plan", "flash|math|flash2|flash1", PARSED(plan.attention, attention),                                \
      "attention kernel; default flash, the fastest fused one")                                                        \
    X(loss, "plan", "eager|fused|chunked", PARSED(plan.loss, loss), "cross entropy; default eager")                    \
    X(optimizer, "plan", "adamw|adamw-foreach|sgd|adam8bit", PARSED(plan.optimizer, optimizer),                        \
      "optimizer; default adamw (fused)")                                                                              \
    X(wrap_layers, "plan", "N", WHOLE32(plan.wrap_layers, 0, 100000), "layers per sharded unit, 0 = all; default 1")   \
    X(reshard_after_forward, "plan", NULL, SWITCH_OR(plan.reshard_after_forward, reshard_group),                       \
      "free gathered weights after forward; follows strategy, for hybrid_shard default true; =N of FSDP2: keep 1/N")   \
    X(keep_root, "plan", NULL, SWITCH(plan.keep_root),                                                                 \
      "FSDP2's root unit stays gathered from forward to backward; default false")                                      \
    X(ddp_bucket_mib, "plan", "MIB", PARSED(plan.ddp_bucket_bytes, mib), "bucket_cap_mb of ddp; default 25")           \
    X(ddp_bucket_view, "plan", NULL, SWITCH(plan.ddp_bucket_view), "gradient_as_bucket_view of ddp; default false")    \
    X(deepspeed_overlap, "plan", NULL, SWITCH(plan.deepspeed.overlap_comm),                                            \
      "overlap_comm; default true with zero3 only")                                                                    \
    X(reduce_bucket_size, "plan", "N", WHOLE64(plan.deepspeed.reduce_bucket_size, 1, 1000000000000),                   \
      "DeepSpeed's: gradients reduced in one operation, in elements; default 5e8")                                     \
    X(stage3_max_live_parameters, "plan", "N",                                                                         \
      WHOLE64(plan.deepspeed.stage3_max_live_parameters, 0, 1000000000000000),                                         \
      "DeepSpeed zero3's: elements gathered at a time; default 1e9")                                                   \
    X(stage3_max_reuse_distance, "plan", "N", WHOLE64(plan.deepspeed.stage3_max_reuse_distance, 0, 1000000000000000),  \
      "DeepSpeed zero3's: what is used again within so many elements stays gathered; default 1e9")                     \
    X(stage3_prefetch_bucket_size, "plan", "N", WHOLE64(plan.deepspeed.stage3_prefetch_bucket_size, 0, 1000000000000), \
      "DeepSpeed zero3's: elements prefetched in one operation; default 5e7")                                          \
    X(stage3_param_persistence_threshold, "plan", "N",                                                                 \
      WHOLE64(plan.deepspeed.stage3_param_persistence_threshold, 0, 1000000000000),                                    \
      "DeepSpeed zero3's: tensors of at most so many elements are never given back; default 1e5")                      \
    X(zero_hpz_partition_size, "plan", "N", WHOLE32(plan.deepspeed.zero_hpz_partition_size, 1, 1000000),               \
      "DeepSpeed zero3's (ZeRO++): GPUs of a node that share a second copy of the parameters; default 1, none")        \
    X(zero_quantized_weights, "plan", NULL, SWITCH(plan.deepspeed.zero_quantized_weights),                             \
      "DeepSpeed zero3's (ZeRO++): gather weights as int8; default false")                                             \
    X(zero_quantized_gradients, "plan", NULL, SWITCH(plan.deepspeed.zero_quantized_gradients),                         \
      "DeepSpeed zero3's (ZeRO++): reduce gradients as int4 by all-to-all, across nodes; default false")               \
    X(prefetch, "plan", NULL, SWITCH(plan.prefetch), "gather the next unit during the current one; default true")      \
    X(fused_qkv, "plan", NULL, SWITCH(plan.fused_qkv), "one matmul for q, k and v; default false")                     \
    X(fused_gate_up, "plan", NULL, SWITCH(plan.fused_gate_up), "one matmul for gate and up; default false")            \
    X(expandable_segments, "plan", NULL, SWITCH(plan.expandable_segments),                                             \
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; default false")                                               \
    X(rope_fp32, "plan", NULL, SWITCH(plan.rope_fp32),                                                                 \
      "RoPE in fp32, each product a kernel of its own; default false")                                                 \
    X(clip_norm, "plan", "NORM", NUMBER(plan.executor.clip_norm, 0, 1e9),                                              \
      "runtime dtplan: gradients are clipped to this global norm; default 0 (not)")                                    \
    X(gradient_norm, "plan", NULL, SWITCH(plan.executor.gradient_norm),                                                \
      "runtime dtplan: compute the global gradient norm for the log; default false")                                   \
    X(prefetch_depth, "plan", "N", WHOLE32(plan.prefetch_depth, 1, 64),                                                \
      "FSDP2, runtime dtplan: units gathered ahead; default 1")                                                        \
    X(loss_chunk, "plan", "N", BINARY64(plan.executor.loss_chunk, 1, 1000000000),                                      \
      "runtime dtplan: tokens of a chunk of head and loss; default by their bytes")                                    \
    X(gelu_epilogue, "plan", NULL, SWITCH(plan.executor.gelu_epilogue),                                                \
      "runtime dtplan: GELU inside the matmuls; default false")                                                        \
    X(stochastic_rounding, "plan", NULL, SWITCH(plan.executor.stochastic_rounding),                                    \
      "runtime dtplan: of 16-bit weights without a master copy; default false")                                        \
    X(gradient_stream, "plan", NULL, SWITCH(plan.executor.gradient_stream),                                            \
      "runtime dtplan: weight gradients of blocks on a stream of their own; default false")                            \
    X(update_in_backward, "plan", NULL, SWITCH(plan.executor.update_in_backward),                                      \
      "runtime dtplan: a block's optimizer right behind its reduction, its gradients do not wait; default false")      \
    X(cuda_graph, "plan", NULL, SWITCH(plan.executor.cuda_graph),                                                      \
      "runtime dtplan: the step is launched as one CUDA graph; default false")                                         \
    X(atomic_attention, "plan", NULL, SWITCH(plan.executor.atomic_attention),                                          \
      "runtime dtplan: attention's backward a little faster and smaller, its last bits vary; default false")           \
    X(matmul_sms, "plan", "N", WHOLE32(plan.executor.matmul_sms, 0, 1000),                                             \
      "runtime dtplan: SMs that cuBLASLt plans matmuls for; default 0, all of them")                                   \
    X(collective_ctas, "plan", "N", WHOLE32(plan.executor.collective_ctas, 0, 64),                                     \
      "runtime dtplan: SMs a collective may take; default 0, NCCL's choice")                                           \
    X(symmetric_windows, "plan", NULL, SWITCH(plan.executor.symmetric_windows),                                        \
      "runtime dtplan: the arena is a window of NCCL's symmetric kernels; default false")                              \
    X(gather_engine, "plan", "sm|copy", PARSED(plan.executor.gather_engine, engine),                                   \
      "runtime dtplan: weights are gathered by SMs or by copy engines; default sm")                                    \
    X(reduce_engine, "plan", "sm|copy", PARSED(plan.executor.reduce_engine, engine),                                   \
      "runtime dtplan: gradients are reduced by SMs, or exchanged by copy engines and added up, kept in fp32 for an "  \
      "fp32 master on the GPU, in reduce_dtype under offload; default sm")                                             \
    X(price, "money", "USD", NUMBER(plan.price_per_gpu_hour, 1e-3, 1e6),                                               \
      "dollars per GPU-hour; default the catalogue's typical price")                                                   \
    X(tokens, "money", "N", NUMBER(training.tokens, 1, 1e18),                                                          \
      "tokens to train on, 2T: plan adds the whole training's time with failures, money and energy")                   \
    X(deadline, "money", "TIME", PARSED(training.deadline_s, duration), "of the whole training: 30d, 12h, 2w")         \
    X(budget, "money", "USD", NUMBER(training.budget_usd, 1e-2, 1e12), "for the whole training, in dollars: 500k")     \
    X(gpu_mtbf, "money", "TIME", PARSED(training.gpu_mtbf_s, duration),                                                \
      "mean time between failures of one GPU; default 50000h")                                                         \
    X(detection, "money", "TIME", PARSED(training.detection_s, duration), "until a failure is seen; default 10min")    \
    X(restart, "money", "TIME", PARSED(training.restart_s, duration),                                                  \
      "from then until training goes on, reading the checkpoint aside; default 5min")                                  \
    X(storage, "money", "BYTES/S", PARSED(training.storage_bytes_per_s, rate),                                         \
      "rate of the checkpoint storage over all nodes, 20GB; default one node's NVMe, else 83 MB/s a GPU")

/* X(key, word, value, words): what people type elsewhere for a key (value NULL) or for one of its values, each with one
 * meaning. A value of "" depends on other choices, and scenario_resolve.c says how; one that is the word itself is a
 * value of its own, whose meaning is said because elsewhere it has another. */
#define DTP_ALIAS_TABLE(X)                                                                                             \
    X(micro_batch, "batch_size", NULL, "sequences per GPU and micro-step, not of all GPUs")                            \
    X(accumulate, "gradient_accumulation_steps", NULL, "micro-steps per optimizer step")                               \
    X(seq, "sequence_length", NULL, "tokens per sequence")                                                             \
    X(offload, "cpu", "", "params under FSDP, optimizer under ZeRO")                                                   \
    X(precision, "bf16", "bf16", "parameters and gradients in bf16, moments in fp32; autocast is bf16-mixed")          \
    X(precision, "fp16", "fp16-mixed", "fp16-mixed")                                                                   \
    X(precision, "fp8", "fp8-tensorwise", "fp8-tensorwise")

enum dtp_key {
#define DTP_KEY_ENUM(key, section, value, how, words) DTP_KEY_##key,
    DTP_KEY_TABLE(DTP_KEY_ENUM)
#undef DTP_KEY_ENUM
        DTP_KEY_COUNT
};

/* Text of each key and where it was set; value NULL = not given. */
struct dtp_setting {
    char *value, *where;
    size_t line;
    const struct dtp_scenario_alias *alias; /* the other word it was set by; NULL: its own */
};

struct dtp_scenario {
    struct dtp_setting settings[DTP_KEY_COUNT];
    bool without_times;
};

/* Index of a key by its name or another word for it, '-' and '_' alike, or DTP_KEY_COUNT. `alias` (may be NULL) gets
 * that word's row, or NULL. */
enum dtp_key dtp_key_find_word(const char *name, const struct dtp_scenario_alias **alias);
enum dtp_key dtp_key_find(const char *name);
/* The row of a word that people type for a value of this key, or NULL. */
const struct dtp_scenario_alias *dtp_key_value_alias(enum dtp_key key, const char *value);
const char *dtp_key_name(enum dtp_key key);
const char *dtp_key_section(enum dtp_key key);
bool dtp_key_is_switch(enum dtp_key key);

/* Default plan, everything else zero, no oversubscription. */
struct dtp_draft dtp_draft_default(void);
/* Reads `value` into the draft. False when it is no value of this key; `why` then says what one is. */
bool dtp_key_apply(enum dtp_key key, const char *value, struct dtp_draft *draft, char *why, size_t why_bytes);
/* Reads a number as this key does ("8k" is 8192 where the key counts so), whatever its limits. False when it is no
 * number or the key takes none. */
bool dtp_key_parse_number(enum dtp_key key, const char *value, double *out);
/* The value that a key has in a draft; of TEXT keys, which no draft holds, an empty word. */
void dtp_key_value(enum dtp_key key, const struct dtp_draft *draft, struct dtp_job_value *out);
/* Copies a field that lies in draft->transformer to the same field of `out`; other keys change nothing. */
void dtp_key_copy_dimension(enum dtp_key key, const struct dtp_draft *draft, struct dtp_transformer *out);

#endif
