/* One block: what its layers keep for backward, and the stages of that (bounds.h). */
#include "bounds/memory_bound.h"

#include "plan/context.h"
#include "plan/fp8_casts.h"
#include "plan/runtime.h"

uint64_t dtp_bound_layers(const struct dtp_bound *b, uint64_t layers, const uint64_t *kept, const uint64_t *whole)
{
    const uint64_t every = b->activations.checkpoint_every, uncut = kept == whole ? layers : dtp_bound_whole(b, layers);
    uint64_t experts = b->uniform ? 0 : dtp_transformer_expert_layers(b->transformer, layers), again = 0;
    for (uint64_t layer = 0; experts && uncut < layers && layer < layers; layer += every)
        again += dtp_transformer_layer_has_experts(b->transformer, layer);
    return (layers - uncut - again) * kept[0] + (uncut - (experts - again)) * whole[0] +
           (experts ? again * kept[1] + (experts - again) * whole[1] : 0);
}

uint64_t dtp_bound_wide(const struct dtp_bound *b, uint64_t layers, const uint64_t *of_kind)
{
    uint64_t sum = 0;
    for (uint64_t layer = 0; layer < layers; layer++)
        if (dtp_plan_layer_is_wide(b->plan, b->transformer, layer))
            sum += of_kind[dtp_bound_kind_of(b, layer)];
    return sum;
}

uint64_t dtp_bound_forward(const struct dtp_bound *b)
{
    const bool replayed = dtp_bound_whole(b, b->layers) == dtp_bound_whole(b, b->layers - 1),
               goes = replayed && b->plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_ATTENTION; /* adapters' own */
    return dtp_bound_tokens(b, b->activations.layer_all - (goes ? b->low - smaller(b->low_one, b->low) : 0)) +
           (replayed ? b->checkpointed_weights : b->kept_weights) + larger(b->forward_bytes, b->unpacking) +
           dtp_bound_tokens(b, b->unkept);
}

uint64_t dtp_bound_block(const struct dtp_bound *b, int kind, uint64_t element_bytes, uint64_t current_bytes)
{
    const bool any = kind == DTP_LAYER_MLPS;
    const int each = b->stages / (b->uniform ? 1 : DTP_LAYER_MLPS), end = any ? b->stages : (kind + 1) * each;
    uint64_t most = b->unpacking ? dtp_bound_tokens(b, b->activations.layer_all + b->term) + b->unpacking : 0;
    for (int i = any ? 0 : kind * each; i < end; i++) {
        const struct dtp_bound_stage *s = &b->stage[i];
        most = larger(most, dtp_bound_tokens(b, s->token_bytes) + element_bytes * s->elements +
                                current_bytes * s->current + s->bytes + b->unpacked_one);
    }
    /* a reentrant replay goes to the block's result, which stands until that is through */
    if (b->activations.checkpoint_every && dtp_plan_layers(b->plan)->holds_replayed)
        most = larger(most + dtp_bound_tokens(b, b->activations.layer_input),
                      dtp_bound_tokens(b, b->activations.layer_all) + b->forward_bytes);
    const uint64_t wider = b->plan->megatron.bf16_last ? larger(b->wider[0], b->wider[1]) : 0;
    return most + dtp_bound_tokens(b, b->activations.gradient + wider) +
           (b->activations.checkpoint_every == 1 ? b->again_weights : b->kept_weights);
}

/* The stage of a block's backward in which a matrix' gradient is made. */
static int stage_of(enum dtp_layer_matrix_id id)
{
    bool up = id == DTP_MATRIX_GATE || id == DTP_MATRIX_UP;
    return id == DTP_MATRIX_DOWN ? 0 : up ? 1 : id == DTP_MATRIX_OUTPUT ? 2 : 3;
}

/* Bytes of a token that adapters have: x A^T of each and what they read alone, kept; behind it at each stage a scaled
 * gradient, or a term of an input's, beside the frozen matrix', while the gradient of what a frozen down matrix reads
 * takes no kept tensor's room; of a compiler's kernel between the MLP's matmuls a tensor for each term. */
struct adapters {
    uint64_t terms, results, stage[DTP_BOUND_STAGES], low[DTP_BOUND_STAGES];
    uint64_t whole; /* bytes of the largest gradient of a matrix to which its adapter is added */
};

/* DoRA: two results stay; forward the identity beside B A, W + s B A or terms of the result; backward four of these. */
static void add_magnitudes(struct dtp_bound *b, const struct dtp_layer_matrix *m, uint64_t *stage)
{
    const struct dtp_magnitude_passes p = dtp_plan_magnitude_passes(b->plan);
    const uint64_t c = b->bytes.compute, all = m->in * m->out, wide = p.casts ? p.sum * m->in * m->in : 0,
                   rows = dtp_bound_tokens(b, (p.terms_workspace + p.sum) * m->out),
                   room = larger(c * all + wide, p.product * all + larger(p.norm_workspace * all, rows));
    b->low += 2 * c * m->out, b->unpacking = larger(b->unpacking, c * m->in * (m->in + m->rank) + room);
    *stage = larger(*stage, (p.back_workspace + 2 * c) * m->out);
}

/* What is unpacked once for forward and backward stays between them where both are of one pass: of a block that keeps
 * all, or of a replay, which makes no product whose result is kept, nor the last one, unless something reads it. A
 * first block needs those alone whose input has a gradient. */
static void add_unpacked(struct dtp_bound *b, const struct dtp_layer_tensors *tensors, int i, bool one_replayed)
{
    const struct dtp_layer_matrix *m = &tensors->kind.matrix[i];
    const uint64_t read = b->bytes.compute * m->out * m->in, result = UINT64_C(1) << m->result;
    const bool called = !b->plan->compile && m->rank,
               last = i == tensors->kind.matrices - 1 && !(tensors->saved & result || called),
               core = b->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION,
               packed = dtp_plan_checkpoint_rule(b->plan).keeps == DTP_KEEPS_PACKED_MATMULS,
               again = packed || tensors->kept == tensors->saved || !(core || last || tensors->kept & result),
               back = !tensors->cut || tensors->first_gradients >> tensors->input[i] & 1,
               needed = back || b->layers > 1, stays = dtp_base_stays_unpacked(b->plan) && needed;
    b->kept_weights += stays ? m->groups * read : 0;
    b->again_weights += stays && again ? m->groups * read : 0;
    b->checkpointed_weights += stays && packed ? m->groups * read : 0;
    b->cut += stays && (packed || tensors->kept == tensors->saved) && !back ? m->groups * read : 0;
    b->unpacked_one = larger(b->unpacked_one, !needed || (stays && (again || !one_replayed)) ? 0 : read);
    b->unpacking = larger(b->unpacking, dtp_base_unpacking(b->plan, m->out, m->in).workspace_bytes + read);
}

/* W + B A and factors, which stay between forward and backward as packed weights do that are unpacked once; as they
 * are made, another sum; in backward a gradient as large. */
static void add_folded(struct dtp_bound *b, const struct dtp_layer_matrix *m, struct adapters *a)
{
    const uint64_t c = b->bytes.compute, all = c * m->groups * m->out * m->in,
                   factors = c * m->groups * m->rank * (m->out + m->in), kept = all + factors;
    b->kept_weights += kept, b->again_weights += kept, b->unpacking += kept;
    a->whole = larger(a->whole, all + factors);
}

static void add_adapter(struct dtp_bound *b, const struct dtp_layer_kind *kind, int i, bool replays, struct adapters *a)
{
    const struct dtp_layer_matrix *m = &kind->matrix[i];
    const struct dtp_adapter_choice *asked = &b->plan->adapters;
    const bool casts = dtp_plan_widens_norms(b->plan) && m->id != DTP_MATRIX_OUTPUT;
    uint64_t c = b->bytes.compute, w = dtp_plan_adapter_bytes(b->plan), kept = w > c || casts ? w : 0;
    bool down = m->id == DTP_MATRIX_DOWN, compiled = b->plan->compile, up = stage_of(m->id) == 1;
    if (m->folded) {
        add_folded(b, m, a);
        return;
    }
    uint64_t *stage = &a->stage[stage_of(m->id)];
    const uint64_t rows = m->expert ? kind->experts_per_token : 1, own = (asked->dropout > 0 ? w + 1 : kept) * m->in,
                   low = m->rank ? rows * (w * m->rank + own) : 0, goes = asked->dropout > 0 ? 0 : own;
    b->low += low, a->low[stage_of(m->id)] += low + (m->magnitudes ? 2 * c * m->out : 0);
    b->low_one = larger(b->low_one, !m->rank ? 0 : low + (m->magnitudes ? 2 : compiled ? 0 : w / c) * w * m->out);
    if (compiled)
        a->terms += down ? c * m->in : m->rank && up ? c * m->out : 0;
    a->results += replays && m->rank && (up || m->id == DTP_MATRIX_OUTPUT) ? c * m->out : 0;
    b->term = larger(b->term, down && m->rank ? w * m->in : 0);
    const uint64_t wide = casts ? dtp_plan_result_bytes(b->plan) : w / c * w;
    if (!compiled && !m->expert) /* of experts one at a time */
        *stage = larger(*stage, m->rank ? wide * larger(down ? 0 : m->out, m->in) - goes
                                : down  ? larger(c, casts ? wide : 0) * m->in
                                        : 0);
    if (m->magnitudes)
        add_magnitudes(b, m, stage);
}

static struct adapters adapters_of(struct dtp_bound *b, const struct dtp_layer_tensors *tensors,
                                   struct dtp_activations *activations)
{
    struct adapters a = {0};
    for (int i = 0; i < tensors->kind.matrices; i++) {
        add_adapter(b, &tensors->kind, i, activations->checkpoint_every && b->plan->compile, &a);
        if (b->plan->adapters.base != DTP_BASE_NONE)
            add_unpacked(b, tensors, i, activations->checkpoint_every == 1);
    }
    activations->layer_all += b->low;
    activations->layer_kept += b->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION ? b->low : 0;
    if (tensors->kept == tensors->saved) { /* nothing is made again */
        activations->checkpoint_every = 0;
        b->cut += tensors->cut
                      ? dtp_bound_tokens(b, dtp_layer_tensors_bytes(tensors, tensors->saved ^ tensors->saved_first))
                      : 0;
    }
    if (!b->plan->adapters.train_ends)
        b->head_input = dtp_plan_result_bytes(b->plan) * b->transformer->hidden;
    if (dtp_plan_widens_norms(b->plan) && !dtp_plan_widens_ends(b->plan)) /* the embedding's rows */
        b->narrow_input = dtp_bound_tokens(b, (4 - b->bytes.compute) * b->transformer->hidden);
    return a;
}

/* An activation's gradients, of a token and column. ReLU's derivative reads its result, which stays for it; that of an
 * eager square has a tensor more. Of a packed gate and up the gradient is put together of two halves: the activation's
 * result has gone by then, but for kernels that kept none. Clamped ones lie in every second column. Compiled
 * ones take the room of what was read, unless an adapter of the down matrix keeps that. */
static uint64_t inner_gradients(const struct dtp_bound *b, const struct dtp_layer_kind *kind)
{
    const struct dtp_plan *plan = b->plan;
    uint64_t eager = plan->compile ? 0 : 1, halves = plan->fused_gate_up && plan->runtime->fused_kernels ? eager : 0;
    uint64_t reread = (!eager && b->term) || (kind->squares ? !dtp_plan_fuses(plan) : kind->from_result);
    return kind->gated ? 2 + halves + (kind->clamps ? 4 * eager : 0) : reread + eager;
}

/* Of a token, what attention's backward in steps has besides one core's: keys and values at hand, and on their way, and
 * sums of gradients. PyTorch's are fp32: of what is summed, sent, received and put beside it. */
static uint64_t in_steps(const struct dtp_bound *b, const struct dtp_layer_kind *kind)
{
    const struct dtp_context context = dtp_plan_context(b->plan, b->cluster);
    const uint64_t c = b->bytes.compute, ring = context.ring, kv = 2 * c * kind->d_kv,
                   hand = kv * (context.gathers ? ring : 1 + 2 * (ring > 2));
    if (ring == 1)
        return 0;
    if (!b->plan->runtime->walks_gathered)
        return c * kind->d_q + kv * (context.by_pieces ? 3 * ring - 1 : 4);
    return 32 * kind->d_kv + (context.keeps ? 0 : hand);
}

/* Of a token, what steps of shared attention in fp32 have in forward: two results and twice that to merge them, the one
 * that is kept, keys and values. */
static uint64_t walked(const struct dtp_bound *b, const struct dtp_layer_kind *kind)
{
    const bool steps = b->plan->cp > 1 && b->plan->cp_comm != DTP_CP_A2A && b->plan->runtime->walks_gathered;
    return steps ? (16 + b->bytes.compute) * kind->d_q + 6 * b->bytes.compute * kind->d_kv : 0;
}

/* In forward beside all that a block saves: an operand in fp32 and its cast, of the last product; or as the block's
 * result is made, of eager kernels, what the last branch returned, of branches side by side both and their sum; where
 * no norm stands before branches what these read of the stream is saved cast, and stands besides; or instead of the
 * MLP's tensors what attention walks through. */
static uint64_t forward_bytes(const struct dtp_bound *b, const struct dtp_layer_tensors *tensors,
                              const struct dtp_activations *a, uint64_t up, uint64_t cast)
{
    const struct dtp_layer_kind *kind = &tensors->kind;
    const uint64_t locals = dtp_layer_tensors_bytes(tensors, tensors->locals & ~tensors->saved);
    const uint64_t c = b->bytes.compute, steps = walked(b, kind),
                   returned = kind->norms_after ? a->layer_input : c * kind->hidden,
                   streams = kind->norms_before ? 0 : 2 * (a->layer_input - c * kind->hidden),
                   results = dtp_plan_fuses(b->plan) || b->plan->compile
                                 ? (kind->experts ? 4 * kind->hidden + locals : 0)
                             : kind->parallel ? 4 * c * kind->hidden
                                              : returned + a->layer_input + streams;
    return larger(dtp_bound_tokens(b, larger(results, larger(steps, a->layer_mlp) - a->layer_mlp)),
                  larger(dtp_bound_tokens(b, cast * kind->ffn), cast * up));
}

/* The five stages of a block of such a kind, behind those found before. */
static void add_stages(struct dtp_bound *b, const struct dtp_layer_tensors *tensors, const struct dtp_activations *a,
                       const struct dtp_units *u, const struct adapters *adapters)
{
    const struct dtp_layer_kind *kind = &tensors->kind;
    struct dtp_bound_stage *stage = b->stage + b->stages;
    const struct dtp_plan *plan = b->plan;
    const uint64_t r = dtp_plan_result_bytes(plan), times = dtp_plan_score_gradients(plan);
    uint64_t c = b->bytes.compute, h = kind->hidden, f = kind->ffn, q = kind->d_q, kv = kind->d_kv, matrix = u->down;
    /* of the results of a token's experts: their gradient in fp32, twice in the compute dtype */
    uint64_t results = kind->experts ? kind->experts_per_token * h * (4 + 2 * c) : 0, gated = kind->gated ? 2 : 1;
    bool rotates = kind->rotary && !dtp_plan_fuses(plan), one_norm = kind->parallel == DTP_PARALLEL_ONE_NORM;
    uint64_t norm = a->layer_norms / 2, first = a->layer_input + norm, low = adapters->low[3]; /* of q, k, v alone */
    /* attention's scores, where the math kernel writes them */
    const uint64_t scores =
        plan->attention == DTP_ATTENTION_MATH ? dtp_plan_score_bytes(plan) * kind->heads * plan->sequence : 0;
    const bool runs = !tensors->cut || b->layers > 1 ||
                      tensors->first_gradients & (DTP_TENSOR_BIT(Q) | DTP_TENSOR_BIT(K) | DTP_TENSOR_BIT(V));
    uint64_t core = !runs ? 0 : scores ? times * scores : 4 * q + (plan->cp > 1 ? in_steps(b, kind) : 0);
    uint64_t made = r * (q + kv + (kind->kv_latent ? kind->d_core : kv)),
             chain = rotates ? (r == 4 ? 2 : 5) * r * q : 0;
    if (kind->kv_latent) /* rope turns a part of queries; beside gradients as the core makes them, as projected */
        chain = chain / kind->head_dim * kind->rope_head_dim + made;
    uint64_t mlp = u->layer_matmul - u->qkv - u->output,
             up = (plan->fused_gate_up && !kind->experts ? gated : 1) * matrix;
    uint64_t waits = one_norm ? c * h : 0; /* the other branch's, for the norm of both */
    bool again = plan->compile && plan->checkpointing != DTP_CHECKPOINT_NONE; /* a replay's variables go when it ends */
    struct dtp_fp8_casts casts = {.scratch_bytes = 0}; /* an operand's passes in fp32, beside it and its cast */
    if (plan->precision.compute == DTP_FP8)
        dtp_fp8_casts_of(plan, &b->cluster->gpu, &casts);
    if (casts.keeps_columns && b->uniform)
        b->again_weights = b->kept_weights =
            dtp_fp8_bytes(plan->precision.fp8_recipe, (gated + 1) * h * b->transformer->ffn);
    /* the product's own gradient takes its room, as far as it was kept */
    const uint64_t product = tensors->saved & DTP_TENSOR_BIT(PRODUCT) ? tensors->bytes[DTP_TENSOR_PRODUCT] : 0,
                   lost = kind->adapted ? 0 : c * f - smaller(product, c * f);
    /* compiled casts of an operand and of the weight stand together, in forward and as the input's gradient is made */
    const uint64_t joined = plan->precision.compute == DTP_FP8 && !casts.kept && !casts.scratch_bytes;
    /* as down's gradients are made, a cast of the stream's beside that of what down reads */
    const uint64_t each = inner_gradients(b, kind),
                   cast_down = smaller(each, 1) * c * f + smaller(c * h, a->gradient - c * h);
    uint64_t inner = larger(larger(larger(each * r * f, cast_down) + lost, again ? c * h : 0), results);
    if (plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION) /* it runs again beside the MLP's */
        inner = larger(inner, walked(b, kind));
    if (again && plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL) { /* whose replay goes to the end */
        uint64_t makes = 0;
        for (int i = 0; i < tensors->operators; i++)
            makes |= tensors->op[i].makes;
        const uint64_t variables = dtp_layer_tensors_bytes(tensors, makes & ~tensors->saved);
        inner = larger(inner, variables + joined * f);
    }
    b->unkept =
        larger(b->unkept, kind->adapted || plan->precision.compute == DTP_FP8 ? r * f - smaller(product, r * f) : 0);
    const uint64_t scratch = casts.scratch_bytes, cast = scratch ? scratch + 1 : 0; /* of rows, or of the weight */
    b->forward_bytes = larger(b->forward_bytes, larger(forward_bytes(b, tensors, a, up, cast),
                                                       dtp_bound_tokens(b, runs ? scores : 2 * scores)));
    const struct dtp_bound_stage stages[DTP_BOUND_STAGES] = {
        {a->layer_all + inner, 0, matrix, larger(dtp_bound_tokens(b, scratch * f), cast * matrix)},
        {a->layer_all - a->layer_mlp - adapters->low[0] + r * gated * f + joined * (gated * f + c * h), mlp - up, up,
         larger(dtp_bound_tokens(b, cast * (up / matrix) * f), (cast + joined) * up)},
        {first + a->layer_attention + low + c * q + made + core + waits, mlp, u->output},
        {first + made + chain + waits + low, mlp, u->output},
        {first + r * h + made + low, u->layer - u->output, larger(u->output, kv * h)}};
    /* adapters' gradients are few; those of down's are made before the activation's, but for what that reads */
    const uint64_t made_first = adapters->stage[0] - smaller(adapters->stage[0], r * f),
                   alone = plan->compile ? 0 : smaller(inner, made_first);
    for (int i = 0; i < DTP_BOUND_STAGES; i++) {
        const uint64_t adapted = stages[i].token_bytes + adapters->stage[i] + (i < 2 ? adapters->results : 0) +
                                 (i ? 0 : adapters->terms) - (i ? 0 : alone);
        stage[i] = kind->adapted ? (struct dtp_bound_stage){adapted, u->layer_trained, 0, i < 2 ? adapters->whole : 0}
                                 : stages[i];
    }
    b->stages += DTP_BOUND_STAGES;
}

static void list_matrices(struct dtp_bound *b, const struct dtp_layer_kind *kind, int index)
{
    b->matrices[index] = kind->matrices;
    for (int i = 0; i < kind->matrices; i++) {
        const struct dtp_layer_matrix *m = &kind->matrix[i];
        const uint64_t elements = m->groups * m->out * m->in, adapters = dtp_adapter_elements(m) - m->magnitudes;
        b->matrix[index][i] = (struct dtp_fetched_matrix){elements, kind->adapted ? adapters : elements,
                                                          m->rank * larger(m->in, m->out), stage_of(m->id)};
    }
}

void dtp_bound_kind(struct dtp_bound *b, const struct dtp_job_layers *layers, int index)
{
    const struct dtp_layer_tensors *tensors = &layers->tensors[index];
    const struct dtp_units *units = &layers->alike[index];
    struct dtp_activations activations;
    dtp_activations_of(b->transformer, b->plan, tensors, &activations);
    struct adapters adapters = dtp_plan_adapts(b->plan) ? adapters_of(b, tensors, &activations) : (struct adapters){0};
    if (b->plan->runtime->arena)
        dtp_bound_executor_kind(b, &tensors->kind, index, &activations);
    else
        add_stages(b, tensors, &activations, units, &adapters);
    if (b->plan->runtime->counts_elements)
        list_matrices(b, &tensors->kind, index);
    b->layer_all[index] = activations.layer_all, b->layer_kept[index] = activations.layer_kept;
    b->layer_cast[index] = units->layer_cast, b->layer_narrow[index] = units->layer_narrow;
    b->layer_trained[index] = dtp_plan_adapts(b->plan) ? units->layer_trained : units->layer;
    b->wider[index] = layers->wide[index] - smaller(layers->wide[index], activations.layer_kept);
    b->layer_own[index] = dtp_plan_adapts(b->plan) ? b->trained->layer_shard : units->layer_shard;
    b->layer_padded[index] = dtp_units_padded(units, b->plan, units->layer, units->layer_shard, units->expert_shard);
    if (index == 0 || activations.layer_all > b->activations.layer_all)
        b->activations = activations;
}
