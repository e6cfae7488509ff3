#include "record/validation.h"

#include "base/append.h"
#include "runtime/runtimes.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct dtp_validation_bounds dtp_validation_bounds_default(void)
{
    return (struct dtp_validation_bounds){.step_fraction = 0.1, .device_fraction = 0.02, .reference_fraction = 0.01};
}

/* ---- filling ----------------------------------------------------------------------------------------------------- */

/* What people tell runs by; what is as usual is not said. */
static void write_name(const struct dtp_job *job, struct dtp_validation *v)
{
    const struct dtp_plan *p = &job->plan;
    snprintf(v->name, sizeof v->name, "%.48s %s %" PRIu32 "x%" PRIu64 " on %" PRIu32 " %s%s", v->model, v->strategy,
             p->micro_batch, p->sequence, job->cluster.gpus, dtp_cluster_is_host(&job->cluster) ? "rank" : "GPU",
             job->cluster.gpus > 1 ? "s" : "");
    if (job->cluster.nodes > 1)
        dtp_append(v->name, sizeof v->name, " in %" PRIu32 " nodes", job->cluster.nodes);
    if (p->accumulate > 1)
        dtp_append(v->name, sizeof v->name, "; accumulate %" PRIu32, p->accumulate);
    if (strcmp(v->checkpointing, "none") != 0)
        dtp_append(v->name, sizeof v->name, "; checkpointing %s", v->checkpointing);
    if (strcmp(v->precision, "bf16-mixed") != 0)
        dtp_append(v->name, sizeof v->name, "; %s", v->precision);
    if (strcmp(v->offload, "none") != 0)
        dtp_append(v->name, sizeof v->name, "; offload %s", v->offload);
}

static void put_configuration(const struct dtp_job *job, struct dtp_validation *v)
{
    const struct dtp_plan *p = &job->plan;
    snprintf(v->model, sizeof v->model, "%s", job->transformer.name);
    snprintf(v->gpu, sizeof v->gpu, "%s", job->cluster.gpu.key);
    snprintf(v->runtime, sizeof v->runtime, "%s", p->runtime->name);
    snprintf(v->strategy, sizeof v->strategy, "%s", dtp_strategy_text(p->strategy));
    dtp_checkpointing_text(p, v->checkpointing, sizeof v->checkpointing);
    snprintf(v->offload, sizeof v->offload, "%s", dtp_offload_text(p->offload));
    snprintf(v->precision, sizeof v->precision, "%s", dtp_precision_name(&p->precision));
    v->gpus = job->cluster.gpus;
    v->nodes = job->cluster.nodes;
    v->shard_group = p->shard_group;
    v->micro_batch = p->micro_batch;
    v->sequence = p->sequence;
    v->accumulate = p->accumulate;
    write_name(job, v);
}

void dtp_validation_plan(const struct dtp_simulated *s, struct dtp_validation *v)
{
    const struct dtp_memory *m = &s->prediction.memory;
    put_configuration(&s->job, v);
    v->step_s[DTP_VALIDATION_PREDICTED] = s->prediction.time.step_s;
    v->tokens_per_s[DTP_VALIDATION_PREDICTED] = s->prediction.throughput.tokens_per_s;
    v->tokens_per_s_per_gpu[DTP_VALIDATION_PREDICTED] = s->prediction.throughput.tokens_per_s_per_gpu;
    if (!dtp_cluster_has_times(&s->job.cluster))
        v->step_s[DTP_VALIDATION_PREDICTED] = v->tokens_per_s[DTP_VALIDATION_PREDICTED] =
            v->tokens_per_s_per_gpu[DTP_VALIDATION_PREDICTED] = (double)NAN;
    if (s->job.plan.runtime->executed)
        v->arena_bytes[DTP_VALIDATION_PREDICTED] = s->placement.arena_bytes;
    else {
        v->allocated_bytes[DTP_VALIDATION_PREDICTED] = m->allocated_peak_bytes;
        v->reserved_bytes[DTP_VALIDATION_PREDICTED] = m->reserved_peak_bytes;
    }
    v->ep = s->job.plan.ep;
    v->device_bytes[DTP_VALIDATION_PREDICTED] = m->device_peak_bytes;
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        v->owner_bytes[i][DTP_VALIDATION_PREDICTED] = m->phase_bytes[m->peak_phase][i];
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        v->sent_bytes[i][DTP_VALIDATION_PREDICTED] = s->totals.sent_bytes[i];
    v->host_to_device_bytes[DTP_VALIDATION_PREDICTED] = s->totals.host_to_device_bytes;
    v->device_to_host_bytes[DTP_VALIDATION_PREDICTED] = s->totals.device_to_host_bytes;
    v->step_s[DTP_VALIDATION_MEASURED] = v->tokens_per_s[DTP_VALIDATION_MEASURED] =
        v->tokens_per_s_per_gpu[DTP_VALIDATION_MEASURED] = (double)NAN;
    v->alone_step_s = v->in_place_step_s = v->first_loss = v->last_loss = v->undisturbed_step_s = (double)NAN;
    v->imbalanced_step_s = (double)NAN;
    for (int class = 0; class <= DTP_CLASS_STORAGE; class ++)
        for (int i = 0; i < 3; i++)
            v->class_s[class][i] = (double)NAN;
}

static void put_times(const struct dtp_run_report *r, struct dtp_validation *v)
{
    const struct dtp_run_outcome *m = r->measured;
    if (m->step_s > 0) {
        v->step_s[DTP_VALIDATION_MEASURED] = m->step_s;
        v->tokens_per_s[DTP_VALIDATION_MEASURED] = (double)m->tokens_per_step / m->step_s;
        v->tokens_per_s_per_gpu[DTP_VALIDATION_MEASURED] = v->tokens_per_s[DTP_VALIDATION_MEASURED] / (double)v->gpus;
    }
    if (m->expert_rows)
        v->expert_imbalance = dtp_run_expert_imbalance(m, (uint32_t)v->ep);
    v->undisturbed_step_s = m->undisturbed_s > 0 ? m->undisturbed_s : (double)NAN;
    v->compared = dtp_run_report_comparable(r) && m->step_s > 0;
    if (r->split_known) {
        v->alone_step_s = r->split.alone_s;
        v->in_place_step_s = r->split.in_place_s;
    }
    for (int class = DTP_CLASS_MATMUL; class <= DTP_CLASS_STORAGE && m->alone_s; class ++) {
        const struct dtp_class_times *t = &r->classes[class];
        if (t->count == 0)
            continue;
        v->class_s[class][0] = t->predicted_s;
        v->class_s[class][1] = t->alone_s;
        v->class_s[class][2] = t->in_place_s;
    }
}

/* Of the stages of a pipeline the plan says what a rank of the fullest one takes, sends and copies: the first such
 * rank. NULL: there is one stage. */
static const struct dtp_rank_outcome *rank_of_plan(const struct dtp_run_report *r)
{
    const struct dtp_simulated *s = r->simulated;
    const struct dtp_run_outcome *m = r->measured;
    for (uint32_t i = 0; m->ranks && s->set.role_count && i < m->rank_count; i++)
        if (dtp_program_set_role_of(&s->set, i) == s->worst)
            return &m->ranks[i];
    return NULL;
}

static void put_rank(const struct dtp_rank_outcome *rank, struct dtp_validation *v)
{
    const uint64_t steps = rank->steps ? rank->steps : 1;
    v->arena_bytes[DTP_VALIDATION_MEASURED] = rank->device_arena_bytes;
    if (rank->used_bytes)
        v->device_bytes[DTP_VALIDATION_MEASURED] = rank->used_bytes;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        v->sent_bytes[i][DTP_VALIDATION_MEASURED] = rank->sent_bytes[i] / steps;
    v->host_to_device_bytes[DTP_VALIDATION_MEASURED] = rank->host_to_device_bytes / steps;
    v->device_to_host_bytes[DTP_VALIDATION_MEASURED] = rank->device_to_host_bytes / steps;
}

void dtp_validation_measure(const struct dtp_run_report *r, struct dtp_validation *v)
{
    const struct dtp_run_outcome *m = r->measured;
    uint64_t steps = m->last_step - m->first_step;
    snprintf(v->device, sizeof v->device, "%s", m->device);
    snprintf(v->libraries, sizeof v->libraries, "%s", m->libraries);
    snprintf(v->data, sizeof v->data, "%s", m->data);
    snprintf(v->program, sizeof v->program, "%s", m->program);
    v->on_gpu = m->gpu;
    v->ranks_a_gpu = m->ranks_a_gpu;
    v->timed_steps = m->timed_steps;
    v->tokens_per_step = m->tokens_per_step;
    v->operations = m->operations;
    v->first_loss = m->first_loss;
    v->last_loss = m->last_loss;
    v->arena_bytes[DTP_VALIDATION_MEASURED] = m->device_arena_bytes;
    v->host_arena_bytes = m->host_arena_bytes;
    v->device_bytes[DTP_VALIDATION_MEASURED] = m->used_bytes;
    v->gpu_memory_bytes = m->gpu_bytes;
    v->allocated_bytes[DTP_VALIDATION_MEASURED] = m->reference.allocated;
    v->reserved_bytes[DTP_VALIDATION_MEASURED] = m->reference.reserved;
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        v->owner_bytes[i][DTP_VALIDATION_MEASURED] = m->owner_bytes[i];
    for (int i = 0; i < DTP_COLLECTIVE_COUNT && steps > 0; i++) {
        v->sent_bytes[i][DTP_VALIDATION_PREDICTED] = dtp_run_sent_bytes(r, (enum dtp_collective)i);
        v->sent_bytes[i][DTP_VALIDATION_MEASURED] = m->sent_bytes[i] / steps;
    }
    v->host_to_device_bytes[DTP_VALIDATION_MEASURED] = steps > 0 ? m->host_to_device_bytes / steps : 0;
    v->device_to_host_bytes[DTP_VALIDATION_MEASURED] = steps > 0 ? m->device_to_host_bytes / steps : 0;
    const struct dtp_rank_outcome *fullest = rank_of_plan(r);
    if (fullest)
        put_rank(fullest, v);
    if (!dtp_run_shares(m))
        put_times(r, v);
}

void dtp_validation_outcome(const struct dtp_validation *v, struct dtp_run_outcome *m)
{
    *m = (struct dtp_run_outcome){
        .gpu = v->on_gpu != 0,
        .ranks_a_gpu = v->ranks_a_gpu,
        .operations = v->operations,
        .device_arena_bytes = v->arena_bytes[DTP_VALIDATION_MEASURED],
        .host_arena_bytes = v->host_arena_bytes,
        .used_bytes = v->device_bytes[DTP_VALIDATION_MEASURED],
        .gpu_bytes = v->gpu_memory_bytes,
        .last_step = v->tokens_per_step > 0,
        .tokens_per_step = v->tokens_per_step,
        .timed_steps = v->timed_steps,
        .entropy = (double)NAN,
        .first_loss = v->first_loss,
        .last_loss = v->last_loss,
        .undisturbed_s = isfinite(v->undisturbed_step_s) ? v->undisturbed_step_s : 0,
        .step_s = isfinite(v->step_s[DTP_VALIDATION_MEASURED]) ? v->step_s[DTP_VALIDATION_MEASURED] : 0};
    snprintf(m->device, sizeof m->device, "%s", v->device);
    snprintf(m->libraries, sizeof m->libraries, "%s", v->libraries);
    snprintf(m->data, sizeof m->data, "%s", v->data);
    snprintf(m->program, sizeof m->program, "%s", v->program);
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        m->owner_bytes[i] = v->owner_bytes[i][DTP_VALIDATION_MEASURED];
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        m->sent_bytes[i] = v->sent_bytes[i][DTP_VALIDATION_MEASURED]; /* of the one step that it counts now */
    m->reference.allocated = v->allocated_bytes[DTP_VALIDATION_MEASURED];
    m->reference.reserved = v->reserved_bytes[DTP_VALIDATION_MEASURED];
    m->host_to_device_bytes = v->host_to_device_bytes[DTP_VALIDATION_MEASURED];
    m->device_to_host_bytes = v->device_to_host_bytes[DTP_VALIDATION_MEASURED];
}

/* ---- judging ----------------------------------------------------------------------------------------------------- */

static double error_of_step(const struct dtp_validation *v, double predicted_s)
{
    double measured_s = isfinite(v->undisturbed_step_s) ? v->undisturbed_step_s : v->step_s[DTP_VALIDATION_MEASURED];
    return v->compared ? predicted_s / measured_s - 1 : (double)NAN;
}

double dtp_validation_step_error(const struct dtp_validation *v)
{
    return error_of_step(v, v->step_s[DTP_VALIDATION_PREDICTED]);
}

double dtp_validation_imbalanced_error(const struct dtp_validation *v)
{
    return error_of_step(v, v->imbalanced_step_s);
}

static void say_outside(struct dtp_validation *v, const char *what, const char *how)
{
    dtp_append_part(v->outside, sizeof v->outside, "; ", "%s %s", what, how);
}

static void judge_equal(struct dtp_validation *v, const char *what, const uint64_t bytes[DTP_VALIDATION_SIDE_COUNT])
{
    char how[96];
    if (bytes[DTP_VALIDATION_PREDICTED] == bytes[DTP_VALIDATION_MEASURED])
        return;
    snprintf(how, sizeof how, "%" PRIu64 " bytes, predicted %" PRIu64, bytes[DTP_VALIDATION_MEASURED],
             bytes[DTP_VALIDATION_PREDICTED]);
    say_outside(v, what, how);
}

static void judge_near(struct dtp_validation *v, const char *what, double error, double bound)
{
    char how[32];
    snprintf(how, sizeof how, "%+.1f %%", 100 * error);
    if (isfinite(error) && fabs(error) > bound)
        say_outside(v, what, how);
}

static void judge_arena(struct dtp_validation *v)
{
    judge_equal(v, "arena", v->arena_bytes);
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        if (!dtp_run_expects(v->ep, (enum dtp_collective)i))
            judge_equal(v, dtp_collective_text((enum dtp_collective)i), v->sent_bytes[i]);
    judge_equal(v, "host_to_device", v->host_to_device_bytes);
    judge_equal(v, "device_to_host", v->device_to_host_bytes);
}

bool dtp_validation_of_reference(const struct dtp_validation *v)
{
    const struct dtp_runtime *runtime = dtp_runtime_find(v->runtime);
    return runtime && !runtime->executed;
}

/* On cores nobody counts. */
static void judge_allocated(struct dtp_validation *v, double bound)
{
    const uint64_t *bytes = v->allocated_bytes;
    if (bytes[DTP_VALIDATION_MEASURED] > 0)
        judge_near(v, "allocated memory",
                   (double)bytes[DTP_VALIDATION_PREDICTED] / (double)bytes[DTP_VALIDATION_MEASURED] - 1, bound);
}

bool dtp_validation_judge(struct dtp_validation *v, const struct dtp_validation_bounds *bounds)
{
    const uint64_t *device = v->device_bytes;
    v->outside[0] = '\0';
    if (v->status != DTP_OK)
        return false;
    judge_near(v, "step", dtp_validation_step_error(v), bounds->step_fraction);
    bool reference = dtp_validation_of_reference(v);
    if (reference)
        judge_allocated(v, bounds->reference_fraction);
    else
        judge_arena(v);
    if (device[DTP_VALIDATION_MEASURED] > 0) /* a host's is shared with everything else on it */
        judge_near(v, "device memory",
                   (double)device[DTP_VALIDATION_PREDICTED] / (double)device[DTP_VALIDATION_MEASURED] - 1,
                   reference ? bounds->reference_fraction : bounds->device_fraction);
    return v->outside[0] == '\0';
}
