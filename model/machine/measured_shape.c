#include "machine/measured_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Residuals of near rows: each weighs 1 / (NEAR^2 + distance^2)^2, against one row's worth of "the formula is right" at
 * distance 1. Another pass of the same shape counts as a factor of two in one dimension. */
#define NEAR 0.15
#define OTHER_PASS M_LN2

struct dtp_measured_shape dtp_measured_shape_of(const struct dtp_measured_row *row)
{
    const double *x = row->number;
    struct dtp_measured_shape shape;
    if (row->measurement == DTP_MEASUREMENT_ATTENTION) {
        shape.at[0] = log(x[DTP_MEASURED_m] * x[DTP_MEASURED_heads]);
        shape.at[1] = log(x[DTP_MEASURED_sequence]);
        shape.at[2] = log(x[DTP_MEASURED_head_dim]);
        shape.at[3] = log(x[DTP_MEASURED_heads] / x[DTP_MEASURED_kv_heads]);
        shape.at[4] = 0;
        return shape;
    }
    shape.at[0] = log(x[DTP_MEASURED_m]);
    shape.at[1] = log(x[DTP_MEASURED_n]);
    shape.at[2] = log(x[DTP_MEASURED_k]);
    shape.at[3] = dtp_measured_matmul_of(row->what);
    shape.at[4] = row->measurement == DTP_MEASUREMENT_GROUPED_MATMUL ? log(x[DTP_MEASURED_groups]) : 0;
    return shape;
}

/* Tokens are the number of rows, not their length: m of activations, k of a weight gradient's sum. */
unsigned dtp_measured_matmul_alignment(const struct dtp_measured_row *row)
{
    bool of_weights = dtp_measured_matmul_of_weights(dtp_measured_matmul_of(row->what));
    unsigned operand = dtp_row_alignment_bytes(row->dtype, row->number[of_weights ? DTP_MEASURED_m : DTP_MEASURED_k]);
    unsigned result = dtp_row_alignment_bytes(row->dtype, row->number[DTP_MEASURED_n]);
    return operand < result ? operand : result;
}

static double log_formula(const struct dtp_measured_shape_fit *f, const struct dtp_measured_shape *shape,
                          const double *parameters)
{
    return f->attention ? dtp_measured_attention_log_s(f->backward, shape, parameters)
                        : dtp_measured_matmul_log_s(f->gpu, f->dtype, shape, parameters);
}

static double log_formula_of_row(const void *context, const double *parameters, size_t row)
{
    const struct dtp_measured_shape_fit *f = context;
    return log_formula(f, &f->shape[row], parameters);
}

/* ---- fitting ----------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Log of the FLOP/s that nine rows of ten do not exceed; the fastest may be absurd. `scratch` [count]. */
static double log_fast_rate(const struct dtp_measured_shape_fit *f, double *scratch)
{
    for (size_t i = 0; i < f->count; i++) {
        const double *at = f->shape[i].at;
        double log_flops =
            f->attention ? M_LN2 + at[0] + 2 * at[1] + at[2] + (f->backward ? log(DTP_ATTENTION_BACKWARD_FLOPS) : 0)
                         : M_LN2 + at[0] + at[1] + at[2] + at[4];
        scratch[i] = log_flops - f->log_s[i];
    }
    qsort(scratch, f->count, sizeof *scratch, by_value);
    return scratch[(size_t)(0.9 * (double)(f->count - 1))];
}

static struct dtp_log_fit_job job_of(const struct dtp_measured_shape_fit *f, double log_rate)
{
    /* What Hopper and Ampere libraries show, and how far another part may be from it; the rate is the data's own. */
    static const double matmul[][2] = {{0, 0.5}, {5, 0.7}, {-12.7, 0.7}, {0, 1}, {-0.2, 0.2}, {-0.1, 0.1}};
    static const double attention[][2] = {{0, 0.5}, {6.4, 0.7}, {-0.2, 0.3}, {-12.2, 0.7}};
    struct dtp_log_fit_job job = {.row_count = f->count,
                                  .parameter_count = f->attention ? 4 : 6,
                                  .measured_log_s = f->log_s,
                                  .log_s = log_formula_of_row,
                                  .context = f};
    for (int i = 0; i < job.parameter_count; i++) {
        const double *prior = f->attention ? attention[i] : matmul[i];
        job.expected[i] = prior[0] + (i == 0 ? log_rate + 0.1 : 0);
        job.deviation[i] = prior[1];
    }
    return job;
}

enum dtp_status dtp_measured_shape_fit_make(const struct dtp_gpu *gpu, const struct dtp_measured_row *const *rows,
                                            size_t count, struct dtp_measured_shape_fit *out, struct dtp_faults *faults)
{
    *out = (struct dtp_measured_shape_fit){.gpu = gpu,
                                           .dtype = rows[0]->dtype,
                                           .count = count,
                                           .attention = rows[0]->measurement == DTP_MEASUREMENT_ATTENTION,
                                           .shape = malloc(count * sizeof *out->shape),
                                           .log_s = malloc(count * sizeof *out->log_s),
                                           .residual = malloc(count * sizeof *out->residual),
                                           .weight = malloc(count * sizeof *out->weight)};
    if (!out->shape || !out->log_s || !out->residual || !out->weight)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %zu measured shapes", count);
    out->backward = out->attention && dtp_measured_attention_is_backward(rows[0]);
    for (size_t i = 0; i < count; i++) {
        out->shape[i] = dtp_measured_shape_of(rows[i]);
        out->log_s[i] = log(rows[i]->number[DTP_MEASURED_seconds]);
    }
    struct dtp_log_fit_job job = job_of(out, log_fast_rate(out, out->weight));
    return dtp_log_fit(&job, &out->fit, out->residual, out->weight, faults);
}

void dtp_measured_shape_fit_release(struct dtp_measured_shape_fit *fit)
{
    free(fit->shape);
    free(fit->log_s);
    free(fit->residual);
    free(fit->weight);
    *fit = (struct dtp_measured_shape_fit){.count = 0};
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static double distance_squared(const struct dtp_measured_shape_fit *fit, const struct dtp_measured_shape *a,
                               const struct dtp_measured_shape *b)
{
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += (a->at[i] - b->at[i]) * (a->at[i] - b->at[i]);
    const double groups = a->at[4] - b->at[4];
    double last = fit->attention ? a->at[3] - b->at[3] : a->at[3] == b->at[3] ? 0 : OTHER_PASS;
    return sum + groups * groups + last * last;
}

double dtp_measured_shape_fit_s(const struct dtp_measured_shape_fit *fit, const struct dtp_measured_shape *shape)
{
    return exp(log_formula(fit, shape, fit->fit.parameter));
}

double dtp_measured_shape_s(const struct dtp_measured_shape_fit *fit, const struct dtp_measured_shape *shape,
                            size_t without)
{
    double sum = 0, weights = 1;
    for (size_t i = 0; i < fit->count; i++) {
        if (i == without)
            continue;
        double near = NEAR * NEAR + distance_squared(fit, shape, &fit->shape[i]),
               weight = fit->weight[i] / (near * near);
        sum += weight * fit->residual[i];
        weights += weight;
    }
    return exp(log_formula(fit, shape, fit->fit.parameter) + sum / weights);
}
