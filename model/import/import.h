/* Configuration files of training frameworks, read as if their settings had been typed.
 *
 * What a file is, its content says, never its name. Each of its settings is used, or changes neither memory nor time,
 * or is refused with its line: which of them stands in the format's table. What the line or a scenario says comes
 * before what a file says, and of several files the last one. */
#ifndef DTP_IMPORT_H
#define DTP_IMPORT_H

#include "import/entries.h"
#include "job/scenario.h"

struct dtp_import; /* opaque */

/* NULL: no memory. */
struct dtp_import *dtp_import_create(void);
void dtp_import_destroy(struct dtp_import *import);

/* Reads a file and finds out what it is. All faults of the file at once. */
enum dtp_status dtp_import_read(struct dtp_import *import, const char *path, struct dtp_faults *faults);
/* The same of a text that is called `path`; `format` NULL: by its content, else the format's name. */
enum dtp_status dtp_import_parse(struct dtp_import *import, const char *path, const char *text, size_t bytes,
                                 struct dtp_faults *faults);

/* What was typed beside the files, which comes before them: the text of a key, or NULL. */
struct dtp_import_said {
    const char *(*value)(const void *context, const char *key);
    const void *context;
    /* Keys that somebody must say, besides the model: "gpu", "gpus", "seq"; NULL behind the last. */
    const char *const *needed;
};

/* Sets keys of the scenario that it has not, nor `said`. DTP_BAD_INPUT: a setting that is not modelled, that stands for
 * what somebody else fills in, or something that nobody says. */
enum dtp_status dtp_import_apply(struct dtp_import *import, struct dtp_scenario *scenario,
                                 const struct dtp_import_said *said, struct dtp_faults *faults);

/* Settings that the files left to the model's width, behind dtp_import_apply: 0 where none were, else the fault's
 * status if `hidden` is 0. */
enum dtp_status dtp_import_finish(struct dtp_import *import, struct dtp_scenario *scenario, uint64_t hidden,
                                  struct dtp_faults *faults);
bool dtp_import_needs_hidden(const struct dtp_import *import);

/* A file that was read, for reports. Borrowed. */
struct dtp_imported {
    const char *path, *format, *title, *silent;
    const struct dtp_entry *entries;
    size_t entry_count, used, aside, replaced;
};
size_t dtp_import_count(const struct dtp_import *import);
struct dtp_imported dtp_import_file(const struct dtp_import *import, size_t index);
const char *dtp_entry_fate_text(enum dtp_entry_fate fate);

#endif
