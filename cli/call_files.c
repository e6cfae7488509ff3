#include "cli/call_files.h"

#include "base/grow.h"
#include "chart/chart.h"
#include "runs/run_files.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file of the call. `what` is how it is called: "--trace", "the script beside --chart", "a scenario". */
struct use {
    char *path, *resolved; /* `resolved`: absolute, without links; NULL: it cannot be told, or is no plain file */
    char what[96];
    bool written, there;
    dev_t device;
    ino_t inode;
    enum dtp_output_kind kind; /* where it is written */
    int pipe;                  /* open for writing where it is a named pipe, else -1 */
};

struct dtp_call_files {
    struct use *uses;
    size_t count, room;
    bool standard_input; /* is read */
};

struct dtp_call_files *dtp_call_files_create(void)
{
    return calloc(1, sizeof(struct dtp_call_files));
}

void dtp_call_files_destroy(struct dtp_call_files *files)
{
    for (size_t i = 0; files && i < files->count; i++) {
        if (files->uses[i].pipe >= 0)
            close(files->uses[i].pipe);
        free(files->uses[i].path);
        free(files->uses[i].resolved);
    }
    if (files)
        free(files->uses);
    free(files);
}

/* ---- derived names ----------------------------------------------------------------------------------------------- */

/* `path` with `ending` in the place of .csv. */
static char *with_ending(const char *path, const char *ending)
{
    size_t length = strlen(path);
    char *other;
    if (length > 4 && strcmp(path + length - 4, ".csv") == 0)
        length -= 4;
    return asprintf(&other, "%.*s%s", (int)length, path, ending) < 0 ? NULL : other;
}

char *dtp_call_files_refit(const char *machine)
{
    return with_ending(machine, "-refit.csv");
}

char *dtp_call_files_times(const char *rows)
{
    return with_ending(rows, ".ops");
}

/* ---- one file or two --------------------------------------------------------------------------------------------- */

/* Of the folder, which must be there, and the name in it. */
static char *resolve(const char *path)
{
    char *place = dtp_output_place(path), *slash = place ? strrchr(place, '/') : NULL, *resolved = NULL;
    if (!place)
        return NULL;
    if (slash)
        *slash = '\0';
    char *folder = realpath(!slash ? "." : slash == place ? "/" : place, NULL);
    if (folder && asprintf(&resolved, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, slash ? slash + 1 : place) < 0)
        resolved = NULL;
    free(folder);
    free(place);
    return resolved;
}

static bool same_file(const struct use *a, const struct use *b)
{
    if (a->there && b->there)
        return a->device == b->device && a->inode == b->inode;
    return !a->there && !b->there && a->resolved && b->resolved && strcmp(a->resolved, b->resolved) == 0;
}

/* What dtplan makes and removes in a folder of its own: step-00000100 of checkpoints, 0000.csv of times. Other files
 * there are nobody's business: a log may well lie beside checkpoints. */
static bool is_in_folder(const struct use *folder, const struct use *file)
{
    char *real = folder->written && folder->kind == DTP_OUTPUT_FOLDER ? realpath(folder->path, NULL) : NULL;
    size_t length = real ? strlen(real) : 0;
    bool inside = real && file->resolved && strncmp(file->resolved, real, length) == 0 && file->resolved[length] == '/';
    const char *name = inside ? file->resolved + length + 1 : "";
    free(real);
    return strncmp(name, "step-", 5) == 0 || isdigit((unsigned char)name[0]);
}

/* ---- collecting -------------------------------------------------------------------------------------------------- */

static enum dtp_status no_memory(struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* Both as algorithms are added to one file by several runs. */
static bool may_share(const struct use *a, const struct use *b)
{
    return (!a->written && !b->written) ||
           (a->written && b->written && a->kind == DTP_OUTPUT_CHOICES && b->kind == DTP_OUTPUT_CHOICES);
}

static enum dtp_status compare(const struct use *a, const struct use *b, struct dtp_faults *faults)
{
    const struct use *out = a->written ? a : b, *other = a->written ? b : a;
    if (may_share(a, b) || (!same_file(a, b) && !is_in_folder(a, b) && !is_in_folder(b, a)))
        return DTP_OK;
    if (other->written)
        return dtp_fault(faults, DTP_BAD_INPUT, b->path, 0, "%s and %s would write one and the same file; name another",
                         a->what, b->what);
    return dtp_fault(faults, DTP_BAD_INPUT, out->path, 0, "%s would write over %s that is read, %s; name another file",
                     out->what, other->what, other->path);
}

static struct use *new_use(struct dtp_call_files *files)
{
    if (!dtp_grow(&files->uses, files->count, &files->room, sizeof *files->uses))
        return NULL;
    files->uses[files->count] = (struct use){.pipe = -1};
    return &files->uses[files->count];
}

/* Compares it with all that are there already. */
static enum dtp_status take(struct dtp_call_files *files, const char *path, const char *what, bool written,
                            enum dtp_output_kind kind, struct dtp_faults *faults)
{
    struct stat about;
    struct use *use = new_use(files);
    enum dtp_status worst = DTP_OK;
    if (!use || !(use->path = strdup(path)))
        return no_memory(faults);
    bool there = stat(path, &about) == 0;
    use->there = there && (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode)); /* to a pipe several may write */
    use->device = use->there ? about.st_dev : 0;
    use->inode = use->there ? about.st_ino : 0;
    use->resolved = there && !use->there ? NULL : resolve(path);
    use->written = written;
    use->kind = kind;
    snprintf(use->what, sizeof use->what, "%s", what);
    for (size_t i = 0; i < files->count; i++) {
        worst = dtp_worse(worst, compare(&files->uses[i], use, faults));
    }
    files->count++;
    return worst;
}

enum dtp_status dtp_call_files_add_input(struct dtp_call_files *files, const char *path, const char *what,
                                         struct dtp_faults *faults)
{
    struct stat about;
    if (!path)
        return DTP_OK;
    return stat(path, &about) == 0 ? take(files, path, what, false, DTP_OUTPUT_ROWS, faults) : DTP_OK;
}

enum dtp_status dtp_call_files_add_output(struct dtp_call_files *files, const char *path, const char *what, bool force,
                                          struct dtp_faults *faults)
{
    enum dtp_status status = take(files, path, what, true, DTP_OUTPUT_MACHINE, faults);
    return status == DTP_OK && !force ? dtp_output_may_replace(path, DTP_OUTPUT_MACHINE, faults) : status;
}

/* ---- what is written --------------------------------------------------------------------------------------------- */

/* Takes `path` over; NULL: there was no memory for it. */
static enum dtp_status take_derived(struct dtp_call_files *files, char *path, const char *what, const char *flag,
                                    enum dtp_output_kind kind, struct dtp_faults *faults)
{
    char words[96];
    snprintf(words, sizeof words, "%s %s", what, flag);
    enum dtp_status status = path ? take(files, path, words, true, kind, faults) : no_memory(faults);
    free(path);
    return status;
}

/* What lies beside a figure. `flag`: what asked for it. */
static enum dtp_status take_beside(struct dtp_call_files *files, enum dtp_chart chart, const char *figure,
                                   const char *flag, struct dtp_faults *faults)
{
    struct dtp_chart_names names;
    enum dtp_status status = DTP_OK;
    if (dtp_chart_check_name(figure, faults) != DTP_OK)
        return DTP_BAD_INPUT;
    if (!dtp_chart_names_make(chart, figure, &names))
        status = no_memory(faults);
    if (names.script)
        status =
            dtp_worse(status, take_derived(files, names.script, "the script beside", flag, DTP_OUTPUT_SCRIPT, faults));
    if (names.data)
        status =
            dtp_worse(status, take_derived(files, names.data, "the data beside", flag, DTP_OUTPUT_CHART_DATA, faults));
    names.script = names.data = NULL;
    dtp_chart_names_release(&names);
    return status;
}

/* simulate --charts: a figure and its script beside a table. */
static enum dtp_status take_chart_of(struct dtp_call_files *files, enum dtp_chart chart,
                                     const struct dtp_typed_file *table, struct dtp_faults *faults)
{
    if (dtp_output_is_special(table->path)) /* before anything is tried beside it, in /dev */
        return dtp_fault(faults, DTP_BAD_INPUT, table->path, 0, "--charts: gnuplot needs a table in a plain file");
    char *figure = dtp_chart_beside(table->path, ".png");
    if (!figure)
        return no_memory(faults);
    enum dtp_status status = take_beside(files, chart, figure, table->flag, faults);
    return dtp_worse(status, take_derived(files, figure, "the figure beside", table->flag, DTP_OUTPUT_FIGURE, faults));
}

/* Of `chart`: the kind in its first word; where that is none the command says so. */
static enum dtp_chart chart_of(const struct dtp_arguments *a)
{
    enum dtp_chart chart = DTP_CHART_BACKTEST;
    if (a->command == DTP_COMMAND_CHART && a->word_count > 0)
        dtp_chart_parse(a->words[0], &chart);
    return chart;
}

static enum dtp_status take_output(struct dtp_call_files *files, const struct dtp_arguments *a,
                                   const struct dtp_typed_file *f, struct dtp_faults *faults)
{
    if (strcmp(f->path, "-") == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: standard output is taken by the report; name a file",
                         f->flag);
    enum dtp_status status = take(files, f->path, f->flag, true, f->kind, faults);
    if (f->kind == DTP_OUTPUT_FIGURE)
        status = dtp_worse(status, take_beside(files, chart_of(a), f->path, f->flag, faults));
    if (a->charts && f->kind == DTP_OUTPUT_TIMELINE)
        status = dtp_worse(status, take_chart_of(files, DTP_CHART_TIMELINE, f, faults));
    if (a->charts && f->kind == DTP_OUTPUT_MEMORY)
        status = dtp_worse(status, take_chart_of(files, DTP_CHART_MEMORY, f, faults));
    if (a->command == DTP_COMMAND_VALIDATE && f->kind == DTP_OUTPUT_ROWS && !dtp_output_is_special(f->path))
        status = dtp_worse(status, take_derived(files, dtp_call_files_times(f->path), "the folder of times beside",
                                                f->flag, DTP_OUTPUT_FOLDER, faults));
    return status;
}

/* ---- what is read ------------------------------------------------------------------------------------------------ */

/* Scenario files, tables and lists: the words of the line. */
static enum dtp_status take_word(struct dtp_call_files *files, const char *word, struct dtp_faults *faults)
{
    if (strcmp(word, "-") != 0)
        return dtp_call_files_add_input(files, word, "a file", faults);
    if (files->standard_input)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "-: standard input can be read once only; name files");
    files->standard_input = true;
    return DTP_OK;
}

/* A key's value, whole or as a list: of a sweep it is one. */
static enum dtp_status take_key(struct dtp_call_files *files, const struct dtp_typed_key *key,
                                struct dtp_faults *faults)
{
    if ((strcmp(key->key, "model") != 0 && strcmp(key->key, "machine") != 0) || !key->value)
        return DTP_OK;
    enum dtp_status status = dtp_call_files_add_input(files, key->value, "the file", faults);
    char *list = strdup(key->value), *rest = list;
    if (!list)
        return no_memory(faults);
    for (char *one; strchr(key->value, ',') && (one = strtok_r(rest, ",", &rest)) != NULL;)
        status = dtp_worse(status, dtp_call_files_add_input(files, one, "the file", faults));
    free(list);
    return status;
}

static enum dtp_status take_option_input(struct dtp_call_files *files, const struct dtp_arguments *a,
                                         const struct dtp_typed_file *f, struct dtp_faults *faults)
{
    if (strcmp(f->path, "-") == 0)
        return dtp_fault(
            faults, DTP_BAD_INPUT, NULL, 0,
            "%s: reads files only; standard input can be a scenario or a table, where its name would stand", f->flag);
    enum dtp_status status = dtp_call_files_add_input(files, f->path, "the file", faults);
    if (a->refit == f->path)
        status =
            dtp_worse(status, take_derived(files, dtp_call_files_refit(f->path), "the machine file that follows from",
                                           f->flag, DTP_OUTPUT_MACHINE, faults));
    return status;
}

/* ---- the line ---------------------------------------------------------------------------------------------------- */

/* Inputs first, so that a fault names the output as what is wrong. */
enum dtp_status dtp_call_files_add_line(struct dtp_call_files *files, const struct dtp_arguments *a,
                                        struct dtp_faults *faults)
{
    enum dtp_status worst = DTP_OK;
    for (size_t i = a->command == DTP_COMMAND_CHART; i < a->word_count; i++)
        worst = dtp_worse(worst, take_word(files, a->words[i], faults));
    for (size_t i = 0; i < a->setting_count; i++)
        worst = dtp_worse(worst, take_key(files, &a->settings[i], faults));
    for (size_t i = 0; i < a->file_count; i++)
        if (a->files[i].role == DTP_FILE_READ)
            worst = dtp_worse(worst, take_option_input(files, a, &a->files[i], faults));
    for (size_t i = 0; i < a->file_count; i++)
        if (a->files[i].role == DTP_FILE_WRITTEN)
            worst = dtp_worse(worst, take_output(files, a, &a->files[i], faults));
    return worst;
}

/* To open a pipe that nobody reads waits, after hours of work maybe. It is held until the call ends, for a reader takes
 * the leaving of the last writer for the end. */
static enum dtp_status hold_pipe(struct use *use, struct dtp_faults *faults)
{
    struct stat about;
    if (!use->written || stat(use->path, &about) != 0 || !S_ISFIFO(about.st_mode))
        return DTP_OK;
    use->pipe = open(use->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (use->pipe >= 0)
        return DTP_OK;
    if (errno == ENXIO)
        return dtp_fault(faults, DTP_ENVIRONMENT, use->path, 0,
                         "is a pipe that nobody reads; start its reader first, or name a file");
    return dtp_fault(faults, DTP_ENVIRONMENT, use->path, 0, "cannot be written: %s", strerror(errno));
}

/* An event file says who wrote it in bytes that are no text (exec/train/event_file.h). */
static bool opener_judges(const struct use *use)
{
    return use->kind == DTP_OUTPUT_STEP_LOG && dtp_step_log_is_events(use->path);
}

enum dtp_status dtp_call_files_check(struct dtp_call_files *files, const struct dtp_arguments *a,
                                     struct dtp_faults *faults)
{
    enum dtp_status worst = dtp_call_files_add_line(files, a, faults);
    for (size_t i = 0; i < files->count && worst == DTP_OK && !a->force; i++)
        if (files->uses[i].written && !opener_judges(&files->uses[i]))
            worst = dtp_output_may_replace(files->uses[i].path, files->uses[i].kind, faults);
    for (size_t i = 0; i < files->count && worst == DTP_OK; i++)
        worst = hold_pipe(&files->uses[i], faults);
    for (size_t i = 0; i < files->count && worst == DTP_OK; i++) {
        const struct use *use = &files->uses[i];
        bool adds = use->kind == DTP_OUTPUT_ROWS || use->kind == DTP_OUTPUT_CHOICES ||
                    use->kind == DTP_OUTPUT_STEP_LOG || use->kind == DTP_OUTPUT_FOLDER;
        if (use->written && !adds) /* whoever adds to a file opens it before any work */
            worst = dtp_output_try(use->path, faults);
    }
    return worst;
}
