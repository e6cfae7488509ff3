/* Properties that hold for every valid plan, whatever the numbers: 7,200 random jobs from a printed seed. */
#include "closed/closed_form.h"
#include "job/estimate.h"
#include "runtime/runtimes.h"
#include "runtime/dtplan/lower_executor.h"
#include "closed/sharding.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/rules.h"
#include "lib/random_plans.h"

#define JOBS RANDOM_DRAWS(1200)

/* Something a reader can rebuild when a property fails. */
static void describe(const struct random_job *job)
{
    char checkpointing[32];
    dtp_checkpointing_text(&job->plan, checkpointing, sizeof checkpointing);
    print_error(
        "job: L%llu h%llu heads %llu/%llu f%llu V%llu on %u x %s (%u a node); %s %s compile %d fsdp1 %d group %u "
        "micro %u accumulate %u sync %d seq %llu checkpointing %s offload %s precision %s attention %s loss %s "
        "optimizer %s wrap %u reshard %d prefetch %d\n",
        (unsigned long long)job->transformer.layers, (unsigned long long)job->transformer.hidden,
        (unsigned long long)job->transformer.heads, (unsigned long long)job->transformer.kv_heads,
        (unsigned long long)job->transformer.ffn, (unsigned long long)job->transformer.vocab, job->cluster.gpus,
        job->cluster.gpu.key, job->cluster.gpus_per_node, dtp_strategy_text(job->plan.strategy),
        job->plan.runtime->name, job->plan.compile, job->plan.fsdp1, job->plan.shard_group, job->plan.micro_batch,
        job->plan.accumulate, job->plan.accumulate_sync, (unsigned long long)job->plan.sequence, checkpointing,
        dtp_offload_text(job->plan.offload), dtp_precision_name(&job->plan.precision),
        dtp_attention_text(job->plan.attention), dtp_loss_text(job->plan.loss), dtp_optimizer_text(job->plan.optimizer),
        job->plan.wrap_layers, job->plan.reshard_after_forward, job->plan.prefetch);
}

#define check(condition, job)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            describe(job);                                                                                             \
            print_error("%s:%d: violated: %s\n", __FILE__, __LINE__, #condition);                                      \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

static struct dtp_prediction predict(const struct random_job *job)
{
    struct dtp_prediction prediction;
    assert_int_equal(dtp_estimate(&job->transformer, &job->cluster, &job->plan, &prediction, NULL), DTP_OK);
    return prediction;
}

/* Doubles may differ in the last digits where two routes sum in another order. */
static bool at_most(double a, double b)
{
    return a <= b * (1 + 1e-9) + 1e-12;
}

static void test_sums_and_bounds(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < JOBS; i++) {
        struct random_job job;
        assert_true(random_job(&job));
        struct dtp_prediction p = predict(&job);
        uint64_t total = 0, peak = 0;
        for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
            total += p.communication.bytes[c];
        check(total == p.communication.total_bytes, &job);
        check(p.communication.link_bytes + p.communication.network_bytes == total, &job);
        check(job.cluster.gpus > 1 || total == 0, &job);
        for (int phase = 0; phase < DTP_PHASE_COUNT; phase++) {
            uint64_t sum = 0;
            for (int owner = 0; owner < DTP_OWNER_COUNT; owner++)
                sum += p.memory.phase_bytes[phase][owner];
            check(sum == p.memory.phase_total_bytes[phase], &job);
            peak = sum > peak ? sum : peak;
        }
        check(peak == p.memory.allocated_peak_bytes, &job);
        check(peak == p.memory.phase_total_bytes[p.memory.peak_phase], &job);
        check(p.memory.reserved_peak_bytes >= peak, &job);
        check(p.memory.device_peak_bytes > p.memory.reserved_peak_bytes, &job);
        check(at_most(p.time.exposed_communication_s, p.time.communication_s), &job);
        check(at_most(p.time.exposed_offload_s, p.time.offload_s), &job);
        check(at_most(p.time.step_perfect_overlap_s, p.time.step_s), &job);
        check(at_most(p.time.step_s, p.time.step_no_overlap_s), &job);
        check(isfinite(p.time.step_s) && p.time.step_s > 0, &job);
        check(p.throughput.mfu > 0 && p.throughput.mfu < 1 && p.throughput.hfu >= p.throughput.mfu, &job);
    }
}

/* A step's tokens count every micro-step of every GPU. */
static void test_tokens_count_accumulation(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < JOBS; i++) {
        struct random_job job;
        assert_true(random_job(&job));
        struct dtp_prediction p = predict(&job);
        double tokens = (double)dtp_plan_tokens(&job.plan) * job.plan.accumulate * job.cluster.gpus;
        assert_near(p.throughput.tokens_per_s * p.time.step_s, tokens, 1e-12);
    }
}

/* A deterministic backward of attention is cut into parts where its workspace would be too large: more tokens, less of
 * it. Only our executor counts it. */
static uint64_t attention_workspace(const struct random_job *job)
{
    struct dtp_executor_rules rules;
    dtp_executor_rules(&job->transformer, &job->cluster, &job->plan, &rules);
    return job->plan.runtime == &dtp_runtime_dtplan ? rules.attention_backward_workspace_bytes : 0;
}

static void check_not_less(const struct random_job *small, const struct random_job *large, bool memory)
{
    struct dtp_prediction a = predict(small), b = predict(large);
    /* Where both wait for the host, its time is split between forward and backward as the kernels' is: another share
     * of collectives is hidden (0.07 % of a step of 512 GPUs was). */
    bool host_bound = a.time.compute_s <= a.time.host_launch_s && b.time.compute_s <= b.time.host_launch_s;
    double most_s = b.time.step_s * (host_bound ? 1.002 : 1);
    if (!at_most(a.time.step_s, most_s))
        print_error("step %.9g s, with more work %.9g s: micro %u accumulate %u seq %llu\n", a.time.step_s,
                    b.time.step_s, small->plan.micro_batch, small->plan.accumulate,
                    (unsigned long long)small->plan.sequence);
    check(at_most(a.time.step_s, most_s), large);
    if (memory && !a.memory.bound) /* one without a step program has a bound, which may lie off either way */
        check(a.memory.allocated_peak_bytes <= b.memory.allocated_peak_bytes + attention_workspace(small), large);
}

static void test_monotone_in_batch_and_sequence(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < JOBS; i++) {
        struct random_job job, larger;
        assert_true(random_job(&job));
        larger = job;
        larger.plan.micro_batch += 1 + (uint32_t)random_below(job.plan.micro_batch);
        check_not_less(&job, &larger, true);
        larger = job;
        larger.plan.sequence *= 2;
        check_not_less(&job, &larger, true);
        larger = job;
        larger.plan.accumulate += 1;
        check_not_less(&job, &larger, true);
    }
}

static void test_monotone_in_bandwidth(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < JOBS; i++) {
        struct random_job job, faster;
        assert_true(random_job(&job));
        faster = job;
        faster.cluster.machine.network_bytes_per_s *= 2;
        check_not_less(&faster, &job, false);
        faster = job;
        faster.cluster.gpu.link_bytes_per_s *= 1.5;
        check_not_less(&faster, &job, false);
        faster = job;
        faster.cluster.gpu.memory_bytes_per_s *= 1.5;
        check_not_less(&faster, &job, false);
        faster = job;
        faster.cluster.gpu.pcie_bytes_per_s *= 2;
        check_not_less(&faster, &job, false);
    }
}

/* What FSDP2's padding of each parameter to equal shards can add to gathered weights and scattered gradients. */
static uint64_t padding_bytes(const struct random_job *job)
{
    struct dtp_units u;
    dtp_units_count(&job->transformer, &job->cluster, &job->plan, &u);
    return 12 * (u.ranks * u.total_shard - u.total);
}

/* Sharding over twice as many ranks never takes more memory on a GPU, padding apart. */
static void test_memory_shrinks_with_sharding(void **state)
{
    (void)state;
    random_seed();
    int compared = 0;
    for (int i = 0; i < JOBS; i++) {
        struct random_job job, wider;
        assert_true(random_job(&job));
        if (job.plan.strategy == DTP_DDP || job.plan.shard_group * 2 > job.cluster.gpus)
            continue;
        if (job.asked.reshard_group) /* a group that equals the shard group keeps nothing, in a wider one it does */
            continue;
        if (job.plan.runtime == &dtp_runtime_dtplan && job.plan.shard_group == 1) /* which gathers nothing */
            continue;
        wider = job;
        wider.plan = job.asked;
        wider.plan.shard_group = job.plan.shard_group * 2;
        if (dtp_plan_resolve(&wider.plan, &wider.transformer, &wider.cluster, NULL) != DTP_OK)
            continue;
        struct dtp_prediction narrow = predict(&job), wide = predict(&wider);
        bool whole = wider.plan.runtime == &dtp_runtime_dtplan; /* its modules are padded to whole shards */
        uint64_t granule = whole ? 18 * 256 * (uint64_t)wider.plan.shard_group * (job.transformer.layers + 2) : 0;
        check(wide.memory.allocated_peak_bytes <= narrow.memory.allocated_peak_bytes + padding_bytes(&wider) + granule,
              &wider);
        check(wide.memory.params_bytes <= narrow.memory.params_bytes + granule, &wider);
        check(wide.memory.optimizer_bytes <= narrow.memory.optimizer_bytes + granule, &wider);
        compared++;
    }
    assert_true(draws_reach(compared, JOBS, 10)); /* about 15 % are */
}

/* The same job on more GPUs, sharded over all of them: states shrink. And stage by stage of ZeRO. */
/* ZeRO-2 keeps gradients of whole parameters, of which the first and the last reach beyond the rank's part: of the
 * largest tensors there are, and beside what was summed before, in the micro-steps behind the first. */
static uint64_t border_bytes(const struct random_job *job)
{
    const struct dtp_transformer *t = &job->transformer;
    uint64_t wide = t->vocab > 2 * t->ffn ? t->vocab : 2 * t->ffn;
    uint64_t experts = t->experts ? t->experts * 2 * t->expert_ffn : 0;
    return 2 * 2 * 4 * t->hidden * (wide > experts ? wide : experts);
}

static void test_memory_shrinks_with_gpus_and_stages(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < JOBS; i++) {
        struct random_job job, more;
        assert_true(random_job(&job));
        if (job.plan.shard_group == job.cluster.gpus && job.plan.strategy != DTP_DDP) {
            more = job;
            more.cluster.gpus *= 2, more.cluster.nodes *= 2;
            more.plan = job.asked;
            more.plan.shard_group = 0;
            if (job.plan.strategy != DTP_HYBRID_SHARD &&
                dtp_plan_resolve(&more.plan, &more.transformer, &more.cluster, NULL) == DTP_OK)
                check(predict(&more).memory.optimizer_bytes <= predict(&job).memory.optimizer_bytes, &more);
        }
        uint64_t before = UINT64_MAX, whole = UINT64_MAX;
        for (int stage = 0; stage < 3; stage++) {
            struct random_job zero = job;
            zero.plan = job.asked;
            zero.plan.runtime = &dtp_runtime_deepspeed, zero.plan.offload = DTP_OFFLOAD_NONE;
            zero.plan.compile = zero.plan.fsdp1 = false, zero.plan.shard_group = 0;
            zero.plan.strategy = (enum dtp_strategy)(DTP_ZERO1 + stage);
            if (dtp_plan_resolve(&zero.plan, &zero.transformer, &zero.cluster, NULL) != DTP_OK)
                break;
            struct dtp_prediction p = predict(&zero);
            const uint64_t *step = p.memory.phase_bytes[DTP_PHASE_STEP]; /* gradients as the update finds them */
            uint64_t states = p.memory.params_bytes + p.memory.optimizer_bytes;
            uint64_t with_gradients = states + step[DTP_OWNER_GRADS] + step[DTP_OWNER_REDUCE];
            if (stage < 2) { /* stage 3 has full buckets beside them */
                check(with_gradients <= whole || zero.cluster.gpus == 1, &zero);
                whole = with_gradients + padding_bytes(&zero) + border_bytes(&zero);
            }
            /* zero3 pads each tensor, a bias of the head with its odd vocabulary too, to equal shards */
            check(states <= before || zero.cluster.gpus == 1, &zero);
            before = states + padding_bytes(&zero);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums_and_bounds),
                                       cmocka_unit_test(test_tokens_count_accumulation),
                                       cmocka_unit_test(test_monotone_in_batch_and_sequence),
                                       cmocka_unit_test(test_monotone_in_bandwidth),
                                       cmocka_unit_test(test_memory_shrinks_with_sharding),
                                       cmocka_unit_test(test_memory_shrinks_with_gpus_and_stages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
