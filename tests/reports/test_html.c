/* Parts of HTML pages: what comes from outside stays text, axes have round ticks inside their range, words of a shell.
 */
#include "html/html.h"
#include "chart/like_runs.h"
#include "page/shell_word.h"
#include "html/svg_axis.h"
#include "html/svg_chart.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *text;
static size_t bytes;

static FILE *open_text(void)
{
    FILE *file = open_memstream(&text, &bytes);
    assert_non_null(file);
    return file;
}

static void expect_text(FILE *file, const char *wanted)
{
    fclose(file);
    assert_string_equal(text, wanted);
    free(text);
}

static void test_text(void **state)
{
    (void)state;
    FILE *file = open_text();
    dtp_html_text(file, "<a href='x'>&\"\x01\xff\u00d7");
    expect_text(file, "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\ufffd\ufffd\u00d7");
    file = open_text();
    dtp_html_format(file, "<b title=\"%s\">%s</b> 5 %%", "\"", "<i>");
    expect_text(file, "<b title=\"&quot;\">&lt;i&gt;</b> 5 %");
}

static void test_cells(void **state)
{
    (void)state;
    FILE *file = open_text();
    dtp_html_figure_cell(file, 1234.5, "%.1f", 1234.5);
    dtp_html_figure_cell(file, NAN, "%.1f", NAN);
    expect_text(file, "<td class=\"n\" data-v=\"1234.5\">1234.5</td><td class=\"n\">\u2013</td>");
}

static void test_shell_words(void **state)
{
    (void)state;
    FILE *file = open_text();
    dtp_shell_word(file, "llama-2-7b");
    fputc(' ', file);
    dtp_shell_word(file, "a b");
    fputc(' ', file);
    dtp_shell_word(file, "it's $(x)");
    fputc(' ', file);
    dtp_shell_word(file, "");
    fputc(' ', file);
    dtp_shell_word(file, "~x");
    expect_text(file, "llama-2-7b 'a b' 'it'\\''s $(x)' '' '~x'");
}

static void expect_ticks(struct dtp_svg_axis axis, const double *ticks, size_t count)
{
    assert_int_equal(axis.tick_count, count);
    for (size_t i = 0; i < count; i++)
        assert_true(fabs(axis.ticks[i] - ticks[i]) <= 1e-9 * fabs(ticks[i]));
}

static void test_axes(void **state)
{
    (void)state;
    /* 0 to 79 in about 8 parts: steps of 10, widened to 80. */
    struct dtp_svg_axis axis = dtp_svg_axis(0, 79, 0, 8, 100, 900);
    expect_ticks(axis, (const double[]){0, 10, 20, 30, 40, 50, 60, 70, 80}, 9);
    assert_true(dtp_svg_place(&axis, 40) == 500);
    expect_ticks(dtp_svg_axis(8, 64, 2, 8, 0, 1), (const double[]){8, 16, 32, 64}, 4);
    expect_ticks(dtp_svg_axis(150, 2500, 10, 6, 0, 1), (const double[]){200, 500, 1000, 2000}, 4);
    axis = dtp_svg_axis(1, 1e12, 10, 6, 0, 12); /* 13 powers: every third */
    expect_ticks(axis, (const double[]){1, 1e3, 1e6, 1e9, 1e12}, 5);
    assert_true(fabs(dtp_svg_place(&axis, 1e6) - 6) < 1e-9);
    axis = dtp_svg_axis(5, 5, 0, 6, 0, 1); /* one value: somewhere inside */
    assert_true(dtp_svg_place(&axis, 5) > 0 && dtp_svg_place(&axis, 5) < 1);
    axis = dtp_svg_axis(0, 0, 0, 6, 0, 1);
    assert_true(isfinite(dtp_svg_place(&axis, 0)));
    char number[32];
    assert_string_equal(dtp_svg_number(1500, number, sizeof number), "1.5k");
    assert_string_equal(dtp_svg_number(999.7, number, sizeof number), "1k");
    assert_string_equal(dtp_svg_number(0, number, sizeof number), "0");
}

/* One point, a gap, a label that is markup: figures only where there are any, text only as text. */
static void test_lines(void **state)
{
    (void)state;
    struct dtp_chart_row rows[3] = {{"<b>", 0, {8, 1}}, {"<b>", 0, {16, NAN}}, {"<b>", 0, {32, 4}}};
    struct dtp_chart_data data = {.chart = DTP_CHART_SCALING,
                                  .label_column = "plan",
                                  .columns = {"x", "y"},
                                  .column_count = 2,
                                  .rows = rows,
                                  .row_count = 3,
                                  .series_count = 1};
    struct dtp_svg_lines style = {.title = "t",
                                  .x_words = "x",
                                  .y_words = "y",
                                  .y = 1,
                                  .y_divisor = 1,
                                  .x_log2 = true,
                                  .thin = -1,
                                  .level = NAN,
                                  .joined = -1};
    for (size_t count = 1; count <= 3; count += 2) {
        data.row_count = count;
        FILE *file = open_text();
        dtp_svg_lines(&data, &style, file);
        fclose(file);
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "<b>"));
        assert_non_null(strstr(text, "&lt;b&gt;"));
        free(text);
    }
}

/* Ten runs, predictions 0, 10, ..., 90 % too high: measured / predicted from 1/1.9 to 1; the tenth percentile of the
 * ratios is that of the ninetieth of the errors, 81 %. The eleventh run is on another GPU and counts only when fewer
 * are alike. */
static void test_like_runs(void **state)
{
    (void)state;
    static struct dtp_backtest_row rows[11];
    static struct dtp_job job;
    static struct dtp_faults faults;
    struct dtp_like_runs like;
    strcpy(job.cluster.gpu.key, "h100-sxm");
    job.plan.strategy = DTP_FULL_SHARD;
    for (int i = 0; i < 11; i++) {
        rows[i].run.strategy_key = i == 10 ? "zero3" : "full_shard";
        strcpy(rows[i].forecast.gpu_key, i == 10 ? "a100" : "h100-sxm");
        rows[i].error_pct = i == 10 ? -50 : 10 * i;
        for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++)
            rows[i].memory_error_pct[kind] = NAN;
    }
    rows[10].memory_error_pct[DTP_RUN_RESERVED] = -20; /* took 25 % more than predicted */
    struct dtp_backtest backtest = {.rows = rows, .row_count = 11};
    const struct dtp_backtest *const all[] = {&backtest};
    assert_int_equal(dtp_like_runs(&job, all, 1, &like, &faults), DTP_OK);
    assert_int_equal(like.likeness, DTP_LIKE_GPU_AND_FAMILY);
    assert_int_equal(like.count, 10);
    assert_true(fabs(like.low_ratio - 1 / 1.81) < 1e-9 && fabs(like.high_ratio - 1 / 1.09) < 1e-9);
    assert_true(fabs(like.median_abs_pct - 45) < 1e-9);
    assert_int_equal(like.memory_likeness, DTP_LIKE_NONE);
    assert_int_equal(like.memory_count, 1);
    assert_true(fabs(like.memory_largest_under_pct - 25) < 1e-9);
    rows[0].verdict = DTP_BACKTEST_REFUSED;
    assert_int_equal(dtp_like_runs(&job, all, 1, &like, &faults), DTP_OK);
    assert_int_equal(like.likeness, DTP_LIKE_FAMILY);
    assert_int_equal(like.count, 10);
    assert_int_equal(dtp_like_runs(&job, all, 0, &like, &faults), DTP_OK);
    assert_int_equal(like.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text), cmocka_unit_test(test_cells), cmocka_unit_test(test_shell_words),
        cmocka_unit_test(test_axes), cmocka_unit_test(test_lines), cmocka_unit_test(test_like_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
