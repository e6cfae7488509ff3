#include "decide/training_cost.h"

#include "cost/calibration.h"

#include <math.h>
#include <string.h>

#define WRITE_SHARE 0.01 /* of the time between checkpoints that writing them may take */

double dtp_critical_batch_tokens(double parameters)
{
    const struct dtp_calibration *c = &dtp_calibration;
    double loss = pow(c->loss_law_parameters / parameters, c->loss_law_exponent);
    return c->critical_batch_at_loss_1_tokens / pow(loss, c->critical_batch_exponent);
}

/* Young: delta / tau = sqrt(delta / 2M), which is WRITE_SHARE at delta = 2 M WRITE_SHARE^2. */
static double needed_storage(double checkpoint_bytes, double mtbf_s)
{
    return isinf(mtbf_s) ? 0 : checkpoint_bytes / (2 * mtbf_s * WRITE_SHARE * WRITE_SHARE);
}

static void add_money(const struct dtp_job *job, const struct dtp_money *money, struct dtp_training_cost *out)
{
    const struct dtp_training *t = &job->training;
    double wall_h = out->goodput.expected_s / 3600;
    for (int level = 0; level < DTP_PRICE_LEVEL_COUNT; level++)
        out->usd[level] = money->known ? money->job_hour_usd[level] * wall_h : 0;
    out->quantile_usd = money->known ? money->job_hour_usd[DTP_PRICE_TYPICAL] * out->trials.quantile_s / 3600 : 0;
    out->late = t->deadline_s > 0 && !(out->goodput.expected_s <= t->deadline_s);
    out->over_budget = t->budget_usd > 0 && money->known && !(out->usd[DTP_PRICE_TYPICAL] <= t->budget_usd);
}

static double batch_tokens(const struct dtp_job *job)
{
    return (double)dtp_job_batch_sequences(job) * (double)job->plan.sequence;
}

double dtp_training_work_s(const struct dtp_job *job, const struct dtp_throughput *throughput, double plain_step_s)
{
    double batch = batch_tokens(job), steps = ceil(job->training.tokens / batch);
    double plain = plain_step_s > 0 ? fmin(steps, job->plan.powersgd_start_step) : 0;
    return (steps - plain) * batch / throughput->tokens_per_s + plain * plain_step_s;
}

double dtp_training_plain_step_s(const struct dtp_job *job)
{
    struct dtp_prediction prediction;
    struct dtp_plan plain = job->plan;
    if (!plain.powersgd_start_step)
        return 0;
    plain.comm_hook = DTP_COMM_HOOK_NONE;
    return dtp_closed_form(&job->transformer, &job->cluster, &plain, &prediction) == DTP_OK ? prediction.time.step_s
                                                                                            : NAN;
}

void dtp_training_cost_of(const struct dtp_job *job, const struct dtp_throughput *throughput, double plain_step_s,
                          const struct dtp_money *money, bool simulate_failures, struct dtp_training_cost *out)
{
    memset(out, 0, sizeof *out);
    out->known = job->training.tokens > 0 && throughput->tokens_per_s > 0;
    if (!out->known)
        return;
    out->tokens = job->training.tokens;
    out->batch_tokens = batch_tokens(job);
    out->steps_count = ceil(out->tokens / out->batch_tokens);
    out->inputs = dtp_goodput_inputs_of(job, dtp_training_work_s(job, throughput, plain_step_s));
    dtp_goodput_of(&out->inputs, &out->goodput);
    if (simulate_failures)
        dtp_goodput_simulate(&out->inputs, out->goodput.interval_s, 0.95, DTP_TRAINING_TRIALS, DTP_TRAINING_SEED,
                             &out->trials);
    dtp_elastic_goodput_of_job(job, out->inputs.work_s, out->batch_tokens / throughput->tokens_per_s, &out->elastic);
    out->checkpoint_stall_s = dtp_state_copy_s(job);
    out->checkpoint_copy_bytes = dtp_state_copy_bytes(job);
    out->checkpoint_bytes = dtp_checkpoint_bytes(job);
    out->storage_bytes_per_s = needed_storage(out->checkpoint_bytes, out->inputs.mtbf_s);
    out->gpu_energy_j = out->goodput.expected_s * job->cluster.gpu.power_w * job->cluster.gpus;
    out->site_energy_j = out->gpu_energy_j * dtp_calibration.node_power_factor * dtp_calibration.site_power_factor;
    out->critical_batch_tokens = dtp_critical_batch_tokens((double)dtp_transformer_count(&job->transformer).total);
    add_money(job, money, out);
}
