/* Pipelines and tensor parallel ranks under DeepSpeed: what its pipeline engine does beyond the schedule, counted by
 * hand: buffers that stand, copies and what is held, gradients reduced behind all passes; and AutoTP beside
 * Megatron-DeepSpeed's layers. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "lower/lower_set.h"
#include "program/live_runs.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/proven_set.h"
#include "lib/said.h"

static struct dtp_faults faults;

static struct dtp_plan divided(uint32_t tp, uint32_t pp, uint32_t micro_batches)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = dtp_runtime_find("deepspeed");
    plan.strategy = DTP_ZERO1;
    plan.tp = tp, plan.pp = pp, plan.accumulate = micro_batches;
    plan.sequence_parallel = false;
    plan.deepspeed.megatron_layers = tp > 1 && pp > 1;
    plan.deepspeed.reduce_bucket_size = 1000000;
    plan.sequence = 128;
    return plan;
}

static struct dtp_program_set lowered(const struct dtp_transformer *t, uint32_t gpus, struct dtp_plan *plan)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), gpus, gpus);
    return proven_set(t, &cluster, plan);
}

static void refused(struct dtp_plan plan, const char *words)
{
    struct dtp_transformer t = small_model(8);
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_said(&faults, words);
}

static double sent(const struct dtp_program *program, enum dtp_op_kind kind, const char *name)
{
    double bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bytes += op->kind == kind && (!name || strcmp(op->name, name) == 0) ? op->demand->sent_bytes : 0;
    }
    return bytes;
}

static uint64_t standing(const struct dtp_program *program, const char *name)
{
    uint64_t bytes = 0;
    for (size_t b = 0; b < dtp_program_buffer_count(program); b++) {
        const struct dtp_buffer *buffer = &dtp_program_buffers(program)[b];
        bytes += buffer->persistent && strcmp(buffer->name, name) == 0 ? buffer->bytes : 0;
    }
    return bytes;
}

/* The most buffers of a name at a time. */
static uint32_t most_alive(const struct dtp_program *program, const char *name)
{
    uint32_t now = 0, most = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        const struct dtp_operand *operand = dtp_program_operands(program, op);
        for (uint32_t k = 0; k < op->operand_count; k++) {
            if (strcmp(dtp_program_buffers(program)[operand[k].buffer.index].name, name) != 0)
                continue;
            now += (operand[k].access & DTP_ALLOC) != 0;
            most = now > most ? now : most;
            now -= (operand[k].access & DTP_FREE) != 0;
        }
    }
    return most;
}

static void test_all_are_legal(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 4; ranks++)
        for (uint32_t micro_batches = 1; micro_batches <= 2 * ranks + 1; micro_batches++)
            for (uint32_t data = 1; data <= 2; data++) {
                uint32_t tp = 1 + micro_batches % 2;
                struct dtp_transformer t = small_model(ranks + micro_batches % 3);
                struct dtp_plan plan = divided(tp, ranks, micro_batches);
                plan.checkpointing = micro_batches % 3 ? DTP_CHECKPOINT_NONE : DTP_CHECKPOINT_FULL;
                t.tied_head = micro_batches % 4 == 3;
                struct dtp_program_set set = lowered(&t, tp * ranks * data, &plan);
                for (uint32_t r = 0; r < ranks; r++)
                    expect_nothing_left(set.roles[r].program);
                dtp_program_set_release(&set);
            }
}

/* Four stages, six micro-batches: rank r has min(6, 4 - r) under way. Of what it receives one buffer stands each way; a
 * copy of each is kept until its gradient is sent, and another is worked on. */
static void test_pipe_buffers(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    struct dtp_plan plan = divided(1, 4, 6);
    struct dtp_program_set set = lowered(&t, 8, &plan);
    uint64_t rows = 2 * plan.sequence * t.hidden;
    for (uint32_t r = 0; r < 4; r++) {
        const struct dtp_program *program = set.roles[r].program;
        assert_int_equal(standing(program, "block input"), r == 0 ? 0 : rows);
        assert_int_equal(standing(program, "residual gradient"), r == 3 ? 0 : rows);
        assert_int_equal(count_ops(program, DTP_OP_COPY_IN, "received activations"), r == 0 ? 0 : 6);
        assert_int_equal(count_ops(program, DTP_OP_COPY_IN, "block input"), r == 0 ? 0 : 6);
        assert_int_equal(most_alive(program, "received activations"), r == 0 ? 0 : 4 - r);
        assert_int_equal(count_ops(program, DTP_OP_FREE, "held by the stage"), r == 3 ? 0 : 6);
    }
    dtp_program_set_release(&set);
}

/* Two data parallel ranks. A stage reduces once, behind its last pass and before the norm of all gradients is known: a
 * stage of two layers, 803,328 elements each, in two buckets of at most 10^6. */
static void test_reduces_behind(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    struct dtp_plan plan = divided(1, 4, 6);
    struct dtp_program_set set = lowered(&t, 8, &plan);
    const double layer = 4 * 256 * 256 + 3 * 256 * 704 + 2 * 256, end = 1024 * 256;
    for (uint32_t r = 0; r < 4; r++) {
        const struct dtp_program *program = set.roles[r].program;
        double elements = 2 * layer + (r == 0 ? end : r == 3 ? end + 256 : 0);
        bool reduces = false;
        assert_int_equal(sent(program, DTP_OP_ALL_REDUCE, "bucket"), 2 * elements);
        assert_int_equal(sent(program, DTP_OP_ALL_GATHER, NULL), elements);
        for (size_t i = 0; i < dtp_program_op_count(program); i++) {
            enum dtp_op_kind kind = dtp_program_ops(program)[i].kind;
            if (strcmp(dtp_program_ops(program)[i].name, "gradient norm") == 0)
                break;
            reduces = reduces || kind == DTP_OP_ALL_REDUCE;
            assert_false(reduces && (kind == DTP_OP_ATTENTION_BACKWARD || kind == DTP_OP_SEND));
        }
        assert_true(reduces);
        assert_true(r == 0 || r == 3 || count_ops(program, DTP_OP_ALL_REDUCE, "bucket") == 2);
    }
    dtp_program_set_release(&set);
}

/* Llama's block: two sums of [T, h] forward and two backward. Megatron's vocabulary adds one of the embedding's rows
 * and one of the head's input gradient; AutoTP leaves embedding, head and loss whole. T = 128, h = 256, bf16. */
static void test_tensor_parallel(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    const double sum = 2 * 0.5 * 128 * 256 * 2;
    for (uint32_t megatron = 0; megatron < 2; megatron++)
        for (uint32_t strategy = DTP_ZERO1; strategy <= DTP_ZERO2; strategy++) {
            struct dtp_plan plan = divided(2, 1, 3);
            struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
            plan.strategy = (enum dtp_strategy)strategy;
            plan.deepspeed.megatron_layers = megatron;
            struct dtp_program_set set = lowered(&t, 8, &plan);
            double total = 0;
            uint32_t sums = 0;
            const struct dtp_program *program = set.roles[0].program;
            for (size_t i = 0; i < dtp_program_op_count(program); i++) {
                const struct dtp_op *op = &dtp_program_ops(program)[i];
                if (op->stream != DTP_STREAM_TENSOR || op->demand->sent_bytes < sum / 2)
                    continue;
                sums++;
                total += op->demand->sent_bytes;
            }
            assert_int_equal(sums, 3 * (8 * 4 + 2 * megatron));
            assert_int_equal(total, 3 * (8 * 4 + 2 * megatron) * sum);
            uint64_t layer = (4 * 256 * 256 + 3 * 256 * 704) / 2 + 2 * 256;
            uint64_t root = (megatron ? 1 : 2) * 1024 * 256 + 256;
            assert_int_equal(standing(program, "params"), 2 * (8 * layer + root));
            struct dtp_prediction closed;
            dtp_closed_form(&t, &cluster, &plan, &closed);
            double reduced = sent(program, DTP_OP_ALL_REDUCE, "bucket");
            assert_int_equal(closed.communication.bytes[DTP_ALL_REDUCE], total + reduced);
            dtp_program_set_release(&set);
        }
}

/* Two stages of two ranks, three micro-batches of B = [128, 256] in bf16: each rank sends half of B there and half of
 * its gradient back, and gathers the other half, of which it sends its own to the other rank: B / 2 again. What stands
 * to be received into is half of B, and of the first stage's two micro-batches under way halves of results are kept,
 * which it gathers again for backward. One rank a stage sends all of B and gathers nothing. */
static void test_parts_between_stages(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    const double rows = 2 * 128 * 256;
    for (uint32_t tp = 1; tp <= 2; tp++) {
        struct dtp_plan plan = divided(tp, 2, 3);
        struct dtp_cluster cluster = test_cluster(test_h200(), 2 * tp, 2 * tp);
        struct dtp_program_set set = lowered(&t, 2 * tp, &plan);
        for (uint32_t r = 0; r < 2; r++) {
            const struct dtp_program *program = set.roles[r].program;
            const char *taken = r ? "activations" : "gradients";
            assert_int_equal(count_ops(program, DTP_OP_SEND, r ? "gradients" : "activations"), 3);
            assert_int_equal(sent(program, DTP_OP_SEND, r ? "gradients" : "activations"), 3 * rows / tp);
            assert_int_equal(sent(program, DTP_OP_RECV, taken), 3 * rows / tp);
            assert_int_equal(count_ops(program, DTP_OP_ALL_GATHER, taken), tp > 1 ? 3 : 0);
            assert_int_equal(sent(program, DTP_OP_ALL_GATHER, taken), tp > 1 ? 3 * rows / 2 : 0);
            assert_int_equal(standing(program, r ? "block input" : "residual gradient"), rows / tp);
            assert_int_equal(count_ops(program, DTP_OP_ALL_GATHER, "result"), tp > 1 && r == 0 ? 3 : 0);
            assert_int_equal(most_alive(program, "part of rows"), tp == 1 ? 0 : r ? 1 : 2);
            assert_int_equal(most_alive(program, "result again"), tp > 1 && r == 0);
            assert_int_equal(most_alive(program, "gathered rows"), tp > 1);
        }
        struct dtp_prediction closed;
        dtp_closed_form(&t, &cluster, &plan, &closed);
        assert_int_equal(closed.communication.bytes[DTP_SEND_RECV], 3 * 2 * rows / tp);
        assert_int_equal(closed.communication.bytes[DTP_ALL_GATHER], tp > 1 ? 3 * 3 * rows / 2 : 0);
        dtp_program_set_release(&set);
    }
}

/* By formulas too: the device idles in the launch of each kernel, collectives hide behind nothing. */
static void test_launch_blocking(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_prediction freely, waited;
    struct dtp_plan plan = divided(1, 1, 3);
    plan.strategy = DTP_ZERO2;
    plan.deepspeed.overlap_comm = true;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_OK);
    dtp_closed_form(&t, &cluster, &plan, &freely);
    plan.launch_blocking = true;
    dtp_closed_form(&t, &cluster, &plan, &waited);
    assert_true(freely.time.host_launch_s > 0);
    double added_s = waited.time.memory_bound_s - freely.time.memory_bound_s;
    assert_true(added_s > freely.time.host_launch_s * (1 - 1e-9) && added_s < freely.time.host_launch_s * (1 + 1e-9));
    assert_true(freely.time.exposed_communication_s < freely.time.communication_s);
    assert_true(waited.time.exposed_communication_s == waited.time.communication_s);
    plan = divided(1, 1, 3);
    plan.runtime = dtp_runtime_find("dtplan");
    plan.launch_blocking = true;
    refused(plan, "launch_blocking");
}

/* BF16_Optimizer, two data parallel ranks, three micro-steps: per element 2 bytes of weights, 2 of gradients, 4 of sums
 * and half of 12 stand; each backward zeroes the gradients, each weight's is added to what stands, each module's to the
 * sums; these go over the wire once, in bf16, as one. In a pipeline too, behind the passes. */
static void test_bf16_optimizer(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    const uint64_t layer = 4 * 256 * 256 + 3 * 256 * 704 + 2 * 256, end = 1024 * 256;
    for (uint32_t pp = 1; pp <= 2; pp++) {
        struct dtp_plan plan = divided(1, pp, 3);
        plan.deepspeed.bf16_optimizer = true;
        struct dtp_program_set set = lowered(&t, 2 * pp, &plan);
        for (uint32_t r = 0; r < pp; r++) {
            const struct dtp_program *program = set.roles[r].program;
            uint64_t modules = 8 / pp + 1, elements = 8 / pp * layer + (pp == 1 ? 2 * end + 256 : end + r * 256);
            uint64_t gradients = 0;
            for (size_t b = 0; b < dtp_program_buffer_count(program); b++) {
                const struct dtp_buffer *buffer = &dtp_program_buffers(program)[b];
                gradients += buffer->persistent && buffer->owner == DTP_OWNER_REDUCE ? buffer->bytes : 0;
            }
            assert_int_equal(standing(program, "params"), 2 * elements);
            assert_int_equal(gradients, 2 * elements);
            assert_int_equal(standing(program, "gradient sums"), 4 * elements);
            assert_int_equal(standing(program, "optimizer state"), 12 * elements / 2);
            assert_int_equal(count_ops(program, DTP_OP_ZERO, "gradients"), 3 * modules);
            assert_int_equal(count_ops(program, DTP_OP_ACCUMULATE, "gradient sums"), 3 * modules);
            assert_int_equal(count_ops(program, DTP_OP_ALL_REDUCE, NULL), 1);
            assert_int_equal(sent(program, DTP_OP_ALL_REDUCE, NULL), 2 * elements);
            assert_int_equal(sent(program, DTP_OP_ALL_GATHER, NULL), elements);
            expect_nothing_left(program);
        }
        dtp_program_set_release(&set);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_plan plan = divided(1, 2, 4);
    plan.strategy = DTP_ZERO2;
    refused(plan, "strategy: zero2 does not go with pp: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism "
                  "(PipelineEngine); use zero1");
    plan = divided(1, 2, 4);
    plan.deepspeed.overlap_comm = true;
    refused(plan, "deepspeed_overlap: does not go with pp");
    plan = divided(1, 2, 4);
    plan.checkpointing = DTP_CHECKPOINT_EVERY_N, plan.checkpoint_every = 2;
    refused(plan, "checkpointing: every-2 does not exist in PipelineModule");
    plan = divided(1, 2, 4);
    plan.schedule = DTP_SCHEDULE_ZB_H1;
    refused(plan, "schedule: zb-h1 is not modelled under runtime deepspeed, which runs 1f1b");
    plan = divided(1, 2, 4);
    plan.cp = 2, plan.cp_comm = DTP_CP_A2A;
    refused(plan, "cp: above 1 is not modelled together with tp or pp under runtime deepspeed; use 1");
    plan = divided(2, 2, 4);
    plan.deepspeed.megatron_layers = false;
    refused(plan, "set megatron_layers");
    plan = divided(2, 1, 4);
    plan.strategy = DTP_ZERO3;
    refused(plan, "tp: above 1 is not modelled with zero3 under runtime deepspeed; use zero1 or zero2");
    plan = divided(1, 1, 4);
    plan.deepspeed.bf16_optimizer = plan.deepspeed.overlap_comm = true;
    refused(plan, "bf16_optimizer: reduces behind the last backward, not beside it");
    plan = divided(1, 1, 4);
    plan.deepspeed.bf16_optimizer = true;
    assert_true(dtp_precision_recipe("fp16-mixed", &plan.precision));
    refused(plan, "bf16_optimizer: sums gradients of bf16 parameters; use precision bf16-mixed");
    plan = divided(2, 1, 4);
    plan.sequence_parallel = true;
    refused(plan, "sequence_parallel: true is not modelled under runtime deepspeed; leave it out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_legal),        cmocka_unit_test(test_pipe_buffers),
        cmocka_unit_test(test_reduces_behind),       cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_parts_between_stages), cmocka_unit_test(test_launch_blocking),
        cmocka_unit_test(test_bf16_optimizer),       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
