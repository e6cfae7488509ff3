/* Checkpoints on the host (activation_offload), by hand: Llama-7B, 32 layers of 4096, a sequence of 2048 tokens, whose
 * residual stream of 16 bits is 2048 x 4096 x 2 = 16,777,216 bytes, 2^24, a copy as the host pins it. */
#include "bounds/bounds.h"
#include "closed/closed_form.h"
#include "job/bound_fit.h"
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/live_bytes.h"
#include "lib/memory_fixture.h"
#include "lib/random_adapters.h"

#define ROWS (UINT64_C(1) << 24)
#define DRAWN_JOBS RANDOM_DRAWS(200)

static struct dtp_plan carried(const struct dtp_runtime *runtime)
{
    struct dtp_plan plan = plan_of(runtime, DTP_FULL_SHARD, "bf16-mixed");
    plan.checkpointing = DTP_CHECKPOINT_FULL, plan.activation_offload = true;
    return plan;
}

static struct dtp_program *program_of(struct dtp_plan *plan)
{
    static struct dtp_faults faults;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster two = two_gpus();
    struct dtp_program *program;
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(plan, &t, &two, &faults) != DTP_OK ||
        dtp_lower(&t, &two, plan, 0, &program, &faults) != DTP_OK || dtp_program_verify(program, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return program;
}

/* Beside the kernels (torchtune) all inputs of layers go down and the final norm's, and all but the last layer's come
 * up; between them (unsloth) all layers' both ways. Of two micro-steps twice that. */
static void test_what_moves(void **state)
{
    (void)state;
    static const struct dtp_runtime *const runtimes[] = {&dtp_runtime_torch, &dtp_runtime_peft};
    for (uint64_t between = 0; between < 2; between++) {
        struct dtp_plan plan = carried(runtimes[between]);
        struct dtp_communication closed;
        struct dtp_program_totals totals;
        struct dtp_transformer t = llama_7b();
        struct dtp_cluster two = two_gpus();
        plan.accumulate = 2;
        struct dtp_program *program = program_of(&plan);
        dtp_program_sum(program, &totals);
        dtp_closed_form_communication(&t, &two, &plan, &closed);
        assert_int_equal(totals.device_to_host_bytes, 2 * ROWS * (between ? 32 : 33));
        assert_int_equal(totals.host_to_device_bytes, 2 * ROWS * (between ? 32 : 31));
        assert_int_equal(closed.device_to_host_bytes, totals.device_to_host_bytes);
        assert_int_equal(closed.host_to_device_bytes, totals.host_to_device_bytes);
        dtp_program_destroy(program);
        plan = carried(runtimes[between]);
        assert_int_equal(estimate(&t, &plan, &two).host_bytes, 2 * ROWS * (between ? 32 : 33));
    }
}

/* Most rows of the residual stream that are on the GPU at once as layers run forward, and as they run backward: inputs
 * of layers, the result of the one at work with them. */
static void count_standing(const struct dtp_program *program, int *forward, int *backward)
{
    bool back = false;
    int now = 0;
    *forward = *backward = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        const struct dtp_operand *operands = dtp_program_operands(program, op);
        back = back || op->kind == DTP_OP_UPLOAD;
        for (uint32_t j = 0; j < op->operand_count; j++) {
            const struct dtp_buffer *b = &dtp_program_buffers(program)[operands[j].buffer.index];
            if (b->space != DTP_SPACE_DEVICE || !b->name || strcmp(b->name, "block input") != 0)
                continue;
            now += operands[j].access & DTP_ALLOC ? 1 : 0;
            int *most = back ? backward : forward;
            *most = now > *most ? now : *most;
            now -= operands[j].access & DTP_FREE ? 1 : 0;
        }
    }
    assert_int_equal(now, 0);
}

/* Beside: three inputs and the result, then the one that came up. Between: the first one's, the one at work and its
 * result; then the input that came up and the result of a reentrant replay. Without, all 32 and the last one's result.
 */
static void test_what_stands(void **state)
{
    (void)state;
    int forward, backward;
    struct dtp_plan plan = carried(&dtp_runtime_torch);
    struct dtp_program *program = program_of(&plan);
    count_standing(program, &forward, &backward);
    dtp_program_destroy(program);
    assert_int_equal(forward, 4);
    assert_int_equal(backward, 1);
    plan = carried(&dtp_runtime_peft);
    program = program_of(&plan);
    count_standing(program, &forward, &backward);
    dtp_program_destroy(program);
    assert_int_equal(forward, 3);
    assert_int_equal(backward, 2);
    plan = carried(&dtp_runtime_torch), plan.activation_offload = false;
    program = program_of(&plan);
    count_standing(program, &forward, &backward);
    dtp_program_destroy(program);
    assert_int_equal(forward, 33);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const words[] = {"checkpointing",      "compile", "offload",
                                        "activation_offload", "fsdp1",   "RMSNorm is"};
    for (int way = 0; way < 6; way++) {
        struct dtp_transformer t = llama_7b();
        struct dtp_cluster two = two_gpus();
        struct dtp_plan plan = carried(&dtp_runtime_torch);
        struct dtp_faults faults = {0};
        plan.checkpointing = way == 0 ? DTP_CHECKPOINT_NONE : plan.checkpointing;
        plan.compile = way == 1, plan.offload = way == 2 ? DTP_OFFLOAD_PARAMS : DTP_OFFLOAD_NONE;
        plan.tp = way == 3 ? 2 : 1, plan.fsdp1 = way == 4, plan.norm_chain = way == 5;
        assert_int_equal(dtp_plan_resolve(&plan, &t, &two, &faults), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], words[way]))
            fail_msg("%d: %s", way, faults.text[0]);
    }
}

static bool draw(struct random_job *job)
{
    bool drawn = random_job(job) && (random_bool() ? random_peft(job) : random_adapters(job) || random_bool());
    job->plan.activation_offload = true, job->plan.checkpointing = DTP_CHECKPOINT_FULL;
    job->plan.compile = false, job->plan.fsdp1 = job->plan.fsdp1 && job->plan.runtime == &dtp_runtime_peft;
    job->plan.checkpoint_within = job->plan.checkpoint_within && job->plan.fsdp1;
    job->plan.offload = DTP_OFFLOAD_NONE;
    return drawn && dtp_plan_resolve(&job->plan, &job->transformer, &job->cluster, NULL) == DTP_OK;
}

/* The peak of a job's program less its bound. */
static double missing_bytes(const struct random_job *job, double *peak_bytes, double *surely_bytes)
{
    static struct dtp_faults faults;
    struct dtp_program *program;
    struct dtp_program_totals totals;
    struct dtp_communication closed;
    struct dtp_bounds bounds;
    struct dtp_live_bytes live;
    memset(&faults, 0, sizeof faults);
    if (dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &program, &faults) != DTP_OK ||
        dtp_program_verify(program, &faults) != DTP_OK)
        fail_msg("%s, %" PRIu64 " layers: %s", job->plan.runtime->name, job->transformer.layers, faults.text[0]);
    dtp_program_sum(program, &totals);
    dtp_closed_form_communication(&job->transformer, &job->cluster, &job->plan, &closed);
    assert_int_equal(totals.device_to_host_bytes, closed.device_to_host_bytes);
    assert_int_equal(totals.host_to_device_bytes, closed.host_to_device_bytes);
    dtp_bounds_of(&job->transformer, &job->cluster, &job->plan, NULL, &bounds);
    live_bytes_of(program, job->transformer.layers, &live);
    dtp_program_destroy(program);
    *peak_bytes = (double)live.phase_total_bytes[live.peak_phase], *surely_bytes = (double)bounds.least_bytes;
    return *peak_bytes - (double)bounds.memory_bytes;
}

/* Programs are legal, send what the formulas say, and have the bytes that miniatures of them have. Their bound leaves
 * out no more than 1 % or what that of the same job without does, which test_bounds holds, but for as few as there. */
static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    int beside = 0, adapted = 0, outside = 0;
    for (int plans = 0; plans < DRAWN_JOBS; plans++) {
        static struct dtp_faults faults;
        struct random_job job;
        struct dtp_memory memory;
        double peak_bytes, surely_bytes, unused[2];
        memset(&faults, 0, sizeof faults);
        while (!draw(&job))
            ;
        struct random_job stays = job;
        stays.plan.activation_offload = false;
        double left_out = missing_bytes(&stays, &unused[0], &unused[1]);
        double missing = missing_bytes(&job, &peak_bytes, &surely_bytes);
        outside += missing > fmax(left_out, 0.01 * peak_bytes) || missing < -0.2 * peak_bytes;
        if (missing > 0.03 * peak_bytes + fmax(left_out, 0) || surely_bytes > peak_bytes)
            fail_msg("%s: the bound leaves out %.0f bytes of %.0f", job.plan.runtime->name, missing, peak_bytes);
        if (dtp_estimate_memory(&job.transformer, &job.cluster, &job.plan, &memory, NULL, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        if (fabs((double)memory.allocated_peak_bytes / peak_bytes - 1) > 0.001)
            fail_msg("%s, %" PRIu64 " layers: miniatures are off", job.plan.runtime->name, job.transformer.layers);
        beside += job.plan.runtime == &dtp_runtime_torch, adapted += dtp_plan_adapts(&job.plan);
    }
    assert_true(outside <= 2);
    assert_true(beside > DRAWN_JOBS / 8 && beside < DRAWN_JOBS * 7 / 8 && adapted > DRAWN_JOBS / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_moves), cmocka_unit_test(test_what_stands),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_random_plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
