/* What generators of schedules share; private to model/schedule. */
#ifndef DTP_SCHEDULE_LISTS_H
#define DTP_SCHEDULE_LISTS_H

#include "schedule/schedule.h"

/* The list of one rank while it is written. */
struct dtp_pass_list {
    const struct dtp_schedule_shape *shape;
    uint32_t rank;
    const uint8_t *found;    /* of a schedule that is searched: dtp_search_passes */
    struct dtp_pass *passes; /* room for three passes of each micro-batch and chunk */
    size_t count;
};

static inline void dtp_pass_add(struct dtp_pass_list *list, enum dtp_pass_kind kind, uint32_t chunk,
                                uint32_t micro_batch)
{
    list->passes[list->count++] = (struct dtp_pass){micro_batch, (uint16_t)chunk, (uint8_t)kind, false};
}

/* The i-th pass of a rank whose chunks take groups of micro-batches in turn, backwards from the last chunk: the i-th
 * backward is of the i-th forward's micro-batch. */
static inline void dtp_pass_add_interleaved(struct dtp_pass_list *list, enum dtp_pass_kind kind, uint32_t i)
{
    const struct dtp_schedule_shape *s = list->shape;
    uint32_t of_group = s->group * s->chunks, start = i / of_group * s->group;
    uint32_t in_group = s->micro_batches - start < s->group ? s->micro_batches - start : s->group;
    uint32_t chunk = i % of_group / in_group, micro_batch = start + i % of_group % in_group;
    dtp_pass_add(list, kind, kind == DTP_PASS_FORWARD ? chunk : s->chunks - 1 - chunk, micro_batch);
}

/* The kinds of all ranks' passes in order, 3 m of each rank: 0 F, 1 B, 2 W, micro-batches one after the other. Some 0.2
 * us a pass. Caller frees; NULL: no memory. */
uint8_t *dtp_search_passes(const struct dtp_schedule_shape *shape);

/* Each writes the list of list->rank; the shape is valid. */
#define DTP_SCHEDULE(suffix, generator, ...) void dtp_list_##generator(struct dtp_pass_list *list);
#include "schedule/schedule.def"

#endif
