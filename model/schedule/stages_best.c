/* Stages as fast as they can be. */
#include "base/host_arena.h"
#include "schedule/stages.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define MOST_TIMED_PASSES 100000000u /* of all that a single move is judged by: some seconds */
#define MOST_CELLS 268435456u        /* of the table of where stages end: 1 GiB */

static double part_s(const struct dtp_part_cost *part)
{
    return part->forward_s + part->backward_s + part->weight_s;
}

/* The best cut of a prefix: slowest[i] of layers 0 to i - 1 into so many stages, from[stage][i] the layers of the
 * stages before the last. */
struct cut {
    uint32_t layers, count;
    double *sum_s; /* of the layers before i, embedding included from 1 on */
    double *slowest_s, *next_s;
    uint32_t *from;
};

static double stage_s(const struct cut *c, uint32_t begin, uint32_t end)
{
    return c->sum_s[end] - (begin ? c->sum_s[begin] : 0);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* The last stage begins where what lies before it becomes slower than it is, or one layer earlier; that place moves on
 * with the end. */
static void add_stage(struct cut *c, uint32_t stage, double head_s)
{
    uint32_t begin = stage;
    bool last = stage + 1 == c->count;
    for (uint32_t end = stage + 1; end <= c->layers; end++) {
        double extra_s = last && end == c->layers ? head_s : 0;
        while (begin + 1 < end && later(c->slowest_s[begin + 1], stage_s(c, begin + 1, end) + extra_s) <=
                                      later(c->slowest_s[begin], stage_s(c, begin, end) + extra_s))
            begin++;
        c->next_s[end] = later(c->slowest_s[begin], stage_s(c, begin, end) + extra_s);
        c->from[(size_t)stage * (c->layers + 1) + end] = begin;
    }
    double *swap = c->slowest_s;
    c->slowest_s = c->next_s;
    c->next_s = swap;
}

static enum dtp_status cut_best(struct cut *c, const struct dtp_model_cost *cost, double head_s, struct dtp_stages *out,
                                struct dtp_host_arena *arena, struct dtp_faults *faults)
{
    size_t row = c->layers + 1;
    c->sum_s = dtp_host_arena_take(arena, row, sizeof *c->sum_s);
    c->slowest_s = dtp_host_arena_take(arena, row, sizeof *c->slowest_s);
    c->next_s = dtp_host_arena_take(arena, row, sizeof *c->next_s);
    c->from = dtp_host_arena_take(arena, c->count * row, sizeof *c->from);
    out->parts = calloc(c->count, sizeof *out->parts);
    if (!c->sum_s || !c->slowest_s || !c->next_s || !c->from || !out->parts)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    c->sum_s[0] = part_s(&cost->embedding);
    for (uint32_t i = 0; i < c->layers; i++)
        c->sum_s[i + 1] = c->sum_s[i] + part_s(&cost->layers[i]);
    for (uint32_t i = 0; i <= c->layers; i++)
        c->slowest_s[i] = i ? INFINITY : 0;
    c->slowest_s[0] = 0;
    for (uint32_t i = 1; i <= c->layers; i++) { /* one stage */
        c->slowest_s[i] = c->sum_s[i] + (c->count == 1 && i == c->layers ? head_s : 0);
        c->from[i] = 0;
    }
    for (uint32_t stage = 1; stage < c->count; stage++)
        add_stage(c, stage, head_s);
    out->count = c->count;
    uint32_t end = c->layers;
    for (uint32_t stage = c->count; stage > 0; stage--) {
        uint32_t begin = c->from[(stage - 1) * row + end];
        out->parts[stage - 1] = (struct dtp_stage_parts){.first_layer = begin, .layers = end - begin};
        end = begin;
    }
    return DTP_OK;
}

enum dtp_status dtp_stages_best(const struct dtp_stages_model *model, const struct dtp_model_cost *cost, uint32_t count,
                                struct dtp_stages *out, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    struct cut c = {.layers = model->layers, .count = count};
    *out = (struct dtp_stages){0};
    if (count < 1 || count > model->layers)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "stages: %" PRIu32 " layers are cut into 1 to %" PRIu32 " stages, not %" PRIu32, model->layers,
                         model->layers, count);
    if (model->layers > DTP_STAGES_MAX_LAYERS || (uint64_t)count * (model->layers + 1) > MOST_CELLS)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "stages: %" PRIu32 " layers in %" PRIu32 " stages are too many to be cut best", model->layers,
                         count);
    double head_s = part_s(&cost->head) + model->mtp_layers * part_s(&cost->mtp_layer);
    enum dtp_status status = cut_best(&c, cost, head_s, out, &arena, faults);
    dtp_host_arena_release(&arena);
    if (status != DTP_OK) {
        dtp_stages_destroy(out);
        return status;
    }
    out->parts[0].embedding = true;
    out->parts[count - 1].head = true;
    out->parts[count - 1].mtp_layers = model->mtp_layers;
    return DTP_OK;
}

/* ---- of a schedule -------------------------------------------------------------------------------------------------
 */

/* Moves a layer over the boundary behind a stage, forward or back. False: the stage that gives has one alone. */
static bool move_layer(struct dtp_stages *stages, uint32_t stage, bool forward)
{
    struct dtp_stage_parts *left = &stages->parts[stage], *right = left + 1;
    if ((forward ? left : right)->layers <= 1)
        return false;
    left->layers = forward ? left->layers - 1 : left->layers + 1;
    right->layers = forward ? right->layers + 1 : right->layers - 1;
    right->first_layer = left->first_layer + left->layers;
    return true;
}

struct climb {
    struct dtp_stages *stages;
    const struct dtp_model_cost *cost;
    struct dtp_schedule_timer *timer;
    struct dtp_schedule_costs costs;
    struct dtp_stage_cost *stage_costs;
};

static double step_s(const struct climb *c)
{
    dtp_stages_cost(c->stages, c->cost, c->stage_costs);
    return dtp_schedule_timer_makespan(c->timer, &c->costs);
}

/* The best single move; false: none makes the step shorter. */
static bool climb_once(const struct climb *c, double *makespan_s)
{
    uint32_t best = 0;
    bool best_forward = false, found = false;
    double before_s = *makespan_s;
    for (uint32_t stage = 0; stage + 1 < c->stages->count; stage++)
        for (int forward = 0; forward < 2; forward++) {
            if (!move_layer(c->stages, stage, forward))
                continue;
            double after_s = step_s(c);
            move_layer(c->stages, stage, !forward);
            if (after_s < *makespan_s - 1e-12 * before_s) {
                *makespan_s = after_s;
                best = stage;
                best_forward = forward;
                found = true;
            }
        }
    return found && move_layer(c->stages, best, best_forward);
}

/* Where to begin: the slowest stage as fast as can be, or even cuts, without and with the ends counted. */
enum { FROM_BEST, FROM_EVEN, FROM_COUNTED, STARTS };

static enum dtp_status begin_at(int start, const struct dtp_stages_model *model, const struct dtp_model_cost *cost,
                                uint32_t count, struct dtp_stages *out, struct dtp_faults *faults)
{
    return start == FROM_BEST ? dtp_stages_best(model, cost, count, out, faults)
                              : dtp_stages_spread(model, count, start == FROM_COUNTED, out, faults);
}

/* From one start as far as moves go; what is better takes the place of *out. */
static void climb(struct climb *c, struct dtp_stages *from, struct dtp_stages *out, double *makespan_s)
{
    c->stages = from;
    double shortest_s = step_s(c);
    while (climb_once(c, &shortest_s))
        continue;
    if (out->parts && shortest_s >= *makespan_s) {
        dtp_stages_destroy(from);
        return;
    }
    dtp_stages_destroy(out);
    *out = *from;
    *makespan_s = shortest_s;
}

enum dtp_status dtp_stages_best_step(const struct dtp_stages_model *model, const struct dtp_model_cost *cost,
                                     const struct dtp_schedule *schedule, struct dtp_schedule_timer *timer,
                                     double pair_fraction, struct dtp_stages *out, double *makespan_s,
                                     struct dtp_faults *faults)
{
    uint64_t timed = 2 * (uint64_t)schedule->stages * dtp_schedule_pass_count(schedule);
    *out = (struct dtp_stages){0};
    if (timed > MOST_TIMED_PASSES)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "stages: %" PRIu32
                         " stages and %zu passes are too many to try every move of a layer; cut best by "
                         "the slowest stage",
                         schedule->stages, dtp_schedule_pass_count(schedule));
    struct climb c = {NULL, cost, timer, .stage_costs = calloc(schedule->stages, sizeof *c.stage_costs)};
    if (!c.stage_costs)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    c.costs = (struct dtp_schedule_costs){c.stage_costs, pair_fraction};
    enum dtp_status status = DTP_OK;
    for (int start = 0; start < STARTS && status == DTP_OK; start++) {
        struct dtp_stages from;
        status = begin_at(start, model, cost, schedule->stages, &from, start == FROM_BEST ? faults : NULL);
        if (status == DTP_OK)
            climb(&c, &from, out, makespan_s);
        else if (status == DTP_BAD_INPUT && start != FROM_BEST) /* a cut of this kind is none: one start less */
            status = DTP_OK;
    }
    if (status != DTP_OK)
        dtp_stages_destroy(out);
    free(c.stage_costs);
    return status;
}
