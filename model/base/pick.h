/* Of two numbers the smaller one, the larger one. */
#ifndef DTP_PICK_H
#define DTP_PICK_H

#include <stdint.h>

static inline uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
