#include "lower/lower_carried.h"

#include "plan/rules.h"

/* Of max_fwd_stash_size 5, two numbers a layer. */
#define STASHED 3u

static bool stands(const struct dtp_flight_module *module)
{
    return module->alive & DTP_TENSOR_BIT(INPUT);
}

static void begin(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_op_kind kind)
{
    dtp_draft_begin(l, draft, kind, "checkpoint");
    draft->op.stream = dtp_plan_carries_beside(l->plan) ? DTP_STREAM_DOWNLOAD : DTP_STREAM_COMPUTE;
    draft->op.demand.sent_bytes = (double)l->tensor_bytes[DTP_TENSOR_INPUT];
    draft->op.demand.kernels = 1;
}

/* Behind the kernels so far, which made `rows`. */
static struct dtp_host_rows down(struct dtp_lowering *l, dtp_buffer_id rows)
{
    struct dtp_buffer copy = {.name = "checkpoint on the host",
                              .bytes = l->tensor_bytes[DTP_TENSOR_INPUT],
                              .owner = DTP_OWNER_ACTIVATIONS,
                              .space = DTP_SPACE_HOST,
                              .pool = DTP_STREAM_HOST,
                              .layer = l->layer,
                              .micro_step = l->micro_step};
    struct dtp_host_rows carried = {dtp_program_add_buffer(l->program, &copy), DTP_NO_OP};
    struct dtp_draft draft;
    begin(l, &draft, DTP_OP_DOWNLOAD);
    dtp_draft_use(&draft, rows, DTP_READ);
    dtp_draft_use(&draft, carried.copy, DTP_ALLOC | DTP_WRITE);
    if (dtp_plan_carries_beside(l->plan))
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    carried.by = dtp_draft_end(l, &draft);
    return carried;
}

/* What a layer read, when it is down. */
static void let_go(struct dtp_lowering *l, struct dtp_flight_module *module)
{
    struct dtp_draft draft;
    if (!stands(module))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "checkpoint");
    dtp_draft_use(&draft, module->tensor[DTP_TENSOR_INPUT], DTP_FREE);
    if (dtp_plan_carries_beside(l->plan))
        dtp_draft_after(&draft, module->carried.by);
    dtp_draft_end(l, &draft);
    module->tensor[DTP_TENSOR_INPUT] = DTP_NO_BUFFER;
    module->alive &= ~DTP_TENSOR_BIT(INPUT);
}

void dtp_lower_carry_down(struct dtp_lowering *l)
{
    struct dtp_flight_module *module = dtp_lower_flight_module(l);
    if (!l->plan->activation_offload)
        return;
    if (dtp_plan_carries_beside(l->plan) && module - l->flight->module >= STASHED)
        let_go(l, module - STASHED);
    module->carried = down(l, module->tensor[DTP_TENSOR_INPUT]);
}

void dtp_lower_carried_down(struct dtp_lowering *l)
{
    struct dtp_flight_module *module = dtp_lower_flight_module(l);
    if (l->plan->activation_offload && !dtp_plan_carries_beside(l->plan) && module > l->flight->module)
        let_go(l, module);
}

void dtp_lower_carried_all(struct dtp_lowering *l)
{
    const bool beside = dtp_plan_carries_beside(l->plan);
    const uint64_t end = beside ? l->chunk->layers - 1 : 1, first = end > STASHED && beside ? end - STASHED : 0;
    if (!l->plan->activation_offload)
        return;
    for (uint64_t i = first; i < end; i++)
        let_go(l, &l->flight->module[i]);
    if (beside)
        l->flight->carried = down(l, l->flight->final_input);
}

void dtp_lower_carry_turns(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (!dtp_plan_carries_beside(l->plan))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "checkpoint");
    dtp_draft_use(&draft, l->flight->carried.copy, DTP_FREE);
    dtp_draft_use(&draft, l->flight->module[l->chunk->layers - 1].carried.copy, DTP_FREE);
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_DOWNLOAD]);
    dtp_draft_end(l, &draft);
}

void dtp_lower_carry_up(struct dtp_lowering *l)
{
    struct dtp_flight_module *module = dtp_lower_flight_module(l);
    struct dtp_draft draft;
    if (!l->plan->activation_offload || stands(module))
        return;
    begin(l, &draft, DTP_OP_UPLOAD);
    dtp_draft_use(&draft, module->carried.copy, DTP_READ | DTP_FREE);
    module->tensor[DTP_TENSOR_INPUT] =
        dtp_draft_new(l, &draft, dtp_layer_tensor_text(DTP_TENSOR_INPUT), DTP_OWNER_ACTIVATIONS,
                      l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    module->alive |= DTP_TENSOR_BIT(INPUT);
    dtp_op_id up = dtp_draft_end(l, &draft);
    if (!dtp_plan_carries_beside(l->plan))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, "backward");
    dtp_draft_after(&draft, up);
    dtp_draft_end(l, &draft);
}
