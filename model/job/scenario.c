#include "job/scenario.h"

#include "base/input_file.h"
#include "base/nearest.h"
#include "job/scenario_keys.h"

#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES ((size_t)1 << 20) /* a scenario is a page of text */

/* ---- settings ---------------------------------------------------------------------------------------------------- */

enum dtp_status dtp_scenario_create(struct dtp_scenario **out, struct dtp_faults *faults)
{
    *out = calloc(1, sizeof **out);
    return *out ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

void dtp_scenario_destroy(struct dtp_scenario *scenario)
{
    if (!scenario)
        return;
    for (int i = 0; i < DTP_KEY_COUNT; i++) {
        free(scenario->settings[i].value);
        free(scenario->settings[i].where);
    }
    free(scenario);
}

static enum dtp_status refuse_unknown(const char *key, const char *where, size_t line, struct dtp_faults *faults)
{
    struct dtp_nearest nearest;
    char hint[256];
    dtp_nearest_begin(&nearest, key);
    for (int i = 0; i < DTP_KEY_COUNT; i++)
        dtp_nearest_offer(&nearest, dtp_key_name((enum dtp_key)i));
    size_t alias_count;
    const struct dtp_scenario_alias *aliases = dtp_scenario_aliases(&alias_count);
    for (size_t i = 0; i < alias_count; i++)
        if (!aliases[i].value)
            dtp_nearest_offer(&nearest, aliases[i].word);
    dtp_nearest_text(&nearest, hint, sizeof hint);
    return dtp_fault(faults, DTP_BAD_INPUT, where, line, "unknown key '%.64s'; %s", key,
                     hint[0] ? hint : "dtplan plan --help lists the keys");
}

static void note_edit(struct dtp_scenario *scenario, enum dtp_key key)
{
    if (!dtp_key_is_of_plan(key))
        scenario->base_edits++;
    else
        scenario->edited[scenario->plan_edits++ % DTP_EDITS_KEPT] = key;
}

/* Keeps the text; the old one goes only when the new one is there. */
static enum dtp_status keep(struct dtp_scenario *scenario, enum dtp_key key, const char *value, const char *where,
                            size_t line, const struct dtp_scenario_alias *alias, struct dtp_faults *faults)
{
    struct dtp_setting *setting = &scenario->settings[key];
    char *value_copy = strdup(value), *where_copy = where ? strdup(where) : NULL;
    if (!value_copy || (where && !where_copy)) {
        free(value_copy);
        free(where_copy);
        return dtp_fault(faults, DTP_ENVIRONMENT, where, line, "out of memory");
    }
    free(setting->value);
    free(setting->where);
    *setting = (struct dtp_setting){value_copy, where_copy, line, alias};
    note_edit(scenario, key);
    return DTP_OK;
}

enum dtp_status dtp_scenario_copy(const struct dtp_scenario *scenario, struct dtp_scenario **out,
                                  struct dtp_faults *faults)
{
    enum dtp_status status = dtp_scenario_create(out, faults);
    for (int i = 0; i < DTP_KEY_COUNT && status == DTP_OK; i++) {
        const struct dtp_setting *s = &scenario->settings[i];
        if (s->value)
            status = keep(*out, (enum dtp_key)i, s->value, s->where, s->line, s->alias, faults);
    }
    if (status == DTP_OK)
        (*out)->without_times = scenario->without_times;
    if (status != DTP_OK) {
        dtp_scenario_destroy(*out);
        *out = NULL;
    }
    return status;
}

void dtp_scenario_without_times(struct dtp_scenario *scenario)
{
    scenario->without_times = true;
    scenario->base_edits++;
}

enum dtp_status dtp_scenario_set(struct dtp_scenario *scenario, const char *key, const char *value, const char *where,
                                 size_t line, struct dtp_faults *faults)
{
    const struct dtp_scenario_alias *alias;
    enum dtp_key index = dtp_key_find_word(key, &alias);
    if (index == DTP_KEY_COUNT)
        return refuse_unknown(key, where, line, faults);
    if (!value && dtp_key_is_switch(index))
        value = "true";
    if (!value || !*value)
        return dtp_fault_about(faults, DTP_BAD_INPUT, where, line, dtp_key_name(index), "has no value");
    struct dtp_draft scratch; /* written, never read */
    char why[256];
    if (!dtp_key_apply(index, value, &scratch, why, sizeof why)) {
        const char *meant = dtp_key_value_meant(index, value);
        return dtp_fault_about(faults, DTP_BAD_INPUT, where, line, dtp_key_name(index), "'%.64s' is not %s%s%s", value,
                               why, meant ? "; " : "", meant ? meant : "");
    }
    return keep(scenario, index, value, where, line, alias, faults);
}

void dtp_scenario_unset(struct dtp_scenario *scenario, const char *key)
{
    enum dtp_key index = dtp_key_find(key);
    if (index == DTP_KEY_COUNT)
        return;
    free(scenario->settings[index].value);
    free(scenario->settings[index].where);
    scenario->settings[index] = (struct dtp_setting){0};
    note_edit(scenario, index);
}

const char *dtp_scenario_place(const struct dtp_scenario *scenario, const char *key, size_t *line)
{
    enum dtp_key index = dtp_key_find(key);
    *line = index == DTP_KEY_COUNT ? 0 : scenario->settings[index].line;
    return index == DTP_KEY_COUNT ? NULL : scenario->settings[index].where;
}

const char *dtp_scenario_word(const struct dtp_scenario *scenario, const char *key)
{
    enum dtp_key index = dtp_key_find(key);
    const struct dtp_scenario_alias *alias = index == DTP_KEY_COUNT ? NULL : scenario->settings[index].alias;
    return alias ? alias->word : index == DTP_KEY_COUNT ? key : dtp_key_name(index);
}

const char *dtp_scenario_get(const struct dtp_scenario *scenario, const char *key)
{
    enum dtp_key index = dtp_key_find(key);
    return index == DTP_KEY_COUNT ? NULL : scenario->settings[index].value;
}

/* ---- INI files --------------------------------------------------------------------------------------------------- */

/* One file being read. inih calls `next_line` for a line and then, for that line, `take`; so the line number is ours.
 */
struct ini_file {
    struct dtp_scenario *scenario;
    const char *name;
    const char *cursor, *end;
    size_t line;
    size_t key_lines[DTP_KEY_COUNT]; /* line a key was first set on in this file; 0 = not yet */
    size_t key_count;
    struct dtp_faults *faults;
    enum dtp_status status;
};

static void fault(struct ini_file *file, enum dtp_status status)
{
    if (status > file->status)
        file->status = status;
}

#define FAULT(file, ...) fault(file, dtp_fault((file)->faults, DTP_BAD_INPUT, (file)->name, (file)->line, __VA_ARGS__))

static bool is_section(const char *text, size_t bytes)
{
    static const char *const sections[] = {"model", "cluster", "plan", "money"};
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (strlen(sections[i]) == bytes && !memcmp(sections[i], text, bytes))
            return true;
    return false;
}

static bool check_section_line(struct ini_file *file, const char *text, size_t bytes)
{
    const char *stop = memchr(text, ']', bytes);
    if (!stop)
        FAULT(file, "section without ']'");
    else if (!is_section(text + 1, (size_t)(stop - text) - 1))
        FAULT(file, "unknown section [%.*s]; use [model], [cluster], [plan] or [money]",
              stop - text < 64 ? (int)(stop - text) - 1 : 63, text + 1);
    return stop != NULL;
}

/* A '=' or ':' before a comment, as inih looks for it. */
static bool has_separator(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '=' || text[i] == ':')
            return true;
        if (text[i] == ';' && i && (text[i - 1] == ' ' || text[i - 1] == '\t'))
            return false;
    }
    return false;
}

/* True when inih reads this line as it stands. It would cut long lines in two, and it only remembers the first line it
 * cannot read, so both are refused here. */
static bool check_line(struct ini_file *file, const char *text, size_t bytes, size_t room)
{
    if (bytes == 0 || text[0] == ';' || text[0] == '#')
        return false;
    if (bytes > room) {
        FAULT(file, "line of %zu bytes; at most %zu are read", bytes, room);
        return false;
    }
    if (text[0] == '[')
        return check_section_line(file, text, bytes);
    if (!has_separator(text, bytes)) {
        FAULT(file, "'%.*s' is neither [section] nor key = value%s", bytes < 64 ? (int)bytes : 64, text,
              text[0] == '{' ? "; a model's config.json is given by --model FILE, another tool's file by --from FILE"
                             : "");
        return false;
    }
    return true;
}

/* fgets for inih: one line without its indentation (inih would take an indented line for more of the last value) and
 * without CR. What inih must not see becomes an empty line, so that its count agrees. */
static char *next_line(char *out, int out_bytes, void *context)
{
    struct ini_file *file = context;
    if (file->cursor == file->end || out_bytes < 3)
        return NULL;
    const char *text = file->cursor;
    const char *newline = memchr(text, '\n', (size_t)(file->end - text));
    const char *stop = newline ? newline : file->end;
    file->cursor = newline ? newline + 1 : file->end;
    file->line++;
    while (text < stop && (*text == ' ' || *text == '\t'))
        text++;
    while (stop > text && (stop[-1] == '\r' || stop[-1] == ' ' || stop[-1] == '\t'))
        stop--;
    size_t bytes = (size_t)(stop - text);
    if (!check_line(file, text, bytes, (size_t)out_bytes - 2))
        bytes = 0;
    memcpy(out, text, bytes);
    memcpy(out + bytes, "\n", 2);
    return out;
}

/* inih knows comments after " ;" only; people write " #" as well. */
static void cut_comment(char *value)
{
    for (char *c = value; *c; c++)
        if (*c == '#' && c > value && (c[-1] == ' ' || c[-1] == '\t')) {
            while (c > value && (c[-1] == ' ' || c[-1] == '\t'))
                c--;
            *c = 0;
            return;
        }
}

/* The key may stand here: known section, and the key's own. */
static bool check_section(struct ini_file *file, const char *section, enum dtp_key key)
{
    const char *right = dtp_key_section(key);
    if (!strcmp(section, right))
        return true;
    if (section[0] && !is_section(section, strlen(section)))
        return false; /* refused on its own line */
    if (!section[0])
        FAULT(file, "%s: stands before any section; put it under [%s]", dtp_key_name(key), right);
    else
        FAULT(file, "%s: belongs into [%s], not into [%.50s]", dtp_key_name(key), right, section);
    return false;
}

static int take(void *context, const char *section, const char *name, const char *value)
{
    struct ini_file *file = context;
    char text[512];
    snprintf(text, sizeof text, "%s", value);
    cut_comment(text);
    file->key_count++;
    const struct dtp_scenario_alias *alias;
    enum dtp_key key = dtp_key_find_word(name, &alias);
    if (key == DTP_KEY_COUNT) {
        fault(file, refuse_unknown(name, file->name, file->line, file->faults));
        return 1;
    }
    if (!check_section(file, section, key))
        return 1;
    if (file->key_lines[key]) {
        const struct dtp_scenario_alias *first = file->scenario->settings[key].alias;
        if (first == alias)
            FAULT(file, "%.64s: was set on line %zu already", name, file->key_lines[key]);
        else
            FAULT(file, "%.64s: is the same as %s of line %zu; leave one of them out", name,
                  first ? first->word : dtp_key_name(key), file->key_lines[key]);
        return 1;
    }
    file->key_lines[key] = file->line;
    fault(file, dtp_scenario_set(file->scenario, name, text, file->name, file->line, file->faults));
    return 1;
}

/* Line (1-based) of a byte of the text. */
static size_t line_of(const char *text, const char *at)
{
    size_t line = 1;
    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

enum dtp_status dtp_scenario_parse(struct dtp_scenario *scenario, const char *name, const char *text, size_t bytes,
                                   struct dtp_faults *faults)
{
    if (bytes > MAX_FILE_BYTES)
        return dtp_fault(faults, DTP_BAD_INPUT, name, 0, "larger than %zu bytes: no scenario file", MAX_FILE_BYTES);
    const char *nul = bytes ? memchr(text, 0, bytes) : NULL;
    if (nul)
        return dtp_fault(faults, DTP_BAD_INPUT, name, line_of(text, nul), "holds a NUL byte: no scenario file");
    if (bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) { /* UTF-8 byte order mark */
        text += 3;
        bytes -= 3;
    }
    struct ini_file file = {.scenario = scenario, .name = name, .cursor = text, .faults = faults};
    file.end = bytes ? text + bytes : text;
    int failed = ini_parse_stream(next_line, &file, take, &file);
    if (failed < 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, name, 0, "out of memory");
    if (failed > 0 && file.status == DTP_OK) {
        file.line = (size_t)failed;
        FAULT(&file, "cannot be read as [section] or key = value");
    }
    if (file.key_count == 0 && file.status == DTP_OK)
        fault(&file, dtp_fault(faults, DTP_BAD_INPUT, name, 0, "holds no key; a scenario needs [model] at least"));
    return file.status;
}

enum dtp_status dtp_scenario_read(struct dtp_scenario *scenario, const char *path, struct dtp_faults *faults)
{
    char *text;
    size_t bytes;
    enum dtp_status status =
        dtp_input_read(path, MAX_FILE_BYTES, ", no scenario file; a folder of checkpoints is named by --checkpoint DIR",
                       &text, &bytes, faults);
    if (status == DTP_OK)
        status = dtp_scenario_parse(scenario, dtp_input_name(path), text, bytes, faults);
    free(text);
    return status;
}
