/* nanotron: eager PyTorch around FlashAttention-2, 16-bit weights and gradients, sums and master in fp32; DDP, or
 * ZeRO-1 without it. */
#include "runtime/nanotron/nanotron.h"

#include "lower/lower_hooks.h"
#include "plan/rules.h"
#include "plan/runtime.h"

/* ---- what it refuses --------------------------------------------------------------------------------------------- */

/* Its models are llama and starcoder2 (models/): pre-norm blocks with RoPE. */
static void check_shape(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct {
        bool unknown;
        const char *key, *instead;
    } details[] = {
        {t->position != DTP_POSITION_ROPE, "position", "use rope"},
        {t->parallel_block != DTP_PARALLEL_NONE, "parallel_block", "use none"},
        {t->norm_place != DTP_NORMS_BEFORE, "norm_place", "use before"},
        {t->qk_norm, "qk_norm", "leave it out"},
        {t->embedding_norm, "embedding_norm", "leave it out"},
        {t->attention_softcap > 0, "attention_softcap", "set it to 0"},
        {t->final_softcap > 0, "final_softcap", "set it to 0"},
    };
    for (size_t i = 0; i < sizeof details / sizeof *details; i++)
        if (details[i].unknown)
            dtp_plan_refuse(r, details[i].key,
                            "is not what nanotron's models have (llama, starcoder2); %s, or runtime torch",
                            details[i].instead);
}

/* config.model.dtype is bfloat16 and accumulate_grad_in_fp32 true, as its examples have it; without these there are
 * other rules, which are not modelled. */
static void check_dtypes(struct dtp_resolver *r)
{
    const struct dtp_precision *p = &r->plan->precision;
    if (p->compute != DTP_BF16 || p->params != DTP_BF16)
        dtp_plan_refuse(r, "precision", "%s is not modelled under runtime nanotron; use bf16-mixed",
                        dtp_precision_name(p));
    else if (p->reduce != DTP_FP32 && !dtp_plan_adapts(r->plan)) /* which is refused as such */
        dtp_plan_refuse(r, "reduce_dtype",
                        "runtime nanotron sums and reduces gradients in fp32 (accumulate_grad_in_fp32), not in %s",
                        dtp_dtype_text(p->reduce));
}

static void check(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->strategy != DTP_DDP && p->strategy != DTP_ZERO1)
        dtp_plan_refuse(r, "strategy", "%s does not exist in nanotron; use ddp (zero_stage 0) or zero1",
                        dtp_strategy_text(p->strategy));
    if (p->checkpointing != DTP_CHECKPOINT_NONE && p->checkpointing != DTP_CHECKPOINT_FULL)
        dtp_plan_refuse(r, "checkpointing", "runtime nanotron recomputes none or full (recompute_layer) only");
    if (p->loss != DTP_LOSS_EAGER)
        dtp_plan_refuse(r, "loss",
                        "runtime nanotron has its sharded cross entropy alone, which is not fused; use eager");
    if (p->attention != DTP_ATTENTION_FLASH2)
        dtp_plan_refuse(r, "attention", "runtime nanotron attends by FlashAttention-2; use flash2");
    if (p->optimizer != DTP_ADAMW_FUSED)
        dtp_plan_refuse(r, "optimizer", "runtime nanotron is modelled with torch_adam_is_fused alone; use adamw");
    if (p->pp > 1 && p->stages.cut != DTP_STAGE_CUT_COST)
        dtp_plan_refuse(r, "stages", "runtime nanotron always balances them by cost; leave it out");
    check_dtypes(r);
    check_shape(r);
}

static bool check_offload(struct dtp_resolver *r)
{
    dtp_plan_refuse(r, "offload", "does not exist in nanotron; use none, or runtime deepspeed or torch");
    return true;
}

/* ---- what it is -------------------------------------------------------------------------------------------------- */

/* qkv_proj and gate_up_proj are one matmul each; flash-attn 2 is the flash kernel there is (models/llama.py);
 * stages are always balanced by cost (models/base.py, build_model). */
static void derive(struct dtp_plan *p)
{
    p->accumulate_sync = false;
    p->fused_qkv = p->fused_gate_up = true;
    if (p->attention == DTP_ATTENTION_FLASH)
        p->attention = DTP_ATTENTION_FLASH2;
    if (p->pp > 1 && p->stages.cut == DTP_STAGE_CUT_EVEN)
        p->stages.cut = DTP_STAGE_CUT_COST;
}

static bool overlaps(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_DDP;
}

static const struct dtp_lower_hooks *lower(const struct dtp_plan *plan)
{
    (void)plan;
    return &dtp_lower_nanotron;
}

const struct dtp_runtime dtp_runtime_nanotron = {
    .name = "nanotron",
    .framework = "nanotron",
    .strategies = 1u << DTP_DDP | 1u << DTP_ZERO1,
    .shards_all = DTP_ZERO1,
    .issuer = DTP_ISSUER_NANOTRON,
    .stores_compute_dtype = true,
    .owns_master = true,
    .reduces_fp32 = true,
    .sums_gradients = true,
    .vocab_multiple = 1,
    .splits = DTP_AXES(TP) | DTP_AXES(PP),
    .clips = true,
    .schedules = 1u << DTP_SCHEDULE_1F1B | 1u << DTP_SCHEDULE_GPIPE,
    .gathers_again = true,
    .sums_beside = true,
    .records_terms = true,
    .passing_workspace = true,
    .one_queue = true,
    .fused_norms = true,
    .group_of_one = true,
    .softmax_in_place = true,
    .repacks_heads = true,
    .derive = derive,
    .check = check,
    .check_offload = check_offload,
    .overlaps_reductions = overlaps,
    .closed = &dtp_nanotron_closed_form,
    .lower = lower,
};
