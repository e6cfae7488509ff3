#include "runs/constant_fit.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_multimin.h>
#include <math.h>
#include <stdlib.h>

#define PULL 0.001      /* of a constant that is off by a factor of e from where it began */
#define FIRST_STEP 0.25 /* of the simplex, in logarithms of the constants */
#define SIZE 1e-3       /* of the simplex where it ends */
#define ITERATIONS 600
#define ROUNDS 2     /* a simplex that collapsed too early gets a new one */
#define HOPELESS 1e3 /* of constants with which nothing can be predicted */

#define WHOLE_WITNESS 8.0 /* runs that make a source weigh as much as any; fewer weigh in proportion */

void dtp_constant_take(enum dtp_constant constant, double value)
{
    dtp_calibration_set(constant, value);
    if (constant == DTP_CONSTANT_simulated_rank_deviation)
        dtp_calibration_set(DTP_CONSTANT_rank_speed_deviation,
                            value * dtp_calibration_rows[DTP_CONSTANT_rank_speed_deviation].value /
                                dtp_calibration_rows[DTP_CONSTANT_simulated_rank_deviation].value);
}

/* ---- how far off ------------------------------------------------------------------------------------------------- */

struct search {
    const struct dtp_constant_fit *fit;
    const double *start;
    double *sum;   /* of each source's errors */
    size_t *count; /* of them */
};

/* |log| of scaled prediction / measurement, added up; nothing where nothing was measured. */
static void add_error(double predicted, double before, double read, double measured, double *sum, size_t *count)
{
    if (!(measured > 0))
        return;
    double error = fabs(log(predicted * (read / before) / measured));
    *sum += isfinite(error) ? error : HOPELESS;
    *count += 1;
}

static void add_run(const struct search *s, size_t i)
{
    const struct dtp_constant_fit *fit = s->fit;
    const struct dtp_scored_run *run = &fit->runs->runs[i];
    const struct dtp_prediction *before = &fit->before[i];
    struct dtp_prediction now;
    double *sum = &s->sum[run->source];
    size_t *count = &s->count[run->source];
    if (dtp_scored_run_predict(run, fit->response, &now, NULL) != DTP_OK) {
        *sum += HOPELESS;
        *count += 1;
    } else if (fit->target == DTP_FIT_THROUGHPUT) {
        add_error(now.throughput.tokens_per_s_per_gpu, before->throughput.tokens_per_s_per_gpu,
                  run->shipped.throughput.tokens_per_s_per_gpu, run->measured_tokens_per_s_per_gpu, sum, count);
    } else {
        for (int k = 0; k < DTP_RUN_MEMORY_COUNT; k++) {
            enum dtp_run_memory kind = (enum dtp_run_memory)k;
            add_error(dtp_backtest_predicted_memory(&now, kind), dtp_backtest_predicted_memory(before, kind),
                      dtp_backtest_predicted_memory(&run->shipped, kind), run->measured_bytes[k], sum, count);
        }
    }
}

static double loss(const gsl_vector *x, void *context)
{
    const struct search *s = context;
    const struct dtp_constant_fit *fit = s->fit;
    const struct dtp_scored_runs *runs = fit->runs;
    double total = 0, pull = 0;
    double weights = 0;
    for (size_t i = 0; i < fit->count; i++) {
        dtp_constant_take(fit->constants[i], s->start[i] * exp(gsl_vector_get(x, i)));
        pull += PULL * gsl_vector_get(x, i) * gsl_vector_get(x, i);
    }
    for (size_t i = 0; i < runs->source_count; i++)
        s->sum[i] = 0, s->count[i] = 0;
    for (size_t i = 0; i < runs->count; i++)
        if (runs->runs[i].source != fit->left_out)
            add_run(s, i);
    for (size_t i = 0; i < runs->source_count; i++) {
        double weight = fmin((double)s->count[i], WHOLE_WITNESS) / WHOLE_WITNESS;
        total += s->count[i] ? weight * s->sum[i] / (double)s->count[i] : 0;
        weights += weight;
    }
    return (weights > 0 ? total / weights : 0) + pull;
}

/* ---- the simplex ------------------------------------------------------------------------------------------------- */

static void descend(gsl_multimin_fminimizer *simplex, gsl_multimin_function *function, gsl_vector *x, gsl_vector *step)
{
    for (int round = 0; round < ROUNDS; round++) {
        gsl_vector_set_all(step, FIRST_STEP);
        if (gsl_multimin_fminimizer_set(simplex, function, x, step) != GSL_SUCCESS)
            return;
        for (int i = 0; i < ITERATIONS && gsl_multimin_fminimizer_iterate(simplex) == GSL_SUCCESS; i++)
            if (gsl_multimin_test_size(gsl_multimin_fminimizer_size(simplex), SIZE) == GSL_SUCCESS)
                break;
        gsl_vector_memcpy(x, gsl_multimin_fminimizer_x(simplex));
    }
}

enum dtp_status dtp_constants_fit(const struct dtp_constant_fit *fit, double *value, struct dtp_faults *faults)
{
    if (fit->count == 0)
        return DTP_OK;
    struct search search = {.fit = fit,
                            .start = value,
                            .sum = calloc(fit->runs->source_count + 1, sizeof *search.sum),
                            .count = calloc(fit->runs->source_count + 1, sizeof *search.count)};
    gsl_multimin_function function = {.f = loss, .n = fit->count, .params = &search};
    gsl_error_handler_t *before = gsl_set_error_handler_off(); /* GSL's own would abort */
    gsl_multimin_fminimizer *simplex = gsl_multimin_fminimizer_alloc(gsl_multimin_fminimizer_nmsimplex2, fit->count);
    gsl_vector *x = gsl_vector_calloc(fit->count), *step = gsl_vector_alloc(fit->count);
    bool memory = search.sum && search.count && simplex && x && step;
    if (memory)
        descend(simplex, &function, x, step);
    for (size_t i = 0; i < fit->count && memory; i++) {
        value[i] *= exp(gsl_vector_get(x, i));
        dtp_constant_take(fit->constants[i], value[i]);
    }
    gsl_vector_free(x);
    gsl_vector_free(step);
    if (simplex)
        gsl_multimin_fminimizer_free(simplex);
    gsl_set_error_handler(before);
    free(search.sum);
    free(search.count);
    return memory ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}
