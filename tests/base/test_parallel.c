/* Items on many threads: all of them once, taken in order, and an end at the first failure. */
#include "base/parallel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define ITEMS 10007u /* no multiple of a chunk */

struct run {
    _Atomic uint32_t worked[ITEMS];
    uint64_t next, fail_at;
    bool in_order, stop;
};

static enum dtp_status work(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    struct run *run = context;
    (void)thread;
    for (uint64_t i = first; i < first + count; i++) {
        run->worked[i]++;
        if (i == run->fail_at)
            return DTP_ENVIRONMENT;
    }
    return DTP_OK;
}

static enum dtp_status take(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    struct run *run = context;
    (void)thread;
    run->in_order = run->in_order && first == run->next;
    run->next = first + count;
    return DTP_OK;
}

static bool watch(void *context, uint64_t done, uint64_t count)
{
    struct run *run = context;
    (void)done;
    (void)count;
    return !run->stop;
}

static enum dtp_status go(struct run *run, uint64_t first, uint32_t chunk, unsigned threads, uint64_t *done)
{
    struct dtp_parallel job = {.first = first,
                               .count = ITEMS,
                               .chunk_items = chunk,
                               .threads = threads,
                               .context = run,
                               .work = work,
                               .take = take,
                               .watch = watch};
    for (size_t i = 0; i < ITEMS; i++)
        run->worked[i] = 0;
    run->next = first;
    run->in_order = true;
    return dtp_parallel_run(&job, done, NULL);
}

static void test_all_once_in_order(void **state)
{
    static struct run run;
    (void)state;
    run.fail_at = UINT64_MAX;
    for (unsigned threads = 0; threads <= 7; threads++) {
        uint64_t done, first = 100u * threads;
        assert_int_equal(go(&run, first, 1 + 13 * threads, threads, &done), DTP_OK);
        assert_int_equal(done, ITEMS);
        assert_true(run.in_order);
        assert_int_equal(run.next, ITEMS);
        for (uint64_t i = 0; i < ITEMS; i++)
            assert_int_equal(run.worked[i], i >= first);
    }
    assert_true(dtp_parallel_threads() >= 1);
}

/* Nothing is taken, so that nobody waits for a turn. */
static void test_without_turns(void **state)
{
    static struct run run;
    (void)state;
    for (unsigned threads = 0; threads <= 7; threads++) {
        struct dtp_parallel job = {
            .count = ITEMS, .chunk_items = 1 + 13 * threads, .threads = threads, .context = &run, .work = work};
        uint64_t done;
        memset(&run, 0, sizeof run);
        run.fail_at = UINT64_MAX;
        assert_int_equal(dtp_parallel_run(&job, &done, NULL), DTP_OK);
        assert_int_equal(done, ITEMS);
        for (size_t i = 0; i < ITEMS; i++)
            assert_int_equal(run.worked[i], 1);
        run.fail_at = 5000;
        assert_int_equal(dtp_parallel_run(&job, &done, NULL), DTP_ENVIRONMENT);
        assert_true(done < ITEMS);
    }
}

static void test_failure_ends_it(void **state)
{
    static struct run run;
    uint64_t done;
    (void)state;
    run.fail_at = 5000;
    assert_int_equal(go(&run, 0, 16, 4, &done), DTP_ENVIRONMENT);
    assert_true(run.in_order);
    assert_int_equal(done, 5000 / 16 * 16); /* everything before the failing chunk was taken, nothing after it */
    assert_int_equal(run.next, done);
}

static void test_watch_ends_it(void **state)
{
    static struct run run;
    uint64_t done;
    (void)state;
    run.fail_at = UINT64_MAX;
    run.stop = true;
    enum dtp_status status = go(&run, 0, 1, 2, &done);
    assert_true(status == DTP_NO || done == ITEMS); /* the items may be done before anyone looks */
    assert_int_equal(run.next, done);
    assert_true(run.in_order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_once_in_order), cmocka_unit_test(test_without_turns),
                                       cmocka_unit_test(test_failure_ends_it), cmocka_unit_test(test_watch_ends_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
