/* Configurations per second of the whole closed form (memory, communication, time) on one core. */
#include "closed/closed_form.h"

#include "lib/bench_jobs.h"

static double predict(const struct random_job *job)
{
    struct dtp_prediction p;
    dtp_closed_form(&job->transformer, &job->cluster, &job->plan, &p);
    return p.time.step_s + (double)p.memory.allocated_peak_bytes;
}

int main(void)
{
    return bench_jobs("closed form", predict);
}
