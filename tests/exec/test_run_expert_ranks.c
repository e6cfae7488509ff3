/* Ranks that divide experts, on the host device: they learn what one rank with all experts learns, beside every
 * strategy that is run with them, hold what their programs say, and go on from each other's checkpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"

#define STEPS RANDOM_DRAWS(50) /* each on a batch that is drawn */
#define LAYOUT_FOLDER "experts"
#define LEARNING_RATE "1e-3"
#include "lib/layout_fixture.h"

#define MODEL                                                                                                          \
    "layers=2 hidden=16 heads=2 head_dim=8 ffn=32 vocab=41 seq=8 clip_norm=0.5 experts=8 experts_per_token=2 "         \
    "expert_ffn=24 "
#define SHARED                                                                                                         \
    MODEL "shared_expert_ffn=16 shared_expert_gate=true router=sigmoid router_norm=true "                              \
          "expert_groups=4 groups_per_token=2 "

/* Of all ranks' rows one may get up to `ep` times the mean: so much has room here. */
static void learn_as_one(const char *model, const char *const *plans, size_t count)
{
    struct run_result one;
    char words[600];
    snprintf(words, sizeof words, "%smicro_batch=1 accumulate=8 gpus=1", model);
    train(words, "one", &one);
    assert_true(one.loss[STEPS - 1] < one.loss[0]);
    for (size_t i = 0; i < count; i++)
        learns_as_one(model, plans[i], &one, "one", false);
    remove_all(folder("one"));
}

static void test_learns_as_one_rank(void **state)
{
    static const char *const plans[] = {
        "gpus=2 ep=2 strategy=ddp micro_batch=4 accumulate=1",
        "gpus=4 ep=4 strategy=ddp micro_batch=1 accumulate=2 checkpointing=full",
        "gpus=4 ep=2 strategy=ddp micro_batch=1 accumulate=2 accumulate_sync=true",
        "gpus=8 ep=4 strategy=full_shard micro_batch=1 accumulate=1",
    };
    (void)state;
    learn_as_one(MODEL, plans, sizeof plans / sizeof *plans);
}

static void test_with_every_strategy(void **state)
{
    static const char *const plans[] = {
        "gpus=4 ep=2 strategy=full_shard micro_batch=2 accumulate=1",
        "gpus=4 ep=2 strategy=zero1 micro_batch=1 accumulate=2",
        "gpus=4 ep=2 strategy=zero2 micro_batch=1 accumulate=2",
        "gpus=2 ep=2 strategy=shard_grad_op micro_batch=2 accumulate=2 checkpointing=full",
        "gpus=4 ep=2 strategy=hybrid_shard shard_group=2 micro_batch=2 accumulate=1",
        "gpus=8 ep=2 strategy=hybrid_shard shard_group=4 micro_batch=1 accumulate=1",
        "gpus=4 ep=2 strategy=hybrid_shard shard_group=2 micro_batch=1 accumulate=2 accumulate_sync=true",
    };
    (void)state;
    learn_as_one(SHARED, plans, sizeof plans / sizeof *plans);
}

/* What was written with all experts on each rank goes on with them divided, in shards or not, and back. */
static void test_checkpoints_of_any_layout(void **state)
{
    static const char *const layouts[] = {"gpus=1 micro_batch=1 accumulate=4",
                                          "gpus=2 ep=2 strategy=ddp micro_batch=1 accumulate=2",
                                          "gpus=4 ep=2 strategy=full_shard micro_batch=1 accumulate=1",
                                          "gpus=4 ep=2 strategy=hybrid_shard shard_group=2 micro_batch=1 accumulate=1",
                                          "gpus=4 ep=4 strategy=zero1 micro_batch=1 accumulate=1",
                                          "gpus=2 strategy=full_shard micro_batch=2 accumulate=1"};
    (void)state;
    goes_on_in_any(SHARED, "gpus=1 micro_batch=1 accumulate=4", layouts, sizeof layouts / sizeof *layouts);
}

static void test_bf16(void **state)
{
    struct run_result wide, one, divided;
    (void)state;
    train_for(MODEL "gpus=1 micro_batch=1 accumulate=4", "one", 10, &wide);
    train_for(MODEL "gpus=1 micro_batch=1 accumulate=4 precision=bf16-mixed", "one", 10, &one);
    train_for(MODEL "gpus=4 ep=2 strategy=full_shard micro_batch=1 precision=bf16-mixed", "run", 10, &divided);
    double bf16 = run_apart(&one, &wide), apart = run_apart(&divided, &wide);
    assert_true(bf16 > 0 && apart < 2 * bf16);
    remove_all(folder("one"));
    remove_all(folder("run"));
}

/* Rows beyond what there is room for are never dropped: all ranks end, and say which layer, whose experts and how many.
 */
static void test_too_many_rows(void **state)
{
    char line[4096], said[8192];
    (void)state;
    rank_command_line(MODEL "gpus=2 ep=2 strategy=ddp expert_room=1 micro_batch=2", "--steps 3 2>&1", line,
                      sizeof line);
    assert_int_equal(said_by(line, said, sizeof said), DTP_ENVIRONMENT);
    assert_non_null(strstr(said, "of 2 get"));
    assert_non_null(strstr(said, "and its arena has room for 32; raise expert_room"));
}

static void test_refusals(void **state)
{
    static const struct refused_layout refused[] = {
        {"gpus=4 ep=3 strategy=ddp", "ep", "does not divide 8 experts"},
        {"gpus=2 ep=4 strategy=ddp", "ep", "does not divide"},
        {"gpus=8 ep=4 strategy=hybrid_shard shard_group=2", "ep", "use full_shard or ddp"},
        {"gpus=2 ep=2 strategy=ddp comm_hook=bf16", "comm_hook", "use none"},
        {"gpus=2 ep=2 strategy=ddp gradient_stream=true", "gradient_stream", "leave it out"},
        {"gpus=2 ep=2 strategy=ddp expert_room=3", "expert_room", "where one rank receives all tokens"},
        {"gpus=4 tp=2 strategy=ddp", "tp", "where ranks divide these (ep above 1"},
        {"gpus=8 ep=8 tp=2 strategy=hybrid_shard shard_group=2", "ep", "use full_shard or ddp"},
        {"gpus=2 ep=4 tp=2 strategy=ddp", "ep", "does not divide the 2 GPUs of a stage"},
        {"gpus=1 ep=4 tp=2 cp=2 strategy=full_shard", "tp", ""},
        {"gpus=2 ep=2 tp=2 strategy=ddp sequence_parallel=false", "sequence_parallel", "leave it"},
        {"gpus=2 ep=2 tp=2 strategy=ddp shared_expert_ffn=24", "tp", "to a multiple of 16"},
        {"gpus=8 ep=4 tp=2 strategy=hybrid_shard shard_group=2 layout_order=dp-tp", "layout_order", "begins with tp"},
        {"gpus=8 ep=4 tp=2 pp=2 strategy=ddp accumulate=4 layout_order=tp-pp-dp", "layout_order", "leave it out"}};
    (void)state;
    are_refused(MODEL, refused, sizeof refused / sizeof *refused);
}

/* The arena and what is always as much, to the byte; rows are said to be expected alone. */
static void test_report_of_a_run(void **state)
{
    static char said[1 << 16];
    (void)state;
    run_report("--seq 16 --experts 8 --experts-per-token 2 --expert-ffn 32 --gpus 4 --ep 2 "
               "--strategy ddp",
               said, sizeof said);
    assert_non_null(strstr(said, "all_to_all, expected"));
    sent_as_predicted(said, 2); /* all_gather, all_reduce */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_learns_as_one_rank),
                                       cmocka_unit_test(test_with_every_strategy),
                                       cmocka_unit_test(test_checkpoints_of_any_layout),
                                       cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_too_many_rows),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_report_of_a_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
