#include "runs/backtest_statistics.h"

#include "base/append.h"
#include "base/quantile.h"

#include <ctype.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbering of names ---------------------------------------------------------------------------------------- */

struct dtp_name_index {
    struct hsearch_data table;
};

struct dtp_name_index *dtp_name_index_create(size_t most_keys)
{
    struct dtp_name_index *index = calloc(1, sizeof *index);
    if (index && !hcreate_r(most_keys + most_keys / 2 + 16, &index->table)) {
        free(index);
        return NULL;
    }
    return index;
}

void dtp_name_index_destroy(struct dtp_name_index *index)
{
    if (!index)
        return;
    hdestroy_r(&index->table);
    free(index);
}

size_t dtp_name_index_add(struct dtp_name_index *index, const char *key, size_t number)
{
    union {
        char *plain;
        const char *borrowed;
    } name = {.borrowed = key}; /* hsearch's ENTRY is not const-clean; it never writes the key */
    ENTRY *found = NULL;
    hsearch_r((ENTRY){.key = name.plain, .data = (void *)(uintptr_t)number}, ENTER, &found, &index->table);
    return found ? (size_t)(uintptr_t)found->data : number;
}

/* ---- statistics ------------------------------------------------------------------------------------------------ */

struct dtp_error_statistics dtp_error_statistics(double *errors_pct, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (!isnan(errors_pct[i]))
            errors_pct[kept++] = errors_pct[i];
    if (!kept)
        return (struct dtp_error_statistics){0, NAN, NAN, NAN, NAN};
    struct dtp_error_statistics out = {.count = kept};
    out.median_pct = dtp_median(errors_pct, 1, kept);
    for (size_t i = 0; i < kept; i++)
        errors_pct[i] = fabs(errors_pct[i]);
    out.median_abs_pct = dtp_median(errors_pct, 1, kept); /* which sorts them */
    out.mean_abs_pct = gsl_stats_mean(errors_pct, 1, kept);
    out.max_abs_pct = errors_pct[kept - 1];
    return out;
}

/* One error of a row: its throughput, its baseline's, or that of a memory figure. */
enum which_error { THROUGHPUT, BASELINE, UNSEEN_BASELINE, BESIDE_UNSEEN, MEMORY };

static double error_of(const struct dtp_backtest_row *row, enum which_error which, int kind)
{
    switch (which) {
    case THROUGHPUT: return row->error_pct;
    case BASELINE: return row->baseline_error_pct;
    case UNSEEN_BASELINE: return row->unseen_baseline_error_pct;
    case BESIDE_UNSEEN: return isnan(row->unseen_baseline_error_pct) ? NAN : row->error_pct;
    case MEMORY: break;
    }
    return row->memory_error_pct[kind];
}

/* Some rows of a backtest, by number; NULL = the first `count`. */
struct selection {
    const struct dtp_backtest *backtest;
    const size_t *rows;
    size_t count;
    double *scratch; /* one double a row */
};

static struct dtp_error_statistics select_statistics(const struct selection *s, enum which_error which, int kind)
{
    for (size_t i = 0; i < s->count; i++)
        s->scratch[i] = error_of(&s->backtest->rows[s->rows ? s->rows[i] : i], which, kind);
    return dtp_error_statistics(s->scratch, s->count);
}

static void fill_group(const struct selection *s, struct dtp_backtest_group *group)
{
    group->throughput = select_statistics(s, THROUGHPUT, 0);
    group->baseline = select_statistics(s, BASELINE, 0);
    group->unseen_baseline = select_statistics(s, UNSEEN_BASELINE, 0);
    group->beside_unseen = select_statistics(s, BESIDE_UNSEEN, 0);
    for (int kind = 0; kind < DTP_RUN_MEMORY_COUNT; kind++)
        group->memory[kind] = select_statistics(s, MEMORY, kind);
}

/* ---- groups ---------------------------------------------------------------------------------------------------- */

/* "github:owner/repo path" and "arXiv:number place" end at the space, other texts at the first ',' or '['. */
static void publication(const char *source, char *out, size_t bytes)
{
    bool located = strncmp(source, "github:", 7) == 0 || strncmp(source, "arXiv:", 6) == 0;
    size_t length = strcspn(source, located ? " " : ",[");
    while (length && source[length - 1] == ' ')
        length--;
    snprintf(out, bytes, "%.*s", (int)(length < bytes ? length : bytes - 1), source);
}

/* Writes the name of the group a row belongs to; "" = none. */
typedef void (*name_function)(const struct dtp_backtest_row *, char *, size_t);

static void name_source(const struct dtp_backtest_row *row, char *out, size_t bytes)
{
    publication(row->run.source, out, bytes);
}

/* Refused rows have no dtype and are in none of these groups. */
static void name_dtype(const struct dtp_backtest_row *row, char *out, size_t bytes)
{
    char source[128];
    *out = 0;
    if (row->verdict != DTP_BACKTEST_OK)
        return;
    publication(row->run.source, source, sizeof source);
    snprintf(out, bytes, "%s, %s", source, dtp_dtype_text(row->forecast.matmul_dtype));
}

struct grouping {
    name_function name;
    size_t member; /* offset of the row's field that holds its group */
    struct dtp_backtest_group *groups;
    size_t count;
};

static size_t *group_of(const struct grouping *grouping, struct dtp_backtest_row *row)
{
    return (size_t *)(void *)((char *)row + grouping->member);
}

/* Numbers the groups in order of appearance and counts their rows. */
static void assign_groups(struct dtp_backtest *backtest, struct dtp_name_index *index, struct grouping *grouping)
{
    for (size_t i = 0; i < backtest->row_count; i++) {
        struct dtp_backtest_group *next = &grouping->groups[grouping->count];
        grouping->name(&backtest->rows[i], next->name, sizeof next->name);
        size_t group = *next->name ? dtp_name_index_add(index, next->name, grouping->count) : SIZE_MAX;
        *group_of(grouping, &backtest->rows[i]) = group;
        if (group == SIZE_MAX)
            continue;
        if (group == grouping->count) {
            next->first_row = i;
            grouping->count++;
        }
        grouping->groups[group].rows++;
        grouping->groups[group].scored += backtest->rows[i].verdict == DTP_BACKTEST_OK;
    }
}

/* Counting sort of the row numbers by group, then the statistics of each. */
static void fill_groups(struct dtp_backtest *backtest, struct grouping *grouping, size_t *rows, double *scratch)
{
    size_t start = 0, *next = rows + backtest->row_count;
    for (size_t g = 0; g < grouping->count; start += grouping->groups[g++].rows)
        next[g] = start;
    for (size_t i = 0; i < backtest->row_count; i++) {
        size_t group = *group_of(grouping, &backtest->rows[i]);
        if (group != SIZE_MAX)
            rows[next[group]++] = i;
    }
    for (size_t g = 0; g < grouping->count; g++) {
        struct dtp_backtest_group *group = &grouping->groups[g];
        struct selection selection = {backtest, rows + next[g] - group->rows, group->rows, scratch};
        fill_group(&selection, group);
    }
}

/* Splits the rows into groups of equal names; rows without a name are left out. False: no memory. */
static bool group_rows(struct dtp_backtest *backtest, struct grouping *grouping)
{
    struct dtp_name_index *index = dtp_name_index_create(backtest->row_count);
    grouping->groups = calloc(backtest->row_count, sizeof *grouping->groups);
    bool ok = index && grouping->groups;
    if (ok)
        assign_groups(backtest, index, grouping);
    dtp_name_index_destroy(index);
    return ok;
}

static double macro_median(const struct dtp_backtest *backtest, enum which_error which)
{
    double sum = 0;
    size_t count = 0;
    for (size_t g = 0; g < backtest->source_count; g++) {
        const struct dtp_backtest_group *group = &backtest->sources[g];
        const struct dtp_error_statistics *statistics = which == BASELINE ? &group->baseline : &group->throughput;
        if (statistics->count) {
            sum += statistics->median_abs_pct;
            count++;
        }
    }
    return count ? sum / (double)count : (double)NAN;
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

static int by_rows(const void *a, const void *b)
{
    const struct dtp_backtest_refusal *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows < y->rows ? 1 : -1;
    return strcmp(x->reason, y->reason);
}

/* "takes 95 of 79 GiB" and "takes 152 of 79 GiB" become "takes N of N GiB", "'GPT-175B' is no preset" "'...' is no
 * preset"; a digit within a word stays. */
static void fold_reason(const char *reason, char *out, size_t bytes)
{
    size_t used = 0;
    while (*reason && used + 6 < bytes) {
        bool starts = !used || !(isalnum((unsigned char)out[used - 1]) || out[used - 1] == '.');
        const char *end = *reason == '\'' ? strchr(reason + 1, '\'') : NULL;
        size_t digits = starts ? strspn(reason, "0123456789.") : 0;
        if (end)
            used += (size_t)sprintf(out + used, "'...'");
        else if (digits && !isalnum((unsigned char)reason[digits]))
            out[used++] = 'N';
        else
            out[used++] = *reason;
        reason = end ? end + 1 : reason + (digits && !isalnum((unsigned char)reason[digits]) ? digits : 1);
    }
    out[used] = '\0';
}

/* Neighbours of the table that are refused alike are named by the first and the last of them. */
static void name_row(const struct dtp_backtest *backtest, struct dtp_backtest_refusal *refusal, size_t row)
{
    const char *id = backtest->rows[row].run.id;
    if (refusal->rows && refusal->last + 1 == row) {
        char *to = strrchr(refusal->ids, ' ');
        if (refusal->first < refusal->last && to) /* the end of that run, named anew */
            to[1] = '\0', dtp_append(refusal->ids, sizeof refusal->ids, "%s", id);
        else
            dtp_append(refusal->ids, sizeof refusal->ids, " to %s", id);
    } else {
        dtp_append_part(refusal->ids, sizeof refusal->ids, ", ", "%s", id);
        refusal->first = row;
    }
    refusal->last = row;
}

static bool count_refusals(struct dtp_backtest *backtest)
{
    struct dtp_name_index *index = dtp_name_index_create(backtest->row_count);
    backtest->refusals = calloc(backtest->row_count, sizeof *backtest->refusals);
    bool ok = index && backtest->refusals;
    for (size_t i = 0; ok && i < backtest->row_count; i++) {
        const struct dtp_backtest_row *row = &backtest->rows[i];
        if (row->verdict != DTP_BACKTEST_REFUSED)
            continue;
        struct dtp_backtest_refusal *next = &backtest->refusals[backtest->refusal_count];
        fold_reason(row->first_reason, next->reason, sizeof next->reason);
        size_t number = dtp_name_index_add(index, next->reason, backtest->refusal_count);
        if (number == backtest->refusal_count) {
            next->same = row->first_reason;
            backtest->refusal_count++;
        }
        struct dtp_backtest_refusal *refusal = &backtest->refusals[number];
        refusal->same = refusal->same && strcmp(refusal->same, row->first_reason) == 0 ? refusal->same : NULL;
        name_row(backtest, refusal, i);
        refusal->rows++;
    }
    dtp_name_index_destroy(index); /* which borrows their texts until here */
    for (size_t i = 0; i < backtest->refusal_count; i++)
        if (backtest->refusals[i].same)
            snprintf(backtest->refusals[i].reason, sizeof backtest->refusals[i].reason, "%s",
                     backtest->refusals[i].same);
    if (ok)
        qsort(backtest->refusals, backtest->refusal_count, sizeof *backtest->refusals, by_rows);
    return ok;
}

/* ---- summary --------------------------------------------------------------------------------------------------- */

/* A source whose scored rows are all of one dtype needs no line for that dtype. */
static void drop_single_dtypes(struct dtp_backtest *backtest)
{
    size_t kept = 0;
    for (size_t d = 0; d < backtest->dtype_count; d++) {
        const struct dtp_backtest_group *group = &backtest->dtypes[d];
        if (group->scored < backtest->sources[backtest->rows[group->first_row].source_group].scored)
            backtest->dtypes[kept++] = *group;
    }
    backtest->dtype_count = kept;
}

/* The baselines go by source, and stand in the statistics. */
static bool fill_all_groups(struct dtp_backtest *backtest, double *scratch)
{
    struct grouping sources = {.name = name_source, .member = offsetof(struct dtp_backtest_row, source_group)};
    struct grouping dtypes = {.name = name_dtype, .member = offsetof(struct dtp_backtest_row, dtype_group)};
    size_t *numbers = calloc(2 * backtest->row_count, sizeof *numbers);
    bool ok = numbers && group_rows(backtest, &sources) && group_rows(backtest, &dtypes) &&
              dtp_backtest_fit_baseline(backtest);
    if (ok) {
        fill_groups(backtest, &sources, numbers, scratch);
        fill_groups(backtest, &dtypes, numbers, scratch);
    }
    free(numbers);
    backtest->sources = sources.groups;
    backtest->source_count = sources.count;
    backtest->dtypes = dtypes.groups;
    backtest->dtype_count = dtypes.count;
    return ok;
}

enum dtp_status dtp_backtest_summarise(struct dtp_backtest *backtest, struct dtp_faults *faults)
{
    double *scratch = calloc(backtest->row_count, sizeof *scratch);
    bool ok = scratch && fill_all_groups(backtest, scratch) && count_refusals(backtest);
    if (ok) {
        struct selection all = {backtest, NULL, backtest->row_count, scratch};
        struct dtp_backtest_group total = {0};
        fill_group(&all, &total);
        backtest->throughput = total.throughput;
        backtest->baseline = total.baseline;
        backtest->unseen_baseline = total.unseen_baseline;
        memcpy(backtest->memory, total.memory, sizeof backtest->memory);
        backtest->macro_median_abs_pct = macro_median(backtest, THROUGHPUT);
        backtest->baseline_macro_median_abs_pct = macro_median(backtest, BASELINE);
        drop_single_dtypes(backtest);
    }
    free(scratch);
    if (!ok)
        return dtp_fault(faults, DTP_ENVIRONMENT, dtp_table_name(backtest->tables[0]), 0, "out of memory");
    return DTP_OK;
}
