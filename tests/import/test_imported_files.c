/* Every file of tests/data/configs: all of its settings are accounted for, and what they become is kept as a text,
 * tests/golden/imported.txt. With DTPLAN_UPDATE=1 it is written anew; read the diff. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/import_fixture.h"
#include "lib/golden.h"

#include <dirent.h>
#include <unistd.h>

#define MOST_FILES 200

static char names[MOST_FILES][128];
static size_t name_count, unexpected;

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void collect(const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, CONFIGS "%s", folder);
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *e; (e = readdir(directory)) != NULL;)
        if (e->d_name[0] != '.') {
            assert_true(name_count < MOST_FILES);
            snprintf(names[name_count++], sizeof names[0], "%.40s/%.80s", folder, e->d_name);
        }
    closedir(directory);
}

static void collect_all(void)
{
    DIR *directory = opendir(CONFIGS);
    assert_non_null(directory);
    for (struct dirent *e; (e = readdir(directory)) != NULL;)
        if (e->d_name[0] != '.' && !strchr(e->d_name, '.'))
            collect(e->d_name);
    closedir(directory);
    qsort(names, name_count, sizeof names[0], by_name);
}

/* What typed.txt has behind the file's name; "" where nothing. */
static void typed_beside(const char *name, char *out, size_t bytes)
{
    char line[512];
    FILE *file = fopen(CONFIGS "typed.txt", "r");
    assert_non_null(file);
    out[0] = '\0';
    while (fgets(line, sizeof line, file)) {
        size_t length = strcspn(line, " \n");
        if (line[0] == '#' || strlen(name) != length || strncmp(line, name, length) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(out, bytes, "%s", line + length + 1);
    }
    fclose(file);
}

/* Files that stand beside, then this one; what nobody says is this. */
static enum dtp_status import_all(struct imported_file *file, const char *name, char *typed, size_t bytes)
{
    static const char *const standard[][2] = {
        {"model", "llama-2-7b"}, {"gpu", "h100-sxm"}, {"gpus", "8"}, {"seq", "4096"}};
    char path[512], *beside = strstr(typed, "from=");
    enum dtp_status status = DTP_OK;
    begin_import(file);
    if (beside) {
        snprintf(path, sizeof path, CONFIGS "%.*s", (int)strcspn(beside + 5, " "), beside + 5);
        status = dtp_import_read(file->import, path, &file->faults);
        memset(beside, ' ', strcspn(beside, " "));
    }
    snprintf(path, sizeof path, CONFIGS "%s", name);
    if (status == DTP_OK)
        status = dtp_import_read(file->import, path, &file->faults);
    if (status != DTP_OK)
        return status;
    struct dtp_faults own = {0};
    struct dtp_scenario *probe;
    assert_int_equal(dtp_scenario_create(&probe, &own), DTP_OK);
    const struct dtp_import_said said = {typed_here, typed, NULL};
    dtp_import_apply(file->import, probe, &said, &own); /* which of the standard ones it says itself */
    bool shaped = dtp_scenario_get(probe, "layers") || dtp_scenario_get(probe, "params");
    for (size_t i = 0; i < sizeof standard / sizeof *standard; i++)
        if (!dtp_scenario_get(probe, standard[i][0]) && !typed_here(typed, standard[i][0]) && !(i == 0 && shaped))
            snprintf(typed + strlen(typed), bytes - strlen(typed), " %s=%s", standard[i][0], standard[i][1]);
    dtp_scenario_destroy(probe);
    return finish_import(file, typed, NULL);
}

static void write_entries(const struct imported_file *file, FILE *out)
{
    struct dtp_imported last = dtp_import_file(file->import, dtp_import_count(file->import) - 1);
    for (size_t i = 0; i < last.entry_count; i++) {
        const struct dtp_entry *e = &last.entries[i];
        assert_int_not_equal(e->fate, DTP_ENTRY_UNREAD); /* accounted for */
        assert_non_null(e->words);
        const char *place = strstr(e->words, CONFIGS); /* of another file, wherever this checkout lies */
        int before = place ? (int)(place - e->words) : (int)strlen(e->words);
        fprintf(out, "  %zu %s = %s -> %s: %.*s%s\n", e->line, e->path, e->null ? "null" : e->value,
                dtp_entry_fate_text(e->fate), before, e->words, place ? place + strlen(CONFIGS) : "");
    }
}

static void write_one(const char *name, FILE *out)
{
    static struct imported_file file;
    char typed[512];
    typed_beside(name, typed, sizeof typed);
    enum dtp_status status = import_all(&file, name, typed, sizeof typed);
    fprintf(out, "%s, typed%s%s\n", name, typed[0] == ' ' ? "" : " ", typed);
    if (dtp_import_count(file.import)) {
        assert_memory_equal(name, dtp_import_file(file.import, dtp_import_count(file.import) - 1).format,
                            strcspn(name, "/"));
        write_entries(&file, out);
    }
    for (size_t i = 0; i < file.faults.count && i < DTP_FAULTS_KEPT; i++) {
        const char *text = file.faults.text[i], *cut = strstr(text, CONFIGS);
        fprintf(out, "  refused: %s\n", cut ? cut + strlen(CONFIGS) : text);
    }
    /* A file called refused... is, and no other. */
    if ((status != DTP_OK) != (strstr(name, "/refused") != NULL)) {
        print_error("%s: %s\n", name, file.faults.count ? file.faults.text[0] : "was not refused");
        unexpected++;
    }
    drop_imported(&file);
}

static void every_setting_is_accounted_for(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    collect_all();
    for (size_t i = 0; i < name_count; i++)
        write_one(names[i], out);
    fclose(out);
    assert_int_equal(unexpected, 0);
    golden_compare("imported.txt", text);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_is_accounted_for),
    };
    return cmocka_run_group_tests(tests, load_catalog, drop_catalog);
}
