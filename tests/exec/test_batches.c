#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "runtime/dtplan/batch_layout.h"
#include "train/batches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dtp_faults faults;
static struct dtp_device *device;

static int set_up(void **state)
{
    (void)state;
    memset(&faults, 0, sizeof faults);
    return dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, &faults);
}

static int tear_down(void **state)
{
    (void)state;
    device->verbs->destroy(device);
    return 0;
}

/* Tokens 3 1 3 0 1 3: token 0 in row 3, 1 in rows 1 and 4, 3 in rows 0, 2 and 5. */
static void test_index(void **state)
{
    const int32_t tokens[6] = {3, 1, 3, 0, 1, 3}, wanted_order[6] = {3, 1, 4, 0, 2, 5}, wanted_starts[4] = {0, 1, 3, 6};
    int32_t order[6], starts[7], distinct, scratch[5];
    (void)state;
    dtp_batch_index(tokens, 6, 5, order, starts, &distinct, scratch);
    assert_int_equal(distinct, 3);
    assert_memory_equal(order, wanted_order, sizeof order);
    assert_memory_equal(starts, wanted_starts, sizeof wanted_starts);
}

/* Tokens of all micro-steps of one step of one rank, micro_batch 2, sequence 8. */
static void tokens_of(const struct dtp_token_source *source, uint32_t accumulate, uint32_t rank, uint32_t ranks,
                      uint64_t step, int32_t *out)
{
    struct dtp_batch_job job = {.source = source,
                                .vocab = 50,
                                .sequence = 8,
                                .first_step = step,
                                .micro_batch = 2,
                                .accumulate = accumulate,
                                .rank = rank,
                                .ranks = ranks};
    struct dtp_batch_layout layout = dtp_batch_layout_of(16);
    struct dtp_batches *batches;
    const void *taken;
    assert_int_equal(dtp_batches_start(&job, device, &batches, &faults), DTP_OK);
    assert_int_equal(dtp_batches_take(batches, &taken, &faults), DTP_OK);
    for (uint32_t m = 0; m < accumulate; m++) {
        const char *batch = (const char *)taken + m * layout.bytes;
        const int32_t *tokens = (const int32_t *)(batch + layout.tokens_offset_bytes);
        const int32_t *targets = (const int32_t *)(batch + layout.targets_offset_bytes);
        memcpy(out + 16 * m, tokens, 16 * sizeof *out);
        for (int i = 0; i < 15; i++)
            assert_true(i == 7 || targets[i] == tokens[i + 1]);
    }
    dtp_batches_stop(batches);
}

/* Two ranks of two micro-steps read what one rank of four reads. */
static void test_ranks_share_the_samples(void **state)
{
    struct dtp_token_source *source;
    int32_t alone[64], shared[2][32];
    (void)state;
    assert_int_equal(dtp_token_source_markov(&(struct dtp_token_shape){50, 8, 1}, &source, &faults), DTP_OK);
    tokens_of(source, 4, 0, 1, 3, alone);
    tokens_of(source, 2, 0, 2, 3, shared[0]);
    tokens_of(source, 2, 1, 2, 3, shared[1]);
    for (int m = 0; m < 2; m++)
        for (int rank = 0; rank < 2; rank++)
            assert_memory_equal(alone + 16 * (2 * m + rank), shared[rank] + 16 * m, 16 * sizeof *alone);
    dtp_token_source_close(source);
}

/* The steps that come one after the other are those that a run resumed at each of them would begin with. */
static void test_steps_follow(void **state)
{
    struct dtp_token_source *source;
    struct dtp_batches *batches;
    int32_t wanted[32];
    (void)state;
    assert_int_equal(dtp_token_source_markov(&(struct dtp_token_shape){50, 8, 1}, &source, &faults), DTP_OK);
    struct dtp_batch_job job = {
        .source = source, .vocab = 50, .sequence = 8, .micro_batch = 2, .accumulate = 2, .ranks = 1};
    assert_int_equal(dtp_batches_start(&job, device, &batches, &faults), DTP_OK);
    for (uint64_t step = 0; step < 20; step++) {
        const void *taken;
        assert_int_equal(dtp_batches_take(batches, &taken, &faults), DTP_OK);
        tokens_of(source, 2, 0, 1, step, wanted);
        assert_memory_equal(taken, wanted, 16 * sizeof *wanted);
    }
    dtp_batches_stop(batches);
    dtp_token_source_close(source);
}

/* 33 tokens are four samples of 8; the last but one token is none of the vocabulary. */
static void test_a_bad_token_stops_the_step_that_reads_it(void **state)
{
    char path[4096];
    uint16_t tokens[33] = {0};
    struct dtp_token_source *source;
    struct dtp_batches *batches;
    const void *taken;
    (void)state;
    snprintf(path, sizeof path, "%s/tests/bad_token.bin", TEST_BINARY_DIR);
    tokens[31] = 999;
    FILE *file = fopen(path, "wb");
    assert_int_equal(fwrite(tokens, 1, sizeof tokens, file), sizeof tokens);
    fclose(file);
    assert_int_equal(
        dtp_token_source_open(path, DTP_TOKENS_AUTO, &(struct dtp_token_shape){50, 8, 1}, &source, &faults), DTP_OK);
    struct dtp_batch_job job = {
        .source = source, .vocab = 50, .sequence = 8, .micro_batch = 1, .accumulate = 1, .ranks = 1};
    assert_int_equal(dtp_batches_start(&job, device, &batches, &faults), DTP_OK);
    int good = 0;
    while (dtp_batches_take(batches, &taken, &faults) == DTP_OK)
        good++;
    assert_in_range(good, 0, 3);
    assert_non_null(strstr(faults.text[0], "token 31 of the file is 999"));
    assert_int_equal(dtp_batches_take(batches, &taken, &faults), DTP_BAD_INPUT);
    dtp_batches_stop(batches);
    dtp_token_source_close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index),
        cmocka_unit_test_setup_teardown(test_ranks_share_the_samples, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_steps_follow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_bad_token_stops_the_step_that_reads_it, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
