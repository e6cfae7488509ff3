/* A schedule with its timer, for tests. */
#ifndef TEST_SCHEDULE_FIXTURE_H
#define TEST_SCHEDULE_FIXTURE_H

#include "schedule/schedule_time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The high bits are random enough to draw by. */
static inline void next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
}

struct timed {
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer;
    struct dtp_stage_cost *stages;
    struct dtp_schedule_timing timing;
};

/* Caller releases. Fails the test where the shape is refused or the schedule is not legal. */
static inline void timed_make(struct timed *t, struct dtp_schedule_shape shape, enum dtp_send send)
{
    *t = (struct timed){0};
    struct dtp_faults faults = {0};
    if (dtp_schedule_create(&shape, &t->schedule, &faults) != DTP_OK ||
        dtp_schedule_timer_create(&t->schedule, send, &t->timer, &faults) != DTP_OK)
        fail_msg("%s %u ranks, %u micro-batches: %s", dtp_schedule_row(shape.kind)->word, shape.ranks,
                 shape.micro_batches, faults.text[0]);
    t->stages = calloc(t->schedule.stages, sizeof *t->stages);
    assert_non_null(t->stages);
}

/* Equal stages; what one micro-batch takes on a rank, and a transfer of a whole rank's chunks. */
static inline void timed_run(struct timed *t, double forward_s, double backward_s, double weight_s, double send_s)
{
    double share = (double)dtp_schedule_lines(&t->schedule) / t->schedule.shape.chunks;
    dtp_stage_costs_equal(&t->schedule, forward_s, backward_s, weight_s, send_s * share, t->stages);
    struct dtp_schedule_costs costs = {t->stages, 1};
    dtp_schedule_timer_run(t->timer, &costs, &t->timing);
}

static inline void timed_release(struct timed *t)
{
    free(t->stages);
    dtp_schedule_timer_destroy(t->timer);
    dtp_schedule_destroy(&t->schedule);
}

#endif
