#include "cli/validate_list.h"

#include "base/append.h"
#include "base/grow.h"
#include "cost/digest.h"
#include "cli/run_job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LIST_ENDING ".scenarios"
#define BYTE_ORDER_MARK "\xef\xbb\xbf" /* that some editors begin a text in UTF-8 with */
#define MAX_LINE_WORDS 256

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static struct dtp_validate_group *add_group(struct dtp_validate_list *list, struct dtp_faults *faults)
{
    if (!dtp_grow(&list->groups, list->group_count, &list->room, sizeof *list->groups)) {
        dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
        return NULL;
    }
    struct dtp_validate_group *group = &list->groups[list->group_count++];
    memset(group, 0, sizeof *group);
    return group;
}

static enum dtp_status read_files(struct dtp_validate_group *group, const char *const *files, size_t count,
                                  struct dtp_faults *faults)
{
    enum dtp_status worst = dtp_scenario_create(&group->base, faults);
    for (size_t i = 0; i < count && group->base; i++)
        worst = dtp_worse(worst, dtp_scenario_read(group->base, files[i], faults));
    return worst;
}

/* Machine files are read before a key may name them. */
static enum dtp_status measure(const struct dtp_validate_group *group, struct dtp_catalog *catalog,
                               const struct dtp_context *context)
{
    const char *machine = dtp_scenario_get(group->base, "machine"), *refit = context->arguments->refit;
    enum dtp_status status = machine ? dtp_catalog_measure(catalog, machine, context->faults) : DTP_OK;
    for (size_t i = 0; i < group->arguments.setting_count && status == DTP_OK; i++)
        if (strcmp(group->arguments.settings[i].key, "machine") == 0)
            status = dtp_catalog_measure(catalog, group->arguments.settings[i].value, context->faults);
    return status == DTP_OK && refit ? dtp_catalog_measure(catalog, refit, context->faults) : status;
}

/* What is to be refitted is what predicts. */
static enum dtp_status set_refit(struct dtp_validate_group *group, const struct dtp_catalog *catalog, const char *refit,
                                 struct dtp_faults *faults)
{
    bool named = dtp_scenario_get(group->base, "machine") != NULL;
    for (size_t i = 0; i < group->axes.count; i++)
        if (strcmp(group->axes.axes[i].key, "machine") == 0) {
            const struct dtp_axis *axis = &group->axes.axes[i];
            return axis->count == 1 && strcmp(axis->values[0], refit) == 0
                       ? DTP_OK
                       : dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                                   "--refit: the runs are predicted with another machine, %s; leave --machine out",
                                   axis->values[0]);
        }
    return named ? dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                             "--refit: a scenario file names another machine, %s; leave it out",
                             dtp_scenario_get(group->base, "machine"))
                 : dtp_axes_add(&group->axes, catalog, "machine", refit, "--refit", faults);
}

/* Flags that are passed on: what stands later counts, so the command line's come last. */
static enum dtp_status join_passed(struct dtp_validate_group *group, const struct dtp_arguments *line,
                                   const struct dtp_arguments *typed, struct dtp_faults *faults)
{
    group->passed = calloc(line->passed_count + typed->passed_count + 1, sizeof *group->passed);
    if (!group->passed)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < line->passed_count; i++)
        group->passed[group->passed_count++] = line->passed[i];
    for (size_t i = 0; i < typed->passed_count; i++)
        group->passed[group->passed_count++] = typed->passed[i];
    return DTP_OK;
}

static enum dtp_status finish_group(struct dtp_validate_list *list, struct dtp_validate_group *group,
                                    const struct dtp_context *context, struct dtp_catalog *catalog)
{
    struct dtp_faults *faults = context->faults;
    const char *refit = context->arguments->refit;
    enum dtp_status status = dtp_context_spare(context, group->base);
    if (status == DTP_OK && group->line)
        status = dtp_call_files_add_line(context->files, &group->arguments, faults);
    if (status == DTP_OK)
        status = measure(group, catalog, context);
    if (status != DTP_OK)
        return status;
    status = dtp_context_axes(&group->arguments, catalog, group->where, &group->axes, faults);
    enum dtp_status typed = dtp_context_axes(context->arguments, catalog, "command line", &group->axes, faults);
    status = dtp_worse(status, typed);
    if (status == DTP_OK)
        status = dtp_context_has_model(catalog, group->base, &group->axes, group->line ? group->word : NULL,
                                       group->line, faults);
    if (status == DTP_OK && refit)
        status = set_refit(group, catalog, refit, faults);
    if (status == DTP_OK)
        status = join_passed(group, &group->arguments, context->arguments, faults);
    if (status == DTP_OK)
        status = dtp_axes_count(&group->axes, &group->count, faults);
    group->first = list->count;
    list->count += group->count;
    if (list->count > DTP_VALIDATE_MAX_RUNS)
        status =
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "more than %u runs; take shorter lists", DTP_VALIDATE_MAX_RUNS);
    return status;
}

/* ---- a list ------------------------------------------------------------------------------------------------------ */

/* Options of the command itself belong on its own line. */
static bool only_runs(const struct dtp_arguments *a)
{
    return !a->help && !a->version && !a->json && !a->output && !a->chart && !a->refit && !a->resume && !a->force &&
           a->tolerance == 0 && a->catalog_count == 0;
}

static enum dtp_status read_words(struct dtp_validate_group *group, struct dtp_faults *faults)
{
    static char name[] = "dtplan", command[] = "validate";
    struct dtp_faults own = {0};
    char *argv[MAX_LINE_WORDS + 3] = {name, command}, *rest = group->text;
    const char *list = group->word;
    int argc = 2;
    for (char *word; (word = strtok_r(rest, " \t\r\n", &rest)) != NULL && argc < MAX_LINE_WORDS + 2;)
        argv[argc++] = word;
    if (argc == MAX_LINE_WORDS + 2)
        return dtp_fault(faults, DTP_BAD_INPUT, list, group->line, "more than %d words", MAX_LINE_WORDS);
    enum dtp_status status = dtp_arguments_read(argc, argv, &group->arguments, &own);
    if (status == DTP_OK && !only_runs(&group->arguments))
        status =
            dtp_fault(&own, DTP_BAD_INPUT, NULL, 0,
                      "a line holds scenario files, keys and flags of runs; the others belong on the command line");
    if (status == DTP_OK)
        status = read_files(group, group->arguments.words, group->arguments.word_count, &own);
    for (size_t i = 0; i < own.count && i < DTP_FAULTS_KEPT; i++)
        dtp_fault(faults, own.status, list, group->line, "%s", own.text[i]);
    return status;
}

static enum dtp_status read_line(struct dtp_validate_list *list, const struct dtp_context *context,
                                 struct dtp_catalog *catalog, const char *path, size_t number, const char *text)
{
    struct dtp_validate_group *group = add_group(list, context->faults);
    if (!group)
        return DTP_ENVIRONMENT;
    group->word = path;
    group->line = number;
    group->text = strdup(text);
    size_t bytes = strlen(path) + 24;
    group->where = malloc(bytes);
    if (group->where)
        snprintf(group->where, bytes, "%s:%zu", path, number);
    if (!group->text || !group->where)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = read_words(group, context->faults);
    return status == DTP_OK ? finish_group(list, group, context, catalog) : status;
}

static enum dtp_status read_list(struct dtp_validate_list *list, const struct dtp_context *context,
                                 struct dtp_catalog *catalog, const char *path)
{
    enum dtp_status worst = DTP_OK;
    char *line = NULL;
    size_t room = 0, number = 0, groups = list->group_count;
    FILE *file = fopen(path, "r");
    if (!file)
        return dtp_fault(context->faults, DTP_BAD_INPUT, path, 0, "cannot be read: %s", strerror(errno));
    for (ssize_t bytes; worst != DTP_ENVIRONMENT && (bytes = getline(&line, &room, file)) >= 0;) {
        const char *text = line;
        if (number++ == 0 && strncmp(text, BYTE_ORDER_MARK, strlen(BYTE_ORDER_MARK)) == 0)
            text += strlen(BYTE_ORDER_MARK);
        text += strspn(text, " \t\r\n");
        if (*text == '\0' || *text == '#')
            continue;
        worst = dtp_worse(worst, strlen(line) == (size_t)bytes ? read_line(list, context, catalog, path, number, text)
                                                               : dtp_fault(context->faults, DTP_BAD_INPUT, path, number,
                                                                           "holds a byte 0: no list of runs"));
    }
    if (ferror(file))
        worst = dtp_fault(context->faults, DTP_BAD_INPUT, path, 0, "cannot be read: %s", strerror(errno));
    else if (worst == DTP_OK && list->group_count == groups)
        worst = dtp_fault(context->faults, DTP_BAD_INPUT, path, 0, "holds no line that is a run");
    free(line);
    fclose(file);
    return worst;
}

/* ---- the words of the command ------------------------------------------------------------------------------------ */

static bool is_list(const char *path)
{
    size_t length = strlen(path), tail = strlen(LIST_ENDING);
    return length > tail && strcmp(path + length - tail, LIST_ENDING) == 0;
}

/* `path` NULL: flags alone. */
static enum dtp_status read_file(struct dtp_validate_list *list, const struct dtp_context *context,
                                 struct dtp_catalog *catalog, const char *path)
{
    struct dtp_validate_group *group = add_group(list, context->faults);
    if (!group)
        return DTP_ENVIRONMENT;
    group->word = path;
    enum dtp_status status = read_files(group, &path, path ? 1 : 0, context->faults);
    return status == DTP_OK ? finish_group(list, group, context, catalog) : status;
}

enum dtp_status dtp_validate_list_read(const struct dtp_context *context, struct dtp_catalog *catalog,
                                       struct dtp_validate_list *out)
{
    const struct dtp_arguments *a = context->arguments;
    enum dtp_status worst = DTP_OK;
    *out = (struct dtp_validate_list){0};
    if (a->word_count == 0)
        return read_file(out, context, catalog, NULL);
    for (size_t i = 0; i < a->word_count && worst != DTP_ENVIRONMENT; i++)
        worst = dtp_worse(worst, is_list(a->words[i]) ? read_list(out, context, catalog, a->words[i])
                                                      : read_file(out, context, catalog, a->words[i]));
    return worst;
}

void dtp_validate_list_destroy(struct dtp_validate_list *list)
{
    for (size_t i = 0; i < list->group_count; i++) {
        struct dtp_validate_group *group = &list->groups[i];
        dtp_axes_release(&group->axes);
        dtp_scenario_destroy(group->base);
        dtp_arguments_destroy(&group->arguments);
        free(group->passed);
        free(group->text);
        free(group->where);
    }
    free(list->groups);
    *list = (struct dtp_validate_list){0};
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

static const struct dtp_validate_group *group_of(const struct dtp_validate_list *list, uint64_t run)
{
    size_t i = 0;
    while (i + 1 < list->group_count && list->groups[i + 1].first <= run)
        i++;
    return &list->groups[i];
}

/* "job.ini gpus=2 strategy=ddp". */
static void write_words(const struct dtp_validate_group *group, uint64_t combination, char *out, size_t bytes)
{
    const struct dtp_arguments *a = &group->arguments;
    const char *const *files = group->line ? a->words : (const char *const *)&group->word;
    size_t file_count = group->line ? a->word_count : group->word != NULL;
    out[0] = '\0';
    for (size_t i = 0; i < file_count; i++)
        dtp_append_part(out, bytes, " ", "%s", files[i]);
    for (size_t i = 0; i < group->axes.count; i++)
        dtp_append_part(out, bytes, " ", "%s=%s", group->axes.axes[i].key,
                        group->axes.axes[i].values[dtp_axes_value(&group->axes, i, combination)]);
}

enum dtp_status dtp_validate_list_scenario(const struct dtp_validate_list *list, uint64_t run,
                                           struct dtp_scenario **out, const struct dtp_validate_group **group,
                                           char *words, size_t bytes, struct dtp_faults *faults)
{
    const struct dtp_validate_group *g = *group = group_of(list, run);
    write_words(g, run - g->first, words, bytes);
    enum dtp_status status = dtp_scenario_copy(g->base, out, faults);
    if (status == DTP_OK)
        status = dtp_axes_apply(&g->axes, run - g->first, false, *out, faults);
    if (status == DTP_OK)
        status = dtp_run_take_defaults(*out, faults);
    return status == DTP_OK ? dtp_run_take_device(*out, g->passed, g->passed_count, faults) : status;
}

/* Whether a key says what is run. How many GPUs does; what they are, a machine has or has not. */
static bool is_run(const struct dtp_scenario_key *key)
{
    bool cluster = strcmp(key->section, "cluster") == 0 && strncmp(key->key, "gpus", 4) != 0;
    return !cluster && strcmp(key->section, "money") != 0;
}

/* Only of keys that were given: a program that knows more of them still reads what this one wrote. */
static uint64_t add_key(uint64_t d, const struct dtp_validate_group *group, const char *key)
{
    const char *value = dtp_scenario_get(group->base, key);
    if (value)
        d = dtp_digest_text(dtp_digest_text(d, key), value);
    for (size_t k = 0; k < group->axes.count; k++)
        for (size_t v = 0; strcmp(group->axes.axes[k].key, key) == 0 && v < group->axes.axes[k].count; v++)
            d = dtp_digest_text(dtp_digest_text(d, key), group->axes.axes[k].values[v]);
    return d;
}

/* In which order lists of values vary decides which run has which number, whatever they are lists of; one alone has
 * none. */
static uint64_t add_order(uint64_t d, const struct dtp_axes *axes)
{
    uint64_t typed = d;
    size_t varying = 0;
    for (size_t i = 0; i < axes->count; i++)
        if (axes->axes[i].count > 1) {
            typed = dtp_digest_text(typed, axes->axes[i].key);
            varying++;
        }
    return varying > 1 ? typed : d;
}

/* The flag that is passed on behind `before`, NULL: the first: as typed, or by name and of one that stands there twice
 * the last, for that one counts. NULL: there are no more. */
static const struct dtp_passed_flag *next_passed(const struct dtp_validate_group *group,
                                                 const struct dtp_passed_flag *before, bool as_typed)
{
    const struct dtp_passed_flag *next = NULL, *end = group->passed + group->passed_count;
    if (as_typed) {
        next = before ? before + 1 : group->passed;
        return next < end ? next : NULL;
    }
    for (const struct dtp_passed_flag *flag = group->passed; flag < end; flag++)
        if ((!before || strcmp(flag->flag, before->flag) > 0) && (!next || strcmp(flag->flag, next->flag) <= 0))
            next = flag;
    return next;
}

static uint64_t digest(const struct dtp_validate_list *list, bool as_typed)
{
    size_t key_count;
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    uint64_t d = dtp_digest_text(DTP_DIGEST_START, "validate");
    for (size_t g = 0; g < list->group_count; g++) {
        const struct dtp_validate_group *group = &list->groups[g];
        d = dtp_digest_text(d, "group");
        for (size_t i = 0; i < key_count; i++)
            d = is_run(&keys[i]) ? add_key(d, group, keys[i].key) : d;
        d = as_typed ? d : add_order(d, &group->axes);
        for (const struct dtp_passed_flag *flag = NULL; (flag = next_passed(group, flag, as_typed)) != NULL;)
            d = dtp_digest_text(dtp_digest_text(d, flag->flag), flag->value);
    }
    return d;
}

uint64_t dtp_validate_list_digest(const struct dtp_validate_list *list)
{
    return digest(list, false);
}

uint64_t dtp_validate_list_digest_as_typed(const struct dtp_validate_list *list)
{
    return digest(list, true);
}
