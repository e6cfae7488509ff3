/* A file that is there whole or not at all: written beside its name and renamed when it is complete.
 *
 * What is no plain file (a link such as /dev/stdout, a pipe) is written straight: to rename over it would replace the
 * link or the device itself. */
#ifndef DTP_OUTPUT_FILE_H
#define DTP_OUTPUT_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

struct dtp_output_file {
    FILE *file; /* to write to; errors may be left on it */
    const char *path;
    char *temporary; /* NULL: `path` itself is open */
};

/* Whether there is something of that name that is no plain file; a link is none, whatever it leads to. */
bool dtp_output_is_special(const char *path);
/* `path` is borrowed until the file is closed. DTP_ENVIRONMENT: it cannot be written, with the reason. */
enum dtp_status dtp_output_open(const char *path, struct dtp_output_file *out, struct dtp_faults *faults);
/* Puts the file in its place, or, where anything failed, removes it and says why. */
enum dtp_status dtp_output_close(struct dtp_output_file *output, struct dtp_faults *faults);
/* Whether a file of that name can be written, for those who shall learn it before long work and not after. NULL: no
 * file is asked for. */
enum dtp_status dtp_output_try(const char *path, struct dtp_faults *faults);
/* DTP_BAD_INPUT: a plain file of that name holds something already; says that --force replaces it. */
enum dtp_status dtp_output_keep(const char *path, struct dtp_faults *faults);
/* Removes what was written: something else went wrong. */
void dtp_output_abandon(struct dtp_output_file *output);

#endif
