#include "ranks/cores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static cpu_set_t set_of(const char *list)
{
    cpu_set_t set;
    assert_true(dtp_cores_parse(list, &set));
    return set;
}

static void test_lists(void **state)
{
    static const char *const wrong[] = {"", "\n", "a", "3-", "-3", "5-2", "1,", "1,,2", "1 2", "0-99999999", "1-2-3"};
    cpu_set_t set = set_of("0-2,8,10-11\n");
    (void)state;
    assert_int_equal(CPU_COUNT(&set), 6);
    assert_true(CPU_ISSET(1, &set) && CPU_ISSET(8, &set) && CPU_ISSET(11, &set) && !CPU_ISSET(9, &set));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (dtp_cores_parse(wrong[i], &set))
            fail_msg("'%s' was taken", wrong[i]);
}

static void expect_share(const struct dtp_cores_claim *claims, uint32_t ranks, uint32_t rank, const char *list)
{
    cpu_set_t share, wanted = set_of(list);
    dtp_cores_share(claims, ranks, rank, &share);
    if (!CPU_EQUAL(&share, &wanted))
        fail_msg("rank %u of %u has not %s", rank, ranks, list);
}

static void test_shares(void **state)
{
    struct dtp_cores_claim claims[6] = {{1, set_of("0-31")}, {1, set_of("0-31")},  {1, set_of("32-63")},
                                        {2, set_of("0-31")}, {1, set_of("32-63")}, {1, set_of("0-31")}};
    (void)state;
    expect_share(claims, 6, 0, "0-9"); /* 32 cores for ranks 0, 1 and 5 */
    expect_share(claims, 6, 1, "10-20");
    expect_share(claims, 6, 5, "21-31");
    expect_share(claims, 6, 2, "32-47");
    expect_share(claims, 6, 4, "48-63");
    expect_share(claims, 6, 3, "0-31"); /* another machine's */
    for (int i = 0; i < 3; i++)
        claims[i].pool = set_of("4,6");
    expect_share(claims, 3, 1, "4,6"); /* more ranks than cores */
    expect_share(claims, 2, 1, "6");
}

static void test_a_claim(void **state)
{
    struct dtp_cores_claim claim, again;
    cpu_set_t allowed, both;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    dtp_cores_claim(-1, &claim);
    assert_true(CPU_EQUAL(&claim.pool, &allowed));
    dtp_cores_claim(0, &again);
    CPU_AND(&both, &again.pool, &allowed);
    assert_true(CPU_COUNT(&again.pool) > 0 && CPU_EQUAL(&both, &again.pool));
    assert_true(claim.machine == again.machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists), cmocka_unit_test(test_shares),
                                       cmocka_unit_test(test_a_claim)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
