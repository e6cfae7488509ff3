/* A small model and a plan of it under Megatron-Core in a recipe of precision, for tests of what runs or rests in few
 * bits. After cmocka.h. */
#ifndef DTP_TEST_MEGATRON_NARROW_H
#define DTP_TEST_MEGATRON_NARROW_H

#include "runtime/runtimes.h"

/* 256 tokens a micro-step. */
static inline struct dtp_plan megatron_plan(const char *recipe, enum dtp_strategy strategy)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron, plan.strategy = strategy;
    plan.sequence = 128, plan.micro_batch = 2, plan.loss = DTP_LOSS_FUSED;
    assert_true(dtp_precision_recipe(recipe, &plan.precision));
    dtp_precision_for_runtime(&plan.precision, plan.runtime); /* of which moments may then be others */
    return plan;
}

/* h 64, f 256, four heads of 16. */
static inline struct dtp_transformer small_model(uint64_t layers)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = layers, t.hidden = 64, t.heads = t.kv_heads = 4, t.head_dim = 16, t.vocab = 1024, t.ffn = 256;
    return t;
}

#endif
