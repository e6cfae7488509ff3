/* The search against the plain way: every combination predicted, the best of them picked by hand. */
#include "sim/search.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"
#include "sim/simulated.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/dtplan/lower_executor.h"
#include "lib/random_draws.h"
#include "lib/random_plans.h"
#include "lib/shipped_catalog.h"

static struct dtp_faults faults;

struct setup {
    struct dtp_axes axes;
    struct dtp_scenario *base;
    struct dtp_search_question question;
};

/* `keys` are pairs of key and values, with NULL at the end. */
static void set_up(struct setup *s, const char *const *keys)
{
    memset(s, 0, sizeof *s);
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_scenario_create(&s->base, &faults), DTP_OK);
    for (; keys[0]; keys += 2)
        if (dtp_axes_add(&s->axes, &catalog, keys[0], keys[1], "test", &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
    s->question =
        (struct dtp_search_question){.base = s->base, .axes = &s->axes, .catalog = &catalog, .precision_pinned = true};
}

static void tear_down(struct setup *s)
{
    dtp_axes_release(&s->axes);
    dtp_scenario_destroy(s->base);
}

/* The least of `of` over all combinations that fit, without any bound. */
static double least_of_all(const struct setup *s, double (*of)(const struct dtp_job *, const struct dtp_prediction *))
{
    uint64_t count;
    double least = INFINITY;
    struct dtp_scenario *scenario;
    assert_int_equal(dtp_axes_count(&s->axes, &count, &faults), DTP_OK);
    assert_int_equal(dtp_scenario_copy(s->base, &scenario, &faults), DTP_OK);
    for (uint64_t i = 0; i < count; i++) {
        struct dtp_job job;
        struct dtp_prediction p;
        assert_int_equal(dtp_axes_apply(&s->axes, i, false, scenario, &faults), DTP_OK);
        if (dtp_scenario_resolve(scenario, &catalog, &job, &faults) != DTP_OK)
            continue;
        assert_int_equal(dtp_estimate(&job.transformer, &job.cluster, &job.plan, &p, &faults), DTP_OK);
        if (p.memory.verdict == DTP_VERDICT_FITS)
            least = fmin(least, of(&job, &p));
    }
    dtp_scenario_destroy(scenario);
    return least;
}

static double usd_of(const struct dtp_job *job, const struct dtp_prediction *p)
{
    struct dtp_money money;
    struct dtp_training_cost cost;
    dtp_money_of(job, &p->throughput, dtp_catalog_price(&catalog, job->cluster.gpu.key), &money);
    dtp_training_cost_of(job, &p->throughput, 0, &money, false, &cost);
    return cost.usd[DTP_PRICE_TYPICAL];
}

/* Of 1,000 steps of 1 s the first 100 take 3 s: 1,200 s; where fewer steps than that are made, all of them do. */
static void test_steps_before_powersgd(void **state)
{
    (void)state;
    struct dtp_job job = {
        .plan =
            {.sequence = 100, .micro_batch = 1, .accumulate = 1, .tp = 1, .pp = 1, .cp = 1, .powersgd_start_step = 100},
        .cluster = {.gpus = 10}};
    struct dtp_throughput throughput = {.tokens_per_s = 1000};
    job.training.tokens = 1e6;
    assert_close(dtp_training_work_s(&job, &throughput, 3), 1200, 1e-12);
    assert_close(dtp_training_work_s(&job, &throughput, 0), 1000, 1e-12);
    job.training.tokens = 5e4;
    assert_close(dtp_training_work_s(&job, &throughput, 3), 150, 1e-12);
}

static double seconds_of(const struct dtp_job *job, const struct dtp_prediction *p)
{
    struct dtp_money money = {0};
    struct dtp_training_cost cost;
    dtp_training_cost_of(job, &p->throughput, 0, &money, false, &cost);
    return cost.goodput.expected_s;
}

static const char *const seven[] = {"model",
                                    "llama-2-7b",
                                    "tokens",
                                    "10B",
                                    "global_batch",
                                    "64",
                                    "gpu",
                                    "h100-sxm,a100-80-sxm",
                                    "gpus",
                                    "8..32x2",
                                    "precision",
                                    "bf16-mixed",
                                    "strategy",
                                    "ddp,zero1,full_shard,shard_grad_op",
                                    "checkpointing",
                                    "none,full,selective",
                                    "micro_batch",
                                    "1,2,4,8",
                                    NULL,
                                    NULL,
                                    NULL,
                                    NULL,
                                    NULL};

static void test_finds_the_cheapest(void **state)
{
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, seven);
    assert_int_equal(dtp_scenario_set(s.base, "accumulate_sync", "false", "test", 0, &faults), DTP_OK);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_int_equal(found.recommended, 0);
    double least = least_of_all(&s, usd_of);
    assert_close(found.candidates[0].cost.usd[DTP_PRICE_TYPICAL], least, 1e-9 * least);
    assert_int_equal(found.counts.combinations, 2 * 3 * 4 * 3 * 4); /* nothing is lost in the counts */
    assert_true(found.runner_up > 0);
    dtp_search_release(&found);
    tear_down(&s);
}

/* 70.6 B whole gradients in fp32 are 263 GiB: sharded plans of several micro-steps reduce in each, unless told not to;
 * and of a given batch a larger micro-batch may fit where smaller ones, of more micro-steps, do not. */
static void test_whole_gradients_have_no_room(void **state)
{
    static const char *const keys[] = {
        "model",   "llama-3-70b", "tokens",        "10B",  "global_batch", "512",        "gpu",      "h100-sxm",
        "gpus",    "64",          "seq",           "4096", "precision",    "bf16-mixed", "strategy", "full_shard",
        "compile", "true",        "checkpointing", "full", "micro_batch",  "1,2,4,8",    NULL};
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, keys);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    const struct dtp_plan *best = &found.candidates[0].variant.job.plan;
    assert_true(best->accumulate_sync && best->accumulate > 1 && found.candidates[0].choice.reduce_always);
    dtp_search_release(&found);
    assert_int_equal(dtp_scenario_set(s.base, "accumulate_sync", "false", "test", 0, &faults), DTP_OK);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_int_equal(found.candidates[0].variant.job.plan.accumulate, 1);
    dtp_search_release(&found);
    tear_down(&s);
}

/* Degrees that no plan has are left out by the first that is refused for them; no layout is lost by it. */
static void test_finds_the_best_layout(void **state)
{
    /* clang-format off */
    static const char *const keys[] = {
        "model", "llama-2-13b", "tokens", "10B", "global_batch", "128", "seq", "4k", "runtime", "megatron",
        "gpu", "h100-sxm", "gpus", "32", "tp", "1,2,3,4,8,16", "pp", "1,2,4,8,64", "cp", "1,5",
        "precision", "bf16-mixed",
        "virtual_stages", "1,2,5", "strategy", "ddp,zero1", "offload", "none", "checkpointing", "none,full",
        "micro_batch", "1,2,4", NULL};
    /* clang-format on */
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, keys);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    double least = least_of_all(&s, usd_of);
    assert_close(found.candidates[0].cost.usd[DTP_PRICE_TYPICAL], least, 1e-9 * least);
    assert_int_equal(found.counts.combinations, 6 * 5 * 2 * 3 * 2 * 2 * 3);
    const struct dtp_plan *best = &found.candidates[0].variant.job.plan;
    const struct dtp_plan *rival = &found.candidates[found.runner_up].variant.job.plan;
    assert_true(best->strategy != rival->strategy || best->tp != rival->tp || best->pp != rival->pp);
    dtp_search_release(&found);
    /* Simulations last longer than formulas say: what was not simulated comes up, and is simulated then. */
    s.question.simulate_count = 12;
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    for (size_t i = 0; i < 6; i++)
        assert_true(found.candidates[i].simulated);
    assert_true(found.counts.simulated > 6 && found.counts.simulated <= 18);
    dtp_search_release(&found);
    tear_down(&s);
}

/* A budget alone asks for speed; pruning by it must not lose the fastest plan. */
static void test_finds_the_fastest(void **state)
{
    struct setup s;
    struct dtp_search found;
    const char *keys[24];
    (void)state;
    memcpy(keys, seven, sizeof seven);
    keys[18] = NULL;
    set_up(&s, keys);
    double least = least_of_all(&s, seconds_of);
    assert_int_equal(dtp_axes_add(&s.axes, &catalog, "budget", "1e6", "test", &faults), DTP_OK);
    struct dtp_axis budget = s.axes.axes[s.axes.count - 1]; /* moved before the others, as the command does */
    memmove(&s.axes.axes[1], &s.axes.axes[0], (s.axes.count - 1) * sizeof budget);
    s.axes.axes[0] = budget;
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_close(found.candidates[0].cost.goodput.expected_s, least, 1e-9 * least);
    dtp_search_release(&found);
    tear_down(&s);
}

static void test_threads_do_not_show(void **state)
{
    struct setup s;
    struct dtp_search one, many;
    (void)state;
    set_up(&s, seven);
    s.question.simulate_count = 4;
    s.question.threads = 1;
    assert_int_equal(dtp_search(&s.question, &one, &faults), DTP_OK);
    s.question.threads = 5;
    assert_int_equal(dtp_search(&s.question, &many, &faults), DTP_OK);
    assert_int_equal(one.count, many.count);
    assert_memory_equal(&one.counts, &many.counts, sizeof one.counts);
    for (size_t i = 0; i < one.count; i++) {
        assert_int_equal(one.candidates[i].combination, many.candidates[i].combination);
        assert_close(one.candidates[i].cost.goodput.expected_s, many.candidates[i].cost.goodput.expected_s, 0);
    }
    assert_true(one.counts.simulated >= 1);
    dtp_search_release(&one);
    dtp_search_release(&many);
    tear_down(&s);
}

/* A queue of one place runs out at every plan that does not fit, and the group is scanned again: what is found is the
 * same, and every predicted combination is counted once. */
static void test_short_queues_lose_nothing(void **state)
{
    struct setup s;
    struct dtp_search wide, narrow;
    (void)state;
    set_up(&s, seven);
    assert_int_equal(dtp_search(&s.question, &wide, &faults), DTP_OK);
    s.question.queue_places = 1;
    assert_int_equal(dtp_search(&s.question, &narrow, &faults), DTP_OK);
    assert_int_equal(wide.counts.scanned_again, 0);
    assert_true(narrow.counts.scanned_again > 0);
    assert_true(wide.counts.estimated > 0 && wide.counts.estimated < wide.counts.predicted);
    assert_int_equal(wide.counts.fits + wide.counts.tight + wide.counts.out_of_memory, wide.counts.predicted);
    narrow.counts.scanned_again = 0;
    assert_memory_equal(&wide.counts, &narrow.counts, sizeof wide.counts);
    assert_int_equal(wide.count, narrow.count);
    for (size_t i = 0; i < wide.count; i++)
        assert_int_equal(wide.candidates[i].combination, narrow.candidates[i].combination);
    dtp_search_release(&wide);
    dtp_search_release(&narrow);
    tear_down(&s);
}

/* Three hundred micro-steps of 32 layers are too many to simulate whole: the time is that of the simulation all the
 * same, from two and three of them. */
static void test_many_micro_steps(void **state)
{
    static const char *const keys[] = {
        "model",      "llama-2-7b", "tokens",     "1B",         "gpu", "h100-sxm",    "gpus", "8", "strategy",
        "full_shard", "precision",  "bf16-mixed", "accumulate", "300", "micro_batch", "1",    NULL};
    struct setup s;
    struct dtp_search found;
    struct dtp_prediction whole;
    struct dtp_predictor simulated = dtp_predictor_simulated();
    (void)state;
    set_up(&s, keys);
    s.question.simulate_count = 4;
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_true(found.count > 0);
    const struct dtp_candidate *c = &found.candidates[0];
    assert_true(c->estimated && !c->simulated && c->reason[0]);
    assert_int_equal(simulated.predict(simulated.context, &c->variant.job, &whole, &faults), DTP_OK);
    assert_close(c->variant.prediction.time.step_s, whole.time.step_s, 1e-4 * whole.time.step_s);
    assert_true(fabs(c->closed_step_s / whole.time.step_s - 1) > 1e-3); /* or nothing is shown by that */
    dtp_search_release(&found);
    tear_down(&s);
}

/* Limits that nothing meets: what the answer says to give is enough, and a little less is not. */
static void test_relaxed_limit_is_tight(void **state)
{
    struct setup s;
    struct dtp_search found;
    char text[32];
    const char *keys[24];
    (void)state;
    memcpy(keys + 2, seven, sizeof seven - 2 * sizeof *seven);
    keys[0] = "budget";
    keys[1] = "10";
    set_up(&s, keys);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_NO);
    assert_int_equal(found.recommended, -1);
    double needed = found.relax.budget_usd;
    assert_true(found.relax.any_fits && needed > 10);
    dtp_search_release(&found);
    for (int less = 0; less < 2; less++) {
        snprintf(text, sizeof text, "%.6f", needed * (less ? 0.999 : 1.000001));
        assert_int_equal(dtp_axes_add(&s.axes, &catalog, "budget", text, "test", &faults), DTP_OK);
        assert_int_equal(dtp_search(&s.question, &found, &faults), less ? DTP_NO : DTP_OK);
        dtp_search_release(&found);
    }
    tear_down(&s);
}

static void test_nothing_fits(void **state)
{
    static const char *const keys[] = {"model",    "llama-3-70b", "tokens",      "1B",        "gpu",
                                       "rtx-4090", "gpus",        "1",           "precision", "bf16-mixed",
                                       "strategy", "ddp",         "micro_batch", "1,2",       NULL};
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, keys);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_NO);
    assert_false(found.relax.any_fits);
    assert_true(found.relax.missing_bytes >
                1e12 - 24e9);                        /* 16 bytes for each of 70.6e9 parameters, and 24 GB are there */
    assert_int_equal(found.counts.pruned_memory, 1); /* micro batch 2 */
    dtp_search_release(&found);
    tear_down(&s);
}

/* Two RTX 4090 hold tinyllama's tensors under zero1, but not the allocator's segments beside them. However cheap, that
 * is no answer while eight, whose shards are smaller, are one; alone it is the answer, and marked. */
static void test_tight_comes_after_what_fits(void **state)
{
    /* clang-format off */
    static const char *const keys[] = {
        "model", "tinyllama-1.1b", "tokens", "10B", "deadline", "90d", "gpu", "rtx-4090", "gpus", "2,8",
        "strategy", "zero1", "compile", "false", "precision", "bf16-mixed", "offload", "none",
        "checkpointing", "none", "accumulate", "1", "micro_batch", "1", NULL};
    /* clang-format on */
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, keys);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_int_equal(found.count, 2);
    assert_int_equal(found.candidates[0].variant.job.cluster.gpus, 8);
    assert_true(found.candidates[0].fits && found.candidates[0].front);
    assert_true(!found.candidates[1].fits && !found.candidates[1].front && found.candidates[1].valid);
    assert_true(found.candidates[1].cost.usd[DTP_PRICE_TYPICAL] < found.candidates[0].cost.usd[DTP_PRICE_TYPICAL]);
    assert_int_equal(found.candidates[1].variant.prediction.memory.shortage, DTP_SHORT_OF_CACHE);
    assert_int_equal(found.runner_up, -1);
    dtp_search_release(&found);
    assert_int_equal(dtp_axes_add(&s.axes, &catalog, "gpus", "2", "test", &faults), DTP_OK);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_int_equal(found.recommended, 0);
    assert_false(found.candidates[0].fits);
    dtp_search_release(&found);
    tear_down(&s);
}

/* Without any limit the cheapest would be one GPU for decades: 200e9 tokens of an 8B model are 6e21 FLOPs, 150 days of
 * an H100 at 45 % times 1.2. What ends within a year goes first; where nothing does, the cheapest is the answer. */
static void test_no_limits_mean_a_year(void **state)
{
    /* clang-format off */
    static const char *const keys[] = {
        "model", "llama-3.1-8b", "tokens", "1T", "gpu", "h100-sxm", "gpus", "1..16x2",
        "strategy", "full_shard", "compile", "true", "precision", "bf16-mixed", "offload", "none",
        "checkpointing", "full", "accumulate", "1", "micro_batch", "1,2", NULL};
    /* clang-format on */
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, keys);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    const struct dtp_candidate *best = &found.candidates[found.recommended];
    assert_true(best->patient && best->cost.goodput.expected_s <= DTP_SEARCH_PATIENCE_S);
    for (size_t i = 0; i < found.count; i++)
        assert_true(found.candidates[i].valid);
    assert_false(found.candidates[found.count - 1].patient);
    dtp_search_release(&found);
    assert_int_equal(dtp_axes_add(&s.axes, &catalog, "gpus", "2", "test", &faults), DTP_OK);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_false(found.candidates[0].patient);
    dtp_search_release(&found);
    tear_down(&s);
}

/* One token is one step, of the plan whose step costs least, and no limit has to move. */
static void test_one_token_is_one_step(void **state)
{
    /* clang-format off */
    static const char *const keys[] = {
        "model", "llama-2-7b", "tokens", "1", "gpu", "h100-sxm", "gpus", "8", "strategy", "full_shard",
        "compile", "true", "precision", "bf16-mixed", "offload", "none", "checkpointing", "none",
        "accumulate", "1,2", "micro_batch", "1,2,3,4", NULL};
    /* clang-format on */
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, keys);
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    const struct dtp_candidate *best = &found.candidates[found.recommended];
    assert_close(best->cost.steps_count, 1, 0);
    assert_close(best->cost.inputs.work_s, best->variant.prediction.time.step_s, 1e-9);
    assert_int_equal(best->variant.job.plan.micro_batch * best->variant.job.plan.accumulate, 1);
    dtp_search_release(&found);
    tear_down(&s);
}

/* 1..1024 of any GPU are more combinations than are computed: what not all come in goes first (H100 come as part of a
 * node of 8, or as whole ones, never 9 to 15; GH200 come in any number), then what there is no room for; both ends
 * stay. */
static void test_numbers_of_gpus_are_thinned(void **state)
{
    static const char *const few[] = {"model",    "llama-2-7b", "tokens",  "1B", "gpu",
                                      "h100-sxm", "gpus",       "1..1024", NULL};
    static const char *const room[] = {"model", "llama-2-7b", "tokens", "1B",       "gpu", "h100-sxm,gh200",
                                       "gpus",  "1..1024",    "seq",    "1..50000", NULL};
    struct setup s;
    struct dtp_search_thinned thinned;
    (void)state;
    set_up(&s, few);
    assert_int_equal(dtp_search_thin(&s.question, &s.axes, &thinned, &faults), DTP_OK);
    assert_int_equal(thinned.asked, 0); /* 1024 combinations: as they were */
    assert_int_equal(s.axes.axes[3].count, 1024);
    tear_down(&s);
    set_up(&s, room);
    assert_int_equal(dtp_search_thin(&s.question, &s.axes, &thinned, &faults), DTP_OK);
    assert_int_equal(thinned.asked, 1024);
    assert_int_equal(thinned.rented, 8 + 127); /* 1 to 8, 16, 24, ... 1024 */
    assert_int_equal(thinned.tried, 135);      /* of 200 that there is room for */
    tear_down(&s);
    set_up(&s, room);
    assert_int_equal(dtp_axes_add(&s.axes, &catalog, "micro_batch", "1..10", "test", &faults), DTP_OK);
    assert_int_equal(dtp_search_thin(&s.question, &s.axes, &thinned, &faults), DTP_OK);
    const struct dtp_axis *gpus = &s.axes.axes[3];
    assert_int_equal(thinned.tried, DTP_AXES_MAX_COMBINATIONS / 1000000);
    assert_int_equal(gpus->count, thinned.tried);
    assert_string_equal(gpus->values[0], "1");
    assert_string_equal(gpus->values[gpus->count - 1], "1024");
    for (size_t i = 1; i < gpus->count; i++)
        assert_true(atoi(gpus->values[i]) > atoi(gpus->values[i - 1]));
    tear_down(&s);
}

/* No plan of more nodes than are allowed, and each combination is counted once. */
static void test_most_nodes(void **state)
{
    static const char *const keys[] = {"model",       "llama-2-7b", "tokens",   "10B",
                                       "gpu",         "h100-sxm",   "gpus",     "8,16,32",
                                       "precision",   "bf16-mixed", "strategy", "full_shard,hybrid_shard",
                                       "micro_batch", "1,2",        NULL};
    struct setup s;
    struct dtp_search found;
    (void)state;
    set_up(&s, keys);
    s.question.max_nodes = 2;
    assert_int_equal(dtp_search(&s.question, &found, &faults), DTP_OK);
    assert_true(found.count > 0);
    for (size_t i = 0; i < found.count; i++)
        assert_in_range(found.candidates[i].variant.job.cluster.nodes, 1, 2);
    assert_true(found.counts.too_many_nodes > 0);
    dtp_search_release(&found);
    tear_down(&s);
}

/* No step is shorter than the bound, whatever the plan. */
static void test_time_bound_is_sound(void **state)
{
    (void)state;
    random_state = 20;
    for (int i = 0; i < RANDOM_DRAWS(20000); i++) {
        struct random_job made;
        struct dtp_prediction p;
        struct dtp_job job = {0};
        if (!random_job(&made))
            continue;
        job.transformer = made.transformer;
        job.cluster = made.cluster;
        job.plan = made.plan;
        dtp_closed_form(&made.transformer, &made.cluster, &made.plan, &p);
        double tokens = p.throughput.tokens_per_s * p.time.step_s;
        if (!(dtp_search_bound_s(&job, tokens) <= p.time.step_s * (1 + 1e-9)))
            fail_msg("job %d: a step of %g s below its bound of %g s", i, p.time.step_s,
                     dtp_search_bound_s(&job, tokens));
    }
}

/* Of our executor's attention: a deterministic backward is cut into parts where its workspace would be too large, so
 * that it may shrink with the batch. */
static uint64_t may_shrink_bytes(const struct random_job *job, const struct dtp_plan *plan)
{
    struct dtp_executor_rules rules;
    if (plan->runtime != &dtp_runtime_dtplan)
        return 0;
    dtp_executor_rules(&job->transformer, &job->cluster, plan, &rules);
    return rules.attention_backward_workspace_bytes;
}

/* Tensors never shrink with the micro-batch: what the memory bound rests on. */
static void test_memory_grows_with_the_micro_batch(void **state)
{
    (void)state;
    random_state = 21;
    for (int i = 0; i < RANDOM_DRAWS(400); i++) {
        struct random_job job;
        if (!random_job(&job))
            continue;
        uint64_t before = 0;
        for (uint32_t batch = 1; batch <= 64; batch += 1 + batch / 3) {
            struct dtp_prediction p;
            struct dtp_plan plan = job.plan;
            plan.micro_batch = batch;
            if (dtp_plan_resolve(&plan, &job.transformer, &job.cluster, NULL) != DTP_OK)
                break;
            assert_int_equal(dtp_estimate(&job.transformer, &job.cluster, &plan, &p, NULL), DTP_OK);
            assert_true(p.memory.allocated_peak_bytes >= before);
            before = p.memory.allocated_peak_bytes - may_shrink_bytes(&job, &plan);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps_before_powersgd),
                                       cmocka_unit_test(test_finds_the_cheapest),
                                       cmocka_unit_test(test_finds_the_best_layout),
                                       cmocka_unit_test(test_whole_gradients_have_no_room),
                                       cmocka_unit_test(test_finds_the_fastest),
                                       cmocka_unit_test(test_threads_do_not_show),
                                       cmocka_unit_test(test_short_queues_lose_nothing),
                                       cmocka_unit_test(test_many_micro_steps),
                                       cmocka_unit_test(test_relaxed_limit_is_tight),
                                       cmocka_unit_test(test_nothing_fits),
                                       cmocka_unit_test(test_tight_comes_after_what_fits),
                                       cmocka_unit_test(test_no_limits_mean_a_year),
                                       cmocka_unit_test(test_one_token_is_one_step),
                                       cmocka_unit_test(test_numbers_of_gpus_are_thinned),
                                       cmocka_unit_test(test_most_nodes),
                                       cmocka_unit_test(test_time_bound_is_sound),
                                       cmocka_unit_test(test_memory_grows_with_the_micro_batch)};
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
