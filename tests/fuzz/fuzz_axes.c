/* libFuzzer target: any text is a list of values of some key, or is refused; what is a list can be counted and set.
 * The first byte chooses the key.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz
 *   build-fuzz/tests/fuzz_axes -max_total_time=600 -max_len=256 CORPUS_FOLDER */
#include "job/axes.h"

#include "fuzz_fixture.h"
#include "lib/scenario_fixture.h"

#include <stdlib.h>
#include <string.h>

static void expect_usable(const struct dtp_axes *axes, struct dtp_faults *faults)
{
    struct dtp_scenario *scenario;
    uint64_t count;
    const struct dtp_axis *axis = &axes->axes[0];
    expect(axes->count == 1 && axis->count >= 1 && axis->count <= DTP_AXES_MAX_VALUES);
    expect(dtp_axes_count(axes, &count, faults) == DTP_OK && count == axis->count);
    expect(dtp_scenario_create(&scenario, faults) == DTP_OK);
    const uint64_t some[] = {0, count / 2, count - 1};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        expect(dtp_axes_apply(axes, some[i], false, scenario, faults) == DTP_OK);
        expect(strcmp(dtp_scenario_get(scenario, axis->key), axis->values[some[i]]) == 0);
    }
    dtp_scenario_destroy(scenario);
}

/* A range of 100000 values takes as long as 100000 inputs without one: of those whose numbers have more than three
 * digits one in 64 is expanded, by what it consists of, so that an input that broke something breaks it again. */
static bool is_left_out(const uint8_t *data, size_t bytes)
{
    size_t digits = 0, most = 0, sum = 0;
    for (size_t i = 0; i < bytes; i++) {
        digits = (data[i] >= '0' && data[i] <= '9') || data[i] == 'e' || data[i] == 'k' ? digits + 1 : 0;
        most = digits > most ? digits : most;
        sum += data[i];
    }
    return most > 3 && memmem(data, bytes, "..", 2) && sum % 64 != 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_catalog catalog = fixture_catalog();
    struct dtp_axes axes = {0};
    size_t key_count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    if (bytes < 1 || is_left_out(data, bytes))
        return 0;
    const char *key = keys[data[0] % key_count].key;
    char *text = malloc(bytes);
    forget_faults(&faults);
    if (!text)
        return 0;
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    /* No file is opened by a list; a model's path is only checked when it is resolved. */
    enum dtp_status status = dtp_axes_add(&axes, &catalog, key, text, "fuzz", &faults);
    expect_faults(status, &faults);
    if (status == DTP_OK)
        expect_usable(&axes, &faults);
    dtp_axes_release(&axes);
    free(text);
    return 0;
}
