/* A module that predicts a token further ahead, as Megatron-Core trains it (multi_token_prediction.py): what it adds to
 * FLOPs, to what is kept and to what stages send each other, by hand; programs against formulas over random plans. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "lower/lower_set.h"
#include "plan/degrees.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/lowered_job.h"
#include "lib/random_mixed.h"

static struct dtp_faults faults;

static struct dtp_plan asked(void)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_DDP;
    plan.sequence = 128, plan.micro_batch = 2, plan.checkpointing = DTP_CHECKPOINT_NONE;
    plan.loss = DTP_LOSS_FUSED;
    return plan;
}

/* Of 256 tokens: h 64, V 1024, a layer's matrices 4 h h + 3 h f = 16384 + 49152 = 65536. */
static struct dtp_transformer model(uint64_t modules)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 4, t.hidden = 64, t.heads = t.kv_heads = 4, t.head_dim = 16, t.vocab = 1024, t.ffn = 256;
    t.mtp_layers = modules;
    return dtp_transformer_trained(&t);
}

static void resolve(struct dtp_plan *plan, const struct dtp_transformer *t, const struct dtp_cluster *cluster)
{
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(plan, t, cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

/* As told and as trained: 4 + 1 layers, and 2 h h + 3 h = 8384 around the last; either way one count. */
static void test_counts(void **state)
{
    (void)state;
    struct dtp_transformer without = model(0), with = model(1), told = dtp_transformer_told(&with);
    struct dtp_parameter_count count = dtp_transformer_count(&with), as_told = dtp_transformer_count(&told);
    uint64_t layer = 65536 + 2 * 64;
    assert_int_equal(with.layers, 5);
    assert_int_equal(told.layers, 4);
    assert_memory_equal(&count, &as_told, sizeof count);
    assert_int_equal(count.ahead, 2 * 64 * 64 + 3 * 64);
    assert_int_equal(count.mtp, layer + 8384);
    assert_int_equal(count.total - dtp_transformer_count(&without).total, layer + 8384);
    assert_int_equal(count.active, count.total);
    assert_int_equal(count.matmul - dtp_transformer_count(&without).matmul, 65536 + 2 * 64 * 64 + 1024 * 64);
}

/* 6 a token for each weight of the layer (65536), the projection (8192) and the head once more (65536), and attention's
 * 6 d_q s / 2 twice over: 6 x 64 x 128 in all three passes; flash forms Q K^T again, 2 of 12 halves more. */
static void test_flops(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    struct dtp_program_totals totals[2];
    for (uint64_t modules = 0; modules < 2; modules++) {
        struct dtp_transformer t = model(modules);
        struct dtp_plan plan = asked();
        resolve(&plan, &t, &cluster);
        struct dtp_program *program = lowered_job(&t, &cluster, &plan);
        dtp_program_sum(program, &totals[modules]);
        dtp_program_destroy(program);
    }
    double tokens = 256;
    assert_true(totals[1].matmul_flops - totals[0].matmul_flops == 6 * tokens * (65536 + 8192 + 65536));
    assert_true(totals[1].attention_flops - totals[0].attention_flops == 7 * tokens * 64 * 128);
    /* gradients of so many parameters more, in fp32, around 8 ranks */
    uint64_t more = 65536 + 128 + 8384;
    assert_true(totals[1].sent_bytes[DTP_ALL_REDUCE] - totals[0].sent_bytes[DTP_ALL_REDUCE] == 2 * 4 * more * 7 / 8);
}

static uint64_t bytes_named(const struct dtp_program *program, const char *name, uint32_t *count)
{
    uint64_t bytes = 0;
    *count = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++) {
        const struct dtp_buffer *b = &dtp_program_buffers(program)[i];
        if (strcmp(b->name, name) == 0)
            bytes = b->bytes, ++*count;
    }
    return bytes;
}

/* Of 256 tokens in bf16: rows of 64, two of them side by side, two tensors of logits; the table's gradient, which waits
 * for the embedding's. At the end of forward both logits stand: 2 x 2 x 1024 a token, beside what the module keeps:
 * rows 128, sides 256, three norms' scales 12, what its layer made 128 and its norm 128, and the layer's own. */
static void test_kept(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 1, 1);
    struct dtp_live_bytes live[2];
    struct dtp_transformer layers = model(0), ahead = model(1);
    layers.layers = 5; /* the layer alone */
    for (int i = 0; i < 2; i++) {
        struct dtp_plan plan = asked();
        const struct dtp_transformer *t = i ? &ahead : &layers;
        resolve(&plan, t, &cluster);
        struct dtp_program *program = lowered_job(t, &cluster, &plan);
        uint32_t count;
        if (i) {
            assert_int_equal(bytes_named(program, "following tokens", &count), 256 * 64 * 2);
            assert_int_equal(bytes_named(program, "both sides", &count), 256 * 128 * 2);
            assert_int_equal(bytes_named(program, "logits", &count), 256 * 1024 * 2);
            assert_int_equal(count, 2);
            assert_int_equal(bytes_named(program, "logits gradient", &count), 256 * 1024 * 2);
            assert_int_equal(count, 2);
            assert_int_equal(bytes_named(program, "embedding gradient", &count), 1024 * 64 * 2);
            assert_int_equal(count, 2);
        }
        live_bytes_of(program, t->layers, &live[i]);
        assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
        dtp_program_destroy(program);
    }
    /* at the loss: one tensor of logits more, and what the module keeps */
    const enum dtp_phase loss = DTP_PHASE_LOSS;
    assert_int_equal(live[1].phase_bytes[loss][DTP_OWNER_LOGITS] - live[0].phase_bytes[loss][DTP_OWNER_LOGITS],
                     256 * 1024 * 2);
    assert_int_equal(live[1].phase_bytes[loss][DTP_OWNER_ACTIVATIONS] -
                         live[0].phase_bytes[loss][DTP_OWNER_ACTIVATIONS],
                     256 * (128 + 256 + 3 * 4 + 128 + 128));
}

/* Bytes sent, their operations and FLOPs of programs are those of the formulas; miniatures' bytes those of the whole.
 */
static void test_random_plans(void **state)
{
    (void)state;
    random_seed();
    int narrow = 0, experts = 0, divided = 0, deep = 0;
    for (int checked = 0; checked < 100;) {
        struct random_job job = {.cluster = random_cluster(), .transformer = random_mixed_model(1 + random_below(30))};
        struct dtp_transformer *t = &job.transformer;
        t->expert_layer_step = 0, t->mtp_layers = 1;
        if (random_bool())
            *t = dtp_transformer_all_alike(t, false), t->activation = DTP_SWIGLU;
        *t = dtp_transformer_trained(t);
        job.plan = asked();
        job.plan.strategy = random_bool() ? DTP_DDP : DTP_ZERO1;
        job.plan.loss = (enum dtp_loss[]){DTP_LOSS_FUSED, DTP_LOSS_EAGER, DTP_LOSS_NATIVE}[random_below(3)];
        job.plan.accumulate = 1 + (uint32_t)random_below(4);
        job.plan.ep = t->experts ? 1u << random_below(3) : 1;
        job.plan.megatron.overlap = random_bool();
        if (random_bool())
            assert_true(dtp_precision_recipe("fp8-current", &job.plan.precision));
        if (dtp_plan_resolve(&job.plan, t, &job.cluster, NULL) != DTP_OK)
            continue;
        struct dtp_program *program = lowered_job(t, &job.cluster, &job.plan);
        deep += assert_told(program, t, &job.cluster, &job.plan) > 0;
        dtp_program_destroy(program);
        checked++, narrow += job.plan.precision.compute == DTP_FP8, experts += t->experts > 0;
        divided += job.plan.ep > 1;
    }
    assert_true(narrow > 15 && experts > 15 && divided > 5 && deep > 5);
}

/* Where weights and gradients are sent beside compute, in a head of several buckets and in none that is whole: the
 * module reads the head before the model's own loss does, and what lies in front of it is finished behind it. */
static void test_beside_compute(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    for (int i = 0; i < 8; i++) {
        struct dtp_transformer t = model(1);
        t.tied_head = i & 1, t.vocab = i & 2 ? 2000000 : t.vocab;
        struct dtp_plan plan = asked();
        plan.strategy = i & 4 ? DTP_DDP : DTP_ZERO1, plan.megatron.overlap = true;
        resolve(&plan, &t, &cluster);
        struct dtp_program *program = lowered_job(&t, &cluster, &plan);
        if (dtp_program_verify(program, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        dtp_program_destroy(program);
    }
}

/* Two stages of two layers, the second with the module: it has the table too, whose gradients of 1024 x 64 x 4 bytes
 * the two add up; between them rows of the stream alone go. */
static void test_stages(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 2, 2);
    struct dtp_transformer t = model(1);
    struct dtp_plan plan = asked();
    struct dtp_program_set set;
    plan.pp = 2, plan.accumulate = 4;
    resolve(&plan, &t, &cluster);
    assert_int_equal(plan.most_layers, 3);
    assert_int_equal(plan.head_layers, 3);
    memset(&faults, 0, sizeof faults);
    if (dtp_lower_set(&t, &cluster, &plan, 0, &set, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    if (dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    for (uint32_t role = 0; role < 2; role++) {
        struct dtp_program_totals totals;
        uint32_t count;
        dtp_program_sum(set.roles[role].program, &totals);
        /* both ways: of each micro-batch 256 x 64 x 2, of gradients the table's, and the norm of all */
        assert_int_equal(totals.sent_bytes[DTP_SEND_RECV], 4 * 256 * 64 * 2 + 1024 * 64 * 4 + 4);
        uint64_t layers = (uint64_t)(role ? 3 : 2) * (65536 + 128), table = 1024 * 64;
        uint64_t elements = role ? layers + 2 * table + 64 + 8384 : layers + table;
        assert_int_equal(bytes_named(set.roles[role].program, "params", &count), 2 * elements);
    }
    dtp_program_set_release(&set);
}

/* Two tensor parallel ranks, 128 tokens each between matmuls: of the projection 64 x 128 each has half. Sent by each of
 * two, half of a whole: forward both sides 256 x 128 x 2, its result 256 x 64 x 2, rows of the embedding and what the
 * head reads, as much each; backward both sides again, their gradient summed, the result's gradient, the embedding's
 * and the head's. Beside them the layer's: two pairs each way, the gathers of backward twice. The layer's input is all
 * of the projection's result. */
static void test_tensor_ranks(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 2, 2);
    struct dtp_program_totals totals[2];
    for (uint64_t modules = 0; modules < 2; modules++) {
        struct dtp_transformer t = model(modules);
        struct dtp_plan plan = asked();
        uint32_t count;
        plan.tp = 2;
        resolve(&plan, &t, &cluster);
        struct dtp_program *program = lowered_job(&t, &cluster, &plan);
        dtp_program_sum(program, &totals[modules]);
        assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
        if (modules) {
            assert_int_equal(bytes_named(program, "both sides", &count), 128 * 128 * 2);
            assert_int_equal(bytes_named(program, "columns of a projection", &count), 256 * 32 * 2);
            assert_int_equal(bytes_named(program, "gradient of both sides", &count), 256 * 128 * 2);
        }
        dtp_program_destroy(program);
    }
    const double tokens = 256, layer = 65536, projection = 8192, head = 65536;
    assert_true(totals[1].matmul_flops - totals[0].matmul_flops == 6 * tokens * (layer + projection + head) / 2);
    const uint64_t row = 256 * 64 * 2 / 2, gathers = 2 + 4, sums = 2 + 2; /* of a layer: forward, backward */
    assert_int_equal(totals[1].sent_bytes[DTP_ALL_GATHER] - totals[0].sent_bytes[DTP_ALL_GATHER],
                     row * (gathers + 2 * 2 + 2 + 1 + 2));
    assert_int_equal(totals[1].sent_bytes[DTP_REDUCE_SCATTER] - totals[0].sent_bytes[DTP_REDUCE_SCATTER],
                     row * (sums + 2 + 1 + 1));
}

/* The same in 8 bits, with every recipe of Transformer Engine that Hopper has. */
static void test_narrow_tensor_ranks(void **state)
{
    (void)state;
    static const char *const recipes[] = {"fp8-delayed", "fp8-current", "fp8-blockwise"};
    struct dtp_cluster cluster = test_cluster(test_h200(), 4, 4);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct dtp_transformer t = model(1);
        struct dtp_plan plan = asked();
        plan.tp = 2;
        t.hidden = 256, t.head_dim = 64, t.ffn = 512; /* a layer 4 h h + 3 h f, 2 h h, V h */
        assert_true(dtp_precision_recipe(recipes[i], &plan.precision));
        resolve(&plan, &t, &cluster);
        struct dtp_program *program = lowered_job(&t, &cluster, &plan);
        struct dtp_program_totals totals;
        dtp_program_sum(program, &totals);
        assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
        assert_true(totals.matmul_flops == 6.0 * 256 * (5 * 655360 + 131072 + 2 * 262144) / 2);
        dtp_program_destroy(program);
    }
}

struct refused {
    void (*change)(struct dtp_transformer *t, struct dtp_plan *plan);
    const char *words;
};

static void two_modules(struct dtp_transformer *t, struct dtp_plan *plan)
{
    (void)plan;
    *t = model(2);
}
static void other_runtime(struct dtp_transformer *t, struct dtp_plan *plan)
{
    (void)t;
    plan->runtime = &dtp_runtime_torch, plan->loss = DTP_LOSS_EAGER;
}
static void tensor_ranks(struct dtp_transformer *t, struct dtp_plan *plan)
{
    (void)t;
    plan->tp = 2, plan->sequence_parallel = false;
}
static void run_again(struct dtp_transformer *t, struct dtp_plan *plan)
{
    (void)t;
    plan->checkpointing = DTP_CHECKPOINT_FULL;
}
static void split_passes(struct dtp_transformer *t, struct dtp_plan *plan)
{
    (void)t;
    plan->pp = 2, plan->accumulate = 8, plan->schedule = DTP_SCHEDULE_ZB_H1;
}
static void before_the_head(struct dtp_transformer *t, struct dtp_plan *plan)
{
    (void)t;
    plan->pp = 4, plan->accumulate = 8;
    assert_true(dtp_stage_choice_parse("Ett|tt|m|L", &plan->stages));
}
static void own_widths(struct dtp_transformer *t, struct dtp_plan *plan)
{
    (void)plan;
    t->sliding_window = 32, t->sliding_window_pattern = 2;
}

static void test_refused(void **state)
{
    (void)state;
    static const struct refused rows[] = {{two_modules, "more than one"},
                                          {other_runtime, "not modelled under runtime"},
                                          {tensor_ranks, "sequence_parallel"},
                                          {run_again, "recompute_modules"},
                                          {split_passes, "1f1b"},
                                          {before_the_head, "put m before L"},
                                          {own_widths, "not all alike"}};
    struct dtp_cluster cluster = test_cluster(test_h200(), 8, 8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_transformer t = model(1);
        struct dtp_plan plan = asked();
        bool said = false;
        rows[i].change(&t, &plan);
        memset(&faults, 0, sizeof faults);
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
        for (size_t k = 0; k < faults.count; k++)
            said = said || strstr(faults.text[k], rows[i].words);
        if (!said)
            fail_msg("%s: %s", rows[i].words, faults.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),         cmocka_unit_test(test_flops),
        cmocka_unit_test(test_kept),           cmocka_unit_test(test_random_plans),
        cmocka_unit_test(test_beside_compute), cmocka_unit_test(test_stages),
        cmocka_unit_test(test_tensor_ranks),   cmocka_unit_test(test_narrow_tensor_ranks),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
