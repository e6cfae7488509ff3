#include "train/loss_scale.h"
#include "train/trainer.h"

#include "base/append.h"
#include "plan/runtime.h"
#include "decide/advise.h"
#include "job/estimate.h"
#include "lower/lower.h"
#include "program/program_text.h"
#include "device/open_device.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The plan's own advice for a GPU that has only the bytes that are free. */
static void suggest(const struct dtp_trainer *t, uint64_t free_bytes, char *out, size_t bytes)
{
    if (!t->job) {
        snprintf(out, bytes, "take smaller batches, or more roles");
        return;
    }
    struct dtp_job smaller = *t->job;
    struct dtp_prediction prediction;
    struct dtp_advice advice;
    smaller.cluster.gpu.memory_bytes = free_bytes;
    advice.count = 0;
    if (dtp_estimate(&smaller.transformer, &smaller.cluster, &smaller.plan, &prediction, NULL) == DTP_OK)
        dtp_advise(&smaller, &prediction, NULL, NULL, &advice);
    bool helps = advice.count > 0 && (advice.kind == DTP_ADVICE_MAKES_FIT || advice.kind == DTP_ADVICE_MORE_GPUS);
    snprintf(out, bytes, helps ? "it would fit with %s" : "take a smaller batch, sequence or model",
             helps ? advice.changes[0].flags : "");
}

/* What a rank tells the others of its GPU, where they may share it. */
struct claim {
    uint64_t gpu, arena_bytes;
};

/* How many ranks have this rank's GPU, and the bytes of their arenas. */
static enum dtp_status sum_claims(struct dtp_trainer *t, uint64_t *bytes)
{
    const struct claim mine = {dtp_open_device_ordinal(t->settings, &t->of->ranks), t->arena.device_bytes};
    struct claim *all = calloc(t->ranks, sizeof *all);
    enum dtp_status status = all ? dtp_world_exchange(&t->world, &mine, sizeof mine, all, t->faults)
                                 : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    t->ranks_a_gpu = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < t->ranks && status == DTP_OK; i++)
        if (all[i].gpu == mine.gpu) {
            t->ranks_a_gpu++;
            *bytes += all[i].arena_bytes;
        }
    free(all);
    return status;
}

/* All ranks have their contexts by now, and none its arena. */
static enum dtp_status check_memory(struct dtp_trainer *t)
{
    struct dtp_device_memory memory;
    char advice[300];
    uint64_t all_bytes = t->arena.device_bytes;
    enum dtp_status status = t->settings->share_gpu ? sum_claims(t, &all_bytes) : DTP_OK;
    if (status == DTP_OK)
        status = t->device->verbs->memory(t->device, &memory, t->faults);
    if (status != DTP_OK || all_bytes <= memory.free_bytes)
        return status;
    if (t->arena.device_bytes <= memory.free_bytes)
        return dtp_fault(t->faults, DTP_NO, NULL, 0,
                         "--share-gpu: %" PRIu32 " ranks share %s, their arenas take %.2f GiB together, and it has "
                         "%.2f GiB free of %.2f beside their contexts; nothing was allocated; take fewer ranks, or a "
                         "smaller batch, sequence or model",
                         t->ranks_a_gpu, t->device->name, (double)all_bytes / 0x1p30,
                         (double)memory.free_bytes / 0x1p30, (double)memory.total_bytes / 0x1p30);
    suggest(t, memory.free_bytes, advice, sizeof advice);
    return dtp_fault(t->faults, DTP_NO, NULL, 0,
                     "the step needs an arena of %.2f GiB, %s has %.2f GiB free of %.2f; nothing was allocated; %s",
                     (double)t->arena.device_bytes / 0x1p30, t->device->name, (double)memory.free_bytes / 0x1p30,
                     (double)memory.total_bytes / 0x1p30, advice);
}

static enum dtp_status allocate(struct dtp_trainer *t)
{
    const struct dtp_device_verbs *verbs = t->device->verbs;
    enum dtp_status status = verbs->allocate(t->device, t->arena.device_bytes, &t->device_base, t->faults);
    if (status == DTP_OK)
        status = verbs->allocate_host(t->device, t->arena.host_bytes, &t->host_base, t->faults);
    return status;
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

/* The text that dtplan predicted takes the place of the program that the words make here. They must be one: batches,
 * shapes and checkpoints are by the words, memory and operations by the program. */
static enum dtp_status take_text(struct dtp_trainer *t)
{
    const char *path = t->settings->program;
    struct dtp_program *text;
    uint64_t theirs = 0, ours = 0;
    enum dtp_status status = dtp_program_read_file(path, &text, t->faults);
    if (status != DTP_OK)
        return status;
    status = dtp_program_digest(text, &theirs, t->faults);
    if (status == DTP_OK)
        status = dtp_program_digest(t->program, &ours, t->faults);
    dtp_program_destroy(t->program);
    t->program = text;
    if (status == DTP_OK && theirs != ours)
        status = dtp_fault(t->faults, DTP_BAD_INPUT, path, 0,
                           "is program " DTP_PROGRAM_DIGEST_FORMAT
                           ", but the words beside it make " DTP_PROGRAM_DIGEST_FORMAT
                           "; predict and run with dtplan and dtplan-exec of one build",
                           theirs, ours);
    return status;
}

static enum dtp_status lower_or_take(struct dtp_trainer *t)
{
    const struct dtp_job *job = t->job;
    if (t->set) {
        t->program = t->set->roles[dtp_program_set_role_of(t->set, t->of->ranks.rank)].program;
        enum dtp_status summed = dtp_program_set_digest(t->set, &t->digest, t->faults);
        return summed == DTP_OK ? dtp_executor_arena_make(t->program, &t->arena, t->faults) : summed;
    }
    if (!job->plan.runtime->executed)
        return dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                         "the executor runs plans of --runtime dtplan; those of %s are only predicted",
                         job->plan.runtime->name);
    enum dtp_status status = dtp_lower(&job->transformer, &job->cluster, &job->plan, 0, &t->program, t->faults);
    if (status == DTP_OK && t->settings->program)
        status = take_text(t);
    if (status == DTP_OK)
        status = dtp_program_digest(t->program, &t->digest, t->faults);
    if (status != DTP_OK)
        return status;
    status = dtp_executor_arena_make(t->program, &t->arena, t->faults);
    return status == DTP_BAD_INPUT
               ? dtp_fault(t->faults, status, NULL, 0, "this is a mistake of dtplan, report it with the command")
               : status;
}

static enum dtp_status make_program(struct dtp_trainer *t)
{
    enum dtp_status status = lower_or_take(t);
    /* Ranks of a machine find the same in the same text and words, and the first of them says it; another machine may
     * have another text. */
    if (status == DTP_BAD_INPUT && t->of->ranks.local_rank != 0)
        *t->faults = (struct dtp_faults){.count = 0};
    if (status == DTP_OK && t->set)
        status = dtp_world_join_set(&t->of->ranks, t->set, &t->world, t->faults);
    else if (status == DTP_OK)
        status = dtp_world_join(&t->of->ranks, t->program, &t->world, t->faults);
    return status == DTP_OK ? dtp_train_shape(t) : status;
}

static enum dtp_status take_cores(struct dtp_trainer *t)
{
    return dtp_take_cores(t->settings, &t->world, t->faults);
}

static enum dtp_status connect(struct dtp_trainer *t)
{
    const struct dtp_execution *execution = dtp_program_execution(t->program);
    t->world.choice = (struct dtp_communicator_choice){.max_ctas = execution->collective_ctas,
                                                       .windows = execution->windows,
                                                       .copies = execution->copied,
                                                       .arena = t->device_base,
                                                       .arena_bytes = t->arena.device_bytes,
                                                       .apart = t->settings->pretend_nodes || t->settings->share_gpu};
    return dtp_world_connect(&t->world, t->settings->cuda, t->faults);
}

/* Streams share as many queues to a GPU as this says, 8 unless told otherwise (CUDA C++ Programming Guide, environment
 * variables), and a stage has more: a transfer that waits for another stage would hold up what shares its queue. */
#define QUEUES "32"

static enum dtp_status make_device(struct dtp_trainer *t)
{
    const struct dtp_execution *execution = dtp_program_execution(t->program);
    if (t->settings->share_gpu && (execution->windows || execution->copied))
        return dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                         "--share-gpu: %s memory of GPUs into each other, and ranks that share one talk by sockets; "
                         "leave it out",
                         execution->windows ? "symmetric_windows maps" : "gather_engine or reduce_engine copy maps");
    if (t->set && t->settings->cuda)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", QUEUES, 0); /* before the first context is made */
    return dtp_open_device(t->settings, &t->of->ranks, execution, &t->device, t->faults);
}

static enum dtp_status bind(struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    if (s->force_load_balance && t->job && !t->job->transformer.experts)
        return dtp_fault(
            t->faults, DTP_BAD_INPUT, NULL, 0,
            "--force-load-balance: the model has no experts that tokens could go to in turns; leave it out");
    struct dtp_bind_job job = {
        .program = t->program,
        .arena = &t->arena,
        .device = t->device,
        .device_base = t->device_base,
        .host_base = t->host_base,
        .world = t->ranks > 1 ? &t->world : NULL,
        .set = t->set,
        .balanced_experts = s->force_load_balance,
        .optimizer = {(float)s->beta1, (float)s->beta2, (float)s->epsilon, (float)s->weight_decay, (float)s->momentum},
        .rank = t->of->ranks.rank};
    enum dtp_status status = dtp_bind(&job, &t->binding, t->faults);
    if (status == DTP_OK && t->job && t->job->plan.powersgd_start_step)
        status = dtp_binding_hold_factors(&t->binding, t->faults);
    return status == DTP_OK ? dtp_run_create(&t->binding, t->settings->poison, &t->run, t->faults) : status;
}

#define PROOF_S 120.0 /* connecting rings and trees included */

static enum dtp_status prove(struct dtp_trainer *t)
{
    dtp_world_deadline(&t->world, PROOF_S);
    enum dtp_status status = dtp_binding_prove(&t->binding, t->faults);
    dtp_world_deadline(&t->world, 0);
    return status;
}

static enum dtp_status open_source(struct dtp_trainer *t)
{
    const struct dtp_settings *s = t->settings;
    struct dtp_token_shape shape = {t->batch.vocab, t->batch.sequence, s->seed};
    return s->data ? dtp_token_source_open(s->data, s->token_type, &shape, &t->source, t->faults)
                   : dtp_token_source_markov(&shape, &t->source, t->faults);
}

static struct dtp_batch_job batch_job(const struct dtp_trainer *t)
{
    struct dtp_batch_job job = t->batch;
    job.source = t->source;
    job.first_step = t->position.step;
    return job;
}

/* Each rank looks at its part of what all will read, and all hear what any found: a token beyond the vocabulary ends
 * the run on every rank at once, before the first step and in the same words. */
static enum dtp_status check_tokens(struct dtp_trainer *t)
{
    struct dtp_batch_job job = batch_job(t);
    struct dtp_token_range range = {0, t->settings->steps * dtp_batch_step_samples(&job), t->of->ranks.rank, t->ranks};
    uint64_t *all = calloc(t->ranks, sizeof *all), found = UINT64_MAX;
    uint64_t mine = dtp_token_source_search(t->source, &range, t->of->stop);
    enum dtp_status status = all ? dtp_world_exchange(&t->world, &mine, sizeof mine, all, t->faults)
                                 : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t i = 0; i < t->ranks && status == DTP_OK; i++)
        found = all[i] < found ? all[i] : found;
    free(all);
    return status == DTP_OK ? dtp_token_source_refuse(t->source, found, t->faults) : status;
}

/* Details that few models have, named where they are there, and windows where they cut: other checkpoints say what they
 * always said. So are scales of adapters, and optimizers whose one momentum is no first moment of AdamW's. */
static void describe_details(struct dtp_trainer *t)
{
    const struct dtp_transformer *m = &t->job->transformer;
    bool cuts = m->sliding_window > 0 && m->sliding_window < t->job->plan.sequence;
    const struct {
        const char *name;
        double value;
    } details[] = {
        {"qk_norm", m->qk_norm},
        {"head_bias", m->head_bias},
        {"norm_unit_offset", m->norm_unit_offset},
        {"norm_eps", m->norm_epsilon < DTP_NORM_EPSILON || m->norm_epsilon > DTP_NORM_EPSILON ? m->norm_epsilon : 0},
        {"embedding_scale", m->embedding_scale},
        {"parallel_block", m->parallel_block},
        {"norm_place", m->norm_place},
        {"qk_norm_wide", m->qk_norm_wide},
        {"attention_softcap", m->attention_softcap},
        {"final_softcap", m->final_softcap},
        {"experts", (double)m->experts},
        {"experts_per_token", (double)m->experts_per_token},
        {"expert_ffn", (double)m->expert_ffn},
        {"shared_expert_ffn", (double)m->shared_expert_ffn},
        {"shared_expert_gate", m->shared_expert_gate},
        {"router", m->router},
        {"router_norm", m->router_norm},
        {"router_scale", m->router_scale},
        {"router_on_input", m->router_on_input},
        {"chunked_attention", m->chunked_attention},
        {"router_bias", m->router_bias},
        {"lora", (double)t->job->plan.adapters.rank},
        {"lora_alpha", t->job->plan.adapters.rank ? t->job->plan.adapters.alpha : 0},
        {"momentum", t->job->plan.optimizer == DTP_MOMENTUM},
        {"muon", t->job->plan.optimizer == DTP_MUON},
        {"sliding_window", cuts ? (double)m->sliding_window : 0},
        {"sliding_window_pattern", cuts ? (double)m->sliding_window_pattern : 0}};
    for (size_t i = 0; i < sizeof details / sizeof *details; i++)
        if (details[i].value != 0)
            dtp_append(t->model, sizeof t->model, ", %s %g", details[i].name, details[i].value);
}

static void describe_model(struct dtp_trainer *t)
{
    if (!t->job)
        return; /* checkpoints are of models in words */
    const struct dtp_transformer *m = &t->job->transformer;
    snprintf(t->model, sizeof t->model,
             "layers %" PRIu64 ", hidden %" PRIu64 ", heads %" PRIu64 " of %" PRIu64 ", kv heads %" PRIu64
             ", ffn %" PRIu64 ", vocab %" PRIu64 ", positions %" PRIu64 ", kinds %d%d%d, biases %d%d%d%d, tied %d, %s",
             m->layers, m->hidden, m->heads, m->head_dim, m->kv_heads, m->ffn, m->vocab, m->positions, (int)m->norm,
             (int)m->activation, (int)m->position, m->norm_bias, m->qkv_bias, m->attention_output_bias, m->mlp_bias,
             m->tied_head, dtp_precision_name(&t->job->plan.precision));
    describe_details(t);
}

struct dtp_checkpoint_identity dtp_train_identity(const struct dtp_trainer *t)
{
    return (struct dtp_checkpoint_identity){t->model, dtp_token_source_words(t->source), t->settings->seed};
}

/* Launches every kernel once (dtp_run_rehearse) before stages on GPUs train, for their receives run while others
 * compute; on cores only with poison, so that tests see that nothing comes of it. */
static enum dtp_status rehearse(struct dtp_trainer *t)
{
    bool wanted = t->set && (t->device->asynchronous || t->settings->poison);
    return wanted ? dtp_run_rehearse(t->run, t->faults) : DTP_OK;
}

static enum dtp_status initialise(struct dtp_trainer *t)
{
    return dtp_run_initialise(t->run, t->settings->seed, t->faults);
}

/* A step that is left out has changed what PowerSGD lost already. */
static enum dtp_status check_skipping(const struct dtp_trainer *t)
{
    for (size_t i = 0; i < t->binding.part_count && t->settings->skip_not_finite; i++)
        if (t->binding.parts[i].kind == DTP_STATE_LOST)
            return dtp_fault(
                t->faults, DTP_BAD_INPUT, NULL, 0,
                "--not-finite skip: comm_hook powersgd keeps what it loses of each step's gradients, those "
                "that are not finite too; leave it out, or use comm_hook fp16 or bf16");
    return DTP_OK;
}

static enum dtp_status start_state(struct dtp_trainer *t)
{
    enum dtp_status status = check_skipping(t);
    if (status == DTP_OK)
        status = dtp_keep_resume(t);
    if (status == DTP_OK)
        status = dtp_loss_scale_start(t->settings, dtp_program_execution(t->program)->compute == DTP_FP16, &t->position,
                                      t->faults);
    if (status == DTP_OK)
        status = dtp_run_copy_weights_down(t->run, t->faults);
    if (status == DTP_OK && t->position.step >= t->settings->steps)
        status = dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                           "--steps: the checkpoint has %" PRIu64 " steps done already; ask for more than that",
                           t->position.step);
    return status;
}

static enum dtp_status start_batches(struct dtp_trainer *t)
{
    struct dtp_batch_job job = batch_job(t);
    uint64_t samples = dtp_batch_step_samples(&job);
    if (t->position.samples != samples * t->position.step)
        return dtp_fault(t->faults, DTP_BAD_INPUT, NULL, 0,
                         "the checkpoint's run read %" PRIu64 " samples in %" PRIu64
                         " steps, this one would have read %" PRIu64
                         "; resume with a batch of as many sequences a step",
                         t->position.samples, t->position.step, samples * t->position.step);
    return t->binding.map.micro_steps ? dtp_batches_start(&job, t->device, &t->batches, t->faults) : DTP_OK;
}

static enum dtp_status make_times(struct dtp_trainer *t)
{
    if (!t->settings->op_times && !t->set)
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

static enum dtp_status open_log(struct dtp_trainer *t)
{
    return t->first_rank && t->settings->log
               ? dtp_step_log_open(t->settings->log, t->position.step, t->digest, &t->log, t->faults)
               : DTP_OK;
}

/* What ranks do together stands in a group after what any of them may fail in alone, or the others would wait for it.
 */
static enum dtp_status set_up(struct dtp_trainer *t)
{
    typedef enum dtp_status stage(struct dtp_trainer * t);
    static stage *const groups[][6] = {
        {make_program, take_cores, open_source, dtp_keep_prepare, make_device},
        {check_memory},
        {allocate},
        {check_tokens, connect, bind},
        {dtp_keep_open},
        {dtp_keep_take_memory},
        {prove, rehearse, initialise},
        {start_state, start_batches, make_times, open_log},
    };
    enum dtp_status status = DTP_OK;
    describe_model(t);
    for (size_t g = 0; g < sizeof groups / sizeof *groups && status == DTP_OK; g++) {
        for (size_t i = 0; groups[g][i] && status == DTP_OK; i++)
            status = groups[g][i](t);
        status = dtp_world_begin_together(&t->world, status, t->faults);
        if (groups[g][2] == bind) {
            t->world.checkpoints = t->settings->checkpoint;
            t->world.clean = dtp_checkpoint_clean;
        }
    }
    return status;
}

/* Transfers that another thread of this rank still carries end, before what they touch goes. */
static void stop_transfers(struct dtp_trainer *t, bool failed)
{
    if (failed && t->world.communicator)
        t->world.communicator->verbs->abort(t->world.communicator);
    if (t->device && !t->device->asynchronous)
        t->device->verbs->synchronise(t->device);
}

static void tear_down(struct dtp_trainer *t, bool failed)
{
    stop_transfers(t, failed);
    dtp_keep_close(t, failed);
    dtp_batches_stop(t->batches);
    dtp_token_source_close(t->source);
    dtp_step_log_close(t->log);
    dtp_run_destroy(t->run);
    if (t->binding.ops)
        dtp_binding_release(&t->binding);
    dtp_world_disconnect(&t->world, failed);
    if (t->device_base)
        t->device->verbs->release(t->device, t->device_base);
    if (t->host_base)
        t->device->verbs->release_host(t->device, t->host_base);
    if (t->device)
        t->device->verbs->destroy(t->device);
    dtp_world_leave(&t->world);
    dtp_executor_arena_release(&t->arena);
    if (!t->set)
        dtp_program_destroy(t->program);
    free(t->times.alone_s);
    free(t->times.start_s);
    free(t->times.end_s);
}

enum dtp_status dtp_train(const struct dtp_train_job *job, struct dtp_faults *faults)
{
    struct dtp_trainer t = {.of = job,
                            .job = job->job,
                            .set = job->set,
                            .settings = job->settings,
                            .faults = faults,
                            .first_rank = job->ranks.rank == 0,
                            .ranks = job->set ? dtp_program_set_ranks(job->set) : job->job->cluster.gpus,
                            .ranks_a_gpu = 1};
    t.events = t.first_rank ? job->events : NULL;
    enum dtp_status status = set_up(&t);
    if (status == DTP_OK) {
        const struct dtp_run_start start = {t.digest,
                                            t.source,
                                            t.position.step,
                                            job->settings->steps,
                                            t.ranks_a_gpu,
                                            t.saver.copy.bytes,
                                            t.snapshots ? t.snapshots->copy.bytes : 0};
        dtp_event_start(t.events, &t.binding, &start);
        dtp_event_begin(t.events, t.ranks, t.from);
        status = dtp_train_steps(&t);
    }
    if (status != DTP_OK)
        dtp_world_give_up(&t.world, status, faults);
    bool failed = status != DTP_OK;
    status = t.unwritten > status ? t.unwritten : status;
    tear_down(&t, failed);
    return status;
}
