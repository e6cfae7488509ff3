/* The walk over a rank's passes: each forward or backward of one micro-batch through one chunk of the model, with the
 * runtime's hooks around it. Where nothing is cut into stages, that is a forward and a backward for each micro-step. */
#include "lower/lowering.h"

#include <stdlib.h>

static void mark(struct dtp_lowering *l, const char *name)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, name);
    dtp_draft_end(l, &draft);
}

static void call(struct dtp_lowering *l, void (*hook)(struct dtp_lowering *l))
{
    if (hook)
        hook(l);
}

void dtp_lower_hand_on(struct dtp_lowering *l, uint64_t layer, dtp_buffer_id rows)
{
    uint64_t place = layer - l->chunk->first;
    if (place == l->chunk->layers) {
        l->flight->final_input = rows;
        return;
    }
    l->flight->module[place].tensor[DTP_TENSOR_INPUT] = rows;
    l->flight->module[place].alive = DTP_TENSOR_BIT(INPUT);
}

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

static int head_part(const struct dtp_lowering *l)
{
    return l->transformer->tied_head ? DTP_ROOT_EMBEDDING : DTP_ROOT_HEAD;
}

static void head_forward(struct dtp_lowering *l)
{
    dtp_lower_final_norm(l);
    dtp_lower_fetch(l, head_part(l));
    bool chunked = l->loss == DTP_LOSS_CHUNKED; /* head and loss run after the model's forward, chunk by chunk */
    if (chunked) {
        call(l, l->hooks->model_done);
        dtp_lower_forget_casts(l);
    }
    dtp_lower_loss_forward(l);
    dtp_lower_unfetch(l);
}

static void forward(struct dtp_lowering *l)
{
    const struct dtp_lower_chunk *chunk = l->chunk;
    mark(l, "forward");
    call(l, l->hooks->before_forward);
    if (chunk->embedding)
        dtp_lower_embedding(l);
    for (uint64_t layer = chunk->first; layer < chunk->first + chunk->layers; layer++) {
        l->layer = (uint16_t)layer;
        call(l, l->hooks->before_forward);
        dtp_lower_block_forward(l);
        call(l, l->hooks->after_forward);
    }
    l->layer = DTP_NO_LAYER;
    if (chunk->head)
        head_forward(l);
    dtp_lower_forget_casts(l);
    call(l, l->hooks->after_forward);
}

static void backward(struct dtp_lowering *l)
{
    const struct dtp_lower_chunk *chunk = l->chunk;
    if (chunk->head) {
        mark(l, "loss");
        dtp_lower_loss_backward(l);
    }
    mark(l, "backward");
    call(l, l->hooks->begin_backward);
    call(l, l->hooks->before_backward);
    if (chunk->head) {
        dtp_lower_fetch(l, head_part(l));
        dtp_lower_head_backward(l);
    }
    for (uint64_t left = chunk->layers; left > 0; left--) {
        l->layer = (uint16_t)(chunk->first + left - 1);
        call(l, l->hooks->before_backward);
        dtp_lower_block_backward(l);
        call(l, l->hooks->after_backward);
    }
    l->layer = DTP_NO_LAYER;
    if (chunk->embedding)
        dtp_lower_embedding_backward(l);
    call(l, l->hooks->after_backward);
    call(l, l->hooks->end_backward);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Where a pass stands among those of its rank: what begins with the first micro-batch, and ends with the last. */
static void stand_at(struct dtp_lowering *l, const struct dtp_pass *pass)
{
    const struct dtp_plan *plan = l->plan;
    l->micro_step = (uint16_t)pass->micro_batch;
    l->last_micro_step = pass->micro_batch + 1 == plan->accumulate;
    l->reduces = l->last_micro_step || dtp_plan_reductions(plan) == plan->accumulate;
    bool becomes_grad = pass->micro_batch == 0 && l->hooks->gradient_rests && l->hooks->gradient_rests(l);
    l->gradient_owner = becomes_grad ? DTP_OWNER_GRADS : DTP_OWNER_REDUCE;
    l->chunk = &l->role.chunks[pass->chunk];
}

static void run(struct dtp_lowering *l, const struct dtp_pass *pass)
{
    stand_at(l, pass);
    if (pass->kind == DTP_PASS_FORWARD) {
        call(l, l->hooks->begin_micro_step);
        forward(l);
        return;
    }
    backward(l);
    call(l, l->hooks->end_micro_step);
}

/* What a flight holds before its forward. */
static void clear(struct dtp_flight *flight, uint64_t layers)
{
    struct dtp_flight_module *module = flight->module;
    for (uint64_t i = 0; i < layers; i++) {
        module[i].alive = 0;
        for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
            module[i].tensor[tensor] = DTP_NO_BUFFER;
    }
    *flight = (struct dtp_flight){.module = module, .embedded = DTP_NO_BUFFER};
}

enum dtp_status dtp_lower_passes(struct dtp_lowering *l)
{
    struct dtp_flight flight = {.module = calloc(l->transformer->layers, sizeof *flight.module)};
    if (!flight.module)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    l->flight = &flight;
    clear(&flight, l->transformer->layers);
    for (uint32_t i = 0; i < l->role.pass_count; i++) {
        run(l, &l->role.passes[i]);
        if (i == 1 && l->role.pass_count > 2)
            dtp_program_expect_again(l->program, l->role.pass_count / 2 - 1);
    }
    free(flight.module);
    l->flight = NULL;
    mark(l, "step");
    call(l, l->hooks->step);
    return DTP_OK;
}
