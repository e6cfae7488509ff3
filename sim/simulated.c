#include "sim/simulated.h"

#include "cost/op_cost.h"
#include "job/estimate.h"
#include "plan/runtime.h"
#include "lower/lower.h"
#include "program/live_runs.h"
#include "program/verify.h"
#include "sim/op_time.h"
#include "sim/step_time.h"

#include <stdlib.h>
#include <string.h>

#define TIGHT_MAX_BUFFERS 10000 /* 40 ms */

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The estimate of the same program, its tensors as the allocator or the arena lays them. */
static void fill_memory(const struct dtp_program *program, const struct dtp_placement *placement,
                        struct dtp_simulated_role *role)
{
    struct dtp_memory *m = &role->memory;
    *m = role->estimated;
    bool arena = dtp_program_execution(program)->allocator ==
                 DTP_ALLOCATOR_ARENA; /* our executor owns its memory: no segments, no rounding */
    m->allocated_peak_bytes = arena ? placement->arena_bytes : role->timeline.allocated_peak_bytes;
    const uint64_t *peak = m->phase_bytes[m->peak_phase];
    m->temporary_bytes = m->allocated_peak_bytes - peak[DTP_OWNER_PARAMS] - peak[DTP_OWNER_GRADS] -
                         peak[DTP_OWNER_OPTIMIZER] - peak[DTP_OWNER_ACTIVATIONS];
    m->reserved_peak_bytes = arena ? placement->arena_bytes : role->timeline.reserved_peak_bytes;
    m->device_peak_bytes = m->reserved_peak_bytes + m->context_bytes + m->nccl_bytes;
    dtp_memory_judge(m);
}

enum dtp_status dtp_simulated_role_memory(const struct dtp_simulated *s, uint32_t role, struct dtp_memory *out,
                                          struct dtp_memory_parts *parts, struct dtp_faults *faults)
{
    struct dtp_live_runs runs = {.run = NULL};
    struct dtp_live_bytes live;
    struct dtp_slice slice;
    enum dtp_status status = dtp_live_runs_of(s->set.roles[role].program, &runs, faults);
    if (status == DTP_OK) {
        dtp_estimate_slice(&s->job.transformer, &s->job.cluster, &s->job.plan, &slice);
        dtp_live_bytes_sum(&runs, slice.transformer.layers, &live);
        slice.plan.pipeline_two_tables &= role == 0 || role == s->job.plan.head_rank;
        dtp_memory_of_live(&live, &slice.transformer, &slice.cluster, &slice.plan, out, parts);
    }
    dtp_live_runs_release(&runs);
    return status;
}

/* Segments are replayed of those roles whose tensors come near to the largest; a replay takes as long as a simulation,
 * and no segments make a stage the worst that is so far below. */
#define NEAR_LARGEST 0.9

/* Who owns an arena packs it tightly, as long as that takes no longer than the simulation. */
static enum dtp_status place(const struct dtp_program *program, struct dtp_placement *out, struct dtp_faults *faults)
{
    bool owned = dtp_program_execution(program)->allocator == DTP_ALLOCATOR_ARENA;
    if (owned && dtp_program_buffer_count(program) <= TIGHT_MAX_BUFFERS)
        return dtp_program_place_tight(program, out, faults);
    return dtp_program_place(program, out, faults);
}

/* Memory of one role. Where there are several, each has an arena of its own. */
static enum dtp_status fill_role_memory(struct dtp_simulated *s, uint32_t role, struct dtp_faults *faults)
{
    const struct dtp_program *program = s->set.roles[role].program;
    bool arena = dtp_program_execution(program)->allocator == DTP_ALLOCATOR_ARENA;
    struct dtp_placement own = {.offset_bytes = NULL};
    enum dtp_status status = arena && s->set.role_count > 1 ? place(program, &own, faults) : DTP_OK;
    if (status == DTP_OK)
        fill_memory(program, own.offset_bytes ? &own : &s->placement, &s->roles[role]);
    dtp_placement_release(&own);
    return status;
}

static enum dtp_status replay_allocators(struct dtp_simulated *s, bool asked, bool every, struct dtp_faults *faults)
{
    uint64_t largest = 0;
    enum dtp_status status = DTP_OK;
    for (uint32_t r = 0; r < s->set.role_count; r++)
        largest =
            s->roles[r].estimated.allocated_peak_bytes > largest ? s->roles[r].estimated.allocated_peak_bytes : largest;
    for (uint32_t r = 0; r < s->set.role_count && status == DTP_OK; r++) {
        struct dtp_simulated_role *role = &s->roles[r];
        bool near = s->job.plan.runtime->arena ||
                    (double)role->estimated.allocated_peak_bytes >= NEAR_LARGEST * (double)largest;
        if (!near && !every)
            continue;
        if (asked)
            status = dtp_timeline_replay(s->set.roles[r].program, &role->timeline, faults);
        if (status == DTP_OK)
            status = fill_role_memory(s, r, faults);
    }
    return status;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static enum dtp_status add_alone_times(struct dtp_simulated *s, uint32_t index, struct dtp_faults *faults)
{
    const struct dtp_program *program = s->set.roles[index].program;
    const struct dtp_op *ops = dtp_program_ops(program);
    struct dtp_simulated_role *role = &s->roles[index];
    struct dtp_op_rates rates;
    role->alone_s = dtp_host_arena_take(&role->timeline.memory, role->timeline.op_count + 1, sizeof *role->alone_s);
    if (!role->alone_s)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = dtp_op_rates_prepare(program, &s->job.cluster, &rates, faults);
    if (status != DTP_OK)
        return status;
    if (s->set.role_count > 1 && !dtp_op_rates_place(&rates, &s->set, index))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK)
        dtp_op_seconds_all(&rates, role->alone_s, NULL);
    for (size_t i = 0; i < role->timeline.op_count && status == DTP_OK; i++)
        role->alone_s[i] = dtp_op_in_step_s(&rates, &ops[i], role->alone_s[i], role->timeline.compute_factor,
                                            role->timeline.matmul_speedup);
    dtp_op_rates_release(&rates);
    return status;
}

/* What an average role does in the step, which is as long for all. */
static void add_time(struct dtp_simulated *s)
{
    struct dtp_step_sums mean = {0};
    double *sums = (double *)&mean;
    for (uint32_t r = 0; r < s->set.role_count; r++) {
        struct dtp_simulated_role *role = &s->roles[r];
        struct dtp_step_sums of_role;
        dtp_step_sums_of(s->set.roles[r].program, &role->timeline, role->alone_s, &of_role);
        role->kernels_alone_s = of_role.kernels_s;
        for (size_t i = 0; i < DTP_STEP_SUM_COUNT; i++)
            sums[i] += ((const double *)&of_role)[i] / s->set.role_count;
        dtp_program_sum(s->set.roles[r].program, &role->totals);
    }
    dtp_step_time_of(&mean, &s->prediction.time, &s->prediction.throughput);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_simulated_prove(const struct dtp_simulated *s, struct dtp_faults *faults)
{
    const enum dtp_status status = s->set.role_count == 1 ? dtp_program_verify(s->set.roles[0].program, faults)
                                                          : dtp_program_set_verify(&s->set, DTP_ISSUE_STREAMS, faults);
    return status == DTP_BAD_INPUT
               ? dtp_fault(faults, status, NULL, 0, "this is a mistake of dtplan, report it with the command")
               : status;
}

/* A simulation of a program that reads what is gone says nothing. Lowering is not expected to make one, so users do not
 * wait for the proof (as long as lowering itself); debug builds, and with them the tests, prove every set. */
static enum dtp_status prove_in_debug(const struct dtp_simulated *s, struct dtp_faults *faults)
{
#ifdef DTP_PROVE_BEFORE_SIMULATION
    return dtp_simulated_prove(s, faults);
#else
    (void)s, (void)faults;
    return DTP_OK;
#endif
}

static enum dtp_status simulate(struct dtp_simulated *s, const struct dtp_simulation_options *options,
                                struct dtp_faults *faults)
{
    uint32_t count = s->set.role_count;
    struct dtp_timeline *timelines = calloc(count, sizeof *timelines);
    s->roles = calloc(count, sizeof *s->roles);
    if (!timelines || !s->roles) {
        free(timelines);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to simulate %u roles", count);
    }
    struct dtp_simulation_options unreplayed = *options;
    unreplayed.replay_allocator = false;
    enum dtp_status status = dtp_simulate_proved_set(&s->set, &s->job.cluster, &unreplayed, timelines, faults);
    for (uint32_t r = 0; r < count; r++)
        s->roles[r].timeline = timelines[r];
    free(timelines);
    for (uint32_t r = 0; r < count && status == DTP_OK; r++)
        status = add_alone_times(s, r, faults);
    for (uint32_t r = 0; r < count && status == DTP_OK; r++)
        status = dtp_simulated_role_memory(s, r, &s->roles[r].estimated, NULL, faults);
    for (uint32_t r = 0; r < count && status == DTP_OK; r++)
        s->roles[r].memory = s->roles[r].estimated;
    return status == DTP_OK ? replay_allocators(s, options->replay_allocator, options->every_allocator, faults)
                            : status;
}

/* What readers of one program are shown. */
static enum dtp_status choose_worst(struct dtp_simulated *s, struct dtp_faults *faults)
{
    for (uint32_t r = 1; r < s->set.role_count; r++)
        if (s->roles[r].memory.device_peak_bytes > s->roles[s->worst].memory.device_peak_bytes)
            s->worst = r;
    const struct dtp_simulated_role *worst = &s->roles[s->worst];
    s->program = s->set.roles[s->worst].program;
    s->timeline = worst->timeline;
    s->totals = worst->totals;
    s->alone_s = worst->alone_s;
    s->kernels_alone_s = worst->kernels_alone_s;
    s->closed.memory = worst->estimated;
    s->prediction.memory = worst->memory;
    for (uint32_t r = 0; r < DTP_PREDICTED_STAGES; r++)
        s->prediction.stage_allocated_bytes[r] = r < s->set.role_count ? s->roles[r].memory.allocated_peak_bytes : 0;
    return s->set.role_count > 1 ? place(s->program, &s->placement, faults) : DTP_OK;
}

enum dtp_status dtp_simulated_create(const struct dtp_job *job, const struct dtp_simulation_options *options,
                                     struct dtp_simulated *out, struct dtp_faults *faults)
{
    memset(out, 0, sizeof *out);
    out->job = *job;
    const struct dtp_transformer *transformer = &job->transformer;
    const struct dtp_cluster *cluster = &job->cluster;
    const struct dtp_plan *plan = &job->plan;
    enum dtp_status status = dtp_estimate_time(transformer, cluster, plan, &out->closed, faults);
    out->prediction = out->closed;
    uint32_t limit = options->op_limit ? options->op_limit : DTP_LOWER_MOST_OPS;
    if (status == DTP_OK)
        status = dtp_lower_set(transformer, cluster, plan, limit, &out->set, faults);
    if (status == DTP_OK)
        status = prove_in_debug(out, faults);
    if (status == DTP_OK && out->set.role_count == 1)
        status = place(out->set.roles[0].program, &out->placement, faults);
    if (status == DTP_OK)
        status = simulate(out, options, faults);
    if (status == DTP_OK) {
        add_time(out);
        status = choose_worst(out, faults);
    }
    if (status != DTP_OK)
        dtp_simulated_release(out);
    return status;
}

void dtp_simulated_release(struct dtp_simulated *simulated)
{
    for (uint32_t r = 0; simulated->roles && r < simulated->set.role_count; r++)
        dtp_timeline_release(&simulated->roles[r].timeline);
    free(simulated->roles);
    dtp_placement_release(&simulated->placement);
    dtp_program_set_release(&simulated->set);
    memset(simulated, 0, sizeof *simulated);
}

enum dtp_status dtp_simulated_scatter(struct dtp_simulated *s, const struct dtp_simulation_options *options,
                                      double deviation, size_t samples, struct dtp_faults *faults)
{
    if (!(deviation > 0) && dtp_cluster_measured_gpus(&s->job.cluster) >= s->job.cluster.gpus)
        return DTP_OK;
    s->deviation =
        deviation > 0 ? deviation : dtp_simulated_rank_deviation(dtp_program_execution(s->set.roles[0].program));
    s->samples = samples;
    return dtp_noise_step_quantiles(&s->set, &s->job.cluster, options, deviation, samples, &s->quantiles, faults);
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

/* Where they are compared with runs, stages far below the largest count too. */
#define FEW_STAGES 8

static enum dtp_status predict_simulated(const void *context, const struct dtp_job *job, struct dtp_prediction *out,
                                         struct dtp_faults *faults)
{
    struct dtp_simulation_options options = dtp_simulation_options_default();
    const uint32_t *op_limit = context;
    options.op_limit = op_limit ? *op_limit : 0;
    options.every_allocator = job->plan.pp <= FEW_STAGES;
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
