/* The runs of run tables that can be scored, as jobs: read once, predicted as often as a question takes.
 *
 * What a run was is settled once, by the constants as they are shipped; what is asked afterwards is how far its
 * prediction moves with them. */
#ifndef DTP_SCORED_RUNS_H
#define DTP_SCORED_RUNS_H

#include "runs/backtest.h"

struct dtp_scored_run {
    struct dtp_job job;
    size_t source;                               /* index into sources */
    double measured_tokens_per_s_per_gpu;        /* 0: not measured */
    double measured_bytes[DTP_RUN_MEMORY_COUNT]; /* 0: not measured */
    struct dtp_prediction shipped;               /* as it was predicted when it was read */
    struct dtp_estimate_base base;               /* where `prepared`: what constants do not move of its estimate */
    bool prepared;
};

struct dtp_run_source_name {
    char name[160];
};

struct dtp_scored_runs {
    struct dtp_scored_run *runs;
    size_t count;
    struct dtp_run_source_name *sources; /* those with a run here, in order of appearance */
    size_t source_count;
};

/* The data-parallel runs of the tables at `paths` that this predictor scores: constants are fitted to these. Errors of
 * how models are sliced are no constant's, and would bend those that are. Caller destroys *out, also after a failure.
 * DTP_BAD_INPUT: a table that is no run table. */
enum dtp_status dtp_scored_runs_read(const char *const *paths, size_t path_count, const struct dtp_predictor *predictor,
                                     const struct dtp_catalog *catalog, struct dtp_scored_runs *out,
                                     struct dtp_faults *faults);
void dtp_scored_runs_destroy(struct dtp_scored_runs *runs);

/* Makes of each run what constants do not move, where the predictor has a use for it: for whoever predicts the runs
 * more than a few times. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_scored_runs_prepare(struct dtp_scored_runs *runs, const struct dtp_predictor *predictor,
                                        struct dtp_faults *faults);
/* One of them, by the way that is quick where it is prepared. */
enum dtp_status dtp_scored_run_predict(const struct dtp_scored_run *run, const struct dtp_predictor *predictor,
                                       struct dtp_prediction *out, struct dtp_faults *faults);

/* Predicts runs `which[0 .. count-1]` (NULL: the first `count`) on all cores; out[i] is that of which[i]. Progress is
 * told as done_before + done of `all`. DTP_NO: stopped. Refusals are NaN in out[i].time.step_s: runs that are read are
 * refused only where a constant has become absurd. */
enum dtp_status dtp_scored_runs_predict(const struct dtp_scored_runs *runs, const size_t *which, size_t count,
                                        const struct dtp_predictor *predictor, const struct dtp_watch *watch,
                                        size_t done_before, size_t all, struct dtp_prediction *out,
                                        struct dtp_faults *faults);

#endif
