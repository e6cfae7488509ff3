/* QLoRA under FSDP1 whose frozen weights are in the host's memory, by hand: Llama-2-70B on two GPUs, adapters of rank 8
 * on all linears in bf16, base nf4 with packed scales (h = 8192, k and v 1024 wide, ffn 28672, 80 layers, 32000 words).
 *
 * A layer has 2 h^2 + 2 x 1024 h + 3 x 28672 h = 855,638,016 weights. Of each of two ranks: half a byte of half of
 * them, 213,909,504, and of two norms 2 x 8192 x 2 / 2; scales of all of them, a byte of 64 and 4 of 16,384, are on
 * each GPU. Adapters are 8 (2 (h + h) + 2 (h + 1024) + 3 (h + 28672)) = 1,294,336 elements a layer, the root 2 x 32000
 * h + h. */
#include "closed/closed_form.h"
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/memory_fixture.h"

#define BLOCKS UINT64_C(80)
#define WEIGHTS UINT64_C(855638016)
#define FROZEN (WEIGHTS / 4 + 2 * 8192 * 2 / 2)
#define ADAPTERS UINT64_C(1294336)
#define ENDS (2 * UINT64_C(32000) * 8192 + 8192)
#define SCALES (WEIGHTS / 64 + 4 * (WEIGHTS / 16384))

static struct dtp_transformer llama_70b(void)
{
    struct dtp_transformer t = llama_7b();
    t.layers = BLOCKS, t.hidden = 8192, t.heads = 64, t.kv_heads = 8, t.head_dim = 128, t.ffn = 28672, t.vocab = 32000;
    return t;
}

static struct dtp_plan offloaded(enum dtp_offload offload)
{
    struct dtp_plan plan = plan_of(&dtp_runtime_peft, DTP_FULL_SHARD, "bf16-pure");
    plan.checkpointing = DTP_CHECKPOINT_FULL, plan.fsdp1 = true, plan.offload = offload;
    plan.adapters.rank = 8, plan.adapters.base = DTP_BASE_NF4_DOUBLE;
    return plan;
}

/* Each flat parameter is pinned twice, rounded up to a power of two: 2^28 of a layer, 2^29 of the root; A and B of each
 * linear, half of 8 x width in 2 bytes: 2^16 of 8192, 2^13 of 1024, 2^18 of 28672. Moments of half the adapters, in
 * bf16, are not pinned. On a GPU scales alone stand between steps. */
static void test_where_it_stays(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_70b();
    struct dtp_cluster two = two_gpus();
    struct dtp_plan plan = offloaded(DTP_OFFLOAD_PARAMS);
    const uint64_t pairs = 2 * (65536 + 65536) + 2 * (65536 + 8192) + 3 * (65536 + 262144);
    const uint64_t rank =
        2 * BLOCKS * ((UINT64_C(1) << 28) + pairs) + 2 * (UINT64_C(1) << 29) + 4 * BLOCKS * ADAPTERS / 2;
    struct dtp_memory memory = estimate(&t, &plan, &two);
    assert_int_equal(memory.host_bytes, 2 * rank);
    assert_int_equal(memory.params_bytes, BLOCKS * SCALES);
    assert_int_equal(memory.optimizer_bytes, 0);
    plan = offloaded(DTP_OFFLOAD_NONE);
    memory = estimate(&t, &plan, &two);
    assert_int_equal(memory.params_bytes, BLOCKS * (SCALES + FROZEN + 2 * ADAPTERS / 2) + 2 * ENDS / 2);
    assert_int_equal(memory.optimizer_bytes, 4 * BLOCKS * ADAPTERS / 2);
    assert_int_equal(memory.host_bytes, 0);
}

/* Shards go up each time that they are gathered: of a layer three times, for reentrant checkpoints are around FSDP1, of
 * the root once; gradients of adapters alone come down, once. The host reads and writes seven tensors of theirs. */
static void test_what_moves(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_70b();
    struct dtp_cluster two = two_gpus();
    struct dtp_plan plan = offloaded(DTP_OFFLOAD_PARAMS);
    struct dtp_program *program;
    struct dtp_communication c;
    static struct dtp_faults faults;
    const uint64_t up = 3 * BLOCKS * (FROZEN + 2 * ADAPTERS / 2) + 2 * ENDS / 2, down = 2 * BLOCKS * ADAPTERS / 2;
    double host = 0;
    if (dtp_plan_resolve(&plan, &t, &two, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    dtp_closed_form_communication(&t, &two, &plan, &c);
    assert_int_equal(c.host_to_device_bytes, up);
    assert_int_equal(c.device_to_host_bytes, down);
    assert_int_equal(c.bytes[DTP_ALL_GATHER], up); /* of two ranks each sends what it has */
    assert_int_equal(dtp_lower(&t, &two, &plan, 0, &program, &faults), DTP_OK);
    assert_int_equal(dtp_program_verify(program, NULL), DTP_OK);
    struct dtp_program_totals totals;
    dtp_program_sum(program, &totals);
    assert_int_equal(totals.host_to_device_bytes, up);
    assert_int_equal(totals.device_to_host_bytes, down);
    for (size_t i = 0; i < dtp_program_op_count(program); i++)
        if (dtp_program_ops(program)[i].kind == DTP_OP_HOST_OPTIMIZER)
            host += dtp_program_ops(program)[i].demand->bytes;
    assert_true(host == 7 * 2.0 * BLOCKS * ADAPTERS / 2);
    dtp_program_destroy(program);
}

static void test_refused(void **state)
{
    (void)state;
    struct dtp_transformer t = llama_70b();
    struct dtp_cluster two = two_gpus();
    for (int way = 0; way < 4; way++) {
        struct dtp_plan plan = offloaded(way == 3 ? DTP_OFFLOAD_OPTIMIZER : DTP_OFFLOAD_PARAMS);
        struct dtp_faults faults = {0};
        plan.fsdp1 = way != 0, plan.wrap_layers = way == 1 ? 2 : 1, plan.adapters.dora = way == 2;
        plan.adapters.base = way == 2 ? DTP_BASE_NONE : plan.adapters.base;
        assert_int_equal(dtp_plan_resolve(&plan, &t, &two, &faults), DTP_BAD_INPUT);
        if (!strstr(faults.text[0], way == 1 ? "wrap_layers" : way == 2 ? "dora" : "offload"))
            fail_msg("%s", faults.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_where_it_stays), cmocka_unit_test(test_what_moves),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
