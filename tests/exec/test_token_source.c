#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/markov.h"
#include "data/token_source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct dtp_faults faults;

static void near(double got, double wanted, double tolerance)
{
    if (!(fabs(got - wanted) <= tolerance))
        fail_msg("%.17g is not %.17g within %g", got, wanted, tolerance);
}

static int reset(void **state)
{
    (void)state;
    memset(&faults, 0, sizeof faults);
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const char *write_file(const char *name, const void *bytes, size_t count)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/tests/%s", TEST_BINARY_DIR, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    return path;
}

static struct dtp_token_source *open_file(const char *path, enum dtp_token_type type, uint64_t vocab, uint64_t sequence)
{
    struct dtp_token_source *source;
    struct dtp_token_shape shape = {vocab, sequence, 7};
    if (dtp_token_source_open(path, type, &shape, &source, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
    return source;
}

static void refused(const char *path, enum dtp_token_type type, uint64_t vocab, uint64_t sequence, const char *words)
{
    struct dtp_token_source *source;
    struct dtp_token_shape shape = {vocab, sequence, 7};
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_token_source_open(path, type, &shape, &source, &faults), DTP_BAD_INPUT);
    assert_null(source);
    if (!strstr(faults.text[0], words))
        fail_msg("\"%s\" says nothing of \"%s\"", faults.text[0], words);
}

/* 25 tokens and samples of 4: 6 of them, the 25th is only a target. An epoch reads each once. */
static void test_an_epoch_reads_each_sample_once(void **state)
{
    uint16_t tokens[25];
    (void)state;
    for (uint16_t i = 0; i < 25; i++)
        tokens[i] = i;
    struct dtp_token_source *source = open_file(write_file("epoch.bin", tokens, sizeof tokens), DTP_TOKENS_AUTO, 25, 4);
    assert_int_equal(dtp_token_source_samples(source), 6);
    int32_t order[2][6], sample[5];
    for (uint64_t number = 0; number < 12; number++) {
        assert_int_equal(dtp_token_source_read(source, number, sample, &faults), DTP_OK);
        order[number / 6][number % 6] = sample[0];
        for (int32_t i = 1; i < 5; i++)
            assert_int_equal(sample[i], sample[0] + i);
    }
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen = 0;
        for (int i = 0; i < 6; i++)
            seen |= 1 << order[epoch][i] / 4;
        assert_int_equal(seen, 63);
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    dtp_token_source_close(source);
}

static void test_permutation_is_one(void **state)
{
    (void)state;
    for (uint64_t count = 1; count < 300; count = count * 2 + 1) {
        uint8_t seen[300] = {0};
        for (uint64_t i = 0; i < count; i++) {
            uint64_t to = dtp_permuted(i, count, 3, count);
            assert_true(to < count);
            assert_false(seen[to]);
            seen[to] = 1;
        }
    }
}

static void put_word(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static void test_header_of_llmc(void **state)
{
    uint8_t file[1024 + 4 * 9] = {0};
    (void)state;
    put_word(file, 20240801);
    put_word(file + 4, 7);
    put_word(file + 8, 9);
    for (uint32_t i = 0; i < 9; i++)
        put_word(file + 1024 + 4 * i, 100000 + i);
    const char *path = write_file("llama3.bin", file, sizeof file);
    struct dtp_token_source *source = open_file(path, DTP_TOKENS_AUTO, 128256, 8);
    int32_t sample[9];
    assert_int_equal(dtp_token_source_read(source, 0, sample, &faults), DTP_OK);
    assert_int_equal(sample[0], 100000);
    assert_int_equal(sample[8], 100008);
    dtp_token_source_close(source);
    refused(path, DTP_TOKENS_UINT16, 128256, 8, "header says uint32");
    refused(write_file("cut.bin", file, sizeof file - 4), DTP_TOKENS_AUTO, 128256, 4, "cut short");
}

static void test_text_is_bytes(void **state)
{
    (void)state;
    const char *path = write_file("text.txt", "to be or not to be", 18);
    struct dtp_token_source *source = open_file(path, DTP_TOKENS_AUTO, 256, 17);
    int32_t sample[18];
    assert_int_equal(dtp_token_source_read(source, 5, sample, &faults), DTP_OK);
    assert_int_equal(sample[0], 't');
    assert_int_equal(sample[17], 'e');
    dtp_token_source_close(source);
    refused(path, DTP_TOKENS_AUTO, 255, 4, "--vocab 256");
}

/* Its words go into JSON: a byte that is no UTF-8 is shown as '?'. */
static void test_words_of_any_path(void **state)
{
    (void)state;
    struct dtp_token_source *source =
        open_file(write_file("caf\xe9 \xc3\xa9.txt", "to be or not to be", 18), DTP_TOKENS_AUTO, 256, 4);
    assert_non_null(strstr(dtp_token_source_words(source), "caf? \xc3\xa9.txt: 18 tokens (bytes)"));
    dtp_token_source_close(source);
}

static void test_bad_files_are_refused(void **state)
{
    uint16_t tokens[5] = {1, 2, 3, 400, 5};
    (void)state;
    refused("/nonexistent/tokens.bin", DTP_TOKENS_AUTO, 500, 4, "No such file");
    refused(TEST_BINARY_DIR, DTP_TOKENS_AUTO, 500, 4, "not a plain file");
    refused("/dev/null", DTP_TOKENS_AUTO, 500, 4, "not a plain file");
    refused(write_file("empty.bin", "", 0), DTP_TOKENS_AUTO, 500, 4, "empty");
    refused(write_file("odd.bin", "abc", 3), DTP_TOKENS_AUTO, 500, 4, "no whole number");
    refused(write_file("short.bin", tokens, 8), DTP_TOKENS_AUTO, 500, 4, "less than one sample");
    struct dtp_token_source *source = open_file(write_file("far.bin", tokens, 10), DTP_TOKENS_AUTO, 400, 4);
    int32_t sample[5];
    assert_int_equal(dtp_token_source_read(source, 0, sample, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[faults.count - 1], "token 3 of the file is 400"));
    dtp_token_source_close(source);
}

/* ---- the Markov chain -------------------------------------------------------------------------------------------- */

static struct dtp_markov *chain(uint64_t vocab, uint64_t seed)
{
    struct dtp_markov *markov;
    struct dtp_token_shape shape = {vocab, 64, seed};
    assert_int_equal(dtp_markov_create(&shape, &markov, &faults), DTP_OK);
    return markov;
}

/* Two states: p = P(0 -> 1), q = P(1 -> 0), pi = (q, p) / (p + q), entropy pi_0 h(p) + pi_1 h(q): Cover & Thomas,
 * example 4.1. */
static void test_entropy_of_two_states(void **state)
{
    (void)state;
    struct dtp_markov *markov = chain(2, 5);
    double p = dtp_markov_probability(markov, 0, 1), q = dtp_markov_probability(markov, 1, 0);
    double hp = -p * log(p) - (1 - p) * log(1 - p), hq = -q * log(q) - (1 - q) * log(1 - q);
    assert_true(p > 0 && p < 1 && q > 0 && q < 1);
    near(dtp_markov_probability(markov, 0, 0), 1 - p, 1e-15);
    near(dtp_markov_entropy(markov), (q * hp + p * hq) / (p + q), 1e-12);
    dtp_markov_destroy(markov);
}

/* The mean of -ln p over what the chain says approaches its entropy: 2^17 tokens, deviation of -ln p about 1, so the
 * mean's is 0.003. */
static void test_samples_have_the_entropy(void **state)
{
    (void)state;
    struct dtp_markov *markov = chain(1000, 11);
    int32_t sample[65];
    double sum = 0;
    for (uint64_t number = 0; number < 2048; number++) {
        dtp_markov_sample(markov, number, 65, sample);
        for (int i = 0; i < 64; i++) {
            double p = dtp_markov_probability(markov, sample[i], sample[i + 1]);
            assert_true(p > 0 && sample[i] >= 0 && sample[i] < 1000);
            sum -= log(p);
        }
    }
    near(sum / (2048 * 64), dtp_markov_entropy(markov), 0.012);
    dtp_markov_destroy(markov);
}

static void test_samples_repeat_and_differ(void **state)
{
    (void)state;
    struct dtp_token_source *source[2];
    int32_t a[33], b[33];
    for (uint64_t i = 0; i < 2; i++)
        assert_int_equal(dtp_token_source_markov(&(struct dtp_token_shape){300, 32, 3}, &source[i], &faults), DTP_OK);
    dtp_token_source_read(source[0], 12, a, &faults);
    dtp_token_source_read(source[1], 12, b, &faults);
    assert_memory_equal(a, b, sizeof a);
    dtp_token_source_read(source[1], 13, b, &faults);
    assert_memory_not_equal(a, b, sizeof a);
    assert_true(dtp_token_source_entropy(source[0]) > 0.5);
    for (int i = 0; i < 2; i++)
        dtp_token_source_close(source[i]);
}

/* What is no stream of tokens is known by its first bytes, under any name, unless its bytes are asked for. */
static void test_containers_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t count;
        const char *words;
    } files[] = {{"\x93NUMPY\x01\0v\0{'descr'", 18, "a NumPy array"},
                 {"PAR1\x15\x04\x15\x10\x15\x14\x4c\x15", 12, "a Parquet table"},
                 {"\x1f\x8b\x08\0\0\0\0\0\0\3\xab\xab", 12, "compressed by gzip"},
                 {"\4\0\0\0\0\0\0\0{\"a\"\0\0\0\0", 16, "a safetensors file"}};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int named = 0; named < 2; named++) {
            const char *path = write_file(named ? "container.u16" : "container", files[i].bytes, files[i].count);
            refused(path, DTP_TOKENS_AUTO, 70000, 2, files[i].words);
            refused(path, DTP_TOKENS_UINT16, 70000, 2, files[i].words);
            dtp_token_source_close(open_file(path, DTP_TOKENS_BYTES, 256, 2));
        }
    /* The third byte of gzip is the only method there is, and a header longer than the file is no header. */
    dtp_token_source_close(open_file(write_file("plain", "\x1f\x8b\x07\0\0\0", 6), DTP_TOKENS_AUTO, 256, 2));
    dtp_token_source_close(
        open_file(write_file("plain", "\xff\0\0\0\0\0\0\0{\"a\"\0\0\0\0", 16), DTP_TOKENS_AUTO, 256, 2));
}

/* 10,001 tokens below 300 but for one, samples of 4: 2500 of them. Whoever looks at all finds it in one of the parts;
 * who looks at few samples finds it where one of these has it. */
static void test_a_token_beyond_is_found_before_it_is_read(void **state)
{
    enum { TOKENS = 10001, BAD = 7777 };
    static uint16_t tokens[TOKENS];
    uint64_t few = UINT64_MAX;
    int32_t sample[5];
    (void)state;
    for (uint16_t i = 0; i < TOKENS; i++)
        tokens[i] = i % 300;
    tokens[BAD] = 300;
    struct dtp_token_source *source =
        open_file(write_file("beyond.u16", tokens, sizeof tokens), DTP_TOKENS_AUTO, 300, 4);
    for (uint32_t parts = 1; parts <= 7; parts++)
        for (uint32_t part = 0; part < parts; part++) {
            uint64_t begin = (uint64_t)2500 / parts * part * 4,
                     end = part + 1 == parts ? 10000 : begin + (uint64_t)2500 / parts * 4;
            uint64_t found = dtp_token_source_search(source, &(struct dtp_token_range){0, 5000, part, parts}, NULL);
            assert_int_equal(found, BAD >= begin && BAD <= end ? BAD : UINT64_MAX);
        }
    for (uint64_t i = 0; i < 2500; i++) {
        uint64_t found = dtp_token_source_search(source, &(struct dtp_token_range){i, i + 1, 0, 1}, NULL);
        memset(&faults, 0, sizeof faults);
        bool bad = dtp_token_source_read(source, i, sample, &faults) != DTP_OK;
        assert_int_equal(found, bad ? BAD : UINT64_MAX);
        few = bad ? found : few;
    }
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_token_source_refuse(source, few, &faults), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "token 7777 of the file is 300, beyond the model's vocabulary of 300"));
    assert_int_equal(dtp_token_source_refuse(source, UINT64_MAX, &faults), DTP_OK);
    dtp_token_source_close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_an_epoch_reads_each_sample_once, reset),
        cmocka_unit_test_setup(test_permutation_is_one, reset),
        cmocka_unit_test_setup(test_header_of_llmc, reset),
        cmocka_unit_test_setup(test_text_is_bytes, reset),
        cmocka_unit_test_setup(test_words_of_any_path, reset),
        cmocka_unit_test_setup(test_bad_files_are_refused, reset),
        cmocka_unit_test_setup(test_containers_are_refused, reset),
        cmocka_unit_test_setup(test_a_token_beyond_is_found_before_it_is_read, reset),
        cmocka_unit_test_setup(test_entropy_of_two_states, reset),
        cmocka_unit_test_setup(test_samples_have_the_entropy, reset),
        cmocka_unit_test_setup(test_samples_repeat_and_differ, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
