/* The backtest for people: one line a source, our error beside the constant-MFU baseline's, then what was refused and
 * which rows are furthest off. */
#include "record/backtest_report.h"

#include "base/append.h"
#include "page/grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A cell "12.3", or "-" where there is nothing. */
static void percent_cell(struct dtp_grid *grid, double value)
{
    dtp_grid_cell_if(grid, isfinite(value), "%.1f", value);
}

static void error_cells(struct dtp_grid *grid, const struct dtp_error_statistics *errors)
{
    percent_cell(grid, errors->median_abs_pct);
    percent_cell(grid, errors->mean_abs_pct);
    percent_cell(grid, errors->max_abs_pct);
    percent_cell(grid, errors->median_pct);
}

static void throughput_row(struct dtp_grid *grid, const char *indent, const char *name, size_t rows, size_t scored,
                           const struct dtp_error_statistics *ours, const struct dtp_error_statistics *baseline,
                           const struct dtp_error_statistics *unseen)
{
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s%s", indent, name);
    if (rows)
        dtp_grid_cell(grid, "%zu of %zu", scored, rows);
    else
        dtp_grid_cell(grid, "%zu", scored);
    error_cells(grid, ours);
    percent_cell(grid, baseline->median_abs_pct);
    percent_cell(grid, baseline->mean_abs_pct);
    percent_cell(grid, unseen->median_abs_pct);
}

/* Which dtype a refused run would have had nobody knows: these are counted among the scored. */
static void dtype_rows(struct dtp_grid *grid, const struct dtp_backtest *backtest, size_t source)
{
    for (size_t d = 0; d < backtest->dtype_count; d++) {
        const struct dtp_backtest_group *group = &backtest->dtypes[d];
        if (backtest->rows[group->first_row].source_group == source)
            throughput_row(grid, "  ", strrchr(group->name, ',') + 2, 0, group->scored, &group->throughput,
                           &group->baseline, &group->unseen_baseline);
    }
}

static void macro_row(struct dtp_grid *grid, const struct dtp_backtest *backtest)
{
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "macro: mean of the sources' medians");
    for (int i = 0; i < 8; i++)
        if (i == 1)
            percent_cell(grid, backtest->macro_median_abs_pct);
        else if (i == 5)
            percent_cell(grid, backtest->baseline_macro_median_abs_pct);
        else
            dtp_grid_cell(grid, "%s", "");
}

#define RUNS_THAT_TELL 8

/* The sources whose runs a constant MFU that has not seen them predicts better: a predictor must not be among them. Of
 * GPUs that nobody else measured a constant has nothing to say: judged are the runs that both predict, counted. */
static void print_beaten(const struct dtp_backtest *backtest, const struct dtp_page *page)
{
    size_t judged = 0, beaten = 0;
    char names[1024] = "";
    for (size_t i = 0; i < backtest->source_count; i++) {
        const struct dtp_backtest_group *group = &backtest->sources[i];
        bool tells = group->throughput.count >= RUNS_THAT_TELL && group->beside_unseen.count > 0;
        judged += tells;
        if (!tells || group->beside_unseen.median_abs_pct <= group->unseen_baseline.median_abs_pct)
            continue;
        beaten++;
        dtp_append_part(names, sizeof names, ", ", "%s (%zu of %zu runs: %.1f %%, the constant %.1f)", group->name,
                        group->beside_unseen.count, group->throughput.count, group->beside_unseen.median_abs_pct,
                        group->unseen_baseline.median_abs_pct);
    }
    if (!judged)
        return;
    fprintf(page->file, "  worse than an unseen constant MFU: %zu of %zu sources of %d runs or more\n", beaten, judged,
            RUNS_THAT_TELL);
    if (beaten)
        dtp_page_say(page, 4, 4, "%s", names);
}

static void print_throughput(const struct dtp_backtest *backtest, const struct dtp_page *page)
{
    static const char *const names[2][9] = {
        {"", "", "", "", "", "", "const.", "MFU", "unseen"},
        {"source", "scored", "median", "mean", "max", "bias", "median", "mean", "median"}};
    struct dtp_grid grid;
    if (!backtest->scored) {
        dtp_page_print(page, DTP_INK_BOLD, "NO RUN is scored, of %zu row%s\n", backtest->row_count,
                       dtp_plural(backtest->row_count));
        return;
    }
    if (!backtest->throughput.count) {
        dtp_page_print(page, DTP_INK_BOLD, "TOKENS PER SECOND, fidelity: %s\n", dtp_predictor_flag(backtest->fidelity));
        dtp_page_say(page, 2, 2, "measured of none of the %zu runs that are scored, of %zu", backtest->scored,
                     backtest->row_count);
        return;
    }
    dtp_page_print(page, DTP_INK_BOLD, "TOKENS PER SECOND, absolute error in %%, fidelity: %s\n",
                   dtp_predictor_flag(backtest->fidelity));
    if (backtest->machine)
        fprintf(page->file, "  %zu of %zu runs by %s, the others by the catalogue\n", backtest->by_machine,
                backtest->scored, backtest->machine);
    dtp_grid_create(&grid, "lrrrrrrrr");
    for (int line = 0; line < 2; line++)
        dtp_grid_texts(&grid, DTP_INK_BOLD, names[line], sizeof names[line] / sizeof *names[line]);
    for (size_t i = 0; i < backtest->source_count; i++) {
        const struct dtp_backtest_group *group = &backtest->sources[i];
        throughput_row(&grid, "", group->name, group->rows, group->scored, &group->throughput, &group->baseline,
                       &group->unseen_baseline);
        dtype_rows(&grid, backtest, i);
    }
    throughput_row(&grid, "", "all rows", backtest->row_count, backtest->scored, &backtest->throughput,
                   &backtest->baseline, &backtest->unseen_baseline);
    macro_row(&grid, backtest);
    dtp_grid_end(&grid, page, 2);
    dtp_page_say(page, 2, 2,
                 "bias: median signed error, above 0 = predicted too fast; const. MFU: the simplest predictor, fitted "
                 "to these runs; unseen: fitted without those of the source");
    print_beaten(backtest, page);
}

static void verdict_row(struct dtp_grid *grid, const char *words, const size_t *count, size_t wrong)
{
    size_t all = count[DTP_VERDICT_FITS] + count[DTP_VERDICT_TIGHT] + count[DTP_VERDICT_OOM];
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", words);
    for (int verdict = DTP_VERDICT_FITS; verdict <= DTP_VERDICT_OOM; verdict++)
        dtp_grid_cell(grid, "%zu", count[verdict]);
    percent_cell(grid, all ? 100 * (double)wrong / (double)all : (double)NAN);
}

/* What was said of memory against how the runs ended; a false alarm is as wrong as a miss. */
static void print_verdicts(const struct dtp_backtest *backtest, const struct dtp_page *page)
{
    static const char *const names[] = {"predicted:", "fits", "tight", "out of memory", "wrong %"};
    const size_t *ran = backtest->fit_count[DTP_RUN_RAN], *oom = backtest->fit_count[DTP_RUN_OOM],
                 *failed = backtest->fit_count[DTP_RUN_FAILED];
    size_t others = failed[DTP_VERDICT_FITS] + failed[DTP_VERDICT_TIGHT] + failed[DTP_VERDICT_OOM];
    struct dtp_grid grid;
    dtp_page_heading(page, "MEMORY VERDICTS", "of runs by how they ended");
    dtp_grid_create(&grid, "lrrrr");
    dtp_grid_texts(&grid, DTP_INK_BOLD, names, sizeof names / sizeof *names);
    verdict_row(&grid, "ran", ran, ran[DTP_VERDICT_OOM]);
    verdict_row(&grid, "died out of memory", oom, oom[DTP_VERDICT_FITS] + oom[DTP_VERDICT_TIGHT]);
    dtp_grid_end(&grid, page, 2);
    if (others)
        fprintf(page->file, "  %zu ended otherwise, which says nothing of memory\n", others);
}

static void print_memory(const struct dtp_backtest *backtest, const struct dtp_page *page)
{
    static const char *const names[] = {"kind", "scored", "median", "mean", "max", "bias"};
    struct dtp_grid grid;
    dtp_page_heading(page, "MEMORY, absolute error in %", "");
    dtp_grid_create(&grid, "lrrrrr");
    dtp_grid_texts(&grid, DTP_INK_BOLD, names, sizeof names / sizeof *names);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++) {
        const struct dtp_error_statistics *errors = &backtest->memory[kind];
        if (!errors->count)
            continue;
        dtp_grid_row(&grid, DTP_INK_PLAIN);
        dtp_grid_cell(&grid, "%s", dtp_run_memory_word((enum dtp_run_memory)kind));
        dtp_grid_cell(&grid, "%zu", errors->count);
        error_cells(&grid, errors);
    }
    dtp_grid_end(&grid, page, 2);
    if (backtest->memory[DTP_RUN_STAGES].count)
        dtp_page_say(page, 2, 2, "stages: allocated of every rank, of each run the one that is furthest off");
    print_verdicts(backtest, page);
}

/* ---- decisions -------------------------------------------------------------------------------------------------- */

static int by_loss(const void *a, const void *b)
{
    const struct dtp_backtest_decision *x = *(const struct dtp_backtest_decision *const *)a;
    const struct dtp_backtest_decision *y = *(const struct dtp_backtest_decision *const *)b;
    if (x->of_best != y->of_best)
        return x->of_best < y->of_best ? -1 : 1;
    return (x > y) - (x < y);
}

static void add_decision(struct dtp_grid *grid, const struct dtp_backtest *backtest,
                         const struct dtp_backtest_decision *d)
{
    char name[256];
    dtp_backtest_name_sweep(d, name, sizeof name);
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%s", name);
    dtp_grid_cell(grid, "%zu", d->configurations);
    dtp_grid_cell_if(grid, isfinite(d->rank_correlation), "%.2f", d->rank_correlation);
    dtp_grid_cell_if(grid, isfinite(d->of_best), "%.2f", d->of_best);
    dtp_grid_cell(grid, "%.24s", d->chosen == SIZE_MAX ? "none: nothing fits" : backtest->rows[d->chosen].run.id);
    dtp_grid_cell(grid, "%.24s", backtest->rows[d->best].run.id);
}

static void print_sweeps(const struct dtp_backtest *backtest, const struct dtp_backtest_decision *const *sorted,
                         size_t shown, const struct dtp_page *page)
{
    static const char *const names[2][6] = {{"", "configu-", "rank", "of the", "", "measured"},
                                            {"sweep", "rations", "corr.", "best", "chosen", "best"}};
    struct dtp_grid grid;
    dtp_grid_create(&grid, "lrrrll");
    for (int line = 0; line < 2; line++)
        dtp_grid_texts(&grid, DTP_INK_BOLD, names[line], sizeof names[line] / sizeof *names[line]);
    for (size_t i = 0; i < shown; i++)
        add_decision(&grid, backtest, sorted[i]);
    dtp_grid_end(&grid, page, 2);
}

/* The sweeps in which choosing by prediction costs most. */
static void print_decisions(const struct dtp_backtest *backtest, size_t worst, const struct dtp_page *page)
{
    const struct dtp_backtest_choices *choices = &backtest->choices;
    const struct dtp_backtest_decision **sorted = calloc(backtest->decision_count + 1, sizeof *sorted);
    size_t count = backtest->decision_count, shown = count < worst ? count : worst;
    for (size_t i = 0; sorted && i < count; i++)
        sorted[i] = &backtest->decisions[i];
    if (!sorted || !count) {
        free(sorted);
        return;
    }
    qsort(sorted, count, sizeof *sorted, by_loss);
    dtp_page_heading(page, "DECISIONS", "what is predicted fastest, of what was fastest; %zu sweeps, the worst first",
                     count);
    print_sweeps(backtest, sorted, shown, page);
    free(sorted);
    fprintf(page->file, "  of the best: %.2f on average, %.2f at worst", choices->mean_of_best, choices->least_of_best);
    if (isfinite(choices->median_rank_correlation))
        fprintf(page->file, "; rank correlation: median %.2f, least %.2f", choices->median_rank_correlation,
                choices->least_rank_correlation);
    fputc('\n', page->file);
}

/* Runs of a sweep, of three configurations or not. */
static void print_pairs(const struct dtp_backtest *backtest, const struct dtp_page *page)
{
    const struct dtp_backtest_choices *c = &backtest->choices;
    if (!c->pairs)
        return;
    fprintf(
        page->file,
        "  pairs of runs that differ in one setting, and by 2 %% or more in speed: %zu of %zu ordered right, %.1f %%; "
        "%zu predicted alike\n",
        c->pairs_right, c->pairs, 100 * (double)c->pairs_right / (double)c->pairs, c->pairs_alike);
}

static void print_refusals(const struct dtp_backtest *backtest, const struct dtp_page *page)
{
    if (!backtest->refused)
        return;
    size_t complete = backtest->row_count - backtest->unstated;
    dtp_page_heading(page, "REFUSED:", "%zu of %zu row%s, by first reason", backtest->refused, backtest->row_count,
                     dtp_plural(backtest->row_count));
    for (size_t i = 0; i < backtest->refusal_count; i++) {
        const struct dtp_backtest_refusal *refusal = &backtest->refusals[i];
        fprintf(page->file, "  %5zu  ", refusal->rows);
        dtp_page_wrap(page, 9, 9, refusal->reason);
        dtp_page_say(page, 11, 11, "%s", refusal->ids);
    }
    dtp_page_say(page, 2, 2,
                 "rows that do not state all that a job needs: %zu; of %zu complete ones %zu are scored, %.1f %%",
                 backtest->unstated, complete, backtest->scored,
                 complete ? 100 * (double)backtest->scored / (double)complete : 0);
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

static void add_row(struct dtp_grid *grid, const struct dtp_backtest_row *row)
{
    const struct dtp_run *run = &row->run;
    dtp_grid_row(grid, DTP_INK_PLAIN);
    dtp_grid_cell(grid, "%.14s", run->id);
    percent_cell(grid, row->error_pct);
    percent_cell(grid, row->baseline_error_pct);
    dtp_grid_cell(grid, "%.0f", row->forecast.prediction.throughput.tokens_per_s_per_gpu);
    dtp_grid_cell(grid, "%.0f", row->measured_tokens_per_s_per_gpu);
    dtp_grid_cell(grid, "%.24s s%llu b%llu, %llu x %s, %s %s", run->model_name, (unsigned long long)run->sequence,
                  (unsigned long long)run->micro_batch, (unsigned long long)run->gpus, row->forecast.gpu_key,
                  run->strategy_key, run->checkpointing);
}

static void print_worst(const struct dtp_backtest *backtest, size_t worst, const struct dtp_page *page)
{
    static const char *const names[] = {"id", "error %", "baseline", "predicted", "measured", ""};
    const struct dtp_backtest_row **rows = calloc(backtest->row_count, sizeof *rows);
    struct dtp_grid grid;
    size_t count = 0;
    for (size_t i = 0; rows && i < backtest->row_count; i++)
        if (!isnan(backtest->rows[i].error_pct))
            rows[count++] = &backtest->rows[i];
    if (count && worst) {
        qsort(rows, count, sizeof *rows, by_error);
        dtp_page_heading(page, "FURTHEST OFF", "predicted and measured: tokens/s of one GPU");
        dtp_grid_create(&grid, "lrrrrl");
        dtp_grid_texts(&grid, DTP_INK_BOLD, names, sizeof names / sizeof *names);
        for (size_t i = 0; i < count && i < worst; i++)
            add_row(&grid, rows[i]);
        dtp_grid_end(&grid, page, 2);
    }
    free(rows);
}

void dtp_backtest_write_text(const struct dtp_backtest *backtest, size_t worst, const struct dtp_page *page)
{
    print_throughput(backtest, page);
    if (backtest->scored)
        print_memory(backtest, page);
    print_decisions(backtest, worst, page);
    print_pairs(backtest, page);
    print_refusals(backtest, page);
    print_worst(backtest, worst, page);
}
