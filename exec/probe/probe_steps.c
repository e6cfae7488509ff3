/* Step programs, timed operation by operation: seconds of kernels, gaps between them, launches. */
#include "probe/prober.h"

#include "base/quantile.h"
#include "cost/op_cost.h"
#include "machine/measured_least.h"
#include "program/measured_op.h"

#include <math.h>
#include <stdlib.h>

#define LEAST_STEPS 5
#define LEAST_HOST_STEPS 3
#define MOST_STEPS 15
#define STEPS_S 0.3 /* measured ones together take about this long */

/* How many steps take STEPS_S together, by the time of the quickest rank, so that all ranks make as many: steps may
 * share collectives. */
static enum dtp_status steps_for(struct dtp_prober *p, double step_s, uint32_t *out)
{
    enum dtp_status status = dtp_prober_least(p, &step_s, 1);
    uint32_t least = p->device->asynchronous ? LEAST_STEPS : LEAST_HOST_STEPS;
    double steps = STEPS_S / step_s;
    *out = steps < least ? least : steps > MOST_STEPS ? MOST_STEPS : (uint32_t)steps;
    return status;
}

/* ---- plain steps ------------------------------------------------------------------------------------------------- */

struct plain {
    double step_s, host_s; /* medians */
};

/* Ranks that start together share power and host as they will. */
static enum dtp_status run_plain(struct dtp_prober *p, struct dtp_probe_program *program, bool graph, uint32_t *steps,
                                 struct plain *out)
{
    double step_s[MOST_STEPS], host_s[MOST_STEPS];
    enum dtp_status status = dtp_prober_barrier(p);
    program->job.plan.executor.cuda_graph = graph;
    if (status == DTP_OK)
        status = dtp_probe_program_warm_up(p, program, graph ? 0 : DTP_PROBE_LOAD_S, &step_s[0]); /* graphs come hot */
    if (*steps == 0 && status == DTP_OK)
        status = steps_for(p, step_s[0], steps);
    for (uint32_t i = 0; i < *steps && status == DTP_OK; i++)
        status = dtp_probe_program_step(p, program, DTP_RUN_PLAIN, &step_s[i], &host_s[i]);
    if (status == DTP_OK)
        *out = (struct plain){dtp_median(step_s, 1, *steps), dtp_median(host_s, 1, *steps)};
    program->job.plan.executor.cuda_graph = false;
    return status;
}

/* A host's operations are timed as they run, so that plain steps tell nothing besides. */
static enum dtp_status warm_up_host(struct dtp_prober *p, struct dtp_probe_program *program, uint32_t *steps)
{
    double step_s = 1;
    enum dtp_status status = dtp_prober_barrier(p);
    if (status == DTP_OK)
        status = dtp_probe_program_warm_up(p, program, 0, &step_s);
    return status == DTP_OK ? steps_for(p, step_s, steps) : status;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* What two events with nothing between them are apart on a stream that is busy: a part of every span. */
static enum dtp_status event_seconds(struct dtp_prober *p, struct dtp_probe_program *program, double *out)
{
    enum { PAIRS = 9 };
    const struct dtp_device_verbs *verbs = p->device->verbs;
    void *stream = verbs->stream(p->device, DTP_STREAM_COMPUTE), *events[2 * PAIRS] = {NULL};
    struct dtp_zero_args before = {p->device_base, program->arena.device_bytes};
    double seconds[PAIRS];
    enum dtp_status status = DTP_OK;
    for (int i = 0; i < 2 * PAIRS && status == DTP_OK; i++)
        status = verbs->event_create(p->device, true, &events[i], p->faults);
    int code = status == DTP_OK ? p->device->kernels.zero(p->device->kernels.self, &before, stream) : 0;
    for (int i = 0; i < 2 * PAIRS && status == DTP_OK && !code; i++)
        code = verbs->record(p->device, events[i], stream);
    code = code || status != DTP_OK ? code : verbs->synchronise(p->device);
    for (int i = 0; i < PAIRS && status == DTP_OK && !code; i++)
        code = verbs->elapsed(p->device, events[2 * i], events[2 * i + 1], &seconds[i]);
    for (int i = 0; i < 2 * PAIRS; i++)
        verbs->event_destroy(p->device, events[i]);
    if (code)
        return dtp_prober_device_failed(p, code, "events could not be timed");
    *out = status == DTP_OK ? dtp_median(seconds, 1, PAIRS) : 0;
    return status;
}

/* What an operation adds to a step. A GPU's times scatter little and evenly: their median. Cores of a host are taken
 * away now and then, so that the times of an operation have a long tail, and a step of hundreds of operations takes the
 * sum of their means, which is some ten percent more than that of their medians; the slowest of four and more is left
 * out, for there a machine was busy with something else. */
static double typical_s(double *seconds, uint32_t steps, bool asynchronous)
{
    double median_s = dtp_median(seconds, 1, steps); /* which sorts them */
    uint32_t counted = steps >= 4 ? steps - 1 : steps;
    double sum_s = 0;
    for (uint32_t s = 0; s < counted; s++)
        sum_s += seconds[s];
    return asynchronous ? median_s : sum_s / counted;
}

/* Seconds that operation i adds to a step, less those of the events. */
static double typical_of(const struct dtp_probe_program *program, size_t i, const double *spans, uint32_t steps,
                         double event_s, bool asynchronous)
{
    size_t ops = program->binding.op_count;
    double seconds[MOST_STEPS];
    for (uint32_t s = 0; s < steps; s++)
        seconds[s] = spans[(s * ops + i) * 2 + 1] - spans[(s * ops + i) * 2];
    return typical_s(seconds, steps, asynchronous) - event_s;
}

/* From begin to end of a step whose operations were timed: median. */
static double span_s(const double *spans, size_t ops, uint32_t steps)
{
    double seconds[MOST_STEPS];
    for (uint32_t s = 0; s < steps; s++) {
        double begin = (double)INFINITY, end = -(double)INFINITY;
        for (size_t i = 0; i < ops; i++) {
            begin = fmin(begin, spans[(s * ops + i) * 2]);
            end = fmax(end, spans[(s * ops + i) * 2 + 1]);
        }
        seconds[s] = end - begin;
    }
    return dtp_median(seconds, 1, steps);
}

/* Tensor cores are as fast in a step as the rest of it leaves them power: what a machine file has of them is their
 * sustained rate (measured_row.h), from which the speed in a step follows that has more or less beside them. */
static void sustain(const struct dtp_probe_program *program, double step_s, double *seconds)
{
    const struct dtp_op *ops = dtp_program_ops(program->program);
    const struct dtp_gpu *gpu = &program->job.cluster.gpu;
    double drawn_s = 0;
    for (size_t i = 0; i < program->binding.op_count; i++)
        drawn_s += isfinite(seconds[i]) ? dtp_op_power(program->program, gpu, &ops[i]) * seconds[i] : 0;
    double speedup = dtp_matmul_speedup_of_step(gpu, drawn_s, step_s);
    for (size_t i = 0; i < program->binding.op_count; i++)
        if (dtp_op_at_power_limit(program->program, gpu, &ops[i]))
            seconds[i] *= speedup;
}

/* Whether an operation becomes a row: matmuls, attention and kernels do, the copies of a batch are too small. */
static bool is_row(const struct dtp_probe_program *program, size_t i, uint32_t ranks, struct dtp_measured_row *row)
{
    const struct dtp_op *op = &dtp_program_ops(program->program)[i];
    const struct dtp_job *job = &program->job;
    bool is =
        dtp_measured_row_of_op(program->program, op, &job->cluster, row) && row->measurement <= DTP_MEASUREMENT_KERNEL;
    if (is && dtp_cluster_is_host(&job->cluster)) /* a program of one rank, which all run at once */
        dtp_measured_row_of_host(row, job->plan.precision.compute, ranks);
    return is;
}

static enum dtp_status add_ops(struct dtp_prober *p, const struct dtp_probe_program *program, const double *mine)
{
    size_t ops = program->binding.op_count;
    double *all = p->first_rank ? malloc((p->ranks * ops + 1) * sizeof *all) : NULL;
    struct dtp_measured_row row;
    if (p->first_rank && !all)
        return dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_prober_gather(p, mine, (uint32_t)ops, all);
    for (size_t i = 0; i < ops && p->first_rank && status == DTP_OK; i++)
        for (uint32_t r = 0; r < p->ranks && status == DTP_OK; r++)
            if (isfinite(all[r * ops + i]) && is_row(program, i, p->ranks, &row))
                status = dtp_prober_keep(p, &row, all[r * ops + i]);
    free(all);
    return status;
}

/* ---- gaps -------------------------------------------------------------------------------------------------------- */

static double kernels_of(const struct dtp_probe_program *program)
{
    double kernels = 0;
    for (size_t i = 0; i < program->binding.op_count; i++)
        if (program->binding.ops[i].kind == DTP_BOUND_COMPUTE)
            kernels += dtp_program_ops(program->program)[i].demand->kernels;
    return kernels;
}

static double sum_of_compute(const struct dtp_probe_program *program, const double *seconds)
{
    double sum = 0;
    for (size_t i = 0; i < program->binding.op_count; i++)
        if (program->binding.ops[i].kind == DTP_BOUND_COMPUTE && isfinite(seconds[i]))
            sum += seconds[i];
    return sum;
}

static enum dtp_status add_step_row(struct dtp_prober *p, const char *what, double seconds)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_STEP, what);
    if (!(seconds > 0)) /* lost in the noise of this machine: no figure is better than a wrong one */
        seconds = (double)NAN;
    return dtp_prober_add(p, &row, &seconds, 1);
}

/* What a step takes beyond its kernels has a part for each kernel and one for its beginning and end. Two programs that
 * differ in depth alone tell the first apart: (t2 - t1) / (n2 - n1). Of the deeper, which follows the other. */
static enum dtp_status add_gaps(struct dtp_prober *p, const struct dtp_probe_step *step, double kernels,
                                const double beyond_s[2])
{
    static const char *const what[] = {"gap_live", "gap_graph"};
    double more = kernels - p->gap_kernels;
    enum dtp_status status = DTP_OK;
    for (int i = 0; i < 2 && status == DTP_OK && p->device->asynchronous; i++)
        if (step->way == DTP_PROBE_DEEP && more > 0)
            status = add_step_row(p, what[i], (beyond_s[i] - p->gap_begin_s[i]) / more);
    return status;
}

/* On a host operations follow each other in line, so the time from the end of one to the begin of the next is what lies
 * between operations. */
static enum dtp_status add_host_gap(struct dtp_prober *p, const struct dtp_probe_program *program, const double *spans,
                                    uint32_t steps)
{
    size_t ops = program->binding.op_count;
    double gaps[MOST_STEPS];
    for (uint32_t s = 0; s < steps; s++) {
        const double *span = &spans[s * ops * 2];
        gaps[s] = 0;
        for (size_t i = 1; i < ops; i++)
            gaps[s] += fmax(0, span[2 * i] - span[2 * i - 1]);
        gaps[s] /= fmax(1, kernels_of(program));
    }
    bool whole = p->of->pass.index + 1 == p->of->pass.count; /* of one pass: the row does not say by how many ranks */
    return whole ? add_step_row(p, "gap_live", dtp_median(gaps, 1, steps)) : DTP_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* One operation's seconds, NAN for what takes no time. False: they are below what a machine of this kind can do. */
static bool take_op(struct dtp_prober *p, const struct dtp_probe_program *program, size_t i, double seconds,
                    bool last_try, double *out)
{
    struct dtp_measured_row row;
    *out = (double)NAN;
    if (program->binding.ops[i].kind == DTP_BOUND_NOTHING)
        return true;
    bool counts = is_row(program, i, p->ranks, &row);
    bool possible = !counts || seconds >= dtp_measured_least_s(&row, &p->gpu);
    if (possible && seconds > 0)
        *out = seconds;
    if (!possible && last_try)
        dtp_prober_keep(p, &row, seconds);
    return possible;
}

/* Seconds that each operation adds to a step. While some are impossible on any rank, the step is timed again for these:
 * what is subtracted for events and what a core is slowed by are of another moment than the operation, and where a
 * machine is busy their difference may be next to nothing. *spans: of the last time; caller frees. */
static enum dtp_status time_ops(struct dtp_prober *p, struct dtp_probe_program *program, uint32_t steps, double **spans,
                                double *seconds)
{
    enum dtp_status status = DTP_OK;
    double event_s = 0, possible = -1; /* minus how many are not */
    for (int tries = 1; tries <= DTP_PROBE_TRIES && possible < 0 && status == DTP_OK; tries++) {
        free(*spans);
        *spans = NULL;
        status = dtp_probe_program_spans(p, program, steps, spans);
        if (status == DTP_OK)
            status = event_seconds(p, program, &event_s);
        possible = 0;
        for (size_t i = 0; i < program->binding.op_count && status == DTP_OK; i++)
            if (tries == 1 || isnan(seconds[i]))
                possible -=
                    !take_op(p, program, i, typical_of(program, i, *spans, steps, event_s, p->device->asynchronous),
                             tries == DTP_PROBE_TRIES, &seconds[i]);
        if (status == DTP_OK)
            status = dtp_prober_least(p, &possible, 1);
    }
    return status;
}

static enum dtp_status measure(struct dtp_prober *p, const struct dtp_probe_step *step,
                               struct dtp_probe_program *program, double *seconds)
{
    struct plain live = {0}, graph = {0};
    uint32_t steps = 0;
    double *spans = NULL, kernels = kernels_of(program);
    enum dtp_status status =
        p->device->asynchronous ? run_plain(p, program, false, &steps, &live) : warm_up_host(p, program, &steps);
    if (status == DTP_OK)
        status = time_ops(p, program, steps, &spans, seconds);
    if (status == DTP_OK && p->device->asynchronous)
        status = run_plain(p, program, true, &steps, &graph);
    if (status == DTP_OK && !p->device->asynchronous)
        status = add_host_gap(p, program, spans, steps);
    double busy_s = status == DTP_OK ? sum_of_compute(program, seconds) : 0;
    if (status == DTP_OK && p->device->asynchronous)
        sustain(program, span_s(spans, program->binding.op_count, steps), seconds);
    free(spans);
    if (status == DTP_OK)
        status = add_ops(p, program, seconds);
    double beyond_s[2] = {live.step_s - busy_s, graph.step_s - busy_s};
    if (status == DTP_OK)
        status = add_gaps(p, step, kernels, beyond_s);
    if (status == DTP_OK && step->way == DTP_PROBE_DEEP && p->device->asynchronous)
        status = add_step_row(p, "launch", live.host_s / kernels);
    p->gap_kernels = kernels;
    p->gap_begin_s[0] = beyond_s[0];
    p->gap_begin_s[1] = beyond_s[1];
    return status;
}

enum dtp_status dtp_probe_step(struct dtp_prober *p, const struct dtp_probe_step *step)
{
    struct dtp_probe_program program;
    enum dtp_status status = dtp_probe_program_open(p, &step->job, step->way == DTP_PROBE_TOGETHER, &program);
    double *seconds = malloc((program.binding.op_count + 1) * sizeof *seconds);
    if (!seconds)
        status = dtp_fault(p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        status = measure(p, step, &program, seconds);
    free(seconds);
    dtp_probe_program_close(p, &program);
    return status;
}
