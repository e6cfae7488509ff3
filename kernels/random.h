/* Counter-based random numbers, the same on the host and in CUDA kernels: Philox4x32-10 of Salmon et al. 2011,
 * "Parallel random numbers: as easy as 1, 2, 3". A number is a function of (key, counter) alone, so what an element
 * draws does not depend on how a tensor is cut into shards, blocks or threads. */
#ifndef DTP_RANDOM_H
#define DTP_RANDOM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define DTP_SHARED __host__ __device__ static inline
#else
#define DTP_SHARED static inline
#endif

struct dtp_philox {
    uint32_t word[4];
};

DTP_SHARED struct dtp_philox dtp_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    struct dtp_philox c = {
        {(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high, (uint32_t)(counter_high >> 32)}};
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c.word[0], product1 = (uint64_t)0xCD9E8D57u * c.word[2];
        c.word[0] = (uint32_t)(product1 >> 32) ^ c.word[1] ^ key0;
        c.word[1] = (uint32_t)product1;
        c.word[2] = (uint32_t)(product0 >> 32) ^ c.word[3] ^ key1;
        c.word[3] = (uint32_t)product0;
        key0 += 0x9E3779B9u; /* Weyl sequences: golden ratio, square root of 3 */
        key1 += 0xBB67AE85u;
    }
    return c;
}

/* Element `index` of tensor `tensor`: one of the four normal numbers that Box & Muller 1958 make of a block of four
 * words. In double on both sides, so that host and device initialise alike. Words are shifted by half a step: log never
 * sees 0. */
DTP_SHARED double dtp_random_normal(uint64_t seed, uint32_t tensor, uint64_t index)
{
    struct dtp_philox block = dtp_philox(seed, index / 4, tensor);
    const double step = 1.0 / 4294967296.0, two_pi = 6.283185307179586;
    uint32_t pair = (uint32_t)(index % 4) / 2 * 2;
    double radius = sqrt(-2 * log((block.word[pair] + 0.5) * step));
    double angle = two_pi * ((block.word[pair + 1] + 0.5) * step);
    return index % 2 ? radius * sin(angle) : radius * cos(angle);
}

/* The four of a block, index / 4 of dtp_random_normal: a quarter of the rounds and half of the logarithms. */
DTP_SHARED void dtp_random_normals(uint64_t seed, uint32_t tensor, uint64_t block_index, double out[4])
{
    struct dtp_philox block = dtp_philox(seed, block_index, tensor);
    const double step = 1.0 / 4294967296.0, two_pi = 6.283185307179586;
    for (int pair = 0; pair < 4; pair += 2) {
        double radius = sqrt(-2 * log((block.word[pair] + 0.5) * step));
        double angle = two_pi * ((block.word[pair + 1] + 0.5) * step);
        out[pair] = radius * cos(angle);
        out[pair + 1] = radius * sin(angle);
    }
}

/* Sixteen random bits for rounding element `index` in step `step`; `use` tells weight from moments. A block of 128 bits
 * serves eight elements that follow each other. */
enum dtp_rounding_use { DTP_ROUND_WEIGHT, DTP_ROUND_MOMENT1, DTP_ROUND_MOMENT2 };

DTP_SHARED struct dtp_philox dtp_rounding_block(uint32_t seed, uint32_t step, enum dtp_rounding_use use, uint64_t index)
{
    return dtp_philox((uint64_t)(uint32_t)use << 32 | seed, index / 8, step);
}

DTP_SHARED uint32_t dtp_rounding_bits(const struct dtp_philox *block, uint32_t index_mod_8)
{
    uint32_t word = block->word[index_mod_8 / 2];
    return index_mod_8 % 2 ? word >> 16 : word & 0xFFFFu;
}

/* bf16 is the upper half of a float. Adding 16 random bits before the lower half is cut off rounds up with a
 * probability of what is cut off. Infinities and NaN have no room for that and are cut alone: a NaN stays one, for
 * those arithmetic makes are quiet, which a bit of the upper half says. The upper half of what is returned is the
 * result. */
DTP_SHARED uint32_t dtp_round_stochastic(float value, uint32_t bits)
{
    uint32_t u;
    memcpy(&u, &value, 4);
    return (u & 0x7F800000u) == 0x7F800000u ? u : u + bits;
}

#endif
