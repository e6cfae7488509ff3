/* libFuzzer target: any bytes are a record of a run, or are refused with faults.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_observed
 *   build-fuzz/tests/fuzz_observed -max_total_time=600 -max_len=4096 NEW_CORPUS tests/corpus/observed */
#include "observed/observed.h"

#include "fuzz_fixture.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    static struct dtp_observed observed;
    forget_faults(&faults);
    char *text = malloc(bytes + 1);
    expect(text != NULL);
    if (bytes)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    enum dtp_status status = dtp_observed_parse("fuzz/record", text, bytes, &observed, &faults);
    expect_faults(status, &faults);
    if (status == DTP_OK && observed.what == DTP_OBSERVED_TIME) {
        expect(observed.time.steps > 0 && isfinite(observed.time.step_s) && observed.time.step_s >= 0);
        for (int k = 0; k < DTP_OBSERVED_KIND_COUNT; k++)
            expect(isfinite(observed.time.kind_s[k]) && isfinite(observed.time.exposed_s[k]));
    }
    if (status == DTP_OK && observed.what == DTP_OBSERVED_MEMORY)
        expect(observed.memory.size_count <= DTP_OBSERVED_MOST_SIZES &&
               memchr(observed.memory.leak.where, 0, sizeof observed.memory.leak.where) != NULL);
    if (status == DTP_OK && observed.what == DTP_OBSERVED_LOG)
        expect(observed.log.steps > 0 && isfinite(observed.log.step_s) && isfinite(observed.log.tokens_per_s));
    free(text);
    return 0;
}
