/* PyTorch's caching allocator by hand: rounding, segments, splitting, joining, pools, several steps of a program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sim/caching_allocator.h"
#include "lib/step_fixture.h"

#include <gsl/gsl_rng.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
#define COMPUTE DTP_STREAM_COMPUTE

static struct dtp_caching_allocator *fresh(void)
{
    struct dtp_caching_allocator *a = dtp_caching_allocator_create(false, 0);
    assert_non_null(a);
    return a;
}

static void expect(const struct dtp_caching_allocator *a, uint64_t allocated, uint64_t reserved)
{
    struct dtp_caching_allocator_state state = dtp_caching_allocator_look(a);
    if (state.allocated_bytes != allocated || state.reserved_bytes != reserved)
        fail_msg("allocated %llu reserved %llu, expected %llu and %llu", (unsigned long long)state.allocated_bytes,
                 (unsigned long long)state.reserved_bytes, (unsigned long long)allocated, (unsigned long long)reserved);
}

static uint32_t take(struct dtp_caching_allocator *a, uint64_t bytes)
{
    return dtp_caching_allocator_take(a, COMPUTE, bytes);
}

/* 1 byte is 512 of a 2 MiB segment; a second one comes out of the same. */
static void test_small_requests(void **state)
{
    (void)state;
    struct dtp_caching_allocator *a = fresh();
    uint32_t one = take(a, 1);
    expect(a, 512, 2 * MIB);
    uint32_t two = take(a, 513);
    expect(a, 512 + 1024, 2 * MIB);
    dtp_caching_allocator_give(a, one);
    dtp_caching_allocator_give(a, two);
    expect(a, 0, 2 * MIB);
    take(a, MIB); /* the two joined with the rest of the segment: a whole MiB is there, twice */
    take(a, MIB);
    expect(a, 2 * MIB, 2 * MIB);
    take(a, 512);
    expect(a, 2 * MIB + 512, 4 * MIB);
    dtp_caching_allocator_destroy(a);
}

/* 1 MiB + 1 is large: 20 MiB segments below 10 MiB, then the size rounded up to 2 MiB. */
static void test_large_segments(void **state)
{
    (void)state;
    struct dtp_caching_allocator *a = fresh();
    take(a, MIB + 1);
    expect(a, MIB + 512, 20 * MIB);
    take(a, 10 * MIB - 512); /* fits in what is left */
    expect(a, 11 * MIB, 20 * MIB);
    take(a, 10 * MIB); /* 9 MiB are left: a segment of its own */
    expect(a, 21 * MIB, 30 * MIB);
    take(a, 11 * MIB); /* 12 MiB, of which 1 MiB is not worth splitting off and counts as allocated */
    expect(a, 33 * MIB, 42 * MIB);
    take(a, 21 * MIB - 512); /* 22 MiB: 1 MiB + 512 bytes would be left, which is split off */
    expect(a, 54 * MIB - 512, 64 * MIB);
    dtp_caching_allocator_destroy(a);
}

/* The smallest block that is large enough; of equal ones that at the lowest address, which is the newest segment's. */
static void test_best_fit(void **state)
{
    (void)state;
    struct dtp_caching_allocator *a = fresh();
    uint32_t b40 = take(a, 40 * MIB), b20 = take(a, 20 * MIB), b30 = take(a, 30 * MIB), c20 = take(a, 20 * MIB);
    dtp_caching_allocator_give(a, c20);
    dtp_caching_allocator_give(a, b40);
    dtp_caching_allocator_give(a, b30);
    dtp_caching_allocator_give(a, b20);
    assert_int_equal(take(a, 20 * MIB), c20);
    assert_int_equal(take(a, 19 * MIB + 512), b20);
    assert_int_equal(take(a, 21 * MIB), b30);
    assert_int_equal(take(a, 21 * MIB), b40);
    expect(a, (20 + 20 + 21 + 21) * MIB, 110 * MIB);
    dtp_caching_allocator_destroy(a);
}

/* Neighbours join in any order of frees, segments never do. */
static void test_joining(void **state)
{
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 6; i++) {
        struct dtp_caching_allocator *a = fresh();
        uint32_t whole = take(a, 60 * MIB);
        dtp_caching_allocator_give(a, whole);
        uint32_t part[3] = {take(a, 20 * MIB), take(a, 20 * MIB), take(a, 20 * MIB)};
        expect(a, 60 * MIB, 60 * MIB);
        for (int k = 0; k < 3; k++)
            assert_true(dtp_caching_allocator_give(a, part[orders[i][k]]));
        take(a, 60 * MIB);
        expect(a, 60 * MIB, 60 * MIB);
        dtp_caching_allocator_destroy(a);
    }
    struct dtp_caching_allocator *a = fresh();
    uint32_t b = take(a, 20 * MIB), c = take(a, 20 * MIB);
    dtp_caching_allocator_give(a, b);
    dtp_caching_allocator_give(a, c);
    take(a, 40 * MIB);
    expect(a, 40 * MIB, 80 * MIB);
    dtp_caching_allocator_destroy(a);
}

/* What one stream freed is of no use to another, nor large blocks to small requests. */
static void test_pools(void **state)
{
    (void)state;
    struct dtp_caching_allocator *a = fresh();
    dtp_caching_allocator_give(a, take(a, 20 * MIB));
    dtp_caching_allocator_take(a, DTP_STREAM_REDUCE, 20 * MIB);
    expect(a, 20 * MIB, 40 * MIB);
    take(a, 512);
    expect(a, 20 * MIB + 512, 42 * MIB);
    dtp_caching_allocator_destroy(a);
}

/* Capacity 50 MiB: the cached 20 MiB segment goes back before 40 MiB are asked for; one in use cannot. */
static void test_capacity(void **state)
{
    (void)state;
    struct dtp_caching_allocator *a = dtp_caching_allocator_create(false, 50 * MIB);
    dtp_caching_allocator_give(a, take(a, 20 * MIB));
    take(a, 40 * MIB);
    expect(a, 40 * MIB, 40 * MIB);
    struct dtp_caching_allocator_state now = dtp_caching_allocator_look(a);
    assert_true(now.retries == 1 && now.segments == 1 && !now.out_of_memory && now.reserved_peak_bytes == 40 * MIB);
    take(a, 12 * MIB);
    assert_true(dtp_caching_allocator_look(a).out_of_memory);
    dtp_caching_allocator_destroy(a);
}

/* One range: 30 MiB maps 2 handles of 20 MiB; freed with its neighbour it serves 60 MiB with one handle more, where
 * separate segments would need 60 MiB more. */
static void test_expandable_segments(void **state)
{
    (void)state;
    struct dtp_caching_allocator *a = dtp_caching_allocator_create(true, 0);
    uint32_t b = take(a, 30 * MIB);
    expect(a, 30 * MIB, 40 * MIB);
    uint32_t c = take(a, 10 * MIB - 512);
    expect(a, 40 * MIB - 512, 40 * MIB); /* split at 512 bytes */
    dtp_caching_allocator_give(a, c);
    dtp_caching_allocator_give(a, b);
    b = take(a, 60 * MIB);
    expect(a, 60 * MIB, 60 * MIB);
    c = take(a, 2 * MIB);
    expect(a, 62 * MIB, 80 * MIB);
    dtp_caching_allocator_give(a, b);
    take(a, 70 * MIB); /* the hole of 60 is too small: the tail of 18 grows by 60 */
    expect(a, 72 * MIB, 140 * MIB);
    dtp_caching_allocator_give(a, c); /* joins the hole before it: 62 free; a tail of 8 is left at the end */
    take(a, 4 * MIB);                 /* the tail is the best fit by its size, yet is kept for what grows */
    expect(a, 74 * MIB, 140 * MIB);
    take(a, 58 * MIB);
    expect(a, 132 * MIB, 140 * MIB);
    dtp_caching_allocator_destroy(a);
}

/* Random takes and gives: allocated is at least what was asked and at most reserved, and all freed leaves whole
 * segments that serve the same again. */
static void test_random(void **state)
{
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    for (int expandable = 0; expandable < 2; expandable++) {
        gsl_rng_set(rng, 71);
        struct dtp_caching_allocator *a = dtp_caching_allocator_create(expandable, 0);
        struct {
            uint32_t block;
            uint64_t bytes;
        } live[200];
        size_t count = 0;
        uint64_t asked = 0;
        for (int i = 0; i < 50000; i++) {
            if (count < 200 && (!count || gsl_rng_uniform(rng) < 0.52)) {
                uint64_t bytes = 1 + (uint64_t)(gsl_rng_uniform(rng) * (gsl_rng_uniform(rng) < 0.5 ? 1e6 : 1e8));
                live[count].bytes = bytes;
                live[count].block = dtp_caching_allocator_take(a, (enum dtp_stream)gsl_rng_uniform_int(rng, 3), bytes);
                asked += live[count++].bytes;
            } else {
                size_t k = gsl_rng_uniform_int(rng, count);
                asked -= live[k].bytes;
                assert_true(dtp_caching_allocator_give(a, live[k].block));
                live[k] = live[--count];
            }
            struct dtp_caching_allocator_state now = dtp_caching_allocator_look(a);
            assert_true(asked <= now.allocated_bytes && now.allocated_bytes <= now.reserved_bytes);
        }
        while (count)
            dtp_caching_allocator_give(a, live[--count].block);
        assert_true(dtp_caching_allocator_look(a).allocated_bytes == 0);
        dtp_caching_allocator_destroy(a);
    }
    gsl_rng_free(rng);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static dtp_buffer_id buffer(struct dtp_program *program, uint64_t bytes, enum dtp_owner owner, bool persistent)
{
    struct dtp_buffer b = {
        .name = "b", .bytes = bytes, .owner = owner, .layer = DTP_NO_LAYER, .persistent = persistent};
    return dtp_program_add_buffer(program, &b);
}

static void use(struct dtp_program *program, enum dtp_op_kind kind, dtp_buffer_id b, uint32_t access)
{
    struct dtp_new_op op = {.kind = kind, .stream = COMPUTE};
    dtp_program_add_op(program, &op, (struct dtp_operand[]){dtp_operand_of(b, access)}, 1);
}

/* Parameters 20 MiB; an activation of 30 MiB; optimizer state of 24 MiB. Step 1 frees the activation, and the state
 * made then sits in its segment (6 MiB left); step 2 needs a new segment for the activation: 20 + 30 + 30. Step 3
 * repeats. */
static void test_optimizer_state_takes_the_activations_segment(void **state)
{
    (void)state;
    struct dtp_program *program = step_begin();
    dtp_buffer_id params = buffer(program, 20 * MIB, DTP_OWNER_PARAMS, true);
    dtp_buffer_id moments = buffer(program, 24 * MIB, DTP_OWNER_OPTIMIZER, true);
    dtp_buffer_id activation = buffer(program, 30 * MIB, DTP_OWNER_ACTIVATIONS, false);
    use(program, DTP_OP_NORM, activation, DTP_ALLOC | DTP_WRITE);
    use(program, DTP_OP_NORM_BACKWARD, activation, DTP_READ | DTP_FREE);
    use(program, DTP_OP_OPTIMIZER, moments, DTP_UPDATE);
    use(program, DTP_OP_MARK, params, DTP_READ);
    step_seal(program);
    struct dtp_allocator_replay replay;
    assert_int_equal(dtp_allocator_replay(program, NULL, false, 0, &replay, NULL), DTP_OK);
    assert_true(replay.state.reserved_peak_bytes == 80 * MIB);
    assert_true(replay.state.allocated_peak_bytes == 74 * MIB);
    assert_int_equal(replay.steps, 3);
    dtp_program_destroy(program);
}

/* Twice 20 MiB on the compute stream; the first is freed while the gather stream still reads it. Handed out again at
 * once one segment does; deferred until the gather has ended, which is after the host asks for the second, two are
 * needed. */
static void test_deferred_free(void **state)
{
    (void)state;
    for (int deferred = 0; deferred < 2; deferred++) {
        struct dtp_program *program = step_begin();
        dtp_buffer_id first = buffer(program, 20 * MIB, DTP_OWNER_GATHER, false);
        dtp_buffer_id second = buffer(program, 20 * MIB, DTP_OWNER_GATHER, false);
        use(program, DTP_OP_CAST, first, DTP_ALLOC | DTP_WRITE);
        struct dtp_new_op copy = {.kind = DTP_OP_COPY_IN, .stream = DTP_STREAM_COPY};
        struct dtp_operand operand = dtp_operand_of(first, DTP_READ | DTP_FREE | (deferred ? DTP_DEFER : 0));
        dtp_program_add_op(program, &copy, &operand, 1);
        use(program, DTP_OP_CAST, second, DTP_ALLOC | DTP_WRITE | DTP_FREE);
        step_seal(program);
        struct dtp_span span[] = {{0, 1}, {1, 2}, {1, 2}};
        double issue_s[] = {0, 0.1, 0.2};
        struct dtp_timeline timeline = {.op_count = 3, .span = span, .issue_s = issue_s, .step_s = 2};
        struct dtp_allocator_replay replay;
        assert_int_equal(dtp_allocator_replay(program, &timeline, false, 0, &replay, NULL), DTP_OK);
        assert_true(replay.state.reserved_peak_bytes == (deferred ? 40 : 20) * MIB);
        assert_true(replay.state.allocated_peak_bytes == 20 * MIB);
        dtp_program_destroy(program);
    }
}

static void use_kernels(struct dtp_program *program, uint32_t kernels, dtp_buffer_id b, uint32_t access)
{
    struct dtp_new_op op = {.kind = DTP_OP_CAST, .stream = COMPUTE, .demand.kernels = kernels};
    dtp_program_add_op(program, &op, (struct dtp_operand[]){dtp_operand_of(b, access)}, 1);
}

/* The host issues everything in 0.3 s, but a stream's queue holds 768 kernels. Before the second 20 MiB are asked for 1
 * and `kernels` more were put into it: 767 let the host on when the first is through, at 1 s, when the copy still reads
 * the first 20 MiB; 768 hold it until these are, too, at 3 s, when the copy is done. */
static void test_full_queue(void **state)
{
    (void)state;
    for (uint32_t kernels = 767; kernels <= 768; kernels++) {
        struct dtp_program *program = step_begin();
        dtp_buffer_id first = buffer(program, 20 * MIB, DTP_OWNER_GATHER, false);
        dtp_buffer_id second = buffer(program, 20 * MIB, DTP_OWNER_GATHER, false);
        dtp_buffer_id other = buffer(program, 512, DTP_OWNER_PARAMS, true);
        use_kernels(program, 1, first, DTP_ALLOC | DTP_WRITE);
        struct dtp_new_op copy = {.kind = DTP_OP_COPY_IN, .stream = DTP_STREAM_COPY, .demand.kernels = 1};
        struct dtp_operand operand = dtp_operand_of(first, DTP_READ | DTP_FREE | DTP_DEFER);
        dtp_program_add_op(program, &copy, &operand, 1);
        use_kernels(program, kernels, other, DTP_UPDATE);
        use_kernels(program, 1, second, DTP_ALLOC | DTP_WRITE | DTP_FREE);
        step_seal(program);
        struct dtp_span span[] = {{0, 1}, {1, 2}, {1, 3}, {3, 4}};
        double issue_s[] = {0, 0.1, 0.2, 0.3};
        struct dtp_timeline timeline = {.op_count = 4, .span = span, .issue_s = issue_s, .step_s = 4};
        struct dtp_allocator_replay replay;
        assert_int_equal(dtp_allocator_replay(program, &timeline, false, 0, &replay, NULL), DTP_OK);
        assert_int_equal(replay.state.reserved_peak_bytes, (kernels == 767 ? 42 : 22) * MIB);
        dtp_program_destroy(program);
    }
}

/* Three buckets of 30 MiB: in the first step they are one segment of 90. In the second they get segments of their own
 * while the first still stands, except that one bucket fits into the 40 MiB that the activation of the first step left
 * (10 of them cut off). The first one's 90 MiB come free when the second all-reduce is issued and serve the activation
 * from then on: 90 + 40 + 30 + 30 reserved. Allocated in steady state: 90 + 40. A gradient buffer by another name,
 * Megatron's, is made once: with the activation's segment 90 + 40. */
static void check_gradients_at_rest(const char *name, uint64_t reserved_bytes)
{
    struct dtp_program *program = step_begin();
    uint32_t group = dtp_program_add_group(program, (struct dtp_program_group){2, 1});
    struct dtp_buffer gradients = {
        .name = name, .bytes = 30 * MIB, .owner = DTP_OWNER_GRADS, .pool = DTP_STREAM_COMPUTE, .persistent = true};
    dtp_buffer_id first = dtp_program_add_buffer(program, &gradients);
    for (int i = 1; i < 3; i++)
        dtp_program_add_buffer(program, &gradients);
    dtp_buffer_id activation = buffer(program, 40 * MIB, DTP_OWNER_ACTIVATIONS, false);
    struct dtp_new_op reduce = {
        .kind = DTP_OP_ALL_REDUCE, .stream = DTP_STREAM_REDUCE, .group = group, .demand.sent_bytes = 1e6};
    struct dtp_operand reduced = dtp_operand_of(first, DTP_UPDATE);
    dtp_program_add_op(program, &reduce, &reduced, 1);
    use(program, DTP_OP_NORM, activation, DTP_ALLOC | DTP_WRITE | DTP_FREE);
    step_seal(program);
    struct dtp_allocator_replay replay;
    assert_int_equal(dtp_allocator_replay(program, NULL, false, 0, &replay, NULL), DTP_OK);
    assert_true(replay.state.reserved_peak_bytes == reserved_bytes);
    assert_true(replay.state.allocated_peak_bytes == 130 * MIB);
    dtp_program_destroy(program);
}

static void test_buckets_are_rebuilt(void **state)
{
    (void)state;
    check_gradients_at_rest("bucket", (90 + 40 + 30 + 30) * MIB);
    check_gradients_at_rest("gradient buffer", (90 + 40) * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_requests),
        cmocka_unit_test(test_large_segments),
        cmocka_unit_test(test_best_fit),
        cmocka_unit_test(test_joining),
        cmocka_unit_test(test_pools),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_expandable_segments),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_optimizer_state_takes_the_activations_segment),
        cmocka_unit_test(test_deferred_free),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_buckets_are_rebuilt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
