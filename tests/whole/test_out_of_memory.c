/* Every allocation of what builds, reads, proves, places and simulates programs fails in turn, alone and with all that
 * follow: each time a status that says so with a fault, no result, no crash, no leak (under the sanitizers).
 *
 * The linker sends malloc, calloc and realloc here (--wrap). */
#include "program/arena_fit.h"
#include "runtime/runtimes.h"
#include "lower/lower_set.h"
#include "program/placement.h"
#include "program/program_text.h"
#include "schedule/stages.h"
#include "sim/simulate.h"
#include "program/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/random_plans.h"
#include "lib/step_program.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static bool armed, refuses_all, refused; /* refuses_all: also what is behind the first */
static size_t allocations_left;

static bool refuse(void)
{
    if (!armed || (allocations_left && allocations_left--))
        return false;
    refused = true;
    armed = refuses_all;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return refuse() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return refuse() ? NULL : __real_realloc(old, bytes);
}

/* What is tried: returns the status and leaves nothing behind. */
struct subject {
    struct dtp_program *program;
    char *text;
    size_t text_bytes;
    struct random_job job;
    struct dtp_program_set set;
};
typedef enum dtp_status attempt(struct subject *subject, struct dtp_faults *faults);

/* Refuses the first allocation, the second, ... until there are no more; at least `least` of them. */
static void refuse_each(attempt *try_it, struct subject *subject, size_t least)
{
    static struct dtp_faults faults;
    for (int all = 0; all < 2; all++) {
        size_t count = 0;
        do {
            faults = (struct dtp_faults){0};
            refuses_all = all;
            refused = false;
            allocations_left = count++;
            armed = true;
            enum dtp_status status = try_it(subject, &faults);
            armed = false;
            assert_int_equal(status, refused ? DTP_ENVIRONMENT : DTP_OK);
            assert_int_equal(faults.count > 0, refused);
        } while (refused);
        assert_true(count > least);
    }
}

static enum dtp_status build(struct subject *subject, struct dtp_faults *faults)
{
    (void)subject;
    struct dtp_program *program;
    enum dtp_status status = step_program_make(6, 2, 4, &program, faults);
    dtp_program_destroy(program);
    return status;
}

static enum dtp_status verify(struct subject *subject, struct dtp_faults *faults)
{
    return dtp_program_verify(subject->program, faults);
}

static enum dtp_status ask(struct subject *subject, struct dtp_faults *faults)
{
    bool redundant;
    return dtp_program_dependency_redundant(subject->program, &dtp_program_ops(subject->program)[1], 0, &redundant,
                                            faults);
}

static enum dtp_status place(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_placement placement;
    enum dtp_status status = dtp_program_place(subject->program, &placement, faults);
    assert_true((status == DTP_OK) == (placement.offset_bytes != NULL));
    dtp_placement_release(&placement);
    return status;
}

static enum dtp_status place_tight(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_placement placement;
    enum dtp_status status = dtp_program_place_tight(subject->program, &placement, faults);
    assert_true((status == DTP_OK) == (placement.offset_bytes != NULL));
    dtp_placement_release(&placement);
    return status;
}

static enum dtp_status parse(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_program *program;
    enum dtp_status status = dtp_program_parse_text("text", subject->text, subject->text_bytes, &program, faults);
    assert_true((status == DTP_OK) == (program != NULL));
    dtp_program_destroy(program);
    return status;
}

static enum dtp_status lower(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_program *program = NULL;
    const struct random_job *job = &subject->job;
    enum dtp_status status = dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, faults);
    if (status == DTP_OK)
        dtp_program_destroy(program);
    return status;
}

static enum dtp_status simulate(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_timeline timeline = {0};
    const struct random_job *job = &subject->job;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    enum dtp_status status = dtp_simulate(subject->program, &job->cluster, &options, &timeline, faults);
    if (status == DTP_OK)
        dtp_timeline_release(&timeline);
    return status;
}

static void write_text(struct subject *subject)
{
    FILE *file = open_memstream(&subject->text, &subject->text_bytes);
    assert_int_equal(dtp_program_write_text(subject->program, file), DTP_OK);
    fclose(file);
}

static void test_a_hand_made_step(void **state)
{
    (void)state;
    struct subject subject = {.program = step_program(6, 2, 4)};
    write_text(&subject);
    refuse_each(build, &subject, 10);
    refuse_each(verify, &subject, 2);
    refuse_each(ask, &subject, 0);
    refuse_each(place, &subject, 6);
    refuse_each(place_tight, &subject, 6);
    refuse_each(parse, &subject, 10);
    free(subject.text);
    dtp_program_destroy(subject.program);
}

static enum dtp_status time_schedule(struct subject *subject, struct dtp_faults *faults)
{
    (void)subject;
    const struct dtp_schedule_shape shape = {DTP_SCHEDULE_DUALPIPEV, 3, 6, 0, 0};
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer;
    enum dtp_status status = dtp_schedule_create(&shape, &schedule, faults);
    if (status != DTP_OK)
        return status;
    status = dtp_schedule_timer_create(&schedule, DTP_SEND_RENDEZVOUS, &timer, faults);
    dtp_schedule_timer_destroy(timer);
    dtp_schedule_destroy(&schedule);
    return status;
}

static enum dtp_status cut_stages(struct subject *subject, struct dtp_faults *faults)
{
    (void)subject;
    const struct dtp_stages_model model = {6, 0};
    const struct dtp_part_cost layers[6] = {{1, 1, 1, 0, 0}, {1, 1, 1, 0, 0}, {1, 1, 1, 0, 0},
                                            {1, 1, 1, 0, 0}, {1, 1, 1, 0, 0}, {1, 1, 1, 0, 0}};
    const struct dtp_model_cost cost = {.layers = layers};
    struct dtp_stages stages;
    enum dtp_status status = dtp_stages_best(&model, &cost, 3, &stages, faults);
    assert_true((status == DTP_OK) == (stages.parts != NULL));
    dtp_stages_destroy(&stages);
    if (status == DTP_OK)
        status = dtp_stages_parse("E(tt|)*3L", &model, 2, &stages, faults);
    assert_true((status == DTP_OK) == (stages.parts != NULL));
    dtp_stages_destroy(&stages);
    return status;
}

static void test_schedules(void **state)
{
    (void)state;
    struct subject subject = {0};
    refuse_each(time_schedule, &subject, 3);
    refuse_each(cut_stages, &subject, 3);
}

/* The jobs that lowering knows, of three layers and two micro-steps. */
static void test_lowered_steps(void **state)
{
    (void)state;
    random_seed();
    for (int lowered = 0; lowered < 6;) {
        struct subject subject = {0};
        assert_true(random_job(&subject.job));
        subject.job.transformer.layers = 3;
        subject.job.plan = subject.job.asked;
        subject.job.plan.accumulate = 2;
        const struct random_job *job = &subject.job;
        if (dtp_plan_resolve(&subject.job.plan, &job->transformer, &job->cluster, NULL) != DTP_OK ||
            dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &subject.program, NULL) != DTP_OK)
            continue;
        refuse_each(lower, &subject, 5);
        refuse_each(place, &subject, 6);
        refuse_each(simulate, &subject, 3);
        dtp_program_destroy(subject.program);
        lowered++;
    }
}

static enum dtp_status simulate_pipeline(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_timeline timelines[3];
    enum dtp_status status = dtp_simulate_set(&subject->set, &subject->job.cluster, &options, timelines, faults);
    for (int r = 0; r < 3; r++) {
        assert_true(status == DTP_OK || timelines[r].op_count == 0);
        if (status == DTP_OK)
            dtp_timeline_release(&timelines[r]);
    }
    return status;
}

static enum dtp_status lower_pipeline(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_program_set set;
    enum dtp_status status =
        dtp_lower_set(&subject->job.transformer, &subject->job.cluster, &subject->job.plan, 0, &set, faults);
    assert_true((status == DTP_OK) == (set.role_count == 3));
    dtp_program_set_release(&set);
    return status;
}

static enum dtp_status resolve_stages(struct subject *subject, struct dtp_faults *faults)
{
    struct dtp_plan plan = subject->job.asked;
    return dtp_plan_resolve(&plan, &subject->job.transformer, &subject->job.cluster, faults);
}

/* Whatever way layers are cut, a plan without memory is no wrong plan. */
static void test_cuts_of_a_plan(void **state)
{
    static const char *const cuts[] = {"even", "cost", "best", "step", "Ett|ttt|tt|tL"};
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct subject subject = {0};
        struct dtp_transformer t = dtp_transformer_default();
        struct dtp_plan plan = dtp_plan_default();
        t.layers = 8, t.hidden = 64, t.ffn = 128, t.vocab = 256, t.heads = t.kv_heads = 1, t.head_dim = 64;
        plan.runtime = dtp_runtime_find("megatron");
        plan.strategy = DTP_DDP, plan.pp = 4, plan.accumulate = 4, plan.sequence = 64;
        assert_true(dtp_stage_choice_parse(cuts[i], &plan.stages));
        subject.job.transformer = t, subject.job.asked = plan;
        subject.job.cluster = test_cluster(test_h200(), 4, 4);
        refuse_each(resolve_stages, &subject, 0);
    }
}

/* Three stages, lowered and simulated. */
static void test_pipeline(void **state)
{
    (void)state;
    struct subject subject = {0};
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_plan plan = dtp_plan_default();
    t.layers = 3, t.hidden = 64, t.ffn = 128, t.vocab = 256, t.heads = t.kv_heads = 1, t.head_dim = 64;
    plan.runtime = dtp_runtime_find("megatron");
    plan.strategy = DTP_ZERO1, plan.pp = 3, plan.accumulate = 3, plan.sequence = 64;
    plan.schedule = DTP_SCHEDULE_ZB_H1, plan.post_validation = true, t.tied_head = false;
    subject.job.transformer = t;
    subject.job.cluster = test_cluster(test_h200(), 6, 2);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &subject.job.cluster, NULL), DTP_OK);
    subject.job.plan = plan;
    refuse_each(lower_pipeline, &subject, 20);
    assert_int_equal(dtp_lower_set(&t, &subject.job.cluster, &plan, 0, &subject.set, NULL), DTP_OK);
    refuse_each(simulate_pipeline, &subject, 20);
    dtp_program_set_release(&subject.set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_hand_made_step), cmocka_unit_test(test_schedules),
                                       cmocka_unit_test(test_lowered_steps), cmocka_unit_test(test_pipeline),
                                       cmocka_unit_test(test_cuts_of_a_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
