#include "sim/simulated.h"

#include "cost/calibration.h"
#include "lower/lower.h"
#include "program/live_runs.h"
#include "program/verify.h"
#include "sim/op_time.h"
#include "sim/step_time.h"

#include <string.h>

#define TIGHT_MAX_BUFFERS 10000 /* 40 ms */

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The estimate of the same program, its tensors as the allocator or the arena lays them. */
static void fill_memory(const struct dtp_simulated *s, struct dtp_memory *m)
{
    *m = s->closed.memory;
    bool arena = dtp_program_execution(s->program)->allocator ==
                 DTP_ALLOCATOR_ARENA; /* our executor owns its memory: no segments, no rounding */
    m->allocated_peak_bytes = arena ? s->placement.arena_bytes : s->timeline.allocated_peak_bytes;
    const uint64_t *peak = m->phase_bytes[m->peak_phase];
    m->temporary_bytes = m->allocated_peak_bytes - peak[DTP_OWNER_PARAMS] - peak[DTP_OWNER_GRADS] -
                         peak[DTP_OWNER_OPTIMIZER] - peak[DTP_OWNER_ACTIVATIONS];
    m->reserved_peak_bytes = arena ? s->placement.arena_bytes : s->timeline.reserved_peak_bytes;
    m->device_peak_bytes = m->reserved_peak_bytes + m->context_bytes + m->nccl_bytes;
    dtp_memory_judge(m);
}

static enum dtp_status add_memory(struct dtp_simulated *s, struct dtp_faults *faults)
{
    struct dtp_live_runs runs = {.run = NULL};
    struct dtp_live_bytes live;
    enum dtp_status status = dtp_live_runs_of(s->program, &runs, faults);
    if (status == DTP_OK) {
        dtp_live_bytes_sum(&runs, s->job.transformer.layers, &live);
        dtp_memory_of_live(&live, &s->job.transformer, &s->job.cluster, &s->job.plan, &s->closed.memory, NULL);
        fill_memory(s, &s->prediction.memory);
    }
    dtp_live_runs_release(&runs);
    return status;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static enum dtp_status add_alone_times(struct dtp_simulated *s, struct dtp_faults *faults)
{
    const struct dtp_op *ops = dtp_program_ops(s->program);
    struct dtp_op_rates rates;
    s->alone_s = dtp_host_arena_take(&s->timeline.memory, s->timeline.op_count + 1, sizeof *s->alone_s);
    if (!s->alone_s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_op_rates_prepare(s->program, &s->job.cluster, &rates, faults);
    if (status != DTP_OK)
        return status;
    for (size_t i = 0; i < s->timeline.op_count; i++)
        s->alone_s[i] = dtp_op_in_step_s(&rates, &ops[i], dtp_op_seconds(&rates, &ops[i]), s->timeline.compute_factor,
                                         s->timeline.matmul_speedup);
    dtp_op_rates_release(&rates);
    return DTP_OK;
}

/* Who owns an arena packs it tightly, as long as that takes no longer than the simulation. */
static enum dtp_status place(struct dtp_simulated *s, struct dtp_faults *faults)
{
    bool owned = dtp_program_execution(s->program)->allocator == DTP_ALLOCATOR_ARENA;
    if (owned && dtp_program_buffer_count(s->program) <= TIGHT_MAX_BUFFERS)
        return dtp_program_place_tight(s->program, &s->placement, faults);
    return dtp_program_place(s->program, &s->placement, faults);
}

/* A simulation of a program that reads what is gone says nothing. Lowering is not expected to make one, so users do not
 * wait for the proof (as long as lowering itself); debug builds, and with them the tests, prove every program. */
static enum dtp_status prove(const struct dtp_program *program, struct dtp_faults *faults)
{
#ifdef DTP_PROVE_BEFORE_SIMULATION
    return dtp_program_verify(program, faults);
#else
    (void)program, (void)faults;
    return DTP_OK;
#endif
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
    uint32_t limit = options->op_limit ? options->op_limit : DTP_LOWER_MOST_OPS;
    enum dtp_status status = dtp_lower(transformer, cluster, plan, limit, &out->program, faults);
    if (status == DTP_OK)
        status = prove(out->program, faults);
    if (status == DTP_OK)
        status = place(out, faults);
    if (status == DTP_OK)
        status = dtp_simulate(out->program, cluster, options, &out->timeline, faults);
    if (status == DTP_OK)
        status = add_alone_times(out, faults);
    if (status == DTP_OK)
        status = add_memory(out, faults);
    if (status != DTP_OK) {
        dtp_simulated_release(out);
        return status;
    }
    dtp_program_sum(out->program, &out->totals);
    struct dtp_step_sums sums;
    dtp_step_sums_of(out->program, &out->timeline, out->alone_s, &sums);
    out->kernels_alone_s = sums.kernels_s;
    dtp_step_time_of(&sums, &out->prediction.time, &out->prediction.throughput);
    return DTP_OK;
}

void dtp_simulated_release(struct dtp_simulated *simulated)
{
    dtp_timeline_release(&simulated->timeline);
    dtp_placement_release(&simulated->placement);
    dtp_program_destroy(simulated->program);
    memset(simulated, 0, sizeof *simulated);
}

enum dtp_status dtp_simulated_scatter(struct dtp_simulated *s, const struct dtp_simulation_options *options,
                                      double deviation, size_t samples, struct dtp_faults *faults)
{
    if (!(deviation > 0) && dtp_cluster_measured_gpus(&s->job.cluster) >= s->job.cluster.gpus)
        return DTP_OK;
    s->deviation = deviation > 0 ? deviation : dtp_calibration.simulated_rank_deviation;
    s->samples = samples;
    return dtp_noise_step_quantiles(s->program, &s->job.cluster, options, deviation, samples, &s->quantiles, faults);
}

static enum dtp_status predict(const struct dtp_job *job, const struct dtp_simulation_options *options,
                               struct dtp_prediction *out, struct dtp_faults *faults)
{
    struct dtp_simulated simulated;
    enum dtp_status status = dtp_simulated_create(job, options, &simulated, faults);
    if (status != DTP_OK)
        return status;
    *out = simulated.prediction;
    dtp_simulated_release(&simulated);
    return DTP_OK;
}

static enum dtp_status predict_simulated(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                         struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    const uint32_t *op_limit = context;
    options.op_limit = op_limit ? *op_limit : 0;
    return predict(job, &options, out, faults);
}

struct dtp_predictor dtp_predictor_simulated_within(const uint32_t *op_limit)
{
    return (struct dtp_predictor){.name = "simulated", .context = op_limit, .predict = predict_simulated};
}

struct dtp_predictor dtp_predictor_simulated(void)
{
    return (struct dtp_predictor){.name = "simulated", .predict = predict_simulated};
}
