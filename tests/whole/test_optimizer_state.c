/* Optimizers whose state follows from the shape of each tensor: elements counted by hand, the program's against the
 * formula's, what a step makes beside them, its passes, and what is refused. */
#include "bounds/bounds.h"
#include "cost/op_cost.h"
#include "lower/lower.h"
#include "plan/optimizer_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/memory_fixture.h"
#include "lib/said.h"

static struct dtp_plan adafactor(const char *precision)
{
    struct dtp_plan plan = plan_of(&dtp_runtime_torch, DTP_DDP, precision);
    plan.optimizer = DTP_ADAFACTOR;
    plan.sequence = 512;
    return plan;
}

/* Shapes with everything that a walk over tensors may forget: learned positions, biases, a tied head, norms of q and k,
 * packed projections, experts in some layers with a router, shared experts. */
static struct dtp_transformer shape(int number)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 4, t.hidden = 256, t.ffn = 768, t.vocab = 1000, t.heads = 4, t.kv_heads = 2, t.head_dim = 64;
    if (number & 1)
        t.position = DTP_POSITION_LEARNED, t.positions = 1024, t.norm = DTP_LAYER_NORM, t.norm_bias = true;
    if (number & 2)
        t.tied_head = true, t.qkv_bias = t.attention_output_bias = t.mlp_bias = true;
    if (number & 4)
        t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 128, t.dense_layers = 1;
    return t;
}

static struct dtp_cluster resolved(const struct dtp_transformer *t, struct dtp_plan *plan)
{
    struct dtp_cluster cluster = one_gpu;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster.gpu.peak_flops_per_s[i] = 1e15;
    cluster.oversubscription = 1;
    assert_int_equal(dtp_plan_resolve(plan, t, &cluster, NULL), DTP_OK);
    return cluster;
}

static struct dtp_bounds bounds_of(const struct dtp_transformer *t, struct dtp_plan plan)
{
    struct dtp_bounds bounds;
    struct dtp_cluster cluster = resolved(t, &plan);
    dtp_bounds_of(t, &cluster, &plan, NULL, &bounds);
    return bounds;
}

/* A layer of LLaMA-7B: four matrices of 4096 + 4096, three of 4096 + 11008, norms 2 x 4096: 86,272. The ends: 2 x
 * (32000
 * + 4096) and a norm of 4096: 76,288. 32 x 86,272 + 76,288 = 2,836,992 numbers. */
static void test_factors_by_hand(void **state)
{
    (void)state;
    struct dtp_plan plan = adafactor("bf16-mixed");
    assert_int_equal(predict(&plan, &eight_gpus).optimizer_bytes, 4 * 2836992);
    assert_int_equal(predict(&plan, &one_gpu).optimizer_bytes, 4 * 2836992);
    plan = adafactor("bf16-pure");
    assert_int_equal(predict(&plan, &one_gpu).optimizer_bytes, 2 * 2836992);
}

/* Estimates of two tensors, for the first has a name until the second is made: the embedding's 32000 x 4096 and the
 * first q's 4096 x 4096 are more than gate and up (2 x 4096 x 11008) or the head behind the last norm. Under adamw the
 * step makes nothing. */
static void test_estimates_by_hand(void **state)
{
    (void)state;
    struct dtp_plan plan = adafactor("bf16-mixed");
    const struct dtp_memory with = predict(&plan, &one_gpu);
    plan.optimizer = DTP_ADAMW_FUSED;
    const struct dtp_memory without = predict(&plan, &one_gpu);
    assert_int_equal(with.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE] -
                         without.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE],
                     4 * (VOCAB * 4096 + 4096 * 4096));
}

/* 3 passes over p, 3 over g and 11 over the estimate, all of one dtype: 17 x 4 bytes, 17 x 2. GradScaler goes over
 * gradients twice more: 8. */
static void test_passes_by_hand(void **state)
{
    (void)state;
    struct dtp_plan plan = adafactor("bf16-mixed");
    assert_true(dtp_optimizer_bytes_per_parameter(&plan) == 68);
    plan = adafactor("bf16-pure");
    assert_true(dtp_optimizer_bytes_per_parameter(&plan) == 34);
    plan = adafactor("fp16-mixed");
    assert_true(dtp_optimizer_bytes_per_parameter(&plan) == 76);
}

/* One number of blocks' matrices, 32 (4 x 4096^2 + 3 x 4096 x 11008) = 6,476,005,376, two of the rest: 262,410,240. */
static void test_muon_by_hand(void **state)
{
    (void)state;
    const uint64_t matrices = UINT64_C(6476005376), rest = PARAMETERS - matrices;
    assert_int_equal(rest, 262410240);
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = adafactor("bf16-pure");
    plan.optimizer = DTP_MUON;
    assert_int_equal(dtp_optimizer_matrix_elements(&t, &plan), matrices);
    struct dtp_memory m = predict(&plan, &one_gpu);
    assert_int_equal(m.optimizer_bytes, 2 * matrices + 4 * rest);
    /* gate, up and down: the look ahead, X and what X becomes in bf16, 6 bytes an element; X X^T and its polynomial, 4
     * x 4096^2 */
    plan.optimizer = DTP_ADAMW_FUSED;
    const struct dtp_memory without = predict(&plan, &one_gpu);
    assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE] -
                         without.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE],
                     6 * DOWN + 4 * 4096 * 4096);
}

/* Five steps of 2 n n m twice and 2 n n n: of [3, 5] and [5, 3] 5 (2 x 2 x 9 x 5 + 2 x 27) = 1170. Copies before addmm
 * in bf16, read and written: 5 x 4 (9 + 15) = 480 bytes. In fp32 the look ahead has 4 bytes: 8 x 15 + 4 x 9. */
static void test_products_by_hand(void **state)
{
    (void)state;
    struct dtp_plan plan = adafactor("bf16-mixed");
    struct dtp_newton_schulz p;
    plan.optimizer = DTP_MUON;
    for (int turned = 0; turned < 2; turned++) {
        dtp_newton_schulz_of(&plan, turned ? 5 : 3, turned ? 3 : 5, &p);
        assert_true(p.n == 3 && p.m == 5 && p.flops == 1170 && p.bytes == 480);
        assert_int_equal(p.scratch_bytes, 156);
    }
    /* lerp into the momentum 12, look ahead 12, cast 4 + 2, norm 2, division 4, decay 8, addition 8 + 2: 54 bytes; in
     * bf16 without a cast 6 + 6 + 2 + 4 + 4 + 4 + 2 */
    assert_true(dtp_optimizer_matrix_bytes_per_parameter(&plan) == 54);
    assert_true(dtp_optimizer_bytes_per_parameter(&plan) == 28);
    plan = adafactor("bf16-pure");
    plan.optimizer = DTP_MUON;
    assert_true(dtp_optimizer_matrix_bytes_per_parameter(&plan) == 28);
}

/* Of blocks' matrices two moments of 128 channels along the greater side and the projection, 128 along the lesser: four
 * of 4096 x 4096 have 128 x 3 x 4096 numbers each, three of 11008 x 4096 128 (2 x 11008 + 4096); 32 layers 522,190,848.
 * Of the rest two, 2 x 262,410,240. At most there stand the root and the update of the head, E = 32000 x 4096 each, and
 * of the first q the product with its projection and a root, 128 x 4096 each. */
static void test_projected_by_hand(void **state)
{
    (void)state;
    const uint64_t projected = UINT64_C(522190848), rest = 262410240, ends = VOCAB * 4096;
    struct dtp_transformer t = llama_7b();
    for (int apollo = 0; apollo < 2; apollo++) {
        struct dtp_plan plan = adafactor("bf16-pure");
        plan.optimizer = apollo ? DTP_APOLLO : DTP_GALORE;
        assert_int_equal(dtp_optimizer_matrix_elements(&t, &plan), UINT64_C(6476005376));
        assert_int_equal(dtp_optimizer_narrowest(&t, &plan), 4096);
        struct dtp_memory m = predict(&plan, &one_gpu);
        assert_int_equal(m.optimizer_bytes, 2 * (projected + 2 * rest));
        plan.optimizer = DTP_ADAMW_FUSED;
        const struct dtp_memory without = predict(&plan, &one_gpu);
        assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE] -
                             without.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE],
                         2 * (2 * ends + 2 * 128 * 4096));
    }
}

/* Of [3, 5] and [5, 3] at rank 2: 10 numbers along the greater side, 6 of the projection. In fp32 GaLore makes 17
 * passes over the 10 and 5 over the 15, APOLLO 19 and 10. Of what is not projected AdamW makes 20 passes. */
static void test_projection_by_hand(void **state)
{
    (void)state;
    struct dtp_plan plan = adafactor("bf16-mixed");
    struct dtp_projection p;
    plan.projection_rank = 2;
    for (int turned = 0; turned < 2; turned++) {
        plan.optimizer = DTP_GALORE;
        dtp_projection_of(&plan, turned ? 5 : 3, turned ? 3 : 5, &p);
        assert_true(p.m == 5 && p.n == 3 && p.rank == 2 && p.products == 2);
        assert_int_equal(p.moment_elements, 10);
        assert_int_equal(p.projection_elements, 6);
        assert_true(p.bytes == 4 * (17 * 10 + 5 * 15));
        plan.optimizer = DTP_APOLLO;
        dtp_projection_of(&plan, turned ? 5 : 3, turned ? 3 : 5, &p);
        assert_true(p.products == 1 && p.bytes == 4 * (19 * 10 + 10 * 15));
    }
    assert_true(dtp_optimizer_bytes_per_parameter(&plan) == 80);
    plan.optimizer = DTP_ADAM_MINI;
    assert_true(dtp_optimizer_bytes_per_parameter(&plan) == 60);
}

/* A moment of all, and a number a row: of a layer 4 x 4096 of q, k, v and o, 2 x 11008 + 4096 of gate, up and down; of
 * the ends 2 x 32000; of norms, 65 x 4096, as many as they have. At most there stand the update of the head and its
 * negative. */
static void test_rows_by_hand(void **state)
{
    (void)state;
    struct dtp_plan plan = adafactor("bf16-pure");
    plan.optimizer = DTP_ADAM_MINI;
    struct dtp_memory m = predict(&plan, &one_gpu);
    assert_int_equal(m.optimizer_bytes,
                     2 * (PARAMETERS + 32 * (4 * 4096 + 2 * 11008 + 4096) + 2 * VOCAB + UINT64_C(65) * 4096));
    plan.optimizer = DTP_ADAMW_FUSED;
    const struct dtp_memory without = predict(&plan, &one_gpu);
    assert_int_equal(m.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE] -
                         without.phase_bytes[DTP_PHASE_STEP][DTP_OWNER_WORKSPACE],
                     2 * 2 * VOCAB * 4096);
}

/* GradScaler goes over the gradients of matrices as well: 8 bytes an element more than in bf16. */
static void test_projected_scaled(void **state)
{
    (void)state;
    struct dtp_transformer t = shape(0);
    double bytes[2] = {0};
    for (int scaled = 0; scaled < 2; scaled++) {
        struct dtp_plan plan = adafactor(scaled ? "fp16-mixed" : "bf16-mixed");
        plan.optimizer = DTP_APOLLO, plan.projection_rank = 64;
        struct dtp_cluster cluster = resolved(&t, &plan);
        struct dtp_program *program = NULL;
        assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
        for (size_t i = 0; i < dtp_program_op_count(program); i++)
            bytes[scaled] +=
                dtp_program_ops(program)[i].kind == DTP_OP_OPTIMIZER ? dtp_program_ops(program)[i].demand->bytes : 0;
        dtp_program_destroy(program);
    }
    assert_true(bytes[1] - bytes[0] == 8 * (double)dtp_transformer_count(&t).total);
}

/* FLOPs of GaLore's products in the program and bytes of its passes, against the sums by hand of the layer below, with
 * n and m its matrices' sides: q and o 256, 256; k and v 128, 256; three of 256, 768. Rank 64. */
static void test_projected_program(void **state)
{
    (void)state;
    struct dtp_transformer t = shape(0);
    struct dtp_plan plan = adafactor("fp32");
    plan.optimizer = DTP_GALORE, plan.projection_rank = 64;
    struct dtp_cluster cluster = resolved(&t, &plan);
    struct dtp_program *program = NULL;
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    double flops = 0, bytes = 0;
    uint32_t kernels = 0, products = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        flops += op->kind == DTP_OP_PROJECTION ? op->demand->flops : 0;
        products += op->kind == DTP_OP_PROJECTION;
        bytes += op->kind == DTP_OP_OPTIMIZER ? op->demand->bytes : 0;
        kernels += op->kind == DTP_OP_OPTIMIZER ? op->demand->kernels : 0;
    }
    double elements = 4 * (2 * 256.0 * 256 + 2 * 128 * 256 + 3 * 256 * 768), low = 4 * 64 * (4 * 256.0 + 3 * 768);
    double rest = (double)dtp_transformer_count(&t).total - elements;
    assert_true(flops == 2 * 2 * 64 * elements);
    assert_true(bytes == 80 * rest + 4 * (17 * low + 5 * elements));
    /* nine for each of seven matrices of four layers, eight for two norms of each and for the root's three tensors */
    assert_int_equal(kernels, 4 * 7 * 9 + 8 * (4 * 2 + 3));
    assert_int_equal(dtp_optimizer_loop_kernels(&t, &plan), kernels + products);
    dtp_program_destroy(program);
}

/* FLOPs of the program's products and bytes of its passes, against the sums by hand of a layer with h = 256, q = 256,
 * k, v = 128, f = 768 (three gated matrices). */
static void test_muon_program(void **state)
{
    (void)state;
    struct dtp_transformer t = shape(0);
    struct dtp_plan plan = adafactor("fp32");
    plan.optimizer = DTP_MUON;
    struct dtp_cluster cluster = resolved(&t, &plan);
    struct dtp_program *program = NULL;
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    double flops = 0, bytes = 0, square = 5 * 6 * 256.0 * 256 * 256;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        flops += op->kind == DTP_OP_NEWTON_SCHULZ ? op->demand->flops : 0;
        bytes += op->kind == DTP_OP_OPTIMIZER ? op->demand->bytes : 0;
    }
    double narrow = 5 * (4.0 * 128 * 128 * 256 + 2.0 * 128 * 128 * 128),
           wide = 5 * (4.0 * 256 * 256 * 768 + 2.0 * 256 * 256 * 256);
    assert_true(flops == 4 * (2 * square + 2 * narrow + 3 * wide));
    double elements = 4 * (2 * 256.0 * 256 + 2 * 128 * 256 + 3 * 256 * 768), grams = 4 * (5 * 65536.0 + 2 * 16384);
    double rest = (double)dtp_transformer_count(&t).total - elements;
    assert_true(bytes == 28 * rest + 54 * elements + 20 * (elements + grams));
    dtp_program_destroy(program);
}

/* The program's buffers against the walk of the formulas and bounds, which goes over the model anew. */
static void test_program_and_formula(void **state)
{
    (void)state;
    static const enum dtp_optimizer others[] = {DTP_MUON, DTP_ADAM_MINI, DTP_GALORE, DTP_APOLLO};
    for (int number = 0; number < 80; number++) {
        struct dtp_transformer t = shape(number & (number < 16 ? 7 : 3)); /* others take no experts */
        struct dtp_plan plan = adafactor(number & 1 ? "bf16-mixed" : "fp32");
        if (number >= 16)
            plan.optimizer = others[number / 16 - 1], plan.projection_rank = 32;
        plan.fused_qkv = plan.fused_gate_up = number & 8;
        struct dtp_element_bytes bytes;
        dtp_element_bytes_count(&plan, &bytes);
        uint64_t counted = dtp_optimizer_whole_bytes(&t, &plan, &bytes, dtp_transformer_count(&t).total);
        struct dtp_memory m = estimate(&t, &plan, &one_gpu);
        struct dtp_bounds bounds = bounds_of(&t, plan);
        assert_int_equal(m.optimizer_bytes, counted);
        assert_int_equal(bounds.optimizer_bytes, counted);
        assert_true((double)bounds.memory_bytes > 0.99 * (double)m.allocated_peak_bytes);
        assert_true((double)bounds.memory_bytes < 1.2 * (double)m.allocated_peak_bytes);
        uint64_t one = 4 * dtp_transformer_count(&t).total;
        assert_true(number >= 48   ? counted > one / 4 && counted < one
                    : number >= 16 ? counted > one && counted < 2 * one
                                   : counted > 0 && counted < one / 20);
    }
}

/* Experts are one tensor [8, out, 256] and have factors each: 8 x (128 + 256) three times, as many as of 24 matrices;
 * router 8 + 256; q 256 + 256, k and v 128 + 256 each, o 512; two norms of 256. */
static void test_experts_by_hand(void **state)
{
    (void)state;
    struct dtp_transformer t = shape(4), one = t;
    struct dtp_plan plan = adafactor("fp32");
    one.layers = 3;
    uint64_t layer = 3 * 8 * (128 + 256) + 8 + 256 + 2 * 512 + 2 * (128 + 256) + 2 * 256;
    assert_int_equal(estimate(&t, &plan, &one_gpu).optimizer_bytes - estimate(&one, &plan, &one_gpu).optimizer_bytes,
                     4 * layer);
}

static void assert_refused(struct dtp_plan plan, const char *words)
{
    struct dtp_faults faults = {0};
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = eight_gpus;
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        cluster.gpu.peak_flops_per_s[i] = 1e15;
    cluster.oversubscription = 1;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_said(&faults, words);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_plan plan = adafactor("bf16-mixed");
    plan.strategy = DTP_FULL_SHARD;
    assert_refused(plan, "adafactor is modelled where each GPU has whole tensors, not under full_shard");
    plan.strategy = DTP_ZERO1;
    assert_refused(plan, "not under zero1");
    plan = adafactor("bf16"); /* its moments are fp32 */
    assert_refused(plan, "adafactor keeps its state as its parameters, in bf16, not in fp32");
    plan = adafactor("bf16-mixed");
    plan.runtime = &dtp_runtime_deepspeed;
    assert_refused(plan, "under runtime deepspeed");
    plan.runtime = &dtp_runtime_torch, plan.optimizer = DTP_MUON, plan.strategy = DTP_FULL_SHARD;
    assert_refused(plan, "muon is modelled where each GPU has whole tensors");
    plan.optimizer = DTP_GALORE;
    assert_refused(plan, "galore is modelled where each GPU has whole tensors");
    plan.strategy = DTP_DDP, plan.projection_rank = 4097;
    assert_refused(plan, "4097 is more than the 4096 of the narrowest matrix; use at most that");
    plan.optimizer = DTP_ADAM_MINI, plan.projection_rank = 1;
    assert_refused(plan, "adam-mini on several GPUs sums a number of each norm");
    plan = adafactor("bf16-mixed");
    plan.tp = 2;
    assert_refused(plan, "with tp, pp or ep");
    plan = adafactor("bf16-mixed");
    plan.adapters.rank = 8;
    assert_refused(plan, "of adapters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors_by_hand),    cmocka_unit_test(test_estimates_by_hand),
        cmocka_unit_test(test_passes_by_hand),     cmocka_unit_test(test_program_and_formula),
        cmocka_unit_test(test_experts_by_hand),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_muon_by_hand),       cmocka_unit_test(test_products_by_hand),
        cmocka_unit_test(test_muon_program),       cmocka_unit_test(test_projected_by_hand),
        cmocka_unit_test(test_projection_by_hand), cmocka_unit_test(test_rows_by_hand),
        cmocka_unit_test(test_projected_program),  cmocka_unit_test(test_projected_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
