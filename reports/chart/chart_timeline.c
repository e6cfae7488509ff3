/* The chart of a step: boxes of operations in lanes, one a stream, of a pipeline one a rank and stream.
 *
 * A step may have a million operations, of which a figure shows some thousand points a lane. So a lane of the whole
 * step is cut into CELLS, each of which has the kind that runs longest in it, and cells alike that touch are one box.
 * Operations themselves are drawn in the part that is enlarged, where there are few lanes. */
#include "chart/chart_rows.h"

#include "base/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CELLS 3000
#define ENLARGED_LANES 12       /* most of a figure of two parts */
#define STREAM_LANES 24         /* with more of them ranks show their computing alone */
#define MOST_ROLES 64           /* lanes of a figure that has room for one a rank */
#define ENLARGED_S 0.015        /* of a step of more than 20 times that; else a 20th of it */
#define LATEST_S 1e9            /* 30 years, which no step takes */
#define ROLE_PREFIX "pipeline " /* of a role's name; "rank 0" says it */

/* In the order of timeline.gp's names and colours. */
const struct dtp_chart_part dtp_chart_timeline_parts[DTP_CHART_TIMELINE_PARTS] = {
    {'M', "matmul", "matmul"},
    {'A', "attention", "attention"},
    {'k', "memory", "memory-bound kernels"},
    {'G', "all_gather", "all-gather"},
    {'R', "reduce_scatter", "reduce-scatter"},
    {'S', "all_reduce", "all-reduce"},
    {'C', "collective", "other collective"},
    {'T', "transfer", "between stages"},
    {'U', "upload", "host to GPU"},
    {'D', "download", "GPU to host"},
    {'h', "host", "host"},
    {'s', "storage", "storage"},
};
enum { REDUCE_SCATTER = 4, OTHER_COLLECTIVE = 6 };

/* In which order a rank's lanes stand: what computes, who waits for it, what it waits for. */
static const enum dtp_stream lane_order[] = {DTP_STREAM_COMPUTE,
                                             DTP_STREAM_WEIGHT_GRADIENT,
                                             DTP_STREAM_TENSOR,
                                             DTP_STREAM_CONTEXT,
                                             DTP_STREAM_EXPERT,
                                             DTP_STREAM_COPY,
                                             DTP_STREAM_GATHER,
                                             DTP_STREAM_REDUCE,
                                             DTP_STREAM_REPLICATE,
                                             DTP_STREAM_RECEIVE,
                                             DTP_STREAM_SEND,
                                             DTP_STREAM_SEND_OTHER,
                                             DTP_STREAM_RECEIVE_BACK,
                                             DTP_STREAM_SEND_BACK,
                                             DTP_STREAM_SEND_BACK_OTHER,
                                             DTP_STREAM_UPLOAD,
                                             DTP_STREAM_DOWNLOAD,
                                             DTP_STREAM_HOST,
                                             DTP_STREAM_STORAGE};
#define ORDER_COUNT (sizeof lane_order / sizeof *lane_order)

struct operation {
    double begin_s, end_s;
    uint16_t role, kind;
    enum dtp_stream stream;
};

struct step {
    struct operation *operations; /* that take time */
    size_t count;
    const char *roles[MOST_ROLES];
    size_t role_count, lane_count;
    bool used[MOST_ROLES][DTP_STREAM_COUNT];
    bool computing_alone;
    double last_s, from_s, to_s; /* the part that is enlarged, empty: none */
};

static size_t kind_of(const char *kind, const char *class)
{
    bool collective = strcmp(class, "collective") == 0,
         transfer = strcmp(kind, "send") == 0 || strcmp(kind, "recv") == 0;
    size_t found = DTP_CHART_TIMELINE_PARTS;
    for (size_t i = 0; i < DTP_CHART_TIMELINE_PARTS; i++)
        if (strcmp(dtp_chart_timeline_parts[i].column, class) == 0)
            found = i;
    for (size_t i = 0; i < DTP_CHART_TIMELINE_PARTS && collective; i++)
        if (strcmp(dtp_chart_timeline_parts[i].column, transfer ? "transfer" : kind) == 0)
            return i;
    return found;
}

/* The number of a role's name; MOST_ROLES: there are too many. Rows of a role stand together. */
static size_t role_of(struct step *step, const char *name, size_t last)
{
    if (last < step->role_count && strcmp(step->roles[last], name) == 0)
        return last;
    for (size_t i = 0; i < step->role_count; i++)
        if (strcmp(step->roles[i], name) == 0)
            return i;
    if (step->role_count == MOST_ROLES)
        return MOST_ROLES;
    step->roles[step->role_count] = name;
    return step->role_count++;
}

static enum dtp_status read_operations(const struct dtp_chart_source *s, struct step *step, struct dtp_faults *faults)
{
    const struct dtp_table *table = s->table;
    long kind = dtp_table_column(table, "kind"), class = dtp_table_column(table, "class"),
         stream = dtp_table_column(table, "stream"), begin = dtp_table_column(table, "start_s"),
         end = dtp_table_column(table, "end_s"), role = dtp_table_column(table, "role");
    for (size_t i = 0, last = 0; i < s->row_count; i++) {
        size_t row = s->rows[i];
        struct operation o = {
            .begin_s = dtp_chart_source_value(s, row, begin),
            .end_s = dtp_chart_source_value(s, row, end),
            .kind = (uint16_t)kind_of(dtp_table_text(table, row, kind), dtp_table_text(table, row, class))};
        if (!(o.begin_s >= 0 && o.end_s >= o.begin_s && o.end_s <= LATEST_S))
            return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), dtp_table_line(table, row),
                             "start_s '%.40s' and end_s '%.40s' are no seconds of an operation, from 0 on and the end "
                             "not before the start; mend the row, or leave it out",
                             dtp_table_text(table, row, begin), dtp_table_text(table, row, end));
        if (o.kind == DTP_CHART_TIMELINE_PARTS || o.end_s <= o.begin_s ||
            !dtp_stream_parse(dtp_table_text(table, row, stream), &o.stream))
            continue;
        last = role_of(step, role < 0 ? "" : dtp_table_text(table, row, role), last);
        if (last == MOST_ROLES)
            return dtp_fault(faults, DTP_BAD_INPUT, dtp_table_name(table), 0,
                             "has more than %d ranks, which nobody tells apart; choose one with --where role='%s'",
                             MOST_ROLES, step->roles[0]);
        o.role = (uint16_t)last;
        step->lane_count += !step->used[last][o.stream];
        step->used[last][o.stream] = true;
        step->last_s = fmax(step->last_s, o.end_s);
        step->operations[step->count++] = o;
    }
    step->computing_alone = step->lane_count > STREAM_LANES && step->role_count > 1;
    return DTP_OK;
}

/* ---- the part that is enlarged ----------------------------------------------------------------------------------- */

static int by_begin(const void *left, const void *right)
{
    const struct operation *a = *(const struct operation *const *)left, *b = *(const struct operation *const *)right;
    return (a->begin_s > b->begin_s) - (a->begin_s < b->begin_s);
}

/* Around a collective of gradients, for there most streams are busy: the one in the middle of all of them. */
static enum dtp_status find_enlarged(struct step *step, struct dtp_faults *faults)
{
    const struct operation **found = calloc(step->count ? step->count : 1, sizeof *found);
    size_t count = 0;
    if (!found)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint16_t kind = OTHER_COLLECTIVE; kind >= REDUCE_SCATTER && count == 0; kind--)
        for (size_t i = 0; i < step->count; i++)
            if (step->operations[i].kind == kind)
                found[count++] = &step->operations[i];
    qsort(found, count, sizeof *found, by_begin);
    double begins = count ? found[count / 2]->begin_s : 0.55 * step->last_s;
    double takes = count ? found[count / 2]->end_s - begins : 0;
    double width = fmax(1.5 * takes, fmin(ENLARGED_S, step->last_s / 20));
    step->from_s = fmax(0, fmin(begins - 0.2 * width, step->last_s - width));
    step->to_s = fmin(step->last_s, step->from_s + width);
    free(found);
    return DTP_OK;
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static void name_lane(const struct step *step, size_t role, enum dtp_stream stream, char *out, size_t bytes)
{
    const char *name = step->roles[role];
    name += strncmp(name, ROLE_PREFIX, strlen(ROLE_PREFIX)) == 0 ? strlen(ROLE_PREFIX) : 0;
    snprintf(out, bytes, "%.60s%s%s", step->role_count > 1 ? name : "",
             step->role_count > 1 && !step->computing_alone ? " " : "",
             step->computing_alone ? "" : dtp_stream_text(stream));
}

static void add_box(struct dtp_chart_data *data, const char *lane, const double values[6])
{
    struct dtp_chart_row *row = dtp_chart_add_row(data, lane);
    memcpy(row->value, values, 6 * sizeof *values);
}

/* Boxes of the whole step. `busy`: CELLS of them. */
static void add_cells(struct dtp_chart_data *data, const struct step *step, const char *name, double lane,
                      double (*busy)[DTP_CHART_TIMELINE_PARTS])
{
    double cell_s = step->last_s / CELLS, sum = 0;
    size_t begin = 0, kind = DTP_CHART_TIMELINE_PARTS; /* nothing runs */
    for (size_t cell = 0; cell <= CELLS; cell++) {
        size_t longest = DTP_CHART_TIMELINE_PARTS;
        double most = 0, all = 0;
        for (size_t k = 0; k < DTP_CHART_TIMELINE_PARTS && cell < CELLS; k++) {
            longest = busy[cell][k] > most ? k : longest;
            most = fmax(most, busy[cell][k]);
            all += busy[cell][k];
        }
        if (longest != kind) {
            if (kind < DTP_CHART_TIMELINE_PARTS)
                add_box(data, name,
                        (double[]){lane, (double)kind, (double)begin * cell_s, (double)cell * cell_s, sum, 0});
            begin = cell;
            kind = longest;
            sum = 0;
        }
        sum += all;
    }
}

static void add_busy(const struct step *step, const struct operation *o, double (*busy)[DTP_CHART_TIMELINE_PARTS])
{
    double cell_s = step->last_s / CELLS;
    for (size_t cell = (size_t)(o->begin_s / cell_s); cell < CELLS && (double)cell * cell_s < o->end_s; cell++)
        busy[cell][o->kind] +=
            fmax(0, fmin(o->end_s, (double)(cell + 1) * cell_s) - fmax(o->begin_s, (double)cell * cell_s));
}

static void add_lane(struct dtp_chart_data *data, const struct step *step, size_t role, enum dtp_stream stream,
                     double lane, double (*busy)[DTP_CHART_TIMELINE_PARTS])
{
    char name[DTP_CHART_LABEL_BYTES];
    name_lane(step, role, stream, name, sizeof name);
    memset(busy, 0, CELLS * sizeof *busy);
    for (size_t i = 0; i < step->count; i++)
        if (step->operations[i].role == role && step->operations[i].stream == stream)
            add_busy(step, &step->operations[i], busy);
    add_cells(data, step, name, lane, busy);
    for (size_t i = 0; i < step->count; i++) {
        const struct operation *o = &step->operations[i];
        if (o->role == role && o->stream == stream && o->begin_s < step->to_s && o->end_s > step->from_s)
            add_box(data, name,
                    (double[]){lane, (double)o->kind, fmax(o->begin_s, step->from_s), fmin(o->end_s, step->to_s),
                               o->end_s - o->begin_s, 1});
    }
}

/* Rows: a box each. */
static enum dtp_status add_lanes(struct dtp_chart_data *data, const struct step *step, struct dtp_faults *faults)
{
    double(*busy)[DTP_CHART_TIMELINE_PARTS] = calloc(CELLS, sizeof *busy);
    size_t lanes = step->computing_alone ? step->role_count : step->lane_count;
    struct dtp_chart_row *rows = calloc(step->count + lanes * CELLS, sizeof *rows);
    free(data->rows);
    data->rows = rows;
    double lane = 0;
    for (size_t role = 0; role < step->role_count && busy && rows; role++)
        for (size_t k = 0; k < (step->computing_alone ? 1 : ORDER_COUNT); k++)
            if (step->used[role][lane_order[k]])
                add_lane(data, step, role, lane_order[k], lane++, busy);
    free(busy);
    return busy && rows ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

enum dtp_status dtp_chart_read_timeline(const struct dtp_chart_source *s, struct dtp_chart_data *data,
                                        struct dtp_faults *faults)
{
    static const char *const needed[] = {"stream", "kind", "class", "start_s", "end_s"};
    static const char *const drawn[] = {"lane", "kind", "begin_s", "end_s", "busy_s", "enlarged"};
    struct step *step = calloc(1, sizeof *step);
    dtp_chart_set_columns(data, "name", drawn, 6);
    enum dtp_status status = dtp_chart_needs_columns(s, data->chart, needed, 3, faults);
    if (status == DTP_OK)
        status = dtp_chart_needs_numbers(s, data->chart, needed + 3, 2, faults);
    if (step && !(step->operations = calloc(s->row_count, sizeof *step->operations)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = step ? read_operations(s, step, faults) : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK && step->count == 0)
        status = dtp_chart_no_row_of(s, data->chart, needed, 5, faults);
    if (status == DTP_OK && step->lane_count <= ENLARGED_LANES)
        status = find_enlarged(step, faults);
    if (status == DTP_OK)
        status = add_lanes(data, step, faults);
    if (status == DTP_OK && step->computing_alone)
        snprintf(data->shared, sizeof data->shared, "what each rank computes; all its streams: --where role='%.60s'",
                 step->roles[0]);
    if (step)
        free(step->operations);
    free(step);
    return status;
}
