/* The settings of one file, row by row of its format's table. */
#include "import/reading.h"

#include "base/nearest.h"
#include "schedule/schedule.h"

#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- what comes before the file ---------------------------------------------------------------------------------- */

/* Keys that say the same in other words, or of which one follows from the others: who types one of a row takes the
 * file's others back. */
static const char *const rivals[][4] = {{"global_batch", "global_batch_tokens", "accumulate", NULL},
                                        {"gpus", "nodes", NULL},
                                        {"model", "params", NULL},
                                        {"schedule", "virtual_stages", NULL}};

/* A file's schedule of several chunks a rank stands beside chunks that are typed, which one of a single chunk knows
 * nothing of: such a file's is taken back. */
static bool goes_with_chunks(const char *key, const char *value)
{
    enum dtp_schedule_kind kind;
    return value && strcmp(key, "schedule") == 0 && dtp_schedule_parse(value, &kind) &&
           dtp_schedule_row(kind)->chunks != 1;
}

/* What was typed for the key, which a file gives this value (NULL: unknown), or for a rival of it; `name` gets which.
 */
static const char *typed(const struct dtp_reading *r, const char *key, const char *given, const char **name)
{
    const char *value = dtp_typed(r, key);
    *name = key;
    if (!value && goes_with_chunks(key, given))
        return NULL;
    for (size_t i = 0; !value && i < sizeof rivals / sizeof *rivals; i++) {
        bool among = false;
        for (size_t k = 0; rivals[i][k]; k++)
            among |= strcmp(rivals[i][k], key) == 0;
        for (size_t k = 0; among && !value && rivals[i][k]; k++) {
            value = dtp_typed(r, rivals[i][k]);
            *name = rivals[i][k];
        }
    }
    return value;
}

bool dtp_is_said(const struct dtp_reading *r, const char *key)
{
    const char *name;
    return typed(r, key, NULL, &name) || dtp_scenario_get(r->scenario, key);
}

const char *dtp_typed(const struct dtp_reading *r, const char *key)
{
    return r->said ? r->said->value(r->said->context, key) : NULL;
}

bool dtp_is_typed(const struct dtp_reading *r, const char *key)
{
    return dtp_typed(r, key) != NULL;
}

static const char *flag_of(const char *key, char *out, size_t bytes)
{
    snprintf(out, bytes, "--%s", key);
    for (char *c = out; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return out;
}

/* ---- entries ------------------------------------------------------------------------------------------------------
 */

__attribute__((format(printf, 4, 5))) static void settle(struct dtp_reading *r, struct dtp_entry *entry,
                                                         enum dtp_entry_fate fate, const char *format, ...)
{
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    bool more = entry->fate == fate && entry->words && entry->words[0]; /* one setting may make several keys */
    if (fate >= entry->fate || more) {
        const char *text =
            dtp_entries_text(&r->file->entries, "%s%s%s", more ? entry->words : "", more ? ", " : "", words);
        entry->words = text ? text : "";
    }
    entry->fate = fate > entry->fate ? fate : entry->fate;
}

__attribute__((format(printf, 3, 0))) static enum dtp_status refuse(struct dtp_reading *r, struct dtp_entry *entry,
                                                                    const char *format, va_list arguments)
{
    char words[384];
    vsnprintf(words, sizeof words, format, arguments);
    settle(r, entry, DTP_ENTRY_REFUSED, "%s", words);
    return dtp_fault(r->faults, DTP_BAD_INPUT, r->file->path, entry->line, "%s = %.80s: %s", entry->path,
                     entry->null ? "null" : entry->value, words);
}

__attribute__((format(printf, 3, 4))) static enum dtp_status
refuse_entry(struct dtp_reading *r, struct dtp_entry *entry, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    enum dtp_status status = refuse(r, entry, format, arguments);
    va_end(arguments);
    return status;
}

static bool is_auto(const struct dtp_reading *r, const struct dtp_entry *entry)
{
    return r->file->format->has_auto && strcmp(entry->value, "auto") == 0;
}

static void wait_for(struct dtp_reading *r, const char *key, struct dtp_entry *entry)
{
    struct dtp_import *import = r->import;
    if (import->pending_count < DTP_PENDING_MOST)
        import->pending[import->pending_count++] = (struct dtp_pending){key, entry, r->file};
    settle(r, entry, DTP_ENTRY_USED, "%s, as said elsewhere", key);
}

/* ---- keys ---------------------------------------------------------------------------------------------------------
 */

static enum dtp_status set_key(struct dtp_reading *r, const char *key, const char *value, struct dtp_entry *entry)
{
    const char *name, *said = typed(r, key, value, &name), *there = dtp_scenario_get(r->scenario, key);
    char flag[64];
    size_t line = 0;
    if (said) {
        if (entry)
            settle(r, entry, DTP_ENTRY_REPLACED, "%s: the line says %s %.60s", key, flag_of(name, flag, sizeof flag),
                   said);
        return DTP_OK;
    }
    if (there) {
        const char *place = dtp_scenario_place(r->scenario, key, &line);
        bool same = strcmp(there, value) == 0;
        bool here = place && strcmp(place, r->file->path) == 0;
        if (entry && same && here && line == entry->line && entry->words && entry->words[0])
            return DTP_OK; /* said already, of this setting */
        if (entry)
            settle(r, entry, same ? DTP_ENTRY_USED : DTP_ENTRY_REPLACED, "%s %s%s%s:%zu says %.60s", key,
                   same ? value : "", same ? "; " : "of ", place ? place : "elsewhere", line, there);
        return DTP_OK;
    }
    enum dtp_status status =
        dtp_scenario_set(r->scenario, key, value, r->file->path, entry ? entry->line : 0, r->faults);
    if (entry)
        settle(r, entry, status == DTP_OK ? DTP_ENTRY_USED : DTP_ENTRY_REFUSED, "%s %s", key, value);
    return status;
}

enum dtp_status dtp_make_key(struct dtp_reading *r, const char *key, const char *value, const char *fact)
{
    struct dtp_entry *entry = NULL;
    for (size_t i = 0; fact && i < r->file->entries.count && !entry; i++) {
        struct dtp_entry *at = &r->file->entries.items[i];
        if (at->row && at->row->name && strcmp(at->row->name, fact) == 0 && !at->null)
            entry = at;
    }
    return set_key(r, key, value, entry);
}

enum dtp_status dtp_make_clipping(struct dtp_reading *r, const char *fact, const char *standard)
{
    static const char *const own[] = {"deepspeed", "megatron", "nanotron"};
    const char *runtime = dtp_typed(r, "runtime"), *said = dtp_fact(r, fact), *norm = said ? said : standard;
    for (size_t i = 0; runtime && i < sizeof own / sizeof *own; i++)
        if (strcmp(runtime, own[i]) == 0)
            norm = NULL;
    return norm ? dtp_make_key(r, "clip_norm", norm, said ? fact : NULL) : DTP_OK;
}

/* ---- facts --------------------------------------------------------------------------------------------------------
 */

static const struct dtp_row *row_of_fact(const struct dtp_format *format, const char *fact)
{
    for (size_t i = 0; i < format->row_count; i++)
        if (format->rows[i].name && strcmp(format->rows[i].name, fact) == 0)
            return &format->rows[i];
    return NULL;
}

/* A fact is one of the format's or, where formats share code, of another's. */
static bool fact_is_known(const struct dtp_format *own, const char *fact)
{
    size_t count;
    const struct dtp_format *const *formats = dtp_formats(&count);
    bool known = row_of_fact(own, fact) != NULL;
    for (size_t i = 0; i < count && !known; i++)
        known = row_of_fact(formats[i], fact) != NULL;
    return known;
}

static struct dtp_entry *entry_of(const struct dtp_reading *r, const char *fact)
{
    assert(fact_is_known(r->file->format, fact));
    for (size_t i = 0; i < r->file->entries.count; i++) {
        struct dtp_entry *entry = &r->file->entries.items[i];
        const struct dtp_row *row = entry->row;
        if (!entry->null && row && row->name && strcmp(row->name, fact) == 0)
            return entry;
    }
    return NULL;
}

const char *dtp_fact(const struct dtp_reading *r, const char *fact)
{
    const struct dtp_entry *entry = entry_of(r, fact);
    char ours[1024];
    if (!entry || is_auto(r, entry) || !dtp_row_ours(entry->row, entry->value, ours, sizeof ours))
        return NULL;
    if (!*ours && *entry->row->values)
        return NULL; /* a word for what is done anyway */
    return dtp_entries_text(&r->file->entries, "%s", ours);
}

const char *dtp_fact_of(const struct dtp_reading *r, const char *format, const char *fact)
{
    struct dtp_reading other = *r;
    for (size_t i = 0; i < r->import->count; i++) {
        other.file = &r->import->files[i];
        if (strcmp(other.file->format->name, format) == 0)
            return dtp_fact(&other, fact);
    }
    return NULL;
}

bool dtp_says_fact(const struct dtp_reading *r, const char *fact)
{
    return entry_of(r, fact) != NULL;
}

bool dtp_fact_is_auto(const struct dtp_reading *r, const char *fact)
{
    const struct dtp_entry *entry = entry_of(r, fact);
    return entry && is_auto(r, entry);
}

enum dtp_status dtp_drop_fact(struct dtp_reading *r, const char *fact, const char *key)
{
    char flag[64];
    struct dtp_entry *entry = entry_of(r, fact);
    if (entry)
        settle(r, entry, DTP_ENTRY_REPLACED, "follows from %s of the line", flag_of(key, flag, sizeof flag));
    return DTP_OK;
}

enum dtp_status dtp_refuse_fact(struct dtp_reading *r, const char *fact, const char *format, ...)
{
    struct dtp_entry *entry = entry_of(r, fact);
    va_list arguments;
    va_start(arguments, format);
    char words[384];
    enum dtp_status status;
    if (entry) {
        status = refuse(r, entry, format, arguments);
    } else {
        vsnprintf(words, sizeof words, format, arguments);
        status = dtp_fault(r->faults, DTP_BAD_INPUT, r->file->path, 0, "%s", words);
    }
    va_end(arguments);
    return status;
}

void dtp_need_key(struct dtp_reading *r, const char *fact, const char *key)
{
    struct dtp_entry *entry = entry_of(r, fact);
    if (entry)
        wait_for(r, key, entry);
}

bool dtp_reads_beside(const struct dtp_reading *r, const char *format)
{
    for (size_t i = 0; i < r->import->count; i++)
        if (strcmp(r->import->files[i].format->name, format) == 0)
            return true;
    return false;
}

enum dtp_status dtp_need_file(struct dtp_reading *r, const char *fact, const char *format)
{
    struct dtp_entry *entry = entry_of(r, fact);
    if (!entry)
        return DTP_OK;
    for (size_t i = 0; i < r->import->count; i++)
        if (strcmp(r->import->files[i].format->name, format) == 0) {
            settle(r, entry, DTP_ENTRY_USED, "read as %.200s", r->import->files[i].path);
            return DTP_OK;
        }
    return refuse_entry(r, entry, "is a file of its own; give it too: --from %.200s", entry->value);
}

/* Words of a name that say how a model was trained or packed, and nothing of its shape. */
static void strip(char *name)
{
    static const char *const endings[] = {"-hf", "-instruct", "-chat", "-base", "-it"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0)
            name[length - ending] = '\0';
    }
    if (strncmp(name, "meta-", 5) == 0)
        memmove(name, name + 5, strlen(name + 5) + 1);
}

enum dtp_status dtp_make_model(struct dtp_reading *r, const char *fact)
{
    const char *named = dtp_fact(r, fact), *last = named ? strrchr(named, '/') : NULL;
    char model[512];
    if (!named)
        return DTP_OK;
    if (named[0] == '/' || named[0] == '.') {
        bool file = strstr(named, ".json") != NULL;
        snprintf(model, sizeof model, "%.400s%s", named, file ? "" : "/config.json");
        return dtp_make_key(r, "model", model, fact);
    }
    snprintf(model, sizeof model, "%.400s", last ? last + 1 : named);
    for (char *c = model; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    strip(model);
    return dtp_make_key(r, "model", model, fact);
}

/* ---- rows ---------------------------------------------------------------------------------------------------------
 */

static enum dtp_status refuse_unknown(struct dtp_reading *r, struct dtp_entry *entry)
{
    const struct dtp_format *format = r->file->format;
    struct dtp_nearest nearest;
    char hint[256];
    dtp_nearest_begin(&nearest, entry->path);
    for (size_t i = 0; i < format->row_count; i++)
        dtp_nearest_offer(&nearest, format->rows[i].path);
    dtp_nearest_text(&nearest, hint, sizeof hint);
    return refuse_entry(r, entry, "is no setting of %s that dtplan knows; %s", format->title,
                        hint[0] ? hint : "leave it out if it changes neither memory nor time");
}

static enum dtp_status give_way(struct dtp_reading *r, struct dtp_entry *entry, const struct dtp_row *row)
{
    char flag[64];
    if (!dtp_is_typed(r, row->instead))
        return refuse_entry(r, entry, "not modelled: %s, which comes before the file", row->words);
    settle(r, entry, DTP_ENTRY_REPLACED, "%s: the line says %s %.60s", row->instead,
           flag_of(row->instead, flag, sizeof flag), dtp_typed(r, row->instead));
    return DTP_OK;
}

static enum dtp_status read_value(struct dtp_reading *r, struct dtp_entry *entry, const struct dtp_row *row)
{
    char ours[1024], choices[512];
    if (strchr(entry->value, '$'))
        return refuse_entry(r, entry, "is made of what only the program that starts the training knows; write it out");
    if (row->kind == DTP_ROW_ONLY && !dtp_row_allows(row, entry->value) && row->instead)
        return give_way(r, entry, row);
    if (row->kind == DTP_ROW_ONLY && !dtp_row_allows(row, entry->value))
        return refuse_entry(r, entry, "not modelled: %s; %s%s", row->words,
                            *row->values ? "only with " : "leave it out",
                            dtp_row_choices(row, choices, sizeof choices));
    if (row->kind == DTP_ROW_ONLY) {
        settle(r, entry, DTP_ENTRY_USED, "what is modelled");
        return DTP_OK;
    }
    if (!dtp_row_ours(row, entry->value, ours, sizeof ours))
        return refuse_entry(r, entry, "not modelled as %s; modelled are %s", *row->words ? row->words : row->name,
                            dtp_row_choices(row, choices, sizeof choices));
    if (row->kind == DTP_ROW_FACT) {
        settle(r, entry, DTP_ENTRY_USED, "%s", ""); /* words come with what is made of it, if anything is */
        return DTP_OK;
    }
    if (!*ours) { /* a word for what is done anyway */
        settle(r, entry, DTP_ENTRY_USED, "as %s is by default", row->name);
        return DTP_OK;
    }
    return set_key(r, row->name, ours, entry);
}

static enum dtp_status read_entry(struct dtp_reading *r, struct dtp_entry *entry)
{
    const struct dtp_row *row = entry->row;
    if (!row)
        return refuse_unknown(r, entry);
    if (row->kind == DTP_ROW_ASIDE)
        settle(r, entry, DTP_ENTRY_ASIDE, "%s", row->words);
    else if (entry->null)
        settle(r, entry, DTP_ENTRY_ASIDE, "null: as if it were not there");
    else if (is_auto(r, entry) && row->kind == DTP_ROW_KEY)
        wait_for(r, row->name, entry);
    else if (is_auto(r, entry))
        settle(r, entry, DTP_ENTRY_USED, "%s", "");
    else
        return read_value(r, entry, row);
    return DTP_OK;
}

bool dtp_row_is_sound(const struct dtp_row *row)
{
    return row->path && row->path[0] && (row->kind != DTP_ROW_KEY || dtp_scenario_key_of(row->name)) &&
           (!row->instead || dtp_scenario_key_of(row->instead)) && (row->kind == DTP_ROW_ASIDE || row->values) &&
           row->words;
}

enum dtp_status dtp_reading_run(struct dtp_reading *r)
{
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < r->file->entries.count; i++)
        worst = dtp_worse(worst, read_entry(r, &r->file->entries.items[i]));
    if (worst == DTP_OK && r->file->format->read)
        worst = r->file->format->read(r);
    for (size_t i = 0; i < r->file->entries.count; i++) {
        struct dtp_entry *entry = &r->file->entries.items[i];
        if (entry->fate == DTP_ENTRY_USED && !entry->words[0])
            settle(r, entry, DTP_ENTRY_USED, "taken into account");
    }
    return worst;
}
