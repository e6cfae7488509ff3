/* Where each byte and each second comes from: terms that sum to the figures of a plan.
 *
 * A term is a rule in symbols, the numbers put into it, and its value. Tensors are the buffers of the plan's own step
 * program; the other numbers come from the records that the formulas themselves work with (memory_parts.h,
 * time_parts.h, sharding.h), never from a second copy of a rule. What no rule accounts for becomes a term of its own,
 * so that the terms of a group always sum to its total and a gap shows.
 *
 * Symbols: psi parameters, N ranks that share one copy, R replicas, K micro-steps, T tokens per micro-step and GPU,
 * L layers, P parameters of a layer, h hidden, f ffn, V vocabulary, s sequence. */
#ifndef DTP_EXPLAIN_H
#define DTP_EXPLAIN_H

#include "closed/memory_parts.h"
#include "record/report.h"
#include "sim/simulated.h"

enum dtp_explain_unit {
    DTP_EXPLAIN_COUNT,
    DTP_EXPLAIN_BYTES,
    DTP_EXPLAIN_TRAFFIC,
    DTP_EXPLAIN_SECONDS,
    DTP_EXPLAIN_FLOPS,
    DTP_EXPLAIN_USD
};

struct dtp_term {
    char name[64], rule[112], numbers[128];
    const char *source; /* where the rule was read; "": see the group */
    double value;
    bool gap; /* no rule accounts for it */
};

struct dtp_term_group {
    char title[64], words[112], source[400]; /* source: where the rules were read or measured; may be "" */
    enum dtp_explain_unit unit;
    double total;
    size_t first, count; /* of terms */
};

#define DTP_EXPLAIN_TERMS 160
#define DTP_EXPLAIN_GROUPS 24

struct dtp_explanation {
    struct dtp_term terms[DTP_EXPLAIN_TERMS];
    size_t term_count;
    struct dtp_term_group groups[DTP_EXPLAIN_GROUPS];
    size_t group_count;
};

/* `prediction` is an estimate (job/estimate.h). Fails where there is no step program of the job, or no memory. */
enum dtp_status dtp_explain(const struct dtp_job *job, const struct dtp_prediction *prediction,
                            struct dtp_explanation *out, struct dtp_faults *faults);

/* The same of a job whose ranks divide the model (tp, cp, pp), from what is simulated: memory of the rank that takes
 * most, time of the one that computes longest, and why ranks of a pipeline idle. `stages` of the same simulation. */
enum dtp_status dtp_explain_simulated(const struct dtp_simulated *simulated, const struct dtp_pipeline_stages *stages,
                                      struct dtp_explanation *out, struct dtp_faults *faults);

/* `explanation` of the report's job; of a pipeline, the report's stages stand below it. */
void dtp_explain_text(const struct dtp_report *report, const struct dtp_explanation *explanation,
                      const struct dtp_page *page);
/* Schema dtplan.explain/1: {"groups": [{title, unit, total, source, terms: [{name, rule, numbers, source,
 * value, gap}]}], "constants": [...]}. */
enum dtp_status dtp_explain_json(const struct dtp_explanation *explanation, FILE *file, struct dtp_faults *faults);

/* ---- for the parts of explain ----------------------------------------------------------------------------------- */

void dtp_explain_group(struct dtp_explanation *e, const char *title, const char *words, enum dtp_explain_unit unit,
                       double total);
/* Says where the rules of the newest group come from. */
void dtp_explain_source(struct dtp_explanation *e, const char *source);
/* Adds a term to the newest group; a value of 0 is left out. `numbers` is a format. */
void dtp_explain_term(struct dtp_explanation *e, const char *name, const char *rule, double value, const char *numbers,
                      ...) __attribute__((format(printf, 5, 6)));
/* Closes the newest group: a gap beyond rounding becomes a term `name`. */
void dtp_explain_close(struct dtp_explanation *e, const char *name, const char *rule);

void dtp_explain_parameters(const struct dtp_job *job, struct dtp_explanation *e);
void dtp_explain_arithmetic(const struct dtp_job *job, struct dtp_explanation *e);
/* The buffers that live where a program is at its fullest. */
enum dtp_status dtp_explain_peak(const struct dtp_job *job, const struct dtp_memory *memory,
                                 const struct dtp_program *program, struct dtp_explanation *e,
                                 struct dtp_faults *faults);
/* What one layer saves for a token. */
void dtp_explain_layer(const struct dtp_job *job, struct dtp_explanation *e);
/* The parts of one sum in the newest group, each `times`; closes it. */
void dtp_explain_list(const struct dtp_memory_list *list, uint64_t times, struct dtp_explanation *e);
enum dtp_status dtp_explain_memory(const struct dtp_job *job, const struct dtp_prediction *prediction,
                                   struct dtp_explanation *e, struct dtp_faults *faults);
void dtp_explain_communication(const struct dtp_job *job, const struct dtp_prediction *prediction,
                               struct dtp_explanation *e);
void dtp_explain_time(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_explanation *e);

#endif
