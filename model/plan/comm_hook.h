/* Communication hooks of PyTorch's DDP (torch.distributed.algorithms.ddp_comm_hooks): what is sent in place of a bucket
 * of gradients.
 *
 * - fp16, bf16: the bucket cast to 16 bits is all-reduced, divided by the ranks and cast back (default_hooks.py).
 *
 * - int8: bytes with a range are gathered, of all ranks, and each adds them up (quantization_hooks.py). PyTorch's
 *   quantization_pertensor_hook: a range a bucket, in a gather of its own. Runtime dtplan: a range each DTP_INT8_RUN
 *   elements, as its quantization_perchannel_hook, which launches kernels run by run; the ranges go with the bytes.
 *   Both send (n - 1) times what a rank has, where a ring's sum sends 2 (n - 1) / n times: beyond 8 ranks more than
 * fp32.
 *
 * - powersgd: each matrix M [n, m] with (n + m) r 2 < n m becomes P = M Q [n, r] and Q = M^T P [m, r], P and Q are
 *   all-reduced, M = P Q^T; everything else of the bucket is all-reduced as it is (powerSGD_hook.py,
 *   min_compression_rate 2; Vogels et al. 2019, arXiv:1905.13727). Error feedback and warm start, as by default: what
 *   was lost and the factors stay from step to step. Steps before start_powerSGD_iter, which send whole buckets, are
 *   predicted apart (reports). */
#ifndef DTP_COMM_HOOK_H
#define DTP_COMM_HOOK_H

#include "plan/plan.h"

/* The least by which PowerSGD must shrink a matrix (min_compression_rate). */
#define DTP_POWERSGD_RATE 2
/* Streams of PyTorch's pool, on which its matmuls run in turn (c10/cuda/CUDAStream.cpp, kStreamsPerPool). */
#define DTP_POWERSGD_STREAMS 32
/* Kernels of a column that is orthogonalised (norm, sum, quotient), and of each column behind it (product, sum,
 * product, difference): _orthogonalize_gram_schmidt of powerSGD_hook.py. */
#define DTP_POWERSGD_COLUMN_KERNELS 3
#define DTP_POWERSGD_OTHERS_KERNELS 4
/* The largest rank that goes column by column; above stands torch.linalg.qr. */
#define DTP_POWERSGD_COLUMNS 2

/* Elements that share a range under runtime dtplan; and bytes of a part: two floats a run, a byte an element, up to a
 * multiple of what NCCL moves at once. */
#define DTP_INT8_RUN 512u
#define DTP_INT8_ALIGNMENT 128u
uint64_t dtp_int8_part_bytes(uint64_t elements);

/* What PowerSGD makes of gradients: elements of all P, of all Q, of what is sent whole; matrices that are factored. */
struct dtp_factored {
    uint64_t p, q, whole, matrices;
};

/* The rank that a matrix is factored with; 0: it is sent as it is. */
uint64_t dtp_factored_rank(uint64_t rows, uint64_t columns, uint64_t rank);
/* Adds `tensors` equal ones of `elements` together, matrices of `columns` columns; 0: vectors. rank > 0. */
void dtp_factored_add(struct dtp_factored *factored, uint64_t elements, uint64_t columns, uint64_t tensors,
                      uint64_t rank);
static inline uint64_t dtp_factored_elements(const struct dtp_factored *factored)
{
    return factored->p + factored->q + factored->whole;
}

/* Bytes that kernels of the hook move for each element of a bucket whose gradients have `grad_bytes`:
 *   fp16, bf16   cast (g + 2), division (2 + 2), cast back (2 + g)
 *   int8         ends of the range g; quotient, round, code of 0, clamp, cast 9 g + 1; of n ranks' bytes copies out of
 *                the gathered ones and zeros 3, of these difference and product (1 + g) + 2 g + 2 g, sum 3 g; zeros g,
 *                division 2 g
 *   powersgd     error added 3 g, copy 2 g, read for P and for Q 2 g, written from both g, what is lost 3 g */
double dtp_comm_hook_bytes(const struct dtp_plan *plan, uint64_t ranks, double grad_bytes);
/* A hook's plans that are not modelled, refused. */
struct dtp_resolver;
void dtp_plan_check_comm_hook(struct dtp_resolver *r);

#endif
