/* Pipelines on the host device: whatever the schedule, ranks with a stage each learn what one rank with the whole model
 * learns, and hold and send what their programs say.
 *
 * After the steps all state is compared, element by element, through checkpoints, which any layout reads: moments are
 * sums of gradients, so that these are compared too. Order and number of additions are those of one rank, so nothing
 * differs by a bit, but where gradients of two copies are added up: of dualpipe's directions, and of a tied embedding.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"

#define STEPS RANDOM_DRAWS(50) /* each on a batch that is drawn */
#define LAYOUT_FOLDER "stages"
#include "lib/layout_fixture.h"
#include "runtime/runtimes.h"
#include "schedule/schedule.h"

#define MODEL "layers=8 hidden=16 heads=2 ffn=24 vocab=40 seq=8 micro_batch=1 accumulate=8 clip_norm=0.5 "
#define TIED                                                                                                           \
    "layers=4 hidden=16 heads=2 ffn=32 vocab=40 seq=8 positions=8 norm=layer_norm activation=gelu position=learned "   \
    "bias=true tied_head=true micro_batch=1 accumulate=8 "
static void test_every_schedule_learns_as_one_rank(void **state)
{
    struct run_result one;
    (void)state;
    train(MODEL "gpus=1", "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++) {
        const struct dtp_schedule_row *row = dtp_schedule_row((enum dtp_schedule_kind)kind);
        char words[128];
        if (!(dtp_runtime_find("dtplan")->schedules & 1u << kind))
            continue;
        snprintf(words, sizeof words, "gpus=4 pp=4 schedule=%s", row->word);
        learns_as_one(MODEL, words, &one, "one", row->copies == 1);
    }
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=1f1b", &one, "one", true);
    learns_as_one(MODEL, "gpus=4 pp=4 schedule=1f1b delay_wgrad=1", &one, "one", true);
    learns_as_one(MODEL, "gpus=4 pp=4 schedule=gpipe delay_wgrad=2", &one, "one", true);
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=interleaved virtual_stages=2 delay_wgrad=1 checkpointing=full", &one,
                  "one", true);
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=dualpipev delay_wgrad=65535", &one, "one", true);
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=dualpipe delay_wgrad=3", &one, "one", false);
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=zb-v", &one, "one", true);
    learns_as_one(MODEL, "gpus=2 pp=2 schedule=interleaved virtual_stages=4 checkpointing=full", &one, "one", true);
    learns_as_one(MODEL, "gpus=8 pp=8 schedule=zb-h2", &one, "one", true);
    learns_as_one(MODEL, "gpus=3 pp=3 schedule=zb-h1 stages='Ett|tttt|ttL'", &one, "one", true);
    remove_all(folder("one"));
}

/* The table and the head are one matrix, of which the first and the last stage have a copy each; sums are made in
 * another order then. */
static void test_tied_embeddings(void **state)
{
    struct run_result one;
    (void)state;
    train(TIED "gpus=1", "one", &one);
    learns_as_one(TIED, "gpus=2 pp=2 schedule=zb-h1", &one, "one", false);
    learns_as_one(TIED, "gpus=2 pp=2 schedule=v-half", &one, "one", true);
    remove_all(folder("one"));
}

/* Batches are shared out as among ranks without stages; sums over them end in the order of ranks. */
static void test_beside_data_parallel_ranks(void **state)
{
    struct run_result two;
    (void)state;
    train(MODEL "gpus=2 strategy=zero1", "one", &two);
    learns_as_one(MODEL, "gpus=4 pp=2 schedule=zb-h1 strategy=zero1", &two, "one", true);
    learns_as_one(MODEL, "gpus=4 pp=2 schedule=1f1b strategy=ddp", &two, "one", false);
    remove_all(folder("one"));
}

/* Blocks whose branches, norms and activations stand in every order that the executor has: what a weight gradient that
 * was left reads must still be there, and as it was. Cut in two, windows alternate by the model's layers. */
static void test_blocks_of_every_order(void **state)
{
    static const char *const models[] = {
        "kv_heads=1 qk_norm=true ",
        "activation=geglu norm_unit_offset=true attention_softcap=2 final_softcap=3 ",
        "norm=layer_norm activation=gelu bias=true positions=8 position=learned ",
        "norm=layer_norm activation=gelu gelu_epilogue=true bias=true ",
        "norm=layer_norm activation=gelu mlp_bias=true head_bias=true parallel_block=one_norm ",
        "norm=layer_norm activation=gelu bias=true parallel_block=two_norms ",
        "kv_heads=1 norm_place=after qk_norm=true qk_norm_wide=true ",
        "kv_heads=1 sliding_window=3 sliding_window_pattern=2 embedding_scale=true norm_place=both ",
        "checkpointing=full ",
        "checkpointing=selective ",
        "checkpointing=every-2 precision=bf16-mixed ",
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct run_result one, stages;
        char words[600];
        if (!draw_row())
            continue;
        snprintf(words, sizeof words,
                 "layers=4 hidden=16 heads=2 head_dim=8 ffn=40 vocab=50 seq=8 micro_batch=2 accumulate=2 %s",
                 models[i]);
        train_for(words, "one", 4, &one);
        char *ranks = words + strlen(words);
        strcpy(ranks, "gpus=2 pp=2 schedule=zb-h1");
        train_for(words, "run", 4, &stages);
        run_same(&stages, &one, words);
        strcpy(ranks, "gpus=2 pp=2 delay_wgrad=1");
        train_for(words, "run", 4, &stages);
        run_same(&stages, &one, words);
    }
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* What stages wrote goes on with one rank that has it all, and the reverse, to the bit. */
static void test_checkpoints_of_any_layout(void **state)
{
    static const char *const layouts[] = {"gpus=1", "gpus=4 pp=4 schedule=zb-v", "gpus=2 pp=2 schedule=interleaved",
                                          "gpus=2 strategy=full_shard accumulate=4", "gpus=1"};
    struct run_result whole, part;
    char words[400], flags[3200];
    (void)state;
    rank_run(MODEL "gpus=1", "--steps 10 --lr 1e-2 --min-lr 1e-2", &whole);
    assert_int_equal(whole.status, DTP_OK);
    remove_all(folder("run"));
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        snprintf(words, sizeof words, MODEL "%s", layouts[i]);
        snprintf(flags, sizeof flags, "--steps %zu --lr 1e-2 --min-lr 1e-2 --checkpoint '%s' %s", 2 * (i + 1),
                 folder("run"), i ? "--resume" : "");
        rank_run(words, flags, &part);
        assert_int_equal(part.status, DTP_OK);
        for (size_t k = 0; k < 2; k++)
            if (fabs(part.loss[k] - whole.loss[2 * i + k]) > (i < 3 ? 0 : DIFFERS_BY))
                fail_msg("%s: step %zu: loss %.9g, %.9g of one rank", layouts[i], 2 * i + k + 1, part.loss[k],
                         whole.loss[2 * i + k]);
    }
    remove_all(folder("one"));
    remove_all(folder("run"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_schedule_learns_as_one_rank), cmocka_unit_test(test_tied_embeddings),
        cmocka_unit_test(test_blocks_of_every_order), cmocka_unit_test(test_checkpoints_of_any_layout),
        cmocka_unit_test(test_beside_data_parallel_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
