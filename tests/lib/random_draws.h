#ifndef TEST_RANDOM_DRAWS_H
#define TEST_RANDOM_DRAWS_H

/* How many of `count` draws: under sanitizers each takes four times as long, and draws something else each time that
 * the seed is another; without, all. A test that says this is also run without (label `randomised`). */
#ifdef __SANITIZE_ADDRESS__
#define RANDOM_DRAWS(count) ((count) / 4)
#else
#define RANDOM_DRAWS(count) (count)
#endif

#endif
