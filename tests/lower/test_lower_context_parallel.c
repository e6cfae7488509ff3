/* Context parallel programs: what is sent counted by hand, cores against the undivided attention, legality of every way
 * of sharing, and the closed form's counts of them. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "plan/context.h"
#include "plan/layer_tensors.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/llama_7b.h"
#include "lib/lowered_job.h"
#include "lib/random_plans.h"
#include "lib/said.h"

#define CP 4
#define MICRO_STEPS 3
#define SEQUENCE 8192
#define KV_HEADS 8

static struct dtp_transformer grouped(void)
{
    struct dtp_transformer t = llama_7b();
    t.kv_heads = KV_HEADS;
    return t;
}

static struct dtp_plan shared_by(const struct dtp_runtime *runtime, enum dtp_cp_comm cp_comm)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = runtime;
    plan.strategy = runtime == &dtp_runtime_torch ? DTP_FULL_SHARD : DTP_ZERO1;
    plan.cp = CP;
    plan.cp_comm = cp_comm;
    plan.micro_batch = 1;
    plan.accumulate = MICRO_STEPS;
    plan.sequence = SEQUENCE;
    return plan;
}

static struct dtp_cluster cluster_of(uint32_t gpus)
{
    return test_cluster(test_h200(), gpus, 8);
}

/* Proven. */
static struct dtp_program *lower_on(const struct dtp_transformer *t, struct dtp_plan *plan, uint32_t gpus)
{
    struct dtp_cluster cluster = cluster_of(gpus);
    return lowered_plan(t, &cluster, plan);
}

/* What the ranks that share a sequence send. */
struct traffic {
    size_t count[DTP_COLLECTIVE_COUNT];
    double sent[DTP_COLLECTIVE_COUNT];
};

static struct traffic traffic_of(const struct dtp_program *program)
{
    struct traffic t = {0};
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->stream != DTP_STREAM_CONTEXT)
            continue;
        t.count[dtp_op_kind_collective(op->kind)]++;
        t.sent[dtp_op_kind_collective(op->kind)] += op->demand->sent_bytes;
    }
    return t;
}

static struct traffic traffic(struct dtp_transformer t, struct dtp_plan plan, uint32_t gpus)
{
    struct dtp_program *program = lower_on(&t, &plan, gpus);
    struct traffic out = traffic_of(program);
    dtp_program_destroy(program);
    return out;
}

static const double tokens = SEQUENCE / CP, keys = (double)SEQUENCE / CP * KV_HEADS * 128 * 2;

/* Forward each of 3 steps sends keys and values of 2048 tokens, 8 heads of 128 in bf16; backward sends them on 3 times
 * and their gradients 3 times, in 4 transfers. A full replay sends forward's again. */
static void test_ring(void **state)
{
    (void)state;
    struct dtp_plan plan = shared_by(&dtp_runtime_megatron, DTP_CP_P2P);
    struct traffic sent = traffic(grouped(), plan, 16);
    assert_int_equal(sent.count[DTP_SEND_RECV], MICRO_STEPS * LAYERS * (3 + 4));
    assert_near(sent.sent[DTP_SEND_RECV], MICRO_STEPS * LAYERS * 3 * (1 + 2) * 2 * keys, 0);
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    sent = traffic(grouped(), plan, 16);
    assert_int_equal(sent.count[DTP_SEND_RECV], MICRO_STEPS * LAYERS * (3 + 3 + 4));
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        assert_true(i == DTP_SEND_RECV || sent.count[i] == 0);
}

/* Keys and values are gathered apart, forward and backward, and their gradients scattered; each rank sends 3 times its
 * own. */
static void test_gathered(void **state)
{
    (void)state;
    struct traffic sent = traffic(grouped(), shared_by(&dtp_runtime_megatron, DTP_CP_ALL_GATHER), 16);
    assert_int_equal(sent.count[DTP_ALL_GATHER], MICRO_STEPS * LAYERS * 4);
    assert_int_equal(sent.count[DTP_REDUCE_SCATTER], MICRO_STEPS * LAYERS * 2);
    assert_near(sent.sent[DTP_ALL_GATHER], MICRO_STEPS * LAYERS * 4 * 3 * keys, 0);
    assert_near(sent.sent[DTP_REDUCE_SCATTER], MICRO_STEPS * LAYERS * 2 * 3 * keys, 0);
}

/* Queries of 32 heads, keys, values and the result are exchanged forward, their gradients backward: 3/4 of each leave
 * the rank. */
static void test_exchanged(void **state)
{
    (void)state;
    struct traffic sent = traffic(grouped(), shared_by(&dtp_runtime_megatron, DTP_CP_A2A), 16);
    assert_int_equal(sent.count[DTP_ALL_TO_ALL], MICRO_STEPS * LAYERS * 8);
    assert_near(sent.sent[DTP_ALL_TO_ALL], MICRO_STEPS * LAYERS * 0.75 * 2 * (2 * tokens * 32 * 128 * 2 + 2 * keys), 0);
}

/* cp 8 on nodes of 4 ranks: heads are exchanged in a node, and keys and values go between two. */
static void test_both(void **state)
{
    (void)state;
    struct dtp_plan plan = shared_by(&dtp_runtime_megatron, DTP_CP_A2A_P2P);
    struct dtp_transformer t = grouped();
    plan.cp = 8;
    plan.tp = 2;
    struct dtp_program *program = lower_on(&t, &plan, 16);
    struct traffic sent = traffic_of(program);
    assert_int_equal(sent.count[DTP_ALL_TO_ALL], MICRO_STEPS * LAYERS * 8);
    assert_int_equal(sent.count[DTP_SEND_RECV], MICRO_STEPS * LAYERS * (1 + 2));
    assert_near(sent.sent[DTP_SEND_RECV], MICRO_STEPS * LAYERS * 3 * 2 * keys / 4, 0);
    bool exchange = false, ring = false;
    for (size_t i = 0; i < dtp_program_group_count(program); i++) {
        struct dtp_program_group group = dtp_program_groups(program)[i];
        exchange = exchange || (group.ranks == 4 && group.stride == 2);
        ring = ring || (group.ranks == 2 && group.stride == 8);
    }
    assert_true(exchange && ring);
    dtp_program_destroy(program);
}

static double sent(const struct dtp_program *program, enum dtp_op_kind kind)
{
    double bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        bytes += dtp_program_ops(program)[i].kind == kind ? dtp_program_ops(program)[i].demand->sent_bytes : 0;
    return bytes;
}

/* DeepSpeed's Ulysses: four exchanges a layer each way; all 16 ranks hold shards, and gradients go over the wire in
 * fp32 unless another dtype is asked for: stage 1 all-reduces them once a step, stage 3 scatters them three times. Of
 * 6,607,343,616 parameters 16 ranks have 412,958,976 each. */
static void test_ulysses(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    const double shard = 6738415616.0 / 16;
    const enum dtp_dtype wire[] = {DTP_FP32, DTP_BF16};
    for (int i = 0; i < 2; i++) {
        struct dtp_plan plan = shared_by(&dtp_runtime_deepspeed, DTP_CP_A2A);
        plan.deepspeed.sequence_dtype = wire[i];
        struct dtp_program *program = lower_on(&t, &plan, 16);
        assert_int_equal(traffic_of(program).count[DTP_ALL_TO_ALL], MICRO_STEPS * LAYERS * 8);
        assert_near(sent(program, DTP_OP_ALL_REDUCE), 2 * 15 * shard * (i ? 2 : 4), 0);
        dtp_program_destroy(program);
        plan.strategy = DTP_ZERO3;
        program = lower_on(&t, &plan, 16);
        assert_near(sent(program, DTP_OP_REDUCE_SCATTER), MICRO_STEPS * 15 * shard * (i ? 2 : 4), 0);
        dtp_program_destroy(program);
    }
}

/* PyTorch gathers keys and values as one, and sends their gradients in fp32 to each rank once; rotated, they are sent 3
 * times each way. */
static void test_walked(void **state)
{
    (void)state;
    struct traffic sent = traffic(grouped(), shared_by(&dtp_runtime_torch, DTP_CP_ALL_GATHER), 16);
    assert_int_equal(sent.count[DTP_ALL_GATHER], MICRO_STEPS * LAYERS * 2);
    assert_near(sent.sent[DTP_ALL_GATHER], MICRO_STEPS * LAYERS * 2 * 3 * 2 * keys, 0);
    assert_int_equal(sent.count[DTP_SEND_RECV], MICRO_STEPS * LAYERS * 4);
    assert_near(sent.sent[DTP_SEND_RECV], MICRO_STEPS * LAYERS * 4 * 2 * 2 * keys, 0);
    sent = traffic(grouped(), shared_by(&dtp_runtime_torch, DTP_CP_P2P), 16);
    assert_int_equal(sent.count[DTP_ALL_GATHER], 0);
    assert_int_equal(sent.count[DTP_SEND_RECV], MICRO_STEPS * LAYERS * (3 + 3 + 4));
}

static const struct {
    const struct dtp_runtime *runtime;
    enum dtp_cp_comm cp_comm;
} ways[] = {{&dtp_runtime_megatron, DTP_CP_P2P},     {&dtp_runtime_megatron, DTP_CP_ALL_GATHER},
            {&dtp_runtime_megatron, DTP_CP_A2A},     {&dtp_runtime_megatron, DTP_CP_A2A_P2P},
            {&dtp_runtime_torch, DTP_CP_ALL_GATHER}, {&dtp_runtime_torch, DTP_CP_P2P},
            {&dtp_runtime_deepspeed, DTP_CP_A2A}};
#define WAYS (sizeof ways / sizeof *ways)

/* Causal attention of the whole sequence, forward 2 s d_q a token and 2.5 times that backward, is shared out evenly,
 * however: exactly, for zigzag balances it. So are all other FLOPs. */
static void test_flops(void **state)
{
    (void)state;
    const double core = 2.0 * SEQUENCE * 32 * 128, micro_steps = MICRO_STEPS * LAYERS;
    for (size_t i = 0; i < WAYS; i++) {
        struct dtp_transformer t = grouped();
        struct dtp_plan plan = shared_by(ways[i].runtime, ways[i].cp_comm);
        struct dtp_program *program = lower_on(&t, &plan, 16);
        struct dtp_program_totals totals;
        dtp_program_sum(program, &totals);
        assert_near(totals.attention_flops, 3.5 * core * tokens * micro_steps, 0);
        assert_near(totals.matmul_flops, 6 * (double)dtp_transformer_count(&t).matmul * tokens * MICRO_STEPS, 1e-12);
        dtp_program_destroy(program);
    }
}

/* A ring's cores: the diagonal, of 2048 queries and keys, then blocks of half as many keys. Gathered, the rank that has
 * the first and the last 1024 tokens has a core for each. */
static void test_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < WAYS; i++) {
        struct dtp_transformer t = grouped();
        struct dtp_plan plan = shared_by(ways[i].runtime, ways[i].cp_comm);
        struct dtp_program *program = lower_on(&t, &plan, 16);
        bool exchanged = plan.cp_comm == DTP_CP_A2A || plan.cp_comm == DTP_CP_A2A_P2P;
        bool by_pieces = plan.cp_comm == DTP_CP_ALL_GATHER && plan.runtime == &dtp_runtime_megatron;
        uint32_t step = 0, steps = exchanged ? 1 : by_pieces ? 2 : CP, cores = 0;
        for (size_t o = 0; o < dtp_program_op_count(program); o++) {
            const struct dtp_op *op = &dtp_program_ops(program)[o];
            const struct dtp_attention_shape *shape = &op->demand->attention;
            if (op->kind != DTP_OP_ATTENTION)
                continue;
            cores++;
            assert_int_equal(shape->heads, exchanged ? 8 : 32);
            assert_int_equal(shape->queries, exchanged ? 8192 : by_pieces ? 1024 : 2048);
            assert_int_equal(shape->keys, exchanged   ? 8192
                                          : by_pieces ? (step == 0 ? 1024 : 8192)
                                          : step == 0 ? 2048
                                                      : 1024);
            assert_int_equal(shape->causal, exchanged || by_pieces || step == 0);
            step = (step + 1) % steps;
        }
        assert_int_equal(cores, steps * MICRO_STEPS * LAYERS);
        dtp_program_destroy(program);
    }
}

/* A model without positions in its attention hands over what its matmul made; each kind of checkpointing, several
 * sequences at once, two layers only. */
static void test_closed_form(void **state)
{
    (void)state;
    const enum dtp_checkpointing kept[] = {DTP_CHECKPOINT_NONE, DTP_CHECKPOINT_FULL, DTP_CHECKPOINT_SELECTIVE_ATTENTION,
                                           DTP_CHECKPOINT_SELECTIVE_MATMUL};
    struct dtp_cluster cluster = cluster_of(16);
    for (size_t i = 0; i < WAYS * 4 * 2; i++) {
        struct dtp_transformer t = grouped();
        struct dtp_plan plan = shared_by(ways[i % WAYS].runtime, ways[i % WAYS].cp_comm);
        struct dtp_communication closed;
        struct dtp_program_totals totals;
        plan.checkpointing = kept[i / WAYS % 4];
        plan.micro_batch = 3;
        t.layers = 2;
        t.position = i / WAYS / 4 ? DTP_POSITION_LEARNED : DTP_POSITION_ROPE;
        t.positions = SEQUENCE;
        if (plan.checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL && plan.runtime != &dtp_runtime_torch)
            continue;
        struct dtp_program *program = lower_on(&t, &plan, 16);
        dtp_program_sum(program, &totals);
        dtp_closed_form_communication(&t, &cluster, &plan, &closed);
        for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++) {
            assert_int_equal(totals.count[c], closed.count[c]);
            assert_int_equal(totals.sent_bytes[c], closed.bytes[c]);
        }
        assert_near(totals.matmul_flops + totals.attention_flops, dtp_closed_form_hardware_flops(&t, &cluster, &plan),
                    1e-12);
        dtp_program_destroy(program);
    }
}

/* A compiled block keeps what it gathered, 4 times the keys and values of 2048 tokens, and backward gathers none: but
 * under op-level checkpointing, which keeps no collective's result. */
static void test_kept_keys(void **state)
{
    (void)state;
    const struct {
        enum dtp_checkpointing checkpointing;
        int gathers; /* of a layer and micro-step */
        bool kept;
    } cases[] = {{DTP_CHECKPOINT_NONE, 1, true},
                 {DTP_CHECKPOINT_FULL, 2, true},
                 {DTP_CHECKPOINT_SELECTIVE_ATTENTION, 2, true},
                 {DTP_CHECKPOINT_SELECTIVE_MATMUL, 2, false}};
    struct dtp_cluster cluster = cluster_of(16);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dtp_transformer t = grouped();
        struct dtp_plan plan = shared_by(&dtp_runtime_torch, DTP_CP_ALL_GATHER);
        struct dtp_communication closed;
        struct dtp_program_totals totals;
        struct dtp_layer_tensors tensors;
        plan.compile = true, plan.checkpointing = cases[i].checkpointing;
        struct dtp_program *program = lower_on(&t, &plan, 16);
        dtp_program_sum(program, &totals);
        dtp_closed_form_communication(&t, &cluster, &plan, &closed);
        assert_int_equal(traffic_of(program).count[DTP_ALL_GATHER], cases[i].gathers * MICRO_STEPS * LAYERS);
        assert_int_equal(totals.count[DTP_ALL_GATHER], closed.count[DTP_ALL_GATHER]);
        assert_int_equal(totals.sent_bytes[DTP_ALL_GATHER], closed.bytes[DTP_ALL_GATHER]);
        dtp_layer_tensors_of(&t, DTP_LAYER_DENSE, &cluster, &plan, &tensors);
        assert_int_equal(tensors.bytes[DTP_TENSOR_KV_ALL], cases[i].kept ? CP * 2 * KV_HEADS * 128 * 2 : 0);
        dtp_program_destroy(program);
    }
}

/* Gradients are summed and state is sharded over all 16 ranks, 4 of which share a sequence. */
static void test_shards(void **state)
{
    (void)state;
    for (size_t i = 0; i < WAYS; i++) {
        struct dtp_transformer t = grouped();
        struct dtp_plan plan = shared_by(ways[i].runtime, ways[i].cp_comm);
        struct dtp_program *program = lower_on(&t, &plan, 16);
        assert_int_equal(plan.shard_group, 16);
        for (size_t o = 0; o < dtp_program_op_count(program); o++) {
            const struct dtp_op *op = &dtp_program_ops(program)[o];
            if (op->stream == DTP_STREAM_REDUCE && dtp_op_kind_class(op->kind) == DTP_CLASS_COLLECTIVE)
                assert_int_equal(dtp_program_groups(program)[op->group].ranks, 16);
        }
        dtp_program_destroy(program);
    }
}

static void refused(struct dtp_plan plan, struct dtp_transformer t, const char *words)
{
    static struct dtp_faults faults;
    struct dtp_cluster cluster = cluster_of(16);
    memset(&faults, 0, sizeof faults);
    assert_int_not_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_OK);
    assert_said(&faults, words);
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_transformer t = grouped();
    struct dtp_plan plan = shared_by(&dtp_runtime_torch, DTP_CP_A2A);
    refused(plan, t, "cp_comm: a2a is not modelled under runtime torch, which has p2p, all_gather");
    plan = shared_by(&dtp_runtime_deepspeed, DTP_CP_P2P);
    refused(plan, t, "cp_comm: p2p is not modelled under runtime deepspeed, which has a2a");
    plan = shared_by(&dtp_runtime_deepspeed, DTP_CP_A2A);
    plan.deepspeed.sequence_dtype = DTP_FP16;
    refused(plan, t, "seq_parallel_communication_data_type: is fp32 or what gradients are made in, bf16, not fp16");
    plan = shared_by(&dtp_runtime_torch, DTP_CP_P2P);
    plan.strategy = DTP_DDP;
    refused(plan, t, "cp: above 1 goes with FSDP2 alone in PyTorch, not with ddp; use strategy full_shard");
    plan = shared_by(&dtp_runtime_torch, DTP_CP_P2P);
    plan.attention = DTP_ATTENTION_MATH;
    refused(plan, t, "attention: math has no parts that context parallel ranks could merge; use flash");
    plan = shared_by(&dtp_runtime_torch, DTP_CP_P2P);
    plan.shard_group = 2, plan.strategy = DTP_HYBRID_SHARD;
    refused(plan, t, "shard_group: 2 is not a multiple of cp 4, whose ranks shard as well");
    plan = shared_by(&dtp_runtime_megatron, DTP_CP_P2P);
    plan.sequence = 8188;
    refused(plan, t, "cp: 4 x 2 pieces a rank do not divide seq 8188; the nearest that fits is 2");
    t.sliding_window = 4096;
    refused(shared_by(&dtp_runtime_megatron, DTP_CP_P2P), t, "sliding_window: with cp is modelled where");
    t = grouped(), t.kv_heads = 2;
    refused(shared_by(&dtp_runtime_megatron, DTP_CP_A2A), t,
            "a2a over 4 ranks does not divide 32 heads and 2 key/value");
}

/* Groups that exchange lie in a node and divide those that share a sequence. */
static void test_exchanges_divide_ranks(void **state)
{
    static const struct {
        uint32_t cp, tp, exchanged;
    } rows[] = {{4, 1, 4}, {8, 1, 8}, {16, 1, 8}, {12, 1, 4}, {6, 1, 2}, {6, 2, 2}, {16, 2, 4}, {4, 8, 1}, {4, 16, 4}};
    (void)state;
    struct dtp_cluster cluster = cluster_of(64);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_plan plan = shared_by(&dtp_runtime_megatron, DTP_CP_A2A_P2P);
        plan.cp = rows[i].cp, plan.tp = rows[i].tp;
        struct dtp_context context = dtp_plan_context(&plan, &cluster);
        assert_int_equal(context.exchanged, rows[i].exchanged);
        assert_int_equal(context.ring * context.exchanged, rows[i].cp);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),    cmocka_unit_test(test_gathered),  cmocka_unit_test(test_exchanged),
        cmocka_unit_test(test_ulysses), cmocka_unit_test(test_both),      cmocka_unit_test(test_walked),
        cmocka_unit_test(test_flops),   cmocka_unit_test(test_steps),     cmocka_unit_test(test_closed_form),
        cmocka_unit_test(test_shards),  cmocka_unit_test(test_kept_keys), cmocka_unit_test(test_exchanges_divide_ranks),
        cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
