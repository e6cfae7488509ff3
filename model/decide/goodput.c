#include "decide/goodput.h"

#include "closed/sharding.h"
#include "cost/calibration.h"
#include "plan/optimizer_state.h"
#include "plan/runtime.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_rng.h>
#include <gsl/gsl_roots.h>
#include <math.h>
#include <stdlib.h>

#define HOPELESS 1000.0  /* times the work */
#define MAX_EVENTS 2e6   /* failures in all trials: a tenth of a second */
#define MAX_FAILURES 1e5 /* of one run; relative deviation below a percent, nothing left to simulate */
#define MIN_TRIALS 100u

/* ---- the interval ------------------------------------------------------------------------------------------------ */

/* With x = tau/M and d = delta/M: 1 - x - e^(-x-d), above 0 at 0 and below 0 at 1. */
static double slope(double x, void *context)
{
    double d = *(const double *)context;
    return 1 - x - exp(-x - d);
}

/* x of the minimum. */
static double best_interval(double d)
{
    gsl_function function = {slope, &d};
    double low = 0, high = 1, x = fmin(0.5, sqrt(2 * d));
    gsl_root_fsolver *solver = gsl_root_fsolver_alloc(gsl_root_fsolver_brent);
    if (!solver)
        return x; /* out of memory: Young's */
    gsl_root_fsolver_set(solver, &function, low, high);
    for (int i = 0; i < 100 && gsl_root_test_interval(low, high, 0, 1e-9) == GSL_CONTINUE; i++) {
        gsl_root_fsolver_iterate(solver);
        x = gsl_root_fsolver_root(solver);
        low = gsl_root_fsolver_x_lower(solver);
        high = gsl_root_fsolver_x_upper(solver);
    }
    gsl_root_fsolver_free(solver);
    return x;
}

void dtp_goodput_of(const struct dtp_goodput_inputs *in, struct dtp_goodput *out)
{
    double m = in->mtbf_s, delta = in->checkpoint_s;
    *out = (struct dtp_goodput){.interval_s = in->work_s,
                                .young_s = sqrt(2 * delta * m),
                                .expected_s = in->work_s + delta,
                                .fraction = in->work_s / (in->work_s + delta)};
    if (isinf(m))
        return;
    double x = best_interval(delta / m);
    out->interval_s = fmin(x * m, in->work_s);
    double factor = m * exp(in->restart_s / m) * expm1((out->interval_s + delta) / m) / out->interval_s;
    /* Of a training as short as one checkpoint the factor is large without any failure, so that counts as work. */
    double most = HOPELESS * (out->interval_s + delta) / out->interval_s;
    out->hopeless = !(factor < most);
    factor = out->hopeless ? most : factor;
    out->expected_s = in->work_s * factor;
    out->failures_count = out->expected_s / m;
    out->fraction = 1 / factor;
}

/* ---- runs simulated ---------------------------------------------------------------------------------------------- */

/* Wall time until `segments` of `segment_s` are done. A failure takes back the segment at hand; failures during a
 * restart start it again. */
static double one_run(gsl_rng *random, double segments, double segment_s, double m, double restart_s)
{
    double wall_s = 0, left = segments;
    for (;;) {
        double until_s = -m * log(gsl_rng_uniform_pos(random));
        double done = floor(until_s / segment_s);
        if (done >= left)
            return wall_s + left * segment_s;
        wall_s += until_s;
        left -= done;
        double again_s;
        while ((again_s = -m * log(gsl_rng_uniform_pos(random))) < restart_s)
            wall_s += again_s;
        wall_s += restart_s;
    }
}

static int compare(const void *left, const void *right)
{
    double l = *(const double *)left, r = *(const double *)right;
    return (l > r) - (l < r);
}

void dtp_goodput_simulate(const struct dtp_goodput_inputs *in, double interval_s, double quantile, unsigned trials,
                          unsigned long seed, struct dtp_goodput_trials *out)
{
    struct dtp_goodput expected;
    dtp_goodput_of(in, &expected);
    *out = (struct dtp_goodput_trials){expected.expected_s, expected.expected_s, 0};
    double failures = expected.failures_count;
    if (isinf(in->mtbf_s) || expected.hopeless || failures > MAX_FAILURES || trials == 0)
        return;
    if (failures * trials > MAX_EVENTS)
        trials = (unsigned)fmax(MIN_TRIALS, MAX_EVENTS / failures);
    double *wall_s = malloc(trials * sizeof *wall_s), sum_s = 0;
    gsl_rng *random = gsl_rng_alloc(gsl_rng_ranlxs0);
    if (wall_s && random) {
        gsl_rng_set(random, seed);
        for (unsigned i = 0; i < trials; i++) {
            wall_s[i] =
                one_run(random, in->work_s / interval_s, interval_s + in->checkpoint_s, in->mtbf_s, in->restart_s);
            sum_s += wall_s[i];
        }
        qsort(wall_s, trials, sizeof *wall_s, compare);
        unsigned at = (unsigned)(quantile * (trials - 1) + 0.5);
        *out = (struct dtp_goodput_trials){sum_s / trials, wall_s[at < trials ? at : trials - 1], trials};
    }
    if (random)
        gsl_rng_free(random);
    free(wall_s);
}

/* ---- of a job ---------------------------------------------------------------------------------------------------- */

double dtp_checkpoint_bytes(const struct dtp_job *job)
{
    struct dtp_element_bytes bytes;
    dtp_element_bytes_count(&job->plan, &bytes);
    uint64_t total = dtp_transformer_count(&job->transformer).total;
    return (double)total * (double)bytes.params +
           (double)dtp_optimizer_whole_bytes(&job->transformer, &job->plan, &bytes, total);
}

static double storage_bytes_per_s(const struct dtp_job *job)
{
    const struct dtp_cluster *c = &job->cluster;
    if (job->training.storage_bytes_per_s > 0)
        return job->training.storage_bytes_per_s;
    if (c->nodes == 1 && c->machine.nvme_write_bytes_per_s > 0)
        return c->machine.nvme_write_bytes_per_s;
    return DTP_DEFAULT_STORAGE_BYTES_PER_S_PER_GPU * c->gpus;
}

/* Of our executor a rank's part is written by one core; what others make of theirs nobody measured. */
static double writers_bytes_per_s(const struct dtp_job *job)
{
    return job->plan.runtime->executed ? dtp_calibration.host_write_bytes_per_s * job->cluster.gpus : INFINITY;
}

struct dtp_goodput_inputs dtp_goodput_inputs_of(const struct dtp_job *job, double work_s)
{
    const struct dtp_training *t = &job->training;
    double write_s = dtp_checkpoint_bytes(job) / fmin(storage_bytes_per_s(job), writers_bytes_per_s(job));
    return (struct dtp_goodput_inputs){.work_s = work_s,
                                       .mtbf_s = t->gpu_mtbf_s / job->cluster.gpus,
                                       .checkpoint_s = write_s,
                                       .restart_s = t->detection_s + t->restart_s + write_s};
}
