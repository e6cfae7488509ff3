#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/schedule_fixture.h"

#include "schedule/stages.h"

#define CLOSE 1e-9

static struct dtp_faults faults;

static void expect_said(enum dtp_status status, const char *part)
{
    assert_int_equal(status, DTP_BAD_INPUT);
    if (!strstr(faults.text[0], part))
        fail_msg("'%s' is not said but '%s'", part, faults.text[0]);
    faults = (struct dtp_faults){0};
}

/* Every layer in one stage, in order, embedding in the first and head in the last. */
static void expect_whole(const struct dtp_stages *stages, uint32_t layers)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < stages->count; i++) {
        assert_int_equal(stages->parts[i].first_layer, next);
        next += stages->parts[i].layers;
    }
    assert_int_equal(next, layers);
}

static void expect_layers(struct dtp_stages *stages, size_t count, const uint32_t *layers)
{
    assert_int_equal(stages->count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(stages->parts[i].layers, layers[i]);
    dtp_stages_destroy(stages);
}
#define LAYERS(...)                                                                                                    \
    sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), (uint32_t[])                                                 \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* ---- even ----------------------------------------------------------------------------------------------------------
 */

static void test_even(void **state)
{
    (void)state;
    struct dtp_stages s;
    assert_int_equal(dtp_stages_even(&(struct dtp_stages_model){32, 0}, 4, false, false, &s, &faults), DTP_OK);
    assert_true(s.parts[0].embedding && s.parts[3].head && !s.parts[0].head && !s.parts[3].embedding);
    expect_layers(&s, LAYERS(8, 8, 8, 8));
    assert_int_equal(dtp_stages_even(&(struct dtp_stages_model){126, 0}, 16, true, true, &s, &faults), DTP_OK);
    assert_int_equal(s.parts[0].layers, 7); /* Llama 3 405B: 126 layers and two places in 16 stages */
    assert_int_equal(s.parts[1].layers, 8);
    assert_int_equal(s.parts[15].layers, 7);
    expect_whole(&s, 126);
    dtp_stages_destroy(&s);
    assert_int_equal(dtp_stages_even(&(struct dtp_stages_model){7, 2}, 1, true, true, &s, &faults), DTP_OK);
    assert_int_equal(s.parts[0].mtp_layers, 2);
    expect_layers(&s, LAYERS(7));
    expect_said(dtp_stages_even(&(struct dtp_stages_model){61, 0}, 4, false, false, &s, &faults),
                "61 layers do not divide evenly into 4 stages; the nearest numbers are 60 and 64");
    expect_said(dtp_stages_even(&(struct dtp_stages_model){61, 0}, 4, true, true, &s, &faults),
                "61 layers with embedding and head counted do not divide evenly into 4 stages; the nearest numbers are "
                "58 and 62");
    expect_said(dtp_stages_even(&(struct dtp_stages_model){3, 0}, 8, false, false, &s, &faults),
                "the nearest numbers are 8,");
    expect_said(dtp_stages_even(&(struct dtp_stages_model){0, 0}, 8, false, false, &s, &faults), "has 1 to 262144");
    expect_said(dtp_stages_even(&(struct dtp_stages_model){8, 0}, 0, false, false, &s, &faults), "1 to 65536 stages");
}

/* ---- by cost, as nanotron -------------------------------------------------------------------------------------------
 */

/* 16 layers and a head of three: 19 in all. Of two stages the first gets what passes 9.5, ten layers; of eight 2.375 is
 * passed by the 3rd layer, 4.75 by the 5th, 7.125, 9.5, 11.875 and 14.25 by the 8th, 10th, 12th and 15th, 16.625 by the
 * head, which is in the last stage whatever its cost. Runs of the framework's own sweep logged 10 and 3 of 16 on the
 * first stage of two and of eight. */
static void test_by_cost(void **state)
{
    (void)state;
    struct dtp_stages s;
    const struct dtp_stages_model model = {16, 0};
    assert_int_equal(dtp_stages_by_cost(&model, 2, 1, 3, &s, &faults), DTP_OK);
    assert_true(s.parts[0].embedding && s.parts[1].head);
    expect_layers(&s, LAYERS(10, 6));
    assert_int_equal(dtp_stages_by_cost(&model, 4, 1, 3, &s, &faults), DTP_OK);
    expect_layers(&s, LAYERS(5, 5, 5, 1)); /* 4.75, 9.5, 14.25 */
    assert_int_equal(dtp_stages_by_cost(&model, 8, 1, 3, &s, &faults), DTP_OK);
    assert_true(s.parts[7].head && !s.parts[6].head);
    expect_layers(&s, LAYERS(3, 2, 3, 2, 2, 3, 1, 0));
    assert_int_equal(dtp_stages_by_cost(&model, 8, 1, 16, &s, &faults), DTP_OK);
    assert_true(s.parts[7].head);
    expect_layers(&s, LAYERS(4, 4, 4, 4, 0, 0, 0, 0)); /* 4, 8, 12, 16 exactly; the head is worth the other four */
    assert_int_equal(dtp_stages_by_cost(&model, 8, 1, 2, &s, &faults), DTP_OK);
    expect_layers(&s, LAYERS(3, 2, 2, 2, 3, 2, 2, 0)); /* 2.25, 4.5, 6.75, 9 exactly, which is enough, 11.25, ... */
    assert_int_equal(dtp_stages_by_cost(&model, 2, 1, 4, &s, &faults), DTP_OK);
    expect_layers(&s, LAYERS(10, 6)); /* 10 exactly */
}

/* ---- Megatron's texts
 * ------------------------------------------------------------------------------------------------ */

/* The example of its documentation: DeepSeek-V3 on 16 ranks with two chunks each. */
static void test_layout_texts(void **state)
{
    (void)state;
    struct dtp_stages s;
    assert_int_equal(dtp_stages_parse("Et*3|(tt|)*29,m|L", &(struct dtp_stages_model){61, 1}, 16, &s, &faults), DTP_OK);
    assert_int_equal(s.count, 32);
    assert_true(s.parts[0].embedding);
    assert_int_equal(s.parts[0].layers, 3);
    assert_int_equal(s.parts[29].layers, 2);
    assert_int_equal(s.parts[30].layers, 0);
    assert_int_equal(s.parts[30].mtp_layers, 1);
    assert_true(s.parts[31].head && !s.parts[30].head);
    expect_whole(&s, 61);
    char *text = dtp_stages_text(&s);
    assert_string_equal(text, "Et*3|(tt|)*29m|L");
    free(text);
    dtp_stages_destroy(&s);
    assert_int_equal(dtp_stages_parse("Et*3|(tt|)*29|L", &(struct dtp_stages_model){61, 0}, 16, &s, &faults), DTP_OK);
    assert_int_equal(s.count, 32); /* the last but one is empty */
    assert_int_equal(s.parts[30].layers, 0);
    dtp_stages_destroy(&s);
    assert_int_equal(dtp_stages_parse("Et|(tt|)*3,tL", &(struct dtp_stages_model){8, 0}, 5, &s, &faults), DTP_OK);
    expect_layers(&s, LAYERS(1, 2, 2, 2, 1));
    assert_int_equal(dtp_stages_parse("EttL", &(struct dtp_stages_model){2, 0}, 1, &s, &faults), DTP_OK);
    expect_layers(&s, LAYERS(2));
    assert_int_equal(dtp_stages_parse("E|*3tt|L", &(struct dtp_stages_model){2, 0}, 5, &s, &faults), DTP_OK);
    expect_layers(&s, LAYERS(0, 0, 0, 2, 0));
}

static void expect_bad(const char *text, uint32_t layers, uint32_t mtp_layers, uint32_t ranks, const char *part)
{
    struct dtp_stages s;
    enum dtp_status status = dtp_stages_parse(text, &(struct dtp_stages_model){layers, mtp_layers}, ranks, &s, &faults);
    assert_null(s.parts);
    expect_said(status, part);
}

static void test_layout_faults(void **state)
{
    (void)state;
    expect_bad("", 1, 0, 1, "has 0 E and 0 L");
    expect_bad("Ett", 2, 0, 1, "has 1 E and 0 L");
    expect_bad("EtEtL", 2, 0, 1, "has 2 E and 1 L");
    expect_bad("E|L", 0, 0, 2, "has no layer t");
    expect_bad("tE|L", 1, 0, 2, "E first");
    expect_bad("Et|mt|L", 2, 1, 1, "in the order of the model");
    expect_bad("Et|L", 2, 0, 2, "has 1 t and 0 m, but the model 2 layers and 0 MTP layers");
    expect_bad("Et|tL", 2, 0, 4, "its 2 stages are no multiple of the 4 ranks; '|' more makes 4");
    expect_bad("8,8,8,8", 32, 0, 4,
               "a number of layers stands behind its letter, 'Et*8|t*8|t*8|t*8L'; of ranks it is pp");
    expect_bad("Et|t|L", 2, 0, 2, "its 3 stages are no multiple of the 2 ranks; '|' more or less makes 2 or 4");
    expect_bad("Et|tm|mL", 2, 2, 3, "all m stand in one stage");
    expect_bad("Et|m||L", 1, 1, 2,
               "m stands in stage 1, but belongs into the last chunk of a rank: one of the stages 2 to 3");
    expect_bad("Et|x|L", 1, 0, 3, "character 4: neither E, t, m, L");
    expect_bad("Et*|L", 1, 0, 2, "character 4: a number is missing behind '*'");
    expect_bad("Et*0|L", 1, 0, 2, "character 4: repetitions are 1 to");
    expect_bad("Et*99999999999999999999|L", 1, 0, 2, "character 4: repetitions are 1 to");
    expect_bad("E(tt|L", 2, 0, 2, "character 2: a group ends in )*");
    expect_bad("E(tt|)L", 2, 0, 2, "character 2: a group ends in )*");
    expect_bad("E((t)*2)*2L", 4, 0, 1, "character 3: groups hold no groups");
    expect_bad("E()*2L", 1, 0, 1, "character 2: the group is empty");
    expect_bad("E(t*4000)*4000L", 1, 0, 1, "more than 262144 parts");
    expect_bad("E(|)*70000tL", 1, 0, 1, "has 70001 stages, more than 65536");
    expect_bad("EtL", 1, 0, 0, "no multiple of the 0 ranks");
}

/* A group, or a letter, with its number. */
static size_t add_repeated(char *out, size_t count, const char *letters, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++)
        for (const char *c = letters; *c; c++)
            out[count++] = *c;
    return count;
}

/* Random texts, written out as Megatron-LM does it (megatron/core/transformer/pipeline_parallel_layer_layout.py): stage
 * i is chunk i / p of rank i % p, and the layers of a chunk begin behind those of all chunks before it on all ranks and
 * of the same chunk on the ranks before. Uneven and empty stages among them. */
static void test_layouts_lie_as_megatrons(void **state)
{
    static const char *const groups[] = {"tt|", "|t", "ttt", "t|t|", "|"};
    uint64_t random = 5;
    (void)state;
    for (int i = 0; i < 2000; i++) {
        char text[256] = "E", plain[1024] = "E";
        size_t count = 1, stages = 1;
        uint32_t layers = 0, ranks;
        for (int part = 0; part < 4; part++) {
            next_random(&random);
            const char *letters = part == 3 || random >> 63 ? "t" : groups[(random >> 40) % 5];
            uint32_t times = 1 + (uint32_t)(random >> 33) % 6;
            size_t end = strlen(text);
            snprintf(text + end, sizeof text - end, letters[1] ? "(%s)*%u" : "%s*%u", letters, times);
            count = add_repeated(plain, count, letters, times);
        }
        strcat(text, "L");
        plain[count] = 'L';
        for (size_t k = 0; k < count; k++)
            stages += plain[k] == '|', layers += plain[k] == 't';
        for (ranks = 1 + (uint32_t)(random >> 20) % 8; stages % ranks; ranks--)
            ;
        struct dtp_stages s;
        if (dtp_stages_parse(text, &(struct dtp_stages_model){layers, 0}, ranks, &s, &faults) != DTP_OK)
            fail_msg("%s on %u: %s", text, ranks, faults.text[0]);
        assert_int_equal(s.count, stages);
        const char *at = plain;
        uint32_t offset = 0;
        for (uint32_t chunk = 0; chunk < stages / ranks; chunk++)
            for (uint32_t rank = 0; rank < ranks; rank++) {
                const struct dtp_stage_parts *parts = &s.parts[chunk * ranks + rank];
                uint32_t own = 0;
                for (; *at && *at != '|'; at++)
                    own += *at == 't';
                at += *at == '|';
                assert_true(parts->layers == own && parts->first_layer == offset);
                assert_true(parts->embedding == (parts == s.parts));
                assert_true(parts->head == (chunk * ranks + rank + 1 == stages));
                offset += own;
            }
        assert_int_equal(offset, layers);
        dtp_stages_destroy(&s);
    }
}

/* Random stages come back from their text. */
static void test_texts_come_back(void **state)
{
    (void)state;
    uint64_t random = 11;
    for (int i = 0; i < 2000; i++) {
        struct dtp_stage_parts parts[40] = {{0}};
        struct dtp_stages stages = {.parts = parts}, again;
        struct dtp_stages_model model = {0};
        next_random(&random);
        stages.count = 1 + (uint32_t)(random >> 40) % 40;
        for (uint32_t k = 0; k < stages.count; k++) {
            next_random(&random);
            bool same = k && (random >> 60) > 4;
            parts[k].first_layer = model.layers;
            parts[k].layers = same ? parts[k - 1].layers : (uint32_t)(random >> 33) % 5 + (k == 0);
            model.layers += parts[k].layers;
        }
        parts[0].embedding = true;
        parts[stages.count - 1].head = true;
        parts[stages.count - 1].mtp_layers = model.mtp_layers = (uint32_t)(random >> 50) % 3;
        char *text = dtp_stages_text(&stages);
        assert_non_null(text);
        if (dtp_stages_parse(text, &model, stages.count, &again, &faults) != DTP_OK)
            fail_msg("%s: %s", text, faults.text[0]);
        assert_int_equal(again.count, stages.count);
        for (uint32_t k = 0; k < stages.count; k++) {
            assert_int_equal(again.parts[k].first_layer, parts[k].first_layer);
            assert_int_equal(again.parts[k].layers, parts[k].layers);
            assert_int_equal(again.parts[k].mtp_layers, parts[k].mtp_layers);
        }
        dtp_stages_destroy(&again);
        free(text);
    }
}

/* ---- best
 * ------------------------------------------------------------------------------------------------------------ */

#define MOST 12

static struct dtp_part_cost random_part(uint64_t *random)
{
    next_random(random);
    double whole = 1 + (double)(*random >> 60); /* often equal */
    return (struct dtp_part_cost){.forward_s = whole, .backward_s = whole, .weight_s = whole / 2, .kept = 1};
}

static double slowest_s(const struct dtp_stages *stages, const struct dtp_model_cost *cost)
{
    struct dtp_stage_cost costs[MOST];
    double slowest = 0;
    dtp_stages_cost(stages, cost, costs);
    for (uint32_t i = 0; i < stages->count; i++)
        slowest = fmax(slowest, costs[i].forward_s + costs[i].backward_s + costs[i].weight_s);
    return slowest;
}

/* The least over all cuts, each of `judge`. */
static double try_all(struct dtp_stages *stages, uint32_t stage, uint32_t left, const struct dtp_model_cost *cost,
                      double (*judge)(const struct dtp_stages *stages, const struct dtp_model_cost *cost))
{
    double best = INFINITY;
    stages->parts[stage].first_layer =
        stage ? stages->parts[stage - 1].first_layer + stages->parts[stage - 1].layers : 0;
    if (stage + 1 == stages->count) {
        stages->parts[stage].layers = left;
        return judge(stages, cost);
    }
    for (uint32_t layers = 1; layers + stages->count - stage - 1 <= left; layers++) {
        stages->parts[stage].layers = layers;
        stages->parts[stage + 1].first_layer = stages->parts[stage].first_layer + layers;
        best = fmin(best, try_all(stages, stage + 1, left - layers, cost, judge));
    }
    return best;
}

static void test_best_is_best(void **state)
{
    (void)state;
    uint64_t random = 3;
    for (int i = 0; i < 400; i++) {
        struct dtp_part_cost layers[MOST];
        for (int k = 0; k < MOST; k++)
            layers[k] = random_part(&random);
        struct dtp_model_cost cost = {random_part(&random), random_part(&random), random_part(&random), layers, 0};
        struct dtp_stages_model model = {1 + (uint32_t)(random >> 40) % MOST, (uint32_t)(random >> 50) % 2};
        uint32_t count = 1 + (uint32_t)(random >> 33) % model.layers;
        struct dtp_stages best;
        struct dtp_stage_parts parts[MOST] = {{0}};
        struct dtp_stages all = {count, parts};
        parts[0].embedding = true;
        parts[count - 1].head = true;
        parts[count - 1].mtp_layers = model.mtp_layers;
        assert_int_equal(dtp_stages_best(&model, &cost, count, &best, &faults), DTP_OK);
        expect_whole(&best, model.layers);
        double wanted = try_all(&all, 0, model.layers, &cost, slowest_s);
        if (fabs(slowest_s(&best, &cost) - wanted) > CLOSE)
            fail_msg("%u layers in %u stages: %g, not %g", model.layers, count, slowest_s(&best, &cost), wanted);
        dtp_stages_destroy(&best);
    }
    struct dtp_stages none;
    struct dtp_part_cost one = {1, 1, 1, 0, 0};
    struct dtp_model_cost cost = {.layers = &one};
    expect_said(dtp_stages_best(&(struct dtp_stages_model){1, 0}, &cost, 2, &none, &faults),
                "1 layers are cut into 1 to 1 stages, not 2");
}

static struct timed *judged; /* by test_best_step */

static double step_s(const struct dtp_stages *stages, const struct dtp_model_cost *cost)
{
    dtp_stages_cost(stages, cost, judged->stages);
    struct dtp_schedule_costs costs = {judged->stages, 1};
    return dtp_schedule_timer_makespan(judged->timer, &costs);
}

/* Of all cuts of ten layers into four stages: the step is the least in nearly all draws, and never longer than that of
 * the cut whose slowest stage is fastest. */
static void test_best_step(void **state)
{
    (void)state;
    uint64_t random = 21;
    int draws = 150, least = 0;
    for (int i = 0; i < draws; i++) {
        struct timed t;
        struct dtp_part_cost layers[10];
        double got_s;
        timed_make(&t, (struct dtp_schedule_shape){i % 2 ? DTP_SCHEDULE_ZB_H1 : DTP_SCHEDULE_1F1B, 4, 8, 0, 0},
                   DTP_SEND_BUFFERED);
        judged = &t;
        for (int k = 0; k < 10; k++)
            layers[k] = random_part(&random);
        struct dtp_model_cost cost = {random_part(&random), random_part(&random), random_part(&random), layers, 0.5};
        struct dtp_stages_model model = {10, 0};
        struct dtp_stages best, first;
        struct dtp_stage_parts parts[4] = {{.embedding = true}, {0}, {0}, {.head = true}};
        assert_int_equal(dtp_stages_best(&model, &cost, 4, &first, &faults), DTP_OK);
        assert_int_equal(dtp_stages_best_step(&model, &cost, &t.schedule, t.timer, 1, &best, &got_s, &faults), DTP_OK);
        expect_whole(&best, 10);
        assert_true(fabs(step_s(&best, &cost) - got_s) < CLOSE);
        assert_true(got_s <= step_s(&first, &cost) + CLOSE);
        double wanted = try_all(&(struct dtp_stages){4, parts}, 0, 10, &cost, step_s);
        assert_true(got_s >= wanted - CLOSE && got_s <= wanted * 1.15);
        least += got_s <= wanted + CLOSE;
        dtp_stages_destroy(&first);
        dtp_stages_destroy(&best);
        timed_release(&t);
    }
    struct timed large;
    struct dtp_part_cost one[64] = {{1, 1, 1, 0, 0}};
    struct dtp_model_cost cost = {.layers = one};
    struct dtp_stages none;
    double never_s;
    timed_make(&large, (struct dtp_schedule_shape){DTP_SCHEDULE_1F1B, 64, 8192, 0, 0}, DTP_SEND_BUFFERED);
    expect_said(dtp_stages_best_step(&(struct dtp_stages_model){64, 0}, &cost, &large.schedule, large.timer, 1, &none,
                                     &never_s, &faults),
                "are too many to try every move of a layer");
    timed_release(&large);
    if (least < draws * 3 / 4)
        fail_msg("the least step in %d of %d draws", least, draws);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even),
        cmocka_unit_test(test_by_cost),
        cmocka_unit_test(test_layout_texts),
        cmocka_unit_test(test_layout_faults),
        cmocka_unit_test(test_layouts_lie_as_megatrons),
        cmocka_unit_test(test_texts_come_back),
        cmocka_unit_test(test_best_is_best),
        cmocka_unit_test(test_best_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
