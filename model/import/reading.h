/* One file while its settings become keys: inside of import.c and reading.c. */
#ifndef DTP_IMPORT_READING_H
#define DTP_IMPORT_READING_H

#include "import/format.h"
#include "import/import.h"

/* "auto" of a setting, until somebody says the key. */
struct dtp_pending {
    const char *key;
    struct dtp_entry *entry;
    const struct dtp_import_file *file;
};

#define DTP_PENDING_MOST 64

struct dtp_import_file {
    char *path;
    const struct dtp_format *format;
    struct dtp_entries entries;
};

struct dtp_import {
    struct dtp_import_file *files;
    size_t count;
    struct dtp_pending pending[DTP_PENDING_MOST];
    size_t pending_count;
};

struct dtp_reading {
    struct dtp_import *import;
    struct dtp_import_file *file;
    struct dtp_scenario *scenario;
    const struct dtp_import_said *said;
    struct dtp_faults *faults;
};

/* The faults of one file, which is of a known format and whose entries have their rows. */
enum dtp_status dtp_reading_run(struct dtp_reading *reading);
/* Whether a row's name is a key or a fact of its format: tests hold all tables against it. */
bool dtp_row_is_sound(const struct dtp_row *row);

#endif
