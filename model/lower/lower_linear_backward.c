/* Backward of a block's linears: gradients of weights, biases and inputs, in one pass or in two. */
#include "lower/lower_eager.h"
#include "lower/lower_fp8.h"

void dtp_backward_consume(const struct dtp_block_backward *b, struct dtp_draft *draft, enum dtp_layer_tensor tensor,
                          uint32_t access)
{
    if (b->kept_for_weights & UINT64_C(1) << tensor)
        access &= ~(uint32_t)DTP_FREE;
    if (!access || !(b->module->alive & UINT64_C(1) << tensor))
        return;
    dtp_draft_use(draft, b->module->tensor[tensor], access);
    if (access & DTP_FREE) {
        b->module->alive &= ~(UINT64_C(1) << tensor);
        b->module->tensor[tensor] = DTP_NO_BUFFER;
    }
}

dtp_buffer_id dtp_backward_take_over(const struct dtp_block_backward *b, struct dtp_draft *draft,
                                     enum dtp_layer_tensor tensor)
{
    dtp_buffer_id made = b->module->tensor[tensor];
    dtp_draft_use(draft, made, DTP_UPDATE);
    b->module->alive &= ~(UINT64_C(1) << tensor);
    b->module->tensor[tensor] = DTP_NO_BUFFER;
    return made;
}

bool dtp_backward_shared(const struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
        if (b->gradient[tensor].index == gradient.index)
            return true;
    return false;
}

/* The last of the two matmuls that read a result's gradient. */
static void use_result_gradient(const struct dtp_block_backward *b, struct dtp_draft *draft, dtp_buffer_id gradient,
                                bool last)
{
    bool stays = !last || gradient.index == b->l->flight->gradient.index || dtp_backward_shared(b, gradient);
    dtp_draft_use(draft, gradient, stays ? DTP_READ : DTP_READ | DTP_FREE);
}

/* `last`: it is the last matmul of this linear, and what it reads goes. `frees_input`: so does the saved input. */
static void weight_gradient(const struct dtp_block_backward *b, int index, dtp_buffer_id output_gradient, bool last,
                            bool frees_input)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    enum dtp_layer_tensor input = l->tensors.input[index];
    bool stands = b->module->alive & UINT64_C(1) << input;
    dtp_buffer_id narrow_gradient = dtp_lower_fp8_cast(l, DTP_FP8_GRADIENT_COLUMNS, matrix, output_gradient);
    dtp_buffer_id narrow_input =
        dtp_lower_fp8_cast(l, DTP_FP8_INPUT_AGAIN, matrix, stands ? b->module->tensor[input] : DTP_NO_BUFFER);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, matrix->gradient_name);
    dtp_draft_use(&draft, narrow_gradient, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, narrow_input, DTP_READ | DTP_FREE);
    use_result_gradient(b, &draft, output_gradient, last);
    if (l->gathered.index == DTP_NO_INDEX)
        dtp_backward_consume(b, &draft, l->tensors.input[index], frees_input ? DTP_READ | DTP_FREE : DTP_READ);
    else if (frees_input)
        dtp_backward_consume(b, &draft, l->tensors.input[index], DTP_FREE);
    dtp_draft_use(&draft, b->module->casts[index], DTP_READ);
    dtp_draft_use(&draft, l->gathered, DTP_READ | DTP_FREE);
    l->gathered = DTP_NO_BUFFER;
    dtp_buffer_id before = dtp_lower_state(l)->gradient[index];
    dtp_lower_gradient_result(l, &draft, index, l->compute);
    dtp_draft_product(l, &draft, matrix, DTP_PRODUCT_WEIGHT_GRADIENT);
    dtp_draft_end(l, &draft);
    dtp_lower_add_gradient(l, index, before);
}

/* Of what a matrix reads, per token; where it reads the stream, of tensor parallel ranks: whole terms. */
static uint64_t input_width(const struct dtp_lowering *l, int index)
{
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    bool of_latent = matrix->id == DTP_MATRIX_KV_B || (matrix->id == DTP_MATRIX_Q && l->tensors.kind.q_latent);
    bool of_stream = matrix->id != DTP_MATRIX_OUTPUT && matrix->id != DTP_MATRIX_DOWN &&
                     matrix->id != DTP_MATRIX_SHARED_DOWN && !of_latent;
    if (matrix->expert)
        return dtp_divide_up(dtp_layer_received(&l->tensors, l->tensors.kind.experts_per_token * matrix->in),
                             l->plan->expert_shards);
    return of_stream && (l->tp == 1 || matrix->own_rows) ? l->between : matrix->in;
}

uint64_t dtp_backward_input_bytes(const struct dtp_lowering *l, int index)
{
    uint64_t bytes = dtp_backward_token_bytes(l, l->compute * input_width(l, index));
    bool slots = l->tensors.kind.slots_rows && l->tensors.input[index] == DTP_TENSOR_PERMUTED; /* of all of them */
    return dtp_backward_called_bytes(l, l->matrix[index].expert && !slots, bytes);
}

dtp_buffer_id dtp_backward_input_gradient(const struct dtp_block_backward *b, int index, dtp_buffer_id output_gradient,
                                          bool last, bool frees_input)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    dtp_buffer_id weight = dtp_lower_weight(l, index);
    dtp_buffer_id narrow_gradient = dtp_lower_fp8_cast(l, DTP_FP8_GRADIENT_ROWS, matrix, output_gradient);
    dtp_buffer_id narrow_weight = dtp_lower_fp8_weight_again(l, b->module, index, weight);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, matrix->input_gradient_name);
    dtp_draft_use(&draft, narrow_gradient, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, narrow_weight, DTP_READ | DTP_FREE);
    bool cast_goes = dtp_plan_casts_weights(l->plan) && !dtp_lower_casts_stay(l);
    uint32_t access = cast_goes ? DTP_READ | DTP_FREE : DTP_READ;
    if (dtp_lower_packs(l, index))
        access = dtp_lower_unpacked_access(l, index, false);
    dtp_draft_use(&draft, weight, access);
    dtp_buffer_id gradient =
        dtp_backward_workspace(l, &draft, "input gradient", dtp_backward_input_bytes(l, index), DTP_WRITE);
    use_result_gradient(b, &draft, output_gradient, last);
    if (frees_input)
        dtp_backward_consume(b, &draft, l->tensors.input[index], DTP_FREE);
    dtp_draft_use(&draft, b->module->casts[index], DTP_FREE);
    b->module->casts[index] = DTP_NO_BUFFER;
    if (cast_goes)
        *dtp_lower_cast_of(l, index) = DTP_NO_BUFFER;
    dtp_draft_product(l, &draft, matrix, DTP_PRODUCT_INPUT_GRADIENT);
    dtp_draft_end(l, &draft);
    return gradient;
}

static void bias_gradient(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix, dtp_buffer_id output_gradient)
{
    if (!matrix->bias || dtp_backward_weighed_bias(l, matrix, output_gradient))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_BIAS_BACKWARD, matrix->name);
    dtp_draft_use(&draft, output_gradient, DTP_READ);
    uint64_t rows = matrix->expert ? l->tensors.kind.experts_per_token : 1; /* of a token */
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, (double)(rows * matrix->out * l->compute)), 0, 1);
    draft.op.demand.column_sums = l->fused ? 0 : 1;
    dtp_draft_end(l, &draft);
}

/* All rows of what a matmul read in forward, where it was not kept; compute does not wait for it yet. */
static dtp_op_id gather_again(const struct dtp_block_backward *b, int index)
{
    struct dtp_lowering *l = b->l;
    enum dtp_layer_tensor input = l->tensors.input[index];
    if (!dtp_lower_spreads(l) || !l->plan->runtime->gathers_again)
        return DTP_NO_OP;
    uint64_t whole = dtp_lower_whole_input(l, index);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, dtp_layer_tensor_text(input));
    dtp_backward_consume(b, &draft, input, DTP_READ);
    l->gathered = dtp_backward_workspace(l, &draft, "gathered rows", whole, DTP_WRITE);
    return dtp_lower_tensor_end(l, &draft, whole, false);
}

/* Of tensor parallel ranks, a matrix cut by columns: its input is gathered beside the input gradient's matmul, whose
 * terms are summed beside the weight gradient's (Megatron's LinearWithGradAccumulationAndAsyncCommunication). */
static dtp_buffer_id gradients_beside(const struct dtp_block_backward *b, int index, dtp_buffer_id output_gradient,
                                      bool last_reader)
{
    struct dtp_lowering *l = b->l;
    dtp_op_id gathered = gather_again(b, index);
    dtp_buffer_id terms = dtp_backward_input_gradient(b, index, output_gradient, false, false);
    dtp_buffer_id sum = dtp_lower_sum_of_rows(l, l->matrix[index].name, terms, DTP_READ, l->matrix[index].in);
    struct dtp_draft draft;
    dtp_op_id summed = l->awaited;
    l->awaited = gathered;
    weight_gradient(b, index, output_gradient, true, last_reader);
    l->awaited = summed;
    if (sum.index != terms.index) {
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "terms of a sum");
        dtp_draft_use(&draft, terms, DTP_FREE | dtp_lower_held_terms(l));
        dtp_draft_end(l, &draft);
    }
    return sum;
}

dtp_buffer_id dtp_backward_gather_result(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient,
                                         dtp_op_id *beside)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    *beside = DTP_NO_OP;
    if (!dtp_lower_spreads(l) || !dtp_lower_cut_by_rows(l, index))
        return gradient;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, l->matrix[index].name);
    use_result_gradient(b, &draft, gradient, true);
    uint64_t elements = dtp_lower_whole_stream(l, 1);
    if (!dtp_plan_gathers_casts(l->plan))
        return dtp_lower_gather_rows(l, &draft, DTP_OWNER_WORKSPACE, l->compute * elements, beside);
    const uint64_t wire = dtp_fp8_wire_bytes(l->plan, elements), most = dtp_lower_whole_stream(l, l->compute);
    /* A scale of each block is not in the user buffer, and gathered before (fill_userbuffers_buffer_for_all_gather of
     * Transformer Engine's module/base.py). */
    const uint64_t scales = l->plan->tp_overlap && wire > most ? wire - most : 0;
    dtp_buffer_id casts = dtp_draft_new(l, &draft, "gathered rows", DTP_OWNER_WORKSPACE,
                                        dtp_fp8_standing_bytes(l->plan, &l->cluster->gpu, elements), DTP_WRITE);
    l->awaited = dtp_lower_tensor_end(l, &draft, scales ? scales : wire, !scales);
    *beside = dtp_lower_tensor_beside(l, DTP_OP_ALL_GATHER, l->matrix[index].name, wire - scales);
    return casts;
}

/* The gradient of the weight is left for a pass of its own, which reads what is kept until then. */
static dtp_buffer_id input_gradient_alone(const struct dtp_block_backward *b, int index, dtp_buffer_id output_gradient)
{
    struct dtp_lowering *l = b->l;
    dtp_op_id beside;
    output_gradient = dtp_backward_gather_result(b, index, output_gradient, &beside);
    if (beside.index != DTP_NO_INDEX)
        l->awaited = beside;
    l->flight->deferred[l->flight->deferred_count++] =
        (struct dtp_deferred_gradient){output_gradient, l->layer, (uint16_t)index};
    dtp_buffer_id gradient = dtp_backward_input_gradient(b, index, output_gradient, false, false);
    if (dtp_lower_cut_by_columns(l, index) && l->plan->runtime->sums_beside)
        gradient = dtp_lower_sum_of_rows(l, l->matrix[index].name, gradient, DTP_READ | DTP_FREE, l->matrix[index].in);
    return gradient;
}

bool dtp_backward_deferred(const struct dtp_lowering *l, dtp_buffer_id gradient)
{
    for (uint32_t i = l->flight->deferred_count; i > 0 && l->flight->deferred[i - 1].layer == l->layer; i--)
        if (l->flight->deferred[i - 1].output_gradient.index == gradient.index)
            return true;
    return false;
}

/* One linear: gradients of its weight, bias and input. A compiler drops the input with the weight gradient, eager
 * autograd with the node, after the input gradient. */
static dtp_buffer_id linear(const struct dtp_block_backward *b, int index, dtp_buffer_id output_gradient,
                            bool last_reader)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id gradient;
    if (l->adapts)
        return dtp_backward_frozen(b, index, output_gradient, last_reader);
    dtp_lower_fetch(l, index);
    bias_gradient(l, &l->matrix[index], output_gradient);
    if (b->kept_for_weights) {
        gradient = input_gradient_alone(b, index, output_gradient);
    } else if (dtp_lower_cut_by_columns(l, index) && l->plan->runtime->sums_beside) {
        gradient = gradients_beside(b, index, output_gradient, last_reader);
    } else {
        dtp_op_id beside;
        output_gradient = dtp_backward_gather_result(b, index, output_gradient, &beside);
        weight_gradient(b, index, output_gradient, false, last_reader && l->compiled);
        if (beside.index != DTP_NO_INDEX)
            l->awaited = beside;
        gradient = dtp_backward_input_gradient(b, index, output_gradient, true, last_reader && !l->compiled);
        if (dtp_lower_casts_apart(&l->tensors, l->tensors.input[index]))
            gradient = dtp_backward_add_cast(b, index, gradient);
    }
    dtp_lower_unfetch(l);
    if (!b->kept_for_weights)
        dtp_lower_gradient_made(l, index);
    return gradient;
}

/* Under autocast each linear reads a cast of its own, of fp32. */
static bool widens(const struct dtp_lowering *l, enum dtp_layer_tensor of)
{
    bool norm = of == DTP_TENSOR_NORM1 || of == DTP_TENSOR_NORM2;
    return (l->autocast && !l->fused && of != DTP_TENSOR_PERMUTED) || (l->tensors.kind.casts_norms && norm);
}

/* Linears that read one tensor: the second and third gradients are added to the first (three passes of c h). Fused they
 * cost nothing by themselves but those of experts' rows, behind which there is no norm. */
dtp_buffer_id dtp_backward_add(const struct dtp_block_backward *b, enum dtp_layer_tensor of, dtp_buffer_id sum,
                               dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    if (sum.index == DTP_NO_INDEX)
        return gradient;
    bool passes = !l->fused || l->tensors.kind.experts;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sum of input gradients");
    dtp_draft_use(&draft, sum, DTP_UPDATE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    bool summed = l->plan->runtime->sums_beside; /* over ranks, before they are added to each other */
    uint64_t width = of == DTP_TENSOR_PERMUTED
                         ? l->tensors.bytes[of] / (l->results * dtp_layer_slot_copies(&l->tensors.kind))
                     : summed ? l->between
                              : l->transformer->hidden;
    uint64_t element = of == DTP_TENSOR_CORE || of == DTP_TENSOR_CORE_COPY ? l->compute : l->results;
    if (widens(l, of)) /* what each returns is cast, and added up as wide */
        dtp_draft_pass(l, &draft, dtp_backward_per_token(l, (double)((l->compute + 4 * 4) * width)),
                       dtp_backward_per_token(l, (double)width), 2);
    else
        dtp_draft_pass(l, &draft, passes ? dtp_backward_per_token(l, (double)(3 * element * width)) : 0, 0, 1);
    dtp_draft_end(l, &draft);
    return sum;
}

void dtp_backward_projection(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = dtp_backward_operator(b);
    enum dtp_layer_tensor input = dtp_layer_first(op->reads);
    uint64_t left = op->makes;
    bool later = dtp_backward_needed_later(b, input), apart = dtp_lower_casts_apart(&l->tensors, input);
    for (int turn = 0; turn < l->matrices; turn++) { /* autograd begins with the linear that was called last */
        int i = apart ? l->matrices - 1 - turn : turn;
        if (!(op->makes & UINT64_C(1) << l->matrix[i].result))
            continue;
        left &= ~(UINT64_C(1) << l->matrix[i].result);
        dtp_buffer_id of_result = b->gradient[l->matrix[i].result];
        b->gradient[l->matrix[i].result] = DTP_NO_BUFFER;
        dtp_buffer_id made = linear(b, i, of_result, !left && !later);
        made = dtp_backward_sum_shared(b, i, made);
        if (apart)
            b->gradient[input] = made;
        else if (made.index != DTP_NO_INDEX)
            b->gradient[input] = dtp_backward_add(b, input, b->gradient[input], made);
        if (!left && dtp_lower_cut_by_columns(l, i) && !l->plan->runtime->sums_beside)
            b->gradient[input] = l->tensors.kind.routes_all && !dtp_layer_lies_between_matmuls(input)
                                     ? dtp_backward_sum_latent(b, i, b->gradient[input])
                                     : dtp_lower_sum_of_rows(l, op->name, b->gradient[input], DTP_READ | DTP_FREE,
                                                             l->transformer->hidden);
    }
    if (l->tensors.kind.routes_all && op->makes & (DTP_TENSOR_BIT(ROUTER_SCORES) | DTP_TENSOR_BIT(Q_LATENT)))
        /* nobody else reads it */
        b->gradient[input] = dtp_backward_own_rows(b, b->gradient[input]);
}

/* ---- the pass of weights ----------------------------------------------------------------------------------------- */

/* No later one of those that are left reads it. */
static bool last_of_input(const struct dtp_lowering *l, uint32_t at)
{
    const struct dtp_flight *f = l->flight;
    for (uint32_t i = at + 1; i < f->deferred_count && f->deferred[i].layer == f->deferred[at].layer; i++)
        if (!(f->deferred[i].matrix & DTP_DEFERRED_NORM) &&
            l->tensors.input[f->deferred[i].matrix] == l->tensors.input[f->deferred[at].matrix])
            return false;
    return true;
}

static bool last_of_gradient(const struct dtp_flight *f, uint32_t at)
{
    for (uint32_t i = at + 1; i < f->deferred_count && f->deferred[i].layer == f->deferred[at].layer; i++)
        if (f->deferred[i].output_gradient.index == f->deferred[at].output_gradient.index)
            return false;
    return true;
}

/* Of a norm whose gradient was kept, the sum over tokens of its product with what was normed: 2 e h. */
static void norm_weight(const struct dtp_block_backward *b, dtp_buffer_id gradient, int of)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "weight gradient");
    dtp_draft_use(&draft, gradient, DTP_READ);
    dtp_backward_consume(b, &draft, (enum dtp_layer_tensor)of, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, 2 * (double)(l->residual * l->between)), 1);
    dtp_draft_end(l, &draft);
}

/* What backward left, in its order. The head's and the embedding's are made with the gradients that flow on, and so are
 * those of norms and biases, which are small. */
void dtp_lower_deferred_gradients(struct dtp_lowering *l)
{
    struct dtp_flight *f = l->flight;
    for (uint32_t i = 0; i < f->deferred_count; i++) {
        dtp_lower_stand(l, f->deferred[i].layer);
        struct dtp_block_backward b = {.l = l, .module = dtp_lower_flight_module(l)};
        for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
            b.gradient[tensor] = DTP_NO_BUFFER;
        int index = f->deferred[i].matrix;
        bool holds = dtp_lower_holds(l);
        dtp_lower_group_calls(l, "engine called", 1);
        if (index & (int)DTP_DEFERRED_NORM) {
            norm_weight(&b, f->deferred[i].output_gradient, index & (int)~DTP_DEFERRED_NORM);
            continue;
        }
        if (dtp_lower_cut_by_columns(l, index))
            l->awaited = gather_again(&b, index);
        weight_gradient(&b, index, f->deferred[i].output_gradient, !holds && last_of_gradient(f, i),
                        last_of_input(l, i));
        dtp_lower_gradient_made(l, index);
    }
    if (!dtp_lower_holds(l))
        f->deferred_count = 0;
    dtp_lower_stand(l, DTP_NO_LAYER);
}
