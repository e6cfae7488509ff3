/* The parts that dtp_closed_form_memory adds up, for `dtplan explain`: nothing here is computed twice, the closed form
 * keeps this record while it works, where one is asked for.
 *
 * Every byte passes dtp_memory_part as a term of the tables below and three factors. A part knows the one added before
 * it, so that a sum is a chain that ends at its newest part, and an instant copied from another shares the parts they
 * have in common: what stood at the peak is found by going back from one number. */
#ifndef DTP_MEMORY_PARTS_H
#define DTP_MEMORY_PARTS_H

#include "base/bytes.h"
#include "closed/closed_form.h"

#include <stddef.h>

/* Tensors: X(enum suffix, owner, words, the three factors in symbols: count, elements, bytes; source).
 * A factor without a symbol is 1. psi parameters, N shard ranks, T tokens of a micro-step, P parameters of a layer,
 * h hidden, f ffn, V vocabulary, s sequence. */
#define DTP_TENSOR_TERM_TABLE(X)                                                                                       \
    X(PARAMS, PARAMS, "at rest", "", "psi", "parameter bytes", "")                                                     \
    X(PARAMS_SHARD, PARAMS, "at rest", "", "padded psi / N", "parameter bytes", "")                                    \
    X(MOMENTS, OPTIMIZER, "moments", "", "psi", "moment bytes", "")                                                    \
    X(MOMENTS_SHARD, OPTIMIZER, "moments", "", "padded psi / N", "moment bytes", "")                                   \
    X(MASTER, OPTIMIZER, "master copy", "", "psi", "master bytes", "")                                                 \
    X(MASTER_SHARD, OPTIMIZER, "master copy", "", "padded psi / N", "master bytes", "")                                \
    X(GRADS_MADE, GRADS, "made so far", "", "(V h + layers x P)", "gradient bytes", "")                                \
    X(GRADS_KEPT, GRADS, "of earlier micro-steps", "", "psi", "gradient bytes", "")                                    \
    X(GRADS_BUCKETS, GRADS, "DDP's buckets", "", "psi", "gradient bytes", "PyTorch: reducer.cpp")                      \
    X(GRADS_BUFFER, GRADS, "buffer", "", "psi", "gradient bytes", "Megatron-Core: param_and_grad_buffer.py")           \
    X(GRADS_SHARD, GRADS, "all, sharded", "", "padded psi / N", "gradient bytes", "")                                  \
    X(GRADS_WHOLE, GRADS, "whole, not reduced yet", "", "(psi - layers x P)", "reduce bytes",                          \
      "PyTorch: _fsdp_param_group.py")                                                                                 \
    X(GRADS_AS_MADE, GRADS, "whole, not reduced yet", "", "(psi - layers x P)", "compute bytes",                       \
      "PyTorch: fsdp/_flat_param.py")                                                                                  \
    X(GRADS_REDUCED, GRADS, "layers already reduced", "layers", "padded P / N", "gradient bytes",                      \
      "PyTorch: _fsdp_collectives.py")                                                                                 \
    X(LAYERS_SAVED, ACTIVATIONS, "layers", "layers", "T", "saved bytes", "PyTorch: derivatives.yaml")                  \
    X(LAYERS_KEPT, ACTIVATIONS, "checkpointed layers", "layers", "T", "kept bytes", "PyTorch: checkpoint.py")          \
    X(BLOCK, ACTIVATIONS, "the layer at work", "", "T", "bytes of a token", "PyTorch: derivatives.yaml")               \
    X(HEAD, ACTIVATIONS, "final norm and its input", "", "T", "bytes of a token", "PyTorch: derivatives.yaml")         \
    X(EMBEDDING_NORM, ACTIVATIONS, "input of the embedding's norm", "", "T", "bytes of a token",                       \
      "PyTorch: derivatives.yaml")                                                                                     \
    X(LOGITS, LOGITS, "logits", "", "T", "bytes of a token", "")                                                       \
    X(LOSS, LOGITS, "cross entropy at its worst", "", "T", "bytes of a token", "PyTorch: derivatives.yaml")            \
    X(LOGITS_GRADIENT, LOGITS, "gradient of the logits", "", "T", "bytes of a token", "")                              \
    X(LAYER_CASTS, WEIGHTS, "layers cast by autocast", "layers", "weights and biases", "compute bytes",                \
      "PyTorch: autocast_mode.cpp")                                                                                    \
    X(BLOCK_CASTS, WEIGHTS, "casts of the layer at work", "", "weights and biases", "compute bytes",                   \
      "PyTorch: autocast_mode.cpp")                                                                                    \
    X(HEAD_CAST, WEIGHTS, "head cast by autocast", "", "V h", "compute bytes", "PyTorch: autocast_mode.cpp")           \
    X(FP8_CASTS, WEIGHTS, "fp8 casts by rows and columns", "2 x layers", "matrices", "1 B",                            \
      "Transformer Engine: module/linear.py")                                                                          \
    X(GATHERED_ROOT, WEIGHTS, "embedding, norm and head", "", "padded root", "compute bytes", "")                      \
    X(GATHERED_LAYERS, WEIGHTS, "layers gathered", "layers", "padded P", "compute bytes",                              \
      "PyTorch: _fsdp_param_group.py")                                                                                 \
    X(GATHERED_FP8, WEIGHTS, "saved by fp8 matrices", "layers", "matrices", "(compute bytes - 1)",                     \
      "torchao: fsdp_utils.py")                                                                                        \
    X(LIVE, WEIGHTS, "live parameters", "", "max_live_parameters", "compute bytes", "DeepSpeed: stage3.py")            \
    X(FLAT_ROOT, GATHER, "flat buffer of the root", "", "padded root", "compute bytes",                                \
      "PyTorch: _fsdp_collectives.py")                                                                                 \
    X(FLAT_LAYERS, GATHER, "flat buffer of a unit", "layers", "padded P", "compute bytes",                             \
      "PyTorch: _fsdp_collectives.py")                                                                                 \
    X(FLAT_FP8, GATHER, "saved by fp8 matrices", "layers", "matrices", "(compute bytes - 1)",                          \
      "torchao: fsdp_utils.py")                                                                                        \
    X(POST_FORWARD_LAYERS, WEIGHTS, "layers, shards of the smaller group", "layers", "padded P / n", "compute bytes",  \
      "PyTorch: _fsdp_param.py")                                                                                       \
    X(POST_FORWARD_ROOT, WEIGHTS, "root, shard of the smaller group", "", "padded root / n", "compute bytes",          \
      "PyTorch: _fsdp_param.py")                                                                                       \
    X(ARRIVING_SHARD, GATHER, "own shard of the next unit", "layers", "padded P / N", "stored and compute bytes",      \
      "PyTorch: _fsdp_param.py")                                                                                       \
    X(CAST_SHARD, GATHER, "own shard, cast", "", "", "flat bytes / N", "PyTorch: _fsdp_param.py")                      \
    X(UPLOADED_LAYERS, GATHER, "own shards, from the host, and cast", "layers", "padded P / N",                        \
      "stored and compute bytes", "PyTorch: _fsdp_param.py")                                                           \
    X(UPLOADED_SHARD, GATHER, "own shard, from the host", "", "", "parameter bytes x root / N",                        \
      "PyTorch: _fsdp_param.py")                                                                                       \
    X(BESIDE_BUCKETS, REDUCE, "gradients beside their buckets", "", "psi or those made", "gradient bytes",             \
      "PyTorch: reducer.cpp")                                                                                          \
    X(REDUCE_BUCKETS, REDUCE, "reduction buckets", "buckets", "reduce_bucket_size", "gradient bytes",                  \
      "DeepSpeed: zero/config.py")                                                                                     \
    X(FLAT_BUCKET, REDUCE, "flattened bucket", "", "reduce_bucket_size", "gradient bytes",                             \
      "DeepSpeed: zero/stage_1_and_2.py")                                                                              \
    X(CARRIED_GRADIENT, REDUCE, "buffer for gradients of the host", "", "largest parameter", "gradient bytes",         \
      "DeepSpeed: zero/stage_1_and_2.py")                                                                              \
    X(SECOND_COPY, WEIGHTS, "second copies", "", "psi / n", "compute bytes",                                           \
      "DeepSpeed: zero/partition_parameters.py")                                                                       \
    X(NEXT_GRADIENT, REDUCE, "gradient that did not fit the bucket", "", "elements", "gradient bytes",                 \
      "DeepSpeed: runtime/zero/")                                                                                      \
    X(BUCKET_BY_RANK, REDUCE, "bucket laid out by rank", "", "reduce_bucket_size", "gradient bytes",                   \
      "DeepSpeed: coalesced_collectives.py")                                                                           \
    X(PERSISTENT, WEIGHTS, "persistent parameters", "", "psi of small tensors", "compute bytes",                       \
      "DeepSpeed: zero/parameter_offload.py")                                                                          \
    X(HEAD_GRADIENT, REDUCE, "gradient of the head", "", "V h", "compute bytes", "")                                   \
    X(HEAD_EMBEDDING_GRADIENTS, REDUCE, "gradients of head and embedding", "2", "V h", "compute bytes", "")            \
    X(POSITION_GRADIENT, REDUCE, "gradient of the positions", "", "positions h", "compute bytes", "")                  \
    X(TIED_HEAD_GRADIENT, REDUCE, "gradient of the tied head", "", "V h", "gradient bytes", "PyTorch: reducer.cpp")    \
    X(CAST_GRADIENT, REDUCE, "gradient of the head, cast for its bucket", "", "V h", "gradient bytes",                 \
      "PyTorch: autocast_mode.cpp")                                                                                    \
    X(EMBEDDING_GRADIENT, REDUCE, "gradient of the embedding", "copies", "V h", "gradient bytes", "")                  \
    X(BLOCK_GRADIENTS, REDUCE, "gradients of the layer at work", "", "elements", "bytes of one",                       \
      "PyTorch: _fsdp_param_group.py")                                                                                 \
    X(LAYER_GRADIENTS, REDUCE, "layers' gradients", "layers", "P", "compute bytes", "PyTorch: _fsdp_param_group.py")   \
    X(FLAT_GRADIENTS, REDUCE, "their flat copy", "layers", "P", "compute bytes", "PyTorch: fsdp/_flat_param.py")       \
    X(MODEL_GRADIENTS, REDUCE, "all gradients", "", "psi", "compute bytes", "PyTorch: _fsdp_param_group.py")           \
    X(REDUCE_INPUT, REDUCE, "reduce-scatter input", "layers", "padded P", "reduce bytes",                              \
      "PyTorch: _fsdp_collectives.py")                                                                                 \
    X(REDUCED_OUTPUT, REDUCE, "and its result", "layers", "elements", "bytes with its cast",                           \
      "PyTorch: _fsdp_collectives.py")                                                                                 \
    X(ROOT_GRADIENTS, REDUCE, "root, gradients", "", "root", "compute bytes", "PyTorch: _fsdp_param_group.py")         \
    X(ROOT_INPUT, REDUCE, "root, reduce-scatter input", "", "padded root", "reduce bytes",                             \
      "PyTorch: _fsdp_collectives.py")                                                                                 \
    X(CUBLAS, WORKSPACE, "cuBLAS", "handles", "", "bytes", "PyTorch: CublasHandlePool.cpp")                            \
    X(ROPE_TABLES, WORKSPACE, "RoPE's sine and cosine", "", "s", "4 B x head width", "")                               \
    X(TOKEN_IDS, WORKSPACE, "token ids", "", "T", "8 B", "")                                                           \
    X(STREAM_GRADIENT, WORKSPACE, "gradient of the residual stream", "", "T", "bytes x h", "")                         \
    X(INNER_GRADIENTS, WORKSPACE, "gradients inside the layer", "", "T", "bytes of a token",                           \
      "PyTorch: derivatives.yaml")                                                                                     \
    X(EMBEDDING_SUMS, WORKSPACE, "sums for the embedding's gradient", "", "", "4 B x h x rows",                        \
      "PyTorch: Embedding.cu")                                                                                         \
    X(OUR_LAYERS, ACTIVATIONS, "layers", "layers", "", "bytes of a layer", "")                                         \
    X(OUR_CHECKPOINTED, ACTIVATIONS, "checkpointed layers", "layers", "", "kept bytes of a layer", "")                 \
    X(OUR_BLOCK, ACTIVATIONS, "the layer at work", "", "", "bytes", "")                                                \
    X(OUR_FINAL_NORM, ACTIVATIONS, "final norm and its input", "", "", "bytes", "")                                    \
    X(OUR_LOGITS, LOGITS, "logits of a chunk, losses", "", "", "bytes", "")                                            \
    X(OUR_EDGES, WEIGHTS, "embedding or head, gathered", "", "", "bytes", "")                                          \
    X(OUR_EMBEDDING_GRADS, GRADS, "embedding", "", "", "bytes", "")                                                    \
    X(OUR_LAYER_GRADS, GRADS, "layers", "layers", "", "bytes of a layer", "")                                          \
    X(OUR_HEAD_GRADS, GRADS, "final norm and head", "", "", "bytes", "")                                               \
    X(OUR_EMBEDDING_SHARD, GRADS, "shard of the embedding", "", "", "bytes", "")                                       \
    X(OUR_LAYER_SHARDS, GRADS, "shards of layers", "layers", "", "bytes of a shard", "")                               \
    X(OUR_HEAD_SHARD, GRADS, "shard of final norm and head", "", "", "bytes", "")                                      \
    X(OUR_MOVING, REDUCE, "being written, being reduced", "", "", "bytes", "")                                         \
    X(OUR_SCATTERED, REDUCE, "shard to be added", "", "largest shard", "reduce bytes", "")                             \
    X(OUR_EXCHANGED, REDUCE, "parts to be added up", "", "largest module", "reduce bytes", "")                         \
    X(OUR_STAGING, GATHER, "uploaded shards", "2", "largest shard", "compute bytes", "")                               \
    X(OUR_STANDING, WORKSPACE, "batches, tables, sums", "", "", "bytes", "")                                           \
    X(OUR_WORK, WORKSPACE, "gradients of activations, workspaces", "", "", "bytes", "")                                \
    X(FOREACH, WORKSPACE, "foreach AdamW's sqrt(v)", "", "psi / N", "moment bytes", "PyTorch: optim/adam.py")          \
    X(FP32_GRADIENTS, WORKSPACE, "fp32 gradients for the step", "", "psi / N", "4 B", "DeepSpeed: runtime/zero/")

/* What is no tensor on the GPU, or a tensor elsewhere: X(enum suffix, words, count, elements, bytes, source). */
#define DTP_STORE_TERM_TABLE(X)                                                                                        \
    X(TENSORS, "tensors, as above", "", "", "bytes", "")                                                               \
    X(COMPUTE_POOL, "compute stream's pool at its own peak", "", "", "bytes", "PyTorch: CUDACachingAllocator.cpp")     \
    X(POOL_GRADS, "reduce stream's pool: sharded gradients", "", "padded psi / N", "gradient bytes",                   \
      "PyTorch: CUDACachingAllocator.cpp")                                                                             \
    X(POOL_NEWEST_GRADS, "reduce stream's pool: root and one unit", "", "padded (root + unit) / N", "gradient bytes",  \
      "PyTorch: CUDACachingAllocator.cpp")                                                                             \
    X(POOL_ROOT, "all-gather stream's pool: root", "", "root", "compute bytes", "PyTorch: CUDACachingAllocator.cpp")   \
    X(POOL_CAST, "all-gather stream's pool: root's own shard", "", "", "compute bytes x root / N",                     \
      "PyTorch: CUDACachingAllocator.cpp")                                                                             \
    X(POOL_UNITS, "all-gather stream's pool: units", "units", "P of a unit", "compute bytes",                          \
      "PyTorch: CUDACachingAllocator.cpp")                                                                             \
    X(ROOT_SEGMENT, "root's reduce-scatter input, its own segment", "", "root", "reduce bytes",                        \
      "PyTorch: CUDACachingAllocator.cpp")                                                                             \
    X(REBUILT_BUCKETS, "first buckets of DDP, in pieces", "", "psi", "gradient bytes", "PyTorch: reducer.cpp")         \
    X(FRAGMENTS, "fragments", "", "", "torch_fragmentation x what comes and goes", "fitted on H200 runs")              \
    X(BROKEN_LOGITS, "the last step's logits, broken up", "", "", "logits - state made later",                         \
      "PyTorch: CUDACachingAllocator.cpp")                                                                             \
    X(CONTEXT, "CUDA context", "", "", "context_bytes", "measured (see constants)")                                    \
    X(EXECUTOR_CONTEXT, "CUDA context", "", "", "executor_context_bytes", "measured (see constants)")                  \
    X(NCCL_LIBRARY, "NCCL, library", "", "", "nccl_library_bytes", "measured (see constants)")                         \
    X(NCCL_COMMUNICATORS, "NCCL, communicators", "groups", "", "nccl_communicator_bytes", "measured (see constants)")  \
    X(NCCL_SPLIT, "NCCL, a communicator of some GPUs", "", "", "nccl_split_bytes", "measured (see constants)")         \
    X(NCCL_SOCKETS, "NCCL, communicators on sockets", "", "", "nccl_socket_communicator_bytes",                        \
      "measured (see constants)")                                                                                      \
    X(NCCL_WINDOWS, "NCCL, symmetric windows", "", "", "nccl_window_bytes", "measured (see constants)")                \
    X(NCCL_COPIES, "NCCL, communicators of copies", "groups", "", "nccl_copy_communicator_bytes",                      \
      "measured (see constants)")                                                                                      \
    X(NCCL_ONE_RANK, "NCCL of one rank", "", "", "nccl_one_rank_bytes", "measured (see constants)")                    \
    X(HOST_LAYERS, "parameters and gradients of the layers", "2 x layers", "", "pinned bytes",                         \
      "PyTorch: CachingHostAllocator.h")                                                                               \
    X(HOST_ROOT, "parameters and gradients of the root", "2", "", "pinned bytes", "PyTorch: CachingHostAllocator.h")   \
    X(HOST_PARAMS, "parameters", "", "psi / N", "parameter bytes", "")                                                 \
    X(HOST_STAGING, "staging copy of the parameters", "", "", "pinned bytes", "PyTorch: CachingHostAllocator.h")       \
    X(HOST_FP32, "fp32 master and gradients", "2", "", "pinned bytes", "PyTorch: CachingHostAllocator.h")              \
    X(HOST_PARTITION, "gradients of the partition", "", "", "pinned bytes", "DeepSpeed: runtime/zero/stage3.py")       \
    X(HOST_PINNED_PARAMS, "parameters", "", "", "pinned bytes", "DeepSpeed: runtime/zero/stage3.py")                   \
    X(HOST_MOMENTS, "moments", "", "psi / N", "moment bytes", "")                                                      \
    X(HOST_MASTER, "master copy", "", "psi / N", "master bytes", "")                                                   \
    X(HOST_GRADS, "gradients", "", "psi / N", "gradient bytes", "")                                                    \
    X(OUR_HOST_GRADS, "gradients", "", "", "bytes", "")                                                                \
    X(OUR_HOST_BATCHES, "batches", "micro-steps", "", "bytes", "")                                                     \
    X(OUR_HOST_SCALARS, "scalars", "2", "", "bytes", "")                                                               \
    X(SWAP_BUFFERS, "swap buffers of the optimizer", "buffers", "", "pinned bytes of a sub-group",                     \
      "DeepSpeed: swap_tensor/")                                                                                       \
    X(SWAP_PARAMS, "buffers of parameters on NVMe", "", "", "pinned bytes", "DeepSpeed: swap_tensor/")                 \
    X(NVME_MASTER, "fp32 master copy", "", "psi / N", "4 B", "DeepSpeed: swap_tensor/")                                \
    X(NVME_MOMENTS, "moments", "", "psi / N", "moment bytes", "DeepSpeed: swap_tensor/")                               \
    X(NVME_GRADS, "fp32 gradients", "", "psi / N", "4 B", "DeepSpeed: swap_tensor/")                                   \
    X(NVME_PARAMS, "parameters", "", "psi / N", "parameter bytes", "DeepSpeed: swap_tensor/")

enum dtp_memory_term {
#define DTP_TENSOR_TERM_ENUM(suffix, owner, words, count, elements, bytes, source) DTP_TERM_##suffix,
#define DTP_STORE_TERM_ENUM(suffix, words, count, elements, bytes, source) DTP_TERM_##suffix,
    DTP_TENSOR_TERM_TABLE(DTP_TENSOR_TERM_ENUM) DTP_STORE_TERM_TABLE(DTP_STORE_TERM_ENUM)
#undef DTP_TENSOR_TERM_ENUM
#undef DTP_STORE_TERM_ENUM
        DTP_TERM_COUNT
};

#define DTP_MEMORY_FACTORS 3

/* The words of a term; owner is DTP_OWNER_COUNT where it is no tensor on the GPU. */
struct dtp_memory_term_words {
    enum dtp_owner owner;
    const char *words;
    const char *factors[DTP_MEMORY_FACTORS]; /* count, elements, bytes; "": always 1 */
    const char *source;
};
extern const struct dtp_memory_term_words dtp_memory_terms[DTP_TERM_COUNT];

/* A folded constant where the term is one, so that adding stays as cheap as writing the owner out. */
static inline enum dtp_owner dtp_memory_term_owner(enum dtp_memory_term term)
{
    static const unsigned char owners[] = {
#define DTP_TENSOR_TERM_OWNER(suffix, owner, words, count, elements, bytes, source) DTP_OWNER_##owner,
        DTP_TENSOR_TERM_TABLE(DTP_TENSOR_TERM_OWNER)
#undef DTP_TENSOR_TERM_OWNER
    };
    return (enum dtp_owner)owners[term];
}

struct dtp_memory_part {
    enum dtp_memory_term term;
    bool taken;                           /* away instead of added */
    uint64_t factors[DTP_MEMORY_FACTORS]; /* count, elements, bytes */
    uint64_t bytes;                       /* their product, bounded as dtp_bytes_product does */
    size_t previous;                      /* number of the part added before it in the same sum; 0: it is the first */
};

/* The sums, each of one GPU. */
enum dtp_memory_account {
    DTP_ACCOUNT_PEAK,     /* allocated_peak_bytes, by owner as in phase_bytes of the peak */
    DTP_ACCOUNT_RESERVED, /* reserved_peak_bytes */
    DTP_ACCOUNT_DRIVER,   /* context_bytes + nccl_bytes */
    DTP_ACCOUNT_HOST,     /* host_bytes of a node / its GPUs */
    DTP_ACCOUNT_NVME,
    DTP_ACCOUNT_COUNT
};

/* Of all instants. A plan makes several hundred; the most it could is 20 units of 200 each and those at the ends. */
#define DTP_MEMORY_PARTS 8192

struct dtp_memory_parts {
    struct dtp_memory_part parts[DTP_MEMORY_PARTS + 1]; /* number 0 is none */
    size_t count;
    size_t newest[DTP_ACCOUNT_COUNT]; /* where the chain of each sum ends */
    uint64_t node_gpus;               /* GPUs that share a node's host memory and NVMe */
};

/* dtp_closed_form_memory with its record; NULL: without. */
void dtp_closed_form_memory_parts(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                  const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts);

/* The parts of a sum in the order they were added; returns their number, at most `most`. Borrowed from the record. */
size_t dtp_memory_parts_of(const struct dtp_memory_parts *parts, enum dtp_memory_account account,
                           const struct dtp_memory_part **out, size_t most);

/* ---- for the closed form ---------------------------------------------------------------------------------------- */

/* The end of a sum's chain. */
struct dtp_part_chain {
    struct dtp_memory_parts *record; /* NULL: nobody asked for one */
    size_t newest;
};

void dtp_memory_part_keep(struct dtp_part_chain *chain, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                          uint64_t element_bytes, uint64_t bytes);

/* The bytes of one part, kept where a record is asked for. All sums of the closed form are made of these.
 * Products of parameters and bytes cannot wrap, whatever passed dtp_plan_resolve. */
static inline uint64_t dtp_memory_part(struct dtp_part_chain *chain, enum dtp_memory_term term, uint64_t count,
                                       uint64_t elements, uint64_t element_bytes)
{
    uint64_t bytes = count * elements * element_bytes;
    if (chain->record)
        dtp_memory_part_keep(chain, term, count, elements, element_bytes, bytes);
    return bytes;
}

/* The same where elements are tokens, of which a careless plan can have any number. */
static inline uint64_t dtp_memory_tokens_part(struct dtp_part_chain *chain, enum dtp_memory_term term, uint64_t count,
                                              uint64_t tokens, uint64_t token_bytes)
{
    uint64_t bytes = dtp_bytes_product(tokens, dtp_bytes_product(count, token_bytes));
    if (chain->record)
        dtp_memory_part_keep(chain, term, count, tokens, token_bytes, bytes);
    return bytes;
}

#endif
