#include "sim/noise.h"

#include "cost/cluster_cost.h"
#include "cost/op_cost.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <stdlib.h>

/* GSL's own error handler aborts where memory runs out; allocating its state here leaves that to the caller. */
static gsl_rng *make_generator(uint64_t seed)
{
    gsl_rng *rng = malloc(sizeof *rng);
    if (!rng)
        return NULL;
    rng->type = gsl_rng_mt19937;
    rng->state = malloc(rng->type->size);
    if (!rng->state) {
        free(rng);
        return NULL;
    }
    gsl_rng_set(rng, (unsigned long)(seed ^ seed >> 32));
    return rng;
}

static void release_generator(gsl_rng *rng)
{
    free(rng->state);
    free(rng);
}

bool dtp_noise_jitter(uint64_t seed, double deviation, double *seconds, size_t count)
{
    gsl_rng *rng = make_generator(seed);
    if (!rng)
        return false;
    for (size_t i = 0; i < count; i++)
        seconds[i] *= fmax(0.1, 1 + deviation * gsl_ran_gaussian_ziggurat(rng, 1));
    release_generator(rng);
    return true;
}

/* ---- step times of many jobs ------------------------------------------------------------------------------------- */

/* Factors at which the step is simulated: from no scatter to beyond what a million ranks have. */
#define FACTORS 6

struct curve {
    double z[FACTORS], step_s[FACTORS];
};

/* The upper one of the two factors between which z lies. */
static int upper(const struct curve *curve, double z)
{
    int i = 1;
    while (i < FACTORS - 1 && z > curve->z[i])
        i++;
    return i;
}

static double on_curve(const struct curve *curve, double z)
{
    int i = upper(curve, z);
    double share = (z - curve->z[i - 1]) / (curve->z[i] - curve->z[i - 1]);
    return curve->step_s[i - 1] + share * (curve->step_s[i] - curve->step_s[i - 1]);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear between order statistics. */
static double quantile(const double *sorted, size_t count, double p)
{
    double place = p * (double)(count - 1);
    size_t below = (size_t)place;
    return below + 1 < count ? sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below])
                             : sorted[count - 1];
}

/* The slowest of `ranks`, but no faster than `least_z`. */
static void draw(double ranks, double least_z, gsl_rng *rng, double *z, size_t samples)
{
    for (size_t i = 0; i < samples; i++)
        z[i] = fmax(least_z, gsl_cdf_ugaussian_Pinv(pow(gsl_rng_uniform_pos(rng), 1 / ranks)));
}

/* Simulates the step at the factors that what was drawn lies between: the slowest of thousands of ranks is never as
 * fast as the first of them say. */
static enum dtp_status fill_curve(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                  const struct dtp_simulation_options *options, const double *factor, const double *z,
                                  size_t samples, struct curve *curve, struct dtp_faults *faults)
{
    bool asked[FACTORS] = {false};
    double at[FACTORS], step_s[FACTORS];
    size_t count = 0, taken = 0;
    for (size_t i = 0; i < samples; i++)
        asked[upper(curve, z[i])] = asked[upper(curve, z[i]) - 1] = true;
    for (int i = 0; i < FACTORS; i++)
        if (asked[i])
            at[count++] = factor[i];
    enum dtp_status status = dtp_simulate_factors(set, cluster, options, at, count, step_s, faults);
    for (int i = 0; i < FACTORS && status == DTP_OK; i++)
        curve->step_s[i] = asked[i] ? step_s[taken++] : NAN;
    return status;
}

/* What was drawn becomes the steps' times, in their order. */
static void read_off(const struct curve *curve, double *step_s, size_t samples, struct dtp_step_quantiles *out)
{
    double sum_s = 0;
    for (size_t i = 0; i < samples; i++) {
        step_s[i] = on_curve(curve, step_s[i]);
        sum_s += step_s[i];
    }
    qsort(step_s, samples, sizeof *step_s, compare);
    *out = (struct dtp_step_quantiles){quantile(step_s, samples, 0.50), quantile(step_s, samples, 0.95),
                                       quantile(step_s, samples, 0.99), sum_s / (double)samples};
}

enum dtp_status dtp_noise_step_quantiles(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                         const struct dtp_simulation_options *options, double deviation, size_t samples,
                                         struct dtp_step_quantiles *out, struct dtp_faults *faults)
{
    struct curve curve = {.z = {-2.5, 0, 1, 2, 3.5, 5.5}};
    double factor[FACTORS];
    uint32_t known = deviation > 0 ? 0 : dtp_cluster_measured_gpus(cluster);
    if (!(deviation > 0))
        deviation = dtp_simulated_rank_deviation(dtp_program_execution(set->roles[0].program));
    /* Of a measured machine the times are those of the slowest of its GPUs; the others of the job may be slower. */
    double known_factor = known ? dtp_slowest_rank_factor(known, deviation) : 1;
    double known_z = known ? (known_factor - 1) / deviation : -INFINITY;
    double unknown = cluster->gpus > known ? cluster->gpus - known : 1;
    for (int i = 0; i < FACTORS; i++)
        factor[i] = fmax(0.1, 1 + deviation * curve.z[i]) / known_factor;
    samples = samples ? samples : 1;
    double *step_s = calloc(samples, sizeof *step_s);
    gsl_rng *rng = step_s ? make_generator(options->seed) : NULL;
    if (!rng) {
        free(step_s);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for %zu samples", samples);
    }
    draw(unknown, known_z, rng, step_s, samples);
    release_generator(rng);
    enum dtp_status status = fill_curve(set, cluster, options, factor, step_s, samples, &curve, faults);
    if (status == DTP_OK)
        read_off(&curve, step_s, samples, out);
    free(step_s);
    return status;
}
