/* Pipelines under torch: legal for all schedules that it has, and what torch.distributed.pipelining does beyond the
 * schedule: what stands, what is held and how long, when gradients are reduced, and in which order a rank sends. */
#include "lower/lower_set.h"
#include "lower/posted.h"
#include "runtime/runtimes.h"
#include "schedule/schedule_order.h"

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

static struct dtp_plan pipeline(enum dtp_schedule_kind kind, uint32_t ranks, uint32_t micro_batches, uint32_t chunks)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = dtp_runtime_find("torch");
    plan.strategy = DTP_FULL_SHARD;
    plan.schedule = kind;
    plan.pp = ranks, plan.accumulate = micro_batches, plan.virtual_stages = chunks;
    plan.sequence = 128;
    return plan;
}

static void test_all_are_legal(void **state)
{
    uint32_t legal[DTP_SCHEDULE_COUNT] = {0};
    const struct dtp_runtime *torch = dtp_runtime_find("torch");
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        for (uint32_t ranks = 2; ranks <= 4; ranks++)
            for (uint32_t micro_batches = 1; micro_batches <= 2 * ranks + 2; micro_batches++)
                for (uint32_t sharded = 0; sharded < 2; sharded++) {
                    uint32_t fixed = dtp_schedule_row(kind)->chunks, chunks = fixed ? fixed : 1 + ranks % 2 + 1;
                    struct dtp_schedule_shape shape = {(enum dtp_schedule_kind)kind, ranks, micro_batches, chunks, 0,
                                                       .equal_rounds = true};
                    if (!(torch->schedules & 1u << kind) || dtp_schedule_resolve(&shape, NULL) != DTP_OK)
                        continue;
                    struct dtp_transformer t = small_model(ranks * chunks + micro_batches % 2);
                    struct dtp_cluster cluster =
                        test_cluster(test_h200(), (1 + sharded) * ranks, (1 + sharded) * ranks);
                    struct dtp_plan plan = pipeline((enum dtp_schedule_kind)kind, ranks, micro_batches, chunks);
                    bool splits = dtp_schedule_row(plan.schedule)->backward != DTP_BACKWARD_WHOLE;
                    plan.checkpointing = micro_batches % 3 || splits ? DTP_CHECKPOINT_NONE : DTP_CHECKPOINT_FULL;
                    plan.strategy = micro_batches % 4 == 3 ? DTP_DDP : DTP_FULL_SHARD;
                    if (plan.strategy != DTP_DDP) /* beyond a stage's last unit, too */
                        plan.prefetch_depth = 1 + micro_batches / 2 % 3;
                    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
                    for (uint32_t r = 0; r < ranks; r++)
                        expect_nothing_left(set.roles[r].program);
                    dtp_program_set_release(&set);
                    legal[kind]++;
                }
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        if (torch->schedules & 1u << kind && legal[kind] < 4)
            fail_msg("%s: %u combinations", dtp_schedule_row((enum dtp_schedule_kind)kind)->word, legal[kind]);
}

/* Of operations of a name the kernels, which of the host's own are groups or units; NULL: of any name. */
static uint32_t kernels_of(const struct dtp_program *program, enum dtp_op_kind kind, const char *name)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        sum += op->kind == kind && (!name || strcmp(op->name, name) == 0) ? op->demand->kernels : 0;
    }
    return sum;
}

/* The last of 2 ranks has stages 1 and 3 of one layer each, and the head. A layer has 7 matrices and 2 norms, which a
 * backward of inputs walks to; one of weights calls the engine for each, and for the head's matrix. A layer is a unit,
 * and the head one. What a backward of inputs sends stays as `.grad` until the next step. Undivided backwards walk
 * nowhere and keep nothing. */
static void test_host_of_stages(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(4);
    struct dtp_cluster cluster = test_cluster(test_h200(), 2, 2);
    struct dtp_plan plan = pipeline(DTP_SCHEDULE_ZB_INTERLEAVED, 2, 4, 2);
    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
    const struct dtp_program *last = set.roles[1].program;
    assert_int_equal(kernels_of(last, DTP_OP_HOST_GROUPS, "graph walked"), 4 * (9 + 9 + 2));
    assert_int_equal(kernels_of(last, DTP_OP_HOST_GROUPS, "engine called"), 4 * (9 + 9 + 1));
    assert_int_equal(kernels_of(last, DTP_OP_HOST_HOOKS, NULL), 4 * 3 * 2); /* each as long as two others */
    assert_int_equal(count_ops(last, DTP_OP_FREE, "gradients of inputs"), 2 * 4);
    struct dtp_program_totals with, without = {0};
    dtp_program_sum(last, &with);
    for (size_t i = 0; i < dtp_program_op_count(last); i++)
        if (dtp_op_kind_class(dtp_program_ops(last)[i].kind) != DTP_CLASS_NONE)
            without.kernels += dtp_program_ops(last)[i].demand->kernels;
    assert_int_equal(with.kernels, without.kernels); /* they launch nothing */
    dtp_program_set_release(&set);
    plan = pipeline(DTP_SCHEDULE_INTERLEAVED, 2, 4, 2);
    plan.compile = true;
    set = proven_set(&t, &cluster, &plan);
    assert_int_equal(count_ops(set.roles[1].program, DTP_OP_HOST_GROUPS, NULL), 0);
    assert_int_equal(count_ops(set.roles[1].program, DTP_OP_FREE, "gradients of inputs"), 0);
    assert_int_equal(kernels_of(set.roles[1].program, DTP_OP_HOST_HOOKS, NULL), 4 * 3 * 2); /* one each way */
    dtp_program_set_release(&set);
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

/* Units are gathered and reduced once a step, whatever there are of micro-batches; buffers of what is received stand
 * for each of them, and what is sent back goes when the next is; no rank waits for a norm of gradients. */
static void test_once_a_step(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = pipeline(DTP_SCHEDULE_1F1B, 4, 6, 1);
    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
    uint64_t rows = 2 * plan.sequence * t.hidden;
    for (uint32_t r = 0; r < 4; r++) {
        const struct dtp_program *program = set.roles[r].program;
        uint32_t units = r == 0 || r == 3 ? 3 : 2;
        assert_int_equal(count_ops(program, DTP_OP_ALL_GATHER, NULL), units);
        assert_int_equal(count_ops(program, DTP_OP_REDUCE_SCATTER, NULL), units);
        assert_int_equal(standing(program, "block input"), r == 0 ? 0 : 6 * rows);
        assert_int_equal(standing(program, "residual gradient"), r == 3 ? 0 : 6 * rows);
        assert_int_equal(count_ops(program, DTP_OP_ACCUMULATE, "gradient norm"), 0);
        assert_int_equal(count_ops(program, DTP_OP_FREE, "gradients of inputs"), 0);
        assert_int_equal(count_ops(program, DTP_OP_FREE, "lent"), r == 0 ? 0 : 6);
    }
    dtp_program_set_release(&set);
}

/* Of micro-batches under way each has its own casts of a compiled block's weights, an eager one has the step's: by 1F1B
 * on two ranks the first has two at once, of 4 layers. */
static void test_casts_of_stages(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    struct dtp_cluster cluster = test_cluster(test_h200(), 2, 2);
    for (int compiled = 0; compiled < 2; compiled++) {
        struct dtp_plan plan = pipeline(DTP_SCHEDULE_1F1B, 2, 4, 1);
        plan.strategy = DTP_DDP, plan.compile = compiled;
        struct dtp_program_set set = proven_set(&t, &cluster, &plan);
        uint32_t casts = 0;
        for (size_t b = 0; b < dtp_program_buffer_count(set.roles[0].program); b++)
            casts += strcmp(dtp_program_buffers(set.roles[0].program)[b].name, "down weight") == 0;
        assert_int_equal(casts, 4 * (compiled ? 4 : 1));
        dtp_program_set_release(&set);
    }
}

/* The last gradients are on their way before the stage reduces. */
static void test_sends_before_it_reduces(void **state)
{
    (void)state;
    struct dtp_transformer t = small_model(8);
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = pipeline(DTP_SCHEDULE_1F1B, 4, 6, 1);
    struct dtp_program_set set = proven_set(&t, &cluster, &plan);
    const struct dtp_program *program = set.roles[2].program;
    size_t sent = 0, reduced = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        sent = op->kind == DTP_OP_SEND ? i : sent;
        reduced = op->kind == DTP_OP_REDUCE_SCATTER && !reduced ? i : reduced;
    }
    assert_true(sent && sent < reduced);
    dtp_program_set_release(&set);
}

/* The first stage has its whole backward where its W stands; others leave matrices' gradients to W. */
static void test_first_stage_is_not_split(void **state)
{
    (void)state;
    struct dtp_schedule schedule;
    struct dtp_schedule_shape shape = {
        .kind = DTP_SCHEDULE_ZB_V, .ranks = 3, .micro_batches = 7, .whole_first_stage = true};
    assert_int_equal(dtp_schedule_create(&shape, &schedule, &faults), DTP_OK);
    assert_int_equal(dtp_schedule_verify(&schedule, DTP_SEND_RENDEZVOUS, &faults), DTP_OK);
    uint32_t kinds[3][2][DTP_PASS_COUNT] = {0};
    for (uint32_t r = 0; r < 3; r++)
        for (uint32_t i = schedule.first[r]; i < schedule.first[r + 1]; i++)
            kinds[r][schedule.passes[i].chunk][schedule.passes[i].kind]++;
    assert_int_equal(kinds[0][0][DTP_PASS_WHOLE_BACKWARD], 7);
    assert_int_equal(kinds[0][0][DTP_PASS_BACKWARD] + kinds[0][0][DTP_PASS_WEIGHT], 0);
    assert_int_equal(kinds[0][1][DTP_PASS_WEIGHT], 7);
    assert_int_equal(kinds[1][0][DTP_PASS_BACKWARD], 7);
    dtp_schedule_destroy(&schedule);
}

/* Two ranks, two chunks, two micro-batches, by hand. Rank 0 lists F0.0 F0.1 F1.0 (its third pass waits for what rank 1
 * has yet to send); each forward of rank 0 puts a receive into rank 1's list, which has nothing in it yet but what
 * could run. */
static void test_receives_by_hand(void **state)
{
    (void)state;
    struct dtp_schedule schedule;
    struct dtp_host_arena arena = {NULL};
    struct dtp_posted posted;
    struct dtp_schedule_shape shape = {.kind = DTP_SCHEDULE_INTERLEAVED, .ranks = 2, .micro_batches = 2, .chunks = 2};
    assert_int_equal(dtp_schedule_create(&shape, &schedule, &faults), DTP_OK);
    assert_int_equal(dtp_posted_make(&schedule, &arena, &posted, &faults), DTP_OK);
    /* rank 1: F of chunk 0 and 1, each of micro-batches 0 and 1, and backwards of chunk 1, then 0; it receives four
     * forwards and two backwards */
    assert_int_equal(posted.count[0], 6);
    assert_int_equal(posted.count[1], 6);
    const struct dtp_posted_receive *of = posted.receive + schedule.first[1];
    for (uint32_t i = 0; i < posted.count[1]; i++) {
        assert_true(of[i].behind <= of[i].pass);
        assert_true(i == 0 || of[i].behind >= of[i - 1].behind);
    }
    assert_int_equal(of[0].behind, 0); /* the first forward of rank 0, before rank 1 could list any pass */
    assert_int_equal(of[0].pass, 0);
    assert_int_equal(of[1].behind, 1); /* rounds: rank 0's second comes when rank 1 has listed its first */
    assert_int_equal(of[1].pass, 1);
    dtp_host_arena_release(&arena);
    dtp_schedule_destroy(&schedule);
}

static void expect_refused(struct dtp_plan plan, const char *says)
{
    struct dtp_transformer t = small_model(8);
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_said(&faults, says);
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_plan plan = pipeline(DTP_SCHEDULE_ZB_V, 4, 8, 2);
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    expect_refused(plan, "replays a layer for each");
    plan.checkpointing = DTP_CHECKPOINT_NONE;
    plan.compile = true;
    expect_refused(plan, "PyTorch refuses of compiled stages");
    plan = pipeline(DTP_SCHEDULE_1F1B, 4, 8, 1);
    plan.fsdp1 = true;
    expect_refused(plan, "not with FSDP1");
    plan = pipeline(DTP_SCHEDULE_1F1B, 4, 8, 1);
    plan.accumulate_sync = true;
    expect_refused(plan, "accumulate_sync: does not go with pp");
    plan = pipeline(DTP_SCHEDULE_V_HALF, 4, 8, 2);
    expect_refused(plan, "v-half is not modelled under runtime torch");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_legal),
        cmocka_unit_test(test_once_a_step),
        cmocka_unit_test(test_casts_of_stages),
        cmocka_unit_test(test_sends_before_it_reduces),
        cmocka_unit_test(test_first_stage_is_not_split),
        cmocka_unit_test(test_receives_by_hand),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_host_of_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
