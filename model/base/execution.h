/* What a step program carries of the runtime it was made for, beside its operations: who issues them and with whose
 * kernels, who hands out memory, how collectives are carried. Whatever prices, simulates or runs a program reads it
 * here and asks no plan. In its text it is the line `execution` (program_text.h). */
#ifndef DTP_EXECUTION_H
#define DTP_EXECUTION_H

#include "base/dtype.h"
#include "base/fp8_recipe.h"
#include "base/words.h"

/* Whose host code launches kernels, which decides what a launch costs the host (op_cost.h). X(suffix, text) */
#define DTP_ISSUER_TABLE(X)                                                                                            \
    X(PYTORCH, "pytorch")                                                                                              \
    X(MEGATRON, "megatron")                                                                                            \
    X(NATIVE, "native") X(NANOTRON, "nanotron") X(DTENSOR, "dtensor") X(DTENSOR_COMPILED, "dtensor_compiled")
enum dtp_issuer {
#define DTP_ISSUER_ENUM(suffix, text) DTP_ISSUER_##suffix,
    DTP_ISSUER_TABLE(DTP_ISSUER_ENUM)
#undef DTP_ISSUER_ENUM
        DTP_ISSUER_COUNT
};

/* Where buffers come from: segments of PyTorch's caching allocator, of fixed size or growing by pages; or one arena
 * that is placed before the step. X(suffix, text) */
#define DTP_ALLOCATOR_TABLE(X) X(SEGMENTS, "segments") X(EXPANDABLE, "expandable") X(ARENA, "arena")
enum dtp_allocator {
#define DTP_ALLOCATOR_ENUM(suffix, text) DTP_ALLOCATOR_##suffix,
    DTP_ALLOCATOR_TABLE(DTP_ALLOCATOR_ENUM)
#undef DTP_ALLOCATOR_ENUM
        DTP_ALLOCATOR_COUNT
};

/* All 0: PyTorch's kernels in fp32, launched one by one. */
struct dtp_execution {
    enum dtp_issuer issuer;
    enum dtp_allocator allocator;
    enum dtp_dtype compute, reduce; /* of activations and matmuls; of gradients on the wire */
    enum dtp_fp8_recipe fp8_recipe; /* of fp8 matmuls */
    bool own_kernels;               /* this project's, whose rates are calibrated and probed apart */
    bool graph;                     /* the step is launched as one captured graph */
    bool plain_host_adam;           /* AdamW on the host is PyTorch's, not a vectorised one */
    bool one_queue;                 /* kernels of all streams go to the device through one queue, in order */
    bool launch_blocking;           /* the host waits for each kernel before it launches the next */
    bool windows;                   /* collectives find each other's buffers in symmetric windows */
    bool stochastic_rounding;       /* AdamW rounds 16-bit weights by chance */
    uint32_t shards;                /* ranks that share a copy of what is sharded; 0: one */
    uint32_t tensor_ranks;          /* that divide each layer's matrices; 0: one */
    uint32_t tensor_stride;         /* how many of the role's ranks these are apart; 0: neighbours */
    uint32_t shard_stride;          /* the same of ranks that share a copy */
    uint32_t context_ranks;         /* that share each sequence, neighbours among ranks of one slice; 0: one */
    uint32_t context_pieces;        /* of a sequence that each of them has: 1, or 2, one from either end (context.h) */
    uint32_t expert_ranks;          /* that divide each layer's experts, neighbours; 0: one */
    uint32_t expert_modules;        /* number of the first of the modules that have these; 0: there are none */
    uint32_t adapter_modules;       /* number n of the first of the modules of adapters; 0: there are none. Those of
                                       matrices in 4 bits begin at 2 n - 2, behind as many as there are blocks */
    double clip_norm;               /* of gradients; 0: they are not clipped */
    uint32_t matmul_sms;            /* that matmuls are made for; 0: all */
    uint32_t collective_ctas;       /* most that a collective may take; 0: the library's choice */
    uint32_t copied;                /* a bit for each enum dtp_collective that copy engines carry */
};

/* Of what passes of a pipeline send each other under runtime dtplan, fewer where collective_ctas says so. A receive
 * that stands ready holds its thread blocks' SMs until the sender comes, the next pass computing beside it. As many as
 * NCCL takes by itself inside a node (32 of an H200's 132 SMs) made passes 1.26 to 1.36 times as long on two H200
 * (reports/h200, "What a waiting receive takes"); four carry 16 MiB in 0.2 ms. */
#define DTP_PASS_TRANSFER_CTAS 4u

static inline uint32_t dtp_pass_transfer_ctas(uint32_t collective_ctas)
{
    bool fewer = collective_ctas && collective_ctas < DTP_PASS_TRANSFER_CTAS;
    return fewer ? collective_ctas : DTP_PASS_TRANSFER_CTAS;
}

const char *dtp_issuer_text(enum dtp_issuer issuer);
const char *dtp_allocator_text(enum dtp_allocator allocator);

/* Whether copy engines carry it, taking no SM. */
static inline bool dtp_execution_copies(const struct dtp_execution *execution, enum dtp_collective collective)
{
    return execution->copied >> collective & 1;
}

/* Ranks of a group, at most, that store into each other's memory (exec/ranks/nccl_exchange.h). */
#define DTP_PEERS_MOST 16u

/* Ranks that share a copy of a module's state: those that have the same experts are others, for tensor parallel ranks
 * are among those that divide experts. And how many of the role's ranks these are apart. */
static inline uint32_t dtp_execution_shards(const struct dtp_execution *execution, uint64_t module)
{
    const struct dtp_execution *e = execution;
    const uint32_t shards = e->shards ? e->shards : 1, slices = e->tensor_ranks ? e->tensor_ranks : 1,
                   folded = shards > 1 ? shards * slices : 1;
    bool experts = e->expert_modules && module >= e->expert_modules && e->expert_ranks > 1;
    return experts && folded > e->expert_ranks ? folded / e->expert_ranks : experts ? 1 : shards;
}
static inline uint32_t dtp_execution_shard_stride(const struct dtp_execution *execution, uint64_t module)
{
    const struct dtp_execution *e = execution;
    bool experts = e->expert_modules && module >= e->expert_modules;
    return experts ? e->expert_ranks : e->shard_stride ? e->shard_stride : 1;
}

#endif
