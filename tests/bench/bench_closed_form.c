/* Configurations per second on one core: the closed form (communication, time), and the estimate, whose memory is that
 * of the step program. Every call gets another configuration, and a checksum keeps the compiler from dropping any. */
#include "base/host_arena.h"
#include "job/estimate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/random_plans.h"

#define CONFIGURATIONS 4096
#define ROUNDS 100
#define ESTIMATED_ROUNDS 3

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct random_job jobs[CONFIGURATIONS];

static void closed(const struct random_job *job, struct dtp_prediction *out)
{
    dtp_closed_form(&job->transformer, &job->cluster, &job->plan, out);
    out->memory.allocated_peak_bytes = 0;
}

static void estimate(const struct random_job *job, struct dtp_prediction *out)
{
    if (dtp_estimate(&job->transformer, &job->cluster, &job->plan, out, NULL) != DTP_OK)
        exit(1);
}

static void measure(const char *name, void (*predict)(const struct random_job *job, struct dtp_prediction *out),
                    int rounds)
{
    double best = INFINITY, checksum = 0;
    for (int round = 0; round < rounds; round++) {
        double start = now_s();
        for (int i = 0; i < CONFIGURATIONS; i++) {
            struct dtp_prediction p;
            predict(&jobs[i], &p);
            checksum += p.time.step_s + (double)p.memory.allocated_peak_bytes;
        }
        best = fmin(best, now_s() - start);
    }
    printf("%s: %.0f configurations/s on one core (%.2f us each, best of %d rounds of %d; checksum %.6g)\n", name,
           CONFIGURATIONS / best, best / CONFIGURATIONS * 1e6, rounds, CONFIGURATIONS, checksum);
}

int main(void)
{
    dtp_host_memory_keep();
    random_state = 1;
    for (int i = 0; i < CONFIGURATIONS; i++)
        if (!random_job(&jobs[i]))
            return 1;
    measure("closed form", closed, ROUNDS);
    measure("estimate", estimate, ESTIMATED_ROUNDS);
    return 0;
}
