/* Steps that several commands share. */
#include "cli/command.h"
#include "cli/from.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The files that a key's value names, machines or models. */
static enum dtp_status read_named(struct dtp_catalog *catalog, const char *key, const char *value,
                                  struct dtp_faults *faults)
{
    if (strcmp(key, "machine") == 0)
        return dtp_catalog_measure(catalog, value, faults);
    return strcmp(key, "model") == 0 ? dtp_catalog_read_models(catalog, value, faults) : DTP_OK;
}

enum dtp_status dtp_context_catalog(const struct dtp_context *context, struct dtp_catalog *out)
{
    const struct dtp_arguments *a = context->arguments;
    char directory[4096];
    enum dtp_status status = DTP_OK;
    memset(out, 0, sizeof *out);
    if (context->catalogues)
        dtp_catalog_borrow(context->catalogues, out);
    else if ((status = dtp_data_directory(directory, sizeof directory, context->faults)) == DTP_OK)
        status = dtp_catalog_load(directory, out, context->faults);
    if (status != DTP_OK)
        return status;
    for (size_t i = 0; i < a->catalog_count; i++) {
        enum dtp_status added = dtp_catalog_add(a->catalogs[i], out, context->faults);
        if (added > status)
            status = added;
    }
    for (size_t i = 0; i < a->setting_count && status == DTP_OK; i++)
        if (a->settings[i].value)
            status = read_named(out, a->settings[i].key, a->settings[i].value, context->faults);
    if (status != DTP_OK)
        dtp_catalog_destroy(out);
    return status;
}

struct dtp_progress dtp_context_progress(const struct dtp_context *context, const char *what, uint64_t first)
{
    return context->catalogues ? dtp_progress_none() : dtp_progress_start(what, first);
}

enum dtp_status dtp_context_spare(const struct dtp_context *context, const struct dtp_scenario *scenario)
{
    static const char *const keys[] = {"model", "machine"};
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        worst = dtp_worse(worst, dtp_call_files_add_input(context->files, dtp_scenario_get(scenario, keys[i]),
                                                          "the file of a scenario", context->faults));
    return worst;
}

/* A preset in the place of a scenario file. */
static bool is_model(const struct dtp_catalog *catalog, const char *word)
{
    return access(word, F_OK) != 0 && dtp_catalog_model(catalog, word, NULL, 0, NULL);
}

/* A file that other programs have their settings in, by its ending, and no scenario. */
static bool is_configuration(const char *path)
{
    static const char *const endings[] = {".toml", ".yaml", ".yml", ".json", ".sh"};
    const char *ending = strrchr(path, '.');
    struct dtp_scenario *scratch = NULL;
    struct dtp_faults own = {0};
    bool named = false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        named |= ending && strcmp(ending, endings[i]) == 0;
    if (!named || access(path, R_OK) != 0)
        return false;
    bool other = dtp_scenario_create(&scratch, &own) == DTP_OK && dtp_scenario_read(scratch, path, &own) != DTP_OK;
    dtp_scenario_destroy(scratch);
    return other;
}

static enum dtp_status read_word(const struct dtp_context *context, const struct dtp_catalog *catalog, const char *word,
                                 struct dtp_scenario *out)
{
    if (is_model(catalog, word))
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0, "%s: no file, but a model; write --model %s", word,
                         word);
    if (is_configuration(word))
        return dtp_fault(context->faults, DTP_BAD_INPUT, NULL, 0,
                         "%s: no scenario of dtplan's; a framework's configuration is read by --from %s, a model's "
                         "config.json by --model %s",
                         word, word, word);
    return dtp_scenario_read(out, word, context->faults);
}

enum dtp_status dtp_context_files(const struct dtp_context *context, struct dtp_catalog *catalog,
                                  struct dtp_scenario **out)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status worst = dtp_scenario_create(out, context->faults);
    for (size_t i = 0; i < a->word_count && *out; i++)
        worst = dtp_worse(worst, read_word(context, catalog, a->words[i], *out));
    if (*out && context->scenario)
        worst = dtp_worse(
            worst, dtp_scenario_parse(*out, "scenario", context->scenario, strlen(context->scenario), context->faults));
    if (*out && a->from_count)
        worst = dtp_worse(worst, dtp_from_apply(context, catalog, *out));
    if (worst == DTP_OK)
        worst = dtp_context_spare(context, *out);
    static const char *const keys[] = {"machine", "model"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && worst == DTP_OK; i++)
        if (dtp_scenario_get(*out, keys[i]))
            worst = read_named(catalog, keys[i], dtp_scenario_get(*out, keys[i]), context->faults);
    return worst;
}

enum dtp_status dtp_context_scenario(const struct dtp_context *context, struct dtp_catalog *catalog,
                                     struct dtp_scenario **out)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status worst = dtp_context_files(context, catalog, out);
    for (size_t i = 0; i < a->setting_count && *out; i++) {
        const struct dtp_typed_key *s = &a->settings[i];
        worst = dtp_worse(worst, dtp_scenario_set(*out, s->word, s->value, "command line", 0, context->faults));
    }
    if (worst == DTP_BAD_INPUT || context->faults->count > 0)
        dtp_scenario_check_names(*out, catalog, context->faults);
    if (worst != DTP_OK) {
        dtp_scenario_destroy(*out);
        *out = NULL;
    }
    return worst;
}

enum dtp_status dtp_context_axes(const struct dtp_arguments *arguments, const struct dtp_catalog *catalog,
                                 const char *where, struct dtp_axes *axes, struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < arguments->setting_count && worst != DTP_ENVIRONMENT; i++) {
        const struct dtp_typed_key *s = &arguments->settings[i];
        worst = dtp_worse(worst, dtp_axes_add(axes, catalog, s->key, s->value, where, faults));
    }
    return worst;
}

enum dtp_status dtp_context_has_model(const struct dtp_catalog *catalog, const struct dtp_scenario *base,
                                      const struct dtp_axes *axes, const char *where, size_t line,
                                      struct dtp_faults *faults)
{
    size_t count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&count);
    struct dtp_faults own = {0};
    struct dtp_job job;
    for (size_t i = 0; i < count; i++) {
        bool given = dtp_scenario_get(base, keys[i].key) != NULL;
        for (size_t k = 0; k < axes->count; k++)
            given |= strcmp(axes->axes[k].key, keys[i].key) == 0;
        if (given && strcmp(keys[i].section, "model") == 0)
            return DTP_OK;
    }
    enum dtp_status status = dtp_scenario_resolve(base, catalog, &job, &own); /* says which words name one */
    for (size_t i = 0; i < own.count && i < DTP_FAULTS_KEPT; i++)
        dtp_fault(faults, own.status, where, line, "%s", own.text[i]);
    return status;
}

enum dtp_status dtp_context_with_scenario(const struct dtp_context *context,
                                          enum dtp_status (*use)(const struct dtp_context *context,
                                                                 const struct dtp_catalog *catalog,
                                                                 struct dtp_scenario *scenario))
{
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario = NULL;
    enum dtp_status status = dtp_context_catalog(context, &catalog);
    if (status != DTP_OK)
        return status;
    status = dtp_context_scenario(context, &catalog, &scenario);
    if (status == DTP_OK)
        status = use(context, &catalog, scenario);
    dtp_scenario_destroy(scenario);
    dtp_catalog_destroy(&catalog);
    return status;
}

enum dtp_status dtp_context_with_job(const struct dtp_context *context,
                                     enum dtp_status (*use)(const struct dtp_context *context,
                                                            const struct dtp_job *job,
                                                            const struct dtp_catalog *catalog))
{
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario = NULL;
    struct dtp_job job;
    enum dtp_status status = dtp_context_catalog(context, &catalog);
    if (status != DTP_OK)
        return status;
    status = dtp_context_scenario(context, &catalog, &scenario);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, &catalog, &job, context->faults);
    if (status == DTP_OK)
        status = use(context, &job, &catalog);
    dtp_scenario_destroy(scenario);
    dtp_catalog_destroy(&catalog);
    return status;
}

void dtp_context_collect(const struct dtp_context *context)
{
    struct dtp_catalog catalog;
    struct dtp_scenario *scenario = NULL;
    if (dtp_context_catalog(context, &catalog) != DTP_OK)
        return;
    struct dtp_arguments arguments = *context->arguments;
    struct dtp_context typed = *context;
    typed.arguments = &arguments;
    if (arguments.command == DTP_COMMAND_COMPARE)
        arguments.word_count = 0; /* records of runs, no scenarios */
    if (dtp_command_takes_lists(context->arguments->command)) {
        struct dtp_axes axes = {.count = 0};
        dtp_context_axes(context->arguments, &catalog, "command line", &axes, context->faults);
        dtp_axes_release(&axes);
    } else {
        dtp_context_scenario(&typed, &catalog, &scenario);
    }
    dtp_scenario_destroy(scenario);
    dtp_catalog_destroy(&catalog);
}
