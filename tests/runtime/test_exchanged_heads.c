/* What stands where in the step program of ranks that exchange tokens for heads: chunks of heads and sequences each
 * have all-to-alls of their own, copies around them turn queries and keys, and weight gradients stand beside those that
 * backward waits for. */
#include "lower/lower.h"
#include "program/verify.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "lib/lowered_job.h"

/* One layer and two sequences, on two ranks. */
static struct dtp_program *lower(uint32_t chunks)
{
    struct dtp_transformer t = dtp_transformer_default();
    struct dtp_plan plan = dtp_plan_default();
    struct dtp_cluster cluster = test_cluster(test_h200(), 2, 8);
    t.layers = 1, t.hidden = 64, t.heads = 8, t.kv_heads = 4, t.head_dim = 8, t.ffn = 128, t.vocab = 250;
    t.final_norm = true;
    plan.runtime = &dtp_runtime_dtplan, plan.strategy = DTP_DDP, plan.sequence = 32, plan.micro_batch = 2;
    plan.cp = 2, plan.cp_comm = DTP_CP_A2A, plan.executor.cp_chunks = chunks;
    return lowered_plan(&t, &cluster, &plan);
}

/* The operation of a kind and name behind number `from`. */
static size_t behind(const struct dtp_program *program, enum dtp_op_kind kind, const char *name, size_t from)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = from + 1; i < dtp_program_op_count(program); i++)
        if (ops[i].kind == kind && strcmp(ops[i].name, name) == 0)
            return i;
    fail_msg("no %s \"%s\" behind operation %zu", dtp_op_kind_text(kind), name, from);
    return 0;
}

static bool has_tables(const struct dtp_program *program, size_t op)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    const struct dtp_operand *operands = dtp_program_operands(program, &ops[op]);
    for (uint32_t i = 0; i < ops[op].operand_count; i++)
        if (operands[i].role == DTP_ROLE_TABLES)
            return true;
    return false;
}

/* Of each chunk and sequence: inputs and results forward, backward results, their gradients and those of inputs. */
static void test_an_exchange_for_each_chunk_and_sequence(void **state)
{
    (void)state;
    for (uint32_t chunks = 0; chunks <= 2; chunks++) { /* 0: two, as heads allow */
        struct dtp_program *program = lower(chunks);
        const size_t made = chunks ? chunks : 2;
        assert_int_equal(count_of(program, DTP_OP_ALL_TO_ALL), made * 2 * 5);
        assert_int_equal(count_of(program, DTP_OP_ATTENTION), made);
        assert_int_equal(count_of(program, DTP_OP_ATTENTION_BACKWARD), made);
        assert_int_equal(count_of(program, DTP_OP_COPY_IN), 3);
        assert_int_equal(count_of(program, DTP_OP_COPY_OUT), 2);
        dtp_program_destroy(program);
    }
}

static void test_copies_turn(void **state)
{
    struct dtp_program *program = lower(0);
    (void)state;
    assert_int_equal(count_of(program, DTP_OP_ROTARY) + count_of(program, DTP_OP_ROTARY_BACKWARD), 0);
    assert_true(has_tables(program, behind(program, DTP_OP_COPY_IN, "qkv", 0)));
    assert_true(has_tables(program, behind(program, DTP_OP_COPY_OUT, "qkv gradient", 0)));
    assert_false(has_tables(program, behind(program, DTP_OP_COPY_OUT, "result", 0)));
    assert_false(has_tables(program, behind(program, DTP_OP_COPY_IN, "result gradient", 0)));
    dtp_program_destroy(program);
}

/* Behind the sends before the first core, and behind those of the last: nothing of compute is in between. */
static void test_weight_gradients_stand_beside(void **state)
{
    struct dtp_program *program = lower(2);
    (void)state;
    size_t sent = behind(program, DTP_OP_COPY_IN, "result gradient", 0);
    size_t beside = behind(program, DTP_OP_MATMUL, "up weight gradient", sent);
    assert_int_equal(beside, sent + 1 + 2 * 2 * 2); /* chunks, sequences, results and their gradients */
    size_t core = behind(program, DTP_OP_ATTENTION_BACKWARD, "attention", beside);
    assert_int_equal(core, beside + 1);
    core = behind(program, DTP_OP_ATTENTION_BACKWARD, "attention", core);
    beside = behind(program, DTP_OP_MATMUL, "output weight gradient", core);
    assert_int_equal(beside, core + 1 + 2);
    assert_int_equal(behind(program, DTP_OP_COPY_OUT, "qkv gradient", beside), beside + 1);
    dtp_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_exchange_for_each_chunk_and_sequence),
                                       cmocka_unit_test(test_copies_turn),
                                       cmocka_unit_test(test_weight_gradients_stand_beside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
