/* Whole training runs on the host device, every unwritten byte poisoned: what must not change what is learned does not,
 * to the last bit, and what is learned is what there is to learn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/run_fixture.h"
#include "lib/remove_all.h"

#include <unistd.h>

static struct run_result plain, other;

/* ---- recomputation and accumulation ------------------------------------------------------------------------------ */

static void recomputed(const char *model, const char *precision)
{
    static const char *const choices[] = {"full", "every-2", "selective", "selective-attention"};
    struct dtp_settings settings = run_settings(3, 1e-2);
    char words[1024];
    snprintf(words, sizeof words, "%s micro_batch=2 precision=%s", model, precision);
    run_well(words, &settings, &plain);
    assert_true(plain.loss[2] < plain.loss[0]);
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        snprintf(words, sizeof words, "%s micro_batch=2 precision=%s checkpointing=%s", model, precision, choices[i]);
        run_well(words, &settings, &other);
        run_same(&other, &plain, words);
    }
}

static void test_recomputing_changes_no_bit(void **state)
{
    static const char *const precisions[] = {"fp32", "bf16-mixed", "bf16-pure"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        recomputed(RUN_LLAMA, precisions[i]);
        recomputed(RUN_GPT2, precisions[i]);
    }
}

/* The same sums in another order: 4 sequences at once, 2 by 2, one by one. */
static void test_accumulation_is_one_batch(void **state)
{
    static const char *const models[] = {RUN_LLAMA, RUN_GPT2, RUN_LLAMA "tied_head=true "};
    struct dtp_settings settings = run_settings(5, 1e-2);
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char words[1024];
        snprintf(words, sizeof words, "%s precision=fp32 micro_batch=4", models[i]);
        run_well(words, &settings, &plain);
        for (int k = 2; k <= 4; k *= 2) {
            snprintf(words, sizeof words, "%s precision=fp32 micro_batch=%d accumulate=%d", models[i], 4 / k, k);
            run_well(words, &settings, &other);
            if (!(run_apart(&other, &plain) < 2e-6))
                fail_msg("%s: losses %g apart", words, run_apart(&other, &plain));
        }
    }
}

/* Chunks of the head, GELU inside matmuls: other sums or other roundings of the same numbers. Weight gradients on a
 * stream of their own: the same to the last bit. */
static void test_choices_of_kernels_agree(void **state)
{
    struct dtp_settings settings = run_settings(5, 1e-2);
    (void)state;
    run_well(RUN_LLAMA "precision=fp32 micro_batch=2", &settings, &plain);
    run_well(RUN_LLAMA "precision=fp32 micro_batch=2 loss_chunk=5", &settings, &other);
    assert_true(run_apart(&other, &plain) < 2e-6);
    run_well(RUN_LLAMA "precision=fp32 micro_batch=2 gradient_stream=true", &settings, &other);
    assert_true(run_apart(&other, &plain) == 0);
    run_well(RUN_GPT2 "precision=fp32 micro_batch=2", &settings, &plain);
    run_well(RUN_GPT2 "precision=fp32 micro_batch=2 gelu_epilogue=true", &settings, &other);
    assert_true(run_apart(&other, &plain) < 2e-6);
    run_well(RUN_GPT2 "precision=fp32 micro_batch=2 gelu_epilogue=true gradient_stream=true", &settings, &plain);
    assert_true(run_apart(&other, &plain) == 0);
}

/* ---- 16 and 8 bits ----------------------------------------------------------------------------------------------- */

#define NARROW "layers=2 hidden=32 heads=4 kv_heads=2 head_dim=16 ffn=96 vocab=50 seq=16 micro_batch=2 "

/* What bf16 learns, fp16 and fp8 do; what is cast again, by a replay or in another micro-step, is cast alike. */
static void near(const char *words, double apart)
{
    struct dtp_settings settings = run_settings(30, 3e-3);
    run_well(words, &settings, &other);
    if (!(run_apart(&other, &plain) < apart))
        fail_msg("%s: losses %g apart", words, run_apart(&other, &plain));
}

static void test_narrow_formats_learn(void **state)
{
    struct dtp_settings settings = run_settings(30, 3e-3);
    (void)state;
    run_well(NARROW "precision=fp32", &settings, &plain);
    near(NARROW "precision=fp16-mixed", 0.002);
    near(NARROW "precision=bf16-mixed", 0.01);
    near(NARROW "precision=fp8-tensorwise", 0.02);
    near(NARROW "precision=fp8-tensorwise micro_batch=1 accumulate=2", 0.02); /* each has its own amax */
    near(NARROW "precision=fp8-tensorwise param_dtype=bf16 master_dtype=bf16 moment_dtype=bf16", 0.05);
    near(NARROW "precision=fp8-rowwise", 0.02);
    near(NARROW "precision=fp8-rowwise-gw-hp param_dtype=bf16 master_dtype=bf16 moment_dtype=bf16", 0.05);
    near(NARROW "precision=fp8-blockwise micro_batch=1 accumulate=2", 0.02);
    near(NARROW "precision=fp8-delayed", 0.02);
    run_well(NARROW "precision=fp8-rowwise-gw-hp", &settings, &plain);
    near(NARROW "precision=fp8-rowwise-gw-hp checkpointing=selective-matmul", 1e-300);
    run_well(NARROW "precision=fp8-blockwise", &settings, &plain);
    near(NARROW "precision=fp8-blockwise checkpointing=full", 1e-300);
    run_well(NARROW "precision=fp8-delayed", &settings, &plain);
    near(NARROW "precision=fp8-delayed checkpointing=full", 1e-300);
    run_well(NARROW "precision=fp8-tensorwise", &settings, &plain);
    near(NARROW "precision=fp8-tensorwise checkpointing=full", 1e-300);
    near(NARROW "precision=fp8-tensorwise checkpointing=selective-matmul", 1e-300);
    near(NARROW "precision=fp8-tensorwise checkpointing=selective-attention", 1e-300);
}

/* What backward reads in 8 bits forward never sees: the first loss is the same to the last bit, and so is what is made
 * again of the block's input. */
static void test_inputs_in_8_bits(void **state)
{
    static const char *const of_each[] = {
        NARROW "precision=fp32 ", NARROW "precision=bf16-mixed ", NARROW "precision=fp8-tensorwise ",
        NARROW "precision=fp16-mixed activation=geglu ", NARROW "precision=bf16-mixed activation=gelu mlp_bias=true "};
    struct dtp_settings settings = run_settings(30, 3e-3);
    char words[256];
    (void)state;
    for (size_t i = 0; i < sizeof of_each / sizeof *of_each; i++) {
        snprintf(words, sizeof words, "%sactivation_fp8_input_store=true ", of_each[i]);
        run_well(of_each[i], &settings, &plain);
        near(words, 0.02);
        assert_true(plain.loss[0] == other.loss[0] && plain.loss[29] != other.loss[29]);
        plain = other;
        snprintf(words, sizeof words, "%sactivation_fp8_input_store=true checkpointing=full", of_each[i]);
        near(words, 1e-300);
        snprintf(words, sizeof words, "%sactivation_fp8_input_store=true checkpointing=selective-matmul", of_each[i]);
        near(words, 0.02); /* the activation is made again of 8 bits */
    }
}

/* The first step overflows at a scale of 2^60, whatever the gradients, and the update is left out: 45 halvings later
 * some gradient is no larger than 65504. */
static void test_fp16_finds_its_scale(void **state)
{
    struct dtp_settings settings = run_settings(8, 1e-2);
    (void)state;
    settings.fixed_loss_scale = 0x1p60;
    settings.not_finite = "skip";
    settings.skip_not_finite = true;
    run_well(NARROW "precision=fp16-mixed", &settings, &other);
    for (size_t i = 0; i < 8; i++)
        assert_true(other.skipped[i]);
    settings.not_finite = NULL;
    settings.skip_not_finite = false;
    run_train(NARROW "precision=fp16-mixed", &settings, &other);
    assert_int_equal(other.status, DTP_NO);
    settings.fixed_loss_scale = 0;
    run_well(NARROW "precision=fp16-mixed", &settings, &plain); /* dynamic: overflows are no fault */
    assert_false(plain.skipped[7]);
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

/* 16 states: the table of probabilities is learned in 200 steps. The mean of the last 20 losses (of 4096 tokens each)
 * is compared with the chain's entropy. */
static void test_the_loss_reaches_the_entropy(void **state)
{
    struct dtp_settings settings = run_settings(200, 1e-2);
    double mean = 0;
    (void)state;
    settings.warmup = 10;
    settings.weight_decay = 0;
    run_well("layers=1 hidden=32 heads=2 ffn=64 vocab=16 seq=32 micro_batch=16 precision=bf16-mixed clip_norm=1",
             &settings, &plain);
    for (size_t i = 180; i < 200; i++)
        mean += plain.loss[i] / 20;
    if (!(fabs(mean / plain.entropy - 1) < 0.02))
        fail_msg("loss %g, entropy %g", mean, plain.entropy);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static char directory[3000], log_path[3100];

static int make_room(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "%s/tests/run_checkpoints", TEST_BINARY_DIR);
    snprintf(log_path, sizeof log_path, "%s.csv", directory);
    remove_all(directory);
    remove(log_path);
    return 0;
}

static void resumed(const char *words)
{
    struct dtp_settings settings = run_settings(12, 1e-2);
    settings.log = log_path;
    run_well(words, &settings, &plain);
    settings.checkpoint = directory;
    settings.checkpoint_every = 4;
    settings.steps = 12;
    run_well(words, &settings, &other);
    run_same(&other, &plain, "a run that writes checkpoints");
    settings.resume_previous = settings.resume = true; /* of step 8 */
    run_train(words, &settings, &other);
    assert_int_equal(other.status, DTP_OK);
    assert_int_equal(other.steps, 4);
    for (size_t i = 0; i < 4; i++)
        if (other.loss[i] != plain.loss[8 + i] || other.gradient_norm[i] != plain.gradient_norm[8 + i])
            fail_msg("%s: step %zu: %.9g, resumed %.9g", words, 9 + i, plain.loss[8 + i], other.loss[i]);
    remove_all(directory);
}

static void test_a_resumed_run_goes_on_bit_for_bit(void **state)
{
    (void)state;
    resumed(RUN_LLAMA "micro_batch=2 precision=bf16-mixed clip_norm=0.5");
    resumed(RUN_LLAMA "micro_batch=2 precision=bf16-pure stochastic_rounding=true");
    resumed(RUN_GPT2 "micro_batch=2 accumulate=2 precision=fp32");
    resumed(RUN_LLAMA "qk_norm=true micro_batch=2 precision=bf16-mixed");
    resumed(NARROW "precision=fp16-mixed");
    resumed(NARROW "precision=fp8-tensorwise");
    resumed(NARROW "precision=fp8-delayed");
    resumed(NARROW "precision=bf16-mixed optimizer=adam8bit");
    resumed(NARROW "precision=bf16-pure stochastic_rounding=true optimizer=sgd");
    resumed(NARROW "precision=bf16-pure optimizer=momentum");
    resumed(NARROW "precision=bf16-mixed optimizer=muon bias=true norm=layer_norm clip_norm=1");
}

/* 12 rows, though the last four steps were trained twice. */
static void test_the_log_goes_on(void **state)
{
    char line[512];
    uint64_t rows = 0, step;
    (void)state;
    resumed(RUN_LLAMA "precision=fp32");
    FILE *file = fopen(log_path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "step,loss,gradient_norm,learning_rate,step_s,tokens_per_s,skipped,program\n");
    for (; fgets(line, sizeof line, file); rows++) {
        assert_int_equal(sscanf(line, "%lu,", &step), 1);
        assert_int_equal(step, rows + 1);
    }
    assert_int_equal(rows, 12);
    fclose(file);
}

static void test_what_cannot_be_resumed_is_refused(void **state)
{
    struct dtp_settings settings = run_settings(4, 1e-2);
    (void)state;
    settings.checkpoint = directory;
    settings.resume = true;
    run_train(RUN_LLAMA "precision=fp32", &settings, &other);
    assert_int_equal(other.status, DTP_BAD_INPUT);
    assert_non_null(strstr(other.said, "no complete checkpoint"));
    settings.resume = false;
    run_well(RUN_LLAMA "precision=fp32", &settings, &other); /* one at its end */
    settings.resume = true;
    run_train(RUN_LLAMA "precision=fp32", &settings, &other);
    assert_non_null(strstr(other.said, "4 steps done already"));
    settings.steps = 8;
    run_train(RUN_LLAMA "precision=bf16-mixed", &settings, &other);
    assert_int_equal(other.status, DTP_BAD_INPUT);
    assert_non_null(strstr(other.said, "another model"));
    static const char *const others[] = {"qk_norm=true",      "parallel_block=two_norms", "norm_place=after",
                                         "norm_eps=1e-6",     "embedding_scale=true",     "optimizer=muon",
                                         "optimizer=momentum"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* most have as many weights, at the same places */
        char words[512];
        snprintf(words, sizeof words, "%s precision=fp32 %s", RUN_LLAMA, others[i]);
        run_train(words, &settings, &other);
        assert_int_equal(other.status, DTP_BAD_INPUT);
        assert_non_null(strstr(other.said, "another model"));
    }
    run_train(RUN_LLAMA "precision=fp32 micro_batch=2", &settings, &other);
    assert_int_equal(other.status, DTP_BAD_INPUT);
    assert_non_null(strstr(other.said, "as many sequences a step"));
    settings.seed = 9;
    run_train(RUN_LLAMA "precision=fp32", &settings, &other);
    assert_non_null(strstr(other.said, "--seed 1, not 9"));
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

/* A learning rate of 1e6 makes weights that overflow. */
static void test_a_loss_that_is_no_number_stops_or_is_skipped(void **state)
{
    struct dtp_settings settings = run_settings(30, 1e6);
    (void)state;
    settings.weight_decay = 1000;
    run_train(RUN_LLAMA "precision=fp32", &settings, &other);
    assert_int_equal(other.status, DTP_NO);
    assert_non_null(strstr(other.said, "the update was left out and the run stopped"));
    assert_true(other.steps < 30 && other.skipped[other.steps - 1]);
    settings.not_finite = "skip";
    settings.skip_not_finite = true;
    run_well(RUN_LLAMA "precision=fp32", &settings, &other);
    assert_true(other.skipped[29]);
}

static void test_a_full_disk_keeps_what_was_written(void **state)
{
    struct dtp_settings settings = run_settings(3, 1e-3);
    (void)state;
    settings.log = "/dev/full";
    run_train(RUN_LLAMA "precision=fp32", &settings, &other);
    assert_int_equal(other.status, DTP_ENVIRONMENT);
    assert_non_null(strstr(other.said, "/dev/full"));
}

static void test_other_runtimes_are_only_predicted(void **state)
{
    struct dtp_settings settings = run_settings(3, 1e-3);
    (void)state;
    run_train(RUN_LLAMA "runtime=torch gradient_norm=false", &settings, &other);
    assert_int_equal(other.status, DTP_BAD_INPUT);
}

static void test_a_signal_ends_the_run_after_its_step(void **state)
{
    static struct dtp_faults faults;
    static struct dtp_job job;
    static const volatile sig_atomic_t stop = 1;
    struct dtp_settings settings = run_settings(30, 1e-3);
    uint64_t step;
    (void)state;
    settings.checkpoint = directory;
    run_job(RUN_LLAMA "precision=fp32", &job);
    struct dtp_train_job train = {.job = &job, .settings = &settings, .stop = &stop};
    assert_int_equal(dtp_train(&train, &faults), DTP_OK);
    assert_int_equal(dtp_checkpoint_list(directory, &step, 1), 1);
    assert_int_equal(step, 2); /* begun before the first was looked at */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recomputing_changes_no_bit),
        cmocka_unit_test(test_accumulation_is_one_batch),
        cmocka_unit_test(test_choices_of_kernels_agree),
        cmocka_unit_test(test_narrow_formats_learn),
        cmocka_unit_test(test_inputs_in_8_bits),
        cmocka_unit_test(test_fp16_finds_its_scale),
        cmocka_unit_test(test_the_loss_reaches_the_entropy),
        cmocka_unit_test_setup(test_a_resumed_run_goes_on_bit_for_bit, make_room),
        cmocka_unit_test_setup(test_the_log_goes_on, make_room),
        cmocka_unit_test_setup(test_what_cannot_be_resumed_is_refused, make_room),
        cmocka_unit_test(test_a_loss_that_is_no_number_stops_or_is_skipped),
        cmocka_unit_test(test_a_full_disk_keeps_what_was_written),
        cmocka_unit_test(test_other_runtimes_are_only_predicted),
        cmocka_unit_test_setup(test_a_signal_ends_the_run_after_its_step, make_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
