/* Whose rules a measured run followed: what its program does where the row says nothing.
 *
 * A run table names the program in its column `framework`. Each entry of the table in run_framework.c says what that
 * program does when nobody asks for anything else; the sources are named there. A guess belongs there, once. */
#ifndef DTP_RUN_FRAMEWORK_H
#define DTP_RUN_FRAMEWORK_H

#include "runs/run_table.h"

/* What "selective" checkpointing means to a framework. */
enum dtp_run_selective {
    DTP_SELECTIVE_ATTENTION,
    DTP_SELECTIVE_MATMUL,
    DTP_SELECTIVE_EVERY_SECOND_BLOCK,
    DTP_SELECTIVE_POINTWISE
};

struct dtp_run_framework {
    const char *word;     /* in the framework's text, any case; the first entry that fits counts */
    const char *note;     /* in the notes too; NULL = any */
    const char *source;   /* in its source; NULL = any */
    const char *strategy; /* its strategy_key; NULL = any */
    const char *runtime;
    const char *optimizer, *loss;
    const char *attention; /* its fused kernel; unfused where flash_attention is 0 */
    const char *dtype;     /* where the row states none; NULL = bf16 */
    uint64_t packed;       /* tokens of packed sequences where a row states none; 0: unknown */
    double lora_dropout;   /* of what adapters read */
    double dropout;        /* of Megatron's layers */
    const char *reduce;    /* dtype of gradients on the wire under bf16 compute; NULL = the precision recipe's */
    const char *fp8;       /* its precision where a row says fp8 and no more; NULL = fp8-tensorwise */
    /* Precisions, apart by blanks, whose weights Megatron's recipe keeps as casts, and those in which its optimizer is
     * precision-aware; NULL: none. Whether such an optimizer keeps moments in bf16. */
    const char *fp8_weights, *aware_precisions;
    bool bf16_moments;
    enum dtp_run_selective selective;
    bool overlaps;             /* collectives of Megatron's data and tensor parallel ranks, beside compute */
    bool scatter_gather;       /* between Megatron's stages; without sequence parallelism */
    bool sequence_parallel;    /* with tensor parallelism, unless the row says otherwise */
    bool unfused_unless_asked; /* an empty flash_attention means none */
    bool fsdp_syncs_always;    /* reduces in every micro-step of an accumulation */
    bool fsdp1, fused_matmuls;
    bool names_fsdp;        /* in the framework's text, of one rank too: a row whose text does not has none */
    bool reference_script;  /* of the H200 runs: its initialisation, its process group of one rank too */
    bool megatron_layers;   /* under DeepSpeed's engine */
    bool bf16_optimizer;    /* of which bf16 gradients are summed in fp32 */
    bool untied_head;       /* the head has weights of its own, whatever its family's do */
    bool rope_fp32;         /* written as fp32 halves, each product a kernel */
    bool norm_chain;        /* eager RMSNorm is a chain of operators */
    bool hold_logits;       /* the loop holds logits in fp32 from step to step */
    bool keeps_root;        /* FSDP2's root unit stays gathered from forward to backward */
    bool wraps_ends;        /* or its two ends are units of their own, of which norm with head does */
    bool counts_ends;       /* of a pipeline's stages embedding and head count as one layer each */
    const char *single;     /* strategy of one GPU under DeepSpeed; NULL = zero1 */
    bool deepspeed_overlap; /* under it overlap_comm, and elements of its buckets; 0 = its default */
    uint64_t reduce_bucket;
    bool shifted_logits;  /* Transformers' loss reads a copy of the logits without the last token */
    bool narrow_logits;   /* logits stay as the head made them */
    bool notes_settings;  /* notes have the library's settings by their names (run_libraries.c) */
    bool narrow_adapters; /* of 16 bits beside a base in 16 bits */
    bool gptq_operators;  /* int4 is unpacked by operators */
    bool logs_reserved;   /* a figure without a kind is what the allocator reserved, which the program prints */
    bool logs_no_memory;  /* neither the program nor its trainer prints what it holds: a figure without a kind is the
                             driver's */
    bool clips;           /* gradients are clipped to a norm of 1 where nobody asks for anything else */
    bool eager_loss;      /* compile leaves the loss alone */
};

/* Where a figure of memory without a kind comes from: UNLOGGED under a program that prints none, else UNSTATED. */
enum dtp_run_memory dtp_run_unstated_memory(const char *framework);

/* The first entry that fits the row's words, PyTorch's where none else does. NULL with a fault: a program whose runs
 * none of the runtimes describes. */
const struct dtp_run_framework *dtp_run_framework_of(const struct dtp_run *run, struct dtp_faults *faults);

#endif
