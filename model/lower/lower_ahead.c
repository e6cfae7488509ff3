/* A module that predicts a token further ahead, as Megatron-Core has it (transformer/multi_token_prediction.py, of
 * 2026): behind the model's final norm rows of the following tokens, from the same table, are normed (enorm), the
 * model's normed rows too (hnorm), both laid side by side and projected, 2 h -> h (eh_proj); then a layer, its norm,
 * the head's weights once more and a loss, before the model's own (process_mtp_loss). Norms keep what they read, the
 * projection what was laid side by side. Autograd walks the other way: the model's loss and head, the module, the final
 * norm, whose gradient is the sum of both.
 *
 * While the module is at hand its end of the model stands in the flight in place of the model's: they are exchanged. */
#include "lower/lower_fp8.h"
#include "lower/lowering.h"

#include "base/bytes.h"

static void call(struct dtp_lowering *l, void (*hook)(struct dtp_lowering *l))
{
    if (hook)
        hook(l);
}

static void exchange_ends(struct dtp_lowering *l)
{
    struct dtp_flight *f = l->flight;
    dtp_buffer_id *const at_hand[DTP_END_TENSORS] = {&f->final_input, &f->final_norm,     &f->final_statistics,
                                                     &f->final_wide,  &f->logits,         &f->loss_state,
                                                     &f->capped,      &f->logits_gradient};
    for (int i = 0; i < DTP_END_TENSORS; i++) {
        dtp_buffer_id other = f->ahead.other_end[i];
        f->ahead.other_end[i] = *at_hand[i];
        *at_hand[i] = other;
    }
    f->ahead.at_hand = !f->ahead.at_hand;
}

static void stand_at_module(struct dtp_lowering *l)
{
    dtp_lower_stand(l, (uint16_t)(l->chunk->first + l->chunk->layers - 1));
}

struct dtp_layer_matrix dtp_lower_ahead_projection(const struct dtp_lowering *l)
{
    return (struct dtp_layer_matrix){.name = "projection of both sides",
                                     .gradient_name = "projection weight gradient",
                                     .input_gradient_name = "projection input gradient",
                                     .out = dtp_transformer_ahead_rows(l->transformer),
                                     .in = 2 * l->transformer->hidden,
                                     .groups = 1,
                                     .id = DTP_MATRIX_OUTPUT};
}

static uint64_t rows_bytes(const struct dtp_lowering *l, uint64_t width)
{
    return dtp_bytes_product(l->tokens, l->compute * width);
}

/* What the projection keeps of what it reads: in fp8 its cast. */
static uint64_t sides_bytes(const struct dtp_lowering *l)
{
    uint64_t width = 2 * l->between;
    return l->casts.kept ? dtp_bytes_product(l->tokens, dtp_fp8_bytes(l->plan->precision.fp8_recipe, width))
                         : rows_bytes(l, width);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static dtp_buffer_id norm_side(struct dtp_lowering *l, const char *name, dtp_buffer_id input, dtp_buffer_id *statistics)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM, name);
    dtp_draft_use(&draft, input, DTP_READ);
    dtp_buffer_id normed = dtp_draft_new(l, &draft, name, DTP_OWNER_WORKSPACE, rows_bytes(l, l->between), DTP_WRITE);
    *statistics = dtp_draft_new(l, &draft, "norm statistics", DTP_OWNER_ACTIVATIONS,
                                l->tensor_bytes[DTP_TENSOR_STATISTICS1], DTP_WRITE);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    return normed;
}

/* Tensor parallel ranks have rows of the projection's matrix each (ColumnParallelLinear), and of tokens: both sides of
 * all tokens are gathered before it, forward and again in backward. */
static dtp_buffer_id gather_sides(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    if (!dtp_lower_spreads(l))
        return DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "both sides");
    dtp_draft_use(&draft, l->flight->ahead.sides, DTP_READ);
    return dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, sides_bytes(l) * dtp_lower_token_parts(l), NULL);
}

/* gather_from_tensor_model_parallel_region: what came rank by rank is laid side by side. Of it the rank's tokens are a
 * view (scatter_to_sequence_parallel_region splits the first axis), so that all of it stays as the layer's input. */
static dtp_buffer_id put_columns_together(struct dtp_lowering *l, dtp_buffer_id columns)
{
    uint64_t whole = dtp_lower_whole_stream(l, l->compute);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "columns of a projection");
    dtp_draft_use(&draft, columns, DTP_READ | DTP_FREE);
    dtp_buffer_id came = dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, whole, NULL);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "columns of a projection");
    dtp_draft_use(&draft, came, DTP_READ | DTP_FREE);
    dtp_buffer_id made =
        dtp_draft_new(l, &draft, dtp_layer_tensor_text(DTP_TENSOR_INPUT), DTP_OWNER_ACTIVATIONS, whole, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)whole, 1);
    dtp_draft_end(l, &draft);
    return made;
}

/* The gradient of the rank's tokens' rows: gathered, and of that its columns. */
static void take_columns(struct dtp_lowering *l)
{
    uint64_t whole = dtp_lower_whole_stream(l, l->compute), own = dtp_divide_up(whole, l->tp);
    struct dtp_draft draft;
    if (!dtp_lower_spreads(l))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "projection gradient");
    dtp_draft_use(&draft, l->flight->gradient, DTP_READ | DTP_FREE);
    dtp_buffer_id came = dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, whole, NULL);
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "projection gradient");
    dtp_draft_use(&draft, came, DTP_READ | DTP_FREE);
    l->flight->gradient = dtp_draft_new(l, &draft, "columns of a gradient", DTP_OWNER_WORKSPACE, own, DTP_WRITE);
    dtp_draft_memory(l, &draft, 2 * (double)own, 1);
    dtp_draft_end(l, &draft);
}

static void project(struct dtp_lowering *l)
{
    const struct dtp_layer_matrix projection = dtp_lower_ahead_projection(l);
    dtp_buffer_id weight = dtp_lower_params(dtp_lower_state(l), 0);
    dtp_buffer_id narrow_input = dtp_lower_fp8_cast(l, DTP_FP8_INPUT, &projection, l->flight->ahead.sides);
    dtp_buffer_id narrow_weight = dtp_lower_fp8_cast(l, DTP_FP8_WEIGHT, &projection, weight);
    bool spreads = dtp_lower_spreads(l);
    dtp_buffer_id gathered = gather_sides(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, projection.name);
    dtp_draft_use(&draft, narrow_input, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, narrow_weight, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, spreads ? gathered : l->flight->ahead.sides, spreads ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_use(&draft, weight, DTP_READ);
    dtp_buffer_id made = spreads ? dtp_draft_new(l, &draft, "columns of a projection", DTP_OWNER_WORKSPACE,
                                                 rows_bytes(l, projection.out), DTP_WRITE)
                                 : dtp_draft_new(l, &draft, dtp_layer_tensor_text(DTP_TENSOR_INPUT),
                                                 DTP_OWNER_ACTIVATIONS, l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    dtp_draft_product(l, &draft, &projection, DTP_PRODUCT_FORWARD);
    dtp_draft_end(l, &draft);
    if (spreads)
        made = put_columns_together(l, made);
    struct dtp_flight_module *module = dtp_lower_flight_module(l);
    module->tensor[DTP_TENSOR_INPUT] = made;
    module->alive = DTP_TENSOR_BIT(INPUT);
}

static void read_both_sides(struct dtp_lowering *l, dtp_buffer_id hidden)
{
    struct dtp_flight_ahead *ahead = &l->flight->ahead;
    dtp_lower_stand(l, DTP_NO_LAYER);
    ahead->rows = dtp_lower_embedding_rows(l, "following tokens");
    stand_at_module(l);
    dtp_buffer_id tokens = norm_side(l, "norm of following tokens", ahead->rows, &ahead->rows_statistics);
    dtp_buffer_id stream = norm_side(l, "norm of the stream", hidden, &ahead->hidden_statistics);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "both sides");
    dtp_draft_use(&draft, tokens, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, stream, DTP_READ | DTP_FREE);
    ahead->sides = dtp_draft_new(l, &draft, "both sides", DTP_OWNER_ACTIVATIONS, sides_bytes(l), DTP_WRITE);
    dtp_draft_memory(l, &draft, 4 * (double)rows_bytes(l, l->between), 1);
    dtp_draft_end(l, &draft);
}

void dtp_lower_ahead_forward(struct dtp_lowering *l)
{
    dtp_buffer_id hidden = l->flight->final_norm;
    for (int i = 0; i < DTP_END_TENSORS; i++)
        l->flight->ahead.other_end[i] = DTP_NO_BUFFER;
    exchange_ends(l);
    stand_at_module(l);
    call(l, l->hooks->before_forward);
    read_both_sides(l, hidden);
    project(l);
    dtp_lower_block_forward(l);
    call(l, l->hooks->after_forward);
    dtp_lower_stand(l, DTP_NO_LAYER);
    dtp_lower_final_norm(l);
    dtp_lower_loss_forward(l);
    dtp_lower_loss_held(l);
    exchange_ends(l);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Gradients of the projection's weight, which is added to the buffer, and of what it read; what came goes. */
static dtp_buffer_id project_back(struct dtp_lowering *l)
{
    const struct dtp_layer_matrix projection = dtp_lower_ahead_projection(l);
    struct dtp_flight_ahead *ahead = &l->flight->ahead;
    take_columns(l);
    dtp_buffer_id gathered = gather_sides(l);
    bool spreads = dtp_lower_spreads(l);
    dtp_buffer_id gradient = l->flight->gradient, weight = dtp_lower_params(dtp_lower_state(l), 0);
    dtp_buffer_id by_columns = dtp_lower_fp8_cast(l, DTP_FP8_GRADIENT_COLUMNS, &projection, gradient);
    dtp_buffer_id input = dtp_lower_fp8_cast(l, DTP_FP8_INPUT_AGAIN, &projection, ahead->sides);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, projection.gradient_name);
    dtp_draft_use(&draft, by_columns, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, input, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_draft_use(&draft, ahead->sides, spreads ? DTP_FREE : DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, gathered, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, dtp_lower_state(l)->gradient_buffer, DTP_UPDATE);
    dtp_draft_product(l, &draft, &projection, DTP_PRODUCT_WEIGHT_GRADIENT);
    dtp_draft_end(l, &draft);
    dtp_buffer_id narrow = dtp_lower_fp8_cast(l, DTP_FP8_GRADIENT_ROWS, &projection, gradient);
    dtp_buffer_id again = dtp_lower_fp8_cast(l, DTP_FP8_WEIGHT_AGAIN, &projection, weight);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, projection.input_gradient_name);
    dtp_draft_use(&draft, narrow, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, again, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, weight, DTP_READ);
    dtp_buffer_id sides = dtp_draft_new(l, &draft, "gradient of both sides", DTP_OWNER_WORKSPACE,
                                        rows_bytes(l, projection.in), DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_product(l, &draft, &projection, DTP_PRODUCT_INPUT_GRADIENT);
    dtp_draft_end(l, &draft);
    l->flight->gradient = DTP_NO_BUFFER;
    return spreads ? dtp_lower_sum_of_rows(l, projection.name, sides, DTP_READ | DTP_FREE, projection.in) : sides;
}

/* Of half of the sides' gradient, which is copied out of it. */
static dtp_buffer_id norm_back(struct dtp_lowering *l, const char *name, dtp_buffer_id sides, uint32_t access,
                               dtp_buffer_id input, dtp_buffer_id statistics)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, name);
    dtp_buffer_id made =
        dtp_draft_new(l, &draft, "gradient of a side", DTP_OWNER_WORKSPACE, rows_bytes(l, l->between), DTP_WRITE);
    dtp_draft_use(&draft, sides, access);
    dtp_draft_use(&draft, input, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, statistics, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 3 * (double)rows_bytes(l, l->between), 2);
    dtp_draft_end(l, &draft);
    return made;
}

static dtp_buffer_id module_back(struct dtp_lowering *l, dtp_buffer_id hidden)
{
    struct dtp_flight_ahead *ahead = &l->flight->ahead;
    dtp_lower_loss_gradient(l);
    dtp_buffer_id of_norm = dtp_lower_head_gradients(l);
    dtp_lower_final_norm_backward(l, of_norm);
    stand_at_module(l);
    call(l, l->hooks->before_backward);
    dtp_lower_block_backward(l);
    dtp_buffer_id sides = project_back(l);
    dtp_buffer_id stream = norm_back(l, "norm of the stream", sides, DTP_READ, hidden, ahead->hidden_statistics);
    dtp_buffer_id tokens =
        norm_back(l, "norm of following tokens", sides, DTP_READ | DTP_FREE, ahead->rows, ahead->rows_statistics);
    dtp_lower_stand(l, DTP_NO_LAYER);
    bool waits = l->chunk->embedding && !l->plan->pipeline_ranks; /* of a slice the stages have a table each */
    ahead->table_gradient = dtp_lower_table_gradient(l, tokens, waits);
    stand_at_module(l);
    call(l, l->hooks->after_backward);
    dtp_lower_stand(l, DTP_NO_LAYER);
    return stream;
}

dtp_buffer_id dtp_lower_ahead_backward(struct dtp_lowering *l, dtp_buffer_id gradient)
{
    dtp_buffer_id hidden = l->flight->final_norm;
    struct dtp_draft draft;
    exchange_ends(l);
    dtp_buffer_id stream = module_back(l, hidden);
    exchange_ends(l);
    l->flight->final_norm = DTP_NO_BUFFER;
    dtp_draft_begin(l, &draft, DTP_OP_ACCUMULATE, "gradients of the stream");
    dtp_draft_use(&draft, gradient, DTP_UPDATE);
    dtp_draft_use(&draft, stream, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 3 * (double)rows_bytes(l, l->between), 1);
    dtp_draft_end(l, &draft);
    return gradient;
}
