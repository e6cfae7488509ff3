/* Inside of the scenario: a job while it is made of settings, key by key, with what each part of that takes: whether a
 * key was given, where, and faults at that place. */
#ifndef DTP_SCENARIO_RESOLUTION_H
#define DTP_SCENARIO_RESOLUTION_H

#include "job/scenario_keys.h"

#include <stdarg.h>
#include <stdio.h>

struct dtp_resolution {
    const struct dtp_scenario *scenario;
    const struct dtp_catalog *catalog;
    struct dtp_job *job;
    struct dtp_draft draft;
    struct dtp_faults *faults;
    enum dtp_status status;
    bool fused_qkv, fused_gate_up; /* of the model's file (struct dtp_hf_config) */
    bool silent;                   /* no notes on the plan: whoever asks compares many and shows none */
};

static inline bool given(const struct dtp_resolution *r, enum dtp_key key)
{
    return r->scenario->settings[key].value != NULL;
}

static inline const char *text_of(const struct dtp_resolution *r, enum dtp_key key)
{
    return r->scenario->settings[key].value;
}

static inline const char *where_of(const struct dtp_resolution *r, enum dtp_key key)
{
    return r->scenario->settings[key].where;
}

static inline size_t line_of(const struct dtp_resolution *r, enum dtp_key key)
{
    return r->scenario->settings[key].line;
}

static inline void worsen(struct dtp_resolution *r, enum dtp_status status)
{
    if (status > r->status)
        r->status = status;
}

/* One fault about `key`, at the place where it was set. */
static inline void refuse(struct dtp_resolution *r, enum dtp_key key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static inline void refuse(struct dtp_resolution *r, enum dtp_key key, const char *format, ...)
{
    char text[DTP_FAULT_TEXT_BYTES];
    va_list arguments;
    worsen(r, DTP_BAD_INPUT);
    if (!r->faults)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    worsen(r,
           dtp_fault_about(r->faults, DTP_BAD_INPUT, where_of(r, key), line_of(r, key), dtp_key_name(key), "%s", text));
}

static inline void apply(struct dtp_resolution *r, enum dtp_key key)
{
    char why[256];
    if (given(r, key) && !dtp_key_apply(key, text_of(r, key), &r->draft, why, sizeof why))
        refuse(r, key, "'%.64s' is not %s", text_of(r, key), why);
}

/* Faults of a function that knows no place, at the place of `key`. */
static inline void relay(struct dtp_resolution *r, enum dtp_key key, const struct dtp_faults *from)
{
    for (size_t i = 0; i < from->count && i < DTP_FAULTS_KEPT; i++)
        dtp_fault_about(r->faults, from->status, where_of(r, key), line_of(r, key), dtp_key_name(key), "%s",
                        from->text[i]);
    worsen(r, from->status);
}

/* scenario_notes.c: into job->model_note and job->plan_note, behind what is there. */
void dtp_note_model(struct dtp_resolution *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Words that mean something else elsewhere, or more than one thing: what they were taken for. */
void dtp_note_words(struct dtp_resolution *r);
/* Attention over more tokens, or of another form, than the model or a kernel is stated for. */
void dtp_note_attention(struct dtp_resolution *r, uint64_t sequence);
/* Keys of the resolved plan that nothing reads. Not refused: a comparison of strategies, a sweep, or a scenario that
 * commands share sets them for those who do. */
void dtp_note_unread(struct dtp_resolution *r);
/* What a machine file lacks of what the plan does between ranks. */
void dtp_note_unmeasured(struct dtp_resolution *r);

/* scenario_given.c: refuses keys of the resolved plan that were given and are something else in it. */
void dtp_check_given(struct dtp_resolution *r);

/* scenario_cluster.c: job->cluster, with its note; false after a fault. */
bool dtp_resolve_cluster(struct dtp_resolution *r);
/* The machine that was given; NULL after a fault. */
const struct dtp_machine *dtp_resolve_machine(struct dtp_resolution *r);

#endif
