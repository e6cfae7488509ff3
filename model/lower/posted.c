/* When the ranks of a pipeline post their receives, as torch.distributed.pipelining does (schedules.py,
 * _add_send_recv): all ranks' lists are gone through in rounds, a pass of each where what it takes has been posted, and
 * a pass that sends appends its send to its own rank's list and the receive to the other's, behind what stands there by
 * then. */
#include "lower/posted.h"

#include "schedule/schedule_order.h"

static bool ready(const struct dtp_schedule_order *order, const bool *posted, uint32_t pass)
{
    return order->links[pass].from == DTP_NO_PASS || posted[pass];
}

/* The receive of what `pass` makes, on the rank that waits for it. */
static void post(const struct dtp_schedule *schedule, const struct dtp_schedule_order *order, const uint32_t *next,
                 uint32_t pass, bool *posted, struct dtp_posted *out)
{
    uint32_t to = order->links[pass].to;
    if (to == DTP_NO_PASS)
        return;
    uint32_t rank = order->links[to].rank;
    posted[to] = true;
    out->receive[schedule->first[rank] + out->count[rank]++] =
        (struct dtp_posted_receive){to - schedule->first[rank], next[rank] - schedule->first[rank]};
}

/* Whether the rank's next pass, or pair of passes, could be put into its list. */
static bool advance(const struct dtp_schedule *schedule, const struct dtp_schedule_order *order, uint32_t rank,
                    uint32_t *next, bool *posted, struct dtp_posted *out)
{
    uint32_t first = next[rank];
    if (first == schedule->first[rank + 1])
        return false;
    uint32_t last = schedule->passes[first].paired ? first + 1 : first;
    for (uint32_t pass = first; pass <= last; pass++)
        if (!ready(order, posted, pass))
            return false;
    next[rank] = last + 1;
    for (uint32_t pass = first; pass <= last; pass++)
        post(schedule, order, next, pass, posted, out);
    return true;
}

enum dtp_status dtp_posted_make(const struct dtp_schedule *schedule, struct dtp_host_arena *arena,
                                struct dtp_posted *out, struct dtp_faults *faults)
{
    struct dtp_schedule_order order;
    size_t passes = dtp_schedule_pass_count(schedule);
    uint32_t ranks = schedule->shape.ranks;
    enum dtp_status status = dtp_schedule_order_make(schedule, DTP_SEND_RENDEZVOUS, arena, &order, faults);
    if (status != DTP_OK)
        return status;
    uint32_t *next = dtp_host_arena_take(arena, ranks, sizeof *next);
    bool *posted = dtp_host_arena_take_zeroed(arena, passes, sizeof *posted);
    out->receive = dtp_host_arena_take(arena, passes, sizeof *out->receive);
    out->count = dtp_host_arena_take_zeroed(arena, ranks, sizeof *out->count);
    if (!next || !posted || !out->receive || !out->count)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    for (uint32_t rank = 0; rank < ranks; rank++)
        next[rank] = schedule->first[rank];
    for (bool progress = true; progress;) {
        progress = false;
        for (uint32_t rank = 0; rank < ranks; rank++)
            progress = advance(schedule, &order, rank, next, posted, out) || progress;
    }
    return DTP_OK;
}
