/* Changes as words: what has to be typed behind a scenario for a change, and what such words say. */
#include "job/change.h"
#include "job/job_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* One flag of a text that only this program writes: "--key value", "--key=value", "--key" or "--no-key". */
struct flag {
    char key[64], value[64];
    bool joined; /* by '=' */
};

/* The next flag, or false at the end. */
static bool next_flag(const char **text, struct flag *out)
{
    const char *at = *text + strspn(*text, " ");
    if (strncmp(at, "--", 2) != 0)
        return false;
    at += 2;
    size_t length = strcspn(at, " =");
    snprintf(out->key, sizeof out->key, "%.*s", (int)length, at);
    at += length;
    out->joined = *at == '=';
    const char *value = at + (*at == '=' || *at == ' ');
    bool valued = out->joined || (*at == ' ' && strncmp(value, "--", 2) != 0);
    length = valued ? strcspn(value, " ") : 0;
    snprintf(out->value, sizeof out->value, "%.*s", (int)length, value);
    if (!valued && !dtp_scenario_key_of(out->key) && strncmp(out->key, "no-", 3) == 0) {
        memmove(out->key, out->key + 3, strlen(out->key) - 2);
        snprintf(out->value, sizeof out->value, "false");
    } else if (!valued) {
        snprintf(out->value, sizeof out->value, "true");
    }
    *text = valued ? value + length : at;
    return true;
}

enum dtp_status dtp_change_set(const char *flags, struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    struct flag flag;
    enum dtp_status status = DTP_OK;
    while (status == DTP_OK && next_flag(&flags, &flag))
        status = dtp_scenario_set(scenario, flag.key, flag.value, NULL, 0, faults);
    return status;
}

bool dtp_change_apply(const char *flags, struct dtp_plan *asked)
{
    struct flag flag;
    bool changed = false;
    while (next_flag(&flags, &flag)) {
        enum dtp_key key = dtp_key_find(flag.key);
        changed |= key != DTP_KEY_COUNT && dtp_change_set_key(key, flag.value, asked);
    }
    return changed;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

void dtp_change_add_flag(enum dtp_key key, const char *word, const char *value, char *out, size_t bytes)
{
    bool is_switch = dtp_key_is_switch(key), off = is_switch && strcmp(value, "false") == 0;
    bool bare = is_switch && (off || strcmp(value, "true") == 0);
    size_t used = strlen(out);
    const char *join = is_switch ? "=" : " ";
    snprintf(out + used, bytes - used, "%s--%s%s%s%s", used ? " " : "", off ? "no-" : "", word, bare ? "" : join,
             bare ? "" : value);
    size_t end = used + strlen(out + used) - (bare ? 0 : strlen(value));
    for (size_t i = used; i < end; i++)
        out[i] = out[i] == '_' ? '-' : out[i];
}

static void write_flag(const struct dtp_scenario *scenario, const struct flag *flag, char *out, size_t bytes)
{
    enum dtp_key key = dtp_key_find(flag->key);
    dtp_change_add_flag(key, dtp_scenario_word(scenario, dtp_key_name(key)), flag->value, out, bytes);
}

static bool is_said(const char *flags, const char *key)
{
    struct flag flag;
    while (next_flag(&flags, &flag))
        if (dtp_scenario_key_of(flag.key) == dtp_scenario_key_of(key))
            return true;
    return false;
}

/* How a value is typed; false where no word says it (dtypes that are no recipe). */
static bool typed(const struct dtp_job_value *value, char *out, size_t bytes)
{
    switch (value->kind) {
    case DTP_VALUE_WHOLE: snprintf(out, bytes, "%llu", (unsigned long long)value->whole); return true;
    case DTP_VALUE_REAL: snprintf(out, bytes, "%.15g", value->real); return true;
    case DTP_VALUE_SWITCH: snprintf(out, bytes, "%s", value->whole ? "true" : "false"); return true;
    case DTP_VALUE_WORD: snprintf(out, bytes, "%s", value->word); return strncmp(value->word, "custom", 6) != 0;
    }
    return false;
}

/* Keys of the plan that were given, and are another value in `asked`. */
static void add_given(const struct dtp_scenario *scenario, const struct dtp_job *before, const struct dtp_job *after,
                      const char *flags, char *out, size_t bytes)
{
    struct dtp_job_value was[DTP_JOB_VALUES_MAX], is[DTP_JOB_VALUES_MAX];
    size_t count = dtp_job_values(before, was);
    dtp_job_values(after, is);
    for (size_t i = 0; i < count; i++) {
        struct flag flag = {.joined = false};
        char old[64];
        const char *key = is[i].key->key;
        bool of_plan = strcmp(is[i].key->section, "plan") == 0 && strncmp(key, "global_batch", 12) != 0;
        if (!of_plan || !dtp_scenario_get(scenario, key) || is_said(flags, key))
            continue;
        snprintf(flag.key, sizeof flag.key, "%s", key);
        typed(&was[i], old, sizeof old);
        if (typed(&is[i], flag.value, sizeof flag.value) && strcmp(flag.value, old) != 0)
            write_flag(scenario, &flag, out, bytes);
    }
}

void dtp_change_words(const struct dtp_scenario *scenario, const struct dtp_job *job, const struct dtp_plan *asked,
                      const char *flags, char *out, size_t bytes)
{
    struct dtp_job before = *job, after = *job;
    struct flag flag;
    const char *rest = flags;
    out[0] = '\0';
    while (next_flag(&rest, &flag))
        write_flag(scenario, &flag, out, bytes);
    before.plan = job->asked;
    after.plan = *asked;
    add_given(scenario, &before, &after, flags, out, bytes);
}
