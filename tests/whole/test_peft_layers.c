/* Runtime peft by hand: layers of Transformers' modeling files that are none of LLaMA's, GPT-2's GELU and LayerNorm,
 * and linears that are one, with adapters of these. */
#include "closed/block_work.h"
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "plan/norm_chain.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/peft_fixture.h"

/* Phi-3's linears, one of q, k and v and one of gate and up: of the layer of test_recast q, k and v stay whole beside q
 * and k that RoPE turned, 6 h + 4 h; gate and up are halves of 4 f as large as two; two adapters in place of four have
 * 2 x 2 h of casts and 2 x 2 x 16, and of weights rank x (h + 3 h) and rank x 2 h in place of 4 x rank x 2 h. */
static void test_fused_linears(void **state)
{
    (void)state;
    const double h = 4096, f = 11008;
    struct dtp_plan plan = trainer(16);
    dtp_precision_recipe("bf16-mixed", &plan.precision);
    plan.checkpointing = DTP_CHECKPOINT_NONE, plan.adapters.dropout = 0, plan.shifted_logits = false;
    const uint64_t apart = predict(&plan, &one_gpu).params_bytes;
    plan.fused_qkv = plan.fused_gate_up = true;
    assert_int_equal(apart - predict(&plan, &one_gpu).params_bytes, 32 * 4 * 16 * (8 - 6) * 4096);
    assert_near(of_a_token(plan), 32 * (8 * h + 12 * h + 4 * h + 6 * f + 64 + 8 + 128) + 12 * 32000 + 4 * h + 4 + 8);
    plan.adapters.targets = 1u << DTP_TARGET_Q;
    assert_refused(plan, "lora_targets");
    plan.adapters.targets = DTP_TARGETS_ATTENTION, plan.adapters.dora = true;
    assert_refused(plan, "fused_qkv");
}

/* GPT-2's layer, h = 4096, f = 11008, bf16 weights trained, one linear of q, k and v. Of a token without autocast both
 * LayerNorms keep input and result 2 x 4 h and two numbers each, q, k and v 6 h, the core's result 2 h and a number a
 * head, GELU x, 0.5 x, tanh and 1 + tanh 8 f, its result 2 f; the head's end 12 x 32000 and what it read 2 h, the final
 * norm's input 2 h and numbers, the token's index. Autocast runs LayerNorm on a cast, 4 h in place of 2, and GELU's
 * power: of x the cast, tanh and 1 + tanh are fp32, 0.5 x is not, 14 f in place of 8. So Transformers 5.17 keeps
 * gpt2-xl's on an H200, tensor by tensor. Kernels move of an element of f, bytes, without autocast 36 forward and 56
 * backward where one GELU's 4 and 6; under it 76 and 118, and of one of h of each norm the casts of x 6, of the result
 * 6 and 4 + 4 in place of 2 + 2, backward casts 6 and 6, x's gradient 12 and both vectors' 8 in place of 10. */
static void test_gelu_new(void **state)
{
    (void)state;
    const double h = 4096, f = 11008, ends = 12 * 32000 + 2 * h + 8 + 8, rest = 6 * h + 2 * h + 4 * 32 + 2 * 8 + 2 * f;
    struct dtp_transformer t = llama_7b();
    struct dtp_plan plan = trainer(0);
    plan.checkpointing = DTP_CHECKPOINT_NONE, plan.shifted_logits = false, plan.fused_qkv = true;
    t.norm = DTP_LAYER_NORM, t.norm_bias = true, t.position = DTP_POSITION_NONE, t.activation = DTP_GELU;
    const double one = moved_bytes_of(&t, plan);
    t.activation = DTP_GELU_NEW;
    const double narrow = moved_bytes_of(&t, plan);
    assert_near(narrow - one, 32 * 2048 * f * (36 + 56 - 4 - 6));
    assert_near(of_a_token_of(&t, plan), 32 * (8 * h + 8 * f + rest) + ends + 2 * h);
    plan.autocast = true;
    assert_near(moved_bytes_of(&t, plan) - narrow, 32 * 2048 * (f * (76 + 118 - 36 - 56) + 2 * h * (16 + 22)));
    assert_near(of_a_token_of(&t, plan), 32 * (12 * h + 14 * f + rest) + ends + 4 * h);
    plan.runtime = &dtp_runtime_torch, plan.autocast = false; /* one kernel */
    const double kernel = moved_bytes_of(&t, plan);
    t.activation = DTP_GELU;
    assert_true(moved_bytes_of(&t, plan) == kernel);
    plan = trainer(16), plan.autocast = true;
    assert_refused(plan, "autocast");
    plan = trainer(0), dtp_precision_recipe("bf16-mixed", &plan.precision), plan.autocast = true;
    assert_refused(plan, "autocast");
    plan.runtime = &dtp_runtime_torch;
    assert_refused(plan, "autocast");
}

static uint32_t host_waits(struct dtp_plan plan)
{
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster cluster = one_gpu;
    struct dtp_program *program;
    static struct dtp_faults faults;
    uint32_t waits = 0;
    assert_int_equal(resolved(&t, &plan, &cluster, &faults), DTP_OK);
    assert_int_equal(dtp_lower(&t, &cluster, &plan, 0, &program, NULL), DTP_OK);
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        waits += ops[i].kind == DTP_OP_HOST_WAIT;
    dtp_program_destroy(program);
    return waits;
}

/* Trainer's host waits twice for the loss of each micro-step, a loop of PyTorch's own for none. */
static void test_losses_read(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16);
    plan.accumulate = 3;
    assert_int_equal(host_waits(plan), 3 * 2);
    plan.unread_loss = true;
    assert_int_equal(host_waits(plan), 0);
    plan.runtime = &dtp_runtime_torch, plan.shifted_logits = false;
    assert_refused(plan, "unread_loss");
}

/* Liger's SwiGLU keeps gate and up of 2 f bytes each, as does a chain of operators, which keeps silu of the gate, too:
 * 2 f fewer of each layer. */
static void test_fused_activation(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16), fused = plan;
    plan.checkpointing = fused.checkpointing = DTP_CHECKPOINT_NONE, fused.fused_activation = true;
    assert_near(of_a_token(plan) - of_a_token(fused), 32 * 2 * 11008);
    fused.fused_gate_up = true;
    assert_refused(fused, "fused_activation");
}

/* MatMul8bitLt holds what it reads. Of nf4 the inputs of q, k, v and o alone stay, for their adapters, without dropout
 * as they came: gate's and up's 2 h and down's 2 f are more. With dropout adapters keep their own, and that of q, k and
 * v is 2 h more besides; that of o attention keeps. */
static void test_held_inputs(void **state)
{
    (void)state;
    const double h = 4096, f = 11008;
    struct dtp_plan packed = trainer(16);
    dtp_precision_recipe("bf16-mixed", &packed.precision);
    packed.checkpointing = DTP_CHECKPOINT_NONE, packed.adapters.dropout = 0, packed.adapters.base = DTP_BASE_NF4;
    struct dtp_plan held = packed;
    held.adapters.base = DTP_BASE_INT8;
    assert_near(of_a_token(held) - of_a_token(packed), 32 * (2 * h + 2 * f));
    held.adapters.dropout = packed.adapters.dropout = 0.1;
    assert_near(of_a_token(held) - of_a_token(packed), 32 * (2 * h + 2 * f + 2 * h));
}

/* DoRA beside bf16 results: of fp32 adapters under autocast x is fp32, and so are W, B A and what magnitudes multiply.
 */
static void test_magnitude_passes(void **state)
{
    (void)state;
    struct dtp_plan plan = trainer(16);
    dtp_precision_recipe("bf16-mixed", &plan.precision);
    plan.adapters.dora = true;
    struct dtp_magnitude_passes p = dtp_plan_magnitude_passes(&plan);
    assert_int_equal(p.identity, 4 + (4 + 2));
    assert_int_equal(p.casts + p.norm, 2 * (2 + 4) + (4 + 4) + (4 + 4 + 4) + 4);
    assert_int_equal(p.terms, 2 * (2 + 4) + (4 + 4) + (4 + 4 + 4));
    assert_int_equal(p.added, (2 + 4 + 4) + (4 + 2));
    assert_int_equal(p.back + p.back_wanted, 2 * (2 + 4) + (4 + 4) + 2 * (4 + 4 + 4 + 2) + 2 * (2 + 4 + 4 + 4));
    plan.adapters.dtype = DTP_BF16;
    p = dtp_plan_magnitude_passes(&plan);
    assert_int_equal(p.identity, 2);
    assert_int_equal(p.casts + p.norm, 6 * 2);
    assert_int_equal(p.terms + p.added, (9 + 3) * 2);
    assert_int_equal(p.back + p.back_wanted, 14 * 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gelu_new),    cmocka_unit_test(test_fused_linears),
                                       cmocka_unit_test(test_losses_read), cmocka_unit_test(test_fused_activation),
                                       cmocka_unit_test(test_held_inputs), cmocka_unit_test(test_magnitude_passes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
