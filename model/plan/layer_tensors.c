#include "plan/layer_tensors.h"

#include "base/bytes.h"
#include "plan/fp8_casts.h"
#include "plan/context.h"
#include "plan/gelu_chain.h"
#include "plan/norm_chain.h"
#include "plan/second_matmuls.h"
#include "plan/runtime_sizes.h"

#include <stddef.h>
#include <string.h>

#define BIT(suffix) DTP_TENSOR_BIT(suffix)

/* DDPOptimizer ends its first graph where DDP's first bucket is full, 1 MiB: the down matrix's fp32 gradient fills it,
 * so a compiled layer is cut before that matmul. */

/* With adapters alone trained, gradients of all of an MLP's are made before those of attention. */
static uint64_t adapted_mlp_bytes(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_layer_kind kind;
    uint64_t elements = 0;
    dtp_layer_kind_of(t, dtp_layer_mlp_of(t), plan->fused_qkv, plan->fused_gate_up, &kind);
    dtp_plan_adapt_kind(plan, &kind);
    for (int i = 0; i < kind.matrices; i++)
        if (kind.matrix[i].id == DTP_MATRIX_GATE || kind.matrix[i].id == DTP_MATRIX_UP ||
            kind.matrix[i].id == DTP_MATRIX_DOWN)
            elements += dtp_adapter_elements(&kind.matrix[i]);
    return dtp_dtype_bytes(plan->adapters.dtype) * elements;
}

static bool cut_by_ddp(const struct dtp_transformer *t, const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    uint64_t gradients = 4 * t->hidden * t->ffn;
    if (dtp_plan_adapts(plan))
        gradients = adapted_mlp_bytes(t, plan);
    return plan->compile && dtp_plan_has_ddp_buckets(plan, cluster) && gradients >= DTP_DDP_FIRST_BUCKET_BYTES;
}

/* ---- operators on the tensors that the runtime has -------------------------------------------------------------- */

/* Where fp32 RoPE ends in a cat, q is contiguous by heads, the core's result follows it, and putting the heads side by
 * side copies; Transformer Engine casts the core's result for the output matmul. So is what context parallel ranks
 * merge, piece by piece, and what they exchange is another tensor than what was made. */
static bool copies_core(const struct dtp_layer_kind *kind, const struct dtp_context *context,
                        const struct dtp_plan *plan)
{
    if (kind->sinks && !kind->sinks_inside) /* the result is weighed by what sinks leave of it */
        return true;
    if (kind->kv_latent) /* they lie by tokens; a padded result is cut to size */
        return kind->pads_values || dtp_plan_keeps_fp8_inputs(plan);
    return dtp_plan_keeps_fp8_inputs(plan) ||
           (kind->rotary && plan->rope_fp32 && dtp_plan_layers(plan)->copies_heads) || context->exchanged > 1 ||
           context->by_pieces || (context->ring > 1 && plan->runtime->walks_gathered);
}

/* A frozen projection reads its weight alone for the gradient of its input; an adapter beside it what it reads. */
static bool trains(const struct dtp_layer_kind *kind, const struct dtp_layer_operator *op)
{
    for (int i = 0; i < kind->matrices; i++)
        if (op->makes & UINT64_C(1) << kind->matrix[i].result && (!kind->matrix[i].frozen || kind->matrix[i].rank))
            return true;
    return false;
}

/* What an adapter reads is dropped out or cast before, and the result of that is what stays (lower_adapters.c). */
static bool keeps_input(const struct dtp_layer_kind *kind, const struct dtp_plan *plan,
                        const struct dtp_layer_operator *op)
{
    if (dtp_plan_holds_inputs(plan))
        return true;
    const uint64_t narrow = BIT(CORE) | BIT(CORE_COPY);
    const bool casts = dtp_plan_widens_adapters(plan) || (dtp_plan_widens_norms(plan) && !(op->reads & narrow));
    const bool reads = plan->adapters.dropout <= 0 && !casts && !dtp_plan_recasts_adapters(plan);
    for (int i = 0; i < kind->matrices; i++)
        if (op->makes & UINT64_C(1) << kind->matrix[i].result &&
            (!kind->matrix[i].frozen || kind->matrix[i].folded || (kind->matrix[i].rank && reads)))
            return true;
    return false;
}

/* What one pass over the operators finds: what they make and what their backward reads; of norms, by how the runtime
 * runs them, tensors of no operator, which of these backward reads, those that are none, and those instead of which a
 * cast is saved. */
struct pass {
    uint64_t made, needed;
    uint64_t wide, saved, unmade, dropped;
};

static uint64_t needed_by(const struct dtp_layer_operator *op)
{
    const uint64_t input = -(uint64_t)(op->needs & DTP_NEEDS_INPUT), result = -(uint64_t)(op->needs >> 1 & 1),
                   statistics = -(uint64_t)(op->needs >> 2); /* all bits or none */
    _Static_assert(DTP_NEEDS_INPUT == 1 && DTP_NEEDS_RESULT == 2 && DTP_NEEDS_STATISTICS == 4, "as shifted here");
    return (input & op->reads) | (result & op->makes) | (statistics & op->statistics);
}

static void pass_norm(const struct dtp_layer_tensors *out, const struct dtp_layer_operator *op, bool casts,
                      struct pass *pass)
{
    const uint64_t read = dtp_layer_wide_of(dtp_layer_first(op->reads)),
                   made = dtp_layer_wide_of(dtp_layer_first(op->makes));
    if (casts) { /* it runs in fp32, of a cast and cast by each linear behind it */
        pass->wide |= made | read;
        pass->saved |= read;
        pass->dropped |= read ? op->reads : 0;
    }
    if (out->fused && !(op->reads & DTP_LAYER_STREAM))
        pass->unmade |= op->makes; /* the sum behind it takes the norm's input, in one pass */
}

static struct pass list_operators(struct dtp_layer_tensors *out, const struct dtp_plan *plan, bool copied)
{
    const uint64_t core = copied ? BIT(CORE) : 0;
    const bool casts = dtp_plan_autocast(plan) && !out->fused;
    struct pass pass = {0};
    int matrix = 0; /* matrices stand in the order in which forward uses them */
    out->operators = dtp_layer_operators(&out->kind, out->op);
    for (int i = 0; i < out->operators; i++) {
        struct dtp_layer_operator *op = &out->op[i];
        if (op->kind == DTP_LAYER_OP_PROJECTION) {
            op->reads = op->reads & core ? BIT(CORE_COPY) : op->reads;
            if (out->kind.adapted && !keeps_input(&out->kind, plan, op))
                op->needs = 0;
            for (; matrix < out->kind.matrices && op->makes & UINT64_C(1) << out->kind.matrix[matrix].result; matrix++)
                out->input[matrix] = dtp_layer_first(op->reads);
        } else if (op->kind == DTP_LAYER_OP_NORM) {
            pass_norm(out, op, casts, &pass);
        }
        pass.made |= op->makes | op->statistics;
        pass.needed |= needed_by(op);
    }
    return pass;
}

/* What attention reads, makes and is projected to, which stays in the compute dtype beside fp32 norms. */
static const uint64_t around_core = BIT(Q) | BIT(K) | BIT(V) | BIT(CORE) | BIT(CORE_COPY) | BIT(MIDDLE);

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

/* Math attention keeps its probabilities [heads, s], with dropout also a mask of them and what it let through, and,
 * where they are wider than q, k and v, the casts of those, k and v repeated for each query head. */
static uint64_t math_state_bytes(const struct dtp_layer_kind *kind, const struct dtp_plan *plan)
{
    uint64_t score = dtp_plan_score_bytes(plan), compute = dtp_plan_compute_bytes(plan);
    uint64_t dropped = kind->dropout ? score + 1 : 0,
             wide = score > compute ? score * (2 * kind->d_q + kind->d_core) : 0;
    return (score + dropped) * kind->heads * plan->sequence + wide;
}

bool dtp_layer_lies_between_matmuls(enum dtp_layer_tensor tensor)
{
    enum dtp_layer_part part = dtp_layer_tensor_part(tensor);
    return part == DTP_PART_RESIDUAL || part == DTP_PART_NORMS;
}

/* So are rows of experts and what the router has of tokens; shared experts are an MLP that tensor parallel ranks
 * divide. Latents, whose matrices each rank has whole, are of its rows until they are projected up. */
static bool has_own_rows(const struct dtp_layer_kind *kind, enum dtp_layer_tensor tensor)
{
    const uint64_t divided = BIT(SHARED_GATE) | BIT(SHARED_UP) | BIT(SHARED_SILU) | BIT(SHARED_PRODUCT);
    const uint64_t latents = BIT(Q_LATENT) | BIT(WIDE_Q_LATENT) | BIT(Q_LATENT_STATISTICS) | BIT(Q_LATENT_NORM) |
                             BIT(KV_LATENT) | BIT(WIDE_KV_LATENT) | BIT(KV_LATENT_STATISTICS) | BIT(KV_LATENT_NORM);
    return dtp_layer_lies_between_matmuls(tensor) || (latents & UINT64_C(1) << tensor && !kind->routes_all) ||
           (kind->experts && dtp_layer_tensor_part(tensor) == DTP_PART_MLP && !(divided & UINT64_C(1) << tensor));
}

/* As many rows as a rank's experts receive, which are not as many as it sends. */
static uint64_t received_rows(const struct dtp_layer_kind *kind)
{
    uint64_t there = BIT(RECEIVED) | BIT(PLACES) | BIT(PERMUTED) | BIT(EXPERT_DOWN) | BIT(RETURNING);
    return kind->experts ? there | BIT(GATE) | BIT(UP) | BIT(SILU) | BIT(PRODUCT) : 0;
}

/* Of tensor parallel ranks that have other rows of the tensor each. */
static uint64_t row_parts(const struct dtp_layer_kind *kind, const struct dtp_plan *plan, enum dtp_layer_tensor tensor)
{
    bool of_experts = kind->experts && kind->routes_all && dtp_layer_tensor_part(tensor) == DTP_PART_MLP;
    if (of_experts)
        return (received_rows(kind) | BIT(SENT) | BIT(RETURNED)) & UINT64_C(1) << tensor ? plan->expert_shards : 1;
    return has_own_rows(kind, tensor) ? plan->sequence_shards : 1;
}

/* Experts' tensors by the module that makes them, which PyTorch's users compile apart or not at all: what they do
 * around the experts' matmuls is eager, in functions of their own (torchtitan's moe.py). */
static uint64_t expert_locals(const struct dtp_layer_kind *kind)
{
    uint64_t there = kind->routes_all  ? BIT(SENT) | BIT(RETURNED)
                     : kind->exchanged ? BIT(RECEIVED) | BIT(RETURNING) | BIT(RETURNED)
                                       : BIT(EXPERT_DOWN);
    if (kind->experts && kind->slots_rows) /* of MOELayer.forward */
        return kind->exchanged ? BIT(RECEIVED) | BIT(RETURNED) : BIT(RETURNING);
    if (!dtp_layer_orders_rows(kind)) /* functions of their own let go what they have passed on */
        return 0;
    if (kind->stacks_rows) /* what came and what experts made of it is let go as the next is named after it */
        there = kind->exchanged ? BIT(RETURNED) : BIT(EXPERT_DOWN);
    return there | BIT(UNPERMUTED) | BIT(PERMUTED);
}

bool dtp_layer_tensors_chain(const struct dtp_layer_tensors *tensors, const struct dtp_layer_operator *op)
{
    return tensors->kind.chains_norms && op->kind == DTP_LAYER_OP_NORM && op->reads & DTP_LAYER_STREAM;
}

/* Bytes of what fp8 matmuls read of a token. A linear keeps its own cast; where a router reads as well, what it was
 * cast from stays for that. Both matrices to latents read one norm, each by itself (multi_latent_attention.py of
 * Megatron-Core, linear_q_down_proj and linear_kv_down_proj). */
static uint64_t narrow_bytes(const struct dtp_layer_kind *kind, const struct dtp_plan *plan,
                             enum dtp_layer_tensor tensor, uint64_t width)
{
    uint64_t cast = dtp_fp8_bytes(plan->precision.fp8_recipe, width);
    if (tensor == DTP_TENSOR_NORM1 && kind->kv_latent)
        return 2 * cast;
    if (tensor == DTP_TENSOR_NORM2 && kind->experts)
        return width * dtp_plan_compute_bytes(plan) + (kind->shared_ffn ? cast : 0);
    return cast;
}

/* DeepSpeed's gate (top1gating, top2gating, topkgating of moe/sharded_moe.py) has its scores in fp32. What it saves of
 * a token beside the softmax: of one expert the mask as whole numbers of 8 bytes; of two both masks in fp32, their
 * weights, the sum and what was clamped; of more the mask, in bytes, masked weights in fp32, their sum twice and k
 * indices of 8 bytes. For all the k weights and slots, and of each slot, so many as rows that are sent, its token. */
static void count_slots(struct dtp_layer_tensors *out)
{
    const struct dtp_layer_kind *kind = &out->kind;
    uint64_t e = kind->experts, k = kind->experts_per_token;
    uint64_t gate = k == 1 ? 8 * e : k == 2 ? 8 * e + 16 : 5 * e + 8 + 8 * k;
    out->bytes[DTP_TENSOR_ROUTER_SCORES] = 4 * e;
    out->bytes[DTP_TENSOR_ROUTES] = gate + 12 * k + dtp_layer_sent(out, 8 * k);
    out->bytes[DTP_TENSOR_PERMUTED] *= dtp_layer_slot_copies(kind);
}

/* Of each of a token's experts Transformers' grouped matmuls save four whole numbers of 8 bytes (its index; of a row
 * its place among all, its token, where its result lies), its weight as it was normalised and as it multiplies the row;
 * of a token the sum of weights. */
static void count_sorted(struct dtp_layer_tensors *out, const struct dtp_plan *plan)
{
    uint64_t k = out->kind.experts_per_token;
    out->bytes[DTP_TENSOR_ROUTES] = (4 * 8 + 4 + dtp_plan_compute_bytes(plan)) * k + 4;
}

static void arriving_bytes(struct dtp_layer_tensors *out, enum dtp_layer_tensor tensor)
{
    out->bytes[tensor] = (uint64_t)ceil((double)out->bytes[tensor] * out->arriving);
}

static void count_bytes(struct dtp_layer_tensors *out, const struct dtp_plan *plan, uint64_t made)
{
    const uint64_t compute = dtp_plan_compute_bytes(plan), result = dtp_plan_result_bytes(plan);
    const uint64_t element[DTP_LAYER_ELEMENT_COUNT] = {[DTP_LAYER_ELEMENT_STREAM] = dtp_plan_stream_bytes(plan),
                                                       [DTP_LAYER_ELEMENT_COMPUTE] = result,
                                                       [DTP_LAYER_ELEMENT_KEPT_INPUT] = result,
                                                       [DTP_LAYER_ELEMENT_FP32] = 4,
                                                       [DTP_LAYER_ELEMENT_MASK] = 1};
    const bool keeps_fp8 = dtp_plan_keeps_fp8_inputs(plan);
    const uint64_t received = received_rows(&out->kind), sent = BIT(SENT) | BIT(RETURNED);
    uint64_t width[DTP_TENSOR_COUNT];
    dtp_layer_tensor_widths(&out->kind, width);
    for (uint64_t left = made; left; left &= left - 1) {
        enum dtp_layer_tensor tensor = dtp_layer_first(left);
        out->bytes[tensor] = width[tensor] * element[dtp_layer_tensor_element(tensor)];
        if (result != compute && around_core & UINT64_C(1) << tensor)
            out->bytes[tensor] = width[tensor] * compute;
    }
    for (uint64_t left = keeps_fp8 ? made : 0; left; left &= left - 1) {
        enum dtp_layer_tensor tensor = dtp_layer_first(left);
        if (dtp_layer_tensor_element(tensor) == DTP_LAYER_ELEMENT_KEPT_INPUT)
            out->bytes[tensor] = narrow_bytes(&out->kind, plan, tensor, width[tensor]);
    }
    for (uint64_t left = made & (received | (out->kind.experts ? sent : 0)); left; left &= left - 1) {
        enum dtp_layer_tensor tensor = dtp_layer_first(left);
        uint64_t bytes = out->bytes[tensor];
        out->bytes[tensor] = sent & UINT64_C(1) << tensor    ? dtp_layer_sent(out, bytes)
                             : tensor == DTP_TENSOR_RECEIVED ? dtp_layer_crossed(out, bytes)
                                                             : dtp_layer_received(out, bytes);
    }
    if (out->kind.exchanged && dtp_plan_sends_tokens(plan)) {
        out->bytes[DTP_TENSOR_SENT] = out->bytes[DTP_TENSOR_RETURNED] = 0;
        arriving_bytes(out, DTP_TENSOR_RECEIVED);
        arriving_bytes(out, DTP_TENSOR_RETURNING);
    }
    for (uint64_t left = plan->sequence_shards > 1 ? made : 0; left; left &= left - 1)
        out->bytes[dtp_layer_first(left)] =
            dtp_divide_up(out->bytes[dtp_layer_first(left)], row_parts(&out->kind, plan, dtp_layer_first(left)));
    if (out->kind.experts && out->kind.routes_all && made & BIT(ROUTES)) /* half of it says where rows go */
        out->bytes[DTP_TENSOR_ROUTES] =
            out->bytes[DTP_TENSOR_ROUTES] / 2 * (1 + plan->expert_shards) / plan->expert_shards;
    if (out->kind.slots_rows && made & BIT(ROUTES))
        count_slots(out);
    if (out->kind.sorts_rows && made & BIT(ROUTES))
        count_sorted(out, plan);
    if (out->gathered_ranks)
        out->bytes[DTP_TENSOR_KV_ALL] = dtp_bytes_product(out->gathered_ranks, 2 * out->kind.d_kv * compute);
    if (plan->attention == DTP_ATTENTION_MATH)
        out->bytes[DTP_TENSOR_CORE_STATE] = math_state_bytes(&out->kind, plan);
    if (out->kind.joins_sinks) /* beside the kernel's what was joined, its log-sum-exp, the factor of the result */
        out->bytes[DTP_TENSOR_CORE_STATE] += (2 + 1 + 1) * compute * out->kind.heads;
}

/* What chains of operators save of the norm's rows and of an MLP's, as one tensor. */
static void count_chains(const struct dtp_transformer *t, struct dtp_layer_tensors *out, const struct dtp_plan *plan)
{
    if (out->kind.chains_gelu)
        out->bytes[DTP_TENSOR_SILU] = dtp_gelu_chain_of(plan, out->kind.widens_gelu).saved * out->kind.ffn;
    if (!out->kind.chains_norms || dtp_plan_stream_bytes(plan) > dtp_plan_compute_bytes(plan))
        return;
    uint64_t bytes = dtp_norm_chain_of(t, plan, !out->kind.adapted).saved * out->kind.hidden;
    for (int i = 0; i < out->operators; i++)
        if (dtp_layer_tensors_chain(out, &out->op[i]))
            out->bytes[dtp_layer_first(dtp_layer_wide_of(dtp_layer_first(out->op[i].makes)))] = bytes;
}

/* Of a token, in numbers of fp32, what eager norms of queries and keys keep for backward beside what they read: under
 * autocast, where weights are fp32 and heads are not, a composite's cast and result, each of 4 bytes
 * (rms_norm_composite of aten's layer_norm.cpp); of a chain the fp32 copy in its place, with the normed rows where its
 * weight is trained. */
static uint64_t qk_copied(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                          const struct dtp_layer_tensors *out)
{
    uint64_t width = out->kind.d_q + out->kind.d_kv;
    if (!out->kind.qk_norm || out->fused)
        return 0;
    if (dtp_plan_autocast(plan))
        return 2 * width;
    if (!dtp_plan_chains_qk_norms(transformer, plan))
        return 0;
    return (dtp_norm_chain_of(transformer, plan, !out->kind.adapted).saved - dtp_plan_compute_bytes(plan)) * width / 4;
}

/* Values become a tensor apart from the matmul's result. */
static bool repacks_heads(const struct dtp_layer_tensors *out, const struct dtp_context *context,
                          const struct dtp_plan *plan)
{
    bool turned = out->kind.rotary || out->kind.qk_norm; /* so are queries and keys */
    bool sent = (context->exchanged > 1 || context->ring > 1) && !context->gathers;
    bool copied = plan->runtime->repacks_heads && out->kind.d_kv < out->kind.d_q;
    bool apart = turned && plan->runtime->copies_views && !dtp_plan_core_runs_again(plan);
    return out->kind.packs_qkv &&
           (plan->fused_qkv_rope || copied || apart || (turned && sent && !plan->runtime->walks_gathered));
}

/* ---- what is made and what stays --------------------------------------------------------------------------------- */

/* Tensors of no operator, made by how the runtime runs them; which of these backward reads. */
struct habits {
    uint64_t made, saved, dropped; /* dropped: a cast is saved instead */
};

static struct habits habits_of(const struct dtp_layer_tensors *out, const struct dtp_plan *plan,
                               const struct pass *pass, bool copied, bool repacked)
{
    struct habits habits = {.made = pass->wide, .saved = pass->saved, .dropped = pass->dropped};
    if (out->gathered_ranks)
        habits.made |= BIT(KV_ALL), habits.saved |= BIT(KV_ALL);
    bool wide = dtp_plan_autocast(plan) && !out->fused;
    const uint64_t given = plan->checkpointing == DTP_CHECKPOINT_NONE ? 0 : BIT(INPUT); /* a checkpoint holds it */
    for (int i = 0; out->kind.chains_norms && !dtp_plan_widens_norms(plan) && i < out->operators; i++)
        if (dtp_layer_tensors_chain(out, &out->op[i])) { /* they save a copy, and of a narrow stream not the rows */
            habits.made |= dtp_layer_wide_of(dtp_layer_first(out->op[i].makes));
            habits.saved |= !wide || !out->kind.adapted ? dtp_layer_wide_of(dtp_layer_first(out->op[i].makes)) : 0;
            habits.dropped |= wide ? 0 : out->op[i].reads & ~given;
        }
    for (int i = 0; wide && out->kind.kv_latent && i < out->operators; i++)
        if (out->op[i].kind == DTP_LAYER_OP_LATENT_NORM) { /* of a cast, which it saves */
            uint64_t cast = out->op[i].reads & BIT(Q_LATENT) ? BIT(WIDE_Q_LATENT) : BIT(WIDE_KV_LATENT);
            habits.made |= cast, habits.saved |= cast, habits.dropped |= out->op[i].reads;
        }
    if (copied)
        habits.made |= BIT(CORE_COPY); /* which the output matrix reads and keeps */
    if (out->kind.chains_gelu ||
        (out->kind.gated && !out->fused && !dtp_layer_activates_in_one(&out->kind, BIT(PRODUCT))))
        /* fused, the gate's activation is made again of its argument */
        habits.made |= BIT(SILU), habits.saved |= BIT(SILU);
    if (out->kind.shared_ffn && out->kind.gated && !out->fused)
        habits.made |= BIT(SHARED_SILU), habits.saved |= BIT(SHARED_SILU);
    if (out->kind.experts && out->kind.slots_rows) { /* copies of the router's input and of rows by tokens */
        habits.saved |= BIT(ROUTER_INPUT) | BIT(UNPERMUTED);
        habits.dropped |= BIT(NORM2);
    } else if (out->kind.experts && (out->kind.calls_experts || out->kind.sorts_rows))
        habits.saved |= BIT(EXPERT_DOWN); /* what a weight multiplies is read for the weight's gradient */
    if (out->kind.shared_gate)            /* a product of both */
        habits.saved |= BIT(SHARED_DOWN) | BIT(SHARED_WEIGHT);
    if (out->added_again)
        habits.saved |= BIT(MIDDLE);
    if (repacked) {
        habits.made |= BIT(V), habits.saved |= BIT(V);
        habits.dropped |= BIT(QKV);
    }
    if (dtp_plan_keeps_fp8_inputs(plan)) /* an activation cannot be derived from a result that is kept in fp8 only */
        habits.saved |= BIT(UP);
    return habits;
}

/* A linear in 16 bits is among those of the projection, and keeps what it reads. */
static bool reads_wide(const struct dtp_layer_tensors *out, const struct dtp_layer_operator *op)
{
    for (int i = 0; i < out->kind.matrices && op->kind == DTP_LAYER_OP_PROJECTION; i++)
        if (out->kind.matrix[i].wide && op->makes & UINT64_C(1) << out->kind.matrix[i].result)
            return true;
    return false;
}

/* Where a cast to fp8 stands between a matmul and what it read, a compiler has the cast's kernel make that again of
 * what its maker keeps, for norms and activations are pointwise (torch/_functorch/partitioners.py bans it of what a
 * matmul itself reads). Where DDP's bucket cuts the layer, the activation is the second graph's input and is kept. */
static uint64_t made_again(const struct dtp_layer_tensors *out, const struct dtp_plan *plan,
                           const struct dtp_cluster *cluster, bool cut)
{
    struct dtp_fp8_casts casts;
    if (plan->precision.compute != DTP_FP8)
        return 0;
    dtp_fp8_casts_of(plan, &cluster->gpu, &casts);
    if (!casts.makes_inputs_again)
        return 0;
    uint64_t read = 0, again = BIT(CORE_COPY); /* a copy that only changes the order of elements is pointwise too */
    for (int i = 0; i < out->operators; i++)
        read |= out->op[i].kind == DTP_LAYER_OP_PROJECTION ? out->op[i].reads : 0;
    for (int i = 0; i < out->operators; i++)
        read &= reads_wide(out, &out->op[i]) ? ~out->op[i].reads : UINT64_MAX;
    for (int i = 0; i < out->operators; i++) {
        const struct dtp_layer_operator *op = &out->op[i];
        bool pointwise = op->kind == DTP_LAYER_OP_NORM || (op->kind == DTP_LAYER_OP_ACTIVATION && !cut);
        if (pointwise && op->needs & DTP_NEEDS_INPUT)
            again |= op->makes & read;
    }
    return again;
}

static void list_tensors(const struct dtp_transformer *t, struct dtp_layer_tensors *out, const struct dtp_plan *plan,
                         const struct pass *pass, const struct habits *from_runtime, uint64_t again)
{
    const struct habits habits = *from_runtime;
    uint64_t made = (BIT(INPUT) | habits.made | pass->made) & ~pass->unmade, saved = habits.saved | pass->needed;
    if (out->added_again)
        made &= ~BIT(INPUT2);
    out->saved = saved & made & ~habits.dropped & ~again;
    count_bytes(out, plan, made);
    count_chains(t, out, plan);
    out->locals = expert_locals(&out->kind) & made;
    if (plan->runtime->dtensor && dtp_layer_reorders(&out->kind))
        out->locals_again = (BIT(SENT) | BIT(RETURNED) | BIT(UNPERMUTED)) & made;
    if (!out->fused && out->kind.kv_latent) /* parts of queries that rope has turned, and others, are views of it */
        out->locals |= BIT(Q_RAW);
    if (!out->fused)
        out->locals |= BIT(QKV) | BIT(V) | BIT(Q) | BIT(K) | BIT(CORE) | BIT(INPUT2) | BIT(UP) | BIT(PRODUCT);
}

/* Below the first adapter of the model nothing is trained, and autograd makes no graph of it. */
static void cut_first(struct dtp_layer_tensors *out, const struct dtp_plan *plan)
{
    uint64_t needed = 0;
    out->saved_first = out->saved;
    out->cut = out->kind.adapted && !plan->adapters.train_ends && !dtp_plan_inputs_require_grad(plan);
    if (!out->cut)
        return;
    for (int i = 0; i < out->operators; i++) {
        const struct dtp_layer_operator *op = &out->op[i];
        if (!dtp_layer_tensors_first_runs(out, i))
            continue;
        out->first_gradients |= op->makes;
        needed |= needed_by(op);
        if (op->kind == DTP_LAYER_OP_ACTIVATION)
            needed |= BIT(SILU);
        if (op->kind == DTP_LAYER_OP_NORM)
            needed |= dtp_layer_wide_of(dtp_layer_first(op->reads));
    }
    if (needed & BIT(INPUT2) && !out->bytes[DTP_TENSOR_INPUT2]) /* it is added up again */
        needed |= BIT(INPUT) | BIT(MIDDLE);
    out->saved_first &= needed;
}

/* Under eager autocast each linear that reads a norm's fp32 result casts it for itself and saves that cast: autocast
 * caches casts of leaves that require a gradient, weights, and of nothing else (cached_cast, aten's autocast_mode.cpp).
 */
static void count_casts(struct dtp_layer_tensors *out, const struct dtp_plan *plan)
{
    if (!out->kind.casts_norms && (!dtp_plan_autocast(plan) || out->fused))
        return;
    for (int i = 0; i < out->operators; i++) {
        if (out->op[i].kind != DTP_LAYER_OP_NORM || !out->op[i].makes)
            continue;
        enum dtp_layer_tensor result = dtp_layer_first(out->op[i].makes);
        uint64_t readers = 0;
        for (int m = 0; m < out->kind.matrices; m++)
            readers += out->input[m] == result;
        if (readers > 1)
            out->bytes[result] *= readers;
    }
}

#define SHARED_TENSORS (BIT(SHARED_GATE) | BIT(SHARED_UP) | BIT(SHARED_PRODUCT) | BIT(SHARED_DOWN) | BIT(SHARED_WEIGHT))

/* What parts that run again make; `results`: what backward reads of none, where all of a part runs (checkpoint, not
 * CheckpointWithoutOutput, of Megatron-Core's moe_layer.py, mlp.py and transformer_layer.py). Norms that are one kernel
 * with the matmul behind them are left out: those of attention but for latent attention, of MLPs without experts. */
static uint64_t made_by_parts(const struct dtp_layer_kind *kind, const struct dtp_plan *plan, uint64_t *results)
{
    const uint64_t mlp = BIT(GATE) | BIT(UP) | BIT(PRODUCT), routed = BIT(ROUTER_WEIGHTS) | BIT(ROUTES) | BIT(PERMUTED);
    uint64_t made = dtp_plan_recomputes(plan, DTP_RECOMPUTE_CORE_ATTN) ? BIT(CORE_STATE) | BIT(KV_ALL) : 0;
    *results = 0;
    if (dtp_plan_recomputes(plan, DTP_RECOMPUTE_LAYERNORM))
        made |= (kind->kv_latent ? BIT(NORM1) : 0) | (kind->experts ? BIT(NORM2) : 0);
    if (dtp_plan_recomputes(plan, DTP_RECOMPUTE_MLA_UP_PROJ) && kind->kv_latent)
        made |= BIT(Q) | BIT(K) | BIT(V) | BIT(Q_LATENT_NORM) | BIT(KV_LATENT_NORM);
    if (dtp_plan_recomputes(plan, DTP_RECOMPUTE_MLP) && !kind->experts)
        made |= BIT(NORM2) | mlp, *results |= BIT(DOWN);
    if (!kind->experts)
        return made;
    if (dtp_plan_recomputes(plan, DTP_RECOMPUTE_MOE_ACT))
        made |= BIT(PRODUCT);
    if (dtp_plan_recomputes(plan, DTP_RECOMPUTE_MOE))
        made |= routed | mlp | BIT(PLACES) | SHARED_TENSORS, *results |= BIT(DOWN);
    if (dtp_plan_recomputes(plan, DTP_RECOMPUTE_SHARED_EXPERTS) && kind->shared_ffn)
        made |= SHARED_TENSORS, *results |= BIT(SHARED_DOWN);
    return made;
}

/* With what leads to it from tensors that are kept: all that operators make which run again. */
static void find_again(struct dtp_layer_tensors *out, const struct dtp_plan *plan)
{
    uint64_t results, made = made_by_parts(&out->kind, plan, &results), kept = out->saved & ~made;
    uint64_t needed = (made & out->saved) | results;
    for (int i = out->operators - 1; i >= 0; i--) {
        uint64_t makes = out->op[i].makes | out->op[i].statistics;
        if (!(makes & needed))
            continue;
        out->again |= makes;
        uint64_t reads = out->op[i].reads & BIT(CORE_COPY) ? (out->op[i].reads | BIT(CORE)) : out->op[i].reads;
        needed |= reads & ~kept & ~DTP_LAYER_STREAM;
    }
    out->kept = kept;
}

static uint64_t kept_tensors(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan)
{
    switch (dtp_plan_checkpoint_rule(plan).keeps) {
    case DTP_KEEPS_ALL: break;
    case DTP_KEEPS_INPUT: return BIT(INPUT);
    case DTP_KEEPS_ALL_BUT_CORE: return tensors->saved & ~(BIT(CORE_STATE) | BIT(KV_ALL));
    case DTP_KEEPS_SECOND_MATMULS: return BIT(INPUT) | dtp_second_matmuls(tensors, plan);
    case DTP_KEEPS_PACKED_MATMULS: return BIT(INPUT) | dtp_packed_matmuls(tensors, plan);
    case DTP_KEEPS_PARTS: break; /* find_again */
    }
    return tensors->saved;
}

void dtp_layer_tensors_of(const struct dtp_transformer *transformer, enum dtp_layer_mlp mlp,
                          const struct dtp_cluster *cluster, const struct dtp_plan *plan, struct dtp_layer_tensors *out)
{
    bool cut = cut_by_ddp(transformer, cluster, plan);
    const size_t listed = offsetof(struct dtp_layer_tensors, operators);
    memset((char *)out + listed, 0, sizeof *out - listed);
    out->fused = dtp_plan_fuses(plan);
    out->added_again = plan->compile && !cut;
    dtp_layer_kind_of(transformer, mlp, plan->fused_qkv, plan->fused_gate_up, &out->kind);
    dtp_plan_adapt_kind(plan, &out->kind);
    out->kind.narrows = dtp_plan_autocast(plan) || dtp_plan_keeps_fp8_inputs(plan);
    out->kind.narrows_sums = dtp_plan_autocast(plan);
    out->kind.qk_copied = qk_copied(transformer, plan, out);
    out->kind.weighs_rows = plan->runtime->weighs_rows;
    dtp_plan_call_experts(plan, &out->kind);
    out->kind.sinks_inside = plan->runtime->sinks_in_kernel;
    out->kind.joins_sinks = out->kind.sinks && dtp_plan_layers(plan)->joins_sinks;
    out->sent = out->kind.experts ? dtp_plan_padded_rows(plan) : 1;
    out->crossed = out->kind.exchanged ? dtp_plan_crossed_rows(plan) : 1;
    out->arriving = out->kind.exchanged ? dtp_plan_expert_arriving_part(plan, out->kind.experts_per_token) : 1;
    out->received = out->kind.experts ? dtp_plan_expert_rows(plan) : 1;
    out->kind.dropout = plan->dropout > 0;
    dtp_plan_chain_kind(transformer, plan, &out->kind);
    struct dtp_context context = dtp_plan_context(plan, cluster);
    out->gathered_ranks = context.keeps ? context.ring : 0;
    out->kind.pads_values = dtp_plan_pads_values(transformer, cluster, plan);
    out->kind.own_values = out->kind.pads_values || plan->runtime->copies_values;
    out->kind.d_v = out->kind.pads_values ? out->kind.d_q : out->kind.d_v;
    bool copied = copies_core(&out->kind, &context, plan);
    const struct pass pass = list_operators(out, plan, copied);
    out->added_again = out->added_again && out->kind.norms_before && pass.made & BIT(INPUT2);
    const struct habits habits = habits_of(out, plan, &pass, copied, repacks_heads(out, &context, plan));
    list_tensors(transformer, out, plan, &pass, &habits, made_again(out, plan, cluster, cut));
    cut_first(out, plan);
    count_casts(out, plan);
    out->casts_apart = dtp_plan_casts_apart(plan, &out->kind);
    out->kept = kept_tensors(out, plan);
    bool summed = !(out->kind.experts && out->kind.routes_all); /* the last matmul's by itself */
    out->terms_kept = summed && dtp_keeps_terms(out, plan) ? dtp_plan_compute_bytes(plan) * transformer->hidden : 0;
    if (plan->megatron.recompute)
        find_again(out, plan);
}

bool dtp_layer_tensors_first_runs(const struct dtp_layer_tensors *tensors, int index)
{
    const struct dtp_layer_operator *op = &tensors->op[index];
    bool trained = op->kind == DTP_LAYER_OP_PROJECTION && trains(&tensors->kind, op);
    uint64_t reads = op->reads;
    if (reads & BIT(CORE_COPY)) /* heads put side by side are the core's result */
        reads |= BIT(CORE);
    return trained || reads & tensors->first_gradients;
}
