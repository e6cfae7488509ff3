/* A call of the library is a command line that meets no terminal: its settings become flags, the command that reads
 * them prints into memory, and what main would write out is handed to the caller. */
#include "cli/library/dtplan.h"

#include "cli/command.h"
#include "cli/from.h"

#include <ctype.h>
#include <dlfcn.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)DTPLAN_OK == (int)DTP_OK && (int)DTPLAN_NO == (int)DTP_NO &&
                   (int)DTPLAN_BAD_INPUT == (int)DTP_BAD_INPUT && (int)DTPLAN_ENVIRONMENT == (int)DTP_ENVIRONMENT,
               "a status is that of the program");

struct dtplan {
    struct dtp_catalog catalog;
    locale_t numbers; /* with a decimal point */
};

const char *dtplan_version(void)
{
    return DTPLAN_VERSION;
}

void dtplan_free(char *text)
{
    free(text);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* A line each; NULL where there is none, or no memory for them: the status tells all the same. */
static char *text_of(const struct dtp_faults *faults)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = faults && faults->count ? open_memstream(&text, &bytes) : NULL;
    if (!file)
        return NULL;
    for (size_t i = 0; i < faults->count && i < DTP_FAULTS_KEPT; i++)
        fprintf(file, "%s%s", i ? "\n" : "", faults->text[i]);
    if (faults->count > DTP_FAULTS_KEPT)
        fprintf(file, "\nand %zu more", faults->count - DTP_FAULTS_KEPT);
    if (fclose(file) == 0)
        return text;
    free(text);
    return NULL;
}

/* ---- the catalogues ---------------------------------------------------------------------------------------------- */

static enum dtp_status read_catalogues(const char *directory, const char *const *catalogs, struct dtp_catalog *out,
                                       struct dtp_faults *faults)
{
    char found[4096];
    Dl_info self = {.dli_fname = ""};
    enum dtp_status status = DTP_OK;
    if (!directory) {
        bool known = dladdr((const void *)(uintptr_t)&dtplan_create, &self) != 0 && self.dli_fname;
        status = dtp_data_directory_of(known ? self.dli_fname : "", found, sizeof found, faults);
        directory = found;
    }
    if (status == DTP_OK)
        status = dtp_catalog_load(directory, out, faults);
    for (size_t i = 0; status == DTP_OK && catalogs && catalogs[i]; i++)
        status = dtp_catalog_add(catalogs[i], out, faults);
    return status;
}

enum dtplan_status dtplan_create(const char *directory, const char *const *catalogs, struct dtplan **out,
                                 char **messages)
{
    struct dtp_faults *faults = calloc(1, sizeof *faults);
    struct dtplan *d = calloc(1, sizeof *d);
    locale_t before = (locale_t)0;
    enum dtp_status status = faults && d ? DTP_OK : DTP_ENVIRONMENT;
    if (status == DTP_OK && !(d->numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK) {
        before = uselocale(d->numbers);
        status = read_catalogues(directory, catalogs, &d->catalog, faults);
        uselocale(before);
    }
    *messages = text_of(faults);
    free(faults);
    *out = status == DTP_OK ? d : NULL;
    if (status != DTP_OK)
        dtplan_destroy(d);
    return (enum dtplan_status)status;
}

void dtplan_destroy(struct dtplan *dtplan)
{
    if (!dtplan)
        return;
    dtp_catalog_destroy(&dtplan->catalog);
    if (dtplan->numbers)
        freelocale(dtplan->numbers);
    free(dtplan);
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

struct call {
    char **words; /* "dtplan", "plan", "--json", "--micro-batch=4", ... */
    size_t count, room;
    struct dtp_arguments arguments;
    struct dtp_faults faults;
    FILE *page, *out;
    char *page_text, *text;
    size_t page_bytes, bytes;
};

/* "micro_batch=4" becomes "--micro-batch=4". A copy, for what was parsed points into it. */
static char *flag_of(const char *setting)
{
    size_t bytes = strlen(setting) + 3;
    char *flag = malloc(bytes);
    if (!flag)
        return NULL;
    snprintf(flag, bytes, "--%s", setting);
    for (char *c = flag; *c && *c != '='; c++)
        *c = *c == '_' ? '-' : *c;
    return flag;
}

static size_t count_of(const char *const *texts)
{
    size_t count = 0;
    while (texts && texts[count])
        count++;
    return count;
}

static bool take(struct call *call, char *word)
{
    call->words[call->count] = word;
    call->count += word != NULL;
    return word != NULL;
}

/* "" would end the flags, and "-h" is a flag of a program. */
static bool are_settings(struct call *call, const char *const *settings)
{
    for (size_t i = 0; settings && settings[i]; i++)
        if (!isalpha((unsigned char)settings[i][0]))
            dtp_fault(&call->faults, DTP_BAD_INPUT, NULL, 0,
                      "'%.64s' is no setting; write KEY=VALUE, or KEY alone of a switch", settings[i]);
    return call->faults.count == 0;
}

static bool write_line(struct call *call, enum dtp_command command, const char *const *files,
                       const char *const *settings)
{
    size_t setting_count = count_of(settings), file_count = count_of(files);
    call->words = calloc(setting_count + file_count + 5, sizeof *call->words);
    bool good = call->words && take(call, strdup("dtplan")) && take(call, strdup(dtp_command_text(command)));
    if (good && command != DTP_COMMAND_SWEEP) /* whose rows are CSV for programs too */
        good = take(call, strdup("--json"));
    for (size_t i = 0; i < setting_count && good; i++)
        good = take(call, flag_of(settings[i]));
    if (good && file_count)
        good = take(call, strdup("--"));
    for (size_t i = 0; i < file_count && good; i++)
        good = take(call, strdup(files[i]));
    return good;
}

/* A setting is a flag of the command, but for those that write files or print something else than the answer. */
static enum dtp_status check_settings(const struct call *call, struct dtp_faults *faults)
{
    const struct dtp_arguments *a = &call->arguments;
    enum dtp_status worst = DTP_OK;
    for (size_t i = 0; i < a->file_count; i++)
        if (a->files[i].role == DTP_FILE_WRITTEN)
            worst = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                              "%s: writes a file, which the library does not; call the program dtplan for it",
                              a->files[i].flag);
    if (a->leave_one_out)
        worst =
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                      "--leave-one-out: changes the constants of the whole process; call the program dtplan for it");
    if (a->help || a->version || a->csv || a->charts || a->force)
        worst = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                          "help, version, csv, charts and force are flags of the program, no settings of the library");
    return worst;
}

static enum dtp_status run(enum dtp_command command, const struct dtp_context *context)
{
    switch (command) {
    case DTP_COMMAND_PLAN: return dtp_command_plan(context);
    case DTP_COMMAND_SIMULATE: return dtp_command_simulate(context);
    case DTP_COMMAND_EXPLAIN: return dtp_command_explain(context);
    case DTP_COMMAND_WHATIF: return dtp_command_whatif(context);
    case DTP_COMMAND_SWEEP: return dtp_command_sweep(context);
    case DTP_COMMAND_SEARCH: return dtp_command_search(context);
    case DTP_COMMAND_BACKTEST: return dtp_command_backtest(context);
    default: return DTP_BAD_INPUT; /* no function below asks for another */
    }
}

static enum dtp_status run_call(const struct dtplan *d, struct call *call, enum dtp_command command,
                                const char *scenario)
{
    struct dtp_call_files *files = dtp_call_files_create();
    struct dtp_import *import = dtp_import_create();
    struct dtp_context context = {.arguments = &call->arguments,
                                  .out = call->out,
                                  .page = {.file = call->page},
                                  .faults = &call->faults,
                                  .files = files,
                                  .import = import,
                                  .catalogues = &d->catalog,
                                  .scenario = scenario};
    enum dtp_status status = dtp_arguments_read((int)call->count, call->words, &call->arguments, &call->faults);
    bool read = status == DTP_OK;
    if (!files || !import)
        status = dtp_fault(&call->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    else if (read && (status = check_settings(call, &call->faults)) == DTP_OK)
        status = run(command, &context);
    else if (!read && dtp_command_takes_job(command))
        dtp_context_collect(&context);
    bool whole = fclose(call->out) == 0;
    call->out = NULL;
    bool answered = status == DTP_OK || status == DTP_NO;
    if (answered && (!whole || !dtp_from_add_json(&context, &call->text, &call->bytes)))
        status = dtp_fault(&call->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    dtp_import_destroy(import);
    dtp_call_files_destroy(files);
    return status;
}

static void end(struct call *call)
{
    dtp_arguments_destroy(&call->arguments);
    for (size_t i = 0; i < call->count; i++)
        free(call->words[i]);
    free(call->words);
    if (call->page)
        fclose(call->page);
    if (call->out)
        fclose(call->out);
    free(call->page_text);
    free(call->text);
    free(call);
}

static enum dtplan_status ask(const struct dtplan *d, enum dtp_command command, const char *scenario,
                              const char *const *files, const char *const *settings, char **answer, char **messages)
{
    struct call *call = calloc(1, sizeof *call);
    *answer = *messages = NULL;
    if (!call)
        return DTPLAN_ENVIRONMENT;
    enum dtp_status status = DTP_ENVIRONMENT;
    locale_t before = uselocale(d->numbers);
    call->page = open_memstream(&call->page_text, &call->page_bytes);
    call->out = open_memstream(&call->text, &call->bytes);
    if (!are_settings(call, settings))
        status = DTP_BAD_INPUT;
    else if (call->page && call->out && write_line(call, command, files, settings))
        status = run_call(d, call, command, scenario);
    else
        dtp_fault(&call->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    uselocale(before);
    if (status == DTP_OK || status == DTP_NO) {
        *answer = call->text;
        call->text = NULL;
    }
    *messages = text_of(&call->faults);
    end(call);
    return (enum dtplan_status)status;
}

#define ASK_OF_JOB(name, command)                                                                                      \
    enum dtplan_status dtplan_##name(const struct dtplan *dtplan, const char *scenario, const char *const *settings,   \
                                     char **answer, char **messages)                                                   \
    {                                                                                                                  \
        return ask(dtplan, DTP_COMMAND_##command, scenario, NULL, settings, answer, messages);                         \
    }
ASK_OF_JOB(plan, PLAN)
ASK_OF_JOB(simulate, SIMULATE)
ASK_OF_JOB(explain, EXPLAIN)
ASK_OF_JOB(whatif, WHATIF)
ASK_OF_JOB(sweep, SWEEP)
ASK_OF_JOB(search, SEARCH)

enum dtplan_status dtplan_backtest(const struct dtplan *dtplan, const char *const *tables, const char *const *settings,
                                   char **answer, char **messages)
{
    return ask(dtplan, DTP_COMMAND_BACKTEST, NULL, tables, settings, answer, messages);
}
