/* Degrees of parallelism, schedules and stages of a plan: what they come to, and what is refused with which advice. */
#include "plan/degrees.h"
#include "plan/slice.h"
#include "plan/plan_keys.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "lib/plan_fixture.h"

/* LLaMA-7B (32 layers, 32 heads, ffn 11008) on 64 GPUs in nodes of 8, by a runtime that has all there is. */
static struct dtp_runtime everything;

static struct dtp_plan split(uint32_t tp, uint32_t cp, uint32_t pp)
{
    struct dtp_plan plan = with_strategy("ddp", "megatron");
    everything = dtp_runtime_megatron;
    everything.splits = DTP_AXES(TP) | DTP_AXES(CP) | DTP_AXES(PP);
    everything.schedules = (1u << DTP_SCHEDULE_COUNT) - 1;
    plan.runtime = &everything;
    plan.tp = tp, plan.cp = cp, plan.pp = pp;
    plan.accumulate = 16;
    return plan;
}

static enum dtp_status resolve_64(struct dtp_plan *plan)
{
    return resolve(plan, 64, 8);
}

static struct dtp_plan resolved(struct dtp_plan plan)
{
    if (resolve_64(&plan) != DTP_OK)
        fail_msg("refused: %s", faults.text[0]);
    struct dtp_plan again = plan;
    assert_int_equal(resolve_64(&again), DTP_OK);
    assert_memory_equal(&again, &plan, sizeof plan); /* resolving twice changes nothing */
    return plan;
}

static void expect_refused(struct dtp_plan plan, const char *says)
{
    assert_int_equal(resolve_64(&plan), DTP_BAD_INPUT);
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++)
        if (strcmp(faults.text[i], says) == 0)
            return;
    fail_msg("'%s' is not said; first: %s", says, faults.text[0]);
}

/* ---- degrees ----------------------------------------------------------------------------------------------------- */

static void test_tensor_parallel_rules(void **state)
{
    (void)state;
    resolved(split(8, 1, 2));
    resolved(split(16, 1, 1)); /* two whole nodes */
    expect_refused(split(3, 1, 1), "tp: 3 does not divide 32 heads; the nearest that fit are 2 and 4");
    expect_refused(split(64, 1, 1), "tp: 64 does not divide 32 heads; the nearest that fits is 32");
    struct dtp_plan plan = split(2, 1, 1);
    plan.sequence = 2047;
    expect_refused(plan,
                   "tp: 2 does not divide seq 2047, which sequence_parallel spreads over it; the nearest that fits "
                   "is 1");
    plan.sequence_parallel = false;
    resolved(plan);
    expect_refused(split(2, 1, 5), "pp: tp 2 x pp 5 do not divide 64 GPUs; the nearest that fit are 4 and 8");
    plan = split(2, 1, 1);
    plan.offload = DTP_OFFLOAD_OPTIMIZER;
    expect_refused(plan, "offload: is not modelled together with tp, cp or pp; use none");
}

/* `ffn` is nobody's where all layers have experts, which tensor parallel ranks do not cut. */
static void test_widths_of_experts(void **state)
{
    (void)state;
    struct dtp_plan plan = split(8, 1, 1);
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster c = cluster(64, 8);
    t.experts = 8, t.experts_per_token = 2, t.expert_ffn = 512, t.ffn = 11009, plan.ep = 8;
    memset(&faults, 0, sizeof faults);
    struct dtp_plan asked = plan;
    if (dtp_plan_resolve(&plan, &t, &c, &faults) != DTP_OK)
        fail_msg("refused: %s", faults.text[0]);
    t.dense_layers = 1, plan = asked;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "tp: 8 does not divide ffn 11009"));
    t.ffn = 11008, t.shared_expert_ffn = 516, plan = asked;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "tp: 8 does not divide shared_expert_ffn 516"));
}

/* 4 of 12 heads' widths: neither divides the GPUs of a node of 8 but 4 does; key/value heads divide or are divided. */
static void test_nodes_and_key_value_heads(void **state)
{
    (void)state;
    struct dtp_plan plan = split(12, 1, 1);
    struct dtp_transformer t = llama_7b();
    struct dtp_cluster c = cluster(96, 8);
    t.heads = t.kv_heads = 48, t.ffn = 12288, plan.sequence = 3072;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0],
                        "tp: 12 neither divides a node of 8 GPUs nor fills whole nodes; the nearest that "
                        "fit are 8 and 16");
    plan = split(4, 1, 1);
    t.kv_heads = 6;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, &faults), DTP_BAD_INPUT);
    assert_string_equal(faults.text[0], "tp: 4 and 6 key/value heads: neither divides the other; the nearest that fits "
                                        "is 2");
    plan = split(24, 1, 1);
    plan.sequence = 3072;
    assert_int_equal(dtp_plan_resolve(&plan, &t, &c, NULL), DTP_OK); /* each has one key/value head, on 4 ranks */
}

static void test_context_parallel_rules(void **state)
{
    (void)state;
    resolved(split(1, 8, 1));
    struct dtp_plan plan = split(1, 8, 1);
    plan.sequence = 2056; /* 8 x 257 */
    expect_refused(plan, "cp: 8 x 2 pieces a rank do not divide seq 2056; the nearest that fits is 4");
    plan.cp_comm = DTP_CP_A2A;
    resolved(plan); /* heads for tokens: one piece each */
    plan = split(8, 8, 1);
    plan.cp_comm = DTP_CP_A2A;
    expect_refused(plan, "cp: a2a over 8 ranks x tp does not divide 32 heads and 32 key/value heads; cp_comm p2p takes "
                         "any; the nearest that fits is 4");
    plan.cp_comm = DTP_CP_A2A_P2P; /* of a node tp leaves nothing to exchange over */
    resolved(plan);
    plan = split(2, 1, 1);
    plan.cp_comm = DTP_CP_A2A;
    expect_refused(plan, "cp_comm: is for context parallelism (cp above 1) only; leave it out, or give cp above 1");
}

static void set_order(struct dtp_plan *plan, const char *text)
{
    struct dtp_layout layout;
    assert_true(dtp_layout_parse_order(text, &layout));
    memcpy(plan->layout_order, layout.order, sizeof layout.order);
}

/* 8 GPUs a node. Groups of Megatron-LM's --use-tp-pp-dp-mapping: stages 2 apart, data parallel ranks 4. */
static void test_order_of_ranks(void **state)
{
    (void)state;
    struct dtp_cluster c = cluster(64, 8);
    struct dtp_plan plan = split(2, 1, 2);
    set_order(&plan, "cp-tp-dp-pp");
    resolved(plan); /* cp is 1 */
    plan.cp = 2;
    expect_refused(plan, "layout_order: cp follows tp, as in tp-cp-pp-dp");
    set_order(&plan, "tp-cp-pp-dp");
    expect_refused(plan, "layout_order: other ranks stand between those of cp, dp_shard and dp_replicate, over which "
                         "gradients are summed; name them one behind the other");
    plan.cp = 1;
    plan = resolved(plan);
    assert_int_equal(dtp_plan_group(&plan, &c, DTP_AXES(PP)).stride, 2);
    assert_int_equal(dtp_plan_group(&plan, &c, DTP_AXES_DENSE_DATA).stride, 4);
    set_order(&plan, "dp-tp-pp");
    plan = resolved(plan);
    assert_int_equal(dtp_plan_group(&plan, &c, DTP_AXES(TP)).stride, dtp_plan_data_ranks(&plan, &c));
    set_order(&plan, "tp-pp-dp");
    plan.tp = plan.pp = 1;
    expect_refused(plan,
                   "layout_order: is for tensor, context or pipeline parallelism (above 1) only; leave it out, or "
                   "give tp above 1");
}

/* ---- schedules --------------------------------------------------------------------------------------------------- */

static void test_chunks_follow_from_the_schedule(void **state)
{
    (void)state;
    struct dtp_plan plan = split(1, 1, 4);
    assert_int_equal(resolved(plan).schedule, DTP_SCHEDULE_1F1B);
    assert_int_equal(dtp_plan_stage_count(&plan), 4);
    plan.virtual_stages = 2;
    struct dtp_plan chunked = resolved(plan), rounds = plan;
    assert_int_equal(chunked.schedule, DTP_SCHEDULE_INTERLEAVED);
    assert_int_equal(chunked.microbatch_group, 4);
    assert_int_equal(dtp_plan_stage_count(&chunked), 8);
    rounds.schedule = DTP_SCHEDULE_ZB_INTERLEAVED;
    rounds = resolved(resolved(rounds)); /* once more, it may be */
    assert_int_equal(dtp_plan_schedule(&rounds).group, 4);
    rounds.schedule = DTP_SCHEDULE_1F1B, rounds.virtual_stages = 1;
    rounds = resolved(rounds);
    assert_int_equal(dtp_plan_schedule(&rounds).group, 0);
    plan.schedule = DTP_SCHEDULE_INTERLEAVED, plan.virtual_stages = 1;
    assert_int_equal(resolved(plan).virtual_stages, 2);
    plan.schedule = DTP_SCHEDULE_ZB_V;
    assert_int_equal(resolved(plan).virtual_stages, 2);
    plan.schedule = DTP_SCHEDULE_DUALPIPE; /* two copies: each micro-batch goes through four stages */
    struct dtp_plan dual = resolved(plan);
    assert_int_equal(dtp_plan_stage_count(&dual), 4);
    struct dtp_schedule_shape shape = dtp_plan_schedule(&dual);
    assert_int_equal(dtp_schedule_resolve(&shape, NULL), DTP_OK);
    assert_true(shape.ranks == 4 && shape.micro_batches == 16 && shape.chunks == 2);
}

static void test_schedules_are_refused_by_their_rules(void **state)
{
    (void)state;
    struct dtp_plan plan = split(1, 1, 4);
    plan.virtual_stages = 2, plan.accumulate = 6;
    expect_refused(plan, "accumulate: interleaved leaves 2 of 6 micro-batches to the last group of 4, which takes at "
                         "least 4 (the ranks); the nearest are 4 and 8");
    plan.accumulate = 16, plan.microbatch_group = 3;
    expect_refused(plan,
                   "microbatch_group: a group has from 4 (the ranks) to 16 micro-batches (those of a step), not 3");
    plan = split(1, 1, 4);
    plan.schedule = DTP_SCHEDULE_DUALPIPE, plan.accumulate = 6;
    expect_refused(plan, "accumulate: dualpipe takes two micro-batches for each rank or more: 8, not 6");
    plan = split(1, 1, 4);
    plan.schedule = DTP_SCHEDULE_ZB_H1, plan.virtual_stages = 2;
    expect_refused(plan, "virtual_stages: zb-h1 has 1 chunk a rank, not 2; interleaved takes any number");
    plan = split(1, 1, 4);
    plan.microbatch_group = 4;
    expect_refused(plan,
                   "microbatch_group: is for the interleaved schedule (pp and virtual_stages above 1) only; leave "
                   "it out, or give virtual_stages above 1");
    plan = split(1, 1, 1);
    plan.schedule = DTP_SCHEDULE_GPIPE;
    expect_refused(plan, "schedule: is for pipelines (pp above 1) only; leave it out, or give pp above 1");
    plan = split(1, 1, 4);
    plan.schedule = DTP_SCHEDULE_ZB_H1;
    everything.schedules = 1u << DTP_SCHEDULE_1F1B | 1u << DTP_SCHEDULE_INTERLEAVED;
    expect_refused(plan, "schedule: zb-h1 is not modelled under runtime megatron, which runs 1f1b, interleaved");
}

static void test_who_validateswards(void **state)
{
    (void)state;
    struct dtp_plan plan = split(1, 1, 4);
    plan.post_validation = true, plan.schedule = DTP_SCHEDULE_ZB_H2;
    assert_true(resolved(plan).post_validation);
    plan.strategy = DTP_ZERO1, plan.megatron.overlap = true;
    expect_refused(plan, "post_validation: is not with a distributed optimizer that overlaps its gather with the next "
                         "forward, which sail-sg's program refuses; leave out megatron_overlap");
    plan.megatron.overlap = false;
    resolved(plan);
    plan.schedule = DTP_SCHEDULE_1F1B;
    expect_refused(plan,
                   "post_validation: is for zero bubble schedules (zb-h1, zb-h2, zb-1p, zb-2p, zb-v, v-half, "
                   "v-min, zb-interleaved) under runtime megatron only; leave it out with strategy zero1 under runtime "
                   "megatron");
    struct dtp_transformer tied = llama_7b();
    struct dtp_cluster gpus = cluster(64, 8);
    tied.tied_head = true, plan.schedule = DTP_SCHEDULE_ZB_V;
    faults = (struct dtp_faults){0};
    assert_int_equal(dtp_plan_resolve(&plan, &tied, &gpus, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "post_validation: is not with a head tied to the embedding"));
}

/* Schedules that take sends which nobody waits for do not run where each is awaited before the next. */
static void test_sends_that_are_awaited(void **state)
{
    (void)state;
    static const enum dtp_schedule_kind run[] = {DTP_SCHEDULE_1F1B, DTP_SCHEDULE_INTERLEAVED, DTP_SCHEDULE_ZB_H1,
                                                 DTP_SCHEDULE_V_HALF};
    struct dtp_plan plan = split(1, 1, 4);
    plan.avoid_record_streams = true, plan.accumulate = 8;
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        plan.schedule = run[i];
        resolved(plan);
    }
    plan.schedule = DTP_SCHEDULE_ZB_V;
    expect_refused(plan, "avoid_record_streams: schedule zb-v runs with sends that nobody waits for, and when its "
                         "code awaits them is not modelled; leave it out, or use 1f1b or interleaved");
}

/* Nobody divides experts of a model that has none. */
static void test_experts_that_are_not(void **state)
{
    (void)state;
    struct dtp_plan plan = split(1, 1, 1);
    plan.megatron.etp = 2;
    expect_refused(plan, "etp: above 1 divides experts, of which this model has none; use 1");
}

/* ---- stages ------------------------------------------------------------------------------------------------------ */

/* Layers of each stage, in order. */
static void expect_layers(struct dtp_plan plan, uint64_t layers, const char *expected)
{
    struct dtp_stages stages;
    struct dtp_transformer t = llama_7b();
    char text[256] = "";
    t.layers = layers;
    if (dtp_plan_stages(&plan, &t, &stages, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    for (uint32_t i = 0; i < stages.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%" PRIu32 "%s", i ? " " : "",
                 stages.parts[i].layers, stages.parts[i].head ? "h" : "");
    assert_true(stages.parts[0].embedding);
    assert_string_equal(text, expected);
    dtp_stages_destroy(&stages);
}

static struct dtp_plan cut_as(uint32_t pp, uint32_t chunks, const char *words)
{
    struct dtp_plan plan = split(1, 1, pp);
    plan.virtual_stages = chunks;
    if (!dtp_stage_choice_parse(words, &plan.stages))
        fail_msg("'%s' is not taken", words);
    assert_string_equal(dtp_stage_choice_text(&plan.stages), words);
    return plan;
}

/* By hand: 34 layers with both ends over 4 are 9 9 8 8, less the ends; LLaMA 3 405B (126 layers over 16 x 8 stages) has
 * none in its first and last one, as Meta trained it; BLOOM's 70 over 12 are 5, ten of 6, 5. nanotron's cost of a
 * LLaMA-7B layer is 4 x 4096^2 + 3 x 4096 x 11008 = 202.4 million, of its head 131 million: of 6607 in all the first
 * stage has passed its quarter, 1652, with 9 layers, the second its half, 3304, with 8 more, the third 4956 with 8. */
static void test_stages(void **state)
{
    (void)state;
    expect_layers(cut_as(4, 1, "even"), 32, "8 8 8 8h");
    expect_layers(cut_as(4, 1, "counted"), 32, "8 9 8 7h");
    expect_layers(cut_as(4, 1, "even"), 31, "8 8 8 7h");
    expect_layers(cut_as(4, 1, "cost"), 32, "9 8 8 7h");
    expect_layers(cut_as(12, 1, "even"), 70, "5 6 6 6 6 6 6 6 6 6 6 5h");
    expect_layers(cut_as(4, 1, "Et*7|t*9|t*9|t*7L"), 32, "7 9 9 7h");
    struct dtp_plan plan = cut_as(16, 8, "even");
    struct dtp_transformer t = llama_7b();
    struct dtp_stages stages;
    t.layers = 126;
    assert_int_equal(dtp_plan_stages(&plan, &t, &stages, NULL), DTP_OK);
    for (uint32_t i = 0; i < 128; i++)
        assert_int_equal(stages.parts[i].layers, i > 0 && i < 127);
    dtp_stages_destroy(&stages);
}

/* Stages of 8, 9, 9, 6 on two ranks: under interleaved these have the first and third, the second and last; there and
 * back, the outer and the inner ones; with both copies of two stages of 20 and 12 each micro-batch passes one of each.
 */
static void test_layers_of_ranks(void **state)
{
    (void)state;
    struct dtp_plan plan = resolved(cut_as(2, 1, "Et*8|t*9|t*9|t*6L"));
    assert_true(plan.schedule == DTP_SCHEDULE_INTERLEAVED && plan.most_layers == 17 && plan.head_layers == 15);
    plan = cut_as(2, 1, "Et*8|t*9|t*9|t*6L");
    plan.schedule = DTP_SCHEDULE_ZB_V;
    plan = resolved(plan);
    assert_true(plan.most_layers == 18 && plan.head_layers == 14);
    plan = cut_as(2, 1, "Et*20|t*12L");
    plan.schedule = DTP_SCHEDULE_DUALPIPE;
    plan = resolved(plan);
    assert_true(plan.most_layers == 16 && plan.head_layers == 16);
    plan = split(2, 1, 1);
    plan = resolved(plan);
    assert_true(plan.most_layers == 0 && plan.head_layers == 0);
}

static void test_a_layout_says_how_many_chunks(void **state)
{
    (void)state;
    struct dtp_plan plan = resolved(cut_as(4, 1, "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*5L"));
    assert_int_equal(plan.virtual_stages, 2);
    assert_int_equal(plan.schedule, DTP_SCHEDULE_INTERLEAVED);
    expect_refused(cut_as(4, 3, "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*5L"),
                   "stages: has 8 stages where pp 4 x virtual_stages has 12");
    expect_refused(cut_as(4, 1, "Et*8|t*8|t*8|t*7L"),
                   "stages: has 31 t and 0 m, but the model 32 layers and 0 MTP layers");
    expect_refused(cut_as(4, 9, "even"), "virtual_stages: 36 stages of 32 layers; at most 34, the first with the "
                                         "embedding alone, the last with the head");
    struct dtp_stage_choice choice;
    assert_false(dtp_stage_choice_parse("", &choice) || dtp_stage_choice_parse("uneven", &choice));
    char longest[DTP_STAGE_LAYOUT_BYTES + 1];
    memset(longest, 't', sizeof longest);
    longest[DTP_STAGE_LAYOUT_BYTES - 1] = '\0';
    assert_true(dtp_stage_choice_parse(longest, &choice));
    longest[DTP_STAGE_LAYOUT_BYTES - 1] = 't', longest[DTP_STAGE_LAYOUT_BYTES] = '\0';
    assert_false(dtp_stage_choice_parse(longest, &choice));
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

/* What the row of the key lists is the table of schedules. */
static void test_the_key_names_all_schedules(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
    } rows[] = {
#define DTP_KEY(key, section, value, how, reader, tried, words) {#key, value},
#include "plan/plan_keys.def"
#undef DTP_KEY
    };
    char all[256] = "";
    for (int i = 0; i < DTP_SCHEDULE_COUNT; i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? "|" : "",
                 dtp_schedule_row((enum dtp_schedule_kind)i)->word);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].key, "schedule") == 0)
            assert_string_equal(rows[i].value, all);
}

/* Refusals say which runtimes have an axis: those that do. */
static void test_words_name_who_splits(void **state)
{
    (void)state;
    static const struct {
        enum dtp_key_reader reader;
        unsigned axis;
    } readers[] = {{DTP_READER_TENSOR, DTP_AXES(TP)}, {DTP_READER_CONTEXT, DTP_AXES(CP)}};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        for (int runtime = 0; runtime < DTP_RUNTIMES; runtime++) {
            bool named = strstr(dtp_key_reader_words(readers[i].reader), dtp_runtimes[runtime]->name);
            assert_int_equal(named, (dtp_runtimes[runtime]->splits & readers[i].axis) != 0);
            bool pipelines = dtp_runtimes[runtime]->splits & DTP_AXES(PP);
            assert_int_equal(pipelines, dtp_runtimes[runtime]->schedules != 0);
        }
}

/* What searches leave out by their degrees alone is refused with any batch, and what is not left out exists with some.
 */
static void test_layouts_that_exist(void **state)
{
    static const uint32_t degrees[] = {1, 2, 3, 4, 5, 8, 16, 32, 64, 128};
    static const size_t count = sizeof degrees / sizeof *degrees;
    struct dtp_transformer transformer = llama_7b();
    struct dtp_cluster gpus = cluster(64, 8);
    (void)state;
    for (size_t tp = 0; tp < count; tp++)
        for (size_t cp = 0; cp < count; cp++)
            for (size_t pp = 0; pp < count; pp++) {
                struct dtp_plan plan = split(degrees[tp], degrees[cp], degrees[pp]);
                bool exists = dtp_plan_layout_exists(&plan, &transformer, &gpus), some = false;
                for (uint32_t accumulate = 1; accumulate <= 64; accumulate *= 64) {
                    struct dtp_plan asked = plan;
                    asked.accumulate = accumulate;
                    some = some || resolve_64(&asked) == DTP_OK;
                }
                assert_true(exists == some || (exists && degrees[pp] > transformer.layers));
            }
    struct dtp_plan torch = split(1, 1, 2);
    torch.runtime = &dtp_runtime_torch;
    assert_int_equal(dtp_plan_layout_exists(&torch, &transformer, &gpus),
                     (dtp_runtime_torch.splits & DTP_AXES(PP)) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_parallel_rules),
        cmocka_unit_test(test_nodes_and_key_value_heads),
        cmocka_unit_test(test_widths_of_experts),
        cmocka_unit_test(test_context_parallel_rules),
        cmocka_unit_test(test_layouts_that_exist),
        cmocka_unit_test(test_order_of_ranks),
        cmocka_unit_test(test_chunks_follow_from_the_schedule),
        cmocka_unit_test(test_schedules_are_refused_by_their_rules),
        cmocka_unit_test(test_who_validateswards),
        cmocka_unit_test(test_sends_that_are_awaited),
        cmocka_unit_test(test_experts_that_are_not),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_layers_of_ranks),
        cmocka_unit_test(test_a_layout_says_how_many_chunks),
        cmocka_unit_test(test_the_key_names_all_schedules),
        cmocka_unit_test(test_words_name_who_splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
