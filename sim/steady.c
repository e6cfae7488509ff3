#include "sim/steady.h"

#include "sim/engine_state.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* By how much times that are the same may differ, of the time that has passed: by what rounding makes of it. */
#define TIME_TOLERANCE (64 * DBL_EPSILON)
#define SPEED_TOLERANCE (4096 * DBL_EPSILON)
#define LEAST_JUMP 2 /* periods */

/* Of one role, when nothing is due. */
struct state {
    uint32_t last_done[DTP_STREAM_COUNT], done;
    uint32_t arrived[DTP_STREAM_COUNT], running[DTP_STREAM_COUNT], waiting[DTP_STREAM_COUNT];
    double left_s[DTP_STREAM_COUNT], speed[DTP_STREAM_COUNT]; /* of what runs: until it ends at that speed */
    size_t arrived_count, running_count;
    uint32_t waiting_streams;
    uint32_t next_issue;
    double host_s; /* from now on */
    bool host_blocked;
};

/* States of all roles when the first of them was through with its last mark, and with the one before. */
struct dtp_steady {
    bool reached, known;
    double now_s, before_s;
    uint32_t *streams; /* per role: a bit for each that has operations which repeat */
    struct state *now, *before;
};

static uint32_t streams_of(const struct dtp_engine_period *period, const struct dtp_engine_op *ops)
{
    uint32_t streams = 0;
    for (uint32_t i = period->first; i < period->first + period->length; i++)
        streams |= 1u << ops[i].stream;
    return streams;
}

bool dtp_steady_begin(struct clock *clock)
{
    uint32_t count = clock->role_count;
    const struct dtp_engine_period *first = &clock->roles->job->period;
    if (!first->length)
        return true;
    struct dtp_steady *s =
        calloc(1, sizeof *s + 2 * count * sizeof *s->now + count * sizeof *s->streams); /* one piece, freed at once */
    if (!s)
        return false;
    s->now = (struct state *)(s + 1);
    s->before = s->now + count;
    s->streams = (uint32_t *)(s->before + count);
    for (uint32_t r = 0; r < count; r++)
        s->streams[r] = streams_of(&clock->roles[r].job->period, clock->roles[r].ops);
    clock->roles->mark = first->first + first->length;
    clock->steady = s;
    return true;
}

void dtp_steady_reach(struct engine *role)
{
    role->mark += role->job->period.length;
    role->clock->steady->reached = true;
}

/* ---- whether it repeats ------------------------------------------------------------------------------------------ */

static void take(const struct engine *e, struct state *out)
{
    memcpy(out->last_done, e->last_done, sizeof out->last_done);
    memcpy(out->arrived, e->arrived, e->arrived_count * sizeof *e->arrived);
    out->arrived_count = e->arrived_count;
    out->running_count = e->running_count;
    out->done = e->done;
    memcpy(out->waiting, e->waiting, sizeof out->waiting);
    out->waiting_streams = e->waiting_streams;
    out->next_issue = e->next_issue;
    out->host_s = e->host_s - e->clock->now_s;
    out->host_blocked = e->host_blocked;
    for (size_t i = 0; i < e->running_count; i++) {
        out->running[i] = e->running[i].op;
        out->left_s[i] = e->running[i].end_s - e->clock->now_s;
        out->speed[i] = e->running[i].speed;
    }
}

static bool holds(const uint32_t *ops, size_t count, uint32_t op, size_t *at)
{
    for (*at = 0; *at < count && ops[*at] != op;)
        ++*at;
    return *at < count;
}

/* The host that waits for the device is one period further; else it has issued all that repeats. */
static bool host_moves(const struct state *before, const struct state *now)
{
    return now->next_issue != before->next_issue;
}

static bool is_same_host(const struct dtp_engine_period *period, const struct state *before, const struct state *now,
                         double tolerance_s)
{
    if (!host_moves(before, now))
        return now->next_issue >= period->end;
    return before->next_issue >= period->first && now->next_issue - before->next_issue == period->length &&
           now->host_blocked == before->host_blocked && fabs(now->host_s - before->host_s) <= tolerance_s;
}

/* Whether the state is the one before, one period later. */
static bool is_same(const struct dtp_engine_period *period, uint32_t streams, const struct state *before,
                    const struct state *now, double tolerance_s)
{
    const uint32_t n = period->length;
    size_t at;
    if (now->done - before->done != n || now->arrived_count != before->arrived_count ||
        now->running_count != before->running_count || now->waiting_streams != before->waiting_streams ||
        !is_same_host(period, before, now, tolerance_s))
        return false;
    for (uint32_t left = now->waiting_streams; left; left &= left - 1)
        if (now->waiting[__builtin_ctz(left)] - before->waiting[__builtin_ctz(left)] != n)
            return false;
    for (uint32_t s = 0; s < DTP_STREAM_COUNT; s++) {
        bool moves = streams >> s & 1;
        if (moves && (before->last_done[s] == DTP_NO_INDEX || before->last_done[s] < period->first))
            return false;
        if (now->last_done[s] - before->last_done[s] != (moves ? n : 0))
            return false;
    }
    for (size_t i = 0; i < now->arrived_count; i++)
        if (!holds(before->arrived, before->arrived_count, now->arrived[i] - n, &at))
            return false;
    for (size_t i = 0; i < now->running_count; i++)
        if (!holds(before->running, before->running_count, now->running[i] - n, &at) ||
            fabs(now->left_s[i] - before->left_s[at]) > tolerance_s ||
            fabs(now->speed[i] - before->speed[at]) > SPEED_TOLERANCE)
            return false;
    return true;
}

/* Operations that ended between two states lie in [first, last]. */
struct window {
    uint32_t first, last;
};

static bool is_recorded(const struct state *before, const struct state *now, uint32_t stream, uint32_t op)
{
    return now->last_done[stream] != before->last_done[stream] && op > before->last_done[stream] &&
           op <= now->last_done[stream];
}

static struct window window_of(const struct state *before, const struct state *now)
{
    struct window w = {UINT32_MAX, 0};
    for (uint32_t s = 0; s < DTP_STREAM_COUNT; s++) {
        if (now->last_done[s] == before->last_done[s])
            continue;
        w.first = before->last_done[s] + 1 < w.first ? before->last_done[s] + 1 : w.first;
        w.last = now->last_done[s] > w.last ? now->last_done[s] : w.last;
    }
    return w;
}

/* The host was ahead of all that ended in the period, and does not fall behind later. */
static bool is_ahead(const struct engine *e, const struct state *before, const struct state *now, double period_s)
{
    const struct dtp_engine_job *job = e->job;
    const struct window w = window_of(before, now);
    for (uint32_t i = w.first; i <= w.last && !host_moves(before, now); i++)
        if (is_recorded(before, now, e->ops[i].stream, i) &&
            (job->cause[i] >= DTP_CAUSE_HOST || job->starved_s[i] > 0 || job->issue_s[i] >= job->span[i].start_s ||
             job->issue_s[i + job->period.length] - job->issue_s[i] >= period_s))
            return false;
    return !host_moves(before, now);
}

/* It issues what has not ended as long after that of the period before as devices do it. Of what is all issued two
 * periods say how long one takes. */
static bool is_in_step(const struct engine *e, const struct state *before, const struct state *now, double period_s,
                       double tolerance_s)
{
    const uint32_t n = e->job->period.length, first = window_of(before, now).first;
    uint32_t last = now->next_issue;
    if (!host_moves(before, now))
        last = first + 3 * n < e->job->period.end ? first + 3 * n : e->job->period.end;
    for (uint32_t i = first + n; i < last; i++)
        if (fabs(e->job->issue_s[i] - e->job->issue_s[i - n] - period_s) > tolerance_s)
            return false;
    return true;
}

/* How many periods of a role lie before it. */
static uint32_t periods_left(const struct engine *e, const struct state *now)
{
    uint32_t last = 0;
    for (uint32_t s = 0; s < DTP_STREAM_COUNT; s++)
        if (now->last_done[s] != DTP_NO_INDEX && now->last_done[s] < e->job->period.end)
            last = now->last_done[s] > last ? now->last_done[s] : last;
    for (size_t i = 0; i < now->running_count; i++)
        last = now->running[i] > last ? now->running[i] : last;
    for (size_t i = 0; i < now->arrived_count; i++)
        last = now->arrived[i] > last ? now->arrived[i] : last;
    for (uint32_t left = now->waiting_streams; left; left &= left - 1)
        last = now->waiting[__builtin_ctz(left)] > last ? now->waiting[__builtin_ctz(left)] : last;
    last = now->next_issue < e->job->period.end && now->next_issue > last ? now->next_issue : last;
    return last < e->job->period.end ? (e->job->period.end - 1 - last) / e->job->period.length : 0;
}

/* ---- moving on --------------------------------------------------------------------------------------------------- */

/* Operation `op`, which has begun, is done likewise `ahead` operations further, `later_s` later. */
static void repeat(const struct dtp_engine_job *job, uint32_t op, uint32_t ahead, double later_s)
{
    job->span[op + ahead] = (struct dtp_span){job->span[op].start_s + later_s, job->span[op].end_s + later_s};
    job->cause[op + ahead] = job->cause[op] < DTP_CAUSE_HOST ? job->cause[op] + ahead : job->cause[op];
    job->starved_s[op + ahead] = job->starved_s[op];
}

/* What waits to be issued, or to begin, and the host where it waits as well. */
static void move_host(struct engine *e, const struct state *before, const struct state *now, uint32_t periods,
                      double period_s)
{
    const uint32_t n = e->job->period.length, ahead = periods * n;
    for (uint32_t left = e->waiting_streams; left; left &= left - 1) {
        uint32_t *op = &e->waiting[__builtin_ctz(left)];
        repeat(e->job, *op, ahead, periods * period_s);
        *op += ahead;
    }
    if (!host_moves(before, now))
        return;
    for (uint32_t p = 1; p <= periods; p++)
        for (uint32_t i = before->next_issue; i < now->next_issue; i++)
            e->job->issue_s[i + p * n] = e->job->issue_s[i] + p * period_s;
    if (e->host_blocked)
        repeat(e->job, e->next_issue, ahead, periods * period_s);
    e->next_issue += ahead;
    e->host_s += periods * period_s;
}

static void move_on(struct engine *e, const struct state *before, const struct state *now, uint32_t periods,
                    double period_s)
{
    const uint32_t n = e->job->period.length, ahead = periods * n;
    const struct dtp_engine_graph *graph = e->graph;
    const struct window w = window_of(before, now);
    const double later_s = periods * period_s;
    for (size_t i = 0; i < e->running_count; i++) {
        struct running *r = &e->running[i];
        repeat(e->job, r->op, ahead, later_s);
        r->op += ahead;
        r->end_s += later_s;
        r->since_s += later_s;
    }
    for (size_t i = 0; i < e->arrived_count; i++) {
        repeat(e->job, e->arrived[i], ahead, later_s);
        e->arrived[i] += ahead;
    }
    move_host(e, before, now, periods, period_s);
    for (uint32_t p = 1; p <= periods; p++)
        for (uint32_t i = w.first; i <= w.last; i++) {
            if (!is_recorded(before, now, e->ops[i].stream, i))
                continue;
            repeat(e->job, i, p * n, p * period_s);
            for (uint32_t edge = graph->first_edge[i + p * n]; edge < graph->first_edge[i + p * n + 1]; edge++)
                e->pending[graph->successor[edge]]--;
        }
    for (size_t i = 0; i < e->arrived_count; i++) {
        assert(e->pending[e->arrived[i]] == 0);
        e->pending[e->arrived[i]] = ARRIVED;
    }
    for (uint32_t s = 0; s < DTP_STREAM_COUNT; s++)
        e->last_done[s] += now->last_done[s] != before->last_done[s] ? ahead : 0;
    e->done += ahead;
    *e->job->repeated_count += ahead;
}

/* How many periods all roles can be moved on; 0: they do not repeat yet, or not long enough. */
static uint32_t periods_to_move(const struct clock *clock)
{
    const struct dtp_steady *s = clock->steady;
    const double period_s = s->now_s - s->before_s, tolerance_s = TIME_TOLERANCE * clock->now_s;
    uint32_t periods = UINT32_MAX;
    for (uint32_t r = 0; r < clock->role_count; r++)
        if (!is_same(&clock->roles[r].job->period, s->streams[r], &s->before[r], &s->now[r], tolerance_s))
            return 0;
    for (uint32_t r = 0; r < clock->role_count; r++) {
        uint32_t left = periods_left(&clock->roles[r], &s->now[r]);
        periods = left < periods ? left : periods;
        if (periods < LEAST_JUMP || (!is_ahead(&clock->roles[r], &s->before[r], &s->now[r], period_s) &&
                                     !is_in_step(&clock->roles[r], &s->before[r], &s->now[r], period_s, tolerance_s)))
            return 0;
    }
    return periods;
}

bool dtp_steady_jump(struct clock *clock)
{
    struct dtp_steady *s = clock->steady;
    if (!s->reached)
        return false;
    for (uint32_t r = 0; r < clock->role_count; r++)
        if (clock->roles[r].finished_count) /* transfers that are through here, but not at their other end */
            return false;
    s->reached = false;
    struct state *other = s->before;
    s->before = s->now;
    s->before_s = s->now_s;
    s->now = other;
    s->now_s = clock->now_s;
    for (uint32_t r = 0; r < clock->role_count; r++)
        take(&clock->roles[r], &s->now[r]);
    uint32_t periods = s->known ? periods_to_move(clock) : 0;
    s->known = true;
    if (!periods)
        return false;
    for (uint32_t r = 0; r < clock->role_count; r++) {
        move_on(&clock->roles[r], &s->before[r], &s->now[r], periods, s->now_s - s->before_s);
        touch(&clock->roles[r]);
    }
    clock->now_s += periods * (s->now_s - s->before_s);
    clock->roles->mark = DTP_NO_INDEX;
    return true;
}
