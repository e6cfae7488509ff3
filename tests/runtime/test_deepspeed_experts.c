/* Experts under DeepSpeed's stages 1 and 2: AutoEP, whose layers are torchtitan's of 2025, and its own layer, counted
 * by hand. */
#include "closed/closed_form.h"
#include "closed/closed_form_hooks.h"
#include "lower/lower.h"
#include "plan/layer_tensors.h"
#include "plan/slice.h"
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

/* Three layers of 8 experts of which a token goes to 2: h 256, f 192, T = 2 x 128 tokens of a rank, bf16. Weights of a
 * layer that are no experts': attention 2 x 256 x 256 + 2 x 256 x 128 = 196,608, router 8 x 256 = 2,048, norms 512; of
 * one expert 3 x 256 x 192 = 147,456. Embedding, head and the last norm 2 x 256,000 + 256. */
#define TOKENS 256u
#define ROWS (TOKENS * 2u * 256u * 2u) /* bytes of rows, two for each token */
#define EXPERT UINT64_C(147456)
#define LAYERS 3u
#define DENSE (LAYERS * UINT64_C(199168) + 512256)

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
    plan.runtime = &dtp_runtime_deepspeed, plan.strategy = DTP_ZERO2, plan.deepspeed.autoep = true;
    plan.sequence = 128, plan.micro_batch = 2, plan.ep = ep, plan.optimizer = DTP_ADAMW_FUSED;
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

static void check_agreement(const struct dtp_program *program, const struct dtp_communication *sent)
{
    struct dtp_program_totals totals;
    dtp_program_sum(program, &totals);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        assert_int_equal(totals.sent_bytes[i], sent->bytes[i]);
        assert_int_equal(totals.count[i], sent->count[i]);
    }
}

static uint64_t most_bytes(const struct dtp_program *program, const char *name)
{
    uint64_t most = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (strcmp(dtp_program_buffers(program)[i].name, name) == 0 && dtp_program_buffers(program)[i].bytes > most)
            most = dtp_program_buffers(program)[i].bytes;
    return most;
}

static uint64_t owned_bytes(const struct dtp_program *program, enum dtp_owner owner)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        bytes += dtp_program_buffers(program)[i].owner == owner ? dtp_program_buffers(program)[i].bytes : 0;
    return bytes;
}

/* Of 8 GPUs 4 divide the experts, 2 of a layer each; 2 have the same ones. In bf16 gradients are all-reduced, 2 x 1/2
 * of the experts' over 2 ranks, 2 x 7/8 of the rest over 8, and updated weights gathered; all fit into one bucket, of
 * which each of the two groups is a reduction. Rows go to experts and back, forward and backward: 3/4 of them; with
 * each dispatch 8 bytes an expert. */
static void test_sent_bytes(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    for (int stage = 1; stage <= 2; stage++) {
        struct dtp_plan plan = asked(4);
        struct dtp_communication sent;
        plan.strategy = stage == 1 ? DTP_ZERO1 : DTP_ZERO2;
        resolve(&plan, &cluster);
        dtp_closed_form_communication(&t, &cluster, &plan, &sent);
        const uint64_t experts = LAYERS * 2 * EXPERT;
        assert_int_equal(sent.experts[DTP_ALL_REDUCE].bytes, 2 * (experts * 2 / 2));
        assert_int_equal(sent.experts[DTP_ALL_GATHER].bytes, experts * 2 / 2);
        assert_int_equal(sent.bytes[DTP_ALL_REDUCE], 2 * (experts * 2 / 2) + 2 * (DENSE * 2 / 8 * 7));
        assert_int_equal(sent.bytes[DTP_ALL_GATHER], experts * 2 / 2 + DENSE * 2 / 8 * 7);
        assert_int_equal(sent.count[DTP_ALL_REDUCE], 2);
        assert_int_equal(sent.count[DTP_ALL_GATHER], 2);
        assert_int_equal(sent.bytes[DTP_ALL_TO_ALL], LAYERS * (4 * (ROWS / 4 * 3) + 64 / 4 * 3));
        struct dtp_program *program = lowered(&plan, &cluster);
        check_agreement(program, &sent);
        dtp_program_destroy(program);
    }
}

/* Buckets of 300,000 elements: head and norm | down, gate and up of 2 experts (98,304 each), router | output, q, k, v,
 * norms, the next layer's down | its gate, up, router, output | q, k, v, norms, the first layer's down | gate, up,
 * router, output | q, k, v, norms | embedding. Five have experts' gradients, and all have others. */
static void test_buckets(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    struct dtp_plan plan = asked(4);
    struct dtp_communication sent;
    plan.deepspeed.reduce_bucket_size = 300000;
    resolve(&plan, &cluster);
    dtp_closed_form_communication(&t, &cluster, &plan, &sent);
    assert_int_equal(sent.experts[DTP_ALL_REDUCE].count, 5);
    assert_int_equal(sent.count[DTP_ALL_REDUCE], 8 + 5);
    struct dtp_program *program = lowered(&plan, &cluster);
    check_agreement(program, &sent);
    assert_int_equal(most_bytes(program, "reduction bucket"), 2 * 300000);
    /* of the two that have the same experts each has whole buckets of them; of the dense, that of head and norm is the
     * largest that has slices of several */
    assert_int_equal(most_bytes(program, "flattened bucket"), 2 * 256256);
    dtp_program_destroy(program);
}

/* Whole weights of the rank's experts and the rest in bf16; an eighth of the latter's state and half of the former's:
 * fp32 weights and two moments. Stage 2 keeps such parts of the gradients too, each in fp32 in turn for its update. */
static void test_state(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    struct dtp_plan plan = asked(4);
    struct dtp_units units;
    struct dtp_state_bytes bytes;
    struct dtp_element_bytes element;
    resolve(&plan, &cluster);
    const uint64_t experts = LAYERS * 2 * EXPERT;
    struct dtp_program *program = lowered(&plan, &cluster);
    assert_int_equal(owned_bytes(program, DTP_OWNER_PARAMS), 2 * (DENSE + experts));
    assert_int_equal(owned_bytes(program, DTP_OWNER_OPTIMIZER), 12 * (DENSE / 8 + experts / 2));
    assert_int_equal(most_bytes(program, "gradients of the partition"), 2 * (experts / 2));
    assert_int_equal(most_bytes(program, "gradients in fp32"), 4 * (experts / 2));
    dtp_program_destroy(program);
    struct dtp_transformer own = dtp_plan_own_experts(&t, &plan);
    dtp_units_count(&own, &cluster, &plan, &units);
    dtp_element_bytes_count(&plan, &element);
    dtp_state_bytes_at_rest(&own, &cluster, &units, &plan, &element, &bytes);
    assert_int_equal(units.total, DENSE + experts);
    assert_int_equal(bytes.params, 2 * (DENSE + experts));
    assert_int_equal(bytes.grads, 2 * (DENSE / 8 + experts / 2));
    assert_int_equal(bytes.optimizer, 12 * (DENSE / 8 + experts / 2));
}

/* Rows that came stand beside a copy with a row of zeros; SwiGLU is one kernel, so that silu is no tensor; rows in fp32
 * and their products with the weights are, 2 x ROWS each. A product of experts is of the rows alone. */
static void test_rows(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = asked(4);
    resolve(&plan, &cluster);
    struct dtp_program *program = lowered(&plan, &cluster);
    assert_int_equal(most_bytes(program, "tokens received"), ROWS);
    assert_int_equal(most_bytes(program, "rows and one of zeros"), ROWS + 2 * 256);
    assert_int_equal(most_bytes(program, "silu of gate"), 0);
    assert_int_equal(most_bytes(program, "results by tokens in fp32"), 2 * ROWS);
    assert_int_equal(most_bytes(program, "weighed rows in fp32"), 2 * ROWS);
    assert_int_equal(most_bytes(program, "terms of weights' gradients"), 2 * ROWS);
    double flops = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        if (dtp_program_ops(program)[i].kind == DTP_OP_GROUPED_MATMUL)
            flops += dtp_program_ops(program)[i].demand->flops;
    assert_true(flops == LAYERS * 6.0 * (double)EXPERT * 2 * TOKENS);
    dtp_program_destroy(program);
}

/* Bytes that kernels around experts' matmuls move, of ROWS of 2 bytes an element. Forward: rows by ranks 2, stacked 2,
 * by experts 2, zeros 1, put back 2; by tokens 2; zeros of these 1 and a cast of them 1 + 2, products 2 + 2, a sum that
 * reads them 2. Backward: products of the gradient 2; with the rows 2 + 2, their sums 2; a cast 2 + 1; by tokens 2; a
 * slice's zeros and copy 3, by experts 2; and to tokens, by ranks, 4 and, sorted, the sum of a token's rows 3. Beside
 * them of T tokens: places 64 k forward, 128 k backward, twice; sums in fp32 and casts (8 + 2) h forward, (2 + 12) h
 * backward; the sum of rows begins with zeros of 2 h. */
static void test_moved(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = asked(4);
    double forward = 0, backward = 0;
    resolve(&plan, &cluster);
    struct dtp_program *program = lowered(&plan, &cluster);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bool there = op->kind == DTP_OP_PERMUTE || op->kind == DTP_OP_UNPERMUTE;
        bool back = op->kind == DTP_OP_PERMUTE_BACKWARD || op->kind == DTP_OP_UNPERMUTE_BACKWARD;
        forward += there ? op->demand->bytes : 0;
        backward += back ? op->demand->bytes : 0;
    }
    dtp_program_destroy(program);
    const double rows = ROWS, tokens = TOKENS, h = 256, k = 2;
    assert_true(forward == LAYERS * (21 * rows + tokens * (64 * k + 10 * h)));
    assert_true(backward == LAYERS * (25 * rows + tokens * (2 * 128 * k + 16 * h)));
}

/* ---- its own layer ----------------------------------------------------------------------------------------------- */

static struct dtp_plan slotted(uint32_t ep, double capacity)
{
    struct dtp_plan plan = asked(ep);
    plan.deepspeed.autoep = false, plan.megatron.capacity_factor = capacity;
    return plan;
}

/* A capacity of 1.5: 1.5 x ROWS of slots, 3/4 of which go to experts and back, forward and backward, without how many
 * there are. Each expert's matrices are tensors of their own, of 49,152 elements. Without dropping, where the fullest
 * expert has twice the mean, ranks agree on that beforehand: a maximum of 8 bytes a layer. */
static void test_slots_sent(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    const uint64_t experts = LAYERS * 2 * EXPERT, slots = ROWS / 2 * 3;
    const uint64_t reduced = 2 * (experts * 2 / 2) + 2 * (DENSE * 2 / 8 * 7);
    for (int i = 0; i < 3; i++) {
        struct dtp_plan plan = slotted(4, i < 2 ? 1.5 : 0);
        struct dtp_communication sent;
        plan.deepspeed.drop_tokens = i < 2, plan.expert_imbalance = i < 2 ? 1 : 2;
        plan.deepspeed.reduce_bucket_size = i == 1 ? 100000 : plan.deepspeed.reduce_bucket_size;
        resolve(&plan, &cluster);
        dtp_closed_form_communication(&t, &cluster, &plan, &sent);
        assert_int_equal(sent.bytes[DTP_ALL_TO_ALL], LAYERS * 4 * ((i < 2 ? slots : 2 * ROWS) / 4 * 3));
        assert_int_equal(sent.count[DTP_ALL_TO_ALL], LAYERS * 4);
        assert_int_equal(sent.bytes[DTP_ALL_REDUCE], reduced + (i < 2 ? 0 : LAYERS * (2 * (8 / 4 * 3))));
        assert_int_equal(sent.bytes[DTP_ALL_GATHER], experts * 2 / 2 + DENSE * 2 / 8 * 7);
        struct dtp_program *program = lowered(&plan, &cluster);
        check_agreement(program, &sent);
        if (i == 1) /* the head alone */
            assert_int_equal(most_bytes(program, "flattened bucket"), 2 * 256000);
        dtp_program_destroy(program);
    }
}

/* What is saved of a layer's T tokens for experts: x in fp32, 4 h; the softmax 4 E; gating of 2 of 8 experts 8 E + 16,
 * weights and slots 12 k, tokens of slots 8 r k; two copies of slots from other ranks, or the slots themselves where
 * all experts are here; gate, silu, up and product of each, and rows by tokens. */
static void test_slots_saved(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    for (uint32_t ep = 1; ep <= 4; ep += 3) {
        struct dtp_plan plan = slotted(ep, 1.5);
        struct dtp_layer_tensors tensors = {.kind = {0}};
        uint64_t of_mlp = 0;
        resolve(&plan, &cluster);
        const struct dtp_transformer own = dtp_plan_own_experts(&t, &plan);
        dtp_layer_tensors_of(&own, DTP_LAYER_EXPERTS, &cluster, &plan, &tensors);
        for (int i = 0; i < DTP_TENSOR_COUNT; i++)
            if (dtp_layer_tensor_part((enum dtp_layer_tensor)i) == DTP_PART_MLP && tensors.saved >> i & 1)
                of_mlp += tensors.bytes[i];
        const uint64_t slots = 3 * 256 * 2, inner = 4 * 3 * 192 * 2; /* r k = 3 */
        assert_int_equal(of_mlp, 4 * 256 + 4 * 8 + (8 * 8 + 16 + 12 * 2 + 8 * 3) + (ep > 1 ? 2 : 1) * slots + inner +
                                     2 * 256 * 2);
        assert_false(tensors.saved & DTP_TENSOR_BIT(NORM2)); /* nobody reads it in backward */
        struct dtp_program *program = lowered(&plan, &cluster);
        assert_int_equal(most_bytes(program, "tokens by experts"), TOKENS * (ep > 1 ? 2 : 1) * slots);
        assert_int_equal(most_bytes(program, "tokens by ranks"), ep > 1 ? TOKENS * slots : 0);
        assert_int_equal(most_bytes(program, "results by ranks"), TOKENS * slots);
        assert_int_equal(most_bytes(program, "results by tokens"), ROWS);
        assert_int_equal(most_bytes(program, "weighed rows in fp32"), 2 * ROWS);
        dtp_program_destroy(program);
    }
}

/* A product of each expert with its slots, filled or not: 1.5 times the FLOPs of the rows, one kernel an expert. */
static void test_slots_flops(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    struct dtp_plan plan = slotted(4, 1.5);
    struct dtp_program_totals totals;
    double flops = 0;
    resolve(&plan, &cluster);
    struct dtp_program *program = lowered(&plan, &cluster);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind != DTP_OP_MATMUL || op->demand->groups < 2)
            continue;
        assert_int_equal(op->demand->groups, 2);
        assert_int_equal(op->demand->kernels, 2);
        flops += op->demand->flops;
    }
    assert_true(flops == LAYERS * 6.0 * (double)EXPERT * 2 * TOKENS * 1.5);
    dtp_program_sum(program, &totals);
    double closed = dtp_closed_form_hardware_flops(&t, &cluster, &plan);
    assert_true(fabs((totals.matmul_flops + totals.attention_flops) / closed - 1) < 1e-12);
    dtp_program_destroy(program);
}

/* Bytes moved of S = 1.5 ROWS of slots, ROWS of rows and T tokens of 2 h. Forward: tokens stacked 2, slots taken 2 S,
 * copied for gate and for up 4 S; put side by side 2 S, stacked 2 S, taken 2 ROWS; in fp32 times the weights 3, summed
 * 2 and 2 a token, cast 3 a token. Places of slots 24 bytes. Backward: the gradient in fp32 3 a token, times weights 2
 * and 2 a token, times rows 3 and 2 a token, summed 2, cast 3; slots' zeros S and 3 ROWS, copied for experts 2 S; side
 * by side 2 S; tokens' zeros 1 a token and 3 S. */
static void test_slots_moved(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_plan plan = slotted(4, 1.5);
    double forward = 0, backward = 0;
    resolve(&plan, &cluster);
    struct dtp_program *program = lowered(&plan, &cluster);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bool there = op->kind == DTP_OP_PERMUTE || op->kind == DTP_OP_UNPERMUTE;
        bool back = op->kind == DTP_OP_PERMUTE_BACKWARD || op->kind == DTP_OP_UNPERMUTE_BACKWARD;
        forward += there ? op->demand->bytes : 0;
        backward += back ? op->demand->bytes : 0;
    }
    dtp_program_destroy(program);
    const double rows = ROWS, slots = 1.5 * ROWS, tokens = TOKENS * 512.0;
    assert_true(forward == LAYERS * (10 * slots + 7 * rows + 7 * tokens + TOKENS * 24 * 3.0));
    assert_true(backward == LAYERS * (8 * slots + 13 * rows + 8 * tokens));
}

/* Layers of both kinds, shared experts, replays, several micro-steps: what the program does is what formulas say. */
static void test_mixed(void **state)
{
    (void)state;
    random_seed();
    for (int checked = 0; checked < 60;) {
        struct random_job job;
        struct dtp_program *program;
        struct dtp_communication sent;
        struct dtp_program_totals totals;
        if (!random_deepspeed_experts_job(1 + random_below(8), &job))
            continue;
        assert_int_equal(dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, NULL), DTP_OK);
        assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
        dtp_closed_form_communication(&job.transformer, &job.cluster, &job.plan, &sent);
        check_agreement(program, &sent);
        dtp_program_sum(program, &totals);
        double closed = dtp_closed_form_hardware_flops(&job.transformer, &job.cluster, &job.plan);
        assert_true(fabs((totals.matmul_flops + totals.attention_flops) / closed - 1) < 1e-12);
        dtp_program_destroy(program);
        checked++;
    }
}

/* What DeepSpeed does not do, or is not modelled. */
static void test_refused(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    const struct dtp_transformer t = model();
    static struct dtp_faults faults;
    static const char *const expected[] = {"zero3 with experts is not modelled",
                                           "1 with autoep",
                                           "is not what AutoEP",
                                           "with experts is not modelled",
                                           "is in no model that AutoEP",
                                           "zero3 with experts of DeepSpeed's own",
                                           "shared_expert_ffn: is not in DeepSpeed's own",
                                           "transformers_layers: with experts has",
                                           "router: is not in DeepSpeed's own"};
    for (int i = 0; i < 9; i++) {
        struct dtp_plan plan = asked(i == 1 ? 1 : 4);
        struct dtp_transformer other = t;
        plan.strategy = i == 0 || i == 5 ? DTP_ZERO3 : i == 3 ? DTP_ZERO1 : DTP_ZERO2;
        other.activation = i == 2 ? DTP_GEGLU : t.activation;
        plan.deepspeed.bf16_optimizer = i == 3;
        other.expert_bias = i == 4;
        plan.deepspeed.autoep = i < 5, plan.deepspeed.transformers_layers = i == 7;
        other.shared_expert_ffn = i == 6 ? 192 : 0;
        other.router = i == 8 ? DTP_ROUTER_SIGMOID : DTP_ROUTER_SOFTMAX;
        memset(&faults, 0, sizeof faults);
        assert_int_equal(dtp_plan_resolve(&plan, &other, &cluster, &faults), DTP_BAD_INPUT);
        bool said = false;
        for (size_t f = 0; f < faults.count && f < DTP_FAULTS_KEPT; f++)
            said |= strstr(faults.text[f], expected[i]) != NULL;
        if (!said)
            fail_msg("%s is not said, but %s", expected[i], faults.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sent_bytes),  cmocka_unit_test(test_buckets),     cmocka_unit_test(test_state),
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_moved),       cmocka_unit_test(test_slots_sent),
        cmocka_unit_test(test_slots_saved), cmocka_unit_test(test_slots_flops), cmocka_unit_test(test_slots_moved),
        cmocka_unit_test(test_mixed),       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
