/* The CSV file of a sweep: schema dtplan.sweep/1, in a row_file.h.
 *
 * Columns, found by name:
 *   schema   dtplan.sweep/1 in every row
 *   sweep    16 hexadecimal digits that stand for the command (keys, lists, fidelity), the program and the catalogues:
 *            rows of one file have one and the same, and rows of another sweep never go under it
 *   row      0, 1, 2, ...: the combination, the last list of the command varying fastest
 *   swept    the keys that vary, "gpus=8 strategy=ddp": a label
 *   strategy, refused_because and every column of `dtplan plan --csv` (reports/table/csv.c), units in their names
 * A combination that is refused is a row: refused_because has the reason, configuration columns what was asked, figures
 * are empty. One that does not fit is a row with its figures and verdict oom. */
#ifndef DTP_SWEEP_FILE_H
#define DTP_SWEEP_FILE_H

#include "record/report.h"
#include "page/row_file.h"

#define DTP_SWEEP_SCHEMA "dtplan.sweep/1"

/* The first line. Caller frees; NULL: no memory. */
char *dtp_sweep_header(void);
/* One row as text. `swept` is the label. */
void dtp_sweep_write_row(const struct dtp_row_file *sweep, uint64_t row, const char *swept,
                         const struct dtp_comparison_row *values, FILE *file);

#endif
