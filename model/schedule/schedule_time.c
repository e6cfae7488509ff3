#include "schedule/schedule_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct dtp_schedule_timer {
    const struct dtp_schedule *schedule;
    struct dtp_host_arena arena;
    struct dtp_schedule_order order;
    double *begin_s, *end_s; /* per pass */
    double *from_s, *free_s; /* per rank: when its step begins; the end of its last pass so far */
    double *host_s;          /* per rank: when its host has launched that */
    double *link_s; /* per rank: when the last of what it receives was there, from either side, of either kind */
    struct dtp_rank_timing *ranks;
    uint32_t *boundary; /* per pass: the stage behind whose boundary what it waits for was made; DTP_NO_PASS: it waits
                           for no other rank */
    uint32_t *next;     /* per rank: its next pass, where ranks take turns */
    uint32_t *arrivals; /* passes that wait for another rank, queue by queue, in the order in which that rank makes
                           what they wait for */
    uint32_t *queue_first; /* of queue q: arrivals[queue_first[q]] to arrivals[queue_first[q + 1] - 1] */
    uint32_t *queue_at;    /* per queue: how many have arrived so far */
};

static bool is_forward(const struct dtp_pass *pass)
{
    return pass->kind == DTP_PASS_FORWARD;
}

/* Whether a pass runs beside another one. */
static bool in_pair(const struct dtp_schedule_timer *t, uint32_t i)
{
    uint32_t first = t->schedule->first[t->order.links[i].rank];
    return t->schedule->passes[i].paired || (i > first && t->schedule->passes[i - 1].paired);
}

/* What a forward receives crosses the boundary behind the stage before it, a backward's behind its own. */
static void find_boundaries(struct dtp_schedule_timer *t)
{
    for (uint32_t i = 0; i < t->order.count; i++) {
        uint32_t from = t->order.links[i].from, stage = t->order.links[i].stage;
        t->boundary[i] = from == DTP_NO_PASS ? DTP_NO_PASS : is_forward(&t->schedule->passes[i]) ? stage - 1 : stage;
    }
}

/* The queue that what a pass waits for arrives in: two for each stage of each line. */
static uint32_t queue_of(const struct dtp_schedule *schedule, const struct dtp_pass_link *links, uint32_t i)
{
    const struct dtp_pass *pass = &schedule->passes[i];
    uint32_t chunk = links[i].rank * schedule->shape.chunks + pass->chunk;
    return 2 * chunk + !is_forward(pass);
}

/* Ranks make things one after the other, so a queue fills in the order of their lists, whatever passes cost. */
static void list_arrivals(struct dtp_schedule_timer *t)
{
    const struct dtp_pass_link *links = t->order.links;
    uint32_t queues = 2 * t->schedule->shape.ranks * t->schedule->shape.chunks;
    for (uint32_t i = 0; i < t->order.count; i++)
        if (links[i].to != DTP_NO_PASS)
            t->queue_first[queue_of(t->schedule, links, links[i].to) + 1]++;
    for (uint32_t q = 0; q < queues; q++) {
        t->queue_first[q + 1] += t->queue_first[q];
        t->queue_at[q] = t->queue_first[q];
    }
    for (uint32_t i = 0; i < t->order.count; i++)
        if (links[i].to != DTP_NO_PASS)
            t->arrivals[t->queue_at[queue_of(t->schedule, links, links[i].to)]++] = links[i].to;
}

enum dtp_status dtp_schedule_timer_create(const struct dtp_schedule *schedule, enum dtp_send send,
                                          struct dtp_schedule_timer **out, struct dtp_faults *faults)
{
    struct dtp_schedule_timer *t = *out = calloc(1, sizeof *t);
    if (!t)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    t->schedule = schedule;
    enum dtp_status status = dtp_schedule_order_make(schedule, send, &t->arena, &t->order, faults);
    if (status == DTP_OK) {
        size_t passes = t->order.count + 1, ranks = schedule->shape.ranks, queues = 2 * ranks * schedule->shape.chunks;
        t->begin_s = dtp_host_arena_take(&t->arena, passes, sizeof *t->begin_s);
        t->end_s = dtp_host_arena_take(&t->arena, passes, sizeof *t->end_s);
        t->from_s = dtp_host_arena_take_zeroed(&t->arena, ranks, sizeof *t->from_s);
        t->free_s = dtp_host_arena_take(&t->arena, ranks, sizeof *t->free_s);
        t->host_s = dtp_host_arena_take(&t->arena, ranks, sizeof *t->host_s);
        t->link_s = dtp_host_arena_take(&t->arena, 4 * ranks, sizeof *t->link_s);
        t->ranks = dtp_host_arena_take(&t->arena, ranks, sizeof *t->ranks);
        t->boundary = dtp_host_arena_take(&t->arena, passes, sizeof *t->boundary);
        t->arrivals = dtp_host_arena_take(&t->arena, passes, sizeof *t->arrivals);
        t->queue_first = dtp_host_arena_take_zeroed(&t->arena, queues + 1, sizeof *t->queue_first);
        t->next = dtp_host_arena_take(&t->arena, ranks, sizeof *t->next);
        t->queue_at = dtp_host_arena_take(&t->arena, queues, sizeof *t->queue_at);
        if (!t->begin_s || !t->end_s || !t->from_s || !t->free_s || !t->host_s || !t->link_s || !t->ranks ||
            !t->boundary || !t->arrivals || !t->queue_first || !t->queue_at || !t->next)
            status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    }
    if (status == DTP_OK) {
        find_boundaries(t);
        list_arrivals(t);
        return DTP_OK;
    }
    dtp_schedule_timer_destroy(t);
    *out = NULL;
    return status;
}

void dtp_schedule_timer_destroy(struct dtp_schedule_timer *timer)
{
    if (timer)
        dtp_host_arena_release(&timer->arena);
    free(timer);
}

/* ---- when passes run -----------------------------------------------------------------------------------------------
 */

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double pass_s(const struct dtp_pass *pass, const struct dtp_stage_cost *cost, uint32_t micro_batches)
{
    const double last_s = pass->micro_batch + 1 == micro_batches ? cost->last_s : 0;
    switch (pass->kind) {
    case DTP_PASS_FORWARD: return cost->forward_s + (pass->micro_batch == 0 ? cost->first_s : 0);
    case DTP_PASS_BACKWARD: return cost->backward_s;
    case DTP_PASS_WEIGHT: return cost->weight_s + last_s;
    default: return cost->backward_s + cost->weight_s + last_s;
    }
}

static double launch_s(const struct dtp_pass *pass, const struct dtp_stage_cost *cost)
{
    switch (pass->kind) {
    case DTP_PASS_FORWARD: return cost->launch_forward_s;
    case DTP_PASS_BACKWARD: return cost->launch_backward_s + cost->launch_walk_s;
    case DTP_PASS_WEIGHT: return cost->launch_weight_s + cost->launch_engine_s;
    default: return cost->launch_backward_s + cost->launch_weight_s;
    }
}

static bool waits(const struct dtp_pass *pass, const struct dtp_stage_cost *cost)
{
    const bool backward = pass->kind != DTP_PASS_FORWARD && pass->kind != DTP_PASS_WEIGHT;
    return pass->kind == DTP_PASS_FORWARD ? cost->waits_forward : backward && cost->waits_backward;
}

/* How long what a pass waits for is on its way. Transfers of a pair are hidden by the half that does not need them. */
static double received_s(const struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t i)
{
    if (t->boundary[i] == DTP_NO_PASS || (!costs->early && (in_pair(t, i) || in_pair(t, t->order.links[i].from))))
        return 0;
    return costs->stages[t->boundary[i]].send_s;
}

/* The end of what runs on a rank before a pass; a pair is one piece. */
static double ready_s(const struct dtp_schedule_timer *t, uint32_t i)
{
    uint32_t rank = t->order.links[i].rank, first = t->schedule->first[rank];
    if (i > first && t->schedule->passes[i - 1].paired)
        i--;
    return i > first ? t->end_s[i - 1] : t->from_s[rank];
}

/* The end of what ran when the receive of a pass is posted. */
static double posted_s(const struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t i)
{
    uint32_t first = t->schedule->first[t->order.links[i].rank];
    if (!costs->early || i == first)
        return ready_s(t, i);
    if (i > first + 1 && t->schedule->passes[i - 1].paired)
        i--;
    return ready_s(t, i - 1);
}

/* How long before its end a pass has made what it sends: the first of a pair sends when both are done. */
static double delayed_s(const struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t i)
{
    const struct dtp_pass *pass = &t->schedule->passes[i];
    bool delays = pass->kind == DTP_PASS_WHOLE_BACKWARD && !pass->paired;
    return delays ? costs->stages[t->order.links[i].stage].delayed_s : 0;
}

/* When what a pass waits for is there. */
static double arrival_s(const struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t i)
{
    uint32_t from = t->order.links[i].from;
    if (from == DTP_NO_PASS)
        return 0;
    double made_s = t->end_s[from] - delayed_s(t, costs, from);
    if (t->order.send != DTP_SEND_BUFFERED)
        made_s = later(made_s, posted_s(t, costs, i));
    return made_s + received_s(t, costs, i);
}

/* The same while ranks run: what is posted early waits until what came before it from the same side is there. */
static double arrives_s(struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t i)
{
    const struct dtp_pass_link *links = t->order.links;
    const double arrival_i_s = arrival_s(t, costs, i);
    if (!costs->early || links[i].from == DTP_NO_PASS || t->order.send != DTP_SEND_RENDEZVOUS)
        return arrival_i_s;
    const uint32_t rank = links[i].rank, behind = (links[links[i].from].rank + 1) % t->schedule->shape.ranks == rank;
    double *link_s = &t->link_s[4 * rank + 2 * behind + is_forward(&t->schedule->passes[i])];
    return *link_s = later(arrival_i_s, *link_s + received_s(t, costs, i));
}

/* Blocking: when the receiver of what the pass before `i` made has it. */
static double sent_s(const struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t i)
{
    uint32_t first = t->schedule->first[t->order.links[i].rank];
    double done_s = 0;
    for (bool more = i > first; more; i--) {
        uint32_t to = t->order.links[i - 1].to;
        if (to != DTP_NO_PASS)
            done_s = later(done_s, later(t->end_s[i - 1], ready_s(t, to)) + received_s(t, costs, to));
        more = i - 1 > first && t->schedule->passes[i - 2].paired;
    }
    return done_s;
}

/* Runs a pass, or a pair, that has all it needs at `arrived_s`, and notes when. Returns its end. */
static double run_pass(struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t i,
                       double arrived_s)
{
    const struct dtp_pass_link *links = t->order.links;
    const uint32_t rank = links[i].rank, last = i + t->schedule->passes[i].paired;
    const double begin_s = later(t->free_s[rank], arrived_s);
    double takes_s = 0;
    bool host_waits = false;
    for (uint32_t pass = i; pass <= last; pass++) {
        const struct dtp_stage_cost *cost = &costs->stages[links[pass].stage];
        host_waits |= waits(&t->schedule->passes[pass], cost);
        takes_s += pass_s(&t->schedule->passes[pass], cost, t->schedule->shape.micro_batches);
        t->host_s[rank] += launch_s(&t->schedule->passes[pass], cost);
    }
    takes_s *= last > i ? costs->pair_fraction : 1;
    t->free_s[rank] = later(begin_s + takes_s, t->host_s[rank]);
    if (host_waits)
        t->host_s[rank] = t->free_s[rank];
    for (uint32_t pass = i; pass <= last; pass++) {
        t->begin_s[pass] = begin_s;
        t->end_s[pass] = t->free_s[rank];
    }
    return t->free_s[rank];
}

/* What a pass made is posted at either end behind what stands there by then, a receive behind the passes that its rank
 * has had. */
static void post(struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t pass, double *arrived_s)
{
    const uint32_t to = t->order.links[pass].to;
    if (to == DTP_NO_PASS)
        return;
    const uint32_t rank = t->order.links[pass].rank, other = t->order.links[to].rank;
    const double made_s = later(t->end_s[pass] - delayed_s(t, costs, pass), t->free_s[other]);
    t->link_s[rank] = later(made_s, later(t->link_s[rank], t->link_s[other])) + received_s(t, costs, to);
    t->link_s[other] = arrived_s[to] = t->link_s[rank];
}

/* Ranks take turns, a pass each for which all has been posted. Returns the makespan. */
static double take_turns(struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs)
{
    double makespan_s = 0, *arrived_s = t->begin_s; /* until the pass begins */
    for (uint32_t i = 0; i < t->order.count; i++)
        arrived_s[i] = t->order.links[i].from == DTP_NO_PASS ? 0 : INFINITY;
    memcpy(t->next, t->schedule->first, t->schedule->shape.ranks * sizeof *t->next);
    for (bool progress = true; progress;) {
        progress = false;
        for (uint32_t rank = 0; rank < t->schedule->shape.ranks; rank++) {
            const uint32_t i = t->next[rank];
            if (i == t->schedule->first[rank + 1])
                continue;
            const uint32_t last = i + t->schedule->passes[i].paired;
            const double all_s = later(arrived_s[i], arrived_s[last]);
            if (isinf(all_s))
                continue;
            makespan_s = later(makespan_s, run_pass(t, costs, i, all_s));
            t->next[rank] = last + 1;
            progress = true;
            for (uint32_t pass = i; pass <= last; pass++)
                post(t, costs, pass, arrived_s);
        }
    }
    return makespan_s;
}

/* Returns the makespan. */
static double sweep(struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs)
{
    double makespan_s = 0;
    for (uint32_t rank = 0; rank < t->schedule->shape.ranks; rank++)
        t->free_s[rank] = t->host_s[rank] = t->from_s[rank];
    memset(t->link_s, 0, 4 * t->schedule->shape.ranks * sizeof *t->link_s);
    if (costs->posted)
        return take_turns(t, costs);
    for (uint32_t k = 0; k < t->order.count; k++) {
        const uint32_t i = t->order.order[k];
        double arrived_s = arrives_s(t, costs, i);
        if (t->order.send == DTP_SEND_BLOCKING)
            arrived_s = later(arrived_s, sent_s(t, costs, i));
        if (t->schedule->passes[i].paired) {
            arrived_s = later(arrived_s, arrives_s(t, costs, i + 1));
            k++;
        }
        makespan_s = later(makespan_s, run_pass(t, costs, i, arrived_s));
    }
    return makespan_s;
}

double dtp_schedule_timer_makespan(struct dtp_schedule_timer *timer, const struct dtp_schedule_costs *costs)
{
    return sweep(timer, costs);
}

/* Steps until one is like the one before it: mostly the second is. */
#define MOST_STEPS 64u

double dtp_schedule_timer_period(struct dtp_schedule_timer *timer, const struct dtp_schedule_costs *costs)
{
    uint32_t ranks = timer->schedule->shape.ranks;
    double period_s = 0;
    for (uint32_t step = 0; step < MOST_STEPS; step++) {
        double shortest_s = INFINITY, first_s = INFINITY;
        sweep(timer, costs);
        period_s = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            double took_s = timer->free_s[rank] - timer->from_s[rank];
            period_s = later(period_s, took_s);
            shortest_s = took_s < shortest_s ? took_s : shortest_s;
            first_s = timer->free_s[rank] < first_s ? timer->free_s[rank] : first_s;
        }
        if (shortest_s >= (1 - 1e-9) * period_s)
            break;
        for (uint32_t rank = 0; rank < ranks; rank++)
            timer->from_s[rank] = timer->free_s[rank] - first_s;
    }
    memset(timer->from_s, 0, ranks * sizeof *timer->from_s);
    return period_s;
}

/* ---- what that leaves of a rank ------------------------------------------------------------------------------------
 */

/* Idle time before each pass and after the last, by what the rank is about. */
static void account_time(const struct dtp_schedule_timer *t, uint32_t rank, double makespan_s,
                         struct dtp_rank_timing *out)
{
    const struct dtp_pass *passes = t->schedule->passes;
    uint32_t first = t->schedule->first[rank], end = t->schedule->first[rank + 1], backward = first, forward = end;
    while (passes[backward].kind == DTP_PASS_FORWARD)
        backward++;
    do
        forward--;
    while (passes[forward].kind != DTP_PASS_FORWARD);
    if (backward > first && passes[backward - 1].paired) /* the pair begins before */
        backward--;
    double free_s = 0;
    for (uint32_t i = first; i < end; i++) {
        double *idle_s = i <= backward ? &out->warm_up_idle_s : i <= forward ? &out->steady_idle_s : &out->drain_idle_s;
        if (i > first && passes[i - 1].paired)
            continue;
        *idle_s += t->begin_s[i] - free_s;
        out->busy_s += t->end_s[i] - t->begin_s[i];
        free_s = t->end_s[i];
    }
    out->begin_s = t->begin_s[first];
    out->end_s = free_s;
    out->drain_idle_s += makespan_s - free_s;
}

/* What is kept depends on the order alone. */
static void account_memory(const struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t rank,
                           struct dtp_rank_timing *out)
{
    uint32_t forwards = 0, weights = 0;
    double kept = 0;
    for (uint32_t i = t->schedule->first[rank]; i < t->schedule->first[rank + 1]; i++) {
        const struct dtp_stage_cost *cost = &costs->stages[t->order.links[i].stage];
        switch (t->schedule->passes[i].kind) {
        case DTP_PASS_FORWARD:
            forwards++;
            kept += cost->kept;
            break;
        case DTP_PASS_BACKWARD:
            forwards--;
            weights++;
            kept += cost->kept_for_weight - cost->kept;
            break;
        case DTP_PASS_WEIGHT:
            weights--;
            kept -= cost->kept_for_weight;
            break;
        default:
            forwards--;
            kept -= cost->kept;
            break;
        }
        out->peak_kept = later(out->peak_kept, kept);
        out->peak_forwards = forwards > out->peak_forwards ? forwards : out->peak_forwards;
        out->peak_weights = weights > out->peak_weights ? weights : out->peak_weights;
    }
}

/* A queue is longest just before one of its passes begins. */
static void account_queues(struct dtp_schedule_timer *t, const struct dtp_schedule_costs *costs, uint32_t rank,
                           struct dtp_rank_timing *out)
{
    uint32_t chunks = t->schedule->shape.chunks, first = 2 * rank * chunks;
    int64_t waiting[2] = {0, 0};
    for (uint32_t q = first; q < first + 2 * chunks; q++)
        t->queue_at[q] = t->queue_first[q];
    for (uint32_t i = t->schedule->first[rank]; i < t->schedule->first[rank + 1]; i++) {
        int way = !is_forward(&t->schedule->passes[i]);
        if (t->order.links[i].from == DTP_NO_PASS)
            continue;
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            uint32_t q = first + 2 * chunk + (uint32_t)way;
            for (; t->queue_at[q] < t->queue_first[q + 1]; t->queue_at[q]++, waiting[way]++)
                if (arrival_s(t, costs, t->arrivals[t->queue_at[q]]) >= t->begin_s[i])
                    break;
        }
        uint32_t *most = way ? &out->backward_queue : &out->forward_queue;
        *most = waiting[way] > *most ? (uint32_t)waiting[way] : *most;
        waiting[way]--; /* begun; -1 for the moment where it arrives just now */
    }
}

void dtp_schedule_timer_run(struct dtp_schedule_timer *timer, const struct dtp_schedule_costs *costs,
                            struct dtp_schedule_timing *out)
{
    *out = (struct dtp_schedule_timing){.ranks = timer->ranks, .begin_s = timer->begin_s, .end_s = timer->end_s};
    out->makespan_s = sweep(timer, costs);
    for (uint32_t rank = 0; rank < timer->schedule->shape.ranks; rank++) {
        struct dtp_rank_timing *r = &timer->ranks[rank];
        *r = (struct dtp_rank_timing){0};
        account_time(timer, rank, out->makespan_s, r);
        account_memory(timer, costs, rank, r);
        if (timer->order.send == DTP_SEND_BUFFERED)
            account_queues(timer, costs, rank, r);
        out->span_s = later(out->span_s, r->end_s - r->begin_s);
        out->busy_s = later(out->busy_s, r->busy_s);
    }
    out->bubble_s = out->makespan_s - out->busy_s;
    out->span_bubble_s = out->span_s - out->busy_s;
}

void dtp_stage_costs_equal(const struct dtp_schedule *schedule, double forward_s, double backward_s, double weight_s,
                           double send_s, struct dtp_stage_cost *out)
{
    double share = (double)dtp_schedule_lines(schedule) / schedule->shape.chunks;
    for (uint32_t i = 0; i < schedule->stages; i++)
        out[i] = (struct dtp_stage_cost){.forward_s = forward_s * share,
                                         .backward_s = backward_s * share,
                                         .weight_s = weight_s * share,
                                         .send_s = send_s,
                                         .kept = share};
}
