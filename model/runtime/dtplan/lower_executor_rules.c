/* What follows from a plan for our executor, and what it cannot run. */
#include "runtime/dtplan/lower_executor.h"

#include "closed/activations.h"
#include "cost/attention_workspace.h"
#include "lower/lower.h"
#include "base/bytes.h"
#include "closed/sharding.h"
#include "plan/context.h"

#include <inttypes.h>

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static uint64_t chunk_tokens(const struct dtp_plan *plan, uint64_t tokens, uint64_t row_bytes)
{
    uint64_t most = dtp_executor_loss_chunk_rows(plan->executor.loss_chunk, row_bytes);
    return tokens < most ? tokens > 1 ? tokens : 1 : most; /* of none, as of a seq that cp does not divide, one */
}

static uint64_t attention_workspace(const struct dtp_transformer *t, const struct dtp_plan *plan, bool backward)
{
    const struct dtp_attention_asked asked = dtp_attention_asked_of(t, plan, backward);
    return dtp_attention_planned_bytes(&asked);
}

static void find_sharding(const struct dtp_transformer *t, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, struct dtp_executor_rules *out)
{
    uint64_t data = dtp_plan_gradient_ranks(plan, cluster), shard = dtp_plan_shard_ranks(cluster, plan);
    out->shard_ranks = shard < data ? shard : data;
    out->replicas = data / out->shard_ranks;
    bool shards = out->shard_ranks > 1;
    out->host_optimizer = plan->offload != DTP_OFFLOAD_NONE;
    out->host_params = plan->offload == DTP_OFFLOAD_PARAMS || plan->offload == DTP_OFFLOAD_NVME;
    out->sharded = out->host_params || (shards && dtp_plan_shards_params(plan) && plan->reshard_after_forward);
    out->gathers_once = shards && !out->sharded;
    out->reduces_always = plan->accumulate > 1 && dtp_plan_reductions(plan) == plan->accumulate;
    out->updates_in_backward = plan->executor.update_in_backward;
    out->streams_gradients = (out->host_optimizer || out->updates_in_backward) && shards && !out->reduces_always;
    out->hook = out->replicas > 1 ? plan->comm_hook : DTP_COMM_HOOK_NONE;
    out->wire = out->hook == DTP_COMM_HOOK_FP16 ? DTP_FP16 : out->hook == DTP_COMM_HOOK_INT8 ? DTP_INT8 : DTP_BF16;
    out->ring = plan->prefetch ? (uint64_t)plan->prefetch_depth + 1 : 1;
    out->ring = out->ring < t->layers ? out->ring : t->layers;
}

uint64_t dtp_executor_expert_shards(const struct dtp_plan *plan, const struct dtp_executor_rules *rules)
{
    uint64_t ep = plan->ep > 1 ? plan->ep : 1, ranks = rules->shard_ranks * rules->tensor_ranks;
    return rules->shard_ranks > 1 && ranks > ep ? ranks / ep : 1;
}

uint64_t dtp_executor_expert_copies(const struct dtp_plan *plan, const struct dtp_executor_rules *rules)
{
    uint64_t ep = plan->ep > 1 ? plan->ep : 1;
    return rules->replicas * rules->shard_ranks * rules->tensor_ranks / ep / dtp_executor_expert_shards(plan, rules);
}

/* Our kernel adds up in fp32 what copy engines exchange. Kept so, bf16 gradients give the optimizer what FSDP2 with an
 * fp32 reduce_dtype gives it: each rounded once where it is made, their sum not at all (PyTorch: foreach_reduce in
 * _fsdp_collectives.py). The head's, made in chunks, and whole ones over several micro-steps still add up in bf16. Only
 * a master copy has a use for that. Not where shards go to the host: twice the bytes there. */
static bool keeps_wide_sums(const struct dtp_executor_rules *rules)
{
    return rules->exchanges && rules->master && !rules->host_optimizer;
}

/* Of Muon, where its matrices have but one, the others'. */
static uint32_t moments_of(const struct dtp_plan *plan)
{
    const struct dtp_optimizer_row *row = dtp_optimizer_row(plan->optimizer);
    return row->shape == DTP_STATE_MATRICES ? 2 : (uint32_t)row->states;
}

void dtp_executor_rules(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_executor_rules *out)
{
    const struct dtp_transformer *t = transformer;
    const struct dtp_precision *p = &plan->precision;
    uint64_t element = dtp_plan_compute_bytes(plan), tokens = dtp_plan_tokens(plan);
    enum dtp_dtype stored = dtp_plan_adapts(plan) ? plan->adapters.dtype : p->master; /* of what is trained */
    *out = (struct dtp_executor_rules){.compute = p->compute == DTP_FP8 ? DTP_BF16 : p->compute,
                                       .moments = p->moments,
                                       .moment_count = moments_of(plan),
                                       .orthogonal = plan->optimizer == DTP_MUON,
                                       .master = element < 4 && dtp_dtype_bytes(stored) == 4,
                                       .tokens = tokens,
                                       .sequence = plan->sequence / (plan->cp ? plan->cp : 1),
                                       .tensor_ranks = plan->sequence_shards ? plan->sequence_shards : 1,
                                       .vocab_stride = dtp_parameter_head_rows(t),
                                       .statistics_bytes = t->norm == DTP_RMS_NORM ? 4 : 8,
                                       .attention_workspace_bytes = attention_workspace(t, plan, false),
                                       .attention_backward_workspace_bytes = attention_workspace(t, plan, true),
                                       .exchange_chunks = dtp_context_chunks(plan, t->kv_heads),
                                       .scales_loss = p->compute == DTP_FP16};
    out->stream_tokens = tokens / out->tensor_ranks;
    out->tensor_chunks = dtp_executor_tensor_chunks(plan);
    /* Whether fp16 overflowed is seen by the norm. */
    out->gradient_norm = plan->clip_norm > 0 || plan->executor.gradient_norm || out->scales_loss;
    find_sharding(t, cluster, plan, out);
    out->chunk_tokens = chunk_tokens(plan, tokens, element * out->vocab_stride);
    out->chunk_count = dtp_divide_up(tokens, out->chunk_tokens);
    /* Rounded once, and read by the optimizer: as PyTorch does on one GPU. What is added up is added up wide. */
    bool once = dtp_plan_gradient_ranks(plan, cluster) == 1 && plan->accumulate == 1;
    out->gradient = once ? out->compute : p->reduce;
    out->head_gradient = once && out->chunk_count == 1 && !t->tied_head ? out->compute : p->reduce;
    out->exchanges = plan->executor.reduce_engine == DTP_ENGINE_COPY && out->shard_ranks > 1;
    out->wide_sums = keeps_wide_sums(out);
}

struct dtp_gradient_dtypes dtp_executor_gradient_dtypes(const struct dtp_transformer *transformer,
                                                        const struct dtp_executor_rules *rules, uint64_t module)
{
    bool has_head = module == (transformer->tied_head ? 0 : transformer->layers + 1);
    enum dtp_dtype whole = has_head ? rules->head_gradient : rules->gradient;
    return (struct dtp_gradient_dtypes){.whole = whole, .shard = rules->wide_sums ? DTP_FP32 : whole};
}

/* ---- what cannot be run ------------------------------------------------------------------------------------------ */

struct checker {
    const struct dtp_transformer *t;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_faults *faults;
    enum dtp_status status;
};

#define REFUSE(c, key, ...)                                                                                            \
    do {                                                                                                               \
        (c)->status = dtp_fault_about((c)->faults, DTP_BAD_INPUT, NULL, 0, key, __VA_ARGS__);                          \
    } while (0)
#define NOT_RUN "has no step program under runtime dtplan; dtplan plan --fidelity bounds predicts it"

static void check_model(struct checker *c)
{
    const struct dtp_transformer *t = c->t;
    if (t->chunked_attention && (t->kv_latent || (t->qk_norm && t->qk_norm_weight != DTP_QK_NORM_UNWEIGHTED)))
        REFUSE(c, "chunked_attention", "with latent attention or weights of q's and k's norms " NOT_RUN);
    if (t->router_on_input && (t->activation != DTP_SWIGLU || t->expert_bias))
        REFUSE(c, "router_on_input", "with experts other than swiglu's without biases " NOT_RUN);
    if (t->embedding_norm && dtp_plan_adapts(c->plan))
        REFUSE(c, "embedding_norm", "with adapters (lora) " NOT_RUN);
    struct dtp_executor_rules rules;
    dtp_executor_rules(t, c->cluster, c->plan, &rules);
    if (t->embedding_norm && rules.sharded) /* whose weight went with the table that backward does not read */
        REFUSE(c, "embedding_norm",
               "with %s, which gathers weights, has no step program under runtime dtplan; use "
               "zero1, zero2, shard_grad_op or ddp",
               dtp_strategy_text(c->plan->strategy));
    if (!t->final_norm)
        REFUSE(c, "model", "without a final norm " NOT_RUN);
    if (t->norm_without_weight)
        REFUSE(c, "norm_without_weight", NOT_RUN);
    if (t->activation == DTP_RELU2)
        REFUSE(c, "activation", "relu2 " NOT_RUN);
    if (t->qk_layer_norm)
        REFUSE(c, "qk_layer_norm", NOT_RUN);
    if (t->qk_norm_weight == DTP_QK_NORM_BY_HEAD)
        REFUSE(c, "qk_norm_weight", "by_head " NOT_RUN);
    if (t->norm_bias && t->norm == DTP_RMS_NORM)
        REFUSE(c, "norm_bias", "of an RMSNorm " NOT_RUN);
}

/* Of fp8 what is tested against PyTorch: blocks of two branches with norms before them. */
static void check_fp8(struct checker *c)
{
    const struct dtp_transformer *t = c->t;
    const struct dtp_plan *p = c->plan;
    if (p->precision.compute != DTP_FP8)
        return;
    if (t->parallel_block != DTP_PARALLEL_NONE)
        REFUSE(c, "parallel_block", "in fp8 " NOT_RUN);
    if (t->norm_place != DTP_NORMS_BEFORE)
        REFUSE(c, "norm_place", "other than before, in fp8, " NOT_RUN);
    if (p->executor.gelu_epilogue)
        REFUSE(c, "gelu_epilogue", "in fp8 " NOT_RUN);
    if (p->executor.gradient_stream)
        REFUSE(c, "gradient_stream", "in fp8 " NOT_RUN);
}

/* What no ranks that divide the model have been run with. */
static void check_divided(struct checker *c)
{
    const struct dtp_plan *p = c->plan;
    const char *axis = p->pp > 1 ? "pp" : p->tp > 1 ? "tp" : "cp";
    if (p->pp <= 1 && p->tp <= 1 && p->cp <= 1)
        return;
    if (p->precision.compute == DTP_FP8 || p->precision.compute == DTP_FP16)
        REFUSE(c, "precision", "%s with %s " NOT_RUN, dtp_dtype_text(p->precision.compute), axis);
    if (c->t->position == DTP_POSITION_ALIBI) /* slopes are of the model's heads and distances of its tokens */
        REFUSE(c, "position", "alibi with %s " NOT_RUN, axis);
    if (c->t->embedding_norm)
        REFUSE(c, "embedding_norm", "with %s " NOT_RUN, axis);
    if (p->optimizer != DTP_ADAMW_FUSED)
        REFUSE(c, "optimizer", "%s with %s " NOT_RUN, dtp_optimizer_text(p->optimizer), axis);
}

static void check_plan(struct checker *c)
{
    const struct dtp_plan *p = c->plan;
    const struct dtp_precision *d = &p->precision;
    if (d->compute != DTP_BF16 && d->compute != DTP_FP32 && d->compute != DTP_FP16 && d->compute != DTP_FP8)
        REFUSE(c, "precision", "%s compute " NOT_RUN, dtp_dtype_text(d->compute));
    if (d->compute == DTP_FP16 && d->master != DTP_FP32)
        REFUSE(c, "master_dtype", "%s beside fp16 compute " NOT_RUN, dtp_dtype_text(d->master));
    if (d->reduce != DTP_BF16 && d->reduce != DTP_FP32 && d->reduce != DTP_FP16)
        REFUSE(c, "reduce_dtype", "%s " NOT_RUN, dtp_dtype_text(d->reduce));
    if (p->attention == DTP_ATTENTION_MATH)
        REFUSE(c, "attention", "math " NOT_RUN);
    if (p->optimizer != DTP_ADAMW_FUSED && p->optimizer != DTP_SGD && p->optimizer != DTP_MOMENTUM &&
        p->optimizer != DTP_ADAM8BIT && p->optimizer != DTP_MUON)
        REFUSE(c, "optimizer", "%s " NOT_RUN, dtp_optimizer_text(p->optimizer));
    if (p->optimizer == DTP_MUON && p->executor.update_in_backward)
        REFUSE(c, "update_in_backward", "with muon " NOT_RUN);
    if (p->optimizer != DTP_ADAMW_FUSED && p->offload != DTP_OFFLOAD_NONE)
        REFUSE(c, "offload", "with optimizer %s " NOT_RUN, dtp_optimizer_text(p->optimizer));
    if (p->wrap_layers != 1)
        REFUSE(c, "wrap_layers", "other than 1 " NOT_RUN);
    if (p->offload == DTP_OFFLOAD_NVME)
        REFUSE(c, "offload", "nvme " NOT_RUN);
}

/* 32-bit indices of the kernels. */
static void check_sizes(struct checker *c)
{
    const struct dtp_transformer *t = c->t;
    uint64_t qkv = (t->heads + 2 * t->kv_heads) * t->head_dim;
    if (t->vocab >= INT32_MAX || c->plan->sequence >= INT32_MAX || qkv >= INT32_MAX || 2 * t->ffn >= INT32_MAX ||
        t->hidden >= INT32_MAX)
        REFUSE(c, "vocab", "vocabulary, sequence and widths must be below 2^31 under runtime dtplan");
    if (dtp_bytes_product(c->plan->micro_batch, c->plan->sequence) >= INT32_MAX)
        REFUSE(c, "micro_batch", "%" PRIu32 " x seq %" PRIu64 " makes 2^31 rows or more; use less",
               c->plan->micro_batch, c->plan->sequence);
    if (dtp_lower_check_counts(t, c->plan, c->faults) != DTP_OK)
        c->status = DTP_BAD_INPUT;
}

enum dtp_status dtp_executor_check(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                   const struct dtp_plan *plan, struct dtp_faults *faults)
{
    struct checker c = {transformer, cluster, plan, faults, DTP_OK};
    check_model(&c);
    check_plan(&c);
    check_fp8(&c);
    check_divided(&c);
    check_sizes(&c);
    return c.status;
}
