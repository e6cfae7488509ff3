/* Configurations per second on one core: the closed form (communication, time), and the estimate, whose memory is that
 * of the step program. */
#include "job/estimate.h"

#include <stdlib.h>

#include "lib/bench_jobs.h"

static double closed(const struct random_job *job)
{
    struct dtp_prediction p;
    dtp_closed_form(&job->transformer, &job->cluster, &job->plan, &p);
    return p.time.step_s;
}

static double estimate(const struct random_job *job)
{
    struct dtp_prediction p;
    if (dtp_estimate(&job->transformer, &job->cluster, &job->plan, &p, NULL) != DTP_OK)
        exit(1);
    return p.time.step_s + (double)p.memory.allocated_peak_bytes;
}

int main(void)
{
    return bench_jobs("closed form", closed, BENCH_ROUNDS) || bench_jobs("estimate", estimate, 2);
}
