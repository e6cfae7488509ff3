/* Our executor's step programs: what each strategy must hold, a whole one to look at, and that all of them are legal.
 */
#include "lower/lower.h"
#include "runtime/runtimes.h"
#include "runtime/dtplan/lower_executor.h"
#include "program/program_text.h"
#include "program/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/golden.h"
#include "lib/lowered_job.h"
#include "lib/random_draws.h"
#include "lib/random_executor_plans.h"
#include "lib/schedules.h"

/* Two layers, grouped-query attention, SwiGLU. */
static struct dtp_transformer tiny(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 2, t.hidden = 64, t.heads = 4, t.kv_heads = 2, t.head_dim = 16, t.ffn = 128, t.vocab = 250;
    t.final_norm = true;
    return t;
}

static struct dtp_plan plan_of(enum dtp_strategy strategy)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_dtplan, plan.strategy = strategy;
    plan.sequence = 32, plan.micro_batch = 2, plan.executor.loss_chunk = 48;
    return plan;
}

static struct dtp_program *lower(const struct dtp_transformer *t, struct dtp_plan *plan, uint32_t gpus)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), gpus, gpus > 4 ? 4 : 8);
    return lowered_plan(t, &cluster, plan);
}

static void expect_golden(const char *name, struct dtp_plan plan, uint32_t gpus)
{
    struct dtp_transformer t = tiny();
    struct dtp_program *program = lower(&t, &plan, gpus);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(dtp_program_write_text(program, file), DTP_OK);
    fclose(file);
    golden_compare(name, text);
    free(text);
    dtp_program_destroy(program);
}

static void test_programs_to_look_at(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(DTP_DDP);
    plan.clip_norm = 1;
    expect_golden("step_one_gpu.txt", plan, 1);
    expect_golden("step_full_shard.txt", plan_of(DTP_FULL_SHARD), 4);
}

/* Each weight matrix is multiplied once forward and twice backward; the head in two chunks. */
static void test_one_gpu(void **state)
{
    (void)state;
    struct dtp_transformer t = tiny();
    struct dtp_plan plan = plan_of(DTP_FULL_SHARD); /* on one GPU the same as any other */
    struct dtp_program *program = lower(&t, &plan, 1);
    assert_int_equal(count_of(program, DTP_OP_MATMUL), 3 * (4 * 2 + 2));
    assert_int_equal(count_of(program, DTP_OP_OPTIMIZER), 4);
    assert_int_equal(count_of(program, DTP_OP_SQUARE_SUM), 0);
    assert_int_equal(dtp_program_group_count(program), 0);
    dtp_program_destroy(program);
    plan = plan_of(DTP_DDP), plan.checkpointing = DTP_CHECKPOINT_FULL, plan.executor.gradient_norm = true;
    program = lower(&t, &plan, 1);
    assert_int_equal(count_of(program, DTP_OP_MATMUL), 3 * (4 * 2 + 2) + 3 * 2);
    assert_int_equal(count_of(program, DTP_OP_SQUARE_SUM), 4);
    dtp_program_destroy(program);
    plan = plan_of(DTP_DDP), plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_MATMUL;
    program = lower(&t, &plan, 1);
    assert_int_equal(count_of(program, DTP_OP_MATMUL), 3 * (4 * 2 + 2));
    assert_int_equal(count_of(program, DTP_OP_NORM), 2 * 4 + 1);
    dtp_program_destroy(program);
    plan = plan_of(DTP_DDP), plan.checkpointing = DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    program = lower(&t, &plan, 1);
    assert_int_equal(count_of(program, DTP_OP_ATTENTION), 2 * 2);
    dtp_program_destroy(program);
}

/* Whether the operation at `later` waits for the one at `earlier` itself. */
static bool waits_for(const struct dtp_program *program, size_t later, size_t earlier)
{
    const struct dtp_op *op = &dtp_program_ops(program)[later];
    for (uint32_t i = 0; i < op->dependency_count; i++)
        if (dtp_program_dependencies(program, op)[i].index == earlier)
            return true;
    return false;
}

/* Four matmuls a block run on a stream of their own, with a workspace of its own. The second norm's backward waits for
 * the weight gradient that reads what it adds to, down's, and not for up's, which is issued in between; so does the
 * first norm's for the output's. */
static void test_gradient_stream(void **state)
{
    (void)state;
    struct dtp_transformer t = tiny();
    struct dtp_plan plan = plan_of(DTP_FULL_SHARD);
    plan.executor.gradient_stream = true;
    struct dtp_program *program = lower(&t, &plan, 4);
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t found = 0, last_read = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        if (ops[i].stream == DTP_STREAM_WEIGHT_GRADIENT) {
            const struct dtp_operand *operands = dtp_program_operands(program, &ops[i]);
            bool of_residual = !strncmp(ops[i].name, "down", 4) || !strncmp(ops[i].name, "output", 6);
            const char *workspace = dtp_program_buffers(program)[operands[ops[i].operand_count - 1].buffer.index].name;
            assert_string_equal(workspace, "weight gradient workspace");
            found++;
            last_read = of_residual ? i : last_read;
        }
        if (ops[i].kind != DTP_OP_NORM_BACKWARD || ops[i].layer == DTP_NO_LAYER)
            continue;
        size_t free_op = i - 1; /* what they read goes before */
        assert_int_equal(ops[free_op].kind, DTP_OP_FREE);
        assert_true(waits_for(program, free_op, last_read));
    }
    assert_int_equal(found, 4 * t.layers);
    dtp_program_destroy(program);
}

/* Collectives of a step of `layers` blocks and `k` micro-steps, by hand. */
static void expect_collectives(enum dtp_strategy strategy, uint32_t accumulate, bool sync, uint32_t gpus,
                               uint32_t group, size_t gathers, size_t scatters, size_t all_reduces)
{
    struct dtp_transformer t = tiny();
    t.layers = 5;
    struct dtp_plan plan = plan_of(strategy);
    plan.accumulate = accumulate, plan.accumulate_sync = sync, plan.shard_group = group;
    struct dtp_program *program = lower(&t, &plan, gpus);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), gathers);
    assert_int_equal(count_of(program, DTP_OP_REDUCE_SCATTER), scatters);
    assert_int_equal(count_of(program, DTP_OP_ALL_REDUCE), all_reduces);
    dtp_program_destroy(program);
}

/* Copy engines gather in a communicator of their own, so that gathers do not queue behind reductions; nothing else
 * changes. */
static void test_copy_engines_gather_apart(void **state)
{
    (void)state;
    struct dtp_transformer t = tiny();
    struct dtp_plan plan = plan_of(DTP_FULL_SHARD);
    plan.executor.gather_engine = DTP_ENGINE_COPY;
    struct dtp_program *program = lower(&t, &plan, 4);
    assert_int_equal(dtp_program_group_count(program), 2);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->group != DTP_NO_INDEX)
            assert_int_equal(op->group, op->kind == DTP_OP_ALL_GATHER);
    }
    dtp_program_destroy(program);
}

static size_t position_of(const struct dtp_program *program, enum dtp_op_kind kind, uint16_t layer, size_t from)
{
    for (size_t i = from; i < dtp_program_op_count(program); i++)
        if (dtp_program_ops(program)[i].kind == kind && dtp_program_ops(program)[i].layer == layer)
            return i;
    fail_msg("no %s in layer %u", dtp_op_kind_text(kind), layer);
    return 0;
}

static const struct dtp_operand *operand_of(const struct dtp_program *program, size_t op, enum dtp_role role)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_operand *operands = dtp_program_operands(program, &ops[op]);
    for (uint32_t i = 0; i < ops[op].operand_count; i++)
        if (operands[i].role == role)
            return &operands[i];
    fail_msg("operation %zu has no %s", op, dtp_role_text(role));
    return NULL;
}

/* Gradients of `precision` that copy engines exchange: each reduction is an all-to-all of the whole, (n-1)/n of which
 * is sent, into a buffer that the largest module fills, and the sum behind it, in `sum_bytes` an element. The first of
 * a step makes the shard, the others add to it. The whole goes when the exchange is done, whatever the sum does. */
static void expect_exchanges(const struct dtp_precision *precision, uint64_t sum_bytes)
{
    struct dtp_transformer t = tiny();
    t.layers = 5;
    struct dtp_plan plan = plan_of(DTP_ZERO2);
    plan.accumulate = 3, plan.executor.reduce_engine = DTP_ENGINE_COPY, plan.precision = *precision;
    struct dtp_program *program = lower(&t, &plan, 4);
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    size_t made = 0, added = 0;
    uint64_t most_bytes = 0, buffer_bytes = 0, gradient_bytes = dtp_dtype_bytes(precision->reduce);
    assert_int_equal(count_of(program, DTP_OP_ALL_TO_ALL), 3 * 7);
    assert_int_equal(count_of(program, DTP_OP_REDUCE_SCATTER) + count_of(program, DTP_OP_ACCUMULATE), 0);
    assert_int_equal(dtp_program_group_count(program), 2);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        if (ops[i].kind != DTP_OP_ALL_TO_ALL)
            continue;
        const struct dtp_operand *parts = operand_of(program, i, DTP_ROLE_RESULT),
                                 *whole = operand_of(program, i, DTP_ROLE_INPUT),
                                 *read = operand_of(program, i + 1, DTP_ROLE_INPUT),
                                 *shard = operand_of(program, i + 1, DTP_ROLE_RESULT);
        uint64_t shard_bytes = parts->bytes / 4 / gradient_bytes * sum_bytes;
        assert_int_equal(ops[i].group, 1);
        assert_int_equal(ops[i + 1].kind, DTP_OP_SUM_PARTS);
        assert_true(ops[i].stream == DTP_STREAM_REDUCE && ops[i + 1].stream == DTP_STREAM_REDUCE);
        assert_true(read->buffer.index == parts->buffer.index && read->bytes == parts->bytes);
        assert_int_equal(parts->bytes, buffers[whole->buffer.index].bytes);
        assert_int_equal(buffers[shard->buffer.index].bytes, shard_bytes);
        assert_true(ops[i].demand->sent_bytes == (double)parts->bytes * 3 / 4);
        bool adds = (shard->access & DTP_UPDATE) == DTP_UPDATE;
        assert_true(ops[i + 1].demand->bytes == (double)(parts->bytes + (adds ? 2 : 1) * shard_bytes));
        made += (shard->access & DTP_ALLOC) != 0;
        added += adds;
        most_bytes = parts->bytes > most_bytes ? parts->bytes : most_bytes;
        buffer_bytes = buffers[parts->buffer.index].bytes;
    }
    assert_int_equal(made, 7);
    assert_int_equal(added, 14);
    assert_int_equal(buffer_bytes, most_bytes);
    size_t exchange = position_of(program, DTP_OP_ALL_TO_ALL, 4, 0);
    size_t frees = position_of(program, DTP_OP_FREE, 2, exchange);
    assert_true(waits_for(program, frees, exchange));
    assert_true(frees < position_of(program, DTP_OP_ACTIVATION_BACKWARD, 2, 0));
    dtp_program_destroy(program);
}

/* Sums of bf16 gradients stay in fp32 where the optimizer has fp32 weights of its own. */
static void test_copy_engines_reduce(void **state)
{
    struct dtp_precision precision;
    (void)state;
    assert_true(dtp_precision_recipe("bf16-mixed", &precision));
    expect_exchanges(&precision, 4);
    precision.reduce = DTP_BF16;
    expect_exchanges(&precision, 4);
    assert_true(dtp_precision_recipe("bf16-pure", &precision));
    expect_exchanges(&precision, 2);
}

/* Which shards are wide: of copy engines' exchanges, sharded, with a master, read on the device. */
static void test_wide_sums(void **state)
{
    static const struct {
        enum dtp_strategy strategy;
        enum dtp_engine engine;
        enum dtp_offload offload;
        uint32_t gpus;
        const char *precision;
        bool wide;
    } cases[] = {
        {DTP_ZERO2, DTP_ENGINE_COPY, DTP_OFFLOAD_NONE, 4, "bf16-mixed", true},
        {DTP_HYBRID_SHARD, DTP_ENGINE_COPY, DTP_OFFLOAD_NONE, 4, "bf16-mixed", true},
        {DTP_ZERO2, DTP_ENGINE_SM, DTP_OFFLOAD_NONE, 4, "bf16-mixed", false},
        {DTP_ZERO2, DTP_ENGINE_COPY, DTP_OFFLOAD_OPTIMIZER, 4, "bf16-mixed", false},
        {DTP_FULL_SHARD, DTP_ENGINE_COPY, DTP_OFFLOAD_PARAMS, 4, "bf16-mixed", false},
        {DTP_ZERO2, DTP_ENGINE_COPY, DTP_OFFLOAD_NONE, 1, "bf16-mixed", false},
        {DTP_ZERO2, DTP_ENGINE_COPY, DTP_OFFLOAD_NONE, 4, "bf16", false},
        {DTP_ZERO2, DTP_ENGINE_COPY, DTP_OFFLOAD_NONE, 4, "bf16-pure", false},
        {DTP_ZERO2, DTP_ENGINE_COPY, DTP_OFFLOAD_NONE, 4, "fp32", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dtp_transformer t = tiny();
        struct dtp_cluster cluster = test_cluster(test_h200(), cases[i].gpus, 8);
        struct dtp_plan plan = plan_of(cases[i].strategy);
        struct dtp_executor_rules rules;
        assert_true(dtp_precision_recipe(cases[i].precision, &plan.precision));
        plan.precision.reduce = plan.precision.compute;
        plan.executor.reduce_engine = cases[i].engine, plan.offload = cases[i].offload;
        plan.shard_group = cases[i].strategy == DTP_HYBRID_SHARD ? 2 : 0;
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, NULL), DTP_OK);
        dtp_executor_rules(&t, &cluster, &plan, &rules);
        if (rules.wide_sums != cases[i].wide)
            fail_msg("case %zu: sums are %s", i, rules.wide_sums ? "wide" : "not wide");
    }
}

/* AdamW of each block stands in line behind the last reduction of its gradients, which lie in two shards by turns; the
 * edges' are updated at the step's end. Where replicas add theirs on a stream of their own, the reduction that writes a
 * shard anew waits for the update that reads it. */
static void expect_updates_behind(struct dtp_plan plan, uint32_t gpus, enum dtp_op_kind reduction,
                                  enum dtp_stream stream)
{
    struct dtp_transformer t = tiny();
    t.layers = 5, plan.executor.update_in_backward = true;
    struct dtp_program *program = lower(&t, &plan, gpus);
    const struct dtp_op *ops = dtp_program_ops(program);
    uint32_t shard[5];
    assert_int_equal(count_of(program, DTP_OP_OPTIMIZER), 7);
    for (uint16_t layer = 0; layer < 5; layer++) {
        size_t update = position_of(program, DTP_OP_OPTIMIZER, layer, 0);
        const struct dtp_operand *gradient = operand_of(program, update, DTP_ROLE_WEIGHT_GRADIENT);
        assert_int_equal(ops[update].stream, stream);
        assert_int_equal(ops[update - 1].kind, reduction);
        assert_int_equal(ops[update - 1].stream, stream);
        assert_int_equal(gradient->buffer.index, operand_of(program, update - 1, DTP_ROLE_RESULT)->buffer.index);
        assert_true(dtp_program_buffers(program)[gradient->buffer.index].persistent);
        shard[layer] = gradient->buffer.index;
        if (layer)
            position_of(program, DTP_OP_ATTENTION_BACKWARD, layer - 1, update); /* behind it: of the last micro-step */
        if (layer < 3 && stream == DTP_STREAM_REPLICATE)
            assert_true(waits_for(program, position_of(program, DTP_OP_REDUCE_SCATTER, layer, 0),
                                  position_of(program, DTP_OP_OPTIMIZER, layer + 2, 0)));
    }
    assert_true(shard[0] == shard[2] && shard[2] == shard[4] && shard[1] == shard[3] && shard[0] != shard[1]);
    for (size_t edges = 0, i = position_of(program, DTP_OP_OPTIMIZER, DTP_NO_LAYER, 0); edges < 2; edges++) {
        assert_int_equal(ops[i].stream, DTP_STREAM_COMPUTE);
        assert_true(i > position_of(program, DTP_OP_EMBEDDING_BACKWARD, DTP_NO_LAYER, 0));
        i = edges ? i : position_of(program, DTP_OP_OPTIMIZER, DTP_NO_LAYER, i + 1);
    }
    dtp_program_destroy(program);
}

/* On one rank the gradients of a block go with its update behind its backward: those of one block at a time stand, in
 * place of all five's. */
static void test_updates_alone(void **state)
{
    (void)state;
    struct dtp_transformer t = tiny();
    struct dtp_plan plan = plan_of(DTP_DDP);
    t.layers = 5, plan.executor.update_in_backward = true;
    struct dtp_program *behind = lower(&t, &plan, 1);
    assert_int_equal(count_of(behind, DTP_OP_OPTIMIZER), 7);
    for (uint16_t layer = 0; layer < 5; layer++) {
        size_t update = position_of(behind, DTP_OP_OPTIMIZER, layer, 0);
        assert_int_equal(dtp_program_ops(behind)[update].stream, DTP_STREAM_COMPUTE);
        assert_int_equal(dtp_program_ops(behind)[update - 1].kind, DTP_OP_NORM_BACKWARD);
        assert_int_equal(dtp_program_ops(behind)[update - 1].layer, layer);
        assert_true(operand_of(behind, update, DTP_ROLE_WEIGHT_GRADIENT)->access & DTP_FREE);
    }
    dtp_program_destroy(behind);
}

static void test_updates_in_backward(void **state)
{
    (void)state;
    struct dtp_plan plan = plan_of(DTP_FULL_SHARD);
    expect_updates_behind(plan, 4, DTP_OP_REDUCE_SCATTER, DTP_STREAM_REDUCE);
    plan.executor.reduce_engine = DTP_ENGINE_COPY;
    expect_updates_behind(plan, 4, DTP_OP_SUM_PARTS, DTP_STREAM_REDUCE);
    expect_updates_behind(plan_of(DTP_HYBRID_SHARD), 8, DTP_OP_ALL_REDUCE, DTP_STREAM_REPLICATE);
    plan = plan_of(DTP_ZERO1), plan.accumulate = 3, plan.executor.gradient_stream = true;
    expect_updates_behind(plan, 4, DTP_OP_REDUCE_SCATTER, DTP_STREAM_REDUCE);
}

/* 7 modules. A ring of two: the blocks at the turns stay, so full_shard gathers 5 forward, 3 backward, 3 and 3 in the
 * second micro-step, and embedding and head in each. */
static void test_collectives(void **state)
{
    (void)state;
    expect_collectives(DTP_DDP, 1, false, 4, 0, 0, 0, 7);
    expect_collectives(DTP_DDP, 3, false, 4, 0, 0, 0, 7);
    expect_collectives(DTP_DDP, 3, true, 4, 0, 0, 0, 21);
    expect_collectives(DTP_ZERO1, 2, false, 4, 0, 7, 7, 0);
    expect_collectives(DTP_ZERO2, 2, false, 4, 0, 7, 14, 0);
    expect_collectives(DTP_SHARD_GRAD_OP, 2, false, 4, 0, 7, 7, 0);
    expect_collectives(DTP_FULL_SHARD, 1, false, 4, 0, 5 + 3 + 2, 7, 0);
    expect_collectives(DTP_FULL_SHARD, 2, false, 4, 0, 5 + 3 + 3 + 3 + 4, 7, 0);
    expect_collectives(DTP_ZERO3, 2, true, 4, 0, 5 + 3 + 3 + 3 + 4, 14, 0);
    expect_collectives(DTP_HYBRID_SHARD, 1, false, 8, 4, 5 + 3 + 2, 7, 7);
    expect_collectives(DTP_ZERO1, 1, false, 8, 2, 7, 7, 7);
}

/* full_shard, depth 1: block 3 is gathered when block 2 begins, into the slot of block 1, and only the first
 * matmul-free operation that reads it waits; the reduce-scatter of block 4 runs while block 3 computes, and block 2 may
 * not write gradients before it is done. */
static void test_overlap(void **state)
{
    (void)state;
    struct dtp_transformer t = tiny();
    t.layers = 5;
    struct dtp_plan plan = plan_of(DTP_FULL_SHARD);
    struct dtp_program *program = lower(&t, &plan, 4);
    size_t gather = position_of(program, DTP_OP_ALL_GATHER, 3, 0), norm = position_of(program, DTP_OP_NORM, 3, 0);
    size_t before = position_of(program, DTP_OP_NORM, 2, 0);
    assert_true(gather < before && waits_for(program, norm, gather));
    assert_true(waits_for(program, gather, before - 2)); /* block 1's last operation, in front of the gather */
    size_t scatter = position_of(program, DTP_OP_REDUCE_SCATTER, 4, 0);
    size_t frees = position_of(program, DTP_OP_FREE, 2, scatter);
    assert_true(waits_for(program, frees, scatter));
    assert_true(frees < position_of(program, DTP_OP_ACTIVATION_BACKWARD, 2, 0));
    dtp_program_destroy(program);
}

static void test_find_and_arena(void **state)
{
    (void)state;
    struct dtp_transformer t = tiny();
    struct dtp_plan plan = plan_of(DTP_DDP);
    plan.accumulate = 3;
    struct dtp_program *program = lower(&t, &plan, 1);
    struct dtp_executor_map map;
    struct dtp_executor_arena arena;
    assert_int_equal(dtp_executor_find(program, &map, NULL), DTP_OK);
    assert_int_equal(map.module_count, 4);
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    for (uint64_t m = 0; m < 4; m++)
        for (int s = 0; s <= DTP_EXECUTOR_MOMENT2; s++) {
            const struct dtp_buffer *b = &buffers[map.module[m][s].index];
            assert_int_equal(b->layer, m == 1 || m == 2 ? m - 1 : DTP_NO_LAYER);
            assert_int_equal(b->owner, s == DTP_EXECUTOR_WEIGHTS ? DTP_OWNER_PARAMS : DTP_OWNER_OPTIMIZER);
        }
    assert_int_equal(map.module[1][DTP_EXECUTOR_SCALES1].index, DTP_NO_INDEX); /* of moments in 8 bits */
    assert_string_equal(buffers[map.module[0][DTP_EXECUTOR_MASTER].index].name, "embedding master");
    assert_int_equal(buffers[map.buffer[DTP_CONTENT_HOST_BATCH].index + 2].micro_step, 2);
    assert_int_equal(buffers[map.buffer[DTP_CONTENT_BATCH].index + 1].micro_step, 1);
    assert_int_equal(map.buffer[DTP_CONTENT_PARTIALS].index, DTP_NO_INDEX);
    assert_int_equal(dtp_executor_arena_make(program, &arena, NULL), DTP_OK);
    assert_int_equal(arena.host_bytes, 3 * 1536 + 2 * 512); /* batches, scalars, results */
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        assert_true(arena.offset_bytes[i] + buffers[i].bytes <=
                    (buffers[i].space == DTP_SPACE_HOST ? arena.host_bytes : arena.device_bytes));
    dtp_executor_arena_release(&arena);
    dtp_executor_map_release(&map);
    dtp_program_destroy(program);
}

/* Full bf16 weights of a block go up for forward and for backward (two stay at the turn), gradients come down once, and
 * the update of a block is issued before the backward of the block below it. */
static void test_offload(void **state)
{
    (void)state;
    struct dtp_transformer t = tiny();
    t.layers = 5;
    struct dtp_plan plan = plan_of(DTP_ZERO1);
    plan.offload = DTP_OFFLOAD_OPTIMIZER;
    struct dtp_program *program = lower(&t, &plan, 4);
    assert_int_equal(count_of(program, DTP_OP_HOST_OPTIMIZER), 7);
    assert_int_equal(count_of(program, DTP_OP_OPTIMIZER), 0);
    assert_int_equal(count_of(program, DTP_OP_DOWNLOAD), 7 + 1);
    assert_int_equal(count_of(program, DTP_OP_UPLOAD), 7 + 2);
    size_t update = position_of(program, DTP_OP_HOST_OPTIMIZER, 4, 0);
    assert_true(update < position_of(program, DTP_OP_ATTENTION_BACKWARD, 3, 0));
    dtp_program_destroy(program);
    plan = plan_of(DTP_FULL_SHARD), plan.offload = DTP_OFFLOAD_PARAMS, plan.clip_norm = 1;
    for (uint32_t gpus = 1; gpus <= 4; gpus += 3) {
        plan.shard_group = 0;
        program = lower(&t, &plan, gpus);
        assert_int_equal(count_of(program, DTP_OP_UPLOAD), 5 + 3 + 2 + 2);
        assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), gpus > 1 ? 5 + 3 + 2 : 0);
        size_t norm = position_of(program, DTP_OP_CLIP_SCALE, DTP_NO_LAYER, 0);
        assert_true(position_of(program, DTP_OP_HOST_OPTIMIZER, 4, 0) > norm);
        for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
            if (dtp_program_buffers(program)[i].owner == DTP_OWNER_OPTIMIZER)
                assert_int_equal(dtp_program_buffers(program)[i].space, DTP_SPACE_HOST);
        dtp_program_destroy(program);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    struct dtp_transformer t = tiny();
    struct dtp_plan plan = plan_of(DTP_DDP);
    struct dtp_program *program = NULL;
    t.norm_without_weight = true;
    plan.attention = DTP_ATTENTION_MATH;
    assert_true(dtp_precision_recipe("fp16-mixed", &plan.precision));
    plan.precision.params = plan.precision.master = DTP_FP16;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_OK);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_BAD_INPUT);
    assert_null(program);
    assert_int_equal(faults.count, 3);
    assert_non_null(strstr(faults.text[0], "has no step program under runtime dtplan"));
}

/* What fp8 is not tested with, each by its name. */
static void test_refusals_of_fp8(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 8);
    struct dtp_transformer t = tiny();
    struct dtp_plan plan = plan_of(DTP_DDP);
    struct dtp_program *program = NULL;
    static const char *const keys[] = {"parallel_block", "gradient_stream"};
    t.parallel_block = DTP_PARALLEL_ONE_NORM;
    plan.executor.gradient_stream = true;
    assert_true(dtp_precision_recipe("fp8-tensorwise", &plan.precision));
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_OK);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_BAD_INPUT);
    assert_null(program);
    assert_int_equal(faults.count, 2);
    for (size_t i = 0; i < 2; i++)
        assert_non_null(strstr(faults.text[i], keys[i]));
}

static void fail_with(const struct random_job *job, const struct dtp_faults *faults)
{
    random_executor_describe(job);
    for (size_t i = 0; i < faults->count && i < DTP_FAULTS_KEPT; i++)
        print_error("%s\n", faults->text[i]);
    fail();
}

static void test_narrow_plans_verify(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    random_seed();
    for (int i = 0; i < RANDOM_DRAWS(300); i++) {
        struct random_job job;
        struct dtp_program *program;
        faults = (struct dtp_faults){0};
        random_executor_narrow_job(&job, i);
        if (dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, &faults) != DTP_OK ||
            dtp_program_verify(program, &faults) != DTP_OK)
            fail_with(&job, &faults);
        dtp_program_destroy(program);
    }
}

static void test_random_plans_verify(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    random_seed();
    for (int i = 0; i < RANDOM_DRAWS(1500); i++) {
        struct random_job job;
        struct dtp_program *program;
        faults = (struct dtp_faults){0};
        assert_true(random_executor_job(&job));
        if (dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, &faults) != DTP_OK ||
            dtp_program_verify(program, &faults) != DTP_OK)
            fail_with(&job, &faults);
        dtp_program_destroy(program);
    }
}

/* At the arena's addresses, in random orders that the rules allow: every operation reads what it should. */
static void test_arenas_survive_any_order(void **state)
{
    (void)state;
    random_seed();
    for (int i = 0; i < RANDOM_DRAWS(60); i++) {
        struct random_job job;
        struct dtp_program *program;
        struct dtp_placement placement;
        assert_true(random_executor_job(&job));
        if (job.transformer.layers > 3 || job.plan.accumulate > 2)
            continue;
        assert_int_equal(dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL), DTP_OK);
        assert_int_equal(dtp_program_place_tight(program, &placement, NULL), DTP_OK);
        if (schedules_misread(program, &placement, 4, (uint64_t)i)) {
            random_executor_describe(&job);
            fail_msg("an operation reads bytes that another has overwritten");
        }
        dtp_placement_release(&placement);
        dtp_program_destroy(program);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs_to_look_at),
                                       cmocka_unit_test(test_one_gpu),
                                       cmocka_unit_test(test_gradient_stream),
                                       cmocka_unit_test(test_collectives),
                                       cmocka_unit_test(test_copy_engines_gather_apart),
                                       cmocka_unit_test(test_copy_engines_reduce),
                                       cmocka_unit_test(test_wide_sums),
                                       cmocka_unit_test(test_updates_in_backward),
                                       cmocka_unit_test(test_updates_alone),
                                       cmocka_unit_test(test_overlap),
                                       cmocka_unit_test(test_arenas_survive_any_order),
                                       cmocka_unit_test(test_offload),
                                       cmocka_unit_test(test_find_and_arena),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_refusals_of_fp8),
                                       cmocka_unit_test(test_narrow_plans_verify),
                                       cmocka_unit_test(test_random_plans_verify)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
