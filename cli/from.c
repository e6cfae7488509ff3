#include "cli/from.h"

#include "page/grid.h"
#include "page/json_value.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------------------
 */

static const char *typed_value(const void *context, const char *key)
{
    const struct dtp_arguments *a = context;
    for (size_t i = a->setting_count; i-- > 0;)
        if (strcmp(a->settings[i].key, key) == 0)
            return a->settings[i].value;
    return NULL;
}

/* Width of the one model that files and line make; 0 where there are several, or none. */
static uint64_t hidden_of(const struct dtp_arguments *a, const struct dtp_catalog *catalog,
                          const struct dtp_scenario *scenario)
{
    struct dtp_scenario *copy = NULL;
    struct dtp_faults *own = calloc(1, sizeof *own);
    struct dtp_job *job = calloc(1, sizeof *job);
    if (own && job && dtp_scenario_copy(scenario, &copy, own) == DTP_OK) {
        for (size_t i = 0; i < a->setting_count; i++)
            dtp_scenario_set(copy, a->settings[i].key, a->settings[i].value, "command line", 0, own);
        dtp_scenario_resolve(copy, catalog, job, own); /* the model is there even where the plan is refused */
    }
    uint64_t hidden = job ? job->transformer.hidden : 0;
    dtp_scenario_destroy(copy);
    free(job);
    free(own);
    return hidden;
}

enum dtp_status dtp_from_apply(const struct dtp_context *context, const struct dtp_catalog *catalog,
                               struct dtp_scenario *scenario)
{
    static const char *const needed[] = {"model", "seq", "gpus", "gpu", NULL};
    static const char *const of_search[] = {"model", "seq", NULL}; /* GPUs are what it looks for */
    const struct dtp_arguments *a = context->arguments;
    const struct dtp_import_said said = {typed_value, a, a->command == DTP_COMMAND_SEARCH ? of_search : needed};
    enum dtp_status status = DTP_OK;
    for (size_t i = 0; i < a->from_count; i++)
        status = dtp_worse(status, dtp_import_read(context->import, a->froms[i], context->faults));
    if (status == DTP_OK)
        status = dtp_import_apply(context->import, scenario, &said, context->faults);
    if (status == DTP_OK && dtp_import_needs_hidden(context->import))
        status = dtp_import_finish(context->import, scenario, hidden_of(a, catalog, scenario), context->faults);
    return status;
}

/* ---- saying -------------------------------------------------------------------------------------------------------
 */

static void add_rows(struct dtp_grid *grid, const struct dtp_imported *file, enum dtp_entry_fate fate)
{
    for (size_t i = 0; i < file->entry_count; i++) {
        const struct dtp_entry *e = &file->entries[i];
        if (e->fate != fate)
            continue;
        dtp_grid_row(grid, fate == DTP_ENTRY_REPLACED ? DTP_INK_YELLOW : DTP_INK_PLAIN);
        dtp_grid_cell(grid, "%zu", e->line);
        dtp_grid_cell(grid, "%.60s", e->path);
        dtp_grid_cell(grid, "%.32s", e->null ? "null" : e->value);
        dtp_grid_cell(grid, "%.80s", e->words ? e->words : "");
    }
}

/* Settings without effect by what they are about: "logging: steps_per_print, wall_clock_breakdown". */
static void say_aside(const struct dtp_page *page, const struct dtp_imported *file)
{
    for (size_t i = 0; i < file->entry_count; i++) {
        const char *words = file->entries[i].words;
        bool first = file->entries[i].fate == DTP_ENTRY_ASIDE;
        for (size_t k = 0; k < i && first; k++)
            first = file->entries[k].fate != DTP_ENTRY_ASIDE || strcmp(file->entries[k].words, words) != 0;
        if (!first)
            continue;
        char list[1024] = "";
        for (size_t k = i; k < file->entry_count; k++)
            if (file->entries[k].fate == DTP_ENTRY_ASIDE && strcmp(file->entries[k].words, words) == 0) {
                size_t used = strlen(list);
                snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", file->entries[k].path);
            }
        dtp_page_say(page, 4, 6, "%s: %s", words, list);
    }
}

static void say_file(const struct dtp_page *page, const struct dtp_imported *file)
{
    static const char *const header[] = {"line", "setting", "value", "is read as"};
    struct dtp_grid grid;
    dtp_page_heading(page, "FROM", "%s, %s", file->path, file->title);
    if (file->used + file->replaced) {
        dtp_grid_create(&grid, "rlll");
        dtp_grid_texts(&grid, DTP_INK_DIM, header, 4);
        add_rows(&grid, file, DTP_ENTRY_REPLACED);
        add_rows(&grid, file, DTP_ENTRY_USED);
        dtp_grid_end(&grid, page, 2);
    }
    if (file->aside) {
        dtp_page_say(page, 2, 4, "%zu without effect on memory and time:", file->aside);
        say_aside(page, file);
    }
    if (file->silent)
        dtp_page_say(page, 2, 4, "Such a file does not say: %s.", file->silent);
}

void dtp_from_say(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    fflush(context->page.file);
    bool has_page = ftell(context->page.file) > 0;
    for (size_t i = 0; i < dtp_import_count(context->import) && !a->json; i++) {
        struct dtp_imported file = dtp_import_file(context->import, i);
        if (has_page)
            say_file(&context->page, &file);
        else
            fprintf(stderr,
                    "dtplan: %s, %s: %zu settings used, %zu replaced, %zu without effect on memory and time; dtplan "
                    "plan --from lists them\n",
                    file.path, file.title, file.used, file.replaced, file.aside);
    }
}

static json_t *json_of(const struct dtp_imported *file)
{
    json_t *object = json_object(), *list = json_array();
    json_object_set_new(object, "file", dtp_json_text(file->path));
    json_object_set_new(object, "format", dtp_json_text(file->format));
    for (size_t i = 0; i < file->entry_count; i++) {
        const struct dtp_entry *e = &file->entries[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "line", dtp_json_whole(e->line));
        json_object_set_new(entry, "setting", dtp_json_text(e->path));
        json_object_set_new(entry, "value", dtp_json_text(e->null ? NULL : e->value));
        json_object_set_new(entry, "fate", dtp_json_text(dtp_entry_fate_text(e->fate)));
        json_object_set_new(entry, "words", dtp_json_text(e->words));
        json_array_append_new(list, entry);
    }
    json_object_set_new(object, "settings", list);
    return object;
}

/* The object was printed by dtp_json_dump: 12 or 15 digits of a number come back as they are when 15 are printed. */
bool dtp_from_add_json(const struct dtp_context *context, char **text, size_t *bytes)
{
    json_t *root = NULL;
    char *fresh = NULL;
    size_t fresh_bytes = 0;
    if (!context->arguments->json || !dtp_import_count(context->import))
        return true;
    if (!(root = json_loadb(*text, *bytes, 0, NULL)) || !json_is_object(root)) {
        json_decref(root); /* several objects, or none: nothing is added to those */
        return true;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < dtp_import_count(context->import); i++) {
        struct dtp_imported file = dtp_import_file(context->import, i);
        json_array_append_new(list, json_of(&file));
    }
    json_object_set_new(root, "from", list);
    FILE *file = open_memstream(&fresh, &fresh_bytes);
    bool good = file && dtp_json_dump_exact(root, file, context->faults) == DTP_OK;
    if (!file)
        json_decref(root);
    good = file && fclose(file) == 0 && good;
    if (!good) {
        free(fresh);
        return false;
    }
    free(*text);
    *text = fresh;
    *bytes = fresh_bytes;
    return true;
}
