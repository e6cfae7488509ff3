/* A line of progress on a terminal: what share is done and when the rest will be. Nothing where stderr is no terminal.
 */
#ifndef DTP_PROGRESS_H
#define DTP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct dtp_progress {
    bool shown;
    double start_s;
    uint64_t first;   /* items that were done before */
    const char *what; /* "rows"; borrowed */
};

struct dtp_progress dtp_progress_start(const char *what, uint64_t first);
/* Draws over the line before. */
void dtp_progress_draw(const struct dtp_progress *progress, uint64_t done, uint64_t count);
/* Removes the line. */
void dtp_progress_end(const struct dtp_progress *progress);
/* Seconds since the start. */
double dtp_progress_elapsed_s(const struct dtp_progress *progress);

#endif
