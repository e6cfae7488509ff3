#include "base/host_arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* Pieces of many sizes, each filled with a byte of its own: none may have lost it to another. */
static void expect_disjoint_pieces(struct dtp_host_arena *arena)
{
    enum { PIECES = 200 };
    unsigned char *piece[PIECES];
    for (size_t i = 0; i < PIECES; i++) {
        size_t bytes = i * i * 7 % 60000;
        piece[i] = dtp_host_arena_take(arena, bytes, 1);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % 16, 0);
        memset(piece[i], (int)i, bytes);
    }
    for (size_t i = 0; i < PIECES; i++)
        for (size_t b = 0; b < i * i * 7 % 60000; b++)
            assert_int_equal(piece[i][b], i);
}

static void test_pieces_are_disjoint_and_aligned(void **state)
{
    (void)state;
    struct dtp_host_arena arena = {0};
    expect_disjoint_pieces(&arena);
    dtp_host_arena_reset(&arena);
    expect_disjoint_pieces(&arena);
    dtp_host_arena_release(&arena);
    assert_null(arena.chunks);
    expect_disjoint_pieces(&arena);
    dtp_host_arena_release(&arena);
}

/* The largest chunk is kept, so that what comes first after a reset lies where it began. */
static void test_a_reset_keeps_the_largest_chunk(void **state)
{
    (void)state;
    struct dtp_host_arena arena = {0};
    dtp_host_arena_reset(&arena); /* of nothing */
    assert_null(arena.chunks);
    (void)dtp_host_arena_take(&arena, 10, 1);
    char *large = dtp_host_arena_take(&arena, 1000000, 1);
    (void)dtp_host_arena_take(&arena, 10, 1);
    dtp_host_arena_reset(&arena);
    assert_ptr_equal(dtp_host_arena_take(&arena, 1000000, 1), large);
    dtp_host_arena_reset(&arena);
    assert_ptr_equal(dtp_host_arena_take(&arena, 500, 1000), large);
    dtp_host_arena_release(&arena);
}

static void test_zeroed_and_too_much(void **state)
{
    (void)state;
    struct dtp_host_arena arena = {0};
    memset(dtp_host_arena_take(&arena, 5000, 1), 0xff, 5000);
    dtp_host_arena_reset(&arena);
    const char *zero = dtp_host_arena_take_zeroed(&arena, 50, 100);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(zero[i], 0);
    assert_null(dtp_host_arena_take(&arena, SIZE_MAX / 2, 3));
    assert_null(dtp_host_arena_take(&arena, SIZE_MAX, 1));
    assert_null(dtp_host_arena_take(&arena, SIZE_MAX - 20, 1));
    dtp_host_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_are_disjoint_and_aligned),
        cmocka_unit_test(test_a_reset_keeps_the_largest_chunk),
        cmocka_unit_test(test_zeroed_and_too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
