/* What keys are called: their own names, the other words that people type for them and for their values, and who reads
 * them. What a value of a key means, scenario_keys.c reads. */
#include "job/scenario_keys.h"

#include "base/append.h"
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

#define ANYONE DTP_READER_ANYONE
#define FOR(reader) DTP_READER_##reader
#define ONLY(reader) DTP_READER_##reader
static const enum dtp_key_reader readers[DTP_KEY_COUNT] = {
#define DTP_KEY(key, section, value, how, reader, tried, words) reader,
#include "job/job_keys.def"
#undef DTP_KEY
};

static const struct dtp_scenario_key keys[DTP_KEY_COUNT] = {
#define DTP_KEY(key, section, value, how, reader, tried, words) {#key, section, value, words},
#include "job/job_keys.def"
#undef DTP_KEY
};

const struct dtp_scenario_key *dtp_scenario_keys(size_t *count)
{
    *count = DTP_KEY_COUNT;
    return keys;
}

static const enum dtp_key alias_keys[] = {
#define ALIAS_KEY(key, word, value, words) DTP_KEY_##key,
    DTP_ALIAS_TABLE(ALIAS_KEY)
#undef ALIAS_KEY
};

static const struct dtp_scenario_alias aliases[] = {
#define ALIAS_ROW(key, word, value, words) {#key, word, value, words},
    DTP_ALIAS_TABLE(ALIAS_ROW)
#undef ALIAS_ROW
};
#define ALIAS_COUNT (sizeof aliases / sizeof *aliases)

const struct dtp_scenario_alias *dtp_scenario_aliases(size_t *count)
{
    *count = ALIAS_COUNT;
    return aliases;
}

const struct dtp_scenario_alias *dtp_key_value_alias(enum dtp_key key, const char *value)
{
    for (size_t i = 0; i < ALIAS_COUNT; i++)
        if (alias_keys[i] == key && aliases[i].value && dtp_names_equal(aliases[i].word, value))
            return &aliases[i];
    return NULL;
}

const char *dtp_scenario_key_choices(const struct dtp_scenario_key *key, char *out, size_t bytes)
{
    if (!key->value)
        return NULL;
    snprintf(out, bytes, "%s", key->value);
    for (size_t i = 0; i < ALIAS_COUNT; i++)
        if (aliases[i].value && strcmp(aliases[i].key, key->key) == 0 && strcmp(aliases[i].word, aliases[i].value) != 0)
            dtp_append(out, bytes, "|%s", aliases[i].word);
    return out;
}

const char *dtp_scenario_key_words(const struct dtp_scenario_key *key, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s", key->words);
    for (size_t i = 0; i < ALIAS_COUNT; i++)
        if (aliases[i].value && strcmp(aliases[i].key, key->key) == 0)
            dtp_append(out, bytes, "; %s: %s", aliases[i].word, aliases[i].words);
    return out;
}

static bool is_word(const char *known, const char *typed)
{
    while (*known && (*known == *typed || (*known == '_' && *typed == '-')))
        known++, typed++;
    return !*known && !*typed;
}

enum dtp_key dtp_key_find_word(const char *name, const struct dtp_scenario_alias **alias)
{
    if (alias)
        *alias = NULL;
    for (int i = 0; i < DTP_KEY_COUNT; i++) /* who asks often asks by the name that the table has */
        if (keys[i].key == name)
            return (enum dtp_key)i;
    for (int i = 0; i < DTP_KEY_COUNT; i++)
        if (is_word(keys[i].key, name))
            return (enum dtp_key)i;
    for (size_t i = 0; i < ALIAS_COUNT; i++)
        if (!aliases[i].value && is_word(aliases[i].word, name)) {
            if (alias)
                *alias = &aliases[i];
            return alias_keys[i];
        }
    return DTP_KEY_COUNT;
}

enum dtp_key dtp_key_find(const char *name)
{
    return dtp_key_find_word(name, NULL);
}

const struct dtp_scenario_key *dtp_scenario_key_of(const char *name)
{
    enum dtp_key key = dtp_key_find(name);
    return key == DTP_KEY_COUNT ? NULL : &keys[key];
}

const struct dtp_scenario_key *dtp_key_row(enum dtp_key key)
{
    return &keys[key];
}

const char *dtp_key_name(enum dtp_key key)
{
    return keys[key].key;
}

const char *dtp_key_section(enum dtp_key key)
{
    return keys[key].section;
}

/* A learned position table is as long as the sequences, where nobody says how long. */
bool dtp_key_is_of_plan(enum dtp_key key)
{
    return strcmp(keys[key].section, "plan") == 0 && key != DTP_KEY_seq;
}

enum dtp_key_reader dtp_key_reader(enum dtp_key key)
{
    return readers[key];
}
