#include "import/import.h"

#include "base/append.h"
#include "base/input_file.h"
#include "import/reading.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- formats ------------------------------------------------------------------------------------------------------
 */

bool dtp_path_suits(const char *pattern, const char *path)
{
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*')
        return strncmp(pattern, path, length - 1) == 0;
    return strcmp(pattern, path) == 0;
}

/* The path by which rows know it. */
static const char *known_path(const struct dtp_format *format, const char *path, char *out, size_t bytes)
{
    for (size_t i = 0; format->prefixes && format->prefixes[i][0]; i++) {
        size_t length = strlen(format->prefixes[i][0]);
        if (strncmp(path, format->prefixes[i][0], length) == 0) {
            snprintf(out, bytes, "%s%s", format->prefixes[i][1], path + length);
            return out;
        }
    }
    return path;
}

const struct dtp_row *dtp_format_row(const struct dtp_format *format, const char *path)
{
    char text[256];
    path = known_path(format, path, text, sizeof text);
    for (size_t i = 0; i < format->row_count; i++)
        if (dtp_path_suits(format->rows[i].path, path))
            return &format->rows[i];
    return NULL;
}

const char *dtp_syntax_text(enum dtp_syntax syntax)
{
    static const char *const texts[] = {[DTP_SYNTAX_JSON] = "JSON",
                                        [DTP_SYNTAX_YAML] = "YAML",
                                        [DTP_SYNTAX_TOML] = "TOML",
                                        [DTP_SYNTAX_FLAGS] = "flags"};
    return texts[syntax];
}

static bool has_sign(const struct dtp_format *format, const struct dtp_entries *entries)
{
    char text[256];
    for (const char *const *sign = format->signs; *sign; sign++)
        for (size_t i = 0; i < entries->count; i++)
            if (dtp_path_suits(*sign, known_path(format, entries->items[i].path, text, sizeof text)))
                return true;
    return false;
}

static size_t known_settings(const struct dtp_format *format, const struct dtp_entries *entries)
{
    size_t known = 0;
    for (size_t i = 0; i < entries->count; i++)
        known += dtp_format_row(format, entries->items[i].path) != NULL;
    return known;
}

/* Of the formats that a sign speaks for, the one that knows most of the settings. */
static const struct dtp_format *recognise(const struct dtp_entries *entries, enum dtp_syntax syntax)
{
    const struct dtp_format *best = NULL;
    size_t count, most = 0;
    const struct dtp_format *const *formats = dtp_formats(&count);
    for (size_t i = 0; i < count; i++) {
        size_t known = formats[i]->syntaxes & 1u << syntax && has_sign(formats[i], entries)
                           ? known_settings(formats[i], entries)
                           : 0;
        if (known > most) {
            most = known;
            best = formats[i];
        }
    }
    return best;
}

static enum dtp_status refuse_file(const char *path, enum dtp_syntax syntax, struct dtp_faults *faults)
{
    char known[512] = "";
    size_t count;
    const struct dtp_format *const *formats = dtp_formats(&count);
    for (size_t i = 0; i < count; i++)
        dtp_append_part(known, sizeof known, ", ", "%s", formats[i]->name);
    return dtp_fault(
        faults, DTP_BAD_INPUT, path, 0,
        "holds %s and is no configuration that dtplan knows (%s); a scenario of dtplan's own stands without "
        "--from",
        dtp_syntax_text(syntax), known);
}

/* ---- files --------------------------------------------------------------------------------------------------------
 */

struct dtp_import *dtp_import_create(void)
{
    return calloc(1, sizeof(struct dtp_import));
}

void dtp_import_destroy(struct dtp_import *import)
{
    for (size_t i = 0; import && i < import->count; i++) {
        dtp_entries_release(&import->files[i].entries);
        free(import->files[i].path);
    }
    if (import)
        free(import->files);
    free(import);
}

static bool is_named_json(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".json") == 0;
}

/* A table of TOML, or NAME = value, without ':' before it; flags; else YAML, of which JSON is a part. An array of JSON
 * begins as a table of TOML does: then the name decides. */
static enum dtp_syntax syntax_of(const char *path, const char *text)
{
    if (text[strspn(text, " \t\r\n")] == '[' && is_named_json(path))
        return DTP_SYNTAX_JSON;
    bool flags = strncmp(text, "#!", 2) == 0, toml = false;
    text += strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (bool first = true; *text; first = false) {
        size_t length = strcspn(text, "\n");
        size_t blanks = strspn(text, " \t");
        const char *line = text + blanks;
        size_t left = length > blanks ? length - blanks : 0;
        size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.\"");
        size_t gap = strspn(line + name, " \t");
        if (first && *line == '{')
            return DTP_SYNTAX_JSON;
        if (left && *line == '{' && !toml && !flags)
            return DTP_SYNTAX_JSON;
        if (left > 1 && strncmp(line, "--", 2) == 0 && line[2] != '-' && line[2] != '\n' && line[2] != '\r')
            return DTP_SYNTAX_FLAGS;
        if (left && *line != '#' && !flags) {
            if (*line == '[' || (name < left && line[name + gap] == '=' && (gap || !memchr(line, ' ', name))))
                toml = true;
            else if (name < left && line[name + gap] == ':')
                return toml ? DTP_SYNTAX_TOML : DTP_SYNTAX_YAML;
        }
        text += length + (text[length] == '\n');
    }
    return flags ? DTP_SYNTAX_FLAGS : toml ? DTP_SYNTAX_TOML : DTP_SYNTAX_YAML;
}

static enum dtp_status read_entries(struct dtp_entries *entries, enum dtp_syntax syntax, const char *text, size_t bytes,
                                    struct dtp_faults *faults)
{
    switch (syntax) {
    case DTP_SYNTAX_JSON: return dtp_entries_read_json(entries, text, bytes, faults);
    case DTP_SYNTAX_TOML: return dtp_entries_read_toml(entries, text, bytes, faults);
    case DTP_SYNTAX_FLAGS: return dtp_entries_read_flags(entries, text, bytes, faults);
    case DTP_SYNTAX_YAML: return dtp_entries_read_yaml(entries, text, bytes, faults);
    }
    return DTP_BAD_INPUT;
}

enum dtp_status dtp_import_parse(struct dtp_import *import, const char *path, const char *text, size_t bytes,
                                 struct dtp_faults *faults)
{
    struct dtp_import_file *grown = realloc(import->files, (import->count + 1) * sizeof *grown), *file;
    if (!grown)
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
    import->files = grown;
    file = &grown[import->count];
    *file = (struct dtp_import_file){.path = strdup(path)};
    if (!file->path)
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "out of memory");
    import->count++;
    file->entries.name = file->path;
    enum dtp_syntax syntax = syntax_of(path, text);
    enum dtp_status status = read_entries(&file->entries, syntax, text, bytes, faults);
    if (status == DTP_OK)
        status = dtp_entries_interpolate(&file->entries, faults);
    if (status == DTP_OK && !(file->format = recognise(&file->entries, syntax)))
        status = refuse_file(path, syntax, faults);
    if (status != DTP_OK) {
        dtp_entries_release(&file->entries);
        free(file->path);
        import->count--;
    }
    return status;
}

enum dtp_status dtp_import_read(struct dtp_import *import, const char *path, struct dtp_faults *faults)
{
    const char *name = dtp_input_name(path);
    char *text;
    size_t bytes;
    enum dtp_status status =
        dtp_input_read(path, DTP_ENTRIES_MOST_FILE_BYTES, "; name the file in it", &text, &bytes, faults);
    if (status == DTP_OK && bytes > DTP_ENTRIES_MOST_FILE_BYTES)
        status = dtp_fault(faults, DTP_BAD_INPUT, name, 0, "is larger than %zu MiB: no configuration of a training",
                           DTP_ENTRIES_MOST_FILE_BYTES >> 20);
    else if (status == DTP_OK)
        status = dtp_import_parse(import, name, text, bytes, faults);
    free(text);
    return status;
}

/* ---- to keys ------------------------------------------------------------------------------------------------------
 */

static const struct dtp_width_rule *width_rule(const struct dtp_pending *pending)
{
    const struct dtp_width_rule *rule = pending->file->format->by_width;
    while (rule && rule->key && strcmp(rule->key, pending->key) != 0)
        rule++;
    return rule && rule->key ? rule : NULL;
}

static void flag_of(const char *key, char *out, size_t bytes)
{
    snprintf(out, bytes, "--%s", key);
    for (char *c = out; *c; c++)
        *c = *c == '_' ? '-' : *c;
}

/* Who fills in "auto" must be known by now, but for what is made of the model's width. */
static enum dtp_status check_pending(struct dtp_reading *r)
{
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < r->import->pending_count; i++) {
        const struct dtp_pending *p = &r->import->pending[i];
        char flag[64];
        if (width_rule(p) || dtp_is_said(r, p->key))
            continue;
        p->entry->fate = DTP_ENTRY_REFUSED;
        flag_of(p->key, flag, sizeof flag);
        worst = dtp_fault(r->faults, DTP_BAD_INPUT, p->file->path, p->entry->line,
                          "%s = auto: the program that reads the file fills it in; give %s, or the file that says it "
                          "with another --from",
                          p->entry->path, flag);
    }
    return worst;
}

/* A key that stands for others which say as much. */
static bool is_answered(const struct dtp_reading *r, const char *key)
{
    static const char *const others[][5] = {
        {"model", "params", "layers", NULL}, {"gpus", "nodes", "machine", NULL}, {"gpu", "machine", NULL}};
    if (dtp_is_said(r, key))
        return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        for (size_t k = 1; strcmp(others[i][0], key) == 0 && others[i][k]; k++)
            if (dtp_is_said(r, others[i][k]))
                return true;
    return false;
}

/* What nobody says would be a default that the user never saw. */
static enum dtp_status check_needed(struct dtp_reading *r)
{
    static const char *const flags[][3] = {{"model", "the model", "--model NAME|config.json"},
                                           {"seq", "the length of sequences", "--seq N"},
                                           {"gpus", "the number of GPUs", "--gpus N"},
                                           {"gpu", "the GPU", "--gpu NAME"}};
    char what[256] = "", give[256] = "";
    for (const char *const *key = r->said ? r->said->needed : NULL; key && *key; key++)
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (strcmp(flags[i][0], *key) == 0 && !is_answered(r, *key)) {
                dtp_append_part(what, sizeof what, ", ", "%s", flags[i][1]);
                dtp_append_part(give, sizeof give, " ", "%s", flags[i][2]);
            }
    const struct dtp_import_file *first = &r->import->files[0];
    return what[0] ? dtp_fault(r->faults, DTP_BAD_INPUT, first->path, 0, "does not say %s; add %s", what, give)
                   : DTP_OK;
}

/* Rows of all files come first: one file may ask for what another says. */
static void begin_reading(struct dtp_import_file *file)
{
    for (size_t i = 0; i < file->entries.count; i++) {
        struct dtp_entry *entry = &file->entries.items[i];
        entry->fate = DTP_ENTRY_UNREAD;
        entry->words = NULL;
        entry->row = dtp_format_row(file->format, entry->path);
    }
}

enum dtp_status dtp_import_apply(struct dtp_import *import, struct dtp_scenario *scenario,
                                 const struct dtp_import_said *said, struct dtp_faults *faults)
{
    struct dtp_reading reading = {.import = import, .scenario = scenario, .said = said, .faults = faults};
    enum dtp_status worst = DTP_OK;
    import->pending_count = 0;
    for (size_t i = 0; i < import->count; i++)
        begin_reading(&import->files[i]);
    for (size_t i = import->count; i-- > 0;) {
        reading.file = &import->files[i];
        worst = dtp_worse(worst, dtp_reading_run(&reading));
    }
    if (worst == DTP_OK && import->count) {
        worst = check_pending(&reading);
        worst = dtp_worse(worst, check_needed(&reading));
    }
    return worst;
}

bool dtp_import_needs_hidden(const struct dtp_import *import)
{
    for (size_t i = 0; i < import->pending_count; i++)
        if (width_rule(&import->pending[i]))
            return true;
    return false;
}

enum dtp_status dtp_import_finish(struct dtp_import *import, struct dtp_scenario *scenario, uint64_t hidden,
                                  struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < import->pending_count; i++) {
        const struct dtp_pending *p = &import->pending[i];
        const struct dtp_width_rule *rule = width_rule(p);
        char value[32], flag[64];
        if (!rule || dtp_scenario_get(scenario, p->key))
            continue;
        flag_of(p->key, flag, sizeof flag);
        if (!hidden) {
            worst = dtp_fault(faults, DTP_BAD_INPUT, p->file->path, p->entry->line,
                              "%s = auto: is made of the model's width, of which there are several here; give %s N",
                              p->entry->path, flag);
            continue;
        }
        snprintf(value, sizeof value, "%.0f", floor(rule->factor * pow((double)hidden, rule->power)));
        worst = dtp_worse(worst, dtp_scenario_set(scenario, p->key, value, p->file->path, p->entry->line, faults));
        const char *words =
            dtp_entries_text((struct dtp_entries *)&p->file->entries, "%s %s, by the model's width", p->key, value);
        p->entry->words = words ? words : "";
    }
    return worst;
}

/* ---- for reports --------------------------------------------------------------------------------------------------
 */

size_t dtp_import_count(const struct dtp_import *import)
{
    return import ? import->count : 0;
}

struct dtp_imported dtp_import_file(const struct dtp_import *import, size_t index)
{
    const struct dtp_import_file *file = &import->files[index];
    struct dtp_imported out = {.path = file->path,
                               .format = file->format->name,
                               .title = file->format->title,
                               .silent = file->format->silent,
                               .entries = file->entries.items,
                               .entry_count = file->entries.count};
    for (size_t i = 0; i < file->entries.count; i++) {
        out.used += file->entries.items[i].fate == DTP_ENTRY_USED;
        out.aside += file->entries.items[i].fate == DTP_ENTRY_ASIDE;
        out.replaced += file->entries.items[i].fate == DTP_ENTRY_REPLACED;
    }
    return out;
}

const char *dtp_entry_fate_text(enum dtp_entry_fate fate)
{
    static const char *const texts[] = {[DTP_ENTRY_UNREAD] = "unread",
                                        [DTP_ENTRY_USED] = "used",
                                        [DTP_ENTRY_ASIDE] = "no effect",
                                        [DTP_ENTRY_REPLACED] = "replaced",
                                        [DTP_ENTRY_REFUSED] = "refused"};
    return texts[fate];
}
