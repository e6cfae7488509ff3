/* What a run says of its operations: times with nothing beside them, and what collectives and kernels do to each other,
 * in its spans. */
#include "base/grow.h"
#include "base/quantile.h"
#include "cost/collective_choice.h"
#include "cost/op_cost.h"
#include "runs/refit_parts.h"
#include "program/measured_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A collective that ran, and the entry of its group. */
struct running {
    size_t op, beside;
    double start_s, end_s;
    double covered_s; /* of it, by kernels */
};

struct observed {
    struct dtp_refit *refit;
    const struct dtp_refit_run *run;
    const struct dtp_op *ops;
    size_t op_count;
    struct running *running;
    size_t running_count;
    double *in_step_s;  /* per operation: its time with nothing beside it; NAN: there was, or it is none */
    double live_factor; /* a kernel's time in the step over its time alone, where nothing ran beside it: median */
};

static bool is_kernel(enum dtp_op_class class)
{
    return class == DTP_CLASS_MATMUL || class == DTP_CLASS_ATTENTION || class == DTP_CLASS_MEMORY;
}

static bool was_timed(const struct observed *o, size_t op)
{
    const struct dtp_refit_run *r = o->run;
    return r->alone_s[op] > 0 && isfinite(r->alone_s[op]) && r->end_s[op] > r->start_s[op] && isfinite(r->end_s[op]);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static bool find_beside(struct observed *o, const struct dtp_measured_row *collective, size_t *out)
{
    static const enum dtp_measured_column group[] = {DTP_MEASURED_ranks, DTP_MEASURED_stride, DTP_MEASURED_nodes};
    struct dtp_refit *refit = o->refit;
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_CONTENTION, collective->what);
    for (size_t i = 0; i < sizeof group / sizeof group[0]; i++)
        row.number[group[i]] = collective->number[group[i]];
    for (*out = 0; *out < refit->beside_count; ++*out)
        if (refit->beside[*out].run == refit->run_count && dtp_measured_row_same(&refit->beside[*out].row, &row))
            return true;
    if (!dtp_grow(&refit->beside, refit->beside_count, &refit->beside_room, sizeof *refit->beside))
        return false;
    refit->beside[refit->beside_count++] = (struct dtp_refit_beside){.row = row, .run = refit->run_count};
    return true;
}

/* Where a plan says how collectives are carried, their times are nothing to learn of the library's own ways from. */
static bool is_chosen(const struct observed *o, size_t op)
{
    const struct dtp_op *of = &o->ops[op];
    return dtp_op_kind_class(of->kind) == DTP_CLASS_COLLECTIVE &&
           !dtp_collective_is_librarys(dtp_program_execution(o->run->program), dtp_op_kind_collective(of->kind));
}

static bool list_collectives(struct observed *o)
{
    struct dtp_measured_row row;
    const struct dtp_job *job = o->run->job;
    for (size_t i = 0; i < o->op_count; i++) {
        if (dtp_op_kind_class(o->ops[i].kind) != DTP_CLASS_COLLECTIVE || !was_timed(o, i) ||
            !dtp_measured_row_of_op(o->run->program, &o->ops[i], &job->cluster, &row))
            continue;
        struct running *r = &o->running[o->running_count];
        *r = (struct running){.op = i, .start_s = o->run->start_s[i], .end_s = o->run->end_s[i]};
        if (!find_beside(o, &row, &r->beside))
            return false;
        o->refit->beside[r->beside].chosen = is_chosen(o, i);
        o->running_count++;
    }
    return true;
}

static double overlap_s(const struct observed *o, size_t op, const struct running *r)
{
    double from = fmax(o->run->start_s[op], r->start_s), to = fmin(o->run->end_s[op], r->end_s);
    return to > from ? to - from : 0;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

#define HARDLY_BESIDE 0.01 /* of a kernel's time */

static double beside_s(struct observed *o, size_t op)
{
    double sum = 0;
    for (size_t k = 0; k < o->running_count; k++)
        sum += overlap_s(o, op, &o->running[k]);
    return sum;
}

/* Sets in_step_s of kernels that ran by themselves, and the factor between their times in the step and alone. */
static void look_at_kernels(struct observed *o, double *ratios)
{
    size_t count = 0;
    for (size_t i = 0; i < o->op_count; i++) {
        o->in_step_s[i] = (double)NAN;
        if (!is_kernel(dtp_op_kind_class(o->ops[i].kind)) || !was_timed(o, i))
            continue;
        double in_place_s = o->run->end_s[i] - o->run->start_s[i];
        if (beside_s(o, i) > HARDLY_BESIDE * in_place_s)
            continue;
        o->in_step_s[i] = in_place_s;
        ratios[count++] = in_place_s / o->run->alone_s[i];
    }
    o->live_factor = count > 0 ? dtp_median(ratios, 1, count) : 1;
}

/* What a kernel took longer than by itself is shared among the collectives beside it, by the time they were. */
static void share_extra(struct observed *o, size_t op)
{
    double expected_s = o->run->alone_s[op] * o->live_factor, in_place_s = o->run->end_s[op] - o->run->start_s[op];
    double all_s = beside_s(o, op);
    for (size_t k = 0; k < o->running_count && all_s > 0; k++) {
        double together_s = overlap_s(o, op, &o->running[k]);
        struct dtp_refit_beside *b = &o->refit->beside[o->running[k].beside];
        o->running[k].covered_s += together_s;
        b->beside_s += together_s;
        b->extra_s += (in_place_s - expected_s) * together_s / all_s;
    }
}

static void look_at_contention(struct observed *o)
{
    for (size_t i = 0; i < o->op_count; i++)
        if (is_kernel(dtp_op_kind_class(o->ops[i].kind)) && was_timed(o, i) && isnan(o->in_step_s[i]))
            share_extra(o, i);
    for (size_t k = 0; k < o->running_count; k++) {
        const struct running *r = &o->running[k];
        struct dtp_refit_beside *b = &o->refit->beside[r->beside];
        if (r->covered_s < 0.5 * (r->end_s - r->start_s))
            continue;
        b->in_place_s += r->end_s - r->start_s;
        b->alone_s += o->run->alone_s[r->op];
    }
}

/* Where the file has tensor cores' sustained rate: in a step they are faster than that, by what it leaves them of the
 * power, so that their times are made longer by as much. */
static void sustain(struct observed *o)
{
    const struct dtp_refit_run *r = o->run;
    const struct dtp_cluster *cluster = &r->job->cluster;
    double drawn_s = 0, begin_s = (double)INFINITY, end_s = 0;
    if (!cluster->measured || !dtp_measured_sustained(cluster->measured))
        return;
    for (size_t i = 0; i < o->op_count; i++)
        if (was_timed(o, i)) {
            begin_s = fmin(begin_s, r->start_s[i]);
            end_s = fmax(end_s, r->end_s[i]);
            drawn_s += dtp_op_power(r->program, &cluster->gpu, &o->ops[i]) * (r->end_s[i] - r->start_s[i]);
        }
    double speedup = dtp_matmul_speedup_of_step(&cluster->gpu, drawn_s, end_s - begin_s);
    for (size_t i = 0; i < o->op_count; i++)
        if (dtp_op_at_power_limit(r->program, &cluster->gpu, &o->ops[i]))
            o->in_step_s[i] *= speedup;
}

/* Copies, host AdamW and collectives are alone where each is timed alone. A collective also waits for ranks that come
 * later, there or in the step: the shorter time has less of that. */
static void look_at_others(struct observed *o)
{
    for (size_t i = 0; i < o->op_count; i++) {
        enum dtp_op_class class = dtp_op_kind_class(o->ops[i].kind);
        if (is_kernel(class) || !was_timed(o, i))
            continue;
        double in_place_s = o->run->end_s[i] - o->run->start_s[i];
        o->in_step_s[i] = class == DTP_CLASS_COLLECTIVE ? fmin(o->run->alone_s[i], in_place_s) : o->run->alone_s[i];
    }
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

struct shape {
    struct dtp_measured_row row;
    double seconds;
};

static int by_shape(const void *left, const void *right)
{
    const struct shape *a = left, *b = right;
    int order = dtp_measured_row_compare(&a->row, &b->row, true);
    return order ? order : (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

/* `shapes` is sorted: equal ones stand together, by time. */
static bool add_medians(struct dtp_refit *refit, const struct shape *shapes, size_t count)
{
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from; to < count && dtp_measured_row_same(&shapes[to].row, &shapes[from].row);)
            to++;
        double total_s = 0, seconds = (shapes[(from + to) / 2].seconds + shapes[(from + to - 1) / 2].seconds) / 2;
        if (!dtp_grow(&refit->time, refit->time_count, &refit->time_room, sizeof *refit->time))
            return false;
        for (size_t i = from; i < to; i++)
            total_s += shapes[i].seconds;
        refit->time[refit->time_count++] =
            (struct dtp_refit_time){shapes[from].row, refit->run_count, seconds, total_s};
    }
    return true;
}

static bool add_shapes(struct observed *o)
{
    const struct dtp_job *job = o->run->job;
    struct shape *shapes = malloc((o->op_count + 1) * sizeof *shapes);
    size_t count = 0;
    for (size_t i = 0; i < o->op_count && shapes; i++)
        if (isfinite(o->in_step_s[i]) && !is_chosen(o, i) &&
            dtp_measured_row_of_op(o->run->program, &o->ops[i], &job->cluster, &shapes[count].row))
            shapes[count++].seconds = o->in_step_s[i];
    if (shapes)
        qsort(shapes, count, sizeof *shapes, by_shape);
    bool done = shapes && add_medians(o->refit, shapes, count);
    free(shapes);
    return done;
}

/* ---- gaps -------------------------------------------------------------------------------------------------------- */

static bool add_rest(struct observed *o)
{
    struct dtp_refit *refit = o->refit;
    struct dtp_refit_rest rest = {refit->run_count, o->run->job->plan.executor.cuda_graph, o->run->rest_s, 0};
    for (size_t i = 0; i < o->op_count; i++)
        rest.kernels += is_kernel(dtp_op_kind_class(o->ops[i].kind)) ? o->ops[i].demand->kernels : 0;
    if (!isfinite(rest.rest_s) || !(rest.kernels > 0))
        return true;
    if (!dtp_grow(&refit->rest, refit->rest_count, &refit->rest_room, sizeof *refit->rest))
        return false;
    refit->rest[refit->rest_count++] = rest;
    return true;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

struct dtp_refit *dtp_refit_create(void)
{
    return calloc(1, sizeof(struct dtp_refit));
}

void dtp_refit_destroy(struct dtp_refit *refit)
{
    if (!refit)
        return;
    free(refit->time);
    free(refit->beside);
    free(refit->rest);
    free(refit);
}

enum dtp_status dtp_refit_add(struct dtp_refit *refit, const struct dtp_refit_run *run, struct dtp_faults *faults)
{
    struct observed o = {.refit = refit,
                         .run = run,
                         .ops = dtp_program_ops(run->program),
                         .op_count = dtp_program_op_count(run->program)};
    double *ratios = malloc((o.op_count + 1) * sizeof *ratios);
    o.running = malloc((o.op_count + 1) * sizeof *o.running);
    o.in_step_s = malloc((o.op_count + 1) * sizeof *o.in_step_s);
    bool done = ratios && o.running && o.in_step_s && list_collectives(&o);
    if (done) {
        look_at_kernels(&o, ratios);
        look_at_contention(&o);
        sustain(&o);
        look_at_others(&o);
        done = add_shapes(&o) && add_rest(&o);
    }
    free(ratios);
    free(o.running);
    free(o.in_step_s);
    refit->run_count++;
    return done ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}
