/* What eager PyTorch does under autocast tensor by tensor, in the order in which a history of its allocator has it
 * (reports/h200/compare/none.pickle.gz, of run_torch.py on an H200): the order decides what a cache in pieces comes to.
 */
#include "lower/lower_eager.h"

bool dtp_lower_turns_apart(const struct dtp_lowering *l)
{
    return dtp_lower_casts_apart(&l->tensors, DTP_TENSOR_NORM1) && l->rope && !l->plan->rope_fp32 &&
           !l->tensors.kind.packs_qkv && !l->transformer->qk_norm;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

int dtp_lower_readers(const struct dtp_lowering *l, enum dtp_layer_tensor input)
{
    int count = 0;
    for (int i = 0; i < l->matrices; i++)
        count += l->tensors.input[i] == input;
    return count;
}

void dtp_forward_cast(const struct pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_lowering *l = pass->l;
    enum dtp_layer_tensor input = l->tensors.input[index];
    if (!dtp_lower_casts_apart(&l->tensors, input))
        return;
    bool kept = pass->save & UINT64_C(1) << input;
    dtp_buffer_id made = dtp_draft_new(l, draft, dtp_layer_tensor_text(input), DTP_OWNER_ACTIVATIONS,
                                       l->tensor_bytes[input] / (uint64_t)dtp_lower_readers(l, input),
                                       kept ? DTP_WRITE : DTP_WRITE | DTP_FREE);
    pass->module->casts[index] = kept ? made : DTP_NO_BUFFER;
    dtp_draft_use(draft, pass->module->tensor[dtp_layer_first(dtp_layer_wide_of(input))], DTP_READ);
}

/* Lets go of those that nobody saves. */
static void let_go(const struct pass *pass, struct dtp_draft *draft, uint64_t tensors)
{
    for (uint64_t left = tensors & pass->module->alive & ~pass->save; left; left &= left - 1) {
        enum dtp_layer_tensor tensor = dtp_layer_first(left);
        dtp_draft_use(draft, pass->module->tensor[tensor], DTP_FREE);
        drop(pass, tensor);
    }
}

static void return_from_module(const struct pass *pass, struct dtp_draft *draft, int index)
{
    const uint64_t attention = DTP_TENSOR_BIT(WIDE1) | DTP_TENSOR_BIT(QKV) | DTP_TENSOR_BIT(Q_RAW) |
                               DTP_TENSOR_BIT(K_RAW) | DTP_TENSOR_BIT(V) | DTP_TENSOR_BIT(Q) | DTP_TENSOR_BIT(K) |
                               DTP_TENSOR_BIT(CORE);
    const uint64_t mlp = DTP_TENSOR_BIT(WIDE2) | DTP_TENSOR_BIT(GATE) | DTP_TENSOR_BIT(UP) | DTP_TENSOR_BIT(PRODUCT);
    const struct dtp_lowering *l = pass->l;
    uint64_t shared = l->tensors.kind.parallel ? DTP_TENSOR_BIT(WIDE1) : 0; /* one norm, read by both */
    if (l->matrix[index].id == DTP_MATRIX_OUTPUT)
        let_go(pass, draft, attention & ~shared);
    else if (l->matrix[index].id == DTP_MATRIX_DOWN)
        let_go(pass, draft, mlp | shared);
}

void dtp_forward_return(const struct pass *pass, struct dtp_draft *draft, int index)
{
    const struct dtp_lowering *l = pass->l;
    bool module = dtp_lower_casts_apart(&l->tensors, DTP_TENSOR_NORM1) && !l->tensors.kind.packs_qkv;
    if (module)
        return_from_module(pass, draft, index);
    else if (dtp_layer_tensors_last_reader(&l->tensors, index) && dtp_layer_wide_of(l->tensors.input[index]))
        read(pass, draft, dtp_layer_first(dtp_layer_wide_of(l->tensors.input[index])), true);
}

void dtp_forward_cast_again(const struct pass *pass, int index)
{
    struct dtp_draft draft;
    if (!dtp_lower_casts_apart(&pass->l->tensors, pass->l->tensors.input[index]))
        return;
    dtp_draft_begin(pass->l, &draft, DTP_OP_CAST, pass->l->matrix[index].name);
    dtp_forward_cast(pass, &draft, index);
    dtp_draft_memory(pass->l, &draft, 0, 0);
    dtp_draft_end(pass->l, &draft);
}

void dtp_forward_turn(const struct pass *pass, enum dtp_layer_tensor made, uint64_t width)
{
    struct dtp_lowering *l = pass->l;
    uint64_t wide = dtp_bytes_product(4 * l->tokens, width);
    double elements = (double)width;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY, dtp_layer_tensor_text(made));
    dtp_draft_use(&draft, pass->module->tensor[made == DTP_TENSOR_Q ? DTP_TENSOR_Q_RAW : DTP_TENSOR_K_RAW], DTP_READ);
    for (int i = 0; i < 2; i++)
        dtp_draft_new(l, &draft, "rotary workspace", DTP_OWNER_WORKSPACE, wide, DTP_UPDATE | DTP_FREE);
    make(pass, &draft, made);
    if (made == DTP_TENSOR_K) {
        read(pass, &draft, DTP_TENSOR_Q_RAW, true);
        read(pass, &draft, DTP_TENSOR_K_RAW, true);
    }
    dtp_draft_pass(l, &draft, per_token(l, 10 * (double)l->compute * elements),
                   per_token(l, dtp_plan_turned_elements(l->transformer, l->plan) * elements), 5);
    dtp_draft_end(l, &draft);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

void dtp_backward_turn(struct dtp_block_backward *b, enum dtp_layer_tensor of, uint64_t width)
{
    struct dtp_lowering *l = b->l;
    uint64_t wide = dtp_backward_token_bytes(l, 4 * width);
    double elements = (double)width, bytes = 10 * (double)l->compute * elements;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY_BACKWARD, dtp_layer_tensor_text(of));
    dtp_buffer_id copy = dtp_backward_workspace(l, &draft, "rotary workspace", wide, DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[of], DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, 0.3 * bytes), 0, 1);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY_BACKWARD, dtp_layer_tensor_text(of));
    dtp_buffer_id product = dtp_backward_workspace(l, &draft, "rotary workspace", wide, DTP_WRITE);
    dtp_draft_use(&draft, copy, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, 0.4 * bytes),
                   dtp_backward_per_token(l, dtp_plan_turned_elements(l->transformer, l->plan) * elements), 4);
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY_BACKWARD, dtp_layer_tensor_text(of));
    b->gradient[of] = dtp_backward_workspace(l, &draft, "turned gradient",
                                             dtp_backward_token_bytes(l, l->compute * width), DTP_WRITE);
    dtp_draft_use(&draft, product, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, 0.3 * bytes), 0, 1);
    dtp_draft_end(l, &draft);
}

dtp_buffer_id dtp_backward_add_cast(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    enum dtp_layer_tensor input = l->tensors.input[index];
    dtp_buffer_id sum = b->gradient[input];
    uint64_t width = l->transformer->hidden;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "input gradient");
    dtp_buffer_id wide =
        dtp_backward_workspace(l, &draft, "input gradient in fp32", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, (double)((4 + l->compute) * width)),
                   dtp_backward_per_token(l, (double)width), 1);
    dtp_draft_end(l, &draft);
    if (sum.index == DTP_NO_INDEX)
        return wide;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "sum of input gradients");
    dtp_draft_use(&draft, sum, DTP_UPDATE);
    dtp_draft_use(&draft, wide, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, (double)(3 * l->residual * width)), 0, 1);
    dtp_draft_end(l, &draft);
    return sum;
}
