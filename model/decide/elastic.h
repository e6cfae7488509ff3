/* Goodput of a training that goes on from snapshots in memory when GPUs fail, with those that are left.
 *
 * Failures are exponential with the mean time M of the whole job (goodput.h). The job computes for tau, stands still
 * for d while its state is copied, and goes on; w later the snapshot is whole, and from then on a failure takes the job
 * back to it. After a failure it takes R until training goes on, which another failure begins anew. Let a = tau + d.
 * From one whole snapshot to the next takes a where nothing fails, e^(-a/M); after a failure first R and then a + w,
 * for what is computed while a snapshot is not whole yet is lost with it. So the expected time of a segment is
 *
 *   E = M (1 - e^(-a/M)) + (1 - e^(-a/M)) E',    E' = M (e^((R+a+w)/M) - 1),
 *
 * where E' counts the failures of R and of a + w alike, each of which begins R again. That is
 *
 *   E = M e^((R+w)/M) (e^(a/M) - 1):
 *
 * Daly's formula, with R + w in place of R: what a snapshot takes in the background costs as if each restart took as
 * much longer, and the best tau is Daly's for d, though not below w, for one snapshot is written at a time, nor below a
 * step.
 *
 * A failure takes a unit (a node; of one node, a GPU) out for Q on average, while the others do its part: the batch
 * stays, so the job is slower by the share u of its GPUs. Units that are out are the customers of an M/G/infinity
 * queue, Q/M on average whatever the distribution of Q (Mirasol 1963), so speed is 1 - u Q/M on average. A unit that is
 * back is taken in between two steps, which costs r once a failure and no work. Then W of computing takes
 *
 *   T = W / tau E (1 + r/M) / (1 - u Q/M).
 *
 * When it is false: failures that come together, GPUs that slow down before they fail, and where so many are out that
 * the rest do not divide the batch. */
#ifndef DTP_ELASTIC_H
#define DTP_ELASTIC_H

#include "decide/goodput.h"

struct dtp_elastic_inputs {
    double work_s;        /* W */
    double mtbf_s;        /* M; infinite: nothing fails */
    double stall_s;       /* d */
    double lag_s;         /* w */
    double restart_s;     /* R, detection and reading included */
    double regroup_s;     /* r */
    double repair_s;      /* Q */
    double unit_fraction; /* u */
    double step_s;        /* tau is not below it */
};

struct dtp_elastic_goodput {
    bool known; /* ranks of the job can be spared: it has no pipeline and shares no layers */
    struct dtp_elastic_inputs inputs;
    double interval_s, expected_s, fraction; /* tau, T, W / T */
    bool hopeless;                           /* more units are out than there are, or a thousand W do not do */
};

/* All but mtbf_s and work_s may be 0. */
void dtp_elastic_goodput_of(const struct dtp_elastic_inputs *inputs, struct dtp_elastic_goodput *out);
/* Of a job's computing and step: state over its GPUs, copied over PCIe, written by a core and sent to a neighbour. */
void dtp_elastic_goodput_of_job(const struct dtp_job *job, double work_s, double step_s,
                                struct dtp_elastic_goodput *out);

/* A GPU's share of the state, which is copied to pinned memory of its host taken before training; and what training
 * stands still for while it is. */
double dtp_state_copy_bytes(const struct dtp_job *job);
double dtp_state_copy_s(const struct dtp_job *job);

#endif
