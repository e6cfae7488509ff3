#include "cli/elastic_events.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASKED "ranks came back" /* of generations.c: no failure ended the one before */

/* The failure that the last generation is the answer to; NULL: none, or one of those that are not told one by one. */
static struct dtp_elastic_failure *failure_of(struct dtp_elastic_listener *l)
{
    uint32_t count = l->out->failures;
    return l->answers && count > 0 && count <= DTP_ELASTIC_FAILURES_TOLD ? &l->out->failure[count - 1] : NULL;
}

/* Told when the next ranks start, which may have had to be waited for: where steps were done, what the launcher timed
 * counts from the last of them. */
static void hear_failure(struct dtp_elastic_listener *l, const struct dtp_elastic_heard *heard)
{
    if (heard->number == 0 || heard->number == l->number)
        return;
    l->number = heard->number;
    l->answers = strcmp(heard->why, ASKED) != 0;
    l->out->failures += l->answers;
    l->lost_at_s = dtp_now_s();
    if (!l->waits && heard->ended_s >= 0)
        l->lost_at_s = fmin(l->lost_at_s, l->last_s + heard->ended_s);
    struct dtp_elastic_failure *failure = failure_of(l);
    if (!failure)
        return;
    snprintf(failure->why, sizeof failure->why, "%.*s", (int)sizeof failure->why - 1, heard->why);
    failure->how = heard->how < DTP_LOSS_COUNT ? (enum dtp_rank_loss)heard->how : DTP_LOSS_UNKNOWN;
    failure->noticed_s = heard->noticed_s;
    failure->ended_s = heard->ended_s;
}

void dtp_elastic_hear_generation(struct dtp_elastic_listener *l, const struct dtp_elastic_heard *heard)
{
    l->out->known = true;
    l->out->generations = heard->number + 1;
    l->out->ranks = heard->ranks;
    hear_failure(l, heard);
    if (heard->number == 0)
        l->launched_s = dtp_now_s();
}

/* Steps beyond the first of this generation are done again: they counted, and no longer do. */
void dtp_elastic_hear_start(struct dtp_elastic_listener *l, uint64_t first_step)
{
    if (!l->out->known)
        return;
    if (l->out->generations == 1)
        l->first_step = l->last_step = first_step;
    struct dtp_elastic_failure *failure = failure_of(l);
    if (failure)
        failure->steps_again += l->last_step > first_step ? l->last_step - first_step : 0;
    for (uint64_t step = first_step + 1; step <= l->last_step && step - l->first_step - 1 < l->room; step++) {
        l->out->again++;
        l->out->again_s += l->step_s[step - l->first_step - 1];
        l->out->useful_s -= l->step_s[step - l->first_step - 1];
    }
    l->last_step = first_step;
    l->waits = true;
}

static bool keep(struct dtp_elastic_listener *l, uint64_t index, double seconds)
{
    if (index >= l->room) {
        uint64_t room = 2 * index + 1024;
        double *grown = realloc(l->step_s, room * sizeof *grown);
        if (!grown)
            return false;
        memset(grown + l->room, 0, (room - l->room) * sizeof *grown);
        l->step_s = grown;
        l->room = room;
    }
    l->step_s[index] = seconds;
    return true;
}

void dtp_elastic_hear_step(struct dtp_elastic_listener *l, uint64_t step, double seconds)
{
    double time_s = dtp_now_s();
    if (!l->out->known || step <= l->first_step || !keep(l, step - l->first_step - 1, seconds))
        return;
    if (l->waits && l->out->generations == 1) {
        l->began_s = time_s - seconds;
        l->out->first_start_s = l->began_s - l->launched_s;
    } else if (l->waits && time_s - l->last_s > seconds) {
        l->out->down_s += time_s - l->last_s - seconds;
    }
    struct dtp_elastic_failure *failure = l->waits ? failure_of(l) : NULL;
    if (failure)
        failure->rejoin_s = fmax(time_s - seconds - l->lost_at_s, 0);
    l->waits = false;
    l->out->steps = step - l->first_step;
    l->last_step = step;
    l->last_s = time_s;
    l->out->useful_s += seconds;
    l->out->wall_s = time_s - l->began_s;
}

void dtp_elastic_hear_snapshot(struct dtp_elastic_listener *l, double stall_s)
{
    l->out->snapshots++;
    l->out->stall_s += stall_s;
}

void dtp_elastic_listener_finish(struct dtp_elastic_listener *l)
{
    free(l->step_s);
    *l = (struct dtp_elastic_listener){0};
}
