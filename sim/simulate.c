#include "sim/simulate.h"

#include "cost/calibration.h"
#include "sim/caching_allocator.h"
#include "sim/engine.h"
#include "sim/noise.h"
#include "sim/timeline.h"

#include <math.h>

struct dtp_simulation_options dtp_simulation_options_default(void)
{
    return (struct dtp_simulation_options){.contention = true, .power_headroom = true, .replay_allocator = true};
}

void dtp_timeline_release(struct dtp_timeline *timeline)
{
    dtp_host_arena_release(&timeline->memory);
    *timeline = (struct dtp_timeline){0};
}

struct simulation {
    const struct dtp_program *program;
    const struct dtp_op *ops;
    const struct dtp_simulation_options *options;
    struct dtp_op_rates rates;
    struct dtp_host_arena scratch;
    struct dtp_engine_graph graph;
    size_t count;
    uint32_t *pending;
    double *alone_s; /* matmuls at the sustained rate, no slowest rank */
    double *seconds; /* what the engine runs */
    double *starved_s;
    double matmul_s, other_s; /* sums of alone_s over kernels of the compute stream, gaps counted as other */
};

static bool take_arrays(struct simulation *s, struct dtp_timeline *out)
{
    out->op_count = s->count;
    out->span = dtp_host_arena_take_zeroed(&out->memory, s->count, sizeof *out->span);
    out->cause = dtp_host_arena_take(&out->memory, s->count, sizeof *out->cause);
    out->issue_s = dtp_host_arena_take(&out->memory, s->count, sizeof *out->issue_s);
    s->pending = dtp_host_arena_take(&s->scratch, s->count, sizeof *s->pending);
    s->alone_s = dtp_host_arena_take(&s->scratch, s->count, sizeof *s->alone_s);
    s->seconds = dtp_host_arena_take(&s->scratch, s->count, sizeof *s->seconds);
    s->starved_s = dtp_host_arena_take_zeroed(&s->scratch, s->count, sizeof *s->starved_s);
    return out->span && out->cause && out->issue_s && s->pending && s->alone_s && s->seconds && s->starved_s &&
           dtp_engine_link(s->program, dtp_cluster_is_host(s->rates.cluster), &s->scratch, &s->graph);
}

static bool moves_bytes(enum dtp_op_class class)
{
    return class == DTP_CLASS_COLLECTIVE || class == DTP_CLASS_UPLOAD || class == DTP_CLASS_DOWNLOAD;
}

/* Times of operations alone. */
static bool price(struct simulation *s)
{
    for (size_t i = 0; i < s->count; i++)
        s->alone_s[i] = s->options->infinite_bandwidth && moves_bytes(dtp_op_kind_class(s->ops[i].kind)) ? 0
                        : s->options->op_s && isfinite(s->options->op_s[i]) ? s->options->op_s[i]
                                                                            : dtp_op_seconds(&s->rates, &s->ops[i]);
    bool jitters = s->options->seed && s->options->jitter_deviation > 0;
    if (jitters && !dtp_noise_jitter(s->options->seed, s->options->jitter_deviation, s->alone_s, s->count))
        return false;
    for (size_t i = 0; i < s->count; i++) {
        bool computes = s->ops[i].stream == DTP_STREAM_COMPUTE || s->ops[i].stream == DTP_STREAM_WEIGHT_GRADIENT;
        if (!computes || !dtp_op_is_kernel(&s->ops[i]))
            continue;
        double gaps_s = s->ops[i].demand.kernels * s->rates.gap_s;
        bool matmul = dtp_op_kind_class(s->ops[i].kind) == DTP_CLASS_MATMUL;
        s->matmul_s += matmul ? s->alone_s[i] - gaps_s : 0;
        s->other_s += matmul ? gaps_s : s->alone_s[i];
    }
    return true;
}

/* The engine's times: kernels are those of the slowest rank, matmuls run faster by what power allows. */
static void scale(struct simulation *s, double factor, double speedup)
{
    for (size_t i = 0; i < s->count; i++) {
        double gaps_s = s->ops[i].demand.kernels * s->rates.gap_s, seconds = s->alone_s[i];
        if (dtp_op_kind_class(s->ops[i].kind) == DTP_CLASS_MATMUL)
            seconds = fmax(0, seconds - gaps_s) / speedup + gaps_s;
        s->seconds[i] = dtp_op_is_kernel(&s->ops[i]) ? seconds * factor : seconds;
    }
}

static void run(struct simulation *s, struct dtp_timeline *out)
{
    struct dtp_engine_job job = {.program = s->program,
                                 .rates = &s->rates,
                                 .seconds = s->seconds,
                                 .contention = s->options->contention && !dtp_cluster_is_host(s->rates.cluster),
                                 .span = out->span,
                                 .cause = out->cause,
                                 .issue_s = out->issue_s,
                                 .starved_s = s->starved_s};
    scale(s, out->compute_factor, out->matmul_speedup);
    dtp_engine_run(&job, &s->graph, s->pending);
}

static double end_of_step_s(const struct dtp_timeline *timeline)
{
    double end_s = 0;
    for (size_t i = 0; i < timeline->op_count; i++)
        end_s = timeline->span[i].end_s > end_s ? timeline->span[i].end_s : end_s;
    return end_s;
}

/* Chips at their power limit run matmuls faster the smaller their share of the time is (op_cost.h). The share is known
 * only after a simulation: a first one with the share among computing kernels, as if nothing else took time,
 * and a second one where waiting for collectives, copies or the host made that share wrong by more than 0.3 % of speed.
 */
static void run_at_power_limit(struct simulation *s, struct dtp_timeline *out)
{
    bool headroom = s->options->power_headroom;
    out->matmul_speedup = headroom ? dtp_cluster_matmul_speedup(s->rates.cluster, s->matmul_s, s->other_s) : 1;
    run(s, out);
    if (!headroom)
        return;
    double step_s = end_of_step_s(out) / out->compute_factor;
    double speedup =
        dtp_cluster_matmul_speedup(s->rates.cluster, s->matmul_s, fmax(0, step_s - s->matmul_s / out->matmul_speedup));
    if (fabs(speedup / out->matmul_speedup - 1) <= 0.003)
        return;
    out->matmul_speedup = speedup;
    run(s, out);
}

static enum dtp_status replay_allocator(const struct simulation *s, bool expandable_segments, struct dtp_timeline *out,
                                        struct dtp_faults *faults)
{
    if (!s->options->replay_allocator)
        return DTP_OK;
    struct dtp_allocator_replay replay;
    enum dtp_status status = dtp_allocator_replay(s->program, out, expandable_segments, 0, &replay, faults);
    out->allocated_peak_bytes = replay.state.allocated_peak_bytes;
    out->reserved_peak_bytes = replay.state.reserved_peak_bytes;
    return status;
}

enum dtp_status dtp_simulate(const struct dtp_program *program, const struct dtp_transformer *transformer,
                             const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                             const struct dtp_simulation_options *options, struct dtp_timeline *out,
                             struct dtp_faults *faults)
{
    struct simulation s = {.program = program,
                           .ops = dtp_program_ops(program),
                           .options = options,
                           .count = dtp_program_op_count(program)};
    double slowest = dtp_cluster_slowest_rank(cluster, dtp_calibration.simulated_rank_deviation);
    *out = (struct dtp_timeline){.compute_factor = options->compute_factor > 0 ? options->compute_factor : slowest};
    enum dtp_status status = dtp_op_rates_prepare(program, transformer, cluster, plan, &s.rates, faults);
    if (status != DTP_OK)
        return status;
    bool memory = take_arrays(&s, out) && price(&s);
    if (memory) {
        run_at_power_limit(&s, out);
        memory = dtp_timeline_account(program, s.starved_s, out);
    }
    dtp_host_arena_release(&s.scratch);
    dtp_op_rates_release(&s.rates);
    status = memory ? replay_allocator(&s, plan->expandable_segments, out, faults)
                    : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to simulate %zu operations", s.count);
    if (status != DTP_OK)
        dtp_timeline_release(out);
    return status;
}
