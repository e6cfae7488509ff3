/* Goodput with and without elasticity beside a simulated month of 10,000 GPUs that fail one by one: every failure,
 * restart, snapshot, repair and return of the month happens at its time, and what counts is what was computed and kept.
 * The simulation knows none of the formula's expectations. */
#include "decide/elastic.h"

#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define GPUS 10000
#define NODE 8
#define MONTH_S (30 * 86400.0)
#define REPAIRS_MOST 4096

/* ---- a month ----------------------------------------------------------------------------------------------------- */

struct month {
    const struct dtp_elastic_inputs *in;
    double interval_s, gpu_mtbf_s;
    gsl_rng *random;
    double now_s, fails_s;       /* when the next of the GPUs that are in service fails */
    double work_s, next_s;       /* computed, in seconds of the whole job; work of the next snapshot */
    double kept_s;               /* work of the last whole snapshot */
    double taken_s, whole_s;     /* work of the one being written, and when it is whole; whole_s INFINITY: none */
    double back_s[REPAIRS_MOST]; /* when units come back */
    int out, failures;
    bool random_repairs, spares; /* repairs are exponential; or none is out, as another node is there at once */
};

static void draw_failure(struct month *m)
{
    double in_service = GPUS - (double)m->out * NODE;
    m->fails_s = m->now_s + gsl_ran_exponential(m->random, m->gpu_mtbf_s / in_service);
}

static void lose_unit(struct month *m)
{
    m->failures++;
    if (m->spares || m->out == REPAIRS_MOST)
        return;
    double repair_s = m->random_repairs ? gsl_ran_exponential(m->random, m->in->repair_s) : m->in->repair_s;
    m->back_s[m->out++] = m->now_s + repair_s;
}

/* The work since the last whole snapshot is gone; failures during the restart begin it anew. */
static void restart(struct month *m)
{
    for (bool again = true; again;) {
        lose_unit(m);
        draw_failure(m);
        again = m->fails_s < m->now_s + m->in->restart_s;
        m->now_s = again ? m->fails_s : m->now_s + m->in->restart_s;
    }
    m->work_s = m->kept_s;
    m->next_s = m->work_s + m->interval_s;
    m->whole_s = INFINITY;
}

static int first_back(const struct month *m)
{
    int first = -1;
    for (int i = 0; i < m->out; i++)
        if (first < 0 || m->back_s[i] < m->back_s[first])
            first = i;
    return first;
}

/* Ranks that stand still: for copies, and where a unit is taken in. Failures come then too. */
static bool stand(struct month *m, double seconds)
{
    if (m->fails_s < m->now_s + seconds) {
        m->now_s = m->fails_s;
        restart(m);
        return false;
    }
    m->now_s += seconds;
    return true;
}

static void take_in(struct month *m, int unit)
{
    m->back_s[unit] = m->back_s[--m->out];
    double work_s = m->work_s;
    if (!stand(m, m->in->regroup_s))
        return;
    m->work_s = m->kept_s = work_s; /* its last snapshot was waited for */
    m->next_s = work_s + m->interval_s;
    m->whole_s = INFINITY;
    draw_failure(m);
}

/* To whatever comes next. */
static void advance(struct month *m)
{
    double speed = 1 - m->in->unit_fraction * m->out;
    double due_s = m->now_s + (m->next_s - m->work_s) / speed;
    int unit = first_back(m);
    double back_s = unit >= 0 ? m->back_s[unit] : INFINITY;
    double until_s = fmin(fmin(due_s, m->fails_s), fmin(m->whole_s, back_s));
    until_s = fmax(until_s, m->now_s);
    m->work_s += (until_s - m->now_s) * speed;
    m->now_s = until_s;
    if (until_s >= m->fails_s) {
        restart(m);
    } else if (until_s >= m->whole_s) {
        m->kept_s = m->taken_s;
        m->whole_s = INFINITY;
    } else if (until_s >= back_s) {
        take_in(m, unit);
    } else if (stand(m, m->in->stall_s)) {
        m->taken_s = m->work_s;
        m->whole_s = m->now_s + m->in->lag_s;
        m->next_s = m->work_s + m->interval_s;
    }
}

static double simulated(const struct dtp_elastic_inputs *in, double interval_s, bool random_repairs, unsigned long seed)
{
    struct month m = {.in = in,
                      .interval_s = interval_s,
                      .gpu_mtbf_s = in->mtbf_s * GPUS,
                      .random = gsl_rng_alloc(gsl_rng_mt19937),
                      .next_s = interval_s,
                      .whole_s = INFINITY,
                      .random_repairs = random_repairs,
                      .spares = !(in->repair_s > 0)};
    assert_non_null(m.random);
    gsl_rng_set(m.random, seed);
    draw_failure(&m);
    while (m.now_s < MONTH_S)
        advance(&m);
    gsl_rng_free(m.random);
    assert_true(m.failures > 20);
    return m.kept_s / m.now_s;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static unsigned long seed_of(void)
{
    const char *given = getenv("DTPLAN_TEST_SEED");
    return given ? strtoul(given, NULL, 10) : 1;
}

#define MONTHS 8

/* The mean of some months; each of them scatters by its failures, by 2 % where each costs a quarter of an hour. */
static void compare(const char *what, double predicted, const struct dtp_elastic_inputs *in, double interval_s,
                    bool random_repairs)
{
    double months = 0;
    for (unsigned long i = 0; i < MONTHS; i++)
        months += simulated(in, interval_s, random_repairs, seed_of() + i) / MONTHS;
    print_message("%s: predicted %.2f %%, a month %.2f %%\n", what, 100 * predicted, 100 * months);
    if (!(fabs(predicted / months - 1) < 0.02))
        fail_msg("%s: predicted %.4f, a month of 10,000 GPUs has %.4f", what, predicted, months);
}

/* GPUs that fail every 50,000 h and, far worse, every 10,000 h: a failure of some GPU every 5 h and every hour. */
static void test_a_month_of_10000_gpus(void **state)
{
    static const double gpu_mtbf_h[] = {50000, 10000};
    (void)state;
    print_message("seed %lu\n", seed_of());
    for (int i = 0; i < 2; i++) {
        double m = 3600 * gpu_mtbf_h[i] / GPUS;
        /* 20 s to write a checkpoint for all, 15 minutes and reading it until training goes on */
        const struct dtp_goodput_inputs disk = {MONTH_S, m, 20, 920};
        const struct dtp_elastic_inputs as_simulated = {MONTH_S, m, 20, 0, 920, 0, 0, 0, 0};
        /* a copy of 0.1 s, 5 s until it is whole; a minute until ranks go on; a node of 8 out for four hours */
        const struct dtp_elastic_inputs memory = {MONTH_S, m, 0.1, 5, 65, 65, 4 * 3600, (double)NODE / GPUS, 3};
        struct dtp_goodput plain;
        struct dtp_elastic_goodput elastic;
        dtp_goodput_of(&disk, &plain);
        dtp_elastic_goodput_of(&memory, &elastic);
        compare("checkpoints on disk", plain.fraction, &as_simulated, plain.interval_s, false);
        compare("elastic", elastic.fraction, &memory, elastic.interval_s, false);
        compare("elastic, repairs of any length", elastic.fraction, &memory, elastic.interval_s, true);
        assert_true(elastic.fraction > plain.fraction);
    }
}

/* Slow in the background and far from the whole machine: snapshots whole after 2 minutes, 5 % out for a day each. */
static void test_a_hard_month(void **state)
{
    const struct dtp_elastic_inputs hard = {MONTH_S, 7200, 2, 120, 300, 300, 86400, 0.005, 3};
    struct dtp_elastic_goodput elastic;
    (void)state;
    dtp_elastic_goodput_of(&hard, &elastic);
    assert_true(elastic.interval_s >= hard.lag_s);
    compare("hard", elastic.fraction, &hard, elastic.interval_s, true);
}

/* Without lag, repairs and returns it is Daly's; without failures only copies cost: 10 in 1010. */
static void test_what_is_left_is_daly(void **state)
{
    const struct dtp_elastic_inputs as_daly = {1e6, 36000, 20, 0, 900, 0, 0, 0, 0};
    const struct dtp_goodput_inputs daly = {1e6, 36000, 20, 900};
    const struct dtp_elastic_inputs calm = {1000, INFINITY, 10, 0, 60, 60, 3600, 0.5, 1};
    const struct dtp_elastic_inputs gone = {1e6, 1000, 1, 1, 60, 60, 4000, 0.25, 1}; /* four quarters out on average */
    struct dtp_elastic_goodput elastic;
    struct dtp_goodput plain;
    (void)state;
    dtp_elastic_goodput_of(&as_daly, &elastic);
    dtp_goodput_of(&daly, &plain);
    assert_true(fabs(elastic.expected_s / plain.expected_s - 1) < 1e-12);
    assert_true(fabs(elastic.interval_s / plain.interval_s - 1) < 1e-12);
    dtp_elastic_goodput_of(&calm, &elastic);
    assert_true(fabs(elastic.fraction - 1000.0 / 1010) < 1e-12);
    dtp_elastic_goodput_of(&gone, &elastic);
    assert_true(elastic.hopeless);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_month_of_10000_gpus),
                                       cmocka_unit_test(test_a_hard_month),
                                       cmocka_unit_test(test_what_is_left_is_daly)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
