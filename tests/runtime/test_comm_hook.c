/* DDP's communication hooks by hand, on LLaMA-7B over 8 GPUs: what is sent, what stands, what overlaps, what is
 * refused. */
#include "closed/closed_form.h"
#include "closed/closed_form_hooks.h"
#include "lower/lower.h"
#include "plan/runtime_sizes.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/llama_7b.h"
#include "lib/lowered_job.h"

static const uint64_t psi = 6738415616; /* parameters of LLaMA-7B */

static struct dtp_plan hooked_plan(enum dtp_comm_hook hook, uint32_t rank)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_DDP, plan.comm_hook = hook, plan.powersgd_rank = rank;
    return plan;
}

static struct dtp_program *lower(struct dtp_plan *plan, struct dtp_communication *communication)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_program *program = lowered_plan(&t, &cluster, plan);
    *communication = (struct dtp_communication){0};
    dtp_closed_form_communication(&t, &cluster, plan, communication);
    return program;
}

static uint64_t standing(const struct dtp_program *program)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++) {
        const struct dtp_buffer *b = &dtp_program_buffers(program)[i];
        bytes += b->persistent && b->owner == DTP_OWNER_REDUCE ? b->bytes : 0;
    }
    return bytes;
}

static void count_collectives(const struct dtp_program *program, enum dtp_op_kind kind, double *sent_bytes,
                              uint64_t *count, uint64_t *waits)
{
    *sent_bytes = 0, *count = 0, *waits = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        *waits += op->kind == DTP_OP_HOST_WAIT;
        if (op->kind != kind)
            continue;
        *sent_bytes += op->demand->sent_bytes;
        ++*count;
    }
}

static void count_reductions(const struct dtp_program *program, double *sent_bytes, uint64_t *count, uint64_t *waits)
{
    count_collectives(program, DTP_OP_ALL_REDUCE, sent_bytes, count, waits);
}

/* Half of what fp32 gradients take on the wire, 2 x 7/8 of 2 bytes a parameter, of which a copy stands; as many
 * all-reduces as buckets, and the host waits for none. */
static void test_sixteen_bits(void **state)
{
    (void)state;
    struct dtp_communication with, without;
    struct dtp_plan plain = hooked_plan(DTP_COMM_HOOK_NONE, 1), plan = hooked_plan(DTP_COMM_HOOK_BF16, 1);
    dtp_program_destroy(lower(&plain, &without));
    struct dtp_program *program = lower(&plan, &with);
    double sent_bytes;
    uint64_t count, waits;
    count_reductions(program, &sent_bytes, &count, &waits);
    assert_int_equal(with.bytes[DTP_ALL_REDUCE], 2 * 7 * (2 * psi) / 8);
    assert_int_equal(2 * with.bytes[DTP_ALL_REDUCE], without.bytes[DTP_ALL_REDUCE]);
    assert_true(sent_bytes == (double)with.bytes[DTP_ALL_REDUCE]);
    assert_int_equal(count, without.count[DTP_ALL_REDUCE]);
    assert_int_equal(count, with.count[DTP_ALL_REDUCE]);
    assert_int_equal(waits, 0);
    assert_int_equal(standing(program), 2 * psi);
    dtp_program_destroy(program);
}

/* A byte a parameter to each of seven others, where fp32 sums send 7 bytes too: nothing is gained among eight ranks. Of
 * each bucket two floats go before, for which the host waits, and a sum stands. */
static void test_eight_bits(void **state)
{
    (void)state;
    struct dtp_communication with, without;
    struct dtp_plan plain = hooked_plan(DTP_COMM_HOOK_NONE, 1), plan = hooked_plan(DTP_COMM_HOOK_INT8, 1);
    dtp_program_destroy(lower(&plain, &without));
    struct dtp_program *program = lower(&plan, &with);
    double sent_bytes;
    uint64_t count, waits, buckets = without.count[DTP_ALL_REDUCE];
    count_collectives(program, DTP_OP_ALL_GATHER, &sent_bytes, &count, &waits);
    assert_int_equal(with.bytes[DTP_ALL_GATHER], 7 * psi + buckets * 7 * 8);
    assert_int_equal(without.bytes[DTP_ALL_REDUCE], 7 * psi);
    assert_int_equal(with.bytes[DTP_ALL_REDUCE], 0);
    assert_true(sent_bytes == (double)with.bytes[DTP_ALL_GATHER]);
    assert_int_equal(count, 2 * buckets);
    assert_int_equal(with.count[DTP_ALL_GATHER], 2 * buckets);
    assert_int_equal(waits, buckets);
    assert_int_equal(standing(program), 4 * psi);
    dtp_program_destroy(program);
}

/* Our executor: a part of a module is a byte an element and 8 for each 512. A block of 202,383,360 has 395,280 runs,
 * 205,545,600 bytes; embedding 131,072,000 and 256,000, 133,120,000; the head 4,096 more and 8 runs, 133,124,160, which
 * makes 133,124,224 in pieces of 128. Seven ranks get each; what stands is the block's part and those of eight. */
static void test_eight_bits_of_the_executor(void **state)
{
    (void)state;
    struct dtp_communication communication;
    struct dtp_plan plan = hooked_plan(DTP_COMM_HOOK_INT8, 1);
    plan.runtime = &dtp_runtime_dtplan;
    struct dtp_program *program = lower(&plan, &communication);
    double sent_bytes;
    uint64_t count, waits, expected = 7 * (32 * UINT64_C(205545600) + 133120000 + 133124224);
    count_collectives(program, DTP_OP_ALL_GATHER, &sent_bytes, &count, &waits);
    assert_int_equal(sent_bytes, expected);
    assert_int_equal(communication.bytes[DTP_ALL_GATHER], expected);
    assert_int_equal(count, 34);
    assert_int_equal(standing(program), 9 * UINT64_C(205545600));
    dtp_program_destroy(program);
}

/* Of rank 4. A layer's q, k, v and output matrices have P and Q of (4096 + 4096) 4 elements, gate, up and down of
 * (4096 + 11008) 4, embedding and head of (4096 + 32000) 4: 4 x 32,768 + 3 x 60,416 = 312,320 a layer, 10,283,008 in
 * all. 65 norms of 4096 go whole. All of it in fp32 and, of 8 ranks, 2 x 7/8 times. What was lost stands in fp32 and so
 * do P and Q, and 32 workspaces of 32 MiB. */
static void test_powersgd(void **state)
{
    (void)state;
    struct dtp_communication communication;
    struct dtp_plan plan = hooked_plan(DTP_COMM_HOOK_POWERSGD, 4);
    struct dtp_program *program = lower(&plan, &communication);
    double sent_bytes;
    uint64_t count, waits, factors = 10283008, norms = 65 * 4096;
    count_reductions(program, &sent_bytes, &count, &waits);
    assert_int_equal(communication.bytes[DTP_ALL_REDUCE], 2 * 7 * (4 * (factors + norms)) / 8);
    assert_true(sent_bytes == (double)communication.bytes[DTP_ALL_REDUCE]);
    assert_int_equal(count, communication.count[DTP_ALL_REDUCE]);
    assert_true(waits > 32); /* the host waits for each bucket, of which a layer has several */
    assert_int_equal(standing(program), 4 * (psi + factors) + 32 * (UINT64_C(32) << 20));
    dtp_program_destroy(program);
}

/* (4096 + 4096) r 2 < 4096^2 holds up to rank 1023, of the others longer: of rank 1024 a layer's square matrices go
 * whole, and so do they all where P and Q would be larger than half of them. */
static void test_what_is_not_worth_it(void **state)
{
    (void)state;
    struct dtp_communication communication;
    struct dtp_plan plan = hooked_plan(DTP_COMM_HOOK_POWERSGD, 1024);
    dtp_program_destroy(lower(&plan, &communication));
    uint64_t square = 4 * UINT64_C(4096) * 4096, other = 3 * (4096 + 11008) * UINT64_C(1024);
    uint64_t ends = 2 * (4096 + 32000) * UINT64_C(1024), elements = 32 * (square + other) + ends + 65 * 4096;
    assert_int_equal(communication.bytes[DTP_ALL_REDUCE], 2 * 7 * (4 * elements) / 8);
}

/* The sums that bounds take of all layers at once are those of the walk over buckets: of ranks that factor all
 * matrices, some, none; of adapters, which go whole. */
static void test_factored_at_once(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {1, 32, 1500, 3000};
    struct dtp_faults faults = {0};
    for (size_t i = 0; i < 2 * sizeof ranks / sizeof *ranks; i++) {
        struct dtp_plan plan = hooked_plan(DTP_COMM_HOOK_POWERSGD, ranks[i / 2]);
        struct dtp_transformer t = llama_7b();
        struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
        t.tied_head = i % 2, t.qkv_bias = i % 2;
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_OK);
        struct dtp_traffic job = {.transformer = &t, .cluster = &cluster, .plan = &plan};
        dtp_units_count(&t, &cluster, &plan, &job.units);
        struct dtp_factored walked = dtp_traffic_ddp_buckets(&job, 4).factored, once = dtp_traffic_factored(&job);
        assert_true(walked.p == once.p && walked.q == once.q);
        assert_true(walked.whole == once.whole && walked.matrices == once.matrices);
        assert_int_equal(once.matrices == 0, ranks[i / 2] == 3000);
    }
}

/* Our executor: a bucket is a module, of 34. Under ddp half of what fp32 gradients take on the wire; what stands is the
 * largest of them in 16 bits, a block of 202,383,360 elements. Under hybrid_shard over 2 copies of 4 ranks each, halves
 * of a quarter: 2 x 1/2 x 2 bytes of psi / 4; a quarter of the block stands. */
static void test_sixteen_bits_of_the_executor(void **state)
{
    (void)state;
    struct dtp_communication communication;
    double sent_bytes;
    uint64_t count, waits;
    for (int hybrid = 0; hybrid < 2; hybrid++) {
        struct dtp_plan plan = hooked_plan(hybrid ? DTP_COMM_HOOK_FP16 : DTP_COMM_HOOK_BF16, 1);
        plan.runtime = &dtp_runtime_dtplan;
        plan.strategy = hybrid ? DTP_HYBRID_SHARD : DTP_DDP, plan.shard_group = hybrid ? 4 : 0;
        struct dtp_program *program = lower(&plan, &communication);
        count_reductions(program, &sent_bytes, &count, &waits);
        uint64_t expected = hybrid ? psi / 4 * 2 : psi * 2 * 2 * 7 / 8;
        assert_int_equal(sent_bytes, expected);
        assert_int_equal(communication.bytes[DTP_ALL_REDUCE], expected);
        assert_int_equal(count, 34);
        assert_int_equal(standing(program), 2 * UINT64_C(202383360) / (hybrid ? 4 : 1));
        dtp_program_destroy(program);
    }
}

/* Rank 4 of LLaMA-7B's modules: a block's P are of 12288 (q, k, v), 4096, 22016 (gate, up) and 4096 rows, beside which
 * two norms of 4096 go: 4 x 42496 + 8192 elements; its Q of 4096, 4096, 4096 and 11008 columns, 4 x 23296. Of the
 * embedding P 4 x 32000, Q 4 x 4096; the head the same and a norm of 4096. Each is summed twice, in fp32; what stands
 * is all that may be lost, all Q, the largest P and a workspace. */
static void test_powersgd_of_the_executor(void **state)
{
    (void)state;
    struct dtp_communication communication;
    double sent_bytes;
    uint64_t count, waits;
    struct dtp_plan plan = hooked_plan(DTP_COMM_HOOK_POWERSGD, 4);
    plan.runtime = &dtp_runtime_dtplan;
    struct dtp_program *program = lower(&plan, &communication);
    uint64_t block_p = 4 * 42496 + 2 * 4096, block_q = 4 * 23296, end_p = 4 * 32000, end_q = 4 * 4096;
    uint64_t elements = 32 * (block_p + block_q) + 2 * (end_p + end_q) + 4096;
    count_reductions(program, &sent_bytes, &count, &waits);
    assert_int_equal(sent_bytes, elements * 4 * 2 * 7 / 8);
    assert_int_equal(communication.bytes[DTP_ALL_REDUCE], elements * 4 * 2 * 7 / 8);
    assert_int_equal(count, 2 * 34);
    uint64_t lost = psi - 32 * 2 * 4096 - 4096, q = 32 * block_q + 2 * end_q;
    assert_int_equal(standing(program), 4 * (lost + q + block_p) + DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES);
    dtp_program_destroy(program);
}

/* Two copies of 4 ranks each. A block's shard are a quarter of 202,383,360 elements: its four matrices dealt out are
 * one of 12352 rows of 4096 and 1,048,576 / 4096 more, which leaves nothing of it. Of embedding and head a quarter:
 * 8000 rows, the head's norm being a row of which each rank has a quarter: 1024 elements are left. */
static void test_powersgd_of_shards(void **state)
{
    (void)state;
    struct dtp_communication communication;
    double sent_bytes;
    uint64_t count, waits;
    struct dtp_plan plan = hooked_plan(DTP_COMM_HOOK_POWERSGD, 4);
    plan.runtime = &dtp_runtime_dtplan, plan.strategy = DTP_HYBRID_SHARD, plan.shard_group = 4;
    struct dtp_program *program = lower(&plan, &communication);
    uint64_t shard = 202383360 / 4, rows = shard / 4096, left = shard % 4096;
    uint64_t block_p = 4 * rows + left, block_q = 4 * 4096, end_p = 4 * 8000, end_q = 4 * 4096;
    uint64_t elements = 32 * (block_p + block_q) + 2 * (end_p + end_q) + 1024;
    count_reductions(program, &sent_bytes, &count, &waits);
    assert_int_equal(sent_bytes, elements * 4);
    assert_int_equal(communication.bytes[DTP_ALL_REDUCE], elements * 4);
    assert_int_equal(count, 2 * 34);
    uint64_t lost = 32 * (shard - left) + 2 * (131072000 / 4), q = 32 * block_q + 2 * end_q;
    assert_int_equal(standing(program), 4 * (lost + q + block_p) + DTP_EXECUTOR_MATMUL_WORKSPACE_BYTES);
    dtp_program_destroy(program);
}

static void assert_refused(const struct dtp_plan *asked, const char *reason)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = *asked;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], reason))
        fail_msg("'%s' does not say '%s'", faults.text[0], reason);
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_plan plan = hooked_plan(DTP_COMM_HOOK_FP16, 1);
    plan.strategy = DTP_FULL_SHARD;
    assert_refused(&plan,
                   "comm_hook: is for ddp under runtime torch and dtplan, hybrid_shard under runtime dtplan (FSDP1 "
                   "takes no hook there, FSDP2 none in place of its sum) only");
    plan = hooked_plan(DTP_COMM_HOOK_FP16, 1);
    plan.pp = 2, plan.accumulate = 4;
    assert_refused(&plan, "comm_hook: fp16 is not modelled with tensor, context or pipeline parallelism");
    plan = hooked_plan(DTP_COMM_HOOK_FP16, 1);
    plan.runtime = &dtp_runtime_dtplan, plan.precision.reduce = DTP_BF16;
    assert_refused(&plan, "comm_hook: fp16: gradients are summed in bf16, which is no wider");
    plan.comm_hook = DTP_COMM_HOOK_POWERSGD;
    assert_refused(&plan, "comm_hook: powersgd is run on gradients in fp32, these are in bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sixteen_bits),
        cmocka_unit_test(test_eight_bits),
        cmocka_unit_test(test_eight_bits_of_the_executor),
        cmocka_unit_test(test_sixteen_bits_of_the_executor),
        cmocka_unit_test(test_powersgd_of_the_executor),
        cmocka_unit_test(test_powersgd_of_shards),
        cmocka_unit_test(test_powersgd),
        cmocka_unit_test(test_what_is_not_worth_it),
        cmocka_unit_test(test_factored_at_once),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
