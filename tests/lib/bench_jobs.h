/* How many random jobs a second one core gets through. Every call gets another job, and a checksum keeps the compiler
 * from dropping any. */
#ifndef TEST_BENCH_JOBS_H
#define TEST_BENCH_JOBS_H

#include "base/clock.h"
#include "lib/random_plans.h"

#include <math.h>

#define BENCH_JOBS 4096
#define BENCH_ROUNDS 100

static struct random_job bench_job[BENCH_JOBS];

/* Prints the best of the rounds. `predict` returns what it adds to the checksum. */
static inline void bench_rounds(const char *name, double (*predict)(const struct random_job *job), int rounds)
{
    double best_s = INFINITY, checksum = 0;
    for (int round = 0; round < rounds; round++) {
        double start_s = dtp_now_s();
        for (int i = 0; i < BENCH_JOBS; i++)
            checksum += predict(&bench_job[i]);
        best_s = fmin(best_s, dtp_now_s() - start_s);
    }
    printf("%s: %.0f configurations/s on one core (%.2f us each, best of %d rounds of %d; checksum %.6g)\n", name,
           BENCH_JOBS / best_s, best_s / BENCH_JOBS * 1e6, rounds, BENCH_JOBS, checksum);
}

/* Exit status. */
static inline int bench_jobs(const char *name, double (*predict)(const struct random_job *job), int rounds)
{
    random_state = 1;
    for (int i = 0; i < BENCH_JOBS; i++)
        if (!random_job(&bench_job[i]))
            return 1;
    bench_rounds(name, predict, rounds);
    return 0;
}

/* The same of fewer jobs, each with all of some numbers of micro-steps and sizes of micro-batches that its runtime
 * takes, in that order: those of bench_search. */
static inline int bench_swept_jobs(const char *name, double (*predict)(const struct random_job *job), int rounds)
{
    static const uint32_t steps[] = {1, 2, 4, 8}, batches[] = {1, 2, 3, 4, 6, 8, 12, 16};
    struct random_job job;
    random_state = 1;
    for (int count = 0; count < BENCH_JOBS;) {
        if (!random_job(&job))
            return 1;
        for (int i = 0; i < 4 * 8 && count < BENCH_JOBS; i++) {
            bench_job[count] = job;
            bench_job[count].plan = job.asked;
            bench_job[count].plan.accumulate = steps[i / 8], bench_job[count].plan.micro_batch = batches[i % 8];
            count += dtp_plan_resolve(&bench_job[count].plan, &job.transformer, &job.cluster, NULL) == DTP_OK;
        }
    }
    bench_rounds(name, predict, rounds);
    return 0;
}

#endif
