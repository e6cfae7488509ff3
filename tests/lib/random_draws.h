#ifndef TEST_RANDOM_DRAWS_H
#define TEST_RANDOM_DRAWS_H

/* How many of `count` draws: under sanitizers each takes four times as long, and draws something else each time that
 * the seed is another; without, all. */
#ifdef __SANITIZE_ADDRESS__
#define RANDOM_DRAWS(count) ((count) / 3)
#else
#define RANDOM_DRAWS(count) (count)
#endif

#endif
