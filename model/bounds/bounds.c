#include "bounds/memory_bound.h"

#include "plan/runtime.h"

uint64_t dtp_bound_saved(const struct dtp_bound *b, uint64_t layers)
{
    const struct dtp_activations *a = &b->activations;
    uint64_t checkpointed = a->checkpoint_every ? dtp_divide_up(layers, a->checkpoint_every) : 0;
    return dtp_bound_tokens(b, checkpointed * a->layer_kept + (layers - checkpointed) * a->layer_all + a->embedding);
}

uint64_t dtp_bound_scores(const struct dtp_bound *b)
{
    const struct dtp_plan *plan = b->plan;
    return plan->attention == DTP_ATTENTION_MATH ? dtp_plan_score_bytes(plan) * b->transformer->heads * plan->sequence
                                                 : 0;
}

uint64_t dtp_bound_optimizer_list(const struct dtp_bound *b, uint64_t elements)
{
    bool lists = b->plan->optimizer == DTP_ADAMW_FOREACH && b->plan->offload == DTP_OFFLOAD_NONE;
    return lists ? dtp_dtype_bytes(b->plan->precision.moments) * elements : 0;
}

uint64_t dtp_bound_block(const struct dtp_bound *b, uint64_t element_bytes, uint64_t current_bytes)
{
    uint64_t most = 0;
    for (int i = 0; i < DTP_BOUND_STAGES; i++) {
        const struct dtp_bound_stage *s = &b->stage[i];
        uint64_t bytes = dtp_bound_tokens(b, s->token_bytes + b->activations.gradient) + element_bytes * s->elements +
                         current_bytes * s->current;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void find_stages(struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
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
    uint64_t inner = dtp_activation_is_gated(t->activation) ? 2 + halves : reread + (plan->compile ? 0 : 1);
    uint64_t norm = a->layer_norms / 2;
    uint64_t middle = a->layer_all - a->layer_input - a->layer_norms - a->layer_attention - a->layer_mlp;
    uint64_t core = math ? 2 * dtp_bound_scores(b) : 4 * q;
    uint64_t chain = rope && !fused ? (c == 4 ? 2 : 5) * c * q : 0, made = c * (q + 2 * kv);
    uint64_t mlp = b->units.layer_matmul - b->units.qkv - q * h, first = a->layer_input + norm;
    uint64_t waits =
        t->parallel_block == DTP_PARALLEL_ONE_NORM ? c * h : 0; /* the other branch's, for the norm of both */
    bool again = plan->compile && plan->checkpointing != DTP_CHECKPOINT_NONE; /* a replay's variables go when it ends */
    b->stage[0] =
        (struct dtp_bound_stage){a->layer_all + larger(larger(inner * c * f, again ? c * h : 0), results), 0, matrix};
    uint64_t gated = dtp_activation_is_gated(t->activation) ? 2 : 1,
             up = (plan->fused_gate_up && !t->experts ? gated : 1) * matrix;
    b->stage[1] = (struct dtp_bound_stage){a->layer_all - a->layer_mlp + gated * c * f, mlp - up, up};
    b->stage[2] =
        (struct dtp_bound_stage){a->layer_all - a->layer_mlp - norm - middle + c * q + made + core + waits, mlp, q * h};
    b->stage[3] = (struct dtp_bound_stage){first + made + chain + waits, mlp, q * h};
    b->stage[4] = (struct dtp_bound_stage){first + c * h + made, b->units.layer - q * h, larger(q * h, kv * h)};
}

/* Where matmuls add to one buffer autograd is handed a tensor of each shape of matrices, for good (Transformer Engine's
 * get_dummy_wgrad). */
static uint64_t dummy_gradients(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    uint64_t h = t->hidden, q = t->heads * t->head_dim, kv = t->kv_heads * t->head_dim;
    bool fused = b->plan->fused_qkv, pair = dtp_activation_is_gated(t->activation) && b->plan->fused_gate_up;
    uint64_t elements = fused ? h * (q + 2 * kv) : h * q + (kv != q ? h * kv : 0);
    elements += fused || q != h ? q * h : 0;
    return b->plan->runtime->gradients_in_matmul ? b->bytes.compute * (elements + (pair ? 3 : 2) * h * t->ffn) : 0;
}

/* cuBLAS' workspaces: 4096 x 8 KiB on Hopper and later, else 2 x 4 MiB + 8 x 16 KiB (CublasHandlePool.cpp), of two
 * threads; RoPE's fp32 tables; the micro-step's 64-bit tokens; fp8 casts of weights, by rows and by columns. */
static uint64_t workspaces(const struct dtp_bound *b)
{
    enum dtp_gpu_architecture architecture = b->cluster->gpu.architecture;
    bool large = architecture == DTP_GPU_HOPPER || architecture == DTP_GPU_BLACKWELL;
    uint64_t cublas = large ? UINT64_C(4096) * 8192 : UINT64_C(4096) * 2048 + UINT64_C(16384) * 8;
    uint64_t positions = b->plan->sequence / b->plan->cp;
    uint64_t tables = b->transformer->position == DTP_POSITION_ROPE ? 4 * b->transformer->head_dim * positions : 0;
    uint64_t casts = 0;
    if (dtp_plan_keeps_fp8(b->plan)) {
        uint64_t two = 2 * b->units.layers_per_unit;
        bool units = dtp_plan_shards_params(b->plan) && b->units.count && two < b->layers;
        casts = 2 * (units ? two : b->layers) * b->units.layer_matmul;
    }
    return 2 * cublas + tables + 8 * b->tokens + casts;
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

/* 6 for every weight and token; the core 2 s d_q forward and twice that backward (Korthikanti 2022, causal or not as
 * dtp_transformer_attention_length says). */
static double model_flops(const struct dtp_bound *b)
{
    const struct dtp_transformer *t = b->transformer;
    double tokens = (double)b->tokens * b->plan->accumulate;
    double length = dtp_transformer_attention_length(t, b->plan->sequence);
    double weights = (double)b->units.layer_matmul * (double)b->layers + (double)b->units.embedding;
    if (dtp_plan_adapts(b->plan))
        return tokens * dtp_plan_model_flops_per_token(t, b->plan);
    return tokens * (6 * weights + 6 * length * (double)(t->heads * t->head_dim * t->layers));
}

void dtp_bounds_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                   const struct dtp_plan *plan, struct dtp_bounds *out)
{
    struct dtp_bound b = {.transformer = transformer, .cluster = cluster, .plan = plan, .layers = transformer->layers};
    b.tokens = dtp_plan_tokens(plan);
    dtp_units_count(transformer, cluster, plan, &b.units);
    dtp_element_bytes_count(plan, &b.bytes);
    dtp_activations_count(transformer, cluster, plan, &b.activations);
    *out = (struct dtp_bounds){.model_flops = model_flops(&b)};
    find_rest(&b, out);
    find_stages(&b);
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
    /* our executor's head keeps nothing: it goes through its logits in chunks */
    out->kept_bytes =
        dtp_bound_saved(&b, b.layers) + (plan->runtime->arena ? 0 : dtp_bound_tokens(&b, b.activations.head));
    out->memory_bytes = b.most_bytes;
    out->late_bytes = b.late_bytes;
    out->least_bytes = b.least_bytes;
}
