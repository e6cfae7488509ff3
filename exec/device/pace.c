#include "device/pace.h"

#include "base/clock.h"

#include <stdint.h>

#define VALUES 1024 /* two arrays of 4 KiB: in the first cache of any processor */
#define ROUNDS 1000 /* some 0.1 ms */
#define LEAST_LOOPS 2

/* Multiplies and adds that do not wait for each other, as those of a matmul. */
static double loop_s(void)
{
    float values[VALUES] = {0}, added[VALUES];
    for (int i = 0; i < VALUES; i++)
        added[i] = (float)i;
    double begin_s = dtp_now_s();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < VALUES; i++)
            values[i] = values[i] * 0.999f + added[i];
        __asm__ volatile("" ::"r"(values) : "memory"); /* each round is made */
    }
    return dtp_now_s() - begin_s;
}

double dtp_pace_loop_s(double seconds)
{
    double begin_s = dtp_now_s(), sum_s = 0;
    uint64_t loops = 0;
    for (; loops < LEAST_LOOPS || dtp_now_s() - begin_s < seconds; loops++)
        sum_s += loop_s();
    return sum_s / (double)loops;
}
