/* The trace of a small step, to the letter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/step_fixture.h"
#include "sim/trace.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* gather (1 s) -> matmul "a\b" (2 s), which frees the gathered buffer; then the host waits. */
static struct dtp_program *small_step(void)
{
    struct dtp_program *program = step_begin();
    uint32_t group = dtp_program_add_group(program, (struct dtp_program_group){2, 1});
    struct dtp_buffer params = {.name = "params", .bytes = 100, .owner = DTP_OWNER_PARAMS, .persistent = true};
    struct dtp_buffer gathered = {.name = "gathered", .bytes = 64, .owner = DTP_OWNER_GATHER};
    struct dtp_buffer host = {.name = "host", .bytes = 32, .owner = DTP_OWNER_GATHER, .space = DTP_SPACE_HOST};
    dtp_program_add_buffer(program, &params);
    dtp_buffer_id flat = dtp_program_add_buffer(program, &gathered), pinned = dtp_program_add_buffer(program, &host);
    struct dtp_new_op op = {.kind = DTP_OP_ALL_GATHER,
                            .stream = DTP_STREAM_GATHER,
                            .group = group,
                            .layer = DTP_NO_LAYER,
                            .demand = {.sent_bytes = 32}};
    struct dtp_operand makes[] = {dtp_operand_of(flat, DTP_ALLOC | DTP_WRITE),
                                  dtp_operand_of(pinned, DTP_ALLOC | DTP_WRITE | DTP_FREE)};
    dtp_op_id gather = dtp_program_add_op(program, &op, makes, 2);
    op =
        (struct dtp_new_op){.kind = DTP_OP_MATMUL, .layer = 3, .micro_step = 1, .name = "a\\b", .demand = {.flops = 8}};
    dtp_op_id matmul =
        dtp_program_add_op(program, &op, (struct dtp_operand[]){dtp_operand_of(flat, DTP_READ | DTP_FREE)}, 1);
    dtp_program_depend(program, matmul, gather);
    dtp_program_depend(program, step_event(program, DTP_OP_HOST_WAIT, DTP_STREAM_HOST), matmul);
    step_event(program, DTP_OP_MARK, DTP_STREAM_COMPUTE);
    step_seal(program);
    return program;
}

static struct dtp_span spans[] = {{0, 1}, {1, 3}, {0.5, 3}, {3, 3}};
static double issues[] = {0, 0.25, 3, 3};
static uint32_t path[] = {0, 1, 2};
static const struct dtp_timeline timeline = {
    .op_count = 4, .span = spans, .issue_s = issues, .step_s = 4, .critical = path, .critical_count = 3};

static enum dtp_status write_trace(FILE *file)
{
    struct dtp_program_set set = {NULL, 0};
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_program_set_add(&set, "every rank", 2, small_step(), &faults), DTP_OK);
    enum dtp_status status = dtp_trace_write_set_json(&set, &timeline, file, &faults);
    dtp_program_set_release(&set);
    return status;
}

static size_t count(json_t *events, const char *phase)
{
    size_t i, found = 0;
    json_t *event;
    json_array_foreach(events, i, event) found += !strcmp(json_string_value(json_object_get(event, "ph")), phase);
    return found;
}

/* Valid JSON: a slice for each operation that takes time, the wait too; an arrow for each dependency between slices. */
static void test_json(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    assert_int_equal(write_trace(file), DTP_OK);
    fclose(file);
    json_error_t error;
    json_t *root = json_loads(text, 0, &error), *events = json_object_get(root, "traceEvents");
    if (!root)
        fail_msg("%s at line %d", error.text, error.line);
    assert_int_equal(count(events, "X"), 3);
    assert_int_equal(count(events, "s"), 2);
    assert_int_equal(count(events, "f"), 2);
    assert_int_equal(count(events, "M"), 1 + 2 * DTP_STREAM_COUNT);
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) if (!strcmp(json_string_value(json_object_get(event, "name")), "a\\b"))
    {
        assert_true(json_number_value(json_object_get(event, "ts")) == 1e6);
        assert_true(json_number_value(json_object_get(event, "dur")) == 2e6);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(event, "args"), "layer")), 3);
    }
    json_decref(root);
    free(text);
}

static void test_full_disk(void **state)
{
    (void)state;
    FILE *file = fopen("/dev/full", "w");
    if (!file)
        skip();
    assert_int_equal(write_trace(file), DTP_ENVIRONMENT);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
