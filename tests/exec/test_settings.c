#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/settings.h"

#include <math.h>
#include <string.h>

static struct dtp_faults faults;

static int reset(void **state)
{
    (void)state;
    memset(&faults, 0, sizeof faults);
    return 0;
}

/* Four steps of warm-up to 1, then half a cosine over eight to 0.1: in its middle (1 + 0.1) / 2. */
static void test_schedule(void **state)
{
    struct dtp_settings s = dtp_settings_default();
    (void)state;
    s.steps = 12;
    s.warmup = 4;
    s.learning_rate = 1;
    s.min_learning_rate = 0.1;
    static const struct {
        uint64_t step;
        double wanted;
    } cases[] = {{0, 0.25}, {3, 1}, {4, 1}, {8, 0.55}, {12, 0.1}, {100, 0.1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_true(fabs(dtp_settings_learning_rate(&s, cases[i].step) - cases[i].wanted) < 1e-12);
    for (uint64_t step = 4; step < 12; step++)
        assert_true(dtp_settings_learning_rate(&s, step + 1) < dtp_settings_learning_rate(&s, step));
}

static void set(struct dtp_settings *s, const char *name, const char *value, enum dtp_status wanted, bool wanted_known)
{
    bool known;
    assert_int_equal(dtp_settings_set(s, name, value, &known, &faults), wanted);
    assert_int_equal(known, wanted_known);
}

static void test_flags(void **state)
{
    struct dtp_settings s = dtp_settings_default();
    (void)state;
    assert_int_equal(s.steps, 100);
    set(&s, "steps", "2k", DTP_OK, true);
    assert_int_equal(s.steps, 2000);
    set(&s, "lr", "6e-4", DTP_OK, true);
    assert_true(s.learning_rate == 6e-4);
    set(&s, "resume", NULL, DTP_OK, true);
    assert_true(s.resume && dtp_settings_takes_value("data") && !dtp_settings_takes_value("resume"));
    set(&s, "layers", "3", DTP_OK, false);
    static const char *const bad[][2] = {{"steps", "0"},   {"steps", "1.5"}, {"lr", "-1"},  {"beta1", "1"},
                                         {"beta2", "nan"}, {"seed", "-3"},   {"data", NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        set(&s, bad[i][0], bad[i][1], DTP_BAD_INPUT, true);
    assert_int_equal(faults.count, sizeof bad / sizeof bad[0]);
}

/* All at once. */
static void test_what_does_not_fit_together(void **state)
{
    struct dtp_settings s = dtp_settings_default();
    (void)state;
    s.device = "tpu";
    s.data_type = "uint8";
    s.not_finite = "ignore";
    s.warmup = 101;
    s.min_learning_rate = 1;
    s.resume_previous = true;
    assert_int_equal(dtp_settings_check(&s, &faults), DTP_BAD_INPUT);
    assert_int_equal(faults.count, 7); /* data_type also lacks --data */
    s = dtp_settings_default();
    assert_int_equal(dtp_settings_check(&s, &faults), DTP_OK);
    assert_true(s.cuda);
}

/* Cores are shared anyway, and a probe of GPUs that are would be of nothing. */
static void test_sharing_is_refused(void **state)
{
    struct dtp_settings s = dtp_settings_default();
    (void)state;
    set(&s, "share-gpu", NULL, DTP_OK, true);
    assert_int_equal(dtp_settings_check(&s, &faults), DTP_OK);
    s.probe = true;
    assert_int_equal(dtp_settings_check(&s, &faults), DTP_BAD_INPUT);
    s.probe = false;
    s.device = "host";
    assert_int_equal(dtp_settings_check(&s, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "--share-gpu: what ranks that share a GPU take"));
    assert_non_null(strstr(faults.text[1], "--share-gpu: ranks of the host device share its cores anyway"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(test_schedule, reset),
                                       cmocka_unit_test_setup(test_flags, reset),
                                       cmocka_unit_test_setup(test_what_does_not_fit_together, reset),
                                       cmocka_unit_test_setup(test_sharing_is_refused, reset)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
