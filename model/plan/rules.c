#include "plan/rules.h"

#include "base/bytes.h"
#include "net/layer_kind.h"
#include "plan/runtime_sizes.h"

#include <limits.h>
#include <math.h>

enum dtp_fp8_library dtp_plan_fp8_library(const struct dtp_plan *plan)
{
    if (plan->runtime->own_kernels)
        return DTP_FP8_OWN;
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    bool torchao = !row || row->libraries >> DTP_FP8_TORCHAO & 1;
    return plan->runtime->keeps_fp8 || plan->fsdp1 || !torchao ? DTP_FP8_TE : DTP_FP8_TORCHAO;
}

bool dtp_plan_keeps_fp8(const struct dtp_plan *plan)
{
    return plan->precision.compute == DTP_FP8 && dtp_plan_fp8_library(plan) != DTP_FP8_TORCHAO;
}

bool dtp_plan_keeps_fp8_inputs(const struct dtp_plan *plan)
{
    return dtp_plan_keeps_fp8(plan) && !dtp_plan_adapts(plan);
}

bool dtp_plan_gathers_casts(const struct dtp_plan *plan)
{
    return dtp_plan_keeps_fp8(plan) && plan->runtime->keeps_fp8 && dtp_plan_fp8_library(plan) == DTP_FP8_TE &&
           plan->sequence_shards > 1;
}

bool dtp_plan_runs_narrow(const struct dtp_plan *plan, enum dtp_product product)
{
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(plan->precision.fp8_recipe);
    return row && row->narrow >> product & 1;
}

/* A module that predicts further ahead runs in the recipe (multi_token_prediction.py: "only use global fp8 context").
 */
bool dtp_plan_layer_is_wide(const struct dtp_plan *plan, const struct dtp_transformer *model, uint64_t layer)
{
    uint64_t first = plan->megatron.bf16_first, last = plan->megatron.bf16_last;
    uint64_t layers = model->layers - model->ahead_layers;
    return layer < layers && (layer < first || layer + last >= layers);
}

uint64_t dtp_plan_wide_layers(const struct dtp_plan *plan, const struct dtp_transformer *model, uint64_t first,
                              uint64_t end)
{
    uint64_t count = 0;
    if (!plan->megatron.bf16_first && !plan->megatron.bf16_last)
        return 0;
    for (uint64_t layer = first; layer < end; layer++)
        count += dtp_plan_layer_is_wide(plan, model, layer);
    return count;
}

struct dtp_plan dtp_plan_of_wide_layers(const struct dtp_plan *plan)
{
    struct dtp_plan wide = *plan;
    wide.megatron.bf16_first = wide.megatron.bf16_last = 0;
    if (plan->precision.compute != DTP_FP8)
        return wide;
    wide.precision.compute = DTP_BF16;
    wide.precision.fp8_recipe = DTP_FP8_NONE;
    wide.precision.fp8_all_gather = false;
    return wide;
}

bool dtp_plan_casts_weights(const struct dtp_plan *plan)
{
    return dtp_plan_autocast(plan) && !(plan->precision.fp8_recipe && dtp_plan_fp8_library(plan) == DTP_FP8_TORCHAO);
}

bool dtp_plan_shifts_logits(const struct dtp_plan *plan)
{
    return dtp_plan_layers(plan)->shifts_logits && plan->shifted_logits && plan->loss != DTP_LOSS_CHUNKED &&
           !plan->compile;
}

static bool wide_scores(const struct dtp_plan *plan)
{
    return plan->runtime->wide_scores && !plan->deepspeed.megatron_layers;
}

unsigned dtp_plan_score_bytes(const struct dtp_plan *plan)
{
    return wide_scores(plan) ? 4 : dtp_plan_compute_bytes(plan);
}

bool dtp_plan_scatters_sends(const struct dtp_plan *plan)
{
    bool scatters = plan->megatron.scatter_gather || plan->runtime->scatters_sends;
    return scatters && plan->tp > 1 && plan->pp > 1 && plan->sequence_shards <= 1;
}

bool dtp_plan_is_fsdp(const struct dtp_plan *plan)
{
    return plan->runtime->fsdp && dtp_plan_shards_params(plan);
}

bool dtp_strategy_frees_weights(enum dtp_strategy strategy)
{
    return strategy == DTP_FULL_SHARD || strategy == DTP_ZERO3 || strategy == DTP_HYBRID_SHARD;
}

enum dtp_shard_cut dtp_plan_shard_cut(const struct dtp_plan *plan)
{
    if (dtp_plan_fetches_modules(plan))
        return DTP_CUT_ELEMENTS;
    return plan->runtime->fsdp && (!plan->fsdp1 || dtp_plan_adapts(plan)) ? DTP_CUT_ROWS : DTP_CUT_FLAT;
}

bool dtp_plan_gathers_for_replays(const struct dtp_plan *plan)
{
    return plan->fsdp1 && plan->reshard_after_forward && plan->wrap_layers == 1 && dtp_plan_shards_params(plan) &&
           plan->checkpointing == DTP_CHECKPOINT_FULL && dtp_plan_layers(plan)->holds_replayed &&
           !plan->checkpoint_within;
}

bool dtp_plan_hooks_hold(const struct dtp_plan *plan)
{
    return dtp_plan_adapts(plan) && plan->fsdp1 && dtp_plan_layers(plan)->holds_replayed && !plan->checkpoint_within;
}

bool dtp_plan_prefetches_backward(const struct dtp_plan *plan)
{
    return plan->prefetch && !dtp_plan_gathers_for_replays(plan);
}

bool dtp_plan_takes_prefetch_depth(const struct dtp_plan *plan)
{
    return plan->runtime->own_prefetch || (dtp_plan_is_fsdp(plan) && !plan->fsdp1);
}

bool dtp_plan_overlaps_reductions(const struct dtp_plan *plan)
{
    return plan->runtime->overlaps_reductions && plan->runtime->overlaps_reductions(plan);
}

bool dtp_plan_overlaps_gather(const struct dtp_plan *plan)
{
    return plan->runtime->overlaps_gather && plan->runtime->overlaps_gather(plan);
}

enum dtp_loss dtp_plan_loss(const struct dtp_plan *plan)
{
    if (plan->runtime->chunks_loss)
        return DTP_LOSS_CHUNKED;
    if (plan->loss == DTP_LOSS_NATIVE)
        return DTP_LOSS_EAGER;
    return plan->loss == DTP_LOSS_EAGER && plan->compile && plan->compile_loss ? DTP_LOSS_FUSED : plan->loss;
}

bool dtp_plan_turns_eagerly(const struct dtp_plan *plan, const struct dtp_layer_kind *kind)
{
    bool scaled = plan->runtime->unscaled_rope && kind->sinks;
    return kind->rotary && !kind->kv_latent && (scaled || plan->megatron.unfused_rope);
}

bool dtp_plan_turns_latents_eagerly(const struct dtp_plan *plan, const struct dtp_layer_kind *kind)
{
    return plan->megatron.unfused_rope && kind->kv_latent;
}

bool dtp_plan_casts_apart(const struct dtp_plan *plan, const struct dtp_layer_kind *kind)
{
    bool eager = dtp_plan_autocast(plan) && !dtp_plan_fuses(plan) && plan->precision.compute != DTP_FP8;
    bool alone = plan->tp == 1 && plan->pp == 1 && !dtp_plan_adapts(plan);
    bool plain = kind->norms_before && !kind->experts && !kind->kv_latent && !dtp_plan_layers(plan)->chains_norms &&
                 !plan->norm_chain;
    return eager && alone && plain;
}

double dtp_plan_turned_elements(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    if (transformer->position != DTP_POSITION_ROPE || dtp_plan_fuses(plan))
        return 0;
    if (plan->rope_fp32)
        return 5;
    return dtp_plan_layers(plan)->chains_norms ? 4 : 1.5;
}

uint64_t dtp_plan_score_gradients(const struct dtp_plan *plan)
{
    return plan->runtime->copies_views ? 1 : 2; /* Transformer Engine's modules */
}

bool dtp_plan_softmax_in_place(const struct dtp_plan *plan)
{
    return (plan->runtime->softmax_in_place || plan->deepspeed.megatron_layers) &&
           dtp_plan_loss(plan) == DTP_LOSS_EAGER;
}

/* torch stores what the recipe calls params and casts on the way to the matmul; the other runtimes hold the weights in
 * the compute dtype and the recipe's master copy beside the moments (DeepSpeed bf16/fp16 engine, Megatron's mixed
 * precision optimizer, our executor). */
static uint64_t stored_bytes(const struct dtp_plan *plan)
{
    unsigned params = dtp_dtype_bytes(plan->precision.params), compute = dtp_plan_compute_bytes(plan);
    return !plan->runtime->stores_compute_dtype || params < compute ? params : compute;
}

/* Of all its states together, whole bytes; scales of blocks are counted apart. */
static uint64_t moments_bytes(const struct dtp_plan *plan)
{
    const struct dtp_optimizer_row *row = dtp_optimizer_row(plan->optimizer);
    return row->bits ? row->states * row->bits / CHAR_BIT
                     : row->states * (uint64_t)dtp_dtype_bytes(plan->precision.moments);
}

uint64_t dtp_optimizer_bytes(const struct dtp_element_bytes *bytes, uint64_t elements)
{
    uint64_t blocks = bytes->block_elements ? dtp_divide_up(elements, bytes->block_elements) : 0;
    return dtp_bytes_product(bytes->optimizer, elements) + dtp_bytes_product(bytes->block_bytes, blocks);
}

bool dtp_plan_scales_loss(const struct dtp_plan *plan)
{
    return plan->runtime->compiles && plan->precision.compute == DTP_FP16 && plan->precision.params == DTP_FP32;
}

/* Where gradients rest: torch in the dtype of the parameters (FSDP2 casts back to it after reducing), DeepSpeed in the
 * model's dtype or in its BF16_Optimizer's sums, Megatron and our executor in a buffer of the reduce dtype that matmuls
 * accumulate into, nanotron in sums of it. */
static uint64_t grads_bytes(const struct dtp_plan *plan, uint64_t stored)
{
    if (plan->deepspeed.bf16_optimizer)
        return dtp_dtype_bytes(DTP_FP32);
    return plan->runtime->gradients_in_matmul || plan->runtime->sums_gradients ? dtp_dtype_bytes(plan->precision.reduce)
                                                                               : stored;
}

/* DDP reduces gradients in their own dtype, fp32 under autocast, or as its hook has them; DeepSpeed in the model's
 * dtype, over ranks that share sequences in one of its own. */
static uint64_t wire_bytes(const struct dtp_plan *plan, uint64_t grads)
{
    bool replicated = plan->strategy == DTP_DDP || plan->strategy == DTP_ZERO1;
    if (plan->runtime->reduces_own_dtype && plan->cp > 1)
        return dtp_dtype_bytes(plan->deepspeed.sequence_dtype);
    if (plan->deepspeed.bf16_optimizer)
        return dtp_dtype_bytes(plan->precision.params);
    if (plan->comm_hook == DTP_COMM_HOOK_FP16 || plan->comm_hook == DTP_COMM_HOOK_BF16)
        return 2;
    if ((plan->runtime->ddp && replicated) || plan->runtime->reduces_own_dtype)
        return grads;
    return dtp_dtype_bytes(plan->precision.reduce);
}

bool dtp_plan_mixes_ends(const struct dtp_plan *plan)
{
    return dtp_plan_adapts(plan) && plan->adapters.train_ends && plan->adapters.dtype != plan->precision.params;
}

/* PyTorch's optimizers make state like the parameter. */
void dtp_plan_of_ends(const struct dtp_plan *plan, struct dtp_plan *out)
{
    *out = *plan;
    if (!dtp_plan_mixes_ends(plan))
        return;
    out->adapters.dtype = out->precision.reduce = plan->precision.params;
    if (plan->precision.moments != DTP_INT8)
        out->precision.moments = plan->precision.params;
}

bool dtp_plan_keeps_remainders(const struct dtp_plan *plan)
{
    bool updated = plan->precision.fp8_recipe == DTP_FP8_NONE ||
                   (plan->precision.fp8_recipe == DTP_FP8_DELAYED && !plan->megatron.fp8_param_gather);
    return plan->megatron.precision_aware && plan->precision.params == DTP_BF16 && updated;
}

void dtp_element_bytes_count(const struct dtp_plan *plan, struct dtp_element_bytes *out)
{
    uint64_t stored = stored_bytes(plan), master = dtp_dtype_bytes(plan->precision.master);
    *out = (struct dtp_element_bytes){.params = stored,
                                      .compute = dtp_plan_compute_bytes(plan),
                                      .grads = grads_bytes(plan, stored),
                                      .moments = moments_bytes(plan),
                                      .master = master > stored ? master : 0};
    if (dtp_plan_keeps_remainders(plan))
        out->master -= stored;
    out->optimizer = out->moments + out->master;
    const struct dtp_optimizer_row *row = dtp_optimizer_row(plan->optimizer);
    out->block_elements = row->block;
    out->block_bytes = row->scales * (uint64_t)dtp_dtype_bytes(DTP_FP32);
    out->gathered = plan->precision.fp8_all_gather ? 1 : out->compute;
    out->reduce = wire_bytes(plan, out->grads);
    if (plan->runtime->adapters_as_weights)
        return;
    if (dtp_plan_adapts(plan)) /* adapters alone have them */
        out->grads = out->reduce = dtp_dtype_bytes(plan->adapters.dtype);
    if (dtp_plan_adapts(plan) && plan->runtime->stores_compute_dtype && out->grads > out->compute)
        out->master = out->grads, out->optimizer = out->moments + out->master;
}

bool dtp_plan_inputs_require_grad(const struct dtp_plan *plan)
{
    return dtp_plan_layers(plan)->inputs_require_grad ||
           (plan->runtime->adapters_as_weights && plan->checkpointing == DTP_CHECKPOINT_FULL);
}

uint64_t dtp_plan_ends_gradient_bytes(const struct dtp_plan *plan)
{
    struct dtp_plan ends;
    struct dtp_element_bytes bytes;
    dtp_plan_of_ends(plan, &ends);
    dtp_element_bytes_count(&ends, &bytes);
    return bytes.grads;
}

uint64_t dtp_plan_shard_ranks(const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    if (plan->strategy == DTP_DDP)
        return 1;
    uint64_t group = plan->shard_group;
    if (!group)
        group = plan->strategy == DTP_HYBRID_SHARD ? cluster->gpus_per_node : cluster->gpus;
    return group && group < cluster->gpus ? group : cluster->gpus;
}

bool dtp_plan_sums_gradients(const struct dtp_plan *plan)
{
    return plan->runtime->sums_gradients || plan->deepspeed.bf16_optimizer;
}

bool dtp_plan_keeps_root(const struct dtp_plan *plan)
{
    return plan->keep_root || plan->fsdp1 || plan->runtime->keeps_root;
}

bool dtp_plan_has_ends(const struct dtp_plan *plan, const struct dtp_transformer *transformer)
{
    bool units = dtp_plan_is_fsdp(plan) && !plan->fsdp1 && plan->wrap_layers && !plan->keep_root;
    return units && !transformer->tied_head && !transformer->embedding_norm && plan->loss != DTP_LOSS_CHUNKED;
}

bool dtp_plan_wraps_ends(const struct dtp_plan *plan, const struct dtp_transformer *transformer)
{
    return plan->wrap_ends && dtp_plan_has_ends(plan, transformer);
}

uint32_t dtp_plan_reductions(const struct dtp_plan *plan)
{
    bool every = plan->accumulate_sync || (plan->strategy == DTP_ZERO2 && !plan->runtime->adds_before_shards) ||
                 (plan->runtime->reduces_shards_always && dtp_plan_shards_grads(plan));
    return every ? plan->accumulate : 1;
}

bool dtp_plan_axes_given(const struct dtp_plan *plan)
{
    return plan->tp && plan->pp && plan->cp && plan->virtual_stages;
}

bool dtp_plan_model_parallel(const struct dtp_plan *plan)
{
    return plan->tp > 1 || plan->pp > 1;
}

bool dtp_plan_degrees_divide(const struct dtp_plan *plan, uint32_t gpus)
{
    uint64_t product = (uint64_t)plan->tp * plan->pp * plan->cp; /* of up to 10^6 each */
    return product && gpus % product == 0;
}

bool dtp_plan_interleaves(const struct dtp_plan *plan)
{
    bool chunks = plan->schedule == DTP_SCHEDULE_1F1B && plan->virtual_stages > 1;
    return plan->pp > 1 && (plan->schedule == DTP_SCHEDULE_INTERLEAVED || chunks);
}

bool dtp_plan_splits_backward(const struct dtp_plan *plan)
{
    return plan->pp > 1 && dtp_schedule_row(plan->schedule)->backward == DTP_BACKWARD_SPLIT;
}

uint32_t dtp_plan_gradient_ranks(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    uint64_t slices = (uint64_t)(plan->tp ? plan->tp : 1) * (plan->pp ? plan->pp : 1);
    return slices <= cluster->gpus ? (uint32_t)(cluster->gpus / slices) : 1;
}

uint32_t dtp_plan_expert_replicas(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    uint64_t slices = (uint64_t)(plan->pp ? plan->pp : 1) * (plan->ep ? plan->ep : 1) * (plan->tp ? plan->tp : 1);
    slices *= plan->megatron.etp > 1 ? plan->megatron.etp : 1;
    uint64_t ranks =
        (uint64_t)cluster->gpus * dtp_plan_expert_fold(plan); /* of a slice those with the same one alone */
    return slices <= ranks ? (uint32_t)(ranks / slices) : 1;
}

/* Of `places`, one of which each of k experts is at with equal chance, those that have any, over k. */
static double places_part(double places, double k)
{
    return places * (1 - pow(1 - 1 / places, k)) / k;
}

double dtp_plan_expert_arriving_part(const struct dtp_plan *plan, uint64_t experts_per_token)
{
    return dtp_plan_sends_tokens(plan) ? places_part(plan->ep, (double)experts_per_token) : 1;
}

double dtp_plan_expert_sent_part(const struct dtp_plan *plan, const struct dtp_cluster *cluster,
                                 uint64_t experts_per_token)
{
    double ranks = plan->ep, of_node = fmin(ranks, cluster->gpus_per_node), nodes = ranks / of_node;
    return dtp_plan_sends_tokens(plan) ? places_part(nodes > 1 ? nodes : ranks, (double)experts_per_token) : 1;
}

static bool has_large_workspaces(const struct dtp_gpu *gpu)
{
    return gpu->architecture == DTP_GPU_HOPPER || gpu->architecture == DTP_GPU_BLACKWELL;
}

uint64_t dtp_plan_cublas_workspace(const struct dtp_gpu *gpu)
{
    return has_large_workspaces(gpu) ? UINT64_C(4096) * 8192 : UINT64_C(4096) * 2048 + UINT64_C(16384) * 8;
}

uint64_t dtp_plan_expert_workspaces(const struct dtp_plan *plan, const struct dtp_gpu *gpu)
{
    uint64_t one = has_large_workspaces(gpu) ? DTP_ENGINE_WORKSPACE_BYTES : DTP_ENGINE_WORKSPACE_BYTES / 8;
    return plan->runtime->engine_experts ? DTP_ENGINE_WORKSPACES * one : 0;
}

uint64_t dtp_plan_expert_shard_ranks(const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    if (plan->strategy == DTP_DDP)
        return 1;
    uint64_t ranks = dtp_plan_shard_ranks(cluster, plan) * dtp_plan_expert_fold(plan);
    uint64_t divided = (uint64_t)plan->ep * (plan->megatron.etp > 1 ? plan->megatron.etp : 1);
    return plan->ep > 1 && ranks >= divided ? ranks / divided : ranks;
}

uint32_t dtp_plan_data_ranks(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    uint32_t ranks = dtp_plan_gradient_ranks(plan, cluster), cp = plan->cp ? plan->cp : 1;
    return cp <= ranks ? ranks / cp : 1;
}

bool dtp_plan_pads_values(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan)
{
    enum dtp_gpu_architecture architecture = cluster->gpu.architecture;
    bool cudnn =
        plan->attention == DTP_ATTENTION_FLASH && (architecture == DTP_GPU_HOPPER || architecture == DTP_GPU_BLACKWELL);
    bool takes_both = cudnn || plan->attention == DTP_ATTENTION_MATH || plan->runtime->own_kernels;
    return transformer->kv_latent && transformer->value_head_dim < transformer->head_dim && !takes_both;
}

struct dtp_attention_shape dtp_plan_attention(const struct dtp_transformer *transformer,
                                              const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                                              uint64_t layer)
{
    struct dtp_attention_shape shape = dtp_transformer_attention(transformer, layer, plan->sequence);
    shape.kernel = (uint8_t)plan->attention;
    shape.wide = wide_scores(plan) && plan->attention == DTP_ATTENTION_MATH;
    shape.dropout = plan->dropout > 0 && plan->attention == DTP_ATTENTION_MATH;
    shape.atomic = plan->executor.atomic_attention;
    shape.narrow = dtp_plan_attends_narrowly(plan);
    if (shape.value_dim == shape.head_dim || dtp_plan_pads_values(transformer, cluster, plan))
        shape.value_dim = 0;
    return shape;
}

static enum dtp_issuer issuer_of(const struct dtp_plan *plan)
{
    if (plan->deepspeed.megatron_layers)
        return DTP_ISSUER_MEGATRON;
    if (!plan->runtime->dtensor || plan->tp <= 1)
        return plan->runtime->issuer;
    return plan->compile ? DTP_ISSUER_DTENSOR_COMPILED : DTP_ISSUER_DTENSOR;
}

struct dtp_execution dtp_plan_execution(const struct dtp_plan *plan)
{
    const struct dtp_runtime *runtime = plan->runtime;
    const struct dtp_executor_plan *executor = &plan->executor;
    return (struct dtp_execution){
        .issuer = issuer_of(plan),
        .allocator = runtime->arena              ? DTP_ALLOCATOR_ARENA
                     : plan->expandable_segments ? DTP_ALLOCATOR_EXPANDABLE
                                                 : DTP_ALLOCATOR_SEGMENTS,
        .compute = plan->precision.compute,
        .reduce = plan->precision.reduce,
        .fp8_recipe = plan->precision.fp8_recipe,
        .own_kernels = runtime->own_kernels,
        .graph = executor->cuda_graph,
        .plain_host_adam = runtime->plain_host_adam,
        .one_queue = runtime->one_queue,
        .launch_blocking = plan->launch_blocking,
        .windows = executor->symmetric_windows,
        .stochastic_rounding = executor->stochastic_rounding,
        .clip_norm = plan->clip_norm,
        .matmul_sms = executor->matmul_sms,
        .collective_ctas = executor->collective_ctas,
        .copied = (executor->gather_engine == DTP_ENGINE_COPY ? 1u << DTP_ALL_GATHER : 0) |
                  (executor->reduce_engine == DTP_ENGINE_COPY ? 1u << DTP_ALL_TO_ALL : 0),
    };
}

bool dtp_plan_clips(const struct dtp_plan *plan)
{
    return plan->clip_norm > 0 && plan->runtime->clips_by_key;
}

uint64_t dtp_plan_norm_bytes(const struct dtp_plan *plan, uint64_t ranks)
{
    bool sums = dtp_plan_clips(plan) && plan->offload == DTP_OFFLOAD_NONE && ranks > 1;
    return sums ? 2 * dtp_divide_up(DTP_TORCH_NORM_BYTES, ranks) * (ranks - 1) : 0;
}

bool dtp_plan_divides_vocab(const struct dtp_plan *plan)
{
    return !plan->runtime->whole_vocab || plan->deepspeed.megatron_layers;
}

uint32_t dtp_plan_table_gradient_ranks(const struct dtp_plan *plan, bool tied_head)
{
    return plan->runtime->dtensor && !tied_head ? plan->vocab_ranks : 1;
}

uint64_t dtp_plan_head_columns(const struct dtp_plan *plan, uint64_t vocab)
{
    uint64_t multiple = plan->deepspeed.megatron_layers ? DTP_MEGATRON_VOCAB_MULTIPLE : plan->runtime->vocab_multiple;
    return dtp_divide_up(vocab, multiple) * multiple;
}
