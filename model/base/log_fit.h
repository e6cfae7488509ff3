/* Least squares in log time (GSL): what a formula's parameters are, given times of one operation at many sizes.
 *
 * Times span decades and err in proportion, so residuals are log(measured) - log(formula). Each parameter is the
 * logarithm of a positive amount and has a prior (an expected value and how far it may be off): a row each of the same
 * least squares, so that few rows, or rows that say nothing of one parameter, give what is expected instead of
 * nonsense. Huber's weights keep a few absurd rows from bending the rest. */
#ifndef DTP_LOG_FIT_H
#define DTP_LOG_FIT_H

#include "base/status.h"

#define DTP_LOG_FIT_PARAMETERS 6

struct dtp_log_fit_job {
    size_t row_count;
    int parameter_count;
    const double *measured_log_s; /* one per row */
    double (*log_s)(const void *context, const double *parameters, size_t row);
    const void *context;
    double expected[DTP_LOG_FIT_PARAMETERS], deviation[DTP_LOG_FIT_PARAMETERS]; /* of the priors, both in logarithms */
};

struct dtp_log_fit {
    double parameter[DTP_LOG_FIT_PARAMETERS];  /* logarithms */
    double half_width[DTP_LOG_FIT_PARAMETERS]; /* of their 95 % intervals */
    double deviation;                          /* of the residuals, by their median: absurd rows do not widen it */
    double r2;                                 /* share of the variance of log time that the formula explains */
};

/* residual[row] and weight[row] (Huber's, 1: in line with the others) are filled. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_log_fit(const struct dtp_log_fit_job *job, struct dtp_log_fit *out, double *residual,
                            double *weight, struct dtp_faults *faults);

#endif
