/* What MXFP8 recipes of Megatron-Core have beside narrow linears, by hand: copies of what experts keep where all passes
 * are one graph, attention and the head in 8 bits. */
#include "plan/graph_modules.h"

#include "cost/calibration.h"
#include "cost/op_cost.h"
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_mixed.h"

#define TOKENS 256.0
#define CAST (2 + 2 * (1 + 1 / 32.0)) /* bytes that a cast of an element moves, along rows and down columns */

static struct dtp_faults faults;

/* Three layers of 8 experts, of which each of two GPUs has four; every second attends over a window. */
static struct dtp_transformer model(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 3, t.hidden = 256, t.heads = 4, t.kv_heads = 2, t.head_dim = 64, t.vocab = 1024, t.ffn = 768;
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 192;
    return t;
}

static struct dtp_cluster blackwell(void)
{
    struct dtp_gpu gpu = test_h200();
    gpu.architecture = DTP_GPU_BLACKWELL;
    return test_cluster(gpu, 2, 2);
}

/* Two micro-steps of 256 tokens. */
static struct dtp_plan asked(void)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron, plan.strategy = DTP_ZERO1;
    plan.sequence = 128, plan.micro_batch = 2, plan.ep = 2, plan.accumulate = 2;
    plan.loss = DTP_LOSS_FUSED;
    assert_true(dtp_precision_recipe("mxfp8", &plan.precision));
    plan.megatron.graphs = 1u << DTP_GRAPH_FULL_ITERATION;
    return plan;
}

static struct dtp_program *lowered(struct dtp_plan plan, const struct dtp_transformer *t)
{
    struct dtp_cluster cluster = blackwell();
    struct dtp_program *program;
    memset(&faults, 0, sizeof faults);
    if (dtp_plan_resolve(&plan, t, &cluster, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    assert_int_equal(dtp_lower(t, &cluster, &plan, 0, &program, &faults), DTP_OK);
    assert_int_equal(dtp_program_verify(program, &faults), DTP_OK);
    return program;
}

/* Bytes of operations of a name in a micro-step, and how many there are. */
static double bytes_of(const struct dtp_program *program, enum dtp_op_kind kind, const char *name, uint16_t micro_step,
                       int *count)
{
    double bytes = 0;
    *count = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind != kind || strcmp(op->name, name) != 0 || op->micro_step != micro_step)
            continue;
        bytes += op->demand->bytes, *count += 1;
    }
    return bytes;
}

/* A rank has 512 rows: of each, a cast of 256 by columns, 384 in 16 bits before the activation and a cast of 192 behind
 * it, read and written each way. The last layer's backward follows its forward at once, so that two of three layers'
 * are copied; the next layer's experts wait. In bf16, whose experts are not fused, there is none. */
static void test_stash(void **state)
{
    (void)state;
    const struct dtp_transformer t = model();
    struct dtp_program *program = lowered(asked(), &t);
    const double layer = 2 * 512 * (256 * 33 / 32.0 + 384 * 2 + 192 * 33 / 32.0);
    for (uint16_t step = 0; step < 2; step++) {
        int there, back;
        assert_true(fabs(bytes_of(program, DTP_OP_COPY_OUT, "experts' tensors", step, &there) - 2 * layer) < 1e-6);
        assert_true(fabs(bytes_of(program, DTP_OP_COPY_OUT, "experts' tensors back", step, &back) - 2 * layer) < 1e-6);
        assert_true(there == 2 && back == 2);
    }
    int waiting = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        for (uint32_t d = 0; d < op->dependency_count; d++) {
            const struct dtp_op *before = &dtp_program_ops(program)[dtp_program_dependencies(program, op)[d].index];
            waiting += op->stream == DTP_STREAM_COMPUTE && before->stream == DTP_STREAM_COPY;
        }
    }
    /* of each micro-step all but the first layer's forward, which has none before it in the first; the optimizer */
    assert_int_equal(waiting, 2 * (2 + 3) + 1 + 1);
    dtp_program_destroy(program);
    struct dtp_plan plan = asked();
    int none;
    assert_true(dtp_precision_recipe("bf16-mixed", &plan.precision));
    program = lowered(plan, &t);
    assert_true(bytes_of(program, DTP_OP_COPY_OUT, "experts' tensors", 0, &none) == 0 && !none);
    dtp_program_destroy(program);
}

/* Every second layer has experts, the last one or the last but one: of two such layers the first is copied and put
 * back. */
static void test_stash_between_dense_layers(void **state)
{
    (void)state;
    for (uint32_t layers = 4; layers <= 5; layers++) {
        struct dtp_transformer t = model();
        int there, back;
        t.layers = layers, t.expert_layer_step = 2;
        struct dtp_program *program = lowered(asked(), &t);
        for (uint16_t step = 0; step < 2; step++) {
            bytes_of(program, DTP_OP_COPY_OUT, "experts' tensors", step, &there);
            bytes_of(program, DTP_OP_COPY_OUT, "experts' tensors back", step, &back);
            assert_true(there == 1 && back == 1);
        }
        dtp_program_destroy(program);
    }
}

/* Queries of 4 heads, keys and values of 2, are cast in each of 3 layers, and the gradient of the result of 4. */
static void test_attention_casts(void **state)
{
    (void)state;
    const struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    int count;
    plan.megatron.fp8_attention = true;
    struct dtp_program *program = lowered(plan, &t);
    double inputs = bytes_of(program, DTP_OP_QUANTIZE, "attention's inputs", 1, &count);
    assert_true(fabs(inputs - 3 * TOKENS * 8 * 64 * CAST) < 1e-6 && count == 3);
    double gradient = bytes_of(program, DTP_OP_QUANTIZE, "attention's gradient", 1, &count);
    assert_true(fabs(gradient - 3 * TOKENS * 4 * 64 * CAST) < 1e-6 && count == 3);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind == DTP_OP_ATTENTION || op->kind == DTP_OP_ATTENTION_BACKWARD)
            assert_true(op->demand->attention.narrow);
    }
    dtp_program_destroy(program);
}

/* Forward is faster by its constant; backward takes as long under a window as without, and by its half sequence. */
static void test_attention_time(void **state)
{
    (void)state;
    const struct dtp_calibration *c = &dtp_calibration;
    const struct dtp_gpu gpu = blackwell().gpu;
    const struct dtp_execution execution = {.compute = DTP_FP8};
    struct dtp_attention_shape shape = {.heads = 64, .kv_heads = 8, .head_dim = 128, .causal = true};
    shape.queries = shape.keys = 4096, shape.kernel = DTP_ATTENTION_FLASH;
    struct dtp_attention_time wide = dtp_attention_time(&gpu, &shape, &execution, 16384);
    shape.narrow = true;
    struct dtp_attention_time narrow = dtp_attention_time(&gpu, &shape, &execution, 16384);
    assert_true(fabs(wide.forward_s / narrow.forward_s - c->mx_attention_forward) < 1e-9);
    double halves = (4096 + c->flash_backward_half_sequence) / (4096 + c->mx_attention_backward_half_sequence);
    assert_true(fabs(wide.backward_s / narrow.backward_s - c->mx_attention_backward * halves) < 1e-9);
    shape.window = 128;
    struct dtp_attention_time window = dtp_attention_time(&gpu, &shape, &execution, 16384);
    assert_true(window.backward_s == narrow.backward_s && window.forward_s < narrow.forward_s);
    shape.window = 0, shape.head_dim = 192, shape.value_dim = 128;
    narrow = dtp_attention_time(&gpu, &shape, &execution, 16384);
    shape.narrow = false;
    wide = dtp_attention_time(&gpu, &shape, &execution, 16384);
    assert_true(fabs(wide.forward_s / narrow.forward_s - c->mx_attention_latent_forward) < 1e-9);
    assert_true(fabs(wide.backward_s / narrow.backward_s - c->mx_attention_latent_backward) < 1e-9);
}

/* What the head reads and the logits' gradient are cast in each micro-step, its weight in the first; three products are
 * of 8 bits, and casts of its weight, both ways, stand over the step. */
static void test_head(void **state)
{
    (void)state;
    const struct dtp_transformer t = model();
    struct dtp_plan plan = asked();
    struct dtp_program *wide = lowered(plan, &t);
    plan.megatron.fp8_head = true;
    struct dtp_program *program = lowered(plan, &t);
    const double activations = TOKENS * (256 + 1024), weight = 256 * 1024;
    int count, products = 0;
    double first = bytes_of(program, DTP_OP_QUANTIZE, "head", 0, &count);
    assert_true(fabs(first - (activations + weight) * CAST) < 1e-6 && count == 3);
    double second = bytes_of(program, DTP_OP_QUANTIZE, "head", 1, &count);
    assert_true(fabs(second - activations * CAST) < 1e-6 && count == 2);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->kind == DTP_OP_MATMUL && strncmp(op->name, "head", 4) == 0)
            products += op->demand->dtype == DTP_FP8;
    }
    assert_int_equal(products, 2 * 3);
    uint64_t standing[2] = {0, 0};
    const struct dtp_program *const both[] = {wide, program};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < dtp_program_buffer_count(both[k]); i++)
            if (strcmp(dtp_program_buffers(both[k])[i].name, "fp8 weights") == 0)
                standing[k] += dtp_program_buffers(both[k])[i].bytes;
    assert_int_equal(standing[1] - standing[0], 2 * 256 * 1024 * 33 / 32);
    dtp_program_destroy(wide);
    dtp_program_destroy(program);
}

static void refuse(struct dtp_plan plan, struct dtp_transformer t, const char *words)
{
    struct dtp_cluster cluster = blackwell();
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], words))
        fail_msg("%s", faults.text[0]);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_plan plan = asked();
    struct dtp_transformer t = model();
    plan.megatron.fp8_head = true;
    t.tied_head = true;
    refuse(plan, t, "fp8_head: is not with a head tied to the embedding");
    plan = asked();
    plan.megatron.fp8_attention = true;
    plan.attention = DTP_ATTENTION_MATH;
    refuse(plan, model(), "fp8_attention: takes a fused kernel; use attention flash");
    plan.attention = DTP_ATTENTION_FLASH;
    assert_true(dtp_precision_recipe("bf16-mixed", &plan.precision));
    refuse(plan, model(), "fp8_attention: is modelled with precision mxfp8 alone");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stash),
                                       cmocka_unit_test(test_stash_between_dense_layers),
                                       cmocka_unit_test(test_attention_casts),
                                       cmocka_unit_test(test_attention_time),
                                       cmocka_unit_test(test_head),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
