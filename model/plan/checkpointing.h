/* What each word of --checkpointing keeps and runs again: the one place that tells the words apart. */
#ifndef DTP_CHECKPOINTING_H
#define DTP_CHECKPOINTING_H

#include "plan/plan.h"

/* Parts of a layer that Megatron-Core runs again by themselves: what they are in transformer_config.py. X(suffix, word)
 */
#define DTP_RECOMPUTE_TABLE(X)                                                                                         \
    X(CORE_ATTN, "core_attn")                                                                                          \
    X(MOE_ACT, "moe_act")                                                                                              \
    X(LAYERNORM, "layernorm")                                                                                          \
    X(MLA_UP_PROJ, "mla_up_proj")                                                                                      \
    X(MLP, "mlp")                                                                                                      \
    X(MOE, "moe")                                                                                                      \
    X(SHARED_EXPERTS, "shared_experts")
enum dtp_recompute {
#define DTP_RECOMPUTE_ENUM(suffix, word) DTP_RECOMPUTE_##suffix,
    DTP_RECOMPUTE_TABLE(DTP_RECOMPUTE_ENUM)
#undef DTP_RECOMPUTE_ENUM
        DTP_RECOMPUTE_COUNT
};
/* Sets of them, bits; "none" for none, else joined by '+'. Parsing takes ',', ' ' and '+' between words. */
#define DTP_RECOMPUTE_BYTES 96
void dtp_recompute_text(uint32_t set, char out[DTP_RECOMPUTE_BYTES]);
bool dtp_recompute_parse(const char *text, uint32_t *out);
static inline bool dtp_plan_recomputes(const struct dtp_plan *plan, enum dtp_recompute part)
{
    return plan->megatron.recompute >> part & 1;
}

/* Attention's core alone runs again, by a checkpointing or as a part (Korthikanti 2022). */
static inline bool dtp_plan_core_runs_again(const struct dtp_plan *plan)
{
    return plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION ||
           dtp_plan_recomputes(plan, DTP_RECOMPUTE_CORE_ATTN);
}

enum dtp_checkpoint_keeps {
    DTP_KEEPS_ALL,            /* what backward reads: no layer is checkpointed */
    DTP_KEEPS_INPUT,          /* the layer's input alone */
    DTP_KEEPS_ALL_BUT_CORE,   /* the attention core runs again, not the projections around it (Korthikanti 2022) */
    DTP_KEEPS_PARTS,          /* what others than the parts that run again make */
    DTP_KEEPS_SECOND_MATMULS, /* the input, the core's results, every second matmul's: torchtitan's policy */
    DTP_KEEPS_PACKED_MATMULS  /* the input, results of matmuls with packed weights, and these weights unpacked */
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
