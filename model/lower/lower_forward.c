/* Forward of a block, and its replay in backward.
 *
 * One pass serves three cases, which differ in the tensors that survive it: a block that keeps what autograd saves, a
 * checkpointed one that keeps some, and the replay that makes the missing ones again. A step is emitted when one of its
 * results does not exist yet. Bytes of memory-bound steps are reads and writes per token, kernel by kernel for eager
 * PyTorch, one pass between matmuls where they are fused (compared with block_work.c by the tests). */
#include "lower/lower_graphs.h"
#include "lower/lower_eager.h"
#include "lower/lower_context.h"
#include "lower/lower_fp8.h"

#include "base/bytes.h"
#include "plan/norm_chain.h"
#include "plan/second_matmuls.h"

/* ---- norms and residual sums ------------------------------------------------------------------------------------- */

static const struct dtp_layer_operator *operator_at(const struct pass *pass, int index)
{
    return &pass->l->tensors.op[index];
}

/* Terms of a sum: the residual stream stays for the function's caller, the results of branches go where the sum itself
 * stands from now on. */
static void read_terms(const struct pass *pass, struct dtp_draft *draft, uint64_t terms, bool last)
{
    for (uint64_t left = terms; left; left &= left - 1) {
        enum dtp_layer_tensor term = dtp_layer_first(left);
        bool stream = DTP_LAYER_STREAM & UINT64_C(1) << term;
        const struct dtp_layer_operator *sum = stream ? dtp_layer_tensors_sum(&pass->l->tensors, term) : NULL;
        const struct dtp_layer_operator *norm = dtp_layer_tensors_fused_norm(&pass->l->tensors, term);
        if (sum && !pass->l->tensor_bytes[term]) /* a compiler adds again what it did not keep */
            read_terms(pass, draft, sum->reads, true);
        else
            read(pass, draft, norm ? dtp_layer_first(norm->reads) : term, last && !stream);
        if (norm)
            make(pass, draft, dtp_layer_first(norm->statistics));
    }
}

/* Of a branch's result, eager: e h in, e h out, and under autocast a cast c h -> 4 h before. */
static void norm_after(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_operator *op = operator_at(pass, index);
    enum dtp_layer_tensor input = dtp_layer_first(op->reads), wide = dtp_layer_first(dtp_layer_wide_of(input));
    if (!wanted(pass, dtp_layer_first(op->makes)) && !wanted(pass, dtp_layer_first(op->statistics)))
        return;
    double h = (double)l->between, e = (double)l->residual, c = (double)l->compute;
    bool casts = l->tensor_bytes[wide];
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM, op->name);
    make(pass, &draft, wide);
    read(pass, &draft, input, true);
    make(pass, &draft, dtp_layer_first(op->statistics));
    make(pass, &draft, dtp_layer_first(op->makes));
    double elements = dtp_norm_elements(l->transformer, false) + (casts ? 1 : 0);
    dtp_draft_pass(l, &draft, per_token(l, 2 * e * h + (casts ? (4 + c) * h : 0)), per_token(l, elements * h),
                   casts ? 2 : 1);
    dtp_draft_end(l, &draft);
}

/* The residual stream into what matmuls read, for each of them by itself; one pass where it is fused. */
static void cast(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_operator *op = operator_at(pass, index);
    enum dtp_layer_tensor result = dtp_layer_first(op->makes);
    if (!wanted(pass, result))
        return;
    int casts = l->fused ? 1 : dtp_lower_readers(l, result);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, op->name);
    read_terms(pass, &draft, op->reads, false);
    make(pass, &draft, result);
    dtp_draft_pass(l, &draft, per_token(l, (double)((l->residual + l->compute) * l->between) * casts), 0,
                   (uint32_t)casts);
    dtp_draft_end(l, &draft);
}

/* eager: e h in, e h out, and casts 4 h -> c h. Fused, a norm of a sum also adds: e h and c h in, e h and c h out. */
static void norm(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_operator *op = operator_at(pass, index);
    enum dtp_layer_tensor input = dtp_layer_first(op->reads), result = dtp_layer_first(op->makes);
    bool adds = index > 0 && dtp_layer_tensors_sum_in_norm(&l->tensors, index - 1) && !exists(pass, input);
    const struct dtp_layer_operator *sum = adds ? operator_at(pass, index - 1) : NULL;
    if (!wanted(pass, result))
        return;
    double h = (double)l->between, e = (double)l->residual, c = (double)l->compute;
    int casts = (l->autocast && !l->fused) || l->tensors.kind.casts_norms ? dtp_lower_readers(l, result) : 0;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_NORM, op->name);
    if (sum) {
        read_terms(pass, &draft, sum->reads, l->tensor_bytes[input]);
        make(pass, &draft, input);
    } else {
        read_terms(pass, &draft, op->reads, false);
    }
    make(pass, &draft, dtp_layer_first(op->statistics));
    if (dtp_layer_wide_of(result))
        make(pass, &draft, dtp_layer_first(dtp_layer_wide_of(result)));
    if (dtp_lower_casts_apart(&l->tensors, result))
        pass->module->alive |= UINT64_C(1) << result; /* as casts of those that read it */
    else
        make(pass, &draft, result);
    double bytes = sum ? 2 * (e + c) * h : l->fused ? (e + c) * h : 2 * e * h + casts * (4 + c) * h;
    bool chained = dtp_layer_tensors_chain(&l->tensors, op);
    struct dtp_norm_chain chain = dtp_norm_chain_of(l->transformer, l->plan, !l->adapts);
    if (chained)
        bytes = chain.forward * h + casts * (4 + c) * h;
    double elements = chained ? chain.forward_elements : dtp_norm_elements(l->transformer, false);
    dtp_draft_pass(l, &draft, per_token(l, bytes), per_token(l, elements * h),
                   (chained ? chain.forward_kernels : 1) + (uint32_t)casts);
    dtp_draft_end(l, &draft);
}

/* Of a branch's element as a sum reads it: a norm's eager result is as wide as the stream. */
static uint64_t branch_bytes(const struct dtp_lowering *l, const struct dtp_layer_operator *sum)
{
    if (l->results != l->compute) /* attention's is narrow, an MLP's is not */
        return dtp_layer_branches(sum) & DTP_TENSOR_BIT(MIDDLE) ? l->compute : l->results;
    return !l->fused && l->tensors.kind.norms_after && dtp_layer_branches(sum) ? l->residual : l->compute;
}

/* Of a sum with dropout; returns the bytes of an element. */
static uint64_t make_mask(const struct pass *pass, struct dtp_draft *draft, const struct dtp_layer_operator *sum)
{
    if (!sum->statistics)
        return 0;
    make(pass, draft, dtp_layer_first(sum->statistics));
    return 1;
}

/* x2 = x + attention, where no fused norm adds. */
static void residual(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_operator *op = operator_at(pass, index);
    if (dtp_layer_tensors_sum_in_norm(&l->tensors, index) || !wanted(pass, dtp_layer_first(op->makes)))
        return;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, op->name);
    read_terms(pass, &draft, op->reads, true);
    make(pass, &draft, dtp_layer_first(op->makes));
    uint64_t bytes = 2 * l->residual + branch_bytes(l, op) + make_mask(pass, &draft, op);
    bool mixes = !l->fused && branch_bytes(l, op) != l->residual;
    dtp_draft_pass(l, &draft, per_token(l, (double)(bytes * l->between)), mixes ? per_token(l, (double)l->between) : 0,
                   1);
    dtp_draft_end(l, &draft);
}

/* ---- matmuls ----------------------------------------------------------------------------------------------------- */

/* A replayed module whose result is kept makes nothing, but its hooks fetch its weight; selective
 * attention calls none. */
static void call_again(const struct pass *pass, int index)
{
    enum dtp_checkpoint_keeps keeps = pass->l->checkpointing.keeps;
    if (!pass->replay || keeps == DTP_KEEPS_ALL_BUT_CORE || keeps == DTP_KEEPS_PARTS)
        return;
    dtp_lower_fetch(pass->l, index);
    dtp_lower_unfetch(pass->l);
}

/* A later matrix reads the same: the rank's own rows of it, or all of them. */
static bool read_later(const struct dtp_lowering *l, int index, bool own_rows)
{
    for (int later = index + 1; later < l->matrices; later++)
        if (l->tensors.input[later] == l->tensors.input[index] && l->matrix[later].own_rows == own_rows)
            return true;
    return false;
}

/* Where each rank has rows of a matmul's input, all of them are gathered before the first matmul that reads it. What is
 * gathered again in backward goes behind the last of these; else it is what the matmuls save. Returns what to await
 * behind the first. */
static dtp_op_id gather_input(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    enum dtp_layer_tensor input = l->tensors.input[index];
    const bool adapted = l->matrix[index].rank != 0;
    bool again = l->plan->runtime->gathers_again && !dtp_lower_shares_input(l, index),
         stands = pass->module->gathered & UINT64_C(1) << input;
    if (!dtp_lower_spreads(l) || !dtp_lower_reads_gathered(l, index) || l->gathered.index != DTP_NO_INDEX || stands)
        return DTP_NO_OP;
    dtp_op_id beside;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ALL_GATHER, dtp_layer_tensor_text(input));
    if (again)
        read(pass, &draft, input, !read_later(l, index, true) && !adapted);
    else
        dtp_draft_use(&draft, pass->module->tensor[input], DTP_READ | DTP_FREE);
    dtp_buffer_id gathered = dtp_lower_gather_rows(l, &draft, again ? DTP_OWNER_WORKSPACE : DTP_OWNER_ACTIVATIONS,
                                                   dtp_lower_whole_input(l, index), &beside);
    if (again) {
        l->gathered = gathered;
    } else {
        pass->module->tensor[input] = gathered;
        pass->module->gathered |= UINT64_C(1) << input;
    }
    return beside;
}

static void read_input(const struct pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_lowering *l = pass->l;
    const bool beside = l->matrix[index].rank && !l->matrix[index].folded;
    bool last = dtp_layer_tensors_last_reader(&l->tensors, index) && !beside; /* else its adapter is */
    if (l->gathered.index == DTP_NO_INDEX || l->matrix[index].own_rows) {
        read(pass, draft, l->tensors.input[index], last);
        return;
    }
    last = !read_later(l, index, false); /* an adapter gathers for itself (lower_divided_adapters.c) */
    dtp_draft_use(draft, l->gathered, last ? DTP_READ | DTP_FREE : DTP_READ);
    if (last)
        l->gathered = DTP_NO_BUFFER;
}

/* [T, in] x [in, out]; by rows of the matrix: a term of each rank's, which are then summed. */
static void multiply(const struct pass *pass, struct dtp_draft *draft, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    bool terms = dtp_lower_cut_by_rows(l, index), rows = terms && dtp_lower_spreads(l);
    dtp_buffer_id whole = DTP_NO_BUFFER;
    dtp_forward_cast(pass, draft, index);
    if (dtp_lower_reads_wide(l, index)) {
        dtp_forward_narrow_product(pass, draft, index);
        return;
    }
    const bool summed = rows && pass->replay && exists(pass, matrix->result); /* the sum was kept, not its terms */
    if (rows)
        whole = dtp_draft_new(l, draft, "terms of a sum", DTP_OWNER_WORKSPACE, dtp_lower_whole_stream(l, l->compute),
                              summed ? DTP_WRITE | DTP_FREE : DTP_WRITE);
    else
        make(pass, draft, matrix->result);
    dtp_forward_return(pass, draft, index);
    dtp_draft_product(l, draft, matrix, DTP_PRODUCT_FORWARD);
    if (l->tp > 1 && l->plan->runtime->dtensor && !l->compiled) /* its input becomes a DTensor, its result local */
        draft->op.demand.kernels += 2;
    if (terms && !summed)
        dtp_lower_tensor_beside(l, rows ? DTP_OP_REDUCE_SCATTER : DTP_OP_ALL_REDUCE, matrix->name,
                                dtp_lower_whole_stream(l, l->compute));
    dtp_draft_end(l, draft);
    if (rows && !summed) {
        pass->module->tensor[matrix->result] =
            dtp_lower_scatter_sum(l, matrix->name, whole, dtp_forward_keep_terms(pass, index, whole),
                                  dtp_layer_tensor_text(matrix->result), l->compute, true);
        pass->module->alive |= UINT64_C(1) << matrix->result;
    } else if (terms && !rows) {
        dtp_lower_sum_in_place(l, matrix->name, pass->module->tensor[matrix->result],
                               dtp_lower_whole_stream(l, l->compute), true);
    }
}

static void linear(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    bool casts = dtp_plan_casts_weights(l->plan), again = casts && dtp_lower_recasts(l, l->layer);
    if (!wanted(pass, matrix->result) && !dtp_forward_multiplies_again(pass, index)) {
        if (pass->replay && again) { /* casts are replayed whether or not their matmul is */
            dtp_lower_weight(l, index);
            dtp_forward_cast_again(pass, index);
        }
        call_again(pass, index);
        if (pass->replay && l->checkpointing.keeps == DTP_KEEPS_PACKED_MATMULS && matrix->rank)
            dtp_forward_adapter(pass, index, true);
        return;
    }
    bool ends = dtp_adapter_ends_replay(pass, index); /* a compiler makes x A^T alone then, eager the matmul too */
    if (ends && l->compiled) {
        dtp_forward_adapter(pass, index, true);
        return;
    }
    dtp_lower_fetch(l, index);
    dtp_buffer_id weight = matrix->folded ? dtp_forward_folded(pass, index) : dtp_lower_weight(l, index);
    dtp_buffer_id input = pass->module->tensor[l->tensors.input[index]];
    dtp_buffer_id narrow_input = dtp_lower_fp8_cast(l, DTP_FP8_INPUT, matrix, input);
    dtp_buffer_id narrow_weight = dtp_lower_fp8_cast(l, DTP_FP8_WEIGHT, matrix, weight);
    dtp_op_id beside = gather_input(pass, index);
    dtp_buffer_id cast = dtp_forward_narrow_input(pass, index);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_MATMUL, matrix->name);
    if (cast.index != DTP_NO_INDEX)
        dtp_draft_use(&draft, cast, DTP_READ | DTP_FREE);
    else
        read_input(pass, &draft, index);
    dtp_draft_use(&draft, narrow_input, DTP_READ | DTP_FREE);
    dtp_draft_use(&draft, narrow_weight, DTP_READ | DTP_FREE);
    bool drops_cast = l->compiled && again && !pass->replay;
    uint32_t access = drops_cast ? DTP_READ | DTP_FREE : DTP_READ;
    if (dtp_lower_packs(l, index))
        access = dtp_lower_unpacked_access(l, index,
                                           dtp_base_stays_unpacked(l->plan) && dtp_adapter_stays_unpacked(pass, index));
    dtp_draft_use(&draft, weight, access);
    if (drops_cast)
        *dtp_lower_cast_of(l, index) = DTP_NO_BUFFER;
    multiply(pass, &draft, index);
    if (pass->replay || !dtp_lower_checkpointed(l, l->layer))
        dtp_lower_fp8_keep(l, pass->module, index, weight);
    dtp_forward_expert_bias(pass, index);
    if (beside.index != DTP_NO_INDEX)
        l->awaited = beside;
    dtp_lower_unfetch(l);
    if (matrix->rank && !matrix->folded)
        dtp_forward_adapter(pass, index, ends);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Memory that the pointwise kernels of eager RoPE hold beside q and k. By fp32 halves (Z bytes of q in 16 bits): the
 * fp32 copy 2Z, four half-width products, their sum and difference, the cat 2Z and the cast: 6Z at most, first for q,
 * then for k beside the new q. The complex form: fp32 copy and product, 5Z. */
static uint64_t rotary_workspace(const struct dtp_lowering *l)
{
    if (l->fused || !l->rope)
        return 0;
    uint64_t q = l->tensor_bytes[DTP_TENSOR_Q], k = l->tensor_bytes[DTP_TENSOR_K];
    uint64_t times = l->compute == 4 ? 2 : l->plan->rope_fp32 || l->results != l->compute ? 6 : 5;
    uint64_t most = times * q > q + times * k ? times * q : q + times * k;
    return most - q - k;
}

bool dtp_lower_rotates_rows(const struct dtp_lowering *l)
{
    bool divided = l->role.pipeline || l->tp > 1;
    return divided && l->rope && l->plan->rope_fp32 && !l->fused && !l->tensors.kind.packs_qkv;
}

/* The complex form's are a copy of q in fp32 and a product of that size, tensors of their own: where memory is cached
 * in pieces, that matters. */
void dtp_lower_rotary_tensors(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t bytes)
{
    uint64_t wide = dtp_bytes_product(2 * l->tokens, l->compute * l->d_q);
    uint64_t piece = l->plan->rope_fp32 ? bytes : wide;
    for (uint64_t taken; bytes; bytes -= taken) {
        taken = bytes < piece ? bytes : piece;
        dtp_draft_new(l, draft, "rotary workspace", DTP_OWNER_WORKSPACE, taken, DTP_UPDATE | DTP_FREE);
    }
}

static void rotary(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    if (!wanted(pass, DTP_TENSOR_Q))
        return;
    if (dtp_lower_turns_apart(l)) {
        dtp_forward_turn(pass, DTP_TENSOR_Q, l->d_q);
        dtp_forward_turn(pass, DTP_TENSOR_K, l->d_kv);
        return;
    }
    double width = (double)(l->d_q + l->d_kv), c = (double)l->results;
    double rope = !l->rope ? 0 : l->fused ? 2 * c : l->plan->rope_fp32 ? 48 : 10 * c;
    const bool chained = dtp_plan_chains_qk_norms(l->transformer, l->plan);
    const struct dtp_norm_chain chain = dtp_norm_chain_of(l->transformer, l->plan, !l->adapts);
    double norms = chained ? chain.forward : l->transformer->qk_norm ? 2 * c : 0;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_ROTARY, "");
    if (exists(pass, DTP_TENSOR_QKV))
        dtp_draft_use(&draft, pass->module->tensor[DTP_TENSOR_QKV], DTP_READ);
    make(pass, &draft, DTP_TENSOR_Q);
    make(pass, &draft, DTP_TENSOR_K);
    make(pass, &draft, DTP_TENSOR_V); /* where it is not the matmul's */
    make(pass, &draft, DTP_TENSOR_QK_STATISTICS);
    dtp_lower_rotary_tensors(l, &draft, rotary_workspace(l));
    read(pass, &draft, DTP_TENSOR_Q_RAW, true);
    read(pass, &draft, DTP_TENSOR_K_RAW, true);
    uint32_t kernels = (!l->rope || l->fused ? 1
                        : l->plan->rope_fp32 ? 20
                                             : 10) +
                       (chained ? 2 * chain.forward_kernels : 0);
    double elements = dtp_plan_turned_elements(l->transformer, l->plan) + (chained ? chain.forward_elements : 0);
    dtp_draft_pass(l, &draft, per_token(l, (rope + norms) * width), per_token(l, elements * width), kernels);
    if (dtp_lower_rotates_rows(l))
        draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    if (dtp_plan_turns_eagerly(l->plan, &l->tensors.kind)) {
        dtp_draft_memory(l, &draft, per_token(l, (DTP_EAGER_TURN_PASSES * c + norms) * width), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_EAGER;
        dtp_draft_loop(&draft, DTP_EAGER_TURN_KERNELS, 2);
    }
    dtp_draft_end(l, &draft);
    dtp_forward_narrow_heads(pass);
}

/* FLOPs of the causal core, QK^T and PV each half of 2 s d_q a token, or d_v where values have a width of their own; s
 * is shorter under a sliding window. */
static double core_flops(const struct dtp_lowering *l)
{
    double s = dtp_transformer_layer_attention_length(l->transformer, dtp_lower_model_layer(l), l->plan->sequence);
    return per_token(l, s * (double)(l->d_q + (l->transformer->kv_latent ? l->d_v : l->d_q)));
}

static void attention(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    if (!wanted(pass, DTP_TENSOR_CORE) && !wanted(pass, DTP_TENSOR_CORE_STATE))
        return;
    struct dtp_draft draft;
    if (l->plan->cp > 1) {
        struct dtp_context_inputs inputs = dtp_forward_context_inputs(pass);
        dtp_lower_context_forward(l, &draft, &inputs);
    } else {
        dtp_lower_fp8_core(l, false);
        dtp_draft_begin(l, &draft, DTP_OP_ATTENTION, "");
        draft.op.demand.flops = core_flops(l);
        draft.op.demand.tokens = (double)l->tokens;
        draft.op.demand.kernels = 2;
    }
    make(pass, &draft, DTP_TENSOR_CORE);
    make(pass, &draft, DTP_TENSOR_CORE_STATE);
    dtp_draft_new(l, &draft, "scores", DTP_OWNER_WORKSPACE, l->scores_bytes, DTP_UPDATE | DTP_FREE);
    static const enum dtp_layer_tensor inputs[] = {DTP_TENSOR_QKV, DTP_TENSOR_V,      DTP_TENSOR_Q,
                                                   DTP_TENSOR_K,   DTP_TENSOR_KV_RAW, DTP_TENSOR_KV_ALL};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        read(pass, &draft, inputs[i], true);
    for (int raw = DTP_TENSOR_Q_RAW; raw <= DTP_TENSOR_K_RAW && !l->tensor_bytes[DTP_TENSOR_Q]; raw++)
        read(pass, &draft, (enum dtp_layer_tensor)raw, true);
    dtp_draft_end(l, &draft);
}

/* transpose(1, 2).reshape: a copy of its own, not counted in the core's time; what values were padded by goes. */
static void core_copy(const struct pass *pass)
{
    struct dtp_lowering *l = pass->l;
    if (!wanted(pass, DTP_TENSOR_CORE_COPY))
        return;
    struct dtp_draft draft;
    if (l->context.exchanged > 1) {
        dtp_forward_context_result(pass);
        return;
    }
    if (l->tensors.kind.sinks && !l->tensors.kind.sinks_inside) {
        dtp_forward_sinks(pass);
        return;
    }
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, "heads side by side");
    make(pass, &draft, DTP_TENSOR_CORE_COPY);
    read(pass, &draft, DTP_TENSOR_CORE, true);
    bool cut = l->tensors.kind.pads_values;
    dtp_draft_memory(l, &draft, cut ? per_token(l, 2 * (double)(l->compute * l->tensors.kind.d_core)) : 0, 1);
    dtp_draft_end(l, &draft);
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

/* A replay has this for its dropout's mask alone, for the sum is there; a reentrant one makes it again and holds it, a
 * variable of CheckpointFunction.backward (torch/utils/checkpoint.py). */
static void block_result(const struct pass *pass, int index)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_operator *op = operator_at(pass, index);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, op->name);
    double c = (double)branch_bytes(l, op), e = (double)l->residual;
    int branches = __builtin_popcountll(dtp_layer_branches(op));
    read_terms(pass, &draft, op->reads, true);
    if (branches > 1 && !l->fused) /* eager adds two at a time */
        dtp_draft_new(l, &draft, "sum of branches", DTP_OWNER_WORKSPACE,
                      dtp_bytes_product(l->tokens, l->compute * l->between), DTP_UPDATE | DTP_FREE);
    dtp_buffer_id result = dtp_draft_new(
        l, &draft, dtp_layer_tensor_text(DTP_TENSOR_INPUT), DTP_OWNER_ACTIVATIONS, l->tensor_bytes[DTP_TENSOR_INPUT],
        pass->replay && !dtp_plan_layers(l->plan)->holds_replayed ? DTP_WRITE | DTP_FREE : DTP_WRITE);
    l->flight->replayed = pass->replay && dtp_plan_layers(l->plan)->holds_replayed ? result : DTP_NO_BUFFER;
    double mask = (double)make_mask(pass, &draft, op);
    double added = l->fused ? (branches - 1) * c : 3 * (branches - 1) * c;
    dtp_draft_memory(l, &draft, per_token(l, (2 * e + c + mask + added) * (double)l->between),
                     l->fused ? 1 : (uint32_t)branches);
    dtp_draft_end(l, &draft);
    if (!pass->replay)
        dtp_lower_hand_on(l, l->layer + 1u, result);
}

/* The function returns: what only its variables held goes back. */
static void free_locals(const struct pass *pass)
{
    struct dtp_draft draft;
    dtp_draft_begin(pass->l, &draft, DTP_OP_FREE, "");
    for (int tensor = 0; tensor < DTP_TENSOR_COUNT; tensor++)
        if (exists(pass, (enum dtp_layer_tensor)tensor) && !(pass->save & UINT64_C(1) << tensor)) {
            dtp_draft_use(&draft, pass->module->tensor[tensor], DTP_FREE);
            drop(pass, (enum dtp_layer_tensor)tensor);
        }
    if (pass->replay)
        dtp_forward_drop_terms(pass, &draft);
    if (draft.operand_count)
        dtp_draft_end(pass->l, &draft);
}

static void projection(const struct pass *pass, int index, void (*matmul)(const struct pass *pass, int matrix))
{
    for (int i = 0; i < pass->l->matrices; i++)
        if (operator_at(pass, index)->makes & UINT64_C(1) << pass->l->matrix[i].result)
            matmul(pass, i);
}

/* A replay of attention's core alone calls no module. */
static void call_experts(const struct pass *pass, void (*hook)(struct dtp_lowering *l, bool backward))
{
    if (!pass->replay || pass->l->checkpointing.keeps != DTP_KEEPS_ALL_BUT_CORE)
        dtp_lower_around_experts(pass->l, hook, false);
}

void dtp_forward_operator(const struct pass *pass, int index)
{
    dtp_lower_at_operator(pass->l, index);
    switch (operator_at(pass, index)->kind) {
    case DTP_LAYER_OP_NORM:
        if (operator_at(pass, index)->reads & DTP_LAYER_STREAM)
            norm(pass, index);
        else if (!pass->l->fused) /* else the sum behind it does */
            norm_after(pass, index);
        break;
    case DTP_LAYER_OP_CAST: cast(pass, index); break;
    case DTP_LAYER_OP_PROJECTION:
        projection(pass, index, linear);
        if (operator_at(pass, index)->makes & DTP_TENSOR_BIT(EXPERT_DOWN))
            call_experts(pass, pass->l->hooks->after_experts);
        break;
    case DTP_LAYER_OP_ROTARY: rotary(pass); break;
    case DTP_LAYER_OP_ATTENTION:
        attention(pass);
        core_copy(pass);
        break;
    case DTP_LAYER_OP_LATENT_NORM: dtp_forward_latent_norm(pass, operator_at(pass, index)); break;
    case DTP_LAYER_OP_LATENT_HEADS: dtp_forward_latent_heads(pass); break;
    case DTP_LAYER_OP_ACTIVATION: dtp_forward_activation(pass, operator_at(pass, index)->makes); break;
    case DTP_LAYER_OP_ROUTER: dtp_forward_router(pass); break;
    case DTP_LAYER_OP_PERMUTE:
        dtp_forward_permute(pass, operator_at(pass, index));
        call_experts(pass, pass->l->hooks->before_experts);
        break;
    case DTP_LAYER_OP_UNPERMUTE: dtp_forward_unpermute(pass, operator_at(pass, index)); break;
    case DTP_LAYER_OP_RESIDUAL:
        if (operator_at(pass, index)->makes)
            residual(pass, index);
        else if (!pass->replay || operator_at(pass, index)->statistics ||
                 dtp_plan_layers(pass->l->plan)->holds_replayed)
            block_result(pass, index);
        break;
    }
}

/* By packed weights that no gradient goes through, as q, k and v of a first layer whose input is frozen, matmuls run
 * again: nothing of them is for backward. */
static uint64_t kept_here(const struct dtp_lowering *l)
{
    uint64_t kept = l->tensors.kept;
    for (int i = 0; i < l->tensors.operators && l->checkpointing.keeps == DTP_KEEPS_PACKED_MATMULS; i++)
        if (l->tensors.op[i].kind == DTP_LAYER_OP_PROJECTION && !dtp_lower_wants_gradient(l, i))
            kept &= ~l->tensors.op[i].makes;
    return kept;
}

void dtp_lower_block_forward(struct dtp_lowering *l)
{
    uint64_t save = dtp_lower_checkpointed(l, l->layer) ? kept_here(l) : dtp_lower_saved(l);
    if (l->adapts)
        dtp_lower_clear_adapters(dtp_lower_flight_module(l));
    struct pass pass = {l, dtp_lower_flight_module(l), save, false};
    dtp_forward_until(&pass, l->tensors.operators);
    dtp_lower_behind_operators(l);
    free_locals(&pass);
}

/* PyTorch stops a replay at the last saved tensor, so the last matmul does not run again (torch.utils.checkpoint,
 * early_stop); torchtitan's op-level policy and other runtimes replay to the end. */
static bool replays_last(const struct dtp_lowering *l)
{
    if (l->checkpointing.keeps == DTP_KEEPS_SECOND_MATMULS)
        return !dtp_second_matmul(&l->tensors.kind, l->matrices - 1);
    return l->checkpointing.calls_modules && !l->plan->runtime->stops_replay;
}

int dtp_lower_replay_end(const struct dtp_lowering *l)
{
    if (replays_last(l))
        return l->tensors.operators;
    int end = dtp_layer_tensors_saved_end(&l->tensors);
    return l->adapts ? dtp_adapters_replay_end(l, end) : end;
}

void dtp_lower_block_recompute(struct dtp_lowering *l)
{
    struct pass pass = {l, dtp_lower_flight_module(l), dtp_lower_saved(l), true};
    int end = dtp_lower_replay_end(l);
    l->recompute = true;
    dtp_forward_until(&pass, end);
    for (int index = end; index < l->tensors.operators; index++)
        projection(&pass, index, call_again);
    dtp_lower_behind_operators(l);
    free_locals(&pass);
    l->recompute = false;
}
