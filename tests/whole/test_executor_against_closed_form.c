/* Our executor's step program against its closed form, which never sees it, over random plans: the arena, FLOPs, bytes
 * through HBM, launches, bytes sent and number of operations of every collective are the same. */
#include "runtime/dtplan/executor_work.h"
#include "job/estimate.h"
#include "lower/lower.h"
#include "program/live_buffers.h"
#include "runtime/dtplan/lower_executor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_draws.h"
#include "lib/random_executor_plans.h"
#include "closed/closed_form.h"

#define JOBS RANDOM_DRAWS(400)

static uint64_t granules(const struct dtp_buffer *buffer)
{
    return (buffer->bytes + DTP_PLACEMENT_ALIGNMENT - 1) / DTP_PLACEMENT_ALIGNMENT * DTP_PLACEMENT_ALIGNMENT;
}

/* Largest sum of live device bytes, each buffer in whole granules: what no placement can undercut. */
static uint64_t granule_bytes(const struct dtp_program *program)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    uint64_t live = 0, most = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (buffers[i].persistent && buffers[i].space == DTP_SPACE_DEVICE)
            live += granules(&buffers[i]);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_operand *operands = dtp_program_operands(program, &ops[i]);
        for (uint32_t k = 0; k < ops[i].operand_count; k++)
            live += operands[k].access & DTP_ALLOC ? granules(&buffers[operands[k].buffer.index]) : 0;
        most = live > most ? live : most;
        for (uint32_t k = 0; k < ops[i].operand_count; k++)
            live -= operands[k].access & DTP_FREE ? granules(&buffers[operands[k].buffer.index]) : 0;
    }
    return most;
}

/* The same of bytes that were asked for. */
static uint64_t live_bytes(const struct dtp_program *program)
{
    struct dtp_live_buffers live;
    assert_int_equal(dtp_live_buffers_of(program, &live, NULL), DTP_OK);
    free(live.kind);
    return live.total_bytes;
}

static void fail_with(const struct random_job *job, const char *what, uint64_t program, uint64_t closed)
{
    random_executor_describe(job);
    fail_msg("%s: %llu bytes in the program, %llu in the estimate", what, (unsigned long long)program,
             (unsigned long long)closed);
}

/* The estimate has the largest sum of live bytes, to the byte; a placement may need more where holes are left between
 * buffers, which begin at granules. To find the least is NP-hard, and the search is bounded
 * (arena_fit_tight.c): of 400 plans of a seed it leaves holes in 4 to 9 %, of 2.3 % at most (seeds 1..50), of 5.5 in
 * one of seed 95646861. */
static struct dtp_program *lowered(const struct random_job *job)
{
    struct dtp_faults faults = {.count = 0};
    struct dtp_program *program = NULL;
    if (dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, &faults) != DTP_OK) {
        random_executor_describe(job);
        fail_msg("%s", faults.text[0]);
    }
    return program;
}

static void check_arenas(void (*draw)(struct random_job *, int), int percent, double most_holes)
{
    random_seed();
    int exact = 0;
    double worst = 0;
    for (int i = 0; i < JOBS; i++) {
        struct random_job job;
        struct dtp_executor_arena arena;
        struct dtp_memory memory;
        draw(&job, i);
        struct dtp_program *program = lowered(&job);
        struct dtp_faults faults = {.count = 0};
        if (dtp_estimate_memory(&job.transformer, &job.cluster, &job.plan, &memory, NULL, &faults) != DTP_OK) {
            random_executor_describe(&job);
            fail_msg("%s", faults.text[0]);
        }
        if (live_bytes(program) != memory.allocated_peak_bytes)
            fail_with(&job, "live", live_bytes(program), memory.allocated_peak_bytes);
        if (dtp_executor_arena_make(program, &arena, &faults) != DTP_OK) {
            random_executor_describe(&job);
            fail_msg("%s", faults.text[0]);
        }
        if (job.plan.offload != DTP_OFFLOAD_NONE) {
            uint64_t ranks =
                job.cluster.gpus < job.cluster.gpus_per_node ? job.cluster.gpus : job.cluster.gpus_per_node;
            if (arena.host_bytes * ranks != memory.host_bytes)
                fail_with(&job, "host", arena.host_bytes * ranks, memory.host_bytes);
        }
        double holes = 100 * ((double)arena.device_bytes / (double)granule_bytes(program) - 1);
        if (holes < 0)
            fail_with(&job, "arena", arena.device_bytes, granule_bytes(program));
        exact += holes == 0;
        worst = holes > worst ? holes : worst;
        dtp_executor_arena_release(&arena);
        dtp_program_destroy(program);
    }
    print_message("%d plans: live bytes the same in all, the arena in %.1f %%, at most %.2f %% more\n", JOBS,
                  100.0 * exact / JOBS, worst);
    assert_true(draws_reach(exact, JOBS, percent) && worst < most_holes);
}

static void draw_any(struct random_job *job, int i)
{
    (void)i;
    assert_true(random_executor_job(job));
}

static void draw_narrow(struct random_job *job, int i)
{
    random_executor_narrow_job(job, i);
}

static void draw_adapted(struct random_job *job, int i)
{
    (void)i;
    random_executor_adapted_job(job);
}

/* SGD with momentum of any plan, Muon of those whose ranks have the whole model. */
static void draw_optimized(struct random_job *job, int i)
{
    for (;;) {
        assert_true(random_executor_job(job));
        struct dtp_plan plan = job->asked;
        plan.offload = DTP_OFFLOAD_NONE;
        plan.optimizer = i % 3 ? DTP_MUON : DTP_MOMENTUM;
        if (i % 3) {
            plan.strategy = DTP_DDP, plan.shard_group = 0, plan.executor.update_in_backward = false;
            plan.executor.gather_engine = plan.executor.reduce_engine = DTP_ENGINE_SM;
        }
        if (random_executor_takes(job, &plan))
            return;
    }
}

static void test_optimized_arena(void **state)
{
    (void)state;
    check_arenas(draw_optimized, 85, 6);
}

static void draw_experts(struct random_job *job, int i)
{
    (void)i;
    random_executor_expert_job(job);
}

static void test_expert_arena(void **state)
{
    (void)state;
    /* Two layers with room for any rows hold few buffers, of GB each, between which more is left: one of 2,000 plans
     * had 8.7 %. */
    check_arenas(draw_experts, 80, 10);
}

static void draw_latent(struct random_job *job, int i)
{
    random_executor_latent_job(job, i);
}

static void test_latent_arena(void **state)
{
    (void)state;
    check_arenas(draw_latent, 80, 6);
}

static void test_adapted_arena(void **state)
{
    (void)state;
    check_arenas(draw_adapted, 85, 6);
}

static void test_arena(void **state)
{
    (void)state;
    check_arenas(draw_any, 90, 6);
}

static void test_narrow_arena(void **state)
{
    (void)state;
    check_arenas(draw_narrow, 82, 6); /* 91 to 93 of 100 in 3,200 plans */
}

/* Plan 262 of seed 10, where two weights of a quarter of the arena alternate with blocks of a fifth: the search was
 * stuck with 6.1 % of holes, while the order of the few largest spans hid behind that of the many. */
static void test_few_large_spans(void **state)
{
    (void)state;
    struct random_job job;
    struct dtp_program *program;
    struct dtp_executor_arena arena;
    random_state = 10;
    for (int i = 0; i <= 262; i++)
        assert_true(random_executor_job(&job));
    assert_int_equal(dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL), DTP_OK);
    assert_int_equal(dtp_executor_arena_make(program, &arena, NULL), DTP_OK);
    assert_true((double)arena.device_bytes < 1.03 * (double)granule_bytes(program));
    dtp_executor_arena_release(&arena);
    dtp_program_destroy(program);
}

#define check_equal(program_value, closed_value, job)                                                                  \
    do {                                                                                                               \
        double in_program = (double)(program_value), in_closed_form = (double)(closed_value);                          \
        if (fabs(in_program - in_closed_form) > 1e-14 * in_closed_form) {                                              \
            random_executor_describe(job);                                                                             \
            fail_msg("%s is %.17g in the program, %.17g in the closed form", #program_value, in_program,               \
                     in_closed_form);                                                                                  \
        }                                                                                                              \
    } while (0)

static void check_work(const struct random_job *job, const struct dtp_program_totals *totals)
{
    struct dtp_step_work w;
    double k = job->plan.accumulate, collectives = 0;
    dtp_executor_work(&job->transformer, &job->cluster, &job->plan, &w);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        collectives += (double)totals->count[i];
    check_equal(totals->matmul_flops, k * (w.matmul_flops + w.recompute_matmul_flops) + w.product_flops, job);
    check_equal(totals->optimizer_flops, w.update_matmul_flops, job);
    check_equal(totals->attention_flops, k * (w.attention_flops + w.recompute_attention_flops), job);
    check_equal(totals->recompute_flops, k * (w.recompute_matmul_flops + w.recompute_attention_flops), job);
    check_equal(totals->memory_bytes,
                k * (w.forward_bytes + w.backward_bytes + w.loss_bytes + w.recompute_bytes) + w.gradient_bytes +
                    w.update_bytes,
                job);
    check_equal(totals->kernels, k * w.kernels + w.step_kernels + collectives, job);
}

static void check_collectives(const struct random_job *job, const struct dtp_program_totals *totals,
                              const struct dtp_communication *closed)
{
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        check_equal(totals->sent_bytes[i], closed->bytes[i], job);
        check_equal(totals->count[i], closed->count[i], job);
    }
}

static void check_traffic(const struct random_job *job, const struct dtp_program_totals *totals)
{
    struct dtp_communication closed;
    dtp_closed_form_communication(&job->transformer, &job->cluster, &job->plan, &closed);
    check_collectives(job, totals, &closed);
    check_equal(totals->host_to_device_bytes, closed.host_to_device_bytes, job);
    check_equal(totals->device_to_host_bytes, closed.device_to_host_bytes, job);
}

static void check_works(void (*draw)(struct random_job *, int))
{
    random_seed();
    for (int i = 0; i < JOBS; i++) {
        struct random_job job;
        struct dtp_program_totals totals;
        draw(&job, i);
        struct dtp_program *program = lowered(&job);
        dtp_program_sum(program, &totals);
        check_work(&job, &totals);
        check_traffic(&job, &totals);
        dtp_program_destroy(program);
    }
}

static void test_work_and_traffic(void **state)
{
    (void)state;
    check_works(draw_any);
}

static void test_optimized_work_and_traffic(void **state)
{
    (void)state;
    check_works(draw_optimized);
}

static void test_narrow_work_and_traffic(void **state)
{
    (void)state;
    check_works(draw_narrow);
}

/* A job of tensor parallel ranks: heads, MLP, vocabulary and sequence that they divide, and as many GPUs as often. */
static void draw_cut(struct random_job *job, int i)
{
    const uint32_t tp = i % 3 ? 2 : 4;
    for (int attempt = 0;; attempt++) {
        assert_true(attempt < 1000 && random_executor_job(job));
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        t->heads *= tp, t->kv_heads *= tp, t->ffn *= tp, t->qk_norm_wide = false;
        job->cluster = test_cluster(test_h200(), tp << i % 2, 8);
        plan.tp = tp, plan.sequence_parallel = true;
        plan.offload = DTP_OFFLOAD_NONE;
        plan.executor.gradient_stream = plan.executor.update_in_backward = false;
        plan.executor.gather_engine = plan.executor.reduce_engine = DTP_ENGINE_SM;
        if (random_executor_takes(job, &plan))
            return;
    }
}

static void test_cut_arena(void **state)
{
    (void)state;
    check_arenas(draw_cut, 80, 6);
}

/* The work is that of a slice; what tensor parallel ranks send comes on top of what the slice does. */
static void check_slices(void (*draw)(struct random_job *, int))
{
    random_seed();
    for (int i = 0; i < JOBS / 2; i++) {
        struct random_job job, slice;
        struct dtp_program *program;
        struct dtp_program_totals totals;
        struct dtp_prediction closed;
        struct dtp_slice of;
        draw(&job, i);
        assert_int_equal(dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL), DTP_OK);
        dtp_program_sum(program, &totals);
        dtp_estimate_slice(&job.transformer, &job.cluster, &job.plan, &of);
        slice.transformer = of.transformer, slice.cluster = of.cluster, slice.plan = of.plan;
        check_work(&slice, &totals);
        dtp_closed_form(&job.transformer, &job.cluster, &job.plan, &closed);
        check_collectives(&job, &totals, &closed.communication);
        dtp_program_destroy(program);
    }
}

static void test_cut_work_and_traffic(void **state)
{
    (void)state;
    check_slices(draw_cut);
}

static void test_expert_work_and_traffic(void **state)
{
    (void)state;
    check_works(draw_experts);
}

/* Experts on ranks that share sequences, which divide them or have all of them. */
static void draw_shared_experts(struct random_job *job, int i)
{
    const uint32_t cp = i % 3 ? 2 : 4;
    for (int attempt = 0;; attempt++) {
        assert_true(attempt < 1000);
        random_executor_expert_job(job);
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        if (t->position == DTP_POSITION_LEARNED || t->position == DTP_POSITION_ALIBI)
            t->position = DTP_POSITION_ROPE, t->positions = 0;
        t->heads *= cp, t->kv_heads *= cp, t->sliding_window = t->sliding_window_pattern = 0;
        t->attention_sinks = t->qk_norm_wide = false;
        job->cluster = test_cluster(test_h200(), cp << i % 2, 8);
        plan.cp = cp, plan.cp_comm = i % 2 ? DTP_CP_A2A : DTP_CP_P2P;
        plan.ep = plan.ep > 1 ? cp : 1;
        t->experts = plan.ep > 1 ? cp * t->experts : t->experts;
        plan.executor.expert_room = 0;
        plan.executor.gradient_stream = plan.executor.update_in_backward = plan.executor.cuda_graph = false;
        plan.executor.gather_engine = plan.executor.reduce_engine = DTP_ENGINE_SM;
        if (random_executor_takes(job, &plan))
            return;
    }
}

static void test_shared_experts(void **state)
{
    uint32_t divided = 0;
    (void)state;
    random_seed();
    for (int i = 0; i < JOBS / 2; i++) {
        struct random_job job;
        struct dtp_program_totals totals;
        struct dtp_prediction closed;
        draw_shared_experts(&job, i);
        struct dtp_program *program = lowered(&job);
        dtp_program_sum(program, &totals);
        dtp_closed_form(&job.transformer, &job.cluster, &job.plan, &closed);
        check_collectives(&job, &totals, &closed.communication);
        check_equal(totals.device_to_host_bytes, closed.communication.device_to_host_bytes, &job);
        divided += job.plan.ep > 1;
        dtp_program_destroy(program);
    }
    assert_true(divided && draws_reach((int)divided, JOBS / 2, 15));
}

static void test_shared_adapters_arena(void **state)
{
    (void)state;
    check_arenas(random_executor_shared_adapters, 80, 6);
}

static void test_cut_adapters_arena(void **state)
{
    (void)state;
    check_arenas(random_executor_cut_adapters, 80, 6);
}

static void test_cut_adapters(void **state)
{
    (void)state;
    check_slices(random_executor_cut_adapters);
}

static void test_shared_adapters(void **state)
{
    (void)state;
    check_slices(random_executor_shared_adapters);
}

/* Experts that tensor parallel ranks divide as well, each for its rows: inside a group of theirs, all of it, or all of
 * the job's. */
static void draw_cut_experts(struct random_job *job, int i)
{
    const uint32_t tp = i % 3 ? 2 : 4, gpus = tp << i % 2, ep = i % 4 == 0 ? 2 : i % 4 < 3 ? tp : gpus;
    for (int attempt = 0;; attempt++) {
        assert_true(attempt < 1000);
        random_executor_expert_job(job);
        struct dtp_transformer *t = &job->transformer;
        struct dtp_plan plan = job->asked;
        t->heads *= tp, t->kv_heads *= tp, t->ffn *= tp, t->shared_expert_ffn *= tp;
        t->attention_sinks = t->qk_norm_wide = t->expert_bias = false;
        t->experts *= ep;
        job->cluster = test_cluster(test_h200(), gpus, 8);
        plan.tp = tp, plan.ep = ep, plan.sequence_parallel = true;
        plan.comm_hook = DTP_COMM_HOOK_NONE;
        plan.executor.expert_room = i % 5 ? 0 : 1.25;
        plan.executor.gradient_stream = plan.executor.update_in_backward = plan.executor.cuda_graph = false;
        plan.executor.gather_engine = plan.executor.reduce_engine = DTP_ENGINE_SM;
        if (random_executor_takes(job, &plan))
            return;
    }
}

static void test_cut_experts_arena(void **state)
{
    (void)state;
    check_arenas(draw_cut_experts, 80, 6);
}

static void test_cut_experts(void **state)
{
    (void)state;
    check_slices(draw_cut_experts);
}

static void test_latent_work_and_traffic(void **state)
{
    (void)state;
    check_works(draw_latent);
}

static void test_adapted_work_and_traffic(void **state)
{
    (void)state;
    check_works(draw_adapted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arena),
                                       cmocka_unit_test(test_optimized_arena),
                                       cmocka_unit_test(test_optimized_work_and_traffic),
                                       cmocka_unit_test(test_few_large_spans),
                                       cmocka_unit_test(test_work_and_traffic),
                                       cmocka_unit_test(test_narrow_arena),
                                       cmocka_unit_test(test_narrow_work_and_traffic),
                                       cmocka_unit_test(test_cut_arena),
                                       cmocka_unit_test(test_cut_work_and_traffic),
                                       cmocka_unit_test(test_adapted_arena),
                                       cmocka_unit_test(test_adapted_work_and_traffic),
                                       cmocka_unit_test(test_shared_adapters_arena),
                                       cmocka_unit_test(test_shared_adapters),
                                       cmocka_unit_test(test_cut_adapters_arena),
                                       cmocka_unit_test(test_cut_adapters),
                                       cmocka_unit_test(test_latent_arena),
                                       cmocka_unit_test(test_cut_experts_arena),
                                       cmocka_unit_test(test_cut_experts),
                                       cmocka_unit_test(test_latent_work_and_traffic),
                                       cmocka_unit_test(test_expert_arena),
                                       cmocka_unit_test(test_expert_work_and_traffic),
                                       cmocka_unit_test(test_shared_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
