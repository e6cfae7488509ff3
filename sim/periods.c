#include "sim/periods.h"

#include <string.h>

#define LEAST_PERIODS 4 /* fewer are through before anything is known to repeat */

/* Mostly by their pointers, as a program keeps them once; not always. */
static bool is_same_work(const struct dtp_op *a, const struct dtp_op *b)
{
    return a->kind == b->kind && a->group == b->group && (a->name == b->name || strcmp(a->name, b->name) == 0) &&
           (a->demand == b->demand || memcmp(a->demand, b->demand, sizeof *a->demand) == 0);
}

/* Whether `b` is to the operations behind it what the earlier `a` is. From `far` on none repeats: kernels there, which
 * come last on their stream, may wait for both. */
static bool are_alike(const struct dtp_period_role *role, uint32_t a, uint32_t b, uint32_t far)
{
    const struct dtp_engine_graph *graph = role->graph;
    const struct dtp_engine_op *x = &graph->ops[a], *y = &graph->ops[b];
    const uint32_t *of_a = graph->successor + graph->first_edge[a], *of_b = graph->successor + graph->first_edge[b];
    uint32_t edges = graph->first_edge[a + 1] - graph->first_edge[a];
    if (x->stream != y->stream || x->kernels != y->kernels || x->peer != y->peer || x->waits != y->waits ||
        x->tensor != y->tensor || x->plain != y->plain || x->issue != y->issue || x->calls != y->calls ||
        graph->predecessors[a] != graph->predecessors[b] || edges != graph->first_edge[b + 1] - graph->first_edge[b] ||
        role->alone_s[a] != role->alone_s[b] ||
        (role->partner[a] == DTP_NO_INDEX) != (role->partner[b] == DTP_NO_INDEX))
        return false;
    for (uint32_t i = 0; i < edges; i++) {
        bool at_end = of_a[i] >= far && of_b[i] >= far && graph->ops[of_a[i]].stream == DTP_STREAM_COMPUTE &&
                      graph->ops[of_b[i]].stream == DTP_STREAM_COMPUTE;
        if (of_b[i] - b != of_a[i] - a && !at_end)
            return false;
    }
    const struct dtp_op *ops = dtp_program_ops(role->program);
    return is_same_work(&ops[a], &ops[b]);
}

static uint32_t next_transfer(const struct dtp_period_role *role, uint32_t op, uint32_t count)
{
    while (op < count && role->partner[op] == DTP_NO_INDEX)
        op++;
    return op;
}

static bool repeats(const struct dtp_period_role *role, uint32_t first, uint32_t length, uint32_t far)
{
    for (uint32_t i = first; i < first + length; i++)
        if (!are_alike(role, i, i + length, far))
            return false;
    return true;
}

/* As far as what is one period apart is alike. */
static struct dtp_engine_period extend(const struct dtp_period_role *role, uint32_t first, uint32_t length,
                                       uint32_t far)
{
    struct dtp_engine_period period = {first, first + length, length};
    while (period.first > 0 && are_alike(role, period.first - 1, period.first - 1 + length, far))
        period.first--;
    while (period.end < far && are_alike(role, period.end - length, period.end, far))
        period.end++;
    return period;
}

/* From one transfer in the middle of the step to the next that is like it, with all between, through most of the step:
 * between the first stage's turns, say, a rank of several repeats what it does for the others. */
static struct dtp_engine_period find(const struct dtp_period_role *role)
{
    uint32_t count = (uint32_t)dtp_program_op_count(role->program);
    uint32_t middle = next_transfer(role, count / 2, count), next = middle, far = count;
    while (far > 0 && role->partner[far - 1] == DTP_NO_INDEX) /* behind its last transfer */
        far--;
    while (next < far) {
        next = next_transfer(role, next + 1, far);
        uint32_t length = next - middle;
        if (length * LEAST_PERIODS > far || next + length > far)
            break;
        if (!repeats(role, middle, length, far))
            continue;
        struct dtp_engine_period period = extend(role, middle, length, far);
        if (period.end - period.first > count / 2)
            return period;
    }
    return (struct dtp_engine_period){0, 0, 0};
}

/* A role may repeat after fewer micro-batches than another, all of whose stages are not alike: both take those of the
 * longer period. False: they do not agree. */
static bool agree(const struct dtp_period_role *role, uint32_t of, struct dtp_engine_period *out, bool *changed)
{
    struct dtp_engine_period *mine = &out[of];
    uint32_t middle = mine->first + (mine->end - mine->first) / 2;
    for (uint32_t i = middle; i < middle + mine->length; i++) {
        if (i + mine->length >= mine->end)
            return false;
        if (role[of].partner[i] == DTP_NO_INDEX)
            continue;
        struct dtp_engine_period *other = &out[role[of].graph->ops[i].peer];
        uint32_t apart = role[of].partner[i + mine->length] - role[of].partner[i];
        if (apart == other->length)
            continue;
        *changed = true;
        if (apart && apart % other->length == 0)
            other->length = apart;
        else if (apart && other->length % apart == 0)
            mine->length *= other->length / apart;
        else
            return false;
    }
    return true;
}

/* Cuts off what sends to what is not one period apart. */
static void cut(const struct dtp_period_role *role, struct dtp_engine_period *mine, const struct dtp_engine_period *all)
{
    uint32_t middle = mine->first + (mine->end - mine->first) / 2;
    for (uint32_t i = mine->first; i + mine->length < mine->end; i++) {
        uint32_t partner = role->partner[i];
        if (partner == DTP_NO_INDEX ||
            role->partner[i + mine->length] - partner == all[role->graph->ops[i].peer].length)
            continue;
        if (i < middle)
            mine->first = i + 1;
        else
            mine->end = i + mine->length;
    }
}

void dtp_periods_find(const struct dtp_period_role *roles, uint32_t count, struct dtp_engine_period *out)
{
    bool found = true, changed = true;
    for (uint32_t r = 0; r < count && found; r++) {
        out[r] = find(&roles[r]);
        found = out[r].length > 0;
    }
    for (uint32_t round = 0; round <= count && found && changed; round++) {
        changed = false;
        for (uint32_t r = 0; r < count && found; r++)
            found = agree(roles, r, out, &changed);
    }
    for (uint32_t r = 0; r < count && found && !changed; r++) {
        cut(&roles[r], &out[r], out);
        found = (out[r].end - out[r].first) / LEAST_PERIODS >= out[r].length;
    }
    if (!found || changed)
        memset(out, 0, count * sizeof *out);
}
