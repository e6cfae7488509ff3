#include "chart/like_runs.h"

#include "base/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *dtp_likeness_words(enum dtp_likeness likeness)
{
    switch (likeness) {
    case DTP_LIKE_GPU_AND_FAMILY: return "on the same GPU under the same family of strategies";
    case DTP_LIKE_FAMILY: return "under the same family of strategies on any GPU (few are on this one)";
    case DTP_LIKE_NONE: return "of any kind (few are like this one)";
    }
    return "";
}

enum family { REPLICATED, OPTIMIZER_SHARDED, FULLY_SHARDED };

static enum family family_of(enum dtp_strategy strategy)
{
    switch (strategy) {
    case DTP_DDP: return REPLICATED;
    case DTP_ZERO1:
    case DTP_ZERO2: return OPTIMIZER_SHARDED;
    default: return FULLY_SHARDED;
    }
}

static bool is_alike(const struct dtp_job *job, const struct dtp_backtest_row *row, enum dtp_likeness likeness)
{
    enum dtp_strategy strategy;
    if (row->verdict != DTP_BACKTEST_OK)
        return false;
    if (likeness == DTP_LIKE_NONE)
        return true;
    bool family =
        dtp_strategy_parse(row->run.strategy_key, &strategy) && family_of(strategy) == family_of(job->plan.strategy);
    return family && (likeness == DTP_LIKE_FAMILY || strcmp(row->forecast.gpu_key, job->cluster.gpu.key) == 0);
}

/* Of what a run states, the figure nearest to the driver's. */
static double memory_error(const struct dtp_backtest_row *row)
{
    static const enum dtp_run_memory kinds[] = {DTP_RUN_DEVICE, DTP_RUN_NVIDIA_SMI, DTP_RUN_RESERVED};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (isfinite(row->memory_error_pct[kinds[i]]))
            return row->memory_error_pct[kinds[i]];
    return NAN;
}

static double throughput_error(const struct dtp_backtest_row *row)
{
    return row->error_pct;
}

/* Errors of the runs that are as alike as enough of them can be; how alike that is in *likeness. Returns their number.
 */
static size_t collect(const struct dtp_job *job, const struct dtp_backtest *const *backtests, size_t count,
                      double (*error)(const struct dtp_backtest_row *row), double *out, enum dtp_likeness *likeness)
{
    for (int level = DTP_LIKE_GPU_AND_FAMILY;; level++) {
        size_t found = 0;
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < backtests[i]->row_count; k++) {
                const struct dtp_backtest_row *row = &backtests[i]->rows[k];
                if (is_alike(job, row, (enum dtp_likeness)level) && isfinite(error(row)))
                    out[found++] = error(row);
            }
        *likeness = (enum dtp_likeness)level;
        if (found >= DTP_LIKE_RUNS_FEWEST || level == DTP_LIKE_NONE)
            return found;
    }
}

/* measured / predicted of an error = 100 * (predicted / measured - 1). */
static double ratio(double error_pct)
{
    return 1 / (1 + error_pct / 100);
}

static double median_abs(double *errors_pct, size_t count)
{
    for (size_t i = 0; i < count; i++)
        errors_pct[i] = fabs(errors_pct[i]);
    return dtp_median(errors_pct, 1, count);
}

/* Both reorder the errors. */
static void summarise_throughput(double *errors_pct, size_t count, struct dtp_like_runs *out)
{
    out->count = count;
    if (count == 0)
        return;
    out->low_ratio = ratio(dtp_quantile(errors_pct, count, 0.9)); /* upwards in the error is downwards in the ratio */
    out->high_ratio = ratio(dtp_quantile(errors_pct, count, 0.1));
    out->median_abs_pct = median_abs(errors_pct, count);
}

static void summarise_memory(double *errors_pct, size_t count, struct dtp_like_runs *out)
{
    out->memory_count = count;
    for (size_t i = 0; i < count; i++)
        out->memory_largest_under_pct = fmax(out->memory_largest_under_pct, 100 * (ratio(errors_pct[i]) - 1));
    if (count > 0)
        out->memory_median_abs_pct = median_abs(errors_pct, count);
}

enum dtp_status dtp_like_runs(const struct dtp_job *job, const struct dtp_backtest *const *backtests, size_t count,
                              struct dtp_like_runs *out, struct dtp_faults *faults)
{
    size_t rows = 1;
    *out = (struct dtp_like_runs){0};
    for (size_t i = 0; i < count; i++)
        rows += backtests[i]->row_count;
    double *errors_pct = calloc(rows, sizeof *errors_pct);
    if (!errors_pct)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    size_t found = collect(job, backtests, count, throughput_error, errors_pct, &out->likeness);
    summarise_throughput(errors_pct, found, out);
    found = collect(job, backtests, count, memory_error, errors_pct, &out->memory_likeness);
    summarise_memory(errors_pct, found, out);
    free(errors_pct);
    return DTP_OK;
}
