/* Whether the roles of a set can all go on to their end. Time does not matter: an operation that can start will end,
 * and what it allows stays allowed. So the roles are walked, each as far as it can go, until nobody can. */
#include "program/program_set.h"

#include "program/verify.h"

enum { WAITING, ARRIVED, DONE };

/* A role while it is walked: what comes next on each stream and in each group, and who stops the issuing host. */
struct walk {
    const struct dtp_program *program;
    const struct dtp_op *ops;
    uint32_t count, done;
    uint8_t *state; /* per operation */
    uint32_t stream_next[DTP_STREAM_COUNT], *group_next;
    uint32_t host; /* the first that the host has not issued all before of: in line the next, else a HOST_WAIT */
    enum dtp_issue_order order;
};

struct walkers {
    struct walk *role;
    uint32_t role_count;
    uint32_t *const *partner;
};

static void skip_to_stream(struct walk *w, int stream)
{
    uint32_t *at = &w->stream_next[stream];
    while (*at < w->count && ((int)w->ops[*at].stream != stream || w->state[*at] == DONE))
        ++*at;
}

static void skip_to_group(struct walk *w, uint32_t group)
{
    uint32_t *at = &w->group_next[group];
    while (*at < w->count && (w->ops[*at].group != group || w->state[*at] == DONE))
        ++*at;
}

/* Whether the host goes on to what is behind it while it is not done. */
static bool goes_on(const struct walk *w, const struct dtp_op *op)
{
    return op->kind != DTP_OP_HOST_WAIT && (w->order == DTP_ISSUE_STREAMS || dtp_stream_transfers(op->stream));
}

static void skip_host(struct walk *w)
{
    while (w->host < w->count && (w->state[w->host] == DONE || goes_on(w, &w->ops[w->host])))
        w->host++;
}

/* Nothing is before it but what is done. */
static bool may_start(struct walk *w, uint32_t op)
{
    const dtp_op_id *earlier = dtp_program_dependencies(w->program, &w->ops[op]);
    if (op > w->host)
        return false;
    for (uint32_t i = 0; i < w->ops[op].dependency_count; i++)
        if (w->state[earlier[i].index] != DONE)
            return false;
    if (w->ops[op].group == DTP_NO_INDEX)
        return true;
    skip_to_group(w, w->ops[op].group);
    return w->group_next[w->ops[op].group] == op;
}

static void finish(struct walk *w, uint32_t op)
{
    w->state[op] = DONE;
    w->done++;
    skip_host(w);
}

/* The next operation of a stream, if it can be done now. */
static bool advance(struct walkers *all, uint32_t role, int stream)
{
    struct walk *w = &all->role[role];
    skip_to_stream(w, stream);
    uint32_t op = w->stream_next[stream];
    if (op == w->count || w->state[op] == ARRIVED || !may_start(w, op))
        return false;
    uint32_t partner = all->partner[role][op];
    if (partner == DTP_NO_INDEX) {
        finish(w, op);
        return true;
    }
    struct walk *peer = &all->role[w->ops[op].peer];
    w->state[op] = ARRIVED;
    if (peer->state[partner] != ARRIVED)
        return false;
    finish(w, op);
    finish(peer, partner);
    return true;
}

static void walk_all(struct walkers *all)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t r = 0; r < all->role_count; r++)
            for (int s = 0; s < DTP_STREAM_COUNT; s++)
                while (advance(all, r, s))
                    moved = true;
    }
}

static enum dtp_status say_where(const struct walkers *all, struct dtp_faults *faults)
{
    enum dtp_status status = DTP_OK;
    for (uint32_t r = 0; r < all->role_count; r++) {
        const struct walk *w = &all->role[r];
        for (uint32_t i = 0; i < w->count; i++)
            if (w->state[i] == ARRIVED)
                status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                                   "deadlock: role %u stands for ever at operation %u (%s of tag %u with role %u)", r,
                                   i, dtp_op_kind_text(w->ops[i].kind), w->ops[i].tag, w->ops[i].peer);
    }
    return status;
}

static enum dtp_status walk(const struct dtp_program_set *set, enum dtp_issue_order order, uint32_t *const *partner,
                            struct dtp_host_arena *arena, struct dtp_faults *faults)
{
    struct walkers all = {.role_count = set->role_count, .partner = partner};
    all.role = dtp_host_arena_take_zeroed(arena, set->role_count, sizeof *all.role);
    bool memory = all.role != NULL, ended = true;
    for (uint32_t r = 0; memory && r < set->role_count; r++) {
        struct walk *w = &all.role[r];
        w->program = set->roles[r].program;
        w->ops = dtp_program_ops(w->program);
        w->count = (uint32_t)dtp_program_op_count(w->program);
        w->order = order;
        w->state = dtp_host_arena_take_zeroed(arena, w->count + 1, 1);
        w->group_next =
            dtp_host_arena_take_zeroed(arena, dtp_program_group_count(w->program) + 1, sizeof *w->group_next);
        memory = w->state && w->group_next;
        if (memory)
            skip_host(w);
    }
    if (!memory)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to prove a program set");
    walk_all(&all);
    for (uint32_t r = 0; r < set->role_count; r++)
        ended = ended && all.role[r].done == all.role[r].count;
    return ended ? DTP_OK : say_where(&all, faults);
}

enum dtp_status dtp_program_set_verify(const struct dtp_program_set *set, enum dtp_issue_order order,
                                       struct dtp_faults *faults)
{
    struct dtp_host_arena arena = {0};
    uint32_t **partner;
    enum dtp_status status = dtp_program_set_match(set, &arena, &partner, faults);
    for (uint32_t r = 0; r < set->role_count; r++) {
        enum dtp_status one = dtp_program_verify(set->roles[r].program, faults);
        status = one > status ? one : status;
    }
    if (status == DTP_OK)
        status = walk(set, order, partner, &arena, faults);
    dtp_host_arena_release(&arena);
    return status;
}
