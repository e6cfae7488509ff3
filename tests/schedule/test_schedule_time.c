#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/schedule_fixture.h"

#define CLOSE 1e-9

static void expect(const char *what, const struct timed *t, double got, double wanted)
{
    const struct dtp_schedule_shape *s = &t->schedule.shape;
    if (!(fabs(got - wanted) <= CLOSE))
        fail_msg("%s, %u ranks, %u micro-batches, %u chunks: %s is %.12g, not %.12g", dtp_schedule_row(s->kind)->word,
                 s->ranks, s->micro_batches, s->chunks, what, got, wanted);
}

/* ---- vectors -------------------------------------------------------------------------------------------------------
 * Of an event simulation that shares no line with this one, made before it: bubble and bubble of the longest span for
 * F = B = W = 1, for 1, 1.2, 0.6, and for 1, 1, 1 with transfers of 0.1 of what a micro-batch takes on a rank; -1: not
 * known. Peaks in micro-batches of a rank. */
struct vector {
    enum dtp_schedule_kind kind;
    uint32_t ranks, micro_batches, chunks;
    double bubble[3], span[3];
    double peak_kept[8];
};

static const struct vector vectors[] = {
    {DTP_SCHEDULE_GPIPE, 4, 12, 0, {9, 8.4, 9.6}, {9, 8.4, 9.6}, {12, 12, 12, 12}},
    {DTP_SCHEDULE_1F1B, 4, 12, 0, {9, 8.4, 11.2}, {9, 8.4, 11.2}, {4, 3, 2, 1}},
    {DTP_SCHEDULE_INTERLEAVED, 4, 12, 2, {4.5, 4.2, 5.2}, {4.5, -1, -1}, {5.5, 4.5, 3.5, 2.5}},
    {DTP_SCHEDULE_INTERLEAVED, 4, 12, 4, {2.25, 2.1, 3}, {-1, -1, -1}, {4.75, 4.25, 3.75, 3.25}},
    {DTP_SCHEDULE_LOOPED_BFS, 4, 12, 2, {4.5, 4.2, 4.8}, {4.5, 4.2, 4.8}, {12, 12, 12, 12}},
    {DTP_SCHEDULE_LOOPED_BFS, 6, 4, 2, {10.5, 9.8, 11.6}, {10.5, 9.8, 11.6}, {4, 4, 4, 4, 4, 4}},
    {DTP_SCHEDULE_ZB_H1, 4, 12, 0, {3, 4.8, 4.2}, {3, -1, -1}, {4, 3, 2, 1}},
    {DTP_SCHEDULE_ZB_H2, 4, 12, 0, {3, 3, 3.3}, {0, 3, 0.6}, {7, 5, 3, 1}},
    {DTP_SCHEDULE_ZB_V, 4, 12, 0, {1.5, 1.8, 2.15}, {0, -1, 0.8}, {4, 4, 4, 4}},
    {DTP_SCHEDULE_V_HALF, 4, 12, 0, {6, 7.3, 6.8}, {-1, -1, -1}, {3, 3, 3, 3}},
    {DTP_SCHEDULE_V_MIN, 4, 12, 0, {5.5, 15.1, 8.3}, {-1, -1, -1}, {2, 2, 1.5, 2}},
    {DTP_SCHEDULE_DUALPIPEV, 4, 12, 0, {3, 3.9, 3.45}, {-1, -1, -1}, {4.5, 4.5, 4.5, 4.5}},
    {DTP_SCHEDULE_DUALPIPE, 4, 12, 0, {2, 2.6, 2.6}, {-1, -1, -1}, {5, 5, 5, 5}},
    {DTP_SCHEDULE_GPIPE, 8, 24, 0, {21, -1, 22.4}, {21, -1, -1}, {24, 24, 24, 24, 24, 24, 24, 24}},
    {DTP_SCHEDULE_1F1B, 8, 24, 0, {21, -1, 26.4}, {21, -1, -1}, {8, 7, 6, 5, 4, 3, 2, 1}},
    {DTP_SCHEDULE_INTERLEAVED, 8, 24, 2, {10.5, -1, 12}, {-1, -1, -1}, {11.5, 10.5, 9.5, 8.5, 7.5, 6.5, 5.5, 4.5}},
    {DTP_SCHEDULE_ZB_H1, 8, 24, 0, {7, -1, 9.8}, {-1, -1, -1}, {8, 7, 6, 5, 4, 3, 2, 1}},
    {DTP_SCHEDULE_ZB_V, 8, 24, 0, {3.5, -1, 5.15}, {0, -1, -1}, {8, 8, 8, 8, 8, 8, 8, 8}},
    {DTP_SCHEDULE_DUALPIPEV, 8, 24, 0, {7, -1, 8.25}, {-1, -1, -1}, {8.5, 8.5, 8.5, 8.5, 8.5, 8.5, 8.5, 8.5}},
    {DTP_SCHEDULE_DUALPIPE, 8, 24, 0, {6, -1, 7.4}, {-1, -1, -1}, {9, 9, 9, 9, 9, 9, 9, 9}},
};
static const double vector_costs[3][4] = {{1, 1, 1, 0}, {1, 1.2, 0.6, 0}, {1, 1, 1, 0.1}};

static void test_vectors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const struct vector *v = &vectors[i];
        struct timed t;
        timed_make(&t, (struct dtp_schedule_shape){v->kind, v->ranks, v->micro_batches, v->chunks, 0},
                   DTP_SEND_BUFFERED);
        for (int c = 0; c < 3; c++) {
            timed_run(&t, vector_costs[c][0], vector_costs[c][1], vector_costs[c][2], vector_costs[c][3]);
            if (v->bubble[c] >= 0)
                expect("the bubble", &t, t.timing.bubble_s, v->bubble[c]);
            if (v->span[c] >= 0)
                expect("the bubble of the span", &t, t.timing.span_bubble_s, v->span[c]);
            for (uint32_t r = 0; r < v->ranks; r++)
                expect("the peak", &t, t.timing.ranks[r].peak_kept, v->peak_kept[r]);
        }
        timed_release(&t);
    }
}

/* Of consecutive steps, by hand, F = B = W = 1, 4 ranks, 12 micro-batches of 3 each: the first rank of 1F1B and of
 * GPipe waits 3 F and 3 BW of the others between its first pass and its last, of ZB-H1 3 F and 3 B less the 3 W that it
 * has by then; of ZB-H2 and ZB-V nobody waits at all. No such step is longer than one that all end together. */
static void test_steps_that_begin_apart(void **state)
{
    (void)state;
    static const struct {
        enum dtp_schedule_kind kind;
        double period;
    } rows[] = {{DTP_SCHEDULE_GPIPE, 45},
                {DTP_SCHEDULE_1F1B, 45},
                {DTP_SCHEDULE_ZB_H1, 39},
                {DTP_SCHEDULE_ZB_H2, 36},
                {DTP_SCHEDULE_ZB_V, 36}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct timed t;
        timed_make(&t, (struct dtp_schedule_shape){rows[i].kind, 4, 12, 0, 0}, DTP_SEND_BUFFERED);
        timed_run(&t, 1, 1, 1, 0);
        double makespan_s = t.timing.makespan_s;
        expect("the period", &t, dtp_schedule_timer_period(t.timer, &(struct dtp_schedule_costs){t.stages, 1}),
               rows[i].period);
        assert_true(rows[i].period <= makespan_s);
        expect("the makespan afterwards", &t,
               dtp_schedule_timer_makespan(t.timer, &(struct dtp_schedule_costs){t.stages, 1}), makespan_s);
        timed_release(&t);
    }
}

/* The pairs of DualPipe one after the other: 1 and 1.6 of its vectors, of DualPipeV 1.5 and 2.4. */
static void test_pairs_taken_apart_wait_less(void **state)
{
    (void)state;
    static const double wanted[2][2] = {{1, 1.6}, {1.5, 2.4}};
    for (int v = 0; v < 2; v++) {
        enum dtp_schedule_kind kind = v ? DTP_SCHEDULE_DUALPIPEV : DTP_SCHEDULE_DUALPIPE;
        struct dtp_faults faults = {0};
        struct timed t;
        timed_make(&t, (struct dtp_schedule_shape){kind, 4, 12, 0, 0}, DTP_SEND_BUFFERED);
        for (size_t i = 0; i < dtp_schedule_pass_count(&t.schedule); i++)
            t.schedule.passes[i].paired = false;
        dtp_schedule_timer_destroy(t.timer);
        assert_int_equal(dtp_schedule_timer_create(&t.schedule, DTP_SEND_BUFFERED, &t.timer, &faults), DTP_OK);
        for (int c = 0; c < 2; c++) {
            timed_run(&t, vector_costs[c][0], vector_costs[c][1], vector_costs[c][2], 0);
            expect("the bubble without pairs", &t, t.timing.bubble_s, wanted[v][c]);
        }
        timed_release(&t);
    }
}

/* (p - r) M_B + r M_W of 2401.10241 on rank r at the peak of ZB-H1, (2p - 2r - 1) M_B + 2r M_W of ZB-H2. */
static void test_what_weights_keep(void **state)
{
    (void)state;
    const double weight = 0.625;
    for (int h2 = 0; h2 < 2; h2++) {
        struct timed t;
        timed_make(&t, (struct dtp_schedule_shape){h2 ? DTP_SCHEDULE_ZB_H2 : DTP_SCHEDULE_ZB_H1, 4, 12, 0, 0},
                   DTP_SEND_BUFFERED);
        dtp_stage_costs_equal(&t.schedule, 1, 1, 1, 0, t.stages);
        for (uint32_t i = 0; i < t.schedule.stages; i++)
            t.stages[i].kept_for_weight = weight;
        struct dtp_schedule_costs costs = {t.stages, 1};
        dtp_schedule_timer_run(t.timer, &costs, &t.timing);
        for (uint32_t r = 0; r < 4; r++)
            expect("the peak with weights", &t, t.timing.ranks[r].peak_kept,
                   h2 ? 7.0 - 2 * r + 2 * r * weight : 4.0 - r + r * weight);
        timed_release(&t);
    }
}

/* By formula as by the lists, of all schedules. */
static void test_kept_by_formula(void **state)
{
    (void)state;
    int checked = 0;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        for (uint32_t p = 2; p <= 12; p++)
            for (uint32_t i = 0; i < 8 * p; i++) {
                const uint32_t m = 1 + i / 2;
                struct dtp_schedule_shape shape = {(enum dtp_schedule_kind)kind, p, m, 0, 0, .equal_rounds = i % 2};
                struct dtp_faults faults = {0};
                if (dtp_schedule_resolve(&shape, &faults) != DTP_OK)
                    continue;
                struct timed t;
                double most = 0;
                timed_make(&t, shape, DTP_SEND_BUFFERED);
                timed_run(&t, 1, 1, 1, 0);
                for (uint32_t r = 0; r < p; r++)
                    most = fmax(most, t.timing.ranks[r].peak_kept);
                expect("what is kept", &t, most, dtp_schedule_kept(&shape));
                shape.group = 0; /* as a plan has it, where nobody asks for one */
                expect("what is kept", &t, most, dtp_schedule_kept(&shape));
                timed_release(&t);
                checked++;
            }
    assert_true(checked > 2000);
}

/* A step of many micro-batches by steps of fewer is the timer's, with equal stages and where the head takes as long
 * again as a rank, with transfers up to twice a forward, hosts that are ahead and hosts that are not. */
static void test_steps_of_many_micro_batches(void **state)
{
    static const double passes[][5] = {
        {1, 1, 1, 0, 0}, {1, 1.2, 0.6, 0, 0}, {1, 2, 1, 0.1, 0.9}, {1, 2, 0.9, 0.5, 2.1}, {1, 1, 1, 2, 0}};
    (void)state;
    int checked = 0, far = 0;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        for (uint32_t p = 2; p <= 8; p *= 2)
            for (uint32_t times = 4; times <= 9; times += 5)
                for (int i = 0; i < 10; i++) {
                    const double *c = passes[i / 2], head = i % 2 ? 1 : 0;
                    struct dtp_schedule_shape shape = {.kind = (enum dtp_schedule_kind)kind,
                                                       .ranks = p,
                                                       .micro_batches = times * p,
                                                       .times = {c[0], c[1], c[2], c[3], 0}};
                    struct timed t;
                    double step_s;
                    timed_make(&t, shape, DTP_SEND_RENDEZVOUS);
                    timed_run(&t, c[0], c[1], c[2], c[3]);
                    for (uint32_t s = 0; s < t.schedule.stages; s++)
                        t.stages[s].launch_forward_s = t.stages[s].launch_backward_s = t.stages[s].launch_weight_s =
                            c[4] / t.schedule.shape.chunks;
                    struct dtp_stage_cost *last = &t.stages[t.schedule.stages - 1];
                    last->forward_s += head * c[0], last->backward_s += head * c[1], last->weight_s += head * c[2];
                    const struct dtp_schedule_costs costs = {t.stages, 1, true};
                    assert_int_equal(dtp_schedule_steps(&t.schedule.shape, DTP_SEND_RENDEZVOUS, &costs, 1, &step_s),
                                     DTP_OK);
                    const double timed = dtp_schedule_timer_makespan(t.timer, &costs), off = step_s / timed - 1;
                    far += fabs(off) > 0.001;
                    if (fabs(off) > (dtp_schedule_limit(&shape) ? 0.1 : 0.02)) /* of fewer, another order is found */
                        fail_msg("%s, %u ranks, %u micro-batches, F %g B %g W %g, transfer %g, head %g: %+.1f %% off",
                                 dtp_schedule_row(shape.kind)->word, p, times * p, c[0], c[1], c[2], c[3], head,
                                 100 * off);
                    timed_release(&t);
                    checked++;
                }
    printf("%d of %d steps are more than 0.1 %% off\n", far, checked);
    assert_true(checked > 700 && far <= 20);
}

/* Rounds of more micro-batches than ranks: steps of fewer rounds are steps that PyTorch takes. */
static void test_steps_of_many_rounds(void **state)
{
    (void)state;
    static const uint32_t rounds[][2] = {{8, 36}, {8, 45}, {8, 63}, {5, 24}, {16, 85}};
    for (size_t i = 0; i < 2 * sizeof rounds / sizeof *rounds; i++) {
        struct dtp_schedule_shape shape = {.kind = i % 2 ? DTP_SCHEDULE_INTERLEAVED : DTP_SCHEDULE_ZB_INTERLEAVED,
                                           .ranks = rounds[i / 2][0],
                                           .micro_batches = rounds[i / 2][1],
                                           .equal_rounds = true};
        struct timed t;
        double step_s;
        timed_make(&t, shape, DTP_SEND_RENDEZVOUS);
        timed_run(&t, 1, 1.2, 0.8, 0);
        const struct dtp_schedule_costs costs = {t.stages, 1, true};
        assert_int_equal(dtp_schedule_steps(&shape, DTP_SEND_RENDEZVOUS, &costs, 1, &step_s), DTP_OK);
        expect("a step", &t, step_s / dtp_schedule_timer_makespan(t.timer, &costs), 1);
        timed_release(&t);
    }
}

/* What dtp_schedule_waiting says, counted from the lists. */
static struct dtp_schedule_waiting waiting_of(const struct dtp_schedule *s)
{
    struct dtp_schedule_waiting out = {.losses = 0};
    const double chunks = dtp_schedule_lines(s) == 2 ? 1 : s->shape.chunks;
    for (uint32_t r = 0; r < s->shape.ranks; r++) {
        double under_way[DTP_PASS_WEIGHT + 1] = {0}, of_head[DTP_PASS_WEIGHT + 1] = {0};
        for (uint32_t i = s->first[r]; i < s->first[r + 1]; i++) {
            const struct dtp_pass *pass = &s->passes[i];
            const bool head = dtp_schedule_stage(s, r, pass->chunk) + 1 == s->stages,
                       forward = pass->kind == DTP_PASS_FORWARD;
            const bool back = pass->kind == DTP_PASS_BACKWARD || pass->kind == DTP_PASS_WHOLE_BACKWARD;
            const double waits = (pass->kind == DTP_PASS_BACKWARD) - (pass->kind == DTP_PASS_WEIGHT);
            under_way[0] += forward - back, under_way[1] += waits;
            of_head[0] += head * (forward - back), of_head[1] += head * waits;
            out.losses = fmax(out.losses, of_head[0]);
            if (head && forward) {
                out.head_forwards = fmax(out.head_forwards, under_way[0] / chunks);
                out.heads = fmax(out.heads, of_head[1]);
            }
            if (under_way[1] / chunks > out.weights)
                out.weights = under_way[1] / chunks, out.forwards = 0;
            if (under_way[1] / chunks >= out.weights && out.weights > 0)
                out.forwards = fmax(out.forwards, under_way[0] / chunks);
        }
    }
    return out;
}

static void test_waiting_by_formula(void **state)
{
    (void)state;
    int checked = 0;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        for (uint32_t p = 2; p <= 12; p++)
            for (uint32_t i = 0; i < 6 * p; i++) {
                const uint32_t m = 1 + i / 2;
                struct dtp_schedule_shape shape = {
                    .kind = (enum dtp_schedule_kind)kind, .ranks = p, .micro_batches = m, .equal_rounds = i % 2};
                struct dtp_schedule schedule;
                if (dtp_schedule_create(&shape, &schedule, NULL) != DTP_OK)
                    continue;
                shape = schedule.shape;
                shape.group = 0; /* as a plan has it, where nobody asks for one */
                struct dtp_schedule_waiting listed = waiting_of(&schedule), formula = dtp_schedule_waiting(&shape);
                dtp_schedule_destroy(&schedule);
                const bool loops = dtp_schedule_row(shape.kind)->placement == DTP_CHUNKS_LOOP;
                if (!loops && m < 2 * p) /* patterns that begin and end at once */
                    continue;
                const double most_apart = loops ? CLOSE : 1;
                if (fabs(listed.weights - formula.weights) > CLOSE || fabs(listed.losses - formula.losses) > CLOSE ||
                    fabs(listed.heads - formula.heads) > CLOSE ||
                    fabs(listed.forwards - formula.forwards) > most_apart ||
                    fabs(listed.head_forwards - formula.head_forwards) > most_apart)
                    fail_msg(
                        "%s, %u ranks, %u micro-batches: %g + %g wait, %g with %g losses and %g behind; by formula "
                        "%g + %g, %g with %g and %g",
                        dtp_schedule_row(shape.kind)->word, p, m, listed.forwards, listed.weights, listed.head_forwards,
                        listed.losses, listed.heads, formula.forwards, formula.weights, formula.head_forwards,
                        formula.losses, formula.heads);
                checked++;
            }
    assert_true(checked > 1500);
}

/* ---- formulas ------------------------------------------------------------------------------------------------------
 */

static void check_formula(struct dtp_schedule_shape shape, double f, double b, double w, int *checked)
{
    struct dtp_faults faults = {0};
    if (dtp_schedule_resolve(&shape, &faults) != DTP_OK)
        return;
    struct timed t;
    timed_make(&t, shape, DTP_SEND_BUFFERED);
    timed_run(&t, f, b, w, 0);
    double formula = dtp_schedule_bubble(&shape, t.stages, 1);
    if (!isnan(formula)) {
        expect("the bubble", &t, t.timing.bubble_s, formula);
        (*checked)++;
    }
    for (uint32_t r = 0; r < shape.ranks; r++) {
        const struct dtp_rank_timing *k = &t.timing.ranks[r];
        expect("idle and busy", &t, k->busy_s + k->warm_up_idle_s + k->steady_idle_s + k->drain_idle_s,
               t.timing.makespan_s);
        assert_true(k->warm_up_idle_s >= 0 && k->steady_idle_s >= -CLOSE && k->drain_idle_s >= -CLOSE);
    }
    timed_release(&t);
}

static void test_formulas_and_timer_agree(void **state)
{
    (void)state;
    static const double costs[][3] = {{1, 1, 1},   {1, 1.2, 0.6}, {1, 2, 0.5}, {1, 0.8, 0.7},
                                      {1, 1, 0.5}, {2, 1, 1},     {1, 1, 0},   {1, 1.5, 1.5}};
    int checked[DTP_SCHEDULE_COUNT] = {0};
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        for (uint32_t p = 1; p <= 9; p++)
            for (uint32_t m = 1; m <= 40; m += m < 12 ? 1 : 7)
                for (uint32_t v = 0; v <= (dtp_schedule_row((enum dtp_schedule_kind)kind)->chunks ? 0 : 4); v++)
                    for (size_t c = 0; c < sizeof costs / sizeof *costs; c++)
                        check_formula((struct dtp_schedule_shape){(enum dtp_schedule_kind)kind, p, m, v, 0},
                                      costs[c][0], costs[c][1], costs[c][2], &checked[kind]);
        bool has_formula = dtp_schedule_row((enum dtp_schedule_kind)kind)->bubble[0] != '\0';
        assert_int_equal(checked[kind] > 20, has_formula);
    }
}

/* Fewer micro-batches than ranks: (m + p - 1)(F + B + W) of 1F1B, (m + p - 1)(F + B) + W of ZB-H1 (2401.10241, appendix
 * H). */
static void test_few_micro_batches(void **state)
{
    (void)state;
    for (uint32_t p = 2; p <= 6; p++)
        for (uint32_t m = 1; m <= p; m++)
            for (int zero = 0; zero < 2; zero++) {
                struct timed t;
                timed_make(&t, (struct dtp_schedule_shape){zero ? DTP_SCHEDULE_ZB_H1 : DTP_SCHEDULE_1F1B, p, m, 0, 0},
                           DTP_SEND_BUFFERED);
                timed_run(&t, 1, 1.25, 0.5, 0);
                expect("the makespan", &t, t.timing.makespan_s, (m + p - 1) * (zero ? 2.25 : 2.75) + (zero ? 0.5 : 0));
                timed_release(&t);
            }
}

/* ---- by hand -------------------------------------------------------------------------------------------------------
 */

/* 1F1B of 2 micro-batches on 2 unequal stages, transfers of 1. Rank 0: F0 0-1, F1 1-2. Rank 1: F0 arrives at 2, 2-5, B
 * 5-9; F1 had arrived at 3, waits until 9, 9-12, B 12-16. Rank 0: B0 arrives at 10, 10-12; B1 at 17, 17-19. */
static void test_unequal_stages_by_hand(void **state)
{
    (void)state;
    struct timed t;
    timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 2, 2, 0, 0}, DTP_SEND_BUFFERED);
    t.stages[0] = (struct dtp_stage_cost){.forward_s = 1, .backward_s = 1, .weight_s = 1, .send_s = 1, .kept = 10};
    t.stages[1] = (struct dtp_stage_cost){.forward_s = 3, .backward_s = 2, .weight_s = 2, .kept = 7};
    struct dtp_schedule_costs costs = {t.stages, 1};
    dtp_schedule_timer_run(t.timer, &costs, &t.timing);
    const struct dtp_rank_timing *r = t.timing.ranks;
    expect("the makespan", &t, t.timing.makespan_s, 19);
    expect("the makespan alone", &t, dtp_schedule_timer_makespan(t.timer, &costs), 19);
    expect("busy", &t, r[0].busy_s, 6);
    expect("busy", &t, r[1].busy_s, 14);
    expect("warm-up", &t, r[0].warm_up_idle_s, 8);
    expect("drain", &t, r[0].drain_idle_s, 5);
    expect("warm-up", &t, r[1].warm_up_idle_s, 2);
    expect("drain", &t, r[1].drain_idle_s, 3);
    expect("the bubble", &t, t.timing.bubble_s, 5);
    expect("the span", &t, t.timing.span_s, 19);
    expect("kept", &t, r[0].peak_kept, 20);
    expect("kept", &t, r[1].peak_kept, 7);
    assert_int_equal(r[1].forward_queue, 1);
    assert_int_equal(r[0].forward_queue + r[0].backward_queue + r[1].backward_queue, 0);
    timed_release(&t);
}

/* The same where rank 1 sends before its W, of 2: B0 arrives at 8 instead of 10, 8-10; B1 at 15, 15-17. */
static void test_weights_behind_what_is_sent(void **state)
{
    (void)state;
    struct timed t;
    timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 2, 2, 0, 0}, DTP_SEND_BUFFERED);
    t.stages[0] = (struct dtp_stage_cost){.forward_s = 1, .backward_s = 1, .weight_s = 1, .send_s = 1};
    t.stages[1] = (struct dtp_stage_cost){.forward_s = 3, .backward_s = 2, .weight_s = 2, .delayed_s = 2};
    struct dtp_schedule_costs costs = {t.stages, 1};
    dtp_schedule_timer_run(t.timer, &costs, &t.timing);
    expect("the makespan", &t, t.timing.makespan_s, 17);
    expect("B0 of rank 0", &t, t.timing.begin_s[2], 8);
    expect("the end of rank 1", &t, t.timing.ranks[1].end_s, 16);
    timed_release(&t);
}

/* The same where transfers wait for the receiver: F1 goes over from 9 to 10; B0 as before; so rank 1 ends at 17, and
 * B1 arrives at 18. Where the sender waits too, rank 0 sends F0 until 2, computes F1 2-3, and is with rank 1 from 9 on:
 * nothing else moves. */
static void test_rendezvous_by_hand(void **state)
{
    (void)state;
    for (int send = DTP_SEND_RENDEZVOUS; send <= DTP_SEND_BLOCKING; send++) {
        struct timed t;
        timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 2, 2, 0, 0}, (enum dtp_send)send);
        t.stages[0] = (struct dtp_stage_cost){.forward_s = 1, .backward_s = 1, .weight_s = 1, .send_s = 1};
        t.stages[1] = (struct dtp_stage_cost){.forward_s = 3, .backward_s = 2, .weight_s = 2};
        struct dtp_schedule_costs costs = {t.stages, 1};
        dtp_schedule_timer_run(t.timer, &costs, &t.timing);
        expect("the makespan", &t, t.timing.makespan_s, 20);
        expect("F1 of rank 0", &t, t.timing.begin_s[1], send == DTP_SEND_BLOCKING ? 2 : 1);
        expect("F1 of rank 1", &t, t.timing.begin_s[t.schedule.first[1] + 2], 10);
        assert_int_equal(t.timing.ranks[1].forward_queue, 0);
        timed_release(&t);
    }
}

/* Hosts that take 4 a pass launch F0, F1, B0, B1 of either rank until 4, 8, 12, 16: F0 of rank 0 ends at 4, arrives at
 * 5 and ends on rank 1 at 8, B0 there at 12, arrives at 13; B1 of rank 1 ends at 16 and arrives at 17, where rank 0 has
 * launched its own. Its passes take 1. */
static void test_launches_by_hand(void **state)
{
    (void)state;
    struct timed t;
    timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_GPIPE, 2, 2, 0, 0}, DTP_SEND_RENDEZVOUS);
    for (int i = 0; i < 2; i++)
        t.stages[i] = (struct dtp_stage_cost){.forward_s = 1,
                                              .backward_s = 1,
                                              .send_s = 1,
                                              .launch_forward_s = 4,
                                              .launch_backward_s = 3,
                                              .launch_weight_s = 1,
                                              .launch_walk_s = 7,
                                              .launch_engine_s = 7};
    const struct dtp_schedule_costs costs = {t.stages, 1, true};
    expect("the makespan", &t, dtp_schedule_timer_makespan(t.timer, &costs), 18);
    timed_release(&t);
}

/* GPipe of 3 micro-batches, F of 1 on both ranks, transfers of 3. Posted early, what comes next is on its way while a
 * pass runs, one transfer behind the other: there at 4, 7, 10. By rendezvous alone the second begins at 5, when the
 * first pass is through, the third at 9: there at 4, 8, 12. Backward takes nothing, its last gradient 3. */
static void test_receives_posted_early_by_hand(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct timed t;
        timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_GPIPE, 2, 3, 0, 0}, DTP_SEND_RENDEZVOUS);
        for (int i = 0; i < 2; i++)
            t.stages[i] = (struct dtp_stage_cost){.forward_s = 1, .send_s = 3};
        const struct dtp_schedule_costs costs = {t.stages, 1, early > 0};
        dtp_schedule_timer_makespan(t.timer, &costs);
        dtp_schedule_timer_run(t.timer, &costs, &t.timing);
        expect("F2 of rank 1", &t, t.timing.begin_s[t.schedule.first[1] + 2], early ? 10 : 12);
        timed_release(&t);
    }
}

/* The same of 2 micro-batches, sent and received one thing after the other: F0 arrives at 4; F1, made at 2, is posted
 * on rank 1 behind its F0, which ends at 5, and is there at 8. Rank 0 receives B0 behind its F1: rank 1 makes it at 9,
 * for it stands behind F1 there, so that it is there at 12, and B1 3 later. */
static void test_posted_in_turns_by_hand(void **state)
{
    (void)state;
    struct timed t;
    timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_GPIPE, 2, 2, 0, 0}, DTP_SEND_RENDEZVOUS);
    for (int i = 0; i < 2; i++)
        t.stages[i] = (struct dtp_stage_cost){.forward_s = 1, .send_s = 3};
    const struct dtp_schedule_costs costs = {.stages = t.stages, .pair_fraction = 1, .early = true, .posted = true};
    dtp_schedule_timer_run(t.timer, &costs, &t.timing);
    expect("F0 of rank 1", &t, t.timing.begin_s[t.schedule.first[1]], 4);
    expect("F1 of rank 1", &t, t.timing.begin_s[t.schedule.first[1] + 1], 8);
    expect("B0 of rank 0", &t, t.timing.begin_s[2], 12);
    expect("the makespan", &t, t.timing.makespan_s, 15);
    timed_release(&t);
}

/* A pair hides what it sends from costs as they are published, not from those of a program, which is slower. */
static void test_pairs_send_too(void **state)
{
    (void)state;
    struct timed t;
    timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_DUALPIPE, 4, 12, 0, 0}, DTP_SEND_RENDEZVOUS);
    dtp_stage_costs_equal(&t.schedule, 1, 1, 1, 0.1, t.stages);
    const double hidden_s = dtp_schedule_timer_makespan(t.timer, &(struct dtp_schedule_costs){t.stages, 1}),
                 sent_s = dtp_schedule_timer_makespan(t.timer, &(struct dtp_schedule_costs){t.stages, 1, true});
    assert_true(sent_s > hidden_s + CLOSE);
    timed_release(&t);
}

/* 1F1B of 2 and 2 as by hand above, where rank 1 ends at 16 and rank 0 at 19. What the last micro-batch takes besides
 * stands before what it sends: each last backward takes 5 more. Or each first forward does. Or rank 1's host launches a
 * backward of 4 in 6, and waits for each forward: backwards are launched by 5 + 6 and 14 + 6; 3 later rank 0 is done.
 */
static void test_last_and_first_by_hand(void **state)
{
    (void)state;
    struct timed t;
    timed_make(&t, (struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 2, 2, 0, 0}, DTP_SEND_BUFFERED);
    for (int i = 0; i < 3; i++) {
        const double last_s = i == 0 ? 5 : 0, first_s = i == 1 ? 5 : 0;
        t.stages[0] = (struct dtp_stage_cost){1, 1, 1, .send_s = 1, .last_s = last_s, .first_s = first_s};
        t.stages[1] = (struct dtp_stage_cost){3, 2, 2, .last_s = last_s, .first_s = first_s};
        t.stages[1].launch_backward_s = i == 2 ? 6 : 0, t.stages[1].waits_forward = i == 2;
        expect("the makespan", &t, dtp_schedule_timer_makespan(t.timer, &(struct dtp_schedule_costs){t.stages, 1}),
               i < 2 ? 29 : 23);
    }
    timed_release(&t);
}

/* ---- costs at random ------------------------------------------------------------------------------------------------
 */

static double draw(uint64_t *random)
{
    next_random(random);
    return (double)(*random >> 40) / (1 << 24);
}

/* Bounds that hold whatever passes cost: no rank ends before its work is done, nothing gets faster when sends wait, all
 * times scale, and the makespan alone is the same. */
static void test_any_costs(void **state)
{
    (void)state;
    uint64_t random = 17;
    for (int i = 0; i < 300; i++) {
        double makespan_s[DTP_SEND_COUNT] = {0};
        struct dtp_schedule_shape shape = {.kind = (enum dtp_schedule_kind)(draw(&random) * DTP_SCHEDULE_COUNT)};
        shape.ranks = 2 * (1 + (uint32_t)(draw(&random) * 4));
        shape.micro_batches = shape.ranks * 2 * (1 + (uint32_t)(draw(&random) * 3));
        uint64_t start = random;
        for (int send = 0; send < DTP_SEND_BLOCKING; send++) {
            struct timed t;
            timed_make(&t, shape, (enum dtp_send)send);
            random = start;
            for (uint32_t s = 0; s < t.schedule.stages; s++)
                t.stages[s] = (struct dtp_stage_cost){
                    draw(&random), draw(&random), draw(&random), 0.2 * draw(&random), draw(&random), draw(&random), 0};
            struct dtp_schedule_costs costs = {t.stages, 0.7 + 0.3 * draw(&random)};
            dtp_schedule_timer_run(t.timer, &costs, &t.timing);
            makespan_s[send] = t.timing.makespan_s;
            assert_true(t.timing.busy_s <= t.timing.span_s + CLOSE && t.timing.span_s <= t.timing.makespan_s + CLOSE);
            expect("the makespan alone", &t, dtp_schedule_timer_makespan(t.timer, &costs), makespan_s[send]);
            for (uint32_t s = 0; s < t.schedule.stages; s++) {
                t.stages[s].forward_s *= 2;
                t.stages[s].backward_s *= 2;
                t.stages[s].weight_s *= 2;
                t.stages[s].send_s *= 2;
            }
            expect("twice the makespan", &t, dtp_schedule_timer_makespan(t.timer, &costs), 2 * makespan_s[send]);
            for (uint32_t s = 0; s < t.schedule.stages; s++)
                t.stages[s].delayed_s = t.stages[s].weight_s;
            assert_true(dtp_schedule_timer_makespan(t.timer, &costs) <= 2 * makespan_s[send] + CLOSE);
            timed_release(&t);
        }
        assert_true(makespan_s[DTP_SEND_BUFFERED] <= makespan_s[DTP_SEND_RENDEZVOUS] + CLOSE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_steps_that_begin_apart),
        cmocka_unit_test(test_pairs_taken_apart_wait_less),
        cmocka_unit_test(test_what_weights_keep),
        cmocka_unit_test(test_kept_by_formula),
        cmocka_unit_test(test_waiting_by_formula),
        cmocka_unit_test(test_steps_of_many_micro_batches),
        cmocka_unit_test(test_steps_of_many_rounds),
        cmocka_unit_test(test_formulas_and_timer_agree),
        cmocka_unit_test(test_few_micro_batches),
        cmocka_unit_test(test_unequal_stages_by_hand),
        cmocka_unit_test(test_weights_behind_what_is_sent),
        cmocka_unit_test(test_rendezvous_by_hand),
        cmocka_unit_test(test_launches_by_hand),
        cmocka_unit_test(test_receives_posted_early_by_hand),
        cmocka_unit_test(test_posted_in_turns_by_hand),
        cmocka_unit_test(test_pairs_send_too),
        cmocka_unit_test(test_last_and_first_by_hand),
        cmocka_unit_test(test_any_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
