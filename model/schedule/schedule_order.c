#include "schedule/schedule_order.h"

#include "base/word_table.h"

#include <inttypes.h>
#include <string.h>

static const char *const sends[] = {DTP_SEND_TABLE(DTP_ROW_WORD)};
DTP_PARSE_OF_ARRAY(dtp_send_parse, dtp_send, sends, 0)

/* A schedule while it is linked. */
struct linking {
    const struct dtp_schedule *schedule;
    struct dtp_schedule_order *order;
    uint32_t ranks, micro_batches, chunks, stages;
    uint32_t *place[3]; /* of a stage's micro-batch: the pass of forward, of backward (either kind), of W */
    struct dtp_faults *faults;
    enum dtp_status status;
};

static bool is_backward(const struct dtp_pass *pass)
{
    return pass->kind == DTP_PASS_BACKWARD || pass->kind == DTP_PASS_WHOLE_BACKWARD;
}

static void fault(struct linking *l, uint32_t rank, const struct dtp_pass *pass, const char *what)
{
    l->status = dtp_fault(l->faults, DTP_BAD_INPUT, NULL, 0,
                          "schedule: rank %" PRIu32 ", micro-batch %" PRIu32 ", chunk %u: %s", rank, pass->micro_batch,
                          pass->chunk, what);
}

/* ---- each pass once, in an order that a rank can run ---------------------------------------------------------------
 */

/* Notes where a pass stands; what it builds upon on its own rank must stand before it. */
static void note_pass(struct linking *l, uint32_t rank, uint32_t i)
{
    const struct dtp_pass *pass = &l->schedule->passes[i];
    struct dtp_pass_link *link = &l->order->links[i];
    *link = (struct dtp_pass_link){DTP_NO_PASS, DTP_NO_PASS, 0, rank};
    if (pass->micro_batch >= l->micro_batches || pass->chunk >= l->chunks || pass->kind >= DTP_PASS_COUNT ||
        dtp_schedule_line(l->schedule, pass->micro_batch) != dtp_schedule_line_of_chunk(l->schedule, pass->chunk)) {
        fault(l, rank, pass, "there is no such pass");
        return;
    }
    link->stage = dtp_schedule_stage(l->schedule, rank, pass->chunk);
    size_t at = (size_t)link->stage * l->micro_batches + pass->micro_batch;
    uint32_t *place = &l->place[pass->kind == DTP_PASS_FORWARD ? 0 : is_backward(pass) ? 1 : 2][at];
    if (*place != DTP_NO_PASS)
        fault(l, rank, pass, "the same pass is listed twice");
    *place = i;
    if (is_backward(pass) && l->place[0][at] == DTP_NO_PASS)
        fault(l, rank, pass, "its backward comes before its forward");
    if (pass->kind == DTP_PASS_WEIGHT && l->place[1][at] == DTP_NO_PASS)
        fault(l, rank, pass, "the gradients of its weights come before its backward");
    if (pass->paired && (pass->kind != DTP_PASS_FORWARD || i + 1 == l->schedule->first[rank + 1] ||
                         !is_backward(pass + 1) || pass[1].paired))
        fault(l, rank, pass, "only a forward is paired, with the backward behind it");
}

/* What is missing of a rank's list. */
static void check_complete(struct linking *l, uint32_t rank)
{
    for (uint32_t chunk = 0; chunk < l->chunks; chunk++) {
        size_t base = (size_t)dtp_schedule_stage(l->schedule, rank, chunk) * l->micro_batches;
        for (uint32_t m = 0; m < l->micro_batches && (!l->faults || l->faults->count < DTP_FAULTS_KEPT); m++) {
            struct dtp_pass pass = {.micro_batch = m, .chunk = (uint16_t)chunk};
            if (dtp_schedule_line(l->schedule, m) != dtp_schedule_line_of_chunk(l->schedule, chunk))
                continue;
            uint32_t backward = l->place[1][base + m], weight = l->place[2][base + m];
            if (l->place[0][base + m] == DTP_NO_PASS)
                fault(l, rank, &pass, "its forward is missing");
            if (backward == DTP_NO_PASS)
                fault(l, rank, &pass, "its backward is missing");
            else if (l->schedule->passes[backward].kind == DTP_PASS_BACKWARD && weight == DTP_NO_PASS)
                fault(l, rank, &pass, "the gradients of its weights are missing");
            else if (l->schedule->passes[backward].kind == DTP_PASS_WHOLE_BACKWARD && weight != DTP_NO_PASS)
                fault(l, rank, &pass, "its backward is whole and the gradients of its weights are listed again");
        }
    }
}

/* ---- what waits for what -------------------------------------------------------------------------------------------
 */

/* Joins a pass to the one whose result it takes; on one rank their order in its list says enough. */
static void join(struct linking *l, uint32_t from, uint32_t to)
{
    struct dtp_pass_link *links = l->order->links;
    if (links[from].rank != links[to].rank) {
        links[to].from = from;
        links[from].to = to;
    } else if (from > to) {
        fault(l, links[to].rank, &l->schedule->passes[to], "it comes before what the rank's other chunk makes for it");
    }
}

static void join_passes(struct linking *l)
{
    for (uint32_t stage = 0; stage + 1 < l->stages; stage++) {
        size_t here = (size_t)stage * l->micro_batches, next = here + l->micro_batches;
        for (uint32_t m = 0; m < l->micro_batches; m++) {
            join(l, l->place[0][here + m], l->place[0][next + m]);
            join(l, l->place[1][next + m], l->place[1][here + m]);
        }
    }
}

/* What a rank takes from another one, of activations and of gradients, in the order in which that one makes it. */
static void check_order_of_messages(struct linking *l, struct dtp_host_arena *arena)
{
    const struct dtp_pass_link *links = l->order->links;
    uint32_t *last = dtp_host_arena_take(arena, 2 * (size_t)l->ranks, sizeof *last); /* taken of a rank's passes */
    if (!last) {
        l->status = dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < l->order->count; i++)
        if (links[i].from != DTP_NO_PASS)
            last[2 * links[links[i].from].rank + 1] = last[2 * links[links[i].from].rank] = DTP_NO_PASS;
    for (uint32_t i = 0; i < l->order->count && l->status == DTP_OK; i++) {
        uint32_t from = links[i].from;
        if (from == DTP_NO_PASS)
            continue;
        uint32_t *before = &last[2 * links[from].rank + is_backward(&l->schedule->passes[i])];
        bool same = *before != DTP_NO_PASS && links[links[*before].to].rank == links[i].rank;
        if (same && *before > from)
            fault(l, links[i].rank, &l->schedule->passes[i],
                  "it is sent before what its rank takes earlier from the same rank, and would wait for ever");
        *before = from;
    }
}

/* The ranks while they run as far as they can. */
struct running {
    uint32_t *next;  /* per rank: its next pass */
    bool *done;      /* per pass */
    uint32_t *stack; /* ranks to look at */
    bool *listed;    /* per rank: it is on the stack */
    uint32_t height, count;
};

static bool is_done(const struct running *run, uint32_t pass)
{
    return pass == DTP_NO_PASS || run->done[pass];
}

/* The pass before one on its rank; DTP_NO_PASS of the first. */
static uint32_t before(const struct linking *l, uint32_t i)
{
    return i > l->schedule->first[l->order->links[i].rank] ? i - 1 : DTP_NO_PASS;
}

/* A pair is one piece of work: it sends what both made when both are done. */
static bool sends_have_room(const struct linking *l, const struct running *run, uint32_t last)
{
    const struct dtp_pass_link *links = l->order->links;
    for (uint32_t i = last;; i--) {
        if (links[i].to != DTP_NO_PASS) {
            uint32_t receiver = links[i].to;
            if (before(l, receiver) != DTP_NO_PASS && l->schedule->passes[before(l, receiver)].paired)
                receiver--;
            if (!is_done(run, before(l, receiver)))
                return false;
        }
        if (i == l->schedule->first[links[i].rank] || !l->schedule->passes[i - 1].paired)
            return true;
    }
}

static bool can_run(const struct linking *l, const struct running *run, uint32_t i)
{
    const struct dtp_pass_link *links = l->order->links;
    if (!is_done(run, links[i].from) || (l->schedule->passes[i].paired && !is_done(run, links[i + 1].from)))
        return false;
    return l->order->send != DTP_SEND_BLOCKING || before(l, i) == DTP_NO_PASS || sends_have_room(l, run, before(l, i));
}

static void look_at(struct running *run, uint32_t rank)
{
    if (!run->listed[rank])
        run->stack[run->height++] = rank;
    run->listed[rank] = true;
}

/* A pass is done: whoever waits for its result, or for its rank to receive, may go on. */
static void finish(const struct linking *l, struct running *run, uint32_t i)
{
    const struct dtp_pass_link *links = l->order->links;
    l->order->order[run->count++] = i;
    run->done[i] = true;
    if (links[i].to != DTP_NO_PASS)
        look_at(run, links[links[i].to].rank);
    uint32_t end = l->schedule->first[links[i].rank + 1];
    for (uint32_t j = i + 1; l->order->send == DTP_SEND_BLOCKING && j < end && j <= i + 2; j++)
        if (links[j].from != DTP_NO_PASS)
            look_at(run, links[links[j].from].rank);
}

static void run_rank(const struct linking *l, struct running *run, uint32_t rank)
{
    uint32_t end = l->schedule->first[rank + 1];
    while (run->next[rank] < end && can_run(l, run, run->next[rank])) {
        bool paired = l->schedule->passes[run->next[rank]].paired;
        finish(l, run, run->next[rank]++);
        if (paired)
            finish(l, run, run->next[rank]++);
    }
}

/* Says where each rank of a deadlock stands, the first few. */
static void fault_deadlock(struct linking *l, const struct running *run)
{
    for (uint32_t rank = 0, said = 0; rank < l->ranks && said < 4; rank++) {
        uint32_t i = run->next[rank];
        if (i == l->schedule->first[rank + 1])
            continue;
        const struct dtp_pass *pass = &l->schedule->passes[i];
        l->status =
            dtp_fault(l->faults, DTP_BAD_INPUT, NULL, 0,
                      "schedule: deadlock%s: rank %" PRIu32 " never comes to %s of micro-batch %" PRIu32 ", chunk %u",
                      l->order->send == DTP_SEND_BLOCKING ? " where a rank waits until what it sends is taken" : "",
                      rank, dtp_pass_text(pass->kind), pass->micro_batch, pass->chunk);
        said++;
    }
}

static void find_order(struct linking *l, struct dtp_host_arena *arena)
{
    struct running run = {.next = dtp_host_arena_take(arena, l->ranks, sizeof *run.next),
                          .done = dtp_host_arena_take_zeroed(arena, l->order->count + 1, sizeof *run.done),
                          .stack = dtp_host_arena_take(arena, l->ranks, sizeof *run.stack),
                          .listed = dtp_host_arena_take_zeroed(arena, l->ranks, sizeof *run.listed)};
    if (!run.next || !run.done || !run.stack || !run.listed) {
        l->status = dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
        return;
    }
    for (uint32_t rank = 0; rank < l->ranks; rank++) {
        run.next[rank] = l->schedule->first[rank];
        look_at(&run, l->ranks - 1 - rank);
    }
    while (run.height > 0) {
        uint32_t rank = run.stack[--run.height];
        run.listed[rank] = false;
        run_rank(l, &run, rank);
    }
    if (run.count < l->order->count)
        fault_deadlock(l, &run);
}

/* ---- all of it -----------------------------------------------------------------------------------------------------
 */

static enum dtp_status link_passes(struct linking *l, struct dtp_host_arena *arena)
{
    size_t places = (size_t)l->stages * l->micro_batches;
    l->order->links = dtp_host_arena_take(arena, l->order->count + 1, sizeof *l->order->links);
    l->order->order = dtp_host_arena_take(arena, l->order->count + 1, sizeof *l->order->order);
    for (int kind = 0; kind < 3; kind++) {
        l->place[kind] = dtp_host_arena_take(arena, places, sizeof *l->place[kind]);
        if (l->place[kind])
            memset(l->place[kind], 0xff, places * sizeof *l->place[kind]);
    }
    if (!l->order->links || !l->order->order || !l->place[0] || !l->place[1] || !l->place[2])
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t rank = 0; rank < l->ranks; rank++)
        for (uint32_t i = l->schedule->first[rank]; i < l->schedule->first[rank + 1]; i++)
            note_pass(l, rank, i);
    for (uint32_t rank = 0; rank < l->ranks; rank++)
        check_complete(l, rank);
    if (l->status == DTP_OK)
        join_passes(l);
    if (l->status == DTP_OK && l->order->send == DTP_SEND_RENDEZVOUS)
        check_order_of_messages(l, arena);
    if (l->status == DTP_OK)
        find_order(l, arena);
    return l->status;
}

enum dtp_status dtp_schedule_order_make(const struct dtp_schedule *schedule, enum dtp_send send,
                                        struct dtp_host_arena *arena, struct dtp_schedule_order *out,
                                        struct dtp_faults *faults)
{
    const struct dtp_schedule_shape *s = &schedule->shape;
    *out = (struct dtp_schedule_order){.send = send, .count = (uint32_t)dtp_schedule_pass_count(schedule)};
    struct linking l = {.schedule = schedule,
                        .order = out,
                        .ranks = s->ranks,
                        .micro_batches = s->micro_batches,
                        .chunks = s->chunks,
                        .stages = schedule->stages,
                        .faults = faults};
    return link_passes(&l, arena);
}

enum dtp_status dtp_schedule_verify(const struct dtp_schedule *schedule, enum dtp_send send, struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    struct dtp_schedule_order order;
    enum dtp_status status = dtp_schedule_order_make(schedule, send, &arena, &order, faults);
    dtp_host_arena_release(&arena);
    return status;
}
