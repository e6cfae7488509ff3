/* Progress of work on stderr: what share is done and when the rest will be. On a terminal a line that moves; into a
 * file or a pipe a whole line every five seconds, so that short work says nothing. */
#ifndef DTP_PROGRESS_H
#define DTP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct dtp_progress {
    bool silent;            /* nobody reads it */
    bool moves;             /* a terminal */
    double start_s, said_s; /* of the last line that does not move */
    uint64_t first;         /* items that were done before */
    const char *what;       /* "rows"; borrowed */
};

struct dtp_progress dtp_progress_start(const char *what, uint64_t first);
/* Says nothing. */
struct dtp_progress dtp_progress_none(void);
/* Draws over the line before, or says another one when that is due. */
void dtp_progress_draw(struct dtp_progress *progress, uint64_t done, uint64_t count);
/* Removes the line. */
void dtp_progress_end(const struct dtp_progress *progress);
/* Seconds since the start. */
double dtp_progress_elapsed_s(const struct dtp_progress *progress);

#endif
