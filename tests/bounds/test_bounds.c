/* Bounds of memory and FLOPs, which never see a program, against step programs of random plans of all runtimes. */
#include "job/bound_fit.h"
#include "bounds/bounds.h"
#include "closed/closed_form_hooks.h"
#include "lower/lower.h"
#include "plan/adapters.h"
#include "plan/rules.h"
#include "plan/slice.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/live_bytes.h"
#include "lib/random_adapters.h"
#include "lib/random_executor_plans.h"
#include "lib/random_mixed.h"

#define JOBS RANDOM_DRAWS(1200)
#define DRAWN_JOBS RANDOM_DRAWS(150)
#define SLICED_JOBS RANDOM_DRAWS(200)

/* What bounds.h promises, relative to the program's peak of live bytes. */
#define MOST_BELOW 0.01
#define CLOSE 0.05
#define CLOSE_PERCENT 95
#define MOST_ABOVE 0.20

/* Plans that may be further off among those of one draw: model/bounds/README.md says how many were. */
#define MOST_OUTSIDE 2

struct tally {
    int plans, close, outside;
    double least, most, surely; /* surely: the most that what surely stands lies above a program's peak */
};

static void check_memory(const struct random_job *job, const struct dtp_program *program,
                         const struct dtp_bounds *bounds, struct tally *tally)
{
    struct dtp_live_bytes live;
    live_bytes_of(program, job->transformer.layers, &live);
    uint64_t peak_bytes = live.phase_total_bytes[live.peak_phase];
    double off = (double)bounds->memory_bytes / (double)peak_bytes - 1;
    tally->plans++;
    tally->close += off <= CLOSE;
    tally->least = fmin(tally->least, off);
    tally->most = fmax(tally->most, off);
    struct dtp_bound_off most = dtp_bound_most_off(&job->transformer, &job->plan);
    if (off < -most.below || off > most.above) { /* a search would be misled */
        random_executor_describe(job);
        fail_msg("%s %s: the bound is %+.1f %% off", job->plan.runtime->name, dtp_strategy_text(job->plan.strategy),
                 100 * off);
    }
    double surely = (double)bounds->least_bytes / (double)peak_bytes - 1;
    tally->surely = fmax(tally->surely, surely);
    if (surely > DTP_BOUND_LEAST_ABOVE + most.surely) {
        random_executor_describe(job);
        fail_msg("%s %s: what surely stands is %+.1f %% off", job->plan.runtime->name,
                 dtp_strategy_text(job->plan.strategy), 100 * surely);
    }
    if (off >= -MOST_BELOW && off <= MOST_ABOVE)
        return;
    tally->outside++;
    random_executor_describe(job);
    print_message("%s %s: the bound is %+.1f %% off the program's %.3f GiB\n", job->plan.runtime->name,
                  dtp_strategy_text(job->plan.strategy), 100 * off, (double)peak_bytes / (double)(1 << 30));
}

/* Of a GPU's step, nothing computed twice; of experts those that a rank has. */
static double needed_flops(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    struct dtp_transformer own = transformer->experts ? dtp_plan_own_experts(transformer, plan) : *transformer;
    return (double)(dtp_plan_tokens(plan) * plan->accumulate) * dtp_plan_model_flops_per_token(&own, plan);
}

/* A flash kernel's backward forms QK^T once more (7 instead of 6 passes), which the bound leaves out; where values are
 * narrower than keys that is more of them, at most 4 instead of 3. Nor does it know rows that fill experts up. */
static void check_flops(const struct random_job *job, const struct dtp_program *program)
{
    struct dtp_program_totals totals;
    double needed = needed_flops(&job->transformer, &job->plan);
    dtp_program_sum(program, &totals);
    double flops = totals.matmul_flops + totals.attention_flops - totals.recompute_flops;
    double least = job->transformer.kv_latent ? 3.0 / 4 : 6.0 / 7, filled = dtp_plan_padded_rows(&job->plan);
    if (needed <= flops * (1 + 1e-9) && needed >= flops * least / filled)
        return;
    random_executor_describe(job);
    fail_msg("%s: %.6g FLOPs, the program %.6g", job->plan.runtime->name, needed, flops);
}

/* Of layers that were counted for other batches the same comes out. */
static void check_kept(const struct random_job *job, const struct dtp_bounds *bounds)
{
    static struct dtp_job_layers kept; /* of the job before, too */
    struct dtp_plan others = job->plan;
    struct dtp_bounds again;
    others.micro_batch += 3, others.accumulate = others.accumulate % 3 + 1;
    dtp_bounds_of(&job->transformer, &job->cluster, &others, &kept, &again);
    dtp_bounds_of(&job->transformer, &job->cluster, &job->plan, &kept, &again);
    assert_memory_equal(&again, bounds, sizeof again);
}

/* False where the job has no step program. */
static bool check_job(const struct random_job *job, struct tally *tally)
{
    struct dtp_program *program;
    struct dtp_bounds bounds;
    if (dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, NULL) != DTP_OK)
        return false;
    dtp_bounds_of(&job->transformer, &job->cluster, &job->plan, NULL, &bounds);
    check_kept(job, &bounds);
    check_memory(job, program, &bounds, tally);
    if (!dtp_plan_adapts(&job->plan)) /* whose first layer needs less (test_lower_against_closed_form) */
        check_flops(job, program);
    dtp_program_destroy(program);
    return true;
}

static void check_tally(const char *name, const struct tally *tally)
{
    print_message(
        "%-10s %4d plans, bounds %+.2f to %+.2f %%, %5.1f %% of them at most %.0f %% above; what surely stands "
        "at most %+.2f %% above\n",
        name, tally->plans, 100 * tally->least, 100 * tally->most, 100.0 * tally->close / tally->plans, 100 * CLOSE,
        100 * tally->surely);
}

static void assert_shares(const struct tally *tally, double close_percent)
{
    assert_true(draws_reach(tally->close, tally->plans, close_percent));
    assert_true(tally->outside <= MOST_OUTSIDE);
}

static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    struct tally tally[DTP_RUNTIMES];
    for (unsigned i = 0; i < DTP_RUNTIMES; i++)
        tally[i] = (struct tally){.surely = -1};
    int plans = 0;
    while (plans < JOBS) {
        struct random_job job;
        assert_true(random_job(&job));
        plans += check_job(&job, &tally[random_job_runtime(&job)]);
    }
    struct tally all = {.plans = plans};
    for (unsigned i = 0; i < DTP_RUNTIMES; i++) {
        check_tally(dtp_runtimes[i]->name, &tally[i]);
        all.close += tally[i].close, all.outside += tally[i].outside;
    }
    assert_shares(&all, CLOSE_PERCENT);
}

/* Layers with experts beside layers without. */
static void test_mixed_plans(void **state)
{
    (void)state;
    random_seed();
    struct tally tally = {.surely = -1};
    while (tally.plans < DRAWN_JOBS) {
        struct random_job job;
        uint64_t layers = 2 + random_below(24);
        if (random_below(4) ? random_mixed_job(layers, &job) : random_deepspeed_experts_job(layers, &job))
            check_job(&job, &tally);
    }
    check_tally("mixed", &tally);
    assert_shares(&tally, CLOSE_PERCENT - 3); /* models are small: what a bucket meets weighs */
}

/* Megatron's, with a module that predicts a token further ahead; of those in 8 bits some keep layers in bf16. */
static void test_ahead(void **state)
{
    (void)state;
    random_seed();
    struct tally tally = {.surely = -1};
    while (tally.plans < DRAWN_JOBS) {
        struct random_job job = {.cluster = random_cluster(), .transformer = random_mixed_model(1 + random_below(24))};
        job.transformer.expert_layer_step = 0, job.transformer.mtp_layers = 1;
        job.transformer = dtp_transformer_trained(&job.transformer);
        job.asked = dtp_plan_default();
        job.asked.runtime = &dtp_runtime_megatron, job.asked.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
        job.asked.sequence = 128, job.asked.micro_batch = 2, job.asked.accumulate = 1 + (uint32_t)random_below(3);
        job.asked.loss = random_bool() ? DTP_LOSS_FUSED : DTP_LOSS_EAGER, job.asked.ep = 1u << random_below(3);
        if (random_bool()) {
            assert_true(dtp_precision_recipe("fp8-current", &job.asked.precision));
            job.asked.megatron.bf16_first = (uint32_t)random_below(3);
            job.asked.megatron.bf16_last = (uint32_t)random_below(3);
            bool wide = job.asked.megatron.bf16_first || job.asked.megatron.bf16_last;
            job.asked.megatron.fp8_param_gather = !wide && job.asked.strategy == DTP_ZERO1 && random_bool();
        }
        job.asked.megatron.precision_aware = job.asked.strategy == DTP_ZERO1 && random_bool();
        dtp_precision_for_runtime(&job.asked.precision, job.asked.runtime);
        if (job.asked.megatron.precision_aware && random_bool())
            job.asked.precision.moments = DTP_BF16;
        job.plan = job.asked;
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL) == DTP_OK)
            check_job(&job, &tally);
    }
    check_tally("ahead", &tally);
    assert_shares(&tally, CLOSE_PERCENT);
}

/* Plans of each runtime but PyTorch's, which chance draws seldom. */
static void test_other_runtimes(void **state)
{
    (void)state;
    random_seed();
    for (unsigned i = 0; i < DTP_RUNTIMES; i++) {
        struct tally tally = {.surely = -1};
        while (dtp_runtimes[i] != &dtp_runtime_torch && dtp_runtimes[i] != &dtp_runtime_peft &&
               tally.plans < DRAWN_JOBS) {
            struct random_job job;
            assert_true(random_job(&job));
            if (job.plan.runtime == dtp_runtimes[i])
                check_job(&job, &tally);
        }
        if (!tally.plans)
            continue;
        check_tally(dtp_runtimes[i]->name, &tally);
        assert_shares(&tally, CLOSE_PERCENT - 5);
    }
}

static void test_adapters(void **state)
{
    (void)state;
    random_seed();
    struct tally tally = {.surely = -1};
    while (tally.plans < 2 * DRAWN_JOBS) {
        struct random_job job;
        assert_true(random_job(&job));
        if (random_adapters(&job))
            check_job(&job, &tally);
    }
    check_tally("adapters", &tally);
    assert_shares(&tally, CLOSE_PERCENT - 5);
    tally = (struct tally){.surely = -1};
    while (tally.plans < DRAWN_JOBS) {
        struct random_job job;
        assert_true(random_job(&job));
        bool engine = random_below(4) == 0;
        if (engine ? random_peft_deepspeed(&job) : random_peft(&job))
            check_job(&job, &tally);
    }
    check_tally("peft", &tally);
    assert_shares(&tally, CLOSE_PERCENT - 2);
    tally = (struct tally){.surely = -1};
    for (int draws = 0; draws < 100 * DRAWN_JOBS && tally.plans < DRAWN_JOBS; draws++) {
        struct random_job job;
        assert_true(random_job(&job));
        if (random_megatron_adapters(&job))
            check_job(&job, &tally);
    }
    check_tally("adapters of megatron", &tally);
    assert_shares(&tally, CLOSE_PERCENT - 5);
}

/* Experts that are called one after the other, with adapters of their own: of each as many as a token has experts. */
static void test_called_adapters(void **state)
{
    (void)state;
    random_seed();
    struct tally tally = {.surely = -1};
    while (tally.plans < DRAWN_JOBS) {
        struct random_job job;
        if (random_called_job(2 + random_below(24), &job) && dtp_plan_adapts(&job.plan))
            check_job(&job, &tally);
    }
    check_tally("called", &tally);
    assert_shares(&tally, CLOSE_PERCENT - 15); /* models are small: buckets and casts weigh */
}

/* Experts by grouped matmuls, adapters beside them. */
static void test_sorted_experts(void **state)
{
    (void)state;
    random_seed();
    struct tally tally = {.surely = -1};
    while (tally.plans < DRAWN_JOBS) {
        struct random_job job;
        if (random_sorted_job(2 + random_below(24), &job))
            check_job(&job, &tally);
    }
    check_tally("sorted", &tally);
    assert_shares(&tally, CLOSE_PERCENT - 15); /* models are small: buckets and casts weigh */
}

/* The same under our executor. */
static void test_executor_adapters(void **state)
{
    (void)state;
    random_seed();
    struct tally tally = {.surely = -1};
    while (tally.plans < DRAWN_JOBS) {
        struct random_job job;
        if (tally.plans % 4)
            random_executor_adapted_job(&job);
        else
            random_executor_shared_adapters(&job, tally.plans / 4);
        assert_true(check_job(&job, &tally));
    }
    check_tally("adapters of dtplan", &tally);
    assert_shares(&tally, CLOSE_PERCENT - 8); /* the first block keeps less */
}

/* Experts under our executor, of whatever rows a rank has room for, and latent attention with them or without: of
 * 3,000 plans of ten seeds none outside. */
static void test_executor_experts(void **state)
{
    (void)state;
    random_seed();
    for (int latent = 0; latent < 2; latent++) {
        struct tally tally = {.surely = -1};
        while (tally.plans < DRAWN_JOBS) {
            struct random_job job;
            if (latent)
                random_executor_latent_job(&job, tally.plans);
            else
                random_executor_expert_job(&job);
            assert_true(check_job(&job, &tally));
        }
        check_tally(latent ? "latents of dtplan" : "experts of dtplan", &tally);
        assert_shares(&tally, CLOSE_PERCENT);
    }
}

/* Draws until a plan with tensor or pipeline parallelism is valid. */
static void draw_sliced(struct random_job *job)
{
    static const struct dtp_runtime *const runtimes[] = {&dtp_runtime_megatron, &dtp_runtime_torch,
                                                         &dtp_runtime_deepspeed};
    do {
        *job = (struct random_job){random_transformer(), random_cluster(), dtp_plan_default(), dtp_plan_default()};
        struct dtp_plan *plan = &job->plan, drawn = random_plan(&job->cluster);
        plan->runtime = runtimes[random_below(3)];
        bool deepspeed = plan->runtime == &dtp_runtime_deepspeed;
        plan->strategy = random_bool() ? DTP_DDP : plan->runtime == &dtp_runtime_torch ? DTP_FULL_SHARD : DTP_ZERO1;
        plan->micro_batch = drawn.micro_batch, plan->sequence = drawn.sequence;
        plan->checkpointing = drawn.checkpointing, plan->checkpoint_every = drawn.checkpoint_every;
        plan->tp = 1u << random_below(4), plan->pp = 1u << random_below(4);
        plan->gathered_logits = plan->runtime == &dtp_runtime_torch && plan->tp > 1 && plan->pp == 1;
        plan->sequence_parallel = random_bool(), plan->accumulate = 8;
        if (deepspeed) {
            plan->strategy = DTP_ZERO1, plan->sequence_parallel = plan->sequence_parallel && plan->tp == 1;
            plan->deepspeed.megatron_layers = plan->pp > 1 || random_bool();
            plan->deepspeed.bf16_optimizer = random_bool();
        }
        if (plan->runtime == &dtp_runtime_megatron && random_bool()) { /* predicts a token further ahead */
            job->transformer.mtp_layers = 1, job->transformer.position = DTP_POSITION_ROPE;
            job->transformer = dtp_transformer_trained(&job->transformer);
            plan->sequence_parallel = true, plan->checkpointing = DTP_CHECKPOINT_NONE;
        }
    } while (!dtp_plan_model_parallel(&job->plan) ||
             dtp_transformer_check(&job->transformer, NULL, 0, NULL) != DTP_OK ||
             dtp_cluster_check(&job->cluster, NULL) != DTP_OK ||
             dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) != DTP_OK);
}

/* Peak of tensors by step program: of tensor parallel ranks their own; of a pipeline a slice's with what the other
 * ranks add (job/estimate.h). 0: there is none. */
static uint64_t sliced_peak(const struct random_job *job)
{
    struct dtp_slice slice = {job->transformer, job->cluster, job->plan};
    struct dtp_program *program;
    struct dtp_live_bytes live;
    struct dtp_memory memory;
    if (job->plan.pp > 1)
        job->plan.runtime->closed->slice(&job->transformer, &job->cluster, &job->plan, &slice);
    if (dtp_lower(&slice.transformer, &slice.cluster, &slice.plan, 0, &program, NULL) != DTP_OK)
        return 0;
    live_bytes_of(program, slice.transformer.layers, &live);
    dtp_program_destroy(program);
    dtp_memory_of_live(&live, &slice.transformer, &slice.cluster, &slice.plan, &memory, NULL);
    if (job->plan.pp > 1)
        job->plan.runtime->closed->add_stages_memory(&job->transformer, &job->cluster, &job->plan, &memory);
    return memory.allocated_peak_bytes;
}

/* What a search trusts of plans with tensor and pipeline parallelism: the bound of a slice, and what surely stands. */
static void test_slices(void **state)
{
    (void)state;
    random_seed();
    struct tally tally = {.surely = -1};
    while (tally.plans < SLICED_JOBS) {
        struct random_job job;
        draw_sliced(&job);
        uint64_t peak_bytes = sliced_peak(&job);
        if (!peak_bytes)
            continue;
        struct dtp_bound_off most = dtp_bound_most_off(&job.transformer, &job.plan);
        struct dtp_bound_fit fit;
        dtp_bound_fit_of(&job.transformer, &job.cluster, &job.plan, NULL, &fit);
        double off = (double)fit.memory.allocated_peak_bytes / (double)peak_bytes - 1;
        double surely = (double)fit.least_bytes / (double)peak_bytes - 1;
        tally.plans++;
        tally.close += off <= CLOSE;
        tally.least = fmin(tally.least, off), tally.most = fmax(tally.most, off);
        tally.surely = fmax(tally.surely, surely);
        if (off < -most.below || off > most.above || surely > 0) {
            random_executor_describe(&job);
            fail_msg("%s %s tp %u pp %u: the bound is %+.1f %% off, what surely stands %+.1f", job.plan.runtime->name,
                     dtp_strategy_text(job.plan.strategy), job.plan.tp, job.plan.pp, 100 * off, 100 * surely);
        }
    }
    check_tally("slices", &tally);
}

/* LLaMA-7B, bf16 throughout: psi = 6,738,415,616 parameters at 2 bytes, as many gradients, two moments. On eight GPUs
 * an eighth of each. FLOPs of a token: 6 of each matrix, the head's included, the core's 6 s d_q L. */
static void test_states_by_hand(void **state)
{
    (void)state;
    const uint64_t psi = UINT64_C(6738415616);
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 32, t.hidden = 4096, t.ffn = 11008, t.vocab = 32000, t.heads = t.kv_heads = 32, t.head_dim = 128;
    struct dtp_cluster one = test_cluster(test_h200(), 1, 1), eight = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_bounds bounds;
    plan.strategy = DTP_DDP, plan.sequence = 2048, plan.compile = false;
    assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
    assert_int_equal(dtp_plan_resolve(&plan, &t, &one, NULL), DTP_OK);
    dtp_bounds_of(&t, &one, &plan, NULL, &bounds);
    assert_true(bounds.params_bytes == 2 * psi && bounds.optimizer_bytes == 4 * psi && bounds.grads_bytes == 2 * psi);
    double weights = (double)psi - 32000.0 * 4096 - 65 * 4096, length = dtp_transformer_attention_length(&t, 2048);
    assert_true(fabs(needed_flops(&t, &plan) / (2048 * (6 * weights + 6 * length * 4096 * 32)) - 1) < 1e-12);
    plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.sequence = 2048;
    assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
    assert_int_equal(dtp_plan_resolve(&plan, &t, &eight, NULL), DTP_OK);
    dtp_bounds_of(&t, &eight, &plan, NULL, &bounds);
    assert_true(bounds.params_bytes == psi / 4 && bounds.optimizer_bytes == psi / 2);
    assert_true(bounds.memory_bytes > bounds.params_bytes + bounds.optimizer_bytes + bounds.kept_bytes);
}

static void check_within(struct dtp_transformer t, const struct dtp_cluster *cluster, struct dtp_plan plan)
{
    struct random_job job = {.transformer = t, .cluster = *cluster, .plan = plan};
    struct tally tally = {.surely = -1};
    assert_int_equal(dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL), DTP_OK);
    assert_true(check_job(&job, &tally));
    assert_int_equal(tally.outside, 0);
}

/* FSDP2 of few tokens: weights gathered in fp8, which eager kernels cast in fp32; a head that is a unit of its own,
 * whose gradient stands beside the input of its reduction; layers with experts that ranks divide, beside dense ones
 * whose rows are fewer than the ranks. */
static void test_seldom_units(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster many = test_cluster(test_h200(), 512, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.compile = false, plan.micro_batch = 1, plan.sequence = 128;
    t.layers = 4, t.hidden = 6144, t.ffn = 31744, t.vocab = 51000, t.heads = t.kv_heads = 48, t.head_dim = 128;
    assert_true(dtp_precision_recipe("fp8-tensorwise", &plan.precision));
    plan.precision.fp8_all_gather = true;
    check_within(t, &many, plan);
    plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.wrap_ends = true, plan.micro_batch = 1, plan.sequence = 512;
    t.layers = 12, t.hidden = 640, t.ffn = 1536, t.vocab = 155081, t.heads = t.kv_heads = 10, t.head_dim = 64;
    assert_true(dtp_precision_recipe("bf16-mixed", &plan.precision));
    check_within(t, &many, plan);
    t.layers = 10, t.hidden = 256, t.ffn = 1024, t.vocab = 1000, t.heads = t.kv_heads = 4, t.head_dim = 64;
    t.experts = 8, t.expert_ffn = 192, t.experts_per_token = 2, t.dense_layers = 6;
    plan.wrap_ends = false, plan.ep = 4, plan.micro_batch = 2, plan.sequence = 128;
    check_within(t, &many, plan);
}

/* Ranks that share sequences, whose attention sums gradients in fp32 step by step; int8's bucket of learned positions,
 * larger than any of a block's, which is full behind all of these. */
static void test_seldom_sums(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster many = test_cluster(test_h200(), 64, 8);
    struct dtp_plan plan = dtp_plan_default();
    t.layers = 13, t.hidden = 1152, t.ffn = 1024, t.vocab = 1000, t.heads = t.kv_heads = 12, t.head_dim = 96;
    t.activation = DTP_GELU;
    plan.strategy = DTP_FULL_SHARD, plan.cp = 2, plan.micro_batch = 13, plan.sequence = 512;
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    assert_true(dtp_precision_recipe("bf16", &plan.precision));
    check_within(t, &many, plan);
    plan = dtp_plan_default();
    t.ffn = 3704, t.vocab = 9491, t.position = DTP_POSITION_LEARNED, t.positions = 1u << 17;
    plan.strategy = DTP_DDP, plan.comm_hook = DTP_COMM_HOOK_INT8, plan.micro_batch = 2, plan.sequence = 8192;
    assert_true(dtp_precision_recipe("bf16", &plan.precision));
    check_within(t, &many, plan);
}

/* What chance draws seldom: Megatron's one block, whose activation's result is not kept while the gradient of gate and
 * up is put together; ZeRO-3 whose buckets hold several of the small matrices, so that what is fetched ahead grows to
 * the limit; and that replays every other block; of our executor two ranks that divide experts, with room for half as
 * many rows more as come on average, whose shards are all of them. */
static void test_seldom(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster eight = test_cluster(test_h200(), 8, 8), many = test_cluster(test_h200(), 512, 8);
    struct dtp_plan plan = dtp_plan_default();
    t.layers = 1, t.hidden = 2688, t.ffn = 13936, t.vocab = 2085, t.heads = 42, t.kv_heads = 6, t.head_dim = 64;
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1, plan.micro_batch = 15, plan.sequence = 2048;
    check_within(t, &eight, plan);
    plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = DTP_ZERO3, plan.sequence = 1536;
    t.layers = 41, t.hidden = 5376, t.ffn = 27120, t.vocab = 33181, t.heads = 56, t.kv_heads = 7, t.head_dim = 96;
    plan.fused_qkv = plan.fused_gate_up = true;
    assert_true(dtp_precision_recipe("bf16-mixed", &plan.precision));
    check_within(t, &many, plan);
    plan.fused_qkv = plan.fused_gate_up = false;
    t.layers = 60, t.hidden = 1408, t.ffn = 7680, t.vocab = 16122, t.heads = 44, t.kv_heads = 11, t.head_dim = 32;
    plan.micro_batch = 1, plan.sequence = 8192, plan.prefetch = false;
    plan.checkpointing = DTP_CHECKPOINT_EVERY_N, plan.checkpoint_every = 2;
    plan.deepspeed.stage3_max_reuse_distance = UINT64_C(4000000000);
    check_within(t, &many, plan);
    const struct dtp_cluster two = test_cluster(test_h200(), 2, 2);
    plan = dtp_plan_default(), t = dtp_transformer_default();
    t.layers = 12, t.hidden = 3200, t.ffn = 8192, t.vocab = 32000, t.heads = 40, t.kv_heads = 10, t.head_dim = 80;
    t.experts = 12, t.expert_ffn = 448, t.experts_per_token = 2;
    plan.runtime = &dtp_runtime_dtplan, plan.strategy = DTP_ZERO1, plan.micro_batch = 4, plan.sequence = 128;
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION, plan.compile = false;
    plan.ep = 2, plan.executor.expert_room = 1.5, plan.executor.gradient_stream = false;
    assert_true(dtp_precision_recipe("bf16", &plan.precision));
    check_within(t, &two, plan);
}

/* Packed weights whose blocks' attention alone runs again: they are unpacked one at a time; our executor's all-to-all
 * around attention, beside up's weight gradient. */
static void test_seldom_replays(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster six = test_cluster(test_h200(), 6, 2), twelve = test_cluster(test_h200(), 12, 4);
    struct dtp_plan plan = dtp_plan_default();
    t.layers = 2, t.hidden = 3360, t.ffn = 14096, t.vocab = 52853, t.heads = 42, t.kv_heads = 6, t.head_dim = 80;
    t.tied_head = true;
    plan.strategy = DTP_ZERO1, plan.micro_batch = 2, plan.sequence = 128, plan.accumulate = 8, plan.compile = true;
    plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    plan.adapters.rank = 64, plan.adapters.targets = DTP_TARGETS_ALL, plan.adapters.base = DTP_BASE_FP8;
    assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
    check_within(t, &six, plan);
    plan = dtp_plan_default();
    t.layers = 3, t.hidden = 5600, t.ffn = 11872, t.vocab = 108352, t.heads = 70, t.kv_heads = 10;
    plan.runtime = &dtp_runtime_dtplan, plan.strategy = DTP_ZERO1, plan.compile = false;
    plan.micro_batch = 16, plan.sequence = 8192, plan.cp = 2, plan.cp_comm = DTP_CP_A2A;
    plan.checkpointing = DTP_CHECKPOINT_EVERY_N, plan.checkpoint_every = 2, plan.executor.gradient_stream = false;
    assert_true(dtp_precision_recipe("fp32", &plan.precision));
    check_within(t, &twelve, plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seldom_replays),   cmocka_unit_test(test_seldom),
        cmocka_unit_test(test_seldom_units),     cmocka_unit_test(test_seldom_sums),
        cmocka_unit_test(test_adapters),         cmocka_unit_test(test_called_adapters),
        cmocka_unit_test(test_sorted_experts),   cmocka_unit_test(test_executor_adapters),
        cmocka_unit_test(test_executor_experts), cmocka_unit_test(test_random_plans),
        cmocka_unit_test(test_mixed_plans),      cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_other_runtimes),   cmocka_unit_test(test_slices),
        cmocka_unit_test(test_states_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
