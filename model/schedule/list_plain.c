/* Schedules of one chunk a rank whose backward is whole: GPipe and 1F1B; and both over several chunks. */
#include "schedule/schedule_lists.h"

void dtp_list_gpipe(struct dtp_pass_list *list)
{
    for (uint32_t i = 0; i < list->shape->micro_batches; i++)
        dtp_pass_add(list, DTP_PASS_FORWARD, 0, i);
    for (uint32_t i = 0; i < list->shape->micro_batches; i++)
        dtp_pass_add(list, DTP_PASS_WHOLE_BACKWARD, 0, i);
}

/* Breadth first: a chunk's micro-batches, then the next chunk's; backward the last of each comes first. */
void dtp_list_looped_bfs(struct dtp_pass_list *list)
{
    const struct dtp_schedule_shape *s = list->shape;
    for (uint32_t chunk = 0; chunk < s->chunks; chunk++)
        for (uint32_t i = 0; i < s->micro_batches; i++)
            dtp_pass_add(list, DTP_PASS_FORWARD, (uint16_t)chunk, i);
    for (uint32_t chunk = s->chunks; chunk-- > 0;)
        for (uint32_t i = s->micro_batches; i-- > 0;)
            dtp_pass_add(list, DTP_PASS_WHOLE_BACKWARD, (uint16_t)chunk, i);
}

void dtp_list_1f1b(struct dtp_pass_list *list)
{
    uint32_t m = list->shape->micro_batches, warm_up = list->shape->ranks - 1 - list->rank;
    for (uint32_t i = 0; i < m + warm_up; i++) {
        if (i < m)
            dtp_pass_add(list, DTP_PASS_FORWARD, 0, i);
        if (i >= warm_up)
            dtp_pass_add(list, DTP_PASS_WHOLE_BACKWARD, 0, i - warm_up);
    }
}

/* Each chunk but the last lets a whole group by before its first backward, and the way to the last rank and back takes
 * two passes a rank. */
void dtp_list_interleaved(struct dtp_pass_list *list)
{
    const struct dtp_schedule_shape *s = list->shape;
    uint32_t count = s->micro_batches * s->chunks;
    uint32_t warm_up = 2 * (s->ranks - 1 - list->rank) + (s->chunks - 1) * s->group;
    warm_up = warm_up < count ? warm_up : count;
    for (uint32_t i = 0; i < count + warm_up; i++) {
        if (i < count)
            dtp_pass_add_interleaved(list, DTP_PASS_FORWARD, i);
        if (i >= warm_up)
            dtp_pass_add_interleaved(list, DTP_PASS_WHOLE_BACKWARD, i - warm_up);
    }
}
