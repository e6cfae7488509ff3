/* Constants of the model fitted to measured runs: those values with which predictions are least off, by the simplex of
 * Nelder and Mead (GSL), for medians and means of absolute errors have kinks.
 *
 * What is made small is the mean over sources of the mean |log(predicted / measured)| of each source's runs, so that
 * 184 runs of one publication weigh as much as 8 of another; fewer than 8 weigh in proportion, for one or two runs are
 * no witness against hundreds. A constant is drawn to where it begins, so weakly that a factor of e costs a tenth of a
 * percent of error: what no run tells stays there. */
#ifndef DTP_CONSTANT_FIT_H
#define DTP_CONSTANT_FIT_H

#include "cost/calibration.h"
#include "runs/scored_runs.h"

/* What of a run is compared with its prediction. */
enum dtp_fit_target { DTP_FIT_THROUGHPUT, DTP_FIT_MEMORY };

struct dtp_constant_fit {
    const struct dtp_scored_runs *runs;
    size_t left_out; /* the source whose runs are not looked at */
    enum dtp_fit_target target;
    /* How predictions answer to constants. It may be another than predicted the runs as they were read: each run's
     * prediction is then scaled by how the two differ with the shipped constants (before[i]: the response's then). */
    const struct dtp_predictor *response;
    const struct dtp_prediction *before;
    const enum dtp_constant *constants;
    size_t count;
};

/* value[i] begins as what is believed and ends as what is fitted. Sets the constants and leaves them so; other
 * constants stay as they are. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_constants_fit(const struct dtp_constant_fit *fit, double *value, struct dtp_faults *faults);

/* dtp_calibration_set, and for simulations' deviation between ranks the closed form's in proportion: they are one thing
 * as two kinds of prediction see it. */
void dtp_constant_take(enum dtp_constant constant, double value);

#endif
