/* What generators of schedules share; private to model/schedule. */
#ifndef DTP_SCHEDULE_LISTS_H
#define DTP_SCHEDULE_LISTS_H

#include "schedule/schedule.h"

/* The list of one rank while it is written. */
struct dtp_pass_list {
    const struct dtp_schedule_shape *shape;
    uint32_t rank;
    struct dtp_pass *passes; /* room for three passes of each micro-batch and chunk */
    size_t count;
};

static inline void dtp_pass_add(struct dtp_pass_list *list, enum dtp_pass_kind kind, uint32_t chunk,
                                uint32_t micro_batch)
{
    list->passes[list->count++] = (struct dtp_pass){micro_batch, (uint16_t)chunk, (uint8_t)kind, false};
}

/* Each writes the list of list->rank; the shape is valid. */
#define DTP_SCHEDULE(suffix, generator, ...) void dtp_list_##generator(struct dtp_pass_list *list);
#include "schedule/schedule.def"

#endif
