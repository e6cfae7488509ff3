/* The walk over a rank's passes: each forward or backward of one micro-batch through one chunk of the model, with the
 * runtime's hooks around it. Where nothing is cut into stages, that is a forward and a backward for each micro-step. */
#include "lower/lower_carried.h"
#include "lower/lower_graphs.h"
#include "lower/lower_parts.h"

#include <stdlib.h>

/* What follows on the compute stream waits for `received`, and for what else the pass waits for. */
static void mark(struct dtp_lowering *l, const char *name, dtp_op_id received)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MARK, name);
    dtp_draft_after(&draft, received);
    dtp_draft_after(&draft, l->before_next);
    dtp_draft_end(l, &draft);
    l->before_next = DTP_NO_OP;
}

static void call(struct dtp_lowering *l, void (*hook)(struct dtp_lowering *l))
{
    if (hook)
        hook(l);
}

static void call_at(struct dtp_lowering *l, enum dtp_model_end end, void (*hook)(struct dtp_lowering *l))
{
    if (!l->wraps_ends)
        return;
    l->end = end;
    call(l, hook);
    l->end = DTP_END_NONE;
}

void dtp_lower_hand_on(struct dtp_lowering *l, uint64_t layer, dtp_buffer_id rows)
{
    uint64_t place = layer - l->chunk->first;
    if (place == l->chunk->layers || place == l->chunk->layers - l->chunk->ahead_layers) {
        l->flight->final_input = rows;
        return;
    }
    l->flight->module[place].tensor[DTP_TENSOR_INPUT] = rows;
    l->flight->module[place].alive = DTP_TENSOR_BIT(INPUT);
}

void dtp_lower_group_calls(struct dtp_lowering *l, const char *name, uint64_t groups)
{
    struct dtp_draft draft;
    if (!dtp_lower_holds(l))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_HOST_GROUPS, name);
    draft.op.demand.kernels = (uint32_t)groups;
    dtp_draft_end(l, &draft);
}

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

static int head_part(const struct dtp_lowering *l)
{
    return l->transformer->tied_head ? DTP_ROOT_EMBEDDING : DTP_ROOT_HEAD;
}

static void head_forward(struct dtp_lowering *l)
{
    call_at(l, DTP_END_HEAD, l->hooks->before_forward);
    dtp_lower_final_norm(l);
    dtp_lower_carried_all(l);
    if (l->chunk->ahead_layers)
        dtp_lower_ahead_forward(l);
    dtp_lower_fetch(l, head_part(l));
    bool chunked = l->loss == DTP_LOSS_CHUNKED; /* head and loss run after the model's forward, chunk by chunk */
    if (chunked) {
        call(l, l->hooks->model_done);
        dtp_lower_forget_casts(l);
    }
    dtp_lower_loss_forward(l);
    dtp_lower_unfetch(l);
    call_at(l, DTP_END_HEAD, l->hooks->after_forward);
}

static void forward(struct dtp_lowering *l)
{
    const struct dtp_lower_chunk *chunk = l->chunk;
    struct dtp_handed input = dtp_lower_taken(l);
    mark(l, "forward", input.received);
    call(l, l->hooks->before_forward);
    if (chunk->embedding) {
        call_at(l, DTP_END_EMBEDDING, l->hooks->before_forward);
        dtp_lower_embedding(l);
        call_at(l, DTP_END_EMBEDDING, l->hooks->after_forward);
    } else {
        dtp_lower_hand_on(l, chunk->first, dtp_lower_work_on(l, input.rows));
    }
    for (uint64_t layer = chunk->first; layer < chunk->first + chunk->layers - chunk->ahead_layers; layer++) {
        dtp_lower_stand(l, (uint16_t)layer);
        call(l, l->hooks->before_forward);
        dtp_lower_carry_down(l);
        dtp_lower_block(l, false);
        dtp_lower_carried_down(l);
        call(l, l->hooks->after_forward);
    }
    dtp_lower_stand(l, DTP_NO_LAYER);
    if (chunk->head)
        head_forward(l);
    else
        dtp_lower_give(l, l->flight->final_input);
    dtp_lower_forget_casts(l);
    call(l, l->hooks->after_forward);
    if (chunk->head && dtp_lower_holds(l))
        dtp_lower_loss_held(l);
}

static void blocks_backward(struct dtp_lowering *l)
{
    for (uint64_t left = l->chunk->layers - l->chunk->ahead_layers; left > 0; left--) {
        dtp_lower_stand(l, (uint16_t)(l->chunk->first + left - 1));
        call(l, l->hooks->before_backward);
        dtp_lower_carry_up(l);
        dtp_lower_block(l, true);
        call(l, l->hooks->after_backward);
    }
    dtp_lower_stand(l, DTP_NO_LAYER);
}

static void backward(struct dtp_lowering *l)
{
    const struct dtp_lower_chunk *chunk = l->chunk;
    struct dtp_handed gradient = dtp_lower_taken(l);
    if (chunk->head) {
        mark(l, "loss", DTP_NO_OP);
        dtp_lower_loss_backward(l);
    }
    dtp_lower_carry_turns(l);
    mark(l, "backward", gradient.received);
    if (dtp_lower_keeps_graph(l)) /* a layer's matrices and two norms; the head and its norm */
        dtp_lower_group_calls(l, "graph walked", chunk->layers * ((uint64_t)l->matrices + 2) + (chunk->head ? 2 : 0));
    call(l, l->hooks->begin_backward);
    call(l, l->hooks->before_backward);
    if (chunk->head) {
        call_at(l, DTP_END_HEAD, l->hooks->before_backward);
        dtp_lower_fetch(l, head_part(l));
        dtp_lower_head_backward(l);
        call_at(l, DTP_END_HEAD, l->hooks->after_backward);
    } else {
        l->flight->gradient = dtp_lower_copies_parts(l) ? dtp_lower_whole_gradient(l, gradient.rows) : gradient.rows;
        l->flight->taken = dtp_lower_holds(l) || dtp_lower_copies(l) ? l->flight->gradient : DTP_NO_BUFFER;
    }
    blocks_backward(l);
    if (chunk->embedding) {
        call_at(l, DTP_END_EMBEDDING, l->hooks->before_backward);
        dtp_lower_embedding_backward(l);
        call_at(l, DTP_END_EMBEDDING, l->hooks->after_backward);
    } else {
        dtp_lower_give(l, l->flight->gradient);
    }
    l->flight->gradient = DTP_NO_BUFFER;
    call(l, l->hooks->after_backward);
    if (l->pass->kind == DTP_PASS_WHOLE_BACKWARD)
        call(l, l->hooks->end_backward);
}

/* Gradients of weights alone. */
static void weights_backward(struct dtp_lowering *l)
{
    mark(l, "backward", DTP_NO_OP);
    if (l->flight->head_deferred) {
        dtp_lower_group_calls(l, "engine called", 1);
        dtp_lower_head_deferred(l);
    }
    dtp_lower_deferred_gradients(l);
    call(l, l->hooks->end_backward);
}

/* ---- micro-batches under way ------------------------------------------------------------------------------------- */

/* Of all chunks: as many places as there are ever micro-batches between a forward and the end of its backward. */
struct flights {
    struct dtp_flight *place;
    uint32_t *of; /* of each chunk and micro-batch: its place */
    uint32_t *unused, unused_count;
};

bool dtp_lower_ends_flight(const struct dtp_pass *pass)
{
    return pass->kind == DTP_PASS_WEIGHT || pass->kind == DTP_PASS_WHOLE_BACKWARD;
}

uint32_t dtp_lower_most_under_way(const struct dtp_lower_role *role)
{
    uint32_t now = 0, most = 0;
    for (uint32_t i = 0; i < role->pass_count; i++) {
        now += role->passes[i].kind == DTP_PASS_FORWARD;
        most = now > most ? now : most;
        now -= dtp_lower_ends_flight(&role->passes[i]);
    }
    return most;
}

static uint64_t most_layers(const struct dtp_lower_role *role)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < role->chunk_count; i++)
        most = role->chunks[i].layers > most ? role->chunks[i].layers : most;
    return most;
}

static bool take_flights(struct dtp_lowering *l, struct flights *out)
{
    uint32_t count = dtp_lower_most_under_way(&l->role);
    uint64_t layers = most_layers(&l->role);
    size_t places = (size_t)l->role.chunk_count * l->plan->accumulate;
    out->place = dtp_host_arena_take_zeroed(&l->arena, count, sizeof *out->place);
    out->of = dtp_host_arena_take(&l->arena, places, sizeof *out->of);
    out->unused = dtp_host_arena_take(&l->arena, count, sizeof *out->unused);
    if (!out->place || !out->of || !out->unused)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        out->unused[out->unused_count++] = count - 1 - i;
        out->place[i].module = dtp_host_arena_take(&l->arena, layers, sizeof *out->place[i].module);
        /* a stage may have layers of several kinds: room for the matrices of any, and for two norms */
        out->place[i].deferred =
            dtp_host_arena_take(&l->arena, layers * (DTP_LAYER_MATRICES + 2), sizeof *out->place[i].deferred);
        if (!out->place[i].module || !out->place[i].deferred)
            return false;
    }
    return true;
}

/* What a flight holds before its forward: nothing. */
static void clear(struct dtp_flight *flight, uint64_t layers)
{
    struct dtp_flight_module *module = flight->module;
    for (uint64_t i = 0; i < layers; i++) {
        module[i].alive = 0, module[i].terms = DTP_NO_BUFFER;
        for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
            module[i].tensor[tensor] = DTP_NO_BUFFER;
        for (int matrix = 0; matrix < DTP_LAYER_MATRICES; matrix++)
            module[i].columns[matrix] = module[i].casts[matrix] = module[i].weights[matrix] = DTP_NO_BUFFER;
    }
    *flight = (struct dtp_flight){.module = module,
                                  .deferred = flight->deferred,
                                  .embedded = DTP_NO_BUFFER,
                                  .logits = DTP_NO_BUFFER,
                                  .taken = DTP_NO_BUFFER,
                                  .replayed = DTP_NO_BUFFER,
                                  .result = DTP_NO_BUFFER,
                                  .received = DTP_NO_BUFFER,
                                  .ahead = {.table_gradient = DTP_NO_BUFFER}};
}

static struct dtp_flight *flight_of(const struct dtp_lowering *l, struct flights *flights, const struct dtp_pass *pass)
{
    uint32_t *of = &flights->of[(size_t)pass->chunk * l->plan->accumulate + pass->micro_batch];
    if (pass->kind == DTP_PASS_FORWARD) {
        *of = flights->unused[--flights->unused_count];
        clear(&flights->place[*of], l->role.chunks[pass->chunk].layers);
    } else if (dtp_lower_ends_flight(pass)) {
        flights->unused[flights->unused_count++] = *of;
    }
    return &flights->place[*of];
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* The micro-batches that pass through a chunk: of a pipeline that runs both ways, half of all. */
static uint32_t first_of(const struct dtp_lowering *l, uint32_t chunk, uint32_t *count)
{
    uint32_t all = l->plan->accumulate;
    const struct dtp_schedule *schedule = l->role.pipeline ? l->role.pipeline->schedule : NULL;
    uint32_t lines = schedule ? dtp_schedule_lines(schedule) : 1;
    *count = all / lines;
    return lines == 2 ? dtp_schedule_line_of_chunk(schedule, chunk) * *count : 0;
}

/* Where a pass stands among those of its rank: what begins with the first micro-batch, and ends with the last. They go
 * through a chunk in their order, or backward in the opposite one. */
void dtp_lower_stand_at_pass(struct dtp_lowering *l, uint32_t i)
{
    const struct dtp_pass *pass = &l->role.passes[i];
    uint32_t count, first = first_of(l, pass->chunk, &count);
    l->pass = pass;
    l->chunk = &l->role.chunks[pass->chunk];
    l->micro_step = (uint16_t)pass->micro_batch;
    bool opposite = pass->kind != DTP_PASS_FORWARD && l->role.pipeline &&
                    dtp_schedule_turns_round(l->role.pipeline->schedule->shape.kind);
    uint32_t last = first + count - 1;
    l->first_micro_step = pass->micro_batch == (opposite ? last : first);
    l->last_micro_step = pass->micro_batch == (opposite ? first : last);
    l->last_pass = i + 1 == l->role.pass_count;
    l->reduces = l->last_micro_step || dtp_plan_reductions(l->plan) == l->plan->accumulate;
    bool becomes_grad = l->first_micro_step && l->hooks->gradient_rests && l->hooks->gradient_rests(l);
    l->gradient_owner = becomes_grad ? DTP_OWNER_GRADS : DTP_OWNER_REDUCE;
}

static void let_go(struct dtp_lowering *l, dtp_buffer_id *buffer, dtp_op_id behind)
{
    struct dtp_draft draft;
    if (buffer->index == DTP_NO_INDEX)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "held by the stage");
    dtp_draft_use(&draft, *buffer, DTP_FREE);
    dtp_draft_after(&draft, behind);
    dtp_draft_end(l, &draft);
    *buffer = DTP_NO_BUFFER;
}

/* What backward would have let go, and gradients that those of weights were made of: of neighbours in the list several
 * may be of one. */
static void forget_graph(struct dtp_lowering *l)
{
    struct dtp_flight *f = l->flight;
    for (uint32_t i = 0; i < f->deferred_count; i++) {
        dtp_buffer_id *gradient = &f->deferred[i].output_gradient;
        for (uint32_t k = i + 1; k < f->deferred_count; k++)
            if (f->deferred[k].output_gradient.index == gradient->index)
                f->deferred[k].output_gradient = DTP_NO_BUFFER;
        if (gradient->index != f->taken.index) /* which stays, as what was sent does */
            let_go(l, gradient, DTP_NO_OP);
    }
    f->deferred_count = 0;
    for (uint64_t i = 0; i < l->chunk->layers; i++) {
        struct dtp_draft draft;
        dtp_lower_stand(l, (uint16_t)(l->chunk->first + i));
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "graph");
        for (uint64_t left = f->module[i].alive; left; left &= left - 1)
            dtp_draft_use(&draft, f->module[i].tensor[dtp_layer_first(left)], DTP_FREE);
        f->module[i].alive = 0;
        for (int matrix = 0; matrix < DTP_LAYER_MATRICES; matrix++) {
            dtp_draft_use(&draft, f->module[i].columns[matrix], DTP_FREE);
            f->module[i].columns[matrix] = DTP_NO_BUFFER;
        }
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
    }
    dtp_lower_stand(l, DTP_NO_LAYER);
    if (l->chunk->head) {
        let_go(l, &f->logits_gradient, DTP_NO_OP);
        let_go(l, &f->final_norm, DTP_NO_OP);
        let_go(l, &f->final_statistics, DTP_NO_OP);
        if (!l->transformer->final_norm) /* the head read it as it was */
            return;
        let_go(l, &f->final_input, DTP_NO_OP);
    }
}

/* What a stage made and held: logits until the loss' backward, rows for the next one until all is through. */
static void forget_held(struct dtp_lowering *l)
{
    bool holds = dtp_lower_holds(l);
    if (l->pass->kind == DTP_PASS_FORWARD)
        return;
    if (holds && l->pass->kind == DTP_PASS_WEIGHT)
        forget_graph(l);
    else if (holds)
        let_go(l, &l->flight->logits, DTP_NO_OP);
    if (dtp_lower_copies_parts(l)) { /* the gradient and the result, gathered for this backward */
        let_go(l, &l->flight->taken, DTP_NO_OP);
        let_go(l, &l->flight->received, DTP_NO_OP);
    }
    if ((holds || dtp_lower_copies(l)) && dtp_lower_ends_flight(l->pass))
        let_go(l, &l->flight->result, l->sent[(size_t)l->pass->chunk * l->plan->accumulate + l->pass->micro_batch]);
}

static void run(struct dtp_lowering *l)
{
    if (l->pass->kind == DTP_PASS_FORWARD) {
        call(l, l->hooks->begin_micro_step);
        forward(l);
        return;
    }
    if (l->pass->kind == DTP_PASS_WEIGHT)
        weights_backward(l);
    else
        backward(l);
    forget_held(l);
    if (dtp_lower_ends_flight(l->pass))
        call(l, l->hooks->end_micro_step);
}

enum dtp_status dtp_lower_passes(struct dtp_lowering *l)
{
    struct flights flights = {.unused_count = 0};
    bool expected = false;
    if (!take_flights(l, &flights))
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    l->before_next = DTP_NO_OP;
    dtp_lower_begin_graphs(l);
    for (int what = 0; what < DTP_LENT_COUNT; what++)
        l->lent[what].rows = DTP_NO_BUFFER;
    for (uint32_t i = 0; i < l->role.pass_count; i++) {
        dtp_lower_before_pass(l, i);
        dtp_lower_stand_at_pass(l, i);
        l->flight = flight_of(l, &flights, l->pass);
        run(l);
        dtp_lower_after_pass(l, i);
        if (l->role.pipeline && l->last_micro_step && dtp_lower_ends_flight(l->pass))
            call(l, l->hooks->chunk_done);
        if (!expected && dtp_lower_ends_flight(l->pass)) { /* whatever comes has been there once */
            if (i + 1 < l->role.pass_count)
                dtp_program_expect_again(l->program, (l->role.pass_count - 1) / (i + 1));
            expected = true;
        }
    }
    dtp_lower_end_graphs(l);
    dtp_lower_forget_all_casts(l);
    for (int what = 0; what < DTP_LENT_COUNT; what++)
        dtp_lower_take_back(l, (enum dtp_lent)what);
    mark(l, "step", DTP_NO_OP);
    dtp_lower_join_copies(l);
    call(l, l->hooks->passes_done);
    dtp_lower_join_norms(l);
    call(l, l->hooks->step);
    dtp_lower_forget_sent(l);
    return DTP_OK;
}
