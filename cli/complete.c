/* What Tab offers: `dtplan __complete WORD...` prints what may stand for the last of the words behind the program's
 * name, a line each, a tab and what it means behind it. The completions of all shells ask here, and here the tables
 * that the parser and --help read answer. Nothing printed: a file may stand there. */
#include "cli/command.h"

#include "chart/chart.h"
#include "schedule/schedule.h"

#include <glob.h>
#include <string.h>

struct line {
    const struct dtp_context *context;
    char **words; /* the last is being typed */
    int count;
    enum dtp_command command;
    size_t offered;
    size_t lead; /* bytes of the last word before what is completed: "--strategy=", "ddp," of a list */
};

static const char *typed_word(const struct line *line)
{
    return line->words[line->count - 1] + line->lead;
}

static void offer(struct line *line, const char *word, const char *meaning)
{
    const char *typed = typed_word(line);
    line->offered++;
    if (strncmp(word, typed, strlen(typed)) == 0)
        fprintf(line->context->out, "%.*s%s\t%s\n", (int)line->lead, line->words[line->count - 1], word, meaning);
}

static void offer_flag(struct line *line, const char *key, const char *meaning)
{
    char flag[80];
    snprintf(flag, sizeof flag, "--%s", key);
    for (char *c = flag; *c; c++)
        *c = *c == '_' ? '-' : *c;
    offer(line, flag, meaning);
}

static void offer_commands(struct line *line)
{
    for (int i = 0; i < DTP_COMMAND_COUNT; i++)
        offer(line, dtp_command_text((enum dtp_command)i), "command");
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void offer_names(struct line *line, const char *table)
{
    struct dtp_catalog catalog;
    if (dtp_context_catalog(line->context, &catalog) != DTP_OK) {
        line->context->faults->count = 0; /* a line that is being typed is no place for messages */
        return;
    }
    for (size_t i = 0; strcmp(table, "gpus") == 0 && i < catalog.gpu_count; i++)
        offer(line, catalog.gpus[i].key, catalog.gpus[i].name);
    for (size_t i = 0; strcmp(table, "machines") == 0 && i < catalog.machine_count; i++)
        offer(line, catalog.machines[i].key, catalog.machines[i].name);
    for (size_t i = 0; strcmp(table, "models") == 0 && i < catalog.model_count; i++)
        offer(line, catalog.models[i].name, "model");
    dtp_catalog_destroy(&catalog);
}

static void offer_machine_files(struct line *line)
{
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s*.csv", typed_word(line));
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        offer(line, found.gl_pathv[i], "machine file");
    globfree(&found);
}

static void offer_schedules(struct line *line)
{
    for (int i = 0; i < DTP_SCHEDULE_COUNT; i++)
        offer(line, dtp_schedule_row((enum dtp_schedule_kind)i)->word,
              dtp_schedule_row((enum dtp_schedule_kind)i)->words);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Of "none|full|every-N": what is a word, not a number. */
static void offer_choices(struct line *line, const char *choices, const char *meaning)
{
    char word[64];
    for (const char *at = choices; at && strchr(choices, '|'); at = (at = strchr(at, '|')) ? at + 1 : NULL) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
        if (!strpbrk(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
            offer(line, word, meaning);
    }
}

static const struct dtp_option *find_option(const struct line *line, const char *flag)
{
    size_t count;
    const struct dtp_option *options = dtp_options(&count);
    for (size_t i = 0; i < count; i++)
        if ((options[i].commands & (1u << line->command)) && strcmp(options[i].flag, flag) == 0)
            return &options[i];
    return NULL;
}

/* Behind a flag: true where it takes a value, of which there may be nothing to say. */
static bool offer_values(struct line *line, const char *flag)
{
    char choices[256], words[16];
    const struct dtp_option *option = find_option(line, flag);
    const struct dtp_scenario_key *key =
        dtp_command_takes_job(line->command) && strncmp(flag, "--", 2) == 0 ? dtp_scenario_key_of(flag + 2) : NULL;
    if (strcmp(flag, "-o") == 0)
        return true;
    if (strcmp(flag, "--machine") == 0)
        offer_machine_files(line);
    if (option && strcmp(flag, "--schedule") == 0)
        offer_schedules(line);
    if (!option && !key)
        return false;
    if (!option &&
        (strcmp(key->key, "gpu") == 0 || strcmp(key->key, "machine") == 0 || strcmp(key->key, "model") == 0)) {
        snprintf(words, sizeof words, "%ss", key->key);
        offer_names(line, words);
    } else if (option && option->value) {
        offer_choices(line, option->value, flag + 2);
    } else if (!option && key->value) {
        offer_choices(line, dtp_scenario_key_choices(key, choices, sizeof choices), key->key);
    }
    return option ? option->value != NULL : key->value != NULL;
}

static void offer_flags(struct line *line)
{
    size_t option_count, key_count, alias_count;
    const struct dtp_option *options = dtp_options(&option_count);
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    const struct dtp_scenario_alias *aliases = dtp_scenario_aliases(&alias_count);
    for (size_t i = 0; i < option_count; i++)
        if (options[i].commands & (1u << line->command))
            offer(line, options[i].flag, options[i].words);
    for (size_t i = 0; i < key_count && dtp_command_takes_job(line->command); i++)
        offer_flag(line, keys[i].key, keys[i].words);
    for (size_t i = 0; i < alias_count && dtp_command_takes_job(line->command); i++)
        if (!aliases[i].value)
            offer_flag(line, aliases[i].word, aliases[i].words);
}

/* Behind "--flag=", as one word or, in bash, which parts words there, as three; a switch takes its value there alone.
 * Of a list what follows its last comma. False: no value is being typed. */
static bool offer_value_of(struct line *line)
{
    char *last = line->words[line->count - 1], *sign = strncmp(last, "--", 2) == 0 ? strchr(last, '=') : NULL;
    char flag[80];
    bool parted = line->count > 1 && strcmp(last, "=") == 0,
         behind = line->count > 2 && strcmp(line->words[line->count - 2], "=") == 0;
    int at = line->count - (behind ? 3 : 2);
    if (!sign && line->count < 2)
        return false;
    snprintf(flag, sizeof flag, "%.*s", sign ? (int)(sign - last) : 79, sign ? last : line->words[at]);
    if (sign || parted)
        line->lead = sign ? (size_t)(sign + 1 - last) : 1;
    const char *comma = strrchr(last + line->lead, ',');
    line->lead += comma && strncmp(flag, "--", 2) == 0 ? (size_t)(comma + 1 - last) - line->lead : 0;
    if (parted)
        line->words[line->count - 1] = last + 1, line->lead = 0;
    const struct dtp_scenario_key *key =
        dtp_command_takes_job(line->command) && strncmp(flag, "--", 2) == 0 ? dtp_scenario_key_of(flag + 2) : NULL;
    if ((sign || parted || behind) && key && !key->value)
        offer_choices(line, "true|false", key->words);
    return offer_values(line, flag) || sign || parted || behind;
}

/* Behind a word that is no flag: what a command or a table of the catalogue is followed by. */
static void offer_words(struct line *line, const char *previous)
{
    static const char *const tables[] = {"gpus", "machines", "models", "measured", "constants"};
    if (line->count == 2 && (strcmp(previous, "help") == 0 || strcmp(previous, "doctor") == 0))
        offer_commands(line);
    if (line->count == 2 && strcmp(previous, "chart") == 0)
        for (int i = 0; i < DTP_CHART_COUNT; i++)
            offer(line, dtp_chart_name((enum dtp_chart)i), dtp_chart_words((enum dtp_chart)i));
    if (line->count == 2 && strcmp(previous, "catalog") == 0)
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
            offer(line, tables[i], "table");
    if (line->count > 2 && line->command == DTP_COMMAND_CATALOG)
        offer_names(line, line->words[1]);
}

enum dtp_status dtp_complete(const struct dtp_context *context, char **words, int count)
{
    struct line line = {context, words, count, DTP_COMMAND_PLAN, 0, 0};
    if (count < 1)
        return DTP_OK;
    const char *typed = words[count - 1];
    for (int i = 0; i < count - 1; i++)
        if (dtp_command_parse(words[i], &line.command))
            break;
    if (offer_value_of(&line))
        return DTP_OK;
    line.lead = 0;
    if (typed[0] == '-')
        offer_flags(&line);
    else if (count > 1)
        offer_words(&line, words[count - 2]);
    else
        offer_commands(&line);
    return DTP_OK;
}
