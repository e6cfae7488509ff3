/* Rules between the choices of a plan: what follows from what, and what no runtime does or is not modelled.
 *
 * Each check stands alone and adds its fault, so that one run names everything that is wrong. Where a rule is a
 * runtime's own, the comment says where it comes from. */
#include "plan/plan.h"

#include "runtime/megatron/model_parallel.h"

#include "plan/deepspeed.h"
#include "plan/executor_choices.h"
#include "plan/rules.h"
#include "runtime/deepspeed/zero3_fetch.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define MAX_MICRO_BATCH 1000000u
#define MAX_ACCUMULATE 1000000u
#define MAX_PREFETCH 64u
#define MAX_SEQUENCE 100000000u
#define MAX_GPUS 1000000u
#define MAX_BUCKET_BYTES ((uint64_t)1 << 40)
#define MAX_ELEMENTS UINT64_C(1000000000000000)
#define MAX_PRODUCT 0x1p62 /* of anything counted in uint64_t, with room for a sum of a few */
#define FP8_MULTIPLE 16u   /* _scaled_mm needs every matmul dimension to be a multiple of this */

struct resolver {
    struct dtp_plan *plan;
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan_source *source;
    struct dtp_faults *faults;
    enum dtp_status status;
};

/* One fault about `key`, at the place where that key was set. */
static void refuse(struct resolver *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void refuse(struct resolver *r, const char *key, const char *format, ...)
{
    char text[DTP_FAULT_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t line = 0;
    const char *where = r->source ? r->source->find(r->source->context, key, &line) : NULL;
    r->status = dtp_fault_about(r->faults, DTP_BAD_INPUT, where, line, key, "%s", text);
}

bool dtp_plan_is_fsdp(const struct dtp_plan *plan)
{
    if (plan->runtime != DTP_RUNTIME_TORCH)
        return false;
    return plan->strategy == DTP_FULL_SHARD || plan->strategy == DTP_ZERO3 || plan->strategy == DTP_SHARD_GRAD_OP ||
           plan->strategy == DTP_HYBRID_SHARD;
}

static bool shards_by_zero(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_ZERO1 || plan->strategy == DTP_ZERO2 || plan->strategy == DTP_ZERO3;
}

/* ---- ranges ---------------------------------------------------------------------------------------------------- */

static void check_range(struct resolver *r, const char *key, uint64_t value, uint64_t maximum)
{
    if (!value)
        refuse(r, key, "is 0; it must be at least 1");
    else if (value > maximum)
        refuse(r, key, "is %" PRIu64 "; at most %" PRIu64 " is supported", value, maximum);
}

static void check_ranges(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    check_range(r, "gpus", r->cluster->gpus, MAX_GPUS);
    check_range(r, "micro_batch", p->micro_batch, MAX_MICRO_BATCH);
    check_range(r, "accumulate", p->accumulate, MAX_ACCUMULATE);
    check_range(r, "seq", p->sequence, MAX_SEQUENCE);
    check_range(r, "ddp_bucket_mib", p->ddp_bucket_bytes, MAX_BUCKET_BYTES);
    if (p->wrap_layers > r->transformer->layers)
        refuse(r, "wrap_layers",
               "is %" PRIu32 ", but the model has %" PRIu64 " layers; use 0 for one unit of all layers", p->wrap_layers,
               r->transformer->layers);
    if (!(p->price_per_gpu_hour >= 0 && p->price_per_gpu_hour <= 1e6))
        refuse(r, "price", "must be between 0 and 1e6 dollars per GPU-hour");
}

static void check_other_parallelism(struct resolver *r)
{
    const struct {
        const char *key, *words;
        uint32_t value;
    } axes[] = {{"tp", "tensor", r->plan->tp}, {"pp", "pipeline", r->plan->pp}, {"cp", "context", r->plan->cp}};
    bool given = r->plan->virtual_stages > 0;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        given = given && axes[i].value > 0;
        if (axes[i].value == 0)
            refuse(r, axes[i].key, "is 0; use 1 for no %s parallelism", axes[i].words);
    }
    if (r->plan->cp > 1)
        refuse(r, "cp", "is %" PRIu32 ", but context parallelism is not modelled yet; use 1", r->plan->cp);
    if (r->plan->virtual_stages == 0)
        refuse(r, "virtual_stages", "is 0; use 1 for a schedule that is not interleaved");
    char why[256];
    const char *key = given ? dtp_model_parallel_fault(r->plan, r->transformer, r->cluster, why, sizeof why) : NULL;
    if (key)
        refuse(r, key, "%s", why);
    if (r->plan->megatron_overlap && r->plan->runtime != DTP_RUNTIME_MEGATRON)
        refuse(r, "megatron_overlap", "exists under runtime megatron only");
}

/* The closed form's uint64_t products, each overestimated in double: activations of all layers and the logits, score
 * matrices without flash attention, tokens of a step, parameters sent over a step. */
static void check_products(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    double tokens = (double)p->micro_batch * (double)p->sequence, layers = (double)t->layers, heads = (double)t->heads;
    double d_q = heads * (double)t->head_dim;
    double block = 32 * ((double)t->hidden + d_q + (double)t->ffn + heads);
    double scores = p->attention == DTP_ATTENTION_MATH ? tokens * (double)p->sequence * heads * 16 * layers : 0;
    if (tokens * (layers * block + 32 * (double)t->vocab) + scores >= MAX_PRODUCT)
        refuse(r, "seq",
               "micro_batch %" PRIu32 " x seq %" PRIu64 " makes more than 2^62 bytes of activations; use less",
               p->micro_batch, p->sequence);
    if (tokens * (double)p->accumulate * (double)r->cluster->gpus >= MAX_PRODUCT)
        refuse(r, "accumulate", "the step has more than 2^62 tokens; use less");
    double parameters = (double)dtp_transformer_count(t).total;
    if (parameters * 64 * (double)p->accumulate >= MAX_PRODUCT)
        refuse(r, "accumulate", "%" PRIu32 " micro-steps send more than 2^62 bytes; use fewer", p->accumulate);
}

/* ---- strategy and runtime ---------------------------------------------------------------------------------------- */

static void check_torch(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->strategy == DTP_ZERO2)
        refuse(r, "strategy",
               "zero2 does not exist in PyTorch; use shard_grad_op (which also shards parameters outside forward and "
               "backward) or runtime deepspeed");
    if (p->fsdp1 && !dtp_plan_is_fsdp(p))
        refuse(r, "fsdp1",
               "chooses between two kinds of FSDP, but the strategy is %s; use full_shard, shard_grad_op or "
               "hybrid_shard",
               dtp_strategy_text(p->strategy));
    if (p->fsdp1 && p->offload != DTP_OFFLOAD_NONE && p->accumulate > 1 && p->accumulate_sync)
        refuse(r, "accumulate_sync",
               "FSDP1 with CPU offload does not add to gradients it reduced before "
               "(FullyShardedDataParallel's documentation); leave accumulate_sync false or use FSDP2");
}

/* A second copy lies within a node (groups._create_zero_param_parallel_group); quantised kernels take 16-bit weights.
 */
static void check_zeropp(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    uint32_t group = p->zero_hpz_partition_size;
    bool quantized = p->zero_quantized_weights || p->zero_quantized_gradients;
    const char *key = group > 1                   ? "zero_hpz_partition_size"
                      : p->zero_quantized_weights ? "zero_quantized_weights"
                                                  : "zero_quantized_gradients";
    if (group < 2 && !quantized)
        return;
    if (p->strategy != DTP_ZERO3)
        refuse(r, key, "is zero3's (ZeRO++); leave it out with %s", dtp_strategy_text(p->strategy));
    if (group > 1 && r->cluster->gpus_per_node % group)
        refuse(r, "zero_hpz_partition_size", "of %" PRIu32 " does not divide a node of %" PRIu32 " GPUs", group,
               r->cluster->gpus_per_node);
    if (p->offload == DTP_OFFLOAD_PARAMS || p->offload == DTP_OFFLOAD_NVME)
        refuse(r, key, "is not modelled with offloaded parameters; use offload none or optimizer");
    if (quantized && p->precision.params == DTP_FP32 && p->precision.compute == DTP_FP32)
        refuse(r, key, "quantises 16-bit weights and gradients; use precision bf16-mixed or fp16-mixed");
}

static void check_deepspeed(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    static const char *const instead[DTP_STRATEGY_COUNT] = {
        [DTP_DDP] = "zero1", [DTP_FULL_SHARD] = "zero3", [DTP_SHARD_GRAD_OP] = "zero2", [DTP_HYBRID_SHARD] = "zero3"};
    if (!shards_by_zero(p))
        refuse(r, "strategy", "%s is PyTorch's; under runtime deepspeed use %s", dtp_strategy_text(p->strategy),
               instead[p->strategy]);
    if (p->compile)
        refuse(r, "compile", "is not modelled under runtime deepspeed; leave it out");
    if (p->strategy == DTP_ZERO3 && r->transformer->layers > DTP_ZERO3_MAX_LAYERS)
        refuse(r, "layers", "is %" PRIu64 "; DeepSpeed's zero3 is modelled up to %u", r->transformer->layers,
               DTP_ZERO3_MAX_LAYERS);
    check_zeropp(r);
    const struct {
        const char *key;
        uint64_t value, least;
    } keys[] = {{"reduce_bucket_size", p->reduce_bucket_size, 1},
                {"stage3_max_live_parameters", p->stage3_max_live_parameters, 0},
                {"stage3_max_reuse_distance", p->stage3_max_reuse_distance, 0},
                {"stage3_prefetch_bucket_size", p->stage3_prefetch_bucket_size, 0},
                {"stage3_param_persistence_threshold", p->stage3_param_persistence_threshold, 0}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value < keys[i].least || keys[i].value > MAX_ELEMENTS)
            refuse(r, keys[i].key, "is %" PRIu64 " elements; use %" PRIu64 " to %" PRIu64, keys[i].value, keys[i].least,
                   MAX_ELEMENTS);
}

static void check_megatron(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->strategy != DTP_DDP && p->strategy != DTP_ZERO1)
        refuse(r, "strategy",
               "%s is not modelled under runtime megatron; use ddp, or zero1 for its distributed optimizer",
               dtp_strategy_text(p->strategy));
    if (p->compile)
        refuse(r, "compile", "is not modelled under runtime megatron; leave it out");
    if (p->checkpointing == DTP_CHECKPOINT_EVERY_N || p->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
        refuse(r, "checkpointing", "runtime megatron recomputes none, full or selective-attention only");
    if (p->loss == DTP_LOSS_CHUNKED)
        refuse(r, "loss", "chunked is not modelled under runtime megatron; use eager or fused");
}

/* Choices of our executor mean nothing elsewhere. */
static void check_executor_choices(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    struct dtp_executor_choice choices[DTP_EXECUTOR_CHOICE_COUNT];
    dtp_executor_choices(p, choices);
    for (size_t i = 0; i < DTP_EXECUTOR_CHOICE_COUNT; i++)
        if (choices[i].value != 0 && p->runtime != DTP_RUNTIME_DTPLAN)
            refuse(r, choices[i].key, "is a choice of runtime dtplan; leave it out under runtime %s",
                   dtp_runtime_text(p->runtime));
    if (p->runtime == DTP_RUNTIME_DTPLAN && p->gelu_epilogue && r->transformer->activation != DTP_GELU)
        refuse(r, "gelu_epilogue", "needs a model with GELU");
}

/* Windows and copies reach what peers map into their address space: the GPUs of one node that NVLink joins. */
static void check_peer_memory(struct resolver *r, const char *key)
{
    const struct dtp_plan *p = r->plan;
    uint32_t ranks = p->shard_group > 1 ? p->shard_group : r->cluster->gpus;
    enum dtp_link link = dtp_cluster_link(r->cluster);
    if (r->cluster->gpus > 1 && (link == DTP_LINK_PCIE || link == DTP_LINK_XGMI))
        refuse(r, key, "needs GPUs that NVLink joins; these have %s, leave it out", dtp_link_text(link));
    else if (ranks > r->cluster->gpus_per_node)
        refuse(r, key,
               "reaches the GPUs of one node, but %" PRIu32 " GPUs share a copy over nodes of %" PRIu32
               "; take hybrid_shard with a shard_group inside a node, or leave it out",
               ranks, r->cluster->gpus_per_node);
}

/* One GPU has nothing to scatter, as under every strategy. */
static bool scatters(const struct resolver *r)
{
    return r->plan->strategy != DTP_DDP && (r->cluster->gpus == 1 || dtp_plan_shard_ranks(r->cluster, r->plan) > 1);
}

static const char *not_scattered(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_DDP ? "under ddp" : "in shard groups of one GPU";
}

/* When a block's gradients are first reduced, they must be final, and nothing but its update must be left to read them.
 */
static void check_update_in_backward(struct resolver *r)
{
    const char *key = "update_in_backward";
    const struct dtp_plan *p = r->plan;
    if (!p->update_in_backward || p->runtime != DTP_RUNTIME_DTPLAN)
        return;
    if (p->clip_norm > 0 || p->gradient_norm)
        refuse(r, key, "updates blocks before the global norm of the gradients is known; leave out %s",
               p->clip_norm > 0 ? "clip_norm" : "gradient_norm");
    if (p->offload != DTP_OFFLOAD_NONE)
        refuse(r, key,
               "is of an optimizer on the GPU; with offload %s the host updates in backward anyway, leave it out",
               dtp_offload_text(p->offload));
    if (!scatters(r))
        refuse(r, key, "saves the shards of reduced gradients, but gradients are not scattered %s; leave it out",
               not_scattered(p));
    if (p->accumulate > 1 && dtp_plan_reductions(p) == p->accumulate)
        refuse(r, key, "needs one reduction in a step, but each of %" PRIu32 " micro-steps reduces; %s", p->accumulate,
               p->strategy == DTP_ZERO2 ? "use zero1 or shard_grad_op" : "leave out accumulate_sync");
}

static void check_collective_choices(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->runtime != DTP_RUNTIME_DTPLAN)
        return;
    if (p->matmul_sms > r->cluster->gpu.sm_count)
        refuse(r, "matmul_sms", "is %" PRIu32 ", but %s has %" PRIu32 " SMs", p->matmul_sms, r->cluster->gpu.key,
               r->cluster->gpu.sm_count);
    if (p->symmetric_windows)
        check_peer_memory(r, "symmetric_windows");
    if (p->gather_engine == DTP_ENGINE_COPY && p->strategy == DTP_DDP)
        refuse(r, "gather_engine", "copy: nothing is gathered under ddp; leave it out");
    else if (p->gather_engine == DTP_ENGINE_COPY)
        check_peer_memory(r, "gather_engine");
    if (p->reduce_engine == DTP_ENGINE_COPY && !scatters(r))
        refuse(r, "reduce_engine", "copy: gradients are not scattered %s; leave it out", not_scattered(p));
    else if (p->reduce_engine == DTP_ENGINE_COPY)
        check_peer_memory(r, "reduce_engine");
}

static void check_runtime(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    switch (p->runtime) {
    case DTP_RUNTIME_TORCH: check_torch(r); break;
    case DTP_RUNTIME_DEEPSPEED: check_deepspeed(r); break;
    case DTP_RUNTIME_MEGATRON: check_megatron(r); break;
    case DTP_RUNTIME_DTPLAN:
        if (p->compile)
            refuse(r, "compile", "is torch.compile; runtime dtplan runs fused kernels already, leave it out");
        break;
    }
    if (p->expandable_segments && p->runtime == DTP_RUNTIME_DTPLAN)
        refuse(r, "expandable_segments", "is of PyTorch's allocator; runtime dtplan has one arena, leave it out");
    if (p->runtime != DTP_RUNTIME_DEEPSPEED &&
        (p->zero_hpz_partition_size != 1 || p->zero_quantized_weights || p->zero_quantized_gradients))
        refuse(r,
               p->zero_hpz_partition_size != 1 ? "zero_hpz_partition_size"
               : p->zero_quantized_weights     ? "zero_quantized_weights"
                                               : "zero_quantized_gradients",
               "is DeepSpeed's (ZeRO++); leave it out under runtime %s", dtp_runtime_text(p->runtime));
    check_executor_choices(r);
    if (!p->limit_all_gathers && !p->fsdp1)
        refuse(r, "limit_all_gathers",
               "is FSDP1's: FSDP2 frees gathered weights in the order of its host and has nothing to "
               "limit; leave it out or add fsdp1");
    if (p->runtime != DTP_RUNTIME_TORCH && p->fsdp1)
        refuse(r, "fsdp1", "exists under runtime torch only");
}

/* ---- shard group ---------------------------------------------------------------------------------------------------
 */

static void derive_shard_group(struct resolver *r)
{
    struct dtp_plan *p = r->plan;
    const struct dtp_cluster *c = r->cluster;
    if (p->strategy == DTP_DDP) {
        if (p->shard_group > 1)
            refuse(r, "shard_group", "is %" PRIu32 ", but ddp shards nothing; use hybrid_shard", p->shard_group);
        p->shard_group = 1;
        return;
    }
    if (p->strategy == DTP_HYBRID_SHARD && p->shard_group == 0) {
        if (c->nodes <= 1) {
            refuse(r, "strategy",
                   "hybrid_shard shards within a node and replicates across nodes, but there is one node; "
                   "give shard_group, or use full_shard");
            return;
        }
        p->shard_group = c->gpus_per_node;
    }
    if (p->shard_group == 0)
        p->shard_group = dtp_plan_data_ranks(p, c);
}

/* Groups are consecutive ranks, so that one either lies inside a node or fills whole nodes. */
static void check_shard_group(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_cluster *c = r->cluster;
    if (p->strategy == DTP_DDP || p->shard_group == 0 || c->gpus == 0)
        return;
    if (c->gpus % p->shard_group) {
        refuse(r, "shard_group", "%" PRIu32 " GPUs are not a multiple of the shard group of %" PRIu32, c->gpus,
               p->shard_group);
        return;
    }
    bool whole = p->shard_group == dtp_plan_data_ranks(p, c);
    if (p->strategy == DTP_HYBRID_SHARD && (whole || p->shard_group == 1))
        refuse(r, "shard_group", "of %" PRIu32 " with %" PRIu32 " GPUs is no hybrid; use strategy %s", p->shard_group,
               c->gpus, whole ? "full_shard" : "ddp");
    else if (!whole && shards_by_zero(p) && !dtp_plan_is_fsdp(p) && p->runtime != DTP_RUNTIME_DTPLAN)
        refuse(r, "shard_group",
               "%s under runtime %s shards over all GPUs; sharding over %" PRIu32 " of %" PRIu32 " is not modelled",
               dtp_strategy_text(p->strategy), dtp_runtime_text(p->runtime), p->shard_group, c->gpus);
    else if (!dtp_plan_model_parallel(p) && c->gpus_per_node && c->gpus_per_node % p->shard_group &&
             p->shard_group % c->gpus_per_node)
        refuse(r, "shard_group", "of %" PRIu32 " neither divides a node of %" PRIu32 " GPUs nor fills whole nodes",
               p->shard_group, c->gpus_per_node);
}

/* ---- what follows --------------------------------------------------------------------------------------------------
 */

static void derive_reshard(struct resolver *r)
{
    struct dtp_plan *p = r->plan;
    if (p->strategy == DTP_HYBRID_SHARD)
        return;
    bool full = p->strategy == DTP_FULL_SHARD || p->strategy == DTP_ZERO3;
    if (full && dtp_plan_is_fsdp(p) && !p->reshard_after_forward)
        refuse(r, "reshard_after_forward", "%s without it is shard_grad_op; use that strategy",
               dtp_strategy_text(p->strategy));
    p->reshard_after_forward = full;
}

/* A group of 1 keeps everything, the shard group is what there is without the number (_get_post_forward_mesh_info). */
static void derive_reshard_group(struct resolver *r)
{
    struct dtp_plan *p = r->plan;
    uint32_t n = p->reshard_group;
    if (!n)
        return;
    if (!dtp_plan_is_fsdp(p) || p->fsdp1)
        refuse(r, "reshard_after_forward", "to %" PRIu32 " GPUs is FSDP2's; use true or false", n);
    else if (!p->reshard_after_forward)
        refuse(r, "reshard_after_forward",
               "to %" PRIu32 " GPUs is not %s, which keeps what it gathered; use full_shard", n,
               dtp_strategy_text(p->strategy));
    else if (n == 1)
        refuse(r, "reshard_after_forward", "to 1 GPU keeps what was gathered; use strategy shard_grad_op");
    else if (p->shard_group % n)
        refuse(r, "reshard_after_forward", "%" PRIu32 " does not divide the shard group of %" PRIu32, n,
               p->shard_group);
    else if (r->cluster->gpus_per_node % n && n % r->cluster->gpus_per_node)
        refuse(r, "reshard_after_forward",
               "%" PRIu32 " neither divides a node of %" PRIu32 " GPUs nor fills whole nodes", n,
               r->cluster->gpus_per_node);
    else if (p->precision.fp8_all_gather)
        refuse(r, "reshard_after_forward", "to fewer GPUs does not go with an fp8 all-gather; use true");
    if (n == p->shard_group)
        p->reshard_group = 0;
}

static void check_prefetch(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    check_range(r, "zero_hpz_partition_size", p->zero_hpz_partition_size, MAX_GPUS);
    check_range(r, "prefetch_depth", p->prefetch_depth, MAX_PREFETCH);
    if (p->prefetch_depth < 2 || p->runtime == DTP_RUNTIME_DTPLAN)
        return;
    if (!dtp_plan_is_fsdp(p) || p->fsdp1)
        refuse(r, "prefetch_depth",
               "above 1 is of FSDP2 and of runtime dtplan; leave it out with strategy %s under runtime %s",
               dtp_strategy_text(p->strategy), dtp_runtime_text(p->runtime));
    else if (!p->prefetch)
        refuse(r, "prefetch_depth", "is %" PRIu32 ", but prefetch is off", p->prefetch_depth);
}

static void derive_accumulation(struct dtp_plan *p)
{
    if (p->runtime == DTP_RUNTIME_DEEPSPEED) /* engine.py allreduce_gradients */
        p->accumulate_sync = p->strategy == DTP_ZERO2 || p->strategy == DTP_ZERO3;
    else if (p->runtime == DTP_RUNTIME_MEGATRON)
        p->accumulate_sync = false;
}

static void derive_precision(struct dtp_plan *p)
{
    dtp_precision_for_runtime(&p->precision, p->runtime);
    if (p->optimizer == DTP_ADAM8BIT)
        p->precision.moments = DTP_INT8;
    /* torchao gathers fp8 weights through FSDP2's extension points; without them there is nothing to gather. */
    if (!dtp_plan_is_fsdp(p) || p->fsdp1 || p->runtime != DTP_RUNTIME_TORCH)
        p->precision.fp8_all_gather = false;
}

static void derive_rest(struct dtp_plan *p)
{
    bool deepspeed = p->runtime == DTP_RUNTIME_DEEPSPEED;
    p->deepspeed_overlap = deepspeed && (p->deepspeed_overlap || p->strategy == DTP_ZERO3);
    if (!deepspeed)
        p->reduce_bucket_size = DTP_DEEPSPEED_BUCKET;
    if (!deepspeed || p->strategy != DTP_ZERO3) {
        p->stage3_max_live_parameters = DTP_DEEPSPEED_LIVE;
        p->stage3_max_reuse_distance = DTP_DEEPSPEED_REUSE;
        p->stage3_prefetch_bucket_size = DTP_DEEPSPEED_PREFETCH;
        p->stage3_param_persistence_threshold = DTP_DEEPSPEED_PERSISTENCE;
    }
    if (p->runtime == DTP_RUNTIME_MEGATRON) /* linear_qkv and linear_fc1 are one matmul each in Megatron-Core */
        p->fused_qkv = p->fused_gate_up = true;
}

/* ---- precision -----------------------------------------------------------------------------------------------------
 */

static void check_stored_dtypes(struct resolver *r)
{
    const struct dtp_precision *p = &r->plan->precision;
    bool wide = p->params == DTP_FP32;
    if (!wide && p->params != DTP_BF16 && p->params != DTP_FP16)
        refuse(r, "param_dtype", "parameters are stored in fp32, bf16 or fp16, not %s", dtp_dtype_text(p->params));
    else if (p->master != p->params && (p->master != DTP_FP32 || wide))
        refuse(r, "master_dtype", "a master copy is fp32 beside 16-bit parameters, not %s beside %s",
               dtp_dtype_text(p->master), dtp_dtype_text(p->params));
    bool by_optimizer = r->plan->optimizer == DTP_ADAM8BIT && p->moments == DTP_INT8;
    if (p->moments != DTP_FP32 && p->moments != DTP_BF16 && !by_optimizer)
        refuse(r, "moment_dtype", "moments are kept in fp32 or bf16, not %s; 8-bit moments are optimizer adam8bit",
               dtp_dtype_text(p->moments));
}

static void check_compute_dtypes(struct resolver *r)
{
    const struct dtp_precision *p = &r->plan->precision;
    bool fits = p->params == DTP_FP32 ? p->compute != DTP_INT8
                                      : p->compute == p->params || (p->params == DTP_BF16 && p->compute == DTP_FP8);
    if (!fits)
        refuse(r, "compute_dtype",
               "%s compute from %s parameters is not modelled; fp32 parameters allow fp32, tf32, "
               "bf16, fp16 and fp8, others their own dtype (bf16 also fp8)",
               dtp_dtype_text(p->compute), dtp_dtype_text(p->params));
    enum dtp_dtype narrow = p->compute == DTP_FP8 ? DTP_BF16 : p->compute;
    if (p->reduce != DTP_FP32 && p->reduce != p->params && (p->reduce != narrow || narrow == DTP_TF32))
        refuse(r, "reduce_dtype", "gradients are reduced in fp32 or in the dtype of parameters or compute, not in %s",
               dtp_dtype_text(p->reduce));
}

/* What each runtime does with the dtypes. */
static void check_runtime_dtypes(struct resolver *r)
{
    const struct dtp_plan *plan = r->plan;
    const struct dtp_precision *p = &plan->precision;
    const char *runtime = dtp_runtime_text(plan->runtime);
    bool owns_master = plan->runtime == DTP_RUNTIME_DEEPSPEED || plan->runtime == DTP_RUNTIME_MEGATRON;
    if (plan->runtime == DTP_RUNTIME_TORCH && p->master != p->params)
        refuse(r, "master_dtype",
               "PyTorch's optimizers keep no master copy; use fp32 parameters with bf16 compute "
               "(precision bf16-mixed), or runtime deepspeed");
    if (plan->runtime == DTP_RUNTIME_TORCH && !dtp_plan_is_fsdp(plan) && p->reduce != p->params)
        refuse(r, "reduce_dtype",
               "%s under torch reduces gradients in the parameters' dtype %s; leave it out (a "
               "compression hook is not modelled)",
               dtp_strategy_text(plan->strategy), dtp_dtype_text(p->params));
    bool own_dtype = p->compute == p->params || (p->compute == DTP_TF32 && p->params == DTP_FP32);
    if (owns_master && p->compute != DTP_FP8 && (p->master != DTP_FP32 || !own_dtype))
        refuse(r, "precision",
               "runtime %s trains with parameters in the compute dtype and an fp32 master, not with "
               "precision %s; use bf16-mixed, fp16-mixed or fp32",
               runtime, dtp_precision_name(p));
    if (owns_master && p->moments != DTP_FP32 && p->moments != DTP_INT8)
        refuse(r, "moment_dtype", "runtime %s keeps moments in fp32", runtime);
}

static void check_gpu_dtype(struct resolver *r)
{
    const struct dtp_gpu *gpu = &r->cluster->gpu;
    enum dtp_dtype compute = r->plan->precision.compute;
    if (gpu->peak_flops_per_s[compute] > 0)
        return;
    const char *instead = "another GPU";
    if (compute == DTP_FP8 || compute == DTP_TF32)
        instead = gpu->peak_flops_per_s[DTP_BF16] > 0 ? "precision bf16-mixed" : "precision fp16-mixed";
    else if (gpu->peak_flops_per_s[DTP_FP16] > 0)
        instead = "precision fp16-mixed";
    refuse(r, "precision", "%s has no %s matmul units; use %s", gpu->name[0] ? gpu->name : gpu->key,
           dtp_dtype_text(compute), instead);
}

/* torchao's Float8Linear under torch; under megatron and dtplan matmuls as Transformer Engine does them, which scales
 * whole tensors. DeepSpeed has no fp8 training of its own. */
static void check_fp8(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    if (p->precision.compute != DTP_FP8) {
        if (p->precision.fp8_rowwise || p->precision.fp8_all_gather)
            refuse(r, "precision", "fp8 scaling and all-gather need fp8 compute");
        return;
    }
    if (p->runtime == DTP_RUNTIME_DEEPSPEED)
        refuse(r, "precision", "fp8 is not modelled under runtime deepspeed; use torch, megatron or dtplan");
    if (p->precision.fp8_rowwise && p->runtime != DTP_RUNTIME_TORCH)
        refuse(r, "precision", "rowwise scaling is torchao's, of runtime torch; use fp8-tensorwise");
    if (p->precision.fp8_all_gather && p->precision.fp8_rowwise)
        refuse(r, "precision", "torchao gathers fp8 weights with tensorwise scaling only; use fp8-tensorwise");
    if (p->precision.fp8_all_gather && p->offload != DTP_OFFLOAD_NONE)
        refuse(r, "offload", "with an fp8 all-gather is not modelled; use precision bf16-mixed or fp8-rowwise");
    const struct {
        const char *key;
        uint64_t value;
    } widths[] = {{"hidden", t->hidden},
                  {"heads", t->heads * t->head_dim},
                  {"kv_heads", t->kv_heads * t->head_dim},
                  {"ffn", t->ffn},
                  {"seq", p->micro_batch * p->sequence}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].value % FP8_MULTIPLE)
            refuse(r, widths[i].key, "fp8 matmuls need multiples of %u, and this one is %" PRIu64 " wide", FP8_MULTIPLE,
                   widths[i].value);
}

/* ---- offload, optimizer, checkpointing, shape -------------------------------------------------------------------- */

static void check_offload(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const char *word = dtp_offload_text(p->offload), *strategy = dtp_strategy_text(p->strategy);
    bool deepspeed = p->runtime == DTP_RUNTIME_DEEPSPEED;
    if (p->offload == DTP_OFFLOAD_NONE)
        return;
    if (p->runtime == DTP_RUNTIME_MEGATRON)
        refuse(r, "offload", "is not modelled under runtime megatron; use none");
    else if (p->runtime == DTP_RUNTIME_TORCH && !dtp_plan_is_fsdp(p))
        refuse(r, "offload",
               "PyTorch offloads under full_shard, shard_grad_op and hybrid_shard only, not under %s; or use "
               "runtime deepspeed",
               strategy);
    else if (p->runtime == DTP_RUNTIME_TORCH && p->offload != DTP_OFFLOAD_PARAMS)
        refuse(r, "offload",
               "PyTorch has no offload of %s; its CPU offload is params (parameters, gradients and optimizer "
               "together), or use runtime deepspeed",
               word);
    else if (deepspeed && p->offload != DTP_OFFLOAD_OPTIMIZER && p->strategy != DTP_ZERO3)
        refuse(r, "offload", "%s needs zero3 under runtime deepspeed; use zero3, or offload optimizer with %s", word,
               strategy);
    else if (p->strategy == DTP_DDP)
        refuse(r, "offload", "under ddp every GPU would keep its own host copy; use zero1, zero2 or zero3");
    else if (p->runtime == DTP_RUNTIME_DTPLAN && p->offload != DTP_OFFLOAD_OPTIMIZER &&
             (p->strategy == DTP_ZERO1 || p->strategy == DTP_ZERO2))
        refuse(r, "offload", "%s needs sharded parameters; use zero3, or offload optimizer with %s", word, strategy);
}

static void check_nvme(struct resolver *r)
{
    const struct dtp_machine *m = &r->cluster->machine;
    if (r->plan->offload != DTP_OFFLOAD_NVME ||
        (m->nvme_bytes && m->nvme_read_bytes_per_s > 0 && m->nvme_write_bytes_per_s > 0))
        return;
    refuse(r, "offload", "machine %s states no NVMe; choose another machine or offload params", m->key);
}

static void check_optimizer(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    bool offloaded = p->offload != DTP_OFFLOAD_NONE;
    if (p->optimizer == DTP_ADAMW_FOREACH && p->runtime != DTP_RUNTIME_TORCH)
        refuse(r, "optimizer", "adamw-foreach is PyTorch's; under runtime %s use adamw", dtp_runtime_text(p->runtime));
    if (p->optimizer == DTP_ADAM8BIT && offloaded)
        refuse(r, "optimizer", "adam8bit runs on the GPU; it cannot be offloaded, use adamw");
    if (p->optimizer == DTP_ADAM8BIT && p->runtime == DTP_RUNTIME_MEGATRON)
        refuse(r, "optimizer", "adam8bit is not modelled under runtime megatron; use adamw");
    if (p->optimizer == DTP_SGD && offloaded && p->runtime == DTP_RUNTIME_DEEPSPEED)
        refuse(r, "optimizer", "DeepSpeed offloads to its CPU Adam only; use adamw");
}

static void check_checkpointing(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->checkpointing != DTP_CHECKPOINT_EVERY_N)
        return;
    if (p->checkpoint_every == 0)
        refuse(r, "checkpointing", "every-0 means nothing; use every-1 (full) or more");
    else if (p->checkpoint_every > r->transformer->layers)
        refuse(r, "checkpointing", "every-%" PRIu32 " of %" PRIu64 " layers; use at most that many, or none",
               p->checkpoint_every, r->transformer->layers);
}

static void check_positions(struct resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    if (t->position == DTP_POSITION_LEARNED && r->plan->sequence > t->positions)
        refuse(r, "seq",
               "is %" PRIu64 ", but the model's learned position table has %" PRIu64
               " rows; use a shorter sequence or set positions",
               r->plan->sequence, t->positions);
}

/* Enums that came from a cast, not from a parser. */
static bool choices_exist(struct resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_precision *d = &p->precision;
    bool exist = (unsigned)p->strategy < DTP_STRATEGY_COUNT && (unsigned)p->runtime <= DTP_RUNTIME_DTPLAN &&
                 (unsigned)p->offload <= DTP_OFFLOAD_NVME && (unsigned)p->attention <= DTP_ATTENTION_FLASH1 &&
                 (unsigned)p->checkpointing <= DTP_CHECKPOINT_SELECTIVE_MATMUL &&
                 (unsigned)p->loss <= DTP_LOSS_CHUNKED && (unsigned)p->optimizer <= DTP_ADAM8BIT &&
                 (unsigned)p->gather_engine <= DTP_ENGINE_COPY && (unsigned)p->reduce_engine <= DTP_ENGINE_COPY &&
                 (unsigned)d->params < DTP_DTYPE_COUNT && (unsigned)d->compute < DTP_DTYPE_COUNT &&
                 (unsigned)d->reduce < DTP_DTYPE_COUNT && (unsigned)d->master < DTP_DTYPE_COUNT &&
                 (unsigned)d->moments < DTP_DTYPE_COUNT;
    if (!exist)
        refuse(r, "plan", "holds a choice that does not exist");
    return exist;
}

enum dtp_status dtp_plan_resolve_from(struct dtp_plan *plan, const struct dtp_transformer *transformer,
                                      const struct dtp_cluster *cluster, const struct dtp_plan_source *source,
                                      struct dtp_faults *faults)
{
    struct resolver r = {plan, transformer, cluster, source, faults, DTP_OK};
    if (!choices_exist(&r))
        return r.status;
    derive_shard_group(&r);
    derive_reshard(&r);
    derive_accumulation(plan);
    derive_precision(plan);
    derive_rest(plan);
    check_ranges(&r);
    check_other_parallelism(&r);
    check_products(&r);
    check_runtime(&r);
    check_shard_group(&r);
    check_collective_choices(&r);
    check_update_in_backward(&r);
    derive_reshard_group(&r);
    check_prefetch(&r);
    check_stored_dtypes(&r);
    check_compute_dtypes(&r);
    check_runtime_dtypes(&r);
    check_gpu_dtype(&r);
    check_fp8(&r);
    check_offload(&r);
    check_nvme(&r);
    check_optimizer(&r);
    check_checkpointing(&r);
    check_positions(&r);
    return r.status;
}

enum dtp_status dtp_plan_resolve(struct dtp_plan *plan, const struct dtp_transformer *transformer,
                                 const struct dtp_cluster *cluster, struct dtp_faults *faults)
{
    return dtp_plan_resolve_from(plan, transformer, cluster, NULL, faults);
}
