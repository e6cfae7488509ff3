/* Charts of CSV files, drawn by gnuplot as a process of its own.
 *
 * The script is written beside the table, so that a user can change it and draw again. It holds no name: files and
 * title reach gnuplot as arguments, never through a shell, and no file name can start with what gnuplot takes for a
 * command
 * ('<', '|', '~'), for all are given with their folder. Without gnuplot there are the table, the script and a sentence.
 */
#ifndef DTP_CHART_H
#define DTP_CHART_H

#include "status.h"

#include <stdint.h>

enum dtp_chart { DTP_CHART_MEMORY, DTP_CHART_TIMELINE };

/* Draws `csv` (a plain file; "x.csv" gives "x.gp" and "x.png" beside it). `closed_peak_bytes` is marked in the chart of
 * memory, 0: not. `said` gets what was done in one sentence. DTP_ENVIRONMENT: a file cannot be written, or gnuplot
 * failed, with its own words. */
enum dtp_status dtp_chart_draw(enum dtp_chart chart, const char *csv, const char *title, uint64_t closed_peak_bytes,
                               char *said, size_t said_bytes, struct dtp_faults *faults);

/* The scripts, put into the program when it is built. */
extern const char *const dtp_chart_scripts[2];

#endif
