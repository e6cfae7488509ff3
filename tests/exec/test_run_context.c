/* Context parallel ranks on the host device: ranks with two pieces of each sequence learn what one rank with all of it
 * learns, alone and together with every other way to divide a job, and hold and send what their programs say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"

#define STEPS RANDOM_DRAWS(50) /* each on a batch that is drawn */
#define LAYOUT_FOLDER "context"
/* As test_run_tensor.c says. */
#define LEARNING_RATE "1e-3"
#include "lib/layout_fixture.h"

#define MODEL "layers=2 hidden=16 heads=8 kv_heads=4 head_dim=8 ffn=32 vocab=41 seq=16 micro_batch=2 clip_norm=0.5 "

static void test_learns_as_one_rank(void **state)
{
    struct run_result one;
    (void)state;
    train(MODEL "accumulate=2 gpus=1", "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    learns_as_one(MODEL, "accumulate=2 gpus=2 cp=2", &one, "one", false);
    learns_as_one(MODEL, "accumulate=2 gpus=4 cp=4 checkpointing=full", &one, "one", false);
    learns_as_one(MODEL, "accumulate=2 gpus=8 cp=8 checkpointing=selective loss_chunk=3", &one, "one", false);
    learns_as_one(MODEL, "accumulate=2 gpus=2 cp=2 cp_comm=a2a checkpointing=selective", &one, "one", false);
    learns_as_one(MODEL, "accumulate=2 gpus=4 cp=4 cp_comm=a2a checkpointing=full", &one, "one", false);
    learns_as_one(MODEL, "accumulate=2 gpus=2 cp=2 cp_comm=a2a cp_chunks=1", &one, "one", false);
    remove_all(folder("one"));
}

/* Ranks that share a sequence shard and sum gradients together with those that have others, divide the model as well,
 * and stand in stages of it. */
static void test_with_all_other_ranks(void **state)
{
    static const char *const plans[] = {
        "gpus=2 cp=2 accumulate=2 strategy=ddp accumulate_sync=true",
        "gpus=4 cp=4 accumulate=2 strategy=zero1",
        "gpus=4 cp=2 accumulate=1 strategy=hybrid_shard shard_group=2",
        "gpus=4 cp=2 pp=2 strategy=ddp accumulate=2 schedule=zb-h1",
        "gpus=8 tp=2 cp=2 cp_comm=a2a accumulate=1 strategy=full_shard checkpointing=full",
        "gpus=4 cp=2 pp=2 cp_comm=a2a strategy=ddp accumulate=2 schedule=zb-h2",
        "gpus=8 tp=2 cp=2 pp=2 strategy=zero1 accumulate=2 schedule=1f1b checkpointing=full",
        "gpus=4 cp=4 cp_comm=a2a accumulate=2 strategy=full_shard reduce_engine=copy",
        "gpus=4 cp=2 accumulate=1 strategy=shard_grad_op reduce_engine=copy"};
    struct run_result one;
    (void)state;
    train(MODEL "accumulate=2 gpus=1", "one", &one);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        learns_as_one(MODEL, plans[i], &one, "one", false);
    remove_all(folder("one"));
}

/* Blocks of other orders, of tied and of grouped heads; how a block is kept for backward changes no bit. */
static void test_blocks_of_every_order(void **state)
{
    static const char *const models[] = {
        "kv_heads=2 qk_norm=true tied_head=true ",
        "activation=geglu norm_unit_offset=true attention_softcap=2 final_softcap=3 ",
        "norm=layer_norm activation=gelu gelu_epilogue=true bias=true ",
        "norm=layer_norm activation=gelu bias=true parallel_block=two_norms ",
        "kv_heads=1 norm_place=after qk_norm=true qk_norm_wide=true ",
        "kv_heads=2 sliding_window=3 sliding_window_pattern=2 embedding_scale=true norm_place=both ",
        "kv_heads=2 sliding_window=3 qk_norm=true ",
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct run_result one, shared, kept;
        char words[600];
        if (!draw_row())
            continue;
        snprintf(words, sizeof words,
                 "layers=2 hidden=16 heads=4 head_dim=8 ffn=48 vocab=50 seq=8 micro_batch=2 accumulate=2 %s",
                 models[i]);
        train_for(words, "one", 4, &one);
        strcat(words, strstr(words, "window") ? "gpus=2 cp=2 cp_comm=a2a" : "gpus=2 cp=2");
        train_for(words, "run", 4, &shared);
        for (size_t k = 0; k < 4; k++)
            if (fabs(shared.loss[k] - one.loss[k]) > DIFFERS_BY ||
                fabs(shared.gradient_norm[k] / one.gradient_norm[k] - 1) > 1e-5)
                fail_msg("%s: step %zu: loss %.9g and %.9g, norm %.9g and %.9g", words, k + 1, one.loss[k],
                         shared.loss[k], one.gradient_norm[k], shared.gradient_norm[k]);
        strcat(words, i % 2 ? " checkpointing=full" : " checkpointing=selective");
        train_for(words, "run", 4, &kept);
        run_same(&kept, &shared, words);
    }
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* Two chunks of a rank's heads, and sequences beside each other in a micro-batch. */
static void test_chunks_of_heads(void **state)
{
    static const char model[] =
        "layers=2 hidden=16 heads=16 kv_heads=8 head_dim=8 ffn=32 vocab=41 seq=16 clip_norm=0.5 ";
    static const char *const plans[] = {
        "gpus=4 cp=4 cp_comm=a2a cp_chunks=2 micro_batch=2 accumulate=2 strategy=full_shard",
        "gpus=8 cp=4 cp_comm=a2a micro_batch=1 accumulate=2 strategy=hybrid_shard shard_group=4 reduce_engine=copy",
        "gpus=8 cp=8 cp_comm=a2a micro_batch=4 accumulate=1 strategy=zero1 checkpointing=selective"};
    struct run_result one;
    char words[300];
    (void)state;
    snprintf(words, sizeof words, "%smicro_batch=2 accumulate=2 gpus=1", model);
    train(words, "one", &one);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        learns_as_one(model, plans[i], &one, "one", false);
    remove_all(folder("one"));
}

/* Nothing is clipped, so blocks step as soon as they are reduced. */
static void test_updates_in_backward(void **state)
{
    static const char model[] = "layers=2 hidden=16 heads=8 kv_heads=4 head_dim=8 ffn=32 vocab=41 seq=16 micro_batch=2 "
                                "gradient_norm=false ";
    char words[300];
    struct run_result one;
    (void)state;
    snprintf(words, sizeof words, "%saccumulate=2 gpus=1", model);
    train(words, "one", &one);
    learns_as_one(model, "gpus=4 cp=4 cp_comm=a2a strategy=full_shard accumulate=2 update_in_backward=true", &one,
                  "one", false);
    learns_as_one(model, "gpus=4 cp=2 strategy=full_shard update_in_backward=true reduce_engine=copy", &one, "one",
                  false);
    remove_all(folder("one"));
}

/* bf16 rounds the results of steps and sums of their gradients: as far from one rank's as bf16 is from fp32. */
static void test_bf16(void **state)
{
    struct run_result wide, one, shared;
    (void)state;
    train_for(MODEL "gpus=1 accumulate=2", "one", 20, &wide);
    train_for(MODEL "gpus=1 accumulate=2 precision=bf16-mixed", "one", 20, &one);
    train_for(MODEL "gpus=8 cp=4 strategy=zero1 precision=bf16-mixed", "run", 20, &shared);
    double bf16 = run_apart(&one, &wide), context = run_apart(&shared, &wide);
    assert_true(bf16 > 0 && context < 2 * bf16);
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* What ranks of one layout wrote goes on in any other. */
static void test_checkpoints_of_any_layout(void **state)
{
    static const char *const layouts[] = {"gpus=2 cp=2 accumulate=2",
                                          "gpus=1 accumulate=2",
                                          "gpus=4 cp=4 strategy=zero1 accumulate=2",
                                          "gpus=4 tp=2 cp=2 accumulate=2",
                                          "gpus=4 cp=2 strategy=full_shard",
                                          "gpus=4 cp=2 pp=2 strategy=ddp accumulate=2",
                                          "gpus=2 cp=2 strategy=full_shard accumulate=2"};
    (void)state;
    goes_on_in_any(MODEL, "gpus=1 accumulate=2", layouts, sizeof layouts / sizeof *layouts);
}

/* What is not run is refused by name, with what to do. */
static void test_refusals(void **state)
{
    static const struct refused_layout refused[] = {
        {"gpus=3 cp=3", "cp", "do not divide seq 16"},
        {"gpus=2 cp=2 cp_comm=all_gather", "cp_comm", "p2p"},
        {"gpus=8 cp=8 cp_comm=a2a", "cp", "cp_comm p2p takes any"},
        {"gpus=4 cp=2 cp_comm=a2a cp_chunks=3", "cp_chunks", "2 key/value heads of a rank"},
        {"gpus=4 cp=2 cp_chunks=2", "cp_chunks", "cp_comm a2a"},
        {"gpus=2 cp=2 gradient_stream=true", "gradient_stream", "leave it out"},
        {"gpus=2 cp=2 optimizer=adam8bit", "optimizer", "leave it out"},
        {"gpus=2 cp=2 positions=16 position=learned", "cp", "rope"},
        {"gpus=2 cp=2 sliding_window=4", "sliding_window", "a2a"}};
    (void)state;
    are_refused(MODEL, refused, sizeof refused / sizeof *refused);
}

/* Arenas of all ranks, and bytes of collectives and of what goes around the ring; what ranks wait for each other is
 * said. */
static void test_report_of_a_run(void **state)
{
    static char said[1 << 16];
    (void)state;
    run_report("--seq 64 --gpus 4 --cp 2 --pp 2 --accumulate 4 --strategy ddp", said, sizeof said);
    assert_true(times_said(said, "as predicted, to the byte, on all 4 ranks") >= 3);
    assert_non_null(strstr(said, "cp: the same of"));
    run_report("--seq 64 --gpus 4 --cp 2 --cp-comm a2a --pp 2 --accumulate 4 --strategy ddp", said, sizeof said);
    assert_true(times_said(said, "as predicted, to the byte, on all 4 ranks") >= 4); /* all_to_all too */
    run_report("--seq 64 --gpus 4 --cp 4 --accumulate 2 --strategy zero1", said, sizeof said);
    assert_non_null(strstr(said, "CONTEXT PARALLEL"));
    sent_as_predicted(said, 4); /* all_gather, reduce_scatter, all_reduce, send_recv */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_learns_as_one_rank),
                                       cmocka_unit_test(test_with_all_other_ranks),
                                       cmocka_unit_test(test_blocks_of_every_order),
                                       cmocka_unit_test(test_chunks_of_heads),
                                       cmocka_unit_test(test_updates_in_backward),
                                       cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_checkpoints_of_any_layout),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_report_of_a_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
