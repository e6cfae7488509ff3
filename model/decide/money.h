/* Money: what a job costs an hour and a billion tokens, from the catalogue's prices or from one given price.
 *
 * A GPU-hour has no one price, so every figure comes as low, typical and high. A job pays for the GPUs it uses. */
#ifndef DTP_MONEY_H
#define DTP_MONEY_H

#include "machine/catalog.h"
#include "closed/closed_form.h"
#include "job/scenario.h"

enum dtp_price_level { DTP_PRICE_LOW, DTP_PRICE_TYPICAL, DTP_PRICE_HIGH, DTP_PRICE_LEVEL_COUNT };

struct dtp_money {
    bool known; /* false: neither a price in the catalogue nor one given; all figures are 0 */
    bool given; /* the user's own price: low = typical = high */
    double gpu_hour_usd[DTP_PRICE_LEVEL_COUNT];
    double job_hour_usd[DTP_PRICE_LEVEL_COUNT];
    double billion_tokens_usd[DTP_PRICE_LEVEL_COUNT];
    char date[16]; /* of the catalogue's price, "YYYY-MM"; "" when given */
};

/* `price` may be NULL. job->plan.price_per_gpu_hour above 0 overrides it. */
void dtp_money_of(const struct dtp_job *job, const struct dtp_throughput *throughput, const struct dtp_price *price,
                  struct dtp_money *out);

#endif
