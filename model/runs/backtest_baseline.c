/* The predictor to beat: one constant MFU for each GPU type and peak rate of its dtype, fitted on the rows it is scored
 * on; and, for each source, fitted on the rows of all others, as a prediction of runs that nobody has seen must be. */
#include "runs/backtest_statistics.h"

#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_throughput(const struct dtp_backtest_row *row)
{
    return row->verdict == DTP_BACKTEST_OK && !isnan(row->error_pct) && row->forecast.peak_flops_per_s > 0;
}

static double measured_mfu(const struct dtp_backtest_row *row)
{
    const struct dtp_backtest_forecast *f = &row->forecast;
    return row->measured_tokens_per_s_per_gpu * f->full_attention_flops_per_token / f->peak_flops_per_s;
}

/* An MFU is of a peak: bf16 and fp16 of a GPU have one, fp8 another. */
static int by_rate(const void *a, const void *b)
{
    const struct dtp_backtest_row *x = *(struct dtp_backtest_row *const *)a, *y = *(struct dtp_backtest_row *const *)b;
    int gpu = strcmp(x->forecast.gpu_key, y->forecast.gpu_key);
    double a_peak = x->forecast.peak_flops_per_s, b_peak = y->forecast.peak_flops_per_s;
    return gpu ? gpu : (a_peak > b_peak) - (a_peak < b_peak);
}

/* Rows of a source stand together. */
static int by_rate_and_source(const void *a, const void *b)
{
    const struct dtp_backtest_row *x = *(struct dtp_backtest_row *const *)a, *y = *(struct dtp_backtest_row *const *)b;
    int order = by_rate(a, b);
    return order ? order : (x->source_group > y->source_group) - (x->source_group < y->source_group);
}

static double median_mfu(struct dtp_backtest_row *const *rows, size_t count, size_t without, double *mfu)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (rows[i]->source_group != without)
            mfu[kept++] = measured_mfu(rows[i]);
    return kept ? dtp_median(mfu, 1, kept) : (double)NAN;
}

/* Rows of one GPU and peak: by the constant of all of them, and for each source by that of the others. */
static void fit_group(struct dtp_backtest_row **rows, size_t count, double *mfu)
{
    double constant = median_mfu(rows, count, SIZE_MAX, mfu), unseen = NAN;
    for (size_t i = 0; i < count; i++) {
        const struct dtp_backtest_forecast *f = &rows[i]->forecast;
        if (i == 0 || rows[i]->source_group != rows[i - 1]->source_group)
            unseen = median_mfu(rows, count, rows[i]->source_group, mfu);
        rows[i]->baseline_tokens_per_s_per_gpu = constant * f->peak_flops_per_s / f->full_attention_flops_per_token;
        rows[i]->baseline_error_pct = 100 * (constant / measured_mfu(rows[i]) - 1);
        rows[i]->unseen_baseline_error_pct = 100 * (unseen / measured_mfu(rows[i]) - 1);
    }
}

bool dtp_backtest_fit_baseline(struct dtp_backtest *backtest)
{
    struct dtp_backtest_row **rows = calloc(backtest->row_count, sizeof *rows);
    double *mfu = calloc(backtest->row_count, sizeof *mfu);
    size_t count = 0;
    for (size_t i = 0; rows && mfu && i < backtest->row_count; i++)
        if (has_throughput(&backtest->rows[i]))
            rows[count++] = &backtest->rows[i];
    if (count)
        qsort(rows, count, sizeof *rows, by_rate_and_source);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && by_rate(&rows[first], &rows[end]) == 0; end++)
            continue;
        fit_group(rows + first, end - first, mfu);
    }
    bool ok = rows && mfu;
    free(rows);
    free(mfu);
    return ok;
}
