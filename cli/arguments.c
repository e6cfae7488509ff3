#include "cli/arguments.h"

#include "base/append.h"
#include "base/nearest.h"
#include "base/number.h"
#include "job/scenario.h"
#include "job/scenario_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SAMPLES 10000
#define MAX_SAMPLES 10000000
#define DEFAULT_MACHINE_FILE "machine.csv"

#define ON(command) (1u << DTP_COMMAND_##command)
#define ON_PLANS                                                                                                       \
    (ON(PLAN) | ON(LAUNCH) | ON(EXPLAIN) | ON(SIMULATE) | ON(WHATIF) | ON(SWEEP) | ON(SEARCH) | ON(REPORT) | ON(RUN) | \
     ON(VALIDATE) | ON(PROBE) | ON(COMPARE))
#define ON_LISTS (ON(SWEEP) | ON(SEARCH) | ON(VALIDATE)) /* whose keys take lists of values */
#define ON_RUNS (ON(RUN) | ON(VALIDATE))                 /* what trains */
#define ON_FROM (ON_PLANS & ~ON(VALIDATE) & ~ON(PROBE))
#define ON_EXECUTOR (ON_RUNS | ON(PROBE))
/* what replaces files */
#define ON_WRITERS                                                                                                     \
    (ON(COMPARE) | ON(SIMULATE) | ON(LAUNCH) | ON(BACKTEST) | ON(CHART) | ON(REPORT) | ON(SCHEDULE) | ON_EXECUTOR)
#define ON_PRINTERS                                                                                                    \
    (ON(SWEEP) | ON(CHART) | ON(REPORT) | ON(LAUNCH)) /* whose output, without -o, is all of standard output */
#define ON_ALL (ON_PLANS | ON(BACKTEST) | ON(CHART) | ON(CATALOG) | ON(SCHEDULE) | ON(DOCTOR) | ON(HELP))

enum option {
#define X(suffix, ...) OPTION_##suffix,
#include "cli/options.def"
#undef X
    OPTION_COUNT
};

static const struct dtp_option options[OPTION_COUNT] = {
#define AT(member) offsetof(struct dtp_arguments, member)
#define X(suffix, ...) {__VA_ARGS__},
#include "cli/options.def"
#undef X
#undef AT
};

const struct dtp_option *dtp_options(size_t *count)
{
    *count = OPTION_COUNT;
    return options;
}

bool dtp_command_takes_job(enum dtp_command command)
{
    return (ON_PLANS & (1u << command)) != 0;
}

bool dtp_command_takes_lists(enum dtp_command command)
{
    return (ON_LISTS & (1u << command)) != 0;
}

/* A first word that can only be a file is no mistyped command. */
static bool looks_like_file(const char *text)
{
    return strchr(text, '/') || strchr(text, '.');
}

/* ---- flags ------------------------------------------------------------------------------------------------------ */

static enum option find_option(const char *flag)
{
    size_t length = strcspn(flag, "=");
    if (strcmp(flag, "-h") == 0)
        return OPTION_HELP;
    if (strcmp(flag, "-o") == 0)
        return OPTION_OUTPUT;
    for (int i = 0; i < OPTION_COUNT; i++)
        if (strlen(options[i].flag) == length && strncmp(options[i].flag, flag, length) == 0)
            return (enum option)i;
    return OPTION_COUNT;
}

/* What writes the same here; NULL where nothing does. */
static const char *instead_of(enum option option, enum dtp_command command)
{
    static const struct {
        enum dtp_command command;
        enum option option;
        const char *words;
    } rows[] = {
        {DTP_COMMAND_SWEEP, OPTION_CSV, "whose rows are CSV as they are: leave it out, or write -o FILE.csv"},
        {DTP_COMMAND_SWEEP, OPTION_JSON, "whose rows are CSV; dtplan plan --json and dtplan search --json print JSON"},
        {DTP_COMMAND_SIMULATE, OPTION_CSV, "which writes CSV to files: --timeline FILE.csv, --memory FILE.csv"},
        {DTP_COMMAND_RUN, OPTION_CSV, "which writes CSV to a file: --timeline FILE.csv"},
        {DTP_COMMAND_VALIDATE, OPTION_CSV, "which writes CSV to a file: -o FILE.csv"},
        {DTP_COMMAND_PROBE, OPTION_CSV, "which writes CSV to a file: -o MACHINE.csv"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].command == command && rows[i].option == option)
            return rows[i].words;
    bool prints = options[OPTION_JSON].commands & 1u << command && command != DTP_COMMAND_RUN;
    return option == OPTION_OUTPUT && prints ? "which prints: write --json >FILE" : NULL;
}

/* An option of other commands, named. */
static void fault_other_commands(enum option option, enum dtp_command command, struct dtp_faults *faults)
{
    char others[256] = "";
    const char *instead = instead_of(option, command);
    if (instead) {
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: not a flag of '%s', %s; see dtplan help %s",
                  options[option].flag, dtp_command_text(command), instead, dtp_command_text(command));
        return;
    }
    for (int i = 0; i < DTP_COMMAND_COUNT; i++)
        if (options[option].commands & (1u << i))
            dtp_append_part(others, sizeof others, ", ", "%s", dtp_command_text((enum dtp_command)i));
    dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: not a flag of '%s', but of %s; see dtplan help %s",
              options[option].flag, dtp_command_text(command), others, dtp_command_text(command));
}

/* What stands behind a refused flag is most likely its value: no scenario file to complain about. */
static void skip_value(int argc, char **argv, int *at)
{
    if (!strchr(argv[*at], '=') && *at + 1 < argc && argv[*at + 1][0] != '-')
        ++*at;
}

/* The value of argv[*at], `wanted` in help: after '=', else the next argument (which is then used up). NULL after a
 * fault. */
static const char *take_value(int argc, char **argv, int *at, const char *wanted, struct dtp_faults *faults)
{
    const char *equals = strchr(argv[*at], '=');
    if (equals && strncmp(argv[*at], "--", 2) == 0)
        return equals + 1;
    /* "-3" is a value (for the number parser to refuse), "--json" is the next flag. */
    if (*at + 1 >= argc || strncmp(argv[*at + 1], "--", 2) == 0) {
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: a value is missing; write %s %s", argv[*at], argv[*at], wanted);
        return NULL;
    }
    return argv[++*at];
}

static void set_goal(struct dtp_arguments *a, enum dtp_solve_goal goal, const char *flag, struct dtp_faults *faults)
{
    if (a->solves && a->goal != goal)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: only one thing can be solved for at a time; run dtplan twice",
                  flag);
    a->solves = true;
    a->goal = goal;
}

static void set_fidelity(struct dtp_arguments *a, const char *value, struct dtp_faults *faults)
{
    a->simulated = strcmp(value, "simulated") == 0;
    a->closed = strcmp(value, "bounds") == 0 || strcmp(value, "closed") == 0; /* its name until 0.1 */
    if (!a->simulated && !a->closed)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--fidelity: '%s' is neither bounds nor simulated", value);
}

/* Of a flag that is given twice the last counts, but of catalogues and configurations all do. */
static void forget_file(struct dtp_arguments *a, enum option option)
{
    size_t kept = 0;
    for (size_t i = 0; i < a->file_count; i++)
        if (option == OPTION_CATALOG || option == OPTION_FROM || strcmp(a->files[i].flag, options[option].flag) != 0)
            a->files[kept++] = a->files[i];
    a->file_count = kept;
}

static void add_file(struct dtp_arguments *a, enum option option, const char *path)
{
    static const enum dtp_output_kind outputs[DTP_COMMAND_COUNT] = {
        [DTP_COMMAND_BACKTEST] = DTP_OUTPUT_BACKTEST, [DTP_COMMAND_SWEEP] = DTP_OUTPUT_ROWS,
        [DTP_COMMAND_CHART] = DTP_OUTPUT_FIGURE,      [DTP_COMMAND_REPORT] = DTP_OUTPUT_PAGE,
        [DTP_COMMAND_VALIDATE] = DTP_OUTPUT_ROWS,     [DTP_COMMAND_PROBE] = DTP_OUTPUT_MACHINE,
        [DTP_COMMAND_COMPARE] = DTP_OUTPUT_MACHINE,   [DTP_COMMAND_LAUNCH] = DTP_OUTPUT_FOLDER,
    };
    const struct dtp_option *o = &options[option];
    enum dtp_output_kind kind = option == OPTION_OUTPUT ? outputs[a->command] : o->kind;
    forget_file(a, option);
    a->files[a->file_count++] = (struct dtp_typed_file){o->flag, path, o->role, kind};
}

static void take_option(struct dtp_arguments *a, enum option option, int argc, char **argv, int *at,
                        struct dtp_faults *faults)
{
    const char *flag = argv[*at], *value = NULL;
    if (!options[option].value && strchr(flag, '=')) {
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: this flag takes no value; write %s", flag, options[option].flag);
        return;
    }
    if (options[option].value && !(value = take_value(argc, argv, at, options[option].value, faults)))
        return;
    if (value && !*value) { /* most likely a variable that was never set: no file has that name, and some run first */
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: its value is empty; write %s %s", options[option].flag,
                  options[option].flag, options[option].value);
        return;
    }
    if (option == OPTION_OUTPUT && strcmp(value, "-") == 0 && (ON_PRINTERS & (1u << a->command))) {
        forget_file(a, option);
        a->output = NULL;
        return;
    }
    if (options[option].role != DTP_FILE_NONE)
        add_file(a, option, value);
    bool executes = (ON_RUNS & (1u << a->command)) != 0,
         own = option == OPTION_RESUME && a->command == DTP_COMMAND_VALIDATE;
    if (!own && (option >= OPTION_STEPS || (option == OPTION_SEED && executes))) {
        a->passed[a->passed_count++] = (struct dtp_passed_flag){options[option].flag, value};
        return;
    }
    if (options[option].stored && value)
        *(const char **)(void *)((char *)a + options[option].stored) = value;
    else if (options[option].stored)
        *(bool *)((char *)a + options[option].stored) = true;
    switch (option) {
    case OPTION_MAX_MICRO_BATCH: set_goal(a, DTP_SOLVE_MAX_MICRO_BATCH, flag, faults); break;
    case OPTION_MAX_SEQ: set_goal(a, DTP_SOLVE_MAX_SEQUENCE, flag, faults); break;
    case OPTION_MIN_GPUS: set_goal(a, DTP_SOLVE_MIN_GPUS, flag, faults); break;
    case OPTION_CATALOG: a->catalogs[a->catalog_count++] = value; break;
    case OPTION_FROM: a->froms[a->from_count++] = value; break;
    case OPTION_WHERE: a->wheres[a->where_count++] = value; break;
    case OPTION_FIDELITY: set_fidelity(a, value, faults); break;
    case OPTION_MAX_GPUS: dtp_argument_most(&a->max_gpus, flag, value, faults); break;
    case OPTION_MAX_NODES: dtp_argument_most(&a->max_nodes, flag, value, faults); break;
    case OPTION_SAMPLES: dtp_argument_whole(&a->samples, flag, value, 1, MAX_SAMPLES, faults); break;
    case OPTION_SEED: dtp_argument_whole(&a->seed, flag, value, 0, UINT32_MAX, faults); break;
    case OPTION_RANK_DEVIATION: dtp_argument_factor(&a->rank_deviation, flag, value, 1e-6, 0.3, faults); break;
    case OPTION_STRAGGLER: dtp_argument_factor(&a->straggler, flag, value, 1, 1000, faults); break;
    case OPTION_TOLERANCE: dtp_argument_tolerance(a, value, faults); break;
    default: break; /* stored, or passed on above */
    }
}

/* The word of the table that was typed for a key. */
static const char *word_of(const struct dtp_scenario_key *found, const char *typed)
{
    size_t count;
    const struct dtp_scenario_alias *aliases = dtp_scenario_aliases(&count);
    for (size_t i = 0; i < count; i++)
        if (!aliases[i].value && strcmp(aliases[i].word, typed) == 0)
            return aliases[i].word;
    return found->key;
}

/* A key and another word for it on one line: which of them was meant cannot be told. The same word twice is no fault,
 * the later one counts. */
static bool is_said_otherwise(const struct dtp_arguments *a, const struct dtp_scenario_key *found, const char *key,
                              const char *flag, struct dtp_faults *faults)
{
    for (size_t i = 0; i < a->setting_count; i++) {
        char before[64];
        dtp_key_of_flag(a->settings[i].flag, before, sizeof before);
        bool switches = !found->value; /* --no-compile and --compile are one word */
        if (strcmp(a->settings[i].key, found->key) != 0 || strcmp(before, key) == 0 || switches)
            continue;
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%.*s: is the same as %.*s; leave one of them out",
                  (int)strcspn(flag, "="), flag, (int)strcspn(a->settings[i].flag, "="), a->settings[i].flag);
        return true;
    }
    return false;
}

/* Whether a switch takes the word, or each of those with commas between, as its value: true, false, what else it has.
 */
static bool takes_words(const struct dtp_scenario_key *key, const char *words)
{
    for (bool more = *words; more; words++) {
        struct dtp_draft draft = dtp_draft_default();
        char word[64], why[DTP_FAULT_TEXT_BYTES];
        size_t length = strcspn(words, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (!dtp_key_apply(dtp_key_find(key->key), word, &draft, why, sizeof why))
            return false;
        words += length;
        more = *words != '\0';
    }
    return true;
}

/* A switch with its value as the next word: elsewhere that is where it stands, here it would be a scenario file. */
static bool is_switched_by_word(const struct dtp_scenario_key *key, int argc, char **argv, int *at,
                                struct dtp_faults *faults)
{
    const char *flag = argv[*at], *word = *at + 1 < argc ? argv[*at + 1] : "";
    if (!*word || *word == '-' || !takes_words(key, word))
        return false;
    dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s %s: a switch takes its value behind '='; write %s=%s", flag, word,
              flag, word);
    ++*at;
    return true;
}

/* A switch with a plain word behind it that is no file: it was meant as a value, and would be looked for as a scenario.
 */
static bool is_followed_by_word(int argc, char **argv, int *at, struct dtp_faults *faults)
{
    const char *flag = argv[*at], *word = *at + 1 < argc ? argv[*at + 1] : "";
    if (!*word || *word == '-' || strpbrk(word, "./") || access(word, F_OK) == 0)
        return false;
    dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s %s: is a switch, and no word goes with it; write %s=true or %s=false",
              flag, word, flag, flag);
    ++*at;
    return true;
}

/* A key of the scenario table, or no_ before a switch. False when it is neither. */
static bool take_setting(struct dtp_arguments *a, int argc, char **argv, int *at, struct dtp_faults *faults)
{
    char key[64];
    const char *flag = argv[*at], *value = "true";
    dtp_key_of_flag(flag, key, sizeof key);
    const struct dtp_scenario_key *found = dtp_scenario_key_of(key);
    if (!found && strncmp(key, "no_", 3) == 0 && (found = dtp_scenario_key_of(key + 3)) != NULL) {
        if (found->value || strchr(flag, '=')) {
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: only a switch can be negated, without a value; write --%s",
                      flag, flag + strlen("--no-"));
            return true;
        }
        value = "false";
    } else if (found && (found->value || strchr(flag, '='))) {
        value = take_value(argc, argv, at, found->value ? found->value : "VALUE", faults);
    } else if (found &&
               (is_switched_by_word(found, argc, argv, at, faults) || is_followed_by_word(argc, argv, at, faults))) {
        return true;
    }
    if (found && value && is_said_otherwise(a, found, key, flag, faults))
        return true;
    if (found && value)
        a->settings[a->setting_count++] = (struct dtp_typed_key){flag, found->key, value, word_of(found, key)};
    return found != NULL;
}

static void take_flag(struct dtp_arguments *a, int argc, char **argv, int *at, struct dtp_faults *faults)
{
    enum option option = find_option(argv[*at]);
    unsigned command = 1u << a->command;
    const char *flag = argv[*at];
    if (option != OPTION_COUNT && (options[option].commands & command))
        take_option(a, option, argc, argv, at, faults);
    else if (strncmp(flag, "--", 2) == 0 && (ON_PLANS & command) && take_setting(a, argc, argv, at, faults))
        return;
    else if (option != OPTION_COUNT) {
        fault_other_commands(option, a->command, faults);
        if (options[option].value)
            skip_value(argc, argv, at);
    } else {
        dtp_fault_unknown_flag(flag, a->command, faults);
        skip_value(argc, argv, at);
    }
}

/* ---- the line --------------------------------------------------------------------------------------------------- */

/* Takes the command off the front. The default is plan: `dtplan --params 7e9`, `dtplan job.ini`. */
static int read_command(int argc, char **argv, struct dtp_arguments *out, struct dtp_faults *faults)
{
    out->command = DTP_COMMAND_PLAN;
    if (argc < 2 || argv[1][0] == '-' || looks_like_file(argv[1]))
        return 1;
    out->command_named = true;
    if (!dtp_command_parse(argv[1], &out->command))
        dtp_command_unknown(argv[1], faults);
    return 2;
}

enum dtp_status dtp_arguments_read(int argc, char **argv, struct dtp_arguments *out, struct dtp_faults *faults)
{
    memset(out, 0, sizeof *out);
    out->samples = DEFAULT_SAMPLES;
    out->seed = 1;
    size_t room = argc > 0 ? (size_t)argc : 1;
    out->catalogs = calloc(room, sizeof *out->catalogs);
    out->froms = calloc(room, sizeof *out->froms);
    out->wheres = calloc(room, sizeof *out->wheres);
    out->words = calloc(room, sizeof *out->words);
    out->settings = calloc(room, sizeof *out->settings);
    out->passed = calloc(room, sizeof *out->passed);
    out->files = calloc(room + 1, sizeof *out->files);
    if (!out->catalogs || !out->froms || !out->wheres || !out->words || !out->settings || !out->passed || !out->files)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    size_t before = faults->count;
    bool flags_end = false;
    int at = read_command(argc, argv, out, faults);
    if (faults->count > before) /* of an unknown command nothing is known, its flags neither */
        return faults->status;
    for (; at < argc; at++)
        if (!flags_end && strcmp(argv[at], "--") == 0)
            flags_end = true;
        else if (!flags_end && argv[at][0] == '-' && argv[at][1])
            take_flag(out, argc, argv, &at, faults);
        else
            out->words[out->word_count++] = argv[at];
    if (out->command == DTP_COMMAND_PROBE && !out->output) {
        out->output = DEFAULT_MACHINE_FILE;
        add_file(out, OPTION_OUTPUT, out->output);
    }
    if (out->simulated && out->solves)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "--fidelity simulated: solving goes by estimates; solve first, then simulate the answer");
    if (out->leave_one_out && (out->output || out->only || out->notes))
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "--leave-one-out: scores whole sources; leave out -o, --only and --notes");
    if (out->leave_one_out && out->machine)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "--leave-one-out: fits constants, some of which a machine file has measured; leave out --machine");
    if (out->command == DTP_COMMAND_BACKTEST && out->csv && !out->leave_one_out)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "--csv: of backtest only with --leave-one-out; rows of a table are written with -o ROWS.csv");
    if (out->refit && !out->output)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                  "--refit: learns from times of operations, which are kept beside -o FILE.csv; give one");
    if (out->json && out->csv)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--json and --csv: choose one of them");
    return faults->count > before ? faults->status : DTP_OK;
}

void dtp_arguments_destroy(struct dtp_arguments *arguments)
{
    free(arguments->catalogs);
    free(arguments->froms);
    free(arguments->wheres);
    free(arguments->words);
    free(arguments->settings);
    free(arguments->passed);
    free(arguments->files);
    memset(arguments, 0, sizeof *arguments);
}
