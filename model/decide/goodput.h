/* Goodput: how much longer a job takes because GPUs fail, and how often it should write a checkpoint.
 *
 * Failures are exponential with the mean time M = gpu_mtbf / GPUs. A job computes for tau, writes a checkpoint for
 * delta, and so on; a failure costs what was computed since the last checkpoint, and R until it computes again
 * (detection, restart, reading the checkpoint back); another failure may hit any of these. The expected wall time of W
 * of computing is then (Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 2006,
 * eq. 20) T = M e^(R/M) (e^((tau+delta)/M) - 1) W / tau and its minimum lies at the root in (0, M) of 1 - tau/M =
 * e^(-(tau+delta)/M), which GSL brackets; for delta << M it is Young's sqrt(2 delta M) (CACM 1974). Checkpoints are
 * written synchronously: asynchronous ones make delta smaller. */
#ifndef DTP_GOODPUT_H
#define DTP_GOODPUT_H

#include "job/scenario.h"

struct dtp_goodput_inputs {
    double work_s;       /* W: computing without failures and checkpoints */
    double mtbf_s;       /* M: of the whole job; infinite: nothing fails */
    double checkpoint_s; /* delta */
    double restart_s;    /* R, detection and reading included */
};

struct dtp_goodput {
    double interval_s;     /* tau; work_s when not even one checkpoint pays */
    double young_s;        /* sqrt(2 delta M), for comparison */
    double expected_s;     /* T */
    double failures_count; /* expected within T */
    double fraction;       /* W / T */
    bool hopeless;         /* T is beyond a thousand W: the figures mean "never" */
};

/* work_s, checkpoint_s and mtbf_s above 0, restart_s at least 0. */
void dtp_goodput_of(const struct dtp_goodput_inputs *in, struct dtp_goodput *out);

/* The wall time that a share `quantile` of runs stays below, and the mean, of `trials` runs simulated failure by
 * failure (GSL's ranlxs0 from `seed`: the same on every machine). Trials are cut where a run has very many failures,
 * down to 100; beyond 1e5 failures a run, or where hopeless, both are the expected time. */
struct dtp_goodput_trials {
    double mean_s, quantile_s;
    unsigned trials;
};
void dtp_goodput_simulate(const struct dtp_goodput_inputs *in, double interval_s, double quantile, unsigned trials,
                          unsigned long seed, struct dtp_goodput_trials *out);

/* ---- of a job ---------------------------------------------------------------------------------------------------- */

/* What one checkpoint holds: parameters, master copy and optimizer state, once over all GPUs. */
double dtp_checkpoint_bytes(const struct dtp_job *job);
/* The job's inputs for so much computing. Storage: as given, else of one node with NVMe that, else the default. */
struct dtp_goodput_inputs dtp_goodput_inputs_of(const struct dtp_job *job, double work_s);

#endif
