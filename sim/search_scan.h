/* Inside of the search: the scan of all combinations, time by the closed form, and what it keeps.
 *
 * Most combinations are far from the limit of memory, or slower than what is kept: the bound counts those
 * (job/bound_fit.h). What is kept has its memory estimated (job/estimate.h), from the fastest on until enough is
 * kept, so that only what fits by its own step program takes a place, and which those are depends on no number of
 * threads. */
#ifndef DTP_SEARCH_SCAN_H
#define DTP_SEARCH_SCAN_H

#include "sim/search.h"

/* Kept of a group: the fastest that leave room, and the fastest of all. */
#define DTP_SCAN_KEPT 16    /* of a group at most: 4 where there are many, for each is estimated */
#define DTP_SCAN_ROOMY 0.15 /* headroom */

struct dtp_scan_place {
    double work_s;       /* of computing, without failures; infinite: empty */
    float missing_bytes; /* that the bound lacks; negative: it fits */
    uint64_t combination;
    struct dtp_search_choice choice;
    enum dtp_verdict bound_verdict;
};

struct dtp_scan_entry {
    struct dtp_scan_place place;
    bool estimated;           /* all that is kept of a group is */
    struct dtp_memory memory; /* where it is estimated */
};

struct dtp_scan_group {
    struct dtp_scan_entry fits[DTP_SCAN_KEPT], roomy, tight; /* tight: where nothing fits, the fastest that is */
    size_t fit_count;
};

struct dtp_scan {
    struct dtp_search_counts counts;
    size_t group_count;
    struct dtp_scan_group *groups;
    /* Of those that do not fit, the one whose bound exceeds its GPU least, by so many bytes; infinite: none. */
    struct dtp_scan_entry nearest;
    double nearest_bytes;
    char refusal[DTP_FAULT_TEXT_BYTES];
    uint64_t refusal_at; /* combination */
};

/* `limits`: whether deadline and budget prune. Caller frees out->groups. */
enum dtp_status dtp_scan_run(const struct dtp_search_question *question, bool limits, struct dtp_scan *out,
                             struct dtp_faults *faults);

#endif
