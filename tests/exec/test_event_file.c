/* TensorBoard's event files, byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "runs/run_files.h"
#include "train/event_file.h"
#include "train/step_log.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and rising; and the check value of the catalogue of CRCs. */
static void test_crc(void **state)
{
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(dtp_crc32c(bytes, 32), 0x8A9136AAu);
    memset(bytes, 0xFF, 32);
    assert_int_equal(dtp_crc32c(bytes, 32), 0x62A8AB43u);
    for (unsigned char i = 0; i < 32; i++)
        bytes[i] = i;
    assert_int_equal(dtp_crc32c(bytes, 32), 0x46DD794Eu);
    assert_int_equal(dtp_crc32c((const unsigned char *)"123456789", 9), 0xE3069283u);
}

/* Wall time 1 is 0x3FF0 in its highest bytes; step 300 is 0xAC 0x02, the summary 14 bytes of one value of 12: tag "ab"
 * and 0.5, 0x3F000000. In all 9 + 3 + 16 bytes. */
static void test_record(void **state)
{
    (void)state;
    static const unsigned char wanted[] = {0x09, 0,    0, 0,    0, 0,   0,   0xF0, 0x3F, 0x10, 0xAC, 0x02, 0x2A,
                                           11,   0x0A, 9, 0x0A, 2, 'a', 'b', 0x15, 0,    0,    0,    0x3F};
    unsigned char record[DTP_EVENT_BYTES];
    const struct dtp_event_value value = {"ab", 0.5f};
    uint64_t step;
    size_t bytes = dtp_event_file_step(record, 1, 300, &value, 1);
    assert_int_equal(bytes, 12 + sizeof wanted + 4);
    assert_int_equal(record[0], sizeof wanted);
    assert_memory_equal(record + 12, wanted, sizeof wanted);
    assert_int_equal(dtp_event_file_read(record, bytes, &step), bytes);
    assert_int_equal(step, 300);
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(dtp_event_file_read(record, i, &step), 0);
        record[i] ^= 4;
        assert_int_equal(dtp_event_file_read(record, bytes, &step), 0);
        record[i] ^= 4;
    }
    bytes = dtp_event_file_begin(record, 1);
    assert_int_equal(dtp_event_file_read(record, bytes, &step), bytes);
    assert_int_equal(step, 0);
    assert_memory_equal(record + 12 + 11, "brain.Event:2", 13);
    assert_true(dtp_event_file_own(record, bytes));
    assert_false(dtp_event_file_own(record, bytes - 1));
}

static void test_names(void **state)
{
    (void)state;
    assert_true(dtp_step_log_is_events("runs/one.tfevents"));
    assert_true(dtp_step_log_is_events("events.out.tfevents.1"));
    assert_false(dtp_step_log_is_events("tfevents/run.csv"));
    assert_false(dtp_step_log_is_events("run.csv"));
}

/* Steps of the records behind the first. */
static size_t steps_of(const char *path, uint64_t steps[8])
{
    static unsigned char bytes[8 * DTP_EVENT_BYTES];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, sizeof bytes, file), at = 0, found = 0;
    fclose(file);
    while (at < count && found < 8) {
        uint64_t step;
        size_t taken = dtp_event_file_read(bytes + at, count - at, &step);
        assert_true(taken > 0);
        if (at > 0)
            steps[found++] = step;
        at += taken;
    }
    return found;
}

/* Steps 1 to 4; resumed from 2, steps 3 and 4 are cut off and come again; a CSV log is no event file. */
static void test_log_goes_on(void **state)
{
    (void)state;
    const char *path = TEST_BINARY_DIR "/tests/log.tfevents";
    struct dtp_faults faults = {.count = 0};
    struct dtp_step_log *log;
    uint64_t steps[8];
    remove(path);
    for (uint64_t first = 0; first <= 2; first += 2) {
        assert_int_equal(dtp_step_log_open(path, first, 7, &log, &faults), DTP_OK);
        assert_int_equal(steps_of(path, steps), first);
        for (uint64_t step = first + 1; step <= 4; step++) {
            const struct dtp_step_record r = {
                .step = step, .loss = 3, .gradient_norm = step % 2 ? (double)NAN : 1, .seconds = 1};
            assert_int_equal(dtp_step_log_write(log, &r, &faults), DTP_OK);
        }
        dtp_step_log_close(log);
        assert_int_equal(steps_of(path, steps), 4);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(steps[i], i + 1);
    }
    FILE *file = fopen(path, "w");
    assert_true(file && fputs("step,loss\n1,2\n", file) >= 0 && fclose(file) == 0);
    assert_int_equal(dtp_step_log_open(path, 2, 7, &log, &faults), DTP_BAD_INPUT);
    assert_int_equal(dtp_step_log_open(path, 0, 7, &log, &faults), DTP_BAD_INPUT); /* nor is it written over */
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_crc), cmocka_unit_test(test_record),
                                       cmocka_unit_test(test_names), cmocka_unit_test(test_log_goes_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
