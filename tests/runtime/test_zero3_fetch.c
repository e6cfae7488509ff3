/* What ZeRO-3 fetches and keeps, traced by hand. */
#include "runtime/deepspeed/zero3_fetch.h"
#include "runtime/runtimes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Two blocks of one matrix each (q, as good as any): embedding E 3, blocks A and B 2, head H 3 elements; a use is its
 * letter, what is gathered for it stands before it in brackets, one pair a collective, '-' follows where it is given
 * back. */
static const char *trace_shape(struct dtp_zero3_shape shape, uint64_t live, uint64_t reuse, uint64_t prefetch,
                               bool tied, enum dtp_checkpointing checkpointing)
{
    static char text[256];
    static struct dtp_zero3_walk walk;
    static const char blocks[] = "ABR", roots[] = "EPVH", adapters[] = "ab";
    shape.tied = tied;
    shape.root[DTP_ZERO3_EMBEDDING] = 3;
    shape.root[DTP_ZERO3_HEAD] = tied ? 0 : 3;
    struct dtp_plan plan = dtp_plan_default();
    plan.deepspeed.stage3_max_live_parameters = live, plan.deepspeed.stage3_max_reuse_distance = reuse;
    plan.deepspeed.stage3_prefetch_bucket_size = prefetch, plan.checkpointing = checkpointing;
    dtp_zero3_start(&walk, &shape, &plan, true);
    struct dtp_zero3_tensor used, gathered;
    char *out = text;
    while (dtp_zero3_begin(&walk, &used)) {
        bool open = false;
        while (dtp_zero3_take(&walk, &gathered)) {
            out += sprintf(out, "%s%c", gathered.starts ? open ? ")(" : "(" : "",
                           gathered.layer == 2 ? roots[gathered.part]
                           : gathered.part     ? adapters[gathered.layer]
                                               : blocks[gathered.layer]);
            open = true;
        }
        dtp_zero3_awaits(&walk);
        out += sprintf(out, "%s%c", open ? ")" : "",
                       used.layer == 2 ? roots[used.part]
                       : used.part     ? adapters[used.layer]
                                       : blocks[used.layer]);
        if (dtp_zero3_end(&walk))
            out += sprintf(out, "-");
        *out++ = ' ';
    }
    out[-1] = '\0';
    assert_int_equal(walk.live_elements, 0);
    return text;
}

static const char *trace(uint64_t live, uint64_t reuse, uint64_t prefetch, bool tied,
                         enum dtp_checkpointing checkpointing)
{
    const struct dtp_zero3_shape shape = {.layers = 2, .matrices = 3, .inputs = 1, .block = {2}};
    return trace_shape(shape, live, reuse, prefetch, tied, checkpointing);
}

static void test_nothing_kept(void **state)
{
    (void)state;
    assert_string_equal(trace(0, 0, 9, false, DTP_CHECKPOINT_NONE), "(E)E- (A)A- (B)B- (H)H- (H)H- (B)B- (A)A- (E)E-");
    assert_string_equal(trace(99, 0, 0, false, DTP_CHECKPOINT_NONE), "(E)E- (A)A- (B)B- (H)H- (H)H- (B)B- (A)A- (E)E-");
}

/* H is used again at once, B after H twice: 6 elements, A after 10. */
static void test_reuse_distance(void **state)
{
    (void)state;
    assert_string_equal(trace(0, 1, 9, false, DTP_CHECKPOINT_NONE), "(E)E- (A)A- (B)B- (H)H H- (B)B- (A)A- (E)E-");
    assert_string_equal(trace(0, 6, 9, false, DTP_CHECKPOINT_NONE), "(E)E- (A)A- (B)B- (H)H H- (B)B- (A)A- (E)E-");
    assert_string_equal(trace(0, 7, 9, false, DTP_CHECKPOINT_NONE), "(E)E- (A)A- (B)B (H)H H- B- (A)A- (E)E-");
    assert_string_equal(trace(0, 11, 9, false, DTP_CHECKPOINT_NONE), "(E)E- (A)A (B)B (H)H H- B- A- (E)E-");
}

/* Of 5 elements E leaves room for 2: A. At A there is room for 3: B is fewer, and H overshoots; 7 are there, 5 after A,
 * so B has room for none. At H, which is 3, 2 are left: past H's own backward, which keeps it, B. At B, again 3: A, and
 * E. */
static void test_prefetch_is_bounded_by_what_is_live(void **state)
{
    (void)state;
    assert_string_equal(trace(5, 0, 9, false, DTP_CHECKPOINT_NONE), "(E)(A)E- (BH)A- B- (B)H H- (AE)B- A- E-");
}

/* The prefetch has passed over the second use of all when there is room for them: nothing is gathered twice. In steps
 * of 2 it has passed over H's alone. */
static void test_what_prefetch_passed_is_kept(void **state)
{
    (void)state;
    assert_string_equal(trace(99, 0, 99, false, DTP_CHECKPOINT_NONE), "(E)(ABH)E A B H H- B- A- E-");
    assert_string_equal(trace(99, 0, 2, false, DTP_CHECKPOINT_NONE), "(E)(A)E- (B)A- (H)B- (B)H (A)H- (E)B- A- E-");
}

/* A tied head is the embedding once more; a replayed block runs forward again before it runs backward. */
static void test_tied_and_replayed(void **state)
{
    (void)state;
    assert_string_equal(trace(0, 1, 9, true, DTP_CHECKPOINT_NONE), "(E)E- (A)A- (B)B- (E)E E- (B)B- (A)A- (E)E-");
    assert_string_equal(trace(0, 1, 9, false, DTP_CHECKPOINT_FULL), "(E)E- (A)A- (B)B- (H)H H- (B)B B- (A)A A- (E)E-");
    assert_string_equal(trace(0, 7, 9, false, DTP_CHECKPOINT_FULL), "(E)E- (A)A- (B)B (H)H H- B B- (A)A A- (E)E-");
}

/* Adapters a and b of one element beside A and B: behind the matrix in forward and in its replay, before it in
 * backward. One that persists is in no trace. */
static void test_adapters(void **state)
{
    (void)state;
    struct dtp_zero3_shape shape = {.layers = 2, .matrices = 3, .inputs = 1, .adapter = {4}, .block = {2, [4] = 1}};
    assert_string_equal(trace_shape(shape, 0, 0, 9, false, DTP_CHECKPOINT_NONE),
                        "(E)E- (A)A- (a)a- (B)B- (b)b- (H)H- (H)H- (b)b- (B)B- (a)a- (A)A- (E)E-");
    assert_string_equal(trace_shape(shape, 0, 1, 9, false, DTP_CHECKPOINT_FULL),
                        "(E)E- (A)A- (a)a- (B)B- (b)b- (H)H H- (B)B- (b)b b- (B)B- (A)A- (a)a a- (A)A- (E)E-");
    shape.block[4] = 0;
    assert_string_equal(trace_shape(shape, 0, 0, 9, false, DTP_CHECKPOINT_NONE),
                        "(E)E- (A)A- (B)B- (H)H- (H)H- (B)B- (A)A- (E)E-");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_adapters),
                                       cmocka_unit_test(test_nothing_kept),
                                       cmocka_unit_test(test_reuse_distance),
                                       cmocka_unit_test(test_prefetch_is_bounded_by_what_is_live),
                                       cmocka_unit_test(test_what_prefetch_passed_is_kept),
                                       cmocka_unit_test(test_tied_and_replayed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
