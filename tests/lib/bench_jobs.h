/* How many random jobs a second one core gets through. Every call gets another job, and a checksum keeps the compiler
 * from dropping any. */
#ifndef TEST_BENCH_JOBS_H
#define TEST_BENCH_JOBS_H

#include "lib/random_plans.h"

#include <math.h>
#include <time.h>

#define BENCH_JOBS 4096
#define BENCH_ROUNDS 100

static inline double bench_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Prints the best of the rounds. `predict` returns what it adds to the checksum. Exit status. */
static inline int bench_jobs(const char *name, double (*predict)(const struct random_job *job), int rounds)
{
    static struct random_job jobs[BENCH_JOBS];
    random_state = 1;
    for (int i = 0; i < BENCH_JOBS; i++)
        if (!random_job(&jobs[i]))
            return 1;
    double best_s = INFINITY, checksum = 0;
    for (int round = 0; round < rounds; round++) {
        double start_s = bench_now_s();
        for (int i = 0; i < BENCH_JOBS; i++)
            checksum += predict(&jobs[i]);
        best_s = fmin(best_s, bench_now_s() - start_s);
    }
    printf("%s: %.0f configurations/s on one core (%.2f us each, best of %d rounds of %d; checksum %.6g)\n", name,
           BENCH_JOBS / best_s, best_s / BENCH_JOBS * 1e6, rounds, BENCH_JOBS, checksum);
    return 0;
}

#endif
