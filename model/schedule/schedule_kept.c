/* What a rank keeps at most, by formula: the check of schedules and timer from outside. */
#include "schedule/schedule_time.h"

#include <math.h>

/* Chunks that the first rank sends ahead of its first backward, which begins with one more (Megatron-LM schedules.py;
 * torch.distributed.pipelining ScheduleInterleavedZeroBubble, with half as many of the last). */
static double interleaved(const struct dtp_schedule_shape *shape, double warm_up_a_rank)
{
    double v = shape->chunks, group = dtp_schedule_group(shape);
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
    default: return m; /* of GPipe and of it over several chunks */
    }
}

/* In chunks of a rank; most wait on the last rank, but for V-Half and V-Min, whose patterns repeat from rank to
 * rank. */
static struct dtp_schedule_waiting in_chunks(const struct dtp_schedule_shape *shape)
{
    const struct dtp_pass_times *t = &shape->times;
    const double m = shape->micro_batches, p = shape->ranks, v = fmax(1, shape->chunks),
                 group = dtp_schedule_group(shape), kept = dtp_schedule_kept(shape);
    const double looped = fmin(kept * v, (v - 1) * group + 1);
    double last = 0; /* of schedules with a chunk a rank: W's that wait on the last */
    switch (shape->kind) {
    case DTP_SCHEDULE_GPIPE: return (struct dtp_schedule_waiting){0, 0, m, m, 0};
    case DTP_SCHEDULE_LOOPED_BFS: return (struct dtp_schedule_waiting){0, 0, v * m, m, 0};
    case DTP_SCHEDULE_INTERLEAVED: return (struct dtp_schedule_waiting){0, 0, looped, 1, 0};
    case DTP_SCHEDULE_ZB_INTERLEAVED: /* a group of fewer than p is the only one */
        last = fmin(p, v * m);
        return (struct dtp_schedule_waiting){fmin((v - 1) * group, v * m - last), last, looped, 1, fmin(p, group) - 1};
    case DTP_SCHEDULE_ZB_V:
        return (struct dtp_schedule_waiting){0, m > p ? fmin(2 * p - 1, 2 * (m - p) + 1) : 0, 2 * kept, 1, 0};
    case DTP_SCHEDULE_V_HALF: return (struct dtp_schedule_waiting){2 * kept - 2, 2, 2 * kept, 1, 0};
    case DTP_SCHEDULE_V_MIN: /* where two ranks are left over of threes, F and B are a pass nearer */
        return (struct dtp_schedule_waiting){fmin(2 * kept - (shape->ranks % 3 == 2 ? 0 : 2), 2 * m - 2), 2, 2 * kept,
                                             1, 0};
    case DTP_SCHEDULE_DUALPIPE: return (struct dtp_schedule_waiting){0, p / 2, kept, 1, 0};
    case DTP_SCHEDULE_DUALPIPEV: return (struct dtp_schedule_waiting){0, p, 2 * kept, 1, 0};
    case DTP_SCHEDULE_ZB_H1: last = p; break;
    case DTP_SCHEDULE_ZB_H2: last = 2 * p - 1; break;
    case DTP_SCHEDULE_ZB_1P: last = t->send_s * 2 * (p - 1) > p * t->weight_s ? 2 : p; break; /* F's are late there */
    case DTP_SCHEDULE_ZB_2P: last = 2 * p; break;
    default: break;
    }
    last = fmin(m, last);
    return (struct dtp_schedule_waiting){0, last, 1, 1, fmax(0, last - 1)};
}

struct dtp_schedule_waiting dtp_schedule_waiting(const struct dtp_schedule_shape *shape)
{
    struct dtp_schedule_waiting out = in_chunks(shape);
    const struct dtp_schedule_row *row = dtp_schedule_row(shape->kind);
    const double chunks = row->placement == DTP_CHUNKS_TWO_WAY ? 1 : fmax(1, shape->chunks);
    out.forwards /= chunks;
    out.weights /= chunks;
    out.head_forwards /= chunks;
    return out;
}
