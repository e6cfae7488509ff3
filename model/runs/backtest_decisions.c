/* Whether predictions choose well: sweeps of a run table, what would have been chosen in each, what it delivered. */
#include "runs/backtest_statistics.h"

#include "base/append.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_CONFIGURATIONS 3

/* What works on one sweep needs, each with room for all rows. */
struct judge {
    struct dtp_backtest *backtest;
    struct dtp_backtest_row **rows; /* that take part in a sweep, sweep by sweep */
    size_t row_count;
    double *predicted, *measured, *work; /* `work` has room for two values a row */
    size_t *order;
};

/* ---- sweeps ---------------------------------------------------------------------------------------------------- */

void dtp_backtest_name_sweep(const struct dtp_backtest_decision *sweep, char *out, size_t bytes)
{
    snprintf(out, bytes, "%.100s %" PRIu64 " node%s %s s%" PRIu64, sweep->model, sweep->nodes, dtp_plural(sweep->nodes),
             sweep->gpu_key, sweep->sequence);
}

/* Only a run whose speed is known, or is none, can be chosen well or badly. */
static bool takes_part(const struct dtp_backtest_row *row)
{
    return row->verdict == DTP_BACKTEST_OK &&
           (row->measured_tokens_per_s_per_gpu > 0 || row->measured.end == DTP_RUN_OOM);
}

static int compare_counts(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_sweep(const void *a, const void *b)
{
    const struct dtp_backtest_row *x = *(struct dtp_backtest_row *const *)a, *y = *(struct dtp_backtest_row *const *)b;
    int order = compare_counts(x->source_group, y->source_group);
    order = order ? order : strcmp(x->run.model_name, y->run.model_name);
    order = order ? order : strcmp(x->forecast.gpu_key, y->forecast.gpu_key);
    order = order ? order : compare_counts(x->run.sequence, y->run.sequence);
    return order ? order : compare_counts(x->forecast.nodes, y->forecast.nodes);
}

/* The rows of a sweep stay in the order of their tables. */
static int by_sweep_and_row(const void *a, const void *b)
{
    const struct dtp_backtest_row *x = *(struct dtp_backtest_row *const *)a, *y = *(struct dtp_backtest_row *const *)b;
    int order = by_sweep(a, b);
    return order ? order : (x > y) - (x < y);
}

/* Which run it was, and where it was found: no part of a configuration. */
static bool names_run(int text)
{
    return text == DTP_RUN_TEXT_id || text == DTP_RUN_TEXT_source || text == DTP_RUN_TEXT_notes;
}

/* Whether two runs are one configuration, measured twice. */
static bool same_configuration(const struct dtp_run *a, const struct dtp_run *b)
{
    bool same = a->node_network_gbit_per_s == b->node_network_gbit_per_s;
#define SAME_TEXT(field, column, needed, words)                                                                        \
    same = same && (names_run(DTP_RUN_TEXT_##field) || strcmp(a->field, b->field) == 0);
    DTP_RUN_TEXT_TABLE(SAME_TEXT)
#undef SAME_TEXT
#define SAME_COUNT(field, column, needed, words) same = same && a->field == b->field;
    DTP_RUN_COUNT_TABLE(SAME_COUNT)
#undef SAME_COUNT
#define SAME_PART(field, column, words) same = same && a->field == b->field;
    DTP_RUN_PART_TABLE(SAME_PART)
#undef SAME_PART
    return same;
}

static size_t count_configurations(struct dtp_backtest_row *const *rows, size_t count)
{
    size_t different = 0;
    for (size_t i = 0; i < count; i++) {
        bool seen = rows[i]->measured_tokens_per_s_per_gpu <= 0;
        for (size_t k = 0; k < i && !seen; k++)
            seen = rows[k]->measured_tokens_per_s_per_gpu > 0 && same_configuration(&rows[i]->run, &rows[k]->run);
        different += !seen;
    }
    return different;
}

/* ---- one sweep ------------------------------------------------------------------------------------------------- */

static double predicted_rate(const struct dtp_backtest_row *row)
{
    return row->forecast.prediction.throughput.tokens_per_s_per_gpu;
}

/* Ranks from 1, the largest first; equal values share the mean of theirs. */
static void rank(const struct judge *j, const double *values, size_t count, double *ranks)
{
    gsl_sort_index(j->order, values, 1, count);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && values[j->order[end]] == values[j->order[first]]; end++)
            continue;
        for (size_t i = first; i < end; i++)
            ranks[j->order[i]] = (double)count - ((double)first + (double)end - 1) / 2;
    }
}

/* Of the runs whose speed is known. */
static void correlate(const struct judge *j, struct dtp_backtest_row **rows, size_t count,
                      struct dtp_backtest_decision *out)
{
    size_t known = 0;
    for (size_t i = 0; i < count; i++)
        if (rows[i]->measured_tokens_per_s_per_gpu > 0) {
            j->predicted[known] = predicted_rate(rows[i]);
            j->measured[known++] = rows[i]->measured_tokens_per_s_per_gpu;
        }
    out->rank_correlation = gsl_stats_spearman(j->predicted, 1, j->measured, 1, known, j->work);
    if (!isfinite(out->rank_correlation))
        out->rank_correlation = NAN;
    for (int side = 0; side < 2; side++) {
        rank(j, side ? j->measured : j->predicted, known, j->work);
        for (size_t i = 0, k = 0; i < count; i++)
            if (rows[i]->measured_tokens_per_s_per_gpu > 0)
                *(side ? &rows[i]->measured_rank : &rows[i]->predicted_rank) = j->work[k++];
    }
}

/* As a search ranks them: what fits with a margin before what is tight, then by speed; what runs out of memory never.
 */
static bool is_better(const struct dtp_backtest_row *a, const struct dtp_backtest_row *b)
{
    bool a_fits = a->forecast.prediction.memory.verdict == DTP_VERDICT_FITS;
    bool b_fits = b->forecast.prediction.memory.verdict == DTP_VERDICT_FITS;
    return a_fits != b_fits ? a_fits : predicted_rate(a) > predicted_rate(b);
}

static void choose(const struct judge *j, struct dtp_backtest_row **rows, size_t count,
                   struct dtp_backtest_decision *out)
{
    const struct dtp_backtest_row *chosen = NULL, *best = rows[0];
    double delivered = 0, equals = 0;
    for (size_t i = 0; i < count; i++) {
        const struct dtp_backtest_row *row = rows[i];
        if (row->measured_tokens_per_s_per_gpu > best->measured_tokens_per_s_per_gpu)
            best = row;
        if (row->forecast.prediction.memory.verdict != DTP_VERDICT_OOM && (!chosen || is_better(row, chosen)))
            chosen = row;
    }
    for (size_t i = 0; i < count && chosen; i++)
        if (rows[i]->forecast.prediction.memory.verdict != DTP_VERDICT_OOM && !is_better(chosen, rows[i]) &&
            !is_better(rows[i], chosen)) {
            delivered += rows[i]->measured_tokens_per_s_per_gpu;
            equals++;
        }
    out->best = (size_t)(best - j->backtest->rows);
    out->chosen = chosen ? (size_t)(chosen - j->backtest->rows) : SIZE_MAX;
    out->of_best = chosen ? delivered / equals / best->measured_tokens_per_s_per_gpu : 0;
}

static void judge_sweep(const struct judge *j, struct dtp_backtest_row **rows, size_t count)
{
    struct dtp_backtest *backtest = j->backtest;
    size_t configurations = count_configurations(rows, count);
    if (configurations < LEAST_CONFIGURATIONS)
        return;
    struct dtp_backtest_decision *out = &backtest->decisions[backtest->decision_count];
    *out = (struct dtp_backtest_decision){.source = rows[0]->source_group,
                                          .model = rows[0]->run.model_name,
                                          .gpu_key = rows[0]->forecast.gpu_key,
                                          .sequence = rows[0]->run.sequence,
                                          .nodes = rows[0]->forecast.nodes,
                                          .configurations = configurations};
    for (size_t i = 0; i < count; i++)
        rows[i]->decision = backtest->decision_count;
    backtest->decision_count++;
    correlate(j, rows, count, out);
    choose(j, rows, count, out);
}

/* ---- all of them ----------------------------------------------------------------------------------------------- */

static void sum_up(const struct judge *j)
{
    struct dtp_backtest *backtest = j->backtest;
    double *correlations = j->work;
    size_t known = 0;
    double of_best = 0, least = INFINITY;
    for (size_t i = 0; i < backtest->decision_count; i++) {
        const struct dtp_backtest_decision *d = &backtest->decisions[i];
        if (!isnan(d->rank_correlation))
            correlations[known++] = d->rank_correlation;
        of_best += d->of_best;
        least = fmin(least, d->of_best);
    }
    gsl_sort(correlations, 1, known);
    bool any = backtest->decision_count > 0;
    struct dtp_backtest_choices *choices = &backtest->choices;
    choices->median_rank_correlation = known ? gsl_stats_median_from_sorted_data(correlations, 1, known) : (double)NAN;
    choices->least_rank_correlation = known ? correlations[0] : (double)NAN;
    choices->mean_of_best = any ? of_best / (double)backtest->decision_count : (double)NAN;
    choices->least_of_best = any ? least : (double)NAN;
}

static bool make_room(struct judge *j)
{
    size_t count = j->backtest->row_count;
    j->rows = calloc(count, sizeof(struct dtp_backtest_row *));
    j->predicted = calloc(4 * count, sizeof *j->predicted);
    j->order = calloc(count, sizeof *j->order);
    j->backtest->decisions = calloc(count, sizeof *j->backtest->decisions);
    if (!j->rows || !j->predicted || !j->order || !j->backtest->decisions)
        return false;
    j->measured = j->predicted + count;
    j->work = j->measured + count;
    return true;
}

enum dtp_status dtp_backtest_judge(struct dtp_backtest *backtest, struct dtp_faults *faults)
{
    struct judge j = {.backtest = backtest};
    bool ok = make_room(&j);
    backtest->choices = (struct dtp_backtest_choices){.pairs = 0};
    for (size_t i = 0; ok && i < backtest->row_count; i++)
        if (takes_part(&backtest->rows[i]))
            j.rows[j.row_count++] = &backtest->rows[i];
    if (ok && j.row_count)
        qsort(j.rows, j.row_count, sizeof *j.rows, by_sweep_and_row);
    for (size_t first = 0, end; ok && first < j.row_count; first = end) {
        for (end = first + 1; end < j.row_count && by_sweep(&j.rows[first], &j.rows[end]) == 0; end++)
            continue;
        judge_sweep(&j, j.rows + first, end - first);
        dtp_backtest_judge_pairs(&backtest->choices, j.rows + first, end - first);
    }
    if (ok)
        sum_up(&j);
    free(j.rows);
    free(j.predicted);
    free(j.order);
    return ok ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, dtp_table_name(backtest->tables[0]), 0, "out of memory");
}
