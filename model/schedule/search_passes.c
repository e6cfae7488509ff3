/* ZB-1p and ZB-2p: the order of passes that is found for what they take, within a limit of memory.
 *
 * The heuristic is that of Qi et al. 2024 (arXiv:2401.10241, section 3.1) as sail-sg's program has it
 * (sail-sg/zero-bubble-pipeline-parallelism, scheduler/zb.py, manual_order and initial_solution), which ran what their
 * tables call ZB-1p and ZB-2p; the integer program that the paper lets improve on it is not in that program any more.
 * All ranks are scheduled together, micro-batch by micro-batch: as many forwards as the limit and the first gradient's
 * way back let in, then a forward and a backward of each rank by turns; W goes into what would be idle, where the
 * longest W fits, where the rank would idle longer than the one that idles most, or where the limit asks for it. Three
 * choices are left open, so eight variants are tried, and ZB-H1, which is better where F takes much longer than B; the
 * one whose longest rank is shortest from its first pass to its last is kept, which is the step where the optimizer
 * validates afterwards.
 *
 * As there, all stages take the same, and memory is counted in what one forward keeps. It is a function of numbers
 * alone: every rank that asks finds the same. */
#include "schedule/schedule_lists.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Times are sums of the same few numbers in different orders: a difference below this share of one round is none. */
#define TIE 1e-9

/* A variant: what the heuristic leaves open. */
struct choices {
    bool done_by_first_backward; /* no forward still runs when the first gradient arrives */
    bool backward_first;         /* a forward may be left out where the next rank's backward would wait for it */
    bool fills;                  /* W also where the rank idles less than the one that idles most */
    bool by_hand;                /* ZB-H1 instead: p - r forwards of rank r, W where more than r are left */
};

struct search {
    const struct dtp_schedule_shape *shape;
    struct choices choices;
    double cost[3], send, tie; /* of F, B, W */
    double left, limit;        /* of what a forward keeps: what its B leaves to its W; of a rank in all */
    uint32_t *done[3];         /* passes of each kind that a rank has */
    uint32_t *more;            /* forwards that a rank is about to make */
    double *end, *idle;        /* of a rank: of its last pass; since its first */
    double most_idle;
    double *forward_end, *backward_end; /* of rank r's micro-batch i at r m + i */
    uint8_t *kinds, *best;              /* of rank r's i-th pass at 3 r m + i */
};

enum { F, B, W };

static bool is_later(const struct search *s, double a, double b)
{
    return a > b + s->tie;
}

static size_t place(const struct search *s, uint32_t rank, uint32_t micro_batch)
{
    return (size_t)rank * s->shape->micro_batches + micro_batch;
}

/* When what the rank's next forward, or backward, waits for is there; of ends of the pipeline at once. */
static double forward_arrival(const struct search *s, uint32_t rank)
{
    return rank ? s->forward_end[place(s, rank - 1, s->done[F][rank])] + s->send : 0;
}
static double backward_arrival(const struct search *s, uint32_t rank)
{
    return rank + 1 < s->shape->ranks ? s->backward_end[place(s, rank + 1, s->done[B][rank])] + s->send : 0;
}

static double kept(const struct search *s, uint32_t rank)
{
    return s->done[F][rank] - s->done[B][rank] + s->left * (s->done[B][rank] - s->done[W][rank]);
}

static void put(struct search *s, uint32_t rank, int kind)
{
    double ready = s->end[rank], begin = ready;
    if (kind == F)
        begin = fmax(begin, forward_arrival(s, rank));
    if (kind == B)
        begin = fmax(begin, backward_arrival(s, rank));
    if (s->done[F][rank])
        s->idle[rank] += begin - ready;
    s->most_idle = fmax(s->most_idle, s->idle[rank]);
    s->end[rank] = begin + s->cost[kind];
    if (kind == F)
        s->forward_end[place(s, rank, s->done[F][rank])] = s->end[rank];
    if (kind == B)
        s->backward_end[place(s, rank, s->done[B][rank])] = s->end[rank];
    uint32_t count = s->done[F][rank] + s->done[B][rank] + s->done[W][rank];
    s->kinds[3 * place(s, rank, 0) + count] = (uint8_t)kind;
    s->done[kind][rank]++;
}

/* Forwards besides its first that a rank makes before its first backward, whose gradient is there at `gradient`. */
static uint32_t count_warm_up(const struct search *s, uint32_t rank, double gradient)
{
    uint32_t count = 0;
    double end = s->end[rank];
    while (1 + count < s->shape->micro_batches && !is_later(s, kept(s, rank) + count + 1, s->limit)) {
        if (s->choices.done_by_first_backward ? is_later(s, end + s->cost[F], gradient) : !is_later(s, gradient, end))
            break;
        end += s->cost[F];
        count++;
    }
    return count;
}

static void count_forwards(struct search *s)
{
    const uint32_t p = s->shape->ranks, m = s->shape->micro_batches;
    for (uint32_t rank = 0; s->choices.by_hand && rank < p; rank++)
        s->more[rank] = (p - rank < m ? p - rank : m) - 1;
    if (s->choices.by_hand)
        return;
    double made = s->end[p - 1] + s->cost[B]; /* the first gradient, by the rank behind */
    s->more[p - 1] = 0;
    for (uint32_t rank = p - 1; rank-- > 0;) {
        s->more[rank] = count_warm_up(s, rank, made + s->send);
        made = fmax(s->end[rank] + s->more[rank] * s->cost[F], made + s->send) + s->cost[B];
    }
    for (uint32_t rank = 1; rank < p; rank++)
        while (s->more[rank] > 0 && s->more[rank] >= s->more[rank - 1] && 1 + s->more[rank] < m)
            s->more[rank]--;
}

/* Every rank's first forward and what else fits until its first backward, of each rank at least one less than of the
 * rank before; then that backward. */
static void warm_up(struct search *s)
{
    const uint32_t p = s->shape->ranks;
    for (uint32_t rank = 0; rank < p; rank++)
        put(s, rank, F);
    count_forwards(s);
    for (uint32_t rank = 0; rank < p; rank++)
        for (uint32_t i = 0; i < s->more[rank]; i++)
            put(s, rank, F);
    for (uint32_t rank = p; rank-- > 0;)
        put(s, rank, B);
}

/* Whether a rank that is two forwards ahead of the next one makes its next backward before another: where that forward,
 * and the W's that make room for it, would end after the next rank's backward, and waiting makes no idle time beyond
 * what another rank idles anyhow. */
static bool waits_for_backward(const struct search *s, uint32_t rank)
{
    if (!s->choices.backward_first || rank + 1 == s->shape->ranks || s->done[F][rank] < s->done[F][rank + 1] + 2)
        return false;
    double next = s->end[rank + 1] + s->cost[F] + s->cost[B] + s->send, weights = 0, memory = kept(s, rank) + 1;
    if (!is_later(s, next, s->end[rank]))
        return true;
    for (uint32_t left = s->done[B][rank] - s->done[W][rank]; left > 0 && is_later(s, memory, s->limit); left--) {
        weights += s->cost[W];
        memory -= s->left;
    }
    if (!is_later(s, s->end[rank] + s->cost[F] + weights, next))
        return false;
    return !is_later(s, next - s->end[rank], s->most_idle - s->idle[rank]);
}

static bool has_weights(const struct search *s, uint32_t rank)
{
    return s->done[W][rank] < s->done[B][rank];
}

/* W's while the rank waits for what arrives then: those that are done by then, and one more. */
static void fill(struct search *s, uint32_t rank, double arrival)
{
    if (s->choices.by_hand)
        return;
    while (has_weights(s, rank) && !is_later(s, s->end[rank] + s->cost[W], arrival))
        put(s, rank, W);
    if (!has_weights(s, rank) || !is_later(s, arrival, s->end[rank]))
        return;
    if (s->choices.fills || is_later(s, arrival - s->end[rank], s->most_idle - s->idle[rank]))
        put(s, rank, W);
}

/* A forward of each rank that makes one: no rank does before which the next one makes none. */
static void forwards(struct search *s)
{
    const uint32_t p = s->shape->ranks, m = s->shape->micro_batches;
    for (uint32_t rank = 0; rank < p; rank++)
        s->more[rank] = s->done[F][rank] < m && !waits_for_backward(s, rank);
    for (uint32_t rank = p - 1; rank-- > 0;)
        s->more[rank] = s->more[rank] && s->more[rank + 1];
    for (uint32_t rank = 0; rank < p; rank++) {
        if (s->choices.by_hand && s->done[B][rank] - s->done[W][rank] > rank)
            put(s, rank, W);
        if (!s->more[rank])
            continue;
        while (has_weights(s, rank) && is_later(s, kept(s, rank) + 1, s->limit))
            put(s, rank, W);
        if (rank)
            fill(s, rank, forward_arrival(s, rank));
        put(s, rank, F);
    }
}

static void backwards(struct search *s)
{
    const uint32_t p = s->shape->ranks, m = s->shape->micro_batches;
    for (uint32_t rank = p; rank-- > 0;) {
        if (rank + 1 < p)
            fill(s, rank, backward_arrival(s, rank));
        if (rank == 0 && s->done[F][rank] == m &&
            !s->choices.by_hand) /* nobody waits for this rank's backward any more */
            while (has_weights(s, rank))
                put(s, rank, W);
        put(s, rank, B);
    }
}

/* One variant; returns the longest time of a rank from its first pass to its last. */
static double try_variant(struct search *s)
{
    const uint32_t p = s->shape->ranks, m = s->shape->micro_batches;
    double longest = 0;
    for (int kind = F; kind <= W; kind++)
        memset(s->done[kind], 0, p * sizeof *s->done[kind]);
    memset(s->end, 0, p * sizeof *s->end);
    memset(s->idle, 0, p * sizeof *s->idle);
    s->most_idle = 0;
    warm_up(s);
    for (uint32_t i = 1; i < m; i++) {
        forwards(s);
        backwards(s);
    }
    for (uint32_t rank = 0; rank < p; rank++) {
        while (has_weights(s, rank))
            put(s, rank, W);
        longest = fmax(longest, s->end[rank] - (s->forward_end[place(s, rank, 0)] - s->cost[F]));
    }
    return longest;
}

/* What `choices` make takes the place of the best so far where it is shorter than `shortest`; returns
 * the shorter time. */
static double try_choices(struct search *s, struct choices choices, double shortest)
{
    s->choices = choices;
    double longest = try_variant(s);
    if (shortest <= longest + s->tie)
        return shortest;
    uint8_t *kinds = s->best;
    s->best = s->kinds;
    s->kinds = kinds;
    return longest;
}

/* Within the limit, and of one greater than 1F1B's within that as well, so that more room never makes it longer. */
static void try_variants(struct search *s)
{
    const double limits[] = {dtp_schedule_limit(s->shape), s->shape->ranks};
    double shortest = INFINITY;
    for (int i = 0; i < (limits[0] > limits[1] ? 2 : 1); i++)
        for (int variant = 0; variant < 8; variant++) {
            s->limit = limits[i];
            shortest =
                try_choices(s, (struct choices){!(variant & 4), !(variant & 2), !(variant & 1), false}, shortest);
        }
    try_choices(s, (struct choices){.by_hand = true}, shortest);
}

uint8_t *dtp_search_passes(const struct dtp_schedule_shape *shape)
{
    const struct dtp_pass_times *t = &shape->times;
    const size_t p = shape->ranks, pairs = p * shape->micro_batches;
    struct search s = {.shape = shape, .cost = {t->forward_s, t->backward_s, t->weight_s}, .send = t->send_s};
    if (t->forward_s + t->backward_s + t->weight_s + t->send_s <= 0)
        s.cost[F] = s.cost[B] = s.cost[W] = 1;
    s.tie = TIE * (s.cost[F] + s.cost[B] + s.cost[W] + s.send);
    s.left = 1 - t->freed;
    s.kinds = malloc(3 * pairs);
    s.best = malloc(3 * pairs);
    double *ends = malloc((2 * pairs + 2 * p) * sizeof *ends);
    uint32_t *counts = malloc(4 * p * sizeof *counts);
    if (s.kinds && s.best && ends && counts) {
        s.forward_end = ends, s.backward_end = ends + pairs, s.end = ends + 2 * pairs, s.idle = s.end + p;
        for (int kind = F; kind <= W; kind++)
            s.done[kind] = counts + (size_t)kind * p;
        s.more = counts + 3 * p;
        try_variants(&s);
    } else {
        free(s.best);
        s.best = NULL;
    }
    free(s.kinds);
    free(ends);
    free(counts);
    return s.best;
}

void dtp_list_found(struct dtp_pass_list *list)
{
    static const enum dtp_pass_kind kinds[] = {DTP_PASS_FORWARD, DTP_PASS_BACKWARD, DTP_PASS_WEIGHT};
    const uint32_t count = 3 * list->shape->micro_batches;
    uint32_t next[3] = {0};
    for (uint32_t i = 0; i < count; i++) {
        int kind = list->found[(size_t)list->rank * count + i];
        dtp_pass_add(list, kinds[kind], 0, next[kind]++);
    }
}
