#include "observed/host_ops.h"

#include "observed/kernel_kind.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *begins;
    struct dtp_kernel_kind is;
} rows[] = {
#define X(begins, kind, trait) {begins, {DTP_OBSERVED_##kind, DTP_TRAIT_##trait}},
#include "observed/host_op_kind.def"
#undef X
};

struct host_op {
    double start_s, end_s;
    json_int_t thread;
    struct dtp_kernel_kind is;
    bool named;    /* by a row */
    bool computes; /* of aten, which does what it says while it runs */
};

/* A call of c10d for which gloo sums over all ranks. */
struct sum_call {
    double start_s;
    bool scatters;
};

struct host_ops {
    struct host_op *list;
    size_t count;
    struct sum_call *calls;
    size_t call_count;
};

static bool begins_with(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static void add_call(struct host_ops *ops, const char *name, double start_s)
{
    bool scatters = begins_with(name, "c10d::_reduce_scatter") || begins_with(name, "c10d::reduce_scatter");
    if (scatters || begins_with(name, "c10d::allreduce"))
        ops->calls[ops->call_count++] = (struct sum_call){start_s, scatters};
}

/* `ops` has room for an operator and a call of each event. */
static void add_event(struct host_ops *ops, const json_t *event)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *category = json_string_value(json_object_get(event, "cat"));
    const char *name = json_string_value(json_object_get(event, "name"));
    if (!phase || strcmp(phase, "X") != 0 || !category || !name)
        return;
    /* gloo's works are annotations of its threads. */
    if (strcmp(category, "cpu_op") != 0 && !begins_with(name, "gloo:"))
        return;
    double start_s = 1e-6 * json_number_value(json_object_get(event, "ts"));
    struct host_op op = {.start_s = start_s,
                         .end_s = start_s + 1e-6 * json_number_value(json_object_get(event, "dur")),
                         .thread = json_integer_value(json_object_get(event, "tid")),
                         .is = {DTP_OBSERVED_ELEMENTWISE, DTP_TRAIT_PLAIN},
                         .computes = begins_with(name, "aten::")};
    if (!dtp_is_span(op.start_s, op.end_s))
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !op.named; i++)
        if (begins_with(name, rows[i].begins)) {
            op.is = rows[i].is;
            op.named = true;
        }
    ops->list[ops->count++] = op;
    add_call(ops, name, start_s);
}

/* ---- scatters among sums ----------------------------------------------------------------------------------------- */

static int by_start(const void *a, const void *b)
{
    const struct host_op *x = a, *y = b;
    return x->start_s < y->start_s ? -1 : x->start_s > y->start_s;
}

static int by_call(const void *a, const void *b)
{
    const struct sum_call *x = a, *y = b;
    return x->start_s < y->start_s ? -1 : x->start_s > y->start_s;
}

/* gloo begins its works in the order of their calls. Where there are more or fewer sums than calls, which a trace may
 * cut at its ends, they stay what they are called. */
static void name_scatters(struct host_ops *ops)
{
    size_t sums = 0, call = 0;
    if (ops->count > 0)
        qsort(ops->list, ops->count, sizeof *ops->list, by_start);
    if (ops->call_count > 0)
        qsort(ops->calls, ops->call_count, sizeof *ops->calls, by_call);
    for (size_t i = 0; i < ops->count; i++)
        sums += ops->list[i].named && ops->list[i].is.kind == DTP_OBSERVED_ALL_REDUCE;
    if (sums != ops->call_count)
        return;
    for (size_t i = 0; i < ops->count; i++)
        if (ops->list[i].named && ops->list[i].is.kind == DTP_OBSERVED_ALL_REDUCE && ops->calls[call++].scatters)
            ops->list[i].is.kind = DTP_OBSERVED_REDUCE_SCATTER;
}

/* ---- operators within each other --------------------------------------------------------------------------------- */

/* The outer one of two that begin at once first. */
static int by_thread(const void *a, const void *b)
{
    const struct host_op *x = a, *y = b;
    if (x->thread != y->thread)
        return x->thread < y->thread ? -1 : 1;
    if (x->start_s != y->start_s)
        return x->start_s < y->start_s ? -1 : 1;
    return x->end_s > y->end_s ? -1 : x->end_s < y->end_s;
}

/* An operator that has begun, and until when its time is taken. */
struct open_op {
    const struct host_op *op;
    double taken_s;
};

static bool take(struct dtp_spans *spans, struct open_op *open, double until_s)
{
    bool own = open->op->computes && !open->op->named && until_s > open->taken_s;
    bool kept = !own || dtp_spans_add_kind(spans, open->op->is, open->taken_s, until_s);
    if (until_s > open->taken_s)
        open->taken_s = until_s;
    return kept;
}

static bool add_thread(struct dtp_spans *spans, const struct host_op *ops, size_t count, struct open_op *open)
{
    size_t depth = 0;
    bool kept = true;
    for (size_t i = 0; i <= count && kept; i++) {
        while (kept && depth > 0 && (i == count || open[depth - 1].op->end_s <= ops[i].start_s)) {
            double end_s = open[depth - 1].op->end_s;
            kept = take(spans, &open[--depth], end_s);
            if (depth > 0 && open[depth - 1].taken_s < end_s)
                open[depth - 1].taken_s = end_s;
        }
        if (i == count || (depth > 0 && open[depth - 1].op->named)) /* what is within one of a row is its own */
            continue;
        if (depth > 0)
            kept = kept && take(spans, &open[depth - 1], ops[i].start_s);
        if (ops[i].named)
            kept = kept && dtp_spans_add_kind(spans, ops[i].is, ops[i].start_s, ops[i].end_s);
        open[depth++] = (struct open_op){&ops[i], ops[i].start_s};
    }
    return kept;
}

bool dtp_spans_add_host_ops(struct dtp_spans *spans, const json_t *events)
{
    size_t room = json_array_size(events) + 1, first = 0;
    struct host_ops ops = {.list = malloc(room * sizeof *ops.list), .calls = malloc(room * sizeof *ops.calls)};
    struct open_op *open = malloc(room * sizeof *open);
    bool kept = ops.list && ops.calls && open;
    for (size_t i = 0; kept && i + 1 < room; i++)
        add_event(&ops, json_array_get(events, i));
    if (kept) {
        name_scatters(&ops);
        if (ops.count > 0)
            qsort(ops.list, ops.count, sizeof *ops.list, by_thread);
    }
    for (size_t i = 1; kept && i <= ops.count; i++)
        if (i == ops.count || ops.list[i].thread != ops.list[first].thread) {
            kept = add_thread(spans, ops.list + first, i - first, open);
            first = i;
        }
    free(ops.list);
    free(ops.calls);
    free(open);
    return kept;
}
