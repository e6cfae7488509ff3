/* Ranks of the host device, as processes of this machine: every strategy learns what one device learns, to 1e-6 of the
 * loss over 50 steps in fp32; what is resumed by other ranks goes on; a rank that dies takes the others with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/random_draws.h"
#include "lib/rank_fixture.h"
#include "lib/remove_all.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#define STEPS RANDOM_DRAWS(50) /* each on a batch that is drawn */

static struct run_result alone, together;
static char directory[3000];

/* `model` with so many sequences a step on one device, then as `words` says on several. */
static void compare_steps(const char *model, int sequences, const char *const *words, size_t count)
{
    char line[1024], flags[64];
    snprintf(flags, sizeof flags, "--steps %d --lr 1e-3", STEPS);
    snprintf(line, sizeof line, "%s gpus=1 strategy=ddp micro_batch=%d", model, sequences);
    rank_run(line, flags, &alone);
    assert_int_equal(alone.status, DTP_OK);
    assert_int_equal(alone.steps, STEPS);
    assert_true(alone.loss[STEPS - 1] < alone.loss[0]);
    for (size_t i = 0; i < count; i++) {
        if (!draw_row())
            continue;
        snprintf(line, sizeof line, "%s %s", model, words[i]);
        rank_run(line, flags, &together);
        if (together.status != DTP_OK || together.steps != STEPS)
            fail_msg("%s: status %d after %zu steps", words[i], (int)together.status, together.steps);
        if (!(run_apart(&together, &alone) < 1e-6))
            fail_msg("%s: losses %g apart", words[i], run_apart(&together, &alone));
    }
}

static void compare(const char *model, const char *const *words, size_t count)
{
    compare_steps(model, 8, words, count);
}

static void test_every_strategy_learns_the_same(void **state)
{
    static const char *const words[] = {
        "gpus=2 strategy=ddp micro_batch=4",
        "gpus=2 strategy=zero1 micro_batch=4",
        "gpus=2 strategy=zero2 micro_batch=2 accumulate=2",
        "gpus=2 strategy=zero3 micro_batch=4 checkpointing=full",
        "gpus=4 strategy=full_shard micro_batch=1 accumulate=2 accumulate_sync=false",
        "gpus=4 strategy=shard_grad_op micro_batch=1 accumulate=2 accumulate_sync=true",
        "gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=2",
        "gpus=2 strategy=full_shard micro_batch=4 clip_norm=1000 prefetch_depth=2",
        "gpus=8 strategy=ddp micro_batch=1",
        "gpus=8 strategy=zero1 micro_batch=1",
        "gpus=8 strategy=zero2 micro_batch=1",
        "gpus=8 strategy=zero3 micro_batch=1 checkpointing=full",
        "gpus=8 strategy=full_shard micro_batch=1",
        "gpus=8 strategy=shard_grad_op micro_batch=1 reduce_engine=copy",
        "gpus=8 strategy=hybrid_shard shard_group=4 micro_batch=1",
    };
    (void)state;
    compare(RUN_LLAMA, words, sizeof words / sizeof words[0]);
}

/* A momentum is a state as any, which shards hold a part of. */
static void test_momentum_learns_the_same(void **state)
{
    static const char *const words[] = {"gpus=2 strategy=full_shard micro_batch=4"};
    (void)state;
    compare(RUN_LLAMA "optimizer=momentum ", words, 1);
}

static void test_a_tied_model_learns_the_same(void **state)
{
    static const char *const words[] = {"gpus=2 strategy=full_shard micro_batch=4",
                                        "gpus=2 strategy=zero1 micro_batch=2 accumulate=2"};
    (void)state;
    compare(RUN_GPT2, words, 2);
}

/* Branches side by side, norms behind them, alternating windows: whatever shards, checkpoints or overlaps them. */
static void test_other_blocks_learn_the_same(void **state)
{
    static const char *const words[] = {
        "gpus=2 strategy=full_shard micro_batch=4 checkpointing=full",
        "gpus=4 strategy=zero2 micro_batch=2 gradient_stream=true",
        "gpus=2 strategy=zero3 micro_batch=2 accumulate=2 checkpointing=selective-matmul",
        "gpus=2 strategy=shard_grad_op micro_batch=4 reduce_engine=copy",
        "gpus=2 strategy=zero1 micro_batch=4 offload=optimizer checkpointing=every-2"};
    (void)state;
    compare(RUN_LLAMA "parallel_block=two_norms ", words, sizeof words / sizeof words[0]);
    compare(RUN_LLAMA "norm_place=after qk_norm=true qk_norm_wide=true ", words, sizeof words / sizeof words[0]);
    compare(RUN_LLAMA "norm_place=both activation=geglu norm_unit_offset=true attention_softcap=50 final_softcap=30 "
                      "sliding_window=5 sliding_window_pattern=2 tied_head=true ",
            words, sizeof words / sizeof words[0]);
}

/* Experts, all of them on each rank: rows of a rank's tokens alone go to its copies of them. */
static void test_experts_learn_the_same(void **state)
{
    static const char *const words[] = {"gpus=2 strategy=full_shard micro_batch=4 checkpointing=full",
                                        "gpus=4 strategy=zero2 micro_batch=2 gradient_stream=true",
                                        "gpus=2 strategy=ddp micro_batch=2 accumulate=2"};
    (void)state;
    compare(RUN_LLAMA "experts=6 experts_per_token=2 expert_ffn=24 router_norm=true ", words, 3);
    compare(RUN_LLAMA "experts=4 experts_per_token=1 expert_ffn=40 shared_expert_ffn=32 shared_expert_gate=true "
                      "router=sigmoid router_bias=true ",
            words, 3);
}

/* Latent attention, with queries from a latent and not, beside experts as well. */
static void test_latent_attention_learns_the_same(void **state)
{
    static const char *const words[] = {"gpus=2 strategy=full_shard micro_batch=4 checkpointing=full",
                                        "gpus=4 strategy=zero2 micro_batch=2 gradient_stream=true",
                                        "gpus=2 strategy=ddp micro_batch=2 accumulate=2"};
    (void)state;
    compare(RUN_LATENT "q_latent=24 ", words, 3);
    compare(RUN_LATENT "experts=4 experts_per_token=2 expert_ffn=24 shared_expert_ffn=16 router=sigmoid ", words, 1);
}

/* Layers of two kinds, the larger first or last: what is gathered into slots that have room for either, or exchanged.
 */
static void test_two_kinds_of_layers_learn_the_same(void **state)
{
    static const char *const words[] = {"gpus=2 strategy=full_shard micro_batch=2 accumulate=2 accumulate_sync=true",
                                        "gpus=2 strategy=zero3 micro_batch=4 checkpointing=full prefetch_depth=2",
                                        "gpus=2 strategy=zero2 micro_batch=4 reduce_engine=copy",
                                        "gpus=2 strategy=shard_grad_op micro_batch=4 clip_norm=1000"};
    (void)state;
    compare(RUN_LLAMA "layers=4 experts=6 experts_per_token=2 expert_ffn=24 dense_layers=1 ", words, 4);
    compare(RUN_LLAMA "layers=3 ffn=400 experts=2 experts_per_token=1 expert_ffn=16 expert_layer_step=2 ", words, 3);
}

/* Gradients exchanged and added up instead of scattered: the program that copy engines run between GPUs. */
static void test_exchanged_gradients_learn_the_same(void **state)
{
    static const char *const words[] = {
        "reduce_engine=copy gpus=2 strategy=zero2 micro_batch=6",
        "reduce_engine=copy gpus=2 strategy=zero2 micro_batch=2 accumulate=3",
        "reduce_engine=copy gpus=4 strategy=full_shard micro_batch=3",
        "reduce_engine=copy gpus=4 strategy=full_shard micro_batch=1 accumulate=3 accumulate_sync=true",
        "reduce_engine=copy gpus=4 strategy=shard_grad_op micro_batch=3",
        "reduce_engine=copy gpus=2 strategy=shard_grad_op micro_batch=2 accumulate=3",
        "reduce_engine=copy gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=3",
        "reduce_engine=copy gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=1 accumulate=3 accumulate_sync=true",
        "reduce_engine=copy gpus=2 strategy=zero1 micro_batch=6 offload=optimizer clip_norm=1000",
        "reduce_engine=copy gpus=4 strategy=full_shard micro_batch=1 accumulate=3 accumulate_sync=true offload=params",
    };
    (void)state;
    compare_steps(RUN_LLAMA, 12, words, sizeof words / sizeof words[0]);
}

/* Blocks updated behind their reductions instead of at the step's end: the same sums in the same order, so the same
 * digits. */
static void test_updates_in_backward_change_no_digit(void **state)
{
    static const char *const words[] = {
        "gpus=2 strategy=full_shard micro_batch=4 precision=bf16-mixed",
        "gpus=4 strategy=full_shard micro_batch=2 checkpointing=full gradient_stream=true prefetch_depth=2",
        "gpus=4 strategy=full_shard micro_batch=2 reduce_engine=copy precision=bf16-mixed reduce_dtype=bf16",
        "gpus=2 strategy=zero1 micro_batch=2 accumulate=2 checkpointing=selective",
        "gpus=2 strategy=zero2 micro_batch=4 precision=bf16-pure stochastic_rounding=true",
        "gpus=4 strategy=shard_grad_op micro_batch=1 accumulate=2 gradient_stream=true reduce_engine=copy",
        "gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=2",
        "gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=1 accumulate=2 reduce_engine=copy",
        "gpus=1 strategy=ddp micro_batch=4 precision=bf16-mixed checkpointing=full",
        "gpus=1 strategy=ddp micro_batch=2 accumulate=2 gradient_stream=true",
        "gpus=2 strategy=full_shard micro_batch=4", /* layers of two kinds, whose shards take turns apart */
    };
    char line[1024];
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct run_result *const results[] = {&alone, &together};
        if (!draw_row())
            continue;
        for (int behind = 0; behind < 2; behind++) {
            snprintf(line, sizeof line, "%s layers=5 gradient_norm=false update_in_backward=%s %s",
                     i == 10 ? RUN_LLAMA "experts=4 experts_per_token=2 expert_ffn=24 dense_layers=2 "
                     : i % 2 ? RUN_LLAMA
                             : RUN_GPT2,
                     behind ? "true" : "false", words[i]);
            rank_run(line, "--steps 12 --lr 1e-2", results[behind]);
            if (results[behind]->status != DTP_OK || results[behind]->steps != 12)
                fail_msg("%s: status %d", line, (int)results[behind]->status);
        }
        assert_true(alone.loss[11] < alone.loss[0]);
        for (size_t k = 0; k < 12; k++)
            if (together.loss[k] != alone.loss[k])
                fail_msg("%s: step %zu: loss %.9g, not %.9g", words[i], k + 1, together.loss[k], alone.loss[k]);
    }
}

/* bf16 gradients whose sums are fp32 to the end: where the same gradients are added up, by whatever strategy, is only
 * the order of fp32 sums, and none where the ranks are the same; beside all in fp32 it is one rounding of gradients. */
static void test_sums_of_bf16_gradients_are_fp32(void **state)
{
#define WIDE RUN_LLAMA "precision=bf16-mixed reduce_dtype=bf16 reduce_engine=copy micro_batch=1 "
    static const char *const same[] = {"gpus=4 strategy=zero2", "gpus=4 strategy=shard_grad_op"},
                             *const summed[] = {"gpus=2 strategy=full_shard accumulate=2 accumulate_sync=true",
                                                "gpus=4 strategy=hybrid_shard shard_group=2"};
    static struct run_result first;
    char line[1024];
    (void)state;
    rank_run(WIDE "gpus=4 strategy=full_shard", "--steps 10 --lr 1e-3", &first);
    assert_int_equal(first.status, DTP_OK);
    for (size_t i = 0; i < 2; i++) {
        snprintf(line, sizeof line, WIDE "%s", same[i]);
        rank_run(line, "--steps 10 --lr 1e-3", &together);
        run_same(&together, &first, same[i]);
        snprintf(line, sizeof line, WIDE "%s", summed[i]);
        rank_run(line, "--steps 10 --lr 1e-3", &together);
        if (!(run_apart(&together, &first) < 1e-6))
            fail_msg("%s: losses %g apart", summed[i], run_apart(&together, &first));
    }
#undef WIDE
    rank_run(RUN_LLAMA "precision=bf16-mixed gpus=1 strategy=ddp micro_batch=4", "--steps 10 --lr 1e-3", &alone);
    assert_true(run_apart(&first, &alone) < 1e-4);
}

/* What replicas sum goes over the wire in 16 or 8 bits: of ddp's gradients and of hybrid's shards. Each is rounded, so
 * losses differ, and by less than the 2^-9 of bf16, 2^-12 of fp16 or 2^-8 of a run's range does to gradients. */
static void test_hooks_of_few_bits(void **state)
{
    static const struct {
        const char *words;
        double most;
    } cases[] = {{"gpus=4 strategy=ddp micro_batch=2 comm_hook=fp16", 2e-4},
                 {"gpus=2 strategy=ddp micro_batch=2 accumulate=2 accumulate_sync=true comm_hook=bf16", 2e-3},
                 {"gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=2 comm_hook=bf16", 2e-3},
                 {"gpus=4 strategy=ddp micro_batch=2 comm_hook=int8", 5e-3},
                 {"gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=2 comm_hook=int8", 5e-3},
                 {"gpus=1 strategy=ddp micro_batch=8 comm_hook=bf16", 1e-9}};
    char line[1024];
    (void)state;
    rank_run(RUN_LLAMA "gpus=1 strategy=ddp micro_batch=8", "--steps 30 --lr 1e-3", &alone);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(line, sizeof line, RUN_LLAMA "%s", cases[i].words);
        rank_run(line, "--steps 30 --lr 1e-3", &together);
        assert_int_equal(together.status, DTP_OK);
        double apart = run_apart(&together, &alone);
        if (!(apart < cases[i].most) || (i < 5 && apart < 1e-6))
            fail_msg("%s: losses %g apart", cases[i].words, apart);
    }
}

/* PowerSGD: what is lost comes later, so it learns, if not what it would without. A resumed run goes on bit for bit:
 * what each rank lost and Q are kept. It may begin where a run without it stopped; other ranks or factors are refused,
 * and a loss that is left out would be kept. */
#define FACTORED "gpus=4 strategy=ddp micro_batch=2 comm_hook=powersgd powersgd_rank="
static void test_powersgd(void **state)
{
    static const struct {
        const char *words, *flags;
        int status;
    } cases[] = {
        {FACTORED "2", "--steps 30 --resume-previous", DTP_OK},
        {FACTORED "4", "--steps 40 --resume", DTP_BAD_INPUT},
        {"gpus=2 strategy=ddp micro_batch=4 comm_hook=powersgd powersgd_rank=2", "--steps 40 --resume", DTP_BAD_INPUT},
        {FACTORED "2", "--steps 40 --resume --not-finite skip", DTP_BAD_INPUT},
        {"gpus=4 strategy=ddp micro_batch=2", "--steps 40 --resume", DTP_OK},
        {FACTORED "4", "--steps 50 --resume", DTP_OK}};
    char flags[3200], line[1024];
    (void)state;
    snprintf(directory, sizeof directory, "%s/tests/factored_checkpoints.%ld", TEST_BINARY_DIR, (long)getpid());
    remove_all(directory);
    rank_run(RUN_LLAMA FACTORED "2", "--steps 30 --lr 1e-3 --min-lr 1e-3", &alone);
    assert_int_equal(alone.status, DTP_OK);
    assert_true(alone.loss[29] < 0.99 * alone.loss[0]);
    snprintf(flags, sizeof flags, "--steps 30 --lr 1e-3 --min-lr 1e-3 --checkpoint '%s' --checkpoint-every 10",
             directory);
    rank_run(RUN_LLAMA FACTORED "2", flags, &together);
    run_same(&together, &alone, "with checkpoints");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(line, sizeof line, RUN_LLAMA "%s", cases[i].words);
        snprintf(flags, sizeof flags, "%s --lr 1e-3 --min-lr 1e-3 --checkpoint '%s'", cases[i].flags, directory);
        rank_run(line, flags, &together);
        if ((int)together.status != cases[i].status)
            fail_msg("%s %s: status %d", cases[i].words, cases[i].flags, (int)together.status);
        for (size_t k = 0; i == 0 && k < 10; k++)
            assert_true(together.loss[k] == alone.loss[20 + k]);
        assert_true(i < 4 || (together.steps == 10 && together.loss[9] < alone.loss[0]));
    }
    remove_all(directory);
}

/* Gradients are summed as they are up to the start step: losses are those without a hook, bit by bit, the one behind it
 * too, whose update was made before; from then on what is factored tells. A run resumed there goes on as one that went
 * through, whether what it resumes was begun with the hook or without. */
static void test_start_of_powersgd(void **state)
{
    enum { START = 10, ALL = 20 };
    static struct run_result plain;
    char flags[3200];
    (void)state;
    snprintf(directory, sizeof directory, "%s/tests/start_checkpoints.%ld", TEST_BINARY_DIR, (long)getpid());
    remove_all(directory);
    rank_run(RUN_LLAMA "gpus=4 strategy=ddp micro_batch=2", "--steps 20 --lr 1e-3 --min-lr 1e-3", &plain);
    snprintf(flags, sizeof flags, "--steps 20 --lr 1e-3 --min-lr 1e-3 --checkpoint '%s' --checkpoint-every 10",
             directory);
    rank_run(RUN_LLAMA FACTORED "2 powersgd_start_step=10", flags, &alone);
    assert_int_equal(alone.status, DTP_OK);
    for (size_t k = 0; k < ALL; k++)
        if ((alone.loss[k] == plain.loss[k]) != (k <= START))
            fail_msg("step %zu: %.9g, without a hook %.9g", k + 1, alone.loss[k], plain.loss[k]);
    snprintf(flags, sizeof flags, "--steps 20 --lr 1e-3 --min-lr 1e-3 --checkpoint '%s' --resume-previous", directory);
    rank_run(RUN_LLAMA FACTORED "2 powersgd_start_step=10", flags, &together);
    assert_int_equal(together.status, DTP_OK);
    for (size_t k = 0; k < ALL - START; k++)
        assert_true(together.loss[k] == alone.loss[START + k]);
    remove_all(directory);
}

/* Copies of hybrid_shard sum factors of their shards: what is lost comes later. Resumed, bit for bit: each rank's loss
 * and each shard's Q are kept; of other shards they are none. Steps before the start are those without a hook. */
#define FACTORED_SHARDS(shards) "gpus=4 strategy=hybrid_shard shard_group=" shards " micro_batch=2 "
static void test_powersgd_of_shards(void **state)
{
    enum { START = 10, ALL = 30 };
    static struct run_result plain;
    static const char factored[] = RUN_LLAMA FACTORED_SHARDS("2") "comm_hook=powersgd powersgd_rank=2";
    char flags[3200], line[1024];
    (void)state;
    snprintf(directory, sizeof directory, "%s/tests/factored_shards.%ld", TEST_BINARY_DIR, (long)getpid());
    remove_all(directory);
    rank_run(RUN_LLAMA FACTORED_SHARDS("2"), "--steps 30 --lr 1e-3 --min-lr 1e-3", &plain);
    snprintf(flags, sizeof flags, "--steps 30 --lr 1e-3 --min-lr 1e-3 --checkpoint '%s' --checkpoint-every 10",
             directory);
    rank_run(factored, flags, &alone);
    assert_int_equal(alone.status, DTP_OK);
    double apart = run_apart(&alone, &plain);
    assert_true(apart > 1e-4 && apart < 0.1 && alone.loss[ALL - 1] < 0.99 * alone.loss[0]);
    snprintf(flags, sizeof flags, "--steps 30 --lr 1e-3 --min-lr 1e-3 --checkpoint '%s' --resume-previous", directory);
    rank_run(factored, flags, &together);
    assert_int_equal(together.status, DTP_OK);
    for (size_t k = 0; k < 10; k++)
        assert_true(together.loss[k] == alone.loss[20 + k]);
    snprintf(flags, sizeof flags, "--steps 40 --lr 1e-3 --min-lr 1e-3 --checkpoint '%s' --resume", directory);
    rank_run(RUN_LLAMA "gpus=4 strategy=ddp micro_batch=2 comm_hook=powersgd powersgd_rank=2", flags, &together);
    assert_int_equal(together.status, DTP_BAD_INPUT);
    snprintf(line, sizeof line, "%s powersgd_start_step=%d", factored, START);
    rank_run(line, "--steps 30 --lr 1e-3 --min-lr 1e-3", &together);
    for (size_t k = 0; k < ALL; k++)
        if ((together.loss[k] == plain.loss[k]) != (k <= START))
            fail_msg("step %zu: %.9g, without a hook %.9g", k + 1, together.loss[k], plain.loss[k]);
    remove_all(directory);
}

/* ---- resuming elsewhere ------------------------------------------------------------------------------------------ */

static void test_other_ranks_resume(void **state)
{
    static const char *const words[] = {"gpus=4 strategy=full_shard micro_batch=2",
                                        "gpus=2 strategy=zero1 micro_batch=4", "gpus=1 strategy=ddp micro_batch=8",
                                        "gpus=4 strategy=hybrid_shard shard_group=2 micro_batch=2"};
    char flags[3200], line[1024];
    (void)state;
    snprintf(directory, sizeof directory, "%s/tests/rank_checkpoints.%ld", TEST_BINARY_DIR, (long)getpid());
    remove_all(directory);
    snprintf(line, sizeof line, RUN_LLAMA "%s", words[2]);
    rank_run(line, "--steps 10 --lr 1e-3", &alone);
    for (size_t i = 0; i < 4; i++) {
        snprintf(line, sizeof line, RUN_LLAMA "%s", words[i]);
        snprintf(flags, sizeof flags, "--steps 10 --lr 1e-3 --checkpoint '%s' --checkpoint-every %d%s", directory,
                 i == 0 ? 2 : 100,
                 i == 0   ? ""
                 : i == 1 ? " --resume-previous"
                          : " --resume");
        if (i >= 2) /* steps 10 exist: the schedule goes on where a longer run would be */
            snprintf(flags, sizeof flags, "--steps %zu --lr 1e-3 --checkpoint '%s' --resume", 8 + 2 * i, directory);
        rank_run(line, flags, &together);
        if (together.status != DTP_OK || together.steps != (i == 0 ? 10 : 2))
            fail_msg("%s: status %d after %zu steps", words[i], (int)together.status, together.steps);
        for (size_t k = 0; k < together.steps && i < 2; k++)
            if (!(fabs(together.loss[k] / alone.loss[10 - together.steps + k] - 1) < 1e-6))
                fail_msg("%s: %g, not %g", words[i], together.loss[k], alone.loss[10 - together.steps + k]);
        assert_true(together.loss[1] < 1.05 * alone.loss[9]);
    }
    remove_all(directory);
}

/* ---- failure ----------------------------------------------------------------------------------------------------- */

/* The last process that `launcher` started; 0: none yet. */
static pid_t last_child(pid_t launcher)
{
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)launcher, (int)launcher);
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%d", &child) == 1)
        ;
    if (file)
        fclose(file);
    return child;
}

static void read_until_step(FILE *events)
{
    char line[4096];
    while (fgets(line, sizeof line, events))
        if (strstr(line, "\"event\":\"step\""))
            return;
    fail_msg("no step was made");
}

/* Every rank that is left says which one failed; what it says goes to standard error, and this test's reader. */
static void test_a_killed_rank_ends_the_others(void **state)
{
    char line[4096], shell[4200];
    int ends[2], status;
    (void)state;
    rank_command_line(RUN_LLAMA "gpus=3 strategy=full_shard", "--steps 1000000", line, sizeof line);
    snprintf(shell, sizeof shell, "exec %s", line);
    assert_int_equal(pipe(ends), 0);
    pid_t launcher = fork();
    if (launcher == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/bin/sh", "sh", "-c", shell, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *events = fdopen(ends[0], "r");
    read_until_step(events);
    pid_t rank = last_child(launcher);
    assert_true(rank > 0);
    time_t killed = time(NULL);
    assert_int_equal(kill(rank, SIGKILL), 0);
    while (fgets(line, sizeof line, events))
        ; /* until all who could write have ended */
    fclose(events);
    assert_int_equal(waitpid(launcher, &status, 0), launcher);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), DTP_ENVIRONMENT);
    assert_true(time(NULL) - killed <= 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_strategy_learns_the_same),
                                       cmocka_unit_test(test_momentum_learns_the_same),
                                       cmocka_unit_test(test_a_tied_model_learns_the_same),
                                       cmocka_unit_test(test_other_blocks_learn_the_same),
                                       cmocka_unit_test(test_experts_learn_the_same),
                                       cmocka_unit_test(test_latent_attention_learns_the_same),
                                       cmocka_unit_test(test_two_kinds_of_layers_learn_the_same),
                                       cmocka_unit_test(test_exchanged_gradients_learn_the_same),
                                       cmocka_unit_test(test_updates_in_backward_change_no_digit),
                                       cmocka_unit_test(test_sums_of_bf16_gradients_are_fp32),
                                       cmocka_unit_test(test_hooks_of_few_bits),
                                       cmocka_unit_test(test_powersgd),
                                       cmocka_unit_test(test_start_of_powersgd),
                                       cmocka_unit_test(test_powersgd_of_shards),
                                       cmocka_unit_test(test_other_ranks_resume),
                                       cmocka_unit_test(test_a_killed_rank_ends_the_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
