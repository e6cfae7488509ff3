#include "report.h"

#include "simulated.h"

#include <string.h>

enum dtp_status dtp_report_predict(const struct dtp_job *job, const struct dtp_catalog *catalog, bool simulate,
                                   struct dtp_report *out, struct dtp_faults *faults)
{
    struct dtp_predictor predictor = simulate ? dtp_predictor_simulated() : dtp_predictor_closed();
    struct dtp_prediction closed;
    out->job = *job;
    enum dtp_status status = predictor.predict(predictor.context, job, &out->prediction, faults);
    if (status != DTP_OK)
        return status;
    if (simulate)
        dtp_closed_form(&job->transformer, &job->cluster, &job->plan, &closed);
    else
        closed = out->prediction;
    out->simulated = simulate;
    out->closed_step_s = closed.time.step_s;
    dtp_scaling_of(&out->job, &closed, &out->scaling); /* of ratios, which must not mix two kinds of prediction */
    dtp_money_of(&out->job, &out->prediction.throughput, dtp_catalog_price(catalog, out->job.cluster.gpu.key),
                 &out->money);
    dtp_training_cost_of(&out->job, &out->prediction.throughput, &out->money, false, &out->training);
    return DTP_OK;
}
