/* What a whole training takes: wall time with failures, energy, money, checkpoints, and what its batch means.
 *
 * Money is paid for the GPUs for as long as the job stands, lost time included. Energy is that of the GPUs at their
 * board power, and of the site: nodes beside their GPUs and cooling on top (calibration.h). */
#ifndef DTP_TRAINING_COST_H
#define DTP_TRAINING_COST_H

#include "closed/closed_form.h"
#include "decide/elastic.h"
#include "decide/goodput.h"
#include "decide/money.h"

#define DTP_TRAINING_TRIALS 2000u
#define DTP_TRAINING_SEED 1ul

struct dtp_training_cost {
    bool known; /* false: no number of tokens was given, and nothing else here is set */
    double tokens, steps_count;
    struct dtp_goodput_inputs inputs;
    struct dtp_goodput goodput;
    struct dtp_goodput_trials trials;   /* quantile 0.95; zero where they were not asked for */
    struct dtp_elastic_goodput elastic; /* the same training with snapshots in memory, and ranks that may be lost */
    double checkpoint_stall_s;          /* of one that a thread writes: what it stands still for, once in interval_s */
    double checkpoint_copy_bytes;       /* of the host's memory, a GPU, that it is copied to */
    double checkpoint_bytes;
    double
        storage_bytes_per_s; /* that writes a checkpoint in one percent of its interval: bytes / (2e-4 M), by Young's */
    double gpu_energy_j, site_energy_j;
    double usd[DTP_PRICE_LEVEL_COUNT]; /* of the expected time; 0 where no price is known */
    double quantile_usd;               /* typical price, at trials.quantile_s */
    double batch_tokens;
    double critical_batch_tokens; /* dtp_critical_batch_tokens */
    bool late,
        over_budget; /* of a deadline or budget that was given: the expected time or typical price is beyond it */
};

/* Seconds of computing, in whole steps: the last one takes as long as any other, however few tokens are left for it.
 * `plain_step_s` is that of the steps before powersgd_start_step, 0 where the job has none. */
double dtp_training_work_s(const struct dtp_job *job, const struct dtp_throughput *throughput, double plain_step_s);
/* Of those steps by the closed form; 0: there are none. */
double dtp_training_plain_step_s(const struct dtp_job *job);
/* `simulate_failures`: also the Monte Carlo, some milliseconds. */
void dtp_training_cost_of(const struct dtp_job *job, const struct dtp_throughput *throughput, double plain_step_s,
                          const struct dtp_money *money, bool simulate_failures, struct dtp_training_cost *out);

/* Tokens of a step beyond which a larger batch saves few steps: B_crit = 2e8 / L^4.76 at the loss L = (8.8e13 /
 * N)^0.076 that a model of N parameters reaches (Kaplan et al. 2020, eqs. 1.1 and 1.4, after McCandlish et al. 2018).
 * An order of magnitude for models and data like theirs. */
double dtp_critical_batch_tokens(double parameters);

#endif
