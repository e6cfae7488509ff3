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

/* Several values of the key with commas between, or a range from one. */
static bool is_list(enum dtp_key key, const char *value)
{
    char item[64], why[256];
    struct dtp_draft scratch;
    if (!strchr(value, ',') && !strstr(value, ".."))
        return false;
    for (const char *at = value;; at++) {
        size_t length = strcspn(at, ",");
        snprintf(item, sizeof item, "%.*s", (int)length, at);
        char *range = strstr(item, "..");
        if (range)
            *range = '\0';
        if (!dtp_key_apply(key, item, &scratch, why, sizeof why))
            return false;
        at += length;
        if (!*at)
            return true;
    }
}

const char *dtp_key_value_meant(enum dtp_key key, const char *value)
{
    static const struct {
        enum dtp_key key;
        const char *word, *meant;
    } rows[] = {
        {DTP_KEY_strategy, "fsdp2", "write full_shard, which is FSDP2"},
        {DTP_KEY_strategy, "fsdp1", "write full_shard, and fsdp1 as a key of its own"},
        {DTP_KEY_strategy, "deepspeed", "write zero1, zero2 or zero3, and runtime deepspeed"},
        {DTP_KEY_strategy, "zero-infinity", "write zero3, and offload nvme"},
        {DTP_KEY_strategy, "dp", "write ddp, or full_shard, which divides state among the ranks"},
        {DTP_KEY_strategy, "tp", "tp, pp, cp and ep are keys of their own, beside a strategy"},
        {DTP_KEY_strategy, "pp", "tp, pp, cp and ep are keys of their own, beside a strategy"},
        {DTP_KEY_strategy, "3d", "tp, pp, cp and ep are keys of their own, beside a strategy"},
        {DTP_KEY_strategy, "lora", "lora is a key of its own, of a rank: 16"},
        {DTP_KEY_strategy, "qlora", "lora (a rank: 16) and base (nf4) are keys of their own"},
        {DTP_KEY_runtime, "fsdp", "write torch, and strategy full_shard"},
        {DTP_KEY_runtime, "fsdp2", "write torch, and strategy full_shard"},
        {DTP_KEY_runtime, "ddp", "write torch, and strategy ddp"},
        {DTP_KEY_runtime, "torchtitan", "write torch; its configuration is read by --from"},
        {DTP_KEY_runtime, "hf", "write peft: Transformers' layers, with adapters or without"},
        {DTP_KEY_runtime, "trl", "write peft: Transformers' layers, with adapters or without"},
        {DTP_KEY_runtime, "axolotl", "write peft: Transformers' layers; its configuration is read by --from"},
        {DTP_KEY_checkpointing, "true", "write full"},
        {DTP_KEY_checkpointing, "on", "write full"},
        {DTP_KEY_checkpointing, "false", "write none"},
        {DTP_KEY_checkpointing, "off", "write none"},
        {DTP_KEY_offload, "true", "write optimizer, params or nvme"},
        {DTP_KEY_precision, "fp4", "write nvfp4"},
        {DTP_KEY_precision, "mixed", "write bf16-mixed or fp16-mixed"},
        {DTP_KEY_base, "4bit", "write nf4, or nf4-double with its scales in 8 bits"},
        {DTP_KEY_lora, "true", "it is the rank of the adapters: 16"},
        {DTP_KEY_attention, "fa2", "write flash2"},
        {DTP_KEY_attention, "fa3", "write flash: the fastest kernel of the runtime and the GPU"},
        {DTP_KEY_attention, "sdpa", "write flash"},
        {DTP_KEY_attention, "eager", "write math"},
        {DTP_KEY_loss, "liger", "write fused"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].key == key && dtp_names_equal(rows[i].word, value))
            return rows[i].meant;
    return is_list(key, value) ? "lists and ranges are for flags of sweep, search and validate, --tp 2,4" : NULL;
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
