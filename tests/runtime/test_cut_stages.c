/* Stages that are to be cut best become a layout, which given back is the same plan, and which no other cut beats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "closed/model_parallel.h"
#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "plan/degrees.h"
#include "runtime/runtimes.h"
#include "schedule/schedule_time.h"

static struct dtp_faults faults;

/* LLaMA-7B with the vocabulary of LLaMA 3: the head takes as long as some three layers. */
static struct dtp_transformer model(void)
{
    struct dtp_transformer t = llama_7b();
    t.vocab = 128256;
    return t;
}

static struct dtp_plan cut_as(enum dtp_schedule_kind schedule, uint32_t pp, uint32_t chunks, const char *stages)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = dtp_runtime_find("megatron");
    plan.strategy = DTP_ZERO1;
    plan.pp = pp, plan.accumulate = 12, plan.virtual_stages = chunks, plan.schedule = schedule;
    assert_true(dtp_stage_choice_parse(stages, &plan.stages));
    return plan;
}

static enum dtp_status resolve(struct dtp_plan *plan)
{
    struct dtp_transformer t = model();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    faults = (struct dtp_faults){0};
    return dtp_plan_resolve(plan, &t, &cluster, &faults);
}

/* The makespan of a cut by the same costs. */
static double step_of(const struct dtp_plan *plan)
{
    struct dtp_transformer t = model();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_schedule_shape shape = dtp_plan_schedule(plan);
    struct dtp_part_cost layer, layers[64];
    struct dtp_model_cost cost = {.layers = layers};
    struct dtp_stage_cost stage_costs[64];
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer;
    struct dtp_stages stages;
    dtp_part_costs_of_slice(&t, &cluster, plan, &layer, &cost.head, &cost.send_s);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        layers[i] = layer;
    assert_int_equal(dtp_schedule_create(&shape, &schedule, NULL), DTP_OK);
    assert_int_equal(dtp_schedule_timer_create(&schedule, DTP_SEND_BUFFERED, &timer, NULL), DTP_OK);
    assert_int_equal(dtp_plan_stages(plan, &t, &stages, NULL), DTP_OK);
    dtp_stages_cost(&stages, &cost, stage_costs);
    double step_s = dtp_schedule_timer_makespan(timer, &(struct dtp_schedule_costs){stage_costs, 1});
    dtp_stages_destroy(&stages);
    dtp_schedule_timer_destroy(timer);
    dtp_schedule_destroy(&schedule);
    return step_s;
}

static void test_layouts_are_found(void **state)
{
    static const char *const others[] = {"even", "counted", "best"};
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        struct dtp_plan plan = cut_as((enum dtp_schedule_kind)kind, 4, 1, "step");
        if (!(plan.runtime->schedules & 1u << kind))
            continue;
        if (resolve(&plan) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        assert_int_equal(plan.stages.cut, DTP_STAGE_CUT_LAYOUT);
        struct dtp_plan again = cut_as((enum dtp_schedule_kind)kind, 4, 1, plan.stages.layout);
        assert_int_equal(resolve(&again), DTP_OK);
        assert_memory_equal(&again.stages, &plan.stages, sizeof plan.stages);
        assert_int_equal(again.virtual_stages, plan.virtual_stages);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            struct dtp_plan other = cut_as((enum dtp_schedule_kind)kind, 4, 1, others[i]);
            if (resolve(&other) == DTP_OK && step_of(&plan) > step_of(&other) * (1 + 1e-12))
                fail_msg("%s: %s beats %s", dtp_schedule_row(plan.schedule)->word, others[i], plan.stages.layout);
        }
    }
}

/* By trial: of all cuts of 32 layers into two stages none has a shorter slowest stage. A layer of LLaMA-7B has 202
 * million weights and the head 525 million, which no attention joins: it takes the place of two or three layers. */
static void test_the_slowest_stage_is_as_fast_as_can_be(void **state)
{
    (void)state;
    struct dtp_plan plan = cut_as(DTP_SCHEDULE_GPIPE, 2, 1, "best");
    assert_int_equal(resolve(&plan), DTP_OK);
    assert_true(strcmp(plan.stages.layout, "Et*17|t*15L") == 0);
    for (unsigned first = 1; first < 32; first++) {
        char layout[32];
        snprintf(layout, sizeof layout, "Et*%u|t*%uL", first, 32 - first);
        struct dtp_plan other = cut_as(DTP_SCHEDULE_GPIPE, 2, 1, layout);
        assert_int_equal(resolve(&other), DTP_OK);
        assert_true(step_of(&plan) <= step_of(&other) * (1 + 1e-12));
    }
}

/* Of eight stages the times of a middle one, 4 of 32 layers, are what a schedule is searched by; a plan of another
 * schedule has none. What W keeps of LLaMA-7B's layer, per token in 16 bits: what six matrices read, h for q, k and v,
 * h for the output, h for gate and up, f, and gradients of what they make, 4 h, 2 f and h. */
static void test_times_of_a_search(void **state)
{
    (void)state;
    struct dtp_transformer t = model();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = cut_as(DTP_SCHEDULE_ZB_2P, 8, 1, "even"), other = cut_as(DTP_SCHEDULE_ZB_H2, 8, 1, "even");
    struct dtp_part_cost layer, head;
    double send_s;
    assert_int_equal(resolve(&plan), DTP_OK);
    assert_int_equal(resolve(&other), DTP_OK);
    dtp_part_costs_of_slice(&t, &cluster, &plan, &layer, &head, &send_s);
    const struct dtp_pass_times *times = &plan.pass_times;
    assert_true(fabs(times->forward_s / (4 * layer.forward_s) - 1) < 1e-12);
    assert_true(fabs(times->backward_s / (4 * layer.backward_s) - 1) < 1e-12);
    assert_true(fabs(times->weight_s / (4 * layer.weight_s) - 1) < 1e-12);
    assert_true(times->send_s == send_s && send_s > 0);
    assert_true(times->freed == fmax(0, 1 - layer.kept_for_weight / layer.kept));
    double tokens = (double)(plan.micro_batch * plan.sequence), h = (double)t.hidden, f = (double)t.ffn;
    assert_true(layer.kept_for_weight == 2 * tokens * (3 * h + f + 5 * h + 2 * f));
    assert_true(other.pass_times.forward_s == 0 && other.pass_times.freed == 0);
    plan.schedule = DTP_SCHEDULE_1F1B; /* chosen again: nothing stays of the search */
    assert_int_equal(resolve(&plan), DTP_OK);
    assert_true(plan.pass_times.forward_s == 0);
}

static void test_what_is_not_found(void **state)
{
    (void)state;
    struct dtp_plan plan = cut_as(DTP_SCHEDULE_INTERLEAVED, 8, 8, "best");
    plan.accumulate = 16;
    assert_int_equal(resolve(&plan), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "64"));
    plan = cut_as(DTP_SCHEDULE_1F1B, 1, 1, "best"); /* no pipeline: there is nothing to cut */
    assert_int_equal(resolve(&plan), DTP_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_are_found), cmocka_unit_test(test_the_slowest_stage_is_as_fast_as_can_be),
        cmocka_unit_test(test_times_of_a_search), cmocka_unit_test(test_what_is_not_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
