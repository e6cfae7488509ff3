/* Attention by cuDNN, causal or a step of a ring: flash attention forward and backward, from its backend API in C.
 *
 * Both directions are operation graphs that cuDNN's attention engines recognise (cuDNN developer guide, "Fused Flash
 * Attention fprop/bprop"): the softmax spelled out in pointwise operations and reductions, the causal mask as a
 * comparison of generated row and column indices. q, k and v are read from, and their gradients written to, the packed
 * qkv through strides; grouped query heads are the engine's own (the graph sums the gradients of a group).
 *
 * Later steps of a ring (`keys` of the arguments) are the same graphs without the mask: of all queries and the first
 * half of what came around, or of the second half of the queries and all of it, by pointers and strides. Backward of a
 * step, given the result, its gradient and the log-sum-exps of all steps together, makes that step's terms of the
 * gradients (P of these keys is what they have of the whole softmax).
 *
 * The engines add up dQ over blocks of keys in fp32 with atomics, so that two runs differ in the last bits, if the
 * arguments say `atomic`. Else the gradient of the scores goes through the workspace, a part of the batch or of the
 * heads at a time, and the result repeats.
 *
 * Which shapes go this way, in which parts, and how much workspace each needs is the rule of
 * model/cost/attention_workspace.h; a plan that asks for more is refused when it is prepared. */
#ifndef DTP_ATTENTION_H
#define DTP_ATTENTION_H

#include "cost/attention_workspace.h"
#include "device/cudnn_graph.h"
#include "kernels/kernels.h"

struct dtp_attention_plans;

/* On the current CUDA device. Caller destroys. DTP_ENVIRONMENT with cuDNN's words. */
enum dtp_status dtp_attention_create(struct dtp_attention_plans **out, struct dtp_faults *faults);
void dtp_attention_destroy(struct dtp_attention_plans *attention);

/* Builds the plan of a shape, once (0.1 to 1 s): before step 0, outside of capture. Refuses, with cuDNN's words, what
 * it has no engine for, and a workspace too small. */
enum dtp_status dtp_attention_prepare(struct dtp_attention_plans *attention, const struct dtp_attention_args *arguments,
                                      struct dtp_faults *faults);
enum dtp_status dtp_attention_prepare_backward(struct dtp_attention_plans *attention,
                                               const struct dtp_attention_backward_args *arguments,
                                               struct dtp_faults *faults);

/* A prepared shape, on `stream`. cuDNN's status; CUDNN_STATUS_NOT_INITIALIZED for a shape that was not prepared. */
cudnnStatus_t dtp_attention_forward(struct dtp_attention_plans *attention, const struct dtp_attention_args *arguments,
                                    void *stream);
cudnnStatus_t dtp_attention_backward(struct dtp_attention_plans *attention,
                                     const struct dtp_attention_backward_args *arguments, void *stream);

/* The graph of one part of `size` (dtp_attention_part), for plans and for tests that ask what cuDNN makes of it. */
enum dtp_status dtp_attention_plan(const struct dtp_cudnn *cudnn, const struct dtp_attention_size *size,
                                   struct dtp_cudnn_plan *out, struct dtp_faults *faults);

#endif
