/* LLaMA-7B and its counts by hand: the shape whose dimensions all divide by 8. */
#ifndef TEST_LLAMA_7B_H
#define TEST_LLAMA_7B_H

#include "runtime/runtimes.h"

#define PARAMETERS UINT64_C(6738415616) /* psi = 32 P + R; divides by 8 tensor by tensor */
#define LAYERS 32
#define LAYER UINT64_C(202383360) /* P: 4*4096^2 + 3*4096*11008 + 2*4096 */
#define ROOT UINT64_C(262148096)  /* R: 2*32000*4096 + 4096 */
#define HEAD UINT64_C(131072000)  /* 32000*4096 */
#define DOWN UINT64_C(45088768)   /* 11008*4096 */
#define VOCAB UINT64_C(32000)

static inline struct dtp_transformer llama_7b(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = LAYERS, t.hidden = 4096, t.ffn = 11008, t.vocab = VOCAB;
    t.heads = t.kv_heads = 32, t.head_dim = 128;
    assert_int_equal(dtp_transformer_count(&t).total, PARAMETERS);
    return t;
}

/* A plan as dtp_plan_resolve leaves it for what tests of formulas vary, without its refusals. */
static inline struct dtp_plan plan_of(const struct dtp_runtime *runtime, enum dtp_strategy strategy,
                                      const char *precision)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = runtime;
    plan.strategy = strategy;
    plan.reshard_after_forward = strategy != DTP_SHARD_GRAD_OP;
    assert_true(dtp_precision_recipe(precision, &plan.precision));
    dtp_precision_for_runtime(&plan.precision, runtime);
    return plan;
}

#endif
