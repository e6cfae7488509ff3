/* Reports: what the planner found, for people (text), programs (JSON) and spreadsheets (CSV).
 *
 * A report borrows everything it prints and computes nothing but units, shares and sums of what it shows. Writing
 * errors are left on the FILE for the caller to check once, at the end. */
#ifndef DTP_REPORT_H
#define DTP_REPORT_H

#include "decide/advise.h"
#include "decide/money.h"
#include "decide/scaling.h"
#include "decide/solve.h"
#include "decide/training_cost.h"
#include "page/page.h"
#include "sim/pipeline_stages.h"

#include <jansson.h>

/* Who predicts: the closed form, a simulation, or the best there is: a simulation where the job has step programs of at
 * most DTP_REPORT_MAX_OPS operations in all ranks of its pipeline together (two seconds), else the closed form. */
enum dtp_fidelity { DTP_FIDELITY_CLOSED, DTP_FIDELITY_SIMULATED, DTP_FIDELITY_BEST };
#define DTP_REPORT_MAX_OPS 3200000u

/* One predicted plan with everything said about it. */
struct dtp_report {
    struct dtp_job job;
    struct dtp_prediction prediction;
    bool simulated;                    /* the prediction is a simulation's; scaling and advice are the closed form's */
    double closed_step_s;              /* what the closed form says; with `simulated` */
    double plain_step_s;               /* before powersgd_start_step, predicted the same way; 0: there is none before */
    double plain_device_bytes;         /* of a GPU then */
    bool keeps_stages;                 /* asked of dtp_report_predict: the ranks of a simulated pipeline too, */
    struct dtp_pipeline_stages stages; /* which the caller releases then; of no rank where there is none */
    char not_simulated_because[DTP_FAULT_TEXT_BYTES]; /* by DTP_FIDELITY_BEST; "": it was, or was not asked for */
    struct dtp_scaling scaling;
    struct dtp_money money;
    struct dtp_training_cost training; /* unknown where no number of tokens is given */
    struct dtp_advice advice;          /* kind DTP_ADVICE_NONE where none was asked for */
    bool solved;                       /* the job is the answer of a solver */
    struct dtp_solution solution;      /* valid when solved */
};

/* Fills job, prediction, stages, scaling, money and training (without its Monte Carlo); the rest stays as it is. What
 * the one who predicts refuses is a fault; of DTP_FIDELITY_BEST only what both do. */
enum dtp_status dtp_report_predict(const struct dtp_job *job, const struct dtp_catalog *catalog,
                                   enum dtp_fidelity fidelity, struct dtp_report *out, struct dtp_faults *faults);

/* The ranks of a pipeline as a part of a report, a row each, the one with most memory marked; nothing where there is
 * none. Many ranks: those at both ends and around that one. */
void dtp_pipeline_text(const struct dtp_pipeline_stages *stages, const struct dtp_page *page);
/* Part of dtplan.plan/1 and dtplan.simulation/1: an array of a rank each, empty where there is no pipeline. */
json_t *dtp_pipeline_json(const struct dtp_pipeline_stages *stages);
/* Part of dtplan.run/1 and dtplan.stages/1: rows of tokens that each expert of each layer got in all steps. */
struct dtp_run_outcome;
json_t *dtp_run_experts_json(const struct dtp_run_outcome *outcome);

/* One row of a comparison: a report, or why there is none. */
struct dtp_comparison_row {
    char strategy[32];
    bool refused;
    char reason[DTP_FAULT_TEXT_BYTES];   /* when refused */
    const struct dtp_report *report;     /* when not; borrowed */
    const struct dtp_scenario *scenario; /* what was asked, for the CSV of refused rows; borrowed, or NULL */
};

/* The row with the highest tokens/s among those that fit (tight ones only where none fits), or -1. */
long dtp_comparison_best(const struct dtp_comparison_row *rows, size_t count);

void dtp_report_plan_text(const struct dtp_report *report, const struct dtp_page *page);
void dtp_report_compare_text(const struct dtp_comparison_row *rows, size_t count, const struct dtp_page *page);

/* Schema dtplan.plan/1: one object. */
enum dtp_status dtp_report_plan_json(const struct dtp_report *report, FILE *file, struct dtp_faults *faults);
/* Schema dtplan.compare/1: {"plans": [dtplan.plan/1 ...], "refused": [{strategy, reason}], "best": strategy|null}. */
enum dtp_status dtp_report_compare_json(const struct dtp_comparison_row *rows, size_t count, FILE *file,
                                        struct dtp_faults *faults);

/* A header with units in the names, then one row a plan. Refused rows have the reason, what was asked where there is a
 * scenario, and empty fields else. `dtplan sweep` writes the same columns. */
void dtp_report_csv(const struct dtp_comparison_row *rows, size_t count, FILE *file);
void dtp_report_csv_header(FILE *file);
void dtp_report_csv_row(const struct dtp_comparison_row *row, FILE *file);

/* Lines shared by the reports of a plan and of an explanation: model, cluster, plan. */
enum dtp_head { DTP_HEAD_PLAN, DTP_HEAD_COMPARISON }; /* a comparison says the strategies elsewhere */
/* What is said of a job on cores that nobody measured (dtp_cluster_has_times). */
extern const char *const dtp_report_no_times;
void dtp_report_head(const struct dtp_job *job, enum dtp_head head, const struct dtp_page *page);
/* The "torch FSDP2 eager" of a plan. */
void dtp_report_runtime_words(const struct dtp_plan *plan, char *out, size_t bytes);

/* The training of a given number of tokens, as a part of a plan's report: nothing where no number of tokens was given.
 */
void dtp_training_text(const struct dtp_report *report, const struct dtp_page *page);
/* null where no number of tokens was given. Part of dtplan.plan/1 as cost.training. */
json_t *dtp_training_json(const struct dtp_training_cost *cost, const struct dtp_money *money);

#endif
