#include "record/report.h"

#include "sim/simulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum dtp_status simulate(const struct dtp_job *job, uint32_t op_limit, struct dtp_report *out,
                                struct dtp_faults *faults)
{
    struct dtp_simulated simulated;
    struct dtp_simulation_options options = dtp_simulation_options_default();
    options.op_limit = op_limit;
    enum dtp_status status = dtp_simulated_create(job, &options, &simulated, faults);
    if (status != DTP_OK)
        return status;
    out->prediction = simulated.prediction;
    if (out->keeps_stages)
        status = dtp_pipeline_stages_of(&simulated, &out->stages, faults);
    dtp_simulated_release(&simulated);
    return status;
}

/* By simulation, or else by formulas and why. */
static enum dtp_status predict_best(const struct dtp_job *job, struct dtp_report *out, struct dtp_faults *faults)
{
    struct dtp_predictor formulas = dtp_predictor_closed();
    struct dtp_faults why;
    memset(&why, 0, sizeof why);
    out->simulated = simulate(job, DTP_REPORT_MAX_OPS / job->plan.pp, out, &why) == DTP_OK;
    if (out->simulated)
        return DTP_OK;
    snprintf(out->not_simulated_because, sizeof out->not_simulated_because, "%s",
             why.count ? why.text[0] : dtp_status_text(why.status));
    return formulas.predict(formulas.context, job, &out->prediction, faults);
}

static enum dtp_status predict(const struct dtp_job *job, enum dtp_fidelity fidelity, struct dtp_report *out,
                               struct dtp_faults *faults)
{
    struct dtp_predictor formulas = dtp_predictor_closed();
    out->simulated = fidelity == DTP_FIDELITY_SIMULATED;
    out->not_simulated_because[0] = '\0';
    out->stages = (struct dtp_pipeline_stages){0};
    switch (fidelity) {
    case DTP_FIDELITY_BEST: return predict_best(job, out, faults);
    case DTP_FIDELITY_SIMULATED: return simulate(job, 0, out, faults);
    case DTP_FIDELITY_CLOSED: break;
    }
    return formulas.predict(formulas.context, job, &out->prediction, faults);
}

/* Steps whose gradients are summed as they are, before PowerSGD begins. Our arena has room for both from the first. */
static enum dtp_status predict_before(const struct dtp_job *job, enum dtp_fidelity fidelity, struct dtp_report *out,
                                      struct dtp_faults *faults)
{
    struct dtp_job plain = *job;
    struct dtp_report *of = calloc(1, sizeof *of);
    if (!of)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    plain.plan.comm_hook = DTP_COMM_HOOK_NONE;
    enum dtp_status status = predict(&plain, fidelity, of, faults);
    const struct dtp_memory *memory = job->plan.runtime->arena ? &out->prediction.memory : &of->prediction.memory;
    out->plain_step_s = of->prediction.time.step_s;
    out->plain_device_bytes = (double)memory->device_peak_bytes;
    free(of);
    return status;
}

enum dtp_status dtp_report_predict(const struct dtp_job *job, const struct dtp_catalog *catalog,
                                   enum dtp_fidelity fidelity, struct dtp_report *out, struct dtp_faults *faults)
{
    struct dtp_prediction closed;
    out->job = *job;
    enum dtp_status status = predict(job, fidelity, out, faults);
    out->plain_step_s = out->plain_device_bytes = 0;
    if (status == DTP_OK && job->plan.powersgd_start_step)
        status = predict_before(job, fidelity, out, faults);
    if (status != DTP_OK)
        return status;
    closed = out->prediction;
    if (out->simulated) /* the other fidelity's time; memory is the program's in both */
        status = dtp_estimate_time(&job->transformer, &job->cluster, &job->plan, &closed, faults);
    if (status != DTP_OK)
        return status;
    out->closed_step_s = closed.time.step_s;
    dtp_scaling_of(&out->job, &closed, &out->scaling); /* of ratios, which must not mix two kinds of prediction */
    dtp_money_of(&out->job, &out->prediction.throughput, dtp_catalog_price(catalog, out->job.cluster.gpu.key),
                 &out->money);
    dtp_training_cost_of(&out->job, &out->prediction.throughput, out->plain_step_s, &out->money, false, &out->training);
    return DTP_OK;
}
