/* The man page lists every key with the words of the table, and nothing else, and the schema of --json has a field for
 * each with the same words: both are generated, here compared. DTPLAN_UPDATE=1 rewrites them. */
#include "job/scenario_keys.h"
#include "runtime/runtimes.h"

#include <ctype.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAN_PAGE TEST_SOURCE_DIR "/cli/dtplan.1"
#define SCHEMA TEST_SOURCE_DIR "/reports/schemas/dtplan.plan-1.json"

static const char begin[] = ".\\\" BEGIN KEYS\n", end[] = ".\\\" END KEYS\n";

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = NULL, block[4096];
    size_t bytes = 0, got;
    while ((got = fread(block, 1, sizeof block, file)) > 0) {
        text = realloc(text, bytes + got + 1);
        assert_non_null(text);
        memcpy(text + bytes, block, got);
        bytes += got;
        text[bytes] = '\0';
    }
    fclose(file);
    assert_non_null(text);
    return text;
}

/* In a man page a plain '-' may become a hyphen, which cannot be pasted into a shell. */
static void write_escaped(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++)
        fprintf(out, *c == '-' || *c == '_' ? "\\%c" : "%c", *c == '_' ? '-' : *c);
}

static void write_item(FILE *out, const char *word, const char *value)
{
    fputs(".It Fl \\-", out);
    write_escaped(out, word);
    if (value)
        fputs(" Ar ", out);
    for (const char *c = value; c && *c; c++)
        fprintf(out, *c == '|' ? "%c\\:" : "%c", *c); /* where a line may be broken */
    fputc('\n', out);
}

/* A key, and behind it the other words for it. */
static void write_key(FILE *out, const struct dtp_scenario_key *key)
{
    char choices[256], words[600];
    size_t count;
    const struct dtp_scenario_alias *aliases = dtp_scenario_aliases(&count);
    write_item(out, key->key, dtp_scenario_key_choices(key, choices, sizeof choices));
    fprintf(out, "%s.\n", dtp_scenario_key_words(key, words, sizeof words));
    for (size_t i = 0; i < count; i++) {
        if (aliases[i].value || strcmp(aliases[i].key, key->key) != 0)
            continue;
        write_item(out, aliases[i].word, key->value);
        fputs("The same as\n.Fl \\-", out);
        write_escaped(out, key->key);
        fprintf(out, " :\n%s.\n", aliases[i].words);
    }
}

/* What must stand between the two marks. Caller frees. */
static char *documented_keys(void)
{
    char *text = NULL;
    size_t bytes = 0, count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) {
        bool first = i == 0 || strcmp(keys[i].section, keys[i - 1].section) != 0;
        bool last = i + 1 == count || strcmp(keys[i].section, keys[i + 1].section) != 0;
        if (first)
            fprintf(out, ".Ss \"[%s]\"\n.Bl -tag -width Ds\n", keys[i].section);
        write_key(out, &keys[i]);
        if (last)
            fputs(".El\n", out);
    }
    fclose(out);
    return text;
}

static void rewrite(const char *page, size_t before_bytes, const char *keys, const char *after)
{
    FILE *file = fopen(MAN_PAGE, "wb");
    assert_non_null(file);
    fprintf(file, "%.*s%s%s", (int)before_bytes, page, keys, after);
    assert_int_equal(fclose(file), 0);
}

static void test_man_page_lists_the_keys(void **state)
{
    (void)state;
    char *page = read_whole(MAN_PAGE), *keys = documented_keys();
    char *start = strstr(page, begin), *stop = strstr(page, end);
    assert_non_null(start);
    assert_non_null(stop);
    start += strlen(begin);
    if (getenv("DTPLAN_UPDATE")) {
        rewrite(page, (size_t)(start - page), keys, stop);
    } else {
        *stop = '\0';
        if (strcmp(start, keys) != 0)
            print_error("cli/dtplan.1 is behind the table of keys: DTPLAN_UPDATE=1 ./test.sh -R documented_keys\n");
        assert_string_equal(start, keys);
    }
    free(keys);
    free(page);
}

/* ---- the schema -------------------------------------------------------------------------------------------------- */

/* The type of a key's field: what it is in a draft; null of a number that nobody gave or that is not finite. */
static json_t *type_of(enum dtp_key key)
{
    const struct dtp_draft draft = {.plan = dtp_plan_default()};
    struct dtp_job_value value;
    dtp_key_value(key, &draft, &value);
    if (key == DTP_KEY_reshard_after_forward) /* a number of GPUs stands for true */
        return json_pack("[ss]", "boolean", "integer");
    if (value.kind == DTP_VALUE_REAL && key != DTP_KEY_params)
        return json_pack("[ss]", "null", "number");
    return json_string(value.kind == DTP_VALUE_WORD     ? "string"
                       : value.kind == DTP_VALUE_SWITCH ? "boolean"
                                                        : "integer");
}

static json_t *field_of(enum dtp_key key, const struct dtp_scenario_key *row)
{
    char words[600];
    snprintf(words, sizeof words, "%s.", row->words);
    words[0] = (char)toupper((unsigned char)words[0]);
    return json_pack("{ss so}", "description", words, "type", type_of(key));
}

/* The fields of an object that the schema describes. Borrowed. */
static json_t *fields_of(json_t *schema, const char *section)
{
    json_t *object = json_object_get(json_object_get(schema, "properties"), section);
    return json_object_get(object, "properties");
}

static void rewrite_schema(const json_t *schema)
{
    FILE *file = fopen(SCHEMA, "wb");
    assert_non_null(file);
    assert_int_equal(json_dumpf(schema, file, JSON_INDENT(1) | JSON_PRESERVE_ORDER), 0);
    fputc('\n', file);
    assert_int_equal(fclose(file), 0);
}

static void test_schema_has_the_keys(void **state)
{
    (void)state;
    size_t count;
    bool update = getenv("DTPLAN_UPDATE") != NULL;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    json_t *schema = json_load_file(SCHEMA, 0, NULL);
    assert_non_null(schema);
    for (size_t i = 0; i < count; i++) {
        char name[96];
        json_t *fields = fields_of(schema, keys[i].section), *field = field_of((enum dtp_key)i, &keys[i]);
        assert_non_null(fields);
        dtp_job_value_name(&keys[i], false, name, sizeof name);
        if (strcmp(keys[i].key, keys[i].section) == 0) { /* model: the object's name */
            json_decref(field);
            continue;
        }
        if (update)
            json_object_set(fields, name, field);
        else if (!json_equal(json_object_get(fields, name), field))
            fail_msg("reports/schemas/dtplan.plan-1.json is behind the table of keys in %s.%s: DTPLAN_UPDATE=1 "
                     "./test.sh -R documented_keys",
                     keys[i].section, name);
        json_decref(field);
    }
    if (update)
        rewrite_schema(schema);
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_man_page_lists_the_keys),
                                       cmocka_unit_test(test_schema_has_the_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
