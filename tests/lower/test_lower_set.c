/* Programs of pipelines: each is proved as a set for a grid of ranks, micro-batches and chunks; what the stages compute
 * adds up to the model's; what is sent, and how many micro-batches a stage keeps, is what the schedule says. */
#include "lower/lower_set.h"
#include "program/live_runs.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "lib/proven_set.h"

static struct dtp_faults faults;

static struct dtp_plan pipeline(uint32_t ranks, uint32_t micro_batches, uint32_t chunks)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = dtp_runtime_find("megatron");
    plan.strategy = DTP_DDP;
    plan.pp = ranks, plan.accumulate = micro_batches, plan.virtual_stages = chunks;
    plan.sequence = 128;
    return plan;
}

/* Every schedule, with ranks, micro-batches and chunks that it knows; tied heads, sharded state and replays among them.
 */
static void test_all_are_legal(void **state)
{
    uint32_t legal[DTP_SCHEDULE_COUNT] = {0};
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        for (uint32_t ranks = 2; ranks <= 5; ranks++)
            for (uint32_t micro_batches = 1; micro_batches <= 2 * ranks + 2; micro_batches++)
                for (uint32_t chunks = 1; chunks <= 3; chunks++) {
                    struct dtp_schedule_shape shape = {(enum dtp_schedule_kind)kind, ranks, micro_batches, chunks, 0};
                    struct dtp_transformer t = small_model(ranks * chunks + micro_batches % 2);
                    struct dtp_cluster cluster = test_cluster(test_h200(), 2 * ranks, 2);
                    struct dtp_plan plan = pipeline(ranks, micro_batches, chunks);
                    if (!(plan.runtime->schedules & 1u << kind) || (kind == DTP_SCHEDULE_INTERLEAVED && chunks == 1) ||
                        dtp_schedule_resolve(&shape, NULL) != DTP_OK)
                        continue;
                    plan.schedule = (enum dtp_schedule_kind)kind;
                    plan.strategy = ranks % 2 ? DTP_DDP : DTP_ZERO1;
                    plan.checkpointing = chunks == 2 ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE;
                    t.tied_head = micro_batches % 2;
                    if (micro_batches % 3 == 0)
                        plan.tp = 2, plan.sequence_parallel = false, plan.megatron.scatter_gather = true;
                    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
                    assert_int_equal(set.role_count, ranks);
                    assert_int_equal(dtp_program_set_ranks(&set), 2 * ranks);
                    dtp_program_set_release(&set);
                    legal[kind]++;
                }
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        if (pipeline(2, 1, 1).runtime->schedules & 1u << kind && legal[kind] < 4)
            fail_msg("%s: %u combinations", dtp_schedule_row((enum dtp_schedule_kind)kind)->word, legal[kind]);
}

/* Under PyTorch, of stages whose first layers have experts where the model's are dense, and of such that take turns. */
static void test_experts_behind_dense_layers(void **state)
{
    (void)state;
    for (uint64_t step = 1; step <= 2; step++)
        for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
            struct dtp_transformer t = small_model(3 * (uint64_t)ranks);
            struct dtp_cluster cluster = test_cluster(test_h200(), 4 * ranks, 4);
            struct dtp_plan plan = dtp_plan_default();
            t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192;
            t.dense_layers = step == 1 ? 2 : 0, t.expert_layer_step = step == 1 ? 0 : 2;
            plan.runtime = dtp_runtime_find("torch"), plan.strategy = DTP_FULL_SHARD;
            plan.pp = ranks, plan.ep = 2, plan.accumulate = ranks, plan.sequence = 128;
            struct dtp_program_set set = proven_set(&t, &cluster, &plan);
            assert_int_equal(set.role_count, ranks);
            dtp_program_set_release(&set);
        }
}

/* Two tensor parallel ranks send half of the stream each, 1 x 128 x 256 x 2 bytes, and gather it where it arrives: 3
 * micro-batches over one boundary, both ways. */
static void test_scattered_sends(void **state)
{
    const double half = 128 * 256 * 2 / 2.0;
    struct dtp_transformer t = small_model(2);
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
    struct dtp_plan plan = pipeline(2, 3, 1);
    size_t sends = 0, gathers = 0;
    (void)state;
    plan.tp = 2, plan.sequence_parallel = false, plan.megatron.scatter_gather = true;
    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
    for (uint32_t r = 0; r < set.role_count; r++) {
        const struct dtp_op *ops = dtp_program_ops(set.roles[r].program);
        for (uint32_t i = 0; i < dtp_program_op_count(set.roles[r].program); i++) {
            bool stream = ops[i].demand->sent_bytes == half;
            sends += ops[i].kind == DTP_OP_SEND && stream;
            gathers += ops[i].kind == DTP_OP_ALL_GATHER && stream;
        }
    }
    assert_int_equal(sends, 2 * 3);
    assert_int_equal(gathers, 2 * 3);
    dtp_program_set_release(&set);
}

/* Stages together compute what one rank with the whole model does; each boundary is crossed by every micro-batch in
 * both ways. */
static void test_stages_add_up_to_the_model(void **state)
{
    (void)state;
    for (uint32_t chunks = 1; chunks <= 2; chunks++) {
        struct dtp_transformer t = small_model(8);
        struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
        struct dtp_plan plan = pipeline(4, 8, chunks), whole = pipeline(1, 8, 1);
        plan.checkpointing = whole.checkpointing = DTP_CHECKPOINT_FULL;
        struct dtp_program_set set = proven_set(&t, &cluster, &plan), one = proven_set(&t, &cluster, &whole);
        struct dtp_program_totals sum = {0}, of_one;
        dtp_program_sum(one.roles[0].program, &of_one);
        uint64_t rows = 2 * plan.sequence * t.hidden, sent = 2 * (4 * chunks - 1) * 8 * rows;
        uint64_t norms = 2 * 3 * 4; /* up and down a tree of four */
        for (uint32_t r = 0; r < set.role_count; r++) {
            struct dtp_program_totals of_role;
            dtp_program_sum(set.roles[r].program, &of_role);
            sum.matmul_flops += of_role.matmul_flops;
            sum.attention_flops += of_role.attention_flops;
            sum.recompute_flops += of_role.recompute_flops;
            sum.sent_bytes[DTP_SEND_RECV] += of_role.sent_bytes[DTP_SEND_RECV];
        }
        assert_true(sum.matmul_flops == of_one.matmul_flops);
        assert_true(sum.attention_flops == of_one.attention_flops);
        assert_true(sum.recompute_flops == of_one.recompute_flops && sum.recompute_flops > 0);
        assert_int_equal(sum.sent_bytes[DTP_SEND_RECV], sent + norms); /* once, where they are sent */
        dtp_program_set_release(&set);
        dtp_program_set_release(&one);
    }
}

static uint32_t deferred_frees(const struct dtp_program_set *set)
{
    uint32_t deferred = 0;
    for (uint32_t r = 0; r < set->role_count; r++) {
        const struct dtp_program *program = set->roles[r].program;
        for (size_t i = 0; i < dtp_program_op_count(program); i++) {
            const struct dtp_op *op = &dtp_program_ops(program)[i];
            for (uint32_t k = 0; k < op->operand_count; k++)
                deferred += (dtp_program_operands(program, op)[k].access & DTP_DEFER) != 0;
        }
    }
    return deferred;
}

/* What a stage sends, and under zero2 each chunk's whole gradients, waits for the allocator to see that done; with
 * TORCH_NCCL_AVOID_RECORD_STREAMS nothing does. Each rank of 2 sends all its forwards of 2 chunks but those of the last
 * stage, 2 x 2 x 4 - 4, as many gradients, and reduces 2 chunks: 12 + 12 + 4 deferred frees. */
static void test_what_waits_for_the_allocator(void **state)
{
    (void)state;
    for (int avoids = 0; avoids < 2; avoids++) {
        struct dtp_transformer t = small_model(8);
        struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
        struct dtp_plan plan = pipeline(2, 4, 2);
        plan.strategy = DTP_ZERO2, plan.avoid_record_streams = avoids;
        struct dtp_program_set set = proven_set(&t, &cluster, &plan);
        assert_int_equal(deferred_frees(&set), avoids ? 0 : 12 + 12 + 4);
        dtp_program_set_release(&set);
    }
}

static uint64_t most_activations(const struct dtp_program *program, uint64_t layers)
{
    struct dtp_live_runs runs = {.run = NULL};
    struct dtp_live_bytes live;
    assert_int_equal(dtp_live_runs_of(program, &runs, &faults), DTP_OK);
    dtp_live_bytes_sum(&runs, layers, &live);
    dtp_live_runs_release(&runs);
    return live.most_bytes[DTP_OWNER_ACTIVATIONS];
}

/* 1F1B: a stage keeps p, p - 1, ... 1 micro-batches. Stages in the middle differ in nothing else, and their peak beside
 * what is kept is that of one micro-batch. */
static void test_kept_micro_batches(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(24);
    struct dtp_cluster cluster = test_cluster(test_h200(), 6, 6);
    struct dtp_plan plan = pipeline(6, 12, 1);
    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
    uint64_t of[6];
    for (uint32_t r = 0; r < 6; r++)
        of[r] = most_activations(set.roles[r].program, 4);
    uint64_t kept = of[3] - of[4];
    assert_true(kept > 0);
    for (uint32_t r = 1; r < 4; r++)
        assert_int_equal(of[r] - of[r + 1], kept);
    assert_true(of[4] >= 2 * kept && of[4] < 2 * kept + kept / 2);
    dtp_program_set_release(&set);
}

/* Uneven stages: with nothing in them but what passes through, by a layout text, and with the loss's stage empty behind
 * the head, as nanotron may leave it. */
static void test_uneven_stages(void **state)
{
    static const char *const layouts[] = {"E|t*4||t*2L", "Et*3|t|t|tL", "E|ttt|tt|t,L", "Etttttt|||L"};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof layouts / sizeof *layouts; i++) {
        uint32_t tp = 1 + i % 2; /* a stage without layers ends with a tensor parallel collective */
        struct dtp_transformer t = small_model(6);
        struct dtp_cluster cluster = test_cluster(test_h200(), 4 * tp, 4 * tp);
        struct dtp_plan plan = pipeline(4, 6, 1);
        plan.tp = tp;
        assert_true(dtp_stage_choice_parse(layouts[i / 2], &plan.stages));
        struct dtp_program_set set = proven_set(&t, &cluster, &plan);
        dtp_program_set_release(&set);
    }
    for (uint64_t vocab = 1024; vocab <= UINT64_C(1) << 24; vocab *= 4) {
        struct dtp_transformer t = small_model(6);
        struct dtp_cluster cluster = test_cluster(test_h200(), 3, 3);
        struct dtp_plan plan = pipeline(3, 6, 1);
        t.vocab = vocab;
        assert_true(dtp_stage_choice_parse("cost", &plan.stages));
        struct dtp_program_set set;
        faults = (struct dtp_faults){0};
        if (dtp_plan_resolve(&plan, &t, &cluster, &faults) != DTP_OK)
            continue; /* a stage would have nothing */
        assert_int_equal(dtp_lower_set(&t, &cluster, &plan, 0, &set, &faults), DTP_OK);
        if (dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults) != DTP_OK)
            fail_msg("vocab %lu: %s", vocab, faults.text[0]);
        dtp_program_set_release(&set);
    }
}

/* The limit is for each role's program. */
static void test_limit_of_a_role(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(16);
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
    struct dtp_plan plan = pipeline(4, 8, 1), whole = pipeline(1, 8, 1);
    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
    uint32_t most = 0, all = 0;
    for (uint32_t r = 0; r < 4; r++) {
        uint32_t count = (uint32_t)dtp_program_op_count(set.roles[r].program);
        most = count > most ? count : most;
        all += count;
    }
    dtp_program_set_release(&set);
    assert_int_equal(dtp_lower_set(&t, &cluster, &plan, most, &set, &faults), DTP_OK);
    dtp_program_set_release(&set);
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_lower_set(&t, &cluster, &plan, most - 1, &set, &faults), DTP_BAD_INPUT);
    assert_int_equal(set.role_count, 0);
    assert_int_equal(dtp_plan_resolve(&whole, &t, &cluster, &faults), DTP_OK);
    assert_int_equal(dtp_lower_set(&t, &cluster, &whole, all / 4, &set, &faults), DTP_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_legal),
        cmocka_unit_test(test_experts_behind_dense_layers),
        cmocka_unit_test(test_what_waits_for_the_allocator),
        cmocka_unit_test(test_scattered_sends),
        cmocka_unit_test(test_stages_add_up_to_the_model),
        cmocka_unit_test(test_kept_micro_batches),
        cmocka_unit_test(test_uneven_stages),
        cmocka_unit_test(test_limit_of_a_role),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
