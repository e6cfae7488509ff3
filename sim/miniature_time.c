#include "sim/miniature_time.h"

#include "cost/cluster_cost.h"
#include "job/estimate.h"
#include "lower/lower.h"
#include "lower/miniature.h"
#include "plan/rules.h"
#include "sim/line_up.h"
#include "sim/op_time.h"

#include <math.h>
#include <string.h>

#define SLACK_TOLERANCE 1e-5 /* of the step: what rounding makes of a slack of 0 */
#define COST_TOLERANCE 1e-4  /* of the step: by how much a collective's time may be off the line */

/* One short step. */
struct corner {
    struct dtp_program *program;
    struct dtp_op_rates rates;
    double *alone_s; /* of each operation, at the sustained rate */
    struct dtp_kernel_sums kernels;
    struct dtp_timeline timeline;
    struct dtp_step_sums sums;
    uint64_t layers;
    uint32_t micro_steps;
    const uint32_t *same; /* per operation of the smallest: which it is here */
};

/* corner[periods more than the smallest][micro-steps more]; an axis along which the step is whole has one. */
struct miniatures {
    const struct dtp_job *job;
    struct corner corner[2][2];
    int periods, micro_steps;        /* corners along each axis: 1 or 2 */
    double more_periods, more_steps; /* that the whole step has beyond the smallest; 0: along an axis with one */
    struct dtp_host_arena arena;
};

/* A sum over the whole step, of which `v` are those of the short steps: the formula of the header. */
static double line(const struct miniatures *m, double v[2][2])
{
    double whole = v[0][0], periods = m->periods > 1 ? v[1][0] - v[0][0] : 0;
    double steps = m->micro_steps > 1 ? v[0][1] - v[0][0] : 0;
    whole += m->more_periods * periods + m->more_steps * steps;
    if (m->periods > 1 && m->micro_steps > 1)
        whole += m->more_periods * m->more_steps * (v[1][1] - v[0][1] - periods);
    return whole;
}

#define EACH_CORNER(m, c)                                                                                              \
    for (int a_ = 0; a_ < (m)->periods; a_++)                                                                          \
        for (struct corner *c = (m)->corner[a_]; c < (m)->corner[a_] + (m)->micro_steps; c++)

/* ---- short steps ------------------------------------------------------------------------------------------------- */

static enum dtp_status prepare(const struct dtp_job *job, struct corner *c, struct dtp_host_arena *arena,
                               struct dtp_faults *faults)
{
    struct dtp_transformer transformer = job->transformer;
    struct dtp_plan plan = job->plan;
    transformer.layers = c->layers;
    plan.accumulate = c->micro_steps;
    enum dtp_status status = dtp_lower(&transformer, &job->cluster, &plan, 0, &c->program, faults);
    if (status == DTP_OK)
        status = dtp_op_rates_prepare(c->program, &job->cluster, &c->rates, faults);
    if (status != DTP_OK)
        return status;
    size_t count = dtp_program_op_count(c->program);
    c->alone_s = dtp_host_arena_take(arena, count, sizeof *c->alone_s);
    if (!c->alone_s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_op_seconds_all(&c->rates, c->alone_s, NULL);
    c->kernels = dtp_op_sum_kernels(&c->rates, c->alone_s);
    return DTP_OK;
}

static enum dtp_status simulate(const struct dtp_cluster *cluster, double speedup, struct corner *c,
                                struct dtp_host_arena *arena, struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.replay_allocator = false;
    options.op_s = c->alone_s;
    options.matmul_speedup = speedup;
    dtp_timeline_release(&c->timeline);
    enum dtp_status status = dtp_simulate(c->program, cluster, &options, &c->timeline, faults);
    if (status != DTP_OK)
        return status;
    const struct dtp_op *ops = dtp_program_ops(c->program);
    double *in_step_s = dtp_host_arena_take(arena, c->timeline.op_count, sizeof *in_step_s);
    if (!in_step_s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < c->timeline.op_count; i++)
        in_step_s[i] = dtp_op_in_step_s(&c->rates, &ops[i], c->alone_s[i], c->timeline.compute_factor, speedup);
    dtp_step_sums_of(c->program, &c->timeline, in_step_s, &c->sums);
    return DTP_OK;
}

static void release(struct miniatures *m)
{
    EACH_CORNER(m, c)
    {
        dtp_timeline_release(&c->timeline);
        dtp_op_rates_release(&c->rates);
        dtp_program_destroy(c->program);
    }
    dtp_host_arena_release(&m->arena);
}

/* ---- the whole step's sums --------------------------------------------------------------------------------------- */

static double line_of(const struct miniatures *m, size_t offset)
{
    double v[2][2] = {{0}};
    for (int a = 0; a < m->periods; a++)
        for (int b = 0; b < m->micro_steps; b++)
            memcpy(&v[a][b], (const char *)&m->corner[a][b] + offset, sizeof v[a][b]);
    return line(m, v);
}
#define LINE_OF(m, field) line_of(m, offsetof(struct corner, field))

static void sum(const struct miniatures *m, struct dtp_step_sums *out)
{
    double whole[DTP_STEP_SUM_COUNT];
    for (size_t i = 0; i < DTP_STEP_SUM_COUNT; i++)
        whole[i] = line_of(m, offsetof(struct corner, sums) + i * sizeof *whole);
    memcpy(out, whole, sizeof *out);
}

/* At the clock that the whole step has, found as simulate.c finds it. */
static enum dtp_status simulate_all(struct miniatures *m, struct dtp_miniature_time *out, struct dtp_faults *faults)
{
    const struct dtp_cluster *cluster = &m->job->cluster;
    struct dtp_kernel_sums kernels = {LINE_OF(m, kernels.matmul_s), LINE_OF(m, kernels.lighter_s),
                                      LINE_OF(m, kernels.other_s)};
    double tensor_s = kernels.matmul_s + kernels.lighter_s, speedup = 0;
    double wanted = dtp_kernel_speedup(cluster, &kernels, kernels.other_s);
    enum dtp_status status = DTP_OK;
    for (int pass = 0; pass < 2 && status == DTP_OK; pass++) {
        if (pass && fabs(wanted / speedup - 1) <= DTP_SPEEDUP_TOLERANCE)
            break;
        speedup = wanted;
        EACH_CORNER(m, c)
        if (status == DTP_OK)
            status = simulate(cluster, speedup, c, &m->arena, faults);
        sum(m, &out->sums);
        out->compute_factor = m->corner[0][0].timeline.compute_factor;
        double step_s = out->sums.step_s / out->compute_factor;
        wanted = dtp_kernel_speedup(cluster, &kernels, fmax(0, step_s - tensor_s / speedup));
    }
    out->matmul_speedup = speedup;
    return status;
}

/* ---- whether it runs steadily ------------------------------------------------------------------------------------ */

static enum dtp_status line_up(struct miniatures *m, struct dtp_faults *faults)
{
    struct corner *least = &m->corner[0][0];
    const struct dtp_line_up_side small = {least->program, least->layers};
    enum dtp_status status = DTP_OK;
    EACH_CORNER(m, c)
    {
        const struct dtp_line_up_side large = {c->program, c->layers};
        uint32_t *same = NULL;
        if (status == DTP_OK)
            status = dtp_line_up(&small, &large, &m->arena, &same);
        c->same = same;
    }
    return status == DTP_ENVIRONMENT ? dtp_fault(faults, status, NULL, 0, "out of memory") : status;
}

/* Whether collectives whose bytes grow with the net cost what the line says, to within a small part of the step: NCCL's
 * protocols and latencies bend it. */
static bool costs_are_lines(const struct miniatures *m, double step_s)
{
    const struct corner *least = &m->corner[0][0];
    const struct dtp_op *ops = dtp_program_ops(least->program);
    struct dtp_op_rates rates = least->rates;
    rates.measured_s = NULL; /* of the program's own operations, which `whole` is none of */
    for (uint32_t i = 0; i < dtp_program_op_count(least->program); i++) {
        if (dtp_op_kind_class(ops[i].kind) != DTP_CLASS_COLLECTIVE)
            continue;
        double sent[2][2] = {{0}}, seconds[2][2] = {{0}};
        bool grows = false;
        for (int a = 0; a < m->periods; a++)
            for (int b = 0; b < m->micro_steps; b++) {
                const struct corner *c = &m->corner[a][b];
                sent[a][b] = dtp_program_ops(c->program)[c->same[i]].demand->sent_bytes;
                seconds[a][b] = c->alone_s[c->same[i]];
                grows = grows || sent[a][b] != sent[0][0];
            }
        struct dtp_op whole = ops[i];
        struct dtp_demand demand = *whole.demand;
        demand.sent_bytes = line(m, sent);
        whole.demand = &demand;
        if (grows && fabs(dtp_op_seconds(&rates, &whole) - line(m, seconds)) > COST_TOLERANCE * step_s)
            return false;
    }
    return true;
}

/* Per operation the one before it on its stream and in its communicator, and per stream the last; DTP_NO_INDEX: none.
 */
struct before {
    uint32_t *on_stream, *in_group, last[DTP_STREAM_COUNT];
};

static bool find_before(const struct dtp_program *program, struct dtp_host_arena *arena, struct before *out)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t count = dtp_program_op_count(program), groups = dtp_program_group_count(program);
    uint32_t *in_group = dtp_host_arena_take(arena, groups + 1, sizeof *in_group);
    out->on_stream = dtp_host_arena_take(arena, count, sizeof *out->on_stream);
    out->in_group = dtp_host_arena_take(arena, count, sizeof *out->in_group);
    if (!in_group || !out->on_stream || !out->in_group)
        return false;
    memset(out->last, 0xff, sizeof out->last);
    memset(in_group, 0xff, groups * sizeof *in_group);
    for (uint32_t i = 0; i < count; i++) {
        out->on_stream[i] = out->last[ops[i].stream];
        out->last[ops[i].stream] = i;
        out->in_group[i] = DTP_NO_INDEX;
        if (ops[i].group == DTP_NO_INDEX)
            continue;
        out->in_group[i] = in_group[ops[i].group];
        in_group[ops[i].group] = i;
    }
    return true;
}

#define MOST_SLACKS (DTP_STREAM_COUNT + 2) /* dependencies are of other streams, at most one of each */

static double end_s(const struct corner *c, uint32_t op)
{
    return op == DTP_NO_INDEX ? 0 : c->timeline.span[op].end_s;
}

/* How much earlier than needed all that operation `op` waits for was there: dependencies, the one before on its stream
 * and in its communicator, the host. Returns how many; alike operations have as many, in the same order. */
static uint32_t slacks(const struct corner *c, const struct before *before, uint32_t index, double *out)
{
    const struct dtp_op *op = &dtp_program_ops(c->program)[index];
    const dtp_op_id *dependency = dtp_program_dependencies(c->program, op);
    const struct dtp_span *span = &c->timeline.span[index];
    double begins_s = op->kind == DTP_OP_HOST_WAIT ? span->end_s : span->start_s;
    uint32_t count = 0;
    for (uint32_t d = 0; d < op->dependency_count; d++)
        out[count++] = begins_s - end_s(c, dependency[d].index);
    out[count++] = begins_s - end_s(c, before->on_stream[index]);
    out[count++] = begins_s - end_s(c, before->in_group[index]);
    out[count++] = begins_s - c->timeline.issue_s[index];
    return count;
}

/* The same of the end of the step, for which all streams are waited. */
static uint32_t slacks_of_end(const struct corner *c, const struct before *before, double *out)
{
    for (int stream = 0; stream < DTP_STREAM_COUNT; stream++)
        out[stream] = c->timeline.step_s - end_s(c, before->last[stream]);
    return DTP_STREAM_COUNT;
}

/* The end of the path is its last place. */
static bool path_stays(const struct miniatures *m, struct before before[2][2], double tolerance_s)
{
    const struct dtp_timeline *least = &m->corner[0][0].timeline;
    for (size_t i = 0; i <= least->critical_count; i++) {
        double slack[2][2][MOST_SLACKS];
        uint32_t count = 0;
        for (int a = 0; a < m->periods; a++)
            for (int b = 0; b < m->micro_steps; b++) {
                const struct corner *c = &m->corner[a][b];
                count = i < least->critical_count ? slacks(c, &before[a][b], c->same[least->critical[i]], slack[a][b])
                                                  : slacks_of_end(c, &before[a][b], slack[a][b]);
            }
        for (uint32_t s = 0; s < count; s++) {
            double v[2][2] = {{0}};
            for (int a = 0; a < m->periods; a++)
                for (int b = 0; b < m->micro_steps; b++)
                    v[a][b] = slack[a][b][s];
            if (line(m, v) < -tolerance_s)
                return false;
        }
    }
    return true;
}

/* A part of the step that would be less than nothing has ended before. */
static bool parts_are_left(const struct dtp_step_sums *sums, double tolerance_s)
{
    const double parts_s[] = {sums->compute_s,         sums->optimizer_s,  sums->exposed_communication_s,
                              sums->exposed_offload_s, sums->host_bound_s, sums->bubble_s};
    for (size_t i = 0; i < sizeof parts_s / sizeof *parts_s; i++)
        if (parts_s[i] < -tolerance_s)
            return false;
    return true;
}

static enum dtp_status check(struct miniatures *m, const struct dtp_step_sums *sums, struct dtp_faults *faults)
{
    struct before before[2][2];
    for (int a = 0; a < m->periods; a++)
        for (int b = 0; b < m->micro_steps; b++)
            if (!find_before(m->corner[a][b].program, &m->arena, &before[a][b]))
                return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    bool steady = parts_are_left(sums, SLACK_TOLERANCE * sums->step_s) && costs_are_lines(m, sums->step_s) &&
                  path_stays(m, before, SLACK_TOLERANCE * sums->step_s);
    return steady ? DTP_OK : DTP_NO;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Of `layers` and more, or of all of them where `layers` is 0. */
static enum dtp_status from(const struct dtp_job *job, const struct dtp_miniature_size *size, uint64_t layers,
                            struct dtp_miniature_time *out, struct dtp_faults *faults)
{
    struct miniatures m = {.job = job, .periods = layers ? 2 : 1};
    uint32_t most = size->micro_steps;
    bool repeats = job->plan.accumulate > most;
    m.micro_steps = repeats ? 2 : 1;
    m.more_periods = layers ? (double)((job->transformer.layers - layers) / size->period) : 0;
    m.more_steps = repeats ? (double)(job->plan.accumulate - (most - 1)) : 0;
    enum dtp_status status = DTP_OK;
    EACH_CORNER(&m, c)
    {
        c->layers = (layers ? layers : job->transformer.layers) + (c >= m.corner[1] ? size->period : 0);
        c->micro_steps = repeats && (c == m.corner[0] || c == m.corner[1]) ? most - 1 : most;
        if (status == DTP_OK)
            status = prepare(job, c, &m.arena, faults);
    }
    if (status == DTP_OK)
        status = line_up(&m, faults);
    if (status == DTP_OK)
        status = simulate_all(&m, out, faults);
    if (status == DTP_OK)
        status = check(&m, &out->sums, faults);
    out->layers = m.corner[m.periods - 1][0].layers;
    out->micro_steps = most;
    release(&m);
    return status;
}

enum dtp_status dtp_miniature_time_of(const struct dtp_job *job, struct dtp_miniature_time *out,
                                      struct dtp_faults *faults)
{
    const struct dtp_transformer *t = &job->transformer;
    uint64_t pattern = t->sliding_window && t->sliding_window_pattern ? t->sliding_window_pattern : 1;
    struct dtp_miniature_size size = dtp_miniature_size_of(t, &job->plan, pattern);
    enum dtp_status status = DTP_NO;
    if (dtp_cluster_is_host(&job->cluster))
        return DTP_NO; /* its cores do one operation after the other: that is another graph */
    /* DDP's buckets end anywhere in a layer, elsewhere in each: two short nets whose buckets agree prove nothing. */
    if (size.layers && !dtp_plan_has_ddp_buckets(&job->plan, &job->cluster))
        status = from(job, &size, size.layers, out, faults);
    if (status == DTP_NO && job->plan.accumulate > size.micro_steps)
        status = from(job, &size, 0, out, faults);
    return status;
}

static enum dtp_status predict(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                               struct dtp_faults *faults)
{
    struct dtp_miniature_time miniature;
    (void)context;
    enum dtp_status status = dtp_miniature_time_of(job, &miniature, faults);
    if (status == DTP_NO)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "the time of its step does not follow from shorter steps; simulate it whole");
    if (status != DTP_OK)
        return status;
    status = dtp_estimate(&job->transformer, &job->cluster, &job->plan, out, faults);
    if (status == DTP_OK)
        dtp_step_time_of(&miniature.sums, &out->time, &out->throughput);
    return status;
}

struct dtp_predictor dtp_predictor_miniature(void)
{
    return (struct dtp_predictor){.name = "estimated", .predict = predict};
}
