/* Configurations per second of the whole closed form (memory, communication, time) on one core.
 * Every call gets another configuration, and a checksum keeps the compiler from dropping any. */
#include "closed/closed_form.h"

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
            struct dtp_prediction p;
            dtp_closed_form(&jobs[i].transformer, &jobs[i].cluster, &jobs[i].plan, &p);
            checksum += p.time.step_s + (double)p.memory.allocated_peak_bytes;
        }
        double elapsed = now_s() - start;
        best = elapsed < best ? elapsed : best;
    }
    printf("closed form: %.0f configurations/s on one core (%.2f us each, best of %d rounds of %d; checksum %.6g)\n",
           CONFIGURATIONS / best, best / CONFIGURATIONS * 1e6, ROUNDS, CONFIGURATIONS, checksum);
    return 0;
}
