/* What a runtime does at the points of the step's skeleton (lower.c): how parameters become weights that matmuls read,
 * and gradients what the optimizer takes.
 *
 * A runtime chooses its hooks by the plan, one set for each way of keeping state. NULL: nothing is done there. The
 * module at hand is l->layer's; what a set keeps over the step is its own, behind l->own. */
#ifndef DTP_LOWER_HOOKS_H
#define DTP_LOWER_HOOKS_H

#include "plan/plan.h"
#include "program/program.h"

struct dtp_lowering;

struct dtp_lower_hooks {
    /* A runtime that lowers steps by itself: these two, and nothing below is called. `check` refuses, all faults at
     * once, what it has no program for. */
    enum dtp_status (*check)(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, struct dtp_faults *faults);
    enum dtp_status (*whole)(struct dtp_lowering *l);

    /* State at rest: params of every module, moments, groups. DTP_ENVIRONMENT: no memory. `release` follows always. */
    enum dtp_status (*make)(struct dtp_lowering *l);
    void (*release)(struct dtp_lowering *l);

    void (*begin_micro_step)(struct dtp_lowering *l);
    void (*end_micro_step)(struct dtp_lowering *l);
    /* Around the forward of a block, and of the whole model for the root; where head and loss run after the model's
     * forward, chunk by chunk, `model_done` stands between. */
    void (*before_forward)(struct dtp_lowering *l);
    void (*after_forward)(struct dtp_lowering *l);
    void (*model_done)(struct dtp_lowering *l);
    /* Around all of backward, and within it around that of a block, or of head and embedding for the root. */
    void (*begin_backward)(struct dtp_lowering *l);
    void (*before_backward)(struct dtp_lowering *l);
    void (*after_backward)(struct dtp_lowering *l);
    /* Behind the replay of a checkpointed block, before its backward. */
    void (*after_replay)(struct dtp_lowering *l);
    void (*end_backward)(struct dtp_lowering *l);
    /* Around the matmuls of a block's experts, in forward and in backward. */
    void (*before_experts)(struct dtp_lowering *l, bool backward);
    void (*after_experts)(struct dtp_lowering *l, bool backward);
    /* Behind the last backward through a chunk of a pipeline, when what it made is on its way. */
    void (*chunk_done)(struct dtp_lowering *l);
    /* Behind the last pass of a rank, when stages have summed what several of them hold, before the norm of all
     * gradients is known. */
    void (*passes_done)(struct dtp_lowering *l);
    /* Before what reads the weight of part `part` of the module, and after it. */
    void (*fetch)(struct dtp_lowering *l, int part);
    void (*unfetch)(struct dtp_lowering *l);
    /* Gradient `part` of the module exists as a tensor of its own: state->gradient. */
    void (*gradient_made)(struct dtp_lowering *l, int part);
    /* Whether autograd's tensor is what rests, in the first micro-step: it is booked as a gradient then. */
    bool (*gradient_rests)(const struct dtp_lowering *l);
    /* The buffer in which the embedding's gradient waits for the step, and where in it; NULL: state->gradient_buffer,
     * at its beginning. */
    dtp_buffer_id (*embedding_gradient)(const struct dtp_lowering *l, uint64_t *offset_bytes);
    /* Says of an operand which bytes of a standing buffer its operation touches, where others may be in use meanwhile;
     * an operand that says so itself stays as it is. */
    void (*narrow)(const struct dtp_lowering *l, const struct dtp_new_op *op, struct dtp_operand *operand);
    /* Whether what has no period of layers under the plan, a bucket of gradients or fetches, is told to role.fills
     * (program/live_runs.h); NULL: no. */
    bool (*fills)(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
    /* The optimizer's step, and what follows it until the next forward. */
    void (*step)(struct dtp_lowering *l);
};

/* For these, in lower.c: what the host does in Python, so many calls of a kind (DTP_OP_HOST_...), none of 0. */
void dtp_lower_call_host(struct dtp_lowering *l, enum dtp_op_kind kind, uint32_t calls);

#endif
