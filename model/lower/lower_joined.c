/* What the stages of a pipeline join at the end of a step: gradients of weights that two of them hold, and the norm of
 * all gradients; or, where steps are validated behind, the norm of the step before in the warm-up of the next. */
#include "lower/lowering.h"

#include "base/bytes.h"
#include "plan/runtime_sizes.h"

/* ---- the end of a step ------------------------------------------------------------------------------------------- */

static uint32_t end_group(const struct dtp_lowering *l, bool sends, uint32_t peer)
{
    bool to_later = sends == (peer > l->role.rank);
    return to_later ? DTP_TRANSFER_TO_LATER : DTP_TRANSFER_TO_EARLIER;
}

static dtp_op_id send_part(struct dtp_lowering *l, uint32_t peer, const char *name, dtp_buffer_id buffer,
                           uint64_t offset_bytes, uint64_t bytes)
{
    struct dtp_draft draft;
    dtp_lower_transfer_begin(l, &draft, DTP_OP_SEND, name, peer, end_group(l, true, peer));
    draft.op.stream = l->validates ? DTP_STREAM_SEND_BACK : DTP_STREAM_SEND;
    draft.op.demand.sent_bytes = (double)bytes;
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, buffer, DTP_READ, offset_bytes)->bytes = bytes;
    return dtp_draft_end(l, &draft);
}

static dtp_op_id receive_part(struct dtp_lowering *l, uint32_t peer, const char *name, uint64_t bytes,
                              dtp_buffer_id *out)
{
    struct dtp_draft draft;
    *out = dtp_lower_buffer(l, name, DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, bytes, false);
    dtp_lower_transfer_begin(l, &draft, DTP_OP_RECV, name, peer, end_group(l, false, peer));
    draft.op.stream = l->validates ? DTP_STREAM_RECEIVE_BACK : DTP_STREAM_RECEIVE;
    draft.op.demand.sent_bytes = (double)bytes;
    dtp_lower_run_role(l, &draft, DTP_ROLE_RESULT, *out, DTP_ALLOC | DTP_WRITE);
    return dtp_draft_end(l, &draft);
}

/* What arrives is of the same type; of a program that is run, where types are said. Returns its elements. */
static uint64_t take_element(struct dtp_lowering *l, dtp_buffer_id from, dtp_buffer_id to, uint64_t bytes)
{
    size_t count = dtp_program_buffer_count(l->program);
    uint8_t element = from.index < count ? dtp_program_buffers(l->program)[from.index].element : DTP_NO_ELEMENT;
    if (!l->plan->runtime->executed || element == DTP_NO_ELEMENT)
        return 0;
    dtp_program_set_element(l->program, to, (enum dtp_dtype)(element - 1));
    return bytes / dtp_dtype_bytes((enum dtp_dtype)(element - 1));
}

/* buffer += what arrived, once `sent` has read it too. */
static void add_part(struct dtp_lowering *l, const char *name, dtp_buffer_id buffer, uint64_t offset_bytes,
                     uint64_t bytes, dtp_buffer_id arrived, dtp_op_id received, dtp_op_id sent)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, name);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, buffer, DTP_UPDATE, offset_bytes)->bytes = bytes;
    dtp_lower_run_role(l, &draft, DTP_ROLE_INPUT, arrived, DTP_READ | DTP_FREE);
    dtp_draft_after(&draft, received);
    dtp_draft_after(&draft, sent);
    dtp_draft_memory(l, &draft, 3 * (double)bytes, 1);
    draft.op.demand.tokens = (double)take_element(l, buffer, arrived, bytes);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
}

/* The sum of what two ranks have, on both: each sends all of it, as much as in a ring of two. As send and receive, for
 * a collective's ranks run one program. */
void dtp_lower_exchange(struct dtp_lowering *l, uint32_t peer, const char *name, dtp_buffer_id buffer,
                        uint64_t offset_bytes, uint64_t bytes)
{
    for (uint64_t done = 0, piece; done < bytes; done += piece) {
        dtp_buffer_id arrived;
        piece = bytes - done < DTP_JOINED_PIECE_BYTES ? bytes - done : DTP_JOINED_PIECE_BYTES;
        dtp_op_id received = receive_part(l, peer, name, piece, &arrived);
        dtp_op_id sent = send_part(l, peer, name, buffer, offset_bytes + done, piece);
        add_part(l, name, buffer, offset_bytes + done, piece, arrived, received, sent);
    }
}

/* Of a pipeline that runs both ways, rank r and the r-th from the end hold the same two stages. */
static void join_directions(struct dtp_lowering *l)
{
    uint64_t elements = l->transformer->layers * l->block.all_elements + l->root.all_elements;
    uint32_t peer = l->role.pipeline->schedule->shape.ranks - 1 - l->role.rank;
    dtp_lower_exchange(l, peer, "gradients of the copy", l->state[l->transformer->layers].gradient_buffer, 0,
                       dtp_bytes_product(elements, l->bytes.grads));
}

/* Head and embedding are one matrix of which the first stage and the one with the head have a copy each; or a module
 * there that predicts further ahead reads the table. Beside adapters it is frozen: no stage has a gradient of it. */
bool dtp_lower_tied_peer(const struct dtp_lowering *l, uint32_t *peer)
{
    const struct dtp_schedule *schedule = l->role.pipeline->schedule;
    uint32_t first = dtp_schedule_place(schedule, 0, 0).rank;
    uint32_t stage = schedule->stages - 1, rank = l->role.rank;
    while (stage && !dtp_lower_has_head(l, dtp_schedule_place(schedule, 0, stage)))
        stage--;
    uint32_t last = dtp_schedule_place(schedule, 0, stage).rank;
    *peer = rank == first ? last : first;
    if (dtp_plan_adapts(l->plan))
        return false;
    return (l->transformer->tied_head || l->model->ahead_layers) && first != last && (rank == first || rank == last);
}

static void join_tied(struct dtp_lowering *l)
{
    uint64_t offset = 0;
    uint32_t peer;
    if (!dtp_lower_tied_peer(l, &peer))
        return;
    dtp_buffer_id gradients = l->hooks->embedding_gradient ? l->hooks->embedding_gradient(l, &offset)
                                                           : l->state[l->transformer->layers].gradient_buffer;
    dtp_lower_exchange(l, peer, "embedding gradient", gradients, offset,
                       dtp_bytes_product(l->root.elements[DTP_ROOT_EMBEDDING], l->bytes.grads));
}

/* ---- the norm of all gradients ----------------------------------------------------------------------------------- */

#define NORM "gradient norm"
#define NORM_BYTES 4u

static dtp_buffer_id norm_buffer(struct dtp_lowering *l)
{
    return dtp_lower_buffer(l, NORM, DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, NORM_BYTES, true);
}

/* Of the rank's own gradients, once `sent` has read the one before. */
static void take_norm(struct dtp_lowering *l, dtp_buffer_id norm, dtp_op_id sent)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, NORM);
    dtp_draft_use(&draft, norm, DTP_WRITE);
    dtp_draft_after(&draft, sent);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
}

/* With what `peer` sends of its own. */
static void add_sum_of(struct dtp_lowering *l, uint32_t peer, const char *name, dtp_buffer_id sum, uint64_t bytes,
                       dtp_op_id sent)
{
    dtp_buffer_id arrived;
    dtp_op_id received = receive_part(l, peer, name, bytes, &arrived);
    add_part(l, name, sum, 0, bytes, arrived, received, sent);
}

/* What `peer` has summed up takes the place of what it was given. Of programs that are only simulated, of which nothing
 * but sizes is read, it is added. */
static void take_sum_of(struct dtp_lowering *l, uint32_t peer, const char *name, dtp_buffer_id sum, uint64_t bytes,
                        dtp_op_id sent)
{
    struct dtp_draft draft;
    if (!l->plan->runtime->executed) {
        add_sum_of(l, peer, name, sum, bytes, sent);
        return;
    }
    dtp_lower_transfer_begin(l, &draft, DTP_OP_RECV, name, peer, end_group(l, false, peer));
    draft.op.stream = DTP_STREAM_RECEIVE;
    draft.op.demand.sent_bytes = (double)bytes;
    dtp_draft_after(&draft, sent);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, sum, DTP_WRITE, 0);
    dtp_op_id received = dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_MARK, name);
    dtp_draft_after(&draft, received);
    dtp_draft_end(l, &draft);
}

/* Summed up a binomial tree and sent down it. */
void dtp_lower_sum_over_stages(struct dtp_lowering *l, const char *name, dtp_buffer_id buffer, uint64_t bytes)
{
    uint32_t ranks = l->role.pipeline->schedule->shape.ranks, rank = l->role.rank, span = 1;
    for (; span < ranks && !(rank & span); span *= 2)
        if (rank + span < ranks)
            add_sum_of(l, rank + span, name, buffer, bytes, DTP_NO_OP);
    if (rank) {
        dtp_op_id sent = send_part(l, rank - span, name, buffer, 0, bytes);
        take_sum_of(l, rank - span, name, buffer, bytes, sent);
    }
    for (span /= 2; span; span /= 2)
        if (rank + span < ranks)
            send_part(l, rank + span, name, buffer, 0, bytes);
}

/* One number of each rank: where gradients are clipped by the norm of all of them, as runtimes with pipelines do unless
 * told otherwise, no stage steps before the last one's backward is through. */
static void sum_norms(struct dtp_lowering *l)
{
    dtp_buffer_id norm = norm_buffer(l);
    take_norm(l, norm, DTP_NO_OP);
    dtp_lower_sum_over_stages(l, NORM, norm, NORM_BYTES);
}

/* Optimizer post-validation (Qi et al. 2024, arXiv:2401.10241, section 4): each rank adds its norm to that of the ranks
 * before it, hands the sum on, and steps by what it knows. The sum of all comes back in the warm-up of the next step,
 * before the first pass that is no forward of the first chunk; were it one to clip by, the step would be taken back. */
static void hand_norm_on(struct dtp_lowering *l)
{
    uint32_t ranks = l->role.pipeline->schedule->shape.ranks, rank = l->role.rank;
    take_norm(l, l->norm, l->norm_sent);
    if (rank) {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, NORM);
        dtp_draft_role(&draft, DTP_ROLE_RESULT, l->norm, DTP_UPDATE, 0)->bytes = NORM_BYTES;
        dtp_draft_use(&draft, l->norm_before.rows, DTP_READ);
        dtp_draft_after(&draft, l->norm_before.received);
        dtp_draft_memory(l, &draft, 3 * NORM_BYTES, 1);
        dtp_draft_end(l, &draft);
    }
    if (rank + 1 < ranks)
        send_part(l, rank + 1, NORM, l->norm, 0, NORM_BYTES);
}

/* Stands ready when the rank before is through with its passes, so that this one does not keep it from its next step:
 * behind the activations, of which no more come. */
static void expect_norm(struct dtp_lowering *l)
{
    uint32_t rank = l->role.rank;
    struct dtp_draft draft;
    if (!rank)
        return;
    l->norm_before.rows = norm_buffer(l);
    dtp_draft_begin(l, &draft, DTP_OP_RECV, NORM);
    draft.op.peer = (uint16_t)(rank - 1);
    draft.op.group = l->transfer_group[DTP_TRANSFER_TO_LATER];
    draft.op.stream = DTP_STREAM_RECEIVE;
    draft.op.demand.sent_bytes = NORM_BYTES;
    dtp_draft_use(&draft, l->norm_before.rows, DTP_WRITE);
    l->norm_before.received = dtp_draft_end(l, &draft);
}

/* Before which pass: each rank two forwards behind the next one, for a forward after it the sum is there
 * (sail-sg/zero-bubble-pipeline-parallelism, scheduler/communication.py, get_post_validation_time). */
static uint32_t validated_before(const struct dtp_lowering *l)
{
    uint32_t latest = 0, behind = 2 * (l->role.pipeline->schedule->shape.ranks - 1 - l->role.rank);
    while (latest < l->role.pass_count && l->role.passes[latest].kind == DTP_PASS_FORWARD &&
           l->role.passes[latest].chunk == 0)
        latest++;
    return behind < latest ? behind : latest - 1;
}

static bool behind_forwards(const struct dtp_lowering *l, uint32_t i)
{
    bool forward = i > 0 && l->role.passes[i - 1].kind == DTP_PASS_FORWARD;
    for (uint32_t left = i; left < l->role.pass_count && forward; left++)
        forward = l->role.passes[left].kind != DTP_PASS_FORWARD;
    return forward;
}

/* No gradient is on its way yet, whose streams these are. */
static void validate_step_before(struct dtp_lowering *l)
{
    uint32_t ranks = l->role.pipeline->schedule->shape.ranks, rank = l->role.rank;
    l->validates = true;
    l->norm = norm_buffer(l);
    if (rank + 1 < ranks)
        add_sum_of(l, rank + 1, NORM, l->norm, NORM_BYTES, DTP_NO_OP);
    l->norm_sent = rank ? send_part(l, rank - 1, NORM, l->norm, 0, NORM_BYTES) : DTP_NO_OP;
    l->validates = false;
}

void dtp_lower_validate_around(struct dtp_lowering *l, uint32_t i)
{
    if (!l->plan->post_validation)
        return;
    if (i == validated_before(l))
        validate_step_before(l);
    if (behind_forwards(l, i))
        expect_norm(l);
}

void dtp_lower_join_copies(struct dtp_lowering *l)
{
    if (!l->role.pipeline)
        return;
    l->micro_step = 0;
    if (dtp_schedule_lines(l->role.pipeline->schedule) == 2)
        join_directions(l);
    else
        join_tied(l);
}

void dtp_lower_join_norms(struct dtp_lowering *l)
{
    if (!l->role.pipeline)
        return;
    if (l->plan->post_validation)
        hand_norm_on(l);
    else if (l->plan->runtime->clips || dtp_plan_clips(l->plan))
        sum_norms(l);
}
