/* libFuzzer target: any bytes are a shape that passes its own check, or are refused with faults.
 *
 *   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_hf_config
 *   build-fuzz/tests/fuzz_hf_config -max_total_time=600 -max_len=4096 NEW_CORPUS tests/corpus/hf_config
 * tests/fixtures/hf */
#include "net/transformer.h"

#include "fuzz_fixture.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    forget_faults(&faults);
    struct dtp_hf_config config;
    const struct dtp_transformer *t = &config.transformer;
    enum dtp_status status = dtp_hf_config_parse("fuzz/config.json", (const char *)data, bytes, &config, &faults);
    expect_faults(status, &faults);
    for (size_t i = 0; i < faults.count && i < DTP_FAULTS_KEPT; i++) {
        expect(memchr(faults.text[i], 0, DTP_FAULT_TEXT_BYTES) != NULL);
        expect(!strncmp(faults.text[i], "fuzz/config.json:", 17));
    }
    if (status == DTP_OK) {
        expect(!strcmp(t->name, "fuzz"));
        expect(dtp_transformer_check(t, NULL, 0, NULL) == DTP_OK);
        expect(memchr(config.unused, 0, sizeof config.unused) != NULL);
        expect(dtp_transformer_count(t).total <= 1000000000000000u);
    }
    return 0;
}
