/* Plans per second whose bounds of memory one core computes: each of another job, and as a sweep or a search asks,
 * which goes through numbers of micro-steps and sizes of micro-batches of a job before anything else changes.
 * build/bench_bounds */
#include "bounds/bounds.h"

#include "lib/bench_jobs.h"

static double predict(const struct random_job *job)
{
    struct dtp_bounds b;
    dtp_bounds_of(&job->transformer, &job->cluster, &job->plan, NULL, &b);
    return (double)(b.memory_bytes + b.least_bytes);
}

static double predict_next(const struct random_job *job)
{
    static struct dtp_job_layers kept;
    struct dtp_bounds b;
    dtp_bounds_of(&job->transformer, &job->cluster, &job->plan, &kept, &b);
    return (double)(b.memory_bytes + b.least_bytes);
}

int main(void)
{
    return bench_jobs("bounds", predict, BENCH_ROUNDS) || bench_swept_jobs("bounds, swept", predict_next, BENCH_ROUNDS);
}
