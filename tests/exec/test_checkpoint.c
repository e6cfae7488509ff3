#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/host_copy.h"
#include "base/clock.h"
#include "base/crc64.h"
#include "base/quantile.h"
#include "lib/remove_all.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ELEMENTS = 100 };
static char directory[3000];
static struct dtp_device *device;
static struct dtp_faults faults;
static float weights[ELEMENTS], master[ELEMENTS];
static const struct dtp_checkpoint_identity identity = {"layers 1, hidden 8", "Markov chain", 42};

static int set_up(void **state)
{
    (void)state;
    memset(&faults, 0, sizeof faults);
    snprintf(directory, sizeof directory, "%s/tests/checkpoints", TEST_BINARY_DIR);
    remove_all(directory);
    for (int i = 0; i < ELEMENTS; i++) {
        weights[i] = (float)i;
        master[i] = (float)(1000 + i);
    }
    return dtp_device_host_create(&(struct dtp_device_options){.threads = 1}, &device, &faults);
}

static int tear_down(void **state)
{
    (void)state;
    remove_all(directory);
    device->verbs->destroy(device);
    return 0;
}

static void save(uint64_t step)
{
    const struct dtp_checkpoint_place place = {.directory = directory, .ranks = 1};
    const struct dtp_state_part parts[] = {{3, DTP_STATE_WEIGHTS, DTP_ELEMENT_FP32, 0, ELEMENTS, weights},
                                           {3, DTP_STATE_MASTER, DTP_ELEMENT_FP32, 0, ELEMENTS, master}};
    const struct dtp_checkpoint_position position = {step, 10 * step, 1};
    if (dtp_checkpoint_write(&place, device, &identity, &position, parts, 2, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

static enum dtp_status load(bool previous, const struct dtp_checkpoint_identity *own, float *out, uint64_t begin,
                            uint64_t end, uint64_t *step)
{
    struct dtp_checkpoint_position position;
    const struct dtp_state_part part = {3, DTP_STATE_WEIGHTS, DTP_ELEMENT_FP32, begin, end, out};
    memset(&faults, 0, sizeof faults);
    enum dtp_status status = dtp_checkpoint_read(directory, previous, device, own, &position, &part, 1, &faults);
    *step = position.step;
    return status;
}

static void refused(bool previous, const struct dtp_checkpoint_identity *own, const char *words)
{
    float out[ELEMENTS];
    uint64_t step;
    assert_int_equal(load(previous, own, out, 0, ELEMENTS, &step), DTP_BAD_INPUT);
    if (!strstr(faults.text[0], words))
        fail_msg("\"%s\" says nothing of \"%s\"", faults.text[0], words);
}

static void test_crc(void **state)
{
    (void)state;
    assert_true(dtp_crc64(0, "123456789", 9) == UINT64_C(0x995dc9bbdf1939fa));
    assert_true(dtp_crc64(dtp_crc64(0, "12345678901", 11), "234567", 6) == dtp_crc64(0, "12345678901234567", 17));
    /* Bit by bit, at every length about the widths that are taken at once, from odd addresses and other sums. */
    uint8_t data[400];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i + 7 * i);
    for (size_t bytes = 0; bytes < 380; bytes++) {
        const uint8_t *from = data + bytes % 17;
        uint64_t before = bytes * UINT64_C(0x9e3779b97f4a7c15), sum = ~before;
        for (size_t i = 0; i < bytes; i++) {
            sum ^= from[i];
            for (int bit = 0; bit < 8; bit++)
                sum = sum & 1 ? sum >> 1 ^ UINT64_C(0xC96C5795D7870F42) : sum >> 1;
        }
        assert_true(dtp_crc64(before, from, bytes) == ~sum);
    }
}

static void test_what_was_saved_is_read(void **state)
{
    float out[ELEMENTS];
    uint64_t step;
    (void)state;
    save(5);
    assert_int_equal(load(false, &identity, out, 0, ELEMENTS, &step), DTP_OK);
    assert_int_equal(step, 5);
    assert_memory_equal(out, weights, sizeof out);
    assert_int_equal(load(false, &identity, out, 13, 20, &step), DTP_OK);
    assert_memory_equal(out, weights + 13, 7 * sizeof *out);
}

static void test_two_are_kept(void **state)
{
    float out[ELEMENTS];
    uint64_t step, steps[4];
    (void)state;
    save(5);
    refused(true, &identity, "no previous checkpoint");
    for (uint64_t i = 10; i <= 20; i += 5) {
        weights[0] = (float)i;
        save(i);
    }
    assert_int_equal(dtp_checkpoint_list(directory, steps, 4), 2);
    assert_int_equal(load(false, &identity, out, 0, 1, &step), DTP_OK);
    assert_int_equal(step, 20);
    assert_int_equal(load(true, &identity, out, 0, 1, &step), DTP_OK);
    assert_int_equal(step, 15);
    assert_true(out[0] == 15.0f);
    weights[0] = 99;
    save(20); /* once more: replaces the one of that step */
    assert_int_equal(load(false, &identity, out, 0, 1, &step), DTP_OK);
    assert_true(out[0] == 99.0f);
}

/* Rank 0 of two, while rank 1 has written nothing: no checkpoint, and nothing is left behind. */
/* Room is taken once, for what parts have: of a part of a matrix' columns its runs, one behind the other, and not what
 * lies between them in the module. */
static void test_copies_take_what_parts_have(void **state)
{
    const struct dtp_state_part parts[] = {
        {.module = 1, .element = DTP_ELEMENT_FP32, .end = 10, .values = weights},
        {.module = 2, .element = DTP_ELEMENT_FP32, .end = 84, .values = master, .run = 4, .stride = 20}};
    struct dtp_host_copy copy;
    (void)state;
    assert_int_equal(dtp_host_copy_make(device, parts, 2, &copy, &faults), DTP_OK);
    assert_int_equal(copy.bytes, (10 + 5 * 4) * sizeof(float));
    const void *memory = copy.memory;
    for (int round = 0; round < 2; round++) {
        weights[3] = master[19] = (float)(100 + round);
        assert_int_equal(dtp_host_copy_take(&copy, parts, &faults), DTP_OK);
        assert_ptr_equal(copy.memory, memory);
        assert_memory_equal(copy.parts[0].values, weights, 10 * sizeof(float));
        assert_memory_equal(copy.parts[1].values, master, 20 * sizeof(float));
    }
    dtp_host_copy_release(&copy);
}

static void test_a_rank_is_missing(void **state)
{
    uint64_t step;
    char partial[3100];
    const struct dtp_checkpoint_place place = {.directory = directory, .ranks = 2};
    const struct dtp_state_part half = {3, DTP_STATE_WEIGHTS, DTP_ELEMENT_FP32, 0, 50, weights};
    (void)state;
    assert_int_equal(
        dtp_checkpoint_write(&place, device, &identity, &(struct dtp_checkpoint_position){7, 70, 0}, &half, 1, &faults),
        DTP_ENVIRONMENT);
    assert_non_null(strstr(faults.text[0], "rank-0001.json"));
    assert_int_equal(dtp_checkpoint_list(directory, &step, 1), 0);
    snprintf(partial, sizeof partial, "%s/step-00000007.partial", directory);
    assert_int_not_equal(access(partial, F_OK), 0);
}

static void damage(const char *name, long at, int how)
{
    char path[3200];
    snprintf(path, sizeof path, "%s/step-00000005/%s", directory, name);
    if (how == 0) {
        assert_int_equal(remove(path), 0);
        return;
    }
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    if (how == 1) {
        fseek(file, at, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 1, file);
    } else {
        assert_int_equal(ftruncate(fileno(file), at), 0);
    }
    fclose(file);
}

static void test_damage_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        long at;
        int how;
        const char *words;
    } cases[] = {{"rank-0000.bin", 77, 1, "the weights of module 3, elements 0 to 100, have another sum"},
                 {"rank-0000.bin", 100, 2, "too short"},
                 {"rank-0000.bin", 0, 0, "No such file"},
                 {"rank-0000.json", 30, 1, "damaged"},
                 {"rank-0000.json", 30, 2, "damaged"},
                 {"rank-0000.json", 0, 0, "missing"},
                 {"manifest.json", 10, 2, "no JSON"},
                 {"manifest.json", 0, 0, "missing"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        save(5);
        damage(cases[i].name, cases[i].at, cases[i].how);
        refused(false, &identity, cases[i].words);
    }
}

static void test_another_run_is_refused(void **state)
{
    struct dtp_checkpoint_identity other = identity;
    float out[ELEMENTS];
    uint64_t step;
    (void)state;
    refused(false, &identity, "no complete checkpoint");
    save(5);
    other.model = "layers 2, hidden 8";
    refused(false, &other, "is of another model (layers 1, hidden 8)");
    other = identity;
    other.seed = 43;
    refused(false, &other, "--seed 42, not 43");
    other = identity;
    other.data = "text";
    assert_int_equal(load(false, &other, out, 0, ELEMENTS, &step), DTP_OK);
    assert_non_null(strstr(faults.text[0], "other data"));
    assert_int_equal(load(false, &identity, out, 90, 110, &step), DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "from element 100 on"));
    const struct dtp_state_part narrow = {3, DTP_STATE_MASTER, DTP_ELEMENT_BF16, 0, 10, out};
    struct dtp_checkpoint_position position;
    memset(&faults, 0, sizeof faults);
    assert_int_equal(dtp_checkpoint_read(directory, false, device, &identity, &position, &narrow, 1, &faults),
                     DTP_BAD_INPUT);
    assert_non_null(strstr(faults.text[0], "as fp32"));
}

static void test_a_folder_that_cannot_be_written(void **state)
{
    const struct dtp_checkpoint_place place = {.directory = "/proc/checkpoints", .ranks = 1};
    const struct dtp_checkpoint_position position = {1, 1, 0};
    (void)state;
    assert_int_equal(dtp_checkpoint_write(&place, device, &identity, &position, NULL, 0, &faults), DTP_ENVIRONMENT);
    assert_non_null(strstr(faults.text[0], "/proc/checkpoints"));
}

static void *clean_later(void *delay_s)
{
    double until_s = dtp_now_s() + *(const double *)delay_s;
    while (dtp_now_s() < until_s)
        ;
    dtp_checkpoint_clean(directory);
    return NULL;
}

/* Who hears that another rank failed cleans while its own thread may give a checkpoint its name: what has one is whole.
 * The moments are spread over as long as most checkpoints take. */
static void test_cleaned_while_it_is_named(void **state)
{
    enum { CHECKPOINTS = 400 };
    const struct dtp_checkpoint_place place = {.directory = directory, .ranks = 1};
    const struct dtp_state_part part = {3, DTP_STATE_WEIGHTS, DTP_ELEMENT_FP32, 0, ELEMENTS, weights};
    float out[ELEMENTS];
    uint64_t newest, named = 0;
    double took_s[8], longest_s;
    (void)state;
    for (uint64_t step = 1; step <= 8; step++) {
        double begun_s = dtp_now_s();
        save(step);
        took_s[step - 1] = dtp_now_s() - begun_s;
    }
    longest_s = 1.5 * dtp_median(took_s, 1, 8);
    for (uint64_t step = 9; step < 9 + CHECKPOINTS; step++) {
        struct dtp_faults unsaid = {.count = 0};
        const struct dtp_checkpoint_position position = {step, step, 0};
        double delay_s = longest_s * (double)(step - 9) / CHECKPOINTS;
        pthread_t cleaner;
        assert_int_equal(pthread_create(&cleaner, NULL, clean_later, &delay_s), 0);
        named += dtp_checkpoint_write(&place, device, &identity, &position, &part, 1, &unsaid) == DTP_OK;
        pthread_join(cleaner, NULL);
        if (load(false, &identity, out, 0, ELEMENTS, &newest) != DTP_OK)
            fail_msg("%s", faults.text[0]);
    }
    print_message("%" PRIu64 " of %d checkpoints got their names\n", named, CHECKPOINTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),
        cmocka_unit_test_setup_teardown(test_what_was_saved_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_are_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copies_take_what_parts_have, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_rank_is_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damage_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_run_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cleaned_while_it_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_folder_that_cannot_be_written, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
