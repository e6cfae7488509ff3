/* `dtplan __man COMMAND` prints the page dtplan-COMMAND.1, which the build installs: one source with --help. */
#include "cli/command.h"
#include "cli/help.h"

#include <stdlib.h>
#include <string.h>

#define MAN_COLUMNS 72 /* of a screen of 80, indented by man */

/* Text as roff takes it: no hyphen becomes a dash that cannot be copied, no line begins a request. */
static void put(FILE *file, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", file);
    for (const char *c = text; *c; c++)
        if (*c == '-')
            fputs("\\-", file);
        else if (*c == '\\')
            fputs("\\e", file);
        else
            fputc(*c, file);
}

static void put_options(enum dtp_command command, FILE *file)
{
    size_t count;
    const struct dtp_option *options = dtp_options(&count);
    fputs(".SH OPTIONS\n", file);
    for (size_t i = 0; i < count; i++) {
        if (!(options[i].commands & 1u << command))
            continue;
        fputs(".TP\n\\fB", file);
        put(file, options[i].flag);
        fputs("\\fR", file);
        if (options[i].value) {
            fputs(" \\fI", file);
            put(file, options[i].value);
            fputs("\\fR", file);
        }
        fputc('\n', file);
        put(file, options[i].words);
        fputs(".\n", file);
    }
    if (dtp_command_takes_job(command))
        fputs(
            ".PP\nKeys of the job, \\fB\\-\\-model\\fR, \\fB\\-\\-gpus\\fR, \\fB\\-\\-strategy\\fR and all others, are "
            "listed in\n.BR dtplan (1),\nKEYS.\n",
            file);
}

/* As --help has them, for a screen of 80 columns: a reader copies comments and commands alike. */
static void put_examples(const struct dtp_command_help *help, FILE *file)
{
    char *text = NULL;
    size_t bytes = 0;
    struct dtp_page page = {.file = open_memstream(&text, &bytes), .columns = MAN_COLUMNS};
    for (size_t i = 0; page.file && i < DTP_HELP_EXAMPLES && help->examples[i][0]; i++) {
        dtp_page_wrap_comment(&page, 0, help->examples[i][1]);
        dtp_page_wrap_command(&page, 0, 4, help->examples[i][0]);
    }
    if (!page.file || fclose(page.file) != 0) {
        free(text);
        fprintf(stderr, "dtplan: warning: out of memory, so no examples\n");
        return;
    }
    fputs(".SH EXAMPLES\n.nf\n", file);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        put(file, line);
        fputc('\n', file);
    }
    fputs(".fi\n", file);
    free(text);
}

void dtp_man_command(enum dtp_command command, FILE *file)
{
    const struct dtp_command_help *help = dtp_help_of(command);
    const char *name = dtp_command_text(command);
    fprintf(file, ".\\\" Written by dtplan __man %s.\n.TH DTPLAN\\-", name);
    for (const char *c = name; *c; c++)
        fputc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, file);
    fprintf(file, " 1 \"\" \"dtplan %s\" \"dtplan\"\n.SH NAME\ndtplan\\-%s \\- ", DTPLAN_VERSION, name);
    char title[DTP_HELP_TITLE_BYTES];
    put(file, dtp_help_title(command, title, sizeof title));
    fputs("\n.SH SYNOPSIS\n", file);
    put(file, help->usage);
    fputs("\n.SH DESCRIPTION\n", file);
    put(file, help->words);
    fputc('\n', file);
    put_options(command, file);
    fputs(".SH EXIT STATUS\n", file);
    for (int i = DTP_OK; i <= DTP_ENVIRONMENT; i++) {
        fprintf(file, ".TP\n%d\n", i);
        put(file, dtp_exit_status_words(i));
        fputs(".\n", file);
    }
    put_examples(help, file);
    fputs(".SH SEE ALSO\n.BR dtplan (1),\n.BR dtplan\\-tutorial (7)\n", file);
}
