/* What the stages of a pipeline send each other: activations to the stage after, their gradients to the one before.
 * What they send at the end of a step is lower_joined.c's.
 *
 * A rank sends and receives on streams of its own, activations and gradients apart, in the order of its passes; a
 * transfer of a pass that is yet to come waits for nothing but what the rank has computed before. So a receive stands
 * ready while the pass before it computes, and whatever order a schedule's proof found (schedule_order.h) is an order
 * of the program set too. Where sends block, a pass's receive is issued behind the pass before it, and the next pass
 * waits for both. Tensor parallel ranks that have the same tensor may send a part each (dtp_plan_scatters_sends); what
 * arrives is gathered in place when its pass begins, or, where it is copied, as lower_parts.c has it. */
#include "lower/lower_parts.h"

#include "base/bytes.h"

enum way { FORWARD_WAY, BACKWARD_WAY };

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Operations of a communicator run one by one, so no rank sends and receives in the same one: by way, by direction in
 * the ring of ranks, and by the sender, of whom neighbours differ; the last of an odd ring is neighbour of the first.
 */
static uint32_t group_place(const struct dtp_lowering *l, enum way way, uint32_t from, uint32_t to)
{
    uint32_t ranks = l->role.pipeline->schedule->shape.ranks;
    uint32_t colour = ranks % 2 && from + 1 == ranks ? 2 : from % 2;
    return (uint32_t)way * 6 + (to == (from + 1) % ranks ? 0 : 3) + colour;
}

static void mark_used(const struct dtp_lowering *l, bool *used)
{
    const struct dtp_schedule *schedule = l->role.pipeline->schedule;
    used[DTP_TRANSFER_TO_LATER] = used[DTP_TRANSFER_TO_EARLIER] = true;
    for (uint32_t line = 0; line < dtp_schedule_lines(schedule); line++)
        for (uint32_t stage = 0; stage + 1 < schedule->stages; stage++) {
            uint32_t here = dtp_schedule_place(schedule, line, stage).rank;
            uint32_t next = dtp_schedule_place(schedule, line, stage + 1).rank;
            if (here == next)
                continue;
            used[group_place(l, FORWARD_WAY, here, next)] = true;
            used[group_place(l, BACKWARD_WAY, next, here)] = true;
        }
}

/* All roles name all groups, in one order. */
enum dtp_status dtp_lower_transfers_make(struct dtp_lowering *l)
{
    const struct dtp_schedule_shape *shape = &l->role.pipeline->schedule->shape;
    size_t places = (size_t)shape->chunks * shape->micro_batches;
    bool used[DTP_TRANSFER_GROUPS] = {false};
    struct dtp_stretch stages = dtp_plan_group(l->plan, l->cluster, DTP_AXES(PP));
    mark_used(l, used);
    for (int i = 0; i < DTP_TRANSFER_GROUPS; i++) {
        bool own = i < DTP_TRANSFER_TO_LATER && l->plan->runtime->own_kernels;
        uint32_t ctas = own ? dtp_pass_transfer_ctas(l->plan->executor.collective_ctas) : 0;
        struct dtp_program_group all = {stages.size, stages.stride, ctas};
        l->transfer_group[i] = used[i] ? dtp_program_add_group(l->program, all) : DTP_NO_INDEX;
    }
    l->held = dtp_host_arena_take(&l->arena, places, sizeof *l->held);
    l->sent = dtp_host_arena_take(&l->arena, places, sizeof *l->sent);
    if (!l->held || !l->sent)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    for (int way = 0; way < 2; way++) {
        l->arrived[way] = DTP_NO_BUFFER;
        l->handed[way] = dtp_host_arena_take(&l->arena, places, sizeof *l->handed[way]);
        if (!l->handed[way])
            return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    }
    return l->plan->runtime->sends_beside ? dtp_lower_sent_make(l) : DTP_OK;
}

/* ---- whom a pass takes from, and gives to ------------------------------------------------------------------------ */

static enum way way_of(const struct dtp_pass *pass)
{
    return pass->kind == DTP_PASS_FORWARD ? FORWARD_WAY : BACKWARD_WAY;
}

static struct dtp_handed *handed_to(const struct dtp_lowering *l, enum way way, uint32_t chunk, uint32_t micro_batch)
{
    return &l->handed[way][(size_t)chunk * l->role.pipeline->schedule->shape.micro_batches + micro_batch];
}

bool dtp_lower_has_head(const struct dtp_lowering *l, struct dtp_stage_place place)
{
    const struct dtp_lower_pipeline *p = l->role.pipeline;
    return p->chunks[place.rank * p->schedule->shape.chunks + place.chunk].head;
}

/* The stage that lies `step` (1 or -1) of this rank's chunk. False: there is none; what stands behind the head takes no
 * part. */
static bool neighbour(const struct dtp_lowering *l, uint32_t chunk, int step, struct dtp_stage_place *out)
{
    const struct dtp_schedule *schedule = l->role.pipeline->schedule;
    uint32_t stage = dtp_schedule_stage(schedule, l->role.rank, chunk);
    uint32_t line = dtp_schedule_line_of_chunk(schedule, chunk);
    if (step > 0 ? stage + 1 == schedule->stages || l->role.chunks[chunk].head : stage == 0)
        return false;
    *out = dtp_schedule_place(schedule, line, step > 0 ? stage + 1 : stage - 1);
    return step > 0 || !dtp_lower_has_head(l, *out);
}

bool dtp_lower_taken_from(const struct dtp_lowering *l, const struct dtp_pass *pass, struct dtp_stage_place *out)
{
    return pass->kind != DTP_PASS_WEIGHT && neighbour(l, pass->chunk, way_of(pass) == FORWARD_WAY ? -1 : 1, out);
}

bool dtp_lower_given_to(const struct dtp_lowering *l, const struct dtp_pass *pass, struct dtp_stage_place *out)
{
    return pass->kind != DTP_PASS_WEIGHT && neighbour(l, pass->chunk, way_of(pass) == FORWARD_WAY ? 1 : -1, out);
}

struct dtp_handed dtp_lower_taken(struct dtp_lowering *l)
{
    struct dtp_stage_place from;
    if (!l->role.pipeline || !dtp_lower_taken_from(l, l->pass, &from))
        return (struct dtp_handed){DTP_NO_BUFFER, DTP_NO_OP};
    return *handed_to(l, way_of(l->pass), l->pass->chunk, l->pass->micro_batch);
}

/* The gradient of a stage's input is let go when it has been sent; a backward of inputs alone leaves it as `.grad` of
 * what the stage received, until the next step (stage_backward and stage_backward_input of
 * torch/distributed/pipelining/_backward.py), and a stage on the same rank takes it as it is. */
static bool holds_gradient(const struct dtp_lowering *l, const struct dtp_pass *pass, uint32_t to)
{
    return pass->kind == DTP_PASS_BACKWARD || to == l->role.rank;
}

void dtp_lower_give(struct dtp_lowering *l, dtp_buffer_id rows)
{
    struct dtp_stage_place to;
    bool given = dtp_lower_given_to(l, l->pass, &to);
    if (dtp_lower_holds(l) && given) {
        if (way_of(l->pass) == BACKWARD_WAY && rows.index != l->flight->taken.index &&
            holds_gradient(l, l->pass, to.rank))
            l->held[l->held_count++] = (struct dtp_handed){rows, DTP_NO_OP};
        else if (way_of(l->pass) == FORWARD_WAY && to.rank != l->role.rank)
            l->flight->result = rows;
    }
    if (dtp_lower_copies_parts(l) && given)
        rows = dtp_lower_part_of(l, rows);
    if (dtp_lower_copies(l) && given && way_of(l->pass) == FORWARD_WAY)
        l->flight->result = rows;
    l->given = given && to.rank != l->role.rank ? rows : DTP_NO_BUFFER;
    if (given && to.rank == l->role.rank)
        *handed_to(l, way_of(l->pass), to.chunk, l->pass->micro_batch) = (struct dtp_handed){rows, DTP_NO_OP};
}

static dtp_buffer_id copy_rows(struct dtp_lowering *l, const char *name, dtp_buffer_id rows)
{
    return dtp_lower_copy(l, name, rows, DTP_READ, l->tensor_bytes[DTP_TENSOR_INPUT], DTP_OWNER_ACTIVATIONS);
}

dtp_buffer_id dtp_lower_work_on(struct dtp_lowering *l, dtp_buffer_id rows)
{
    if (!dtp_lower_copies(l))
        return rows;
    if (dtp_lower_copies_parts(l))
        return dtp_lower_whole_rows(l, rows);
    l->flight->received = copy_rows(l, "received activations", rows);
    return copy_rows(l, dtp_layer_tensor_text(DTP_TENSOR_INPUT), l->flight->received);
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

/* The same number at both ends: the boundary between two stages, the micro-batch, and which way. */
static uint32_t tag_of(const struct dtp_lowering *l, const struct dtp_pass *pass, uint32_t peer_stage)
{
    const struct dtp_schedule *schedule = l->role.pipeline->schedule;
    uint32_t stage = dtp_schedule_stage(schedule, l->role.rank, pass->chunk);
    uint32_t boundary = stage < peer_stage ? stage : peer_stage;
    return 2 * (boundary * schedule->shape.micro_batches + pass->micro_batch) + way_of(pass);
}

void dtp_lower_transfer_begin(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_op_kind kind,
                              const char *name, uint32_t peer, uint32_t group)
{
    dtp_draft_begin(l, draft, kind, name);
    draft->op.peer = (uint16_t)peer;
    draft->op.group = l->transfer_group[group];
    dtp_draft_after(draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_after(draft, l->last_op[DTP_STREAM_TENSOR]); /* no kernel stands between in a stage without layers */
}

void dtp_lower_run_role(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer,
                        uint32_t access)
{
    dtp_draft_use(draft, buffer, access);
    if (l->plan->runtime->executed && draft->operand_count)
        draft->operands[draft->operand_count - 1].role = (uint8_t)role;
}

/* What rows are received into: fresh memory, or what stands for all of them. */
static dtp_buffer_id room_for(struct dtp_lowering *l, enum way way)
{
    bool forward = way == FORWARD_WAY, stands = dtp_lower_holds(l) || dtp_lower_copies(l);
    if (dtp_lower_copies(l) && l->arrived[way].index != DTP_NO_INDEX)
        return l->arrived[way];
    bool saved = forward && !dtp_lower_copies(l);
    l->arrived[way] = dtp_lower_buffer(
        l, forward ? dtp_layer_tensor_text(DTP_TENSOR_INPUT) : "residual gradient",
        saved ? DTP_OWNER_ACTIVATIONS : DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE,
        dtp_lower_copies_parts(l) ? dtp_lower_part_bytes(l) : l->tensor_bytes[DTP_TENSOR_INPUT], stands);
    if (l->plan->runtime->executed)
        dtp_program_set_element(l->program, l->arrived[way], l->plan->precision.compute);
    return l->arrived[way];
}

/* Of rows, what this rank sends or receives: whichever part it is, it stands for as the first. */
static void transfer_rows(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id rows,
                          uint32_t access)
{
    uint64_t whole = l->tensor_bytes[DTP_TENSOR_INPUT];
    uint64_t bytes = dtp_plan_scatters_sends(l->plan) ? dtp_lower_part_bytes(l) : whole;
    draft->op.demand.sent_bytes = (double)bytes;
    if (bytes == whole || dtp_lower_copies_parts(l))
        dtp_lower_run_role(l, draft, role, rows, access);
    else
        dtp_draft_role(draft, role, rows, access, 0)->bytes = bytes;
}

static bool takes_from(const struct dtp_lowering *l, const struct dtp_pass *pass, struct dtp_stage_place *from)
{
    return dtp_lower_taken_from(l, pass, from) && from->rank != l->role.rank;
}

/* What pass `i` takes from another rank. Its memory is the compute stream's, who frees it. */
static void receive(struct dtp_lowering *l, uint32_t i)
{
    const struct dtp_pass *pass = &l->role.passes[i];
    struct dtp_stage_place from;
    if (!takes_from(l, pass, &from))
        return;
    uint16_t micro_step = l->micro_step;
    enum way way = way_of(pass);
    bool forward = way == FORWARD_WAY;
    l->micro_step = (uint16_t)pass->micro_batch;
    dtp_buffer_id rows = room_for(l, way);
    struct dtp_draft draft;
    dtp_lower_transfer_begin(l, &draft, DTP_OP_RECV, forward ? "activations" : "gradients", from.rank,
                             group_place(l, way, from.rank, l->role.rank));
    draft.op.stream = l->role.pipeline->posted ? DTP_STREAM_SEND
                      : forward                ? DTP_STREAM_RECEIVE
                                               : DTP_STREAM_RECEIVE_BACK;
    uint32_t stage = dtp_schedule_stage(l->role.pipeline->schedule, from.rank, from.chunk);
    draft.op.tag = tag_of(l, pass, stage);
    transfer_rows(l, &draft, DTP_ROLE_RESULT, rows, DTP_ALLOC | DTP_WRITE);
    *handed_to(l, way, pass->chunk, pass->micro_batch) = (struct dtp_handed){rows, dtp_draft_end(l, &draft)};
    l->micro_step = micro_step;
}

/* Megatron-Core (schedules.py, recv_tensor_from_previous_stage): where a group comes from a chunk of the last rank to
 * the first one's next chunk, or back, the receive is posted when the other rank is at that pass, which is as many
 * passes early as the group has more micro-batches than there are ranks. What has come waits in a queue
 * (fwd_recv_buffer). Posted before its own pass alone, the other rank's sends would wait for passes that wait for it.
 */
static uint32_t passes_early(const struct dtp_lowering *l, const struct dtp_pass *pass)
{
    const struct dtp_schedule_shape *shape = &l->role.pipeline->schedule->shape;
    struct dtp_stage_place from;
    if (shape->kind != DTP_SCHEDULE_INTERLEAVED || !takes_from(l, pass, &from))
        return 0;
    bool forward = way_of(pass) == FORWARD_WAY;
    bool wraps = forward ? from.rank > l->role.rank : from.rank < l->role.rank;
    uint32_t rest = shape->micro_batches - pass->micro_batch / shape->group * shape->group;
    return wraps ? (rest < shape->group ? rest : shape->group) - shape->ranks : 0;
}

/* All that is to be received before pass `i` begins, or earlier than its own pass: each once, in the order of passes.
 */
static void receive_for(struct dtp_lowering *l, uint32_t i)
{
    const struct dtp_pass *passes = l->role.passes;
    enum way way = way_of(&passes[i]);
    struct dtp_received_way *next = &l->received.way[way];
    uint32_t begins = next->begun++;
    struct dtp_stage_place from;
    for (; next->pass < l->role.pass_count; next->pass++) {
        if (way_of(&passes[next->pass]) != way)
            continue;
        if (takes_from(l, &passes[next->pass], &from) && next->place > begins + passes_early(l, &passes[next->pass]))
            return;
        receive(l, next->pass);
        next->place++;
    }
}

/* The parts of what pass `i` takes, which came over as many sends as there are tensor parallel ranks. */
static void gather_parts(struct dtp_lowering *l, uint32_t i)
{
    const struct dtp_pass *pass = &l->role.passes[i];
    struct dtp_stage_place from;
    if (!dtp_plan_scatters_sends(l->plan) || dtp_lower_copies(l) || !takes_from(l, pass, &from))
        return;
    struct dtp_handed *handed = handed_to(l, way_of(pass), pass->chunk, pass->micro_batch);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, way_of(pass) == FORWARD_WAY ? "activations" : "gradients");
    draft.op.micro_step = (uint16_t)pass->micro_batch;
    uint64_t whole = l->tensor_bytes[DTP_TENSOR_INPUT];
    dtp_draft_role(&draft, DTP_ROLE_INPUT, handed->rows, DTP_READ, 0)->bytes = dtp_lower_part_bytes(l);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, handed->rows, DTP_WRITE, 0);
    dtp_draft_after(&draft, handed->received);
    handed->received = dtp_lower_tensor_end(l, &draft, whole, false);
}

/* A rank sends to its two neighbours; who waits for one to take what it sends may not keep the other waiting. */
static enum dtp_stream send_stream(const struct dtp_lowering *l, const struct dtp_pass *pass, uint32_t to)
{
    uint32_t ranks = l->role.pipeline->schedule->shape.ranks;
    if (l->role.pipeline->posted)
        return DTP_STREAM_SEND;
    bool to_next = to == (l->role.rank + 1) % ranks;
    if (way_of(pass) == FORWARD_WAY)
        return to_next ? DTP_STREAM_SEND : DTP_STREAM_SEND_OTHER;
    return to_next ? DTP_STREAM_SEND_BACK_OTHER : DTP_STREAM_SEND_BACK;
}

/* What a pass made for another rank, which is let go: where the next pass does not wait for it, the allocator does. Or
 * it is held, activations until the backward of the pass, gradients as above. */
static void send(struct dtp_lowering *l, const struct dtp_pass *pass, dtp_buffer_id given)
{
    struct dtp_stage_place to;
    if (!dtp_lower_given_to(l, pass, &to) || to.rank == l->role.rank)
        return;
    bool forward = way_of(pass) == FORWARD_WAY, blocking = l->role.pipeline->blocking;
    struct dtp_draft draft;
    dtp_lower_transfer_begin(l, &draft, DTP_OP_SEND, forward ? "activations" : "gradients", to.rank,
                             group_place(l, way_of(pass), l->role.rank, to.rank));
    draft.op.micro_step = (uint16_t)pass->micro_batch;
    draft.op.stream = send_stream(l, pass, to.rank);
    draft.op.tag = tag_of(l, pass, dtp_schedule_stage(l->role.pipeline->schedule, to.rank, to.chunk));
    bool stays =
        (dtp_lower_holds(l) && (forward || holds_gradient(l, pass, to.rank))) || (dtp_lower_copies(l) && forward);
    bool lent = !forward && blocking && dtp_lower_holds(l); /* what torch sent is named until it sends the next */
    uint32_t let_go = lent ? 0 : blocking ? DTP_FREE : dtp_lower_let_go(l);
    transfer_rows(l, &draft, DTP_ROLE_INPUT, given, stays ? DTP_READ : DTP_READ | let_go);
    if (!forward)
        dtp_draft_use(&draft, l->flight->received, DTP_FREE);
    dtp_op_id sent = dtp_draft_end(l, &draft);
    if (l->plan->runtime->sends_beside)
        dtp_lower_keep_sent(l, (uint32_t)(pass - l->role.passes), given, sent);
    else if (!stays && !let_go)
        dtp_lower_lend(l, forward ? DTP_LENT_FORWARD : DTP_LENT_BACKWARD, given, sent);
    if (blocking)
        l->before_next = sent;
    if (forward)
        l->sent[(size_t)pass->chunk * l->role.pipeline->schedule->shape.micro_batches + pass->micro_batch] = sent;
    for (uint32_t i = l->held_count; !forward && i > 0; i--) /* of a pair it is not the last */
        if (l->held[i - 1].rows.index == given.index)
            l->held[i - 1].received = sent;
}

/* The receives that are posted behind so many passes. */
static void post(struct dtp_lowering *l, uint32_t behind)
{
    const struct dtp_posted *posted = l->role.pipeline->posted;
    const struct dtp_posted_receive *receives = posted->receive + l->role.pipeline->schedule->first[l->role.rank];
    uint32_t *next = &l->received.posted;
    for (; *next < posted->count[l->role.rank] && receives[*next].behind == behind; (*next)++)
        receive(l, receives[*next].pass);
}

/* A pair of passes is one piece of work: it begins with what both take, and sends what both made when both are done. */
void dtp_lower_before_pass(struct dtp_lowering *l, uint32_t i)
{
    const struct dtp_pass *pass = &l->role.passes[i];
    struct dtp_stage_place from;
    if (!l->role.pipeline)
        return;
    dtp_lower_validate_around(l, i);
    if (l->role.pipeline->posted) {
        if (i == 0)
            post(l, 0);
        return;
    }
    if (i == 0)
        receive_for(l, 0);
    gather_parts(l, i);
    if (l->role.pipeline->blocking || i + 1 == l->role.pass_count)
        return;
    receive_for(l, i + 1);
    if (pass->paired && dtp_lower_taken_from(l, pass + 1, &from))
        l->before_next = handed_to(l, way_of(pass + 1), pass[1].chunk, pass[1].micro_batch)->received;
}

void dtp_lower_after_pass(struct dtp_lowering *l, uint32_t i)
{
    if (!l->role.pipeline)
        return;
    if (l->role.pipeline->blocking && i + 1 < l->role.pass_count)
        receive_for(l, i + 1); /* before the send, whose memory it must not get */
    if (l->pass->paired) {
        l->given_by_first = l->given;
        return;
    }
    if (i > 0 && l->role.passes[i - 1].paired)
        send(l, l->pass - 1, l->given_by_first);
    send(l, l->pass, l->given);
    if (l->role.pipeline->posted)
        post(l, i + 1);
}

void dtp_lower_forget_sent(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    for (uint32_t i = 0; i < l->held_count; i++) {
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "gradients of inputs");
        dtp_draft_use(&draft, l->held[i].rows, DTP_FREE);
        dtp_draft_after(&draft, l->held[i].received);
        dtp_draft_end(l, &draft);
    }
    l->held_count = 0;
}

uint32_t dtp_lower_let_go(const struct dtp_lowering *l)
{
    return l->plan->avoid_record_streams || l->plan->runtime->sends_beside ? 0 : DTP_FREE | DTP_DEFER;
}

void dtp_lower_take_back(struct dtp_lowering *l, enum dtp_lent what)
{
    struct dtp_draft draft;
    if (l->lent[what].rows.index == DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "lent");
    dtp_draft_use(&draft, l->lent[what].rows, DTP_FREE);
    dtp_draft_after(&draft, l->lent[what].received);
    dtp_draft_end(l, &draft);
    l->lent[what].rows = DTP_NO_BUFFER;
}

void dtp_lower_lend(struct dtp_lowering *l, enum dtp_lent what, dtp_buffer_id buffer, dtp_op_id reader)
{
    dtp_lower_take_back(l, what);
    l->lent[what] = (struct dtp_handed){buffer, reader};
}
