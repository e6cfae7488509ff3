/* nanotron's lowering by hand: what rests, what a micro-step adds, what the last one and the step move; what it
 * refuses.
 */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "lib/lowered_job.h"

static const double psi = 6738415616.0; /* parameters of LLaMA-7B */

static struct dtp_plan nanotron_plan(enum dtp_strategy strategy, uint32_t accumulate)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_nanotron, plan.strategy = strategy, plan.accumulate = accumulate;
    return plan;
}

static struct dtp_program *lower(struct dtp_plan *plan, uint32_t gpus)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), gpus, 8);
    return lowered_plan(&t, &cluster, plan);
}

static double standing(const struct dtp_program *program, enum dtp_owner owner)
{
    double bytes = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++) {
        const struct dtp_buffer *b = &dtp_program_buffers(program)[i];
        bytes += b->persistent && b->owner == owner ? (double)b->bytes : 0;
    }
    return bytes;
}

/* 2 bytes a weight; sums of 4 and DDP's buckets of 2; master and two moments, 12. */
static void test_what_rests_under_ddp(void **state)
{
    (void)state;
    struct dtp_plan plan = nanotron_plan(DTP_DDP, 1);
    struct dtp_program *program = lower(&plan, 8);
    assert_true(standing(program, DTP_OWNER_PARAMS) == 2 * psi);
    assert_true(standing(program, DTP_OWNER_GRADS) == 6 * psi);
    assert_true(standing(program, DTP_OWNER_OPTIMIZER) == 12 * psi);
    dtp_program_destroy(program);
}

/* No DDP, so no buckets; an eighth of the optimizer's state, rounded up for each module at most. */
static void test_what_rests_under_zero1(void **state)
{
    (void)state;
    struct dtp_plan plan = nanotron_plan(DTP_ZERO1, 1);
    struct dtp_program *program = lower(&plan, 8);
    assert_true(standing(program, DTP_OWNER_PARAMS) == 2 * psi);
    assert_true(standing(program, DTP_OWNER_GRADS) == 4 * psi);
    assert_true(standing(program, DTP_OWNER_OPTIMIZER) == 12 * psi / 8);
    dtp_program_destroy(program);
}

/* Of three micro-steps two add .grad to the sums (reads 2 + 4, writes 4); the last one copies it into buckets (2 + 2),
 * adds these, and copies back. The sums, 4 bytes each, are all-reduced bucket by bucket, 16-bit gradients of 25 MiB: a
 * matrix of a layer fills one by itself. */
static void test_micro_steps_under_ddp(void **state)
{
    (void)state;
    struct dtp_plan plan = nanotron_plan(DTP_DDP, 3);
    struct dtp_program *program = lower(&plan, 8);
    struct dtp_program_totals totals;
    dtp_program_sum(program, &totals);
    assert_true(moved_by(program, DTP_OP_ACCUMULATE) == 3 * 10 * psi);
    assert_true(moved_by(program, DTP_OP_COPY_IN) - 3 * 32 * 2 * 3 * 4096 * 2 * 2048.0 == 4 * psi); /* but for qkv's */
    assert_true(moved_by(program, DTP_OP_COPY_OUT) == 4 * psi);
    assert_true(totals.sent_bytes[DTP_ALL_REDUCE] == 2 * 4 * psi * 7 / 8);
    assert_int_equal(count_of(program, DTP_OP_ALL_REDUCE), 1 + 32 * 4 + 1);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 0);
    dtp_program_destroy(program);
}

/* One all-reduce, behind all matmuls of the last backward, and one gather of 2 bytes a weight behind the update. */
static void test_zero1_reduces_and_gathers_once(void **state)
{
    (void)state;
    struct dtp_plan plan = nanotron_plan(DTP_ZERO1, 2);
    struct dtp_program *program = lower(&plan, 8);
    struct dtp_program_totals totals;
    size_t last_matmul = 0, reduce = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        enum dtp_op_kind kind = dtp_program_ops(program)[i].kind;
        last_matmul = kind == DTP_OP_MATMUL ? i : last_matmul;
        reduce = kind == DTP_OP_ALL_REDUCE ? i : reduce;
    }
    dtp_program_sum(program, &totals);
    assert_true(reduce > last_matmul);
    assert_int_equal(count_of(program, DTP_OP_ALL_REDUCE), 1);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 1);
    assert_true(totals.sent_bytes[DTP_ALL_REDUCE] == 2 * 4 * psi * 7 / 8);
    assert_true(totals.sent_bytes[DTP_ALL_GATHER] == 2 * psi * 7 / 8);
    dtp_program_destroy(program);
}

/* Norm 4, clipping 8, zeros 4 of all sums; the update 28 and the weight's 2, of which the refresh reads 4 more. */
static void test_step(void **state)
{
    (void)state;
    struct dtp_plan plan = nanotron_plan(DTP_DDP, 1);
    struct dtp_program *program = lower(&plan, 1);
    assert_true(moved_by(program, DTP_OP_SQUARE_SUM) == 4 * psi);
    assert_true(moved_by(program, DTP_OP_CLIP_SCALE) == 8 * psi);
    assert_true(moved_by(program, DTP_OP_ZERO) == 4 * psi);
    assert_true(moved_by(program, DTP_OP_OPTIMIZER) == 30 * psi);
    assert_true(count_of(program, DTP_OP_ALL_REDUCE) == 0);
    dtp_program_destroy(program);
}

/* Per logit: the cast 2 + 4, the loss 32, its backward 8, the cast back 4 + 2. The formulas count the same. */
static void test_loss(void **state)
{
    (void)state;
    struct dtp_plan plan = nanotron_plan(DTP_DDP, 1);
    struct dtp_program *program = lower(&plan, 1);
    double logits = 2048.0 * 32000;
    assert_true(moved_by(program, DTP_OP_LOSS) == 38 * logits);
    assert_true(moved_by(program, DTP_OP_LOSS_BACKWARD) == 8 * logits);
    dtp_program_destroy(program);
}

/* Where ranks of two share rows: forward gathers the input of qkv and of gate and up and scatters two sums; backward
 * gathers two results' gradients, those two inputs once more (tp_recompute_allgather), and scatters two sums. The head
 * gathers and gathers again, and scatters; the embedding scatters, and gathers its gradient. The terms of all sums are
 * NCCL's until it is done. */
static void test_tensor_parallel_gathers_again(void **state)
{
    (void)state;
    struct dtp_plan plan = nanotron_plan(DTP_ZERO1, 1);
    plan.tp = 2;
    struct dtp_program *program = lower(&plan, 2);
    size_t held = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        for (uint32_t k = 0; k < op->operand_count; k++)
            held += (dtp_program_operands(program, op)[k].access & DTP_DEFER) != 0;
    }
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 32 * 6 + 2 + 1);
    assert_int_equal(count_of(program, DTP_OP_REDUCE_SCATTER), 32 * 4 + 1 + 1);
    assert_int_equal(held, 32 * 4 + 1 + 1);
    dtp_program_destroy(program);
}

static void assert_refused(struct dtp_plan plan, struct dtp_transformer t, const char *key)
{
    static struct dtp_faults faults;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], key))
        fail_msg("'%s' does not name %s", faults.text[0], key);
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = nanotron_plan(DTP_FULL_SHARD, 1);
    assert_refused(plan, t, "strategy");
    plan = nanotron_plan(DTP_DDP, 1), plan.loss = DTP_LOSS_FUSED;
    assert_refused(plan, t, "loss");
    plan = nanotron_plan(DTP_DDP, 1), plan.attention = DTP_ATTENTION_MATH;
    assert_refused(plan, t, "attention");
    plan = nanotron_plan(DTP_DDP, 1), plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_MATMUL;
    assert_refused(plan, t, "checkpointing");
    plan = nanotron_plan(DTP_ZERO1, 1), plan.offload = DTP_OFFLOAD_OPTIMIZER;
    assert_refused(plan, t, "offload");
    plan = nanotron_plan(DTP_DDP, 1), plan.optimizer = DTP_ADAM8BIT;
    assert_refused(plan, t, "optimizer");
    plan = nanotron_plan(DTP_DDP, 1);
    assert_true(dtp_precision_recipe("fp32", &plan.precision));
    assert_refused(plan, t, "precision");
    plan = nanotron_plan(DTP_DDP, 1), t.position = DTP_POSITION_ALIBI;
    assert_refused(plan, t, "position");
    t = llama_7b(), t.parallel_block = DTP_PARALLEL_TWO_NORMS;
    assert_refused(plan, t, "parallel_block");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_rests_under_ddp),
        cmocka_unit_test(test_what_rests_under_zero1),
        cmocka_unit_test(test_micro_steps_under_ddp),
        cmocka_unit_test(test_zero1_reduces_and_gathers_once),
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_tensor_parallel_gathers_again),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
