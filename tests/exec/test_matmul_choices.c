#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/matmul_choices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64];

static int new_file(void **state)
{
    (void)state;
    strcpy(path, "/tmp/dtplan_choices_XXXXXX");
    const int file = mkstemp(path);
    return file < 0 || close(file) != 0 || unlink(path) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static struct dtp_matmul_choice choice_of(uint64_t m, uint64_t first_word)
{
    struct dtp_matmul_choice choice = {.key = {.m = m, .n = 384, .k = 1u << 20, .bias = 1}, .time_s = 12.5e-6};
    for (uint64_t i = 0; i < DTP_MATMUL_ALGORITHM_WORDS; i++)
        choice.algorithm[i] = first_word + i * 0x0123456789abcdefu;
    return choice;
}

static void load(const char *gpu, uint64_t version, struct dtp_matmul_choices *out)
{
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_matmul_choices_load(path, gpu, version, out, &faults), DTP_OK);
}

static void add(struct dtp_matmul_choices *to, struct dtp_matmul_choice choice)
{
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_matmul_choices_add(to, &choice, &faults), DTP_OK);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct dtp_matmul_choices first, second;
    load("NVIDIA H200", 130100, &first);
    assert_int_equal(first.count, 0);
    for (uint64_t m = 1; m <= 100; m++)
        add(&first, choice_of(m, m << 60));
    load("NVIDIA H200", 130100, &second);
    assert_int_equal(second.count, 100);
    assert_int_equal(second.damaged, 0);
    for (uint64_t m = 1; m <= 100; m++) {
        const struct dtp_matmul_choice written = choice_of(m, m << 60);
        const struct dtp_matmul_choice *read = dtp_matmul_choices_find(&second, &written.key);
        assert_non_null(read);
        assert_memory_equal(read->algorithm, written.algorithm, sizeof written.algorithm);
        assert_true(fabs(read->time_s - 12.5e-6) < 1e-9);
    }
    const struct dtp_matmul_choice unknown = choice_of(101, 0);
    assert_null(dtp_matmul_choices_find(&second, &unknown.key));
    dtp_matmul_choices_free(&first);
    dtp_matmul_choices_free(&second);
}

static void the_later_line_counts(void **state)
{
    (void)state;
    struct dtp_matmul_choices choices;
    load("GPU", 1, &choices);
    add(&choices, choice_of(8, 1));
    add(&choices, choice_of(8, 2));
    assert_int_equal(choices.count, 1);
    dtp_matmul_choices_free(&choices);
    load("GPU", 1, &choices);
    assert_int_equal(choices.count, 1);
    assert_int_equal(choices.choices[0].algorithm[0], 2);
    dtp_matmul_choices_free(&choices);
}

static void other_gpus_and_versions_are_kept_apart(void **state)
{
    (void)state;
    struct dtp_matmul_choices choices;
    load("NVIDIA H200", 130100, &choices);
    add(&choices, choice_of(8, 1));
    dtp_matmul_choices_free(&choices);
    static const char *const gpus[] = {"NVIDIA H200", "NVIDIA H20", "NVIDIA H200 NVL"};
    for (int i = 0; i < 3; i++) {
        load(gpus[i], i == 0 ? 130101 : 130100, &choices);
        assert_int_equal(choices.count, 0);
        assert_int_equal(choices.damaged, 0);
        dtp_matmul_choices_free(&choices);
    }
}

/* Every single changed byte of the middle one of three lines costs that line at most, and nothing else. */
static void damage_is_noticed(void **state)
{
    (void)state;
    struct dtp_matmul_choices choices;
    load("GPU", 1, &choices);
    for (uint64_t m = 1; m <= 3; m++)
        add(&choices, choice_of(m, m));
    dtp_matmul_choices_free(&choices);
    static char text[8192];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    const size_t begin = (size_t)((char *)memchr(text, '\n', length) - text) + 1;
    const size_t end = begin + (size_t)((char *)memchr(text + begin, '\n', length - begin) - (text + begin));
    for (size_t at = begin; at < end; at++) {
        const char kept = text[at];
        text[at] = at % 3 == 0 ? 'x' : at % 3 == 1 ? (char)(kept ^ 1) : (char)0xC3;
        file = fopen(path, "w");
        assert_non_null(file);
        assert_int_equal(fwrite(text, 1, length, file), length);
        fclose(file);
        load("GPU", 1, &choices);
        assert_int_equal(choices.count, 2);
        assert_int_equal(choices.damaged, 1);
        dtp_matmul_choices_free(&choices);
        text[at] = kept;
    }
}

static void rubbish_is_no_choice(void **state)
{
    (void)state;
    struct dtp_matmul_choices choices;
    struct dtp_faults faults = {0};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 5000; i++) /* a line longer than any, without an end */
        fputc("GPU 1 "[i % 6], file);
    fputs("\n\n \nGPU 1\nGPU 1 ffffffffffffffffffffffff 0\n\xff\xfe\nGPU 1 12\n", file);
    fclose(file);
    assert_int_equal(dtp_matmul_choices_load(path, "GPU", 1, &choices, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "is no file of matmul algorithms"));
    choices = (struct dtp_matmul_choices){.path = path, .owner = "GPU 1"};
    add(&choices, choice_of(8, 1));
    dtp_matmul_choices_free(&choices);
    load("GPU", 1, &choices);
    assert_int_equal(choices.count, 1);
    assert_true(choices.damaged > 5);
    dtp_matmul_choices_free(&choices);
}

static void a_folder_is_refused(void **state)
{
    (void)state;
    struct dtp_matmul_choices choices;
    struct dtp_faults faults = {0};
    assert_int_equal(mkdir(path, 0700), 0);
    const enum dtp_status status = dtp_matmul_choices_load(path, "GPU", 1, &choices, &faults);
    rmdir(path);
    assert_int_equal(status, DTP_ENVIRONMENT);
    assert_non_null(strstr(faults.text[0], "cannot be read"));
}

static void folders_are_made(void **state)
{
    (void)state;
    struct dtp_matmul_choices choices;
    struct dtp_faults faults = {0};
    char folder[96], file[128];
    snprintf(folder, sizeof folder, "%s/deeper", path);
    snprintf(file, sizeof file, "%s/file", folder);
    assert_int_equal(dtp_matmul_choices_load(file, "GPU", 1, &choices, &faults), DTP_OK);
    add(&choices, choice_of(8, 1));
    dtp_matmul_choices_free(&choices);
    assert_int_equal(dtp_matmul_choices_load(file, "GPU", 1, &choices, &faults), DTP_OK);
    assert_int_equal(choices.count, 1);
    dtp_matmul_choices_free(&choices);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(rmdir(path), 0);
}

static void without_a_file(void **state)
{
    (void)state;
    struct dtp_matmul_choices choices;
    struct dtp_faults faults = {0};
    assert_int_equal(dtp_matmul_choices_load(NULL, "GPU", 1, &choices, &faults), DTP_OK);
    add(&choices, choice_of(8, 1));
    assert_int_equal(choices.count, 1);
    dtp_matmul_choices_free(&choices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, new_file, remove_file),
        cmocka_unit_test_setup_teardown(the_later_line_counts, new_file, remove_file),
        cmocka_unit_test_setup_teardown(other_gpus_and_versions_are_kept_apart, new_file, remove_file),
        cmocka_unit_test_setup_teardown(damage_is_noticed, new_file, remove_file),
        cmocka_unit_test_setup_teardown(rubbish_is_no_choice, new_file, remove_file),
        cmocka_unit_test_setup_teardown(a_folder_is_refused, new_file, remove_file),
        cmocka_unit_test_setup_teardown(folders_are_made, new_file, remove_file),
        cmocka_unit_test(without_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
