/* A block's operators as our executor fuses them, written down by hand: input [+ addend] -> result [| saved]. */
#include "runtime/dtplan/executor_block.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static const char *short_name(int tensor)
{
    static const char *const names[DTP_EXECUTOR_TENSORS] = {[DTP_TENSOR_INPUT] = "in",
                                                            [DTP_TENSOR_NORM1] = "norm1",
                                                            [DTP_TENSOR_QKV] = "qkv",
                                                            [DTP_TENSOR_CORE] = "core",
                                                            [DTP_TENSOR_MIDDLE] = "a",
                                                            [DTP_TENSOR_INPUT2] = "in2",
                                                            [DTP_TENSOR_NORM2] = "norm2",
                                                            [DTP_TENSOR_UP] = "up",
                                                            [DTP_TENSOR_PRODUCT] = "product",
                                                            [DTP_TENSOR_DOWN] = "m",
                                                            [DTP_EXECUTOR_OUT] = "out",
                                                            [DTP_TENSOR_STATISTICS1] = "s1",
                                                            [DTP_TENSOR_STATISTICS2] = "s2",
                                                            [DTP_TENSOR_Q_RAW] = "raw",
                                                            [DTP_TENSOR_CORE_STATE] = "lse",
                                                            [DTP_TENSOR_QK_STATISTICS] = "qks",
                                                            [DTP_TENSOR_POST_STATISTICS1] = "t1",
                                                            [DTP_TENSOR_POST_STATISTICS2] = "t2"};
    return names[tensor] ? names[tensor] : "?";
}

static void write_set(char *out, size_t room, uint64_t set)
{
    out[0] = '\0';
    for (int i = 0; i < DTP_EXECUTOR_TENSORS; i++)
        if (set & DTP_EXECUTOR_BIT(i))
            snprintf(out + strlen(out), room - strlen(out), "%s ", short_name(i));
}

static void write_list(char *out, size_t room, const struct dtp_executor_block *block, uint32_t operators)
{
    out[0] = '\0';
    for (int i = 0; i < block->count; i++) {
        const struct dtp_executor_operator *op = &block->op[i];
        if (!(operators & 1u << i))
            continue;
        snprintf(out + strlen(out), room - strlen(out), "%s: %s", op->name, short_name(op->input));
        if (op->addend != DTP_EXECUTOR_NONE)
            snprintf(out + strlen(out), room - strlen(out), " + %s", short_name(op->addend));
        snprintf(out + strlen(out), room - strlen(out), " -> %s; ", short_name(op->result));
    }
}

struct expected {
    const char *list, *saved, *again; /* the last: what full checkpointing runs once more */
};

static void expect(const struct dtp_transformer *t, bool epilogue, struct expected wanted)
{
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_executor_block block;
    char text[1024];
    plan.runtime = &dtp_runtime_dtplan;
    plan.executor.gelu_epilogue = epilogue;
    dtp_executor_block_of(t, &plan, dtp_layer_mlp_of(t), false, &block);
    write_list(text, sizeof text, &block, ~0u);
    assert_string_equal(text, wanted.list);
    write_set(text, sizeof text, block.saved);
    assert_string_equal(text, wanted.saved);
    write_list(text, sizeof text, &block, block.replayed);
    assert_string_equal(text, wanted.again);
}

static struct dtp_transformer llama(void)
{
    struct dtp_transformer t = dtp_transformer_default();
    t.layers = 2, t.hidden = 64, t.heads = 4, t.kv_heads = 2, t.head_dim = 16, t.ffn = 128, t.vocab = 250;
    return t;
}

#define LLAMA_BEFORE_DOWN                                                                                              \
    "norm 1: in -> norm1; qkv: norm1 -> qkv; rotary: qkv -> qkv; attention: qkv -> core; output: core + in -> in2; "   \
    "norm 2: in2 -> norm2; up: norm2 -> up; activation: up -> product; "

static void test_one_after_the_other(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    const char *saved = "in norm1 s1 qkv core lse in2 norm2 s2 up product ";
    expect(&t, false, (struct expected){LLAMA_BEFORE_DOWN "down: product + in2 -> out; ", saved, LLAMA_BEFORE_DOWN});
    t.qk_norm = true, t.position = DTP_POSITION_LEARNED, t.activation = DTP_GELU;
    expect(
        &t, true,
        (struct expected){"norm 1: in -> norm1; qkv: norm1 -> qkv; q and k norms: qkv -> qkv; attention: qkv -> core; "
                          "output: core + in -> in2; norm 2: in2 -> norm2; up: norm2 -> product; "
                          "down: product + in2 -> out; ",
                          "in norm1 s1 qkv raw qks core lse in2 norm2 s2 up product ",
                          "norm 1: in -> norm1; qkv: norm1 -> qkv; q and k norms: qkv -> qkv; attention: qkv -> core; "
                          "output: core + in -> in2; norm 2: in2 -> norm2; up: norm2 -> product; "});
}

/* The sum behind attention is not read backward, so that nobody makes it again. */
static void test_side_by_side(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    t.parallel_block = DTP_PARALLEL_ONE_NORM;
    expect(&t, false,
           (struct expected){"norm 1: in -> norm1; qkv: norm1 -> qkv; rotary: qkv -> qkv; attention: qkv -> core; "
                             "output: core + in -> in2; up: norm1 -> up; activation: up -> product; "
                             "down: product + in2 -> out; ",
                             "in norm1 s1 qkv core lse up product ",
                             "norm 1: in -> norm1; qkv: norm1 -> qkv; rotary: qkv -> qkv; attention: qkv -> core; "
                             "up: norm1 -> up; activation: up -> product; "});
    t.parallel_block = DTP_PARALLEL_TWO_NORMS;
    expect(
        &t, false,
        (struct expected){"norm 1: in -> norm1; qkv: norm1 -> qkv; rotary: qkv -> qkv; attention: qkv -> core; "
                          "norm 2: in -> norm2; output: core + in -> in2; up: norm2 -> up; activation: up -> product; "
                          "down: product + in2 -> out; ",
                          "in norm1 s1 qkv core lse norm2 s2 up product ",
                          "norm 1: in -> norm1; qkv: norm1 -> qkv; rotary: qkv -> qkv; attention: qkv -> core; "
                          "norm 2: in -> norm2; up: norm2 -> up; activation: up -> product; "});
}

/* Norms of what branches return add the stream themselves. The last one is made again for its statistics. */
static void test_norms_behind(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    t.norm_place = DTP_NORMS_AFTER;
    const char *after = "qkv: in -> qkv; rotary: qkv -> qkv; attention: qkv -> core; output: core -> a; "
                        "norm after attention: a + in -> in2; up: in2 -> up; activation: up -> product; "
                        "down: product -> m; norm after MLP: m + in2 -> out; ";
    expect(&t, false, (struct expected){after, "in qkv core lse a t1 in2 up product m t2 ", after});
    t.norm_place = DTP_NORMS_BOTH;
    const char *both = "norm 1: in -> norm1; qkv: norm1 -> qkv; rotary: qkv -> qkv; attention: qkv -> core; "
                       "output: core -> a; norm after attention: a + in -> in2; norm 2: in2 -> norm2; "
                       "up: norm2 -> up; activation: up -> product; down: product -> m; "
                       "norm after MLP: m + in2 -> out; ";
    expect(&t, false, (struct expected){both, "in norm1 s1 qkv core lse a t1 in2 norm2 s2 up product m t2 ", both});
}

/* Adapters of q, v and down: in front of a packed projection x A^T of all that it has, behind it what B makes of that.
 * Frozen projections need nothing of what they read; in the model's first block nothing before the first adapter has a
 * backward, so that the first norm keeps nothing. */
static void test_adapters_stand_beside(void **state)
{
    (void)state;
    struct dtp_transformer t = llama();
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_executor_block block;
    char text[1024];
    plan.runtime = &dtp_runtime_dtplan;
    plan.adapters.rank = 8;
    assert_true(dtp_targets_parse("q+v+down", &plan.adapters.targets));
    dtp_executor_block_of(&t, &plan, DTP_LAYER_DENSE, false, &block);
    write_list(text, sizeof text, &block, ~0u);
    assert_string_equal(text,
                        "norm 1: in -> norm1; adapter A: norm1 -> ?; qkv: norm1 -> qkv; adapter B: ? -> qkv; "
                        "rotary: qkv -> qkv; attention: qkv -> core; output: core + in -> in2; norm 2: in2 -> norm2; "
                        "up: norm2 -> up; activation: up -> product; adapter A: product -> ?; "
                        "down: product + in2 -> out; adapter B: ? -> out; ");
    write_set(text, sizeof text, block.saved);
    const struct dtp_executor_adapter *qkv = &block.adapter[0];
    assert_int_equal(qkv->parts, 2);
    assert_int_equal(qkv->part[1].column, 4 * 16 + 2 * 16); /* v stands behind q and k */
    assert_int_equal(dtp_executor_adapter_out(qkv), 4 * 16 + 2 * 16);
    assert_true(dtp_executor_multiplied(&block, &block.op[1]) == 2 * 8 * 64 &&
                dtp_executor_products(&block, &block.op[1]) == 2);
    assert_int_equal(dtp_executor_products(&block, &block.op[2]), 1); /* of the input alone */
    dtp_executor_block_of(&t, &plan, DTP_LAYER_DENSE, true, &block);
    assert_true(!block.op[0].passes && !block.op[1].passes && !block.op[2].passes && block.op[4].passes);
    assert_int_equal(dtp_executor_products(&block, &block.op[1]), 1);
    assert_false(block.saved & DTP_EXECUTOR_BIT(DTP_TENSOR_STATISTICS1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_after_the_other), cmocka_unit_test(test_side_by_side),
                                       cmocka_unit_test(test_norms_behind),
                                       cmocka_unit_test(test_adapters_stand_beside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
