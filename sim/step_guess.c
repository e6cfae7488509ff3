#include "sim/step_guess.h"

#include <stdlib.h>
#include <string.h>

/* An operation whose predecessors are done. */
struct ready {
    uint32_t role, op;
};

struct guess {
    const struct dtp_engine_job *job;
    const struct dtp_engine_graph *graph;
    uint32_t *const *pending;
    struct ready *stack;
    size_t height;
    double step_s;
};

/* What stands in `pending` of a transfer that waits for its other end. */
#define ARRIVED UINT32_MAX

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void push(struct guess *g, uint32_t role, uint32_t op)
{
    g->stack[g->height++] = (struct ready){role, op};
}

/* The operation ends; start_s of a span is when all that came before it had ended. */
static void finish(struct guess *g, uint32_t role, uint32_t op, double end_s)
{
    const struct dtp_engine_graph *graph = &g->graph[role];
    struct dtp_span *span = g->job[role].span;
    g->step_s = later(g->step_s, end_s);
    for (uint32_t edge = graph->first_edge[op]; edge < graph->first_edge[op + 1]; edge++) {
        uint32_t next = graph->successor[edge];
        span[next].start_s = later(span[next].start_s, end_s);
        if (--g->pending[role][next] == 0)
            push(g, role, next);
    }
}

/* Both ends of a transfer take as long as the longer one, from when the later one can begin. */
static void run(struct guess *g, uint32_t role, uint32_t op)
{
    const struct dtp_engine_job *job = &g->job[role];
    uint32_t partner = job->partner ? job->partner[op] : DTP_NO_INDEX;
    double start_s = job->span[op].start_s;
    if (partner == DTP_NO_INDEX) {
        finish(g, role, op, start_s + job->seconds[op]);
        return;
    }
    uint32_t peer = g->graph[role].ops[op].peer;
    if (g->pending[peer][partner] != ARRIVED) {
        g->pending[role][op] = ARRIVED;
        return;
    }
    double end_s =
        later(start_s, g->job[peer].span[partner].start_s) + later(job->seconds[op], g->job[peer].seconds[partner]);
    finish(g, role, op, end_s);
    finish(g, peer, partner, end_s);
}

/* The host issues in order, at a cost for each kernel. */
static void begin(struct guess *g, uint32_t role)
{
    const struct dtp_engine_job *job = &g->job[role];
    const struct dtp_engine_op *ops = g->graph[role].ops;
    uint32_t count = (uint32_t)dtp_program_op_count(job->program);
    double host_s = 0;
    memcpy(g->pending[role], g->graph[role].predecessors, count * sizeof *g->pending[role]);
    for (uint32_t i = 0; i < count; i++) {
        job->span[i].start_s = host_s;
        host_s += ops[i].kernels * dtp_engine_launch_s(job->rates, &ops[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        if (!g->pending[role][i])
            push(g, role, i);
}

bool dtp_step_guess(const struct dtp_engine_job *job, const struct dtp_engine_graph *graph, uint32_t *const *pending,
                    uint32_t count, double *step_s)
{
    struct guess g = {.job = job, .graph = graph, .pending = pending};
    size_t ops = 0;
    for (uint32_t r = 0; r < count; r++)
        ops += dtp_program_op_count(job[r].program);
    g.stack = malloc((ops + 1) * sizeof *g.stack);
    if (!g.stack)
        return false;
    for (uint32_t r = 0; r < count; r++)
        begin(&g, r);
    while (g.height) {
        struct ready next = g.stack[--g.height];
        run(&g, next.role, next.op);
    }
    free(g.stack);
    *step_s = g.step_s;
    return true;
}
