/* Adapters under runtime megatron, by hand: LLaMA-7B, rank 16, with what Megatron-Bridge's ParallelLinearAdapter keeps
 * and exchanges. */
#include "lower/lower.h"
#include "lower/lower_set.h"
#include "plan/layer_tensors.h"
#include "plan/slice.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/llama_7b.h"
#include "lib/lowered_job.h"
#include "lib/random_plans.h"

#define TP 4u
#define MICRO_STEPS 3u
#define TOKENS 2048
#define HIDDEN 4096
#define RANK 16

static struct dtp_plan megatron(uint32_t tp, uint32_t targets)
{
    struct dtp_plan plan = dtp_plan_default();
    plan.runtime = &dtp_runtime_megatron;
    plan.strategy = DTP_ZERO1;
    plan.tp = tp;
    plan.sequence_parallel = tp > 1;
    plan.micro_batch = 1, plan.accumulate = MICRO_STEPS, plan.sequence = TOKENS;
    plan.adapters.rank = RANK, plan.adapters.targets = targets;
    return plan;
}

static struct dtp_program *lower(const struct dtp_transformer *t, struct dtp_plan *plan)
{
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    return lowered_plan(t, &cluster, plan);
}

static uint64_t standing(const struct dtp_program *program, const char *name)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (!strcmp(dtp_program_buffers(program)[i].name, name))
            bytes += dtp_program_buffers(program)[i].bytes;
    return bytes;
}

/* How many of a kind tensor parallel ranks have, and what one of them sends in all. */
static void count_sent(const struct dtp_program *program, enum dtp_op_kind kind, size_t *count, double *bytes)
{
    *count = 0, *bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        if (op->stream == DTP_STREAM_TENSOR && op->kind == kind)
            *count += 1, *bytes += op->demand->sent_bytes;
    }
}

static void check_sent(const struct dtp_program *program, enum dtp_op_kind kind, size_t count, double bytes)
{
    size_t counted;
    double sent;
    count_sent(program, kind, &counted, &sent);
    assert_int_equal(counted, count);
    assert_near(sent, bytes, 0);
}

/* Of a layer: A 16 x 4096 and B 12288 x 16 of q, k, v; 16 x 4096, 4096 x 16 of the output; 16 x 4096, 22016 x 16 of
 * gate and up; 16 x 11008, 4096 x 16 of down: 1,052,672, of which a rank of four has a quarter. In bf16, with fp32
 * gradients, and of three states of 4 bytes a share of four data parallel ranks; frozen are 6,738,415,616, and a rank
 * of four has a quarter of these but for 65 norms of 4096. Nothing has a gradient that is frozen. */
static void test_bytes_at_rest(void **state)
{
    (void)state;
    const uint64_t layer = 1052672, norms = 65 * HIDDEN, all = UINT64_C(6738415616);
    struct dtp_transformer t = llama_7b();
    for (uint32_t tp = 1; tp <= TP; tp += TP - 1) {
        struct dtp_plan plan = megatron(tp, DTP_TARGETS_ALL);
        struct dtp_program *program = lower(&t, &plan);
        const uint64_t own = LAYERS * layer / tp, ranks = 16 / tp;
        assert_int_equal(standing(program, "adapters"), 2 * own);
        assert_int_equal(standing(program, "frozen params"), 2 * ((all - norms) / tp + norms));
        assert_int_equal(standing(program, "gradient buffer"), 4 * own);
        assert_int_equal(standing(program, "optimizer state"), 3 * 4 * own / ranks);
        assert_int_equal(standing(program, "gradient of a weight"), 0);
        dtp_program_destroy(program);
    }
}

/* A stream is 2048 x 4096 x 2 bytes, x A^T 2048 x 16 x 2. A layer gathers for two matrices cut by columns forward, and
 * the gradients of two others' results backward; adapters x A^T of the former, results of the latter and their
 * gradients. It scatters two sums each way, with the adapters' in them: but of the first layer, where nothing lies
 * below q, k and v. Adapters sum x A^T of the latter forward, and its gradients of all four backward. The embedding
 * scatters; the frozen head gathers once and scatters its gradient; the loss sums 3 x 2048 fp32. No norm is trained. */
static void test_sequence_parallel(void **state)
{
    (void)state;
    const double stream = 0.75 * TOKENS * HIDDEN * 2, low = 0.75 * TOKENS * RANK * 2, m = MICRO_STEPS;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(TP, DTP_TARGETS_ALL);
    struct dtp_program *program = lower(&t, &plan);
    check_sent(program, DTP_OP_ALL_GATHER, MICRO_STEPS * (10 * LAYERS + 1),
               m * ((8 * LAYERS + 1) * stream + 2 * LAYERS * low));
    check_sent(program, DTP_OP_REDUCE_SCATTER, MICRO_STEPS * (4 * LAYERS - 1 + 2), m * (4 * LAYERS + 1) * stream);
    check_sent(program, DTP_OP_ALL_REDUCE, MICRO_STEPS * (6 * LAYERS + 3),
               2 * m * (6 * LAYERS * low + 3 * 0.75 * TOKENS * 4));
    dtp_program_destroy(program);
}

/* Beside products rows pass in pieces, and nobody has them whole: adapters beside columns gather theirs once more, and
 * scatter the gradient by themselves. Each layer's two norms are gathered, whichever linears have an adapter, and what
 * the head reads; of the first layer nothing below the lowest adapter has a gradient. */
static void test_beside_products(void **state)
{
    (void)state;
    const double stream = 0.75 * TOKENS * HIDDEN * 2, low = 0.75 * TOKENS * RANK * 2, m = MICRO_STEPS;
    static const struct {
        uint32_t targets;
        double streams, lows, ends; /* that a layer gathers, and the model */
    } rows[] = {{DTP_TARGETS_ALL, 10, 2, 1}, {DTP_TARGETS_QKV, 5, 1, 1}, {DTP_TARGETS_UP, 5, 1, 0}};
    struct dtp_transformer t = llama_7b();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct dtp_plan plan = megatron(TP, rows[i].targets);
        size_t count;
        double sent;
        plan.tp_overlap = true;
        struct dtp_program *program = lower(&t, &plan);
        count_sent(program, DTP_OP_ALL_GATHER, &count, &sent);
        assert_near(sent, m * ((rows[i].streams * LAYERS + rows[i].ends) * stream + rows[i].lows * LAYERS * low), 0);
        dtp_program_destroy(program);
    }
}

/* Of blocks of 8 bits two casts are gathered, which fill the user buffer; their scales, one of 32 and one more way, are
 * not in it. */
static void test_scales_beside_products(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    struct dtp_plan plan = megatron(TP, DTP_TARGETS_ALL);
    size_t scales = 0;
    cluster.gpu.architecture = DTP_GPU_BLACKWELL;
    plan.tp_overlap = true;
    assert_true(dtp_precision_recipe("mxfp8", &plan.precision));
    struct dtp_program *program = lowered_plan(&t, &cluster, &plan);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        scales += op->stream == DTP_STREAM_TENSOR && op->kind == DTP_OP_ALL_GATHER &&
                  op->demand->sent_bytes == 0.75 * TOKENS * HIDDEN * 2 / 32;
    }
    assert_int_equal(scales, MICRO_STEPS * 2 * LAYERS);
    dtp_program_destroy(program);
}

/* Formats that user buffers do not take are refused, and left as they are where nothing is beside products. */
static void test_formats_beside_products(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    struct dtp_plan plan = megatron(TP, DTP_TARGETS_ALL);
    struct dtp_faults faults = {0};
    assert_true(dtp_precision_recipe("fp8-blockwise", &plan.precision));
    resolve_plan(&plan, &t, &cluster);
    plan = megatron(TP, DTP_TARGETS_ALL);
    plan.tp_overlap = true;
    assert_true(dtp_precision_recipe("fp8-blockwise", &plan.precision));
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0], "tp_overlap: is not with fp8-blockwise in Transformer Engine; leave it out, or "
                                        "use fp8-current");
}

/* Head and embedding are one frozen table, of which first and last stage have a copy: they send each other no gradient
 * of it. */
static void test_tied_table_in_stages(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    struct dtp_plan plan = megatron(TP, DTP_TARGETS_ALL);
    struct dtp_program_set set;
    struct dtp_faults faults = {0};
    t.tied_head = true;
    plan.pp = 2;
    resolve_plan(&plan, &t, &cluster);
    if (dtp_lower_set(&t, &cluster, &plan, 0, &set, &faults) != DTP_OK ||
        dtp_program_set_verify(&set, DTP_ISSUE_STREAMS, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    for (uint32_t role = 0; role < set.role_count; role++)
        for (size_t i = 0; i < dtp_program_op_count(set.roles[role].program); i++)
            assert_string_not_equal(dtp_program_ops(set.roles[role].program)[i].name, "embedding gradient");
    dtp_program_set_release(&set);
}

/* Where each rank has all of the stream an adapter beside columns sums the gradient of its input by itself, and no
 * gradient of a result is gathered. */
static void test_whole_stream(void **state)
{
    (void)state;
    const double stream = 0.75 * TOKENS * HIDDEN * 2, low = 0.75 * TOKENS * RANK * 2, m = MICRO_STEPS;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(TP, DTP_TARGETS_ALL);
    plan.sequence_parallel = false;
    struct dtp_program *program = lower(&t, &plan);
    check_sent(program, DTP_OP_ALL_GATHER, MICRO_STEPS * 4 * LAYERS, m * 2 * LAYERS * (stream + low));
    check_sent(program, DTP_OP_ALL_REDUCE, MICRO_STEPS * (12 * LAYERS - 2 + 2 + 3),
               2 * m * ((6 * LAYERS - 2 + 2) * stream + 6 * LAYERS * low + 3 * 0.75 * TOKENS * 4));
    dtp_program_destroy(program);
}

/* Adapters of q, k and v alone. A layer keeps what they read whole, 8192 bytes of a token where its rows are a quarter
 * of that; a linear without one keeps nothing: neither the MLP's norm nor its product are saved. */
static void test_what_is_kept(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = megatron(TP, DTP_TARGETS_QKV);
    struct dtp_program *program = lower(&t, &plan);
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    const struct dtp_transformer slice = dtp_plan_slice(&t, &plan);
    struct dtp_layer_tensors tensors;
    dtp_layer_tensors_of(&slice, DTP_LAYER_DENSE, &cluster, &plan, &tensors);
    assert_int_equal(tensors.saved >> DTP_TENSOR_NORM1 & 1, 1);
    assert_int_equal(tensors.saved >> DTP_TENSOR_NORM2 & 1, 0);
    assert_int_equal(tensors.saved >> DTP_TENSOR_PRODUCT & 1, 0);
    size_t kept = 0;
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++) {
        const struct dtp_buffer *b = &dtp_program_buffers(program)[i];
        const bool gathered = !strcmp(b->name, "gathered rows") && b->owner == DTP_OWNER_ACTIVATIONS;
        if (gathered)
            assert_int_equal(b->bytes, TOKENS * HIDDEN * 2);
        kept += gathered;
    }
    assert_int_equal(kept, MICRO_STEPS * LAYERS);
    dtp_program_destroy(program);
}

/* What is said of what is not modelled, or of what Megatron-Core asserts. */
static void refused(struct dtp_plan plan, const char *key, const char *words)
{
    struct dtp_faults faults = {0};
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = test_cluster(test_h200(), 16, 8);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &cluster, &faults), DTP_BAD_INPUT);
    if (strncmp(faults.text[0], key, strlen(key)) != 0 || !strstr(faults.text[0], words))
        fail_msg("%s: %s is not said: %s", key, words, faults.text[0]);
}

static void test_refusals(void **state)
{
    (void)state;
    struct dtp_plan plan = megatron(TP, DTP_TARGETS_ALL);
    plan.adapters.rank = 6;
    refused(plan, "lora", "does not divide");
    plan = megatron(1, DTP_TARGETS_ALL), plan.adapters.base = DTP_BASE_NF4;
    refused(plan, "base", "Megatron-Core's linears");
    plan = megatron(1, DTP_TARGETS_ALL), plan.adapters.train_ends = true;
    refused(plan, "train_ends", "not modelled");
    plan = megatron(1, DTP_TARGETS_ALL), plan.strategy = DTP_ZERO2;
    refused(plan, "strategy", "use zero1");
    plan = megatron(1, 1u << DTP_TARGET_Q);
    refused(plan, "lora_targets", "one linear of q, k and v");
    plan = megatron(1, DTP_TARGETS_ALL), plan.pp = 2, plan.schedule = DTP_SCHEDULE_ZB_H1;
    refused(plan, "schedule", "of which frozen ones have none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes_at_rest),
                                       cmocka_unit_test(test_sequence_parallel),
                                       cmocka_unit_test(test_beside_products),
                                       cmocka_unit_test(test_scales_beside_products),
                                       cmocka_unit_test(test_formats_beside_products),
                                       cmocka_unit_test(test_tied_table_in_stages),
                                       cmocka_unit_test(test_whole_stream),
                                       cmocka_unit_test(test_what_is_kept),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
