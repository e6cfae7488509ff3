#include "runs/refit_parts.h"

#include "base/append.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is believed before any run is seen, as standard deviations of log seconds: a file made on this machine is right
 * within 10 % for a class, what tells a kind from its class and a shape from its kind is within 5 %. Two runs agree on
 * one shape within 2 %, and a span is known to 1.5 us: it lies between two events. */
#define CLASS_DEVIATION 0.10
#define KIND_DEVIATION 0.05
#define SHAPE_DEVIATION 0.05
#define RUN_DEVIATION 0.02
#define SPAN_DEVIATION_S 1.5e-6
#define FILE_COUNTS_AS_RUNS 1.0 /* in contention */
#define SLOWDOWN_SUFFIX "_slowdown"

/* A shape over the runs it is learnt from. */
struct shape {
    struct dtp_measured_row row;
    double log_ratio; /* mean of log(seconds / what the file says); of nothing in the file, of seconds alone */
    double variance;  /* of that mean */
    double total_s;   /* that runs spent in it */
    bool in_file;
    size_t class, kind; /* columns of factors */
};

struct fit {
    struct shape *shapes;
    size_t shape_count;
    struct dtp_measured_row class_row[DTP_MEASUREMENT_COUNT], *kind_row; /* the first of each column */
    size_t class_count, kind_count;
    size_t *class_shapes, *kind_shapes; /* how many of each */
    double *effect;                     /* [class_count + kind_count] logarithms of factors */
};

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static int by_row(const void *left, const void *right)
{
    const struct dtp_refit_time *const *a = left, *const *b = right;
    return dtp_measured_row_compare(&(*a)->row, &(*b)->row, true);
}

static double span_variance(double seconds)
{
    return RUN_DEVIATION * RUN_DEVIATION + SPAN_DEVIATION_S * SPAN_DEVIATION_S / (seconds * seconds);
}

static struct shape shape_of(const struct dtp_refit_time *const *times, size_t count, const struct dtp_measured *base)
{
    struct shape s = {.row = times[0]->row};
    double file_s = dtp_measured_s(base, &s.row), weight = 0, sum = 0;
    s.in_file = file_s > 0 && isfinite(file_s);
    for (size_t i = 0; i < count; i++) {
        double w = 1 / span_variance(times[i]->seconds);
        sum += w * log(times[i]->seconds / (s.in_file ? file_s : 1));
        weight += w;
        s.total_s += times[i]->total_s;
    }
    s.log_ratio = sum / weight;
    s.variance = 1 / weight;
    return s;
}

static enum dtp_status collect(const struct dtp_refit *refit, const struct dtp_measured *base, size_t without,
                               struct fit *fit, struct dtp_faults *faults)
{
    const struct dtp_refit_time **times = malloc((refit->time_count + 1) * sizeof *times);
    size_t count = 0;
    fit->shapes = malloc((refit->time_count + 1) * sizeof *fit->shapes);
    for (size_t i = 0; i < refit->time_count && times && fit->shapes; i++)
        if (refit->time[i].run != without)
            times[count++] = &refit->time[i];
    if (count > 0)
        qsort(times, count, sizeof *times, by_row);
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && dtp_measured_row_same(&times[to]->row, &times[from]->row);)
            to++;
        fit->shapes[fit->shape_count++] = shape_of(&times[from], to - from, base);
    }
    free(times);
    if (fit->shape_count > 0)
        return DTP_OK;
    return fit->shapes && times
               ? dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "no run has times of operations to learn from")
               : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* ---- factors ----------------------------------------------------------------------------------------------------- */

static bool same_number(const struct dtp_measured_row *a, const struct dtp_measured_row *b,
                        enum dtp_measured_column column)
{
    return a->number[column] == b->number[column] || (isnan(a->number[column]) && isnan(b->number[column]));
}

/* A pass of matmuls in a dtype, a direction of attention, a kernel, a collective of a group, a copy of so many
 * ranks. */
static bool same_kind(const struct dtp_measured_row *a, const struct dtp_measured_row *b)
{
    return a->measurement == b->measurement && a->dtype == b->dtype && strcmp(a->what, b->what) == 0 &&
           same_number(a, b, DTP_MEASURED_ranks) && same_number(a, b, DTP_MEASURED_stride) &&
           same_number(a, b, DTP_MEASURED_nodes);
}

static bool same_class(const struct dtp_measured_row *a, const struct dtp_measured_row *b)
{
    return a->measurement == b->measurement;
}

static size_t column_of(struct dtp_measured_row *rows, size_t *count, const struct dtp_measured_row *row,
                        bool (*same)(const struct dtp_measured_row *, const struct dtp_measured_row *))
{
    for (size_t i = 0; i < *count; i++)
        if (same(&rows[i], row))
            return i;
    rows[*count] = *row;
    return (*count)++;
}

static bool make_columns(struct fit *fit)
{
    fit->kind_row = malloc((fit->shape_count + 1) * sizeof *fit->kind_row);
    if (!fit->kind_row)
        return false;
    for (size_t i = 0; i < fit->shape_count; i++) {
        struct shape *s = &fit->shapes[i];
        if (!s->in_file)
            continue;
        s->class = column_of(fit->class_row, &fit->class_count, &s->row, same_class);
        s->kind = column_of(fit->kind_row, &fit->kind_count, &s->row, same_kind);
    }
    fit->effect = calloc(fit->class_count + fit->kind_count + 1, sizeof *fit->effect);
    fit->class_shapes = calloc(fit->class_count + 1, sizeof *fit->class_shapes);
    fit->kind_shapes = calloc(fit->kind_count + 1, sizeof *fit->kind_shapes);
    return fit->effect && fit->class_shapes && fit->kind_shapes;
}

/* The mean of what is left of a column's shapes, each counted by its share of the longest one's time: an operation of a
 * microsecond says little of those that make a step long. */
static double shrunk_mean(const struct fit *fit, bool of_class, size_t column, double deviation, size_t *count)
{
    double longest_s = 0, sum = 0, weight = 1 / (deviation * deviation); /* the prior: an effect of 0, so well known */
    for (size_t i = 0; i < fit->shape_count; i++) {
        const struct shape *s = &fit->shapes[i];
        if (s->in_file && (of_class ? s->class : s->kind) == column)
            longest_s = fmax(longest_s, s->total_s);
    }
    for (size_t i = 0; i < fit->shape_count; i++) {
        const struct shape *s = &fit->shapes[i];
        if (!s->in_file || (of_class ? s->class : s->kind) != column)
            continue;
        double w = s->total_s / longest_s / (s->variance + SHAPE_DEVIATION * SHAPE_DEVIATION);
        sum += w * (s->log_ratio - (of_class ? 0 : fit->effect[s->class]));
        weight += w;
        ++*count;
    }
    return sum / weight;
}

/* Classes first, then what is left of kinds. */
static void find_effects(struct fit *fit)
{
    for (size_t c = 0; c < fit->class_count; c++)
        fit->effect[c] = shrunk_mean(fit, true, c, CLASS_DEVIATION, &fit->class_shapes[c]);
    for (size_t k = 0; k < fit->kind_count; k++)
        fit->effect[fit->class_count + k] = shrunk_mean(fit, false, k, KIND_DEVIATION, &fit->kind_shapes[k]);
}

/* Sum of the effects on a row; 0 where nothing of its kind or class was seen. */
static double effect_on(const struct fit *fit, const struct dtp_measured_row *row)
{
    double sum = 0;
    for (size_t i = 0; i < fit->class_count; i++)
        sum += same_class(&fit->class_row[i], row) ? fit->effect[i] : 0;
    for (size_t i = 0; i < fit->kind_count; i++)
        sum += same_kind(&fit->kind_row[i], row) ? fit->effect[fit->class_count + i] : 0;
    return sum;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool has_shape(const struct dtp_measured_row *row)
{
    return dtp_measurement_is_matmul(row->measurement) || row->measurement == DTP_MEASUREMENT_ATTENTION;
}

static void put_row(struct dtp_measured_rows *out, const struct dtp_measured_row *row)
{
    for (size_t i = 0; i < out->count; i++)
        if (dtp_measured_row_same(&out->row[i], row)) {
            out->row[i] = *row;
            return;
        }
    out->line[out->count] = 0;
    out->row[out->count++] = *row;
}

/* Whether any size of that curve is in the file; then it is scaled only. */
static bool has_kind(const struct dtp_measured_rows *rows, const struct dtp_measured_row *row)
{
    for (size_t i = 0; i < rows->count; i++)
        if (same_kind(&rows->row[i], row))
            return true;
    return false;
}

/* A shape's own row: what the factors say, and of what is left as much as the runs know of it. */
static void put_shape(const struct fit *fit, const struct shape *s, const struct dtp_measured *base,
                      struct dtp_measured_rows *out)
{
    struct dtp_measured_row row = s->row;
    double seconds = exp(s->log_ratio);
    if (s->in_file && !has_shape(&s->row))
        return;
    if (s->in_file) {
        double effect = effect_on(fit, &s->row), prior = SHAPE_DEVIATION * SHAPE_DEVIATION;
        double left = (s->log_ratio - effect) * prior / (prior + s->variance);
        seconds = dtp_measured_s(base, &s->row) * exp(effect + left);
    } else if (!has_shape(&s->row) && has_kind(dtp_measured_all(base), &s->row)) {
        return;
    }
    row.number[DTP_MEASURED_seconds] = seconds;
    row.number[DTP_MEASURED_samples] = 1;
    put_row(out, &row);
}

static void scale(const struct fit *fit, struct dtp_measured_row *row)
{
    static const enum dtp_measured_column times[] = {DTP_MEASURED_seconds, DTP_MEASURED_low_s, DTP_MEASURED_high_s};
    double factor = exp(effect_on(fit, row));
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        row->number[times[i]] *= factor; /* what is empty stays NAN */
}

/* ---- contention -------------------------------------------------------------------------------------------------- */

static enum dtp_collective collective_of(const char *what)
{
    enum dtp_collective collective;
    enum dtp_carried carried;
    dtp_measured_collective_parse(what, strlen(what), &collective,
                                  &carried); /* a row of an operation's has such a word */
    return collective;
}

/* (measured / of) over the runs, drawn to `file` as if that were some runs more. */
static double pooled(double measured, double of, double runs, double file)
{
    double extra = FILE_COUNTS_AS_RUNS * of / runs;
    return isfinite(file) ? (measured + extra * file) / (of + extra) : measured / of;
}

static void put_contention(const struct dtp_refit *refit, size_t first, size_t without, const struct dtp_measured *base,
                           struct dtp_measured_rows *out)
{
    struct dtp_measured_row row = refit->beside[first].row;
    struct dtp_measured_group group = {(uint32_t)row.number[DTP_MEASURED_ranks],
                                       (uint32_t)row.number[DTP_MEASURED_stride],
                                       (uint32_t)row.number[DTP_MEASURED_nodes]};
    struct dtp_measured_contention file = dtp_measured_contention(base, collective_of(row.what), &group);
    double beside_s = 0, extra_s = 0, in_place_s = 0, alone_s = 0, runs = 0;
    for (size_t i = 0; i < refit->beside_count; i++) {
        const struct dtp_refit_beside *b = &refit->beside[i];
        if (b->run == without || b->chosen || !dtp_measured_row_same(&b->row, &row))
            continue;
        beside_s += b->beside_s;
        extra_s += b->extra_s;
        in_place_s += b->in_place_s;
        alone_s += b->alone_s;
        runs++;
    }
    if (beside_s > 0) {
        row.number[DTP_MEASURED_value] = fmax(0, pooled(extra_s, beside_s, runs, file.kernels));
        put_row(out, &row);
    }
    if (alone_s > 0) {
        dtp_append(row.what, sizeof row.what, SLOWDOWN_SUFFIX);
        row.number[DTP_MEASURED_value] = fmax(1, pooled(in_place_s, alone_s, runs, file.collective));
        put_row(out, &row);
    }
}

static bool seen_before(const struct dtp_refit *refit, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (dtp_measured_row_same(&refit->beside[i].row, &refit->beside[at].row))
            return true;
    return false;
}

/* ---- gaps -------------------------------------------------------------------------------------------------------- */

#define NO_GAP_S 1e-9 /* a row has a time above 0 */

static void put_gap(const struct dtp_refit *refit, bool graph, size_t without, const struct dtp_measured *base,
                    struct dtp_measured_rows *out)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_STEP, graph ? "gap_graph" : "gap_live");
    double rest_s = 0, kernels = 0, runs = 0;
    for (size_t i = 0; i < refit->rest_count; i++) {
        const struct dtp_refit_rest *r = &refit->rest[i];
        if (r->run == without || r->graph != graph)
            continue;
        rest_s += r->rest_s;
        kernels += r->kernels;
        runs++;
    }
    if (runs == 0)
        return;
    row.number[DTP_MEASURED_seconds] =
        fmax(NO_GAP_S, pooled(rest_s, kernels, runs, dtp_measured_step_s(base, row.what)));
    row.number[DTP_MEASURED_samples] = runs;
    put_row(out, &row);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void write_words(const struct dtp_measured_row *row, bool class, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s", dtp_measurement_text(row->measurement));
    if (class)
        return;
    dtp_append(out, bytes, " %s", row->what);
    if (row->dtype != DTP_DTYPE_COUNT)
        dtp_append(out, bytes, " %s", dtp_dtype_text(row->dtype));
    if (isfinite(row->number[DTP_MEASURED_ranks]))
        dtp_append(out, bytes, " %.0f ranks", row->number[DTP_MEASURED_ranks]);
    if (row->number[DTP_MEASURED_stride] > 1)
        dtp_append(out, bytes, " by %.0f", row->number[DTP_MEASURED_stride]);
    if (row->number[DTP_MEASURED_nodes] > 1)
        dtp_append(out, bytes, " on %.0f nodes", row->number[DTP_MEASURED_nodes]);
}

/* A class, then its kinds. */
static void list_factors(const struct fit *fit, struct dtp_refit_factors *out)
{
    out->count = 0;
    for (size_t c = 0; c < fit->class_count; c++) {
        for (size_t k = 0; k <= fit->kind_count && out->count < DTP_REFIT_MAX_FACTORS; k++) {
            const struct dtp_measured_row *row = k == 0 ? &fit->class_row[c] : &fit->kind_row[k - 1];
            if (k > 0 && !same_class(row, &fit->class_row[c]))
                continue;
            struct dtp_refit_factor *f = &out->factor[out->count++];
            *f = (struct dtp_refit_factor){.is_class = k == 0,
                                           .shapes = k == 0 ? fit->class_shapes[c] : fit->kind_shapes[k - 1]};
            f->factor = exp(fit->effect[c] + (k == 0 ? 0 : fit->effect[fit->class_count + k - 1]));
            write_words(row, k == 0, f->words, sizeof f->words);
        }
    }
}

static enum dtp_status make_rows(const struct dtp_refit *refit, const struct fit *fit, const struct dtp_measured *base,
                                 size_t without, struct dtp_measured_rows *out, struct dtp_faults *faults)
{
    const struct dtp_measured_rows *rows = dtp_measured_all(base);
    size_t room = rows->count + fit->shape_count + 2 * refit->beside_count + 2;
    out->row = malloc(room * sizeof *out->row);
    out->line = calloc(room, sizeof *out->line);
    if (!out->row || !out->line) {
        dtp_measured_rows_release(out);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    for (size_t i = 0; i < rows->count; i++) {
        out->row[out->count] = rows->row[i];
        scale(fit, &out->row[out->count++]);
    }
    for (size_t i = 0; i < fit->shape_count; i++)
        put_shape(fit, &fit->shapes[i], base, out);
    for (size_t i = 0; i < refit->beside_count; i++)
        if (!seen_before(refit, i))
            put_contention(refit, i, without, base, out);
    put_gap(refit, false, without, base, out);
    put_gap(refit, true, without, base, out);
    return DTP_OK;
}

enum dtp_status dtp_refit_make(const struct dtp_refit *refit, const struct dtp_measured *base, size_t without,
                               struct dtp_measured_rows *out, struct dtp_refit_factors *factors,
                               struct dtp_faults *faults)
{
    struct fit fit = {.shape_count = 0};
    *out = (struct dtp_measured_rows){.count = 0};
    enum dtp_status status = collect(refit, base, without, &fit, faults);
    if (status == DTP_OK && !make_columns(&fit))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) {
        find_effects(&fit);
        status = make_rows(refit, &fit, base, without, out, faults);
    }
    if (status == DTP_OK && factors)
        list_factors(&fit, factors);
    free(fit.shapes);
    free(fit.kind_row);
    free(fit.class_shapes);
    free(fit.kind_shapes);
    free(fit.effect);
    return status;
}
