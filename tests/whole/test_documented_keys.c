/* The man page lists every key with the words of the table, and nothing else: the list is generated, here compared.
 * DTPLAN_UPDATE=1 rewrites it. */
#include "job/scenario.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAN_PAGE TEST_SOURCE_DIR "/cli/dtplan.1"

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
        fprintf(out, " Ar %s", value);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_man_page_lists_the_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
