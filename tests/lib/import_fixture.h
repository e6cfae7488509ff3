/* Files of tests/data/configs, read beside keys that are typed. */
#ifndef TEST_IMPORT_FIXTURE_H
#define TEST_IMPORT_FIXTURE_H

#include "import/import.h"

#include "lib/shipped_catalog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIGS TEST_SOURCE_DIR "/tests/data/configs/"

struct imported_file {
    struct dtp_import *import;
    struct dtp_scenario *scenario;
    struct dtp_job job;
    struct dtp_faults faults;
};

/* "key=value key=value": of what was typed. */
static inline const char *typed_here(const void *context, const char *key)
{
    static char value[256];
    size_t length = strlen(key);
    for (const char *at = context; at && *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, key, length) == 0 && at[length] == '=') {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(at + length + 1, " "), at + length + 1);
            return value;
        }
    return NULL;
}

static inline void set_typed(struct imported_file *file, const char *typed)
{
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s", typed);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *equals = strchr(word, '=');
        assert_non_null(equals);
        *equals = '\0';
        dtp_scenario_set(file->scenario, word, equals + 1, "command line", 0, &file->faults);
    }
}

static inline void drop_imported(struct imported_file *file)
{
    dtp_import_destroy(file->import);
    dtp_scenario_destroy(file->scenario);
    memset(file, 0, sizeof *file);
}

static inline void begin_import(struct imported_file *file)
{
    memset(file, 0, sizeof *file);
    file->import = dtp_import_create();
    assert_non_null(file->import);
    assert_int_equal(dtp_scenario_create(&file->scenario, &file->faults), DTP_OK);
}

/* As the command line does: what is typed, then what the files say. The job is resolved where all went well. */
static inline enum dtp_status finish_import(struct imported_file *file, const char *typed, const char *const *needed)
{
    const struct dtp_import_said said = {typed_here, typed, needed};
    enum dtp_status status = dtp_import_apply(file->import, file->scenario, &said, &file->faults);
    set_typed(file, typed);
    if (status == DTP_OK && dtp_import_needs_hidden(file->import)) {
        struct dtp_faults own = {0};
        dtp_scenario_resolve(file->scenario, &catalog, &file->job, &own);
        status = dtp_import_finish(file->import, file->scenario, file->job.transformer.hidden, &file->faults);
    }
    if (status == DTP_OK)
        status = dtp_scenario_resolve(file->scenario, &catalog, &file->job, &file->faults);
    return status;
}

/* Of a text that is called "file". */
static inline enum dtp_status import_text(struct imported_file *file, const char *text, const char *typed)
{
    begin_import(file);
    enum dtp_status status = dtp_import_parse(file->import, "file", text, strlen(text), &file->faults);
    return status == DTP_OK ? finish_import(file, typed, NULL) : status;
}

#endif
