/* The table of constants: every row says what it must, and what is set is read until it is restored. */
#include "cost/calibration.h"
#include "cost/op_cost.h"
#include "plan/runtime.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_rows_are_complete(void **state)
{
    (void)state;
    for (int i = 0; i < DTP_CONSTANT_COUNT; i++) {
        const struct dtp_calibration_row *row = &dtp_calibration_rows[i];
        print_message("%s\n", row->name);
        assert_true(*row->name && *row->unit && *row->what && *row->source);
        assert_true(isfinite(row->value) && row->value > 0);
        assert_true(dtp_calibration_get((enum dtp_constant)i) == row->value);
        assert_true(i == 0 || row->line > dtp_calibration_rows[i - 1].line);
        /* What was fitted to runs that are shipped names their table, and nothing else has something to do without. */
        const char *why;
        double otherwise = dtp_constant_otherwise((enum dtp_constant)i, &why);
        if (row->runs)
            assert_non_null(strstr(row->data, "_runs"));
        else
            assert_true(isnan(otherwise) && !why);
        assert_true(isnan(otherwise) ? !why : otherwise > 0 && *why);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(row->name, dtp_calibration_rows[j].name);
    }
}

/* By name, so that nobody takes a source away from a constant unseen. */
static void test_whose_runs(void **state)
{
    (void)state;
    assert_true(dtp_constant_is_of(DTP_CONSTANT_flash1_forward, "github:mosaicml/llm-foundry"));
    assert_false(dtp_constant_is_of(DTP_CONSTANT_flash1_forward, "github:VIA-Research/vTrain"));
    assert_true(dtp_constant_is_of(DTP_CONSTANT_megatron_launch_s, "github:VIA-Research/vTrain"));
    assert_true(dtp_constant_is_of(DTP_CONSTANT_kernel_gap_s, "measured with PyTorch 2.11.0+cu130"));
    assert_true(dtp_constant_is_of(DTP_CONSTANT_rank_speed_deviation, "github:IST-DASLab/llmq"));
    assert_false(dtp_constant_is_of(DTP_CONSTANT_rank_speed_deviation, "github:alice/bench"));
    assert_false(dtp_constant_is_of(DTP_CONSTANT_pcie_fraction, "github:mosaicml/llm-foundry"));
}

static void test_set_and_restore(void **state)
{
    (void)state;
    const struct dtp_execution megatron = {.issuer = DTP_ISSUER_MEGATRON};
    assert_true(dtp_kernel_launch_s(&megatron) == 75e-6);
    dtp_calibration_set(DTP_CONSTANT_megatron_launch_s, 1e-6);
    assert_true(dtp_kernel_launch_s(&megatron) == 1e-6);
    assert_true(dtp_calibration_rows[DTP_CONSTANT_megatron_launch_s].value == 75e-6);
    dtp_calibration_restore();
    assert_true(dtp_kernel_launch_s(&megatron) == 75e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_are_complete), cmocka_unit_test(test_whose_runs),
                                       cmocka_unit_test(test_set_and_restore)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
