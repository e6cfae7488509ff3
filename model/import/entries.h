/* A configuration file as a flat list: one entry a setting, with its path, its value and its line.
 *
 * JSON, YAML, TOML and lists of flags all become such a list, so that one reader of formats serves them. Tables are
 * joined by points ("zero_optimization.offload_param.device"); a list of plain values is one entry with commas between
 * ("q_proj,v_proj"); of a list of tables each entry has "[]" where the number would stand ("datasets[].path"). */
#ifndef DTP_IMPORT_ENTRIES_H
#define DTP_IMPORT_ENTRIES_H

#include "base/host_arena.h"
#include "base/status.h"

/* What became of an entry. */
enum dtp_entry_fate {
    DTP_ENTRY_UNREAD,
    DTP_ENTRY_USED,     /* it said something of the job */
    DTP_ENTRY_ASIDE,    /* without effect on memory and time */
    DTP_ENTRY_REPLACED, /* something that comes before it says otherwise */
    DTP_ENTRY_REFUSED,
};

struct dtp_row; /* format.h */

struct dtp_entry {
    const char *path;
    const char *value; /* "" of an empty list or table; true and false whatever the language's words for them are */
    size_t line;
    bool null; /* null, ~ or None: as if it were not there */
    enum dtp_entry_fate fate;
    const struct dtp_row *row; /* of its format, once it is read; NULL: no setting of it */
    const char *words;         /* what it became, or why not; NULL while unread */
};

#define DTP_ENTRIES_MOST 5000
#define DTP_ENTRIES_MOST_DEPTH 32
#define DTP_ENTRIES_MOST_FILE_BYTES ((size_t)4 << 20)

/* Zero-initialise to start; texts live in the arena. */
struct dtp_entries {
    struct dtp_host_arena arena;
    struct dtp_entry *items;
    size_t count, room;
    const char *name; /* of the file, for faults; borrowed */
    bool too_many;    /* said once, however many there are beyond what a configuration has */
};

void dtp_entries_release(struct dtp_entries *entries);
/* Copies path and value. A path that is there already is a fault. */
enum dtp_status dtp_entries_add(struct dtp_entries *entries, const char *path, const char *value, size_t line,
                                struct dtp_faults *faults);
/* The entry of that path, or NULL. */
struct dtp_entry *dtp_entries_find(const struct dtp_entries *entries, const char *path);
/* A formatted text that lives as long as the entries; NULL: no memory. */
const char *dtp_entries_text(struct dtp_entries *entries, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Values that are nothing but "${a.b}" become those of the entry "a.b", as OmegaConf reads them. */
enum dtp_status dtp_entries_interpolate(struct dtp_entries *entries, struct dtp_faults *faults);

/* Each reads a whole text, which ends in a NUL byte behind `bytes` bytes, into empty entries. */
enum dtp_status dtp_entries_read_yaml(struct dtp_entries *entries, const char *text, size_t bytes,
                                      struct dtp_faults *faults);
/* Strict JSON; lines are those of YAML, of which JSON is a part. */
enum dtp_status dtp_entries_read_json(struct dtp_entries *entries, const char *text, size_t bytes,
                                      struct dtp_faults *faults);
enum dtp_status dtp_entries_read_toml(struct dtp_entries *entries, const char *text, size_t bytes,
                                      struct dtp_faults *faults);
/* "--tensor-model-parallel-size 4" and "--bf16", in a text of flags or a shell script whose variables are plain: the
 * path is the flag without its hyphens, with '_' for '-' within. */
enum dtp_status dtp_entries_read_flags(struct dtp_entries *entries, const char *text, size_t bytes,
                                       struct dtp_faults *faults);

#endif
