/* What a step of many micro-batches takes, by steps of fewer. */
#include "schedule/schedule_time.h"

#include <assert.h>

#define MOST_COSTS 4

static enum dtp_status makespans(const struct dtp_schedule_shape *shape, enum dtp_send send,
                                 const struct dtp_schedule_costs *costs, size_t count, double *step_s)
{
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer = NULL;
    enum dtp_status status = dtp_schedule_create(shape, &schedule, NULL);
    if (status == DTP_OK)
        status = dtp_schedule_timer_create(&schedule, send, &timer, NULL);
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        step_s[i] = dtp_schedule_timer_makespan(timer, &costs[i]);
    dtp_schedule_timer_destroy(timer);
    dtp_schedule_destroy(&schedule);
    return status;
}

/* Once twice as many micro-batches as ranks are under way, passes come round as they did a group (or as many as there
 * are ranks) before, until the last ones drain. An order that is found is another one for each number: what they add is
 * then told by four rounds. */
enum dtp_status dtp_schedule_steps(const struct dtp_schedule_shape *shape, enum dtp_send send,
                                   const struct dtp_schedule_costs *costs, size_t count, double *step_s)
{
    const uint32_t group = dtp_schedule_group(shape), round = group > shape->ranks ? group : shape->ranks,
                   all = shape->micro_batches, rounds = dtp_schedule_limit(shape) ? 4 : 1;
    struct dtp_schedule_shape fewer = *shape;
    double before_s[MOST_COSTS];
    assert(count <= MOST_COSTS);
    if (all < (3 + rounds) * round)
        return makespans(shape, send, costs, count, step_s);
    fewer.micro_batches = 2 * round + all % round;
    enum dtp_status status = makespans(&fewer, send, costs, count, before_s);
    fewer.micro_batches += rounds * round;
    if (status == DTP_OK)
        status = makespans(&fewer, send, costs, count, step_s);
    for (size_t i = 0; i < count && status == DTP_OK; i++)
        step_s[i] += (double)(all - fewer.micro_batches) / (rounds * round) * (step_s[i] - before_s[i]);
    return status;
}
