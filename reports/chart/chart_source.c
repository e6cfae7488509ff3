#include "chart/chart_source.h"

#include "base/append.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_NAMED 8 /* of a column, in a message */

/* What a plan is told apart by first. `words` has a %s for the value; NULL: the value itself. */
static const struct {
    const char *column, *words;
} named[] = {
    {"model", NULL},
    {"strategy", NULL},
    {"gpus_count", "%s GPUs"},
    {"gpu", NULL},
    {"shard_group_gpus_count", "groups of %s"},
    {"tp_count", "tensor parallel %s"},
    {"pp_count", "pipeline parallel %s"},
    {"cp_count", "context parallel %s"},
    {"runtime", NULL},
    {"compile", NULL},
    {"precision", NULL},
    {"seq_tokens", "%s tokens"},
    {"micro_batch_sequences", "micro batch %s"},
    {"accumulate_count", "accumulate %s"},
    {"checkpointing", "checkpointing %s"},
    {"offload", "offload %s"},
    {"attention", "%s attention"},
    {"loss", "%s loss"},
    {"optimizer", NULL},
    {"machine", NULL},
    {"fidelity", NULL},
    {"schedule", NULL},
};
#define NAMED_COUNT (sizeof named / sizeof *named)

/* ---- choices ----------------------------------------------------------------------------------------------------- */

static bool is_choice(const struct dtp_chart_source *s, long column)
{
    for (size_t i = 0; i < s->choice_count; i++)
        if (s->choices[i] == column)
            return true;
    return false;
}

static void add_choice(struct dtp_chart_source *s, long column)
{
    if (column >= 0 && s->choice_count < DTP_CHART_MAX_CHOICES && !is_choice(s, column))
        s->choices[s->choice_count++] = column;
}

/* Named columns, then all between model and verdict, where tables of plans say what was planned. */
static void find_choices(struct dtp_chart_source *s)
{
    for (size_t i = 0; i < NAMED_COUNT; i++)
        add_choice(s, dtp_table_column(s->table, named[i].column));
    long verdict = dtp_table_column(s->table, "verdict");
    for (long column = dtp_table_column(s->table, "model") + 1; column > 0 && column < verdict; column++)
        add_choice(s, column);
}

/* ---- which of them tell rows apart ------------------------------------------------------------------------------- */

/* What is known of a row so far, as a hash (FNV-1a), and its text in the column looked at. */
struct known {
    uint64_t hash;
    const char *text;
};

static uint64_t add_to_hash(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u; /* "a","b" is not "ab" */
}

static int by_hash(const void *left, const void *right)
{
    const struct known *a = left, *b = right;
    return (a->hash > b->hash) - (a->hash < b->hash);
}

/* Whether two rows of which all that is known is the same differ in the column. `sorted` is room for as many rows. */
static bool tells_apart(const struct dtp_chart_source *s, const uint64_t *hashes, long column, struct known *sorted)
{
    bool constant = true;
    for (size_t i = 0; i < s->row_count; i++) {
        sorted[i] = (struct known){hashes[i], dtp_table_text(s->table, s->rows[i], column)};
        constant = constant && strcmp(sorted[i].text, sorted[0].text) == 0;
    }
    if (constant)
        return false;
    qsort(sorted, s->row_count, sizeof *sorted, by_hash);
    for (size_t i = 1; i < s->row_count; i++)
        if (sorted[i].hash == sorted[i - 1].hash && strcmp(sorted[i].text, sorted[i - 1].text) != 0)
            return true;
    return false;
}

static void learn(const struct dtp_chart_source *s, uint64_t *hashes, long column)
{
    for (size_t i = 0; i < s->row_count && column >= 0; i++)
        hashes[i] = add_to_hash(hashes[i], dtp_table_text(s->table, s->rows[i], column));
}

static bool find_varying(struct dtp_chart_source *s, long x)
{
    uint64_t *hashes = calloc(s->row_count, sizeof *hashes);
    struct known *sorted = calloc(s->row_count, sizeof *sorted);
    if (hashes && sorted) {
        learn(s, hashes, x);
        for (size_t i = 0; i < s->choice_count; i++)
            if (tells_apart(s, hashes, s->choices[i], sorted)) {
                s->varying |= (uint64_t)1 << i;
                learn(s, hashes, s->choices[i]);
            }
    }
    bool done = hashes && sorted;
    free(hashes);
    free(sorted);
    return done;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool passes(const struct dtp_table *table, size_t row, const struct dtp_chart_filter *filters, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(dtp_table_text(table, row, dtp_table_column(table, filters[i].column)), filters[i].value) != 0)
            return false;
    return true;
}

/* The values of a filter's column, of which it names none: "role has 'pipeline rank 0', ...". Where each filter's value
 * is there, no row has all of them. */
static enum dtp_status refuse_filters(const struct dtp_table *table, const struct dtp_chart_filter *filters,
                                      size_t count, struct dtp_faults *faults)
{
    const size_t rows = dtp_table_row_count(table);
    for (size_t i = 0; i < count; i++) {
        const char *values[VALUES_NAMED];
        char words[240] = "";
        size_t found = 0, row = 0;
        while (row < rows && !passes(table, row, &filters[i], 1))
            row++;
        if (row < rows)
            continue;
        for (row = 0; row < rows && found < VALUES_NAMED; row++) {
            const char *value = dtp_table_text(table, row, dtp_table_column(table, filters[i].column));
            size_t k = 0;
            while (k < found && strcmp(values[k], value) != 0)
                k++;
            if (k < found)
                continue;
            values[found++] = value;
            dtp_append_part(words, sizeof words, ", ", "'%.24s'", value);
        }
        return dtp_fault(faults, DTP_BAD_INPUT, "--where", 0, "%s has no %s '%.40s'; it has %s%s",
                         dtp_table_name(table), filters[i].column, filters[i].value, words,
                         found == VALUES_NAMED ? ", ..." : "");
    }
    return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0, "has no row that passes --where");
}

enum dtp_status dtp_chart_source_read(const struct dtp_table *table, const struct dtp_chart_filter *filters,
                                      size_t filter_count, const char *x, struct dtp_chart_source *out,
                                      struct dtp_faults *faults)
{
    size_t room = dtp_table_row_count(table);
    *out = (struct dtp_chart_source){.table = table, .rows = calloc(room ? room : 1, sizeof *out->rows)};
    if (!out->rows)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < filter_count; i++)
        if (dtp_table_column(table, filters[i].column) < 0)
            return dtp_fault(faults, DTP_BAD_INPUT, "--where", 0, "%s has no column '%s'", dtp_table_name(table),
                             filters[i].column);
    long refused = dtp_table_column(table, "refused_because");
    for (size_t row = 0; row < room; row++) {
        if (!passes(table, row, filters, filter_count))
            continue;
        if (*dtp_table_text(table, row, refused))
            out->refused++;
        else
            out->rows[out->row_count++] = row;
    }
    if (out->row_count == 0 && filter_count && room && !out->refused)
        return refuse_filters(table, filters, filter_count, faults);
    if (out->row_count == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0,
                         "has no row to draw: it is empty, or all its rows were refused");
    find_choices(out);
    if (!find_varying(out, x ? dtp_table_column(table, x) : -1))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    return DTP_OK;
}

void dtp_chart_source_destroy(struct dtp_chart_source *source)
{
    free(source->rows);
    *source = (struct dtp_chart_source){0};
}

double dtp_chart_source_value(const struct dtp_chart_source *s, size_t row, long column)
{
    const char *text = dtp_table_text(s->table, row, column);
    char *end;
    double value = strtod(text, &end);
    return end == text || *end || !isfinite(value) ? NAN : value;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

void dtp_chart_label(const char *text, char *out, size_t bytes)
{
    static const char apostrophe[] = "\u2019";
    size_t used = 0;
    while (*text) {
        size_t length = dtp_printable_bytes(text), step = length ? length : 1;
        bool quote = *text == '"' || *text == '\'';
        const char *shown = quote ? apostrophe : *text == ',' ? ";" : length ? text : " ";
        size_t shown_bytes = quote ? strlen(apostrophe) : step;
        if (used + shown_bytes >= bytes)
            break;
        memcpy(out + used, shown, shown_bytes);
        used += shown_bytes;
        text += step;
    }
    out[used] = '\0';
}

static void append_choice(const struct dtp_chart_source *s, size_t row, size_t i, char *out, size_t bytes)
{
    const char *column = dtp_table_column_name(s->table, (size_t)s->choices[i]);
    const char *value = dtp_table_text(s->table, row, s->choices[i]);
    char words[160];
    size_t k = 0;
    while (k < NAMED_COUNT && strcmp(named[k].column, column) != 0)
        k++;
    if (strcmp(column, "compile") == 0)
        snprintf(words, sizeof words, "%s", strcmp(value, "0") == 0 ? "eager" : "compiled");
    else if (strcmp(column, "gpus_count") == 0 && strcmp(value, "1") == 0)
        snprintf(words, sizeof words, "1 GPU");
    else if (k == NAMED_COUNT)
        snprintf(words, sizeof words, "%.60s %s", column, value);
    else if (named[k].words) /* from the table above, with one %s */
        snprintf(words, sizeof words, named[k].words, value);
    else
        snprintf(words, sizeof words, "%s", value);
    dtp_append_part(out, bytes, " \u00b7 ", "%s", words);
}

void dtp_chart_source_words(const struct dtp_chart_source *s, size_t row, char *out, size_t bytes)
{
    char words[512] = "";
    for (size_t i = 0; i < s->choice_count; i++)
        if (s->varying >> i & 1)
            append_choice(s, row, i, words, sizeof words);
    dtp_chart_label(words, out, bytes);
}

/* Whether one of the rows has stages, so that a schedule says something. A table of other columns is what it says. */
static bool has_stages(const struct dtp_chart_source *s)
{
    long column = dtp_table_column(s->table, "pp_count");
    for (size_t i = 0; i < s->row_count; i++)
        if (strcmp(dtp_table_text(s->table, s->rows[i], column), "1") != 0)
            return true;
    return false;
}

void dtp_chart_source_shared(const struct dtp_chart_source *s, char *out, size_t bytes)
{
    static const char *const columns[] = {"model",     "strategy",   "gpus_count", "gpu",
                                          "precision", "seq_tokens", "schedule"};
    char words[512] = "";
    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
        long column = dtp_table_column(s->table, columns[k]);
        const char *first = dtp_table_text(s->table, s->rows[0], column);
        bool same = *first != '\0' && (strcmp(columns[k], "schedule") != 0 || has_stages(s));
        size_t i = 0;
        for (size_t row = 1; row < s->row_count && same; row++)
            same = strcmp(first, dtp_table_text(s->table, s->rows[row], column)) == 0;
        while (i < s->choice_count && s->choices[i] != column)
            i++;
        if (same && i < s->choice_count)
            append_choice(s, s->rows[0], i, words, sizeof words);
    }
    dtp_chart_label(words, out, bytes);
}

void dtp_chart_source_varying(const struct dtp_chart_source *s, char *out, size_t bytes)
{
    out[0] = '\0';
    for (size_t i = 0; i < s->choice_count; i++)
        if (s->varying >> i & 1)
            dtp_append_part(out, bytes, ", ", "%s", dtp_table_column_name(s->table, (size_t)s->choices[i]));
}
