/* The CSV file of a sweep: schema dtplan.sweep/1, appended row by row, resumed where it was cut off.
 *
 * Columns, found by name:
 *   schema   dtplan.sweep/1 in every row
 *   sweep    16 hexadecimal digits that stand for the command (keys, lists, fidelity), the program and the catalogues:
 *            rows of one file have one and the same, and rows of another sweep never go under it
 *   row      0, 1, 2, ...: the combination, the last list of the command varying fastest
 *   swept    the keys that vary, "gpus=8 strategy=ddp": a label
 *   strategy, refused_because and every column of `dtplan plan --csv` (reports/csv.c), units in their names
 * A combination that is refused is a row: refused_because has the reason, configuration columns what was asked, figures
 * are empty. One that does not fit is a row with its figures and verdict oom.
 *
 * Rows are whole lines (no field holds a line end) and are appended by one write each chunk; what a full disk left of a
 * row is cut off again. One process at a time writes a file. */
#ifndef DTP_SWEEP_FILE_H
#define DTP_SWEEP_FILE_H

#include "report.h"

#define DTP_SWEEP_SCHEMA "dtplan.sweep/1"

struct dtp_sweep_file {
    const char *path; /* borrowed; NULL: standard output */
    int descriptor;
    bool plain;          /* a file that can be cut, not a pipe or a device */
    uint64_t rows;       /* whole rows in it */
    int64_t whole_bytes; /* of the plain file up to the last whole row */
    uint64_t sweep;
};

/* Opens and, of a file with rows of the same sweep, counts them and cuts off a last one that is not whole; of an empty
 * or new one writes the header. `path` NULL: standard output. DTP_BAD_INPUT: the file holds something else, or more
 * than `rows` rows. DTP_ENVIRONMENT: it cannot be written, or another process writes it. */
enum dtp_status dtp_sweep_open(const char *path, uint64_t sweep, uint64_t rows, struct dtp_sweep_file *out,
                               struct dtp_faults *faults);
/* Appends `rows` whole rows. */
enum dtp_status dtp_sweep_append(struct dtp_sweep_file *file, const char *text, size_t bytes, uint64_t rows,
                                 struct dtp_faults *faults);
enum dtp_status dtp_sweep_close(struct dtp_sweep_file *file, struct dtp_faults *faults);

/* One row as text. `swept` is the label. */
void dtp_sweep_write_row(uint64_t sweep, uint64_t row, const char *swept, const struct dtp_comparison_row *values,
                         FILE *file);

#endif
