/* The files that one call reads and writes: the one place that decides whether an output may be written.
 *
 * An output is never an input of the same call nor another of its outputs, whatever the names are: two names are one
 * file where device and inode are the same (hard and symbolic links), or where neither is there yet and both lead to
 * the same name of the same folder. What a command derives from an option counts too: script and data beside a figure,
 * the figures beside tables, the refitted machine file, the folder of times beside a validation. And an output replaces
 * nothing that dtplan did not write (output_own.h) without --force. All of this is said before any work. */
#ifndef DTP_CALL_FILES_H
#define DTP_CALL_FILES_H

#include "cli/arguments.h"

struct dtp_call_files; /* opaque */

/* NULL: no memory. */
struct dtp_call_files *dtp_call_files_create(void);
void dtp_call_files_destroy(struct dtp_call_files *files);

/* Takes all files of the call's own line, and checks what it may write and whether it can. DTP_BAD_INPUT: not, with
 * every reason; DTP_ENVIRONMENT: a place that cannot be written. */
enum dtp_status dtp_call_files_check(struct dtp_call_files *files, const struct dtp_arguments *arguments,
                                     struct dtp_faults *faults);
/* Takes what a line of a list adds to them, and which files that line's own would spoil. */
enum dtp_status dtp_call_files_add_line(struct dtp_call_files *files, const struct dtp_arguments *line,
                                        struct dtp_faults *faults);
/* Takes a file that something else than the line names, which is about to be read. `what` is what it is read as, a
 * constant; `path` NULL: none. A name that leads to no file is no file's: of a model, say. */
enum dtp_status dtp_call_files_add_input(struct dtp_call_files *files, const char *path, const char *what,
                                         struct dtp_faults *faults);

/* Takes a file that is about to be written beside what the line names: of a folder. As `what` it is called in faults.
 * DTP_BAD_INPUT: it is read by this call, or there already without --force. */
enum dtp_status dtp_call_files_add_output(struct dtp_call_files *files, const char *path, const char *what, bool force,
                                          struct dtp_faults *faults);

/* "machine.csv" becomes "machine-refit.csv", what --refit writes; "validate.csv" becomes "validate.ops", the folder of
 * the operations' times. Caller frees; NULL: no memory. */
char *dtp_call_files_refit(const char *machine);
char *dtp_call_files_times(const char *rows);

#endif
