#include "cli/elastic_events.h"
#include "cli/run_process.h"
#include "base/clock.h"
#include "base/grow.h"
#include "base/quantile.h"
#include "machine/measured.h"
#include "program/program_set.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WARM_UP_STEPS 2 /* first use of libraries, caches and clocks */
#define LAST_LOSSES 10

struct dtp_run_listener {
    const struct dtp_job *job;
    struct dtp_run_outcome *out;
    struct dtp_elastic_listener elastic;
    bool progress, terminal, line_open;
    uint64_t steps;  /* that the run is to do */
    double *seconds; /* of the plain steps, then as undisturbed cores make them: two a step */
    size_t count, room, seen;
    double losses[LAST_LOSSES];
    double last_said_s, started_s, recent_s; /* recent_s: smoothed seconds of a step, for the time left */
};

struct dtp_run_listener *dtp_run_listener_create(const struct dtp_job *job, bool progress, struct dtp_run_outcome *out)
{
    struct dtp_run_listener *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    *out = (struct dtp_run_outcome){.entropy = (double)NAN, .first_loss = (double)NAN, .last_loss = (double)NAN};
    l->job = job;
    l->out = out;
    l->elastic.out = &out->elastic;
    l->progress = progress;
    l->terminal = isatty(STDERR_FILENO);
    l->started_s = dtp_now_s();
    return l;
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static uint64_t whole(const json_t *event, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(event, key));
    return value > 0 ? (uint64_t)value : 0;
}

static double number(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void text(const json_t *event, const char *key, char *out, size_t bytes)
{
    const char *value = json_string_value(json_object_get(event, key));
    snprintf(out, bytes, "%s", value ? value : "");
    dtp_make_printable(out); /* it goes to terminals, pages and JSON, and may be cut within a character */
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static void time_left(const struct dtp_run_listener *l, uint64_t step, char *out, size_t bytes)
{
    double left = step < l->steps ? (double)(l->steps - step) * l->recent_s : 0;
    uint64_t seconds = left > 0 && left < 1e9 ? (uint64_t)left : 0;
    snprintf(out, bytes, "%" PRIu64 ":%02" PRIu64 ":%02" PRIu64, seconds / 3600, seconds / 60 % 60, seconds % 60);
}

/* Model FLOPs over the dense peak of the compute dtype; "" on a host, which has no such peak in the catalogue. */
static void mfu_text(const struct dtp_run_listener *l, double tokens_per_s, char *out, size_t bytes)
{
    const struct dtp_job *job = l->job;
    out[0] = '\0';
    if (!job)
        return;
    double peak = job->cluster.gpu.peak_flops_per_s[job->plan.precision.compute] * job->cluster.gpus;
    double flops = dtp_plan_model_flops_per_token(&job->transformer, &job->plan) * tokens_per_s;
    if (l->out->gpu && l->out->ranks_a_gpu < 2 && peak > 0)
        snprintf(out, bytes, "  MFU %.1f %%", 100 * flops / peak);
}

/* A terminal sees every step on one line; a file one line every ten seconds, and the last. */
static void say_step(struct dtp_run_listener *l, const json_t *event, uint64_t step)
{
    double seconds = number(event, "step_s"), norm = number(event, "gradient_norm"), now = dtp_now_s();
    double tokens_per_s = (double)whole(event, "tokens") / seconds;
    char left[32], mfu[32], norm_text[32] = "", memory[32] = "";
    if (!l->progress || (!l->terminal && step < l->steps && now - l->last_said_s < 10))
        return;
    l->last_said_s = now;
    time_left(l, step, left, sizeof left);
    mfu_text(l, tokens_per_s, mfu, sizeof mfu);
    if (isfinite(norm))
        snprintf(norm_text, sizeof norm_text, "  norm %.3f", norm);
    if (l->out->used_bytes > 0)
        snprintf(memory, sizeof memory, "  %.1f GiB", (double)l->out->used_bytes / 0x1p30);
    fprintf(stderr, "%sstep %" PRIu64 "/%" PRIu64 "  loss %.4f%s  lr %.2e  %.0f tokens/s%s%s  left %s%s",
            l->terminal ? "\r" : "", step, l->steps, number(event, "loss"), norm_text, number(event, "learning_rate"),
            tokens_per_s, mfu, memory, left, l->terminal ? "\033[K" : "\n");
    l->line_open = l->terminal;
    fflush(stderr);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void hear_start(struct dtp_run_listener *l, const json_t *event)
{
    struct dtp_run_outcome *m = l->out;
    const json_t *owners = json_object_get(event, "owner_bytes");
    text(event, "program", m->program, sizeof m->program);
    text(event, "device", m->device, sizeof m->device);
    text(event, "libraries", m->libraries, sizeof m->libraries);
    text(event, "collectives", m->collectives, sizeof m->collectives);
    text(event, "data", m->data, sizeof m->data);
    m->gpu = json_is_true(json_object_get(event, "gpu"));
    m->ranks_a_gpu = whole(event, "ranks_a_gpu");
    m->operations = whole(event, "operations");
    m->device_arena_bytes = whole(event, "device_arena_bytes");
    m->host_arena_bytes = whole(event, "host_arena_bytes");
    m->beside.host_bytes = whole(event, "checkpoint_copy_bytes");
    m->snapshots.host_bytes = whole(event, "snapshot_copy_bytes");
    for (int i = 0; i < DTP_OWNER_COUNT; i++)
        m->owner_bytes[i] = whole(owners, dtp_owner_key((enum dtp_owner)i));
    m->entropy = number(event, "entropy");
    uint64_t first = whole(event, "first_step");
    dtp_elastic_hear_start(&l->elastic, first);
    if (m->elastic.generations < 2) /* of later ones the first steps are done again */
        m->first_step = m->last_step = first;
    l->steps = whole(event, "steps");
}

/* Seconds of the step on cores that nothing disturbs: PyTorch's run says them of a step again (scenarios/run_torch.py);
 * of our own ranks on cores those where the loop beside it takes what it took at its best when the machine was probed.
 * NAN: neither. */
static double undisturbed_s(const struct dtp_run_listener *l, const json_t *event, double seconds)
{
    const struct dtp_measured *measured = l->job ? l->job->cluster.measured : NULL;
    double said_s = number(event, "undisturbed_s"), loop_s = number(event, "loop_s");
    if (said_s > 0)
        return said_s;
    return measured ? seconds * dtp_measured_step_s(measured, DTP_MEASURED_PACE) / loop_s : (double)NAN;
}

static void keep_seconds(struct dtp_run_listener *l, double seconds, double undisturbed_s)
{
    if (!dtp_grow(&l->seconds, l->count, &l->room, 2 * sizeof *l->seconds))
        return; /* the median is then of fewer steps, and says of how many */
    l->seconds[2 * l->count] = seconds;
    l->seconds[2 * l->count++ + 1] = undisturbed_s;
}

static void hear_step(struct dtp_run_listener *l, const json_t *event)
{
    struct dtp_run_outcome *m = l->out;
    const char *mode = json_string_value(json_object_get(event, "mode"));
    double seconds = number(event, "step_s"), loss = number(event, "loss");
    m->last_step = whole(event, "step");
    m->tokens_per_step = whole(event, "tokens");
    m->skipped_steps += json_is_true(json_object_get(event, "skipped"));
    if (l->seen == 0)
        m->first_loss = loss;
    m->last_rate = number(event, "learning_rate");
    dtp_elastic_hear_step(&l->elastic, m->last_step, seconds);
    l->losses[l->seen++ % LAST_LOSSES] = loss;
    l->recent_s = l->seen == 1 ? seconds : 0.9 * l->recent_s + 0.1 * seconds;
    if (mode && strcmp(mode, "plain") == 0 && seconds > 0)
        keep_seconds(l, seconds, undisturbed_s(l, event, seconds));
    say_step(l, event, m->last_step);
}

static void hear_memory(struct dtp_run_listener *l, const json_t *event)
{
    l->out->used_bytes = whole(event, "used_bytes");
    l->out->gpu_bytes = whole(event, "total_bytes");
    l->out->reference = (struct dtp_reference_bytes){.after_init = whole(event, "after_init_bytes"),
                                                     .allocated = whole(event, "allocated_bytes"),
                                                     .reserved = whole(event, "reserved_bytes"),
                                                     .parameters = whole(event, "parameter_bytes"),
                                                     .gradients = whole(event, "gradient_bytes"),
                                                     .optimizer = whole(event, "optimizer_bytes")};
}

static void hear_kept(struct dtp_kept *kept, const json_t *event)
{
    double stall_s = number(event, "stall_s");
    if (!(stall_s >= 0))
        return;
    kept->count++;
    kept->stall_s += stall_s;
    kept->longest_s = fmax(kept->longest_s, stall_s);
}

static void hear_end(struct dtp_run_listener *l, const json_t *event)
{
    const json_t *sent = json_object_get(event, "sent_bytes");
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++)
        l->out->sent_bytes[i] = whole(sent, dtp_collective_text((enum dtp_collective)i));
    l->out->host_to_device_bytes = whole(event, "host_to_device_bytes");
    l->out->device_to_host_bytes = whole(event, "device_to_host_bytes");
    l->out->interrupted = json_is_true(json_object_get(event, "interrupted"));
}

static void hear_roles(struct dtp_run_listener *l, const json_t *event)
{
    const json_t *roles = json_object_get(event, "roles");
    size_t count = json_array_size(roles);
    struct dtp_run_outcome *m = l->out;
    if (m->roles || count == 0 || count > DTP_PROGRAM_SET_MAX_ROLES || !(m->roles = calloc(count, sizeof *m->roles)))
        return;
    m->role_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        m->roles[i] = (struct dtp_role_outcome){number(json_array_get(roles, i), "busy_s"),
                                                number(json_array_get(roles, i), "step_s")};
}

static void hear_ranks(struct dtp_run_listener *l, const json_t *event)
{
    const json_t *ranks = json_object_get(event, "ranks");
    size_t count = json_array_size(ranks);
    struct dtp_run_outcome *m = l->out;
    if (m->ranks || count == 0 || count > UINT16_MAX || !(m->ranks = calloc(count, sizeof *m->ranks)))
        return;
    m->rank_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *rank = json_array_get(ranks, i), *sent = json_object_get(rank, "sent_bytes");
        m->ranks[i] = (struct dtp_rank_outcome){.role = whole(rank, "role"),
                                                .device_arena_bytes = whole(rank, "device_arena_bytes"),
                                                .used_bytes = whole(rank, "used_bytes"),
                                                .host_to_device_bytes = whole(rank, "host_to_device_bytes"),
                                                .device_to_host_bytes = whole(rank, "device_to_host_bytes"),
                                                .steps = whole(rank, "steps")};
        for (int c = 0; c < DTP_COLLECTIVE_COUNT; c++)
            m->ranks[i].sent_bytes[c] = whole(sent, dtp_collective_text((enum dtp_collective)c));
    }
}

static void hear_experts(struct dtp_run_listener *l, const json_t *event)
{
    const json_t *layers = json_object_get(event, "rows");
    struct dtp_run_outcome *m = l->out;
    size_t count = json_array_size(layers), experts = json_array_size(json_array_get(layers, 0));
    if (m->expert_rows || !count || !experts || count > UINT16_MAX || experts > UINT16_MAX ||
        !(m->expert_rows = calloc(count * experts, sizeof *m->expert_rows)))
        return;
    m->expert_layers = (uint32_t)count, m->experts = (uint32_t)experts;
    for (size_t i = 0; i < count * experts; i++) {
        json_int_t rows = json_integer_value(json_array_get(json_array_get(layers, i / experts), i % experts));
        m->expert_rows[i] = rows > 0 ? (uint64_t)rows : 0;
    }
}

void dtp_run_listener_hear(void *listener, const char *line)
{
    struct dtp_run_listener *l = listener;
    json_t *event = json_loads(line, 0, NULL);
    const char *kind = json_string_value(json_object_get(event, "event"));
    if (!kind)
        ; /* not ours */
    else if (strcmp(kind, "start") == 0)
        hear_start(l, event);
    else if (strcmp(kind, "step") == 0)
        hear_step(l, event);
    else if (strcmp(kind, "generation") == 0) {
        struct dtp_elastic_heard heard = {.number = (uint32_t)whole(event, "number"),
                                          .ranks = (uint32_t)whole(event, "ranks"),
                                          .how = (unsigned)whole(event, "how"),
                                          .noticed_s = number(event, "noticed_s"),
                                          .ended_s = number(event, "ended_s")};
        text(event, "why", heard.why, sizeof heard.why);
        dtp_elastic_hear_generation(&l->elastic, &heard);
    } else if (strcmp(kind, "snapshot") == 0) {
        hear_kept(&l->out->snapshots, event);
        dtp_elastic_hear_snapshot(&l->elastic, number(event, "stall_s"));
    } else if (strcmp(kind, "checkpoint") == 0) {
        bool beside = json_is_true(json_object_get(event, "beside"));
        hear_kept(beside ? &l->out->beside : &l->out->checkpoints, event);
    } else if (strcmp(kind, "roles") == 0)
        hear_roles(l, event);
    else if (strcmp(kind, "ranks") == 0)
        hear_ranks(l, event);
    else if (strcmp(kind, "experts") == 0)
        hear_experts(l, event);
    else if (strcmp(kind, "memory") == 0)
        hear_memory(l, event);
    else if (strcmp(kind, "end") == 0)
        hear_end(l, event);
    else if (strcmp(kind, "fault") == 0 && !l->out->reason[0])
        text(event, "words", l->out->reason, sizeof l->out->reason);
    json_decref(event);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

void dtp_run_listener_finish(struct dtp_run_listener *l)
{
    struct dtp_run_outcome *m = l->out;
    size_t first = l->count > WARM_UP_STEPS ? WARM_UP_STEPS : 0, count = l->count - first;
    size_t losses = l->seen < LAST_LOSSES ? l->seen : LAST_LOSSES;
    if (l->line_open)
        fputc('\n', stderr);
    if (count > 0) {
        size_t paced = 0;
        m->step_s = dtp_median(l->seconds + 2 * first, 2, count);
        for (size_t i = first; i < l->count; i++)
            if (isfinite(l->seconds[2 * i + 1]))
                l->seconds[paced++] = l->seconds[2 * i + 1];
        m->undisturbed_s = paced ? dtp_median(l->seconds, 1, paced) : 0;
    }
    m->timed_steps = count;
    for (size_t i = 0; i < losses; i++)
        m->last_loss = i == 0 ? l->losses[i] / (double)losses : m->last_loss + l->losses[i] / (double)losses;
    dtp_elastic_listener_finish(&l->elastic);
    free(l->seconds);
    free(l);
}
