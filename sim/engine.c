#include "sim/engine_state.h"
#include "sim/steady.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- who waits for whom ------------------------------------------------------------------------------------------ */

/* Edges as they are found, by the operation at which they end. */
struct edge {
    uint32_t from, to;
};

static void link_edge(struct dtp_engine_graph *graph, struct edge **next, uint32_t from, uint32_t to)
{
    *(*next)++ = (struct edge){from, to};
    graph->first_edge[from]++;
    graph->predecessors[to]++;
}

/* Puts the edges of each operation one behind the other; first_edge says how many each has. */
static void sort_edges(const struct edge *edges, size_t edge_count, size_t count, struct dtp_engine_graph *out)
{
    for (size_t i = 1; i <= count; i++)
        out->first_edge[i] += out->first_edge[i - 1]; /* where those of the next one begin */
    for (size_t i = 0; i < edge_count; i++)
        out->successor[--out->first_edge[edges[i].from]] = edges[i].to;
}

bool dtp_engine_link(const struct dtp_program *program, bool one_by_one, struct dtp_host_arena *arena,
                     struct dtp_engine_graph *out)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t count = dtp_program_op_count(program), groups = dtp_program_group_count(program), most = 0;
    for (size_t i = 0; i < count; i++)
        most += ops[i].dependency_count + 1u + one_by_one + (ops[i].group != DTP_NO_INDEX);
    *out = (struct dtp_engine_graph){dtp_host_arena_take(arena, count, sizeof *out->ops),
                                     dtp_host_arena_take_zeroed(arena, count, sizeof(uint32_t)),
                                     dtp_host_arena_take_zeroed(arena, count + 1, sizeof(uint32_t)),
                                     dtp_host_arena_take(arena, most, sizeof(uint32_t))};
    uint32_t *last_of_group = dtp_host_arena_take(arena, groups, sizeof(uint32_t));
    struct edge *edges = malloc((most + 1) * sizeof *edges), *next = edges;
    if (!out->ops || !out->predecessors || !out->first_edge || !out->successor || (groups && !last_of_group) ||
        !edges) {
        free(edges);
        return false;
    }
    uint32_t last_of_stream[DTP_STREAM_COUNT], before = DTP_NO_INDEX; /* the last that holds up what is behind it */
    memset(last_of_stream, 0xff, sizeof last_of_stream);
    if (groups)
        memset(last_of_group, 0xff, groups * sizeof(uint32_t));
    for (uint32_t i = 0; i < count; i++) {
        enum dtp_op_class class = dtp_op_kind_class(ops[i].kind);
        out->ops[i] = (struct dtp_engine_op){.kernels = ops[i].demand->kernels,
                                             .peer = ops[i].peer,
                                             .stream = (uint8_t)ops[i].stream,
                                             .waits = ops[i].kind == DTP_OP_HOST_WAIT,
                                             .computes = dtp_op_is_kernel(&ops[i]),
                                             .grouped = ops[i].kind == DTP_OP_GROUPED_MATMUL,
                                             .plain = dtp_op_is_plain(&ops[i]),
                                             .collective = class == DTP_CLASS_COLLECTIVE,
                                             .issue = ops[i].demand->issue & 3u,
                                             .calls = dtp_op_host_call(&ops[i]) & 7u};
        const dtp_op_id *dependency = dtp_program_dependencies(program, &ops[i]);
        for (uint32_t d = 0; d < ops[i].dependency_count; d++)
            link_edge(out, &next, dependency[d].index, i);
        if (one_by_one && before != DTP_NO_INDEX)
            link_edge(out, &next, before, i);
        before = dtp_stream_transfers(ops[i].stream) ? before : i;
        uint32_t *last = &last_of_stream[ops[i].stream];
        if (*last != DTP_NO_INDEX)
            link_edge(out, &next, *last, i);
        *last = i;
        if (ops[i].group == DTP_NO_INDEX)
            continue;
        last = &last_of_group[ops[i].group];
        if (*last != DTP_NO_INDEX)
            link_edge(out, &next, *last, i);
        *last = i;
    }
    sort_edges(edges, (size_t)(next - edges), count, out);
    free(edges);
    return true;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

/* The engine of the other end; *partner: its operation there. NULL: `op` is no transfer between roles. */
static struct engine *other_end(const struct engine *e, uint32_t op, uint32_t *partner)
{
    *partner = e->job->partner ? e->job->partner[op] : DTP_NO_INDEX;
    return *partner == DTP_NO_INDEX ? NULL : &e->clock->roles[e->ops[op].peer];
}

/* ---- the host thread --------------------------------------------------------------------------------------------- */

static void set_waiting(struct engine *e, uint32_t op)
{
    int stream = e->ops[op].stream;
    assert(!(e->waiting_streams & 1u << stream));
    e->waiting[stream] = op;
    e->waiting_streams |= 1u << stream;
}

/* Issues operations until a HOST_WAIT whose predecessors are not done; its span begins when the host comes to it.
 * issue_s is when the first kernel is launched; the host goes on when all of them are. */
static void issue(struct engine *e)
{
    while (e->next_issue < e->count) {
        uint32_t i = e->next_issue;
        double launch_s = dtp_engine_launch_s(e->job->rates, &e->ops[i]);
        uint32_t kernels = e->ops[i].kernels;
        bool waits = e->ops[i].waits;
        if (waits && !e->host_blocked)
            e->job->span[i].start_s = e->host_s;
        if (waits && e->pending[i]) {
            e->host_blocked = true;
            return;
        }
        if (e->host_blocked) { /* the HOST_WAIT itself, at last */
            e->host_blocked = false;
            e->host_s = e->host_s > e->clock->now_s ? e->host_s : e->clock->now_s;
        }
        e->job->issue_s[i] = kernels ? e->host_s + launch_s : e->host_s;
        e->host_s += kernels * launch_s;
        e->next_issue++;
        if (!e->pending[i])
            set_waiting(e, i);
    }
}

/* ---- starting and ending ----------------------------------------------------------------------------------------- */

static void end_one(struct engine *e, uint32_t op)
{
    e->job->span[op].end_s = e->clock->now_s;
    e->done++;
    e->last_done[e->ops[op].stream] = op;
    if (op == e->mark)
        dtp_steady_reach(e);
    const uint32_t *end = e->graph->successor + e->graph->first_edge[op + 1];
    for (const uint32_t *edge = e->graph->successor + e->graph->first_edge[op]; edge < end; edge++) {
        uint32_t next = *edge;
        if (--e->pending[next])
            continue;
        e->job->cause[next] = op;
        if (next < e->next_issue)
            set_waiting(e, next);
        else if (next == e->next_issue && e->host_blocked)
            issue(e);
    }
}

/* A transfer ends where both ends are through. */
static void end(struct engine *e, uint32_t op)
{
    uint32_t partner;
    struct engine *other = other_end(e, op, &partner);
    if (other && other->pending[partner] != FINISHED) {
        e->pending[op] = FINISHED;
        e->finished_count++;
        return;
    }
    if (other) {
        other->finished_count--;
        touch(other);
        end_one(other, partner);
    }
    end_one(e, op);
}

/* Both ends of a transfer take as long as the longer one. */
static double transfer_s(const struct engine *e, uint32_t op)
{
    uint32_t partner;
    const struct engine *other = other_end(e, op, &partner);
    double mine_s = e->job->seconds[op];
    return other && other->job->seconds[partner] > mine_s ? other->job->seconds[partner] : mine_s;
}

/* Seconds the operation takes alone from now on: its own, or until its last kernel has been launched and has run, for
 * kernels of one operation take equal parts of its time. The difference is starvation. */
static double stretched_s(struct engine *e, uint32_t op)
{
    double seconds = transfer_s(e, op), kernels = e->ops[op].kernels;
    e->job->starved_s[op] = 0;
    if (kernels < 2)
        return seconds;
    double last_launch_s = e->job->issue_s[op] + (kernels - 1) * dtp_engine_launch_s(e->job->rates, &e->ops[op]);
    double until_s = last_launch_s + seconds / kernels - e->clock->now_s;
    if (until_s <= seconds)
        return seconds;
    e->job->cause[op] = DTP_CAUSE_HOST;
    e->job->starved_s[op] = until_s - seconds;
    return until_s;
}

static const struct dtp_op *op_of(const struct engine *e, uint32_t op)
{
    return &dtp_program_ops(e->job->program)[op];
}

/* A kernel's thread blocks find room where those of a matmul or of attention that fills the device end, which they do a
 * tile at a time: half a tile's time on average. Counted for runtimes whose kernels are this project's: their streams
 * stand in front of the one that computes, and many short kernels beside it (PowerSGD's) wait longer than they run. */
static double wait_for_room_s(const struct engine *e, uint32_t op)
{
    const struct dtp_op_rates *rates = e->job->rates;
    double wait_s = 0;
    /* The operation itself lies in memory that nothing else here reads: last. */
    if (e->ops[op].stream == DTP_STREAM_COMPUTE || !rates->execution->own_kernels || !dtp_op_is_kernel(op_of(e, op)))
        return 0;
    for (uint32_t i = 0; i < e->running_count; i++) {
        const struct running *r = &e->running[i];
        if (e->ops[r->op].stream == DTP_STREAM_COMPUTE)
            wait_s = dtp_op_tile_s(rates, op_of(e, r->op), r->seconds) / 2;
    }
    return wait_s;
}

static void start(struct engine *e, uint32_t op)
{
    if (!e->ops[op].waits)
        e->job->span[op].start_s = e->clock->now_s;
    uint32_t cause = e->job->cause[op];
    if (e->job->issue_s[op] >= e->clock->now_s &&
        (cause == DTP_CAUSE_NONE ? e->clock->now_s > e->job->begin_s : e->job->span[cause].end_s < e->clock->now_s))
        e->job->cause[op] = DTP_CAUSE_HOST;
    double seconds = stretched_s(e, op);
    if (seconds > 0)
        seconds += wait_for_room_s(e, op);
    if (seconds <= 0) {
        end(e, op);
        return;
    }
    struct running *r = &e->running[e->running_count++];
    r->op = op;
    r->speed = 1;
    r->since_s = e->clock->now_s;
    r->left_s = seconds;
    r->end_s = e->clock->now_s + seconds;
    r->seconds = seconds;
    r->usage_known = false;
    e->changed = true;
}

static void leave_arrived(struct engine *e, uint32_t op)
{
    size_t i = 0;
    while (e->arrived[i] != op)
        i++;
    e->arrived[i] = e->arrived[--e->arrived_count];
    e->changed = true;
}

/* It can start, as soon as its other end can. */
static void meet(struct engine *e, uint32_t op)
{
    uint32_t partner;
    struct engine *other = other_end(e, op, &partner);
    if (!other) {
        start(e, op);
    } else if (other->pending[partner] == ARRIVED) {
        touch(other);
        leave_arrived(other, partner);
        start(other, partner);
        start(e, op);
    } else {
        e->pending[op] = ARRIVED;
        e->arrived[e->arrived_count++] = op;
        e->changed = true;
    }
}

/* Starts everything that can start now, lowest index first. What takes no time ends at once and may let others start.
 * True: something did. */
static bool start_ready(struct engine *e)
{
    bool any = false;
    while (e->waiting_streams) {
        uint32_t first = DTP_NO_INDEX;
        for (uint32_t left = e->waiting_streams; left; left &= left - 1) {
            uint32_t op = e->waiting[__builtin_ctz(left)];
            if (op < first && e->job->issue_s[op] <= e->clock->now_s)
                first = op;
        }
        if (first == DTP_NO_INDEX)
            return any;
        e->waiting_streams &= ~(1u << e->ops[first].stream);
        any = true;
        meet(e, first);
    }
    return any;
    return any;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static const struct dtp_usage *usage_of(struct engine *e, struct running *r)
{
    if (r->usage_known)
        return &r->usage;
    uint32_t alike = e->ops[r->op].alike;
    struct known_usage *k = &e->known[(alike * 2654435769u >> 16) % USAGES_KNOWN]; /* by Fibonacci's hash, 2^32 / phi */
    if (k->alike != alike || k->seconds != r->seconds)
        *k = (struct known_usage){r->seconds, alike, dtp_op_usage(e->job->rates, op_of(e, r->op), r->seconds)};
    r->usage = k->usage;
    r->usage_known = true;
    return &r->usage;
}

/* Kernels take memory and links' credits from a collective as well as it takes SMs from them; how much was measured. */
static void slow_collectives(const struct engine *e, double *speed)
{
    bool kernels = false;
    for (size_t i = 0; i < e->running_count; i++)
        kernels = kernels || e->ops[e->running[i].op].computes;
    for (size_t i = 0; i < e->running_count && kernels; i++)
        speed[i] *= dtp_op_speed_beside_kernels(e->job->rates, op_of(e, e->running[i].op));
}

/* Kernels beside transfers that wait for their other end have fewer SMs from their first thread block to their last. */
static void slow_by_waiting(struct engine *e, const struct dtp_usage *waiting, double *speed)
{
    double held = 0;
    for (size_t i = 0; i < e->arrived_count; i++)
        held += waiting[i].of[DTP_RESOURCE_SM];
    for (size_t i = 0; i < e->running_count && held > 0; i++) {
        const uint32_t op = e->running[i].op;
        if (e->ops[op].computes)
            speed[i] = fmin(1, speed[i] * dtp_op_waves_beside_waiting(e->job->rates, op_of(e, op), held));
    }
}

/* Operations whose speed does not change keep their end to the last bit, so that sums of times stay sums. */
static void share_again(struct engine *e)
{
    e->changed = false;
    if (!e->job->contention)
        return;
    const struct dtp_usage *usage[DTP_STREAM_COUNT];
    struct dtp_usage waiting[DTP_STREAM_COUNT];
    double speed[DTP_STREAM_COUNT];
    speed[0] = 1;
    bool alone = e->running_count == 1 && e->arrived_count == 0 && e->ops[e->running[0].op].computes;
    for (size_t i = 0; i < e->running_count && !alone; i++)
        usage[i] = usage_of(e, &e->running[i]);
    for (size_t i = 0; i < e->arrived_count; i++) {
        waiting[i] = dtp_op_waiting_usage(e->job->rates, op_of(e, e->arrived[i]));
        usage[e->running_count + i] = &waiting[i];
    }
    if (!alone) /* a kernel alone has full speed; a copy may not, for other GPUs copy too */
        dtp_share(usage, e->running_count + e->arrived_count, speed);
    if (e->job->rates->measured_s && !alone)
        slow_collectives(e, speed);
    slow_by_waiting(e, waiting, speed);
    for (size_t i = 0; i < e->running_count; i++) {
        struct running *r = &e->running[i];
        if (speed[i] == r->speed)
            continue;
        double left_s = r->left_s - (e->clock->now_s - r->since_s) * r->speed;
        r->left_s = left_s > 0 ? left_s : 0;
        r->since_s = e->clock->now_s;
        r->speed = speed[i];
        r->end_s = e->clock->now_s + r->left_s / r->speed;
    }
}

static double next_event_s(const struct engine *e)
{
    double next_s = INFINITY;
    for (size_t i = 0; i < e->running_count; i++)
        if (e->running[i].end_s < next_s)
            next_s = e->running[i].end_s;
    for (uint32_t left = e->waiting_streams; left; left &= left - 1) {
        double issue_s = e->job->issue_s[e->waiting[__builtin_ctz(left)]];
        next_s = issue_s < next_s ? issue_s : next_s;
    }
    return next_s;
}

/* Ends what is due, lowest index first, so that causes do not depend on the order of starts. */
static void end_due(struct engine *e)
{
    for (;;) {
        size_t first = e->running_count;
        for (size_t i = 0; i < e->running_count; i++)
            if (e->running[i].end_s <= e->clock->now_s &&
                (first == e->running_count || e->running[i].op < e->running[first].op))
                first = i;
        if (first == e->running_count)
            return;
        uint32_t op = e->running[first].op;
        e->running[first] = e->running[--e->running_count];
        e->changed = true;
        end(e, op);
    }
}

static void begin(struct engine *e, const struct dtp_engine_job *job, const struct dtp_engine_graph *graph,
                  uint32_t *pending)
{
    e->job = job;
    e->graph = graph;
    e->ops = graph->ops;
    e->pending = pending;
    e->count = (uint32_t)dtp_program_op_count(job->program);
    e->host_s = job->begin_s;
    memcpy(pending, graph->predecessors, e->count * sizeof *pending);
    memset(job->cause, 0xff, e->count * sizeof *job->cause); /* DTP_CAUSE_NONE */
    memset(e->last_done, 0xff, sizeof e->last_done);
    *job->repeated_count = 0;
    e->mark = DTP_NO_INDEX;
    issue(e);
}

/* What one role starts may start others' transfers, or end them where they take no time. */
static void start_all(struct clock *clock)
{
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < clock->touched_count; i++)
            any = start_ready(clock->touched[i]) || any;
        any = any && clock->role_count > 1;
    }
}

static void set_next(struct clock *clock, uint32_t role, double next_s)
{
    double *tree = clock->next_s;
    uint32_t node = clock->leaves + role;
    tree[node] = next_s;
    for (node /= 2; node; node /= 2) {
        double first_s = tree[2 * node], second_s = tree[2 * node + 1];
        tree[node] = first_s < second_s ? first_s : second_s;
    }
}

/* Ends what is due in the roles below a node, in their order. */
static void end_below(struct clock *clock, uint32_t node)
{
    if (clock->next_s[node] > clock->now_s)
        return;
    if (node < clock->leaves) {
        end_below(clock, 2 * node);
        end_below(clock, 2 * node + 1);
        return;
    }
    struct engine *e = &clock->roles[node - clock->leaves];
    touch(e);
    end_due(e);
}

/* The next event of all roles, for those that were touched anew. INFINITY: all is done. */
static double next_of_all_s(struct clock *clock)
{
    for (uint32_t i = 0; i < clock->touched_count; i++) {
        struct engine *e = clock->touched[i];
        if (e->changed)
            share_again(e);
        set_next(clock, (uint32_t)(e - clock->roles), next_event_s(e));
        e->touched = false;
    }
    clock->touched_count = 0;
    return clock->next_s[1];
}

static void run_all(struct clock *clock)
{
    for (uint32_t r = 0; r < clock->role_count; r++)
        touch(&clock->roles[r]);
    for (;;) {
        start_all(clock);
        double next_s = next_of_all_s(clock);
        if (!(next_s < INFINITY))
            break;
        if (clock->steady && dtp_steady_jump(clock))
            next_s = next_of_all_s(clock);
        assert(next_s >= clock->now_s);
        clock->now_s = next_s;
        end_below(clock, 1);
    }
    for (uint32_t r = 0; r < clock->role_count; r++) /* the first operation not done could always run */
        assert(clock->roles[r].done == clock->roles[r].count);
}

bool dtp_engine_run(const struct dtp_engine_job *job, const struct dtp_engine_graph *graph, uint32_t *const *pending,
                    uint32_t count)
{
    struct engine one = {.count = 0}, *touched_one;
    double next_of_one_s[2];
    struct clock clock = {.next_s = next_of_one_s, .roles = &one, .touched = &touched_one, .role_count = count};
    for (clock.leaves = 1; clock.leaves < count;)
        clock.leaves *= 2;
    if (count > 1) {
        clock.next_s = calloc(2 * (size_t)clock.leaves, sizeof *clock.next_s);
        clock.roles = calloc(count, sizeof *clock.roles);
        clock.touched = calloc(count, sizeof *clock.touched);
    }
    bool memory = clock.next_s && clock.roles && clock.touched;
    for (uint32_t node = 0; node < 2 * clock.leaves && memory; node++) /* of no role: those that nobody sets */
        clock.next_s[node] = INFINITY;
    for (uint32_t r = 0; r < count && memory; r++)
        clock.roles[r].clock = &clock;
    for (uint32_t r = 0; r < count && memory; r++)
        begin(&clock.roles[r], &job[r], &graph[r], pending[r]);
    memory = memory && dtp_steady_begin(&clock);
    if (memory)
        run_all(&clock);
    free(clock.steady);
    if (count > 1) {
        free(clock.next_s);
        free(clock.roles);
        free(clock.touched);
    }
    return memory;
}
