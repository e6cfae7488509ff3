/* Our own error on measured runs that resemble a job: what its predictions may be off by.
 *
 * Alike are runs on the same kind of GPU under the same family of strategies (replicated, ZeRO-1/2, fully sharded);
 * where these are fewer than DTP_LIKE_RUNS_FEWEST, runs of that family on any GPU, then all; for memory, which fewer
 * runs state, on its own. Part of the runs fitted constants of the model (README names them), so that a new job may be
 * further off. */
#ifndef DTP_LIKE_RUNS_H
#define DTP_LIKE_RUNS_H

#include "runs/backtest.h"

#define DTP_LIKE_RUNS_FEWEST 10

enum dtp_likeness { DTP_LIKE_GPU_AND_FAMILY, DTP_LIKE_FAMILY, DTP_LIKE_NONE };

struct dtp_like_runs {
    enum dtp_likeness likeness;
    size_t count; /* of runs with measured tokens/s; 0: nothing below is set */
    double median_abs_pct;
    double low_ratio, high_ratio; /* measured / predicted tokens/s: the tenth and the ninetieth of 100 runs */
    enum dtp_likeness memory_likeness;
    size_t memory_count;                                    /* of runs with measured device or reserved memory */
    double memory_median_abs_pct, memory_largest_under_pct; /* how far memory was above what was predicted */
};

enum dtp_status dtp_like_runs(const struct dtp_job *job, const struct dtp_backtest *const *backtests, size_t count,
                              struct dtp_like_runs *out, struct dtp_faults *faults);

/* "on the same GPU under the same family of strategies" */
const char *dtp_likeness_words(enum dtp_likeness likeness);

#endif
