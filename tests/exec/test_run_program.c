/* What dtplan hands over is what runs: the text of a program in a file, held against the words beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/run_fixture.h"
#include "lower/lower.h"
#include "program/program_text.h"

#include <unistd.h>

#define WORDS RUN_LLAMA "precision=bf16-mixed micro_batch=2 accumulate=2"

static struct run_result plain, other;
static char path[3000];

/* The text that these words make, to `path`. */
static void write_program(const char *words)
{
    static struct dtp_faults faults;
    static struct dtp_job job;
    struct dtp_program *program;
    run_job(words, &job);
    snprintf(path, sizeof path, "%s/tests/run_program_%d.txt", TEST_BINARY_DIR, (int)getpid());
    assert_int_equal(dtp_lower(&job.transformer, &job.cluster, &job.plan, 0, &program, &faults), DTP_OK);
    assert_int_equal(dtp_program_write_file(program, path, &faults), DTP_OK);
    dtp_program_destroy(program);
}

/* Replaces the first `old` in it by `new`, of the same length; returns the line it stood in. */
static size_t edit(const char *old, const char *new)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file), line = 1;
    assert_true(bytes < sizeof text - 1);
    text[bytes] = '\0';
    char *at = strstr(text, old);
    assert_non_null(at);
    for (const char *c = text; c < at; c++)
        line += *c == '\n';
    fseek(file, at - text, SEEK_SET);
    assert_int_equal(fwrite(new, 1, strlen(new), file), strlen(old));
    fclose(file);
    return line;
}

static void test_the_text_that_was_predicted_runs(void **state)
{
    struct dtp_settings settings = run_settings(3, 1e-2);
    (void)state;
    run_well(WORDS, &settings, &plain);
    write_program(WORDS);
    settings.program = path;
    run_well(WORDS, &settings, &other);
    run_same(&other, &plain, WORDS);
    remove(path);
}

static void refused(const char *words, const char *why)
{
    struct dtp_settings settings = run_settings(3, 1e-2);
    settings.program = path;
    run_train(words, &settings, &other);
    assert_int_equal(other.status, DTP_BAD_INPUT);
    if (!strstr(other.said, path) || !strstr(other.said, why))
        fail_msg("%s, without \"%s\"", other.said, why);
    assert_int_equal(other.steps, 0);
}

static void test_a_fault_is_refused_with_its_line(void **state)
{
    char where[32];
    (void)state;
    write_program(WORDS);
    snprintf(where, sizeof where, ".txt:%zu: unknown kind", edit(" matmul ", " matmal "));
    refused(WORDS, where);
    remove(path);
}

/* Of other words, and of these with one number changed. */
static void test_another_program_is_refused(void **state)
{
    (void)state;
    write_program(RUN_LLAMA "precision=bf16-mixed micro_batch=2");
    refused(WORDS, "but the words beside it make ");
    write_program(WORDS);
    edit("kernels 1", "kernels 2");
    refused(WORDS, "but the words beside it make ");
    remove(path);
}

/* Ranks of one machine read one text, and the first says what is wrong with it; that of another may have another. */
static void test_the_first_rank_of_each_machine_speaks(void **state)
{
    static struct dtp_faults faults;
    static struct dtp_job job;
    struct dtp_settings settings = run_settings(3, 1e-2);
    (void)state;
    write_program(WORDS);
    edit("kernels 1", "kernels 2");
    settings.program = path;
    run_job(WORDS " gpus=2", &job);
    struct dtp_train_job train = {.job = &job, .settings = &settings};
    for (uint32_t local = 0; local < 2; local++) {
        faults.count = 0;
        train.ranks = (struct dtp_ranks){.rank = 1, .world = 2, .local_rank = local, .local_world = 1 + local};
        assert_int_equal(dtp_train(&train, &faults), DTP_BAD_INPUT);
        assert_int_equal(faults.count, local ? 0 : 1);
    }
    remove(path);
}

static void test_no_file_is_said(void **state)
{
    struct dtp_settings settings = run_settings(3, 1e-2);
    (void)state;
    settings.program = "no/such/program.txt";
    run_train(WORDS, &settings, &other);
    assert_int_equal(other.status, DTP_BAD_INPUT);
    assert_non_null(strstr(other.said, "no/such/program.txt: the program cannot be read"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_text_that_was_predicted_runs),
        cmocka_unit_test(test_a_fault_is_refused_with_its_line), cmocka_unit_test(test_another_program_is_refused),
        cmocka_unit_test(test_the_first_rank_of_each_machine_speaks), cmocka_unit_test(test_no_file_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
