/* Which operations of a pipeline's roles repeat: micro-batch after micro-batch, or, where a rank has several stages, as
 * many micro-batches as it takes turns with. */
#ifndef DTP_PERIODS_H
#define DTP_PERIODS_H

#include "sim/engine.h"

struct dtp_period_role {
    const struct dtp_program *program;
    const struct dtp_engine_graph *graph;
    const double *alone_s;   /* per operation */
    const uint32_t *partner; /* per operation, as struct dtp_engine_job has it */
};

/* Operations one period apart are priced alike, wait for what is as far before them and send to what is one period
 * apart in the other role. All lengths are 0 where a role has no such operations. Time linear in operations. */
void dtp_periods_find(const struct dtp_period_role *roles, uint32_t count, struct dtp_engine_period *out);

#endif
