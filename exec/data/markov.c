#include "data/markov.h"

#include "kernels/random.h"

#include <math.h>
#include <stdlib.h>

struct dtp_markov {
    uint32_t states, fanout, spread; /* state s is token s * spread */
    uint64_t seed;
    double entropy;
    double *stationary;  /* [states], cumulative */
    double *cumulative;  /* [states][fanout] */
    uint32_t *successor; /* [states][fanout] */
};

/* Streams of random numbers that share a seed. */
enum { USE_CHAIN = 1, USE_SAMPLE };

/* A number in [0, 1), with 53 random bits. */
static double uniform(uint64_t seed, uint32_t use, uint64_t high, uint64_t low)
{
    struct dtp_philox block = dtp_philox(seed ^ (uint64_t)use << 56, low, high);
    return (double)(((uint64_t)block.word[0] << 32 | block.word[1]) >> 11) * 0x1p-53;
}

/* ---- the chain --------------------------------------------------------------------------------------------------- */

static bool among(const uint32_t *list, uint32_t count, uint32_t value)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == value)
            return true;
    return false;
}

/* The first successor closes a ring through all states, so every state is reached from every other. Weights are uniform
 * on the simplex: exponential numbers over their sum. */
static void make_row(struct dtp_markov *m, uint32_t state)
{
    uint32_t *successor = m->successor + (uint64_t)state * m->fanout, made = 1;
    double *cumulative = m->cumulative + (uint64_t)state * m->fanout, sum = 0;
    uint64_t drawn = 0;
    successor[0] = (state + 1) % m->states;
    while (made < m->fanout) {
        uint32_t other = (uint32_t)(uniform(m->seed, USE_CHAIN, state, drawn++) * m->states);
        if (!among(successor, made, other))
            successor[made++] = other;
    }
    for (uint32_t j = 0; j < m->fanout; j++) {
        sum -= log1p(-uniform(m->seed, USE_CHAIN, state, drawn++));
        cumulative[j] = sum;
    }
    for (uint32_t j = 0; j < m->fanout; j++)
        cumulative[j] /= sum;
    cumulative[m->fanout - 1] = 1;
}

static double probability(const struct dtp_markov *m, uint32_t state, uint32_t j)
{
    const double *cumulative = m->cumulative + (uint64_t)state * m->fanout;
    return j == 0 ? cumulative[0] : cumulative[j] - cumulative[j - 1];
}

/* Power iteration of the lazy chain (P + I) / 2, which has the same stationary distribution and no period. */
static void find_stationary(struct dtp_markov *m, double *next)
{
    double *pi = m->stationary, change = 1;
    for (uint32_t i = 0; i < m->states; i++)
        pi[i] = 1.0 / m->states;
    for (int round = 0; round < 100000 && change > 1e-15; round++) {
        for (uint32_t i = 0; i < m->states; i++)
            next[i] = pi[i] / 2;
        for (uint32_t i = 0; i < m->states; i++)
            for (uint32_t j = 0; j < m->fanout; j++)
                next[m->successor[(uint64_t)i * m->fanout + j]] += pi[i] * probability(m, i, j) / 2;
        change = 0;
        for (uint32_t i = 0; i < m->states; i++) {
            change = fmax(change, fabs(next[i] - pi[i]));
            pi[i] = next[i];
        }
    }
}

static double entropy_rate(const struct dtp_markov *m)
{
    double rate = 0;
    for (uint32_t i = 0; i < m->states; i++)
        for (uint32_t j = 0; j < m->fanout; j++) {
            double p = probability(m, i, j);
            rate -= p > 0 ? m->stationary[i] * p * log(p) : 0;
        }
    return rate;
}

enum dtp_status dtp_markov_create(const struct dtp_token_shape *shape, struct dtp_markov **out,
                                  struct dtp_faults *faults)
{
    struct dtp_markov *m = calloc(1, sizeof *m);
    double *next = NULL;
    *out = m;
    if (!m)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    m->states = shape->vocab < DTP_MARKOV_STATES ? (uint32_t)shape->vocab : DTP_MARKOV_STATES;
    m->fanout = m->states < DTP_MARKOV_FANOUT ? m->states : DTP_MARKOV_FANOUT;
    m->spread = (uint32_t)(shape->vocab / m->states);
    m->seed = shape->seed;
    m->stationary = calloc(m->states, sizeof *m->stationary);
    m->cumulative = calloc((uint64_t)m->states * m->fanout, sizeof *m->cumulative);
    m->successor = calloc((uint64_t)m->states * m->fanout, sizeof *m->successor);
    next = calloc(m->states, sizeof *next);
    if (!m->stationary || !m->cumulative || !m->successor || !next) {
        free(next);
        dtp_markov_destroy(m);
        *out = NULL;
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    for (uint32_t state = 0; state < m->states; state++)
        make_row(m, state);
    find_stationary(m, next);
    m->entropy = entropy_rate(m);
    for (uint32_t i = 1; i < m->states; i++)
        m->stationary[i] += m->stationary[i - 1];
    m->stationary[m->states - 1] = 1;
    free(next);
    return DTP_OK;
}

void dtp_markov_destroy(struct dtp_markov *m)
{
    if (!m)
        return;
    free(m->stationary);
    free(m->cumulative);
    free(m->successor);
    free(m);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* First index whose cumulative probability is above `value`, which is below the last one's, 1. */
static uint32_t chosen(const double *cumulative, uint32_t count, double value)
{
    uint32_t low = 0, high = count - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (cumulative[middle] > value)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void dtp_markov_sample(const struct dtp_markov *m, uint64_t number, uint64_t tokens, int32_t *out)
{
    uint32_t state = chosen(m->stationary, m->states, uniform(m->seed, USE_SAMPLE, number, 0));
    for (uint64_t i = 0; i < tokens; i++) {
        out[i] = (int32_t)(state * m->spread);
        uint64_t row = (uint64_t)state * m->fanout;
        state = m->successor[row + chosen(m->cumulative + row, m->fanout, uniform(m->seed, USE_SAMPLE, number, i + 1))];
    }
}

double dtp_markov_entropy(const struct dtp_markov *m)
{
    return m->entropy;
}

uint32_t dtp_markov_states(const struct dtp_markov *m)
{
    return m->states;
}

double dtp_markov_probability(const struct dtp_markov *m, int32_t from, int32_t to)
{
    uint32_t state = (uint32_t)from / m->spread;
    for (uint32_t j = 0; j < m->fanout; j++)
        if (m->successor[(uint64_t)state * m->fanout + j] * m->spread == (uint32_t)to)
            return probability(m, state, j);
    return 0;
}
