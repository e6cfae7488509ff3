#include "plan/plan_keys.h"

#include "base/word_table.h"
#include "plan/rules.h"

#include <stddef.h>
#include <string.h>

DTP_WORDS_OF_TABLE(dtp_key_reader_words, dtp_key_reader, DTP_KEY_READER_TABLE, DTP_ROW_SECOND)

bool dtp_key_reader_reads(enum dtp_key_reader reader, const struct dtp_plan *p)
{
    switch (reader) {
#define READER_READS(reader, reads, words)                                                                             \
    case DTP_READER_##reader: return reads;
        DTP_KEY_READER_TABLE(READER_READS)
#undef READER_READS
    }
    return false;
}

/* ---- keys with one reader ---------------------------------------------------------------------------------------- */

/* What rows call their fields by: a plan, and beside it what a scenario alone knows. */
struct named_fields {
    struct dtp_plan plan;
    uint64_t global_batch, global_batch_tokens;
};

struct read_key {
    const char *key;
    enum dtp_key_reader reader;
    bool only;
    size_t offset, bytes; /* of the field in the plan */
};

#define ANYONE DTP_READER_ANYONE, false
#define FOR(reader) DTP_READER_##reader, false
#define ONLY(reader) DTP_READER_##reader, true
#define FIELD(field) offsetof(struct named_fields, field), sizeof((struct named_fields *)0)->field
#define WHOLE32(field, minimum, maximum) FIELD(field)
#define WHOLE64(field, minimum, maximum) FIELD(field)
#define BINARY64(field, minimum, maximum) FIELD(field)
#define NUMBER(field, minimum, maximum) FIELD(field)
#define SWITCH(field) FIELD(field)
#define SWITCH_OR(field, name) FIELD(field)
#define PARSED(field, name) FIELD(field)
static const struct read_key keys[] = {
#define DTP_KEY(key, section, value, how, reader, tried, words) {#key, reader, how},
#include "plan/plan_keys.def"
#undef DTP_KEY
};
#define KEY_COUNT (sizeof keys / sizeof *keys)

/* The fields are numbers and enums: the same bytes are the same value. Of the usual sizes by one comparison, for this
 * is asked of all keys of each plan. */
static inline bool same_field(const char *a, const char *b, size_t bytes)
{
    switch (bytes) {
    case 1: return *a == *b;
    case 4: return !memcmp(a, b, 4);
    case 8: return !memcmp(a, b, 8);
    default: return !memcmp(a, b, bytes);
    }
}

static bool is_unread(const struct read_key *key, const struct dtp_plan *plan, const struct dtp_plan *standard)
{
    return key->only &&
           !same_field((const char *)plan + key->offset, (const char *)standard + key->offset, key->bytes) &&
           !dtp_key_reader_reads(key->reader, plan);
}

/* The other choice of the plan without which the key would be read: a key that is not its default, and as its default
 * lets the reader read. NULL: there is none, strategy and runtime leave no reader. */
static const char *what_hides(const struct read_key *key, const struct dtp_plan *plan, const struct dtp_plan *standard)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        struct dtp_plan without = *plan;
        bool whole = keys[i].bytes == sizeof without, outside = keys[i].offset + keys[i].bytes > sizeof without;
        if (&keys[i] == key || whole || outside)
            continue;
        char *field = (char *)&without + keys[i].offset;
        const char *value = (const char *)standard + keys[i].offset;
        if (memcmp(field, value, keys[i].bytes) == 0)
            continue;
        memcpy(field, value, keys[i].bytes);
        without.strategy = plan->strategy; /* that these leave no reader is said of both together */
        without.runtime = plan->runtime;
        if (dtp_key_reader_reads(key->reader, &without))
            return keys[i].key;
    }
    return NULL;
}

/* The other way: a switch that, if it were on, or a count of ranks or chunks that, if it were 2, would have the key
 * read. NULL: there is none. */
static const char *what_helps(const struct read_key *key, const struct dtp_plan *plan, bool *is_switch)
{
    static const char *const counts[] = {"tp", "pp", "cp", "ep", "virtual_stages"};
    for (size_t i = 0; i < KEY_COUNT; i++) {
        struct dtp_plan with = *plan;
        char *field = (char *)&with + keys[i].offset;
        bool count = false;
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
            count = count || strcmp(keys[i].key, counts[k]) == 0;
        *is_switch = keys[i].bytes == sizeof(bool);
        if (&keys[i] == key || !(count || *is_switch) || keys[i].offset + keys[i].bytes > sizeof with)
            continue;
        if (*is_switch)
            *(bool *)(void *)field = true;
        else if (*(uint32_t *)(void *)field == 1)
            *(uint32_t *)(void *)field = 2;
        if (dtp_key_reader_reads(key->reader, &with) && (!keys[i].only || dtp_key_reader_reads(keys[i].reader, &with)))
            return keys[i].key;
    }
    return NULL;
}

/* Whether all that it lacks to be read is that layers are run again. */
static bool needs_full_checkpointing(const struct read_key *key, const struct dtp_plan *plan)
{
    struct dtp_plan full = *plan;
    full.checkpointing = DTP_CHECKPOINT_FULL;
    return dtp_key_reader_reads(key->reader, &full);
}

void dtp_plan_check_readers(struct dtp_resolver *r)
{
    const struct dtp_plan standard = dtp_plan_unchosen(), *p = r->plan;
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (is_unread(&keys[i], p, &standard)) {
            bool is_switch;
            const char *helps = r->faults ? what_helps(&keys[i], p, &is_switch) : NULL;
            const char *hides = r->faults ? what_hides(&keys[i], p, &standard) : NULL; /* nobody reads it */
            if (needs_full_checkpointing(&keys[i], p))
                dtp_plan_refuse(r, keys[i].key, "is for %s only; give checkpointing full, or leave it out",
                                dtp_key_reader_words(keys[i].reader));
            else if (hides)
                dtp_plan_refuse(r, keys[i].key, "is for %s only; leave out it or %s",
                                dtp_key_reader_words(keys[i].reader), hides);
            else if (helps)
                dtp_plan_refuse(r, keys[i].key, "is for %s only; leave it out, or give %s%s",
                                dtp_key_reader_words(keys[i].reader), helps, is_switch ? "" : " above 1");
            else
                dtp_plan_refuse(r, keys[i].key, "is for %s only; leave it out with strategy %s under runtime %s",
                                dtp_key_reader_words(keys[i].reader), dtp_strategy_text(p->strategy), p->runtime->name);
        }
}

void dtp_plan_drop_unread(struct dtp_plan *plan)
{
    const struct dtp_plan standard = dtp_plan_unchosen();
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (is_unread(&keys[i], plan, &standard))
            memcpy((char *)plan + keys[i].offset, (const char *)&standard + keys[i].offset, keys[i].bytes);
}
