/* PyTorch as Transformers' Trainer, TRL and peft run it: models of Transformers' modeling files, adapters of peft,
 * packed weights of bitsandbytes and GPTQ, under the same DDP and FSDP as runtime torch, which this is a variant of.
 *
 * What differs, and where it stands:
 *   norms        chains of operators on an fp32 copy (plan/norm_chain.h)
 *   logits       to fp32, and once more without the last token, while the model holds them (dtp_plan_shifts_logits)
 *   checkpoints  reentrant (Trainer calls gradient_checkpointing_enable() without use_reentrant, which means true in
 *                PreTrainedModel): every layer runs again whole, and its result stands until its backward is through
 *   inputs       of frozen models require a gradient (enable_input_require_grads, without which a reentrant checkpoint
 *                has none), so that backward goes through the first layer, too
 *   4 bits       bitsandbytes' matmul_4bit unpacks in one kernel, in forward and again in backward (autograd/_functions
 *                .py, MatMul4Bit); its scales are packed where bnb_4bit_use_double_quant says so: nf4-double
 *   results      of packed matrices are copied before an adapter's is added (tuners/lora/bnb.py)
 *
 * Not modelled: adapters computed in fp32, which is what peft does without autocast (Trainer's bf16 and fp16 off);
 * prepare_model_for_kbit_training, which makes norms and, with bitsandbytes, the residual stream fp32. */
#include "runtime/torch/torch.h"

#include "plan/rules.h"
#include "plan/runtime.h"

#include <stdio.h>

void dtp_plan_check_transformers(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->narrow_logits && p->loss != DTP_LOSS_EAGER)
        dtp_plan_refuse(r, "narrow_logits", "is of an eager loss; use loss eager");
    if (p->checkpointing != DTP_CHECKPOINT_NONE && p->checkpointing != DTP_CHECKPOINT_FULL)
        dtp_plan_refuse(r, "checkpointing", "Transformers' gradient_checkpointing is of every layer; use full or none");
    if (p->loss == DTP_LOSS_CHUNKED)
        dtp_plan_refuse(r, "loss", "chunked is not what Transformers' models have; use eager or fused");
    if (p->compile)
        dtp_plan_refuse(r, "compile", "is not modelled with Transformers' layers; leave it out, or use runtime torch");
    if (p->pp > 1)
        dtp_plan_refuse(r, "pp", "above 1 does not exist in Trainer; use 1");
    if (r->transformer->norm_place != DTP_NORMS_BEFORE)
        dtp_plan_refuse(r, "norm_place", "other than before is not modelled under runtime peft; use runtime torch");
    if (r->transformer->final_softcap > 0)
        dtp_plan_refuse(r, "final_softcap", "is not modelled under runtime peft; use runtime torch");
}

static void check(struct dtp_resolver *r)
{
    dtp_runtime_torch.check(r);
    if (r->plan->strategy == DTP_ZERO1)
        dtp_plan_refuse(r, "strategy", "zero1 is not what Trainer has; use ddp, full_shard, or runtime deepspeed");
    dtp_plan_check_transformers(r);
}

static bool check_offload(struct dtp_resolver *r)
{
    return dtp_runtime_torch.check_offload(r);
}

static void words(const struct dtp_plan *plan, char *out, size_t bytes)
{
    const char *what = plan->strategy == DTP_DDP ? "DDP" : plan->fsdp1 ? "FSDP1" : "FSDP2";
    snprintf(out, bytes, "%s %s Trainer", dtp_runtime_peft.name, what);
}

static bool overlaps_reductions(const struct dtp_plan *plan)
{
    return dtp_runtime_torch.overlaps_reductions(plan);
}

static const struct dtp_lower_hooks *lower(const struct dtp_plan *plan)
{
    return dtp_runtime_torch.lower(plan);
}

const struct dtp_runtime dtp_runtime_peft = {
    .name = "peft",
    .synonym = "transformers",
    .framework = "Transformers' Trainer",
    .strategies = ~(1u << DTP_ZERO2 | 1u << DTP_ZERO1),
    .shards_all = DTP_FULL_SHARD,
    .issuer = DTP_ISSUER_PYTORCH,
    .plain_host_adam = true,
    .wide_scores = true,
    .vocab_multiple = 1,
    .ddp = true,
    .hooked = 1u << DTP_DDP,
    .fsdp = true,
    .foreach_optimizer = true,
    .copies_heads = true,
    .chains_norms = true,
    .shifts_logits = true,
    .holds_replayed = true,
    .adapters = true,
    .inputs_require_grad = true,
    .defends_results = true,
    .copies_trained = true,
    .check = check,
    .check_offload = check_offload,
    .words = words,
    .overlaps_reductions = overlaps_reductions,
    .closed = &dtp_torch_closed_form,
    .lower = lower,
};
