/* Arguments of ranks that divide experts: who sends which rows to whom, and where those are that came. What ranks say
 * of their rows is checked on the host before anything follows from it. */
#include "bind/binder.h"

#include "runtime/dtplan/routes_layout.h"

#include <inttypes.h>

struct dtp_tensor_place dtp_bind_expert_place(const struct dtp_bind_job *job)
{
    uint32_t ranks = dtp_program_execution(job->program)->expert_ranks;
    ranks = ranks ? ranks : 1;
    return (struct dtp_tensor_place){dtp_bind_role_rank(job) % ranks, ranks};
}

static uint32_t all_experts(const struct dtp_binder *b)
{
    return b->op->kind == DTP_OP_ROUTER ? width(b) : b->op->demand->groups;
}

/* Whether the experts divide evenly among the ranks, and the buffer has room for exactly what all ranks say of theirs.
 */
static bool says_all(const struct dtp_binder *b, enum dtp_role role, enum dtp_space space)
{
    const struct dtp_operand *o = operand(b, role);
    uint64_t ranks = dtp_bind_expert_place(&b->binding->job).ranks, experts = all_experts(b);
    return o && ranks > 1 && experts >= ranks && experts % ranks == 0 && experts <= DTP_EXECUTOR_ROUTER_EXPERTS &&
           buffer_of(b, o)->content == DTP_CONTENT_ROUTES && buffer_of(b, o)->space == space && !o->offset_bytes &&
           buffer_of(b, o)->bytes == 4 * ranks * (experts + 1);
}

static struct dtp_exchange exchange_of(struct dtp_binder *b)
{
    return (struct dtp_exchange){.begins = need(b, DTP_ROLE_ROUTES),
                                 .ranks = dtp_bind_expert_place(&b->binding->job).ranks,
                                 .experts = all_experts(b),
                                 .back = b->op->demand->form == DTP_FORM_RETURNED};
}

/* ---- what the host hears ----------------------------------------------------------------------------------------- */

/* Rows that the tokens of a rank make, as many on each rank: read off the next exchange, which sends them or gets them
 * back. 0: none follows. */
static uint64_t rows_made(const struct dtp_binder *b)
{
    const struct dtp_program *program = b->binding->job.program;
    const struct dtp_op *ops = dtp_program_ops(program);
    for (size_t i = (size_t)(b->op - ops); i < dtp_program_op_count(program); i++) {
        struct dtp_binder other = {.binding = b->binding, .op = &ops[i]};
        if (ops[i].kind == DTP_OP_ALL_TO_ALL && operand(&other, DTP_ROLE_ROUTES)) {
            bool back = ops[i].demand->form == DTP_FORM_RETURNED;
            const struct dtp_operand *o = operand(&other, back ? DTP_ROLE_RESULT : DTP_ROLE_INPUT);
            uint64_t row = width(&other) * dtp_element_bytes(element_of(&other, DTP_ROLE_INPUT));
            return o && row ? operand_bytes(&other, o) / row : 0;
        }
    }
    return 0;
}

void dtp_bind_heard(struct dtp_binder *b, struct dtp_bound_op *out)
{
    if (!operand(b, DTP_ROLE_ROUTES)) {
        out->kind = DTP_BOUND_NOTHING;
        return;
    }
    dtp_bind_demand(b, DTP_ROLE_ROUTES, says_all(b, DTP_ROLE_ROUTES, DTP_SPACE_HOST));
    out->kind = DTP_BOUND_HEARD;
    out->arguments.heard = (struct dtp_heard_args){exchange_of(b), rows_made(b), rows(b)};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Room for rows that come here is checked now. Whether the rows that this rank's tokens make fit, the host sees when it
 * hears how many there are (dtp_bind_heard). */
enum dtp_status dtp_bind_exchange(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const bool weighed = operand(b, DTP_ROLE_SAVED);
    const enum dtp_element element = element_of(b, DTP_ROLE_INPUT);
    const uint64_t row = width(b) * dtp_element_bytes(element);
    struct dtp_exchange rows_of = exchange_of(b);
    const enum dtp_role received = rows_of.back ? DTP_ROLE_INPUT : DTP_ROLE_RESULT;
    if (!b->binding->job.world)
        return dtp_fault(b->faults, DTP_BAD_INPUT, NULL, 0, "%s in a run of one rank", dtp_op_kind_text(b->op->kind));
    dtp_bind_demand(b, DTP_ROLE_ROUTES, says_all(b, DTP_ROLE_ROUTES, DTP_SPACE_HOST));
    dtp_bind_demand(b, DTP_ROLE_INPUT,
                    row && row <= UINT32_MAX && rows(b) <= INT32_MAX / 2 &&
                        dtp_program_groups(b->binding->job.program)[b->op->group].ranks == rows_of.ranks);
    dtp_bind_room_of(b, received, rows(b), width(b));
    dtp_bind_alike(b, DTP_ROLE_INPUT, DTP_ROLE_RESULT);
    rows_of.row_bytes = (uint32_t)row;
    if (weighed) {
        rows_of.more = need(b, DTP_ROLE_SAVED), rows_of.more_result = need(b, DTP_ROLE_STATISTICS);
        rows_of.more_bytes = sizeof(float);
        dtp_bind_demand(b, DTP_ROLE_SAVED,
                        element_of(b, DTP_ROLE_SAVED) == DTP_ELEMENT_FP32 &&
                            element_of(b, DTP_ROLE_STATISTICS) == DTP_ELEMENT_FP32);
        dtp_bind_room_of(b, rows_of.back ? DTP_ROLE_SAVED : DTP_ROLE_STATISTICS, rows(b), 1);
    }
    out->kind = DTP_BOUND_COLLECTIVE;
    out->arguments.collective = (struct dtp_collective_args){.collective = DTP_ALL_TO_ALL,
                                                             .group = b->op->group,
                                                             .input = need(b, DTP_ROLE_INPUT),
                                                             .result = need(b, DTP_ROLE_RESULT),
                                                             .element = element,
                                                             .exchange = rows_of};
    return DTP_OK;
}

/* ---- where those are that came ----------------------------------------------------------------------------------- */

void dtp_bind_received(struct dtp_binder *b, struct dtp_bound_op *out)
{
    const struct dtp_tensor_place place = dtp_bind_expert_place(&b->binding->job);
    const uint32_t own = all_experts(b) / place.ranks;
    out->kernel = DTP_KERNEL_received;
    out->arguments.received = (struct dtp_received_args){.begins = need(b, DTP_ROLE_INPUT),
                                                         .routes = need(b, DTP_ROLE_ROUTES),
                                                         .rows = rows(b),
                                                         .ranks = place.ranks,
                                                         .experts = all_experts(b),
                                                         .own = own,
                                                         .first = place.index * own};
}

void dtp_bind_received_room(struct dtp_binder *b)
{
    const struct dtp_operand *routes = operand(b, DTP_ROLE_ROUTES);
    const uint64_t own = all_experts(b) / dtp_bind_expert_place(&b->binding->job).ranks;
    dtp_bind_demand(b, DTP_ROLE_INPUT, says_all(b, DTP_ROLE_INPUT, DTP_SPACE_DEVICE));
    dtp_bind_demand(b, DTP_ROLE_ROUTES,
                    routes && rows(b) <= INT32_MAX / 2 &&
                        buffer_of(b, routes)->bytes == dtp_routes_bytes(rows(b), own));
}
