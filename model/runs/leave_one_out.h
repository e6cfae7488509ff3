/* Leave one source out: what the predictions are worth for runs that saw no part of the fit.
 *
 * One constant is fitted to tokens/s of whole runs of several sources: the deviation of speed between GPUs of a kind
 * (calibration.h; the slowest of n sets the step). For each source it is fitted again on the rows of all others, and
 * the source's own rows are scored with that. The fit takes the deviation with the least macro error: the mean over its
 * sources of the median absolute error, so that 184 rows of one publication weigh as much as 8 of another. */
#ifndef DTP_LEAVE_ONE_OUT_H
#define DTP_LEAVE_ONE_OUT_H

#include "runs/backtest.h"

/* A kind of prediction as a function of that deviation. */
struct dtp_deviating {
    const char *name;     /* "closed", "simulated" */
    const char *constant; /* its name in calibration.h */
    double shipped;       /* and its value there */
    /* The predictor at a deviation, which is read until its last use. */
    struct dtp_predictor (*at)(const double *deviation);
};
struct dtp_deviating dtp_deviating_closed(void);

struct dtp_left_out {
    char source[160];
    double deviation;                              /* fitted on all other sources; */
    struct dtp_error_statistics refitted, shipped; /* of this source's tokens/s with it, and as shipped */
};

struct dtp_leave_one_out {
    struct dtp_deviating predictor;
    double fitted;                                /* on all sources at once */
    double macro_refitted_pct, macro_shipped_pct; /* means over sources of the medians */
    struct dtp_left_out *sources;                 /* those with a row scored; in order of appearance */
    size_t source_count;
};

/* Scores the tables at `paths` together. Caller destroys *out; NULL on failure. DTP_BAD_INPUT: a table that is no run
 * table, or fewer than two sources can be scored. */
enum dtp_status dtp_leave_one_out_run(const char *const *paths, size_t path_count,
                                      const struct dtp_deviating *predictor, const struct dtp_catalog *catalog,
                                      struct dtp_leave_one_out **out, struct dtp_faults *faults);
void dtp_leave_one_out_destroy(struct dtp_leave_one_out *result);

#endif
