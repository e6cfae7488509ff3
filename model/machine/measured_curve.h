/* Seconds over bytes of one kind of work: a kernel, a collective of one group, a copy.
 *
 * Between the smallest and largest measured size times follow the points (Steffen's monotone spline of log seconds over
 * log bytes from 4 points up, straight lines in between below that); beyond them the fitted latency + bytes / rate,
 * from the nearest point on. */
#ifndef DTP_MEASURED_CURVE_H
#define DTP_MEASURED_CURVE_H

#include "base/log_fit.h"

#include <gsl/gsl_interp.h>

struct dtp_measured_curve {
    size_t count;
    double *log_bytes, *log_s; /* [count] each, bytes ascending */
    gsl_interp *spline;        /* NULL: fewer than 4 points */
    struct dtp_log_fit fit;    /* parameters: latency in seconds, seconds per byte */
    double *residual;          /* [count], of the fit */
};

/* Points with bytes ascending; of such that are as good as equal the first counts. The arrays are copied. Caller
 * releases; *out is releasable after failure. */
enum dtp_status dtp_measured_curve_make(const double *bytes, const double *seconds, size_t count,
                                        struct dtp_measured_curve *out, struct dtp_faults *faults);
void dtp_measured_curve_release(struct dtp_measured_curve *curve);

/* 0 for 0 bytes. */
double dtp_measured_curve_s(const struct dtp_measured_curve *curve, double bytes);
/* The fit alone. */
double dtp_measured_curve_fit_s(const struct dtp_measured_curve *curve, double bytes);

#endif
