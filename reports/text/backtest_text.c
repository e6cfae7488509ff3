/* The backtest for people: one line a source, our error beside the constant-MFU baseline's, then what was refused and
 * which rows are furthest off. */
#include "record/backtest_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME_COLUMNS 44

/* "12.3", or "-" where there is nothing. */
static const char *percent(double value, char out[static 16])
{
    if (isfinite(value))
        snprintf(out, 16, "%.1f", value);
    else
        snprintf(out, 16, "-");
    return out;
}

/* The name cut to its column, the cut marked. */
static void print_name(FILE *file, const char *name, int indent)
{
    int room = NAME_COLUMNS - indent;
    if ((int)strlen(name) > room)
        fprintf(file, "%*s%.*s...", indent, "", room - 3, name);
    else
        fprintf(file, "%*s%-*s", indent, "", room, name);
}

static void print_errors(FILE *file, size_t rows, size_t scored, const struct dtp_error_statistics *ours,
                         const struct dtp_error_statistics *baseline)
{
    char a[16], b[16], c[16], d[16], e[16], f[16];
    fprintf(file, " %5zu %6zu %7s %7s %7s %7s   %7s %7s\n", rows, scored, percent(ours->median_abs_pct, a),
            percent(ours->mean_abs_pct, b), percent(ours->max_abs_pct, c), percent(ours->median_pct, d),
            percent(baseline->median_abs_pct, e), percent(baseline->mean_abs_pct, f));
}

static void print_dtypes(FILE *file, const struct dtp_backtest *backtest, size_t source)
{
    for (size_t d = 0; d < backtest->dtype_count; d++) {
        const struct dtp_backtest_group *group = &backtest->dtypes[d];
        if (backtest->rows[group->first_row].source_group != source)
            continue;
        print_name(file, strrchr(group->name, ',') + 2, 4);
        print_errors(file, group->rows, group->scored, &group->throughput, &group->baseline);
    }
}

static void print_throughput(FILE *file, const struct dtp_backtest *backtest)
{
    char a[16], b[16];
    fprintf(file, "TOKENS PER SECOND, absolute error in %%, fidelity: %s\n", backtest->fidelity);
    if (backtest->machine)
        fprintf(file, "  %zu of %zu runs by %s, the others by the catalogue\n", backtest->by_machine, backtest->scored,
                backtest->machine);
    fprintf(file, "%-*s %5s %6s %7s %7s %7s %7s   %s\n", NAME_COLUMNS, "  source", "rows", "scored", "median", "mean",
            "max", "bias", "constant MFU median, mean");
    for (size_t i = 0; i < backtest->source_count; i++) {
        const struct dtp_backtest_group *group = &backtest->sources[i];
        print_name(file, group->name, 2);
        print_errors(file, group->rows, group->scored, &group->throughput, &group->baseline);
        print_dtypes(file, backtest, i);
    }
    print_name(file, "all rows", 2);
    print_errors(file, backtest->row_count, backtest->scored, &backtest->throughput, &backtest->baseline);
    print_name(file, "macro: mean of the sources' medians", 2);
    fprintf(file, " %5s %6s %7s %31s   %7s\n", "", "", percent(backtest->macro_median_abs_pct, a), "",
            percent(backtest->baseline_macro_median_abs_pct, b));
    fprintf(file, "  bias: median signed error, above 0 = predicted too fast\n");
}

static void print_memory(FILE *file, const struct dtp_backtest *backtest)
{
    char a[16], b[16], c[16], d[16];
    fprintf(file, "\nMEMORY, absolute error in %%\n");
    fprintf(file, "%-*s %5s %6s %7s %7s %7s %7s\n", NAME_COLUMNS, "  kind", "", "scored", "median", "mean", "max",
            "bias");
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        const struct dtp_error_statistics *errors = &backtest->memory[kind];
        if (!errors->count)
            continue;
        print_name(file, dtp_run_memory_word((enum dtp_run_memory)kind), 2);
        fprintf(file, " %5s %6zu %7s %7s %7s %7s\n", "", errors->count, percent(errors->median_abs_pct, a),
                percent(errors->mean_abs_pct, b), percent(errors->max_abs_pct, c), percent(errors->median_pct, d));
    }
    fprintf(file, "  all of these runs ran; predicted: %zu fit, %zu tight, %zu out of memory\n",
            backtest->fit_count[DTP_VERDICT_FITS], backtest->fit_count[DTP_VERDICT_TIGHT],
            backtest->fit_count[DTP_VERDICT_OOM]);
}

static void print_refusals(FILE *file, const struct dtp_backtest *backtest)
{
    if (!backtest->refused)
        return;
    fprintf(file, "\nREFUSED: %zu of %zu rows, by first reason\n", backtest->refused, backtest->row_count);
    for (size_t i = 0; i < backtest->refusal_count; i++)
        fprintf(file, "  %5zu  %s\n", backtest->refusals[i].rows, backtest->refusals[i].reason);
}

/* ---- the rows furthest off ------------------------------------------------------------------------------------- */

static int by_error(const void *a, const void *b)
{
    const struct dtp_backtest_row *x = *(const struct dtp_backtest_row *const *)a;
    const struct dtp_backtest_row *y = *(const struct dtp_backtest_row *const *)b;
    double ex = fabs(x->error_pct), ey = fabs(y->error_pct);
    if (ex != ey)
        return ex < ey ? 1 : -1;
    return x->run.line < y->run.line ? -1 : 1;
}

static void print_row(FILE *file, const struct dtp_backtest_row *row)
{
    const struct dtp_run *run = &row->run;
    char error[16], baseline[16];
    fprintf(file, "  %-14.14s %8s %8s  %9.0f %9.0f  %.24s s%llu b%llu, %llu x %s, %s %s\n", run->id,
            percent(row->error_pct, error), percent(row->baseline_error_pct, baseline),
            row->forecast.prediction.throughput.tokens_per_s_per_gpu, row->measured_tokens_per_s_per_gpu,
            run->model_name, (unsigned long long)run->sequence, (unsigned long long)run->micro_batch,
            (unsigned long long)run->gpus, row->forecast.gpu_key, run->strategy_key, run->checkpointing);
}

static void print_worst(FILE *file, const struct dtp_backtest *backtest, size_t worst)
{
    const struct dtp_backtest_row **rows = calloc(backtest->row_count, sizeof *rows);
    size_t count = 0;
    for (size_t i = 0; rows && i < backtest->row_count; i++)
        if (!isnan(backtest->rows[i].error_pct))
            rows[count++] = &backtest->rows[i];
    if (count && worst) {
        qsort(rows, count, sizeof *rows, by_error);
        fprintf(file, "\nFURTHEST OFF\n  %-14s %8s %8s  %9s %9s  %s\n", "id", "error %", "baseline", "predicted",
                "measured", "tokens/s of one GPU");
    }
    for (size_t i = 0; i < count && i < worst; i++)
        print_row(file, rows[i]);
    free(rows);
}

void dtp_backtest_write_text(FILE *file, const struct dtp_backtest *backtest, size_t worst)
{
    print_throughput(file, backtest);
    print_memory(file, backtest);
    print_refusals(file, backtest);
    print_worst(file, backtest, worst);
}
