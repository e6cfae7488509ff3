/* Words of the text form that no other module spells. */
#ifndef DTP_PROGRAM_TEXT_WORDS_H
#define DTP_PROGRAM_TEXT_WORDS_H

#include "cost/op_cost.h"

/* Numbers of struct dtp_demand under their keys. */
#define DTP_DEMAND_TABLE(X)                                                                                            \
    X(flops) X(m) X(n) X(k) X(bytes) X(elements) X(column_sums) X(sent_bytes) X(tokens) X(epsilon) X(scale)

/* Whole numbers of its attention shape, and the most that each may be. */
#define DTP_ATTENTION_TABLE(X)                                                                                         \
    X(heads, UINT32_MAX)                                                                                               \
    X(kv_heads, UINT32_MAX)                                                                                            \
    X(head_dim, UINT32_MAX)                                                                                            \
    X(value_dim, UINT32_MAX)                                                                                           \
    X(window, UINT32_MAX)                                                                                              \
    X(queries, DTP_BUFFER_MAX_BYTES)                                                                                   \
    X(keys, DTP_BUFFER_MAX_BYTES)

/* Flags of struct dtp_execution, and its numbers. */
#define DTP_EXECUTION_FLAGS(X)                                                                                         \
    X(own_kernels) X(graph) X(plain_host_adam) X(one_queue) X(launch_blocking) X(windows) X(stochastic_rounding)
#define DTP_EXECUTION_NUMBERS(X)                                                                                       \
    X(matmul_sms)                                                                                                      \
    X(collective_ctas)                                                                                                 \
    X(shards)                                                                                                          \
    X(tensor_ranks)                                                                                                    \
    X(tensor_stride)                                                                                                   \
    X(shard_stride)                                                                                                    \
    X(context_ranks)                                                                                                   \
    X(context_pieces)                                                                                                  \
    X(expert_ranks)                                                                                                    \
    X(expert_modules)                                                                                                  \
    X(adapter_modules)

/* By enum dtp_space, enum dtp_attention and enum dtp_memory_kernel. */
#define DTP_SPACE_WORDS                                                                                                \
    {                                                                                                                  \
        "device", "host", "storage"                                                                                    \
    }
#define DTP_ATTENTION_KERNEL_WORDS                                                                                     \
    {                                                                                                                  \
        "flash", "math", "flash2", "flash1"                                                                            \
    }
#define DTP_MEMORY_KERNEL_WORDS                                                                                        \
    {                                                                                                                  \
        "eager", "fused", "streaming", "indexed", "outer", "transposing", "columns", "narrow_update", "pass",          \
            "unpacking"                                                                                                \
    }
_Static_assert(sizeof((const char *const[])DTP_ATTENTION_KERNEL_WORDS) / sizeof(char *) == DTP_ATTENTION_COUNT,
               "a word for each kernel of attention");
_Static_assert(sizeof((const char *const[])DTP_MEMORY_KERNEL_WORDS) / sizeof(char *) == DTP_MEMORY_KERNEL_COUNT,
               "a word for each memory-bound kernel");

#endif
