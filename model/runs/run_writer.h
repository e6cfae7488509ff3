/* Writing a row's settings: the writer that run_settings.c and run_parts.c share, which keeps the worst status of all
 * settings, so that a row's faults are said together. Of model/runs alone. */
#ifndef DTP_RUN_WRITER_H
#define DTP_RUN_WRITER_H

#include "runs/run_framework.h"
#include "runs/run_table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct writer {
    const struct dtp_run *run;
    const struct dtp_run_framework *framework;
    struct dtp_scenario *scenario;
    struct dtp_faults *faults;
    enum dtp_status status;
};

static inline void set_text(struct writer *w, const char *key, const char *value)
{
    enum dtp_status status = dtp_scenario_set(w->scenario, key, value, NULL, 0, w->faults);
    if (status > w->status)
        w->status = status;
}

__attribute__((format(printf, 3, 4))) static inline void set(struct writer *w, const char *key, const char *format, ...)
{
    char value[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    set_text(w, key, value);
}

static inline void set_count(struct writer *w, const char *key, uint64_t value)
{
    set(w, key, "%" PRIu64, value);
}

static inline void set_switch(struct writer *w, const char *key, bool on)
{
    set(w, key, "%s", on ? "true" : "false");
}

#define REFUSE(w, ...) ((w)->status = dtp_fault((w)->faults, DTP_BAD_INPUT, NULL, 0, __VA_ARGS__))

/* Of a row that does not state what a job needs: no complete one. */
#define UNSTATED(w, ...) (dtp_run_lacks((w)->run), REFUSE(w, __VA_ARGS__))

/* A 0 | 1 column; `otherwise` where it is empty. */
static inline bool flag(struct writer *w, const char *column, const char *text, bool otherwise)
{
    if (!*text)
        return otherwise;
    if (strcmp(text, "0") && strcmp(text, "1"))
        REFUSE(w, "%s '%.20s' is neither 0 nor 1", column, text);
    return *text == '1';
}

/* run_parts.c: what a row has beyond a dense model of plain attention whose weights are all trained. False, with faults
 * that name it, where some of it is not modelled. */
/* The precision of a row with fp8 matmuls: as its recipe, its notes or its framework say. */
const char *dtp_run_fp8_precision(const struct writer *w);
bool dtp_run_write_parts(struct writer *w);
/* Keys of latents and experts, of `shape`. */
void dtp_run_write_kinds(struct writer *w, const struct dtp_transformer *shape);
/* Modules that predict further ahead, which no preset has: as notes count them, or the layout that they have. */
void dtp_run_write_ahead(struct writer *w);
/* The layout of stages that notes have. */
void dtp_run_write_layout(struct writer *w);
/* run_stages.c: that of column stages_ranks, which is not empty, of a schedule by our word. */
void dtp_run_write_stages(struct writer *w, const char *schedule);
/* Refuses a row whose GPU, in column gpu or in notes, was held below its power, unless it says to as much as `gpu`, the
 * catalogue's (NULL: none), has. */
void dtp_run_write_power(struct writer *w, const struct dtp_gpu *gpu);
/* run_libraries.c: what notes of rows say that libraries themselves were measured for. */
void dtp_run_write_libraries(struct writer *w);
/* Whether gradients are clipped, by the program's rules or by notes. */
void dtp_run_write_clipping(struct writer *w, const char *runtime);
/* What a run under DeepSpeed's engine sets there. */
void dtp_run_write_engine(struct writer *w);
/* Under Megatron's distributed optimizer: whether weights are kept as casts, and what the optimizer keeps. */
void dtp_run_write_distributed(struct writer *w, bool fp8);
/* run_checkpointing.c: settles what `job`, made of `scenario`, recomputes. */
enum dtp_status dtp_run_settle_checkpointing(const struct dtp_run *run, const struct dtp_catalog *catalog,
                                             struct dtp_scenario *scenario, struct dtp_job *job,
                                             struct dtp_faults *faults);

#endif
