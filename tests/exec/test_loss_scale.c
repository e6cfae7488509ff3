/* The loss scale from step to step, as torch.amp.GradScaler moves it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "train/loss_scale.h"

static struct dtp_faults faults;

static void test_overflow_halves_and_2000_good_steps_double(void **state)
{
    (void)state;
    struct dtp_settings settings = dtp_settings_default();
    struct dtp_checkpoint_position at = {.step = 0};
    assert_int_equal(dtp_loss_scale_start(&settings, true, &at, &faults), DTP_OK);
    assert_true(at.loss_scale == 65536);
    assert_true(dtp_loss_scale_step(&settings, true, &at) && at.loss_scale == 32768);
    for (int i = 0; i < 1999; i++)
        assert_false(dtp_loss_scale_step(&settings, false, &at));
    assert_true(at.loss_scale == 32768 && at.good_steps == 1999);
    assert_true(dtp_loss_scale_step(&settings, true, &at)); /* begins to count again */
    for (int i = 0; i < 2000; i++)
        dtp_loss_scale_step(&settings, false, &at);
    assert_true(at.loss_scale == 32768 && at.good_steps == 0);
    at.loss_scale = 0x1p-14; /* what overflows here is no number at all */
    assert_false(dtp_loss_scale_step(&settings, true, &at));
    assert_true(at.loss_scale == 0x1p-14);
}

static void test_a_given_scale_stays(void **state)
{
    (void)state;
    struct dtp_settings settings = dtp_settings_default();
    struct dtp_checkpoint_position at = {.loss_scale = 8, .good_steps = 3}; /* of a checkpoint */
    settings.loss_scale = "512";
    assert_int_equal(dtp_settings_check(&settings, &faults), DTP_OK);
    assert_int_equal(dtp_loss_scale_start(&settings, true, &at, &faults), DTP_OK);
    assert_true(at.loss_scale == 512);
    assert_false(dtp_loss_scale_step(&settings, true, &at));
    assert_true(at.loss_scale == 512);
}

static void test_only_fp16_has_one(void **state)
{
    (void)state;
    struct dtp_settings settings = dtp_settings_default();
    struct dtp_checkpoint_position at = {.step = 7};
    assert_int_equal(dtp_loss_scale_start(&settings, false, &at, &faults), DTP_OK);
    assert_true(at.loss_scale == 0 && at.step == 7 && !dtp_loss_scale_step(&settings, true, &at));
    settings.loss_scale = "dynamic";
    assert_int_equal(dtp_loss_scale_start(&settings, false, &at, &faults), DTP_BAD_INPUT);
    static const char *const bad[] = {"0", "-1", "many", "1e300", "nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        settings.loss_scale = bad[i];
        assert_int_equal(dtp_settings_check(&settings, &faults), DTP_BAD_INPUT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overflow_halves_and_2000_good_steps_double),
                                       cmocka_unit_test(test_a_given_scale_stays),
                                       cmocka_unit_test(test_only_fp16_has_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
