/* Ranks that divide experts: what they send, hold and wait for, counted by hand. */
#include "closed/closed_form.h"
#include "closed/closed_form_hooks.h"
#include "cost/collective_cost.h"
#include "lower/lower.h"
#include "plan/graph_modules.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/lowered_job.h"
#include "lib/random_mixed.h"
#include "lib/said.h"

/* Three layers of 8 experts of which a token goes to 2: h 256, f 192, T = 2 x 128 tokens of a rank, bf16. Weights of a
 * layer that are no experts': attention 2 x 256 x 256 + 2 x 256 x 128 = 196,608, router 8 x 256 = 2,048, norms 512; of
 * one expert 3 x 256 x 192 = 147,456. */
#define TOKENS 256u
#define ROWS (TOKENS * 2u * 256u * 2u) /* bytes that a rank sends to experts */
#define EXPERT 147456u
#define LAYERS 3u

static struct dtp_transformer model(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = LAYERS, t.hidden = 256, t.heads = 4, t.kv_heads = 2, t.head_dim = 64, t.ffn = 192, t.vocab = 1000;
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192;
    return t;
}

static struct dtp_plan asked(uint32_t ep)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.strategy = DTP_FULL_SHARD, plan.sequence = 128, plan.micro_batch = 2, plan.ep = ep;
    return plan;
}

static void resolve(struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    const struct dtp_transformer t = model();
    resolve_plan(plan, &t, cluster);
}

static struct dtp_program *lowered(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    const struct dtp_transformer t = model();
    return lowered_job(&t, cluster, plan);
}

/* Of 8 GPUs 4 divide the experts, each with 2 of them; 2 have the same ones. Dispatch and combine, forward and back: 4
 * all-to-alls of 3/4 of the rows a layer, and one of 8 bytes an expert. The weights of 2 experts, in bf16, are gathered
 * by the other rank that has them for forward and again for backward: 1/2 of each; their fp32 gradients are reduced. */
static void test_sent_bytes(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = asked(4);
    struct dtp_communication sent;
    const struct dtp_transformer t = model();
    resolve(&plan, &cluster);
    dtp_closed_form_communication(&t, &cluster, &plan, &sent);
    assert_int_equal(sent.bytes[DTP_ALL_TO_ALL], LAYERS * (4 * (ROWS / 4 * 3) + 64 / 4 * 3));
    assert_int_equal(sent.count[DTP_ALL_TO_ALL], LAYERS * 5);
    assert_int_equal(sent.experts[DTP_ALL_GATHER].bytes, LAYERS * 2 * (2 * EXPERT * 2 / 2));
    assert_int_equal(sent.experts[DTP_ALL_GATHER].count, LAYERS * 2);
    assert_int_equal(sent.experts[DTP_REDUCE_SCATTER].bytes, LAYERS * (2 * EXPERT * 4 / 2));
    /* the rest of a layer, 199,168 parameters, in all of 8: 7/8 of them twice; embedding, head and norm once each way
     */
    uint64_t dense = 196608 + 2048 + 512, root = 2 * 1000 * 256 + 256;
    assert_int_equal(sent.bytes[DTP_ALL_GATHER] - sent.experts[DTP_ALL_GATHER].bytes,
                     2 * (LAYERS * dense + root) * 2 / 8 * 7);
}

/* A layer that runs again exchanges again. Its experts are gathered once for the replay and the backward behind it: a
 * forward within a backward reshards nothing (FSDPParamGroup.post_forward, is_bw). */
static void test_replays_send_again(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = asked(4);
    struct dtp_communication sent;
    const struct dtp_transformer t = model();
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    resolve(&plan, &cluster);
    dtp_closed_form_communication(&t, &cluster, &plan, &sent);
    assert_int_equal(sent.bytes[DTP_ALL_TO_ALL], LAYERS * (6 * (ROWS / 4 * 3) + 2 * 64 / 4 * 3));
    assert_int_equal(sent.experts[DTP_ALL_GATHER].count, LAYERS * 2);
    dtp_program_destroy(lowered(&plan, &cluster));
}

static uint64_t most_bytes(const struct dtp_program *program, const char *name)
{
    uint64_t most = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (strcmp(dtp_program_buffers(program)[i].name, name) == 0 && dtp_program_buffers(program)[i].bytes > most)
            most = dtp_program_buffers(program)[i].bytes;
    return most;
}

/* The fullest rank holds rows by what it receives, up and gate of 192 for each; what it sends and what comes back is
 * as much as ever. Its matmuls are of those rows: 6 x 256 x 192 x 3 FLOPs each, both ways. */
static void test_imbalance(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    for (int uneven = 0; uneven < 2; uneven++) {
        struct dtp_plan plan = asked(4);
        plan.expert_imbalance = uneven ? 1.5 : 1;
        resolve(&plan, &cluster);
        struct dtp_program *program = lowered(&plan, &cluster);
        uint64_t received = uneven ? ROWS / 2 * 3 : ROWS;
        assert_int_equal(most_bytes(program, "tokens by ranks"), ROWS);
        assert_int_equal(most_bytes(program, "tokens received"), received);
        assert_int_equal(most_bytes(program, "tokens by experts"), received);
        assert_int_equal(most_bytes(program, "up"), received / 256 * 192);
        assert_int_equal(most_bytes(program, "results returned"), ROWS);
        double flops = 0;
        for (size_t i = 0; i < dtp_program_op_count(program); i++) {
            const struct dtp_op *op = &dtp_program_ops(program)[i];
            flops += op->kind == DTP_OP_GROUPED_MATMUL ? op->demand->flops : 0;
            assert_true(op->kind != DTP_OP_GROUPED_MATMUL || op->demand->groups == 2);
        }
        assert_true(flops == LAYERS * 6.0 * EXPERT * (double)(received / 512));
        dtp_program_destroy(program);
    }
}

/* The host waits once a layer. Experts are a unit of their own within each block's: with the root, 7 of them, gathered
 * twice; alone (ep 8), an expert is a copy. At rest a rank has an eighth of the rest and of 2 experts the half. */
static void test_units(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = asked(4);
    resolve(&plan, &cluster);
    struct dtp_program *program = lowered(&plan, &cluster);
    assert_int_equal(count_of(program, DTP_OP_HOST_WAIT), LAYERS);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 14);
    assert_int_equal(count_of(program, DTP_OP_REDUCE_SCATTER), 7);
    uint64_t params = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        params += dtp_program_buffers(program)[i].owner == DTP_OWNER_PARAMS ? dtp_program_buffers(program)[i].bytes : 0;
    uint64_t shared = LAYERS * (196608 + 2048 + 512) + 2 * 1000 * 256 + 256;
    assert_int_equal(params, 4 * (shared / 8 + LAYERS * 2 * EXPERT / 2));
    dtp_program_destroy(program);
    plan = asked(8);
    resolve(&plan, &cluster);
    program = lowered(&plan, &cluster);
    assert_int_equal(count_of(program, DTP_OP_ALL_GATHER), 8);
    dtp_program_destroy(program);
}

/* Of 16 ranks on two nodes 8 of a rank's 15 peers are on the other one, and 8 ranks share the node's network: 64 / 15
 * times as long as a ring that is bound by it. */
static void test_between_nodes(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    cluster.machine.network_bytes_per_s = 50e9;
    struct dtp_group group = dtp_group_of(&cluster, 16, 1);
    struct dtp_collective_cost ring = dtp_collective_cost(&cluster, &group, DTP_ALL_GATHER);
    struct dtp_collective_cost all = dtp_collective_cost(&cluster, &group, DTP_ALL_TO_ALL);
    double ratio = dtp_collective_time(&all, 1e11) / dtp_collective_time(&ring, 1e11);
    assert_float_equal(ratio, 64.0 / 15, 0.01);
}

/* ---- Megatron-Core ----------------------------------------------------------------------------------------------- */

static struct dtp_plan megatron(uint32_t ep)
{
    struct dtp_plan plan = asked(ep);
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1;
    return plan;
}

static void check_agreement(const struct dtp_program *program, const struct dtp_communication *sent)
{
    struct dtp_program_totals totals;
    dtp_program_sum(program, &totals);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        assert_int_equal(totals.sent_bytes[i], sent->bytes[i]);
        assert_int_equal(totals.count[i], sent->count[i]);
    }
}

/* The distributed optimizer: an fp32 gradient of 2 experts a layer is reduced over the 2 ranks that have them, the rest
 * over all 8, and 16-bit weights come back; master and moments of each are in as many shards. The rows go as under
 * torch. Nothing of them stands in fp32, nor by tokens. */
static void test_megatron(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = megatron(4);
    struct dtp_communication sent;
    const struct dtp_transformer t = model();
    resolve(&plan, &cluster);
    dtp_closed_form_communication(&t, &cluster, &plan, &sent);
    uint64_t experts = LAYERS * 2 * EXPERT, dense = LAYERS * (196608 + 2048 + 512) + 2 * 1000 * 256 + 256;
    assert_int_equal(sent.experts[DTP_REDUCE_SCATTER].bytes, experts * 4 / 2);
    assert_int_equal(sent.experts[DTP_ALL_GATHER].bytes, experts * 2 / 2);
    assert_int_equal(sent.bytes[DTP_REDUCE_SCATTER] - sent.experts[DTP_REDUCE_SCATTER].bytes, dense * 4 / 8 * 7);
    assert_int_equal(sent.bytes[DTP_ALL_TO_ALL], LAYERS * (4 * (ROWS / 4 * 3) + 64 / 4 * 3));
    struct dtp_program *program = lowered(&plan, &cluster);
    check_agreement(program, &sent);
    uint64_t state_bytes = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        state_bytes +=
            dtp_program_buffers(program)[i].owner == DTP_OWNER_OPTIMIZER ? dtp_program_buffers(program)[i].bytes : 0;
    assert_int_equal(state_bytes, 12 * (dense / 8 + experts / 2));
    assert_int_equal(most_bytes(program, "results by tokens in fp32"), 0);
    assert_int_equal(most_bytes(program, "results by tokens"), 0);
    assert_int_equal(count_of(program, DTP_OP_HOST_WAIT), LAYERS);
    dtp_program_destroy(program);
}

/* Experts divided among 2, each of them among 2: a rank has half the width of 4 a layer, which one other has as well.
 * Rows go to experts within pairs; of 2 ranks those that came are gathered, 2 x ROWS, of which each sends a half, and
 * summed on the way back, and as much backward. FLOPs are those of 4 ranks with 2 experts each: twice the rows, half
 * the width. Where the fullest receives 1.5 times the mean, so many rows are gathered. */
static void test_parts_of_experts(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = megatron(2), whole = megatron(4);
    struct dtp_communication sent;
    struct dtp_program_totals parts, alone;
    const struct dtp_transformer t = model();
    plan.megatron.etp = 2;
    resolve(&plan, &cluster);
    resolve(&whole, &cluster);
    dtp_closed_form_communication(&t, &cluster, &plan, &sent);
    uint64_t experts = LAYERS * 4 * EXPERT / 2, dense = LAYERS * (196608 + 2048 + 512) + 2 * 1000 * 256 + 256;
    assert_int_equal(sent.experts[DTP_REDUCE_SCATTER].bytes, experts * 4 / 2);
    assert_int_equal(sent.expert_rows.count, LAYERS * 2);
    assert_int_equal(sent.expert_rows.bytes, LAYERS * 2 * ROWS);
    assert_int_equal(sent.bytes[DTP_ALL_TO_ALL], LAYERS * (4 * (ROWS / 2) + 64 / 2));
    struct dtp_program *program = lowered(&plan, &cluster), *other = lowered(&whole, &cluster);
    check_agreement(program, &sent);
    dtp_program_sum(program, &parts);
    dtp_program_sum(other, &alone);
    assert_true(parts.matmul_flops > 0 && fabs(parts.matmul_flops / alone.matmul_flops - 1) < 1e-12);
    assert_int_equal(most_bytes(program, "rows for parts of experts"), 2 * ROWS);
    uint64_t state_bytes = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        state_bytes +=
            dtp_program_buffers(program)[i].owner == DTP_OWNER_OPTIMIZER ? dtp_program_buffers(program)[i].bytes : 0;
    assert_int_equal(state_bytes, 12 * (dense / 8 + experts / 2));
    dtp_program_destroy(program);
    dtp_program_destroy(other);
    plan = megatron(2), plan.megatron.etp = 2, plan.expert_imbalance = 1.5;
    resolve(&plan, &cluster);
    program = lowered(&plan, &cluster);
    assert_int_equal(most_bytes(program, "rows for parts of experts"), 3 * ROWS);
    dtp_program_destroy(program);
}

/* Replays, replicated parameters, several micro-steps, more experts on a rank or one. */
static void test_megatron_agrees(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    const struct dtp_transformer t = model();
    for (int i = 0; i < 16; i++) {
        struct dtp_plan plan = megatron(1u << i % 4);
        struct dtp_communication sent;
        plan.strategy = i & 4 ? DTP_DDP : DTP_ZERO1;
        plan.checkpointing = i & 8 ? DTP_CHECKPOINT_FULL : DTP_CHECKPOINT_NONE;
        plan.accumulate = 1 + (uint32_t)i / 4;
        resolve(&plan, &cluster);
        dtp_closed_form_communication(&t, &cluster, &plan, &sent);
        struct dtp_program *program = lowered(&plan, &cluster);
        check_agreement(program, &sent);
        dtp_program_destroy(program);
    }
}

static void sum_permutes(const struct dtp_program *program, double bytes[4], size_t *named_by_ranks)
{
    static const enum dtp_op_kind kinds[4] = {DTP_OP_PERMUTE, DTP_OP_UNPERMUTE, DTP_OP_UNPERMUTE_BACKWARD,
                                              DTP_OP_PERMUTE_BACKWARD};
    *named_by_ranks = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        for (int k = 0; k < 4; k++)
            bytes[k] += op->kind == kinds[k] ? op->demand->bytes : 0;
        *named_by_ranks += op->kind == DTP_OP_PERMUTE && strcmp(op->name, "by ranks") == 0;
    }
}

/* Of 8 ranks of one node a token's 2 experts are on 8 (1 - (7/8)^2) = 1.875, of two nodes on 2 (1 - 1/4) = 1.5. Rows go
 * from where tokens lie and come back as their sum: what a rank receives, and returns, is 1.875 / 2 of ROWS, a row for
 * each token that has any of its experts, which is written for each of them, or their results added up to it. */
static void test_flex_dispatcher(void **state)
{
    (void)state;
    const struct dtp_transformer t = model();
    for (uint32_t nodes = 1; nodes < 3; nodes++) {
        struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8 / nodes);
        struct dtp_plan plan = megatron(8);
        struct dtp_communication sent;
        plan.megatron.flex_dispatcher = true;
        resolve(&plan, &cluster);
        dtp_closed_form_communication(&t, &cluster, &plan, &sent);
        uint64_t rows = (uint64_t)(ROWS / 2 * (nodes == 1 ? 1.875 : 1.5));
        assert_int_equal(sent.bytes[DTP_ALL_TO_ALL], LAYERS * (4 * (rows / 8 * 7) + 8 * 7));
        struct dtp_program *program = lowered(&plan, &cluster);
        const double came = ROWS / 2 * 1.875;
        double bytes[4] = {0};
        size_t by_ranks;
        assert_int_equal(most_bytes(program, "tokens by ranks"), 0);
        assert_int_equal(most_bytes(program, "results returned"), 0);
        assert_true((double)most_bytes(program, "tokens received") == came);
        sum_permutes(program, bytes, &by_ranks);
        assert_int_equal(by_ranks, 0);
        assert_true(bytes[0] == LAYERS * (came + ROWS + TOKENS * 2 * 64));
        for (int k = 1; k < 4; k++)
            assert_true(bytes[k] == LAYERS * (came + ROWS));
        assert_int_equal(count_of(program, DTP_OP_HOST_EXCHANGE), LAYERS * 2);
        dtp_program_destroy(program);
    }
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = megatron(8); /* one graph of all passes: nothing is issued by itself */
    plan.megatron.graphs = 1u << DTP_GRAPH_FULL_ITERATION;
    resolve(&plan, &cluster);
    struct dtp_program *program = lowered(&plan, &cluster);
    assert_int_equal(count_of(program, DTP_OP_HOST_EXCHANGE), 0);
    assert_true(most_bytes(program, "tokens by ranks") == ROWS);
    dtp_program_destroy(program);
}

/* Two tensor parallel ranks have half of the tokens each: rows that go to experts are halved, experts of 4 of 8 ranks
 * are reduced over 2 of all 8, whatever slice of the rest these have. Heads, the shared MLP and the vocabulary are
 * halved; a layer gathers and scatters around attention, and around the shared experts where there are any. */
static void test_tensor_parallel(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    struct dtp_plan plan = megatron(4), alone = megatron(4);
    struct dtp_program_totals totals, whole;
    plan.tp = 2;
    resolve(&plan, &cluster);
    resolve(&alone, &cluster);
    assert_int_equal(dtp_plan_expert_replicas(&plan, &cluster), 2);
    assert_int_equal(dtp_plan_expert_shard_ranks(&cluster, &plan), 2);
    struct dtp_plan replicated = plan;
    replicated.strategy = DTP_DDP; /* whose ranks have whole states, of experts too */
    assert_int_equal(dtp_plan_expert_shard_ranks(&cluster, &replicated), 1);
    assert_int_equal(dtp_plan_expert_workspaces(&plan, &cluster.gpu), 5 * 32 * 1024 * 1024);
    struct dtp_program *program = lowered(&plan, &cluster), *undivided = lowered(&alone, &cluster);
    dtp_program_sum(program, &totals);
    dtp_program_sum(undivided, &whole);
    assert_int_equal(totals.sent_bytes[DTP_ALL_TO_ALL], LAYERS * (4 * (ROWS / 2 / 4 * 3) + 64 / 4 * 3));
    assert_int_equal(totals.count[DTP_ALL_TO_ALL], whole.count[DTP_ALL_TO_ALL]);
    assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
    /* half of a micro-step's tokens or half of each matrix: half of all FLOPs */
    assert_true(fabs(totals.matmul_flops + totals.attention_flops - (whole.matmul_flops + whole.attention_flops) / 2) <
                1e-9 * whole.matmul_flops);
    struct dtp_slice slice;
    struct dtp_communication sent;
    plan.runtime->closed->slice(&t, &cluster, &plan, &slice);
    dtp_closed_form_communication(&slice.transformer, &slice.cluster, &slice.plan, &sent);
    assert_int_equal(totals.sent_bytes[DTP_ALL_TO_ALL], sent.bytes[DTP_ALL_TO_ALL]);
    uint64_t experts = LAYERS * 2 * EXPERT;
    assert_int_equal(sent.experts[DTP_REDUCE_SCATTER].bytes, experts * 4 / 2);
    dtp_program_destroy(program);
    dtp_program_destroy(undivided);
}

static size_t before_first(const struct dtp_program *program, enum dtp_op_kind kind)
{
    size_t at = 0;
    while (at < dtp_program_op_count(program) && dtp_program_ops(program)[at].kind != kind)
        at++;
    return at;
}

/* Beside compute as many bytes are reduced and gathered as behind it, those of experts among their own ranks. The step
 * begins with gathers. */
static void test_beside_compute(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    for (uint32_t ep = 2; ep <= 8; ep *= 2) {
        struct dtp_plan behind = megatron(ep), beside = behind;
        struct dtp_program_totals totals[2];
        beside.megatron.overlap = true;
        resolve(&behind, &cluster);
        resolve(&beside, &cluster);
        struct dtp_program *before = lowered(&behind, &cluster), *program = lowered(&beside, &cluster);
        assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
        dtp_program_sum(before, &totals[0]);
        dtp_program_sum(program, &totals[1]);
        for (int kind = 0; kind < DTP_COLLECTIVE_COUNT; kind++)
            assert_int_equal(totals[1].sent_bytes[kind], totals[0].sent_bytes[kind]);
        assert_int_equal(most_bytes(program, "gradient buffer"), most_bytes(before, "gradient buffer"));
        assert_true(before_first(program, DTP_OP_ALL_GATHER) < before_first(program, DTP_OP_ATTENTION));
        assert_true(before_first(before, DTP_OP_ALL_GATHER) > before_first(before, DTP_OP_ATTENTION));
        dtp_program_destroy(before);
        dtp_program_destroy(program);
    }
}

static void expect_fault(struct dtp_plan plan, const struct dtp_transformer *t, const char *part)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_plan_resolve(&plan, t, &cluster, &faults), DTP_BAD_INPUT);
    assert_said(&faults, part);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = model(), dense = t;
    dense.experts = dense.experts_per_token = dense.expert_ffn = 0;
    struct dtp_plan plan = asked(4);
    expect_fault(plan, &dense, "divides experts, of which this model has none");
    expect_fault(asked(3), &t, "does not divide 8 experts");
    t.experts = 16;
    expect_fault(asked(16), &t, "does not divide the 8 GPUs");
    plan.strategy = DTP_DDP;
    expect_fault(plan, &t, "goes with FSDP2 alone");
    plan = asked(4), plan.wrap_layers = 2;
    expect_fault(plan, &t, "wrap_layers");
    plan = asked(4), plan.expert_imbalance = 4.5;
    expect_fault(plan, &t, "where one rank receives all tokens");
    plan = asked(1), plan.expert_imbalance = 1.5;
    expect_fault(plan, &t, "expert parallelism (ep above 1)");
    plan = megatron(1), plan.tp = 2;
    expect_fault(plan, &t, "tp: with experts is modelled where ranks divide these");
    plan = megatron(4), plan.tp = 2, plan.sequence_parallel = false;
    expect_fault(plan, &t, "sequence_parallel: is how tensor parallel ranks share tokens out");
    plan = megatron(4), plan.strategy = DTP_ZERO2;
    expect_fault(plan, &t, "is not modelled with experts under runtime megatron");
    plan = megatron(4), plan.megatron.overlap = true, plan.pp = 2, plan.accumulate = 4;
    plan.schedule = DTP_SCHEDULE_ZB_H1;
    expect_fault(plan, &t, "megatron_overlap");
    plan = megatron(1), plan.megatron.flex_dispatcher = true;
    expect_fault(plan, &t, "flex_dispatcher");
    plan = megatron(2), plan.megatron.flex_dispatcher = true, plan.megatron.etp = 2;
    expect_fault(plan, &t, "flex_dispatcher");
    plan = megatron(1), plan.megatron.etp = 2;
    expect_fault(plan, &t, "etp");
    plan = megatron(2), plan.megatron.etp = 5;
    expect_fault(plan, &t, "etp");
    plan = asked(2), plan.runtime = &dtp_runtime_nanotron, plan.strategy = DTP_ZERO1;
    expect_fault(plan, &t, "expert parallelism (deepspeed, megatron, torch)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sent_bytes),       cmocka_unit_test(test_replays_send_again),
        cmocka_unit_test(test_imbalance),        cmocka_unit_test(test_units),
        cmocka_unit_test(test_megatron),         cmocka_unit_test(test_megatron_agrees),
        cmocka_unit_test(test_between_nodes),    cmocka_unit_test(test_flex_dispatcher),
        cmocka_unit_test(test_parts_of_experts), cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_beside_compute),   cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
