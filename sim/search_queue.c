#include "sim/search_queue.h"

#include <string.h>

bool dtp_search_is_before(const struct dtp_scan_place *a, const struct dtp_scan_place *b)
{
    if (a->work_s != b->work_s)
        return a->work_s < b->work_s;
    return a->combination != b->combination ? a->combination < b->combination
                                            : a->choice.shard_group < b->choice.shard_group;
}

void dtp_search_queue_push(struct dtp_search_queue *queue, const struct dtp_scan_place *place)
{
    bool full = queue->count == queue->room;
    queue->overflown = queue->overflown || full;
    if (full && !dtp_search_is_before(place, &queue->places[queue->count - 1]))
        return;
    uint32_t low = 0, high = queue->count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (dtp_search_is_before(place, &queue->places[middle]))
            high = middle;
        else
            low = middle + 1;
    }
    memmove(&queue->places[low + 1], &queue->places[low], (queue->count - full - low) * sizeof *queue->places);
    queue->places[low] = *place;
    queue->count += !full;
}

void dtp_search_queue_merge(struct dtp_search_queue *into, const struct dtp_search_queue *from)
{
    into->overflown = into->overflown || from->overflown;
    for (uint32_t i = 0; i < from->count; i++)
        dtp_search_queue_push(into, &from->places[i]);
}
