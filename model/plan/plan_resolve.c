/* Rules between the choices of a plan: what follows from what, and what no runtime does or is not modelled.
 *
 * These hold under every runtime; a runtime's own stand in its folder. */
#include "plan/plan_keys.h"

#include "plan/comm_hook.h"
#include "plan/degrees.h"
#include "plan/optimizer_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define MAX_MICRO_BATCH 1000000u
#define MAX_ACCUMULATE 1000000u
#define MAX_PREFETCH 64u
#define MAX_SEQUENCE 100000000u
#define MAX_GPUS 1000000u
#define MAX_BUCKET_BYTES ((uint64_t)1 << 40)
#define MAX_PRODUCT 0x1p62 /* of anything counted in uint64_t, with room for a sum of a few */
#define FP8_MULTIPLE 16u   /* _scaled_mm needs every matmul dimension to be a multiple of this */

void dtp_plan_refuse(struct dtp_resolver *r, const char *key, const char *format, ...)
{
    char text[DTP_FAULT_TEXT_BYTES];
    va_list arguments;
    r->status = DTP_BAD_INPUT;
    if (!r->faults)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t line = 0;
    const char *where = r->source ? r->source->find(r->source->context, key, &line) : NULL;
    r->status = dtp_fault_about(r->faults, DTP_BAD_INPUT, where, line, key, "%s", text);
}

static bool shards_by_zero(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_ZERO1 || plan->strategy == DTP_ZERO2 || plan->strategy == DTP_ZERO3;
}

/* ---- ranges ---------------------------------------------------------------------------------------------------- */

void dtp_plan_check_range(struct dtp_resolver *r, const char *key, uint64_t value, uint64_t maximum)
{
    if (!value)
        dtp_plan_refuse(r, key, "is 0; it must be at least 1");
    else if (value > maximum)
        dtp_plan_refuse(r, key, "is %" PRIu64 "; at most %" PRIu64 " is supported", value, maximum);
}

static void check_ranges(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    dtp_plan_check_range(r, "gpus", r->cluster->gpus, MAX_GPUS);
    dtp_plan_check_range(r, "micro_batch", p->micro_batch, MAX_MICRO_BATCH);
    dtp_plan_check_range(r, "accumulate", p->accumulate, MAX_ACCUMULATE);
    dtp_plan_check_range(r, "seq", p->sequence, MAX_SEQUENCE);
    dtp_plan_check_range(r, "prefetch_depth", p->prefetch_depth, MAX_PREFETCH);
    dtp_plan_check_range(r, "ddp_bucket_mib", p->ddp_bucket_bytes, MAX_BUCKET_BYTES);
    if (p->wrap_layers > r->transformer->layers)
        dtp_plan_refuse(r, "wrap_layers",
                        "is %" PRIu32 ", but the model has %" PRIu64 " layers; use 0 for one unit of all layers",
                        p->wrap_layers, r->transformer->layers);
    if (!(p->price_per_gpu_hour >= 0 && p->price_per_gpu_hour <= 1e6))
        dtp_plan_refuse(r, "price", "must be between 0 and 1e6 dollars per GPU-hour");
}

/* The closed form's uint64_t products, each overestimated in double: activations of all layers and the logits, score
 * matrices without flash attention, tokens of a step, parameters sent over a step. */
static void check_products(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    double tokens = (double)p->micro_batch * (double)p->sequence, layers = (double)t->layers, heads = (double)t->heads;
    double d_q = heads * (double)t->head_dim;
    double block = 32 * ((double)t->hidden + d_q + (double)t->ffn + heads);
    double scores = p->attention == DTP_ATTENTION_MATH ? tokens * (double)p->sequence * heads * 16 * layers : 0;
    if (tokens * (layers * block + 32 * (double)t->vocab) + scores >= MAX_PRODUCT)
        dtp_plan_refuse(r, "seq",
                        "micro_batch %" PRIu32 " x seq %" PRIu64 " makes more than 2^62 bytes of activations; use less",
                        p->micro_batch, p->sequence);
    if (tokens * (double)p->accumulate * (double)r->cluster->gpus >= MAX_PRODUCT)
        dtp_plan_refuse(r, "accumulate", "the step has more than 2^62 tokens; use less");
    double parameters = (double)dtp_transformer_count(t).total;
    if (parameters * 64 * (double)p->accumulate >= MAX_PRODUCT)
        dtp_plan_refuse(r, "accumulate", "%" PRIu32 " micro-steps send more than 2^62 bytes; use fewer", p->accumulate);
}

/* ---- shard group ------------------------------------------------------------------------------------------------- */

static void derive_shard_group(struct dtp_resolver *r)
{
    struct dtp_plan *p = r->plan;
    const struct dtp_cluster *c = r->cluster;
    if (p->strategy == DTP_DDP) {
        if (p->shard_group > 1)
            dtp_plan_refuse(r, "shard_group", "is %" PRIu32 ", but ddp shards nothing; use hybrid_shard",
                            p->shard_group);
        p->shard_group = 1;
        return;
    }
    if (p->strategy == DTP_HYBRID_SHARD && p->shard_group == 0) {
        if (c->nodes <= 1) {
            dtp_plan_refuse(r, "strategy",
                            "hybrid_shard shards within a node and replicates across nodes, but there is one node; "
                            "give shard_group, or use full_shard");
            return;
        }
        p->shard_group = c->gpus_per_node;
    }
    if (p->shard_group == 0)
        p->shard_group = dtp_plan_gradient_ranks(p, c);
}

/* Groups are consecutive ranks, so that one either lies inside a node or fills whole nodes. */
static void check_shard_group(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_cluster *c = r->cluster;
    if (p->strategy == DTP_DDP || p->shard_group == 0 || c->gpus == 0 || !dtp_plan_degrees_divide(p, c->gpus))
        return;
    if (c->gpus % p->shard_group) {
        dtp_plan_refuse(r, "shard_group", "%" PRIu32 " GPUs are not a multiple of the shard group of %" PRIu32, c->gpus,
                        p->shard_group);
        return;
    }
    bool whole = p->shard_group == dtp_plan_gradient_ranks(p, c);
    if (p->strategy == DTP_HYBRID_SHARD && (whole || p->shard_group == 1))
        dtp_plan_refuse(r, "shard_group", "of %" PRIu32 " with %" PRIu32 " GPUs is no hybrid; use strategy %s",
                        p->shard_group, c->gpus, whole ? "full_shard" : "ddp");
    else if (!whole && shards_by_zero(p) && !dtp_plan_is_fsdp(p) && !p->runtime->partial_groups)
        dtp_plan_refuse(r, "shard_group",
                        "%s under runtime %s shards over all GPUs; sharding over %" PRIu32 " of %" PRIu32
                        " is not modelled",
                        dtp_strategy_text(p->strategy), p->runtime->name, p->shard_group, c->gpus);
    else if (!dtp_plan_model_parallel(p) && c->gpus_per_node && c->gpus_per_node % p->shard_group &&
             p->shard_group % c->gpus_per_node)
        dtp_plan_refuse(r, "shard_group",
                        "of %" PRIu32 " neither divides a node of %" PRIu32 " GPUs nor fills whole nodes",
                        p->shard_group, c->gpus_per_node);
}

/* ---- what follows ------------------------------------------------------------------------------------------------ */

static void derive_reshard(struct dtp_resolver *r)
{
    struct dtp_plan *p = r->plan;
    if (dtp_plan_is_fsdp(p) && p->pp > 1) { /* torchtitan's default: not gathered anew for each micro-batch */
        p->reshard_after_forward = false;
        return;
    }
    if (p->strategy == DTP_HYBRID_SHARD)
        return;
    bool full = dtp_strategy_frees_weights(p->strategy);
    if (full && dtp_plan_is_fsdp(p) && !p->reshard_after_forward)
        dtp_plan_refuse(r, "reshard_after_forward", "%s without it is shard_grad_op; use that strategy",
                        dtp_strategy_text(p->strategy));
    p->reshard_after_forward = full;
}

/* A group of 1 keeps everything, the shard group is what there is without the number (_get_post_forward_mesh_info). */
static void derive_reshard_group(struct dtp_resolver *r)
{
    struct dtp_plan *p = r->plan;
    uint32_t n = p->reshard_group;
    if (!n)
        return;
    if (!dtp_plan_is_fsdp(p) || p->fsdp1)
        dtp_plan_refuse(r, "reshard_after_forward", "to %" PRIu32 " GPUs is FSDP2's; use true or false", n);
    else if (!p->reshard_after_forward)
        dtp_plan_refuse(r, "reshard_after_forward",
                        "to %" PRIu32 " GPUs is not %s, which keeps what it gathered; use full_shard", n,
                        dtp_strategy_text(p->strategy));
    else if (n == 1)
        dtp_plan_refuse(r, "reshard_after_forward", "to 1 GPU keeps what was gathered; use strategy shard_grad_op");
    else if (p->shard_group % n)
        dtp_plan_refuse(r, "reshard_after_forward", "%" PRIu32 " does not divide the shard group of %" PRIu32, n,
                        p->shard_group);
    else if (r->cluster->gpus_per_node % n && n % r->cluster->gpus_per_node)
        dtp_plan_refuse(r, "reshard_after_forward",
                        "%" PRIu32 " neither divides a node of %" PRIu32 " GPUs nor fills whole nodes", n,
                        r->cluster->gpus_per_node);
    else if (p->precision.fp8_all_gather)
        dtp_plan_refuse(r, "reshard_after_forward", "to fewer GPUs does not go with an fp8 all-gather; use true");
    if (n == p->shard_group)
        p->reshard_group = 0;
}

/* fp8 of which no recipe is said: torchao's default, Transformer Engine's (recipe/__init__.py: DelayedScaling). What
 * Megatron-LM's --fp8-recipe calls tensorwise is Transformer Engine's scaling of this step (megatron/core/fp8_utils.py,
 * Float8CurrentScaling). */
static void derive_fp8_recipe(struct dtp_plan *p)
{
    enum dtp_fp8_recipe *recipe = &p->precision.fp8_recipe;
    if (p->precision.compute != DTP_FP8)
        return;
    bool engine = dtp_plan_fp8_library(p) == DTP_FP8_TE;
    if (*recipe == DTP_FP8_NONE)
        *recipe = engine ? DTP_FP8_DELAYED : DTP_FP8_TENSORWISE;
    else if (*recipe == DTP_FP8_TENSORWISE && engine)
        *recipe = DTP_FP8_CURRENT;
}

static void derive_precision(struct dtp_plan *p)
{
    dtp_precision_for_runtime(&p->precision, p->runtime);
    derive_fp8_recipe(p);
    if (dtp_optimizer_row(p->optimizer)->bits)
        p->precision.moments = DTP_INT8;
    /* torchao gathers fp8 weights through FSDP2's extension points; without them there is nothing to gather.
     * Transformer Engine's weights are in 16 bits here and cast where they are multiplied. */
    if (!dtp_plan_is_fsdp(p) || p->fsdp1 || dtp_plan_fp8_library(p) == DTP_FP8_TE)
        p->precision.fp8_all_gather = false;
}

/* ---- precision --------------------------------------------------------------------------------------------------- */

static void check_stored_dtypes(struct dtp_resolver *r)
{
    const struct dtp_precision *p = &r->plan->precision;
    bool wide = p->params == DTP_FP32;
    if (!wide && p->params != DTP_BF16 && p->params != DTP_FP16)
        dtp_plan_refuse(r, "param_dtype", "parameters are stored in fp32, bf16 or fp16, not %s",
                        dtp_dtype_text(p->params));
    else if (p->master != p->params && (p->master != DTP_FP32 || wide))
        dtp_plan_refuse(r, "master_dtype", "a master copy is fp32 beside 16-bit parameters, not %s beside %s",
                        dtp_dtype_text(p->master), dtp_dtype_text(p->params));
    bool by_optimizer = dtp_optimizer_row(r->plan->optimizer)->bits && p->moments == DTP_INT8;
    if (p->moments != DTP_FP32 && p->moments != DTP_BF16 && !by_optimizer)
        dtp_plan_refuse(r, "moment_dtype",
                        "moments are kept in fp32 or bf16, not %s; 8-bit moments are optimizer adam8bit",
                        dtp_dtype_text(p->moments));
}

static void check_compute_dtypes(struct dtp_resolver *r)
{
    const struct dtp_precision *p = &r->plan->precision;
    bool fits = p->params == DTP_FP32 ? p->compute != DTP_INT8
                                      : p->compute == p->params || (p->params == DTP_BF16 && p->compute == DTP_FP8);
    if (!fits)
        dtp_plan_refuse(r, "compute_dtype",
                        "%s compute from %s parameters is not modelled; fp32 parameters allow fp32, tf32, "
                        "bf16, fp16 and fp8, others their own dtype (bf16 also fp8)",
                        dtp_dtype_text(p->compute), dtp_dtype_text(p->params));
    enum dtp_dtype narrow = p->compute == DTP_FP8 ? DTP_BF16 : p->compute;
    if (p->reduce != DTP_FP32 && p->reduce != p->params && (p->reduce != narrow || narrow == DTP_TF32))
        dtp_plan_refuse(r, "reduce_dtype",
                        "gradients are reduced in fp32 or in the dtype of parameters or compute, not in %s",
                        dtp_dtype_text(p->reduce));
}

/* Where the optimizer owns the fp32 master. */
static void check_master(struct dtp_resolver *r)
{
    const struct dtp_precision *p = &r->plan->precision;
    const char *runtime = r->plan->runtime->name;
    bool own_dtype = p->compute == p->params || (p->compute == DTP_TF32 && p->params == DTP_FP32);
    if (!r->plan->runtime->owns_master)
        return;
    if (p->compute != DTP_FP8 && (p->master != DTP_FP32 || !own_dtype))
        dtp_plan_refuse(r, "precision",
                        "runtime %s trains with parameters in the compute dtype and an fp32 master, not with "
                        "precision %s; use bf16-mixed, fp16-mixed or fp32",
                        runtime, dtp_precision_name(p));
    bool aware = r->plan->megatron.precision_aware && p->moments == DTP_BF16;
    if (p->moments != DTP_FP32 && p->moments != DTP_INT8 && !aware)
        dtp_plan_refuse(r, "moment_dtype", "runtime %s keeps moments in fp32, not in %s; use fp32%s", runtime,
                        dtp_dtype_text(p->moments),
                        r->plan->runtime->overlap_grad_reduce ? ", or bf16 with precision_aware_optimizer" : "");
}

static void check_gpu_dtype(struct dtp_resolver *r)
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
    dtp_plan_refuse(r, "precision", "%s has no %s matmul units; use %s", gpu->name[0] ? gpu->name : gpu->key,
                    dtp_dtype_text(compute), instead);
}

static const char *const library_words[] = {
    [DTP_FP8_TORCHAO] = "torchao", [DTP_FP8_TE] = "Transformer Engine", [DTP_FP8_OWN] = "runtime dtplan"};

static void check_recipe_library(struct dtp_resolver *r, const struct dtp_fp8_recipe_row *row)
{
    enum dtp_fp8_library library = dtp_plan_fp8_library(r->plan);
    if (row->libraries >> library & 1)
        return;
    char have[96] = "";
    size_t length = 0;
    for (int i = DTP_FP8_NONE + 1; i < DTP_FP8_RECIPE_COUNT; i++) {
        const struct dtp_fp8_recipe_row *other = dtp_fp8_recipe_row((enum dtp_fp8_recipe)i);
        if (other->libraries >> library & 1)
            length += (size_t)snprintf(have + length, sizeof have - length, "%s%s", length ? ", " : "", other->word);
    }
    dtp_plan_refuse(r, "fp8_recipe", "%s is none of %s, whose fp8 runtime %s%s has; use one of %s", row->word,
                    library_words[library], r->plan->runtime->name, r->plan->fsdp1 ? " with FSDP1" : "", have);
}

static void check_recipe_parts(struct dtp_resolver *r, const struct dtp_fp8_recipe_row *row)
{
    const struct dtp_gpu *gpu = &r->cluster->gpu;
    const char *name = gpu->name[0] ? gpu->name : gpu->key;
    bool blackwell = gpu->architecture == DTP_GPU_BLACKWELL;
    if (row->parts == DTP_FP8_ON_HOPPER && gpu->architecture != DTP_GPU_HOPPER)
        dtp_plan_refuse(r, "fp8_recipe", "%s has matmuls on Hopper alone, and not on %s; use %s", row->word, name,
                        blackwell ? "mxfp8" : "current");
    else if (row->parts == DTP_FP8_ON_BLACKWELL && !blackwell)
        dtp_plan_refuse(r, "fp8_recipe",
                        "%s needs scales of blocks in the matmul units, of Blackwell and later, and not "
                        "%s; use %s",
                        row->word, name, row->libraries >> DTP_FP8_TE & 1 ? "current" : "tensorwise");
    else if (row->bits < 8 && gpu->fp4_flops_per_s <= 0)
        dtp_plan_refuse(r, "fp8_recipe", "%s needs fp4 matmul units, whose rate of %s is not known; use mxfp8",
                        row->word, name);
}

/* Operands of blocks are cut along the sums, so that these are whole blocks: 128 of blockwise, 32 of MXFP8; NVFP4's
 * transforms and tiles want 32 too. Kernels of ours and cuBLASLt take a last block that is cut short. */
static unsigned fp8_multiple(const struct dtp_plan *plan, const struct dtp_fp8_recipe_row *row)
{
    return row->granularity != DTP_FP8_BY_BLOCK || dtp_plan_fp8_library(plan) == DTP_FP8_OWN ? FP8_MULTIPLE
           : row->block < 32                                                                 ? 32
                                                                                             : row->block;
}

static void check_fp8(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_fp8_recipe_row *row = dtp_fp8_recipe_row(p->precision.fp8_recipe);
    if (p->precision.compute != DTP_FP8) {
        if (row || p->precision.fp8_all_gather)
            dtp_plan_refuse(r, row ? "fp8_recipe" : "fp8_all_gather", "needs fp8 compute, and not %s; use precision %s",
                            dtp_dtype_text(p->precision.compute), row ? row->precision : "fp8-tensorwise");
        return;
    }
    check_recipe_library(r, row);
    check_recipe_parts(r, row);
    if (p->precision.fp8_all_gather && !row->gathers)
        dtp_plan_refuse(r, "fp8_all_gather",
                        "needs one cast of rows and columns, and not those of %s; use fp8_recipe "
                        "tensorwise or leave it out",
                        row->word);
    if (p->precision.fp8_all_gather && p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "offload",
                        "with an fp8 all-gather is not modelled; use precision bf16-mixed or fp8-rowwise");
    const struct {
        const char *key;
        uint64_t value;
    } widths[] = {{"hidden", t->hidden},
                  {"heads", t->heads * t->head_dim},
                  {"kv_heads", t->kv_heads * t->head_dim},
                  {"ffn", t->ffn},
                  {"seq", p->micro_batch * p->sequence}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i].value % fp8_multiple(p, row))
            dtp_plan_refuse(r, widths[i].key, "%s matmuls need multiples of %u, and this one is %" PRIu64 " wide",
                            row->bits < 8 ? "fp4" : "fp8", fp8_multiple(p, row), widths[i].value);
}

/* ---- offload, optimizer, checkpointing, shape -------------------------------------------------------------------- */

static void check_offload(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->offload == DTP_OFFLOAD_NONE || (p->runtime->check_offload && p->runtime->check_offload(r)))
        return;
    if (p->strategy == DTP_DDP)
        dtp_plan_refuse(r, "offload", "under ddp every GPU would keep its own host copy; use zero1, zero2 or zero3");
}

static void check_nvme(struct dtp_resolver *r)
{
    const struct dtp_machine *m = &r->cluster->machine;
    if (r->plan->offload != DTP_OFFLOAD_NVME ||
        (m->nvme_bytes && m->nvme_read_bytes_per_s > 0 && m->nvme_write_bytes_per_s > 0))
        return;
    dtp_plan_refuse(r, "offload", "machine %s states no NVMe; choose another machine or offload params", m->key);
}

/* Of those that treat a block's matrices apart, or their rows. */
static bool check_matrices(struct dtp_resolver *r, const struct dtp_optimizer_row *row)
{
    const struct dtp_plan *p = r->plan;
    if (row->shape == DTP_STATE_FACTORS)
        return true;
    if (r->transformer->experts)
        return dtp_plan_refuse(r, "optimizer", "%s takes matrices alone, not stacks of experts; use adamw", row->word),
               false;
    if (row->shape == DTP_STATE_MATRICES && !(r->cluster->gpu.peak_flops_per_s[DTP_BF16] > 0))
        return dtp_plan_refuse(r, "optimizer", "%s multiplies in bf16, which this GPU has not; use adamw", row->word),
               false;
    if (row->shape == DTP_STATE_ROWS && r->cluster->gpus > 1) /* adam_mini.py: block_numel, reduced */
        return dtp_plan_refuse(r, "optimizer",
                               "%s on several GPUs sums a number of each norm over them, which is not modelled; use "
                               "one GPU, or adamw",
                               row->word),
               false;
    uint64_t most = row->shape == DTP_STATE_PROJECTED ? dtp_optimizer_narrowest(r->transformer, p) : UINT64_MAX;
    if (p->projection_rank > most)
        return dtp_plan_refuse(r, "projection_rank",
                               "%" PRIu32 " is more than the %" PRIu64 " of the narrowest matrix; use at most that",
                               p->projection_rank, most),
               false;
    return true;
}

/* Its sums are over whole matrices: over DTensors and flat shards of them other sums are added between ranks, tensor by
 * tensor, which nothing here counts. */
static void check_state_by_tensor(struct dtp_resolver *r, const struct dtp_optimizer_row *row)
{
    const struct dtp_plan *p = r->plan;
    if (!(p->runtime->optimizer_shapes & 1u << row->shape))
        dtp_plan_refuse(r, "optimizer", "%s is PyTorch's; under runtime %s use adamw", row->word, p->runtime->name);
    else if (dtp_plan_adapts(p)) /* under no strategy, so that none is advised first */
        dtp_plan_refuse(r, "optimizer", "%s of adapters is not modelled; use adamw", row->word);
    else if (p->strategy != DTP_DDP)
        dtp_plan_refuse(
            r, "optimizer",
            "%s is modelled where each GPU has whole tensors, not under %s, where it exchanges sums of each; "
            "use strategy ddp, or adam8bit",
            row->word, dtp_strategy_text(p->strategy));
    else if (p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "optimizer", "%s is not modelled on the host; use adamw", row->word);
    else if (p->tp > 1 || p->pp > 1 || p->ep > 1)
        dtp_plan_refuse(r, "optimizer", "%s with tp, pp or ep is not modelled; use adamw or adam8bit", row->word);
    else if (check_matrices(r, row) && !p->runtime->own_kernels && /* which take any format of each */
             (p->precision.moments != p->precision.params || p->precision.master != p->precision.params))
        dtp_plan_refuse(r, "moment_dtype", "%s keeps its state as its parameters, in %s, not in %s; set it to that",
                        row->word, dtp_dtype_text(p->precision.params), dtp_dtype_text(p->precision.moments));
}

static void check_optimizer(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_optimizer_row *row = dtp_optimizer_row(p->optimizer);
    bool offloads = p->offload != DTP_OFFLOAD_NONE;
    if (row->instead)
        dtp_plan_refuse(r, "optimizer", "%s: %s", row->word, row->instead);
    else if (offloads && row->library != DTP_OF_PYTORCH)
        dtp_plan_refuse(r, "optimizer", "%s runs on the GPU; it cannot be offloaded, use adamw", row->word);
    else if (offloads && p->optimizer == DTP_MOMENTUM)
        dtp_plan_refuse(r, "optimizer", "momentum is not modelled on the host; use adamw");
    if (!row->instead && dtp_optimizer_by_tensor(p))
        check_state_by_tensor(r, row);
}

static void check_checkpointing(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->checkpointing != DTP_CHECKPOINT_EVERY_N)
        return;
    if (p->checkpoint_every == 0)
        dtp_plan_refuse(r, "checkpointing", "every-0 means nothing; use every-1 (full) or more");
    else if (p->checkpoint_every > r->transformer->layers)
        dtp_plan_refuse(r, "checkpointing", "every-%" PRIu32 " of %" PRIu64 " layers; use at most that many, or none",
                        p->checkpoint_every, r->transformer->layers);
}

/* Megatron's fused kernel drops one branch, between its matmul and the sum. */
static void check_dropout(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    if (r->plan->dropout > 0 && (t->parallel_block || t->norm_place != DTP_NORMS_BEFORE))
        dtp_plan_refuse(r, "dropout",
                        "is modelled where each branch goes from its matmul to a sum of its own; leave it out with "
                        "parallel_block or norm_place");
}

/* Kernels of this project know soft caps, and so do PyTorch's flash kernels (flash-attn 2.6, FlexAttention);
 * Transformer Engine's do not, and scores that are written down would be capped by kernels that are not modelled. */
static void check_softcaps(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct {
        const char *key;
        double cap;
    } caps[] = {{"attention_softcap", t->attention_softcap}, {"final_softcap", t->final_softcap}};
    const struct dtp_runtime *runtime = r->plan->runtime;
    bool foreign = dtp_plan_fuses(r->plan) && !runtime->compiles && !runtime->own_kernels;
    for (size_t i = 0; i < sizeof caps / sizeof *caps; i++)
        if (caps[i].cap > 0 && foreign)
            dtp_plan_refuse(r, caps[i].key,
                            "%g is not modelled under runtime %s; use runtime dtplan or torch, or set it to 0",
                            caps[i].cap, runtime->name);
    if (t->attention_softcap > 0 && r->plan->attention == DTP_ATTENTION_MATH && !runtime->own_kernels)
        dtp_plan_refuse(r, "attention",
                        "math with an attention_softcap is not modelled; use flash, or set the cap to 0");
}

/* Megatron-Core's own ends in a gradient in bf16, whatever logits are (fusions/fused_cross_entropy.py,
 * calculate_gradients). */
static void check_loss(struct dtp_resolver *r)
{
    enum dtp_dtype logits = r->plan->precision.compute;
    if (r->plan->loss != DTP_LOSS_NATIVE)
        return;
    if (!r->plan->runtime->native_loss)
        dtp_plan_refuse(r, "loss", "native is Megatron-Core's; use runtime megatron, or eager");
    else if (logits == DTP_FP16 || logits == DTP_FP32)
        dtp_plan_refuse(r, "loss",
                        "native makes a gradient in bf16 of logits in %s, which is not modelled; use eager, or "
                        "precision bf16-mixed",
                        dtp_dtype_text(logits));
}

static void check_positions(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    if (t->position == DTP_POSITION_LEARNED && r->plan->sequence > t->positions)
        dtp_plan_refuse(r, "seq",
                        "is %" PRIu64 ", but the model's learned position table has %" PRIu64
                        " rows; use a shorter sequence or set positions",
                        r->plan->sequence, t->positions);
}

bool dtp_plan_choices_exist(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_precision *d = &p->precision;
    bool exist = (unsigned)p->strategy < DTP_STRATEGY_COUNT && p->runtime && (unsigned)p->offload <= DTP_OFFLOAD_NVME &&
                 (unsigned)p->attention <= DTP_ATTENTION_FLASH1 &&
                 (unsigned)p->checkpointing <= DTP_CHECKPOINT_SELECTIVE_MATMUL &&
                 (unsigned)p->loss <= DTP_LOSS_NATIVE && (unsigned)p->optimizer < DTP_OPTIMIZER_COUNT &&
                 (unsigned)p->adapters.base < DTP_BASE_COUNT && (unsigned)p->adapters.dtype < DTP_DTYPE_COUNT &&
                 (unsigned)p->cp_comm <= DTP_CP_A2A_P2P && (unsigned)p->schedule < DTP_SCHEDULE_COUNT &&
                 (unsigned)p->stages.cut <= DTP_STAGE_CUT_LAYOUT &&
                 (unsigned)p->executor.gather_engine <= DTP_ENGINE_COPY &&
                 (unsigned)p->executor.reduce_engine <= DTP_ENGINE_COPY && (unsigned)d->params < DTP_DTYPE_COUNT &&
                 (unsigned)d->compute < DTP_DTYPE_COUNT && (unsigned)d->reduce < DTP_DTYPE_COUNT &&
                 (unsigned)d->master < DTP_DTYPE_COUNT && (unsigned)d->moments < DTP_DTYPE_COUNT;
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        exist = exist && (unsigned)p->layout_order[i] < DTP_AXIS_COUNT;
    if (!exist)
        dtp_plan_refuse(r, "plan", "holds a choice that does not exist");
    return exist;
}

/* With adapters they are not modelled (check_ends of runtime torch). torchtitan wraps those of what it divides. */
static void derive_ends(struct dtp_resolver *r)
{
    struct dtp_plan *p = r->plan;
    bool wraps = p->wrap_ends_auto || p->cp > 1 || dtp_plan_model_parallel(p);
    p->wrap_ends = p->wrap_ends || (wraps && !dtp_plan_adapts(p) && dtp_plan_has_ends(p, r->transformer));
    p->wrap_ends_auto = false;
}

void dtp_plan_derive(struct dtp_resolver *r)
{
    if (dtp_plan_picks_ddp(r->plan, r->cluster))
        r->plan->strategy = DTP_DDP;
    derive_shard_group(r);
    derive_reshard(r);
    derive_precision(r->plan);
    dtp_plan_derive_adapters(r);
    derive_ends(r);
    r->plan->shifted_logits |= r->plan->narrow_logits; /* which are those of before */
    r->plan->sequence_shards = r->plan->sequence_parallel && r->plan->tp ? r->plan->tp : 1;
    r->plan->vocab_ranks = r->plan->tp && dtp_plan_divides_vocab(r->plan) ? r->plan->tp : 1;
    dtp_plan_derive_experts(r);
}

void dtp_plan_check(struct dtp_resolver *r)
{
    check_ranges(r);
    dtp_plan_check_degrees(r);
    check_products(r);
    dtp_plan_check_readers(r);
    if (r->status != DTP_OK && !r->faults) /* nobody reads what else there is */
        return;
    if (r->plan->runtime->check)
        r->plan->runtime->check(r);
    check_shard_group(r);
    derive_reshard_group(r);
    check_stored_dtypes(r);
    check_compute_dtypes(r);
    check_master(r);
    check_gpu_dtype(r);
    check_fp8(r);
    check_dropout(r);
    check_softcaps(r);
    check_loss(r);
    check_offload(r);
    check_nvme(r);
    check_optimizer(r);
    check_checkpointing(r);
    check_positions(r);
    dtp_plan_check_experts(r);
    dtp_plan_check_adapters(r);
    dtp_plan_check_comm_hook(r);
}
