#include "sim/timeline.h"

#include "sim/op_time.h"

#include <math.h>

/* ---- the split of the step -------------------------------------------------------------------------------------- */

/* The operations that take time, stream by stream, each stream in order of time. */
struct lanes {
    uint32_t *op;
    size_t next[DTP_STREAM_COUNT], end[DTP_STREAM_COUNT]; /* positions in op */
    int used[DTP_STREAM_COUNT], used_count;               /* streams that have any */
};

static bool takes_time(const struct dtp_op *op, const struct dtp_span *span)
{
    return dtp_op_kind_class(op->kind) != DTP_CLASS_NONE && span->end_s > span->start_s;
}

static bool sort_into_lanes(const struct dtp_program *program, const struct dtp_timeline *t,
                            struct dtp_host_arena *arena, struct lanes *lanes)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t count[DTP_STREAM_COUNT] = {0}, total = 0;
    for (size_t i = 0; i < t->op_count; i++)
        count[ops[i].stream] += takes_time(&ops[i], &t->span[i]);
    lanes->used_count = 0;
    for (int s = 0; s < DTP_STREAM_COUNT; s++) {
        lanes->next[s] = lanes->end[s] = total;
        total += count[s];
        if (count[s])
            lanes->used[lanes->used_count++] = s;
    }
    lanes->op = dtp_host_arena_take(arena, total, sizeof *lanes->op);
    if (total && !lanes->op)
        return false;
    for (uint32_t i = 0; i < t->op_count; i++)
        if (takes_time(&ops[i], &t->span[i]))
            lanes->op[lanes->end[ops[i].stream]++] = i;
    return true;
}

/* What runs in an interval. */
struct interval {
    uint32_t main; /* kernel of the compute stream, or DTP_NO_INDEX */
    uint32_t other_kernel;
    uint32_t collective[DTP_STREAM_COUNT];
    int collective_count;
    bool copies;
};

static void clear(struct interval *interval)
{
    interval->main = interval->other_kernel = DTP_NO_INDEX;
    interval->collective_count = 0;
    interval->copies = false;
}

static void note(const struct dtp_op *ops, uint32_t op, struct interval *interval)
{
    if (dtp_op_is_kernel(&ops[op])) {
        if (ops[op].stream == DTP_STREAM_COMPUTE)
            interval->main = op;
        else
            interval->other_kernel = op;
    } else if (dtp_op_kind_class(ops[op].kind) == DTP_CLASS_COLLECTIVE) {
        interval->collective[interval->collective_count++] = op;
    } else {
        interval->copies = true;
    }
}

static void add_kernel(const struct dtp_op *op, double duration_s, struct dtp_timeline *t)
{
    if (dtp_op_kind_updates(op->kind))
        t->optimizer_s += duration_s;
    else
        t->compute_s += duration_s;
}

/* `for_host`: what comes next had not been issued. */
static void add_interval(const struct dtp_op *ops, const double *starved_s, const struct interval *interval, bool alone,
                         bool for_host, double duration_s, struct dtp_timeline *t)
{
    uint32_t main = interval->main;
    if (main != DTP_NO_INDEX) {
        double starved = starved_s[main] / (t->span[main].end_s - t->span[main].start_s) * duration_s;
        t->host_bound_s += starved;
        add_kernel(&ops[main], duration_s - starved, t);
    } else if (interval->collective_count) {
        t->exposed_communication_s += duration_s;
        for (int i = 0; i < interval->collective_count; i++) {
            const struct dtp_op *op = &ops[interval->collective[i]];
            t->exposed_by_collective_s[dtp_op_kind_collective(op->kind)] += duration_s / interval->collective_count;
            t->exposed_by_stream_s[op->stream] += duration_s / interval->collective_count;
        }
    } else if (interval->other_kernel != DTP_NO_INDEX) {
        add_kernel(&ops[interval->other_kernel], duration_s, t);
    } else if (interval->copies) {
        t->exposed_offload_s += duration_s;
    } else if (alone || for_host) {
        t->host_bound_s += duration_s;
    } else {
        t->bubble_s += duration_s;
    }
}

/* Sweeps from boundary to boundary of spans: at most two per operation. */
static void split(const struct dtp_op *ops, const double *starved_s, bool alone, struct lanes *lanes,
                  struct dtp_timeline *t)
{
    double now_s = 0;
    while (now_s < t->step_s) {
        double next_s = t->step_s;
        struct interval interval;
        bool for_host = false;
        clear(&interval);
        for (int u = 0; u < lanes->used_count; u++) {
            int s = lanes->used[u];
            if (lanes->next[s] == lanes->end[s])
                continue;
            uint32_t op = lanes->op[lanes->next[s]];
            if (t->span[op].end_s <= now_s) {
                if (++lanes->next[s] == lanes->end[s])
                    continue;
                op = lanes->op[lanes->next[s]];
            }
            const struct dtp_span *span = &t->span[op];
            double boundary_s = span->start_s > now_s ? span->start_s : span->end_s;
            if (boundary_s < next_s)
                for_host = false;
            next_s = boundary_s < next_s ? boundary_s : next_s;
            if (span->start_s <= now_s)
                note(ops, op, &interval);
            else if (boundary_s == next_s)
                for_host = for_host || t->cause[op] == DTP_CAUSE_HOST;
        }
        add_interval(ops, starved_s, &interval, alone, for_host, next_s - now_s, t);
        now_s = next_s;
    }
}

static void add_totals(const struct dtp_op *ops, struct dtp_timeline *t)
{
    for (size_t i = 0; i < t->op_count; i++) {
        t->step_s = t->span[i].end_s > t->step_s ? t->span[i].end_s : t->step_s;
        if (dtp_op_kind_class(ops[i].kind) != DTP_CLASS_COLLECTIVE)
            continue;
        double duration_s = t->span[i].end_s - t->span[i].start_s;
        t->communication_s += duration_s;
        t->communication_by_collective_s[dtp_op_kind_collective(ops[i].kind)] += duration_s;
    }
}

double dtp_timeline_exposed_transfers_s(const struct dtp_timeline *timeline)
{
    double seconds = 0;
    for (int stream = DTP_STREAM_SEND; stream <= DTP_STREAM_RECEIVE_BACK; stream++)
        seconds += timeline->exposed_by_stream_s[stream];
    return seconds;
}

/* ---- the critical path ------------------------------------------------------------------------------------------ */

/* The operation before `op` on the path. Where the host was late, that is the wait at which the host stood last. */
static uint32_t before(const struct dtp_op *ops, const struct dtp_timeline *t, uint32_t op)
{
    if (t->cause[op] != DTP_CAUSE_HOST)
        return t->cause[op];
    for (; op > 0; op--)
        if (ops[op - 1].kind == DTP_OP_HOST_WAIT)
            return op - 1;
    return DTP_CAUSE_NONE;
}

static uint32_t last_to_end(const struct dtp_timeline *t)
{
    uint32_t last = 0;
    for (uint32_t i = 1; i < t->op_count; i++)
        if (t->span[i].end_s > t->span[last].end_s)
            last = i;
    return last;
}

static bool find_critical(const struct dtp_op *ops, struct dtp_timeline *t)
{
    if (!t->op_count)
        return true;
    uint32_t last = last_to_end(t);
    for (uint32_t op = last; op != DTP_CAUSE_NONE; op = before(ops, t, op))
        t->critical_count++;
    t->critical = dtp_host_arena_take(&t->memory, t->critical_count, sizeof *t->critical);
    if (!t->critical)
        return false;
    size_t place = t->critical_count;
    for (uint32_t op = last; op != DTP_CAUSE_NONE; op = before(ops, t, op))
        t->critical[--place] = op;
    return true;
}

bool dtp_timeline_account(const struct dtp_program *program, const double *starved_s, bool alone,
                          struct dtp_timeline *timeline)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    struct dtp_host_arena scratch = {0};
    struct lanes lanes;
    add_totals(ops, timeline);
    bool done = sort_into_lanes(program, timeline, &scratch, &lanes) && find_critical(ops, timeline);
    if (done)
        split(ops, starved_s, alone, &lanes, timeline);
    dtp_host_arena_release(&scratch);
    /* Sums of many intervals may exceed the sum of the spans by rounding. */
    timeline->exposed_communication_s = fmin(timeline->exposed_communication_s, timeline->communication_s);
    return done;
}
