/* What PyTorch's host does around kernels, as programs have it: calls of compiled blocks and hooks of FSDP2's units;
 * and what a compiler keeps of packed weights under checkpointing, which it does not tag. */
#include "lower/lower.h"
#include "runtime/runtimes.h"
#include "sim/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
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

static uint32_t count_of(const struct dtp_program *program, enum dtp_op_kind kind, const char *name)
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
        assert_int_equal(count_of(program, DTP_OP_MATMUL, "q"), compile ? LAYERS + 1 : 2 * LAYERS);
        assert_int_equal(count_of(program, DTP_OP_MATMUL, "output"), compile ? LAYERS : 2 * LAYERS);
        assert_int_equal(count_of(program, DTP_OP_MATMUL, "up"), compile ? LAYERS : 2 * LAYERS);
        assert_int_equal(count_of(program, DTP_OP_MATMUL, "down"), compile ? LAYERS : 2 * LAYERS);
        assert_int_equal(count_of(program, DTP_OP_CAST, "v weight"), compile ? LAYERS + 1 : 3 * LAYERS - 1);
        assert_int_equal(count_of(program, DTP_OP_CAST, "up weight"), compile ? LAYERS : 3 * LAYERS);
        dtp_program_destroy(program);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls), cmocka_unit_test(test_calls_hold_up),
                                       cmocka_unit_test(test_packed_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
