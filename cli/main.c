/* dtplan: predicts memory, communication, time and cost of training a model, before GPUs are rented.
 *
 * main reads the line, runs one command into memory, writes the result out and chooses the exit status. */
#include "cli/command.h"
#include "cli/from.h"
#include "cli/help.h"
#include "base/host_arena.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDEST_COLUMNS 10000 /* no table is as wide */

static void print_faults(const struct dtp_faults *faults)
{
    for (size_t i = 0; i < faults->count && i < DTP_FAULTS_KEPT; i++)
        fprintf(stderr, "dtplan: %s\n", faults->text[i]);
    if (faults->count > DTP_FAULTS_KEPT)
        fprintf(stderr, "dtplan: and %zu more\n", faults->count - DTP_FAULTS_KEPT);
}

/* COLUMNS where it is a number, as for other programs that print tables; else what the terminal says; 0: neither. */
static int reader_columns(void)
{
    const char *columns = getenv("COLUMNS");
    struct winsize window;
    char *end;
    long asked = columns && *columns ? strtol(columns, &end, 10) : 0;
    if (asked > 0 && *end == '\0')
        return asked < WIDEST_COLUMNS ? (int)asked : WIDEST_COLUMNS;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 ? window.ws_col : 0;
}

static struct dtp_page terminal_page(FILE *file)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    struct dtp_page page = {.file = file, .columns = reader_columns()};
    page.colour = isatty(STDOUT_FILENO) && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
    page.utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    return page;
}

static enum dtp_status (*const commands[])(const struct dtp_context *context) = {
#define COMMAND(suffix, name, function) dtp_command_##function,
    DTP_COMMAND_TABLE(COMMAND)
#undef COMMAND
};

/* `dtplan __man COMMAND`, as the build calls it. */
static int print_manual(const char *name)
{
    enum dtp_command command;
    if (!name || !dtp_command_parse(name, &command))
        return DTP_BAD_INPUT;
    dtp_man_command(command, stdout);
    return fflush(stdout) == 0 ? DTP_OK : DTP_ENVIRONMENT;
}

static enum dtp_status run(const struct dtp_context *context)
{
    const struct dtp_arguments *a = context->arguments;
    if (a->version) {
        fprintf(context->out, "dtplan %s\n", DTPLAN_VERSION);
        return DTP_OK;
    }
    if (a->help) {
        if (a->command == DTP_COMMAND_HELP || (a->command == DTP_COMMAND_PLAN && !a->command_named))
            dtp_help_program(&context->page);
        else
            dtp_help_command(a->command, &context->page);
        return DTP_OK;
    }
    enum dtp_status status = dtp_call_files_check(context->files, a, context->faults);
    return status == DTP_OK ? commands[a->command](context) : status;
}

/* Writes all of it to standard output, whatever that is; a pipe closed by its reader is an error like a full disk. */
static enum dtp_status write_out(const char *text, size_t bytes, struct dtp_faults *faults)
{
    while (bytes > 0) {
        ssize_t wrote = write(STDOUT_FILENO, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "standard output: %s; the output is incomplete",
                             strerror(errno));
        text += wrote;
        bytes -= (size_t)wrote;
    }
    return DTP_OK;
}

/* What a command prints: `page` for people, which is folded to their screen, `out` for programs, as it is. */
struct output {
    FILE *page, *out;
    char *page_text, *text;
    size_t page_bytes, bytes;
};

static enum dtp_status output_open(struct output *o, struct dtp_faults *faults)
{
    o->page = open_memstream(&o->page_text, &o->page_bytes);
    o->out = open_memstream(&o->text, &o->bytes);
    return o->page && o->out ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
}

/* Writes out what there is and frees it. */
static enum dtp_status output_close(struct output *o, const struct dtp_context *answered, int columns,
                                    struct dtp_faults *faults)
{
    bool whole = o->page && o->out && fclose(o->page) == 0;
    if (whole)
        dtp_page_fold(o->page_text, o->page_bytes, columns, o->out);
    if (o->out && fclose(o->out) != 0)
        whole = false;
    enum dtp_status status =
        whole ? DTP_OK : dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while writing the report");
    if (whole && answered && !dtp_from_add_json(answered, &o->text, &o->bytes))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory while writing the report");
    enum dtp_status written = write_out(o->text, o->text ? o->bytes : 0, faults);
    free(o->text);
    free(o->page_text);
    return dtp_worse(written, status);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "__man") == 0)
        return print_manual(argv[2]);
    dtp_host_memory_keep();
    static struct dtp_faults faults;
    struct dtp_arguments arguments;
    struct output output = {0};
    setlocale(LC_CTYPE, ""); /* only to learn whether bars can be UTF-8; numbers stay in the C locale */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond a limit fails instead, and says of which file */
    bool completes =
        argc > 1 && strcmp(argv[1], "__complete") == 0; /* words as far as they are typed: no line to judge */
    enum dtp_status status = dtp_arguments_read(completes ? 1 : argc, argv, &arguments, &faults);
    enum dtp_status opened = output_open(&output, &faults);
    struct dtp_call_files *files = dtp_call_files_create();
    struct dtp_import *import = dtp_import_create();
    if (!files || !import)
        opened = dtp_fault(&faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    struct dtp_context context = {&arguments, argc < 2, output.out, terminal_page(output.page), &faults, files, import};
    if (opened != DTP_OK)
        status = opened;
    else if (completes)
        status = dtp_complete(&context, argv + 2, argc - 2);
    else if (status == DTP_OK)
        status = run(&context);
    else if (dtp_command_takes_job(arguments.command))
        dtp_context_collect(&context);
    bool answered = status == DTP_OK || status == DTP_NO;
    if (answered)
        dtp_from_say(&context);
    enum dtp_status closed =
        output_close(&output, answered ? &context : NULL, dtp_page_columns(&context.page), &faults);
    print_faults(&faults);
    dtp_import_destroy(import);
    dtp_call_files_destroy(files);
    dtp_arguments_destroy(&arguments);
    return (int)(closed > status ? closed : status);
}
