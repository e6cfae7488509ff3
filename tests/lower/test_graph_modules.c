/* How the host issues what a step of Megatron-Core has of experts: loops over them, what CUDA graphs replay, and what
 * runs within one kernel where all passes are one graph. */
#include "plan/graph_modules.h"

#include "closed/closed_form.h"
#include "cost/calibration.h"
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"
#include "sim/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_mixed.h"

static struct dtp_faults faults;

/* Two layers: one dense, one of 8 experts, of which each of two GPUs has four. */
static struct dtp_transformer model(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 2, t.hidden = 256, t.heads = t.kv_heads = 4, t.head_dim = 64, t.vocab = 1000, t.ffn = 768;
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192, t.shared_expert_ffn = 320;
    t.dense_layers = 1;
    return t;
}

static struct dtp_program *lowered(struct dtp_gpu gpu, const char *precision, const char *modules,
                                   struct dtp_prediction *prediction)
{
    struct dtp_cluster cluster = test_cluster(gpu, 2, 2);
    struct dtp_transformer t = model();
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_program *program;
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1;
    plan.sequence = 128, plan.micro_batch = 2, plan.ep = 2;
    assert_true(dtp_precision_recipe(precision, &plan.precision));
    assert_true(dtp_graphs_parse(modules, &plan.megatron.graphs));
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(&plan, &t, &cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    if (prediction)
        dtp_closed_form(&t, &cluster, &plan, prediction);
    return program;
}

struct issued {
    uint32_t ops, kernels, looped, replayed, apart, calls, waits;
};
/* Of operations of a kind; of DTP_OP_KIND_COUNT all. */
static struct issued count(const struct dtp_program *program, enum dtp_op_kind kind)
{
    struct issued sum = {0};
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        uint32_t kernels = op->demand->kernels;
        if (kind != DTP_OP_KIND_COUNT && op->kind != kind)
            continue;
        sum.calls += op->kind == DTP_OP_HOST_REPLAY ? kernels : 0;
        sum.waits += op->kind == DTP_OP_HOST_WAIT;
        if (op->kind == DTP_OP_HOST_REPLAY)
            continue;
        sum.ops++, sum.kernels += kernels;
        *(op->demand->issue == DTP_ISSUE_LOOPED     ? &sum.looped
          : op->demand->issue == DTP_ISSUE_REPLAYED ? &sum.replayed
                                                    : &sum.apart) += kernels;
    }
    return sum;
}

/* Gate with up and down, forward and two gradients: six products of four experts each, a call of cuBLAS for each. */
static void test_products(void **state)
{
    (void)state;
    struct dtp_program *program = lowered(test_h200(), "bf16-mixed", "none", NULL);
    struct issued products = count(program, DTP_OP_GROUPED_MATMUL);
    assert_int_equal(products.ops, 6);
    assert_int_equal(products.kernels, 6 * 4);
    assert_int_equal(products.looped, 6 * 4);
    assert_int_equal(count(program, DTP_OP_KIND_COUNT).waits, 1); /* for how many rows go where */
    dtp_program_destroy(program);
}

static uint32_t casts_of_experts(const struct dtp_program *program, uint32_t *kernels, double *bytes)
{
    uint32_t ops = 0;
    *kernels = 0, *bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind != DTP_OP_QUANTIZE || op->layer != 1 || (strcmp(op->name, "up") && strcmp(op->name, "down")))
            continue;
        ops++, *kernels += op->demand->kernels, *bytes += op->demand->bytes;
    }
    return ops;
}

/* A step casts, of each of two products, rows, weights and gradients: with a scale of this step two kernels for each of
 * four experts, with one of earlier steps one for all. */
static void test_casts(void **state)
{
    (void)state;
    uint32_t kernels;
    double bytes;
    struct dtp_program *program = lowered(test_h200(), "fp8-current", "none", NULL);
    assert_int_equal(casts_of_experts(program, &kernels, &bytes), 6);
    assert_int_equal(kernels, 6 * 2 * 4);
    dtp_program_destroy(program);
    program = lowered(test_h200(), "fp8-delayed", "none", NULL);
    assert_int_equal(casts_of_experts(program, &kernels, &bytes), 6);
    assert_int_equal(kernels, 6);
    dtp_program_destroy(program);
}

static double bytes_of(const struct dtp_program *program, enum dtp_op_kind kind, uint16_t layer)
{
    double bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        bytes += op->kind == kind && op->layer == layer ? op->demand->bytes : 0;
    }
    return bytes;
}

/* One graph of all passes, on Blackwell in MXFP8: a kernel a product, nobody waits, activations of experts and the
 * casts of the product's input and of the gradient that they give move nothing of their own; those of shared experts
 * do. Of 256 tokens with 2 experts each, 512 rows of which the rank has as many: an activation of experts moved 3 x 2 x
 * 192 bytes a row forward, 5 x 2 x 192 backward; shared ones 3 x 2 x 320 and 5 x 2 x 320 a token. */
static void test_one_graph(void **state)
{
    (void)state;
    uint32_t kernels;
    double all, fewer;
    struct dtp_gpu gpu = test_h200();
    gpu.architecture = DTP_GPU_BLACKWELL;
    struct dtp_program *apart = lowered(gpu, "mxfp8", "none", NULL);
    struct dtp_program *graph = lowered(gpu, "mxfp8", "full_iteration", NULL);
    struct issued sum = count(graph, DTP_OP_GROUPED_MATMUL), rest = count(graph, DTP_OP_KIND_COUNT);
    assert_int_equal(sum.kernels, 6);
    assert_int_equal(rest.waits, 0);
    assert_int_equal(rest.looped, 0);
    assert_int_equal(rest.calls, 0);
    /* what is left apart is behind the passes: reductions, the optimizer */
    assert_true(rest.apart < 20 && rest.replayed > 60);
    assert_true(bytes_of(apart, DTP_OP_ACTIVATION, 1) == 6.0 * 192 * 512 + 6.0 * 320 * 256);
    assert_true(bytes_of(graph, DTP_OP_ACTIVATION, 1) == 6.0 * 320 * 256);
    assert_true(bytes_of(apart, DTP_OP_ACTIVATION_BACKWARD, 1) == 10.0 * 192 * 512 + 10.0 * 320 * 256);
    assert_true(bytes_of(graph, DTP_OP_ACTIVATION_BACKWARD, 1) == 10.0 * 320 * 256);
    /* both layouts of a cast: 2 + 2 (1 + 1/32) bytes an element, of 512 rows of 192 into the second product and of 512
     * gradients of 384 into the first */
    casts_of_experts(apart, &kernels, &all);
    casts_of_experts(graph, &kernels, &fewer);
    assert_true(fabs(all - fewer - (2 + 2 * (1 + 1 / 32.0)) * 512 * (192 + 384)) < 1);
    dtp_program_destroy(apart);
    dtp_program_destroy(graph);
}

/* Modules of a layer: a call for each run of them, each way. Attention of both layers, the router of the second: in the
 * second the norm and the router follow attention's sum at once, so forward and backward are one call each there, but
 * shared experts run apart from the router, behind the experts. */
static void test_modules(void **state)
{
    (void)state;
    struct dtp_program *program = lowered(test_h200(), "bf16-mixed", "attn", NULL);
    struct issued attention = count(program, DTP_OP_KIND_COUNT), core = count(program, DTP_OP_ATTENTION);
    assert_int_equal(attention.calls, 2 * 2);
    assert_int_equal(core.replayed, core.kernels);
    assert_int_equal(count(program, DTP_OP_ROUTER).replayed, 0);
    dtp_program_destroy(program);
    program = lowered(test_h200(), "bf16-mixed", "attn+moe_router+moe_preprocess", NULL);
    struct issued more = count(program, DTP_OP_KIND_COUNT);
    assert_int_equal(more.calls, 2 * 2 + 2);
    assert_int_equal(count(program, DTP_OP_ROUTER).apart, 0);
    assert_int_equal(count(program, DTP_OP_GROUPED_MATMUL).looped, 6 * 4);
    assert_int_equal(more.waits, 1);
    dtp_program_destroy(program);
    program = lowered(test_h200(), "bf16-mixed", "mlp", NULL);
    assert_int_equal(count(program, DTP_OP_KIND_COUNT).calls, 2); /* of the dense layer */
    dtp_program_destroy(program);
}

/* Four kernels in a loop: a layer's launch and three plain ones; replayed: none. */
static void test_launches(void **state)
{
    (void)state;
    struct dtp_op_rates rates = {.launch_s = 75e-6, .loop_launch_s = 15e-6};
    struct dtp_engine_op op = {.kernels = 4};
    assert_true(dtp_engine_launch_s(&rates, &op) == 75e-6);
    op.issue = DTP_ISSUE_LOOPED;
    assert_true(fabs(4 * dtp_engine_launch_s(&rates, &op) - (75e-6 + 3 * 15e-6)) < 1e-12);
    op.issue = DTP_ISSUE_REPLAYED;
    assert_true(dtp_engine_launch_s(&rates, &op) == 0);
    assert_true(dtp_op_gaps(true, 4) == 1 && dtp_op_gaps(false, 4) == 4 && dtp_op_gaps(true, 0) == 0);
}

/* Formulas: three products of two matrices, each three calls more than one; attention's 5 + 9 kernels and 4 of rope of
 * both layers go for two calls each; of one graph of all passes nothing is issued. */
static void test_formulas(void **state)
{
    (void)state;
    struct dtp_prediction plain, graphs, one;
    dtp_program_destroy(lowered(test_h200(), "bf16-mixed", "none", &plain));
    dtp_program_destroy(lowered(test_h200(), "bf16-mixed", "attn", &graphs));
    dtp_program_destroy(lowered(test_h200(), "bf16-mixed", "full_iteration", &one));
    double launch_s = dtp_calibration.megatron_launch_s, loop_s = dtp_calibration.torch_launch_s;
    assert_true(fabs(plain.time.host_launch_s - graphs.time.host_launch_s - 2 * (18 - 2) * launch_s) < 1e-9);
    assert_true(one.time.host_launch_s == 0);
    /* dense 11 + 20 kernels; with experts the router's matmul and kernels, rows both ways and exchanges besides; ends.
     * The host's Python around the exchanges of one layer comes on top. */
    double layers_s = plain.time.host_launch_s - 3 * 2 * 3 * loop_s - dtp_calibration.megatron_experts_s;
    assert_true(fabs(layers_s - (31 + 31 + 1 + 6 + 2 + 10 + 2 + 4 + 2 + 4 + 11) * launch_s) < 1e-9);
}

static void test_words(void **state)
{
    (void)state;
    uint32_t set = 7;
    char text[DTP_GRAPHS_BYTES];
    assert_false(dtp_graphs_parse("attn+lunch", &set));
    assert_false(dtp_graphs_parse("", &set));
    assert_false(dtp_graphs_parse(NULL, &set));
    assert_int_equal(set, 7);
    assert_true(dtp_graphs_parse("moe_preprocess, attn moe_router", &set));
    dtp_graphs_text(set, text);
    assert_string_equal(text, "attn+moe_router+moe_preprocess");
    dtp_graphs_text((1u << DTP_GRAPH_COUNT) - 1, text);
    assert_string_equal(text, "attn+mlp+moe_router+moe_preprocess+full_iteration");
    assert_true(dtp_graphs_parse("none", &set) && set == 0);
    dtp_graphs_text(0, text);
    assert_string_equal(text, "none");
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_cluster cluster = test_cluster(test_h200(), 2, 2);
    struct dtp_transformer t = model();
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1;
    assert_true(dtp_graphs_parse("attn+full_iteration", &plan.megatron.graphs));
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "cuda_graph_modules: full_iteration has all modules"));
    /* What no layer has: experts of a dense model, an MLP where each layer has experts. */
    static const struct {
        const char *modules, *words;
        uint64_t experts, dense;
    } cases[] = {{"attn+moe_router", "moe_router is of layers of experts, which this model has not", 0, 0},
                 {"moe_preprocess", "moe_preprocess is of layers of experts", 0, 0},
                 {"attn+mlp", "mlp is of layers without experts, which this model has not", 8, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t = model(), plan = dtp_plan_default();
        plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1;
        t.experts = cases[i].experts, t.dense_layers = cases[i].dense;
        if (!t.experts)
            t.experts_per_token = t.expert_ffn = t.shared_expert_ffn = 0;
        assert_true(dtp_graphs_parse(cases[i].modules, &plan.megatron.graphs));
        memset(&faults, 0, sizeof faults);
        assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], cases[i].words))
            fail_msg("%s", faults.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_casts),    cmocka_unit_test(test_one_graph),
        cmocka_unit_test(test_modules),  cmocka_unit_test(test_launches), cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_words),    cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
