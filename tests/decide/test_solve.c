/* Solvers, advisor and scaling reference: every answer is checked by planning it anew from its flags, as a user would.
 */
#include "decide/advise.h"
#include "job/estimate.h"
#include "decide/money.h"
#include "decide/scaling.h"
#include "decide/solve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"
#include "lib/random_plans.h"
#include "lib/scenario_fixture.h"

/* "--gpus 8 --compile" on top of `base`, resolved and predicted the way the command line does it. */
static enum dtp_status plan_flags(const char *base, const char *more, struct dtp_job *job, struct dtp_prediction *out)
{
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_scenario *scenario;
    struct dtp_faults faults = {0};
    char line[512], *rest = line;
    snprintf(line, sizeof line, "%s %s", base, more);
    assert_int_equal(dtp_scenario_create(&scenario, &faults), DTP_OK);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        bool negated = strncmp(word, "--no-", 5) == 0;
        const char *key = word + (negated ? 5 : 2);
        bool has_value = rest && *rest && strncmp(rest, "--", 2) != 0;
        const char *value = negated ? "false" : has_value ? strtok_r(rest, " ", &rest) : "true";
        if (dtp_scenario_set(scenario, key, value, "test", 0, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
    }
    enum dtp_status status = dtp_scenario_resolve(scenario, &catalog, job, &faults);
    if (status == DTP_OK)
        status = dtp_estimate(&job->transformer, &job->cluster, &job->plan, out, &faults);
    dtp_scenario_destroy(scenario);
    return status;
}

static struct dtp_variant planned(const char *base, const char *more)
{
    struct dtp_variant v;
    if (plan_flags(base, more, &v.job, &v.prediction) != DTP_OK)
        fail_msg("'%s %s' is refused", base, more);
    return v;
}

static enum dtp_verdict verdict(const char *base, const char *format, uint64_t value)
{
    char flags[64];
    struct dtp_variant v;
    snprintf(flags, sizeof flags, "%s %llu", format, (unsigned long long)value);
    /* What is refused cannot be run either. */
    return plan_flags(base, flags, &v.job, &v.prediction) == DTP_OK ? v.prediction.memory.verdict : DTP_VERDICT_OOM;
}

/* ---- solvers ---------------------------------------------------------------------------------------------------- */

static void check_largest(const char *base, enum dtp_solve_goal goal, const char *flag, uint64_t step)
{
    struct dtp_variant v = planned(base, "");
    struct dtp_solution s;
    assert_int_equal(dtp_solve(&v.job, goal, &s), DTP_OK);
    assert_true(s.found && s.value > 0);
    assert_int_equal(verdict(base, flag, s.value), DTP_VERDICT_FITS);
    assert_int_not_equal(verdict(base, flag, s.value + step), DTP_VERDICT_FITS);
    assert_int_equal(s.variant.prediction.memory.verdict, DTP_VERDICT_FITS);
    if (s.tight_value > 0) {
        assert_int_equal(verdict(base, flag, s.tight_value), DTP_VERDICT_TIGHT);
        assert_int_equal(verdict(base, flag, s.tight_value + step), DTP_VERDICT_OOM);
    }
    assert_in_range(s.predictions_count, 1, 200);
}

static void test_largest(void **state)
{
    (void)state;
    static const char *const bases[] = {
        "--model llama-2-7b --gpus 8", "--model llama-2-7b --gpus 16 --strategy hybrid_shard --compile",
        "--model gpt2-124m --gpus 1", "--model llama-2-7b --gpus 8 --checkpointing full --loss chunked",
        "--model llama-2-7b --gpus 8 --strategy zero2 --accumulate 4"};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        check_largest(bases[i], DTP_SOLVE_MAX_MICRO_BATCH, "--micro-batch", 1);
        check_largest(bases[i], DTP_SOLVE_MAX_SEQUENCE, "--seq", DTP_SOLVE_SEQUENCE_STEP);
    }
}

/* GPT-2's position table has 1024 rows: the answer ends there, and the reason says so. */
static void test_a_refusal_ends_the_search(void **state)
{
    (void)state;
    struct dtp_variant v = planned("--model gpt2-124m --gpus 8", "");
    struct dtp_solution s;
    assert_int_equal(dtp_solve(&v.job, DTP_SOLVE_MAX_SEQUENCE, &s), DTP_OK);
    assert_int_equal(s.value, 1024);
    assert_int_equal(s.next_device_bytes, 0);
    assert_non_null(strstr(s.next_reason, "position"));
}

static void test_fewest_gpus(void **state)
{
    (void)state;
    const char *base = "--model llama-2-7b --checkpointing full --loss chunked";
    struct dtp_variant v = planned(base, "--gpus 1");
    struct dtp_solution s;
    assert_int_equal(dtp_solve(&v.job, DTP_SOLVE_MIN_GPUS, &s), DTP_OK);
    assert_int_equal(verdict(base, "--gpus", s.value), DTP_VERDICT_FITS);
    assert_true(s.value > 1 && s.value <= 8);
    assert_int_not_equal(verdict(base, "--gpus", s.next_value), DTP_VERDICT_FITS);
    assert_true(s.next_value < s.value);
}

/* DDP keeps everything on every GPU: more of them never help. */
static void test_no_number_of_gpus(void **state)
{
    (void)state;
    struct dtp_variant v = planned("--model llama-2-7b --strategy ddp --gpus 8", "");
    struct dtp_solution s;
    assert_int_equal(dtp_solve(&v.job, DTP_SOLVE_MIN_GPUS, &s), DTP_NO);
    assert_false(s.found);
    assert_true(s.variant_valid);
    assert_int_equal(s.value, 8);
    assert_int_equal(dtp_solve(&v.job, DTP_SOLVE_MAX_MICRO_BATCH, &s), DTP_NO);
    assert_int_equal(s.value, 1);
}

/* Layers of 70B leave the allocator no margin on 80 GB, whatever the number of GPUs: the fewest that hold the tensors
 * are the answer, and it says so. The same for the micro batch of a cluster that is tight with one sequence. */
static void test_a_tight_answer_is_one(void **state)
{
    (void)state;
    const char *base = "--layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --vocab 128256";
    struct dtp_variant v = planned(base, "--gpus 1");
    struct dtp_solution s;
    assert_int_equal(dtp_solve(&v.job, DTP_SOLVE_MIN_GPUS, &s), DTP_OK);
    assert_true(s.found && s.tight && s.tight_value == 0);
    assert_int_equal(verdict(base, "--gpus", s.value), DTP_VERDICT_TIGHT);
    assert_int_equal(verdict(base, "--gpus", s.next_value), DTP_VERDICT_OOM);
    assert_int_equal(s.variant.job.cluster.gpus, s.value);
    v = s.variant;
    assert_int_equal(dtp_solve(&v.job, DTP_SOLVE_MAX_MICRO_BATCH, &s), DTP_OK);
    assert_true(s.found && s.tight);
    assert_int_equal(s.value, 1);
    assert_int_equal(s.variant.prediction.memory.verdict, DTP_VERDICT_TIGHT);
}

/* ---- advisor ---------------------------------------------------------------------------------------------------- */

/* What is advised, typed as it stands, gives what was promised. */
static struct dtp_advice check_advice(const char *base)
{
    struct dtp_variant v = planned(base, "");
    struct dtp_advice advice;
    dtp_advise(&v.job, &v.prediction, NULL, NULL, &advice);
    for (size_t i = 0; i < advice.count; i++) {
        const struct dtp_change *change = &advice.changes[i];
        struct dtp_variant again = planned(base, change->flags);
        double promised = change->variant.prediction.throughput.tokens_per_s;
        assert_near(again.prediction.throughput.tokens_per_s, promised, 1e-12);
        assert_int_equal(again.prediction.memory.device_peak_bytes,
                         change->variant.prediction.memory.device_peak_bytes);
        /* Tight only where the plan is out of memory and nothing leaves a margin. */
        assert_int_equal(again.prediction.memory.verdict, change->variant.prediction.memory.verdict);
        assert_true(again.prediction.memory.verdict < v.prediction.memory.verdict ||
                    v.prediction.memory.verdict == DTP_VERDICT_FITS);
        assert_near(1 + change->gain, promised / v.prediction.throughput.tokens_per_s, 1e-12);
        if (i > 0)
            assert_true(change->gain <= advice.changes[i - 1].gain);
    }
    return advice;
}

static void test_advice_keeps_its_promise(void **state)
{
    (void)state;
    struct dtp_advice a = check_advice("--model llama-2-7b --gpus 8");
    assert_int_equal(a.kind, DTP_ADVICE_FASTER);
    assert_true(a.changes[0].gain >= DTP_ADVICE_MIN_GAIN);
    a = check_advice("--model llama-2-7b --gpus 8 --strategy ddp");
    assert_int_equal(a.kind, DTP_ADVICE_MAKES_FIT);
    a = check_advice("--model llama-2-7b --gpus 8 --micro-batch 32 --accumulate 2");
    assert_int_equal(a.kind, DTP_ADVICE_MAKES_FIT);
    a = check_advice("--model llama-2-7b --gpus 1 --strategy ddp --attention math --micro-batch 64");
    assert_true(a.count > 0);
    check_advice("--model gpt2-124m --gpus 4 --strategy full_shard --precision fp32");
    check_advice("--model llama-2-7b --gpus 16 --strategy zero2 --accumulate 8 --micro-batch 2");
    check_advice("--model llama-2-7b --gpus 8 --gpu h100-sxm --runtime deepspeed --strategy zero3 --offload nvme");
}

/* GPT-2's own vocabulary makes rows of logits begin at odd addresses. */
static void test_advises_padded_vocabulary(void **state)
{
    (void)state;
    struct dtp_variant v = planned("--model gpt2-124m --gpu h100-sxm --gpus 1 --micro-batch 16 --seq 1024", "");
    struct dtp_advice advice;
    dtp_advise(&v.job, &v.prediction, NULL, NULL, &advice);
    assert_int_equal(advice.kind, DTP_ADVICE_FASTER);
    assert_string_equal(advice.changes[0].flags, "--vocab 50304");
    assert_string_equal(advice.changes[0].note, "47 tokens that no text has");
    assert_true(advice.changes[0].gain > 0.2);
}

/* A single GPU cannot hold the state of 7B in any recipe that trains it: pairs, numerics, then more GPUs. */
static void test_more_gpus(void **state)
{
    (void)state;
    struct dtp_variant v = planned("--model llama-2-7b --layers 320 --gpus 8", "");
    struct dtp_advice advice;
    dtp_advise(&v.job, &v.prediction, NULL, NULL, &advice);
    assert_true(advice.kind != DTP_ADVICE_NONE && advice.kind != DTP_ADVICE_FASTER);
    assert_true(advice.count > 0);
    assert_true(advice.changes[0].variant.prediction.memory.verdict != DTP_VERDICT_OOM);
}

/* 405B on more GPUs than it needs is out of memory for its activations: recomputing them makes it tight, and no number
 * of GPUs is "more" that is less than it has. */
static void test_advice_is_never_fewer_gpus(void **state)
{
    (void)state;
    struct dtp_variant v =
        planned("--layers 126 --hidden 16384 --heads 128 --kv-heads 8 --ffn 53248 --vocab 128256", "--gpus 16384");
    struct dtp_advice advice;
    assert_int_equal(v.prediction.memory.verdict, DTP_VERDICT_OOM);
    dtp_advise(&v.job, &v.prediction, NULL, NULL, &advice);
    assert_int_equal(advice.kind, DTP_ADVICE_MAKES_FIT);
    assert_true(advice.count > 0);
    assert_int_equal(advice.changes[0].variant.job.cluster.gpus, 16384);
    assert_int_equal(advice.changes[0].variant.prediction.memory.verdict, DTP_VERDICT_TIGHT);
}

static void test_random_advice_always_fits(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < RANDOM_DRAWS(300); i++) {
        struct random_job random;
        struct dtp_prediction prediction;
        struct dtp_advice advice;
        assert_true(random_job(&random));
        struct dtp_job job = {.transformer = random.transformer,
                              .cluster = random.cluster,
                              .plan = random.plan,
                              .asked = random.asked,
                              .node_gpus = random.cluster.machine.gpus};
        assert_int_equal(dtp_estimate(&job.transformer, &job.cluster, &job.plan, &prediction, NULL), DTP_OK);
        dtp_advise(&job, &prediction, NULL, NULL, &advice);
        assert_in_range(advice.count, advice.kind == DTP_ADVICE_NONE || advice.kind == DTP_ADVICE_HOPELESS ? 0 : 1,
                        DTP_ADVICE_KEPT);
        enum dtp_verdict worst = prediction.memory.verdict == DTP_VERDICT_OOM ? DTP_VERDICT_TIGHT : DTP_VERDICT_FITS;
        for (size_t k = 0; k < advice.count; k++) {
            const struct dtp_variant *variant = &advice.changes[k].variant;
            assert_in_range(variant->prediction.memory.verdict, DTP_VERDICT_FITS, worst);
            /* All of one kind: a margin or none. */
            assert_int_equal(variant->prediction.memory.verdict, advice.changes[0].variant.prediction.memory.verdict);
            assert_true(advice.kind != DTP_ADVICE_MORE_GPUS || variant->job.cluster.gpus > job.cluster.gpus);
        }
    }
}

/* ---- scaling and money ------------------------------------------------------------------------------------------ */

static struct dtp_scaling scaling_of(const char *flags)
{
    struct dtp_variant v = planned(flags, "");
    struct dtp_scaling s;
    dtp_scaling_of(&v.job, &v.prediction, &s);
    return s;
}

static void test_scaling_reference(void **state)
{
    (void)state;
    struct dtp_scaling s = scaling_of("--model gpt2-124m --gpus 1");
    assert_int_equal(s.reference_gpus, 1);
    assert_true(s.reference_fits && s.efficiency == 1);
    s = scaling_of("--model gpt2-124m --gpus 16 --strategy ddp");
    assert_int_equal(s.reference_gpus, 1);
    assert_true(s.reference_fits && s.efficiency > 0.1 && s.efficiency < 1);
    s = scaling_of("--model llama-2-7b --gpus 8"); /* 108 GB of state: not on one GPU of 80 GB */
    assert_in_range(s.reference_gpus, 2, 8);
    assert_true(s.reference_fits);
    s = scaling_of("--model llama-2-7b --gpus 8 --strategy ddp"); /* fits nowhere */
    assert_int_equal(s.reference_gpus, 1);
    assert_false(s.reference_fits);
    s = scaling_of("--model gpt2-124m --gpus 16 --strategy hybrid_shard --shard-group 8");
    assert_int_equal(s.reference_gpus, 1);
}

/* (2-GPU throughput) / (2 x 1-GPU throughput), as the textbooks have it. */
static void test_scaling_is_weak_scaling(void **state)
{
    (void)state;
    struct dtp_variant one = planned("--model gpt2-124m --strategy ddp --gpus 1", "");
    struct dtp_variant two = planned("--model gpt2-124m --strategy ddp --gpus 2", "");
    struct dtp_scaling s;
    dtp_scaling_of(&two.job, &two.prediction, &s);
    assert_near(s.efficiency, two.prediction.throughput.tokens_per_s / (2 * one.prediction.throughput.tokens_per_s),
                1e-12);
}

static void test_money(void **state)
{
    (void)state;
    struct dtp_variant v = planned("--model gpt2-124m --gpus 4 --strategy ddp", "");
    struct dtp_price price = {"h100-sxm", 1, 2, 4, "2026-01", "assumed", ""};
    struct dtp_money m;
    v.prediction.throughput.tokens_per_s = 1e9 / 3600; /* a billion tokens an hour */
    dtp_money_of(&v.job, &v.prediction.throughput, &price, &m);
    assert_true(m.known && !m.given);
    assert_near(m.job_hour_usd[DTP_PRICE_TYPICAL], 8, 1e-12);
    assert_near(m.billion_tokens_usd[DTP_PRICE_LOW], 4, 1e-12);
    assert_near(m.billion_tokens_usd[DTP_PRICE_HIGH], 16, 1e-12);
    v.job.plan.price_per_gpu_hour = 0.5;
    dtp_money_of(&v.job, &v.prediction.throughput, &price, &m);
    assert_true(m.known && m.given && m.date[0] == '\0');
    assert_near(m.billion_tokens_usd[DTP_PRICE_LOW], 2, 1e-12);
    v.job.plan.price_per_gpu_hour = 0;
    dtp_money_of(&v.job, &v.prediction.throughput, NULL, &m);
    assert_false(m.known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_a_refusal_ends_the_search),
        cmocka_unit_test(test_fewest_gpus),
        cmocka_unit_test(test_no_number_of_gpus),
        cmocka_unit_test(test_a_tight_answer_is_one),
        cmocka_unit_test(test_advice_keeps_its_promise),
        cmocka_unit_test(test_more_gpus),
        cmocka_unit_test(test_advises_padded_vocabulary),
        cmocka_unit_test(test_advice_is_never_fewer_gpus),
        cmocka_unit_test(test_random_advice_always_fits),
        cmocka_unit_test(test_scaling_reference),
        cmocka_unit_test(test_scaling_is_weak_scaling),
        cmocka_unit_test(test_money),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
