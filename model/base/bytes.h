/* Products of bytes that cannot wrap: absurd plans (a batch of 4e9 sequences of 1e9 tokens) end at a bound far beyond
 * any memory instead of at a small wrong number. Sums of up to 64 such products still fit uint64_t. */
#ifndef DTP_BYTES_H
#define DTP_BYTES_H

#include <stdint.h>

#define DTP_BYTES_BOUND (UINT64_C(1) << 57)

static inline uint64_t dtp_bytes_product(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > DTP_BYTES_BOUND ? DTP_BYTES_BOUND : product;
}

static inline uint64_t dtp_divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static inline uint64_t dtp_round_up(uint64_t amount, uint64_t multiple)
{
    return dtp_divide_up(amount, multiple) * multiple;
}

/* The greatest that divides both; the other one where one is 0. */
static inline uint64_t dtp_common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* One of `parts` equal parts, at least 1. */
static inline uint64_t dtp_part_of(uint64_t whole, uint64_t parts)
{
    return whole / parts ? whole / parts : 1;
}

#endif
