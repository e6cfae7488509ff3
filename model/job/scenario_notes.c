/* What a user should know of a job that is predicted all the same: words that were taken for others, what of the
 * model is beyond what it states, keys that nothing reads here. */
#include "job/scenario_resolution.h"

#include "base/append.h"
#include "cost/op_cost.h"
#include "machine/measured.h"
#include "plan/context.h"
#include "plan/rules.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* One more note behind those before it. */
__attribute__((format(printf, 3, 0))) static void add_note(char *note, size_t bytes, const char *format,
                                                           va_list arguments)
{
    size_t used = strlen(note);
    if (used && used < bytes)
        used += (size_t)snprintf(note + used, bytes - used, "; ");
    if (used < bytes)
        vsnprintf(note + used, bytes - used, format, arguments);
}

void dtp_note_model(struct dtp_resolution *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_note(r->job->model_note, sizeof r->job->model_note, format, arguments);
    va_end(arguments);
}

__attribute__((format(printf, 2, 3))) static void note_plan(struct dtp_resolution *r, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_note(r->job->plan_note, sizeof r->job->plan_note, format, arguments);
    va_end(arguments);
}

/* Says what was taken for words that mean something else elsewhere, or more than one thing. */
void dtp_note_words(struct dtp_resolution *r)
{
    for (int i = 0; i < DTP_KEY_COUNT; i++) {
        const struct dtp_setting *s = &r->scenario->settings[i];
        if (!s->value)
            continue;
        const struct dtp_scenario_alias *value = dtp_key_value_alias((enum dtp_key)i, s->value);
        const char *name = dtp_key_name((enum dtp_key)i);
        if (s->alias)
            note_plan(r, "%s %.24s: %s, %s", s->alias->word, s->value, name, s->alias->words);
        else if (value)
            note_plan(r, "%s %s: %s", name, value->word,
                      *value->value ? value->words : dtp_offload_text(r->job->plan.offload));
    }
}

/* Predicted all the same: the arithmetic is that of any sequence. What it means is for the user to know. */
static void note_sequence(struct dtp_resolution *r, uint64_t sequence)
{
    const struct dtp_transformer *t = &r->job->transformer;
    if (t->max_sequence && sequence > t->max_sequence)
        dtp_note_model(r, "seq %" PRIu64 " is beyond the %" PRIu64 " positions that the model is stated for", sequence,
                       t->max_sequence);
    if (dtp_transformer_layer_window(t, 0, sequence) && !t->chunked_attention)
        dtp_note_model(r,
                       "seq %" PRIu64 " is beyond the sliding window: attention is counted over %" PRIu64
                       " tokens back%s, which takes a kernel that knows windows",
                       sequence, t->sliding_window, t->sliding_window_pattern ? " where a layer has the window" : "");
}

/* Attention that our executor does by kernels of its own; and caps elsewhere, whose kernels have not been measured. */
static void note_unfused(struct dtp_resolution *r)
{
    const struct dtp_transformer *t = &r->job->transformer;
    const struct dtp_plan *plan = &r->job->plan;
    if (dtp_cluster_is_host(&r->job->cluster) || !plan->runtime)
        return;
    const struct dtp_attention_shape shape = dtp_plan_attention(t, &r->job->cluster, plan, 0);
    const struct dtp_execution execution = dtp_plan_execution(plan);
    const enum dtp_own_attention own = dtp_own_attention(&r->job->cluster.gpu, &shape, &execution);
    if (own == DTP_OWN_ATTENTION_PLAIN)
        dtp_note_model(r, "attention of these heads, length, format or cap runs on a plain kernel, tens of times as "
                          "slow as a flash kernel and priced as it was measured with heads of 256 on H200");
    else if (own == DTP_OWN_ATTENTION_MMA)
        dtp_note_model(r,
                       "attention of these heads, length or cap runs on a kernel of our own, slower than cuDNN's and "
                       "priced by rates that were fitted on H200");
    else if (t->attention_softcap > 0)
        dtp_note_model(r,
                       "attention with a soft cap is priced as a flash kernel without one: its time is a lower bound");
}

void dtp_note_attention(struct dtp_resolution *r, uint64_t sequence)
{
    note_sequence(r, sequence);
    note_unfused(r);
}

static void note_unread(struct dtp_resolution *r, enum dtp_key key, const char *reader)
{
    note_plan(r, "%s %.24s changes nothing here: it is for %s", dtp_key_name(key), text_of(r, key), reader);
}

/* What the model, or what is asked, has no use for. */
static void note_useless(struct dtp_resolution *r)
{
    const struct dtp_transformer *t = &r->job->transformer;
    const struct dtp_optimizer_row *optimizer = dtp_optimizer_row(r->job->plan.optimizer);
    static const enum dtp_key of_training[] = {DTP_KEY_deadline, DTP_KEY_budget,  DTP_KEY_gpu_mtbf, DTP_KEY_detection,
                                               DTP_KEY_restart,  DTP_KEY_storage, DTP_KEY_rejoin,   DTP_KEY_repair};
    if (r->job->plan.rope_fp32 && t->position != DTP_POSITION_ROPE)
        note_unread(r, DTP_KEY_rope_fp32, "position rope");
    if (r->job->asked.fused_gate_up && !dtp_activation_is_gated(t->activation))
        note_unread(r, DTP_KEY_fused_gate_up, "gated activations (swiglu, geglu)");
    if (given(r, DTP_KEY_moment_dtype) && !optimizer->states && optimizer->shape == DTP_STATE_ALIKE)
        note_unread(r, DTP_KEY_moment_dtype, "optimizers that keep moments");
    if (given(r, DTP_KEY_reduce_dtype) && r->job->asked.precision.reduce != r->job->plan.precision.reduce)
        note_unread(r, DTP_KEY_reduce_dtype, "plans without adapters (lora), whose gradients are reduced as they are");
    for (size_t i = 0; i < sizeof of_training / sizeof *of_training; i++)
        if (given(r, of_training[i]) && !given(r, DTP_KEY_tokens))
            note_unread(r, of_training[i], "a whole training, whose length tokens says");
}

void dtp_note_unread(struct dtp_resolution *r)
{
    const struct dtp_draft asked = {.plan = r->job->asked}, standard = {.plan = dtp_plan_unchosen()};
    for (int i = 0; i < DTP_KEY_COUNT; i++) {
        enum dtp_key key = (enum dtp_key)i;
        enum dtp_key_reader reader = dtp_key_reader(key);
        if (given(r, key) && !dtp_key_reader_reads(reader, &r->job->plan) && !dtp_key_same(key, &asked, &standard))
            note_unread(r, key, dtp_key_reader_words(reader));
    }
    note_useless(r);
}

/* What the plan does between ranks that its machine file has no row of. */
void dtp_note_unmeasured(struct dtp_resolution *r)
{
    const struct dtp_plan *plan = &r->job->plan;
    const struct dtp_cluster *cluster = &r->job->cluster;
    if (!cluster->measured || !plan->runtime)
        return;
    const struct dtp_context context = dtp_plan_context(plan, cluster);
    const bool divides = plan->ep > 1, uneven = divides && dtp_plan_execution(plan).own_kernels;
    const struct {
        bool made;
        const char *what;
    } rows[] = {{plan->pp > 1, dtp_measured_collective_text(DTP_SEND_RECV, DTP_CARRIED_PLAIN)},
                {context.ring > 1 && !context.gathers, dtp_measured_collective_text(DTP_SEND_RECV, DTP_CARRIED_AROUND)},
                {context.exchanged > 1 || (divides && !uneven),
                 dtp_measured_collective_text(DTP_ALL_TO_ALL, DTP_CARRIED_PLAIN)},
                {uneven, dtp_measured_collective_text(DTP_ALL_TO_ALL, DTP_CARRIED_UNEVEN)}};
    char missing[96] = "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].made && !dtp_measured_has_collective(cluster->measured, rows[i].what))
            dtp_append_part(missing, sizeof missing, ", ", "%s", rows[i].what);
    if (*missing)
        note_plan(r,
                  "the machine file has no row of %s: priced by the catalogue or by what moves bytes alike; probe anew",
                  missing);
}
