/* What the executor says while it measures, line by line, into rows of a measured machine file. */
#ifndef DTP_PROBE_EVENTS_H
#define DTP_PROBE_EVENTS_H

#include "machine/measured_row.h"
#include "cli/progress.h"

struct dtp_probe_heard {
    struct dtp_measured_row *rows; /* freed by dtp_probe_heard_release */
    size_t count, room;
    size_t paced;  /* rows before this one are in loops of pace.h, where the device is a host */
    double loop_s; /* the least of such a loop that was heard of; 0: none */
    bool started, ended, gpu;
    bool damaged; /* a line was none of the executor's, or there was no memory for it: the rows are not all */
    struct dtp_progress progress;
};

/* Draws the line of progress; warnings go to standard error. */
struct dtp_probe_heard dtp_probe_heard_start(void);
void dtp_probe_hear(void *heard, const char *line);
/* At the end, of a host: times in loops are made seconds again, of the loop at its best, whose row is added. Passes by
 * several numbers of ranks, each of which had its own cores for a while, so are of one speed. False: no memory. */
bool dtp_probe_heard_join(struct dtp_probe_heard *heard);
/* One more row; copied. False: no memory. */
bool dtp_probe_heard_keep(struct dtp_probe_heard *heard, const struct dtp_measured_row *row);
/* A row of `about`, of what the front end knows. False: no memory. */
bool dtp_probe_heard_about(struct dtp_probe_heard *heard, const char *key, const char *value);
/* The value of a row of `about`, or NULL. Borrowed. */
const char *dtp_probe_heard_text(const struct dtp_probe_heard *heard, const char *key);
void dtp_probe_heard_release(struct dtp_probe_heard *heard);

#endif
