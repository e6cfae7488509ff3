/* A file that is there whole or not at all: written beside its name and renamed when it is complete.
 *
 * A symbolic link to a plain file stays a link: what it leads to is replaced. What is no plain file (a pipe, a device,
 * whatever /proc shows of open files, /dev/stdout among them) is written straight: to rename over it would replace the
 * link or the device itself. */
#ifndef DTP_OUTPUT_FILE_H
#define DTP_OUTPUT_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

struct dtp_output_file {
    FILE *file; /* to write to; errors may be left on it */
    const char *path;
    char *temporary, *place; /* NULL: `path` itself is open; else what is written, and the name that it will get */
};

/* Whether that name leads to something that is no plain file, or that has no name of its own to rename over. */
bool dtp_output_is_special(const char *path);
/* The name of the plain file that `path` leads to through symbolic links, or would: none need be there. Caller frees;
 * NULL: it is special, with errno 0, or cannot be told, with the reason in errno. */
char *dtp_output_place(const char *path);
/* `path` is borrowed until the file is closed. DTP_ENVIRONMENT: it cannot be written, with the reason. */
enum dtp_status dtp_output_open(const char *path, struct dtp_output_file *out, struct dtp_faults *faults);
/* Puts the file in its place, or, where anything failed, removes it and says why. */
enum dtp_status dtp_output_close(struct dtp_output_file *output, struct dtp_faults *faults);
/* Whether a file of that name can be written, for those who shall learn it before long work and not after. */
enum dtp_status dtp_output_try(const char *path, struct dtp_faults *faults);
/* The same of what `written` is the status of: where that is not DTP_OK the file is removed. */
enum dtp_status dtp_output_end(struct dtp_output_file *output, enum dtp_status written, struct dtp_faults *faults);

#endif
