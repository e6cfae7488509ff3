/* Broken programs must be refused: any one dependency deleted from a legal program is caught by the verifier, or was
 * implied by the others, or is shown by random schedules to be needed by no data. */
#include "lower/lower.h"
#include "runtime/runtimes.h"
#include "program/verify.h"
#include "runtime/dtplan/lower_executor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/random_draws.h"
#include "lib/random_plans.h"
#include "lib/schedules.h"
#include "lib/step_program.h"

#define SCHEDULES 10

/* A copy without dependency `left_out` (index among those of all operations). Caller destroys. */
static struct dtp_program *copy_without(const struct dtp_program *program, uint32_t left_out)
{
    struct dtp_program *copy;
    assert_int_equal(dtp_program_create(0, &copy, NULL), DTP_OK);
    for (size_t i = 0; i < dtp_program_group_count(program); i++)
        dtp_program_add_group(copy, dtp_program_groups(program)[i]);
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        dtp_program_add_buffer(copy, &dtp_program_buffers(program)[i]);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        struct dtp_new_op again = {op->kind, op->stream, op->layer, op->micro_step, op->group,
                                   op->peer, op->tag,    op->name,  *op->demand};
        dtp_op_id id = dtp_program_add_op(copy, &again, dtp_program_operands(program, op), op->operand_count);
        for (uint32_t d = 0; d < op->dependency_count; d++)
            if (op->first_dependency + d != left_out)
                dtp_program_depend(copy, id, dtp_program_dependencies(program, op)[d]);
    }
    assert_int_equal(dtp_program_seal(copy, NULL), DTP_OK);
    return copy;
}

/* Whether some order makes the program, at its own offsets, read what it should not. */
static bool misreads(const struct dtp_program *program, int schedules)
{
    struct dtp_placement placement;
    assert_int_equal(dtp_program_place(program, &placement, NULL), DTP_OK);
    bool misread = schedules_misread(program, &placement, schedules, 1);
    dtp_placement_release(&placement);
    return misread;
}

struct verdicts {
    uint32_t caught, seen, redundant, timing; /* seen: of those caught, some schedule read wrong data */
};

static void try_one(const struct dtp_program *program, const struct dtp_op *op, uint32_t index,
                    struct verdicts *verdicts)
{
    bool redundant;
    struct dtp_program *copy = copy_without(program, op->first_dependency + index);
    assert_int_equal(dtp_program_dependency_redundant(program, op, index, &redundant, NULL), DTP_OK);
    bool caught = dtp_program_verify(copy, NULL) != DTP_OK, misread = misreads(copy, redundant ? 1 : SCHEDULES);
    if (redundant && caught)
        fail_msg("operation %td needs a dependency called redundant", op - dtp_program_ops(program));
    if (misread && !caught)
        fail_msg("operation %td reads wrong data without a dependency, and is not refused",
                 op - dtp_program_ops(program));
    verdicts->caught += caught;
    verdicts->seen += misread;
    verdicts->redundant += redundant;
    verdicts->timing += !caught && !redundant;
    dtp_program_destroy(copy);
}

static struct verdicts try_all(const struct dtp_program *program)
{
    struct verdicts verdicts = {0};
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        for (uint32_t d = 0; d < op->dependency_count; d++)
            try_one(program, op, d, &verdicts);
    }
    return verdicts;
}

/* In the hand-made step each dependency is there for a reason. */
static void test_every_dependency_of_a_step(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers;
        uint16_t micro_steps;
    } sizes[] = {{1, 1}, {2, 1}, {4, 1}, {3, 3}, {8, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct dtp_program *program = step_program(sizes[i].layers, sizes[i].micro_steps, 2);
        struct dtp_faults faults = {0};
        if (dtp_program_verify(program, &faults) != DTP_OK)
            fail_msg("%s", faults.text[0]);
        struct verdicts verdicts = try_all(program);
        print_message("%u layers, %u micro-steps: %u caught, %u seen, %u redundant\n", sizes[i].layers,
                      sizes[i].micro_steps, verdicts.caught, verdicts.seen, verdicts.redundant);
        assert_int_equal(verdicts.timing, 0);
        assert_true(verdicts.caught > 0);
        dtp_program_destroy(program);
    }
}

#define PROGRAMS RANDOM_DRAWS(24)

/* What lowering makes of random plans, of few layers and micro-steps, is legal, and no order makes it misread. Where a
 * dependency can go although nothing implies it ("timing"), a runtime waits for more than its data ask, and that no
 * order found a misread shows it. */
static void test_every_dependency_of_lowered_programs(void **state)
{
    (void)state;
    static struct dtp_faults faults;
    struct verdicts verdicts = {0};
    int programs = 0;
    random_seed();
    for (int draws = 0; programs < PROGRAMS && draws < 20 * PROGRAMS; draws++) {
        struct random_job job;
        struct dtp_program *program;
        assert_true(random_job(&job));
        job.transformer.layers = 1 + job.transformer.layers % 4;
        job.plan = job.asked;
        job.plan.accumulate = 1 + job.plan.accumulate % 3;
        faults = (struct dtp_faults){0};
        if (dtp_plan_resolve(&job.plan, &job.transformer, &job.cluster, NULL) != DTP_OK ||
            dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, &faults) != DTP_OK)
            continue;
        programs++;
        if (dtp_program_verify(program, &faults) != DTP_OK)
            fail_msg("draw %d: %s", draws, faults.text[0]);
        if (misreads(program, 50))
            fail_msg("draw %d: a legal program reads wrong data", draws);
        struct verdicts these = try_all(program);
        verdicts.caught += these.caught;
        verdicts.redundant += these.redundant;
        verdicts.timing += these.timing;
        verdicts.seen += these.seen;
        dtp_program_destroy(program);
    }
    print_message("%d programs: %u dependencies caught (%u seen), %u redundant, %u timing\n", programs, verdicts.caught,
                  verdicts.seen, verdicts.redundant, verdicts.timing);
    assert_int_equal(programs, PROGRAMS);
    assert_true(verdicts.seen > verdicts.caught / 2); /* the verifier asks for little that no order needs */
}

/* What is executed is proven: without a dependency that it needs, a program gets no addresses. */
static void test_unsafe_program_is_not_placed(void **state)
{
    (void)state;
    struct dtp_program *program = step_program(2, 1, 2);
    struct dtp_executor_arena arena;
    uint32_t refused = 0;
    assert_int_equal(dtp_executor_arena_make(program, &arena, NULL), DTP_OK);
    dtp_executor_arena_release(&arena);
    for (size_t i = 0; i < dtp_program_op_count(program); i++) {
        const struct dtp_op *op = &dtp_program_ops(program)[i];
        for (uint32_t d = 0; d < op->dependency_count; d++) {
            bool redundant;
            struct dtp_faults faults = {0};
            struct dtp_program *copy = copy_without(program, op->first_dependency + d);
            assert_int_equal(dtp_program_dependency_redundant(program, op, d, &redundant, NULL), DTP_OK);
            enum dtp_status status = dtp_executor_arena_make(copy, &arena, &faults);
            assert_int_equal(status, redundant ? DTP_OK : DTP_BAD_INPUT);
            assert_true(redundant || strstr(faults.text[faults.count - 1], "nothing was run"));
            refused += !redundant;
            dtp_executor_arena_release(&arena);
            dtp_program_destroy(copy);
        }
    }
    assert_true(refused > 0);
    dtp_program_destroy(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_dependency_of_a_step),
                                       cmocka_unit_test(test_every_dependency_of_lowered_programs),
                                       cmocka_unit_test(test_unsafe_program_is_not_placed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
