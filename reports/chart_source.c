#include "chart_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a plan is told apart by. `words` has a %s for the value; NULL: the value itself. */
static const struct {
    const char *column, *words;
} configuration[] = {
    {"model", NULL},
    {"strategy", NULL},
    {"gpus_count", "%s GPUs"},
    {"gpu", NULL},
    {"machine", NULL},
    {"shard_group_count", "groups of %s"},
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
    {"fidelity", NULL},
};
#define CONFIGURATION_COUNT (sizeof configuration / sizeof *configuration)

static long configuration_column(const struct dtp_chart_source *s, size_t i)
{
    return dtp_table_column(s->table, configuration[i].column);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool passes(const struct dtp_table *table, size_t row, const struct dtp_chart_filter *filters, size_t count)
{
    if (*dtp_table_text(table, row, dtp_table_column(table, "refused_because")))
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(dtp_table_text(table, row, dtp_table_column(table, filters[i].column)), filters[i].value) != 0)
            return false;
    return true;
}

static void find_varying(struct dtp_chart_source *s)
{
    for (size_t i = 0; i < CONFIGURATION_COUNT; i++) {
        long column = configuration_column(s, i);
        const char *first = s->row_count ? dtp_table_text(s->table, s->rows[0], column) : "";
        for (size_t k = 1; k < s->row_count && column >= 0; k++)
            if (strcmp(first, dtp_table_text(s->table, s->rows[k], column)) != 0) {
                s->varying |= 1u << i;
                break;
            }
    }
}

enum dtp_status dtp_chart_source_read(const struct dtp_table *table, const struct dtp_chart_filter *filters,
                                      size_t filter_count, struct dtp_chart_source *out, struct dtp_faults *faults)
{
    size_t room = dtp_table_row_count(table);
    *out = (struct dtp_chart_source){.table = table, .rows = calloc(room ? room : 1, sizeof *out->rows)};
    if (!out->rows)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < filter_count; i++)
        if (dtp_table_column(table, filters[i].column) < 0)
            return dtp_fault(faults, DTP_BAD_INPUT, "--where", 0, "%s has no column '%s'", dtp_table_name(table),
                             filters[i].column);
    for (size_t row = 0; row < room; row++)
        if (passes(table, row, filters, filter_count))
            out->rows[out->row_count++] = row;
    if (out->row_count == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0,
                         filter_count ? "has no row that passes --where"
                                      : "has no row to draw: it is empty, or all its rows were refused");
    find_varying(out);
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

static void append(char *out, size_t bytes, const char *separator, const char *text)
{
    size_t used = strlen(out);
    snprintf(out + used, bytes - used, "%s%s", used ? separator : "", text);
}

static void append_choice(const struct dtp_chart_source *s, size_t row, size_t i, char *out, size_t bytes)
{
    const char *value = dtp_table_text(s->table, row, configuration_column(s, i));
    char words[160];
    if (strcmp(configuration[i].column, "compile") == 0)
        value = strcmp(value, "0") == 0 ? "eager" : "compiled";
    if (strcmp(configuration[i].column, "gpus_count") == 0 && strcmp(value, "1") == 0)
        snprintf(words, sizeof words, "1 GPU");
    else if (configuration[i].words) /* from the table above, with one %s */
        snprintf(words, sizeof words, configuration[i].words, value);
    else
        snprintf(words, sizeof words, "%s", value);
    append(out, bytes, " \u00b7 ", words);
}

static bool is_but(size_t i, const char *but)
{
    return but && strcmp(configuration[i].column, but) == 0;
}

void dtp_chart_source_words(const struct dtp_chart_source *s, size_t row, const char *but, char *out, size_t bytes)
{
    char words[512] = "";
    for (size_t i = 0; i < CONFIGURATION_COUNT; i++)
        if ((s->varying >> i & 1) && !is_but(i, but))
            append_choice(s, row, i, words, sizeof words);
    dtp_chart_label(words, out, bytes);
}

void dtp_chart_source_shared(const struct dtp_chart_source *s, char *out, size_t bytes)
{
    char words[512] = "";
    for (size_t i = 0; i < CONFIGURATION_COUNT; i++) {
        const char *value = dtp_table_text(s->table, s->rows[0], configuration_column(s, i));
        static const char *const unsaid[] = {"", "none", "0", "1", "closed"}; /* what goes without saying */
        bool said = true;
        for (size_t k = 0; k < sizeof unsaid / sizeof *unsaid; k++)
            said = said && strcmp(value, unsaid[k]) != 0;
        if (said && !(s->varying >> i & 1))
            append_choice(s, s->rows[0], i, words, sizeof words);
    }
    dtp_chart_label(words, out, bytes);
}

void dtp_chart_source_varying(const struct dtp_chart_source *s, const char *but, char *out, size_t bytes)
{
    out[0] = '\0';
    for (size_t i = 0; i < CONFIGURATION_COUNT; i++)
        if ((s->varying >> i & 1) && !is_but(i, but))
            append(out, bytes, ", ", configuration[i].column);
}
