/* Runs of a step and what lives in it, counted by hand: one of two layers, 100 bytes of parameters each.
 *
 *                  allocates            frees        lives after allocating
 *   forward   0    a0 = 10                           210
 *             1    a1 = 10, w = 7       w            227, then 220
 *   loss      root l = 40                            260
 *   backward  root g = 600                l  860, then 820
 *             1    -                    a1           810
 *             0    t = 5                a0, t        815, then 800
 *   step      root -                    g            800 while it is read, then 200 */
#include "program/live_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

struct step {
    struct dtp_program *program;
    dtp_buffer_id a0, a1, w, l, g, t;
};

/* Gradients are in the pool of the stream that reduces them. */
static dtp_buffer_id buffer(struct step *s, enum dtp_owner owner, uint64_t bytes, bool persistent)
{
    enum dtp_stream pool = owner == DTP_OWNER_GRADS ? DTP_STREAM_REDUCE : DTP_STREAM_COMPUTE;
    struct dtp_buffer b = {.bytes = bytes, .owner = owner, .pool = pool, .persistent = persistent};
    return dtp_program_add_buffer(s->program, &b);
}

static void mark(struct step *s, const char *name)
{
    struct dtp_new_op op = {.kind = DTP_OP_MARK, .layer = DTP_NO_LAYER, .name = name};
    dtp_program_add_op(s->program, &op, NULL, 0);
}

static void op(struct step *s, uint16_t layer, const struct dtp_operand *operands, size_t count)
{
    struct dtp_new_op one = {.kind = DTP_OP_RESIDUAL, .layer = layer};
    dtp_program_add_op(s->program, &one, operands, count);
}
#define OP(s, layer, ...)                                                                                              \
    op(s, layer, (const struct dtp_operand[]){__VA_ARGS__},                                                            \
       sizeof(const struct dtp_operand[]){__VA_ARGS__} / sizeof(struct dtp_operand))
#define MADE(b) dtp_operand_of(b, DTP_ALLOC | DTP_WRITE)
#define LAST(b) dtp_operand_of(b, DTP_READ | DTP_FREE)
#define SCRATCH(b) dtp_operand_of(b, DTP_ALLOC | DTP_UPDATE | DTP_FREE)

static void make(struct step *s)
{
    assert_int_equal(dtp_program_create(0, &s->program, NULL), DTP_OK);
    for (int layer = 0; layer < 2; layer++)
        buffer(s, DTP_OWNER_PARAMS, 100, true);
    s->a0 = buffer(s, DTP_OWNER_ACTIVATIONS, 10, false), s->a1 = buffer(s, DTP_OWNER_ACTIVATIONS, 10, false);
    s->w = buffer(s, DTP_OWNER_WEIGHTS, 7, false), s->l = buffer(s, DTP_OWNER_LOGITS, 40, false);
    s->g = buffer(s, DTP_OWNER_GRADS, 600, false), s->t = buffer(s, DTP_OWNER_WORKSPACE, 5, false);
    mark(s, "forward");
    OP(s, 0, MADE(s->a0));
    OP(s, 1, MADE(s->a1), SCRATCH(s->w));
    mark(s, "loss");
    OP(s, DTP_NO_LAYER, MADE(s->l));
    mark(s, "backward");
    OP(s, DTP_NO_LAYER, LAST(s->l), MADE(s->g));
    OP(s, 1, LAST(s->a1));
    OP(s, 0, LAST(s->a0), SCRATCH(s->t));
    mark(s, "step");
    OP(s, DTP_NO_LAYER, LAST(s->g));
    assert_int_equal(dtp_program_seal(s->program, NULL), DTP_OK);
}

static void test_runs(void **state)
{
    (void)state;
    struct step s;
    struct dtp_live_runs runs = {.run = NULL};
    make(&s);
    assert_int_equal(dtp_live_runs_of(s.program, &runs, NULL), DTP_OK);
    assert_int_equal(runs.standing.total_bytes, 200);
    assert_int_equal(runs.pools_standing.bytes[DTP_STREAM_COMPUTE], 200);
    assert_int_equal(runs.count, 8); /* forward and its two layers, loss, backward and its two layers, step */
    assert_true(runs.run[0].begins && !runs.run[0].moves && runs.run[0].phase == DTP_PHASE_FORWARD_END);
    assert_int_equal(runs.run[2].layer, 1);
    assert_int_equal(runs.run[2].net.total_bytes, 10);
    assert_int_equal(runs.run[2].full.total_bytes, 17);
    assert_int_equal(runs.run[2].most[DTP_OWNER_WEIGHTS], 7);
    assert_int_equal(runs.run[4].net.total_bytes, 560);
    assert_int_equal(runs.run[4].pools_net.bytes[DTP_STREAM_COMPUTE], -40); /* the gradient is another stream's */
    assert_int_equal(runs.run[4].pools_most.bytes[DTP_STREAM_REDUCE], 600);
    assert_int_equal(runs.run[5].full.total_bytes, -10); /* it only frees */
    assert_true(runs.run[1].shape != runs.run[2].shape);
    dtp_live_runs_release(&runs);
    dtp_program_destroy(s.program);
}

static void test_bytes(void **state)
{
    (void)state;
    struct step s;
    struct dtp_live_runs runs = {.run = NULL};
    struct dtp_live_bytes live;
    static const uint64_t totals[DTP_PHASE_COUNT] = {227, 260, 860, 815, 800};
    make(&s);
    assert_int_equal(dtp_live_runs_of(s.program, &runs, NULL), DTP_OK);
    dtp_live_bytes_sum(&runs, 2, &live);
    for (int phase = 0; phase < DTP_PHASE_COUNT; phase++)
        assert_int_equal(live.phase_total_bytes[phase], totals[phase]);
    assert_int_equal(live.peak_phase, DTP_PHASE_EARLY_BACKWARD);
    assert_int_equal(live.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_LOGITS], 40);
    assert_int_equal(live.phase_bytes[DTP_PHASE_LATE_BACKWARD][DTP_OWNER_WORKSPACE], 5);
    assert_int_equal(live.most_bytes[DTP_OWNER_ACTIVATIONS], 20);
    assert_int_equal(live.most_bytes[DTP_OWNER_GRADS], 600);
    assert_int_equal(live.pool_bytes[DTP_STREAM_COMPUTE], 260);
    assert_int_equal(live.pool_bytes[DTP_STREAM_REDUCE], 600);
    assert_int_equal(live.standing_bytes[DTP_OWNER_PARAMS], 200);
    dtp_live_runs_release(&runs);
    dtp_program_destroy(s.program);
}

/* Joined, forward, loss, early and late backward and the step are a run each; the sums are the same to the byte. */
static void test_joined(void **state)
{
    (void)state;
    struct step s;
    struct dtp_live_runs apart = {.run = NULL}, joined = {.joined = true, .half = dtp_live_runs_half(2)};
    struct dtp_live_bytes of_apart, of_joined;
    make(&s);
    assert_int_equal(dtp_live_runs_of(s.program, &apart, NULL), DTP_OK);
    assert_int_equal(dtp_live_runs_of(s.program, &joined, NULL), DTP_OK);
    assert_int_equal(joined.count, 5);
    assert_int_equal(joined.run[3].layer, 0);
    dtp_live_bytes_sum(&apart, 2, &of_apart);
    dtp_live_bytes_sum(&joined, 2, &of_joined);
    assert_memory_equal(&of_apart, &of_joined, sizeof of_apart);
    dtp_live_runs_release(&apart);
    dtp_live_runs_release(&joined);
    dtp_program_destroy(s.program);
}

static void add_fill(struct dtp_live_runs *runs, uint64_t elements, uint32_t again)
{
    struct dtp_live_run *run = dtp_live_runs_add(runs);
    assert_non_null(run);
    *run = (struct dtp_live_run){.fills = elements, .moves = true, .phase = DTP_PHASE_EARLY_BACKWARD, .layer = 1};
    run->net.bytes[DTP_OWNER_ACTIVATIONS] = run->net.total_bytes = elements == DTP_LIVE_FLUSH ? 0 : 6;
    run->full = run->net;
    run->again = again, run->stretch = again ? 1 : 0;
}

/* A bucket of 10 elements, 4 bytes each in its copy, of 15 that ranks have five each of; behind its copy the first
 * reduction makes 100 bytes that stay. Nothing stands.
 *
 *   comes   in the bucket   reduced         leaves   lives
 *   6       6                               6        6
 *   6       6               6 (24, 100)     6        6 + 24 while it is reduced, 106 behind that, then 112
 *   3       9                               6        118
 *   flush   0               9 (36)          0        118 + 36
 *
 * and in place of the last two 6 again and again, of 30: 24 bytes each time, the third when 100 + 4 x 6 live. Where all
 * are one rank's there is no copy; 6 that come behind a flush are kept in 100 bytes more up to the next one. */
static void test_bucket(void **state)
{
    (void)state;
    struct dtp_live_runs runs = {.bucket = {.elements = 10,
                                            .element_bytes = 4,
                                            .all_elements = 15,
                                            .part_elements = 5,
                                            .kept_bytes = 100,
                                            .pool = DTP_STREAM_REDUCE}};
    struct dtp_live_bytes live;
    add_fill(&runs, 6, 0);
    add_fill(&runs, 6, 0);
    dtp_live_bytes_sum(&runs, 1, &live);
    assert_int_equal(live.phase_total_bytes[DTP_PHASE_EARLY_BACKWARD], 112);
    assert_int_equal(live.most_bytes[DTP_OWNER_GRADS], 100);
    add_fill(&runs, 3, 0);
    add_fill(&runs, DTP_LIVE_FLUSH, 0);
    dtp_live_bytes_sum(&runs, 1, &live);
    assert_int_equal(live.phase_total_bytes[DTP_PHASE_EARLY_BACKWARD], 118 + 36);
    assert_int_equal(live.phase_bytes[DTP_PHASE_EARLY_BACKWARD][DTP_OWNER_REDUCE], 36);
    assert_int_equal(live.most_bytes[DTP_OWNER_REDUCE], 36);
    assert_int_equal(live.pool_bytes[DTP_STREAM_REDUCE], 136);
    runs.bucket.part_elements = 15;
    add_fill(&runs, 6, 0);
    dtp_live_bytes_sum(&runs, 1, &live);
    assert_int_equal(live.most_bytes[DTP_OWNER_REDUCE], 0);
    assert_int_equal(live.most_bytes[DTP_OWNER_GRADS], 100);
    add_fill(&runs, DTP_LIVE_FLUSH, 0);
    dtp_live_bytes_sum(&runs, 1, &live);
    assert_int_equal(live.most_bytes[DTP_OWNER_GRADS], 200);
    runs.count = 2;
    runs.bucket.all_elements = 30, runs.bucket.part_elements = 5;
    add_fill(&runs, 6, 2);
    dtp_live_bytes_sum(&runs, 1, &live);
    assert_int_equal(live.phase_total_bytes[DTP_PHASE_EARLY_BACKWARD], 100 + 4 * 6 + 24);
    dtp_live_runs_release(&runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs), cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_joined), cmocka_unit_test(test_bucket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
