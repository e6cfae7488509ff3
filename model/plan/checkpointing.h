/* What each word of --checkpointing keeps and runs again: the one place that tells the words apart. */
#ifndef DTP_CHECKPOINTING_H
#define DTP_CHECKPOINTING_H

#include "plan/plan.h"

enum dtp_checkpoint_keeps {
    DTP_KEEPS_ALL,           /* what backward reads: no layer is checkpointed */
    DTP_KEEPS_INPUT,         /* the layer's input alone */
    DTP_KEEPS_ALL_BUT_CORE,  /* the attention core runs again, not the projections around it (Korthikanti 2022) */
    DTP_KEEPS_SECOND_MATMULS /* the input, the core's results, every second matmul's: torchtitan's policy */
};
struct dtp_checkpoint_rule {
    enum dtp_checkpoint_keeps keeps; /* of a checkpointed layer */
    uint64_t every;                  /* layers 0, every, 2 every, ... are checkpointed; 0: none */
    bool calls_modules;              /* a replay calls all modules again: weights are fetched and cast once more */
};
struct dtp_checkpoint_rule dtp_plan_checkpoint_rule(const struct dtp_plan *plan);

static inline bool dtp_checkpointed(const struct dtp_checkpoint_rule *rule, uint64_t layer)
{
    return rule->every && layer % rule->every == 0;
}
/* Of so many layers, how many. */
uint64_t dtp_checkpointed_layers(const struct dtp_checkpoint_rule *rule, uint64_t layers);
/* Of those with experts, or without. */
uint64_t dtp_checkpointed_layers_with(const struct dtp_checkpoint_rule *rule, const struct dtp_transformer *transformer,
                                      bool experts);
/* What attention of a checkpointed layer costs over that of an average one: 1 where layers are alike; where windows
 * alternate, every second layer may be just those that have one. */
double dtp_checkpointed_attention(const struct dtp_checkpoint_rule *rule, const struct dtp_transformer *transformer,
                                  uint64_t sequence);

#endif
