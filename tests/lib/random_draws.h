#ifndef TEST_RANDOM_DRAWS_H
#define TEST_RANDOM_DRAWS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* How many of `count` draws: under sanitizers each takes four times as long, and draws something else each time that
 * the seed is another, so an eighth; without, all. A test that says this is also run without (label `randomised`). */
#ifdef __SANITIZE_ADDRESS__
#define RANDOM_DRAWS(count) ((count) / 8)
#else
#define RANDOM_DRAWS(count) (count)
#endif

/* Whether at least `percent` of `all` draws are what `count` counts: of few, as sanitizers draw, less three standard
 * deviations of that, for chance decides there. */
static inline bool draws_reach(int count, int all, double percent)
{
    double least = all * percent / 100, chance = 0;
#ifdef __SANITIZE_ADDRESS__
    chance = 3 * sqrt(least * (1 - percent / 100));
#endif
    return count >= least - chance;
}

/* Whether the next row of a list of layouts is tried: each, or one in N where DTPLAN_TEST_ROWS is N or N:SEED, by that
 * seed (else DTPLAN_TEST_SEED) and by how often this was asked, so that each row has its turn within some seeds. */
static inline bool draw_row(void)
{
    static uint64_t asked;
    const char *rows = getenv("DTPLAN_TEST_ROWS"), *seed = getenv("DTPLAN_TEST_SEED");
    char *end = NULL;
    uint64_t one_in = rows ? strtoull(rows, &end, 10) : 1;
    seed = end && *end == ':' ? end + 1 : seed;
    uint64_t z = (seed ? strtoull(seed, NULL, 10) : 0) + 0x9e3779b97f4a7c15u * ++asked; /* splitmix64's mixing */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return one_in < 2 || (z ^ z >> 31) % one_in == 0;
}

#endif
