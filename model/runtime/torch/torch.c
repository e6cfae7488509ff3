/* PyTorch: DDP, ZeroRedundancyOptimizer, FSDP2 and FSDP1, eager or compiled. */
#include "runtime/torch/torch.h"

#include "cost/calibration.h"
#include "lower/lower_hooks.h"
#include "net/models.h"
#include "plan/rules.h"
#include "plan/runtime.h"

#include <stdio.h>

/* ---- what it refuses --------------------------------------------------------------------------------------------- */

static void check_dtypes(struct dtp_resolver *r)
{
    const struct dtp_precision *p = &r->plan->precision;
    if (p->master != p->params)
        dtp_plan_refuse(r, "master_dtype",
                        "PyTorch's optimizers keep no master copy; use fp32 parameters with bf16 compute "
                        "(precision bf16-mixed), or runtime deepspeed");
    if (!dtp_plan_is_fsdp(r->plan) && p->reduce != p->params && !dtp_plan_adapts(r->plan)) /* theirs is their own */
        dtp_plan_refuse(r, "reduce_dtype",
                        "%s under torch reduces gradients in the parameters' dtype %s; leave it out, or compress "
                        "them under ddp with comm_hook",
                        dtp_strategy_text(r->plan->strategy), dtp_dtype_text(p->params));
}

/* torchtitan's plan of tensor parallelism (models/llama3/infra/parallelize.py): FSDP2 over the ranks with one slice,
 * if there are several of them or it casts; logits left divided for the loss, unless gathered_logits. */
static void check_tensor_parallel(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    if (p->tp <= 1)
        return;
    bool alone = p->strategy == DTP_DDP && dtp_plan_data_ranks(p, r->cluster) == 1;
    if ((!dtp_plan_is_fsdp(p) || p->fsdp1) && !alone)
        dtp_plan_refuse(r, "tp",
                        "above 1 goes with FSDP2 in PyTorch, or with one rank of each part of the model, not with %s; "
                        "use strategy full_shard",
                        p->fsdp1 ? "FSDP1" : dtp_strategy_text(p->strategy));
    if (p->gathered_logits && p->pp > 1)
        dtp_plan_refuse(r, "gathered_logits", "is not modelled together with pp; leave it out, or use pp 1");
    if (p->tp_overlap && !p->compile)
        dtp_plan_refuse(r, "tp_overlap", "is the compiler's under runtime torch (async TP); set compile");
    if (p->loss == DTP_LOSS_CHUNKED)
        dtp_plan_refuse(r, "loss", "chunked is not modelled together with tp; use eager, or fused with compile");
    if (t->norm_place != DTP_NORMS_BEFORE)
        dtp_plan_refuse(r, "norm_place", "other than before is not modelled with tp under runtime torch");
    if (t->parallel_block)
        dtp_plan_refuse(r, "parallel_block", "%s is not modelled with tp, which sums its two branches at once",
                        dtp_parallel_block_text(t->parallel_block));
}

/* torch.distributed.pipelining. */
static void check_pipeline(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    bool splits = dtp_schedule_row(p->schedule)->backward != DTP_BACKWARD_WHOLE;
    if (p->pp <= 1)
        return;
    if (p->fsdp1 || p->strategy == DTP_ZERO1)
        dtp_plan_refuse(r, "pp", "above 1 goes with FSDP2 and ddp in PyTorch, not with %s; use full_shard",
                        p->fsdp1 ? "FSDP1" : dtp_strategy_text(p->strategy));
    if (dtp_plan_is_fsdp(p) && !p->wrap_layers)
        dtp_plan_refuse(r, "wrap_layers", "0 is not modelled with pp; use 1");
    if (splits && p->compile)
        dtp_plan_refuse(r, "schedule",
                        "%s splits backward, which PyTorch refuses of compiled stages; use 1f1b or interleaved, or "
                        "leave compile out",
                        dtp_schedule_row(p->schedule)->word);
    if (splits && p->checkpointing == DTP_CHECKPOINT_FULL && p->runtime->schedules & 1u << p->schedule)
        dtp_plan_refuse(r, "checkpointing",
                        "full with %s, whose backward of weights calls autograd for each of them, replays a layer for "
                        "each: a run took 2.6 times what one replay would; use 1f1b or interleaved, or leave it out",
                        dtp_schedule_row(p->schedule)->word);
    if (splits && dtp_plan_adapts(p))
        dtp_plan_refuse(r, "schedule",
                        "%s splits backward, and frozen matrices have no weight gradients to leave for later; use 1f1b "
                        "or interleaved",
                        dtp_schedule_row(p->schedule)->word);
    if (p->accumulate_sync)
        dtp_plan_refuse(r, "accumulate_sync",
                        "does not go with pp, whose stages reduce behind their last micro-batch; leave it out");
    if (p->loss == DTP_LOSS_CHUNKED)
        dtp_plan_refuse(r, "loss", "chunked is not modelled together with pp; use eager, or fused with compile");
    if (r->transformer->tied_head)
        dtp_plan_refuse(r, "tied_head",
                        "true has its matrix in two stages, of which torch.distributed.pipelining knows nothing; use "
                        "pp 1, or tied_head false, which is another model");
}

/* torchtitan's: FSDP2 over data and context parallel ranks together. */
static void check_context_parallel(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->cp > 1 && (!dtp_plan_is_fsdp(p) || p->fsdp1))
        dtp_plan_refuse(r, "cp", "above 1 goes with FSDP2 alone in PyTorch, not with %s; use strategy full_shard",
                        p->fsdp1 ? "FSDP1" : dtp_strategy_text(p->strategy));
}

/* What has no two ends that could be units. */
static void check_ends(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!p->wrap_ends || !dtp_plan_is_fsdp(p) || p->fsdp1) /* nobody reads it */
        return;
    if (dtp_plan_adapts(p))
        dtp_plan_refuse(r, "wrap_ends", "is not modelled with adapters; set it to false");
    else if (!dtp_plan_has_ends(p, r->transformer))
        dtp_plan_refuse(r, "wrap_ends", "makes units of what %s; set it to false",
                        p->keep_root                     ? "keep_root leaves to the root"
                        : !p->wrap_layers                ? "wrap_layers 0 leaves to the one unit of all"
                        : r->transformer->tied_head      ? "is one matrix, of a tied head and the embedding"
                        : r->transformer->embedding_norm ? "is one end with a norm behind it, which is not modelled"
                                                         : "the chunked loss has outside of the model");
}

static void check_held_logits(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->hold_logits && dtp_plan_loss(p) != DTP_LOSS_EAGER)
        dtp_plan_refuse(r, "hold_logits", "is of an eager loss, to which the model gives logits in fp32; leave it out");
    if (p->hold_logits && (p->tp > 1 || p->pp > 1 || p->cp > 1))
        dtp_plan_refuse(r, "hold_logits", "is modelled of data parallel ranks alone; leave it out, or tp, pp and cp");
}

/* Of runtime peft, too, whose check calls this one's. */
static void check_activation_offload(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    const bool beside = dtp_plan_carries_beside(p);
    if (!p->activation_offload)
        return;
    if (p->compile)
        dtp_plan_refuse(r, "compile", "with activation_offload is not modelled; leave one of them out");
    if (p->tp > 1 || p->pp > 1 || p->cp > 1)
        dtp_plan_refuse(r, "activation_offload", "is modelled of data parallel ranks alone; leave out tp, pp and cp");
    if (p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "offload",
                        "%s with activation_offload, whose copies share the way to the host, is not "
                        "modelled; use none",
                        dtp_offload_text(p->offload));
    if (p->adapters.prepare_kbit)
        dtp_plan_refuse(r, "prepare_kbit", "with activation_offload is not modelled; leave one of them out");
    if (p->fsdp1 && beside)
        dtp_plan_refuse(r, "fsdp1", "with activation_offload is not modelled under runtime torch; use FSDP2");
    if (beside && (t->norm != DTP_RMS_NORM || !t->final_norm || p->norm_chain || t->embedding_norm))
        dtp_plan_refuse(r, "activation_offload",
                        "is modelled where RMSNorm is one kernel and ends the model, as torchtune's do; which tensors "
                        "are on their way depends on how many each norm saves");
}

/* torchao's linears, each with its weight, among FSDP2's parameters in bf16. */
static void check_bf16_linears(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const uint32_t qkv = 1u << DTP_TARGET_Q | 1u << DTP_TARGET_K | 1u << DTP_TARGET_V,
                   gate_up = 1u << DTP_TARGET_GATE | 1u << DTP_TARGET_UP, named = p->bf16_linears;
    const enum dtp_fp8_recipe recipe = p->precision.fp8_recipe;
    if (!named)
        return;
    if (recipe != DTP_FP8_TENSORWISE && recipe != DTP_FP8_ROWWISE && recipe != DTP_FP8_ROWWISE_GW_HP)
        dtp_plan_refuse(r, "bf16_linears",
                        "chooses among torchao's linears; use precision fp8-tensorwise or "
                        "fp8-rowwise");
    if (named == DTP_TARGETS_ALL)
        dtp_plan_refuse(r, "bf16_linears", "leaves none in fp8; use precision bf16-mixed");
    if (p->precision.fp8_all_gather)
        dtp_plan_refuse(r, "fp8_all_gather",
                        "with bf16_linears, where a unit is gathered in two formats, is not "
                        "modelled; set it to false");
    if (p->tp > 1)
        dtp_plan_refuse(r, "tp", "with bf16_linears is not modelled; use 1");
    bool part = (p->fused_qkv && named & qkv && (named & qkv) != qkv) ||
                (p->fused_gate_up && named & gate_up && (named & gate_up) != gate_up);
    if (part)
        dtp_plan_refuse(r, "bf16_linears", "names a part of a fused linear; name all of it, or leave it apart");
}

static void check(struct dtp_resolver *r)
{
    check_bf16_linears(r);
    const struct dtp_plan *p = r->plan;
    check_ends(r);
    check_held_logits(r);
    check_activation_offload(r);
    check_dtypes(r);
    check_tensor_parallel(r);
    check_pipeline(r);
    check_context_parallel(r);
    if (p->strategy == DTP_ZERO2)
        dtp_plan_refuse(
            r, "strategy",
            "zero2 does not exist in PyTorch; use shard_grad_op (which also shards parameters outside forward and "
            "backward) or runtime deepspeed");
    if (p->fsdp1 && p->offload != DTP_OFFLOAD_NONE && p->accumulate > 1 && p->accumulate_sync)
        dtp_plan_refuse(r, "accumulate_sync",
                        "FSDP1 with CPU offload does not add to gradients it reduced before "
                        "(FullyShardedDataParallel's documentation); leave accumulate_sync false or use FSDP2");
}

static void check_elsewhere(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->optimizer == DTP_ADAMW_FOREACH && !p->runtime->foreach_optimizer)
        dtp_plan_refuse(r, "optimizer", "adamw-foreach is PyTorch's; under runtime %s use adamw", p->runtime->name);
}

static bool check_offload(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!dtp_plan_is_fsdp(p))
        dtp_plan_refuse(r, "offload",
                        "PyTorch offloads under full_shard, shard_grad_op and hybrid_shard only, not under %s; or use "
                        "runtime deepspeed",
                        dtp_strategy_text(p->strategy));
    else if (p->offload != DTP_OFFLOAD_PARAMS)
        dtp_plan_refuse(r, "offload",
                        "PyTorch has no offload of %s; its CPU offload is params (parameters, gradients and optimizer "
                        "together), or use runtime deepspeed",
                        dtp_offload_text(p->offload));
    else
        return false;
    return true;
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

static void words(const struct dtp_plan *plan, char *out, size_t bytes)
{
    bool fsdp = plan->strategy != DTP_DDP && plan->strategy != DTP_ZERO1;
    const char *what = fsdp                        ? (plan->fsdp1 ? "FSDP1" : "FSDP2")
                       : plan->strategy == DTP_DDP ? "DDP"
                                                   : "ZeroRedundancyOptimizer";
    snprintf(out, bytes, "%s %s %s", dtp_runtime_torch.name, what, plan->compile ? "compiled" : "eager");
}

/* PowerSGD synchronises the device bucket by bucket. */
static bool overlaps_reductions(const struct dtp_plan *plan)
{
    return plan->comm_hook != DTP_COMM_HOOK_POWERSGD;
}

static const struct dtp_lower_hooks *lower(const struct dtp_plan *plan)
{
    return dtp_plan_shards_params(plan) ? &dtp_lower_fsdp : &dtp_lower_ddp;
}

const struct dtp_runtime dtp_runtime_torch = {
    .name = "torch",
    .synonym = "pytorch",
    .framework = "PyTorch",
    .strategies = ~(1u << DTP_ZERO2),
    .shards_all = DTP_FULL_SHARD,
    .issuer = DTP_ISSUER_PYTORCH,
    .reference = "run_torch.py",
    .prober = "probe_torch.py",
    .plain_host_adam = true,
    .wide_scores = true,
    .vocab_multiple = 1,
    .ddp = true,
    .hooked = 1u << DTP_DDP,
    .fsdp = true,
    .splits = DTP_AXES(TP) | DTP_AXES(CP) | DTP_AXES(PP),
    .schedules = 1u << DTP_SCHEDULE_GPIPE | 1u << DTP_SCHEDULE_1F1B | 1u << DTP_SCHEDULE_INTERLEAVED |
                 1u << DTP_SCHEDULE_LOOPED_BFS | 1u << DTP_SCHEDULE_ZB_V | 1u << DTP_SCHEDULE_ZB_INTERLEAVED |
                 1u << DTP_SCHEDULE_DUALPIPEV,
    .equal_rounds = true,
    .holds_passes = true,
    .cp_comms = 1u << DTP_CP_P2P | 1u << DTP_CP_ALL_GATHER,
    .walks_gathered = true,
    .dtensor = true,
    .compiles = true,
    .clips_by_key = true,
    .foreach_optimizer = true,
    .optimizer_shapes =
        1u << DTP_STATE_FACTORS | 1u << DTP_STATE_MATRICES | 1u << DTP_STATE_PROJECTED | 1u << DTP_STATE_ROWS,
    .copies_heads = true,
    .stops_replay = true,
    .experts = true,
    .adapters = true,
    .adapters_under = {.pp = true, .cp = true},
    .magnitudes = true,
    .packs_scales = true,
    .unpacks_by_operators = true,
    .latent_attention = true,
    .attention_sinks = true,
    .clamped_swiglu = true,
    .expert_parallel = true,
    .check = check,
    .check_elsewhere = check_elsewhere,
    .check_offload = check_offload,
    .words = words,
    .overlaps_reductions = overlaps_reductions,
    .closed = &dtp_torch_closed_form,
    .lower = lower,
};
