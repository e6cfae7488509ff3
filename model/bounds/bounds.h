/* Bounds of what a training step needs, by arithmetic that can be done by hand: no program, no walk over layers. What
 * they are for, how far they lie off and what of them surely stands says the folder's page.
 *
 * Notation: T tokens of a micro-step on a GPU, L layers, N shard ranks, psi parameters, P of a unit, R of the root
 * (embeddings, final norm, head), V h of the embedding; bytes of an element: c read by matmuls, g of gradients, r sent.
 *
 * At rest stand parameters, optimizer state (or their shards) and workspaces. Beyond that the peak of a step lies at
 * one of six instants, and the bound is the largest: the loss and the head, beside kept activations of all layers, the
 * latter with the logits' gradient, its weight's [V h c] and its input's; the last block, beside those of the layers
 * below, in its worst stage; the first one, beside gradients of all layers above, whole or as shards; the ends, with
 * the embedding's dense gradient and its partial sums, and the root's on their way to a reduction; the step, with all
 * gradients and what the optimizer makes of them.
 *
 * One block has four stages, each T x (what it saved that still stands + gradients of activations) + weight gradients
 * made so far:
 *   mlp         all it saved, gradients of the activation function: 3 c f gated (4 c f where the activation's result
 *               was not kept and that of a packed gate and up is put together of halves), else 2 c f (compiled in
 *               place: c f); the down matrix's
 *   core        what attention saved; gradient of its result, of q, k, v, and 4 d_q of a flash kernel or two tensors of
 *               scores; those of the MLP and the output matrix
 *   rotary      what the first norm saved; gradients of q, k, v and a chain of 5 c d_q (fused: none)
 *   end         the input, two gradients of it; all weight gradients of the block
 * Beside all that a block saves stand the variables of a replay that goes to its end, or what one of the core alone
 * walks through. Where layers are of two kinds each has such stages, shards and matrices of its own.
 *
 * With adapters gradients, their reductions and the optimizer are of these alone (memory_bound_block.c).
 *
 * What weights stand beside follows from who shards them: nobody (a cast copy of each layer under autocast), FSDP
 * (root, the unit at work, what is gathered ahead, the reduction of the unit above), DeepSpeed module by module (as
 * many elements as its limits allow), or our executor's ring. */
#ifndef DTP_BOUNDS_H
#define DTP_BOUNDS_H

#include "closed/job_layers.h"

struct dtp_bounds {
    uint64_t params_bytes, optimizer_bytes, grads_bytes; /* at rest on a GPU; gradients as the optimizer reads them */
    uint64_t kept_bytes;                                 /* activations of all layers at the end of forward */
    uint64_t memory_bytes;                               /* bound of the peak of live bytes */
    uint64_t late_bytes;                                 /* of its instants near the end of backward */
    uint64_t least_bytes;                                /* what surely stands at one instant of it */
};

/* Inputs have passed dtp_transformer_check, dtp_cluster_check and dtp_plan_resolve; one GPU's slice of tensor and
 * pipeline parallelism. Allocates nothing. `kept` as for dtp_job_layers_of: with them it takes half the time. */
void dtp_bounds_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                   const struct dtp_plan *plan, struct dtp_job_layers *kept, struct dtp_bounds *out);

#endif
