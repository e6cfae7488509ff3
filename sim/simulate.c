#include "sim/simulate.h"

#include "cost/cluster_cost.h"
#include "cost/op_cost.h"
#include "program/measured_op.h"
#include "sim/caching_allocator.h"
#include "sim/engine.h"
#include "sim/noise.h"
#include "sim/periods.h"
#include "sim/step_guess.h"
#include "sim/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    struct dtp_engine_period period;
    size_t count;
    const uint32_t *partner; /* of transfers; NULL: a program alone */
    uint32_t *pending;
    double *alone_s; /* matmuls at the sustained rate, no slowest rank */
    double *seconds; /* what the engine runs */
    double *starved_s;
    struct dtp_kernel_sums sums; /* of alone_s over kernels of the compute stream, gaps counted as other */
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
           dtp_engine_link(s->program, dtp_cluster_is_host(s->rates.cluster) || s->rates.execution->launch_blocking,
                           &s->scratch, &s->graph);
}

static bool moves_bytes(enum dtp_op_class class)
{
    return class == DTP_CLASS_COLLECTIVE || class == DTP_CLASS_UPLOAD || class == DTP_CLASS_DOWNLOAD;
}

/* Times of operations alone. */
static bool price(struct simulation *s)
{
    uint32_t *alike = s->pending; /* nothing pends yet */
    dtp_op_seconds_all(&s->rates, s->alone_s, alike);
    for (size_t i = 0; i < s->count; i++)
        s->graph.ops[i].alike = alike[i],
        s->graph.ops[i].tensor = dtp_op_at_power_limit(s->rates.program, &s->rates.cluster->gpu, &s->ops[i]);
    for (size_t i = 0; i < s->count && s->options->op_s; i++)
        s->alone_s[i] = isfinite(s->options->op_s[i]) ? s->options->op_s[i] : s->alone_s[i];
    for (size_t i = 0; i < s->count && s->options->expert_load > 1; i++)
        s->alone_s[i] *= dtp_op_has_expert_rows(&s->ops[i]) ? s->options->expert_load : 1;
    for (size_t i = 0; i < s->count && s->options->infinite_bandwidth; i++)
        s->alone_s[i] = moves_bytes(dtp_op_kind_class(s->ops[i].kind)) ? 0 : s->alone_s[i];
    bool jitters = s->options->seed && s->options->jitter_deviation > 0;
    if (jitters && !dtp_noise_jitter(s->options->seed, s->options->jitter_deviation, s->alone_s, s->count))
        return false;
    s->sums = dtp_op_sum_kernels(&s->rates, s->alone_s);
    return true;
}

/* The engine's times. */
static void scale(struct simulation *s, double factor, double speedup)
{
    const struct dtp_engine_op *ops = s->graph.ops;
    for (size_t i = 0; i < s->count; i++)
        s->seconds[i] = ops[i].computes ? dtp_kernel_in_step_s(ops[i].tensor,
                                                               dtp_op_idle_s(&s->rates, ops[i].grouped, ops[i].kernels,
                                                                             dtp_engine_launch_s(&s->rates, &ops[i])),
                                                               s->alone_s[i], factor, speedup)
                                        : s->alone_s[i];
}

/* Of roles that begin their steps apart: steps that are run, and by how much one may be longer for one than another. */
#define MOST_STEPS 12
#define STEADY_TOLERANCE (DTP_SPEEDUP_TOLERANCE / 30)

/* The roles of a set, or one program. */
struct roles {
    const struct dtp_program_set *set; /* NULL: one program */
    struct simulation *role;
    struct dtp_timeline *out; /* of each */
    uint32_t count;
    struct dtp_engine_job *jobs; /* and what the engine takes of each besides */
    struct dtp_engine_graph *graphs;
    uint32_t **pending;
};

/* What the engine takes of each role, at the speeds that its timeline has. */
static void set_up(struct roles *all)
{
    for (uint32_t r = 0; r < all->count; r++) {
        struct simulation *s = &all->role[r];
        struct dtp_timeline *out = &all->out[r];
        all->jobs[r] =
            (struct dtp_engine_job){.program = s->program,
                                    .rates = &s->rates,
                                    .seconds = s->seconds,
                                    .contention = s->options->contention && !dtp_cluster_is_host(s->rates.cluster),
                                    .begin_s = out->begin_s,
                                    .span = out->span,
                                    .cause = out->cause,
                                    .issue_s = out->issue_s,
                                    .starved_s = s->starved_s,
                                    .partner = s->partner,
                                    .period = s->period,
                                    .repeated_count = &out->repeated_count};
        all->graphs[r] = s->graph;
        all->pending[r] = s->pending;
        scale(s, out->compute_factor, out->matmul_speedup);
    }
}

static double end_of_role_s(const struct dtp_timeline *t)
{
    double end_s = t->begin_s;
    for (size_t i = 0; i < t->op_count; i++)
        end_s = t->span[i].end_s > end_s ? t->span[i].end_s : end_s;
    return end_s;
}

/* The longest of a role; where all begin together, the end of the last one. */
static double length_of_step_s(const struct roles *all)
{
    double step_s = 0;
    for (uint32_t r = 0; r < all->count; r++)
        step_s = fmax(step_s, end_of_role_s(&all->out[r]) - all->out[r].begin_s);
    return step_s;
}

/* Each role begins the next step at the end of this one, on a clock that begins with the first of them. True: this
 * step was as long for all, so that the next one will be the same. */
static bool go_on(struct roles *all)
{
    double first_s = INFINITY, longest_s = length_of_step_s(all), shortest_s = INFINITY;
    for (uint32_t r = 0; r < all->count; r++) {
        double end_s = end_of_role_s(&all->out[r]);
        first_s = fmin(first_s, end_s);
        shortest_s = fmin(shortest_s, end_s - all->out[r].begin_s);
    }
    if (shortest_s >= (1 - STEADY_TOLERANCE) * longest_s)
        return true;
    for (uint32_t r = 0; r < all->count; r++)
        all->out[r].begin_s = end_of_role_s(&all->out[r]) - first_s;
    return false;
}

/* Roles that begin their steps apart are through with one after the other from the second step on, where nothing slack
 * is between them; what is takes more. */
static bool run(struct roles *all)
{
    set_up(all);
    bool done = dtp_engine_run(all->jobs, all->graphs, all->pending, all->count);
    for (int i = 1; done && all->set && all->set->apart && i < MOST_STEPS && !go_on(all); i++) {
        set_up(all);
        done = dtp_engine_run(all->jobs, all->graphs, all->pending, all->count);
    }
    return done;
}

/* The speed-up of matmuls in a step of `step_s`. True: some role's differs from what its timeline has by more than
 * `tolerance`. */
static bool speed_up(struct roles *all, double step_s, double tolerance)
{
    bool changed = false;
    for (uint32_t r = 0; r < all->count; r++) {
        struct simulation *s = &all->role[r];
        struct dtp_timeline *out = &all->out[r];
        double at_full_s = step_s / out->compute_factor;
        double tensor_s = (s->sums.matmul_s + s->sums.lighter_s) / out->matmul_speedup;
        double speedup = dtp_kernel_speedup(s->rates.cluster, &s->sums, fmax(0, at_full_s - tensor_s));
        if (fabs(speedup / out->matmul_speedup - 1) <= tolerance)
            continue;
        out->matmul_speedup = speedup;
        changed = true;
    }
    return changed;
}

/* Roles of a set idle for each other: how long, the longest path tells well enough to begin with. */
#define MOST_GUESSES 3
static bool guess_speed_up(struct roles *all)
{
    bool changed = all->count > 1;
    for (int i = 0; i < MOST_GUESSES && changed; i++) {
        double step_s;
        set_up(all);
        if (!dtp_step_guess(all->jobs, all->graphs, all->pending, all->count, &step_s))
            return false;
        changed = speed_up(all, step_s, DTP_SPEEDUP_TOLERANCE / 3);
    }
    return true;
}

/* Chips at their power limit run matmuls faster the smaller their share of the time is (op_cost.h). The share is known
 * only after a simulation: a first one with the share among computing kernels, as if nothing else took time, of a set
 * with what its roles wait for each other too, and a second one where waiting for collectives, copies or the host made
 * that share wrong. */
static bool run_at_power_limit(struct roles *all)
{
    double given = all->role->options->matmul_speedup;
    bool headroom = all->role->options->power_headroom && !(given > 0);
    for (uint32_t r = 0; r < all->count; r++) {
        struct simulation *s = &all->role[r];
        all->out[r].matmul_speedup = headroom    ? dtp_kernel_speedup(s->rates.cluster, &s->sums, s->sums.other_s)
                                     : given > 0 ? given
                                                 : 1;
    }
    if ((headroom && !guess_speed_up(all)) || !run(all))
        return false;
    return !headroom || !speed_up(all, length_of_step_s(all), DTP_SPEEDUP_TOLERANCE) || run(all);
}

enum dtp_status dtp_timeline_replay(const struct dtp_program *program, struct dtp_timeline *timeline,
                                    struct dtp_faults *faults)
{
    struct dtp_allocator_replay replay;
    bool expandable = dtp_program_execution(program)->allocator == DTP_ALLOCATOR_EXPANDABLE;
    enum dtp_status status = dtp_allocator_replay(program, timeline, expandable, 0, &replay, faults);
    timeline->allocated_peak_bytes = replay.state.allocated_peak_bytes;
    timeline->reserved_peak_bytes = replay.state.reserved_peak_bytes;
    return status;
}

static enum dtp_status out_of_memory(const struct roles *all, struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to simulate %zu operations", all->role->count);
}

/* The role's own clock. */
static void count_from_begin(struct dtp_timeline *t)
{
    for (size_t i = 0; i < t->op_count && t->begin_s > 0; i++) {
        t->span[i].start_s -= t->begin_s;
        t->span[i].end_s -= t->begin_s;
        t->issue_s[i] -= t->begin_s;
    }
}

/* The length of the step at each of `factors`. */
struct lengths {
    const double *factor;
    double *step_s;
    size_t count;
};

static bool find_lengths(struct roles *all, const struct lengths *asked)
{
    for (size_t i = 0; i < asked->count; i++) {
        for (uint32_t r = 0; r < all->count; r++) {
            all->out[r].compute_factor = asked->factor[i];
            all->out[r].begin_s = 0;
        }
        if (!run_at_power_limit(all))
            return false;
        asked->step_s[i] = length_of_step_s(all);
    }
    return true;
}

static bool find_periods(struct roles *all)
{
    struct dtp_period_role *roles = calloc(all->count, sizeof *roles);
    struct dtp_engine_period *periods = calloc(all->count, sizeof *periods);
    bool memory = roles && periods;
    for (uint32_t r = 0; r < all->count && memory; r++) {
        const struct simulation *s = &all->role[r];
        roles[r] = (struct dtp_period_role){s->program, &s->graph, s->alone_s, s->partner};
    }
    if (memory)
        dtp_periods_find(roles, all->count, periods);
    for (uint32_t r = 0; r < all->count && memory; r++)
        all->role[r].period = periods[r];
    free(roles);
    free(periods);
    return memory;
}

static bool prepare_all(struct roles *all)
{
    for (uint32_t r = 0; r < all->count; r++)
        if (!take_arrays(&all->role[r], &all->out[r]) || !price(&all->role[r]))
            return false;
    return all->count == 1 || all->role->options->each_micro_batch || find_periods(all);
}

static bool simulate_all(struct roles *all)
{
    if (!run_at_power_limit(all))
        return false;
    double step_s = all->count > 1 ? length_of_step_s(all) : 0;
    for (uint32_t r = 0; r < all->count; r++) {
        all->out[r].step_s = step_s;
        count_from_begin(&all->out[r]);
        if (!dtp_timeline_account(all->role[r].program, all->role[r].starved_s, all->count == 1, &all->out[r]))
            return false;
    }
    return true;
}

/* Roles and what the engine takes of them are made, on one cluster. `asked`: lengths of steps alone; NULL: timelines.
 */
static enum dtp_status simulate(struct roles *all, const struct dtp_cluster *cluster, const struct lengths *asked,
                                struct dtp_faults *faults)
{
    double slowest =
        dtp_cluster_slowest_rank(cluster, dtp_simulated_rank_deviation(dtp_program_execution(all->role[0].program)));
    enum dtp_status status = DTP_OK;
    for (uint32_t r = 0; r < all->count; r++) {
        double factor = all->role[r].options->compute_factor;
        all->out[r] = (struct dtp_timeline){.compute_factor = factor > 0 ? factor : slowest};
        all->role[r].ops = dtp_program_ops(all->role[r].program);
        all->role[r].count = dtp_program_op_count(all->role[r].program);
    }
    for (uint32_t r = 0; r < all->count && status == DTP_OK; r++) {
        status = dtp_op_rates_prepare(all->role[r].program, cluster, &all->role[r].rates, faults);
        if (status == DTP_OK && all->set && !dtp_op_rates_place(&all->role[r].rates, all->set, r))
            status = out_of_memory(all, faults);
    }
    if (status == DTP_OK && !(prepare_all(all) && (asked ? find_lengths(all, asked) : simulate_all(all))))
        status = out_of_memory(all, faults);
    for (uint32_t r = 0; r < all->count; r++) {
        if (status == DTP_OK && !asked && all->role[r].options->replay_allocator)
            status = dtp_timeline_replay(all->role[r].program, &all->out[r], faults);
        dtp_host_arena_release(&all->role[r].scratch);
        dtp_op_rates_release(&all->role[r].rates);
    }
    for (uint32_t r = 0; r < all->count && (asked || status != DTP_OK); r++)
        dtp_timeline_release(&all->out[r]);
    return status;
}

static enum dtp_status simulate_one(const struct dtp_program *program, const struct dtp_cluster *cluster,
                                    const struct dtp_simulation_options *options, const struct lengths *asked,
                                    struct dtp_timeline *out, struct dtp_faults *faults)
{
    struct simulation s = {.program = program, .options = options};
    struct dtp_engine_job job;
    struct dtp_engine_graph graph;
    uint32_t *pending;
    struct roles all = {NULL, &s, out, 1, &job, &graph, &pending};
    return simulate(&all, cluster, asked, faults);
}

enum dtp_status dtp_simulate(const struct dtp_program *program, const struct dtp_cluster *cluster,
                             const struct dtp_simulation_options *options, struct dtp_timeline *out,
                             struct dtp_faults *faults)
{
    return simulate_one(program, cluster, options, NULL, out, faults);
}

static enum dtp_status simulate_several(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                        const struct dtp_simulation_options *options, const struct lengths *asked,
                                        struct dtp_timeline *out, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    uint32_t **partner, count = set->role_count;
    memset(out, 0, count * sizeof *out);
    if (count == 1)
        return simulate_one(set->roles[0].program, cluster, options, asked, out, faults);
    if (options->op_s)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "measured times of operations are of one program, not of a set");
    enum dtp_status status = dtp_program_set_match(set, &arena, &partner, faults);
    struct roles all = {.set = set,
                        .role = dtp_host_arena_take_zeroed(&arena, count, sizeof *all.role),
                        .out = out,
                        .count = count,
                        .jobs = dtp_host_arena_take(&arena, count, sizeof *all.jobs),
                        .graphs = dtp_host_arena_take(&arena, count, sizeof *all.graphs),
                        .pending = dtp_host_arena_take(&arena, count, sizeof *all.pending)};
    if (status == DTP_OK && (!all.role || !all.jobs || !all.graphs || !all.pending))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to simulate %u roles", count);
    for (uint32_t r = 0; r < count && status == DTP_OK; r++) {
        all.role[r].program = set->roles[r].program;
        all.role[r].options = options;
        all.role[r].partner = partner[r];
    }
    if (status == DTP_OK)
        status = simulate(&all, cluster, asked, faults);
    dtp_host_arena_release(&arena);
    return status;
}

enum dtp_status dtp_simulate_proved_set(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                        const struct dtp_simulation_options *options, struct dtp_timeline *out,
                                        struct dtp_faults *faults)
{
    return simulate_several(set, cluster, options, NULL, out, faults);
}

enum dtp_status dtp_simulate_factors(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                     const struct dtp_simulation_options *options, const double *factor, size_t count,
                                     double *step_s, struct dtp_faults *faults)
{
    const struct lengths asked = {factor, step_s, count};
    struct dtp_timeline *scratch = calloc(set->role_count, sizeof *scratch);
    if (!scratch)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for timelines");
    enum dtp_status status = simulate_several(set, cluster, options, &asked, scratch, faults);
    free(scratch);
    return status;
}

enum dtp_status dtp_simulate_set(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                 const struct dtp_simulation_options *options, struct dtp_timeline *out,
                                 struct dtp_faults *faults)
{
    enum dtp_issue_order order = dtp_cluster_is_host(cluster) ? DTP_ISSUE_IN_LINE : DTP_ISSUE_STREAMS;
    memset(out, 0, set->role_count * sizeof *out);
    enum dtp_status status = dtp_program_set_verify(set, order, faults);
    return status == DTP_OK ? dtp_simulate_proved_set(set, cluster, options, out, faults) : status;
}
