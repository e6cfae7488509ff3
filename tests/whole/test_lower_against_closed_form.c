/* The step program against the closed form, which never sees it, over random plans: matmul and attention FLOPs, bytes
 * sent and number of operations of every collective, bytes copied to and from the host equal exactly. Live bytes are
 * checked from outside by bounds (test_bounds). */
#include "runtime/runtimes.h"
#include "lower/lower.h"
#include "plan/rules.h"
#include "program/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "plan/norm_chain.h"

#include "lib/random_adapters.h"
#include "lib/random_mixed.h"
#include "closed/block_work.h"
#include "closed/closed_form.h"

#define JOBS RANDOM_DRAWS(1200)
#define DRAWN_JOBS 150 /* fewer would not draw everything that is counted */

static void describe(const struct random_job *job)
{
    const struct dtp_transformer *t = &job->transformer;
    const struct dtp_plan *p = &job->plan;
    char checkpointing[32];
    dtp_checkpointing_text(p, checkpointing, sizeof checkpointing);
    print_error(
        "norms: final %d embedding %d qk %d; parallel %d place %d; biases: qkv %d output %d mlp %d norm %d head %d; "
        "window %llu\n",
        t->final_norm, t->embedding_norm, t->qk_norm, (int)t->parallel_block, (int)t->norm_place, t->qkv_bias,
        t->attention_output_bias, t->mlp_bias, t->norm_bias, t->head_bias, (unsigned long long)t->sliding_window);
    print_error("L%llu h%llu heads %llu/%llu d_h%llu f%llu V%llu on %u (%u a node); %s %s cp %u %s compile %d fsdp1 %d "
                "group %u "
                "micro %u "
                "accumulate %u sync %d seq %llu checkpointing %s offload %s precision %s attention %s loss %s "
                "optimizer %s wrap %u "
                "hpz %u qw %d qg %d reshard %d to %u keep %d ends %d prefetch %d of %u view %d fused %d %d rope %d\n",
                (unsigned long long)t->layers, (unsigned long long)t->hidden, (unsigned long long)t->heads,
                (unsigned long long)t->kv_heads, (unsigned long long)t->head_dim, (unsigned long long)t->ffn,
                (unsigned long long)t->vocab, job->cluster.gpus, job->cluster.gpus_per_node,
                dtp_strategy_text(p->strategy), p->runtime->name, p->cp, dtp_cp_comm_text(p->cp_comm), p->compile,
                p->fsdp1, p->shard_group, p->micro_batch, p->accumulate, p->accumulate_sync,
                (unsigned long long)p->sequence, checkpointing, dtp_offload_text(p->offload),
                dtp_precision_name(&p->precision), dtp_attention_text(p->attention), dtp_loss_text(p->loss),
                dtp_optimizer_text(p->optimizer), p->wrap_layers, p->deepspeed.zero_hpz_partition_size,
                p->deepspeed.zero_quantized_weights, p->deepspeed.zero_quantized_gradients, p->reshard_after_forward,
                p->reshard_group, p->keep_root, p->wrap_ends, p->prefetch, p->prefetch_depth, p->ddp_bucket_view,
                p->fused_qkv, p->fused_gate_up, p->rope_fp32);
}

#define check_equal(program_value, closed_value, job)                                                                  \
    do {                                                                                                               \
        double in_program = (double)(program_value), in_closed_form = (double)(closed_value);                          \
        if (in_program != in_closed_form) {                                                                            \
            describe(job);                                                                                             \
            print_error("%s:%d: %s is %.17g in the program, %.17g in the closed form\n", __FILE__, __LINE__,           \
                        #program_value, in_program, in_closed_form);                                                   \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* Model FLOPs: 6 for every weight and token; the core 2 s d_q forward, twice that backward, 2.5 times with flash; s the
 * mean of layers whose windows alternate, which is rounded. */
static void check_flops(const struct random_job *job, const struct dtp_program_totals *totals)
{
    const struct dtp_transformer *t = &job->transformer;
    const struct dtp_plan *p = &job->plan;
    double tokens = (double)dtp_plan_tokens(p) * p->accumulate;
    double weights = (double)dtp_transformer_count(t).matmul, s = dtp_transformer_attention_length(t, p->sequence);
    double keys = (double)t->head_dim, values = t->kv_latent ? (double)t->value_head_dim : keys;
    if (dtp_plan_pads_values(t, &job->cluster, p))
        values = keys;
    double core = (p->attention == DTP_ATTENTION_MATH ? 3 * keys + 3 * values : 4 * keys + 3 * values) * s *
                  (double)(t->heads * t->layers);
    double program = totals->matmul_flops + totals->attention_flops - totals->recompute_flops;
    if (fabs(program / ((6 * weights + core) * tokens) - 1) <= 1e-12)
        return;
    describe(job);
    fail_msg("the program computes %.17g, by hand %.17g", program, (6 * weights + core) * tokens);
}

/* With what is computed twice; sums of many products in another order. */
static void check_hardware_flops(const struct random_job *job, const struct dtp_program_totals *totals)
{
    double closed = dtp_closed_form_hardware_flops(&job->transformer, &job->cluster, &job->plan);
    double program = totals->matmul_flops + totals->attention_flops;
    if (fabs(program / closed - 1) <= 1e-12)
        return;
    describe(job);
    double again = closed - (program - totals->recompute_flops);
    fail_msg("the program computes %.17g again, the closed form %.17g", totals->recompute_flops, again);
}

static void check_traffic(const struct random_job *job, const struct dtp_program_totals *totals)
{
    struct dtp_communication closed;
    dtp_closed_form_communication(&job->transformer, &job->cluster, &job->plan, &closed);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        check_equal(totals->sent_bytes[i], closed.bytes[i], job);
        check_equal(totals->count[i], closed.count[i], job);
    }
    check_equal(totals->host_to_device_bytes, closed.host_to_device_bytes, job);
    check_equal(totals->device_to_host_bytes, closed.device_to_host_bytes, job);
}

/* Calls of the host's around exchanges of experts' rows, a micro-step. */
static void check_exchanges(const struct random_job *job, const struct dtp_program *program)
{
    double calls = 0, formula = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        calls += op->kind == DTP_OP_HOST_EXCHANGE ? op->demand->kernels : 0;
    }
    for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++) {
        struct dtp_block_work work =
            dtp_block_work(&job->transformer, (enum dtp_layer_mlp)mlp, &job->cluster, &job->plan);
        formula += work.layers * work.exchanges + work.layers_again * work.exchanges_again;
    }
    check_equal((uint64_t)calls, (uint64_t)(formula * job->plan.accumulate), job);
}

static void check_proofs(const struct random_job *job, const struct dtp_program *program)
{
    static struct dtp_faults faults;
    memset(&faults, 0, sizeof faults);
    if (dtp_program_verify(program, &faults) == DTP_OK)
        return;
    describe(job);
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++)
        print_error("%s\n", faults.text[i]);
    fail();
}

/* False where the job is not lowered. */
static bool check_job(const struct random_job *job)
{
    struct dtp_program *program;
    struct dtp_program_totals totals;
    if (dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, NULL) != DTP_OK)
        return false;
    dtp_program_sum(program, &totals);
    check_flops(job, &totals);
    check_hardware_flops(job, &totals);
    check_traffic(job, &totals);
    check_exchanges(job, program);
    check_proofs(job, program);
    dtp_program_destroy(program);
    return true;
}

static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    for (int plans = 0; plans < JOBS;) {
        struct random_job job;
        assert_true(random_job(&job));
        if (job.plan.runtime == &dtp_runtime_dtplan) /* a lowering of its own: test_lower_executor.c */
            continue;
        plans += check_job(&job);
    }
}

/* Its offload is drawn too seldom by chance. */
static void test_random_deepspeed_offload(void **state)
{
    (void)state;
    random_seed();
    int plans = 0;
    int seen[3][4] = {{0}};
    while (plans < DRAWN_JOBS) {
        struct random_job job;
        assert_true(random_job(&job));
        job.plan = job.asked;
        job.plan.runtime = &dtp_runtime_deepspeed, job.plan.strategy = (enum dtp_strategy)(DTP_ZERO1 + random_below(3));
        job.plan.offload = (enum dtp_offload)(1 + random_below(3)), job.plan.optimizer = DTP_ADAMW_FUSED;
        job.plan.compile = job.plan.fsdp1 = false, job.plan.shard_group = 0;
        job.plan.prefetch_depth = 1, job.plan.reshard_group = 0;
        if (random_bool())
            job.cluster = test_cluster(test_h200(), 1, 1);
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL) == DTP_OK && check_job(&job)) {
            plans++;
            seen[job.plan.strategy - DTP_ZERO1][job.plan.offload]++;
        }
    }
    for (int stage = 0; stage < 3; stage++)
        assert_true(seen[stage][DTP_OFFLOAD_OPTIMIZER] > 10);
    assert_true(seen[2][DTP_OFFLOAD_PARAMS] > 10 && seen[2][DTP_OFFLOAD_NVME] > 10);
}

static void test_random_zeropp(void **state)
{
    (void)state;
    random_seed();
    int plans = 0;
    int second = 0, weights = 0, exchanged = 0;
    while (plans < DRAWN_JOBS) {
        struct random_job job;
        assert_true(random_job(&job));
        job.plan = job.asked;
        job.plan.runtime = &dtp_runtime_deepspeed, job.plan.strategy = DTP_ZERO3, job.plan.optimizer = DTP_ADAMW_FUSED;
        job.plan.offload = random_below(4) ? DTP_OFFLOAD_NONE : DTP_OFFLOAD_OPTIMIZER;
        job.plan.compile = job.plan.fsdp1 = false, job.plan.shard_group = 0;
        job.plan.prefetch_depth = 1, job.plan.reshard_group = 0;
        job.plan.deepspeed.zero_hpz_partition_size = 1u << random_below(4);
        job.plan.deepspeed.zero_quantized_weights = random_bool(),
        job.plan.deepspeed.zero_quantized_gradients = random_bool();
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL) != DTP_OK || !check_job(&job))
            continue;
        plans++;
        second += job.plan.deepspeed.zero_hpz_partition_size > 1;
        weights += job.plan.deepspeed.zero_quantized_weights;
        exchanged += job.plan.deepspeed.zero_quantized_gradients && job.cluster.nodes > 1;
    }
    assert_true(second > 20 && weights > 20 && exchanged > 20);
}

/* Layers of experts under PyTorch: each strategy, eager and compiled, with and without checkpointing. */
static void test_experts(void **state)
{
    (void)state;
    static const enum dtp_strategy strategies[] = {DTP_DDP, DTP_ZERO1, DTP_FULL_SHARD, DTP_SHARD_GRAD_OP};
    static const enum dtp_checkpointing checkpointing[] = {DTP_CHECKPOINT_NONE, DTP_CHECKPOINT_FULL,
                                                           DTP_CHECKPOINT_SELECTIVE_ATTENTION};
    random_seed();
    for (unsigned i = 0; i < 4 * 3 * 2 * 2; i++) {
        struct random_job job = {.cluster = random_cluster()};
        struct dtp_transformer *t = &job.transformer;
        static struct dtp_faults faults;
        *t = dtp_transformer_default();
        t->layers = 3, t->hidden = 256, t->heads = 4, t->kv_heads = 2, t->head_dim = 64, t->ffn = 512, t->vocab = 1000;
        t->experts = 8, t->experts_per_token = 2, t->expert_ffn = 192;
        t->shared_expert_ffn = i / 24 ? 320 : 0, t->shared_expert_gate = i / 24 > 0;
        job.asked = dtp_plan_default();
        job.asked.strategy = strategies[i % 4], job.asked.checkpointing = checkpointing[i / 4 % 3];
        job.asked.compile = i / 12 % 2, job.asked.sequence = 128, job.asked.micro_batch = 2;
        job.plan = job.asked;
        memset(&faults, 0, sizeof faults);
        if (dtp_plan_resolve(&job.plan, t, &job.cluster, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        assert_true(check_job(&job));
    }
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* A projection of a block, in the order of forward: what it reads, and its matrices with their targets. */
struct projection {
    uint64_t in, out[3];
    enum dtp_adapter_target target[3];
    int count;
    uint64_t experts; /* that a token goes through, each with matrices of its own; 0: none */
};

/* The MLP's: an expert's, shared ones', or the only one's. */
static int mlp_of(uint64_t h, uint64_t f, bool gated, uint64_t experts, struct projection *out)
{
    out[0] = gated ? (struct projection){h, {f, f}, {DTP_TARGET_GATE, DTP_TARGET_UP}, 2, experts}
                   : (struct projection){h, {f}, {DTP_TARGET_UP}, 1, experts};
    out[1] = (struct projection){f, {h}, {DTP_TARGET_DOWN}, 1, experts};
    return 2;
}

#define PROJECTIONS 8
static int projections_of(const struct dtp_transformer *t, struct projection out[PROJECTIONS])
{
    uint64_t h = t->hidden, q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    bool gated = dtp_activation_is_gated(t->activation);
    int count = 2;
    out[0] = (struct projection){h, {q, kv, kv}, {DTP_TARGET_Q, DTP_TARGET_K, DTP_TARGET_V}, 3};
    out[1] = (struct projection){q, {h}, {DTP_TARGET_OUTPUT}, 1};
    if (!t->experts)
        return count + mlp_of(h, t->ffn, gated, 0, out + count);
    out[count++] =
        (struct projection){h, {t->experts, t->shared_expert_gate}, {DTP_TARGET_COUNT, DTP_TARGET_COUNT}, 2, 0};
    count += mlp_of(h, t->expert_ffn, gated, t->experts_per_token, out + count);
    return count + (t->shared_expert_ffn ? mlp_of(h, t->shared_expert_ffn, gated, 0, out + count) : 0);
}

/* Adapters of experts' parameters multiply no token: 6 for each of those weights, 2 more than frozen ones; and of all
 * experts W + B A twice, of its gradient those of B and A. */
static double folded_flops(const struct random_job *job, double *of_token)
{
    const struct dtp_transformer *t = &job->transformer;
    const struct dtp_adapter_choice *a = &job->plan.adapters;
    double up = dtp_activation_is_gated(t->activation) ? 2 : 1, whole = 0;
    double each = (double)(t->hidden * t->expert_ffn), layers = (double)t->layers;
    whole += a->parameters & 1u << DTP_TARGET_UP ? up * each : 0;
    whole += a->parameters & 1u << DTP_TARGET_DOWN ? each : 0;
    *of_token = layers * 2 * whole * (double)t->experts_per_token;
    return layers * (2 + 2) * 2 * whole * (double)t->experts * a->rank;
}

/* 4 for each frozen weight and token, 6 for each of adapters, the core 2 s d_q forward and 2 or 2.5 times that
 * backward. In the first layer the lowest projection with an adapter has no gradient of its input, neither through its
 * matrices nor through its adapters, and what lies below it no backward at all. DoRA multiplies B A by an identity in
 * each micro-step, and behind dropout W once more, forward and, but for that first one, backward. Adapters of experts'
 * parameters multiply no token: 6 for each of those weights, and of all experts W + B A twice, of its gradient those of
 * B and A. */
static void check_adapted_flops(const struct random_job *job, const struct dtp_program_totals *totals)
{
    const struct dtp_transformer *t = &job->transformer;
    const struct dtp_plan *p = &job->plan;
    const struct dtp_adapter_choice *a = &p->adapters;
    double tokens = (double)dtp_plan_tokens(p) * p->accumulate, layers = (double)t->layers, r = a->rank;
    double core = 2 * dtp_transformer_attention_length(t, p->sequence) * (double)(t->heads * t->head_dim);
    double first = 2 * dtp_transformer_layer_attention_length(t, 0, p->sequence) * (double)(t->heads * t->head_dim);
    double back = p->attention == DTP_ATTENTION_MATH ? 2 : 2.5, flops = 0, below = 0;
    double head = (double)(t->vocab * t->hidden) * (a->train_ends ? 6 : 4);
    double norms = 0, again = a->dora && a->dropout > 0 ? 2 : 0;
    struct projection projection[PROJECTIONS];
    bool all = a->train_ends || dtp_plan_inputs_require_grad(p), found = all;
    for (int i = 0; i < projections_of(t, projection); i++) {
        double once = 0, adapters = 0, into = 0;
        if (i == 2 && t->parallel_block) /* the MLP reads what the layer reads */
            found = all;
        for (int m = 0; m < projection[i].count; m++) {
            bool linear = !projection[i].experts || dtp_plan_calls_experts(p);
            bool adapted = linear && a->targets & 1u << projection[i].target[m];
            bool fused = i == 0 ? p->fused_qkv : i == 2 && !t->experts && p->fused_gate_up; /* one A for all */
            double in = m && fused ? 0 : (double)projection[i].in;
            once += (double)(projection[i].in * projection[i].out[m]);
            adapters += adapted ? r * (in + (double)projection[i].out[m]) : 0;
            into += adapted ? r * in : 0;
            norms +=
                adapted && a->dora ? 2 * r * (double)(projection[i].in * (projection[i].in + projection[i].out[m])) : 0;
            flops += adapted ? layers * 2 * again * (double)(projection[i].in * projection[i].out[m]) : 0;
            below += adapted && !found ? again * (double)(projection[i].in * projection[i].out[m]) : 0;
        }
        double rows = projection[i].experts ? (double)projection[i].experts : 1;
        flops += layers * rows * (4 * once + 6 * adapters);
        if (!found)
            below += 2 * once + 2 * into;
        if (!found && i == 0 && adapters <= 0)
            below += back * first;
        found = found || adapters > 0;
    }
    double folded, folds = folded_flops(job, &folded);
    double hand = tokens * (flops + folded + head + layers * (1 + back) * core - below) +
                  p->accumulate * (layers * norms + folds);
    double program = totals->matmul_flops + totals->attention_flops - totals->recompute_flops;
    if (fabs(program / hand - 1) <= 1e-12)
        return;
    describe(job);
    fail_msg("the program computes %.17g, by hand %.17g: rank %u targets %u ends %d", program, hand, a->rank,
             a->targets, a->train_ends);
}

/* What a program does against what the formulas say, adapters or not. */
static void check_program(const struct random_job *job, const struct dtp_program *program)
{
    struct dtp_program_totals totals;
    dtp_program_sum(program, &totals);
    if (dtp_plan_adapts(&job->plan))
        check_adapted_flops(job, &totals);
    else
        check_flops(job, &totals);
    check_hardware_flops(job, &totals);
    check_traffic(job, &totals);
    check_exchanges(job, program);
    check_proofs(job, program);
}

/* Under PyTorch: each strategy, eager and compiled, with and without checkpointing, all targets and bases. */
static void test_random_adapters(void **state)
{
    (void)state;
    random_seed();
    const int drawn = 2 * DRAWN_JOBS;
    int packed = 0, sharded = 0, below = 0, dropped = 0;
    for (int plans = 0; plans < drawn;) {
        struct random_job job;
        struct dtp_program *program;
        assert_true(random_job(&job));
        if (!random_adapters(&job) || dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
            continue;
        check_program(&job, program);
        dtp_program_destroy(program);
        plans++;
        packed += job.plan.adapters.base != DTP_BASE_NONE, dropped += job.plan.adapters.dropout > 0;
        sharded += dtp_plan_shards_params(&job.plan) && job.cluster.gpus > 1;
        below += !(job.plan.adapters.targets & 7) && !job.plan.adapters.train_ends;
    }
    assert_true(draws_reach(packed, drawn, 12) && draws_reach(sharded, drawn, 8));
    assert_true(draws_reach(below, drawn, 1.6) && draws_reach(dropped, drawn, 1.6));
}

/* Transformers' layers and loss, whole models and adapters, under PyTorch's strategies and DeepSpeed's. */
static void test_random_peft(void **state)
{
    (void)state;
    random_seed();
    int chained = 0, adapted = 0, engines = 0;
    for (int plans = 0; plans < DRAWN_JOBS;) {
        struct random_job job;
        struct dtp_program *program;
        assert_true(random_job(&job));
        bool engine = random_below(4) == 0, resolved = engine ? random_peft_deepspeed(&job) : random_peft(&job);
        if (!resolved || dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
            continue;
        bool adapts = dtp_plan_adapts(&job.plan);
        check_program(&job, program);
        dtp_program_destroy(program);
        plans++;
        engines += engine && adapts;
        adapted += adapts, chained += dtp_plan_chains_norms(&job.transformer, &job.plan);
    }
    assert_true(chained > DRAWN_JOBS / 10 && adapted > DRAWN_JOBS / 4 && engines > DRAWN_JOBS / 40);
}

/* Megatron-Bridge's, beside fused linears. */
static void test_random_megatron_adapters(void **state)
{
    (void)state;
    random_seed();
    int below = 0, dropped = 0;
    for (int plans = 0; plans < DRAWN_JOBS;) {
        struct random_job job;
        struct dtp_program *program;
        assert_true(random_job(&job));
        if (!random_megatron_adapters(&job) ||
            dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
            continue;
        check_program(&job, program);
        dtp_program_destroy(program);
        plans++;
        below += !(job.plan.adapters.targets & DTP_TARGETS_QKV), dropped += job.plan.adapters.dropout > 0;
    }
    assert_true(draws_reach(below, DRAWN_JOBS, 4) && draws_reach(dropped, DRAWN_JOBS, 8));
}

/* Layers with experts beside layers without. */
static void test_mixed(void **state)
{
    (void)state;
    random_seed();
    for (int checked = 0; checked < 100;) {
        struct random_job job;
        if (!random_mixed_job(2 + random_below(12), &job))
            continue;
        assert_true(check_job(&job));
        checked++;
    }
}

/* Experts under Transformers' Trainer, frozen or trained. */
static void check_transformers_experts(bool (*draw)(uint64_t layers, struct random_job *job))
{
    random_seed();
    int adapted = 0;
    for (int checked = 0; checked < 100;) {
        struct random_job job;
        struct dtp_program *program;
        if (!draw(1 + random_below(6), &job))
            continue;
        bool adapts = dtp_plan_adapts(&job.plan);
        if (dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
            continue;
        check_program(&job, program);
        dtp_program_destroy(program);
        adapted += adapts;
        checked++;
    }
    assert_true(adapted > 30 && adapted < 90);
}

/* Called one after the other. */
static void test_called(void **state)
{
    (void)state;
    check_transformers_experts(random_called_job);
}

/* By grouped matmuls. */
static void test_sorted(void **state)
{
    (void)state;
    check_transformers_experts(random_sorted_job);
}

/* Experts that are parameters of three dimensions, frozen beside linears with adapters. */
static void test_expert_parameters(void **state)
{
    (void)state;
    random_seed();
    int clamped = 0;
    for (int checked = 0; checked < 100;) {
        struct random_job job;
        struct dtp_program *program;
        if (!random_expert_parameters_job(1 + random_below(6), &job))
            continue;
        if (dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
            continue;
        check_program(&job, program);
        dtp_program_destroy(program);
        clamped += job.transformer.activation == DTP_SWIGLU_CLAMPED;
        checked++;
    }
    assert_true(clamped > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_experts),
                                       cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_called),
                                       cmocka_unit_test(test_sorted),
                                       cmocka_unit_test(test_expert_parameters),
                                       cmocka_unit_test(test_random_adapters),
                                       cmocka_unit_test(test_random_peft),
                                       cmocka_unit_test(test_random_megatron_adapters),
                                       cmocka_unit_test(test_random_plans),
                                       cmocka_unit_test(test_random_deepspeed_offload),
                                       cmocka_unit_test(test_random_zeropp)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
