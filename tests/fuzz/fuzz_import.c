/* libFuzzer target: any bytes are a framework's configuration or are refused; what is taken is accounted for, and sets
 * keys that a scenario takes. */
#include "import/import.h"

#include "fuzz_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct dtp_faults faults;
    struct dtp_scenario *scenario;
    struct dtp_import *import = dtp_import_create();
    char *text = malloc(bytes + 1); /* of just this size, so that a byte too many is seen */
    expect(import && text);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    forget_faults(&faults);
    expect(dtp_scenario_create(&scenario, &faults) == DTP_OK);
    enum dtp_status status = dtp_import_parse(import, "fuzz", text, bytes, &faults);
    expect_faults(status, &faults);
    forget_faults(&faults);
    if (status == DTP_OK) {
        status = dtp_import_apply(import, scenario, NULL, &faults);
        expect_faults(status, &faults);
        struct dtp_imported file = dtp_import_file(import, 0);
        for (size_t i = 0; i < file.entry_count; i++)
            expect(file.entries[i].fate != DTP_ENTRY_UNREAD && file.entries[i].words);
        forget_faults(&faults);
        if (status == DTP_OK)
            expect_faults(dtp_import_finish(import, scenario, 4096, &faults), &faults);
    }
    dtp_scenario_destroy(scenario);
    dtp_import_destroy(import);
    free(text);
    return 0;
}
