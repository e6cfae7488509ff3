#include "simulated.h"

#include "lower.h"
#include "op_time.h"

#include <string.h>

/* The phase in which an operation is issued: that of the last mark before it. */
static enum dtp_phase phase_of(const struct dtp_program *program, uint32_t op)
{
    static const struct {
        const char *mark;
        enum dtp_phase phase;
    } marks[] = {{"loss", DTP_PHASE_LOSS}, {"backward", DTP_PHASE_EARLY_BACKWARD}, {"step", DTP_PHASE_STEP}};
    const struct dtp_op *ops = dtp_program_ops(program);
    for (uint32_t i = op + 1; i-- > 0;)
        if (ops[i].kind == DTP_OP_MARK)
            for (size_t k = 0; k < sizeof marks / sizeof *marks; k++)
                if (strcmp(ops[i].name, marks[k].mark) == 0)
                    return marks[k].phase;
    return DTP_PHASE_FORWARD_END;
}

static void fill_memory(const struct dtp_simulated *s, struct dtp_memory *m)
{
    enum dtp_phase phase =
        dtp_program_op_count(s->program) ? phase_of(s->program, s->placement.live_peak_op) : DTP_PHASE_FORWARD_END;
    m->peak_phase = phase;
    memcpy(m->phase_bytes[phase], s->placement.live_peak_owner_bytes, sizeof m->phase_bytes[phase]);
    m->phase_total_bytes[phase] = s->placement.live_peak_bytes;
    m->allocated_peak_bytes = s->timeline.allocated_peak_bytes;
    m->reserved_peak_bytes = s->timeline.reserved_peak_bytes;
    m->device_peak_bytes = m->reserved_peak_bytes + m->context_bytes + m->nccl_bytes;
    m->verdict = dtp_memory_verdict(m);
}

/* Kernel time by what it is for, as it ran: beside collectives kernels take longer than alone. */
static void fill_kernel_times(const struct dtp_simulated *s, struct dtp_time *t)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    t->matmul_s = t->attention_s = t->memory_bound_s = t->loss_s = t->recompute_s = 0;
    for (size_t i = 0; i < s->timeline.op_count; i++) {
        double duration_s = s->timeline.span[i].end_s - s->timeline.span[i].start_s;
        enum dtp_op_class class = dtp_op_kind_class(ops[i].kind);
        if (ops[i].stream != DTP_STREAM_COMPUTE || !dtp_op_is_kernel(&ops[i]) || ops[i].kind == DTP_OP_OPTIMIZER)
            continue;
        if (ops[i].demand.recompute)
            t->recompute_s += duration_s;
        else if (class == DTP_CLASS_MATMUL)
            t->matmul_s += duration_s;
        else if (class == DTP_CLASS_ATTENTION)
            t->attention_s += duration_s;
        else if (ops[i].kind == DTP_OP_LOSS || ops[i].kind == DTP_OP_LOSS_BACKWARD)
            t->loss_s += duration_s;
        else
            t->memory_bound_s += duration_s;
    }
}

static void fill_time(const struct dtp_simulated *s, struct dtp_time *t)
{
    const struct dtp_timeline *line = &s->timeline;
    fill_kernel_times(s, t);
    t->host_launch_s = line->op_count ? line->issue_s[line->op_count - 1] : 0;
    t->compute_s = line->compute_s + line->host_bound_s;
    t->optimizer_s = line->optimizer_s;
    t->communication_s = line->communication_s;
    memcpy(t->collective_s, line->communication_by_collective_s, sizeof t->collective_s);
    t->exposed_communication_s = line->exposed_communication_s;
    t->exposed_offload_s = line->exposed_offload_s;
    t->bubble_s = line->bubble_s;
    t->step_s = line->step_s;
}

/* Throughput is inverse to the step's time; what is computed in it stays. */
static void fill_throughput(double closed_step_s, double step_s, struct dtp_throughput *t)
{
    double ratio = step_s > 0 ? closed_step_s / step_s : 0;
    t->tokens_per_s *= ratio;
    t->tokens_per_s_per_gpu *= ratio;
    t->flops_per_s_per_gpu *= ratio;
    t->mfu *= ratio;
    t->hfu *= ratio;
}

/* Kernels as the simulation scales them: of the slowest rank, matmuls at the clock that power allows. */
static void price(const struct dtp_op_rates *rates, const struct dtp_op *op, struct dtp_simulated *s, double *alone_s)
{
    double gaps_s = op->demand.kernels * rates->gap_s;
    *alone_s = dtp_op_seconds(rates, op);
    if (!dtp_op_is_kernel(op))
        return;
    if (dtp_op_kind_class(op->kind) == DTP_CLASS_MATMUL)
        *alone_s = (*alone_s - gaps_s) / s->timeline.matmul_speedup + gaps_s;
    *alone_s *= s->timeline.compute_factor;
    if (op->stream == DTP_STREAM_COMPUTE && op->kind != DTP_OP_OPTIMIZER)
        s->kernels_alone_s += *alone_s;
}

static enum dtp_status add_alone_times(struct dtp_simulated *s, struct dtp_faults *faults)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    struct dtp_op_rates rates;
    s->alone_s = dtp_host_arena_take(&s->timeline.memory, s->timeline.op_count + 1, sizeof *s->alone_s);
    if (!s->alone_s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status =
        dtp_op_rates_prepare(s->program, &s->job.transformer, &s->job.cluster, &s->job.plan, &rates, faults);
    if (status != DTP_OK)
        return status;
    for (size_t i = 0; i < s->timeline.op_count; i++)
        price(&rates, &ops[i], s, &s->alone_s[i]);
    dtp_op_rates_release(&rates);
    return DTP_OK;
}

enum dtp_status dtp_simulated_create(const struct dtp_job *job, const struct dtp_simulation_options *options,
                                     struct dtp_simulated *out, struct dtp_faults *faults)
{
    memset(out, 0, sizeof *out);
    out->job = *job;
    const struct dtp_transformer *transformer = &job->transformer;
    const struct dtp_cluster *cluster = &job->cluster;
    const struct dtp_plan *plan = &job->plan;
    dtp_closed_form(transformer, cluster, plan, &out->closed);
    out->prediction = out->closed;
    enum dtp_status status = dtp_lower(transformer, cluster, plan, DTP_SIMULATED_MAX_OPS, &out->program, faults);
    if (status == DTP_OK)
        status = dtp_program_place(out->program, &out->placement, faults);
    if (status == DTP_OK)
        status = dtp_simulate(out->program, transformer, cluster, plan, options, &out->timeline, faults);
    if (status == DTP_OK)
        status = add_alone_times(out, faults);
    if (status != DTP_OK) {
        dtp_simulated_release(out);
        return status;
    }
    dtp_program_sum(out->program, &out->totals);
    fill_memory(out, &out->prediction.memory);
    fill_time(out, &out->prediction.time);
    fill_throughput(out->closed.time.step_s, out->prediction.time.step_s, &out->prediction.throughput);
    return DTP_OK;
}

void dtp_simulated_release(struct dtp_simulated *simulated)
{
    dtp_timeline_release(&simulated->timeline);
    dtp_placement_release(&simulated->placement);
    dtp_program_destroy(simulated->program);
    memset(simulated, 0, sizeof *simulated);
}

static enum dtp_status predict_simulated(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                         struct dtp_faults *faults)
{
    struct dtp_simulated simulated;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    (void)context;
    enum dtp_status status = dtp_simulated_create(job, &options, &simulated, faults);
    if (status != DTP_OK)
        return status;
    *out = simulated.prediction;
    dtp_simulated_release(&simulated);
    return DTP_OK;
}

struct dtp_predictor dtp_predictor_simulated(void)
{
    return (struct dtp_predictor){"simulated", NULL, predict_simulated};
}
