/* What PyTorch's host does around kernels, as programs have it: calls of compiled blocks and hooks of FSDP2's units;
 * and what a compiler keeps of packed weights under checkpointing, which it does not tag. */
#include "plan/host_calls.h"
#include "job/estimate.h"
#include "lower/lower.h"
#include "lower/lower_set.h"
#include "runtime/runtimes.h"
#include "sim/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "cost/calibration.h"
#include "lib/hardware.h"
#include "lib/lowered_job.h"
#include "lib/proven_set.h"

enum { LAYERS = 3 };

static struct dtp_plan torch_plan(enum dtp_strategy strategy, bool compile)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = dtp_runtime_find("torch");
    plan.strategy = strategy, plan.compile = compile;
    plan.sequence = 128;
    return plan;
}

static struct dtp_program *program_of(struct dtp_plan plan, const struct dtp_transformer *t, uint32_t gpus)
{
    const struct dtp_cluster cluster = test_cluster(test_h200(), gpus, gpus);
    resolve_plan(&plan, t, &cluster);
    return lowered_job(t, &cluster, &plan);
}

static uint32_t calls_of(const struct dtp_program *program, enum dtp_op_kind kind)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        sum += dtp_program_ops(program)[i].kind == kind ? dtp_program_ops(program)[i].demand->kernels : 0;
    return sum;
}

static uint32_t count_named(const struct dtp_program *program, enum dtp_op_kind kind, const char *name)
{
    uint32_t count = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        count += dtp_program_ops(program)[i].kind == kind && strcmp(dtp_program_ops(program)[i].name, name) == 0;
    return count;
}

static void expect_calls(struct dtp_plan plan, const struct dtp_transformer *t, uint32_t gpus, uint32_t compiled,
                         uint32_t hooks)
{
    struct dtp_program *program = program_of(plan, t, gpus);
    assert_int_equal(calls_of(program, DTP_OP_HOST_CALL), compiled);
    assert_int_equal(calls_of(program, DTP_OP_HOST_HOOKS), hooks);
    dtp_program_destroy(program);
}

/* A block is one call each way, of experts five parts, with shared ones six. A unit
 * has a call before forward and two around backward; the root is one as well. */
static void test_calls(void **state)
{
    (void)state;
    struct dtp_transformer dense = small_model(LAYERS), experts = dense;
    experts.experts = 8, experts.experts_per_token = 2, experts.expert_ffn = experts.ffn;
    expect_calls(torch_plan(DTP_DDP, false), &dense, 1, 0, 0);
    expect_calls(torch_plan(DTP_DDP, true), &dense, 1, 2 * LAYERS, 0);
    expect_calls(torch_plan(DTP_FULL_SHARD, false), &dense, 2, 0, 3 * (LAYERS + 1));
    expect_calls(torch_plan(DTP_FULL_SHARD, true), &dense, 2, 2 * LAYERS, 3 * (LAYERS + 1));
    expect_calls(torch_plan(DTP_DDP, true), &experts, 1, 2 * 5 * LAYERS, 0);
    experts.shared_expert_ffn = experts.ffn, experts.dense_layers = 1;
    expect_calls(torch_plan(DTP_DDP, true), &experts, 1, 2 * (1 + 6 * (LAYERS - 1)), 0);
}

/* A step that waits for the host is longer by its calls, but for those that are made while the device has work. */
static void test_calls_hold_up(void **state)
{
    (void)state;
    const struct dtp_transformer t = small_model(LAYERS);
    const struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    double step_s[2];
    for (int more = 0; more < 2; more++) {
        const double call_s = dtp_calibration.compiled_call_s;
        dtp_calibration.compiled_call_s += more ? 1e-3 : 0;
        struct dtp_program *program = program_of(torch_plan(DTP_DDP, true), &t, 1);
        struct dtp_timeline timeline;
        const struct dtp_simulation_options options = dtp_simulation_options_default();
        assert_int_equal(dtp_simulate(program, &cluster, &options, &timeline, NULL), DTP_OK);
        step_s[more] = timeline.step_s;
        dtp_timeline_release(&timeline);
        dtp_program_destroy(program);
        dtp_calibration.compiled_call_s = call_s;
    }
    assert_true(step_s[1] - step_s[0] > 0.9e-3 * 2 * LAYERS && step_s[1] - step_s[0] < 1.001e-3 * 2 * LAYERS);
}

/* A backward in two passes has its own calls for groups, of a stage and of the slice that stands for one alike. */
static void test_split_backward_has_no_hooks(void **state)
{
    (void)state;
    struct dtp_plan stage = torch_plan(DTP_FULL_SHARD, false);
    stage.pp = 2, stage.schedule = DTP_SCHEDULE_ZB_V;
    struct dtp_plan slice = stage;
    slice.pp = 1, slice.pipeline_ranks = 2;
    assert_int_equal(dtp_plan_unit_hooks(&stage, true), 0);
    assert_int_equal(dtp_plan_unit_hooks(&slice, true), 0);
    stage.schedule = slice.schedule = DTP_SCHEDULE_1F1B;
    assert_int_equal(dtp_plan_unit_hooks(&stage, true), 1);
    assert_int_equal(dtp_plan_unit_hooks(&slice, true), 1);
}

/* Host seconds of formulas grow by as much as a call does for each that the program has: of no compiled blocks under
 * tensor parallelism, where they are in what a call on DTensors takes, and in stages by the stages' rule. */
static void test_formulas_count_the_same(void **state)
{
    static const struct {
        enum dtp_strategy strategy;
        uint32_t tp, pp, micro_steps, gpus;
        bool compile, checkpointed;
    } jobs[] = {{DTP_DDP, 1, 1, 1, 1, false},        {DTP_DDP, 1, 1, 2, 2, true},
                {DTP_FULL_SHARD, 1, 1, 1, 2, false}, {DTP_FULL_SHARD, 1, 1, 2, 2, true},
                {DTP_FULL_SHARD, 2, 1, 1, 4, false}, {DTP_FULL_SHARD, 2, 1, 1, 4, true},
                {DTP_DDP, 1, 2, 4, 2, false},        {DTP_DDP, 1, 2, 4, 2, true},
                {DTP_ZERO3, 1, 1, 1, 4, false},      {DTP_ZERO3, 1, 1, 2, 4, false, true}};
    const struct dtp_transformer t = small_model(2 * LAYERS);
    const double more_s = 1e-3;
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        struct dtp_plan plan = torch_plan(jobs[i].strategy, jobs[i].compile);
        plan.tp = jobs[i].tp, plan.pp = jobs[i].pp, plan.accumulate = jobs[i].micro_steps;
        plan.sequence_parallel = plan.tp > 1;
        plan.checkpointing = jobs[i].checkpointed ? DTP_CHECKPOINT_FULL : plan.checkpointing;
        if (plan.strategy == DTP_ZERO3)
            plan.runtime = dtp_runtime_find("deepspeed");
        const struct dtp_cluster cluster = test_cluster(test_h200(), jobs[i].gpus, jobs[i].gpus);
        resolve_plan(&plan, &t, &cluster);
        struct dtp_program *program = NULL;
        struct dtp_program_set set = {0};
        struct dtp_faults faults = {0};
        if (plan.pp > 1)
            assert_int_equal(dtp_lower_set(&t, &cluster, &plan, 0, &set, &faults), DTP_OK);
        else
            program = lowered_job(&t, &cluster, &plan);
        const struct dtp_program *of = program ? program : set.roles[0].program;
        const double compiled = calls_of(of, DTP_OP_HOST_CALL),
                     ends = plan.tp > 1 ? 2 : 1, /* units: of embedding and head, or the root */
            of_ends = plan.strategy == DTP_FULL_SHARD ? 3 * ends * plan.accumulate : 0,
                     hooks = calls_of(of, DTP_OP_HOST_HOOKS) - of_ends; /* which formulas leave out */
        double host_s[2];
        for (int more = 0; more < 2; more++) {
            struct dtp_prediction p;
            dtp_calibration.compiled_call_s += more * more_s, dtp_calibration.unit_hooks_s += more * more_s;
            dtp_calibration.dtensor_unit_hooks_s += more * more_s;
            assert_int_equal(dtp_estimate(&t, &cluster, &plan, &p, &faults), DTP_OK);
            dtp_calibration.compiled_call_s -= more * more_s, dtp_calibration.unit_hooks_s -= more * more_s;
            dtp_calibration.dtensor_unit_hooks_s -= more * more_s;
            host_s[more] = p.time.host_launch_s;
        }
        printf("job %zu: %g compiled calls and %g hooks, formula %+.2f ms\n", i, compiled, hooks,
               1e3 * (host_s[1] - host_s[0]));
        assert_true(fabs(host_s[1] - host_s[0] - more_s * (compiled + hooks)) < 1e-9);
        dtp_program_destroy(program);
        dtp_program_set_release(&set);
    }
}

/* Matmuls by packed weights run once, and each weight is unpacked once, but for q, k and v of the first layer, which no
 * gradient goes through: they run again. Eager ones all run again, but the last, and are unpacked three times. */
static void test_packed_weights(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(LAYERS);
    for (int compile = 0; compile < 2; compile++) {
        struct dtp_plan plan = torch_plan(DTP_DDP, compile);
        plan.checkpointing = DTP_CHECKPOINT_FULL;
        plan.adapters.rank = 8, plan.adapters.targets = DTP_TARGETS_ALL, plan.adapters.base = DTP_BASE_NF4;
        struct dtp_program *program = program_of(plan, &t, 1);
        assert_int_equal(count_named(program, DTP_OP_MATMUL, "q"), compile ? LAYERS + 1 : 2 * LAYERS);
        assert_int_equal(count_named(program, DTP_OP_MATMUL, "output"), compile ? LAYERS : 2 * LAYERS);
        assert_int_equal(count_named(program, DTP_OP_MATMUL, "up"), compile ? LAYERS : 2 * LAYERS);
        assert_int_equal(count_named(program, DTP_OP_MATMUL, "down"), compile ? LAYERS : 2 * LAYERS);
        assert_int_equal(count_named(program, DTP_OP_CAST, "v weight"), compile ? LAYERS + 1 : 3 * LAYERS - 1);
        assert_int_equal(count_named(program, DTP_OP_CAST, "up weight"), compile ? LAYERS : 3 * LAYERS);
        dtp_program_destroy(program);
    }
}

/* ZeRO-3's hooks, half as many calls as modules: of LLaMA's layer q, k, v, output, gate, up, down, two norms and the
 * block, 10; of Transformers' attention, MLP and activation besides, 13; with adapters on q and v what each wraps, A
 * and B, 19, so that a layer takes 5, 7 and 10 calls, forward and backward, and once more where it runs again. */
static void test_modules(void **state)
{
    (void)state;
    const struct dtp_transformer t = small_model(LAYERS);
    struct dtp_plan plan = torch_plan(DTP_ZERO3, false);
    plan.runtime = dtp_runtime_find("deepspeed");
    expect_calls(plan, &t, 4, 0, 2 * LAYERS * 5);
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    expect_calls(plan, &t, 4, 0, 3 * LAYERS * 5);
    plan.deepspeed.transformers_layers = true;
    expect_calls(plan, &t, 4, 0, 3 * LAYERS * 7);
    plan.adapters.rank = 8, plan.adapters.targets = 1u << DTP_TARGET_Q | 1u << DTP_TARGET_V;
    plan.adapters.dtype = DTP_BF16;
    expect_calls(plan, &t, 4, 0, 3 * LAYERS * 10);
    plan.strategy = DTP_ZERO2;
    expect_calls(plan, &t, 4, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls),
                                       cmocka_unit_test(test_calls_hold_up),
                                       cmocka_unit_test(test_modules),
                                       cmocka_unit_test(test_split_backward_has_no_hooks),
                                       cmocka_unit_test(test_formulas_count_the_same),
                                       cmocka_unit_test(test_packed_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
