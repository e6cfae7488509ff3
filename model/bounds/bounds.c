#include "bounds/memory_bound.h"

#include "closed/closed_form_hooks.h"
#include "plan/slice.h"
#include "plan/fp8_casts.h"
#include "plan/optimizer_state.h"
#include "plan/runtime.h"

#include <string.h>

/* Of a layer, what fp8 matrices keep beside its activations. */
static uint64_t kept_columns(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    struct dtp_fp8_casts casts;
    if (b->plan->precision.compute != DTP_FP8)
        return 0;
    dtp_fp8_casts_of(b->plan, &b->cluster->gpu, &casts);
    uint64_t matrices = dtp_activation_is_gated(t->activation) ? 3 : 2;
    return casts.keeps_columns ? dtp_fp8_bytes(b->plan->precision.fp8_recipe, matrices * t->hidden * t->ffn) : 0;
}

/* Of the first `layers` those that are checkpointed and have experts. */
static uint64_t checkpointed_with_experts(const struct dtp_bound *b, uint64_t layers)
{
    uint64_t count = 0, every = b->activations.checkpoint_every;
    for (uint64_t layer = 0; every && layer < layers; layer += every)
        count += dtp_transformer_layer_has_experts(b->transformer, layer);
    return count;
}

/* Of layers of two kinds, of which `checkpointed` are. */
static uint64_t saved_of_two_kinds(const struct dtp_bound *b, uint64_t layers, uint64_t checkpointed)
{
    const uint64_t *all = b->layer_all, *kept = b->layer_kept;
    uint64_t with = dtp_transformer_expert_layers(b->transformer, layers), again = checkpointed_with_experts(b, layers);
    uint64_t without = layers - with, plain_again = checkpointed - again;
    return dtp_bound_tokens(b, again * kept[DTP_LAYER_EXPERTS] + (with - again) * all[DTP_LAYER_EXPERTS] +
                                   plain_again * kept[DTP_LAYER_DENSE] +
                                   (without - plain_again) * all[DTP_LAYER_DENSE] + b->activations.embedding);
}

uint64_t dtp_bound_saved(const struct dtp_bound *b, uint64_t layers)
{
    const struct dtp_activations *a = &b->activations;
    uint64_t every = a->checkpoint_every, checkpointed = every > 1 ? dtp_divide_up(layers, every) : every * layers;
    uint64_t whole = layers - checkpointed;
    return b->uniform ? dtp_bound_tokens(b, checkpointed * a->layer_kept + whole * a->layer_all + a->embedding) +
                            whole * b->kept_columns
                      : saved_of_two_kinds(b, layers, checkpointed);
}

uint64_t dtp_bound_scores(const struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    return plan->attention == DTP_ATTENTION_MATH ? dtp_plan_score_bytes(plan) * b->transformer->heads * plan->sequence
                                                 : 0;
}

uint64_t dtp_bound_optimizer_list(const struct dtp_bound *b, uint64_t elements)
{
    return dtp_optimizer_scratch_bytes(b->transformer, b->plan, elements);
}

uint64_t dtp_bound_block(const struct dtp_bound *b, uint64_t element_bytes, uint64_t current_bytes)
{
    uint64_t most = 0;
    for (int i = 0; i < b->stages; i++) {
        const struct dtp_bound_stage *s = &b->stage[i];
        uint64_t bytes = dtp_bound_tokens(b, s->token_bytes + b->activations.gradient) + element_bytes * s->elements +
                         current_bytes * s->current;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Of a model whose layers are all alike, behind those found before. */
static void add_stages(struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    struct dtp_bound_stage *stage = b->stage + b->stages;
    const struct dtp_plan *plan = b->plan;
    const struct dtp_activations *a = &b->activations;
    uint64_t c = b->bytes.compute, h = t->hidden, f = t->ffn, q = t->heads * t->head_dim,
             kv = t->kv_heads * t->head_dim, matrix = b->units.down; /* of experts all */
    if (t->experts)
        f = t->experts_per_token * t->expert_ffn;
    /* of the results of a token's experts: their gradient in fp32, twice in the compute dtype */
    uint64_t results = t->experts ? t->experts_per_token * h * (4 + 2 * c) : 0;
    bool fused = dtp_plan_fuses(plan), math = plan->attention == DTP_ATTENTION_MATH;
    bool rope = t->position == DTP_POSITION_ROPE;
    /* ReLU's derivative reads its result, which stays for it; that of an eager square has a tensor more. */
    uint64_t reread = t->activation == DTP_RELU || (t->activation == DTP_RELU2 && !fused) ? 1 : 0;
    /* Of a packed gate and up the gradient is put together of two halves. The activation's result has gone by then, but
     * for kernels that kept none. */
    uint64_t halves = plan->fused_gate_up && !plan->compile && plan->runtime->fused_kernels ? 1 : 0;
    if (t->activation == DTP_SWIGLU_CLAMPED && !plan->compile)
        halves += 4; /* of gate and up, which lie in every second column */
    uint64_t inner = dtp_activation_is_gated(t->activation) ? 2 + halves : reread + (plan->compile ? 0 : 1);
    uint64_t norm = a->layer_norms / 2;
    uint64_t middle = a->layer_all - a->layer_input - a->layer_norms - a->layer_attention - a->layer_mlp;
    uint64_t core = math ? 2 * dtp_bound_scores(b) : 4 * q;
    uint64_t v = t->kv_latent ? t->heads * t->value_head_dim : kv;
    uint64_t chain = rope && !fused ? (c == 4 ? 2 : 5) * c * q : 0, made = c * (q + kv + v);
    if (t->kv_latent) /* rope turns a part of queries; beside gradients as the core makes them, as they were projected
                       */
        chain = chain / t->head_dim * t->rope_head_dim + c * (q + kv + v);
    uint64_t mlp = b->units.layer_matmul - b->units.qkv - b->units.output, first = a->layer_input + norm;
    uint64_t waits =
        t->parallel_block == DTP_PARALLEL_ONE_NORM ? c * h : 0; /* the other branch's, for the norm of both */
    bool again = plan->compile && plan->checkpointing != DTP_CHECKPOINT_NONE; /* a replay's variables go when it ends */
    stage[0] =
        (struct dtp_bound_stage){a->layer_all + larger(larger(inner * c * f, again ? c * h : 0), results), 0, matrix};
    uint64_t gated = dtp_activation_is_gated(t->activation) ? 2 : 1,
             up = (plan->fused_gate_up && !t->experts ? gated : 1) * matrix;
    stage[1] = (struct dtp_bound_stage){a->layer_all - a->layer_mlp + gated * c * f, mlp - up, up};
    if (plan->precision.compute == DTP_FP8) { /* an operand's passes in fp32, beside it */
        struct dtp_fp8_casts casts;
        dtp_fp8_casts_of(plan, &b->cluster->gpu, &casts);
        stage[0].token_bytes += casts.scratch_bytes * f;
        stage[1].token_bytes += casts.scratch_bytes * gated * f;
    }
    stage[2] = (struct dtp_bound_stage){a->layer_all - a->layer_mlp - norm - middle + c * q + made + core + waits, mlp,
                                        b->units.output};
    stage[3] = (struct dtp_bound_stage){first + made + chain + waits, mlp, b->units.output};
    stage[4] = (struct dtp_bound_stage){first + c * h + made, b->units.layer - b->units.output,
                                        larger(b->units.output, kv * h)};
    b->stages += DTP_BOUND_STAGES;
}

/* Units and activations of a model whose layers are all alike, whose tensors are listed once for both. */
static void count_alike(struct dtp_bound *b)
{
    struct dtp_layer_tensors tensors;
    dtp_layer_tensors_of(b->transformer, dtp_layer_mlp_of(b->transformer), b->cluster, b->plan, &tensors);
    dtp_units_of(b->transformer, b->cluster, b->plan, &tensors.kind, &b->units);
    dtp_activations_of(b->transformer, b->plan, &tensors, &b->activations);
}

/* The activations of layers of one kind, and the stages of their backward. */
static void add_kind(struct dtp_bound *b, const struct dtp_transformer *alike)
{
    struct dtp_bound of = *b;
    enum dtp_layer_mlp mlp = dtp_layer_mlp_of(alike);
    of.transformer = alike;
    count_alike(&of);
    add_stages(&of);
    memcpy(b->stage, of.stage, sizeof b->stage);
    b->stages = of.stages;
    b->layer_all[mlp] = of.activations.layer_all, b->layer_kept[mlp] = of.activations.layer_kept;
    if (of.activations.layer_all > b->activations.layer_all)
        b->activations = of.activations;
}

static void add_kinds(struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    b->uniform = dtp_transformer_is_uniform(t);
    if (b->uniform) {
        count_alike(b);
        b->last_layer_all = b->activations.layer_all;
        add_stages(b);
        return;
    }
    dtp_units_count(t, b->cluster, b->plan, &b->units);
    struct dtp_transformer dense = dtp_transformer_all_alike(t, false), experts = dtp_transformer_all_alike(t, true);
    bool last = dtp_transformer_layer_has_experts(t, t->layers - 1);
    add_kind(b, &dense);
    add_kind(b, &experts);
    b->last_layer_all = b->layer_all[last ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE];
}

/* Where matmuls add to one buffer autograd is handed a tensor of each shape of matrices, for good (Transformer Engine's
 * get_dummy_wgrad). */
static uint64_t dummy_gradients(const struct dtp_bound *b)
{
    struct dtp_layer_kind kind;
    uint64_t elements = 0;
    if (!b->plan->runtime->gradients_in_matmul)
        return 0;
    dtp_layer_kind_of(b->transformer, DTP_LAYER_DENSE, b->plan->fused_qkv, b->plan->fused_gate_up, &kind);
    for (int i = 0; i < kind.matrices; i++) {
        int k = 0;
        while (kind.matrix[k].out != kind.matrix[i].out || kind.matrix[k].in != kind.matrix[i].in)
            k++;
        elements += k == i ? kind.matrix[i].out * kind.matrix[i].in : 0;
    }
    return b->bytes.compute * elements;
}

/* What DDP's hook keeps of gradients (plan/comm_hook.h): 16-bit copies; sums of what int8 gathers; PowerSGD's errors
 * and factors, a workspace of `cublas` bytes of each stream. */
static uint64_t hooked(const struct dtp_bound *b, uint64_t cublas)
{
    const struct dtp_plan *plan = b->plan;
    if (!plan->comm_hook || !dtp_plan_has_ddp_buckets(plan, b->cluster))
        return 0;
    if (plan->comm_hook != DTP_COMM_HOOK_POWERSGD)
        return (plan->comm_hook == DTP_COMM_HOOK_INT8 ? b->bytes.grads : b->bytes.reduce) * b->units.total;
    struct dtp_traffic job = {b->transformer, b->cluster, plan, .units = b->units};
    struct dtp_factored f = dtp_traffic_factored(&job);
    return b->bytes.grads * (b->units.total + f.p + f.q) + DTP_POWERSGD_STREAMS * cublas;
}

/* cuBLAS' workspaces: 4096 x 8 KiB on Hopper and later, else 2 x 4 MiB + 8 x 16 KiB (CublasHandlePool.cpp), of two
 * threads; what a hook keeps; RoPE's fp32 tables; the micro-step's 64-bit tokens; fp8 casts of weights, by rows and by
 * columns. */
static uint64_t workspaces(const struct dtp_bound *b)
{
    enum dtp_gpu_architecture architecture = b->cluster->gpu.architecture;
    bool large = architecture == DTP_GPU_HOPPER || architecture == DTP_GPU_BLACKWELL;
    uint64_t cublas = large ? UINT64_C(4096) * 8192 : UINT64_C(4096) * 2048 + UINT64_C(16384) * 8;
    uint64_t positions = b->plan->sequence / b->plan->cp;
    uint64_t tables = b->transformer->position == DTP_POSITION_ROPE ? 4 * b->transformer->head_dim * positions : 0;
    uint64_t casts = 0;
    if (dtp_plan_keeps_fp8(b->plan) && !b->plan->runtime->arena) { /* whose casts of weights go with their matmuls */
        uint64_t two = 2 * b->units.layers_per_unit;
        bool units = dtp_plan_shards_params(b->plan) && b->units.count && two < b->layers;
        casts = dtp_fp8_standing_bytes(b->plan, &b->cluster->gpu, (units ? two : b->layers) * b->units.layer_narrow);
    }
    return hooked(b, cublas) + 2 * cublas + tables + 8 * b->tokens + casts;
}

static void find_rest(struct dtp_bound *b, struct dtp_bounds *out)
{
    struct dtp_state_bytes state;
    dtp_state_bytes_count(b->transformer, b->cluster, &b->units, b->plan, &b->bytes, NULL, &state);
    out->params_bytes = state.params;
    out->optimizer_bytes = state.optimizer;
    out->grads_bytes = state.grads;
    b->rest_bytes = state.params + state.optimizer + workspaces(b) + dummy_gradients(b);
}

/* 6 for every weight that a token meets; the core 2 s d_q forward and twice that backward (Korthikanti 2022, causal or
 * not as dtp_transformer_attention_length says). */
static double model_flops(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    double tokens = (double)b->tokens * b->plan->accumulate;
    double length = dtp_transformer_attention_length(t, b->plan->sequence);
    if (dtp_plan_adapts(b->plan))
        return tokens * dtp_plan_model_flops_per_token(t, b->plan);
    double matrices =
        t->experts ? (double)dtp_transformer_count(t).layers_matmul : (double)b->units.layer_matmul * (double)b->layers;
    double weights = matrices + (double)b->units.embedding;
    return tokens * (6 * weights + 6 * length * dtp_transformer_core_width(t) * (double)t->layers);
}

/* What int8 makes of a bucket while it is reduced: its bytes, those of all ranks flat and apart, a rank's as numbers. A
 * block's bucket may meet any instant of backward; the first closes behind the head, the last behind the embedding. */
static void add_gathered_buckets(struct dtp_bound *b)
{
    const struct dtp_traffic job = {b->transformer, b->cluster, b->plan, .units = b->units};
    uint64_t g = b->bytes.grads, element = 1 + 2 * (uint64_t)b->cluster->gpus + 3 * g;
    if (b->plan->comm_hook != DTP_COMM_HOOK_INT8 || !dtp_plan_has_ddp_buckets(b->plan, b->cluster))
        return;
    const struct dtp_ddp_bucket_count buckets = dtp_traffic_ddp_buckets(&job, g);
    if (buckets.count > 1)
        dtp_bound_keep(b, b->gradients_bytes + dtp_bound_saved(b, b->layers) +
                              dtp_bytes_product(element, buckets.first_elements));
    b->most_bytes = larger(b->most_bytes, b->block_bytes + dtp_bytes_product(element, buckets.largest_elements));
    dtp_bound_keep_late(b, b->gradients_bytes + dtp_bytes_product(element, buckets.last_elements));
}

void dtp_bounds_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                   const struct dtp_plan *plan, struct dtp_bounds *out)
{
    struct dtp_transformer own;
    struct dtp_bound b = {.transformer = transformer, .cluster = cluster, .plan = plan, .layers = transformer->layers};
    if (transformer->experts) { /* experts that ranks divide are a part of them */
        own = dtp_plan_own_experts(transformer, plan);
        b.transformer = &own;
    }
    b.tokens = dtp_plan_tokens(plan);
    b.kept_columns = kept_columns(&b);
    dtp_element_bytes_count(plan, &b.bytes);
    add_kinds(&b);
    *out = (struct dtp_bounds){.model_flops = model_flops(&b)};
    find_rest(&b, out);
    if (plan->runtime->arena)
        dtp_bound_executor(&b);
    else if (dtp_plan_adapts(plan))
        dtp_bound_adapted(&b);
    else if (dtp_plan_is_fsdp(plan))
        dtp_bound_fsdp(&b);
    else if (dtp_plan_fetches_modules(plan))
        dtp_bound_fetched(&b);
    else
        dtp_bound_replicated(&b);
    add_gathered_buckets(&b);
    /* our executor's head keeps nothing: it goes through its logits in chunks */
    out->kept_bytes =
        dtp_bound_saved(&b, b.layers) + (plan->runtime->arena ? 0 : dtp_bound_tokens(&b, b.activations.head));
    out->memory_bytes = b.most_bytes;
    out->late_bytes = b.late_bytes;
    out->least_bytes = b.least_bytes;
}
