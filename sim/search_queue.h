/* Places of a search that wait to be looked at: the fastest that were offered, in order of time, then of combinations.
 */
#ifndef DTP_SEARCH_QUEUE_H
#define DTP_SEARCH_QUEUE_H

#include "sim/search_scan.h"

/* The fastest so far of those that may be kept, in order. */
struct dtp_search_queue {
    struct dtp_scan_place *places;
    uint32_t count, room;
    bool overflown; /* others had no room */
};

bool dtp_search_is_before(const struct dtp_scan_place *a, const struct dtp_scan_place *b);
/* Takes a place among the fastest, if it is one; the slowest makes room. */
void dtp_search_queue_push(struct dtp_search_queue *queue, const struct dtp_scan_place *place);
/* Offers `into` all places of `from`. */
void dtp_search_queue_merge(struct dtp_search_queue *into, const struct dtp_search_queue *from);

#endif
