#include "decide/elastic.h"

#include "cost/calibration.h"

#include <math.h>

void dtp_elastic_goodput_of(const struct dtp_elastic_inputs *in, struct dtp_elastic_goodput *out)
{
    const struct dtp_goodput_inputs daly = {in->work_s, in->mtbf_s, in->stall_s, in->restart_s + in->lag_s};
    struct dtp_goodput best;
    dtp_goodput_of(&daly, &best);
    *out = (struct dtp_elastic_goodput){.known = true, .inputs = *in};
    out->interval_s = fmin(fmax(fmax(best.interval_s, in->lag_s), in->step_s), in->work_s);
    double m = in->mtbf_s, speed = isinf(m) ? 1 : 1 - in->unit_fraction * in->repair_s / m;
    double segment_s = out->interval_s + in->stall_s;
    double expected_s = isinf(m)
                            ? segment_s
                            : m * exp((in->restart_s + in->lag_s) / m) * expm1(segment_s / m) * (1 + in->regroup_s / m);
    double factor = expected_s / out->interval_s / speed;
    out->hopeless = best.hopeless || !(speed > 0) || !isfinite(factor);
    out->expected_s = in->work_s * factor;
    out->fraction = out->hopeless ? 0 : 1 / factor;
}

double dtp_state_copy_bytes(const struct dtp_job *job)
{
    return dtp_checkpoint_bytes(job) / job->cluster.gpus;
}

double dtp_state_copy_s(const struct dtp_job *job)
{
    double rate = job->cluster.gpu.pcie_bytes_per_s * dtp_calibration.pcie_fraction;
    return rate > 0 ? dtp_state_copy_bytes(job) / rate : 0;
}

/* Read or written by one core, summed. */
static double write_s(const struct dtp_job *job)
{
    return dtp_state_copy_bytes(job) / dtp_calibration.host_write_bytes_per_s;
}

/* To a neighbour, which writes what comes: on another node by this GPU's share of the network. */
static double send_s(const struct dtp_job *job)
{
    const struct dtp_cluster *c = &job->cluster;
    double rate = c->nodes > 1 ? dtp_cluster_network_bytes_per_s(c) / c->gpus_per_node : 0;
    return fmax(rate > 0 ? dtp_state_copy_bytes(job) / rate : 0, write_s(job));
}

void dtp_elastic_goodput_of_job(const struct dtp_job *job, double work_s, double step_s,
                                struct dtp_elastic_goodput *out)
{
    const struct dtp_training *t = &job->training;
    const struct dtp_plan *p = &job->plan;
    const struct dtp_cluster *c = &job->cluster;
    const struct dtp_elastic_inputs inputs = {.work_s = work_s,
                                              .mtbf_s = t->gpu_mtbf_s / c->gpus,
                                              .stall_s = dtp_state_copy_s(job),
                                              .lag_s = write_s(job) + send_s(job),
                                              .restart_s = t->rejoin_s + write_s(job) + send_s(job),
                                              .regroup_s = t->rejoin_s + write_s(job) + send_s(job),
                                              .repair_s = t->repair_s,
                                              .unit_fraction = (c->nodes > 1 ? (double)c->gpus_per_node : 1) / c->gpus,
                                              .step_s = step_s};
    dtp_elastic_goodput_of(&inputs, out);
    out->known = p->pp == 1 && p->tp == 1 && p->cp == 1 && c->gpus > 1;
}
