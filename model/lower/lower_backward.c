/* Backward of a block, in the order in which allocation traces of PyTorch 2.11 show it.
 *
 *   down    weight gradient, input gradient [c f T]
 *   MLP     gradients of silu(gate) and up beside everything saved: the block's worst instant
 *   up      weight gradient, input gradient; norm 2; the residual gradient is added to in place
 *   output  weight gradient, input gradient; attention core; RoPE; the gradient of qkv as one
 *   qkv     weight gradient, input gradient; norm 1
 * Saved tensors go as soon as the last step that reads them has been issued. */
#include "lower/lower_eager.h"
#include "lower/lower_fp8.h"
#include "lower/lower_graphs.h"
#include "lower/lower_context.h"

#include "plan/gelu_chain.h"
#include "plan/norm_chain.h"

/* ---- norms and the residual stream ------------------------------------------------------------------------------- */

/* What dropout let through of the residual gradient: e h and the mask in, c h out. */
static dtp_buffer_id drop_out(const struct dtp_block_backward *b, enum dtp_layer_tensor mask)
{
    struct dtp_lowering *l = b->l;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "dropout");
    dtp_draft_use(&draft, l->flight->gradient, DTP_READ);
    dtp_backward_consume(b, &draft, mask, DTP_READ | DTP_FREE);
    dtp_buffer_id gradient = dtp_backward_workspace(l, &draft, "branch gradient",
                                                    dtp_backward_token_bytes(l, l->compute * l->between), DTP_WRITE);
    double bytes = (double)((l->residual + l->compute + 1) * l->between);
    dtp_draft_memory(l, &draft, dtp_backward_per_token(l, bytes), 1);
    dtp_draft_end(l, &draft);
    return gradient;
}

/* An expert's matmul casts the rows that it is given. */
static uint64_t branch_gradient_bytes(const struct dtp_block_backward *b)
{
    const struct dtp_lowering *l = b->l;
    bool rows = l->tensors.kind.experts && dtp_layer_branches(dtp_backward_operator(b)) & DTP_TENSOR_BIT(DOWN);
    return rows ? l->results : l->compute;
}

/* A sum's backward: each branch gets the residual gradient, cast for its matmul where the stream is fp32, or what
 * dropout let through of it. */
static void branch(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id gradient = l->flight->gradient;
    uint64_t mask = dtp_backward_operator(b)->statistics;
    if (mask) {
        gradient = drop_out(b, dtp_layer_first(mask));
    } else if (l->residual != branch_gradient_bytes(b) &&
               !l->tensors.kind.norms_after) { /* a norm's backward reads it as it is */
        double h = (double)l->between, c = (double)l->compute;
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_CAST, "residual gradient");
        dtp_draft_use(&draft, l->flight->gradient, DTP_READ);
        gradient = dtp_backward_workspace(l, &draft, "residual gradient in compute dtype",
                                          dtp_backward_token_bytes(l, l->compute * l->between), DTP_WRITE);
        dtp_draft_pass(l, &draft, l->fused ? 0 : dtp_backward_per_token(l, (4 + c) * h), 0, 1);
        dtp_draft_end(l, &draft);
    }
    for (uint64_t left = dtp_layer_branches(dtp_backward_operator(b)); left; left &= left - 1)
        b->gradient[dtp_layer_first(left)] = gradient;
}

static dtp_buffer_id widen(const struct dtp_block_backward *b, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    if (l->residual == l->results || l->fused)
        return gradient;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "norm gradient");
    dtp_buffer_id wide =
        dtp_backward_workspace(l, &draft, "norm gradient in fp32", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, (double)((4 + l->compute) * l->between)),
                   dtp_backward_per_token(l, (double)l->between), 1);
    dtp_draft_end(l, &draft);
    return wide;
}

/* What a norm's backward reads of its input: the tensor, or the terms of a sum that was not kept; the branch's result
 * goes, where selective checkpointing kept it. */
static void consume_input(const struct dtp_block_backward *b, struct dtp_draft *draft, enum dtp_layer_tensor input)
{
    const struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *sum = dtp_layer_tensors_sum(&l->tensors, input);
    if (l->tensor_bytes[input] || !sum)
        dtp_backward_consume(b, draft, input, dtp_backward_needed_later(b, input) ? DTP_READ : DTP_READ | DTP_FREE);
    for (uint64_t left = sum ? sum->reads : 0; left; left &= left - 1) {
        bool stream = DTP_LAYER_STREAM & left & -left;
        const struct dtp_layer_operator *fused = dtp_layer_tensors_fused_norm(&l->tensors, dtp_layer_first(left));
        if (fused && !l->tensor_bytes[input]) /* normed again, of what its own backward reads later */
            dtp_backward_consume(b, draft, dtp_layer_first(fused->reads), DTP_READ);
        else if (!stream)
            dtp_backward_consume(b, draft, dtp_layer_first(left), DTP_READ | DTP_FREE);
        else if (!l->tensor_bytes[input])
            dtp_backward_consume(b, draft, dtp_layer_first(left), DTP_READ);
    }
}

/* Where another branch still reads the gradient of the stream, or the matmul of a weight will, or it is what another
 * stage sent, the sum is a new tensor. */
static void add_to_gradient(const struct dtp_block_backward *b, struct dtp_draft *draft, bool shared)
{
    struct dtp_lowering *l = b->l;
    bool taken = l->flight->gradient.index == l->flight->taken.index;
    if (!shared && !taken && !dtp_backward_deferred(l, l->flight->gradient)) {
        dtp_draft_use(draft, l->flight->gradient, DTP_UPDATE);
        return;
    }
    dtp_draft_use(draft, l->flight->gradient, DTP_READ);
    l->flight->gradient =
        dtp_backward_workspace(l, draft, "residual gradient", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_WRITE);
}

static uint16_t norm_of(const struct dtp_block_backward *b)
{
    return (uint16_t)(DTP_DEFERRED_NORM | dtp_layer_first(dtp_backward_operator(b)->reads));
}

/* eager: input gradient 3 e h, weight gradient 2 e h, then the sum 3 e h; fused: c h and 3 e h. */
static void norm_before(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = dtp_backward_operator(b);
    double h = (double)l->between, e = (double)l->residual, c = (double)l->compute;
    dtp_buffer_id gradient = b->gradient[dtp_layer_first(op->makes)];
    if (!dtp_lower_casts_apart(&l->tensors, dtp_layer_first(op->makes)))
        gradient = widen(b, gradient);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, op->name);
    dtp_backward_workspace(l, &draft, "norm input gradient", l->tensor_bytes[DTP_TENSOR_INPUT], DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, gradient, dtp_lower_keeps_graph(l) ? DTP_READ : DTP_READ | DTP_FREE);
    consume_input(b, &draft, dtp_layer_first(op->reads));
    dtp_backward_consume(b, &draft, dtp_layer_first(op->statistics), DTP_READ | DTP_FREE);
    add_to_gradient(b, &draft, dtp_backward_shared(b, l->flight->gradient));
    double eager = l->plan->runtime->fused_norms || dtp_lower_keeps_graph(l) || l->adapts ? 6 : 8;
    if (dtp_lower_keeps_graph(l))
        l->flight->deferred[l->flight->deferred_count++] =
            (struct dtp_deferred_gradient){gradient, l->layer, norm_of(b)};
    bool chain = dtp_layer_tensors_chain(&l->tensors, op);
    struct dtp_norm_chain of = dtp_norm_chain_of(l->transformer, l->plan, !l->adapts);
    if (chain)
        dtp_backward_consume(b, &draft, dtp_layer_first(dtp_layer_wide_of(dtp_layer_first(op->makes))),
                             DTP_READ | DTP_FREE);
    double bytes = l->fused ? (c + 3 * e) * h : chain ? (of.backward + 3 * e) * h : eager * e * h;
    double elements = chain ? of.backward_elements : dtp_norm_elements(l->transformer, true);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, bytes), dtp_backward_per_token(l, elements * h),
                   l->fused ? 2
                   : chain  ? of.backward_kernels + 1
                            : 3);
    if (l->plan->runtime->fused_norms)
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    draft.op.demand.column_sums = dtp_norm_column_sums(l->transformer, l->plan);
    dtp_draft_end(l, &draft);
}

/* Of a branch's result, eager: input gradient 3 e h, weight gradient 2 e h, and a cast back; fused: one pass. */
static void norm_after(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_layer_operator *op = dtp_backward_operator(b);
    enum dtp_layer_tensor input = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    enum dtp_layer_tensor wide = dtp_layer_first(dtp_layer_wide_of(input));
    double h = (double)l->between, e = (double)l->residual, c = (double)l->compute;
    bool casts = l->tensor_bytes[wide];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, op->name);
    dtp_draft_use(&draft, b->gradient[result], DTP_READ);
    b->gradient[result] = DTP_NO_BUFFER;
    dtp_backward_workspace(l, &draft, "norm input gradient", casts ? l->tensor_bytes[wide] : 0, DTP_UPDATE | DTP_FREE);
    b->gradient[input] = dtp_backward_workspace(l, &draft, "branch gradient",
                                                dtp_backward_token_bytes(l, l->compute * l->between), DTP_WRITE);
    dtp_backward_consume(b, &draft, wide, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, input, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, dtp_layer_first(op->statistics), DTP_READ | DTP_FREE);
    double bytes = l->fused ? (e + 2 * c) * h : (l->adapts ? 3 : 5) * e * h + (casts ? (4 + c) * h : 0);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, bytes),
                   dtp_backward_per_token(l, dtp_norm_elements(l->transformer, true) * h), l->fused || !casts ? 2 : 3);
    draft.op.demand.column_sums = dtp_norm_column_sums(l->transformer, l->plan);
    dtp_draft_end(l, &draft);
}

static void norm(struct dtp_block_backward *b)
{
    if (dtp_backward_operator(b)->reads & DTP_LAYER_STREAM)
        norm_before(b);
    else
        norm_after(b);
}

/* What a matmul, or the cast before it, hands to the residual stream without a norm between. */
static void add_to_stream(struct dtp_block_backward *b, enum dtp_layer_tensor of)
{
    struct dtp_lowering *l = b->l;
    dtp_buffer_id gradient = widen(b, b->gradient[of]);
    b->gradient[of] = DTP_NO_BUFFER;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL_BACKWARD, "residual gradient");
    add_to_gradient(b, &draft, false);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    double read = (double)(l->fused ? l->compute : l->residual);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, (2 * (double)l->residual + read) * (double)l->between), 0, 1);
    dtp_draft_end(l, &draft);
}

/* ---- MLP --------------------------------------------------------------------------------------------------------- */

/* Of the product, which itself may be kept in fp8. */
static uint64_t gradient_bytes(const struct dtp_lowering *l, const struct dtp_layer_activation *at)
{
    return dtp_backward_token_bytes(l, dtp_lower_product_bytes(l, at->product));
}

/* Of those that stand at once. */
static uint64_t standing_bytes(const struct dtp_lowering *l, const struct dtp_layer_activation *at, uint64_t bytes)
{
    return dtp_backward_called_bytes(l, at->product == DTP_TENSOR_PRODUCT, bytes);
}

/* eager SwiGLU, first step: d silu and d up from the product's gradient (2 reads and 1 write each: 6 f). */
static dtp_buffer_id product(const struct dtp_block_backward *b, const struct dtp_layer_activation *at,
                             dtp_buffer_id gradient, dtp_buffer_id *silu_gradient)
{
    struct dtp_lowering *l = b->l;
    uint64_t f = gradient_bytes(l, at), made = standing_bytes(l, at, f);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "product");
    *silu_gradient = dtp_backward_workspace(l, &draft, "silu gradient", made, DTP_WRITE);
    dtp_buffer_id up_gradient = dtp_backward_workspace(l, &draft, "up gradient", made, DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, at->silu, DTP_READ | DTP_FREE);
    bool apart = l->tensor_bytes[at->gate];
    dtp_backward_consume(b, &draft, at->up, apart ? DTP_READ | DTP_FREE : DTP_READ);
    dtp_draft_pass(l, &draft, 6 * (double)f, apart ? 0 : (double)f / (double)l->compute, 2);
    dtp_draft_end(l, &draft);
    return up_gradient;
}

/* Second step: silu's gradient (3 f) and, where gate and up are one buffer, the cat (4 f). Clamped: gradients of gate
 * and sigmoid (6 f), through the sigmoid (3 f) and the multiple (2 f), their sum (3 f), through two clamps (6 f); gate
 * and up are every second column of one matmul's result, whose gradients are put into zeros (2 f written, f copied,
 * each) and added up (6 f). */
static void gated_eager(struct dtp_block_backward *b, const struct dtp_layer_activation *at, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    uint64_t f = standing_bytes(l, at, gradient_bytes(l, at));
    bool apart = l->tensor_bytes[at->gate];
    dtp_buffer_id silu_gradient, up_gradient = product(b, at, gradient, &silu_gradient);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "silu");
    dtp_buffer_id made = dtp_backward_workspace(l, &draft, apart ? "gate gradient" : "gate and up gradient",
                                                apart ? f : 2 * f, DTP_WRITE);
    dtp_draft_use(&draft, silu_gradient, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, apart ? at->gate : at->up, DTP_READ | DTP_FREE);
    if (!apart)
        dtp_draft_use(&draft, up_gradient, DTP_READ | DTP_FREE);
    double passes = l->tensors.kind.clamps ? 34 : apart ? 3 : 7;
    if (l->tensors.kind.clamps) /* one buffer's is the second that stands */
        dtp_backward_workspace(l, &draft, "gradients of halves", (apart ? 4 : 3) * f, DTP_UPDATE | DTP_FREE);
    double row = (double)gradient_bytes(l, at);
    dtp_draft_pass(l, &draft, passes * row, apart ? 0 : 2 * row / (double)l->compute,
                   l->tensors.kind.clamps ? 13
                   : apart                ? 1
                                          : 2);
    dtp_draft_end(l, &draft);
    b->gradient[at->gate] = apart ? made : DTP_NO_BUFFER;
    b->gradient[at->up] = apart ? up_gradient : made;
}

/* Everything else is one kernel: fused SwiGLU (5 f), GELU and ReLU (eager 3 f, fused 4 f). A compiler writes GELU's
 * input gradient over its result's. Eager squared ReLU: four (10 f), with what its square is derived from beside. */
static void in_one(struct dtp_block_backward *b, const struct dtp_layer_activation *at, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    double f = (double)gradient_bytes(l, at);
    uint64_t gate = standing_bytes(l, at, l->tensor_bytes[at->gate]),
             up = standing_bytes(l, at, l->tensor_bytes[at->up]);
    bool in_place = l->compiled && !l->gated, squares = l->tensors.kind.squares && !l->fused;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "");
    b->gradient[at->up] = gradient;
    if (in_place) {
        dtp_draft_use(&draft, gradient, DTP_UPDATE);
    } else if (l->tensors.kind.activates_in_place) {
        b->gradient[at->gate] = dtp_backward_take_over(b, &draft, at->gate);
        b->gradient[at->up] = dtp_backward_take_over(b, &draft, at->up);
        dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    } else {
        b->gradient[at->gate] = dtp_backward_workspace(l, &draft, "gate gradient", gate, DTP_WRITE);
        b->gradient[at->up] = dtp_backward_workspace(l, &draft, "up gradient", up, DTP_WRITE);
        dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    }
    dtp_backward_consume(b, &draft, at->gate, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, at->up, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, at->product, DTP_READ | DTP_FREE); /* ReLU reads its result */
    if (l->compiled)
        dtp_backward_workspace(l, &draft, "terms of adapters", dtp_backward_terms_bytes(l, at), DTP_UPDATE | DTP_FREE);
    if (squares)
        dtp_draft_new(l, &draft, "derivative of the square", DTP_OWNER_WORKSPACE,
                      standing_bytes(l, at, gradient_bytes(l, at)), DTP_UPDATE | DTP_FREE);
    bool within = dtp_lower_activates_within(l, at->product);
    double passes = within ? 0 : l->gated ? 5 : l->fused ? 4 : squares ? 10 : 3;
    dtp_draft_pass(l, &draft, passes * f, 0, within ? 0 : squares ? 4 : 1);
    dtp_draft_end(l, &draft);
}

/* Of a chain of operators, all of what it saved at the product's backward. */
static void chained(struct dtp_block_backward *b, const struct dtp_layer_activation *at, dtp_buffer_id gradient)
{
    struct dtp_lowering *l = b->l;
    const struct dtp_gelu_chain chain = dtp_gelu_chain_of(l->plan, l->tensors.kind.widens_gelu);
    const double f = (double)l->tensors.kind.ffn;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ACTIVATION_BACKWARD, "");
    b->gradient[at->up] = dtp_backward_workspace(l, &draft, "up gradient", l->tensor_bytes[at->up], DTP_WRITE);
    dtp_backward_workspace(l, &draft, "gradients of GELU",
                           dtp_backward_token_bytes(l, chain.backward_room * l->tensors.kind.ffn),
                           DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, at->silu, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, at->up, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, at->product, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, chain.backward * f),
                   dtp_backward_per_token(l, chain.backward_elements * f), chain.backward_kernels);
    dtp_draft_end(l, &draft);
}

static void activation(struct dtp_block_backward *b)
{
    struct dtp_layer_activation at = dtp_layer_activation(dtp_backward_operator(b)->makes);
    dtp_buffer_id gradient = b->gradient[at.product];
    b->gradient[at.product] = DTP_NO_BUFFER;
    if (b->l->tensors.kind.chains_gelu) {
        chained(b, &at, gradient);
        return;
    }
    bool weighed = b->l->tensors.kind.experts && b->l->tensors.kind.weighs_rows; /* in one fused kernel */
    /* A fused kernel makes silu again of the gate; clamped ones are operators where nothing compiles them. */
    bool in_kernel = b->l->compiled || weighed || (b->l->fused && !b->l->tensors.kind.clamps) ||
                     dtp_layer_activates_in_one(&b->l->tensors.kind, dtp_backward_operator(b)->makes);
    if (b->l->gated && !in_kernel)
        gated_eager(b, &at, gradient);
    else
        in_one(b, &at, gradient);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Flash kernels form QK^T again (5 matmuls for 2: 2.5 times the forward; three of the keys' width, two of the values')
 * and sum dq in fp32 (4 d_q); math attention has
 * gradients of probabilities and scores. */
static void whole_core(struct dtp_block_backward *b, struct dtp_draft *draft)
{
    struct dtp_lowering *l = b->l;
    bool math = l->plan->attention == DTP_ATTENTION_MATH;
    double s = dtp_transformer_layer_attention_length(l->transformer, dtp_lower_model_layer(l), l->plan->sequence);
    uint64_t q = dtp_backward_token_bytes(l, l->compute * l->d_q),
             kv = dtp_backward_token_bytes(l, l->compute * l->d_kv),
             v = dtp_backward_token_bytes(l, l->compute * l->d_v);
    double keys = (double)l->d_q, values = (double)(l->transformer->kv_latent ? l->d_v : l->d_q);
    dtp_lower_fp8_core(l, true);
    dtp_draft_begin(l, draft, DTP_OP_ATTENTION_BACKWARD, "");
    b->gradient[DTP_TENSOR_Q_RAW] = dtp_backward_workspace(l, draft, "q gradient", q, DTP_WRITE);
    b->gradient[DTP_TENSOR_K_RAW] = dtp_backward_workspace(l, draft, "k gradient", kv, DTP_WRITE);
    b->gradient[DTP_TENSOR_V] = dtp_backward_workspace(l, draft, "v gradient", v, DTP_WRITE);
    dtp_backward_workspace(l, draft, "attention workspace",
                           math ? dtp_plan_score_gradients(l->plan) * l->scores_bytes
                                : dtp_backward_token_bytes(l, 4 * l->d_q) + l->tensor_bytes[DTP_TENSOR_CORE_STATE],
                           DTP_UPDATE | DTP_FREE);
    /* a compiler reads the result's heads-side-by-side form and lays the gradient out by heads */
    enum dtp_layer_tensor result = l->tensor_bytes[DTP_TENSOR_CORE_COPY] ? DTP_TENSOR_CORE_COPY : DTP_TENSOR_CORE;
    dtp_draft_use(draft, b->gradient[result], DTP_READ | DTP_FREE);
    draft->op.demand.flops = dtp_backward_per_token(l, s * ((math ? 2 : 3) * keys + 2 * values));
    draft->op.demand.tokens = (double)l->tokens;
    draft->op.demand.kernels = 3;
}

static void core(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    static const enum dtp_layer_tensor inputs[] = {
        DTP_TENSOR_Q,    DTP_TENSOR_K,      DTP_TENSOR_V,      DTP_TENSOR_QKV,   DTP_TENSOR_CORE_STATE,
        DTP_TENSOR_CORE, DTP_TENSOR_KV_ALL, DTP_TENSOR_KV_RAW, DTP_TENSOR_Q_RAW, DTP_TENSOR_K_RAW};
    bool shared = l->plan->cp > 1;
    int count = (int)(sizeof inputs / sizeof *inputs) - (l->transformer->qk_norm ? 2 : 0);
    struct dtp_draft draft;
    if (shared) {
        struct dtp_context_inputs saved = {.count = 0};
        for (int i = 0; i < count; i++)
            if (b->module->alive & UINT64_C(1) << inputs[i])
                saved.buffer[saved.count++] = b->module->tensor[inputs[i]];
        dtp_lower_context_backward(b, &draft, &saved);
    } else {
        dtp_backward_sinks(b);
        dtp_backward_latent_pad(b);
        whole_core(b, &draft);
    }
    for (int i = 0; i < count; i++) {
        bool normed_later = inputs[i] == DTP_TENSOR_QKV && l->transformer->qk_norm;
        dtp_backward_consume(b, &draft, inputs[i], normed_later ? DTP_READ : DTP_READ | DTP_FREE);
    }
    dtp_draft_end(l, &draft);
    if (shared)
        dtp_lower_context_gradients(b);
}

/* RoPE's (and q and k norms') backward in place of dq and dk; eager chains hold up to 5 times one of them beside. */
static void rotary(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    if (dtp_lower_turns_apart(l)) { /* keys were turned last */
        dtp_backward_turn(b, DTP_TENSOR_K_RAW, l->d_kv);
        dtp_backward_turn(b, DTP_TENSOR_Q_RAW, l->d_q);
        return;
    }
    const struct dtp_transformer *t = l->transformer;
    dtp_backward_widen_heads(b);
    double width = (double)(l->d_q + l->d_kv), all = (double)(l->d_q + 2 * l->d_kv), c = (double)l->results;
    double rope = !l->rope ? 0 : l->fused ? 2 * c * all : (l->plan->rope_fp32 ? 52 : 10 * c) * width;
    const bool chained = dtp_plan_chains_qk_norms(t, l->plan);
    const struct dtp_norm_chain chain = dtp_norm_chain_of(l->transformer, l->plan, !l->adapts);
    double norms = chained ? chain.backward * width : t->qk_norm ? 2.5 * 2 * c * width : 0;
    uint64_t q = dtp_backward_token_bytes(l, l->results * l->d_q);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY_BACKWARD, "");
    dtp_lower_rotary_tensors(l, &draft, l->fused || !l->rope ? 0 : l->results == 4 ? 2 * q : 5 * q);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_UPDATE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_K_RAW], DTP_UPDATE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_QK_STATISTICS, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_Q_RAW, DTP_READ | DTP_FREE);
    dtp_backward_consume(b, &draft, DTP_TENSOR_K_RAW, DTP_READ | DTP_FREE);
    if (t->qk_norm)
        dtp_backward_consume(b, &draft, DTP_TENSOR_QKV, DTP_READ | DTP_FREE);
    uint32_t kernels = (l->fused || !l->rope ? 1
                        : l->plan->rope_fp32 ? 24
                                             : 12) +
                       (chained ? 2 * chain.backward_kernels : 0);
    double elements = dtp_plan_turned_elements(t, l->plan) + (chained ? chain.backward_elements : 0);
    dtp_draft_pass(l, &draft, dtp_backward_per_token(l, rope + norms), dtp_backward_per_token(l, elements * width),
                   kernels);
    if (dtp_lower_rotates_rows(l))
        draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    if (dtp_plan_turns_eagerly(l->plan, &l->tensors.kind)) {
        double bytes = DTP_EAGER_TURN_PASSES_BACK * c * width + 2 * c * all + norms;
        dtp_draft_memory(l, &draft, dtp_backward_per_token(l, bytes), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_EAGER;
        dtp_draft_loop(&draft, DTP_EAGER_TURN_KERNELS_BACK, 2);
    }
    dtp_draft_end(l, &draft);
}

/* Gradient of the fused q, k, v as one tensor: read and written whole, except where a compiler's RoPE kernel writes it.
 */
static void join(struct dtp_block_backward *b)
{
    struct dtp_lowering *l = b->l;
    double bytes = (double)l->tensor_bytes[DTP_TENSOR_QKV];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "qkv gradient");
    b->gradient[DTP_TENSOR_QKV] =
        dtp_backward_workspace(l, &draft, "qkv gradient", l->tensor_bytes[DTP_TENSOR_QKV], DTP_WRITE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_Q_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_K_RAW], DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, b->gradient[DTP_TENSOR_V], DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, l->fused ? 0 : 2 * bytes, 0, 1);
    dtp_draft_end(l, &draft);
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

/* Gradients of norms and biases, which are small, appear as one buffer at the block's end. */
static void vectors(struct dtp_lowering *l)
{
    int part = l->matrices;
    if (!l->block.trained[part])
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM_BACKWARD, "vector gradients");
    dtp_lower_gradient_result(l, &draft, part, l->compute);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    const struct dtp_layer_kind *k = &l->tensors.kind;
#define DTP_VECTOR(suffix, width, bias, exists)                                                                        \
    if (dtp_layer_spread_vectors(k) & UINT32_C(1) << DTP_VECTOR_##suffix)                                              \
        dtp_lower_sum_norm_gradient(l, part, width);
#include "net/layer_kind.def"
    dtp_lower_gradient_made(l, part);
}

static void run(struct dtp_block_backward *b)
{
    dtp_lower_at_operator(b->l, b->index);
    switch (dtp_backward_operator(b)->kind) {
    case DTP_LAYER_OP_NORM: norm(b); break;
    case DTP_LAYER_OP_PROJECTION:
        if (dtp_backward_operator(b)->makes & DTP_TENSOR_BIT(QKV))
            join(b);
        if (dtp_backward_operator(b)->makes & DTP_TENSOR_BIT(EXPERT_DOWN))
            dtp_lower_around_experts(b->l, b->l->hooks->before_experts, true);
        dtp_backward_projection(b);
        if (dtp_backward_operator(b)->reads & DTP_TENSOR_BIT(PERMUTED))
            dtp_lower_around_experts(b->l, b->l->hooks->after_experts, true);
        if (dtp_backward_operator(b)->reads & DTP_LAYER_STREAM && dtp_lower_wants_gradient(b->l, b->index))
            add_to_stream(b, dtp_layer_first(dtp_backward_operator(b)->reads));
        break;
    case DTP_LAYER_OP_CAST: add_to_stream(b, dtp_layer_first(dtp_backward_operator(b)->makes)); break;
    case DTP_LAYER_OP_ROTARY: rotary(b); break;
    case DTP_LAYER_OP_ATTENTION: core(b); break;
    case DTP_LAYER_OP_LATENT_NORM: dtp_backward_latent_norm(b); break;
    case DTP_LAYER_OP_LATENT_HEADS: dtp_backward_latent_heads(b); break;
    case DTP_LAYER_OP_ACTIVATION: activation(b); break;
    case DTP_LAYER_OP_ROUTER: dtp_backward_router(b); break;
    case DTP_LAYER_OP_PERMUTE: dtp_backward_permute(b); break;
    case DTP_LAYER_OP_UNPERMUTE: dtp_backward_unpermute(b); break;
    case DTP_LAYER_OP_RESIDUAL: branch(b); break;
    }
}

static bool beside(const struct dtp_block_backward *b, enum dtp_exchange exchange)
{
    return dtp_plan_works_beside(b->l->plan, &b->l->tensors.kind, dtp_backward_operator(b)->makes, exchange);
}

void dtp_backward_beside_exchange(struct dtp_block_backward *b, enum dtp_exchange exchange)
{
    dtp_op_id exchanged = b->l->awaited;
    int at = b->index;
    b->l->awaited = DTP_NO_OP;
    for (b->index = b->l->tensors.operators - 1; b->index >= 0; b->index--)
        if (beside(b, exchange))
            run(b);
    b->index = at;
    b->l->awaited = exchanged;
}

int dtp_lower_ready_order(const struct dtp_lowering *l, uint64_t layer, int order[DTP_MAX_PARTS])
{
    const struct dtp_layer_tensors *tensors = &l->kind[dtp_lower_mlp(l, layer)].tensors;
    const struct dtp_lower_module *module = dtp_lower_module_at(l, layer);
    int count = 0;
    for (int index = tensors->operators - 1; index >= 0; index--)
        for (int turn = 0; turn < tensors->kind.matrices && tensors->op[index].kind == DTP_LAYER_OP_PROJECTION;
             turn++) {
            bool last_first = dtp_lower_casts_apart(tensors, dtp_layer_first(tensors->op[index].reads));
            int part = last_first ? tensors->kind.matrices - 1 - turn : turn;
            if (tensors->op[index].makes & UINT64_C(1) << tensors->kind.matrix[part].result)
                order[count++] = module->adapter[part] ? module->adapter[part] : part;
        }
    order[count++] = tensors->kind.matrices; /* vectors */
    return count;
}

static void replay(struct dtp_lowering *l)
{
    dtp_lower_block_recompute(l);
    if (l->hooks->after_replay)
        l->hooks->after_replay(l);
}

void dtp_lower_block_backward(struct dtp_lowering *l)
{
    struct dtp_block_backward b = {.l = l, .module = dtp_lower_flight_module(l)};
    for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
        b.gradient[tensor] = DTP_NO_BUFFER;
    for (int i = 0; i < l->matrices && l->pass->kind == DTP_PASS_BACKWARD; i++)
        b.kept_for_weights |= UINT64_C(1) << l->tensors.input[i];
    if (dtp_lower_keeps_graph(l))
        b.kept_for_weights = UINT64_MAX;
    int last = l->tensors.operators - 1;
    if (dtp_lower_checkpointed(l, l->layer) && l->tensors.kept != l->tensors.saved) {
        /* whoever first reads what was not kept replays the block: a matmul, behind the cast of what it is given */
        if (dtp_lower_casts_apart(&l->tensors, DTP_TENSOR_NORM1)) {
            b.index = last--;
            run(&b);
        }
        replay(l);
    }
    for (b.index = last; b.index >= 0; b.index--)
        if (!beside(&b, DTP_EXCHANGE_DISPATCH) && !beside(&b, DTP_EXCHANGE_COMBINE) &&
            (!dtp_lower_cut(l) || dtp_layer_tensors_first_runs(&l->tensors, b.index)))
            run(&b);
    dtp_lower_behind_operators(l);
    dtp_backward_end_frozen(&b);
    vectors(l);
    if (l->flight->replayed.index == DTP_NO_INDEX)
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "replayed block");
    dtp_draft_use(&draft, l->flight->replayed, DTP_FREE);
    l->flight->replayed = DTP_NO_BUFFER;
    dtp_draft_end(l, &draft);
}
