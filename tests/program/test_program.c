#include "base/host_arena.h"
#include "program/program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static struct dtp_program *fresh(uint32_t op_limit)
{
    struct dtp_program *program;
    assert_int_equal(dtp_program_create(op_limit, &program, NULL), DTP_OK);
    return program;
}

static dtp_buffer_id buffer(struct dtp_program *program, const char *name)
{
    return dtp_program_add_buffer(program, &(struct dtp_buffer){.name = name, .bytes = 1024, .layer = DTP_NO_LAYER});
}

static dtp_op_id op(struct dtp_program *program, enum dtp_op_kind kind, enum dtp_stream stream)
{
    return dtp_program_add_op(program, &(struct dtp_new_op){.kind = kind, .stream = stream}, NULL, 0);
}

/* Seals, expects the reason and destroys. */
static void expect_refused(struct dtp_program *program, const char *reason)
{
    static struct dtp_faults faults;
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_program_seal(program, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 1);
    if (!strstr(faults.text[0], reason))
        fail_msg("\"%s\" does not contain \"%s\"", faults.text[0], reason);
    dtp_program_destroy(program);
}

static void test_tables_agree(void **state)
{
    (void)state;
    for (int i = 0; i < DTP_OP_KIND_COUNT; i++) {
        enum dtp_op_kind kind;
        assert_true(dtp_op_kind_parse(dtp_op_kind_text((enum dtp_op_kind)i), &kind));
        assert_int_equal(kind, i);
        if (dtp_op_kind_class(kind) == DTP_CLASS_COLLECTIVE)
            assert_string_equal(dtp_op_kind_is_transfer(kind) || kind == DTP_OP_SHIFT ? "send_recv"
                                                                                      : dtp_op_kind_text(kind),
                                dtp_collective_text(dtp_op_kind_collective(kind)));
    }
    for (int i = 0; i < DTP_STREAM_COUNT; i++) {
        enum dtp_stream stream;
        assert_true(dtp_stream_parse(dtp_stream_text((enum dtp_stream)i), &stream));
        assert_int_equal(stream, i);
    }
    enum dtp_role role;
    for (int i = 0; i < DTP_ROLE_COUNT; i++) {
        assert_true(dtp_role_parse(dtp_role_text((enum dtp_role)i), &role));
        assert_int_equal(role, i);
    }
    enum dtp_op_kind kind;
    enum dtp_stream stream;
    assert_false(dtp_op_kind_parse("", &kind) || dtp_stream_parse("Compute", &stream) || dtp_role_parse("w", &role));
}

static void test_what_was_added_is_read(void **state)
{
    (void)state;
    struct dtp_program *p = fresh(0);
    char name[] = "weights";
    dtp_buffer_id w = buffer(p, name), x = buffer(p, NULL);
    name[0] = '?'; /* names are copied */
    assert_int_equal(dtp_program_add_group(p, (struct dtp_program_group){8, 1}), 0);
    struct dtp_operand gathered = dtp_operand_of(w, DTP_ALLOC | DTP_WRITE);
    struct dtp_operand used[3] = {dtp_operand_of(w, DTP_READ | DTP_FREE),
                                  dtp_operand_of(x, DTP_UPDATE),
                                  {w, DTP_READ, DTP_ROLE_WEIGHT, 0, 1023, 1}};
    dtp_op_id a = dtp_program_add_op(
        p,
        &(struct dtp_new_op){
            .kind = DTP_OP_ALL_GATHER, .stream = DTP_STREAM_GATHER, .layer = 3, .demand.sent_bytes = 7},
        &gathered, 1);
    dtp_op_id b = dtp_program_add_op(
        p, &(struct dtp_new_op){.kind = DTP_OP_MATMUL, .stream = DTP_STREAM_COMPUTE, .name = "qkv", .demand.flops = 96},
        used, 3);
    dtp_program_depend(p, b, a);
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    assert_int_equal(dtp_program_op_count(p), 2);
    assert_int_equal(dtp_program_buffer_count(p), 2);
    assert_int_equal(dtp_program_group_count(p), 1);
    assert_int_equal(dtp_program_groups(p)->ranks, 8);
    assert_string_equal(dtp_program_buffers(p)[w.index].name, "weights");
    assert_string_equal(dtp_program_buffers(p)[x.index].name, "");
    const struct dtp_op *ops = dtp_program_ops(p);
    assert_int_equal(ops[0].layer, 3);
    assert_int_equal(ops[0].group, 0);
    assert_int_equal(ops[1].group, DTP_NO_INDEX);
    assert_string_equal(ops[1].name, "qkv");
    assert_null(dtp_program_dependencies(p, &ops[0]));
    assert_int_equal(ops[1].dependency_count, 1);
    assert_int_equal(dtp_program_dependencies(p, &ops[1])->index, a.index);
    assert_int_equal(ops[1].operand_count, 3);
    assert_int_equal(dtp_program_operands(p, &ops[1])[1].access, DTP_UPDATE);
    assert_int_equal(dtp_program_operands(p, &ops[1])[2].role, DTP_ROLE_WEIGHT);
    assert_int_equal(dtp_program_operands(p, &ops[1])[2].offset_bytes, 1023);
    dtp_program_destroy(p);
    dtp_program_destroy(NULL);
}

/* compute 0, gather 1, gather 2, copy 3: what streams imply is dropped. */
static void test_dependencies_are_those_that_streams_do_not_imply(void **state)
{
    (void)state;
    struct dtp_program *p = fresh(0);
    dtp_op_id first = op(p, DTP_OP_NORM, DTP_STREAM_COMPUTE), one = op(p, DTP_OP_CAST, DTP_STREAM_GATHER);
    dtp_op_id two = op(p, DTP_OP_CAST, DTP_STREAM_GATHER), last = op(p, DTP_OP_CAST, DTP_STREAM_COPY);
    dtp_program_depend(p, last, two);
    dtp_program_depend(p, last, one);
    dtp_program_depend(p, last, first);
    dtp_program_depend(p, last, first);
    dtp_program_depend(p, last, (dtp_op_id){DTP_NO_INDEX});
    dtp_op_id end = op(p, DTP_OP_CAST, DTP_STREAM_COPY);
    dtp_program_depend(p, end, last);
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    const struct dtp_op *ops = dtp_program_ops(p);
    assert_int_equal(ops[last.index].dependency_count, 2);
    assert_int_equal(dtp_program_dependencies(p, &ops[last.index])[0].index, two.index);
    assert_int_equal(dtp_program_dependencies(p, &ops[last.index])[1].index, first.index);
    assert_int_equal(ops[end.index].dependency_count, 0);
    dtp_program_destroy(p);
}

static void add_matmul(struct dtp_program *p, struct dtp_demand demand)
{
    dtp_program_add_op(p, &(struct dtp_new_op){.kind = DTP_OP_MATMUL, .demand = demand}, NULL, 0);
}

static void test_bad_operations_are_refused(void **state)
{
    (void)state;
    struct dtp_program *p = fresh(0);
    op(p, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER);
    op(p, (enum dtp_op_kind)99, DTP_STREAM_GATHER); /* the first fault is kept */
    expect_refused(p, "operation 0 (all_gather): a collective needs a group");
    p = fresh(0);
    op(p, (enum dtp_op_kind)99, DTP_STREAM_GATHER);
    expect_refused(p, "no such kind");
    p = fresh(0);
    op(p, DTP_OP_NORM, DTP_STREAM_COUNT);
    expect_refused(p, "no such kind or stream");
    const struct dtp_demand bad[] = {{.flops = NAN},    {.m = -1},           {.bytes = INFINITY},
                                     {.elements = NAN}, {.column_sums = -1}, {.sent_bytes = 0x1p58}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p = fresh(0);
        add_matmul(p, bad[i]);
        expect_refused(p, "a demand is negative");
    }
    p = fresh(0);
    add_matmul(p, (struct dtp_demand){.dtype = DTP_DTYPE_COUNT});
    expect_refused(p, "format");
    p = fresh(0);
    add_matmul(p, (struct dtp_demand){.recompute = 2});
    expect_refused(p, "recompute");
}

static void expect_operands_refused(enum dtp_op_kind kind, struct dtp_operand a, struct dtp_operand b,
                                    const char *reason)
{
    struct dtp_program *p = fresh(0);
    buffer(p, "x");
    dtp_program_add_buffer(p, &(struct dtp_buffer){.name = "p", .persistent = true});
    dtp_program_add_op(p, &(struct dtp_new_op){.kind = kind}, (struct dtp_operand[]){a, b}, 2);
    expect_refused(p, reason);
}

static void test_bad_operands_are_refused(void **state)
{
    (void)state;
    struct dtp_operand read_x = dtp_operand_of((dtp_buffer_id){0}, DTP_READ),
                       read_p = dtp_operand_of((dtp_buffer_id){1}, DTP_READ);
    expect_operands_refused(DTP_OP_NORM, read_x, dtp_operand_of((dtp_buffer_id){2}, DTP_READ), "no buffer");
    expect_operands_refused(DTP_OP_NORM, read_x, read_x, "twice");
    expect_operands_refused(DTP_OP_NORM, read_p, (struct dtp_operand){{0}, DTP_READ, DTP_ROLE_COUNT, 0, 0, 0},
                            "no such role");
    expect_operands_refused(DTP_OP_NORM, read_p, (struct dtp_operand){{0}, DTP_READ, 0, 0, 1024, 0}, "behind the end");
    expect_operands_refused(DTP_OP_NORM, read_p, (struct dtp_operand){{0}, DTP_READ, 0, 0, 1000, 25}, "ends behind");
    expect_operands_refused(DTP_OP_NORM, read_p, (struct dtp_operand){{0}, DTP_READ, 0, 1, 0, 8}, "is a shard");
    expect_operands_refused(DTP_OP_NORM, (struct dtp_operand){{0}, DTP_READ | DTP_FREE, DTP_ROLE_WEIGHT, 0, 0, 0},
                            (struct dtp_operand){{0}, DTP_READ | DTP_FREE, DTP_ROLE_BIAS, 0, 8, 0},
                            "at two of its operands");
    expect_operands_refused(DTP_OP_NORM, read_p, dtp_operand_of((dtp_buffer_id){0}, 0), "no access");
    expect_operands_refused(DTP_OP_NORM, read_p, dtp_operand_of((dtp_buffer_id){0}, 32), "no access");
    expect_operands_refused(DTP_OP_NORM, read_p, dtp_operand_of((dtp_buffer_id){0}, DTP_READ | DTP_DEFER),
                            "DTP_DEFER without");
    expect_operands_refused(DTP_OP_FREE, dtp_operand_of((dtp_buffer_id){0}, DTP_FREE), read_p, "touch no bytes");
    expect_operands_refused(DTP_OP_FREE, dtp_operand_of((dtp_buffer_id){0}, DTP_FREE),
                            dtp_operand_of((dtp_buffer_id){1}, DTP_FREE), "a persistent buffer");
}

static void test_bad_dependencies_buffers_and_groups_are_refused(void **state)
{
    (void)state;
    struct dtp_program *p = fresh(0);
    dtp_op_id a = op(p, DTP_OP_NORM, DTP_STREAM_COMPUTE), b = op(p, DTP_OP_NORM, DTP_STREAM_COPY);
    dtp_program_depend(p, a, b); /* forwards */
    expect_refused(p, "operation 0 cannot wait for 1");
    p = fresh(0);
    a = op(p, DTP_OP_NORM, DTP_STREAM_COMPUTE);
    dtp_program_depend(p, a, a);
    expect_refused(p, "operation 0 cannot wait for 0");
    p = fresh(0);
    dtp_program_add_buffer(p, &(struct dtp_buffer){.bytes = DTP_BUFFER_MAX_BYTES + 1});
    expect_refused(p, "buffer 0");
    p = fresh(0);
    dtp_program_add_buffer(p, &(struct dtp_buffer){.owner = DTP_OWNER_COUNT});
    expect_refused(p, "buffer 0");
    p = fresh(0);
    dtp_program_add_buffer(p, &(struct dtp_buffer){.content = DTP_CONTENT_COUNT});
    expect_refused(p, "buffer 0: no such format or content");
    p = fresh(0);
    dtp_program_add_buffer(p, &(struct dtp_buffer){.content = DTP_CONTENT_SCALARS, .module = 1});
    expect_refused(p, "buffer 0: only state is a module's");
    p = fresh(0);
    dtp_program_set_element(p, dtp_program_add_buffer(p, &(struct dtp_buffer){.bytes = 6}), DTP_FP32);
    expect_refused(p, "buffer 0: its bytes are no whole number of elements");
    p = fresh(0);
    struct dtp_operand half = dtp_operand_of(buffer(p, "x"), DTP_READ);
    half.offset_bytes = 6;
    dtp_program_set_element(p, half.buffer, DTP_FP32);
    dtp_program_add_op(p, &(struct dtp_new_op){.kind = DTP_OP_NORM}, &half, 1);
    expect_refused(p, "an operand cuts an element of its buffer");
    p = fresh(0);
    dtp_program_add_group(p, (struct dtp_program_group){0, 1});
    expect_refused(p, "group 0");
    p = fresh(0);
    buffer(p, "two\nlines");
    expect_refused(p, "a name");
    char longest[DTP_PROGRAM_MAX_NAME_BYTES + 2];
    memset(longest, 'n', sizeof longest);
    longest[sizeof longest - 1] = 0;
    p = fresh(0);
    buffer(p, longest);
    expect_refused(p, "a name");
    p = fresh(0);
    buffer(p, longest + 1);
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    dtp_program_destroy(p);
}

static void test_the_limit_of_operations(void **state)
{
    (void)state;
    struct dtp_program *p = fresh(3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(op(p, DTP_OP_NORM, DTP_STREAM_COMPUTE).index, i);
    assert_int_equal(op(p, DTP_OP_NORM, DTP_STREAM_COMPUTE).index, DTP_NO_INDEX);
    assert_int_equal(buffer(p, "x").index, DTP_NO_INDEX); /* sticky */
    expect_refused(p, "more than 3 operations");
}

/* Two matmuls of 10 and 20 FLOPs, the second repeated work; attention 5; all-gathers of 7 and 8 bytes; copies of 3, 4.
 */
static void test_sums(void **state)
{
    (void)state;
    struct dtp_program *p = fresh(0);
    dtp_program_add_group(p, (struct dtp_program_group){2, 1});
    add_matmul(p, (struct dtp_demand){.flops = 10, .bytes = 1000, .kernels = 2});
    add_matmul(p, (struct dtp_demand){.flops = 20, .recompute = 1, .kernels = 1});
    static const struct {
        enum dtp_op_kind kind;
        struct dtp_demand demand;
    } rows[] = {{DTP_OP_ATTENTION, {.flops = 5}},           {DTP_OP_NORM, {.bytes = 100, .kernels = 4}},
                {DTP_OP_ALL_GATHER, {.sent_bytes = 7}},     {DTP_OP_ALL_GATHER, {.sent_bytes = 8}},
                {DTP_OP_REDUCE_SCATTER, {.sent_bytes = 9}}, {DTP_OP_UPLOAD, {.sent_bytes = 3}},
                {DTP_OP_DOWNLOAD, {.sent_bytes = 4}},       {DTP_OP_HOST_OPTIMIZER, {.bytes = 50}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        dtp_program_add_op(p, &(struct dtp_new_op){.kind = rows[i].kind, .demand = rows[i].demand}, NULL, 0);
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    struct dtp_program_totals t;
    dtp_program_sum(p, &t);
    assert_true(t.matmul_flops == 30 && t.attention_flops == 5 && t.recompute_flops == 20 && t.memory_bytes == 100);
    assert_int_equal(t.sent_bytes[DTP_ALL_GATHER], 15);
    assert_int_equal(t.count[DTP_ALL_GATHER], 2);
    assert_int_equal(t.sent_bytes[DTP_REDUCE_SCATTER], 9);
    assert_int_equal(t.count[DTP_ALL_REDUCE], 0);
    assert_int_equal(t.host_to_device_bytes, 3);
    assert_int_equal(t.device_to_host_bytes, 4);
    assert_int_equal(t.kernels, 7);
    dtp_program_destroy(p);
}

/* More names than slots, and more of everything than the first allocations hold. */
static void test_many(void **state)
{
    (void)state;
    struct dtp_program *p = fresh(0);
    char name[32];
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "buffer %u", i % 1500);
        assert_int_equal(buffer(p, name).index, i);
        dtp_op_id id = dtp_program_add_op(p, &(struct dtp_new_op){.kind = DTP_OP_NORM, .stream = i % 2, .name = name},
                                          (struct dtp_operand[]){dtp_operand_of((dtp_buffer_id){i}, DTP_WRITE)}, 1);
        dtp_program_depend(p, id, (dtp_op_id){i ? i - 1 : DTP_NO_INDEX});
    }
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    for (uint32_t i = 0; i < 5000; i++) {
        const struct dtp_op *o = &dtp_program_ops(p)[i];
        snprintf(name, sizeof name, "buffer %u", i % 1500);
        assert_string_equal(o->name, name);
        assert_string_equal(dtp_program_buffers(p)[i].name, name);
        assert_int_equal(dtp_program_operands(p, o)->buffer.index, i);
        if (i)
            assert_int_equal(dtp_program_dependencies(p, o)->index, i - 1);
    }
    dtp_program_destroy(p);
}

static void test_arena(void **state)
{
    (void)state;
    struct dtp_host_arena arena = {0};
    char *pieces[200];
    for (size_t i = 0; i < 200; i++) {
        pieces[i] = dtp_host_arena_take(&arena, i, 37);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        memset(pieces[i], (int)i, i * 37);
    }
    for (size_t i = 0; i < 200; i++)
        for (size_t j = 0; j < i * 37; j++)
            assert_int_equal((unsigned char)pieces[i][j], i);
    assert_null(dtp_host_arena_take(&arena, SIZE_MAX, 2));
    assert_null(dtp_host_arena_take(&arena, SIZE_MAX, 1));
    uint32_t *zeroed = dtp_host_arena_take_zeroed(&arena, 3000, sizeof *zeroed);
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(zeroed[i], 0);
    dtp_host_arena_release(&arena);
    dtp_host_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables_agree),
                                       cmocka_unit_test(test_what_was_added_is_read),
                                       cmocka_unit_test(test_dependencies_are_those_that_streams_do_not_imply),
                                       cmocka_unit_test(test_bad_operations_are_refused),
                                       cmocka_unit_test(test_bad_operands_are_refused),
                                       cmocka_unit_test(test_bad_dependencies_buffers_and_groups_are_refused),
                                       cmocka_unit_test(test_the_limit_of_operations),
                                       cmocka_unit_test(test_sums),
                                       cmocka_unit_test(test_many),
                                       cmocka_unit_test(test_arena)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
