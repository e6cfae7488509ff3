/* Lowering: sequences a reader can check by hand, what is refused, and that every buffer that comes also goes. */
#include "lower/lower.h"
#include "runtime/runtimes.h"
#include "cost/op_cost.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/llama_7b.h"
#include "lib/lowered_job.h"
#include "lib/random_draws.h"
#include "lib/random_plans.h"
#include "closed/closed_form.h"

/* One GPU, one micro-step: 4 matmuls a block and the head forward, twice that backward. */
static void test_one_gpu(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_DDP, plan.fused_qkv = plan.fused_gate_up = true;
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    assert_int_equal(count_of(program, DTP_OP_MATMUL), 3 * (4 * 32 + 1));
    assert_int_equal(count_of(program, DTP_OP_ATTENTION), 32);
    assert_int_equal(count_of(program, DTP_OP_ATTENTION_BACKWARD), 32);
    assert_int_equal(count_of(program, DTP_OP_OPTIMIZER), 33);
    assert_int_equal(dtp_program_group_count(program), 0);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        assert_int_equal(dtp_program_ops(program)[i].stream, DTP_STREAM_COMPUTE);
        assert_int_equal(dtp_program_ops(program)[i].dependency_count, 0);
    }
    dtp_program_destroy(program);
}

/* Full checkpointing replays 3 of 4 matmuls: PyTorch stops at the last saved tensor. */
static void test_checkpointing_replays_three_matmuls(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_DDP, plan.fused_qkv = plan.fused_gate_up = true, plan.checkpointing = DTP_CHECKPOINT_FULL;
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    assert_int_equal(count_of(program, DTP_OP_MATMUL), 3 * (4 * 32 + 1) + 3 * 32);
    assert_int_equal(count_of(program, DTP_OP_ATTENTION), 2 * 32);
    dtp_program_destroy(program);
}

static const struct dtp_op *find(const struct dtp_program *program, enum dtp_op_kind kind, uint16_t layer, size_t from)
{
    for (size_t i = from; i < dtp_program_op_count(program); i++)
        if (dtp_program_ops(program)[i].kind == kind && dtp_program_ops(program)[i].layer == layer)
            return &dtp_program_ops(program)[i];
    fail_msg("no %s in layer %u", dtp_op_kind_text(kind), layer);
    return NULL;
}

/* clip_grad_norm_: all gradients are read, their norms become one number, of shards over all ranks, then all are read
 * and written, and then the optimizer steps. In fp32, 4 bytes each; FSDP2's shards on 8 GPUs are an eighth, no row is
 * padded. */
static void check_clipped(enum dtp_strategy strategy, uint32_t gpus)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), gpus, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = strategy, plan.clip_norm = 1;
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    double read = 0, scaled = 0, sums = 0;
    int phase = 0; /* 0 norms, 1 the number of all ranks, 2 products, 3 updates */
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        int now = op->kind == DTP_OP_SQUARE_SUM   ? op->demand->bytes > 0 ? 0 : 1
                  : op->kind == DTP_OP_CLIP_SCALE ? 2
                  : op->kind == DTP_OP_OPTIMIZER  ? 3
                                                  : phase;
        assert_true(now >= phase);
        phase = now;
        read += op->kind == DTP_OP_SQUARE_SUM ? op->demand->bytes : 0;
        scaled += op->kind == DTP_OP_CLIP_SCALE ? op->demand->bytes : 0;
        sums += op->kind == DTP_OP_ALL_REDUCE ? op->demand->sent_bytes : 0;
    }
    assert_int_equal(phase, 3);
    assert_true(read == 4.0 * 6738415616 / gpus && scaled == 2 * read);
    assert_true(sums == (gpus > 1 ? 2 * 7 : 0)); /* 4 bytes around a ring of 8, a byte each */
    dtp_program_destroy(program);
}

static void test_clipped_gradients(void **state)
{
    (void)state;
    check_clipped(DTP_DDP, 1);
    check_clipped(DTP_FULL_SHARD, 8);
}

/* Megatron adds each bf16 gradient to an fp32 sum in the matmul's output pass, to zeros the first time: 4 read and 4
 * written instead of 2. The sum is scaled once before it is reduced. The closed form counts the same kernels. */
static void test_megatron_adds_gradients_in_matmuls(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_a100(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_DDP, plan.runtime = &dtp_runtime_megatron, plan.accumulate = 2,
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    struct dtp_program_totals totals;
    struct dtp_prediction closed;
    double added = 0, scaled = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        added += op->kind == DTP_OP_MATMUL ? op->demand->bytes : 0;
        scaled += op->kind == DTP_OP_ACCUMULATE ? op->demand->bytes : 0;
    }
    double elements = (double)dtp_transformer_count(&t).total;
    assert_true(added == 2 * 6 * (double)dtp_transformer_count(&t).matmul);
    assert_true(scaled == 8 * elements);
    dtp_program_sum(program, &totals);
    dtp_closed_form(&t, &cluster, &plan, &closed);
    double counted = closed.time.host_launch_s / dtp_kernel_launch_s(dtp_program_execution(program)),
           optimizer_and_buckets = 60;
    assert_true(fabs((double)totals.kernels - counted) < optimizer_and_buckets + 0.02 * counted);
    dtp_program_destroy(program);
}

/* Of the operations of a kind: how many stand before the last matmul, and what all of them send. */
static size_t before_last_matmul(const struct dtp_program *program, enum dtp_op_kind kind, double *sent_bytes)
{
    size_t last = 0, count = 0;
    const struct dtp_op *op = dtp_program_ops(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        last = op[i].kind == DTP_OP_MATMUL ? i : last;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        count += op[i].kind == kind && i < last;
        *sent_bytes += op[i].kind == kind ? op[i].demand->sent_bytes : 0;
    }
    return count;
}

/* With overlap_grad_reduce and overlap_param_gather the same bytes are sent, weights before the first forward and
 * gradients as backward goes. 6.7e9 parameters are 169 buckets of 40e6, the last of them that with the embedding. */
static void test_megatron_overlaps(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_a100(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_ZERO1, plan.runtime = &dtp_runtime_megatron, plan.accumulate = 2;
    const enum dtp_op_kind kinds[] = {DTP_OP_ALL_GATHER, DTP_OP_REDUCE_SCATTER};
    for (size_t i = 0; i < 2; i++) {
        double behind = 0, beside = 0;
        plan.megatron.overlap = false;
        struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
        assert_int_equal(before_last_matmul(program, kinds[i], &behind), 0);
        dtp_program_destroy(program);
        plan.megatron.overlap = true;
        program = lowered_plan(&t, &cluster, &plan);
        size_t count = before_last_matmul(program, kinds[i], &beside);
        assert_in_range(count, kinds[i] == DTP_OP_ALL_GATHER ? 169 : 160, 169);
        assert_true(fabs(beside - behind) < 1e-9 * behind);
        dtp_program_destroy(program);
    }
}

/* FSDP2 in the order of its host: the gather of unit i-1 is issued after the copy-out of unit i in backward and before
 * the matmuls of i; the reduce-scatter of i+1 is awaited before the input of i is filled. */
static void test_fsdp_order(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    const struct dtp_op *ops = dtp_program_ops(program);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 2 * 33);
    assert_int_equal(count_of(program, DTP_OP_REDUCE_SCATTER), 33);
    size_t half = (size_t)(find(program, DTP_OP_ATTENTION_BACKWARD, 31, 0) - ops);
    const struct dtp_op *gather_9 = find(program, DTP_OP_ALL_GATHER, 9, half);
    const struct dtp_op *copy_10 = find(program, DTP_OP_COPY_OUT, 10, half),
                        *core_10 = find(program, DTP_OP_ATTENTION_BACKWARD, 10, half);
    const struct dtp_op *scatter_10 = find(program, DTP_OP_REDUCE_SCATTER, 10, half),
                        *scatter_11 = find(program, DTP_OP_REDUCE_SCATTER, 11, half);
    assert_true(copy_10 < gather_9 && gather_9 < core_10 && core_10 < scatter_10);
    const struct dtp_op *wait = scatter_10;
    while (wait->kind != DTP_OP_FREE || !wait->dependency_count)
        wait--;
    assert_true(wait > scatter_11);
    assert_ptr_equal(ops + dtp_program_dependencies(program, wait)->index, scatter_11);
    assert_int_equal(gather_9->group, scatter_10->group); /* one communicator: a FIFO */
    dtp_program_destroy(program);
}

/* Context parallel ranks: the embedding is a unit, and norm with head another, which is gathered once, behind the last
 * block's forward, and reduced before any block; the embedding comes back behind block 0's copy-out. There are
 * none of a tied head, which is one matrix with the embedding, nor of a root that is kept. */
static void test_fsdp_ends(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.cp = 2;
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    const struct dtp_op *ops = dtp_program_ops(program);
    assert_int_equal(count_of(program, DTP_OP_REDUCE_SCATTER), 34);
    size_t half = (size_t)(find(program, DTP_OP_ATTENTION_BACKWARD, 31, 0) - ops);
    const struct dtp_op *end[5], *end_of_program = ops + dtp_program_op_count(program);
    size_t ends = 0;
    for (const struct dtp_op *op = ops; op < end_of_program; op++)
        if ((op->kind == DTP_OP_ALL_GATHER || op->kind == DTP_OP_REDUCE_SCATTER) && op->layer == DTP_NO_LAYER) {
            assert_true(ends < 5);
            end[ends++] = op;
        }
    assert_int_equal(ends, 5);
    const double embedding = 2 * 4096.0 * 32000 / 8 * 7, norm = 2 * 4096.0 / 8 * 7; /* sent in bf16 */
    const struct dtp_op *gather_0 = find(program, DTP_OP_ALL_GATHER, 0, 0),
                        *forward_31 = find(program, DTP_OP_ATTENTION, 31, 0);
    assert_true(end[0] < gather_0 && forward_31 < end[1]);
    assert_true(end[0]->demand->sent_bytes == embedding && end[1]->demand->sent_bytes == embedding + norm);
    assert_true(end[2]->kind == DTP_OP_REDUCE_SCATTER && end[2] < ops + half);
    assert_true(end[2]->demand->sent_bytes == 2 * (embedding + norm)); /* in fp32 */
    const struct dtp_op *copy_0 = find(program, DTP_OP_COPY_OUT, 0, half),
                        *core_0 = find(program, DTP_OP_ATTENTION_BACKWARD, 0, half);
    assert_true(end[3]->kind == DTP_OP_ALL_GATHER && copy_0 < end[3] && end[3] < core_0 && core_0 < end[4]);
    dtp_program_destroy(program);
    struct dtp_plan kept = plan;
    kept.keep_root = true;
    assert_int_equal(dtp_plan_resolve(&kept, &t, &cluster, NULL), DTP_BAD_INPUT);
    t.tied_head = true;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, NULL), DTP_BAD_INPUT);
}

/* prefetch_depth 3: with the copy-out of unit 10, forward has asked for 13 and backward for 7. reshard_after_forward=2:
 * backward's gathers are in a group of 2, and wait for what wrote their part after forward. */
static void test_fsdp_depth_and_group(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.prefetch_depth = 3, plan.reshard_group = 2;
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    const struct dtp_op *ops = dtp_program_ops(program);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 2 * 33);
    const struct dtp_op *forward_10 = find(program, DTP_OP_ATTENTION, 10, 0),
                        *gather_13 = find(program, DTP_OP_ALL_GATHER, 13, 0),
                        *gather_14 = find(program, DTP_OP_ALL_GATHER, 14, 0);
    assert_true(gather_13 < forward_10 && forward_10 < gather_14);
    size_t half = (size_t)(find(program, DTP_OP_ATTENTION_BACKWARD, 31, 0) - ops);
    const struct dtp_op *backward_10 = find(program, DTP_OP_ATTENTION_BACKWARD, 10, half),
                        *again_7 = find(program, DTP_OP_ALL_GATHER, 7, half),
                        *again_6 = find(program, DTP_OP_ALL_GATHER, 6, half);
    assert_true(again_7 < backward_10 && backward_10 < again_6);
    assert_int_equal(dtp_program_groups(program)[gather_13->group].ranks, 8);
    assert_int_equal(dtp_program_groups(program)[again_7->group].ranks, 2);
    assert_true(again_7->demand->sent_bytes == gather_13->demand->sent_bytes / 7 * 4);
    dtp_program_destroy(program);
}

/* ZeRO-3 in the order of its host: the embedding and head are gathered apart, each of 7 matrices of 32 layers in some
 * fetch; compute waits for the copy-out or the gather itself; every micro-step reduces 14 buckets and the host waits
 * for the last. */
static void test_zero3(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = DTP_ZERO3, plan.accumulate = 2;
    plan.deepspeed.stage3_max_live_parameters = plan.deepspeed.stage3_max_reuse_distance =
        0; /* each matrix by itself, both ways */
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 2 * 2 * (7 * 32 + 2) + 33);
    assert_int_equal(count_of(program, DTP_OP_REDUCE_SCATTER), 2 * 14);
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_op *gather = find(program, DTP_OP_ALL_GATHER, 3, 0), *use = find(program, DTP_OP_MATMUL, 3, 0);
    assert_string_equal(gather->name, "q weight");
    assert_true(gather < use && gather->demand->sent_bytes == 2 * 4096.0 * 4096 / 8 * 7);
    const struct dtp_op *mark = use;
    while (mark->kind != DTP_OP_MARK)
        mark--;
    assert_ptr_equal(ops + dtp_program_dependencies(program, mark)->index, gather);
    dtp_program_destroy(program);
    plan.deepspeed.stage3_max_live_parameters = plan.deepspeed.stage3_max_reuse_distance = 1000000000;
    program = lowered_plan(&t, &cluster, &plan);
    size_t fetches = count_of(program, DTP_OP_ALL_GATHER) - 33;
    assert_true(fetches > 2 * (7 * 32 + 2) / 2 && fetches < 2 * 2 * (7 * 32 + 2));
    dtp_program_destroy(program);
}

/* Bytes alive after the step equal those before it: what is allocated is freed once, and never used outside its life.
 */
static void check_lives(const struct dtp_program *program)
{
    size_t count = dtp_program_buffer_count(program);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    unsigned char *lives = calloc(count, 1); /* 0 not yet, 1 alive, 2 gone */
    assert_non_null(lives);
    for (size_t i = 0; i < count; i++)
        lives[i] = buffers[i].persistent;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        const struct dtp_operand *operands = dtp_program_operands(program, op);
        for (uint32_t k = 0; k < op->operand_count; k++) {
            unsigned char *life = &lives[operands[k].buffer.index];
            if (operands[k].access & DTP_ALLOC) {
                assert_int_equal(*life, 0);
                *life = 1;
            }
            if (*life != 1)
                fail_msg("op %zu %s '%s' uses buffer '%s' (%u) outside its life", i, dtp_op_kind_text(op->kind),
                         op->name, buffers[operands[k].buffer.index].name, operands[k].buffer.index);
            if (operands[k].access & DTP_FREE)
                *life = 2;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (lives[i] != (buffers[i].persistent ? 1 : 2))
            fail_msg("buffer '%s' layer %u is never freed", buffers[i].name, buffers[i].layer);
    free(lives);
}

static void test_every_buffer_comes_and_goes(void **state)
{
    (void)state;
    random_seed();
    int lowered = 0;
    for (int i = 0; i < RANDOM_DRAWS(1500); i++) {
        struct random_job job;
        struct dtp_program *program;
        assert_true(random_job(&job));
        if (dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL) != DTP_OK)
            continue;
        check_lives(program);
        dtp_program_destroy(program);
        lowered++;
    }
    print_message("%d programs\n", lowered);
    assert_true(lowered > RANDOM_DRAWS(300));
}

static void test_refusals(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_program *program = NULL;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_OK);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 100, &program, &faults), DTP_BAD_INPUT);
    assert_null(program);
    assert_non_null(strstr(faults.text[0], "more than 100 operations"));
    plan.accumulate = 1000000;
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_BAD_INPUT);
    assert_null(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_gpu),
                                       cmocka_unit_test(test_checkpointing_replays_three_matmuls),
                                       cmocka_unit_test(test_clipped_gradients),
                                       cmocka_unit_test(test_megatron_adds_gradients_in_matmuls),
                                       cmocka_unit_test(test_megatron_overlaps),
                                       cmocka_unit_test(test_fsdp_order),
                                       cmocka_unit_test(test_zero3),
                                       cmocka_unit_test(test_fsdp_ends),
                                       cmocka_unit_test(test_fsdp_depth_and_group),
                                       cmocka_unit_test(test_every_buffer_comes_and_goes),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
