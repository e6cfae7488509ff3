/* What is idle at best, by formula: the check of schedules and timer from outside. */
#include "schedule/schedule_time.h"

#include <math.h>

/* Where input gradients, weight gradients and forwards take the same time, as zero-bubble schedules are drawn. */
static bool is_even(const struct dtp_stage_cost *s)
{
    return s->forward_s == s->backward_s && s->backward_s == s->weight_s;
}

/* DeepSeek-AI's F&B + B - 3W, whose B is whole, of which a rank waits p/2 - 1 times. It holds where an input gradient
 * takes as long as a forward, as theirs does, and a pair as long as its passes: a faster pair waits for others. */
static double dual_wait(const struct dtp_stage_cost *s, double pair_fraction)
{
    double f = s->forward_s, b = s->backward_s, w = s->weight_s;
    return b == f && w <= f && pair_fraction == 1 ? (f + b + w) + (b + w) - 3 * w : NAN;
}

double dtp_schedule_bubble(const struct dtp_schedule_shape *shape, const struct dtp_stage_cost *stage,
                           double pair_fraction)
{
    double f = stage->forward_s, b = stage->backward_s, w = stage->weight_s;
    double others = shape->ranks - 1.0, m = shape->micro_batches, p = shape->ranks;
    switch (shape->kind) {
    case DTP_SCHEDULE_GPIPE:
    case DTP_SCHEDULE_1F1B: return others * (f + b + w);
    case DTP_SCHEDULE_INTERLEAVED: return shape->group == shape->ranks ? others * (f + b + w) : NAN;
    case DTP_SCHEDULE_LOOPED_BFS: return (others + (shape->chunks - 1) * fmax(0, p - m)) * (f + b + w);
    case DTP_SCHEDULE_ZB_H1: return m >= p && w <= f && w <= b ? others * (f + b - w) : NAN;
    case DTP_SCHEDULE_ZB_H2: return m >= 2 * p - 1 && is_even(stage) ? others * f : NAN;
    case DTP_SCHEDULE_ZB_V: return m >= 2 * p - 1 && is_even(stage) ? others * f : NAN;
    case DTP_SCHEDULE_DUALPIPE: return (p / 2 - 1) * dual_wait(stage, pair_fraction);
    case DTP_SCHEDULE_DUALPIPEV: return others * dual_wait(stage, pair_fraction);
    default: return NAN;
    }
}
