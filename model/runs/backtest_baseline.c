/* The predictor to beat: one constant MFU for each GPU type and matmul dtype, fitted on the rows it is scored on. */
#include "runs/backtest_statistics.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
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

static int by_gpu_and_dtype(const void *a, const void *b)
{
    const struct dtp_backtest_row *x = *(struct dtp_backtest_row *const *)a, *y = *(struct dtp_backtest_row *const *)b;
    int gpu = strcmp(x->forecast.gpu_key, y->forecast.gpu_key);
    return gpu ? gpu : (int)x->forecast.matmul_dtype - (int)y->forecast.matmul_dtype;
}

static void fit_group(struct dtp_backtest_row **rows, size_t count, double *mfu)
{
    for (size_t i = 0; i < count; i++)
        mfu[i] = measured_mfu(rows[i]);
    gsl_sort(mfu, 1, count);
    double constant = gsl_stats_median_from_sorted_data(mfu, 1, count);
    for (size_t i = 0; i < count; i++) {
        const struct dtp_backtest_forecast *f = &rows[i]->forecast;
        rows[i]->baseline_tokens_per_s_per_gpu = constant * f->peak_flops_per_s / f->full_attention_flops_per_token;
        rows[i]->baseline_error_pct = 100 * (constant / measured_mfu(rows[i]) - 1);
    }
}

enum dtp_status dtp_backtest_fit_baseline(struct dtp_backtest *backtest, struct dtp_faults *faults)
{
    struct dtp_backtest_row **rows = calloc(backtest->row_count, sizeof *rows);
    double *mfu = calloc(backtest->row_count, sizeof *mfu);
    size_t count = 0;
    for (size_t i = 0; rows && mfu && i < backtest->row_count; i++)
        if (has_throughput(&backtest->rows[i]))
            rows[count++] = &backtest->rows[i];
    if (count)
        qsort(rows, count, sizeof *rows, by_gpu_and_dtype);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && by_gpu_and_dtype(&rows[first], &rows[end]) == 0; end++)
            continue;
        fit_group(rows + first, end - first, mfu);
    }
    bool ok = rows && mfu;
    free(rows);
    free(mfu);
    if (!ok)
        return dtp_fault(faults, DTP_ENVIRONMENT, dtp_table_name(backtest->tables[0]), 0, "out of memory");
    return DTP_OK;
}
