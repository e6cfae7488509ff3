/* The chart of a pipeline schedule: a box a pass. */
#include "chart/chart_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a pass is called in a legend, (odd): of an odd chunk; passes of other words are no passes. */
static const char *pass_name(const char *word, bool odd)
{
    static const struct {
        const char *word, *names[2];
    } passes[] = {
        {"F", {"forward", "forward (odd)"}},
        {"BW", {"backward", "backward (odd)"}},
        {"B", {"input gradients", "input gradients (odd)"}},
        {"W", {"weight gradients", "weight gradients (odd)"}},
    };
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        if (strcmp(word, passes[i].word) == 0)
            return passes[i].names[odd];
    return NULL;
}

/* Columns: rank, micro-batch, begin, end, and which part of the lane: 0 all of it, 1 and 2 the halves of a pair. */
enum dtp_status dtp_chart_read_schedule(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                        struct dtp_faults *faults)
{
    static const char *const columns[] = {"rank", "micro_batch", "begin_time", "end_time"};
    static const char *const drawn[] = {"rank", "micro_batch", "begin_time", "end_time", "half"};
    long pass = dtp_table_column(s->table, "pass"), paired = dtp_table_column(s->table, "paired");
    dtp_chart_set_columns(data, "pass", drawn, 5);
    enum dtp_status status = dtp_chart_needs_column(s, data->chart, "pass", faults);
    if (status == DTP_OK)
        status = dtp_chart_needs_numbers(s, data->chart, columns, 4, faults);
    if (status == DTP_OK && s->varying)
        return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(s->table), 0,
                         "has more than one schedule; choose with --where schedule=NAME");
    for (size_t i = 0; i < s->row_count && status == DTP_OK; i++) {
        size_t from = s->rows[i];
        double chunk = dtp_chart_value(s, from, "chunk"), figures[4];
        const char *name = pass_name(dtp_table_text(s->table, from, pass), fmod(chunk, 2) == 1);
        bool half = strcmp(dtp_table_text(s->table, from, paired), "true") == 0, whole = name != NULL;
        for (size_t k = 0; k < 4; k++)
            whole = isfinite(figures[k] = dtp_chart_value(s, from, columns[k])) && whole;
        if (!whole || figures[3] < figures[2] || figures[0] < 0)
            continue;
        struct dtp_chart_row *row = dtp_chart_add_row(data, name);
        memcpy(row->value, figures, sizeof figures);
        row->value[4] = !half ? 0 : name[0] == 'f' ? 1 : 2;
    }
    if (status == DTP_OK && data->row_count == 0)
        return dtp_chart_no_row_of(s, data->chart, columns, 4, faults);
    return status;
}
