/* Experts together with the other ways to divide a job, on the host device: stages of every schedule, ranks that share
 * sequences, shards of state, and layers of two kinds learn what one rank with all of the model learns, and hold and
 * send what their programs say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"

#define STEPS RANDOM_DRAWS(50) /* each on a batch that is drawn */
#define LAYOUT_FOLDER "expert_layouts"
/* As test_run_tensor.c says. */
#define LEARNING_RATE "1e-3"
#include "lib/layout_fixture.h"
#include "runtime/runtimes.h"
#include "schedule/schedule.h"

#define MODEL                                                                                                          \
    "layers=4 hidden=16 heads=4 head_dim=8 ffn=32 vocab=41 seq=8 clip_norm=0.5 experts=8 experts_per_token=2 "         \
    "expert_ffn=24 "
#define SHARED                                                                                                         \
    MODEL "shared_expert_ffn=32 shared_expert_gate=true router=sigmoid router_norm=true expert_groups=4 "              \
          "groups_per_token=2 "
#define ONE "gpus=1 micro_batch=1 accumulate=8"

static void learn_as_one(const char *model, const char *const *plans, size_t count)
{
    struct run_result one;
    char words[600];
    snprintf(words, sizeof words, "%s" ONE, model);
    train(words, "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    for (size_t i = 0; i < count; i++)
        learns_as_one(model, plans[i], &one, "one", false);
    remove_all(folder("one"));
}

/* Ranks of one stage divide its experts. */
static void test_every_schedule(void **state)
{
    struct run_result one;
    (void)state;
    train(MODEL ONE, "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        char words[128];
        if (!(dtp_runtime_find("dtplan")->schedules & 1u << kind))
            continue;
        snprintf(words, sizeof words, "gpus=4 pp=2 ep=2 schedule=%s strategy=%s micro_batch=1 accumulate=4",
                 dtp_schedule_row((enum dtp_schedule_kind)kind)->word, kind % 2 ? "ddp" : "zero1");
        learns_as_one(MODEL, words, &one, "one", false);
    }
    remove_all(folder("one"));
}

/* Without other ranks all is added in the order of one: backward in two halves changes no bit, whether a stage has all
 * experts or its ranks divide them. */
static void test_halves_change_no_bit(void **state)
{
    static const char *const stages[] = {
        "gpus=2 pp=2 schedule=zb-h1 micro_batch=1 accumulate=8",
        "gpus=2 pp=2 schedule=1f1b micro_batch=1 accumulate=8 delay_wgrad=2",
        "gpus=2 pp=2 schedule=zb-v micro_batch=1 accumulate=8 checkpointing=full",
        "gpus=2 pp=2 schedule=interleaved virtual_stages=2 micro_batch=1 accumulate=8",
    };
    struct run_result one, two;
    (void)state;
    train(SHARED ONE, "one", &one);
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        learns_as_one(SHARED, stages[i], &one, "one", true);
    train(SHARED "gpus=2 ep=2 strategy=zero1 micro_batch=1 accumulate=4", "one", &two);
    learns_as_one(SHARED, "gpus=4 pp=2 ep=2 strategy=zero1 micro_batch=1 accumulate=4 delay_wgrad=1", &two, "one",
                  true);
    learns_as_one(SHARED, "gpus=4 pp=2 ep=2 schedule=zb-h2 strategy=zero1 micro_batch=1 accumulate=4", &two, "one",
                  true);
    remove_all(folder("one"));
}

/* What else blocks with experts consist of: biases that are added in place, sinks, latents, replays. */
static void test_halves_of_other_blocks(void **state)
{
    static const char *const models[] = {
        "expert_bias=true activation=swiglu_clamped attention_sinks=true ",
        "kv_heads=4 head_dim=16 value_head_dim=8 q_latent=16 kv_latent=16 rope_head_dim=8 shared_expert_ffn=16 ",
        "dense_layers=1 checkpointing=every-2 precision=bf16-mixed ",
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct run_result one, stages;
        char words[600];
        if (!draw_row())
            continue;
        snprintf(words, sizeof words, MODEL "micro_batch=1 accumulate=4 %s", models[i]);
        train_for(words, "one", 4, &one);
        strcat(words, "gpus=2 pp=2 schedule=zb-h1");
        train_for(words, "run", 4, &stages);
        run_same(&stages, &one, words);
    }
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* Stages may have no layers. */
static void test_stages_and_shards(void **state)
{
    static const char *const plans[] = {
        "gpus=8 pp=2 ep=2 schedule=zb-h1 strategy=zero1 micro_batch=1 accumulate=2",
        "gpus=8 pp=2 ep=4 schedule=1f1b strategy=shard_grad_op micro_batch=1 accumulate=2 checkpointing=full",
        "gpus=8 pp=4 ep=2 schedule=zb-h2 strategy=ddp micro_batch=1 accumulate=4",
        "gpus=4 pp=2 ep=2 schedule=dualpipe strategy=zero1 micro_batch=1 accumulate=4 checkpointing=full",
        "gpus=8 pp=4 ep=2 schedule=1f1b strategy=zero1 micro_batch=1 accumulate=4 stages='E|tt|tt|L'",
    };
    (void)state;
    learn_as_one(SHARED, plans, sizeof plans / sizeof *plans);
}

/* Ranks that share a sequence divide the experts too, each for its own tokens. */
static void test_shared_sequences(void **state)
{
    static const char *const plans[] = {
        "gpus=2 cp=2 strategy=ddp micro_batch=1 accumulate=8",
        "gpus=4 cp=2 ep=2 strategy=full_shard micro_batch=1 accumulate=4",
        "gpus=4 cp=4 ep=4 cp_comm=a2a strategy=ddp micro_batch=1 accumulate=8",
        "gpus=8 cp=4 ep=2 strategy=zero2 micro_batch=2 accumulate=2 checkpointing=full",
        "gpus=8 cp=2 pp=2 ep=4 schedule=v-half strategy=zero1 micro_batch=1 accumulate=4",
    };
    (void)state;
    learn_as_one(SHARED, plans, sizeof plans / sizeof *plans);
}

/* Tensor parallel ranks are among those that divide experts, each for its rows of the stream: inside a group of theirs,
 * all of it, or several of them. */
static void test_tensor_ranks(void **state)
{
    static const char *const plans[] = {
        "gpus=2 tp=2 ep=2 strategy=ddp micro_batch=2 accumulate=4",
        "gpus=4 tp=2 ep=4 strategy=ddp micro_batch=1 accumulate=4 checkpointing=full",
        "gpus=4 tp=4 ep=2 strategy=ddp micro_batch=1 accumulate=8 tp_overlap=true",
        "gpus=4 tp=2 ep=2 strategy=full_shard micro_batch=2 accumulate=2",
        "gpus=4 tp=2 ep=4 strategy=zero1 micro_batch=1 accumulate=4 accumulate_sync=true",
        "gpus=8 tp=2 ep=4 strategy=zero2 micro_batch=1 accumulate=2",
        "gpus=8 tp=2 ep=8 strategy=full_shard micro_batch=1 accumulate=2 checkpointing=every-2",
        "gpus=8 tp=2 ep=4 strategy=hybrid_shard shard_group=2 micro_batch=1 accumulate=2",
        "gpus=8 tp=4 ep=2 strategy=shard_grad_op micro_batch=1 accumulate=4 tp_overlap=true",
    };
    (void)state;
    learn_as_one(SHARED, plans, sizeof plans / sizeof *plans);
}

/* With stages and shared sequences as well. */
static void test_tensor_ranks_and_others(void **state)
{
    static const char *const plans[] = {
        "gpus=4 tp=2 pp=2 ep=2 schedule=1f1b strategy=ddp micro_batch=1 accumulate=8",
        "gpus=8 tp=2 pp=2 ep=4 schedule=zb-h1 strategy=zero1 micro_batch=1 accumulate=4 tp_overlap=true",
        "gpus=8 tp=2 pp=2 ep=2 schedule=dualpipe strategy=zero1 micro_batch=1 accumulate=4 checkpointing=full",
        "gpus=4 tp=2 cp=2 ep=4 strategy=full_shard micro_batch=1 accumulate=8",
        "gpus=8 tp=2 cp=2 ep=2 cp_comm=a2a strategy=full_shard micro_batch=1 accumulate=4",
        "gpus=8 tp=2 cp=2 pp=2 ep=4 schedule=v-half strategy=zero1 micro_batch=1 accumulate=8",
        "gpus=4 tp=2 ep=2 strategy=full_shard layout_order=dp-tp micro_batch=1 accumulate=4",
        "gpus=8 tp=2 pp=2 ep=4 layout_order=pp-tp-dp schedule=1f1b strategy=zero1 micro_batch=1 accumulate=4",
    };
    (void)state;
    learn_as_one(MODEL, plans, sizeof plans / sizeof *plans);
}

/* The model's first layers have no experts, or every other: a stage has layers of either kind, or of both. */
static void test_layers_of_two_kinds(void **state)
{
    static const char *const plans[] = {
        "gpus=2 pp=2 schedule=1f1b micro_batch=1 accumulate=8",
        "gpus=4 pp=4 schedule=zb-h1 micro_batch=1 accumulate=8 stages='E|tt|tt|L'",
        "gpus=4 pp=2 schedule=zb-v strategy=zero1 micro_batch=1 accumulate=4",
        "gpus=4 cp=2 pp=2 schedule=dualpipe strategy=ddp micro_batch=1 accumulate=8 checkpointing=full",
    };
    (void)state;
    learn_as_one(MODEL "dense_layers=2 ", plans, sizeof plans / sizeof *plans);
    learn_as_one(MODEL "expert_layer_step=2 ", plans, sizeof plans / sizeof *plans);
}

/* Ranks divide the experts of those layers that have any, whatever shares the state of all. */
static void test_divided_experts_of_some_layers(void **state)
{
    static const char *const plans[] = {
        "gpus=2 ep=2 strategy=ddp micro_batch=1 accumulate=4",
        "gpus=2 ep=2 strategy=full_shard micro_batch=1 accumulate=4 checkpointing=every-2",
        "gpus=4 ep=2 strategy=full_shard micro_batch=1 accumulate=2 prefetch=false",
        "gpus=4 ep=2 strategy=zero1 micro_batch=1 accumulate=2",
        "gpus=4 ep=4 strategy=ddp micro_batch=1 accumulate=2 checkpointing=full",
        "gpus=4 ep=4 strategy=zero1 micro_batch=1 accumulate=2 accumulate_sync=true",
        "gpus=4 ep=4 strategy=full_shard micro_batch=1 accumulate=2",
        "gpus=8 ep=2 strategy=hybrid_shard shard_group=4 micro_batch=1 accumulate=1",
        "gpus=4 cp=2 ep=4 strategy=full_shard micro_batch=1 accumulate=4",
    };
    (void)state;
    learn_as_one(SHARED "dense_layers=1 ", plans, sizeof plans / sizeof *plans);
    learn_as_one(SHARED "expert_layer_step=2 ", plans, sizeof plans / sizeof *plans);
}

static void test_divided_experts_of_some_layers_and_others(void **state)
{
    static const char *const plans[] = {
        "gpus=4 tp=2 ep=4 strategy=ddp micro_batch=1 accumulate=4 checkpointing=full",
        "gpus=4 tp=2 ep=2 strategy=full_shard micro_batch=1 accumulate=4 tp_overlap=true",
        "gpus=8 tp=2 ep=4 strategy=zero1 micro_batch=1 accumulate=2",
        "gpus=4 pp=2 ep=2 schedule=1f1b strategy=ddp micro_batch=1 accumulate=4",
        "gpus=8 pp=2 ep=4 schedule=zb-h1 strategy=zero1 micro_batch=1 accumulate=2",
        "gpus=4 pp=2 ep=2 schedule=dualpipe strategy=zero1 micro_batch=1 accumulate=4",
        "gpus=8 pp=4 ep=2 schedule=1f1b strategy=ddp micro_batch=1 accumulate=4 stages='E|tt|tt|L'",
    };
    (void)state;
    learn_as_one(SHARED "dense_layers=2 ", plans, sizeof plans / sizeof *plans);
    learn_as_one(SHARED "expert_layer_step=2 ", plans, sizeof plans / sizeof *plans);
}

static void test_checkpoints_of_any_layout(void **state)
{
    static const char *const layouts[] = {"gpus=1 micro_batch=1 accumulate=4",
                                          "gpus=4 pp=2 ep=2 schedule=zb-h1 strategy=zero1 micro_batch=1 accumulate=2",
                                          "gpus=4 cp=2 ep=4 strategy=full_shard micro_batch=1 accumulate=2",
                                          "gpus=2 pp=2 schedule=zb-v micro_batch=1 accumulate=4",
                                          "gpus=8 tp=2 ep=4 strategy=full_shard micro_batch=1 accumulate=1",
                                          "gpus=4 tp=4 ep=2 strategy=ddp micro_batch=1 accumulate=4",
                                          "gpus=4 pp=2 ep=2 schedule=1f1b strategy=ddp micro_batch=1 accumulate=2",
                                          "gpus=2 ep=2 strategy=ddp micro_batch=1 accumulate=2"};
    (void)state;
    goes_on_in_any(SHARED, "gpus=1 micro_batch=1 accumulate=4", layouts, sizeof layouts / sizeof *layouts);
    goes_on_in_any(SHARED "dense_layers=1 ", "gpus=4 ep=2 strategy=full_shard micro_batch=1 accumulate=1", layouts,
                   sizeof layouts / sizeof *layouts);
}

/* Arenas and all that is always as much, to the byte; of rows of tokens how many each expert got, each layer's once:
 * 4 steps of 4 ranks' 4 micro-batches of 16 tokens, 2 experts each, 2 stages apart. */
static void test_report_of_a_run(void **state)
{
    static char said[1 << 17];
    (void)state;
    run_report("--seq 16 --experts 4 --experts-per-token 2 --expert-ffn 32 --gpus 4 --pp 2 --ep 2 --accumulate 4 "
               "--micro-batch 1 --strategy zero1",
               said, sizeof said);
    assert_int_equal(times_said(said, "as predicted, to the byte, on all 4 ranks"), 5); /* arenas, all but all_to_all */
    assert_non_null(strstr(said, "expected: a router says how many rows go where"));
    assert_non_null(strstr(said, "EXPERTS"));
    for (int layer = 0; layer < 2; layer++) {
        char line[32];
        unsigned long rows[4] = {0};
        snprintf(line, sizeof line, "\n  %5d  ", layer);
        char *found = strstr(strstr(said, "EXPERTS"), line);
        assert_non_null(found);
        assert_int_equal(
            sscanf(found + strlen(line), "%*f %*f %lu %lu %lu %lu", &rows[0], &rows[1], &rows[2], &rows[3]), 4);
        assert_int_equal(rows[0] + rows[1] + rows[2] + rows[3], 4 * 2 * 4 * 16 * 2);
    }
    run_report("--seq 16 --experts 4 --experts-per-token 2 --expert-ffn 32 --gpus 4 --pp 2 --ep 2 --accumulate 4 "
               "--micro-batch 1 --strategy zero1 --json",
               said, sizeof said);
    assert_non_null(strstr(said, "\"experts\": ["));
    run_report(
        "--seq 16 --experts 8 --experts-per-token 2 --expert-ffn 32 --shared-expert-ffn 32 --gpus 4 --tp 2 --ep 4 "
        "--micro-batch 2 --strategy full_shard --clip-norm 1",
        said, sizeof said);
    assert_non_null(strstr(said, "all_to_all, expected"));
    sent_as_predicted(said, 3); /* all_gather, reduce_scatter, all_reduce */
}

/* The same where some layers have no experts, of which no rows are said. */
static void test_report_of_some_layers(void **state)
{
    static const struct {
        const char *words;
        int kinds;                                               /* of transfers that are predicted to the byte */
    } layouts[] = {{"--gpus 4 --ep 2 --strategy full_shard", 3}, /* all_gather, reduce_scatter, all_reduce */
                   {"--gpus 4 --ep 4 --strategy zero1", 3},
                   {"--gpus 2 --ep 2 --strategy ddp", 2}, /* all_gather, all_reduce */
                   {"--gpus 4 --pp 2 --ep 2 --strategy zero1", 0}};
    static char said[1 << 17];
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char words[512];
        snprintf(words, sizeof words,
                 "--layers 3 --dense-layers 1 --seq 16 --experts 4 --experts-per-token 2 --expert-ffn 32 "
                 "--accumulate 4 --micro-batch 1 %s",
                 layouts[i].words);
        run_report(words, said, sizeof said);
        const char *table = strstr(said, "EXPERTS");
        assert_non_null(table);
        assert_null(strstr(table, "\n      0  "));
        assert_non_null(strstr(table, "\n      1  "));
        assert_non_null(strstr(table, "\n      2  "));
        if (layouts[i].kinds)
            sent_as_predicted(said, layouts[i].kinds);
        else
            assert_int_equal(times_said(said, "as predicted, to the byte, on all 4 ranks"), 5);
    }
}

static void test_refusals(void **state)
{
    static const struct refused_layout refused[] = {
        {"gpus=4 pp=2 ep=4 strategy=ddp accumulate=4", "ep", "does not divide"},
        {"gpus=4 pp=2 ep=2 strategy=full_shard accumulate=4", "strategy", "gathers weights"}};
    (void)state;
    are_refused(MODEL, refused, sizeof refused / sizeof *refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_schedule),
                                       cmocka_unit_test(test_halves_change_no_bit),
                                       cmocka_unit_test(test_halves_of_other_blocks),
                                       cmocka_unit_test(test_stages_and_shards),
                                       cmocka_unit_test(test_shared_sequences),
                                       cmocka_unit_test(test_tensor_ranks),
                                       cmocka_unit_test(test_tensor_ranks_and_others),
                                       cmocka_unit_test(test_layers_of_two_kinds),
                                       cmocka_unit_test(test_divided_experts_of_some_layers),
                                       cmocka_unit_test(test_divided_experts_of_some_layers_and_others),
                                       cmocka_unit_test(test_checkpoints_of_any_layout),
                                       cmocka_unit_test(test_report_of_a_run),
                                       cmocka_unit_test(test_report_of_some_layers),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
