/* Tensor parallel ranks on the host device: whatever the strategy, ranks with a slice of each layer learn what one rank
 * with the whole model learns, alone and together with data parallel ranks and stages, and hold and send what their
 * programs say.
 *
 * Slices begin as the whole's elements, so that nothing but the order of sums differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"

#define STEPS RANDOM_DRAWS(50) /* each on a batch that is drawn */
#define LAYOUT_FOLDER "tensor"
/* At 1e-2 Adam takes whole steps along gradients that are rounding alone: losses of two data parallel ranks then differ
 * from those of one by 5e-5 too, for sums of theirs are made in another order as well. */
#define LEARNING_RATE "1e-3"
#include "lib/layout_fixture.h"

#define MODEL "layers=4 hidden=16 heads=8 kv_heads=4 head_dim=8 ffn=64 vocab=41 seq=8 micro_batch=1 clip_norm=0.5 "
#define TIED                                                                                                           \
    "layers=2 hidden=16 heads=4 ffn=32 head_dim=8 vocab=43 seq=8 positions=8 norm=layer_norm activation=gelu "         \
    "position=learned bias=true tied_head=true micro_batch=2 "

static void test_learns_as_one_rank(void **state)
{
    struct run_result one;
    (void)state;
    train(MODEL "accumulate=4 gpus=1", "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    learns_as_one(MODEL, "accumulate=4 gpus=2 tp=2", &one, "one", false);
    learns_as_one(MODEL, "accumulate=4 gpus=4 tp=4 checkpointing=full", &one, "one", false);
    learns_as_one(MODEL, "accumulate=4 gpus=2 tp=2 checkpointing=selective loss_chunk=3", &one, "one", false);
    remove_all(folder("one"));
}

/* Ranks are neighbours along either axis; what is sharded is a slice. */
static void test_with_data_parallel_ranks(void **state)
{
    static const char *const plans[] = {"gpus=4 tp=2 accumulate=2 strategy=ddp",
                                        "gpus=4 tp=2 accumulate=2 strategy=ddp accumulate_sync=true",
                                        "gpus=4 tp=2 accumulate=2 strategy=zero1 layout_order=dp-tp",
                                        "gpus=8 tp=4 accumulate=2 strategy=shard_grad_op",
                                        "gpus=8 tp=2 accumulate=1 strategy=full_shard",
                                        "gpus=8 tp=2 accumulate=1 strategy=hybrid_shard shard_group=2"};
    struct run_result one;
    (void)state;
    train(MODEL "accumulate=4 gpus=1", "one", &one);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        learns_as_one(MODEL, plans[i], &one, "one", false);
    remove_all(folder("one"));
}

static void test_with_stages(void **state)
{
    static const char *const plans[] = {"gpus=4 tp=2 pp=2 accumulate=4 schedule=1f1b",
                                        "gpus=4 tp=2 pp=2 accumulate=4 schedule=zb-h1",
                                        "gpus=4 tp=2 pp=2 accumulate=4 schedule=1f1b delay_wgrad=1",
                                        "gpus=8 tp=2 pp=2 accumulate=2 strategy=zero1 schedule=zb-h2",
                                        "gpus=8 tp=4 pp=2 accumulate=4 schedule=dualpipev layout_order=pp-tp-dp",
                                        "gpus=8 tp=2 pp=2 accumulate=2 layout_order=dp-pp-tp strategy=ddp"};
    struct run_result one;
    (void)state;
    train(MODEL "accumulate=4 gpus=1", "one", &one);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        learns_as_one(MODEL, plans[i], &one, "one", false);
    remove_all(folder("one"));
}

/* The table is the head; positions, biases of sums and norms are on every rank. */
static void test_tied_embeddings(void **state)
{
    struct run_result one;
    (void)state;
    train(TIED "gpus=1", "one", &one);
    learns_as_one(TIED, "gpus=2 tp=2", &one, "one", false);
    learns_as_one(TIED, "gpus=4 tp=4", &one, "one", false);
    learns_as_one(TIED, "gpus=4 tp=2 pp=2", &one, "one", false);
    remove_all(folder("one"));
}

/* Blocks whose branches, norms and activations stand in every order that the executor has, and the same with stages
 * whose backward is split. How a block is kept for backward changes no bit. */
static void test_blocks_of_every_order(void **state)
{
    static const char *const models[] = {
        "kv_heads=2 qk_norm=true ",
        "activation=geglu norm_unit_offset=true attention_softcap=2 final_softcap=3 ",
        "norm=layer_norm activation=gelu bias=true positions=8 position=learned ",
        "norm=layer_norm activation=gelu gelu_epilogue=true bias=true ",
        "norm=layer_norm activation=gelu mlp_bias=true head_bias=true parallel_block=one_norm ",
        "norm=layer_norm activation=gelu bias=true parallel_block=two_norms ",
        "kv_heads=2 norm_place=after qk_norm=true ",
        "kv_heads=2 sliding_window=3 sliding_window_pattern=2 embedding_scale=true norm_place=both ",
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct run_result one, cut, kept;
        char words[600];
        if (!draw_row())
            continue;
        snprintf(words, sizeof words,
                 "layers=4 hidden=16 heads=4 head_dim=8 ffn=48 vocab=50 seq=8 micro_batch=2 accumulate=2 %s",
                 models[i]);
        train_for(words, "one", 4, &one);
        size_t end = strlen(words);
        strcat(words, "gpus=2 tp=2");
        train_for(words, "run", 4, &cut);
        for (size_t k = 0; k < 4; k++)
            if (fabs(cut.loss[k] - one.loss[k]) > DIFFERS_BY ||
                fabs(cut.gradient_norm[k] / one.gradient_norm[k] - 1) > 1e-5)
                fail_msg("%s: step %zu: loss %.9g and %.9g, norm %.9g and %.9g", words, k + 1, one.loss[k], cut.loss[k],
                         one.gradient_norm[k], cut.gradient_norm[k]);
        strcat(words, " checkpointing=full");
        train_for(words, "run", 4, &kept);
        run_same(&kept, &cut, words);
        strcpy(words + end, "gpus=4 tp=2 pp=2 schedule=zb-h1 checkpointing=selective");
        train_for(words, "run", 4, &kept);
        run_same(&kept, &cut, words);
    }
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* Collectives beside products make the same numbers, bit by bit: losses, norms, state; with stages whose weights'
 * gradients stand in a pass of their own, with rows that are made again, and in both kinds of MLP. */
static void test_overlap_changes_no_bit(void **state)
{
    static const char *const plans[] = {
        MODEL "gpus=2 tp=2 accumulate=2",
        MODEL "gpus=4 tp=4 accumulate=2 checkpointing=full",
        MODEL "gpus=8 tp=2 strategy=full_shard checkpointing=selective",
        MODEL "gpus=4 tp=2 pp=2 accumulate=4 schedule=1f1b precision=bf16-mixed",
        MODEL "gpus=4 tp=2 pp=2 accumulate=4 schedule=zb-h1",
        MODEL "gpus=8 tp=4 pp=2 accumulate=4 schedule=dualpipev layout_order=pp-tp-dp",
        TIED "gpus=2 tp=2 gelu_epilogue=true parallel_block=two_norms",
    };
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct run_result apart, beside;
        char words[600];
        if (!draw_row())
            continue;
        train_for(plans[i], "one", 6, &apart);
        snprintf(words, sizeof words, "%s tp_overlap=true", plans[i]);
        train_for(words, "run", 6, &beside);
        run_same(&beside, &apart, words);
    }
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* In chunks a rank has other rows, so that sums over them are made in another order: it learns what one rank learns, in
 * every kind of block and strategy, with rows made again and a backward that is split. */
static void test_chunks_learn_as_one_rank(void **state)
{
    static const char *const plans[] = {
        "gpus=2 tp=2 accumulate=4 tp_overlap=true tp_chunks=2",
        "gpus=2 tp=2 accumulate=4 tp_overlap=true tp_chunks=4 checkpointing=full",
        "gpus=4 tp=4 accumulate=4 tp_overlap=true tp_chunks=2 checkpointing=selective",
        "gpus=8 tp=2 strategy=full_shard tp_overlap=true tp_chunks=2",
        "gpus=4 tp=2 pp=2 accumulate=4 schedule=1f1b tp_overlap=true tp_chunks=4",
        "gpus=4 tp=2 pp=2 accumulate=4 schedule=1f1b tp_overlap=true delay_wgrad=1",
        "gpus=4 tp=2 pp=2 accumulate=4 schedule=zb-h1 tp_overlap=true tp_chunks=2",
    };
    struct run_result one;
    (void)state;
    train(MODEL "accumulate=4 gpus=1", "one", &one);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        learns_as_one(MODEL, plans[i], &one, "one", false);
    train(TIED "gpus=1", "one", &one);
    learns_as_one(TIED, "gpus=2 tp=2 tp_overlap=true tp_chunks=4", &one, "one", false);
    train(TIED "gpus=1 gelu_epilogue=true parallel_block=two_norms", "one", &one);
    learns_as_one(TIED, "gpus=4 tp=4 gelu_epilogue=true parallel_block=two_norms tp_overlap=true tp_chunks=2", &one,
                  "one", false);
    remove_all(folder("one"));
}

/* bf16 rounds sums of two ranks' terms elsewhere: as far from one rank's as bf16 is from fp32. */
static void test_bf16(void **state)
{
    struct run_result wide, one, cut;
    (void)state;
    train_for(MODEL "gpus=1 accumulate=2", "one", 20, &wide);
    train_for(MODEL "gpus=1 accumulate=2 precision=bf16-mixed", "one", 20, &one);
    train_for(MODEL "gpus=4 tp=2 strategy=zero1 precision=bf16-mixed", "run", 20, &cut);
    double bf16 = run_apart(&one, &wide), tensor = run_apart(&cut, &wide);
    assert_true(bf16 > 0 && tensor < 2 * bf16);
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* What ranks of one layout wrote goes on in any other: slices of columns, packed parts and a vocabulary that ranks do
 * not divide, in shards and stages, and back. */
static void test_checkpoints_of_any_layout(void **state)
{
    static const char *const layouts[] = {"gpus=1 accumulate=4",
                                          "gpus=2 tp=2 accumulate=4",
                                          "gpus=4 tp=4 accumulate=4",
                                          "gpus=4 tp=2 pp=2 accumulate=4 schedule=zb-v",
                                          "gpus=8 tp=2 strategy=full_shard",
                                          "gpus=4 pp=4 accumulate=4",
                                          "gpus=8 tp=4 strategy=zero1 accumulate=2 layout_order=dp-tp",
                                          "gpus=4 strategy=full_shard",
                                          "gpus=1 accumulate=4"};
    (void)state;
    goes_on_in_any(MODEL, "gpus=1 accumulate=4", layouts, sizeof layouts / sizeof *layouts);
}

/* What is not run is refused by name, with what to do. */
static void test_refusals(void **state)
{
    static const struct refused_layout refused[] = {
        {"gpus=8 tp=8", "tp", "the nearest that fits is 4"},
        {"gpus=2 tp=2 sequence_parallel=false", "sequence_parallel", "leave it out"},
        {"gpus=2 tp=2 gradient_stream=true", "gradient_stream", "leave it out"},
        {"gpus=2 tp=2 optimizer=adam8bit", "optimizer", "leave it out"},
        {"gpus=2 tp=2 qk_norm=true qk_norm_wide=true", "tp", "qk_norm_wide"},
        {"gpus=2 tp=2 kv_latent=16 rope_head_dim=8 value_head_dim=8 head_dim=16 kv_heads=4", "tp", "latent attention"},
        {"gpus=2 tp=2 tp_chunks=2", "tp_chunks", "tp above 1 with tp_overlap"},
        {"gpus=2 tp=2 tp_overlap=true tp_chunks=3", "tp_chunks", "do not divide the 8 tokens"},
        {"gpus=4 tp=4 vocab=9", "tp", "none of 9 tokens"}};
    (void)state;
    are_refused(MODEL, refused, sizeof refused / sizeof *refused);
}

/* Arenas of all ranks, and bytes of the three kinds of collectives and of transfers; what ranks wait for each other is
 * said. */
static void test_report_of_a_run(void **state)
{
    static char said[1 << 16];
    (void)state;
    run_report("--seq 16 --gpus 4 --tp 2 --pp 2 --accumulate 4 --strategy ddp --schedule zb-h1", said, sizeof said);
    assert_int_equal(times_said(said, "as predicted, to the byte, on all 4 ranks"), 5);
    assert_non_null(strstr(said, "tp: collectives of"));
    run_report("--seq 16 --gpus 4 --tp 2 --accumulate 2 --strategy zero1", said, sizeof said);
    assert_non_null(strstr(said, "TENSOR PARALLEL"));
    sent_as_predicted(said, 3); /* all_gather, reduce_scatter, all_reduce */
    run_report("--seq 16 --gpus 4 --tp 2 --accumulate 2 --strategy zero1 --tp-overlap", said, sizeof said);
    sent_as_predicted(said, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_learns_as_one_rank),
                                       cmocka_unit_test(test_with_data_parallel_ranks),
                                       cmocka_unit_test(test_with_stages),
                                       cmocka_unit_test(test_tied_embeddings),
                                       cmocka_unit_test(test_blocks_of_every_order),
                                       cmocka_unit_test(test_overlap_changes_no_bit),
                                       cmocka_unit_test(test_chunks_learn_as_one_rank),
                                       cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_checkpoints_of_any_layout),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_report_of_a_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
