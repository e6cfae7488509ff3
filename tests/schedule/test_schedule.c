#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/said.h"
#include "lib/schedule_fixture.h"

#include "base/host_arena.h"

/* ---- every list is legal --------------------------------------------------------------------------------------------
 */

/* Of a schedule that is searched, by a few times; of others they mean nothing. */
static const struct dtp_pass_times searched_by[] = {{0}, {1, 2, 0.5, 0.1, 0.5}, {3, 1, 2, 0, 1}};

static void count_legal(struct dtp_schedule_shape shape, int *legal, int *blocked)
{
    struct dtp_schedule schedule;
    struct dtp_faults faults = {0};
    if (dtp_schedule_create(&shape, &schedule, &faults) != DTP_OK)
        return;
    for (int send = 0; send < DTP_SEND_BLOCKING; send++)
        if (dtp_schedule_verify(&schedule, (enum dtp_send)send, &faults) != DTP_OK)
            fail_msg("%s p %u m %u v %u g %u: %s", dtp_schedule_row(shape.kind)->word, shape.ranks, shape.micro_batches,
                     shape.chunks, shape.group, faults.text[0]);
    *blocked += dtp_schedule_verify(&schedule, DTP_SEND_BLOCKING, &faults) != DTP_OK;
    (*legal)++;
    dtp_schedule_destroy(&schedule);
}

/* Over all that the rules let through. */
static void test_what_is_not_refused_is_legal(void **state)
{
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        int legal = 0, blocked = 0;
        bool interleaved = kind == DTP_SCHEDULE_INTERLEAVED;
        struct dtp_schedule_shape shape = {.kind = (enum dtp_schedule_kind)kind, .ranks = 1};
        size_t times = dtp_schedule_limit(&shape) ? sizeof searched_by / sizeof *searched_by : 1;
        for (size_t t = 0; t < times; t++)
            for (uint32_t p = 1; p <= 9; p++)
                for (uint32_t m = 1; m <= 27; m++)
                    for (uint32_t v = interleaved ? 2 : 0; v <= (interleaved ? 4 : 0); v++)
                        for (uint32_t group = 0; group <= (interleaved ? p + 3 : 0); group += group ? 1 : p)
                            for (int equal = 0; equal < (interleaved || kind == DTP_SCHEDULE_ZB_INTERLEAVED ? 2 : 1);
                                 equal++)
                                count_legal((struct dtp_schedule_shape){(enum dtp_schedule_kind)kind, p, m, v, group,
                                                                        .equal_rounds = equal, .times = searched_by[t]},
                                            &legal, &blocked);
        assert_true(legal > 20);
        assert_int_equal(blocked == 0, dtp_schedule_row((enum dtp_schedule_kind)kind)->blocking);
    }
}

/* ---- the verifier finds what is wrong
 * -------------------------------------------------------------------------------- */

static void expect_fault(struct dtp_schedule *schedule, const char *part)
{
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_schedule_verify(schedule, DTP_SEND_BUFFERED, &faults), DTP_BAD_INPUT);
    assert_said(&faults, part);
}

static struct dtp_schedule small(enum dtp_schedule_kind kind)
{
    struct dtp_schedule schedule;
    struct dtp_faults faults = {0};
    struct dtp_schedule_shape shape = {kind, 2, 4, 0, 0};
    assert_int_equal(dtp_schedule_create(&shape, &schedule, &faults), DTP_OK);
    return schedule;
}

static void swap(struct dtp_schedule *schedule, size_t a, size_t b)
{
    struct dtp_pass pass = schedule->passes[a];
    schedule->passes[a] = schedule->passes[b];
    schedule->passes[b] = pass;
}

static void test_faults_are_named(void **state)
{
    (void)state;
    struct dtp_schedule s = small(DTP_SCHEDULE_1F1B); /* rank 0: F0 F1 B0 F2 B1 F3 B2 B3, rank 1: F0 B0 F1 B1 ... */
    s.passes[1] = s.passes[0];
    expect_fault(&s, "rank 0, micro-batch 0, chunk 0: the same pass is listed twice");
    expect_fault(&s, "rank 0, micro-batch 1, chunk 0: its forward is missing");
    dtp_schedule_destroy(&s);
    s = small(DTP_SCHEDULE_1F1B);
    swap(&s, s.first[1], s.first[1] + 1);
    expect_fault(&s, "rank 1, micro-batch 0, chunk 0: its backward comes before its forward");
    dtp_schedule_destroy(&s);
    s = small(DTP_SCHEDULE_1F1B);
    s.passes[0].chunk = 1;
    expect_fault(&s, "there is no such pass");
    dtp_schedule_destroy(&s);
    s = small(DTP_SCHEDULE_1F1B);
    s.passes[0].paired = true; /* behind it is a forward */
    expect_fault(&s, "only a forward is paired, with the backward behind it");
    dtp_schedule_destroy(&s);
    s = small(DTP_SCHEDULE_ZB_H1); /* rank 0: F0 F1 B0 W0 F2 ... */
    swap(&s, 2, 3);
    expect_fault(&s, "rank 0, micro-batch 0, chunk 0: the gradients of its weights come before its backward");
    dtp_schedule_destroy(&s);
    s = small(DTP_SCHEDULE_ZB_H1);
    s.passes[2].kind = DTP_PASS_WHOLE_BACKWARD;
    expect_fault(&s, "its backward is whole and the gradients of its weights are listed again");
    dtp_schedule_destroy(&s);
}

/* Rank 0 wants B0 before it makes F1, rank 1 F1 before it makes B0. */
static void test_a_circle_is_a_deadlock(void **state)
{
    (void)state;
    struct dtp_schedule s = small(DTP_SCHEDULE_1F1B);
    swap(&s, 1, 2);
    swap(&s, s.first[1] + 1, s.first[1] + 2);
    expect_fault(&s, "deadlock: rank 0 never comes to BW of micro-batch 0, chunk 0");
    expect_fault(&s, "deadlock: rank 1 never comes to F of micro-batch 1, chunk 0");
    dtp_schedule_destroy(&s);
}

/* A receiver that takes micro-batches in another order than they are sent may keep them in buffers, and waits for ever
 * where the channel has none. */
static void test_messages_keep_their_order(void **state)
{
    (void)state;
    struct dtp_faults faults = {0};
    struct dtp_schedule s = small(DTP_SCHEDULE_GPIPE);
    swap(&s, s.first[1], s.first[1] + 1);
    assert_int_equal(dtp_schedule_verify(&s, DTP_SEND_BUFFERED, &faults), DTP_OK);
    assert_int_equal(dtp_schedule_verify(&s, DTP_SEND_RENDEZVOUS, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "rank 1, micro-batch 0, chunk 0: it is sent before what its rank takes"));
    dtp_schedule_destroy(&s);
}

/* Any two passes of a rank changed over: found, or as legal as before. Found must be at least what a rank can see of
 * itself. */
static void test_mutations(void **state)
{
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        struct dtp_schedule s = small((enum dtp_schedule_kind)kind);
        int found = 0;
        for (uint32_t i = 0; i + 1 < s.first[1]; i++)
            for (uint32_t j = i + 1; j < s.first[1]; j++) {
                struct dtp_faults faults = {0};
                struct dtp_pass a = s.passes[i], b = s.passes[j];
                if (a.paired || b.paired)
                    continue;
                swap(&s, i, j);
                bool legal = dtp_schedule_verify(&s, DTP_SEND_BUFFERED, &faults) == DTP_OK;
                bool same = a.micro_batch == b.micro_batch && a.chunk == b.chunk;
                assert_false(same && legal);
                found += !legal;
                swap(&s, i, j);
            }
        assert_true(found > 5);
        dtp_schedule_destroy(&s);
    }
}

/* ---- refusals
 * -------------------------------------------------------------------------------------------------------- */

static void expect_refused(struct dtp_schedule_shape shape, const char *part)
{
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_schedule_resolve(&shape, &faults), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], part))
        fail_msg("'%s' is not said but '%s'", part, faults.text[0]);
}

static void test_refusals_name_the_nearest_choice(void **state)
{
    (void)state;
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 0, 1, 0, 0}, "stages: a pipeline has 1 to 65536");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 4, 0, 0, 0}, "micro_batches: a step has 1 to");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 4, 8, 2, 0}, "1f1b has 1 chunk a rank, not 2");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_ZB_V, 4, 8, 0, 4}, "zb-v has no groups");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_INTERLEAVED, 4, 8, 1, 0}, "with one it is schedule 1f1b");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_LOOPED_BFS, 4, 8, 1, 0}, "with one it is schedule gpipe");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_LOOPED_BFS, 4, 8, 2, 4}, "looped-bfs has no groups");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_INTERLEAVED, 1, 8, 2, 0}, "takes 2 ranks or more");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_INTERLEAVED, 4, 10, 2, 0},
                   "leaves 2 of 10 micro-batches to the last group of 4, which takes at least 4 (the ranks); the "
                   "nearest are 8 and 12");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_INTERLEAVED, 4, 3, 2, 0},
                   "at least as many micro-batches as ranks, 4; 3 are too few");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_INTERLEAVED, 4, 12, 2, 3},
                   "a group has from 4 (the ranks) to 12 micro-batches");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_DUALPIPE, 5, 20, 0, 0},
                   "takes an even number of ranks; the nearest to 5 is 6, or schedule dualpipev");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_DUALPIPE, 8, 14, 0, 0},
                   "two micro-batches for each rank or more: 16, not 14");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_DUALPIPE, 4, 9, 0, 0},
                   "the nearest even number to 9 is 10");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_DUALPIPEV, 4, 7, 0, 0}, "or more: 8, not 7");
    expect_refused((struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 65536, 16777216, 0, 0}, "take fewer micro-batches");
    struct dtp_schedule_shape grouped = {DTP_SCHEDULE_INTERLEAVED, 4, 14, 2, 5}; /* 5, 5 and a last group of 4 */
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_schedule_resolve(&grouped, &faults), DTP_OK);
}

/* The micro-batches of a round, by hand from number_of_rounds of schedules.py (2.11): max(1, m // p), which divides m.
 */
static void test_rounds_are_equal(void **state)
{
    (void)state;
    static const uint32_t taken[][3] = {{4, 5, 5}, {4, 10, 5}, {7, 16, 8}, {4, 3, 3}, {4, 12, 4}, {2, 7, 0}};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        struct dtp_schedule_shape shape = {
            .kind = DTP_SCHEDULE_INTERLEAVED, .ranks = taken[i][0], .micro_batches = taken[i][1], .equal_rounds = true};
        struct dtp_faults faults = {0};
        assert_int_equal(dtp_schedule_resolve(&shape, &faults), taken[i][2] ? DTP_OK : DTP_BAD_INPUT);
        if (taken[i][2])
            assert_int_equal(shape.group, taken[i][2]);
        else
            assert_non_null(strstr(faults.text[0],
                                   "in as many rounds as 2 ranks fit into 7 micro-batches, 3, which must "
                                   "divide them; the nearest are 6 and 8"));
    }
    static const struct { /* what is asked for; what is said, or NULL: it is the round's own */
        uint32_t ranks, micro_batches, group;
        const char *words;
    } asked[] = {
        {4, 10, 5, NULL},
        {4, 3, 3, NULL},
        {4, 10, 10, "2 rounds, as many as 4 ranks fit into 10 micro-batches: a group is of 5, not 10"},
        {4, 10, 4, "2 rounds, as many as 4 ranks fit into 10 micro-batches: a group is of 5, not 4"},
        {4, 8, 8, "2 rounds, as many as 4 ranks fit into 8 micro-batches: a group is of 4, not 8"},
        {4, 5, 4, "1 round, as many as 4 ranks fit into 5 micro-batches: a group is of 5, not 4"},
        {2, 7, 7, "the nearest are 6 and 8"},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct dtp_schedule_shape shape = {DTP_SCHEDULE_INTERLEAVED, asked[i].ranks,      asked[i].micro_batches, 2,
                                           asked[i].group,           .equal_rounds = true};
        struct dtp_faults faults = {0};
        assert_int_equal(dtp_schedule_resolve(&shape, &faults), asked[i].words ? DTP_BAD_INPUT : DTP_OK);
        if (asked[i].words && !strstr(faults.text[0], asked[i].words))
            fail_msg("'%s' is not said but '%s'", asked[i].words, faults.text[0]);
    }
}

/* Anything that numbers can say is refused with words or makes a legal schedule. */
static void test_random_shapes(void **state)
{
    (void)state;
    uint64_t random = 5;
    int refused = 0, made = 0;
    for (int i = 0; i < 20000; i++) {
        uint32_t draws[5];
        for (int j = 0; j < 5; j++) {
            next_random(&random);
            uint32_t wide = (uint32_t)(random >> 32);
            draws[j] = wide % 16 == 0 ? wide : wide % 16 == 1 ? UINT32_MAX - wide % 3 : (wide >> 4) % 24;
        }
        struct dtp_schedule_shape shape = {(enum dtp_schedule_kind)(draws[0] % DTP_SCHEDULE_COUNT), draws[1], draws[2],
                                           draws[3] % 3 ? 0 : draws[3], draws[4] % 3 ? 0 : draws[4]};
        struct dtp_schedule_shape resolved = shape;
        struct dtp_faults faults = {0};
        if (dtp_schedule_resolve(&resolved, &faults) != DTP_OK) {
            assert_true(faults.count > 0 && faults.status == DTP_BAD_INPUT);
            refused++;
        } else if ((uint64_t)resolved.ranks * resolved.micro_batches * resolved.chunks < 4000) {
            struct dtp_schedule schedule;
            if (dtp_schedule_create(&shape, &schedule, &faults) != DTP_OK ||
                dtp_schedule_verify(&schedule, DTP_SEND_RENDEZVOUS, &faults) != DTP_OK)
                fail_msg("%s: %s", dtp_schedule_row(shape.kind)->word, faults.text[0]);
            dtp_schedule_destroy(&schedule);
            made++;
        }
    }
    assert_true(refused > 1000 && made > 1000);
}

/* ---- where chunks lie
 * ------------------------------------------------------------------------------------------------ */

static void test_places_and_stages_are_inverse(void **state)
{
    (void)state;
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        struct dtp_schedule s = small((enum dtp_schedule_kind)kind);
        for (uint32_t rank = 0; rank < s.shape.ranks; rank++)
            for (uint32_t chunk = 0; chunk < s.shape.chunks; chunk++) {
                struct dtp_stage_place place =
                    dtp_schedule_place(&s, dtp_schedule_line_of_chunk(&s, chunk), dtp_schedule_stage(&s, rank, chunk));
                assert_int_equal(place.rank, rank);
                assert_int_equal(place.chunk, chunk);
            }
        enum dtp_schedule_kind parsed;
        assert_true(dtp_schedule_parse(dtp_schedule_row((enum dtp_schedule_kind)kind)->word, &parsed));
        assert_int_equal(parsed, kind);
        dtp_schedule_destroy(&s);
    }
    enum dtp_schedule_kind none;
    assert_false(dtp_schedule_parse("2f2b", &none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_refused_is_legal),
        cmocka_unit_test(test_faults_are_named),
        cmocka_unit_test(test_a_circle_is_a_deadlock),
        cmocka_unit_test(test_messages_keep_their_order),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_refusals_name_the_nearest_choice),
        cmocka_unit_test(test_rounds_are_equal),
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_places_and_stages_are_inverse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
