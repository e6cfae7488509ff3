/* Passes a second on one core: listed and proven, timed with all that is accounted for, timed for the makespan alone.
 */
#include "base/clock.h"
#include "schedule/schedule_time.h"

#include <stdio.h>
#include <stdlib.h>

#define PASSES 4000000 /* about so many of each */

static void time_kind(struct dtp_schedule_shape shape)
{
    struct dtp_faults faults = {0};
    struct dtp_schedule schedule;
    struct dtp_schedule_timer *timer;
    struct dtp_schedule_timing timing;
    double took_s[3] = {0}, sum = 0;
    size_t done = 0;
    while (done < PASSES) {
        double start_s = dtp_now_s();
        if (dtp_schedule_create(&shape, &schedule, &faults) != DTP_OK ||
            dtp_schedule_timer_create(&schedule, DTP_SEND_BUFFERED, &timer, &faults) != DTP_OK) {
            fprintf(stderr, "%s\n", faults.text[0]);
            exit(1);
        }
        took_s[0] += dtp_now_s() - start_s;
        struct dtp_stage_cost *stages = calloc(schedule.stages, sizeof *stages);
        if (!stages)
            exit(3);
        dtp_stage_costs_equal(&schedule, 1, 1.2, 0.6, 0.1, stages);
        struct dtp_schedule_costs costs = {stages, 1};
        start_s = dtp_now_s();
        dtp_schedule_timer_run(timer, &costs, &timing);
        took_s[1] += dtp_now_s() - start_s;
        start_s = dtp_now_s();
        sum += dtp_schedule_timer_makespan(timer, &costs);
        took_s[2] += dtp_now_s() - start_s;
        done += dtp_schedule_pass_count(&schedule);
        free(stages);
        dtp_schedule_timer_destroy(timer);
        dtp_schedule_destroy(&schedule);
    }
    printf("%-12s %6.1f  %6.1f  %6.1f   %s\n", dtp_schedule_row(shape.kind)->word, (double)done / took_s[0] * 1e-6,
           (double)done / took_s[1] * 1e-6, (double)done / took_s[2] * 1e-6, sum > 0 ? "" : "none took time");
}

int main(void)
{
    printf("16 ranks, 128 micro-batches; million passes/s: listed and proven, timed, makespan alone\n");
    for (int kind = 0; kind < DTP_SCHEDULE_COUNT; kind++)
        time_kind((struct dtp_schedule_shape){(enum dtp_schedule_kind)kind, 16, 128, 0, 0});
    return 0;
}
