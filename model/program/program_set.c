#include "program/program_set.h"

#include <stdlib.h>
#include <string.h>

enum dtp_status dtp_program_set_add(struct dtp_program_set *set, const char *name, uint32_t ranks,
                                    struct dtp_program *program, struct dtp_faults *faults)
{
    uint64_t first = set->role_count ? dtp_program_set_ranks(set) : 0;
    enum dtp_status status = DTP_OK;
    struct dtp_program_role *roles = NULL;
    if (strlen(name) > DTP_PROGRAM_MAX_NAME_BYTES || ranks == 0 || first + ranks > INT32_MAX ||
        set->role_count == DTP_PROGRAM_SET_MAX_ROLES)
        status =
            dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                      "role %u: its name is longer than %d bytes, it has no ranks, or there are too many of either",
                      set->role_count, DTP_PROGRAM_MAX_NAME_BYTES);
    else if (!(roles = realloc(set->roles, (set->role_count + 1) * sizeof *roles)))
        status = dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for a program set");
    if (status != DTP_OK) {
        dtp_program_destroy(program);
        return status;
    }
    set->roles = roles;
    struct dtp_program_role *role = &roles[set->role_count++];
    *role = (struct dtp_program_role){.first_rank = (uint32_t)first, .ranks = ranks, .program = program};
    strcpy(role->name, name);
    return DTP_OK;
}

void dtp_program_set_release(struct dtp_program_set *set)
{
    for (uint32_t i = 0; i < set->role_count; i++)
        dtp_program_destroy(set->roles[i].program);
    free(set->roles);
    *set = (struct dtp_program_set){.roles = NULL};
}

enum dtp_status dtp_program_set_take_turns(struct dtp_program_set *set, uint32_t run, struct dtp_faults *faults)
{
    for (uint32_t r = 0; r < set->role_count; r++)
        if (run == 0 || set->roles[r].ranks != set->roles[0].ranks || set->roles[r].ranks % run)
            return dtp_fault(
                faults, DTP_BAD_INPUT, NULL, 0,
                "role %u: roles that take turns have as many ranks each, a multiple of their run of %u, not %u", r, run,
                set->roles[r].ranks);
    for (uint32_t r = 0; r < set->role_count; r++)
        set->roles[r].first_rank = r * run;
    set->run = run;
    return DTP_OK;
}

uint32_t dtp_program_set_ranks(const struct dtp_program_set *set)
{
    uint32_t ranks = 0;
    for (uint32_t r = 0; r < set->role_count; r++)
        ranks += set->roles[r].ranks;
    return ranks;
}

uint32_t dtp_program_set_role_of(const struct dtp_program_set *set, uint32_t rank)
{
    uint32_t role = 0;
    if (set->run)
        return rank / set->run % set->role_count;
    while (role + 1 < set->role_count && set->roles[role + 1].first_rank <= rank)
        role++;
    return role;
}

uint32_t dtp_program_set_place(const struct dtp_program_set *set, uint32_t rank)
{
    if (set->run)
        return rank / (set->run * set->role_count) * set->run + rank % set->run;
    return rank - set->roles[dtp_program_set_role_of(set, rank)].first_rank;
}

uint32_t dtp_program_set_rank(const struct dtp_program_set *set, uint32_t role, uint32_t place)
{
    if (set->run)
        return (place / set->run * set->role_count + role) * set->run + place % set->run;
    return set->roles[role].first_rank + place;
}

uint32_t dtp_program_set_peer_rank(const struct dtp_program_set *set, uint32_t rank, const struct dtp_op *op)
{
    return dtp_program_set_rank(set, op->peer, dtp_program_set_place(set, rank));
}

/* ---- which send meets which receive ------------------------------------------------------------------------------ */

struct match {
    const struct dtp_program_set *set;
    uint32_t **partner;
    struct transfers {
        uint32_t *op, count;
    } * transfers;  /* of each role */
    uint32_t *next; /* per group: where among the receiver's transfers its next receive is looked for */
    uint32_t sender, receiver;
    struct dtp_faults *faults;
    enum dtp_status status;
};

static const struct dtp_program *program_of(const struct match *m, uint32_t role)
{
    return m->set->roles[role].program;
}

/* What a transfer reads or writes: its first operand that does. */
static struct dtp_operand moved(const struct dtp_program *program, const struct dtp_op *op)
{
    const struct dtp_operand *operands = dtp_program_operands(program, op);
    uint32_t access = op->kind == DTP_OP_SEND ? DTP_READ : DTP_WRITE;
    for (uint32_t i = 0; i < op->operand_count; i++)
        if (operands[i].access & access)
            return operands[i];
    return (struct dtp_operand){.buffer = {DTP_NO_INDEX}};
}

static uint64_t moved_bytes(const struct dtp_program *program, const struct dtp_operand *operand)
{
    if (operand->buffer.index == DTP_NO_INDEX)
        return 0;
    uint64_t bytes = dtp_program_buffers(program)[operand->buffer.index].bytes;
    return operand->bytes ? operand->bytes : bytes - operand->offset_bytes;
}

static bool same_element(const struct match *m, const struct dtp_operand *from, const struct dtp_operand *to)
{
    return from->buffer.index != DTP_NO_INDEX && to->buffer.index != DTP_NO_INDEX &&
           dtp_program_buffers(program_of(m, m->sender))[from->buffer.index].element ==
               dtp_program_buffers(program_of(m, m->receiver))[to->buffer.index].element;
}

#define REFUSE(m, ...) ((m)->status = dtp_fault((m)->faults, DTP_BAD_INPUT, NULL, 0, __VA_ARGS__))

static void check_pair(struct match *m, uint32_t send, uint32_t receive)
{
    const struct dtp_program *from = program_of(m, m->sender), *to = program_of(m, m->receiver);
    const struct dtp_op *s = &dtp_program_ops(from)[send], *r = &dtp_program_ops(to)[receive];
    struct dtp_operand given = moved(from, s), taken = moved(to, r);
    uint64_t bytes = moved_bytes(from, &given), room = moved_bytes(to, &taken);
    if (s->tag != r->tag)
        REFUSE(m, "role %u, operation %u sends tag %u to role %u, where operation %u receives tag %u", m->sender, send,
               s->tag, m->receiver, receive, r->tag);
    else if (bytes == 0 || bytes != room || (double)bytes != s->demand->sent_bytes || given.shard || taken.shard ||
             !same_element(m, &given, &taken))
        REFUSE(m,
               "role %u, operation %u sends %.0f bytes to role %u, operation %u; the buffer sent has %llu, the one "
               "received %llu: all must be equal, and of one format",
               m->sender, send, s->demand->sent_bytes, m->receiver, receive, (unsigned long long)bytes,
               (unsigned long long)room);
    m->partner[m->sender][send] = receive;
    m->partner[m->receiver][receive] = send;
}

/* The receiver's next receive from the sender in that group, from where it was looked for last. */
static uint32_t next_receive(struct match *m, uint32_t group)
{
    const struct dtp_op *ops = dtp_program_ops(program_of(m, m->receiver));
    const struct transfers *all = &m->transfers[m->receiver];
    for (uint32_t *at = &m->next[group]; *at < all->count;) {
        uint32_t i = all->op[(*at)++];
        if (ops[i].kind == DTP_OP_RECV && ops[i].peer == m->sender && ops[i].group == group)
            return i;
    }
    return DTP_NO_INDEX;
}

static void match_pair(struct match *m)
{
    const struct dtp_program *from = program_of(m, m->sender);
    const struct dtp_op *ops = dtp_program_ops(from);
    const struct transfers *all = &m->transfers[m->sender];
    uint32_t groups = (uint32_t)dtp_program_group_count(from);
    memset(m->next, 0, groups * sizeof *m->next);
    for (uint32_t t = 0; t < all->count; t++) {
        uint32_t i = all->op[t];
        if (ops[i].kind != DTP_OP_SEND || ops[i].peer != m->receiver)
            continue;
        uint32_t receive = next_receive(m, ops[i].group);
        if (receive == DTP_NO_INDEX)
            REFUSE(m, "role %u, operation %u sends tag %u to role %u, which has no receive for it", m->sender, i,
                   ops[i].tag, m->receiver);
        else
            check_pair(m, i, receive);
    }
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t i; (i = next_receive(m, g)) != DTP_NO_INDEX;)
            REFUSE(m, "role %u, operation %u receives tag %u from role %u, which has no send for it", m->receiver, i,
                   dtp_program_ops(program_of(m, m->receiver))[i].tag, m->sender);
}

/* Ranks of one communicator: all of a role with those of the same place in the other. Instances of a group are runs of
 * ranks * stride; as the roles lie apart, the pairs fill all ranks from the first of one to the last of the other.
 * Where roles take turns, these are the ranks of one turn. */
static bool share_group(const struct dtp_program_set *set, const struct dtp_program_role *a,
                        const struct dtp_program_role *b, const struct dtp_program_group *group)
{
    const struct dtp_program_role *low = a->first_rank < b->first_rank ? a : b, *high = low == a ? b : a;
    uint64_t span = (uint64_t)group->ranks * group->stride, turn = (uint64_t)set->run * set->role_count;
    uint64_t last = (uint64_t)high->first_rank + (set->run ? set->run : high->ranks) - 1;
    bool whole = !set->run || span % turn == 0;
    return whole && low->first_rank / span == last / span && (high->first_rank - low->first_rank) % group->stride == 0;
}

static void check_peers(struct match *m, uint32_t role)
{
    const struct dtp_program_role *here = &m->set->roles[role];
    const struct dtp_op *ops = dtp_program_ops(here->program);
    for (uint32_t t = 0; t < m->transfers[role].count; t++) {
        uint32_t i = m->transfers[role].op[t];
        if (ops[i].peer >= m->set->role_count || ops[i].peer == role || m->set->roles[ops[i].peer].ranks != here->ranks)
            REFUSE(m, "role %u, operation %u: its peer %u is no other role of %u ranks", role, i, ops[i].peer,
                   here->ranks);
        else if (!share_group(m->set, here, &m->set->roles[ops[i].peer],
                              &dtp_program_groups(here->program)[ops[i].group]))
            REFUSE(m, "role %u, operation %u: its group %u does not hold the ranks of role %u", role, i, ops[i].group,
                   ops[i].peer);
    }
}

/* As ranks form them: runs of ranks * stride, of which the world is a multiple. */
static void check_spans(struct match *m, uint32_t role)
{
    const struct dtp_program *here = program_of(m, role);
    const uint32_t world = dtp_program_set_ranks(m->set);
    for (size_t i = 0; i < dtp_program_group_count(here); i++) {
        const struct dtp_program_group *group = &dtp_program_groups(here)[i];
        if (world % ((uint64_t)group->ranks * group->stride) != 0)
            REFUSE(m, "role %u: group %zu of %u ranks %u apart does not divide the set's %u ranks", role, i,
                   group->ranks, group->stride, world);
    }
}

static void check_groups(struct match *m, uint32_t role)
{
    check_spans(m, role);
    const struct dtp_program *first = program_of(m, 0), *here = program_of(m, role);
    size_t count = dtp_program_group_count(first);
    bool same = dtp_program_group_count(here) == count;
    for (size_t i = 0; same && i < count; i++)
        same = dtp_program_groups(first)[i].ranks == dtp_program_groups(here)[i].ranks &&
               dtp_program_groups(first)[i].stride == dtp_program_groups(here)[i].stride &&
               dtp_program_groups(first)[i].ctas == dtp_program_groups(here)[i].ctas;
    if (!same)
        REFUSE(m, "role %u has other groups than role 0; all roles name all groups of the job, in one order", role);
}

static bool list_transfers(const struct dtp_program *program, struct dtp_host_arena *arena, struct transfers *out)
{
    const struct dtp_op *ops = dtp_program_ops(program);
    size_t count = dtp_program_op_count(program), transfers = 0;
    for (size_t i = 0; i < count; i++)
        transfers += dtp_op_kind_is_transfer(ops[i].kind);
    out->op = dtp_host_arena_take(arena, transfers + 1, sizeof *out->op);
    out->count = 0;
    for (uint32_t i = 0; i < count && out->op; i++)
        if (dtp_op_kind_is_transfer(ops[i].kind))
            out->op[out->count++] = i;
    return out->op != NULL;
}

static bool take_memory(struct match *m, struct dtp_host_arena *arena)
{
    const struct dtp_program_set *set = m->set;
    m->transfers = dtp_host_arena_take(arena, set->role_count, sizeof *m->transfers);
    m->partner = dtp_host_arena_take(arena, set->role_count, sizeof *m->partner);
    m->next = dtp_host_arena_take(arena, dtp_program_group_count(set->roles[0].program) + 1, sizeof *m->next);
    for (uint32_t r = 0; m->partner && m->transfers && r < set->role_count; r++) {
        size_t count = dtp_program_op_count(set->roles[r].program);
        m->partner[r] = dtp_host_arena_take(arena, count + 1, sizeof **m->partner);
        if (!m->partner[r] || !list_transfers(set->roles[r].program, arena, &m->transfers[r]))
            return false;
        memset(m->partner[r], 0xff, count * sizeof **m->partner); /* DTP_NO_INDEX */
    }
    return m->partner && m->transfers && m->next;
}

enum dtp_status dtp_program_set_match(const struct dtp_program_set *set, struct dtp_host_arena *arena,
                                      uint32_t ***partner, struct dtp_faults *faults)
{
    struct match m = {.set = set, .faults = faults};
    *partner = NULL;
    if (set->role_count == 0)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "a program set needs a role");
    if (!take_memory(&m, arena))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory to match transfers");
    for (uint32_t r = 0; r < set->role_count; r++)
        check_groups(&m, r);
    for (uint32_t r = 0; r < set->role_count && m.status == DTP_OK; r++)
        check_peers(&m, r);
    bool sound = m.status == DTP_OK;
    for (m.sender = 0; sound && m.sender < set->role_count; m.sender++)
        for (m.receiver = 0; m.receiver < set->role_count; m.receiver++)
            if (m.sender != m.receiver)
                match_pair(&m);
    *partner = m.partner;
    return m.status;
}
