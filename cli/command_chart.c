/* dtplan chart KIND FILE.csv [-o FIGURE] [--where COLUMN=VALUE ...] */
#include "cli/command.h"

#include "base/append.h"
#include "chart/chart_data.h"
#include "chart/chart_text.h"
#include "page/output_own.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static enum dtp_status unknown_kind(const char *word, struct dtp_faults *faults)
{
    char kinds[200] = "";
    for (int i = 0; i < DTP_CHART_COUNT; i++)
        dtp_append_part(kinds, sizeof kinds, ", ", "%s", dtp_chart_name((enum dtp_chart)i));
    return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "chart: there is no chart '%s'; the charts are %s", word, kinds);
}

/* Splits each COLUMN=VALUE; texts are copied into one block that `out` lies before. Caller frees *out. */
static enum dtp_status read_filters(const struct dtp_arguments *a, struct dtp_chart_filter **out,
                                    struct dtp_faults *faults)
{
    size_t bytes = (a->where_count + 1) * sizeof **out;
    for (size_t i = 0; i < a->where_count; i++)
        bytes += strlen(a->wheres[i]) + 1;
    *out = malloc(bytes);
    if (!*out)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    char *text = (char *)(*out + a->where_count + 1);
    for (size_t i = 0; i < a->where_count; i++) {
        strcpy(text, a->wheres[i]);
        char *equals = strchr(text, '=');
        if (!equals || equals == text)
            return dtp_fault(faults, DTP_BAD_INPUT, "--where", 0, "'%s' is not COLUMN=VALUE", a->wheres[i]);
        *equals = '\0';
        (*out)[i] = (struct dtp_chart_filter){text, equals + 1};
        text += strlen(a->wheres[i]) + 1;
    }
    return DTP_OK;
}

/* "Memory at the peak", below it what all rows share. */
static void make_title(enum dtp_chart chart, const struct dtp_chart_data *data, char *out, size_t bytes)
{
    const char *words = dtp_chart_words(chart);
    bool shares = data && data->shared[0];
    snprintf(out, bytes, "%c%.*s%s%s", toupper((unsigned char)words[0]), (int)strcspn(words + 1, ","), words + 1,
             shares ? "\n" : "", shares ? data->shared : "");
}

static bool is_text(const char *figure)
{
    size_t length = figure ? strlen(figure) : 0;
    return !figure || (length > 4 && strcmp(figure + length - 4, ".txt") == 0);
}

/* Areas as text: on the terminal, or into a file. */
static enum dtp_status draw_text(const struct dtp_context *context, const struct dtp_chart_figure *figure,
                                 const struct dtp_table *table)
{
    struct dtp_page page = context->page;
    char *text = NULL;
    size_t bytes = 0;
    if (!figure->figure)
        return dtp_chart_text(figure->chart, figure->title, figure->data, table, &page, context->faults);
    page.file = open_memstream(&text, &bytes);
    page.colour = false;
    if (!page.file)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_chart_text(figure->chart, figure->title, figure->data, table, &page, context->faults);
    if (fclose(page.file) != 0 && status == DTP_OK)
        status = dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = dtp_output_write_sealed(figure->figure, DTP_OUTPUT_FIGURE, text, bytes, context->faults);
    free(text);
    if (status == DTP_OK)
        fprintf(context->page.file, "%s: written\n", figure->figure);
    return status;
}

/* What was done, and the command that does it again: on a line of its own where the page has no room for both. */
static void say(const char *said, const struct dtp_page *page)
{
    const char *again = strstr(said, "again: ");
    if (!again || dtp_page_width(said) <= dtp_page_columns(page)) {
        fprintf(page->file, "%s\n", said);
        return;
    }
    fprintf(page->file, "%.*s\n    ", (int)(again + strlen("again:") - said), said);
    dtp_page_wrap_command(page, 4, 6, again + strlen("again: "));
}

static enum dtp_status draw(const struct dtp_context *context, const struct dtp_chart_figure *figure)
{
    char said[DTP_FAULT_TEXT_BYTES];
    bool drawn = true;
    if (figure->figure) {
        enum dtp_status status = dtp_chart_draw(figure, said, sizeof said, context->faults);
        if (status == DTP_OK)
            say(said, &context->page);
        return status;
    }
    enum dtp_status status =
        dtp_chart_print(figure, dtp_page_columns(&context->page), context->out, &drawn, context->faults);
    if (status == DTP_OK && !drawn)
        fputs("there is no gnuplot here; install it (Debian: gnuplot-nox), or have the script and its data written: "
              "-o FIGURE.png\n",
              context->page.file);
    return status;
}

/* What a reader looks for in vain. */
static void say_left_out(const struct dtp_chart_data *data, const struct dtp_page *page)
{
    char words[96] = "";
    if (data->refused)
        dtp_append_part(words, sizeof words, ", ", "%zu refused", data->refused);
    if (data->out_of_memory)
        dtp_append_part(words, sizeof words, ", ", "%zu out of memory", data->out_of_memory);
    if (words[0])
        dtp_page_say(page, 0, 4, "rows that are not drawn: %s", words);
}

static enum dtp_status chart(const struct dtp_context *context, enum dtp_chart kind, const char *path,
                             const struct dtp_chart_filter *filters)
{
    const struct dtp_arguments *a = context->arguments;
    bool as_it_is = dtp_chart_is_whole(kind);
    struct dtp_table *table = NULL;
    struct dtp_chart_data data = {0};
    char title[256];
    enum dtp_status status = dtp_table_read(path, &table, context->faults);
    if (status == DTP_OK && as_it_is)
        status = dtp_chart_check_memory(table, context->faults);
    else if (status == DTP_OK)
        status = dtp_chart_data_read(kind, table, filters, a->where_count, &data, context->faults);
    if (status == DTP_OK) {
        make_title(kind, as_it_is ? NULL : &data, title, sizeof title);
        struct dtp_chart_figure figure = {
            .chart = kind, .data = as_it_is ? NULL : &data, .csv = path, .figure = a->output, .title = title};
        status =
            dtp_chart_is_area(kind) && is_text(a->output) ? draw_text(context, &figure, table) : draw(context, &figure);
        if (status == DTP_OK)
            say_left_out(&data, &context->page);
    }
    dtp_chart_data_destroy(&data);
    dtp_table_destroy(table);
    return status;
}

enum dtp_status dtp_command_chart(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_chart kind;
    struct dtp_chart_filter *filters = NULL;
    if (a->word_count != 2)
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "chart: takes a kind and a table; write dtplan chart KIND FILE.csv, kinds: dtplan help chart");
    if (!dtp_chart_parse(a->words[0], &kind))
        return unknown_kind(a->words[0], context->faults);
    if (dtp_chart_is_whole(kind) && a->where_count)
        return dtp_fault(context->faults, DTP_BAD_INPUT, "--where", 0, "the chart '%s' shows its table whole",
                         dtp_chart_name(kind));
    struct stat information; /* read twice, by us and by gnuplot */
    bool nameless =
        strcmp(a->words[1], "-") == 0 || (stat(a->words[1], &information) == 0 && !S_ISREG(information.st_mode));
    if (dtp_chart_is_whole(kind) && nameless)
        return dtp_fault(context->faults, DTP_BAD_INPUT, a->words[1], 0, "gnuplot needs a table in a plain file");
    enum dtp_status status = read_filters(a, &filters, context->faults);
    if (status == DTP_OK)
        status = chart(context, kind, a->words[1], filters);
    free(filters);
    return status;
}
