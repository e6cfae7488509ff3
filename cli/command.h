/* The commands. Each writes its whole output to context->out or context->page and returns the status to exit with; main
 * then writes the output in one go, so that a full disk or a closed pipe is one clear error. */
#ifndef DTP_COMMAND_H
#define DTP_COMMAND_H

#include "cli/arguments.h"
#include "cli/call_files.h"
#include "cli/progress.h"
#include "machine/catalog.h"
#include "page/page.h"
#include "import/import.h"
#include "job/axes.h"
#include "job/scenario.h"

struct dtp_context {
    const struct dtp_arguments *arguments;
    bool bare;            /* nothing at all was typed: help, not a fault */
    FILE *out;            /* for programs: written as it is */
    struct dtp_page page; /* for people: folded to the width of their screen, and written after it */
    struct dtp_faults *faults;
    struct dtp_call_files *files; /* all that the line names are in it and checked */
    struct dtp_import *import;    /* takes the files of --from */
    /* Of a call that is no command line but a program's (library/): the catalogues, read before; the text of a scenario
     * in place of a file, or NULL. Such a call says nothing on standard error and catches no signal. */
    const struct dtp_catalog *catalogues;
    const char *scenario;
};

#define DTP_COMMAND_FUNCTION(suffix, name, function)                                                                   \
    enum dtp_status dtp_command_##function(const struct dtp_context *context);
DTP_COMMAND_TABLE(DTP_COMMAND_FUNCTION)
#undef DTP_COMMAND_FUNCTION

/* ---- shared steps ----------------------------------------------------------------------------------------------- */

/* Progress of the call's work, silent where it is a program's. */
struct dtp_progress dtp_context_progress(const struct dtp_context *context, const char *what, uint64_t first);
/* Finds the data directory, reads the catalogues there and the files of --catalog and --machine. Caller destroys. */
enum dtp_status dtp_context_catalog(const struct dtp_context *context, struct dtp_catalog *out);
/* The files that a scenario names are read too: no output may be one of them. */
enum dtp_status dtp_context_spare(const struct dtp_context *context, const struct dtp_scenario *scenario);
/* Reads the scenario files alone, what --from says beside them, and the machine file that they name. Caller destroys,
 * also after DTP_BAD_INPUT. */
enum dtp_status dtp_context_files(const struct dtp_context *context, struct dtp_catalog *catalog,
                                  struct dtp_scenario **out);
/* Reads the scenario files, then sets the flags over them. Caller destroys. */
enum dtp_status dtp_context_scenario(const struct dtp_context *context, struct dtp_catalog *catalog,
                                     struct dtp_scenario **out);
/* The typed keys as axes, each a list of values. */
enum dtp_status dtp_context_axes(const struct dtp_arguments *arguments, const struct dtp_catalog *catalog,
                                 const char *where, struct dtp_axes *axes, struct dtp_faults *faults);
/* Refuses where no combination names a model, at `where` and `line` (NULL: the command line), with the words by which
 * one is named, before a table is made of refusals that all say so. */
enum dtp_status dtp_context_has_model(const struct dtp_catalog *catalog, const struct dtp_scenario *base,
                                      const struct dtp_axes *axes, const char *where, size_t line,
                                      struct dtp_faults *faults);
/* Both of them; calls `use` with what was read. */
enum dtp_status dtp_context_with_scenario(const struct dtp_context *context,
                                          enum dtp_status (*use)(const struct dtp_context *context,
                                                                 const struct dtp_catalog *catalog,
                                                                 struct dtp_scenario *scenario));
/* The same, and the job that they make. */
enum dtp_status dtp_context_with_job(const struct dtp_context *context,
                                     enum dtp_status (*use)(const struct dtp_context *context,
                                                            const struct dtp_job *job,
                                                            const struct dtp_catalog *catalog));
/* Of a line whose flags are faulty already: the faults of its values, files and names as well, all in one go. */
void dtp_context_collect(const struct dtp_context *context);
/* Writes the directory that holds the catalogues into `out`: $DTPLAN_DATA, <executable>/../share/dtplan, where
 * `cmake --install` put them, the source tree. */
enum dtp_status dtp_data_directory(char *out, size_t bytes, struct dtp_faults *faults);
/* The same, beside a program or library of that path. */
enum dtp_status dtp_data_directory_of(const char *file, char *out, size_t bytes, struct dtp_faults *faults);

/* What may stand for the last of the words that were typed behind the program's name: complete.c. */
enum dtp_status dtp_complete(const struct dtp_context *context, char **words, int count);
/* Help of one command, or of the program. */
void dtp_help_command(enum dtp_command command, const struct dtp_page *page);
void dtp_help_program(const struct dtp_page *page);

#endif
