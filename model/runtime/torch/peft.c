/* PyTorch as Transformers' Trainer, TRL and peft run it: models of Transformers' modeling files, adapters of peft,
 * packed weights of bitsandbytes and GPTQ, under the same DDP and FSDP as runtime torch, which this is a variant of.
 *
 * What differs, and where it stands:
 *   norms        chains of operators on an fp32 copy (plan/norm_chain.h)
 *   LayerNorms   and powers in fp32 where 16-bit weights are trained under autocast: plan/norm_chain.h, gelu_chain.h
 *   logits       to fp32, and once more without the last token, while the model holds them (dtp_plan_shifts_logits)
 *   checkpoints  reentrant (Trainer calls gradient_checkpointing_enable() without use_reentrant, which meant true in
 *                PreTrainedModel of release 4): every layer runs again whole, and its result stands until its backward
 *                is through. Release 5.17 has false; its runs are planned the same (reports/h200/library_runs.md)
 *   inputs       of frozen models require a gradient (enable_input_require_grads, without which a reentrant checkpoint
 *                has none), so that backward goes through the first layer, too
 *   4 bits       bitsandbytes' matmul_4bit unpacks in forward and again in backward (MatMul4Bit of its
 *                autograd/_functions.py), where SMs and not HBM are the limit (DTP_KERNEL_UNPACKING); its scales are
 *                packed where bnb_4bit_use_double_quant says so: nf4-double, and unpacked by two kernels before
 *   fp32         adapters compute in it without autocast (Trainer's bf16 and fp16 off): dtp_plan_widens_adapters
 *   losses       are read by the host after each micro-step, which waits for them (lower_host_calls.c)
 *   results      of packed matrices are copied before an adapter's is added (tuners/lora/bnb.py)
 *   sinks        of gpt-oss by flex_attention (lower_sinks.c); its experts by grouped matmuls (lower_sorted_experts.c)
 *   fp32 norms   prepare_model_for_kbit_training (peft, utils/other.py) makes every 16-bit parameter that is not
 *                packed fp32 - norms, biases, embedding and head - but not of GPTQ. TRL's SFTTrainer called it until
 *                0.25 for 4 bits that no FSDP shards, and with bf16 peft_module_casting_to_bf16 (trl/trainer/utils.py),
 *                which makes embedding and head bf16 again: prepare_kbit, without which fp32_ends. An fp32 weight makes
 *                a norm's result fp32 (weight times the result in the input's format: MistralRMSNorm), which
 *                Linear4bit computes in its own format but returns in its input's (bitsandbytes, nn/modules.py):
 *                lower_wide_norms.c */
#include "runtime/torch/torch.h"

#include "plan/rules.h"
#include "plan/runtime.h"
#include "plan/transformers_layers.h"

#include <stdio.h>

/* gpt-oss: flex_attention joins sinks, eager attention keeps scores of all pairs in several tensors; its experts are
 * parameters, which are called one by one as linears are not. */
static void check_gpt_oss(struct dtp_resolver *r)
{
    if (r->transformer->activation == DTP_SWIGLU_CLAMPED && r->transformer->experts && !r->plan->grouped_experts)
        dtp_plan_refuse(r, "activation",
                        "swiglu_clamped of experts that are called one by one is not modelled under runtime peft; "
                        "use grouped_experts, which Transformers 5 has where nothing is said");
}

static void check_autocast(struct dtp_resolver *r)
{
    const struct dtp_precision *of = &r->plan->precision;
    if (!r->plan->autocast)
        return;
    if (dtp_plan_adapts(r->plan))
        dtp_plan_refuse(r, "autocast", "is not read beside adapters (lora), whose precision bf16-mixed says it");
    else if (dtp_dtype_bytes(of->params) != 2 || dtp_dtype_bytes(of->compute) != 2)
        dtp_plan_refuse(r, "autocast", "is of weights in 16 bits; leave it out, or use precision bf16-pure");
}

static void check(struct dtp_resolver *r)
{
    check_autocast(r);
    dtp_runtime_torch.check(r);
    if (r->plan->strategy == DTP_ZERO1)
        dtp_plan_refuse(r, "strategy", "zero1 is not what Trainer has; use ddp, full_shard, or runtime deepspeed");
    dtp_plan_check_transformers(r);
    check_gpt_oss(r);
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
    .clips_by_key = true,
    .reads_losses = true,
    .foreach_optimizer = true,
    .optimizer_shapes = 1u << DTP_STATE_PROJECTED, /* galore_torch, apollo_torch */
    .adapters = true,
    .magnitudes = true,
    .experts = true,
    .attention_sinks = true,
    .clamped_swiglu = true,
    DTP_TRANSFORMERS_HABITS,
    .check = check,
    .check_offload = check_offload,
    .words = words,
    .overlaps_reductions = overlaps_reductions,
    .closed = &dtp_torch_closed_form,
    .lower = lower,
};
