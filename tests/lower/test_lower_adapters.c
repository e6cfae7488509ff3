/* What adapters keep beside frozen matrices, in step programs. */
#include "lower/lower.h"
#include "plan/adapters.h"
#include "program/live_buffers.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"

/* Bytes of all buffers of a name at the step's fullest instant. */
static uint64_t bytes_at_peak(const struct dtp_program *program, const char *name)
{
    struct dtp_live_buffers live;
    uint64_t bytes = 0;
    assert_int_equal(dtp_live_buffers_of(program, &live, NULL), DTP_OK);
    for (size_t i = 0; i < live.count; i++)
        bytes += strcmp(live.kind[i].name, name) == 0 ? live.kind[i].bytes : 0;
    free(live.kind);
    return bytes;
}

static int count_operations(const struct dtp_program *program, const char *name)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    int count = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        count += strcmp(ops[i].name, name) == 0;
    return count;
}

/* Where attention alone is replayed, linears are outside of the checkpoint: x A^T of q and v (16 wide) and what dropout
 * let through with its mask (4096 wide, 2 + 1 bytes) stay in all 32 layers as without checkpointing, and backward goes
 * through the dropouts. T = 512 tokens at the loss, whose 128,256 logits are the fullest instant; the first layer keeps
 * them too. */
static void test_selective_attention_keeps(void **state)
{
    (void)state;
    static const enum dtp_checkpointing ways[] = {DTP_CHECKPOINT_NONE, DTP_CHECKPOINT_SELECTIVE_ATTENTION};
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster one = test_cluster(test_h200(), 1, 1);
    t.layers = 32, t.hidden = 4096, t.heads = t.kv_heads = 32, t.head_dim = 128, t.ffn = 11008, t.vocab = 128256;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct dtp_plan plan = dtp_plan_default();
        struct dtp_program *program;
        plan.strategy = DTP_DDP, plan.sequence = 512, plan.checkpointing = ways[i];
        plan.adapters.rank = 16, plan.adapters.dropout = 0.05;
        plan.adapters.targets = 1u << DTP_TARGET_Q | 1u << DTP_TARGET_V;
        assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
        assert_int_equal(dtp_plan_resolve(&plan, &t, &one, NULL), DTP_OK);
        assert_int_equal(dtp_lower(&t, &one, &plan, 0, &program, NULL), DTP_OK);
        assert_int_equal(bytes_at_peak(program, "x A"), 512 * 32 * 2 * (2 * 16));
        assert_int_equal(bytes_at_peak(program, "input of an adapter and its mask"), 512 * 32 * 2 * (2 + 1) * 4096);
        /* forward and backward, but for the first layer's, which reads what nobody trains */
        assert_int_equal(count_operations(program, "dropout"), 2 * 2 * 32 - 2);
        dtp_program_destroy(program);
    }
}

/* DoRA on q and v (4096 x 4096, rank 16), T = 512 tokens: at the loss both what W makes of dropped input and what B
 * made stand of 32 layers, 4096 wide in 2 bytes. Each pass forms B A of an identity; W is multiplied by dropped input
 * once more forward and, but for the first layer's, whose input has no gradient, backward. */
static void test_dora_keeps(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster one = test_cluster(test_h200(), 1, 1);
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_program *program;
    t.layers = 32, t.hidden = 4096, t.heads = t.kv_heads = 32, t.head_dim = 128, t.ffn = 11008, t.vocab = 128256;
    plan.strategy = DTP_DDP, plan.sequence = 512, plan.checkpointing = DTP_CHECKPOINT_NONE;
    plan.adapters.rank = 16, plan.adapters.dropout = 0.05, plan.adapters.dora = true;
    plan.adapters.targets = 1u << DTP_TARGET_Q | 1u << DTP_TARGET_V;
    assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
    assert_int_equal(dtp_plan_resolve(&plan, &t, &one, NULL), DTP_OK);
    assert_int_equal(dtp_lower(&t, &one, &plan, 0, &program, NULL), DTP_OK);
    assert_int_equal(bytes_at_peak(program, "linear of dropped input"), 512 * 32 * 2 * 2 * 4096);
    assert_int_equal(bytes_at_peak(program, "adapter result"), 512 * 32 * 2 * 2 * 4096);
    assert_int_equal(bytes_at_peak(program, "identity"), 0);
    assert_int_equal(count_operations(program, "adapter B of the identity"), 2 * 32);
    assert_int_equal(count_operations(program, "linear of dropped input"), 2 * 32);
    assert_int_equal(count_operations(program, "gradient of dropped input"), 2 * 31);
    dtp_program_destroy(program);
}

/* Bytes that operations of these names move. */
static double moved_bytes(const struct dtp_program *program, const char *const *names, size_t count)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    double bytes = 0;
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        for (size_t name = 0; name < count; name++)
            bytes += strcmp(ops[i].name, names[name]) == 0 ? ops[i].demand->bytes : 0;
    return bytes;
}

/* Runtime peft without autocast, q and v (4096 x 4096, rank 16) in fp32 beside a 16-bit base: 64 linears of T = 512
 * tokens. Of each keeps a cast of x in 4 bytes and x A^T of 16; with dropout what that made, and a mask. An element
 * moves forward: x cast 2 + 4; s wide 4 + 4, the sum 2 + 4 + 4, cast back 4 + 2. Backward: g cast 2 + 4 and for W back
 * 4 + 2, s g 4 + 4; x's gradient cast 4 + 2. Dropout 4 + 4 + 1 each way. Six products of each are in fp32, none under
 * autocast, where the input is cast there and back each way, 12, and both factors, a sixteenth of its elements, 6; the
 * casts stay. Beside packed matrices B's result is cast back, 6, scaled 4, y copied 4, added 6;
 * backward s g 4, cast 6. */
static void test_wide(void **state)
{
    (void)state;
    static const char *const names[] = {"input of an adapter",     "dropout",         "scaled adapter", "adapter",
                                        "gradient for an adapter", "scaled gradient", "of an adapter"};
    static const struct {
        const char *precision;
        double dropout;
        enum dtp_base base;
        double element;
        uint64_t kept, low;
        int wide;
    } ways[] = {{"bf16-pure", 0, DTP_BASE_NONE, 6 + 24 + 20 + 6, 4, 4, 6},
                {"bf16-pure", 0.1, DTP_BASE_NONE, 6 + 24 + 20 + 6 + 18, 0, 4, 6},
                {"bf16-pure", 0, DTP_BASE_NF4, 6 + 20 + 10 + 6, 4, 4, 6},
                {"bf16-mixed", 0, DTP_BASE_NONE, 4 + 6 + 4 + 2 * 12 + 2 * 6.0 / 16, 0, 2, 0}};
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster one = test_cluster(test_h200(), 1, 1);
    t.layers = 32, t.hidden = 4096, t.heads = t.kv_heads = 32, t.head_dim = 128, t.ffn = 11008, t.vocab = 128256;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct dtp_plan plan = dtp_plan_default();
        struct dtp_program *program;
        const uint64_t linears = 64, elements = 512 * 4096 * linears;
        int wide = 0;
        plan.runtime = &dtp_runtime_peft, plan.strategy = DTP_DDP, plan.sequence = 512;
        plan.checkpointing = DTP_CHECKPOINT_NONE, plan.adapters.rank = 16, plan.adapters.dtype = DTP_FP32;
        plan.adapters.targets = 1u << DTP_TARGET_Q | 1u << DTP_TARGET_V;
        plan.adapters.dropout = ways[i].dropout, plan.adapters.base = ways[i].base;
        assert_true(dtp_precision_recipe(ways[i].precision, &plan.precision));
        assert_int_equal(dtp_plan_resolve(&plan, &t, &one, NULL), DTP_OK);
        assert_int_equal(dtp_plan_resolve(&plan, &t, &one, NULL), DTP_OK); /* once more is the same */
        assert_int_equal(plan.precision.moments, DTP_FP32);
        assert_int_equal(dtp_lower(&t, &one, &plan, 0, &program, NULL), DTP_OK);
        for (size_t op = 0; op < dtp_program_op_count(program); op++)
            wide += dtp_program_ops(program)[op].kind == DTP_OP_MATMUL &&
                    dtp_program_ops(program)[op].demand->dtype == DTP_FP32;
        assert_int_equal(wide, ways[i].wide * (int)linears);
        uint64_t recast = dtp_plan_recasts_adapters(&plan) ? 2 * elements + 2 * elements / 16 : 0;
        assert_int_equal(bytes_at_peak(program, "cast input of an adapter"), ways[i].kept * elements + recast);
        assert_int_equal(bytes_at_peak(program, "input of an adapter and its mask"),
                         ways[i].dropout > 0 ? 5 * elements : 0);
        assert_int_equal(bytes_at_peak(program, "x A"), ways[i].low * 16 * 512 * linears);
        assert_true(moved_bytes(program, names, sizeof names / sizeof *names) == ways[i].element * (double)elements);
        dtp_program_destroy(program);
    }
}

/* DoRA's are counted in the dtype of the computation alone. */
static void test_wide_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_cluster one = test_cluster(test_h200(), 1, 1);
    t.layers = 2, t.hidden = 4096, t.heads = t.kv_heads = 32, t.head_dim = 128, t.ffn = 11008, t.vocab = 32000;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct dtp_plan plan = dtp_plan_default();
        plan.runtime = &dtp_runtime_peft, plan.strategy = DTP_DDP, plan.checkpointing = DTP_CHECKPOINT_NONE;
        plan.adapters.rank = 16, plan.adapters.dora = true, plan.adapters.dtype = narrow ? DTP_BF16 : DTP_FP32;
        assert_true(dtp_precision_recipe("bf16-pure", &plan.precision));
        assert_int_equal(dtp_plan_resolve(&plan, &t, &one, NULL), narrow ? DTP_OK : DTP_BAD_INPUT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_selective_attention_keeps),
                                       cmocka_unit_test(test_dora_keeps), cmocka_unit_test(test_wide),
                                       cmocka_unit_test(test_wide_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
