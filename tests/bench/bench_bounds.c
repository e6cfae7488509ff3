/* Plans per second whose bounds of memory and FLOPs one core computes. Every call gets another plan, and a checksum
 * keeps the compiler from dropping any. build/bench_bounds */
#include "bounds/bounds.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "lib/random_plans.h"

#define CONFIGURATIONS 4096
#define ROUNDS 100

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void)
{
    static struct random_job jobs[CONFIGURATIONS];
    random_state = 1;
    for (int i = 0; i < CONFIGURATIONS; i++)
        if (!random_job(&jobs[i]))
            return 1;
    double best = INFINITY, checksum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_s();
        for (int i = 0; i < CONFIGURATIONS; i++) {
            struct dtp_bounds b;
            dtp_bounds_of(&jobs[i].transformer, &jobs[i].cluster, &jobs[i].plan, &b);
            checksum += b.model_flops + (double)b.memory_bytes;
        }
        double elapsed = now_s() - start;
        best = elapsed < best ? elapsed : best;
    }
    printf("bounds: %.0f configurations/s on one core (%.2f us each, best of %d rounds of %d; checksum %.6g)\n",
           CONFIGURATIONS / best, best / CONFIGURATIONS * 1e6, ROUNDS, CONFIGURATIONS, checksum);
    return 0;
}
