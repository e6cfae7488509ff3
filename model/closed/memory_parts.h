/* The parts of what stands beside a step program (memory.h), for `dtplan explain`: nothing is computed twice, the
 * record is kept while it is added up, where one is asked for. What a program's tensors take is explained from the
 * program. */
#ifndef DTP_MEMORY_PARTS_H
#define DTP_MEMORY_PARTS_H

#include "base/bytes.h"
#include "closed/memory.h"

#include <stddef.h>

/* X(enum suffix, words, the three factors in symbols: count, elements, bytes; source). A factor without a symbol is 1.
 * psi parameters, N shard ranks, P parameters of a layer. */
#define DTP_MEMORY_TERM_TABLE(X)                                                                                       \
    X(TENSORS, "tensors, as above", "", "", "bytes", "")                                                               \
    X(COMPUTE_POOL, "compute stream's pool at its own peak", "", "", "bytes", "PyTorch: CUDACachingAllocator.cpp")     \
    X(GATHER_POOL, "all-gather stream's pool at its own peak", "", "", "bytes", "PyTorch: CUDACachingAllocator.cpp")   \
    X(REDUCE_POOL, "reduction stream's pool at its own peak", "", "", "bytes", "PyTorch: CUDACachingAllocator.cpp")    \
    X(OTHER_POOLS, "pools of other streams at theirs", "", "", "bytes", "PyTorch: CUDACachingAllocator.cpp")           \
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
    X(NCCL_TRANSFERS, "NCCL, neighbours in a pipeline", "ways", "", "nccl_transfer_bytes", "measured (see constants)") \
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
    X(HOST_CHECKPOINTS, "checkpoints", "copies", "", "pinned bytes", "PyTorch: CachingHostAllocator.h")                \
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
#define DTP_MEMORY_TERM_ENUM(suffix, words, count, elements, bytes, source) DTP_TERM_##suffix,
    DTP_MEMORY_TERM_TABLE(DTP_MEMORY_TERM_ENUM)
#undef DTP_MEMORY_TERM_ENUM
        DTP_TERM_COUNT
};

#define DTP_MEMORY_FACTORS 3

struct dtp_memory_term_words {
    const char *words;
    const char *factors[DTP_MEMORY_FACTORS]; /* count, elements, bytes; "": always 1 */
    const char *source;
};
extern const struct dtp_memory_term_words dtp_memory_terms[DTP_TERM_COUNT];

struct dtp_memory_part {
    enum dtp_memory_term term;
    uint64_t factors[DTP_MEMORY_FACTORS]; /* count, elements, bytes */
    uint64_t bytes;                       /* their product */
};

/* A sum in the order that its parts were added. */
#define DTP_MEMORY_PARTS 16 /* the longest is of host memory, of eight */
struct dtp_memory_list {
    struct dtp_memory_part part[DTP_MEMORY_PARTS];
    size_t count;
};

struct dtp_memory_parts {
    struct dtp_memory_list reserved; /* reserved_peak_bytes of a GPU */
    struct dtp_memory_list driver;   /* context_bytes + nccl_bytes */
    struct dtp_memory_list host;     /* host_bytes of a node / its GPUs */
    struct dtp_memory_list nvme;
    uint64_t node_gpus; /* GPUs that share a node's host memory and NVMe */
};

/* The bytes of one part, kept where a list is given; 0 bytes are no part. Products of parameters and bytes cannot wrap,
 * whatever passed dtp_plan_resolve. */
uint64_t dtp_memory_part(struct dtp_memory_list *list, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                         uint64_t element_bytes);

#endif
