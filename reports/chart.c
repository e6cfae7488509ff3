#include "chart.h"

#include "output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* "folder/x.csv" with another ending, always with a folder before it. Caller frees; NULL: no memory. */
static char *beside(const char *csv, const char *ending)
{
    size_t length = strlen(csv);
    bool is_csv = length > 4 && strcmp(csv + length - 4, ".csv") == 0;
    char *path;
    int wrote = asprintf(&path, "%s%.*s%s", csv[0] == '/' ? "" : "./", (int)(is_csv && *ending ? length - 4 : length),
                         csv, ending);
    return wrote < 0 ? NULL : path;
}

static enum dtp_status write_script(enum dtp_chart chart, const char *path, struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status != DTP_OK)
        return status;
    fputs(dtp_chart_scripts[chart], output.file);
    return dtp_output_close(&output, faults);
}

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

struct drawing {
    char *csv, *script, *png, *temporary;
    FILE *words;
};

static bool name_files(struct drawing *d, const char *csv)
{
    char ending[48];
    snprintf(ending, sizeof ending, ".png.%ld.tmp", (long)getpid());
    d->csv = beside(csv, "");
    d->script = beside(csv, ".gp");
    d->png = beside(csv, ".png");
    d->temporary = beside(csv, ending);
    d->words = tmpfile();
    return d->csv && d->script && d->png && d->temporary && d->words;
}

static enum dtp_status draw(const struct drawing *d, const char *title, uint64_t closed_peak_bytes, char *said,
                            size_t said_bytes, struct dtp_faults *faults)
{
    char closed[32], words[256];
    int exit_status = 0;
    snprintf(closed, sizeof closed, "%llu", (unsigned long long)closed_peak_bytes);
    char *const arguments[] = {"gnuplot", "-d", "-c", d->script, d->csv, d->temporary, (char *)title, closed, NULL};
    int reason = run(arguments, d->words, &exit_status);
    if (reason == ENOENT) {
        snprintf(
            said, said_bytes,
            "%s is not drawn: there is no gnuplot here; install it (Debian: gnuplot-nox), then call gnuplot -c %s %s "
            "%s",
            d->png, d->script, d->csv, d->png);
        return DTP_OK;
    }
    if (reason)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "gnuplot: %s", strerror(reason));
    if (exit_status != 0) {
        first_words(d->words, words, sizeof words);
        unlink(d->temporary);
        return dtp_fault(faults, DTP_ENVIRONMENT, d->script, 0, "gnuplot failed: %s",
                         words[0] ? words : "no reason given");
    }
    if (rename(d->temporary, d->png) != 0)
        return dtp_fault(faults, DTP_ENVIRONMENT, d->png, 0, "cannot be written: %s", strerror(errno));
    snprintf(said, said_bytes, "%s: drawn by %s", d->png, d->script);
    return DTP_OK;
}

enum dtp_status dtp_chart_draw(enum dtp_chart chart, const char *csv, const char *title, uint64_t closed_peak_bytes,
                               char *said, size_t said_bytes, struct dtp_faults *faults)
{
    struct drawing d = {0};
    enum dtp_status status =
        name_files(&d, csv) ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "charts: %s", strerror(errno));
    if (status == DTP_OK)
        status = write_script(chart, d.script, faults);
    if (status == DTP_OK)
        status = draw(&d, title, closed_peak_bytes, said, said_bytes, faults);
    if (d.words)
        fclose(d.words);
    free(d.csv);
    free(d.script);
    free(d.png);
    free(d.temporary);
    return status;
}
