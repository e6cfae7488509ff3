/* What is said of a command, by --help and by its page of the manual. */
#ifndef DTP_HELP_H
#define DTP_HELP_H

#include "cli/arguments.h"

#include <stdio.h>

#define DTP_HELP_EXAMPLES 8
struct dtp_command_help {
    const char *usage, *words;
    const char *examples[DTP_HELP_EXAMPLES][2]; /* command, what it does; NULL behind the last */
};
const struct dtp_command_help *dtp_help_of(enum dtp_command command);
/* Of its words the first sentence, as a title has it: "predicts memory, ... of one training job". Returns `out`. */
#define DTP_HELP_TITLE_BYTES 200
const char *dtp_help_title(enum dtp_command command, char *out, size_t bytes);
/* What exit status `status`, 0 to 3, means. */
const char *dtp_exit_status_words(int status);

/* The command's page for man, as roff: usage, words, options and examples are those of --help. (man.c) */
void dtp_man_command(enum dtp_command command, FILE *file);

#endif
