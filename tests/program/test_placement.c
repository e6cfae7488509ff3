#include "program/arena_fit.h"
#include "program/placement.h"
#include "program/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "lib/random_draws.h"
#include "lib/step_program.h"

static uint64_t random_state;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % bound;
}

/* No two spans that share a time share a byte; the extent is the end of the highest. */
static void expect_disjoint(const struct dtp_fit_span *spans, uint32_t count, uint64_t extent_bytes)
{
    uint64_t end_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end = spans[i].offset_bytes + spans[i].bytes;
        end_bytes = end > end_bytes ? end : end_bytes;
        for (uint32_t j = 0; j < i; j++) {
            bool time = spans[i].first <= spans[j].last && spans[j].first <= spans[i].last;
            bool space = spans[i].offset_bytes < spans[j].offset_bytes + spans[j].bytes && spans[j].offset_bytes < end;
            if (time && space && spans[i].bytes && spans[j].bytes)
                fail_msg("spans %u and %u overlap", i, j);
        }
    }
    assert_true(extent_bytes == end_bytes);
}

static uint64_t fit(struct dtp_fit_span *spans, uint32_t count, uint32_t time_count)
{
    uint64_t extent_bytes;
    struct dtp_host_arena scratch = {0};
    assert_true(dtp_arena_fit_tight(spans, count, time_count, &scratch, &extent_bytes));
    expect_disjoint(spans, count, extent_bytes);
    assert_true(dtp_arena_fit(spans, count, time_count, &scratch, &extent_bytes));
    expect_disjoint(spans, count, extent_bytes);
    dtp_host_arena_release(&scratch);
    return extent_bytes;
}

static void test_nothing_and_one(void **state)
{
    (void)state;
    assert_int_equal(fit(NULL, 0, 0), 0);
    struct dtp_fit_span one = {0, 0, 7, 99};
    assert_int_equal(fit(&one, 1, 1), 7);
    assert_int_equal(one.offset_bytes, 0);
    struct dtp_fit_span empty[2] = {{0, 5, 0, 0}, {0, 5, 0, 0}};
    assert_int_equal(fit(empty, 2, 6), 0);
}

/* Activations 10, 10, 10 are saved in order and freed in reverse, while gradients of 4 grow: live bytes are 30 at most,
 * and 30 must suffice. */
static void test_a_stack_and_what_grows_while_it_shrinks(void **state)
{
    (void)state;
    struct dtp_fit_span spans[] = {{0, 5, 10, 0}, {1, 4, 10, 0}, {2, 3, 10, 0},
                                   {4, 9, 4, 0},  {5, 9, 4, 0},  {6, 9, 4, 0}};
    assert_int_equal(fit(spans, 6, 10), 30);
}

/* A lasting span is born above a short one; the hole below it takes one of 4, then 3 and 1. */
static void test_a_hole_is_reused(void **state)
{
    (void)state;
    struct dtp_fit_span spans[] = {{0, 1, 4, 0}, {0, 9, 4, 0}, {2, 3, 4, 0}, {4, 5, 3, 0}, {4, 5, 1, 0}};
    assert_int_equal(fit(spans, 5, 10), 8);
}

static void test_random_spans(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= RANDOM_DRAWS(300u); seed++) {
        random_state = seed;
        struct dtp_fit_span spans[300];
        uint32_t count = 1 + random_below(300), time_count = 1 + random_below(200);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t first = random_below(time_count), length = random_below(random_below(4) ? 10 : 200);
            uint32_t last = first + length < time_count ? first + length : time_count - 1;
            spans[i] = (struct dtp_fit_span){first, last, random_below(10) ? random_below(1000) : 0, 0};
        }
        fit(spans, count, time_count);
    }
}

static struct dtp_program *fresh(void)
{
    struct dtp_program *program;
    assert_int_equal(dtp_program_create(0, &program, NULL), DTP_OK);
    return program;
}

static dtp_buffer_id buffer(struct dtp_program *p, uint64_t bytes, enum dtp_owner owner, enum dtp_stream pool)
{
    return dtp_program_add_buffer(p, &(struct dtp_buffer){.bytes = bytes, .owner = owner, .pool = pool});
}

static dtp_op_id use(struct dtp_program *p, enum dtp_stream stream, dtp_buffer_id b, uint32_t access)
{
    return dtp_program_add_op(p, &(struct dtp_new_op){.kind = DTP_OP_NORM, .stream = stream},
                              (struct dtp_operand[]){dtp_operand_of(b, access)}, 1);
}

static struct dtp_placement place(struct dtp_program *p)
{
    struct dtp_placement placement;
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    assert_int_equal(dtp_program_place(p, &placement, NULL), DTP_OK);
    return placement;
}

/* op:            0        1        2        3
 * a 1000 params  ==========================  persistent
 * b  600 acts    alloc....free
 * c  500 grads            alloc.............free     peak at 1: 1000 + 600 + 500
 * d  600 acts                      alloc+free        takes b's place: 1024 + 1024 + 512 arena bytes */
static void test_lifetimes_and_peak_by_owner(void **state)
{
    (void)state;
    struct dtp_program *p = fresh();
    dtp_buffer_id a = dtp_program_add_buffer(p, &(struct dtp_buffer){.bytes = 1000, .persistent = true});
    dtp_buffer_id b = buffer(p, 600, DTP_OWNER_ACTIVATIONS, 0), c = buffer(p, 500, DTP_OWNER_GRADS, 0);
    dtp_buffer_id d = buffer(p, 600, DTP_OWNER_ACTIVATIONS, 0), unused = buffer(p, 9, DTP_OWNER_GRADS, 0);
    dtp_buffer_id host =
        dtp_program_add_buffer(p, &(struct dtp_buffer){.bytes = 1 << 20, .space = DTP_SPACE_HOST, .persistent = true});
    use(p, DTP_STREAM_COMPUTE, b, DTP_ALLOC | DTP_WRITE);
    dtp_program_add_op(
        p, &(struct dtp_new_op){.kind = DTP_OP_NORM},
        (struct dtp_operand[]){dtp_operand_of(b, DTP_READ | DTP_FREE), dtp_operand_of(c, DTP_ALLOC | DTP_WRITE)}, 2);
    use(p, DTP_STREAM_COMPUTE, d, DTP_ALLOC | DTP_UPDATE | DTP_FREE);
    use(p, DTP_STREAM_COMPUTE, c, DTP_READ | DTP_FREE);
    struct dtp_placement placement = place(p);
    assert_int_equal(placement.lifetime[a.index].first, 0);
    assert_int_equal(placement.lifetime[a.index].last, 3);
    assert_int_equal(placement.lifetime[b.index].last, 1);
    assert_int_equal(placement.lifetime[c.index].first, 1);
    assert_int_equal(placement.lifetime[d.index].first, 2);
    assert_int_equal(placement.lifetime[d.index].last, 2);
    assert_int_equal(placement.lifetime[unused.index].first, DTP_NO_INDEX);
    assert_int_equal(placement.live_peak_bytes, 2100);
    assert_int_equal(placement.live_peak_op, 1);
    assert_int_equal(placement.live_peak_owner_bytes[DTP_OWNER_PARAMS], 1000);
    assert_int_equal(placement.live_peak_owner_bytes[DTP_OWNER_ACTIVATIONS], 600);
    assert_int_equal(placement.live_peak_owner_bytes[DTP_OWNER_GRADS], 500);
    assert_int_equal(placement.arena_bytes, 1024 + 1024 + 512);
    assert_int_equal(placement.offset_bytes[d.index], placement.offset_bytes[b.index]);
    assert_true(placement.offset_bytes[host.index] == UINT64_MAX && placement.offset_bytes[unused.index] == UINT64_MAX);
    dtp_placement_release(&placement);
    dtp_program_destroy(p);
}

/* One after the other, but of two pools: no shared bytes. */
static void test_pools_do_not_share(void **state)
{
    (void)state;
    struct dtp_program *p = fresh();
    dtp_buffer_id a = buffer(p, 512, 0, DTP_STREAM_COMPUTE), b = buffer(p, 512, 0, DTP_STREAM_GATHER);
    use(p, DTP_STREAM_COMPUTE, a, DTP_ALLOC | DTP_WRITE | DTP_FREE);
    use(p, DTP_STREAM_GATHER, b, DTP_ALLOC | DTP_WRITE | DTP_FREE);
    struct dtp_placement placement = place(p);
    assert_int_equal(placement.arena_bytes, 1024);
    assert_int_equal(placement.live_peak_bytes, 512);
    assert_true(placement.offset_bytes[a.index] != placement.offset_bytes[b.index]);
    dtp_placement_release(&placement);
    dtp_program_destroy(p);
}

enum waits { NOBODY, HOST_FOR_WRITER, HOST_FOR_USER, STREAM_FOR_USER };

/* a is used by the reduce stream and freed with DTP_DEFER; b may take its place only where the host or the stream that
 * writes b has waited for that use. */
static uint64_t arena_of_deferred(enum waits waits)
{
    struct dtp_program *p = fresh();
    dtp_buffer_id a = buffer(p, 512, 0, DTP_STREAM_COMPUTE), b = buffer(p, 512, 0, DTP_STREAM_COMPUTE);
    dtp_op_id writer = use(p, DTP_STREAM_COMPUTE, a, DTP_ALLOC | DTP_WRITE);
    dtp_op_id user = use(p, DTP_STREAM_REDUCE, a, DTP_READ | DTP_FREE | DTP_DEFER);
    dtp_program_depend(p, user, writer);
    if (waits == HOST_FOR_WRITER || waits == HOST_FOR_USER) {
        dtp_op_id host = dtp_program_add_op(p, &(struct dtp_new_op){.kind = DTP_OP_HOST_WAIT}, NULL, 0);
        dtp_program_depend(p, host, waits == HOST_FOR_USER ? user : writer);
    }
    dtp_op_id next = use(p, DTP_STREAM_COMPUTE, b, DTP_ALLOC | DTP_WRITE | DTP_FREE);
    if (waits == STREAM_FOR_USER)
        dtp_program_depend(p, next, user);
    struct dtp_placement placement = place(p);
    assert_int_equal(dtp_program_verify(p, NULL), DTP_OK);
    assert_int_equal(placement.live_peak_bytes, 512); /* as the allocator counts: freed is freed */
    assert_int_equal(placement.lifetime[a.index].last, 1);
    uint64_t arena_bytes = placement.arena_bytes;
    dtp_placement_release(&placement);
    dtp_program_destroy(p);
    return arena_bytes;
}

static void test_deferred_buffers_stay_until_their_users_are_done(void **state)
{
    (void)state;
    assert_int_equal(arena_of_deferred(NOBODY), 1024);
    assert_int_equal(arena_of_deferred(HOST_FOR_WRITER), 1024);
    assert_int_equal(arena_of_deferred(HOST_FOR_USER), 512);
    assert_int_equal(arena_of_deferred(STREAM_FOR_USER), 512);
}

static void expect_placement(const struct dtp_program *p, struct dtp_placement placement, double most)
{
    uint32_t count = (uint32_t)dtp_program_buffer_count(p), placed = 0;
    struct dtp_fit_span *spans = calloc(count, sizeof *spans);
    for (uint32_t b = 0; b < count; b++)
        if (placement.offset_bytes[b] != UINT64_MAX) {
            assert_int_equal(placement.offset_bytes[b] % DTP_PLACEMENT_ALIGNMENT, 0);
            spans[placed++] = (struct dtp_fit_span){placement.lifetime[b].first, placement.lifetime[b].last,
                                                    dtp_program_buffers(p)[b].bytes, placement.offset_bytes[b]};
        }
    assert_int_equal(placed, count);
    uint64_t end_bytes = 0, owners_bytes = 0;
    for (uint32_t i = 0; i < placed; i++) {
        uint64_t end = spans[i].offset_bytes + spans[i].bytes;
        end_bytes = end > end_bytes ? end : end_bytes;
    }
    expect_disjoint(spans, placed, end_bytes);
    free(spans);
    assert_true(end_bytes <= placement.arena_bytes && placement.live_peak_bytes <= placement.arena_bytes);
    double ratio = (double)placement.arena_bytes / (double)placement.live_peak_bytes;
    if (ratio > most)
        fail_msg("the arena is %.4f of the live peak, more than %.4f", ratio, most);
    for (int o = 0; o < DTP_OWNER_COUNT; o++)
        owners_bytes += placement.live_peak_owner_bytes[o];
    assert_true(owners_bytes == placement.live_peak_bytes);
}

/* Of a pool that peaks at another time than the others, `most` counts the whole. */
static void expect_placement_of(struct dtp_program *p, double most)
{
    assert_non_null(p);
    struct dtp_placement placement = place(p), tight;
    expect_placement(p, placement, most);
    assert_int_equal(dtp_program_place_tight(p, &tight, NULL), DTP_OK);
    expect_placement(p, tight, most);
    assert_true(tight.live_peak_bytes == placement.live_peak_bytes && tight.live_peak_op == placement.live_peak_op);
    dtp_placement_release(&placement);
    dtp_placement_release(&tight);
    dtp_program_destroy(p);
}

static void test_a_step(void **state)
{
    (void)state;
    expect_placement_of(step_program(8, 3, 17), 1.02);
    expect_placement_of(step_program(1, 1, 1), 1.4);
    expect_placement_of(step_program(5, 2, 3), 1.1);
}

static void test_too_large_and_empty(void **state)
{
    (void)state;
    struct dtp_program *p = fresh();
    for (int i = 0; i < 64; i++)
        dtp_program_add_buffer(p, &(struct dtp_buffer){.bytes = DTP_BUFFER_MAX_BYTES, .persistent = true});
    assert_int_equal(dtp_program_seal(p, NULL), DTP_OK);
    struct dtp_placement placement;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_program_place(p, &placement, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 1);
    assert_null(placement.offset_bytes);
    dtp_program_destroy(p);
    p = fresh();
    placement = place(p);
    assert_int_equal(placement.arena_bytes, 0);
    dtp_placement_release(&placement);
    dtp_program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing_and_one),
                                       cmocka_unit_test(test_a_stack_and_what_grows_while_it_shrinks),
                                       cmocka_unit_test(test_a_hole_is_reused),
                                       cmocka_unit_test(test_random_spans),
                                       cmocka_unit_test(test_lifetimes_and_peak_by_owner),
                                       cmocka_unit_test(test_pools_do_not_share),
                                       cmocka_unit_test(test_deferred_buffers_stay_until_their_users_are_done),
                                       cmocka_unit_test(test_a_step),
                                       cmocka_unit_test(test_too_large_and_empty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
