#include "decide/money.h"

#include <string.h>

void dtp_money_of(const struct dtp_job *job, const struct dtp_throughput *throughput, const struct dtp_price *price,
                  struct dtp_money *out)
{
    memset(out, 0, sizeof *out);
    double given = job->plan.price_per_gpu_hour;
    out->given = given > 0;
    out->known = out->given || price;
    if (!out->known)
        return;
    out->gpu_hour_usd[DTP_PRICE_LOW] = out->given ? given : price->low;
    out->gpu_hour_usd[DTP_PRICE_TYPICAL] = out->given ? given : price->typical;
    out->gpu_hour_usd[DTP_PRICE_HIGH] = out->given ? given : price->high;
    if (!out->given)
        memcpy(out->date, price->date, sizeof out->date);
    double billion_tokens_per_hour = throughput->tokens_per_s * 3600.0 / 1e9;
    for (int level = 0; level < DTP_PRICE_LEVEL_COUNT; level++) {
        out->job_hour_usd[level] = out->gpu_hour_usd[level] * job->cluster.gpus;
        if (billion_tokens_per_hour > 0)
            out->billion_tokens_usd[level] = out->job_hour_usd[level] / billion_tokens_per_hour;
    }
}
