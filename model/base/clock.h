/* Seconds of a clock that never goes back, from some beginning. */
#ifndef DTP_CLOCK_H
#define DTP_CLOCK_H

#include <time.h>

static inline double dtp_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
