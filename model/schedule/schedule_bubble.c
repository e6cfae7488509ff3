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
    case DTP_SCHEDULE_ZB_H1: return m >= p && w <= f && w <= b ? others * (f + b - w) : NAN;
    case DTP_SCHEDULE_ZB_H2: return m >= 2 * p - 1 && is_even(stage) ? others * f : NAN;
    case DTP_SCHEDULE_ZB_V: return m >= 2 * p - 1 && is_even(stage) ? others * f : NAN;
    case DTP_SCHEDULE_DUALPIPE: return (p / 2 - 1) * dual_wait(stage, pair_fraction);
    case DTP_SCHEDULE_DUALPIPEV: return others * dual_wait(stage, pair_fraction);
    default: return NAN;
    }
}

/* What fill and drain add of each rank that is not the slowest. A whole backward: each pass once more, and a transfer
 * there and back; where a rank has several chunks, of one. A split one: the last rank begins an F and a transfer later
 * for each rank before it, and when its last B is through, those of the others follow, as far as W's that wait there do
 * not fill that time, one a rank by ZB-H1 and two by ZB-H2 (arXiv:2401.10241, table 2: F + B - W and F + B - 2 W); of
 * two chunks in a V half a rank's passes. DualPipe's is its authors' bubble. How many transfers stand in a drain, and
 * the third of V-Half and V-Min, are fits to the timer (schedule_time.h), within what test_schedule_time allows. */
static double ramp(const struct dtp_schedule_shape *shape, const struct dtp_stage_cost *c)
{
    const double f = c->forward_s, b = c->backward_s, w = c->weight_s, s = c->send_s, v = fmax(1, shape->chunks);
    const bool whole = dtp_schedule_row(shape->kind)->backward == DTP_BACKWARD_WHOLE;
    if (shape->micro_batches < dtp_schedule_kept(shape) && !whole) /* no W stands in the drain */
        return f + b + (dtp_schedule_row(shape->kind)->placement == DTP_CHUNKS_VEE ? 4 : 2) * s;
    switch (shape->kind) {
    case DTP_SCHEDULE_INTERLEAVED: return (f + b + w) / v + 2 * s;
    case DTP_SCHEDULE_ZB_INTERLEAVED: return f / v + s + fmax(0, (b - w) / v + s);
    case DTP_SCHEDULE_ZB_H1:
    case DTP_SCHEDULE_ZB_1P: return f + s + fmax(0, b + 3 * s - w);
    case DTP_SCHEDULE_ZB_H2:
    case DTP_SCHEDULE_ZB_2P: return f + s + fmax(0, b + 3 * s - 2 * w);
    case DTP_SCHEDULE_ZB_V: return fmax(f / 2, fmax(b / 2, b - w)) + 6 * s;
    case DTP_SCHEDULE_V_HALF:
    case DTP_SCHEDULE_V_MIN: return f / 2 + s + b / 2 + s + (f + b + w) / 3;
    case DTP_SCHEDULE_DUALPIPE: return fmax(0, f + 2 * b - w) / 2 * (shape->ranks - 2.0) / (shape->ranks - 1.0) + 4 * s;
    case DTP_SCHEDULE_DUALPIPEV: return fmax(0, f + 2 * b - w) / 2 + 4 * s;
    default: return f + b + w + 2 * s;
    }
}

/* Between two micro-batches on the ranks that are not the slowest, where no more are under way than are kept: at least
 * all that a micro-batch passes there and back, over their number; of v chunks, all of which are kept, those of later
 * chunks pass less, (v + 1) / 2v of it on average, and no transfer stands in a V's fold. GPipe's passes follow as fast
 * as the boundary takes them. In V-Min's pattern passes of neighbours meet in each of a micro-batch's six places, so
 * that all take as long as the longest, with a transfer in four; V-Half's places, which two ranks of V-Min have too,
 * are a fit to the timer. */
static double period(const struct dtp_schedule_shape *shape, const struct dtp_stage_cost *c, double rank_s)
{
    const double p = shape->ranks, v = fmax(1, shape->chunks), f = c->forward_s, b = c->backward_s, w = c->weight_s,
                 s = c->send_s, kept = dtp_schedule_kept(shape);
    if (shape->micro_batches < kept)
        return rank_s;
    switch (shape->kind) {
    case DTP_SCHEDULE_GPIPE: return fmax(f, s) + fmax(b + w, s);
    case DTP_SCHEDULE_INTERLEAVED: return rank_s + 2 * v * s; /* each chunk's pass waits for what it takes */
    case DTP_SCHEDULE_1F1B: return fmax(rank_s, (p * (f + b + w) + 2 * (p - 1) * s) / kept);
    case DTP_SCHEDULE_DUALPIPE:
    case DTP_SCHEDULE_DUALPIPEV: return fmax(rank_s, 2 * s);
    case DTP_SCHEDULE_V_MIN:
        if (p > 2)
            return fmax(rank_s, 3 * fmax(f, fmax(b, w)) + 4 * s);
        /* fall through */
    case DTP_SCHEDULE_V_HALF: return fmax(rank_s, 2 * b + f / 2 + 3 * s);
    case DTP_SCHEDULE_ZB_V: return fmax(rank_s, ((p + 0.5) * (f + b) + 4 * (p - 1) * s) / (2 * kept));
    default: return fmax(rank_s, (p * (f + b) + 2 * (p * v - 1) * s) * (v + 1) / (2 * v) / kept);
    }
}

double dtp_schedule_step_s(const struct dtp_schedule_shape *shape, const struct dtp_stage_cost *mean, double slowest_s)
{
    const double p = shape->ranks, m = shape->micro_batches, all = mean->forward_s + mean->backward_s + mean->weight_s;
    const double other_s = (p * all - slowest_s) / (p - 1), alike = other_s / all, s = mean->send_s;
    const struct dtp_stage_cost other = {.forward_s = mean->forward_s * alike,
                                         .backward_s = mean->backward_s * alike,
                                         .weight_s = mean->weight_s * alike,
                                         .send_s = s};
    const bool whole = dtp_schedule_row(shape->kind)->backward == DTP_BACKWARD_WHOLE;
    const double between =
        fmax(period(shape, mean, shape->kind == DTP_SCHEDULE_INTERLEAVED ? slowest_s : other_s), whole ? slowest_s : 0);
    const double first = (p - 1) * (other.forward_s / fmax(1, shape->chunks) + s);
    const double on_others = slowest_s + (m - 1) * between + (p - 1) * ramp(shape, &other);
    return whole ? on_others : fmax(m * slowest_s + (shape->chunks == 2 ? 0 : first), on_others);
}
