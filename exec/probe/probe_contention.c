/* What kernels and collectives do to each other: a program that shards, walked whole, without its collectives, and
 * without its kernels. The same operations at the same addresses each time, so that nothing but the neighbour differs.
 */
#include "probe/prober.h"

#include "base/quantile.h"
#include "program/measured_op.h"

#include <math.h>
#include <stdlib.h>

#define STEPS 5
#define LEAST_OVERLAP_S 50e-6 /* beside each other in a step; less says nothing */

enum part { WHOLE, KERNELS_ALONE, COLLECTIVES_ALONE, PART_COUNT };

struct walk {
    struct dtp_probe_program program;
    size_t ops;
    double *spans[PART_COUNT]; /* [STEPS][ops][2] */
};

/* ---- walking parts ----------------------------------------------------------------------------------------------- */

static bool left_out(enum part part, enum dtp_bound_kind kind)
{
    return (part == KERNELS_ALONE && kind == DTP_BOUND_COLLECTIVE) ||
           (part == COLLECTIVES_ALONE && (kind == DTP_BOUND_COMPUTE || kind == DTP_BOUND_HOST));
}

/* Operations that are left out keep their place in the order of streams. */
static enum dtp_status walk_part(struct dtp_prober *p, struct walk *w, enum part part)
{
    struct dtp_bound_op *ops = w->program.binding.ops;
    enum dtp_bound_kind *kinds = malloc((w->ops + 1) * sizeof *kinds);
    double step_s;
    if (!kinds)
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < w->ops; i++) {
        kinds[i] = ops[i].kind;
        ops[i].kind = left_out(part, kinds[i]) ? DTP_BOUND_NOTHING : kinds[i];
    }
    enum dtp_status status = dtp_prober_barrier(p);
    if (status == DTP_OK) /* each part at the clock that it has by itself */
        status = dtp_probe_program_warm_up(p, &w->program, DTP_PROBE_LOAD_S, &step_s);
    if (status == DTP_OK)
        status = dtp_probe_program_spans(p, &w->program, STEPS, &w->spans[part]);
    for (size_t i = 0; i < w->ops; i++)
        ops[i].kind = kinds[i];
    free(kinds);
    return status;
}

static double seconds_of(const struct walk *w, enum part part, size_t op)
{
    double seconds[STEPS];
    for (int s = 0; s < STEPS; s++) {
        const double *span = &w->spans[part][((size_t)s * w->ops + op) * 2];
        seconds[s] = span[1] - span[0];
    }
    return dtp_median(seconds, 1, STEPS);
}

/* Seconds that two operations run beside each other, in the median step of the whole. */
static double overlap_s(const struct walk *w, size_t a, size_t b)
{
    double seconds[STEPS];
    for (int s = 0; s < STEPS; s++) {
        const double *first = &w->spans[WHOLE][((size_t)s * w->ops + a) * 2];
        const double *second = &w->spans[WHOLE][((size_t)s * w->ops + b) * 2];
        seconds[s] = fmax(0, fmin(first[1], second[1]) - fmax(first[0], second[0]));
    }
    return dtp_median(seconds, 1, STEPS);
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

/* A kind of collective of one group, as a row of the file says it. */
static struct dtp_measured_row row_of(const struct walk *w, size_t op, const char *suffix)
{
    const struct dtp_job *job = &w->program.job;
    struct dtp_measured_row of_op, row;
    dtp_measured_row_of_op(w->program.program, &dtp_program_ops(w->program.program)[op], &job->cluster, &of_op);
    row = dtp_measured_row_of(DTP_MEASUREMENT_CONTENTION, of_op.what);
    snprintf(row.what, sizeof row.what, "%.20s%s", of_op.what, suffix);
    for (int i = DTP_MEASURED_ranks; i <= DTP_MEASURED_nodes; i++)
        row.number[i] = of_op.number[i];
    return row;
}

static bool is(const struct walk *w, size_t op, enum dtp_bound_kind kind)
{
    return w->program.binding.ops[op].kind == kind;
}

/* Collectives like this one: the first of them stands for all. */
static bool alike(const struct walk *w, size_t a, size_t b)
{
    const struct dtp_op *ops = dtp_program_ops(w->program.program);
    return is(w, b, DTP_BOUND_COLLECTIVE) && ops[a].kind == ops[b].kind && ops[a].group == ops[b].group;
}

static bool is_first(const struct walk *w, size_t op)
{
    for (size_t i = 0; i < op; i++)
        if (alike(w, op, i))
            return false;
    return true;
}

/* A kernel's extra seconds belong to the collectives beside it by the time that each is. */
static enum dtp_status add_extra(struct dtp_prober *p, const struct walk *w, size_t collective)
{
    struct dtp_measured_row row = row_of(w, collective, "");
    double extra_s = 0, beside_s = 0, value;
    for (size_t i = 0; i < w->ops; i++) {
        double own_s = 0, all_s = 0;
        for (size_t c = 0; c < w->ops && is(w, i, DTP_BOUND_COMPUTE); c++) {
            double s = is(w, c, DTP_BOUND_COLLECTIVE) ? overlap_s(w, i, c) : 0;
            all_s += s;
            own_s += alike(w, collective, c) ? s : 0;
        }
        if (own_s <= 0)
            continue;
        beside_s += own_s;
        extra_s += (seconds_of(w, WHOLE, i) - seconds_of(w, KERNELS_ALONE, i)) * own_s / all_s;
    }
    value = beside_s >= LEAST_OVERLAP_S ? fmax(0, extra_s / beside_s) : (double)NAN;
    return dtp_prober_add(p, &row, &value, 1);
}

/* How much longer collectives like this one take beside kernels than alone, over those that have kernels beside them
 * for most of their time. A rank that comes first waits for the others, so how long one takes is the least that any
 * rank saw. */
static enum dtp_status add_slowdown(struct dtp_prober *p, const struct walk *w, size_t collective, double *all)
{
    struct dtp_measured_row row = row_of(w, collective, "_slowdown");
    double whole_s = 0, alone_s = 0, value = (double)NAN;
    enum dtp_status status = DTP_OK;
    for (size_t c = 0; c < w->ops && status == DTP_OK; c++) {
        if (!alike(w, collective, c))
            continue;
        double kernels_s = 0, mine[3] = {seconds_of(w, WHOLE, c), seconds_of(w, COLLECTIVES_ALONE, c)};
        for (size_t i = 0; i < w->ops; i++)
            kernels_s += is(w, i, DTP_BOUND_COMPUTE) ? overlap_s(w, i, c) : 0;
        mine[2] = kernels_s / mine[0];
        status = dtp_prober_gather(p, mine, 3, all);
        double least[2] = {INFINITY, INFINITY};
        for (uint32_t r = 0; r < p->ranks && p->first_rank && status == DTP_OK; r++)
            for (int i = 0; i < 2; i++)
                least[i] = fmin(least[i], all[r * 3 + (uint32_t)i]);
        if (p->first_rank && all[2] > 0.5) {
            whole_s += least[0];
            alone_s += least[1];
        }
    }
    if (whole_s >= LEAST_OVERLAP_S && alone_s > 0)
        value = whole_s / alone_s;
    return status == DTP_OK && p->first_rank && isfinite(value) ? dtp_probe_rows_add(&p->rows, &row, value, p->faults)
                                                                : status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static enum dtp_status add_figures(struct dtp_prober *p, const struct walk *w)
{
    double *all = malloc(p->ranks * 3 * sizeof *all);
    enum dtp_status status = all ? DTP_OK : dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < w->ops && status == DTP_OK; i++) {
        if (!is(w, i, DTP_BOUND_COLLECTIVE) || !is_first(w, i))
            continue;
        status = add_extra(p, w, i);
        if (status == DTP_OK)
            status = add_slowdown(p, w, i, all);
    }
    free(all);
    return status;
}

enum dtp_status dtp_probe_step_together(struct dtp_prober *p, const struct dtp_probe_step *step)
{
    struct walk w = {.ops = 0};
    enum dtp_status status = dtp_probe_program_open(p, &step->job, true, &w.program);
    w.ops = w.program.binding.op_count;
    for (int part = 0; part < PART_COUNT && status == DTP_OK; part++)
        status = walk_part(p, &w, (enum part)part);
    if (status == DTP_OK)
        status = add_figures(p, &w);
    for (int part = 0; part < PART_COUNT; part++)
        free(w.spans[part]);
    dtp_probe_program_close(p, &w.program);
    return status;
}
