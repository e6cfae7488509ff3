/* A Markov chain of known entropy rate, in nats per token; see token_source.h. Caller destroys what it creates. */
#ifndef DTP_MARKOV_H
#define DTP_MARKOV_H

#include "data/token_source.h"

struct dtp_markov; /* opaque */

/* A chain of min(DTP_MARKOV_STATES, vocabulary) states. What a sample is depends on its number alone. */
enum dtp_status dtp_markov_create(const struct dtp_token_shape *shape, struct dtp_markov **out,
                                  struct dtp_faults *faults);
void dtp_markov_destroy(struct dtp_markov *markov);
void dtp_markov_sample(const struct dtp_markov *markov, uint64_t number, uint64_t tokens, int32_t *out);
double dtp_markov_entropy(const struct dtp_markov *markov);
uint32_t dtp_markov_states(const struct dtp_markov *markov);
/* Probability of token `to` after token `from`; for tests. */
double dtp_markov_probability(const struct dtp_markov *markov, int32_t from, int32_t to);

#endif
