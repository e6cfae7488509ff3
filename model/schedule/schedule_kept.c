/* What a rank keeps at most, by formula: the check of schedules and timer from outside. */
#include "schedule/schedule_time.h"

#include <math.h>

/* Chunks that the first rank sends ahead of its first backward, which begins with one more (Megatron-LM schedules.py;
 * torch.distributed.pipelining ScheduleInterleavedZeroBubble, with half as many of the last). */
static double interleaved(const struct dtp_schedule_shape *shape, double warm_up_a_rank)
{
    double v = shape->chunks, group = shape->group ? shape->group : shape->ranks;
    return (warm_up_a_rank * (shape->ranks - 1.0) + (v - 1) * group + 1) / v;
}

/* The limit of a schedule that is searched, or the forwards that fit until the first gradient is back
 * (arXiv:2401.10241, appendix B). */
static double found(const struct dtp_schedule_shape *shape)
{
    const struct dtp_pass_times *t = &shape->times;
    double others = shape->ranks - 1.0, back_s = 1;
    if (t->forward_s > 0)
        back_s = (t->backward_s + 2 * t->send_s) / t->forward_s;
    else if (t->backward_s > 0) /* any number fits */
        return dtp_schedule_limit(shape);
    return fmin(dtp_schedule_limit(shape), floor(others * back_s + shape->ranks));
}

double dtp_schedule_kept(const struct dtp_schedule_shape *shape)
{
    double m = shape->micro_batches, p = shape->ranks;
    switch (shape->kind) {
    case DTP_SCHEDULE_1F1B:
    case DTP_SCHEDULE_ZB_H1:
    case DTP_SCHEDULE_ZB_V: return fmin(m, p);
    case DTP_SCHEDULE_INTERLEAVED: return fmin(m, interleaved(shape, 2));
    case DTP_SCHEDULE_ZB_INTERLEAVED: return fmin(m, interleaved(shape, 1));
    case DTP_SCHEDULE_ZB_1P:
    case DTP_SCHEDULE_ZB_2P: return fmin(m, found(shape));
    case DTP_SCHEDULE_ZB_H2: return fmin(m, 2 * p - 1);
    case DTP_SCHEDULE_V_HALF: return fmin(m, floor(p / 2) + 1);
    case DTP_SCHEDULE_V_MIN: return fmin(m, floor(p / 3) + 1);
    case DTP_SCHEDULE_DUALPIPE: return p + 1;
    case DTP_SCHEDULE_DUALPIPEV: return p + 0.5;
    default: return m; /* GPipe's */
    }
}
