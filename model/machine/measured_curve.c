#include "machine/measured_curve.h"

#include <math.h>
#include <stdlib.h>

#define SPLINE_POINTS 4
#define LEAST_STEP 1e-6 /* sizes closer than a millionth are one: between them a curve would show noise alone */

static double log_latency_and_rate(const void *context, const double *parameters, size_t row)
{
    const double *log_bytes = context;
    return log(exp(parameters[0]) + exp(parameters[1] + log_bytes[row]));
}

/* Expected: half of the shortest time is latency, but no more than what launches and links have; the largest size shows
 * the rate. Either may be far off. */
#define USUAL_LATENCY_S 1e-5
static enum dtp_status fit(struct dtp_measured_curve *c, struct dtp_faults *faults)
{
    double shortest = c->log_s[0], *weight = malloc(c->count * sizeof *weight);
    for (size_t i = 1; i < c->count; i++)
        shortest = fmin(shortest, c->log_s[i]);
    if (!weight)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %zu measured sizes", c->count);
    struct dtp_log_fit_job job = {
        .row_count = c->count,
        .parameter_count = 2,
        .measured_log_s = c->log_s,
        .log_s = log_latency_and_rate,
        .context = c->log_bytes,
        .expected = {fmin(shortest - M_LN2, log(USUAL_LATENCY_S)), c->log_s[c->count - 1] - c->log_bytes[c->count - 1]},
        .deviation = {2, 1}};
    enum dtp_status status = dtp_log_fit(&job, &c->fit, c->residual, weight, faults);
    free(weight);
    return status;
}

enum dtp_status dtp_measured_curve_make(const double *bytes, const double *seconds, size_t count,
                                        struct dtp_measured_curve *out, struct dtp_faults *faults)
{
    *out = (struct dtp_measured_curve){.count = count,
                                       .log_bytes = calloc(count, sizeof(double)),
                                       .log_s = calloc(count, sizeof(double)),
                                       .residual = malloc(count * sizeof(double))};
    if (!out->log_bytes || !out->log_s || !out->residual)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %zu measured sizes", count);
    out->count = 0;
    for (size_t i = 0; i < count; i++) {
        double log_bytes = log(bytes[i]);
        if (out->count && log_bytes - out->log_bytes[out->count - 1] < LEAST_STEP)
            continue;
        out->log_bytes[out->count] = log_bytes;
        out->log_s[out->count++] = log(seconds[i]);
    }
    count = out->count;
    if (count >= SPLINE_POINTS) {
        out->spline = gsl_interp_alloc(gsl_interp_steffen, count);
        if (!out->spline)
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %zu measured sizes", count);
        gsl_interp_init(out->spline, out->log_bytes, out->log_s, count);
    }
    return fit(out, faults);
}

void dtp_measured_curve_release(struct dtp_measured_curve *curve)
{
    free(curve->log_bytes);
    free(curve->log_s);
    free(curve->residual);
    if (curve->spline)
        gsl_interp_free(curve->spline);
    *curve = (struct dtp_measured_curve){.count = 0};
}

static double fit_log_s(const struct dtp_measured_curve *curve, double log_bytes)
{
    return log_latency_and_rate(&log_bytes, curve->fit.parameter, 0);
}

double dtp_measured_curve_fit_s(const struct dtp_measured_curve *curve, double bytes)
{
    return bytes > 0 ? exp(fit_log_s(curve, log(bytes))) : 0;
}

double dtp_measured_curve_s(const struct dtp_measured_curve *curve, double bytes)
{
    if (!(bytes > 0))
        return 0;
    const double *x = curve->log_bytes, *y = curve->log_s, at = log(bytes);
    size_t last = curve->count - 1, i = 0;
    if (at <= x[0] || at >= x[last]) {
        size_t end = at <= x[0] ? 0 : last;
        return exp(y[end] + fit_log_s(curve, at) - fit_log_s(curve, x[end]));
    }
    if (curve->spline) /* without GSL's accelerator, which remembers: curves are read by many threads */
        return exp(gsl_interp_eval(curve->spline, x, y, at, NULL));
    while (at > x[i + 1])
        i++;
    return exp(y[i] + (y[i + 1] - y[i]) * (at - x[i]) / (x[i + 1] - x[i]));
}
