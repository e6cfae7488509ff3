#include "chart/chart.h"

#include "base/word_table.h"
#include "chart/chart_data.h"
#include "page/output_own.h"
#include "page/shell_word.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

#define ROW_COMMAND(suffix, name, words, command) command,
DTP_WORDS_OF_TABLE(dtp_chart_name, dtp_chart, DTP_CHART_TABLE, DTP_ROW_WORD)
DTP_WORDS_OF_TABLE(dtp_chart_words, dtp_chart, DTP_CHART_TABLE, DTP_ROW_SECOND)
DTP_WORDS_OF_TABLE(dtp_chart_command, dtp_chart, DTP_CHART_TABLE, ROW_COMMAND)
DTP_PARSE_OF_ARRAY(dtp_chart_parse, dtp_chart, dtp_chart_name_words, 0)

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Where the ending of a name begins, at its end where there is none that we know. */
static const char *ending_of(const char *path)
{
    static const char *const endings[] = {".csv", ".png", ".svg", ".pdf", ".txt"};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (length > 4 && path[length - 5] != '/' && strcmp(path + length - 4, endings[i]) == 0)
            return path + length - 4;
    return path + length;
}

bool dtp_chart_is_whole(enum dtp_chart chart)
{
    return chart == DTP_CHART_MEMORY;
}

enum dtp_status dtp_chart_check_name(const char *figure, struct dtp_faults *faults)
{
    const char *ending = ending_of(figure);
    return *ending && strcmp(ending, ".csv") != 0
               ? DTP_OK
               : dtp_fault(faults, DTP_BAD_INPUT, figure, 0, "a figure ends in .png, .svg, .pdf or .txt");
}

char *dtp_chart_beside(const char *path, const char *ending)
{
    char *other;
    const char *folder = path[0] == '/' || strncmp(path, "./", 2) == 0 ? "" : "./";
    int wrote = asprintf(&other, "%s%.*s%s", folder, (int)(ending_of(path) - path), path, ending);
    return wrote < 0 ? NULL : other;
}

bool dtp_chart_names_make(enum dtp_chart chart, const char *figure, struct dtp_chart_names *out)
{
    bool whole = dtp_chart_is_whole(chart);
    *out = (struct dtp_chart_names){.figure = dtp_chart_beside(figure, ending_of(figure)),
                                    .script = dtp_chart_beside(figure, ".gp"),
                                    .data = whole ? NULL : dtp_chart_beside(figure, ".data.csv")};
    return out->figure && out->script && (out->data || whole);
}

void dtp_chart_names_release(struct dtp_chart_names *names)
{
    free(names->figure);
    free(names->script);
    free(names->data);
    *names = (struct dtp_chart_names){0};
}

/* ---- gnuplot ----------------------------------------------------------------------------------------------------- */

#define NO_GNUPLOT "there is no gnuplot here; install it (Debian: gnuplot-nox)"

/* In the child. Ends with its parent, however that ends: nobody would take the figure. Returns only where the program
 * cannot be started, with the reason in errno. */
static void become(char *const arguments[], FILE *out, FILE *words, pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent && nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
        dup2(fileno(out), STDOUT_FILENO) >= 0 && dup2(fileno(words), STDERR_FILENO) >= 0)
        execvp(arguments[0], arguments);
}

/* Runs it with nothing to read, its output in `out` and its words in `words`. Returns 0 or the errno of starting it;
 * *exit_status as wait gives it. */
static int run(char *const arguments[], FILE *out, FILE *words, int *exit_status)
{
    int ends[2], reason = 0;
    pid_t self = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    pid_t child = fork();
    if (child == 0) {
        become(arguments, out, words, self);
        reason = errno;
        _exit(write(ends[1], &reason, sizeof reason) != sizeof reason);
    }
    if (child < 0)
        reason = errno;
    close(ends[1]);
    if (child > 0 && read(ends[0], &reason, sizeof reason) != sizeof reason)
        reason = 0; /* closed by the exec */
    close(ends[0]);
    while (child > 0 && waitpid(child, exit_status, 0) < 0)
        if (errno != EINTR)
            return errno;
    return reason;
}

/* The first line with a letter in it. */
static void first_words(FILE *words, char *out, size_t bytes)
{
    out[0] = '\0';
    rewind(words);
    while (fgets(out, (int)bytes, words))
        if (strspn(out, " \t\n\r^") < strlen(out))
            break;
    out[strcspn(out, "\n")] = '\0';
}

/* What gnuplot is called with. It writes to its standard output, a file without a name, so that whoever ends us leaves
 * nothing behind; "-.png" tells the script how to draw. */
struct drawing {
    const struct dtp_chart_figure *f;
    const char *csv, *script, *ending;
    FILE *drawn, *words;
};

static enum dtp_status no_file(struct dtp_faults *faults)
{
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "charts: %s", strerror(errno));
}

/* *drawn: false where there is no gnuplot. Caller closes the files of `d`, also after a failure. */
static enum dtp_status run_gnuplot(struct drawing *d, bool *drawn, struct dtp_faults *faults)
{
    char closed[32], columns[32], target[16], words[256];
    int exit_status = 0;
    *drawn = false;
    d->drawn = tmpfile();
    d->words = tmpfile();
    if (!d->drawn || !d->words)
        return no_file(faults);
    snprintf(closed, sizeof closed, "%llu", (unsigned long long)d->f->closed_peak_bytes);
    snprintf(target, sizeof target, "-%s", d->ending);
    snprintf(columns, sizeof columns, "columns=%d", d->f->columns ? d->f->columns : DTP_CHART_COLUMNS);
    char *const arguments[] = {
        "gnuplot",           "-d",   "-e", columns, "-c", (char *)d->script, (char *)d->csv, target,
        (char *)d->f->title, closed, NULL};
    int reason = run(arguments, d->drawn, d->words, &exit_status);
    *drawn = reason != ENOENT;
    if (!*drawn)
        return DTP_OK;
    if (reason)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "gnuplot: %s", strerror(reason));
    if (exit_status != 0) {
        first_words(d->words, words, sizeof words);
        return dtp_fault(faults, DTP_ENVIRONMENT, d->script, 0, "gnuplot failed: %s",
                         words[0] ? words : "no reason given");
    }
    return DTP_OK;
}

static void close_files(struct drawing *d)
{
    if (d->drawn)
        fclose(d->drawn);
    if (d->words)
        fclose(d->words);
}

void dtp_chart_foretell(const char *figure, char *said, size_t said_bytes)
{
    char *const arguments[] = {"gnuplot", "--version", NULL};
    int exit_status = 0;
    FILE *words = tmpfile();
    said[0] = '\0';
    if (words && run(arguments, words, words, &exit_status) == ENOENT)
        snprintf(said, said_bytes, "%s will not be drawn: " NO_GNUPLOT "; its data and its script will be written",
                 figure);
    if (words)
        fclose(words);
}

/* ---- into files -------------------------------------------------------------------------------------------------- */

/* What gnuplot reads: the script, and the data unless they are a file of the user's. */
static enum dtp_status write_inputs(const struct dtp_chart_names *names, const struct dtp_chart_figure *f,
                                    struct dtp_faults *faults)
{
    const char *script = dtp_chart_scripts[f->chart];
    char *text = NULL;
    size_t bytes = 0;
    enum dtp_status status = dtp_output_write_sealed(names->script, DTP_OUTPUT_SCRIPT, script, strlen(script), faults);
    FILE *file = status == DTP_OK && f->data ? open_memstream(&text, &bytes) : NULL;
    if (status != DTP_OK || !f->data)
        return status;
    if (file)
        dtp_chart_data_write(f->data, file);
    status = file && fclose(file) == 0
                 ? dtp_output_write_sealed(names->data, DTP_OUTPUT_CHART_DATA, text, bytes, faults)
                 : no_file(faults);
    free(text);
    return status;
}

static enum dtp_status write_figure(const char *path, FILE *drawn, struct dtp_faults *faults)
{
    long bytes = fseek(drawn, 0, SEEK_END) == 0 ? ftell(drawn) : -1;
    char *text = bytes > 0 ? malloc((size_t)bytes) : NULL;
    rewind(drawn);
    bool whole = text && fread(text, 1, (size_t)bytes, drawn) == (size_t)bytes;
    enum dtp_status status = whole ? dtp_output_write_sealed(path, DTP_OUTPUT_FIGURE, text, (size_t)bytes, faults)
                             : bytes == 0 ? dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "gnuplot drew nothing")
                                          : no_file(faults);
    free(text);
    return status;
}

/* "x.png: drawn by x.gp; again: gnuplot -c x.gp x.data.csv x.png", to be pasted into a shell. */
static void say(const struct dtp_chart_names *names, const char *csv, bool drawn, char *said, size_t bytes)
{
    FILE *file = fmemopen(said, bytes, "w");
    if (!file)
        return;
    if (drawn)
        fprintf(file, "%s: drawn by %s; again: gnuplot -c ", names->figure, names->script);
    else
        fprintf(file, "%s is not drawn: " NO_GNUPLOT ", then call gnuplot -c ", names->figure);
    const char *const words[] = {names->script, csv, names->figure};
    for (int i = 0; i < 3; i++) {
        fputs(i ? " " : "", file);
        dtp_shell_word(file, words[i]);
    }
    fclose(file);
    said[bytes - 1] = '\0';
}

enum dtp_status dtp_chart_draw(const struct dtp_chart_figure *figure, char *said, size_t said_bytes,
                               struct dtp_faults *faults)
{
    struct dtp_chart_names names;
    bool named = dtp_chart_names_make(figure->chart, figure->figure, &names), drawn = false;
    char *csv = figure->data ? names.data : dtp_chart_beside(figure->csv, ending_of(figure->csv));
    struct drawing d = {.f = figure, .csv = csv, .script = names.script, .ending = ending_of(figure->figure)};
    enum dtp_status status = named && csv ? write_inputs(&names, figure, faults) : no_file(faults);
    if (status == DTP_OK)
        status = run_gnuplot(&d, &drawn, faults);
    if (status == DTP_OK && drawn)
        status = write_figure(names.figure, d.drawn, faults);
    if (status == DTP_OK)
        say(&names, csv, drawn, said, said_bytes);
    close_files(&d);
    if (csv != names.data)
        free(csv);
    dtp_chart_names_release(&names);
    return status;
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

static void copy_text(FILE *from, FILE *out)
{
    char line[1024];
    rewind(from);
    while (fgets(line, sizeof line, from)) { /* gnuplot begins with a new page and fills lines with blanks */
        size_t length = strcspn(line, "\n");
        while (length > 0 && line[length - 1] == ' ')
            length--;
        line[length] = '\0';
        fprintf(out, "%s\n", line + strspn(line, "\f"));
    }
}

/* Files without a name, which the child reads as its open ones. */
enum dtp_status dtp_chart_print(const struct dtp_chart_figure *figure, int columns, FILE *out, bool *drawn,
                                struct dtp_faults *faults)
{
    char script[32], data[32];
    FILE *files[2] = {tmpfile(), tmpfile()};
    char *csv = figure->data ? NULL : dtp_chart_beside(figure->csv, ending_of(figure->csv));
    struct dtp_chart_figure text = *figure;
    text.columns = columns;
    struct drawing d = {.f = &text, .csv = csv ? csv : data, .script = script, .ending = ".txt"};
    *drawn = false;
    enum dtp_status status = files[0] && files[1] && (csv || figure->data) ? DTP_OK : no_file(faults);
    if (status == DTP_OK) {
        snprintf(script, sizeof script, "/proc/self/fd/%d", fileno(files[0]));
        snprintf(data, sizeof data, "/proc/self/fd/%d", fileno(files[1]));
        fputs(dtp_chart_scripts[figure->chart], files[0]);
        if (figure->data)
            dtp_chart_data_write(figure->data, files[1]);
        status = fflush(files[0]) == 0 && fflush(files[1]) == 0 ? DTP_OK : no_file(faults);
    }
    if (status == DTP_OK)
        status = run_gnuplot(&d, drawn, faults);
    if (status == DTP_OK && *drawn)
        copy_text(d.drawn, out);
    close_files(&d);
    for (int i = 0; i < 2; i++)
        if (files[i])
            fclose(files[i]);
    free(csv);
    return status;
}
