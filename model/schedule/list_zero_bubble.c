/* Schedules whose backward is split so that gradients of weights, for which nobody waits, fill what would be idle. */
#include "schedule/schedule_lists.h"

/* What has been written of each chunk. */
struct written {
    uint32_t forward[2], backward[2], weight[2];
};

static void add(struct dtp_pass_list *list, struct written *w, enum dtp_pass_kind kind, uint32_t chunk)
{
    uint32_t *next = kind == DTP_PASS_FORWARD    ? &w->forward[chunk]
                     : kind == DTP_PASS_BACKWARD ? &w->backward[chunk]
                                                 : &w->weight[chunk];
    if (*next < list->shape->micro_batches)
        dtp_pass_add(list, kind, chunk, (*next)++);
}

/* One chunk: `warm_up` forwards, then one backward and one forward by turns; a W follows as soon as more than `late`
 * backwards wait for theirs. The rank's last W come when no backward is left. */
static void list_handcrafted(struct dtp_pass_list *list, uint32_t warm_up, uint32_t late)
{
    struct written w = {0};
    uint32_t m = list->shape->micro_batches;
    for (uint32_t i = 0; i < warm_up && i < m; i++)
        add(list, &w, DTP_PASS_FORWARD, 0);
    while (w.backward[0] < m) {
        add(list, &w, DTP_PASS_BACKWARD, 0);
        if (w.backward[0] - w.weight[0] > late)
            add(list, &w, DTP_PASS_WEIGHT, 0);
        add(list, &w, DTP_PASS_FORWARD, 0);
    }
    while (w.weight[0] < m)
        add(list, &w, DTP_PASS_WEIGHT, 0);
}

/* Rank r keeps p - r micro-batches whole and r whose W is left. */
void dtp_list_zb_h1(struct dtp_pass_list *list)
{
    list_handcrafted(list, list->shape->ranks - list->rank, list->rank);
}

/* 1F1B over several chunks whose warm-up takes one pass a rank to the last one, for gradients of inputs come back as
 * fast as forwards go; a W follows each backward but the first r. Groups are those of interleaved. */
void dtp_list_zb_interleaved(struct dtp_pass_list *list)
{
    const struct dtp_schedule_shape *s = list->shape;
    uint32_t count = s->micro_batches * s->chunks, weights = 0;
    uint32_t warm_up = s->ranks - 1 - list->rank + (s->chunks - 1) * s->group;
    warm_up = warm_up < count ? warm_up : count;
    for (uint32_t i = 0; i < count + warm_up; i++) {
        if (i < count)
            dtp_pass_add_interleaved(list, DTP_PASS_FORWARD, i);
        if (i >= warm_up)
            dtp_pass_add_interleaved(list, DTP_PASS_BACKWARD, i - warm_up);
        if (i >= warm_up + list->rank)
            dtp_pass_add_interleaved(list, DTP_PASS_WEIGHT, weights++);
    }
    while (weights < count)
        dtp_pass_add_interleaved(list, DTP_PASS_WEIGHT, weights++);
}

/* As many forwards as there is time for until the first gradient is back: 2(p - r) - 1. */
void dtp_list_zb_h2(struct dtp_pass_list *list)
{
    list_handcrafted(list, 2 * (list->shape->ranks - list->rank) - 1, 2 * list->rank);
}

/* Chunk 0 on the way there, chunk 1 on the way back. Where a step has fewer micro-batches than the pattern takes,
 * those that are missing are left out of it. */
void dtp_list_zb_v(struct dtp_pass_list *list)
{
    struct written w = {0};
    uint32_t m = list->shape->micro_batches, p = list->shape->ranks, r = list->rank, forwards = 2 * p - 1;
    forwards = m > forwards ? m : forwards; /* of the pattern */
    for (uint32_t i = 0; i < 2 * (p - r) - 1; i++)
        add(list, &w, DTP_PASS_FORWARD, 0);
    for (uint32_t i = 0; i < r; i++) {
        add(list, &w, DTP_PASS_FORWARD, 1);
        add(list, &w, DTP_PASS_FORWARD, 0);
    }
    for (uint32_t i = 0; i < p - r; i++) {
        add(list, &w, DTP_PASS_FORWARD, 1);
        add(list, &w, DTP_PASS_BACKWARD, 1);
        add(list, &w, DTP_PASS_WEIGHT, 1);
    }
    for (uint32_t i = p; i < forwards; i++) {
        add(list, &w, DTP_PASS_FORWARD, 0);
        add(list, &w, DTP_PASS_BACKWARD, 0);
        add(list, &w, DTP_PASS_WEIGHT, 0);
        add(list, &w, DTP_PASS_FORWARD, 1);
        add(list, &w, DTP_PASS_BACKWARD, 1);
        add(list, &w, DTP_PASS_WEIGHT, 1);
    }
    for (uint32_t i = 0; i < r; i++) {
        add(list, &w, DTP_PASS_BACKWARD, 0);
        add(list, &w, DTP_PASS_BACKWARD, 1);
    }
    for (uint32_t i = 0; i < p - r; i++) {
        add(list, &w, DTP_PASS_BACKWARD, 0);
        add(list, &w, DTP_PASS_WEIGHT, 0);
    }
    while (w.weight[1] < m)
        add(list, &w, DTP_PASS_WEIGHT, 1);
    while (w.weight[0] < m)
        add(list, &w, DTP_PASS_WEIGHT, 0);
}
