/* Properties of simulations of lowered programs of random jobs, from a printed seed. */
#include "sim/caching_allocator.h"
#include "runtime/runtimes.h"
#include "lower/lower.h"
#include "sim/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_plans.h"

#define JOBS 120

/* Jobs that lowering takes, small enough for many of them. */
static struct dtp_program *random_program(struct random_job *job)
{
    for (int attempt = 0; attempt < 2000; attempt++) {
        struct dtp_program *program;
        if (!random_job(job))
            continue;
        job->transformer.layers = 1 + job->transformer.layers % 6;
        job->plan = job->asked;
        if (dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) != DTP_OK)
            continue;
        if (dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, NULL) == DTP_OK)
            return program;
    }
    fail_msg("no job that can be lowered");
    return NULL;
}

static struct dtp_timeline simulate(const struct dtp_program *program, const struct random_job *job,
                                    const struct dtp_simulation_options *options)
{
    struct dtp_timeline timeline;
    assert_int_equal(dtp_simulate(program, &job->cluster, options, &timeline, NULL), DTP_OK);
    return timeline;
}

/* Nothing starts before what it waits for has ended, in its stream, its communicator and by dependencies. */
static void check_order(const struct dtp_program *program, const struct dtp_timeline *t)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    double stream_end_s[DTP_STREAM_COUNT] = {0}, group_end_s[8] = {0};
    assert_true(dtp_program_group_count(program) <= 8);
    for (size_t i = 0; i < t->op_count; i++) {
        const dtp_op_id *dependency = dtp_program_dependencies(program, &ops[i]);
        double start_s = ops[i].kind == DTP_OP_HOST_WAIT ? t->span[i].end_s : t->span[i].start_s;
        for (uint32_t d = 0; d < ops[i].dependency_count; d++)
            assert_true(t->span[dependency[d].index].end_s <= start_s);
        assert_true(stream_end_s[ops[i].stream] <= start_s && start_s <= t->span[i].end_s);
        assert_true(t->issue_s[i] <= start_s);
        stream_end_s[ops[i].stream] = t->span[i].end_s;
        if (ops[i].group == DTP_NO_INDEX)
            continue;
        assert_true(group_end_s[ops[i].group] <= start_s);
        group_end_s[ops[i].group] = t->span[i].end_s;
    }
}

static void check_split(const struct dtp_timeline *t)
{
    double sum_s = t->compute_s + t->optimizer_s + t->exposed_communication_s + t->exposed_offload_s + t->host_bound_s +
                   t->bubble_s,
           exposed_s = 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        exposed_s += t->exposed_by_collective_s[i];
        assert_true(t->exposed_by_collective_s[i] <= t->communication_by_collective_s[i] * (1 + 1e-9) + 1e-12);
    }
    assert_near(sum_s, t->step_s, 1e-9);
    assert_true(t->exposed_communication_s <= t->communication_s);
    assert_true(fabs(exposed_s - t->exposed_communication_s) <= 1e-9 * t->step_s);
}

/* The path is in time order, begins where nothing was waited for or the host was late, and ends with the step. */
static void check_critical(const struct dtp_timeline *t)
{
    assert_true(t->critical_count > 0);
    assert_true(t->span[t->critical[t->critical_count - 1]].end_s == t->step_s);
    for (size_t i = 1; i < t->critical_count; i++) {
        assert_true(t->critical[i - 1] < t->critical[i]);
        assert_true(t->span[t->critical[i - 1]].end_s <= t->span[t->critical[i]].end_s);
    }
}

static void test_lowered_programs(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < JOBS; i++) {
        struct random_job job;
        struct dtp_program *program = random_program(&job);
        struct dtp_simulation_options options = dtp_simulation_options_default();
        struct dtp_timeline t = simulate(program, &job, &options), again = simulate(program, &job, &options);
        check_order(program, &t);
        check_split(&t);
        check_critical(&t);
        assert_memory_equal(t.span, again.span, t.op_count * sizeof *t.span);
        assert_true(t.allocated_peak_bytes <= t.reserved_peak_bytes);

        options.power_headroom = false;
        struct dtp_timeline shared = simulate(program, &job, &options);
        options.contention = false;
        struct dtp_timeline alone = simulate(program, &job, &options);
        assert_true(alone.step_s <= shared.step_s * (1 + 1e-6));
        options.infinite_bandwidth = true;
        struct dtp_timeline infinite = simulate(program, &job, &options);
        assert_true(infinite.step_s <= alone.step_s * (1 + 1e-9) && infinite.communication_s == 0);
        dtp_timeline_release(&t);
        dtp_timeline_release(&again);
        dtp_timeline_release(&shared);
        dtp_timeline_release(&alone);
        dtp_timeline_release(&infinite);
        dtp_program_destroy(program);
    }
}

/* Expandable segments hold at least what is allocated, and a capacity is kept where the program fits it. */
static void test_allocators(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        struct random_job job;
        struct dtp_program *program = random_program(&job);
        struct dtp_allocator_replay plain, expandable, tight;
        assert_int_equal(dtp_allocator_replay(program, NULL, false, 0, &plain, NULL), DTP_OK);
        assert_int_equal(dtp_allocator_replay(program, NULL, true, 0, &expandable, NULL), DTP_OK);
        uint64_t capacity = plain.state.reserved_peak_bytes - plain.state.reserved_peak_bytes / 50;
        assert_int_equal(dtp_allocator_replay(program, NULL, false, capacity, &tight, NULL), DTP_OK);
        assert_true(plain.state.allocated_peak_bytes <= plain.state.reserved_peak_bytes);
        assert_true(expandable.state.allocated_peak_bytes <= expandable.state.reserved_peak_bytes);
        assert_true(tight.state.out_of_memory || tight.state.reserved_peak_bytes <= capacity);
        dtp_program_destroy(program);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lowered_programs), cmocka_unit_test(test_allocators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
