/* Embedding and head that are trained beside adapters (modules_to_save of peft), by hand: of LLaMA-7B, whose base is
 * bf16, adapters of rank 16 on q, k, v and o are fp32, as peft makes them where nothing is said.
 *
 * Embedding and head are 2 x 131,072,000 elements; a pair of adapters is 16 x (4096 + 4096) = 131,072 elements, four of
 * them a layer and 128 of the model: 16,777,216. */
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/memory_fixture.h"

#define ALL UINT64_C(6738415616)
#define END UINT64_C(131072000)
#define PAIR UINT64_C(131072)
#define ADAPTERS (128 * PAIR)

static struct dtp_plan trained_ends(void)
{
    struct dtp_plan plan = plan_of(&dtp_runtime_peft, DTP_DDP, "bf16-mixed");
    plan.checkpointing = DTP_CHECKPOINT_FULL;
    plan.adapters.rank = 16, plan.adapters.targets = DTP_TARGETS_ATTENTION, plan.adapters.dtype = DTP_FP32;
    plan.adapters.train_ends = true;
    return plan;
}

/* Copies in the base's dtype beside the frozen ones, with gradients and moments of that. */
static void test_one_gpu(void **state)
{
    (void)state;
    struct dtp_plan plan = trained_ends();
    struct dtp_memory memory = predict(&plan, &one_gpu);
    assert_int_equal(memory.params_bytes, 2 * ALL + 2 * 2 * END + 4 * ADAPTERS);
    assert_int_equal(memory.grads_bytes, 2 * 2 * END + 4 * ADAPTERS);
    assert_int_equal(memory.optimizer_bytes, 4 * 2 * END + 8 * ADAPTERS);
    plan.runtime = &dtp_runtime_torch,
    plan.checkpointing = DTP_CHECKPOINT_NONE; /* which trains the modules themselves */
    memory = predict(&plan, &one_gpu);
    assert_int_equal(memory.params_bytes, 2 * ALL + 4 * ADAPTERS);
}

/* Two buckets hold what is trained, each dtype's own; with DDP's views they are what the optimizer reads. */
static void test_buckets_rest(void **state)
{
    (void)state;
    const struct dtp_cluster two = two_gpus();
    struct dtp_plan plan = trained_ends();
    plan.ddp_bucket_view = true;
    struct dtp_memory memory = predict(&plan, &two);
    assert_int_equal(memory.params_bytes, 2 * ALL + 2 * 2 * END + 4 * ADAPTERS);
    assert_int_equal(memory.grads_bytes, 2 * 2 * END + 4 * ADAPTERS);
    assert_int_equal(memory.optimizer_bytes, 4 * 2 * END + 8 * ADAPTERS);
    struct dtp_memory alone = predict(&plan, &one_gpu);
    plan.ddp_bucket_view = false; /* .grad beside the buckets, as one GPU has it */
    memory = predict(&plan, &two);
    assert_int_equal(memory.phase_total_bytes[DTP_PHASE_STEP],
                     alone.phase_total_bytes[DTP_PHASE_STEP] + 2 * 2 * END + 4 * ADAPTERS);
}

/* In the order in which gradients come: the head, 262 MB of bf16, fills a bucket at once; the first of fp32 is full
 * with two pairs (1 MiB), each further one with 50 (25 MiB), and 26 are left in one that is never full; the embedding's
 * is. What is left stands behind it, so that it waits for the embedding's gradient although it has all of its own. */
static void test_buckets_in_order(void **state)
{
    (void)state;
    const uint64_t pairs[] = {0, 2, 50, 50, 0, 26}, bytes[] = {2 * END, 0, 0, 0, 2 * END, 0};
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster two = two_gpus();
    struct dtp_plan plan = trained_ends();
    static struct dtp_faults faults;
    struct dtp_program *program;
    if (dtp_plan_resolve(&plan, &t, &two, &faults) != DTP_OK ||
        dtp_lower(&t, &two, &plan, 0, &program, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    uint32_t found = 0;
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &ops[i];
        if (op->kind != DTP_OP_ALL_REDUCE)
            continue;
        assert_true(found < 6);
        assert_true(op->demand->bytes == (double)(bytes[found] + 4 * PAIR * pairs[found]));
        found++;
    }
    assert_int_equal(found, 6);
    dtp_program_destroy(program);
}

/* FSDP's flat parameters and groups are of one dtype. */
static void test_refused(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster two = two_gpus();
    struct dtp_plan plan = trained_ends();
    plan.runtime = &dtp_runtime_torch, plan.strategy = DTP_FULL_SHARD, plan.checkpointing = DTP_CHECKPOINT_NONE;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &two, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "train_ends"));
    assert_non_null(strstr(faults.text[0], "lora_dtype bf16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_gpu), cmocka_unit_test(test_buckets_rest),
                                       cmocka_unit_test(test_buckets_in_order), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
