/* Sizes that runtimes set by themselves and that more than one room counts with: what lowers a step, what bounds or
 * adds up its bytes, what a plan begins with. */
#ifndef DTP_RUNTIME_SIZES_H
#define DTP_RUNTIME_SIZES_H

#include "base/bytes.h"

/* DDP's buckets (bucket_cap_mb=None; torch/nn/parallel/distributed.py): only with that limit is the first smaller. */
#define DTP_DDP_BUCKET_BYTES (UINT64_C(25) << 20)
#define DTP_DDP_FIRST_BUCKET_BYTES (UINT64_C(1) << 20)

/* A norm that ranks sum, of clip_grad_norm_: fp32. */
#define DTP_TORCH_NORM_BYTES UINT64_C(4)

/* Of our executor: a chunk's logits stay below this, large enough that the head's matmuls fill the device and its
 * weight gradient, which each chunk adds to, is a small part of the traffic; cuBLASLt's recommendation for Hopper, one
 * for each stream that runs matmuls. */
#define DTP_EXECUTOR_LOSS_CHUNK_BYTES (UINT64_C(512) << 20)
#define DTP_EXECUTOR_TENSOR_CHUNKS 16u     /* at most, key tp_chunks */
#define DTP_EXECUTOR_LOSS_CHUNK_LEAST 128u /* tokens */
#define DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES (UINT64_C(32) << 20)
/* Rows of a chunk: as asked, or 0 the largest power of two that fits, so that the usual batches divide. */
static inline uint64_t dtp_executor_loss_chunk_rows(uint64_t asked, uint64_t row_bytes)
{
    uint64_t rows = asked ? asked : DTP_EXECUTOR_LOSS_CHUNK_LEAST;
    while (!asked && dtp_bytes_product(2 * rows, row_bytes) <= DTP_EXECUTOR_LOSS_CHUNK_BYTES)
        rows *= 2;
    return rows;
}
/* Transformer Engine's (pytorch/cpp_extensions/gemm.py, get_cublas_workspace): one for linears, four for the streams of
 * grouped matmuls, as large from Hopper on, before that an eighth. */
#define DTP_ENGINE_WORKSPACE_BYTES DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES
#define DTP_ENGINE_WORKSPACES 5

/* A piece of gradients that two stages add up, so that what arrives needs little memory; ours, of every runtime. */
#define DTP_JOINED_PIECE_BYTES (UINT64_C(64) << 20)

/* Megatron pads a vocabulary to a multiple of it (--make-vocab-size-divisible-by), each tensor parallel rank's part. */
#define DTP_MEGATRON_VOCAB_MULTIPLE 128u

/* DeepSpeed's defaults (runtime/zero/config.py, runtime/swap_tensor), in elements unless named otherwise. */
#define DTP_DEEPSPEED_BUCKET UINT64_C(500000000)     /* reduce_bucket_size; stages 1 to 3 */
#define DTP_DEEPSPEED_LIVE UINT64_C(1000000000)      /* stage3_max_live_parameters */
#define DTP_DEEPSPEED_REUSE UINT64_C(1000000000)     /* stage3_max_reuse_distance */
#define DTP_DEEPSPEED_PREFETCH UINT64_C(50000000)    /* stage3_prefetch_bucket_size */
#define DTP_DEEPSPEED_PERSISTENCE UINT64_C(100000)   /* stage3_param_persistence_threshold */
#define DTP_DEEPSPEED_SUB_GROUP UINT64_C(1000000000) /* sub_group_size: what the optimizer works on at a time */
/* What Transformers' Trainer and Accelerate put in the place of "auto" (integrations/deepspeed.py,
 * trainer_config_finalize): times the hidden size, of the first two squared. */
#define DTP_TRAINER_REDUCE_BUCKET 1
#define DTP_TRAINER_PREFETCH 0.9
#define DTP_TRAINER_PERSISTENCE 10
#define DTP_DEEPSPEED_SWAP_BUFFERS 4u                   /* of the largest sub-group: fp32 weight, moments, gradient */
#define DTP_DEEPSPEED_PARAM_BUFFERS UINT64_C(500000000) /* 5 buffers of 1e8 for parameters read from NVMe */

/* Of a step X -> a X + (b X X^T + c (X X^T)^2) X (ns_coefficients). */
#define DTP_NEWTON_SCHULZ_A 3.4445
#define DTP_NEWTON_SCHULZ_B (-4.775)
#define DTP_NEWTON_SCHULZ_C 2.0315
#define DTP_NEWTON_SCHULZ_STEPS 5 /* torch.optim.Muon's ns_steps */

#endif
