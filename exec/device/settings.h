/* How a job is trained: everything that is neither the model, nor the machine, nor the plan.
 *
 * One table serves dtplan-exec's flags and their checks; `dtplan run` hands its own through unread, so that each is
 * understood in one place. */
#ifndef DTP_SETTINGS_H
#define DTP_SETTINGS_H

#include "base/status.h"
#include "data/token_source.h"

#include <stdint.h>
#include <stdio.h>

#define DTP_SETTINGS_STEPS_MAX 1000000000u

#define DTP_SETTINGS_SNAPSHOT_EVERY 10 /* of an elastic run that says nothing; others are refused either flag */
#define DTP_SETTINGS_RETURN_AFTER 60

/* Of `poison` see run.h; it is for tests and not among the flags of `dtplan run`. `program`: the text that dtplan
 * predicted, which is what runs; without it the job's words are lowered. `alone`: that text is a set that somebody
 * wrote, and no words of a model and a plan stand beside it. `probe`: probe.h, instead of training. `share_gpu`: ranks
 * may be more than this machine has GPUs (nodes.h).
 *
 * KIND(field, flag, parameters of the kind). WHOLE: minimum, maximum, default, which lies outside of them where it
 * stands for "not given". NUMBER: the same. TEXT: a file, a folder or words that dtp_settings_check reads, default
 * NULL. SWITCH: default false. */
#define DTP_SETTINGS_TABLE(WHOLE, NUMBER, TEXT, SWITCH)                                                                \
    WHOLE(steps, "steps", 1, DTP_SETTINGS_STEPS_MAX, 100)                                                              \
    WHOLE(warmup, "warmup", 0, DTP_SETTINGS_STEPS_MAX, 0)                                                              \
    WHOLE(seed, "seed", 0, UINT32_MAX, 1)                                                                              \
    WHOLE(checkpoint_every, "checkpoint-every", 1, DTP_SETTINGS_STEPS_MAX, 0)                                          \
    WHOLE(seconds, "seconds", 1, 86400, 60)                                                                            \
    WHOLE(threads, "threads", 1, 4096, 0)                                                                              \
    WHOLE(snapshot_every, "snapshot-every", 1, DTP_SETTINGS_STEPS_MAX, UINT64_MAX)                                     \
    WHOLE(return_after, "return-after", 0, 31536000, UINT64_MAX)                                                       \
    NUMBER(learning_rate, "lr", 0, 1e6, 3e-4)                                                                          \
    NUMBER(min_learning_rate, "min-lr", 0, 1e6, 0)                                                                     \
    NUMBER(weight_decay, "weight-decay", 0, 1e3, 0.1)                                                                  \
    NUMBER(beta1, "beta1", 0, 0.999999, 0.9)                                                                           \
    NUMBER(beta2, "beta2", 0, 0.9999999, 0.95)                                                                         \
    NUMBER(momentum, "momentum", 0, 0.999999, 0.95)                                                                    \
    NUMBER(epsilon, "adam-epsilon", 1e-30, 1, 1e-8)                                                                    \
    TEXT(data, "data")                                                                                                 \
    TEXT(data_type, "data-type")                                                                                       \
    TEXT(device, "device")                                                                                             \
    TEXT(checkpoint, "checkpoint")                                                                                     \
    TEXT(log, "log")                                                                                                   \
    TEXT(program, "program")                                                                                           \
    TEXT(op_times, "op-times")                                                                                         \
    TEXT(not_finite, "not-finite")                                                                                     \
    TEXT(loss_scale, "loss-scale")                                                                                     \
    TEXT(choices, "matmul-choices")                                                                                    \
    TEXT(elastic, "elastic")                                                                                           \
    TEXT(on_loss, "on-loss")                                                                                           \
    TEXT(snapshots, "snapshots")                                                                                       \
    SWITCH(resume, "resume")                                                                                           \
    SWITCH(resume_previous, "resume-previous")                                                                         \
    SWITCH(async_checkpoints, "async-checkpoints")                                                                     \
    SWITCH(pretend_nodes, "pretend-nodes")                                                                             \
    SWITCH(share_gpu, "share-gpu")                                                                                     \
    SWITCH(untimed_matmuls, "untimed-matmuls")                                                                         \
    SWITCH(force_load_balance, "force-load-balance")                                                                   \
    SWITCH(alone, "program-alone")                                                                                     \
    SWITCH(poison, "poison")                                                                                           \
    SWITCH(probe, "probe")

struct dtp_settings {
#define DTP_SETTING_WHOLE(field, flag, minimum, maximum, value) uint64_t field;
#define DTP_SETTING_NUMBER(field, flag, minimum, maximum, value) double field;
#define DTP_SETTING_TEXT(field, flag) const char *field;
#define DTP_SETTING_SWITCH(field, flag) bool field;
    DTP_SETTINGS_TABLE(DTP_SETTING_WHOLE, DTP_SETTING_NUMBER, DTP_SETTING_TEXT, DTP_SETTING_SWITCH)
#undef DTP_SETTING_WHOLE
#undef DTP_SETTING_NUMBER
#undef DTP_SETTING_TEXT
#undef DTP_SETTING_SWITCH
    enum dtp_token_type token_type;    /* of data_type */
    bool cuda;                         /* of device: cuda (default) or host */
    bool skip_not_finite;              /* of not_finite: skip or stop (default) */
    double fixed_loss_scale;           /* of loss_scale; 0: dynamic (default) */
    uint64_t elastic_min, elastic_max; /* ranks, of elastic; 0: a rank that is lost ends the run */
    bool names_momentum;               /* it was given */
    bool waits;                        /* of on_loss: wait for lost ranks, or shrink (default) */
};

/* As if no flag were given. */
struct dtp_settings dtp_settings_default(void);
/* The flags, a line each, with what they take. */
void dtp_settings_print(FILE *file);
/* Sets the flag called `name` (without hyphens); *known tells whether there is one. `value` NULL sets a switch; texts
 * are borrowed. DTP_BAD_INPUT: no value, or none that the flag takes. */
enum dtp_status dtp_settings_set(struct dtp_settings *settings, const char *name, const char *value, bool *known,
                                 struct dtp_faults *faults);
/* Whether the flag takes a value; false also where there is none of that name. */
bool dtp_settings_takes_value(const char *name);
/* Reads the words of device, data_type, not_finite, loss_scale, elastic and on_loss. DTP_BAD_INPUT, all faults at once:
 * words that none of them knows, and flags that do not go together. */
enum dtp_status dtp_settings_check(struct dtp_settings *settings, struct dtp_faults *faults);

/* Linear warm-up over the first `warmup` steps, then half a cosine down to min_learning_rate at step `steps`
 * (Loshchilov & Hutter 2017, as GPT-3 and LLaMA use it). `step` counts from 0. */
double dtp_settings_learning_rate(const struct dtp_settings *settings, uint64_t step);

#endif
