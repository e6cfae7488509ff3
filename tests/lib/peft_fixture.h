/* Plans of Transformers' Trainer on one GPU, what a token takes of memory and what kernels move, for tests by hand. */
#ifndef TEST_PEFT_FIXTURE_H
#define TEST_PEFT_FIXTURE_H

#include "lib/memory_fixture.h"

static inline struct dtp_plan trainer(uint32_t rank)
{
    struct dtp_plan plan = plan_of(&dtp_runtime_peft, DTP_DDP, "bf16-pure");
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    plan.shifted_logits = true; /* the measured runs named here are of 2024 */
    if (!rank)
        return plan;
    plan.adapters.rank = rank, plan.adapters.targets = DTP_TARGETS_ATTENTION, plan.adapters.dtype = DTP_FP32;
    plan.adapters.dropout = 0.1;
    return plan;
}

/* What a sequence of 2048 more takes of a token. */
static inline double of_a_token_of(const struct dtp_transformer *t, struct dtp_plan plan)
{
    plan.micro_batch = 2;
    double few = (double)estimate(t, &plan, &one_gpu).allocated_peak_bytes;
    plan.micro_batch = 4;
    return ((double)estimate(t, &plan, &one_gpu).allocated_peak_bytes - few) / (2 * 2048);
}

static inline double of_a_token(struct dtp_plan plan)
{
    struct dtp_transformer t = llama_7b();
    return of_a_token_of(&t, plan);
}

static inline void assert_near(double value, double expected)
{
    if (!(value > expected * 0.9999 && value < expected * 1.0001))
        fail_msg("%.17g is not %.17g", value, expected);
}

/* Of a GPU that computes in every format. */
static inline enum dtp_status resolved(const struct dtp_transformer *t, struct dtp_plan *plan,
                                       struct dtp_cluster *cluster, struct dtp_faults *faults)
{
    memset(faults, 0, sizeof *faults);
    cluster->oversubscription = 1;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster->gpu.peak_flops_per_s[i] = 1e15;
    return dtp_plan_resolve(plan, t, cluster, faults);
}

static inline void assert_refused_of(const struct dtp_transformer *t, struct dtp_plan plan, const char *key)
{
    static struct dtp_faults faults;
    struct dtp_cluster cluster = one_gpu;
    assert_int_equal(resolved(t, &plan, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], key));
}

static inline void assert_refused(struct dtp_plan plan, const char *key)
{
    struct dtp_transformer t = llama_7b();
    assert_refused_of(&t, plan, key);
}

static inline double moved_bytes_of(const struct dtp_transformer *t, struct dtp_plan plan)
{
    struct dtp_cluster cluster = one_gpu;
    struct dtp_program *program;
    double bytes = 0;
    static struct dtp_faults faults;
    assert_int_equal(resolved(t, &plan, &cluster, &faults), DTP_OK);
    assert_int_equal(dtp_lower(t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        bytes += ops[i].demand && ops[i].kind != DTP_OP_OPTIMIZER ? ops[i].demand->bytes : 0;
    dtp_program_destroy(program);
    return bytes;
}

static inline double moved_bytes(struct dtp_plan plan)
{
    struct dtp_transformer t = llama_7b();
    return moved_bytes_of(&t, plan);
}

#endif
