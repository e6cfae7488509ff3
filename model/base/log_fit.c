#include "base/log_fit.h"

#include "base/quantile.h"

#include <gsl/gsl_blas.h>
#include <gsl/gsl_cdf.h>
#include <gsl/gsl_errno.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Measurements repeat to about this much: what one row weighs against a prior, and the least the residuals scatter. */
#define ROW_DEVIATION 0.03
#define LEAST_DEVIATION 0.005
#define HUBER_LIMIT 1.345 /* deviations; 95 % efficient where errors are normal (Huber 1981) */
#define ROUNDS 4          /* of weights; they settle to a percent in three */
#define ITERATIONS 60

struct fit {
    const struct dtp_log_fit_job *job;
    const double *weight;
};

static double row_residual(const struct dtp_log_fit_job *job, const double *parameters, size_t row)
{
    double formula = job->log_s(job->context, parameters, row);
    return isfinite(formula) ? job->measured_log_s[row] - formula : 1e3; /* a step too far: not taken */
}

/* Rows in units of their deviation, then the priors in units of theirs. */
static int residuals(const gsl_vector *x, void *context, gsl_vector *f)
{
    const struct fit *fit = context;
    const struct dtp_log_fit_job *job = fit->job;
    for (size_t i = 0; i < job->row_count; i++)
        gsl_vector_set(f, i, sqrt(fit->weight[i]) * row_residual(job, x->data, i) / ROW_DEVIATION);
    for (int p = 0; p < job->parameter_count; p++)
        gsl_vector_set(f, job->row_count + (size_t)p, (x->data[p] - job->expected[p]) / job->deviation[p]);
    return GSL_SUCCESS;
}

/* 1.4826 * the median of |r|: the standard deviation where errors are normal. */
static double robust_deviation(const double *residual, size_t count, double *scratch)
{
    for (size_t i = 0; i < count; i++)
        scratch[i] = fabs(residual[i]);
    return fmax(LEAST_DEVIATION, 1.4826 * dtp_median(scratch, 1, count));
}

static double variance_explained(const struct dtp_log_fit_job *job, const double *residual)
{
    double mean = 0, total = 0, left = 0;
    for (size_t i = 0; i < job->row_count; i++)
        mean += job->measured_log_s[i] / (double)job->row_count;
    for (size_t i = 0; i < job->row_count; i++) {
        total += (job->measured_log_s[i] - mean) * (job->measured_log_s[i] - mean);
        left += residual[i] * residual[i];
    }
    return total > 0 ? 1 - left / total : left > 0 ? 0 : 1;
}

/* The covariance counts rows as ROW_DEVIATION off; they are as far off as they turned out. */
static void intervals(const struct dtp_log_fit_job *job, gsl_multifit_nlinear_workspace *w, gsl_matrix *covariance,
                      struct dtp_log_fit *out)
{
    double freedom = fmax(1, (double)job->row_count - job->parameter_count);
    double factor = gsl_cdf_tdist_Pinv(0.975, freedom) * fmax(1, out->deviation / ROW_DEVIATION);
    gsl_multifit_nlinear_covar(gsl_multifit_nlinear_jac(w), 0, covariance);
    for (int p = 0; p < job->parameter_count; p++)
        out->half_width[p] = factor * sqrt(fmax(0, gsl_matrix_get(covariance, (size_t)p, (size_t)p)));
}

static void take_residuals(const struct dtp_log_fit_job *job, const gsl_vector *x, struct dtp_log_fit *out,
                           double *residual, double *weight, double *scratch)
{
    memcpy(out->parameter, x->data, (size_t)job->parameter_count * sizeof *x->data);
    for (size_t i = 0; i < job->row_count; i++)
        residual[i] = row_residual(job, out->parameter, i);
    out->deviation = robust_deviation(residual, job->row_count, scratch);
    for (size_t i = 0; i < job->row_count; i++)
        weight[i] = fmin(1, HUBER_LIMIT * out->deviation / fmax(fabs(residual[i]), 1e-300));
}

static bool solve(const struct dtp_log_fit_job *job, gsl_multifit_nlinear_workspace *w, gsl_vector *x,
                  gsl_matrix *covariance, struct dtp_log_fit *out, double *residual, double *weight, double *scratch)
{
    struct fit fit = {job, weight};
    gsl_multifit_nlinear_fdf system = {.f = residuals,
                                       .n = job->row_count + (size_t)job->parameter_count,
                                       .p = (size_t)job->parameter_count,
                                       .params = &fit};
    memcpy(x->data, job->expected, system.p * sizeof *x->data);
    for (size_t i = 0; i < job->row_count; i++)
        weight[i] = 1;
    for (int round = 0; round < ROUNDS; round++) {
        int info;
        if (gsl_multifit_nlinear_init(x, &system, w) != GSL_SUCCESS)
            return false;
        /* Formulas with steps may end without progress: the best found so far is what counts. */
        gsl_multifit_nlinear_driver(ITERATIONS, 1e-5, 1e-5, 1e-7, NULL, NULL, &info, w);
        gsl_vector_memcpy(x, gsl_multifit_nlinear_position(w));
        take_residuals(job, x, out, residual, weight, scratch);
    }
    intervals(job, w, covariance, out);
    out->r2 = variance_explained(job, residual);
    return true;
}

/* GSL has one handler for all threads: who fits at once takes turns, or one's end were the other's abort. */
static pthread_mutex_t handler_lock = PTHREAD_MUTEX_INITIALIZER;

enum dtp_status dtp_log_fit(const struct dtp_log_fit_job *job, struct dtp_log_fit *out, double *residual,
                            double *weight, struct dtp_faults *faults)
{
    size_t p = (size_t)job->parameter_count, n = job->row_count + p;
    gsl_multifit_nlinear_parameters parameters = gsl_multifit_nlinear_default_parameters();
    pthread_mutex_lock(&handler_lock);
    gsl_error_handler_t *before = gsl_set_error_handler_off(); /* GSL's own would abort */
    gsl_multifit_nlinear_workspace *w = gsl_multifit_nlinear_alloc(gsl_multifit_nlinear_trust, &parameters, n, p);
    gsl_vector *x = gsl_vector_alloc(p);
    gsl_matrix *covariance = gsl_matrix_alloc(p, p);
    double *scratch = malloc(n * sizeof *scratch);
    *out = (struct dtp_log_fit){.r2 = 0};
    bool solved = w && x && covariance && scratch && solve(job, w, x, covariance, out, residual, weight, scratch);
    free(scratch);
    gsl_matrix_free(covariance);
    gsl_vector_free(x);
    gsl_multifit_nlinear_free(w);
    gsl_set_error_handler(before);
    pthread_mutex_unlock(&handler_lock);
    return solved ? DTP_OK
                  : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to fit %zu measured times", job->row_count);
}
