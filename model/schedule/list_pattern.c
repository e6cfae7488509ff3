/* V-Half and V-Min: one pattern of six ticks, repeated for each micro-batch.
 *
 * The four passes F0, F1, B1, B0 of a micro-batch on rank r start at fixed ticks, chosen so that what is kept between
 * them is half, or a third, of 1F1B's, and so that those of all micro-batches, six ticks apart, never meet. Two ticks
 * of six stay free and take W. Offsets: arXiv:2405.15362, appendix; sail-sg/zero-bubble, zbv_greedy.py. There the
 * pattern's ends are then moved together further by a greedy search; here they close up as far as each list's order
 * lets passes run as soon as they can. */
#include "schedule/schedule_lists.h"

#define TICKS 6
#define PASSES 4

static void list_pattern(struct dtp_pass_list *list, const uint64_t starts[PASSES])
{
    static const struct {
        enum dtp_pass_kind kind;
        uint32_t chunk;
    } passes[PASSES] = {{DTP_PASS_FORWARD, 0}, {DTP_PASS_FORWARD, 1}, {DTP_PASS_BACKWARD, 1}, {DTP_PASS_BACKWARD, 0}};
    uint32_t m = list->shape->micro_batches, done[PASSES] = {0}, weight[2] = {0};
    for (uint64_t tick = 0; weight[0] < m || weight[1] < m; tick++) {
        uint32_t waiting[2] = {done[3] - weight[0], done[2] - weight[1]};
        int i = 0;
        while (i < PASSES && (done[i] == m || starts[i] + (uint64_t)TICKS * done[i] != tick))
            i++;
        if (i < PASSES)
            dtp_pass_add(list, passes[i].kind, passes[i].chunk, done[i]++);
        else if (waiting[1])
            dtp_pass_add(list, DTP_PASS_WEIGHT, 1, weight[1]++);
        else if (waiting[0])
            dtp_pass_add(list, DTP_PASS_WEIGHT, 0, weight[0]++);
    }
}

void dtp_list_v_half(struct dtp_pass_list *list)
{
    uint64_t p = list->shape->ranks, r = list->rank, gap = p % 2 == 0 ? 3 : 0;
    const uint64_t starts[PASSES] = {2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2};
    list_pattern(list, starts);
}

void dtp_list_v_min(struct dtp_pass_list *list)
{
    uint64_t p = list->shape->ranks, r = list->rank, gap = p % 3 == 0 ? 2 : 0;
    const uint64_t starts[PASSES] = {r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1};
    list_pattern(list, starts);
}
