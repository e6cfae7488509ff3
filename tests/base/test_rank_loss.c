/* How long lost ranks stay unnoticed, by hand. */
#include "base/rank_loss.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void assert_near(double value, double expected)
{
    assert_true(fabs(value - expected) < 1e-9);
}

/* Steps of 4 s. A connection that ends is seen at once, half a step after the last one ended: 2 s. Silence counts from
 * the same moment for 10 s, and the stopped rank is ended 2 s later. A step may take 60 s and 30 steps. */
static void test_by_hand(void **state)
{
    (void)state;
    assert_near(dtp_rank_loss_noticed_s(DTP_LOSS_CLOSED, 4), 2);
    assert_near(dtp_rank_loss_ended_s(DTP_LOSS_CLOSED, 4), 2);
    assert_near(dtp_rank_loss_noticed_s(DTP_LOSS_GAVE_UP, 4), 2);
    assert_near(dtp_rank_loss_noticed_s(DTP_LOSS_SILENT, 4), 12);
    assert_near(dtp_rank_loss_ended_s(DTP_LOSS_SILENT, 4), 14);
    assert_near(dtp_rank_loss_noticed_s(DTP_LOSS_HUNG, 4), 180);
    assert_near(dtp_rank_loss_ended_s(DTP_LOSS_HUNG, 4), 180);
    assert_true(isnan(dtp_rank_loss_noticed_s(DTP_LOSS_UNKNOWN, 4)));
    assert_true(isnan(dtp_rank_loss_ended_s(DTP_LOSS_UNKNOWN, 4)));
}

static void test_deadlines(void **state)
{
    (void)state;
    assert_near(dtp_step_deadline_s(0), 600);
    assert_near(dtp_step_deadline_s(0.1), 63);
}

static void test_words(void **state)
{
    (void)state;
    assert_string_equal(dtp_rank_loss_words(DTP_LOSS_SILENT), "silence");
    assert_string_equal(dtp_rank_loss_words(DTP_LOSS_COUNT), "unknown");
    assert_string_equal(dtp_rank_loss_words(UINT32_MAX), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_hand), cmocka_unit_test(test_deadlines),
                                       cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
