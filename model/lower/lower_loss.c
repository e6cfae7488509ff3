/* clang-format off */
/* The model's head: final norm, logits, cross entropy, and their backward.
 *
 * c bytes a logit, V a token:
 *   eager        logits c, fp32 copy 4, log-softmax 4 (10 V at c = 2); backward: its saved result 4, the gradients of
 *                nll and of log-softmax 4 each (12 V), then the cast c
 *   in place     logits c, fp32 copy 4, of which the differences to the maximum are a tensor of 4 that becomes
 *                probabilities and, in backward, the gradient; then the cast c. Where a runtime subtracts in place
 *                the copy becomes all of these, and who called holds the logits meanwhile
 *   shifted      (dtp_plan_shifts_logits) logits c, fp32 copy 4, that without the last token 4, log-softmax 4 (14 V);
 *                backward besides: 4 for the gradient of the copy, then the cast. One kernel in place of log-softmax
 *                writes the gradient over what it read: c + 8
 *   fused        logits c, their gradient c
 *   parallel     (lower_parallel_loss.c) compiled on tensor parallel ranks: log-softmax 4, made beside logits of 4;
 *                backward: the gradient c
 *   soft-capped  logits besides: the tanh that backward reads, c
 *   chunked      the same for an eighth of the tokens at a time, backward at once; the hidden states' gradient in
 *                fp32 */
/* clang-format on */
#include "lower/lower_fp8.h"
#include "lower/lower_parallel_loss.h"

#include "base/bytes.h"

#define LOSS_CHUNKS 8 /* torchtitan's ChunkedLossWrapper */

static uint64_t tokens_bytes(uint64_t tokens, uint64_t bytes_per_token)
{
    return dtp_bytes_product(tokens, bytes_per_token);
}

static int head_part(const struct dtp_lowering *l)
{
    return l->transformer->tied_head ? DTP_ROOT_EMBEDDING : DTP_ROOT_HEAD;
}

static dtp_buffer_id head_weight(struct dtp_lowering *l)
{
    return dtp_lower_weight(l, head_part(l));
}

/* ---- whole ------------------------------------------------------------------------------------------------------- */

/* logits / cap, tanh, times cap: three kernels of which backward reads tanh's result. */
static void cap_logits(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "soft cap");
    dtp_draft_use(&draft, l->flight->logits, DTP_UPDATE);
    l->flight->capped = dtp_draft_new(l, &draft, "tanh of logits", DTP_OWNER_LOGITS,
                                      tokens_bytes(tokens, l->compute * vocab), DTP_WRITE);
    dtp_draft_memory(l, &draft, 6 * (double)tokens * (double)vocab * (double)l->compute, 3);
    dtp_draft_end(l, &draft);
}

/* Each of the three makes a tensor of its own. */
static void cap_backward(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t narrow = tokens_bytes(tokens, l->compute * l->transformer->vocab);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "soft cap");
    dtp_draft_new(l, &draft, "capped gradient", DTP_OWNER_LOGITS, narrow, DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, l->flight->logits_gradient, DTP_UPDATE);
    dtp_draft_use(&draft, l->flight->capped, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, 7 * (double)narrow, 3);
    dtp_draft_end(l, &draft);
}

/* Of the bytes that a pass of the loss moves, what was read for the rows' maxima before. */
static double read_before(const struct dtp_lowering *l, uint64_t tokens)
{
    return l->vocab_ranks == 1 ? 0 : (double)tokens * (double)l->transformer->vocab * (double)l->compute;
}

/* nanotron's sharded cross entropy (parallel/tensor_parallel/functional.py): logits.float() is the model's, the rest
 * the loss'; c + 4, then maximum 4, difference 4 + 4, exponential 4 + 4, sum 4, quotient 4 + 4. All are long rows
 * without views. */
static void loss_in_place(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab, wide = tokens_bytes(tokens, 4 * vocab);
    double logits = (double)tokens * (double)vocab;
    bool subtracts = l->plan->runtime->subtracts_in_place;
    dtp_buffer_id rows = dtp_lower_reduce_rows(l, tokens);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "logits in fp32");
    dtp_buffer_id copy =
        dtp_draft_new(l, &draft, subtracts ? "probabilities" : "logits in fp32", DTP_OWNER_LOGITS, wide, DTP_WRITE);
    dtp_draft_use(&draft, l->flight->logits, subtracts ? DTP_READ : DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, logits * (double)(l->compute + 4), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "");
    if (subtracts) {
        l->flight->loss_state = copy;
        dtp_draft_use(&draft, copy, DTP_UPDATE);
        dtp_draft_use(&draft, l->flight->logits, DTP_FREE);
    } else {
        l->flight->loss_state = dtp_draft_new(l, &draft, "probabilities", DTP_OWNER_LOGITS, wide, DTP_WRITE);
        dtp_draft_use(&draft, copy, DTP_READ | DTP_FREE);
    }
    l->flight->logits = DTP_NO_BUFFER;
    dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
    dtp_draft_memory(l, &draft, logits * 32 - read_before(l, tokens), 12);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

/* Megatron-Core's own fusion (fusions/fused_cross_entropy.py), three functions forward and one backward that PyTorch
 * compiles: logits to fp32 and their maximum c + 4, exponentials in their place and sums 8, quotients 8, while who
 * called holds the logits. */
static void native_loss(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab;
    double logits = (double)tokens * (double)vocab;
    dtp_buffer_id rows = dtp_lower_reduce_rows(l, tokens);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "logits in fp32");
    l->flight->loss_state =
        dtp_draft_new(l, &draft, "probabilities", DTP_OWNER_LOGITS, tokens_bytes(tokens, 4 * vocab), DTP_WRITE);
    dtp_draft_use(&draft, l->flight->logits, DTP_READ);
    dtp_draft_memory(l, &draft, logits * (double)(l->compute + 4) - read_before(l, tokens), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "");
    dtp_draft_use(&draft, l->flight->loss_state, DTP_UPDATE);
    dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, l->flight->logits, DTP_FREE);
    dtp_draft_memory(l, &draft, logits * 16, 3);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    l->flight->logits = DTP_NO_BUFFER;
}

/* Backward takes one off at each target, by an index into a view of the probabilities. A compiler makes the result of
 * such an index anew unless it is itself what becomes of the view's base, which here is its product with the loss'
 * gradient: a copy 4 + 4; then read 4, and written in fp32 4 and cast c. That it copies is read from the compiler's
 * source (torch/_inductor/fx_passes/reinplace.py), and so measured (reports/h200/megatron_runs.md). */
static void native_gradient(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab, c = l->compute;
    double logits = (double)tokens * (double)vocab;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "targets");
    dtp_buffer_id copy = dtp_draft_new(l, &draft, "probabilities less targets", DTP_OWNER_LOGITS,
                                       tokens_bytes(tokens, 4 * vocab), DTP_WRITE);
    dtp_draft_use(&draft, l->flight->loss_state, DTP_READ);
    dtp_draft_memory(l, &draft, logits * 8, 2);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "");
    l->flight->logits_gradient =
        dtp_draft_new(l, &draft, "logits gradient", DTP_OWNER_LOGITS, tokens_bytes(tokens, c * vocab), DTP_WRITE);
    dtp_draft_use(&draft, copy, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, l->flight->loss_state, DTP_UPDATE | DTP_FREE);
    dtp_draft_memory(l, &draft, logits * (double)(8 + c), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
}

/* The compiler and the chunks keep nothing of the loss's forward but its logits; eager keeps log-softmax. */
static void loss_forward(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab;
    bool shifts = dtp_plan_shifts_logits(l->plan);
    if (dtp_lower_compiled_in_parallel(l)) {
        dtp_lower_parallel_loss(l, tokens);
        return;
    }
    if (l->loss == DTP_LOSS_FUSED && !shifts)
        return;
    if (l->transformer->final_softcap > 0)
        cap_logits(l, tokens);
    if (shifts) {
        dtp_lower_shifted_loss(l, tokens, !l->root.trained[head_part(l)]);
        return;
    }
    if (l->plan->loss == DTP_LOSS_NATIVE) {
        native_loss(l, tokens);
        return;
    }
    if (dtp_plan_softmax_in_place(l->plan)) {
        loss_in_place(l, tokens);
        return;
    }
    dtp_buffer_id rows = dtp_lower_reduce_rows(l, tokens);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS, "");
    dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
    dtp_draft_new(l, &draft, "logits in fp32", DTP_OWNER_LOGITS, l->compute == 4 ? 0 : tokens_bytes(tokens, 4 * vocab),
                  DTP_UPDATE | DTP_FREE);
    dtp_draft_use(&draft, l->flight->logits, dtp_lower_last_of_logits(l));
    l->flight->loss_state =
        dtp_draft_new(l, &draft, "log-softmax", DTP_OWNER_LOGITS, tokens_bytes(tokens, 4 * vocab), DTP_WRITE);
    if (!dtp_lower_holds(l))
        l->flight->logits = DTP_NO_BUFFER;
    /* logits.float(): c + 4; log-softmax 4 + 4 */
    double bytes = (double)tokens * (double)vocab * (double)(l->compute + 12);
    dtp_draft_pass(l, &draft, bytes - read_before(l, tokens),
                   (l->compute == 4 ? 1 : 2) * (double)tokens * (double)vocab, 3);
    dtp_draft_end(l, &draft);
}

/* Where each rank has rows of what the head reads, all of them are gathered: kept for backward, or for this matmul. */
static void gather_head_input(struct dtp_lowering *l)
{
    bool again = l->plan->runtime->gathers_again;
    struct dtp_draft draft;
    if (!dtp_lower_spreads(l))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, "final norm");
    dtp_draft_use(&draft, l->flight->final_norm, again ? DTP_READ : DTP_READ | DTP_FREE);
    dtp_buffer_id gathered = dtp_lower_gather_rows(l, &draft, again ? DTP_OWNER_WORKSPACE : DTP_OWNER_ACTIVATIONS,
                                                   dtp_lower_whole_stream(l, l->compute), NULL);
    *(again ? &l->gathered : &l->flight->final_norm) = gathered;
}

static void use_head_input(struct dtp_lowering *l, struct dtp_draft *draft)
{
    bool gathered = l->gathered.index != DTP_NO_INDEX;
    dtp_draft_use(draft, gathered ? l->gathered : l->flight->final_norm, gathered ? DTP_READ | DTP_FREE : DTP_READ);
    l->gathered = DTP_NO_BUFFER;
}

static void head_matmul(struct dtp_lowering *l, uint64_t tokens)
{
    const struct dtp_transformer *t = l->transformer;
    dtp_buffer_id weight = head_weight(l);
    struct dtp_draft draft;
    gather_head_input(l);
    dtp_lower_fp8_head(l, DTP_FP8_INPUT, tokens,
                       l->gathered.index != DTP_NO_INDEX ? l->gathered : l->flight->final_norm);
    dtp_lower_fp8_head(l, DTP_FP8_WEIGHT, tokens, weight);
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "head");
    if (dtp_lower_casts_at_head(l)) {
        dtp_draft_use(&draft, l->flight->final_wide, DTP_READ);
        l->flight->final_norm = dtp_draft_new(l, &draft, "final norm", DTP_OWNER_ACTIVATIONS,
                                              tokens_bytes(l->tokens, l->compute * l->between), DTP_WRITE);
    } else {
        use_head_input(l, &draft);
    }
    dtp_draft_use(&draft, weight, DTP_READ);
    bool held = l->loss == DTP_LOSS_CHUNKED || dtp_plan_shifts_logits(l->plan);
    if (!held && !l->root.trained[head_part(l)]) { /* no gradient of the head reads it */
        dtp_draft_use(&draft, l->flight->final_norm, DTP_FREE);
        l->flight->final_norm = DTP_NO_BUFFER;
    }
    l->flight->logits =
        dtp_draft_new(l, &draft, "logits", DTP_OWNER_LOGITS, tokens_bytes(tokens, l->compute * t->vocab), DTP_WRITE);
    dtp_draft_use(&draft, l->flight->final_wide, DTP_FREE);
    l->flight->final_wide = DTP_NO_BUFFER;
    dtp_draft_matmul(l, &draft, tokens, dtp_plan_head_columns(l->plan, t->vocab), t->hidden, true);
    dtp_draft_end(l, &draft);
}

static void narrow_gradient(struct dtp_lowering *l, uint64_t tokens, dtp_buffer_id gradient)
{
    double logits = (double)tokens * (double)l->transformer->vocab, c = (double)l->compute;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "logits gradient");
    l->flight->logits_gradient = dtp_draft_new(l, &draft, "logits gradient", DTP_OWNER_LOGITS,
                                               tokens_bytes(tokens, l->compute * l->transformer->vocab), DTP_WRITE);
    dtp_draft_use(&draft, gradient, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, logits * (4 + c), 0, 1);
    dtp_draft_end(l, &draft);
}

/* The probabilities less one at the target, times the loss' gradient: 4 + 4. */
static void gradient_in_place(struct dtp_lowering *l, uint64_t tokens)
{
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "");
    dtp_draft_use(&draft, l->flight->loss_state, DTP_UPDATE);
    dtp_draft_memory(l, &draft, (double)tokens * (double)l->transformer->vocab * 8, 6);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, &draft);
    narrow_gradient(l, tokens, l->flight->loss_state);
}

/* Gradient of the logits that the loss read, in the compute dtype. */
static void logits_gradient(struct dtp_lowering *l, uint64_t tokens)
{
    uint64_t vocab = l->transformer->vocab, wide = tokens_bytes(tokens, 4 * vocab);
    uint64_t narrow = tokens_bytes(tokens, l->compute * vocab);
    double logits = (double)tokens * (double)vocab, c = (double)l->compute;
    bool casts = l->compute != 4;
    if (dtp_lower_compiled_in_parallel(l)) {
        dtp_lower_parallel_gradient(l, tokens);
        return;
    }
    dtp_buffer_id rows = l->loss == DTP_LOSS_FUSED ? dtp_lower_reduce_rows(l, tokens) : DTP_NO_BUFFER;
    struct dtp_draft draft;
    if (l->plan->loss == DTP_LOSS_NATIVE) {
        native_gradient(l, tokens);
        return;
    }
    if (dtp_plan_softmax_in_place(l->plan)) {
        gradient_in_place(l, tokens);
        return;
    }
    if (dtp_plan_shifts_logits(l->plan)) {
        dtp_lower_shifted_gradient(l, tokens);
        if (l->compute != 4 && !l->plan->narrow_logits)
            narrow_gradient(l, tokens, l->flight->logits_gradient);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_LOSS_BACKWARD, "");
    if (l->loss == DTP_LOSS_FUSED) {
        l->flight->logits_gradient = dtp_draft_new(l, &draft, "logits gradient", DTP_OWNER_LOGITS, narrow, DTP_WRITE);
        dtp_draft_use(&draft, l->flight->logits, dtp_lower_last_of_logits(l));
        dtp_draft_use(&draft, rows, DTP_READ | DTP_FREE);
        dtp_draft_memory(l, &draft, logits * dtp_plan_fused_loss_passes(l->plan) * c - read_before(l, tokens), 2);
        dtp_draft_end(l, &draft);
        return;
    }
    if (dtp_lower_parallel_in_python(l)) {
        dtp_lower_parallel_python_gradient(l, logits, wide);
        narrow_gradient(l, tokens, l->flight->logits_gradient);
        return;
    }
    dtp_draft_new(l, &draft, "nll gradient", DTP_OWNER_LOGITS, wide, DTP_UPDATE | DTP_FREE);
    dtp_buffer_id gradient = dtp_draft_new(l, &draft, casts ? "logits gradient in fp32" : "logits gradient",
                                           DTP_OWNER_LOGITS, wide, DTP_WRITE);
    dtp_draft_use(&draft, l->flight->loss_state, DTP_READ | DTP_FREE);
    dtp_draft_pass(l, &draft, logits * 16, logits, 2); /* zeros 4, of log-softmax 4 + 4 + 4 */
    dtp_draft_end(l, &draft);
    l->flight->logits_gradient = gradient;
    if (casts)
        narrow_gradient(l, tokens, gradient);
}

static void loss_backward(struct dtp_lowering *l, uint64_t tokens)
{
    logits_gradient(l, tokens);
    if (l->transformer->final_softcap > 0 && l->loss != DTP_LOSS_FUSED)
        cap_backward(l, tokens);
}

/* ---- backward of the head ---------------------------------------------------------------------------------------- */

/* What the head read, behind the last matmul that does: a module that predicts further ahead reads it too. */
static void drop_head_input(struct dtp_lowering *l, struct dtp_draft *draft)
{
    if (!l->chunk->ahead_layers || l->flight->ahead.at_hand)
        dtp_draft_use(draft, l->flight->final_norm, DTP_FREE);
}

/* `last`: no other matmul of the head's backward reads what it reads. */
static void head_weight_gradient(struct dtp_lowering *l, uint64_t tokens, bool first, bool last)
{
    const struct dtp_transformer *t = l->transformer;
    struct dtp_module_state *root = dtp_lower_state(l);
    struct dtp_draft draft;
    if (!l->root.trained[head_part(l)])
        return;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "head weight gradient");
    dtp_draft_use(&draft, l->flight->logits_gradient, last ? DTP_READ | DTP_FREE : DTP_READ);
    use_head_input(l, &draft);
    if (last)
        drop_head_input(l, &draft);
    dtp_buffer_id before = root->gradient[head_part(l)];
    if (first)
        dtp_lower_gradient_result(l, &draft, head_part(l), l->compute);
    else
        dtp_draft_use(
            &draft, root->gradient_buffer.index == DTP_NO_INDEX ? root->gradient[head_part(l)] : root->gradient_buffer,
            DTP_UPDATE);
    dtp_draft_matmul(l, &draft, dtp_plan_head_columns(l->plan, t->vocab), t->hidden, tokens, true);
    dtp_draft_end(l, &draft);
    if (first)
        dtp_lower_add_gradient(l, head_part(l), before);
}

/* Gradient of the final norm's result; `into` is the fp32 sum of a chunked loss. */
static dtp_buffer_id head_input_gradient(struct dtp_lowering *l, uint64_t tokens, dtp_buffer_id into, bool last)
{
    const struct dtp_transformer *t = l->transformer;
    struct dtp_module_state *root = dtp_lower_state(l);
    bool whole = into.index == DTP_NO_INDEX;
    dtp_buffer_id weight = head_weight(l);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, "head input gradient");
    bool cast_goes = (l->autocast || dtp_plan_widens_ends(l->plan)) && whole && !dtp_lower_casts_stay(l);
    dtp_draft_use(&draft, weight, cast_goes ? DTP_READ | DTP_FREE : DTP_READ);
    if (whole)
        into =
            dtp_draft_new(l, &draft, "final norm gradient", DTP_OWNER_WORKSPACE,
                          tokens_bytes(tokens, l->compute * (l->vocab_ranks > 1 ? t->hidden : l->between)), DTP_WRITE);
    else
        dtp_draft_use(&draft, into, DTP_UPDATE);
    dtp_draft_use(&draft, l->flight->logits_gradient, last ? DTP_READ | DTP_FREE : DTP_READ);
    if (whole && last)
        drop_head_input(l, &draft);
    if (cast_goes)
        root->weight[head_part(l)] = DTP_NO_BUFFER;
    dtp_draft_matmul(l, &draft, tokens, t->hidden, dtp_plan_head_columns(l->plan, t->vocab), true);
    dtp_draft_end(l, &draft);
    return into;
}

/* As in a layer (lower_backward.c): tensor parallel ranks' input gradients are terms of a sum, which may be formed
 * beside the weight gradient's matmul. */
static dtp_buffer_id gradients_beside(struct dtp_lowering *l)
{
    struct dtp_draft draft;
    dtp_op_id gathered = DTP_NO_OP;
    const bool trained = l->root.trained[head_part(l)];
    if (dtp_lower_spreads(l) && l->plan->runtime->gathers_again && trained) {
        gather_head_input(l);
        gathered = l->awaited;
        l->awaited = DTP_NO_OP;
    }
    dtp_buffer_id terms = head_input_gradient(l, l->tokens, DTP_NO_BUFFER, !trained);
    dtp_buffer_id sum = dtp_lower_sum_of_rows(l, "head", terms, DTP_READ, l->transformer->hidden);
    dtp_op_id summed = l->awaited;
    l->awaited = gathered;
    head_weight_gradient(l, l->tokens, true, true);
    l->awaited = summed;
    if (sum.index == terms.index)
        return sum;
    dtp_draft_begin(l, &draft, DTP_OP_FREE, "terms of a sum");
    dtp_draft_use(&draft, terms, DTP_FREE | dtp_lower_held_terms(l));
    dtp_draft_end(l, &draft);
    return sum;
}

dtp_buffer_id dtp_lower_head_gradients(struct dtp_lowering *l)
{
    dtp_lower_fp8_head(l, DTP_FP8_GRADIENT_ROWS, l->tokens, l->flight->logits_gradient);
    if (dtp_lower_keeps_graph(l)) {
        l->flight->head_deferred = true;
        dtp_buffer_id terms = head_input_gradient(l, l->tokens, DTP_NO_BUFFER, false);
        return l->vocab_ranks == 1
                   ? terms
                   : dtp_lower_sum_of_rows(l, "head", terms, DTP_READ | DTP_FREE, l->transformer->hidden);
    }
    if (l->vocab_ranks > 1 && l->plan->runtime->sums_beside)
        return gradients_beside(l);
    head_weight_gradient(l, l->tokens, true, false);
    dtp_buffer_id gradient = head_input_gradient(l, l->tokens, DTP_NO_BUFFER, true);
    return l->vocab_ranks == 1
               ? gradient
               : dtp_lower_sum_of_rows(l, "head", gradient, DTP_READ | DTP_FREE, l->transformer->hidden);
}

void dtp_lower_head_backward(struct dtp_lowering *l)
{
    dtp_buffer_id gradient = l->flight->gradient;
    if (l->loss != DTP_LOSS_CHUNKED) {
        gradient = dtp_lower_head_gradients(l);
    } else {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "");
        dtp_draft_use(&draft, l->flight->final_norm, DTP_FREE);
        if (l->autocast) {
            dtp_draft_use(&draft, dtp_lower_state(l)->weight[head_part(l)], DTP_FREE);
            dtp_lower_state(l)->weight[head_part(l)] = DTP_NO_BUFFER;
        }
        dtp_draft_end(l, &draft);
    }
    dtp_lower_unfetch(l);
    if (l->transformer->tied_head && l->autocast)
        dtp_lower_cast_gradient(l, DTP_ROOT_EMBEDDING);
    if (!l->flight->head_deferred &&
        (!l->transformer->tied_head || !l->chunk->embedding)) /* else that of the embedding is added to it first */
        dtp_lower_gradient_made(l, head_part(l));
    if (l->chunk->ahead_layers)
        gradient = dtp_lower_ahead_backward(l, gradient);
    dtp_lower_final_norm_backward(l, gradient);
}

void dtp_lower_head_deferred(struct dtp_lowering *l)
{
    head_weight_gradient(l, l->tokens, true, false);
    dtp_lower_gradient_made(l, head_part(l));
    l->flight->head_deferred = false;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* Head, loss and their backward for one chunk of the tokens after another. */
static void chunked(struct dtp_lowering *l)
{
    uint64_t chunk = dtp_divide_up(l->tokens, LOSS_CHUNKS), hidden = 4 * l->between;
    dtp_buffer_id gradient = dtp_lower_buffer(l, "final norm gradient", DTP_OWNER_LOGITS, DTP_STREAM_COMPUTE,
                                              tokens_bytes(l->tokens, hidden), false);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, "zero the hidden gradient");
    dtp_draft_use(&draft, gradient, DTP_ALLOC | DTP_WRITE);
    dtp_draft_memory(l, &draft, 0, 1);
    dtp_draft_end(l, &draft);
    for (uint64_t done = 0; done < l->tokens; done += chunk) {
        uint64_t tokens = l->tokens - done < chunk ? l->tokens - done : chunk;
        head_matmul(l, tokens);
        loss_forward(l, tokens);
        loss_backward(l, tokens);
        head_weight_gradient(l, tokens, done == 0, false);
        head_input_gradient(l, tokens, gradient, true);
    }
    l->flight->gradient = gradient;
}

void dtp_lower_loss_forward(struct dtp_lowering *l)
{
    if (l->loss == DTP_LOSS_CHUNKED) {
        chunked(l);
        return;
    }
    head_matmul(l, l->tokens);
    if (dtp_lower_gathers_logits(l))
        dtp_lower_gather_logits(l);
}

/* A part of the loss, over all columns where the rank has gathered these. */
static void over_columns(struct dtp_lowering *l, void (*part)(struct dtp_lowering *l, uint64_t tokens))
{
    const struct dtp_transformer *slice = l->transformer;
    const uint32_t ranks = l->vocab_ranks;
    struct dtp_transformer whole = *slice;
    whole.vocab = dtp_plan_loss_columns(l->plan, slice->vocab);
    if (dtp_lower_gathers_logits(l))
        l->transformer = &whole, l->vocab_ranks = 1;
    part(l, l->tokens);
    l->transformer = slice, l->vocab_ranks = ranks;
}

void dtp_lower_loss_held(struct dtp_lowering *l)
{
    loss_forward(l, l->tokens);
}

/* Eager loss's forward comes after the model's, when whatever the model's end released is gone. */
void dtp_lower_loss_backward(struct dtp_lowering *l)
{
    if (l->loss == DTP_LOSS_CHUNKED)
        return;
    if (!dtp_lower_holds(l))
        over_columns(l, loss_forward);
    over_columns(l, loss_backward);
    if (dtp_lower_gathers_logits(l))
        dtp_lower_cut_logits_gradient(l);
}

void dtp_lower_loss_gradient(struct dtp_lowering *l)
{
    loss_backward(l, l->tokens);
}
