/* Plans per second whose bounds of memory one core computes. build/bench_bounds */
#include "bounds/bounds.h"

#include "lib/bench_jobs.h"

static double predict(const struct random_job *job)
{
    struct dtp_bounds b;
    dtp_bounds_of(&job->transformer, &job->cluster, &job->plan, &b);
    return (double)(b.memory_bytes + b.least_bytes);
}

int main(void)
{
    return bench_jobs("bounds", predict, BENCH_ROUNDS);
}
