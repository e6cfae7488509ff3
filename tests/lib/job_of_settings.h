/* Jobs of tests from settings, "key=value ...", as a scenario's file has them, by the shipped catalogues. After
 * cmocka.h.
 */
#ifndef TEST_JOB_OF_SETTINGS_H
#define TEST_JOB_OF_SETTINGS_H

#include "job/scenario.h"
#include "lib/shipped_catalog.h"

#include <stdio.h>
#include <string.h>

/* Not DTP_OK where a setting or the job is refused; faults are emptied before. */
static inline enum dtp_status job_of_settings(const char *settings, struct dtp_job *out, struct dtp_faults *faults)
{
    struct dtp_scenario *scenario;
    char text[800], *rest = text;
    memset(faults, 0, sizeof *faults);
    assert_true((size_t)snprintf(text, sizeof text, "%s", settings) < sizeof text);
    assert_int_equal(dtp_scenario_create(&scenario, faults), DTP_OK);
    enum dtp_status status = DTP_OK;
    for (char *word; status == DTP_OK && (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        if (!*word)
            continue;
        *value++ = '\0';
        status = dtp_scenario_set(scenario, word, value, "test", 0, faults);
    }
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, &catalog, out, faults);
    dtp_scenario_destroy(scenario);
    return status;
}

#endif
