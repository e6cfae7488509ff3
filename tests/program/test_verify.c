#include "program/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/step_program.h"

static struct dtp_program *p; /* the program under test */

static void fresh(void)
{
    assert_int_equal(dtp_program_create(0, &p, NULL), DTP_OK);
    dtp_program_add_group(p, (struct dtp_program_group){8, 1});
    dtp_program_add_group(p, (struct dtp_program_group){2, 8});
}

static dtp_buffer_id buffer_of(const char *name, enum dtp_stream pool, bool persistent)
{
    return dtp_program_add_buffer(
        p,
        &(struct dtp_buffer){.name = name, .bytes = 64, .pool = pool, .layer = DTP_NO_LAYER, .persistent = persistent});
}

/* An operation on one buffer after another, which may be DTP_NO_INDEX. */
static dtp_op_id use(enum dtp_op_kind kind, enum dtp_stream stream, dtp_buffer_id b, uint32_t access, dtp_op_id after)
{
    dtp_op_id id = dtp_program_add_op(p, &(struct dtp_new_op){.kind = kind, .stream = stream, .layer = DTP_NO_LAYER},
                                      (struct dtp_operand[]){dtp_operand_of(b, access)}, 1);
    dtp_program_depend(p, id, after);
    return id;
}

#define C DTP_STREAM_COMPUTE
#define G DTP_STREAM_GATHER
#define R DTP_STREAM_REDUCE
#define NORM DTP_OP_NORM
static const dtp_op_id none = {DTP_NO_INDEX};

static void expect_legal(void)
{
    static struct dtp_faults faults;
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_program_seal(p, &faults), DTP_OK);
    if (dtp_program_verify(p, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    dtp_program_destroy(p);
}

/* Exactly one fault, which says so. */
static void expect_refused(const char *text)
{
    static struct dtp_faults faults;
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_program_seal(p, &faults), DTP_OK);
    assert_int_equal(dtp_program_verify(p, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], text) || faults.count != 1)
        fail_msg("%zu faults; \"%s\" does not contain \"%s\"", faults.count, faults.text[0], text);
    assert_int_equal(dtp_program_verify(p, NULL), DTP_BAD_INPUT);
    dtp_program_destroy(p);
}

static void test_life_of_a_buffer(void **state)
{
    (void)state;
    fresh();
    dtp_buffer_id x = buffer_of("x", C, false);
    use(NORM, C, x, DTP_ALLOC | DTP_WRITE, none);
    use(NORM, C, x, DTP_READ | DTP_FREE, none);
    expect_legal();
    fresh();
    x = buffer_of("x", C, false);
    use(NORM, C, x, DTP_ALLOC | DTP_UPDATE | DTP_FREE, none); /* a workspace */
    expect_legal();
    fresh();
    use(NORM, C, buffer_of("x", C, false), DTP_WRITE, none);
    expect_refused("operation 0 (norm, compute) uses, before it was allocated, buffer 0 (x)");
    fresh();
    x = buffer_of("x", C, false);
    use(NORM, C, x, DTP_ALLOC | DTP_WRITE | DTP_FREE, none);
    use(NORM, C, x, DTP_READ, none);
    expect_refused("operation 1 (norm, compute) uses, after it was freed, buffer 0 (x)");
    fresh();
    x = buffer_of("x", C, false);
    use(NORM, C, x, DTP_ALLOC | DTP_READ | DTP_FREE, none);
    expect_refused("reads what nobody has written yet, buffer 0");
    fresh();
    x = buffer_of("x", C, false);
    use(DTP_OP_ALLOC, C, x, DTP_ALLOC, none);
    use(NORM, C, x, DTP_UPDATE | DTP_FREE, none); /* adds to garbage */
    expect_refused("reads what nobody has written yet, buffer 0");
    fresh();
    use(NORM, C, buffer_of("x", C, false), DTP_ALLOC | DTP_WRITE, none);
    expect_refused("operation 0 (norm, compute) allocates what nobody frees, buffer 0 (x)");
    fresh();
    x = buffer_of("x", C, false);
    use(NORM, C, x, DTP_ALLOC | DTP_WRITE | DTP_FREE, none);
    use(DTP_OP_FREE, C, x, DTP_FREE, none);
    expect_refused("frees a second time buffer 0");
    fresh();
    use(DTP_OP_FREE, C, buffer_of("x", C, false), DTP_FREE, none);
    expect_refused("frees before it was allocated buffer 0");
    fresh();
    x = buffer_of("x", C, false);
    use(DTP_OP_ALLOC, C, x, DTP_ALLOC, none);
    use(DTP_OP_ALLOC, C, x, DTP_ALLOC | DTP_FREE, none);
    expect_refused("allocates a second time buffer 0");
}

/* One buffer in two roles: it is read before it is written, whatever their order. */
static void test_a_buffer_in_two_roles(void **state)
{
    (void)state;
    for (int written_before = 0; written_before < 2; written_before++) {
        fresh();
        dtp_buffer_id x = buffer_of("x", C, false);
        use(written_before ? NORM : DTP_OP_ALLOC, C, x, DTP_ALLOC | (written_before ? DTP_WRITE : 0), none);
        dtp_program_add_op(p, &(struct dtp_new_op){.kind = NORM, .layer = DTP_NO_LAYER},
                           (struct dtp_operand[]){{x, DTP_WRITE, DTP_ROLE_RESULT, 0, 32, 0},
                                                  {x, DTP_READ | DTP_FREE, DTP_ROLE_INPUT, 0, 0, 0}},
                           2);
        if (written_before)
            expect_legal();
        else
            expect_refused("reads what nobody has written yet, buffer 0");
    }
}

/* llm.c with ZeRO-1: the optimizer writes the weights on one stream, the all-gather that hands them to the other ranks
 * reads them on another, and nothing makes it wait. */
static dtp_op_id write_part(enum dtp_stream stream, dtp_buffer_id b, uint64_t from, uint64_t bytes)
{
    return dtp_program_add_op(p, &(struct dtp_new_op){.kind = NORM, .stream = stream, .layer = DTP_NO_LAYER},
                              (struct dtp_operand[]){{b, DTP_WRITE, DTP_ROLE_NONE, 0, from, bytes}}, 1);
}

/* Two streams write a buffer of 64 bytes at once where they say that they touch different ones, and who reads all of it
 * waits for both. */
static void test_parts_of_a_buffer(void **state)
{
    (void)state;
    for (uint64_t from = 31; from <= 32; from++)
        for (int waits = 0; waits < 2; waits++) {
            fresh();
            dtp_buffer_id x = buffer_of("x", C, false);
            use(DTP_OP_ALLOC, C, x, DTP_ALLOC, none);
            dtp_op_id other = write_part(G, x, 0, 32);
            write_part(C, x, from, 64 - from);
            use(NORM, C, x, DTP_READ | DTP_FREE, waits ? other : none);
            assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
            bool legal = from == 32 && waits;
            assert_int_equal(dtp_program_verify(p, NULL), legal ? DTP_OK : DTP_BAD_INPUT);
            dtp_program_destroy(p);
        }
    fresh();
    dtp_buffer_id x = buffer_of("x", C, false);
    use(DTP_OP_ALLOC, C, x, DTP_ALLOC, none);
    write_part(C, x, 8, 56);
    use(NORM, C, x, DTP_READ | DTP_FREE, none);
    expect_refused("reads what nobody has written yet, buffer 0");
}

static void test_the_gather_race(void **state)
{
    (void)state;
    for (int wait = 0; wait < 2; wait++) {
        fresh();
        dtp_buffer_id w = buffer_of("weights", C, true);
        dtp_op_id update = use(DTP_OP_OPTIMIZER, C, w, DTP_UPDATE, none);
        use(DTP_OP_ALL_GATHER, G, w, DTP_UPDATE, wait ? update : none);
        if (wait)
            expect_legal();
        else
            expect_refused("operation 1 (all_gather, gather) reads buffer 0 (weights), which operation 0 (optimizer, "
                           "compute) may still write: it must wait for that");
    }
}

static void test_races(void **state)
{
    (void)state;
    fresh(); /* write after write */
    dtp_buffer_id w = buffer_of("w", C, true);
    use(NORM, C, w, DTP_WRITE, none);
    use(NORM, G, w, DTP_WRITE, none);
    expect_refused("operation 1 (norm, gather) writes buffer 0 (w), which operation 0 (norm, compute) may still write");
    fresh(); /* write after reads of two streams, of which one is waited for */
    w = buffer_of("w", C, true);
    dtp_op_id read = use(NORM, C, w, DTP_READ, none);
    use(NORM, G, w, DTP_READ, none);
    use(NORM, R, w, DTP_WRITE, read);
    expect_refused("operation 2 (norm, reduce) writes buffer 0 (w), which operation 1 (norm, gather) may still read");
    fresh(); /* reads race with nothing; a path through a third stream and its FIFO orders */
    w = buffer_of("w", C, true);
    dtp_buffer_id other = buffer_of("other", C, true);
    read = use(NORM, C, w, DTP_READ, none);
    use(NORM, G, other, DTP_READ, read);
    dtp_op_id later = use(NORM, G, w, DTP_READ, none);
    use(NORM, R, w, DTP_WRITE, later);
    expect_legal();
}

static void test_groups_and_host_waits_order(void **state)
{
    (void)state;
    fresh(); /* collectives of one group run one after the other, whatever their streams */
    dtp_buffer_id w = buffer_of("w", C, true);
    use(DTP_OP_ALL_GATHER, G, w, DTP_UPDATE, none);
    use(DTP_OP_REDUCE_SCATTER, R, w, DTP_UPDATE, none);
    expect_legal();
    fresh(); /* those of two groups do not */
    w = buffer_of("w", C, true);
    use(DTP_OP_ALL_GATHER, G, w, DTP_READ, none);
    dtp_program_add_op(p, &(struct dtp_new_op){.kind = DTP_OP_ALL_REDUCE, .stream = DTP_STREAM_REPLICATE, .group = 1},
                       (struct dtp_operand[]){dtp_operand_of(w, DTP_UPDATE)}, 1);
    expect_refused("operation 1 (all_reduce, layer 0, replicate) writes buffer 0 (w), which operation 0");
    for (int wait = 0; wait < 2; wait++) { /* what is issued after the host has waited */
        fresh();
        w = buffer_of("w", C, true);
        dtp_op_id write = use(NORM, G, w, DTP_WRITE, none);
        dtp_op_id waits = dtp_program_add_op(p, &(struct dtp_new_op){.kind = DTP_OP_HOST_WAIT, .stream = C}, NULL, 0);
        dtp_program_depend(p, waits, wait ? write : none);
        use(NORM, R, w, DTP_WRITE, none);
        if (wait)
            expect_legal();
        else
            expect_refused("operation 2 (norm, reduce) writes buffer 0 (w), which operation 0 (norm, gather)");
    }
}

/* x, of compute's pool, is freed by compute while the reduce stream reads it. */
static void free_of_another(uint32_t defer, bool wait)
{
    fresh();
    dtp_buffer_id x = buffer_of("x", C, false);
    dtp_op_id write = use(NORM, C, x, DTP_ALLOC | DTP_WRITE, none);
    dtp_op_id read = use(NORM, R, x, DTP_READ, write);
    use(DTP_OP_FREE, C, x, DTP_FREE | defer, wait ? read : none);
}

static void test_frees_wait_for_users(void **state)
{
    (void)state;
    free_of_another(0, true);
    expect_legal();
    free_of_another(DTP_DEFER, false); /* the allocator waits */
    expect_legal();
    free_of_another(0, false);
    expect_refused("operation 2 (free, compute) frees buffer 0 (x), which operation 1 (norm, reduce) may still use");
    fresh(); /* freed by a stream that knows nothing of it, but compute's order protects what compute alone used */
    dtp_buffer_id x = buffer_of("x", C, false);
    use(NORM, C, x, DTP_ALLOC | DTP_WRITE, none);
    use(DTP_OP_FREE, G, x, DTP_FREE, none);
    expect_legal();
    fresh(); /* the host has waited */
    x = buffer_of("x", G, false);
    dtp_op_id write = use(NORM, R, x, DTP_ALLOC | DTP_WRITE, none);
    use(DTP_OP_HOST_WAIT, C, x, DTP_READ, write);
    use(DTP_OP_FREE, G, x, DTP_FREE, none);
    expect_legal();
}

/* x is freed by the reduce stream, which used it; y may get its memory, and is written by compute. */
static void reuse(enum dtp_stream pool, uint32_t defer, bool wait)
{
    fresh();
    dtp_buffer_id x = buffer_of("x", C, false), y = buffer_of("y", pool, false);
    dtp_op_id write = use(NORM, C, x, DTP_ALLOC | DTP_WRITE, none);
    dtp_op_id read = use(NORM, R, x, DTP_READ | DTP_FREE | defer, write);
    use(NORM, C, y, DTP_ALLOC | DTP_WRITE | DTP_FREE, wait ? read : none);
}

static void test_reuse_of_freed_memory(void **state)
{
    (void)state;
    reuse(C, 0, true);
    expect_legal();
    reuse(C, 0, false);
    expect_refused(
        "operation 2 (norm, compute) writes buffer 1 (y), whose memory operation 1 (norm, reduce) may still use");
    reuse(G, 0, false); /* another pool */
    expect_legal();
    reuse(C, DTP_DEFER, false);
    expect_legal();
    fresh(); /* written on another stream than the pool's, which still writes what was there */
    dtp_buffer_id x = buffer_of("x", C, false), y = buffer_of("y", C, false);
    use(NORM, C, x, DTP_ALLOC | DTP_WRITE | DTP_FREE, none);
    use(NORM, G, y, DTP_ALLOC | DTP_WRITE | DTP_FREE, none);
    expect_refused("operation 1 (norm, gather) writes buffer 1 (y), whose memory operation 0 (norm, compute)");
}

static void test_streams(void **state)
{
    (void)state;
    static const struct {
        enum dtp_op_kind kind;
        enum dtp_stream stream;
        bool legal;
    } rows[] = {{DTP_OP_MATMUL, DTP_STREAM_HOST, false},
                {DTP_OP_HOST_OPTIMIZER, DTP_STREAM_HOST, true},
                {DTP_OP_HOST_OPTIMIZER, DTP_STREAM_COMPUTE, false},
                {DTP_OP_STORAGE_READ, DTP_STREAM_STORAGE, true},
                {DTP_OP_STORAGE_READ, DTP_STREAM_HOST, false},
                {DTP_OP_ALL_GATHER, DTP_STREAM_STORAGE, false},
                {DTP_OP_UPLOAD, DTP_STREAM_UPLOAD, true},
                {DTP_OP_UPLOAD, DTP_STREAM_GATHER, true},
                {DTP_OP_MARK, DTP_STREAM_HOST, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        dtp_program_add_op(p, &(struct dtp_new_op){.kind = rows[i].kind, .stream = rows[i].stream}, NULL, 0);
        if (rows[i].legal)
            expect_legal();
        else
            expect_refused("is on a stream that cannot run it");
    }
}

/* 64 bytes over 8 ranks: 56 leave each in an all-gather, 112 in an all-reduce; 16 of slack for shares that round up. */
static void test_bytes_sent(void **state)
{
    (void)state;
    static const struct {
        enum dtp_op_kind kind;
        uint32_t access;
        double sent_bytes;
        bool legal;
    } rows[] = {{DTP_OP_ALL_GATHER, DTP_UPDATE, 56, true},
                {DTP_OP_ALL_GATHER, DTP_UPDATE, 73, false},
                {DTP_OP_ALL_GATHER, DTP_READ, 56, false},
                {DTP_OP_REDUCE_SCATTER, DTP_READ, 56, true},
                {DTP_OP_REDUCE_SCATTER, DTP_READ, 112, false},
                {DTP_OP_ALL_REDUCE, DTP_UPDATE, 112, true},
                {DTP_OP_ALL_REDUCE, DTP_UPDATE, 129, false},
                {DTP_OP_SEND, DTP_READ, 64, true},
                {DTP_OP_SEND, DTP_READ, 128, false},
                {DTP_OP_ALL_TO_ALL, DTP_UPDATE, 56, true},
                {DTP_OP_UPLOAD, DTP_READ, 64, true},
                {DTP_OP_UPLOAD, DTP_READ, 66, false},
                {DTP_OP_NORM, DTP_READ, 1e9, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        struct dtp_new_op op = {.kind = rows[i].kind, .stream = G, .layer = DTP_NO_LAYER};
        op.demand.sent_bytes = rows[i].sent_bytes;
        dtp_program_add_op(p, &op, (struct dtp_operand[]){dtp_operand_of(buffer_of("x", C, true), rows[i].access)}, 1);
        if (rows[i].legal)
            expect_legal();
        else
            expect_refused("its operands hold enough for");
    }
}

static void test_all_faults_at_once(void **state)
{
    (void)state;
    fresh();
    for (int i = 0; i < 50; i++)
        use(NORM, C, buffer_of("x", C, false), DTP_READ, none);
    static struct dtp_faults faults;
    assert_int_equal(dtp_program_seal(p, &faults), DTP_OK);
    assert_int_equal(dtp_program_verify(p, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 50);
    dtp_program_destroy(p);
}

static void test_steps_are_legal(void **state)
{
    (void)state;
    for (uint32_t layers = 1; layers < 6; layers++)
        for (uint16_t micro_steps = 1; micro_steps < 4; micro_steps++) {
            p = step_program(layers, micro_steps, layers + 1);
            assert_non_null(p);
            expect_legal();
        }
}

/* compute 0 -> gather 1 -> reduce 2, and 2 waits for 0 too: that is implied. Alone, each of the two others is needed.
 */
static void test_redundant_dependencies(void **state)
{
    (void)state;
    fresh();
    dtp_buffer_id w = buffer_of("w", C, true);
    dtp_op_id a = use(NORM, C, w, DTP_READ, none), b = use(NORM, G, w, DTP_READ, a), c = use(NORM, R, w, DTP_READ, b);
    dtp_program_depend(p, c, a);
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    const struct dtp_op *ops = dtp_program_ops(p);
    bool redundant;
    assert_int_equal(dtp_program_dependency_redundant(p, &ops[1], 0, &redundant, NULL), DTP_OK);
    assert_false(redundant);
    assert_int_equal(dtp_program_dependency_redundant(p, &ops[2], 0, &redundant, NULL), DTP_OK);
    assert_false(redundant);
    assert_int_equal(dtp_program_dependency_redundant(p, &ops[2], 1, &redundant, NULL), DTP_OK);
    assert_true(redundant);
    dtp_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_life_of_a_buffer),
                                       cmocka_unit_test(test_a_buffer_in_two_roles),
                                       cmocka_unit_test(test_parts_of_a_buffer),
                                       cmocka_unit_test(test_the_gather_race),
                                       cmocka_unit_test(test_races),
                                       cmocka_unit_test(test_groups_and_host_waits_order),
                                       cmocka_unit_test(test_frees_wait_for_users),
                                       cmocka_unit_test(test_reuse_of_freed_memory),
                                       cmocka_unit_test(test_streams),
                                       cmocka_unit_test(test_bytes_sent),
                                       cmocka_unit_test(test_all_faults_at_once),
                                       cmocka_unit_test(test_steps_are_legal),
                                       cmocka_unit_test(test_redundant_dependencies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
