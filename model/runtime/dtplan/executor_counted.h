/* A kind of the model's layers as formulas count our executor's step by it: each kind as if it were the model, what
 * lies outside of layers once, with the kind of the first layer. */
#ifndef DTP_EXECUTOR_COUNTED_H
#define DTP_EXECUTOR_COUNTED_H

#include "net/parameter_layout.h"
#include "runtime/dtplan/executor_block.h"
#include "runtime/dtplan/lower_executor.h"

struct dtp_executor_counted {
    const struct dtp_transformer *t;
    const struct dtp_plan *plan;
    struct dtp_executor_rules rules;
    double ends; /* 1: embedding, head and what a step has once are counted with the layers; 0 */
    struct dtp_executor_block block, first; /* of the kind; the model's first, where it is of this kind */
    struct dtp_transformer own;             /* with the experts that a rank has */
    struct dtp_parameter_module layout[4];  /* of what is trained: embedding, a block or its adapters, head, and a
                                               block's  experts where ranks divide them */
    double element[4], shard_element[4];    /* bytes of their gradients', whole and reduced */
    double opened[4];                       /* how often a step makes whole gradients of each */
    double tokens, h, vocab, layers, modules, c;
    double checkpointed;         /* blocks */
    uint32_t again, first_again; /* operators that a checkpointed block runs once more, as bits; the first block */
    bool adapted, first_checkpointed;
    bool remakes; /* its activation is made again by the activation's backward */
};

/* Of a module of a block. */
enum dtp_layer_mlp dtp_executor_mlp_of_module(const struct dtp_transformer *transformer, uint64_t module);
/* The kind of `blocks`, of dtp_parameter_alike_modules. Where it stays: the block's operators point into it. */
void dtp_executor_counted_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, const struct dtp_parameter_alike *blocks,
                             struct dtp_executor_counted *out);

#endif
