#include "chart/chart.h"

#include "chart/chart_data.h"
#include "page/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *words, *command;
} kinds[DTP_CHART_COUNT] = {
#define CHART_KIND(suffix, name, words, command) {name, words, command},
    DTP_CHART_TABLE(CHART_KIND)
#undef CHART_KIND
};

const char *dtp_chart_name(enum dtp_chart chart)
{
    return kinds[chart].name;
}

const char *dtp_chart_words(enum dtp_chart chart)
{
    return kinds[chart].words;
}

const char *dtp_chart_command(enum dtp_chart chart)
{
    return kinds[chart].command;
}

bool dtp_chart_parse(const char *name, enum dtp_chart *out)
{
    for (int i = 0; i < DTP_CHART_COUNT; i++)
        if (strcmp(name, kinds[i].name) == 0) {
            *out = (enum dtp_chart)i;
            return true;
        }
    return false;
}

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
    int wrote = asprintf(&other, "%s%.*s%s", path[0] == '/' ? "" : "./", (int)(ending_of(path) - path), path, ending);
    return wrote < 0 ? NULL : other;
}

#define NO_GNUPLOT "there is no gnuplot here; install it (Debian: gnuplot-nox)"

/* ---- gnuplot ----------------------------------------------------------------------------------------------------- */

/* Runs it with nothing to read and its words in `words`. Returns 0 or the errno of starting it; *exit_status as wait
 * gives it. */
static int run(char *const arguments[], FILE *words, int *exit_status)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int reason = posix_spawn_file_actions_init(&actions);
    if (reason)
        return reason;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, fileno(words), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(words), STDERR_FILENO);
    reason = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (reason)
        return reason;
    while (waitpid(child, exit_status, 0) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
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

/* Of one call: every name with its folder, so that none looks like a command. The figure is drawn into `temporary`, of
 * the same ending, by which the script tells how to draw. */
struct drawing {
    char *csv, *script, *figure, *temporary;
    FILE *words;
};

static bool name_files(struct drawing *d, const struct dtp_chart_figure *f)
{
    char ending[48];
    const char *own = ending_of(f->figure);
    snprintf(ending, sizeof ending, ".%ld.tmp%s", (long)getpid(), own);
    d->csv = f->data ? dtp_chart_beside(f->figure, ".data.csv") : dtp_chart_beside(f->csv, ending_of(f->csv));
    d->script = dtp_chart_beside(f->figure, ".gp");
    d->figure = dtp_chart_beside(f->figure, own);
    d->temporary = dtp_chart_beside(f->figure, ending);
    d->words = tmpfile();
    return d->csv && d->script && d->figure && d->temporary && d->words;
}

/* What gnuplot reads: the script, and the data unless they are a file of the user's. */
static enum dtp_status write_inputs(const struct drawing *d, const struct dtp_chart_figure *f,
                                    struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = dtp_output_open(d->script, &output, faults);
    if (status != DTP_OK)
        return status;
    fputs(dtp_chart_scripts[f->chart], output.file);
    status = dtp_output_close(&output, faults);
    if (status == DTP_OK && f->data)
        status = dtp_output_open(d->csv, &output, faults);
    if (status != DTP_OK || !f->data)
        return status;
    dtp_chart_data_write(f->data, output.file);
    return dtp_output_close(&output, faults);
}

static void release(struct drawing *d)
{
    if (d->words)
        fclose(d->words);
    free(d->csv);
    free(d->script);
    free(d->figure);
    free(d->temporary);
}

/* *drawn: false where there is no gnuplot. */
static enum dtp_status run_gnuplot(const struct drawing *d, const struct dtp_chart_figure *f, bool *drawn,
                                   struct dtp_faults *faults)
{
    char closed[32], words[256];
    int exit_status = 0;
    snprintf(closed, sizeof closed, "%llu", (unsigned long long)f->closed_peak_bytes);
    char *const arguments[] = {"gnuplot", "-d", "-c", d->script, d->csv, d->temporary, (char *)f->title, closed, NULL};
    int reason = run(arguments, d->words, &exit_status);
    *drawn = reason != ENOENT;
    if (!*drawn)
        return DTP_OK;
    if (reason)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "gnuplot: %s", strerror(reason));
    if (exit_status != 0) {
        first_words(d->words, words, sizeof words);
        unlink(d->temporary);
        return dtp_fault(faults, DTP_ENVIRONMENT, d->script, 0, "gnuplot failed: %s",
                         words[0] ? words : "no reason given");
    }
    return DTP_OK;
}

enum dtp_status dtp_chart_try(const char *figure, char *said, size_t said_bytes, struct dtp_faults *faults)
{
    char *const arguments[] = {"gnuplot", "--version", NULL};
    int exit_status = 0;
    said[0] = '\0';
    enum dtp_status status = dtp_chart_check_name(figure, faults);
    if (status == DTP_OK)
        status = dtp_output_try(figure, faults);
    FILE *words = status == DTP_OK ? tmpfile() : NULL;
    if (status == DTP_OK && !words)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "charts: %s", strerror(errno));
    if (words && run(arguments, words, &exit_status) == ENOENT)
        snprintf(said, said_bytes, "%s will not be drawn: " NO_GNUPLOT "; its data and its script will be written",
                 figure);
    if (words)
        fclose(words);
    return status;
}

static enum dtp_status draw(const struct drawing *d, const struct dtp_chart_figure *f, char *said, size_t said_bytes,
                            struct dtp_faults *faults)
{
    bool drawn;
    enum dtp_status status = run_gnuplot(d, f, &drawn, faults);
    if (status != DTP_OK)
        return status;
    if (!drawn) {
        snprintf(said, said_bytes, "%s is not drawn: " NO_GNUPLOT ", then call gnuplot -c %s %s %s", d->figure,
                 d->script, d->csv, d->figure);
        return DTP_OK;
    }
    if (rename(d->temporary, d->figure) != 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, d->figure, 0, "cannot be written: %s", strerror(errno));
    snprintf(said, said_bytes, "%s: drawn by %s; again: gnuplot -c %s %s %s", d->figure, d->script, d->script, d->csv,
             d->figure);
    return DTP_OK;
}

enum dtp_status dtp_chart_draw(const struct dtp_chart_figure *figure, char *said, size_t said_bytes,
                               struct dtp_faults *faults)
{
    struct drawing d = {0};
    enum dtp_status status =
        name_files(&d, figure) ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "charts: %s", strerror(errno));
    if (status == DTP_OK)
        status = write_inputs(&d, figure, faults);
    if (status == DTP_OK)
        status = draw(&d, figure, said, said_bytes, faults);
    release(&d);
    return status;
}

/* ---- as text ----------------------------------------------------------------------------------------------------- */

static enum dtp_status copy_file(const char *path, FILE *out, struct dtp_faults *faults)
{
    char line[1024];
    FILE *file = fopen(path, "r");
    if (!file)
        return dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "cannot be read: %s", strerror(errno));
    while (fgets(line, sizeof line, file))
        fputs(line + strspn(line, "\f"), out); /* gnuplot begins with a new page */
    fclose(file);
    return DTP_OK;
}

enum dtp_status dtp_chart_print(const struct dtp_chart_figure *figure, FILE *out, bool *drawn,
                                struct dtp_faults *faults)
{
    char folder[4096], path[4200];
    const char *temporary = getenv("TMPDIR");
    struct drawing d = {0};
    *drawn = false;
    snprintf(folder, sizeof folder, "%s/dtplan-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    if (!mkdtemp(folder))
        return dtp_fault(faults, DTP_ENVIRONMENT, folder, 0, "cannot be made: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/figure.txt", folder);
    struct dtp_chart_figure text = *figure;
    text.figure = path;
    enum dtp_status status = name_files(&d, &text)
                                 ? write_inputs(&d, &text, faults)
                                 : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "charts: %s", strerror(errno));
    if (status == DTP_OK)
        status = run_gnuplot(&d, &text, drawn, faults);
    if (status == DTP_OK && *drawn)
        status = copy_file(d.temporary, out, faults);
    if (d.temporary)
        unlink(d.temporary);
    if (d.script)
        unlink(d.script);
    if (d.csv && figure->data)
        unlink(d.csv);
    rmdir(folder);
    release(&d);
    return status;
}
