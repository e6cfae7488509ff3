/* Chance: seeded jitter of operations, and how the step of a job of n ranks scatters because their speeds do.
 *
 * GSL's Mersenne twister with an explicit seed: the same seed gives the same numbers on every machine. */
#ifndef DTP_NOISE_H
#define DTP_NOISE_H

#include "sim/simulate.h"

/* Multiplies each time by 1 + deviation * (standard normal), at least by 0.1. False: no memory. */
bool dtp_noise_jitter(uint64_t seed, double deviation, double *seconds, size_t count);

struct dtp_step_quantiles {
    double p50_s, p95_s, p99_s, mean_s;
};

/* Step time of a job whose ranks' speeds scatter by `deviation` (relative; 0: dtp_simulated_rank_deviation's),
 * by Monte Carlo over `samples` jobs. Ranks are not simulated one by one: the largest of n normals has the distribution
 * Phi(z)^n, so one uniform number u per job gives it as Phi^-1(u^(1/n)); the set, which is legal, is simulated for a
 * few factors and step times in between are interpolated, as they are piecewise linear in it. options->compute_factor
 * is ignored. */
enum dtp_status dtp_noise_step_quantiles(const struct dtp_program_set *set, const struct dtp_cluster *cluster,
                                         const struct dtp_simulation_options *options, double deviation, size_t samples,
                                         struct dtp_step_quantiles *out, struct dtp_faults *faults);

#endif
