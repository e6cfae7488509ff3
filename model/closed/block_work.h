/* What the device does for one token in one transformer block: matmul shapes, bytes of memory-bound kernels, kernels.
 *
 * Bytes are counted kernel by kernel (reads + writes) for the way each runtime executes a block: eager PyTorch runs
 * every pointwise operation as a kernel of its own; torch.compile, Megatron/TransformerEngine and our executor fuse
 * them into one pass between matmuls. The counts were checked against profiled kernel lists (see block_work.c). */
#ifndef DTP_BLOCK_WORK_H
#define DTP_BLOCK_WORK_H

#include "closed/pass_work.h"
#include "plan/fp8_casts.h"
#include "plan/plan.h"
#include "net/layer_kind.h"

/* One weight matrix: forward is [T rows,k] x [k,n]; `copies` equal ones (of experts, each with its part of the tokens).
 */
struct dtp_weight_matmul {
    double n, k, copies;
    double rows;    /* of a token: 1, of an expert of a rank k / E where all have as many, more on the fullest rank */
    bool grouped;   /* of experts, be it one */
    bool expert;    /* of experts, grouped or called one after the other */
    uint8_t beside; /* of shared experts, 1 + enum dtp_exchange that it works beside; or 0 */
    bool again;     /* it runs again with a part of its layer */
    bool wide;      /* in 16 bits under every recipe of fewer */
    enum dtp_fp8_operand gathered; /* of tensor parallel ranks' rows; DTP_FP8_OPERAND_COUNT: none */
    double rank;                   /* of the adapter beside it */
    double a_rows, b_rows;         /* of its A and B, those that the rank has */
    double folded;                 /* of one that is added to it before it multiplies (lower_folded.c) */
    bool magnitudes;               /* with DoRA's */
    bool frozen;                   /* it has no gradient */
    bool recomputed;               /* under torchtitan's every-second-matmul checkpointing */
    bool ends;                     /* the last of a block, whose result only the sum behind it reads */
};

struct dtp_block_work {
    struct dtp_weight_matmul matmul[DTP_LAYER_MATRICES];
    int matmul_count;
    double forward_bytes_per_token, backward_bytes_per_token; /* memory-bound kernels of one block */
    struct dtp_passes passes;                                 /* of these, by what bounds their kernels */
    double indexed_bytes, outer_bytes; /* of these, of forward's kernels of kind INDEXED, of backward's of OUTER */
    double indexed_back_bytes;         /* of backward's of INDEXED */
    double forward_kernels, backward_kernels; /* launches of one block, matmuls included */
    double root_kernels;                      /* of embedding, head and loss, both ways */
    double table_kernels;                     /* of these, the embedding's, where a pipeline's stages are counted */
    double replayed_kernels;                  /* of a block, both ways: by CUDA graphs (plan/graph_modules.h) */
    double replays;                           /* calls for these */
    double looped_kernels;                    /* beyond the first of each loop over experts, both ways */
    double exchanges, exchanges_again;        /* calls around experts elsewhere, of a forward, of a replay */
    double exchange_s;                        /* of such a call, the host's Python beyond launches */
    double calls_s;                           /* of a block, both ways: other such Python (plan/host_calls.h) */
    bool fused;                               /* pointwise operations are fused */
    double again_bytes;                       /* of parts of a layer that run again: of a token */
    double again_kernels;                     /* of what runs again, launches */
    double layers, layers_again; /* of the model that are such blocks; of these, whose forward runs again */
};

/* Of the model's blocks with such an MLP, of which it may have none. */
struct dtp_block_work dtp_block_work(const struct dtp_transformer *transformer, enum dtp_layer_mlp mlp,
                                     const struct dtp_cluster *cluster, const struct dtp_plan *plan);

/* Adds launches of casts around matmuls in fp8 (fp8_work.c). */
void dtp_fp8_add_launches(const struct dtp_plan *plan, const struct dtp_cluster *cluster,
                          const struct dtp_layer_kind *kind, struct dtp_block_work *work);

/* Host seconds of a block beyond its launches, both ways, of what plan/host_calls.h counts. */
double dtp_block_calls_s(const struct dtp_transformer *transformer, const struct dtp_plan *plan, bool experts);

/* Host seconds of the model's such blocks in a micro-step beyond a launch for each kernel; below 0 where graphs save
 * some. */
double dtp_block_more_host_s(const struct dtp_block_work *work, double launch_s);

/* Bytes of memory-bound kernels per token of logits and cross entropy, forward and backward together. */
double dtp_loss_bytes_per_token(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

#endif
