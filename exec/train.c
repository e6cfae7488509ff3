#include "train.h"

#include "advise.h"
#include "batch_layout.h"
#include "batches.h"
#include "lower.h"
#include "train_events.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct trainer {
    const struct dtp_train_job *of;
    const struct dtp_job *job;
    const struct dtp_settings *settings;
    struct dtp_faults *faults;
    FILE *events;
    bool first_rank, reported;
    uint32_t ranks;

    struct dtp_program *program;
    struct dtp_world world;
    struct dtp_executor_arena arena;
    struct dtp_device *device;
    void *device_base, *host_base;
    struct dtp_binding binding;
    struct dtp_run *run;
    struct dtp_token_source *source;
    struct dtp_batches *batches;
    struct dtp_step_log *log;
    struct dtp_op_times times;

    char model[400]; /* identity of checkpoints */
    struct dtp_checkpoint_position position;
    enum dtp_status unwritten; /* of logs and checkpoints: training goes on, its status says so in the end */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The plan's own advice for a GPU that has only the bytes that are free. */
static void suggest(const struct trainer *t, uint64_t free_bytes, char *out, size_t bytes)
{
    struct dtp_job smaller = *t->job;
    struct dtp_prediction prediction;
    struct dtp_advice advice;
    smaller.cluster.gpu.memory_bytes = free_bytes;
    dtp_closed_form(&smaller.transformer, &smaller.cluster, &smaller.plan, &prediction);
    dtp_advise(&smaller, &prediction, &advice);
    bool helps = advice.count > 0 && (advice.kind == DTP_ADVICE_MAKES_FIT || advice.kind == DTP_ADVICE_MORE_GPUS);
    snprintf(out, bytes, helps ? "it would fit with %s" : "take a smaller batch, sequence or model",
             helps ? advice.changes[0].flags : "");
}

static enum dtp_status check_memory(const struct trainer *t)
{
    struct dtp_device_memory memory;
    char advice[200];
    enum dtp_status status = t->device->verbs->memory(t->device, &memory, t->faults);
    if (status != DTP_OK || t->arena.device_bytes <= memory.free_bytes)
        return status;
    suggest(t, memory.free_bytes, advice, sizeof advice);
    return dtp_fault(t->faults, DTP_NO, NULL, 0,
                     "the step needs an arena of %.2f GiB, %s has %.2f GiB free of %.2f; nothing was allocated; %s",
                     (double)t->arena.device_bytes / 0x1p30, t->device->name, (double)memory.free_bytes / 0x1p30,
                     (double)memory.total_bytes / 0x1p30, advice);
}

static enum dtp_status allocate(struct trainer *t)
{
    const struct dtp_device_verbs *verbs = t->device->verbs;
    enum dtp_status status = check_memory(t);
    if (status == DTP_OK)
        status = verbs->allocate(t->device, t->arena.device_bytes, &t->device_base, t->faults);
    if (status == DTP_OK)
        status = verbs->allocate_host(t->device, t->arena.host_bytes, &t->host_base, t->faults);
    return status;
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static enum dtp_status make_program(struct trainer *t)
{
    const struct dtp_job *job = t->job;
    if (job->plan.runtime != DTP_RUNTIME_DTPLAN)
        return dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                         "the executor runs plans of --runtime dtplan; those of %s are only predicted",
                         dtp_runtime_text(job->plan.runtime));
    enum dtp_status status = dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &t->program, t->faults);
    if (status == DTP_OK)
        status = dtp_executor_arena_make(t->program, &t->arena, t->faults);
    return status == DTP_OK ? dtp_world_join(&t->of->ranks, t->program, &t->world, t->faults) : status;
}

static enum dtp_status connect(struct trainer *t)
{
    return dtp_world_connect(&t->world, t->settings->cuda, t->faults);
}

static enum dtp_status make_device(struct trainer *t)
{
    struct dtp_device_options options = {.ordinal = t->of->ranks.local_rank, .threads = (uint32_t)t->settings->threads,
                                         .choices_path = t->settings->choices,
                                         .atomic_attention = t->job->plan.atomic_attention};
    if (!t->settings->cuda)
        return dtp_device_host_create(&options, &t->device, t->faults);
#if DTP_WITH_CUDA
    return dtp_device_cuda_create(&options, &t->device, t->faults);
#else
    return dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0,
                     "--device cuda: this dtplan was built without CUDA; build it where nvcc is, or take --device host");
#endif
}

static enum dtp_status bind(struct trainer *t)
{
    const struct dtp_settings *s = t->settings;
    struct dtp_bind_job job = {.program = t->program,
                               .transformer = &t->job->transformer,
                               .cluster = &t->job->cluster,
                               .plan = &t->job->plan,
                               .arena = &t->arena,
                               .device = t->device,
                               .device_base = t->device_base,
                               .host_base = t->host_base,
                               .world = t->ranks > 1 ? &t->world : NULL,
                               .optimizer = {(float)s->beta1, (float)s->beta2, (float)s->epsilon, (float)s->weight_decay},
                               .rank = t->of->ranks.rank};
    enum dtp_status status = dtp_bind(&job, &t->binding, t->faults);
    return status == DTP_OK ? dtp_run_create(&t->binding, t->of->poison, &t->run, t->faults) : status;
}

static enum dtp_status open_source(struct trainer *t)
{
    const struct dtp_settings *s = t->settings;
    struct dtp_token_shape shape = {t->job->transformer.vocab, t->job->plan.sequence, s->seed};
    return s->data ? dtp_token_source_open(s->data, s->token_type, &shape, &t->source, t->faults)
                   : dtp_token_source_markov(&shape, &t->source, t->faults);
}

static void describe_model(struct trainer *t)
{
    const struct dtp_transformer *m = &t->job->transformer;
    snprintf(t->model, sizeof t->model,
             "layers %" PRIu64 ", hidden %" PRIu64 ", heads %" PRIu64 " of %" PRIu64 ", kv heads %" PRIu64 ", ffn %" PRIu64
             ", vocab %" PRIu64 ", positions %" PRIu64 ", kinds %d%d%d, biases %d%d%d%d, tied %d, %s",
             m->layers, m->hidden, m->heads, m->head_dim, m->kv_heads, m->ffn, m->vocab, m->positions, (int)m->norm,
             (int)m->activation, (int)m->position, m->norm_bias, m->qkv_bias, m->attention_output_bias, m->mlp_bias,
             m->tied_head, dtp_precision_name(&t->job->plan.precision));
}

static struct dtp_checkpoint_identity identity_of(const struct trainer *t)
{
    return (struct dtp_checkpoint_identity){t->model, dtp_token_source_words(t->source), t->settings->seed};
}

static enum dtp_status start_state(struct trainer *t)
{
    enum dtp_status status = dtp_run_initialise(t->run, t->settings->seed, t->faults);
    struct dtp_checkpoint_identity identity = identity_of(t);
    if (status == DTP_OK && t->settings->resume)
        status = dtp_checkpoint_read(t->settings->checkpoint, t->settings->resume_previous, t->device, &identity,
                                     &t->position, t->binding.parts, t->binding.part_count, t->faults);
    if (status == DTP_OK && t->position.step >= t->settings->steps)
        status = dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                           "--steps: the checkpoint has %" PRIu64 " steps done already; ask for more than that",
                           t->position.step);
    return status;
}

static enum dtp_status start_batches(struct trainer *t)
{
    const struct dtp_plan *plan = &t->job->plan;
    struct dtp_batch_job job = {.source = t->source, .vocab = t->job->transformer.vocab, .sequence = plan->sequence,
                                .first_step = t->position.step, .micro_batch = plan->micro_batch,
                                .accumulate = plan->accumulate, .rank = t->of->ranks.rank, .ranks = t->ranks};
    uint64_t samples = dtp_batch_step_samples(&job);
    if (t->position.samples != samples * t->position.step)
        return dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                         "the checkpoint's run read %" PRIu64 " samples in %" PRIu64 " steps, this one would have read %" PRIu64
                         "; resume with a batch of as many sequences a step", t->position.samples, t->position.step,
                         samples * t->position.step);
    return dtp_batches_start(&job, t->device, &t->batches, t->faults);
}

static enum dtp_status make_times(struct trainer *t)
{
    if (!t->settings->op_times)
        return DTP_OK;
    size_t count = t->binding.op_count;
    double **lists[] = {&t->times.alone_s, &t->times.start_s, &t->times.end_s};
    for (int i = 0; i < 3; i++) {
        *lists[i] = malloc((count + 1) * sizeof(double));
        if (!*lists[i])
            return dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
        for (size_t k = 0; k < count; k++)
            (*lists[i])[k] = NAN;
    }
    return DTP_OK;
}

static enum dtp_status set_up(struct trainer *t)
{
    enum dtp_status (*const stages[])(struct trainer * t) = {make_program, open_source, make_device, allocate,     connect,
                                                             bind,         start_state, start_batches, make_times};
    enum dtp_status status = DTP_OK;
    describe_model(t);
    for (size_t i = 0; i < sizeof stages / sizeof stages[0] && status == DTP_OK; i++)
        status = stages[i](t);
    if (status == DTP_OK && t->first_rank && t->settings->log)
        status = dtp_step_log_open(t->settings->log, t->position.step, &t->log, t->faults);
    return dtp_world_agree(&t->world, status);
}

static void tear_down(struct trainer *t)
{
    dtp_batches_stop(t->batches);
    dtp_token_source_close(t->source);
    dtp_step_log_close(t->log);
    dtp_run_destroy(t->run);
    if (t->binding.ops)
        dtp_binding_release(&t->binding);
    if (t->device_base)
        t->device->verbs->release(t->device, t->device_base);
    if (t->host_base)
        t->device->verbs->release_host(t->device, t->host_base);
    if (t->device)
        t->device->verbs->destroy(t->device);
    dtp_world_leave(&t->world);
    dtp_executor_arena_release(&t->arena);
    dtp_program_destroy(t->program);
    free(t->times.alone_s);
    free(t->times.start_s);
    free(t->times.end_s);
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* The last two steps, where times are asked for: one alone, one together. */
static enum dtp_run_mode mode_of(const struct trainer *t)
{
    uint64_t left = t->settings->steps - t->position.step;
    if (!t->settings->op_times || left > 2)
        return DTP_RUN_PLAIN;
    return left == 2 ? DTP_RUN_ISOLATED : DTP_RUN_MEASURED;
}

static enum dtp_status write_inputs(struct trainer *t)
{
    const struct dtp_settings *s = t->settings;
    uint64_t bytes = dtp_batch_layout_of(t->binding.rules.tokens).bytes;
    const void *batches;
    enum dtp_status status = dtp_batches_take(t->batches, &batches, t->faults);
    if (status != DTP_OK)
        return status;
    for (uint32_t m = 0; m < t->job->plan.accumulate; m++)
        memcpy(dtp_run_host_batch(t->run, m), (const char *)batches + m * bytes, bytes);
    uint64_t updates = t->position.step - t->position.skipped + 1;
    *dtp_run_host_scalars(t->run) = (struct dtp_step_scalars){
        .learning_rate = (float)dtp_settings_learning_rate(s, t->position.step),
        .correction1 = (float)(1 - pow(s->beta1, (double)updates)),
        .correction2 = (float)(1 - pow(s->beta2, (double)updates)),
        .step = (uint32_t)t->position.step,
        .seed = (uint32_t)s->seed,
        .clip_scale = 1};
    return DTP_OK;
}

static enum dtp_status read_times(struct trainer *t, enum dtp_run_mode mode)
{
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < t->binding.op_count && mode != DTP_RUN_PLAIN && status == DTP_OK; i++) {
        double start, end;
        status = dtp_run_span(t->run, i, &start, &end, t->faults);
        if (status == DTP_OK && mode == DTP_RUN_ISOLATED) {
            t->times.alone_s[i] = end - start;
        } else if (status == DTP_OK) {
            t->times.start_s[i] = start;
            t->times.end_s[i] = end;
        }
    }
    return status;
}

/* What the log says of the step that was just done. */
static struct dtp_step_record record_of(const struct trainer *t, double loss_sum, double seconds)
{
    const struct dtp_step_scalars *results = dtp_run_host_results(t->run);
    double tokens = (double)t->binding.rules.tokens * t->job->plan.accumulate * t->ranks;
    struct dtp_step_record r = {.step = t->position.step + 1,
                                .loss = loss_sum / tokens,
                                .gradient_norm = t->binding.rules.gradient_norm ? (double)results->gradient_norm : NAN,
                                .learning_rate = dtp_settings_learning_rate(t->settings, t->position.step),
                                .seconds = seconds,
                                .tokens_per_s = tokens / seconds,
                                .skipped = results->skip != 0};
    return r;
}

/* DTP_NO ends the run. */
static enum dtp_status judge(struct trainer *t, const struct dtp_step_record *r)
{
    bool finite = isfinite(r->loss) && (isnan(r->gradient_norm) ? !t->binding.rules.gradient_norm
                                                                : isfinite(r->gradient_norm));
    if (finite && !r->skipped)
        return DTP_OK;
    if (!r->skipped)
        return dtp_fault(t->faults, DTP_NO, NULL, 0,
                         "step %" PRIu64 ": the loss is %g, and the optimizer has used its gradients; resume from a "
                         "checkpoint with --gradient-norm, which leaves such updates out", r->step, r->loss);
    if (!t->settings->skip_not_finite)
        return dtp_fault(t->faults, DTP_NO, NULL, 0,
                         "step %" PRIu64 ": the loss is %g, the gradients' norm %g; the update was left out and the run "
                         "stopped (--not-finite skip goes on)", r->step, r->loss, r->gradient_norm);
    if (t->first_rank)
        fprintf(stderr, "dtplan: step %" PRIu64 ": the loss is %g, the gradients' norm %g; the update was left out\n",
                r->step, r->loss, r->gradient_norm);
    return DTP_OK;
}

static void remember_unwritten(struct trainer *t, enum dtp_status status)
{
    t->unwritten = status > t->unwritten ? status : t->unwritten;
}

static void report(struct trainer *t, const struct dtp_step_record *r, enum dtp_run_mode mode)
{
    uint64_t tokens = t->binding.rules.tokens * t->job->plan.accumulate * t->ranks;
    struct dtp_device_memory memory;
    dtp_event_step(t->events, r, tokens, mode);
    if (t->log && t->unwritten == DTP_OK)
        remember_unwritten(t, dtp_step_log_write(t->log, r, t->faults));
    bool first = !t->reported;
    t->reported = true;
    if (first && t->device->asynchronous && t->device->verbs->memory(t->device, &memory, t->faults) == DTP_OK)
        dtp_event_memory(t->events, &memory);
}

#define SLOW_STEP_S 600.0 /* a rank whose step takes longer hangs: far beyond any step that is worth training with */

/* *stop: a signal asked one of the ranks to; all of them end with this step. */
static enum dtp_status one_step(struct trainer *t, bool *stop)
{
    enum dtp_run_mode mode = mode_of(t);
    double seconds = 0;
    enum dtp_status status = write_inputs(t);
    dtp_world_deadline(&t->world, SLOW_STEP_S);
    if (status == DTP_OK)
        status = dtp_run_step(t->run, mode, &seconds, t->faults);
    dtp_world_deadline(&t->world, 0);
    if (status == DTP_OK)
        status = read_times(t, mode);
    struct dtp_world_sums sums = {(double)dtp_run_host_results(t->run)->loss_sum, t->of->stop && *t->of->stop};
    if (status == DTP_OK)
        status = dtp_world_sum(&t->world, &sums, t->faults);
    if (status != DTP_OK)
        return status;
    struct dtp_step_record record = record_of(t, sums.loss_sum, seconds);
    report(t, &record, mode);
    t->position.step++;
    t->position.skipped += record.skipped;
    t->position.samples += (uint64_t)t->job->plan.accumulate * t->ranks * t->job->plan.micro_batch;
    *stop = sums.stops > 0;
    return judge(t, &record);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static enum dtp_status agree(void *world, enum dtp_status mine)
{
    return dtp_world_agree(world, mine);
}

static void write_checkpoint(struct trainer *t)
{
    const struct dtp_checkpoint_place place = {t->settings->checkpoint, t->of->ranks.rank, t->ranks, agree, &t->world};
    struct dtp_checkpoint_identity identity = identity_of(t);
    enum dtp_status status = dtp_checkpoint_write(&place, t->device, &identity, &t->position, t->binding.own,
                                                  t->binding.own_count, t->faults);
    remember_unwritten(t, status);
    if (status == DTP_OK)
        dtp_event_checkpoint(t->events, t->position.step, t->settings->checkpoint);
}

static enum dtp_status all_steps(struct trainer *t)
{
    const struct dtp_settings *s = t->settings;
    uint64_t saved = t->position.step;
    enum dtp_status status = DTP_OK;
    bool stop = false;
    while (status == DTP_OK && t->position.step < s->steps && !stop) {
        status = one_step(t, &stop);
        if (status == DTP_OK && s->checkpoint_every > 0 && t->position.step % s->checkpoint_every == 0) {
            write_checkpoint(t);
            saved = t->position.step;
        }
    }
    if (status == DTP_OK && s->checkpoint && saved != t->position.step)
        write_checkpoint(t);
    if (status == DTP_OK && s->op_times && !stop && t->first_rank)
        remember_unwritten(t, dtp_op_times_write(s->op_times, &t->binding, &t->times, t->faults));
    dtp_event_end(t->events, t->position.step, t->world.communicator, stop);
    return status;
}

enum dtp_status dtp_train(const struct dtp_train_job *job, struct dtp_faults *faults)
{
    struct trainer t = {.of = job, .job = job->job, .settings = job->settings, .faults = faults,
                        .first_rank = job->ranks.rank == 0, .ranks = job->job->cluster.gpus};
    t.events = t.first_rank ? job->events : NULL;
    enum dtp_status status = set_up(&t);
    if (status == DTP_OK) {
        dtp_event_start(t.events, &t.binding, t.source, t.position.step, job->settings->steps);
        status = all_steps(&t);
    }
    if (status != DTP_OK && t.world.control && faults->count > 0)
        dtp_control_give_up(t.world.control, faults->text[faults->count - 1]);
    status = t.unwritten > status ? t.unwritten : status;
    tear_down(&t);
    return status;
}
