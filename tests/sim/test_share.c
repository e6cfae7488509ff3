/* Max-min fair sharing, by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/hardware.h"
#include "sim/share.h"

#include <gsl/gsl_rng.h>

static struct dtp_usage uses(enum dtp_resource resource, double fraction)
{
    struct dtp_usage usage = {.weight = 1};
    usage.of[resource] = fraction;
    return usage;
}

static void test_no_contention(void **state)
{
    (void)state;
    struct dtp_usage a = uses(DTP_RESOURCE_SM, 0.5), b = uses(DTP_RESOURCE_SM, 0.5), c = uses(DTP_RESOURCE_HBM, 1);
    const struct dtp_usage *usage[] = {&a, &b, &c};
    double speed[3];
    dtp_share(usage, 3, speed);
    for (int i = 0; i < 3; i++)
        assert_true(speed[i] == 1);
    dtp_share(usage, 0, speed);
}

/* The small one keeps its tenth, the large ones split the rest: 0.9 / 2 each, of which one wants 0.6 and one 1. */
static void test_small_demands_are_met_first(void **state)
{
    (void)state;
    struct dtp_usage a = uses(DTP_RESOURCE_SM, 0.1), b = uses(DTP_RESOURCE_SM, 0.6), c = uses(DTP_RESOURCE_SM, 1);
    const struct dtp_usage *usage[] = {&a, &b, &c};
    double speed[3];
    dtp_share(usage, 3, speed);
    assert_near(speed[0], 1, 1e-12);
    assert_near(speed[1], 0.45 / 0.6, 1e-12);
    assert_near(speed[2], 0.45, 1e-12);
}

/* Alone but asking for more than there is: half the speed. */
static void test_beyond_capacity_alone(void **state)
{
    (void)state;
    struct dtp_usage a = uses(DTP_RESOURCE_HOST_MEMORY, 2);
    const struct dtp_usage *usage[] = {&a};
    double speed[1];
    dtp_share(usage, 1, speed);
    assert_near(speed[0], 0.5, 1e-12);
}

/* a and b share the SMs half and half; c wants the HBM that a no longer fills: a uses 0.4 * 0.5 of it, c gets 0.8. */
static void test_two_resources(void **state)
{
    (void)state;
    struct dtp_usage a = uses(DTP_RESOURCE_SM, 1), b = uses(DTP_RESOURCE_SM, 1), c = uses(DTP_RESOURCE_HBM, 1);
    a.of[DTP_RESOURCE_HBM] = 0.4;
    const struct dtp_usage *usage[] = {&a, &b, &c};
    double speed[3];
    dtp_share(usage, 3, speed);
    assert_near(speed[0], 0.5, 1e-12);
    assert_near(speed[1], 0.5, 1e-12);
    assert_near(speed[2], 0.8, 1e-12);
}

/* A collective of a third of the SMs beside a matmul: the matmul gets the other two thirds. */
static void test_collective_beside_matmul(void **state)
{
    (void)state;
    struct dtp_usage matmul = uses(DTP_RESOURCE_SM, 1), collective = uses(DTP_RESOURCE_SM, 0.3);
    collective.of[DTP_RESOURCE_LINK_OUT] = collective.of[DTP_RESOURCE_LINK_IN] = 1;
    const struct dtp_usage *usage[] = {&matmul, &collective};
    double speed[2];
    dtp_share(usage, 2, speed);
    assert_near(speed[0], 0.7, 1e-12);
    assert_near(speed[1], 1, 1e-12);
}

/* Of two that want all, weights 3 and 1 make three quarters and one; a small want of a small weight is met all the
 * same. */
static void test_weights(void **state)
{
    (void)state;
    struct dtp_usage a = uses(DTP_RESOURCE_SM, 1), b = a, c = uses(DTP_RESOURCE_SM, 0.2);
    a.weight = 3;
    const struct dtp_usage *usage[] = {&a, &b, &c};
    double speed[3];
    dtp_share(usage, 2, speed);
    assert_near(speed[0], 0.75, 1e-12);
    assert_near(speed[1], 0.25, 1e-12);
    dtp_share(usage, 3, speed); /* 0.6, 0.2 and 0.2 */
    assert_near(speed[0], 0.6, 1e-12);
    assert_near(speed[1], 0.2, 1e-12);
    assert_near(speed[2], 1, 1e-12);
}

/* Whatever the demands: speeds in (0, 1], no resource over its capacity, and nobody below full speed unless one of its
 * resources is full. */
static void test_properties(void **state)
{
    (void)state;
    gsl_rng *rng = gsl_rng_alloc(gsl_rng_mt19937);
    gsl_rng_set(rng, 20261);
    for (int round = 0; round < 20000; round++) {
        size_t count = 1 + gsl_rng_uniform_int(rng, 9);
        struct dtp_usage usage[9];
        const struct dtp_usage *pointer[9];
        double speed[9], used[DTP_RESOURCE_COUNT] = {0};
        for (size_t i = 0; i < count; i++) {
            pointer[i] = &usage[i];
            usage[i].weight = 0.1 + 10 * gsl_rng_uniform(rng);
            for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
                usage[i].of[r] = gsl_rng_uniform(rng) < 0.5 ? 0 : gsl_rng_uniform(rng);
        }
        dtp_share(pointer, count, speed);
        for (size_t i = 0; i < count; i++)
            for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
                used[r] += usage[i].of[r] * speed[i];
        for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
            assert_true(used[r] <= 1 + 1e-9);
        for (size_t i = 0; i < count; i++) {
            int full = 0;
            for (int r = 0; r < DTP_RESOURCE_COUNT; r++)
                full += usage[i].of[r] > 0 && used[r] > 1 - 1e-9;
            assert_true(speed[i] > 0 && speed[i] <= 1);
            assert_true(speed[i] == 1 || full > 0);
        }
    }
    gsl_rng_free(rng);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_contention),
        cmocka_unit_test(test_small_demands_are_met_first),
        cmocka_unit_test(test_beyond_capacity_alone),
        cmocka_unit_test(test_two_resources),
        cmocka_unit_test(test_collective_beside_matmul),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_properties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
