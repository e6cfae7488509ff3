/* What attention needs beside its operands: one rule, for the program that declares the buffer and the executor that
 * checks what cuDNN asks against it. */
#ifndef DTP_ATTENTION_WORKSPACE_H
#define DTP_ATTENTION_WORKSPACE_H

#include "plan/plan.h"

/* Parts of a workspace begin at multiples of this. */
#define DTP_WORKSPACE_ALIGNMENT 256u
/* Of the gradient of the scores that a deterministic backward keeps at a time, unless one group of heads takes more. */
#define DTP_ORDERED_SCORES_BYTES (1u << 30)

/* Whether cuDNN's flash attention computes a shape: bf16 or fp16, heads of up to 128 elements in whole 16 bytes, and
 * sequences of whole blocks of 128 (engines before 9.16 need a mask beside the causal one for others), in a step of a
 * ring queries and keys each. Our own attention takes the rest: scores that are `bent`, by a soft cap, whose derivative
 * the engines of backward do not know, or by biases of ALiBi, which engines take as a tensor alone; and values that are
 * narrower than keys (value_dim, where it is not 0): cuDNN has engines for 192 and 128 on Hopper, of which nobody here
 * has read off the workspace yet. */
bool dtp_attention_is_fused(bool halves, uint32_t sequence, uint32_t head_dim, uint32_t value_dim, bool bent);
/* Of what cuDNN does not take: whether our kernel on tensor cores does (kernels/attention_mma.cu), elements of 16 bits
 * in heads of whole 16 bytes and no more than 256; the plain one (attention_simple.cu) takes the rest. */
bool dtp_attention_is_own_mma(bool halves, uint32_t head_dim, uint32_t value_dim);

struct dtp_attention_size {
    uint32_t batch, sequence, heads, kv_heads, head_dim;
    bool backward;
    bool deterministic; /* backward: dQ is summed in one order, not by atomics */
    uint32_t window;    /* keys that a query sees; 0: all up to its own. No workspace depends on it */
    bool fp16;          /* in place of bf16; nor on this */
    /* A step of a ring, whose keys lie by themselves: queries of each sequence from the first on see so many of its
     * keys, each of them. key_count 0: none, but the causal square. */
    uint32_t first_query, key_count;
};

/* The part of a fused shape that is computed at a time: all of it, but for a deterministic backward, whose engine
 * writes a gradient of the scores, 2 batch heads queries keys bytes, to its workspace. Parts are equal: batch divides
 * the batch; where it is 1, kv_heads divides the kv_heads. */
struct dtp_attention_part {
    uint32_t batch, heads, kv_heads;
};
/* Queries and keys of a sequence that take part. */
uint32_t dtp_attention_queries(const struct dtp_attention_size *size);
uint32_t dtp_attention_keys(const struct dtp_attention_size *size);

struct dtp_attention_part dtp_attention_part(const struct dtp_attention_size *size);

/* Workspace of a part, in this order. */
struct dtp_attention_workspace {
    uint64_t statistics_bytes; /* backward of later queries alone: their log-sum-exps, [batch, heads, queries] */
    uint64_t row_sums_bytes;   /* backward: fp32 sums of dO O, [batch, heads, queries] */
    uint64_t query_sum_bytes;  /* backward by atomics: fp32 dQ, [batch, heads, queries, head_dim], rounded at the end */
    uint64_t engine_bytes;     /* of cuDNN: 256; gradients of k and v per query head where these share one; scores */
};
struct dtp_attention_workspace dtp_attention_workspace(const struct dtp_attention_size *size);
uint64_t dtp_attention_workspace_bytes(const struct dtp_attention_size *size); /* all of it */

/* What a program declares: the largest workspace that a kernel of its attention asks for. Ours on tensor cores has row
 * sums as well, of all heads at once. in_steps: of a ring, whose first step is the causal square of `size` and whose
 * later ones have all queries and the first half of the keys, or the second half of the queries and all keys
 * (plan/context.h). */
struct dtp_attention_asked {
    struct dtp_attention_size size;
    uint32_t value_dim;
    bool halves, bent, in_steps;
};
uint64_t dtp_attention_planned_bytes(const struct dtp_attention_asked *asked);
/* What a plan's attention asks for: of the heads, or of the rows of each sequence, those that are left to a rank where
 * ranks share sequences, in steps of their ring. */
struct dtp_attention_asked dtp_attention_asked_of(const struct dtp_transformer *transformer,
                                                  const struct dtp_plan *plan, bool backward);

#endif
