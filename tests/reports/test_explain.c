/* The explanation checks itself: the terms of every group sum to its total, and nearly everything is accounted for by a
 * rule, over random plans. */
#include "record/explain.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "lib/random_draws.h"
#include "lib/random_plans.h"

static struct dtp_explanation explanation; /* 50 KiB */

static double group_sum(const struct dtp_term_group *group)
{
    double sum = 0;
    for (size_t i = 0; i < group->count; i++)
        sum += explanation.terms[group->first + i].value;
    return sum;
}

static void explain(const struct random_job *random, struct dtp_job *job, struct dtp_prediction *prediction)
{
    *job = (struct dtp_job){.transformer = random->transformer,
                            .cluster = random->cluster,
                            .plan = random->plan,
                            .asked = random->asked,
                            .node_gpus = random->cluster.machine.gpus};
    assert_int_equal(dtp_estimate(&job->transformer, &job->cluster, &job->plan, prediction, NULL), DTP_OK);
    assert_int_equal(dtp_explain(job, prediction, &explanation, NULL), DTP_OK);
}

static double total_of(const char *title)
{
    for (size_t i = 0; i < explanation.group_count; i++)
        if (strcmp(explanation.groups[i].title, title) == 0)
            return explanation.groups[i].total;
    return 0;
}

static void check_sums(void)
{
    for (size_t g = 0; g < explanation.group_count; g++) {
        const struct dtp_term_group *group = &explanation.groups[g];
        double sum = group_sum(group), largest = fmax(fabs(group->total), fabs(sum));
        if (!(fabs(sum - group->total) <= 1e-9 * largest))
            fail_msg("%s sums to %.17g, not %.17g", group->title, sum, group->total);
    }
}

static void check_totals(const struct dtp_job *job, const struct dtp_prediction *p)
{
    assert_true(total_of("PARAMETERS") == (double)dtp_transformer_count(&job->transformer).total);
    assert_true(total_of("MEMORY AT THE PEAK") == (double)p->memory.allocated_peak_bytes);
    assert_true(total_of("DEVICE MEMORY") == (double)p->memory.device_peak_bytes);
    assert_true(total_of("COMMUNICATION") == (double)p->communication.total_bytes);
    assert_true(total_of("FORWARD AND BACKWARD") == p->time.compute_s);
    assert_true(total_of("STEP") == p->time.step_s);
}

static void test_terms_sum_to_totals(void **state)
{
    (void)state;
    size_t terms = 0, gaps = 0;
    random_seed();
    for (int i = 0; i < RANDOM_DRAWS(3000); i++) {
        struct random_job random;
        struct dtp_job job;
        struct dtp_prediction prediction;
        assert_true(random_job(&random));
        explain(&random, &job, &prediction);
        check_totals(&job, &prediction);
        assert_in_range(explanation.term_count, 10, DTP_EXPLAIN_TERMS - 1); /* none was dropped */
        check_sums();
        terms += explanation.term_count;
        for (size_t t = 0; t < explanation.term_count && !job.plan.precision.fp8_all_gather; t++)
            assert_null(strstr(explanation.terms[t].numbers, "as fp8")); /* only what holds of the plan is said */
        for (size_t t = 0; t < explanation.term_count; t++)
            gaps += explanation.terms[t].gap;
    }
    if (gaps > 0)
        fail_msg("%zu of %zu terms have no rule: one of the closed form is new to explain", gaps, terms);
}

/* Bytes are exact: in memory and communication terms must sum to the byte, not nearly. */
static void test_bytes_are_exact(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < RANDOM_DRAWS(500); i++) {
        struct random_job random;
        struct dtp_job job;
        struct dtp_prediction prediction;
        assert_true(random_job(&random));
        explain(&random, &job, &prediction);
        for (size_t g = 0; g < explanation.group_count; g++) {
            const struct dtp_term_group *group = &explanation.groups[g];
            if (group->unit == DTP_EXPLAIN_BYTES && group->total < 9e15)
                assert_true(group_sum(group) == group->total);
        }
    }
}

/* The plan everybody tries first: every byte has a rule, and the rule has the numbers one expects. */
static void explain_seven_billion_of(struct random_job random, uint64_t sliding_window)
{
    struct dtp_job job;
    struct dtp_prediction prediction;
    struct dtp_transformer *t = &random.transformer;
    *t = dtp_transformer_default();
    t->layers = t->heads = t->kv_heads = 32;
    t->hidden = 4096;
    t->head_dim = 128;
    t->ffn = 11008;
    t->vocab = 32000;
    t->sliding_window = sliding_window;
    random.plan = random.asked;
    assert_int_equal(dtp_plan_resolve(&random.plan, t, &random.cluster, NULL), DTP_OK);
    explain(&random, &job, &prediction);
}

static void explain_seven_billion(uint64_t sliding_window)
{
    explain_seven_billion_of(
        (struct random_job){.cluster = test_cluster(test_h200(), 8, 8), .asked = dtp_plan_default()}, sliding_window);
}

static const struct dtp_term *term_called(const char *name)
{
    for (size_t i = 0; i < explanation.term_count; i++)
        if (strcmp(explanation.terms[i].name, name) == 0)
            return &explanation.terms[i];
    fail_msg("no term \"%s\"", name);
    return NULL;
}

/* Moments in fp32 of LLaMA-7B on one GPU. A layer: four matrices 4096 x 4096, three 4096 x 11008, two norms of 4096;
 * the ends: two of 32000 x 4096 and a norm. GaLore of rank 128: 2 x 128 of each greater side, 32 x 256 (4 x 4096 + 3 x
 * 11008) = 404,750,336; 7 x 32 projections of 4096 x 128; AdamW's of 262,410,240. Adam-mini: rows 32 (5 x 4096 + 2 x
 * 11008) + 64,000; norms 65 x 4096. Adafactor: 32 (4 x 8192 + 3 x 15104) + 2 x 36,096. Of 8 bits a scale each 256. */
static void test_state_by_part(void **state)
{
    (void)state;
    const struct {
        enum dtp_optimizer optimizer;
        const char *part;
        double bytes;
    } rows[] = {
        {DTP_GALORE, "moments of projected gradients", 4 * 404750336.0},
        {DTP_GALORE, "projections", 4 * 117440512.0},
        {DTP_APOLLO, "moments of the rest", 8 * 262410240.0},
        {DTP_ADAM_MINI, "first moments", 4 * 6738415616.0},
        {DTP_ADAM_MINI, "second moments of matrices", 4 * 1423872.0},
        {DTP_ADAM_MINI, "second moments of vectors", 4 * 266240.0},
        {DTP_ADAFACTOR, "sums over rows and columns", 4 * 2570752.0},
        {DTP_ADAM8BIT, "moments", 2 * 6738415616.0},
        {DTP_ADAM8BIT, "scales of blocks", 8 * 6738415616.0 / 256},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct random_job random = {.cluster = test_cluster(test_h200(), 1, 1), .asked = dtp_plan_default()};
        char name[64];
        random.asked.strategy = DTP_DDP, random.asked.optimizer = rows[i].optimizer;
        random.asked.projection_rank = 128;
        explain_seven_billion_of(random, 0);
        check_sums();
        snprintf(name, sizeof name, "optimizer state: %s", rows[i].part);
        const struct dtp_term *term = term_called(name);
        if (term->value != rows[i].bytes)
            fail_msg("%s of %s: %.0f B, not %.0f", name, dtp_optimizer_text(rows[i].optimizer), term->value,
                     rows[i].bytes);
    }
}

/* 2 L d_q s FLOPs of 2048 tokens; a window w of s = 2048 costs what w (2 - w / s) tokens do: 896 of 512. */
static void test_a_window_cuts_attention(void **state)
{
    (void)state;
    explain_seven_billion(0);
    assert_int_equal(strncmp(term_called("attention, forward")->numbers, "1.1e+12 FLOP", 12), 0);
    explain_seven_billion(512);
    assert_int_equal(strncmp(term_called("attention, forward")->numbers, "4.81e+11 FLOP", 13), 0);
}

static void test_seven_billion_on_eight(void **state)
{
    (void)state;
    explain_seven_billion(0);
    bool found = false;
    for (size_t i = 0; i < explanation.term_count; i++) {
        const struct dtp_term *term = &explanation.terms[i];
        assert_false(term->gap);
        if (strcmp(term->name, "optimizer state: moments") == 0) {
            assert_string_equal(term->rule, "padded psi / N x moment bytes");
            assert_string_equal(term->numbers, "842301952 x 8 B"); /* two fp32 moments, 6738415616 / 8 */
            assert_true(term->value == 8.0 * 842301952);
            found = true;
        }
    }
    assert_true(found);
}

/* ---- ranks that divide the model --------------------------------------------------------------------------------- */

static void explain_job(struct dtp_job job)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    struct dtp_faults faults = {0};
    struct dtp_simulated simulated;
    struct dtp_pipeline_stages stages;
    if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, &faults) != DTP_OK ||
        dtp_simulated_create(&job, &options, &simulated, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    assert_int_equal(dtp_pipeline_stages_of(&simulated, &stages, &faults), DTP_OK);
    assert_int_equal(dtp_explain_simulated(&simulated, &stages, &explanation, &faults), DTP_OK);
    check_sums();
    for (size_t t = 0; t < explanation.term_count; t++)
        if (explanation.terms[t].gap)
            fail_msg("%s, %s: %g has no rule", job.plan.runtime->name, explanation.terms[t].name,
                     explanation.terms[t].value);
    assert_true(total_of("DEVICE MEMORY") == (double)simulated.prediction.memory.device_peak_bytes);
    assert_true(total_of("STEP") == simulated.prediction.time.step_s);
    assert_true((total_of("PIPELINE BUBBLE") > 0) == (job.plan.pp > 1));
    dtp_pipeline_stages_release(&stages);
    dtp_simulated_release(&simulated);
}

static struct dtp_job divided_job(const char *runtime, enum dtp_strategy strategy, uint32_t tp, uint32_t cp,
                                  uint32_t pp)
{
    struct dtp_job job = {.transformer = llama_7b(), .cluster = test_cluster(test_h200(), 8, 8)};
    job.plan = dtp_plan_default();
    job.plan.runtime = dtp_runtime_find(runtime);
    job.plan.strategy = strategy;
    job.plan.tp = tp, job.plan.cp = cp, job.plan.pp = pp, job.plan.accumulate = 8;
    return job;
}

static void explain_ranks(const char *runtime, enum dtp_strategy strategy, uint32_t tp, uint32_t cp, uint32_t pp,
                          enum dtp_schedule_kind schedule)
{
    struct dtp_job job = divided_job(runtime, strategy, tp, cp, pp);
    job.plan.schedule = schedule;
    explain_job(job);
}

static void test_ranks_that_divide_the_model(void **state)
{
    (void)state;
    explain_ranks("torch", DTP_FULL_SHARD, 4, 1, 1, DTP_SCHEDULE_1F1B);
    explain_ranks("nanotron", DTP_ZERO1, 2, 1, 2, DTP_SCHEDULE_1F1B);
    explain_ranks("torch", DTP_FULL_SHARD, 1, 1, 4, DTP_SCHEDULE_1F1B);
    explain_ranks("megatron", DTP_ZERO1, 1, 2, 2, DTP_SCHEDULE_1F1B); /* rings send as stages do, and are none */
    explain_ranks("torch", DTP_FULL_SHARD, 1, 1, 4, DTP_SCHEDULE_LOOPED_BFS);
    for (int schedule = 0; schedule < DTP_SCHEDULE_COUNT; schedule++)
        if (dtp_runtime_find("megatron")->schedules & 1u << schedule)
            explain_ranks("megatron", DTP_ZERO1, 1, 1, 4, (enum dtp_schedule_kind)schedule);
}

/* LLaMA-7B, tp 2, pp 4, a sequence of 2048 in bf16: the first rank has 8 layers of half the width and half the
 * embedding. A boundary is 2048 x 4096 x 2 B / tp a micro-batch, which the last rank sends back 8 times; a layer
 * gathers and scatters such a half 4 and 4 times, of which backward gathers two again (Korthikanti et al. 2022). */
static void test_a_rank_of_a_pipeline(void **state)
{
    (void)state;
    explain_ranks("megatron", DTP_ZERO1, 2, 1, 4, DTP_SCHEDULE_1F1B);
    assert_true(total_of("PARAMETERS OF A RANK") ==
                8.0 * (4.0 * 4096 * 4096 + 3.0 * 4096 * 11008) / 2 + 8 * 2 * 4096 + 32000.0 * 4096 / 2);
    assert_true(term_called("sends to other stages: gradients")->value == 8 * 2048.0 * 4096 * 2 / 2);
    double half = 2048.0 * 4096 * 2 / 2;
    assert_true(term_called("all_gather, tensor parallel")->value >= 8 * 8 * 6 * half);
    assert_true(term_called("reduce_scatter, tensor parallel")->value >= 8 * 8 * 4 * half);
    assert_string_equal(term_called("fill and drain of equal stages")->rule, "(p-1)(F+B+W)");
    assert_true(term_called("rank 0, the worst")->value > 0);
}

/* Of a model with experts a rank's parameters are those that rest there, whichever of its layers have some. */
static void test_a_rank_with_experts(void **state)
{
    (void)state;
    for (uint64_t dense = 0; dense < 8; dense += 3) {
        struct dtp_job job = divided_job("megatron", DTP_ZERO1, 2, 1, 2);
        job.transformer.layers = 8, job.transformer.dense_layers = dense;
        job.transformer.experts = 8, job.transformer.experts_per_token = 2, job.transformer.expert_ffn = 1024;
        job.plan.ep = 2, job.plan.schedule = DTP_SCHEDULE_1F1B;
        explain_job(job);
        double rest = 0; /* whatever the term that says them is called */
        for (size_t i = 0; i < explanation.term_count; i++)
            rest += strncmp(explanation.terms[i].name, "parameters: ", 12) == 0 ? explanation.terms[i].value : 0;
        assert_true(2 * total_of("PARAMETERS OF A RANK") == rest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terms_sum_to_totals),     cmocka_unit_test(test_bytes_are_exact),
        cmocka_unit_test(test_seven_billion_on_eight),  cmocka_unit_test(test_state_by_part),
        cmocka_unit_test(test_a_window_cuts_attention), cmocka_unit_test(test_ranks_that_divide_the_model),
        cmocka_unit_test(test_a_rank_of_a_pipeline),    cmocka_unit_test(test_a_rank_with_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
