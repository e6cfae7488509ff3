/* What plans of models with experts, latent attention or modules that predict further ahead are refused. */
#include "plan/degrees.h"
#include "plan/rules.h"

#include <inttypes.h>

/* torchtitan's experts beside tensor parallelism (dtp_plan_routes_all). */
static void check_routes_all(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    const uint32_t etp = p->megatron.etp;
    if (!p->sequence_parallel)
        dtp_plan_refuse(r, "sequence_parallel", "is how torchtitan's tensor parallel ranks have tokens; leave it on");
    if (etp > 1 && etp != p->tp)
        dtp_plan_refuse(r, "etp", "is tp or 1 in torchtitan (ParallelDims), not %" PRIu32, etp);
    if (t->expert_ffn % dtp_plan_width_ranks(p))
        dtp_plan_refuse(r, p->ep > 1 ? "etp" : "tp", "%" PRIu32 " does not divide experts %" PRIu64 " wide",
                        dtp_plan_width_ranks(p), t->expert_ffn);
    if (!dtp_plan_is_fsdp(p) || dtp_plan_gradient_ranks(p, r->cluster) < 2)
        dtp_plan_refuse(r, "tp", "with experts is modelled beside FSDP2 over several GPUs, which casts there");
    if (t->expert_bias || t->shared_expert_gate)
        dtp_plan_refuse(r, "tp", "with %s is not modelled under runtime %s; use 1",
                        t->expert_bias ? "biases of experts" : "a gate of shared experts", p->runtime->name);
    if (p->pp > 1 && dtp_plan_splits_backward(p))
        dtp_plan_refuse(r, "schedule", "that splits backward is not modelled with experts and tp; use 1f1b");
    if (dtp_plan_adapts(p))
        dtp_plan_refuse(r, "lora", "is not modelled with experts and tp; use 0");
}

/* What lowering has of experts: PyTorch's eager functions around grouped matmuls, whole models. */
static void check_runtime(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!p->runtime->experts)
        dtp_plan_refuse(r, "runtime", "%s is not modelled with experts; use runtime torch or megatron",
                        p->runtime->name);
    bool stages = p->pp > 1 && !p->runtime->weighs_rows && !p->runtime->dtensor;
    bool folds = p->runtime->weighs_rows; /* Megatron-Core's parallel folding */
    bool tensor = p->tp > 1 && !p->runtime->dtensor;
    if (!folds && (tensor || stages || p->cp > 1))
        dtp_plan_refuse(r, tensor ? "tp" : stages ? "pp" : "cp", "with experts is not modelled yet; use 1");
    if (p->tp > 1 && p->runtime->dtensor)
        check_routes_all(r);
    if (p->tp > 1 && folds && !p->sequence_parallel)
        dtp_plan_refuse(r, "sequence_parallel",
                        "is how tensor parallel ranks share tokens out to experts; leave it on");
    if (p->tp > 1 && folds && p->ep < 2)
        dtp_plan_refuse(r, "tp",
                        "with experts is modelled where ranks divide these (ep above 1, expert tensor parallel 1)");
    if (p->precision.compute == DTP_FP8 && !p->runtime->keeps_fp8)
        dtp_plan_refuse(r, "precision", "fp8 with experts is not modelled under runtime %s; use bf16-mixed",
                        p->runtime->name);
    if (p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "offload", "with experts is not modelled; use none");
    bool calls = dtp_plan_calls_experts(p); /* whose layer is one flat parameter, as any */
    if (p->fsdp1 && !calls)
        dtp_plan_refuse(r, "fsdp1", "with experts is not modelled; use FSDP2");
    if (calls && dtp_plan_autocast(p))
        dtp_plan_refuse(r, "precision",
                        "with experts under autocast is not modelled under runtime %s, where each of them casts the "
                        "rows of its tokens for itself; use bf16-pure, or full_shard",
                        p->runtime->name);
    if (p->grouped_experts && dtp_plan_autocast(p))
        dtp_plan_refuse(r, "grouped_experts",
                        "under autocast of fp32 weights is not modelled; use precision bf16 or bf16-pure");
    if (calls && r->transformer->experts_packed)
        dtp_plan_refuse(r, "experts_packed", "is not how Transformers' experts that are called one by one are kept");
    bool policy = p->runtime->dtensor && !p->compile;
    if (p->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL && !policy)
        dtp_plan_refuse(r, "checkpointing",
                        "selective with experts is modelled of eager layers under runtime torch; use full, every-N or "
                        "none");
}

/* Latent attention, as PyTorch's models have it, and Megatron-Core's, whose tensor parallel ranks have latents of their
 * own tokens. */
static void check_latent(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    if (!p->runtime->latent_attention)
        dtp_plan_refuse(r, "runtime", "%s is not modelled with latent attention; use runtime torch", p->runtime->name);
    bool stages = p->pp > 1 && !p->runtime->copies_values && !p->runtime->dtensor,
         tensor = p->tp > 1 && !p->runtime->copies_values && !p->runtime->dtensor;
    if (tensor || stages || p->cp > 1)
        dtp_plan_refuse(r, tensor ? "tp" : stages ? "pp" : "cp", "with latent attention is not modelled yet; use 1");
    if (p->tp > 1 && !tensor && !p->sequence_parallel)
        dtp_plan_refuse(r, "sequence_parallel",
                        "is how tensor parallel ranks share out the tokens of latents; leave it on");
    if (p->precision.compute == DTP_FP8 && !p->runtime->keeps_fp8)
        dtp_plan_refuse(r, "precision", "fp8 with latent attention is not modelled under runtime %s; use bf16-mixed",
                        p->runtime->name);
    if (p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "offload", "with latent attention is not modelled; use none");
    if (p->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL && (!p->runtime->dtensor || p->compile))
        dtp_plan_refuse(r, "checkpointing",
                        "selective with latent attention is modelled of eager layers under runtime torch; use full, "
                        "every-N or none");
    if (t->value_head_dim > t->head_dim)
        dtp_plan_refuse(r, "value_head_dim", "above head_dim is not modelled; kernels pad values, not keys");
    if (t->norm_place != DTP_NORMS_BEFORE || t->parallel_block)
        dtp_plan_refuse(r, t->parallel_block ? "parallel_block" : "norm_place",
                        "of this kind is not modelled with latent attention");
}

/* One module, as Megatron-Core's last stage has it: whole ranks, nothing run again but parts of layers, passes that
 * are not split. */
static void check_ahead(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    bool table = t->position == DTP_POSITION_LEARNED || t->embedding_norm || !t->final_norm;
    bool alike = t->expert_layer_step < 2 && t->sliding_window_pattern < 2 && !t->chunked_attention;
    bool split = p->pp > 1 && (dtp_plan_splits_backward(p) || p->schedule == DTP_SCHEDULE_DUALPIPE);
    if (!p->runtime->predicts_ahead) {
        dtp_plan_refuse(r, "mtp_layers", "is not modelled under runtime %s%s; use runtime megatron, or 0",
                        p->runtime->name,
                        p->runtime->fsdp && !dtp_plan_layers(p)->calls_experts
                            ? ": torchtitan makes its module an FSDP2 unit of its own, which is not modelled"
                            : "");
        return;
    }
    if (t->mtp_layers > 1)
        dtp_plan_refuse(r, "mtp_layers", "is %" PRIu64 ", and more than one is not modelled; use 1, or 0",
                        t->mtp_layers);
    if (p->cp > 1)
        dtp_plan_refuse(r, "cp", "with mtp_layers is not modelled yet; use 1");
    if (p->tp > 1 && !p->sequence_parallel)
        dtp_plan_refuse(r, "sequence_parallel", "off with mtp_layers and tp is not modelled; leave it out, or tp");
    if (p->checkpointing != DTP_CHECKPOINT_NONE)
        dtp_plan_refuse(r, "checkpointing", "with mtp_layers is not modelled; use recompute_modules, or none");
    if (dtp_plan_adapts(p))
        dtp_plan_refuse(r, "lora", "with mtp_layers is not modelled; use 0");
    if (table || !alike)
        dtp_plan_refuse(r, "mtp_layers", "is not modelled with %s; use 0",
                        table ? "learned positions, a norm of the embedding or without a final norm"
                              : "layers that are not all alike but the first");
    if (split)
        dtp_plan_refuse(r, "schedule", "%s is not modelled with mtp_layers; use 1f1b or interleaved",
                        dtp_schedule_row(p->schedule)->word);
    if (p->pp > 1 && (p->strategy == DTP_ZERO2 || p->post_validation))
        dtp_plan_refuse(r, p->post_validation ? "post_validation" : "strategy",
                        "is not modelled where two stages hold the embedding, as mtp_layers has it");
}

/* Attention sinks behind a kernel that returns its log-sum-exp. */
static void check_sinks(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!p->runtime->attention_sinks)
        dtp_plan_refuse(r, "attention_sinks", "are not modelled under runtime %s; use runtime torch", p->runtime->name);
    if (p->attention == DTP_ATTENTION_MATH)
        dtp_plan_refuse(r, "attention", "math is not modelled with sinks; use flash");
    if (p->tp > 1 || p->cp > 1)
        dtp_plan_refuse(r, p->tp > 1 ? "tp" : "cp", "with attention sinks is not modelled yet; use 1");
    if (r->transformer->kv_latent)
        dtp_plan_refuse(r, "attention_sinks", "are not modelled with latent attention");
}

/* Where sequences are longer than a chunk, each of these is a sequence to the kernel. */
static void check_chunks(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    if (!dtp_transformer_layer_window(t, 0, p->sequence))
        return;
    if (p->sequence % t->sliding_window)
        dtp_plan_refuse(r, "seq", "is no multiple of chunks of %" PRIu64 " tokens; others are not modelled",
                        t->sliding_window);
    if (p->cp > 1)
        dtp_plan_refuse(r, "cp", "with chunks shorter than seq is not modelled; use 1");
    if (p->attention == DTP_ATTENTION_MATH)
        dtp_plan_refuse(r, "attention", "math with chunks shorter than seq is not modelled; use flash");
}

/* torchtitan's: experts are FSDP2's over the ranks of a shard group that have the same ones, each block's a unit within
 * its block's. */
static void check_sharded(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    uint32_t node = r->cluster->gpus_per_node, ranks = dtp_plan_gradient_ranks(p, r->cluster);
    uint32_t of_experts = p->ep * (p->megatron.etp > 1 ? p->megatron.etp : 1); /* who have all of them together */
    if (!p->runtime->fsdp) {
        if (ranks * p->tp % of_experts)
            dtp_plan_refuse(r, "ep", "%s%" PRIu32 " does not divide the %" PRIu32 " GPUs of a stage",
                            of_experts > p->ep ? "times etp, " : "", of_experts, ranks * p->tp);
    } else if (!dtp_plan_is_fsdp(p) || p->fsdp1)
        dtp_plan_refuse(r, "ep", "above 1 goes with FSDP2 alone in PyTorch, not with %s; use strategy full_shard",
                        p->fsdp1 ? "FSDP1" : dtp_strategy_text(p->strategy));
    else if (p->shard_group && p->shard_group * p->tp % of_experts)
        dtp_plan_refuse(r, "ep", "%s%" PRIu32 " does not divide the %" PRIu32 " GPUs that share one copy",
                        of_experts > p->ep ? "times etp, " : "", of_experts, p->shard_group * p->tp);
    if (node % of_experts && of_experts % node)
        dtp_plan_refuse(r, "ep", "%" PRIu32 " neither divides a node of %" PRIu32 " GPUs nor fills whole nodes",
                        of_experts, node);
    if (p->runtime->fsdp && p->wrap_layers != 1)
        dtp_plan_refuse(r, "wrap_layers", "other than 1 is not modelled with ep; leave it out");
    if (p->reshard_group)
        dtp_plan_refuse(r, "reshard_after_forward", "to fewer GPUs is not modelled with ep; use true");
}

static void check_expert_parallel(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    const struct dtp_plan *p = r->plan;
    if (p->ep <= 1 || !p->runtime->expert_parallel) /* else its row refuses it */
        return;
    if (!t->experts)
        dtp_plan_refuse(r, "ep", "above 1 divides experts, of which this model has none; use 1");
    else if (t->experts % p->ep)
        dtp_plan_refuse(r, "ep", "%" PRIu32 " does not divide %" PRIu64 " experts", p->ep, t->experts);
    else
        check_sharded(r);
    if (t->expert_bias && !p->runtime->weighs_rows)
        dtp_plan_refuse(r, "ep", "with biases of experts is not modelled under runtime %s; use 1", p->runtime->name);
    if (p->expert_imbalance > p->ep)
        dtp_plan_refuse(r, "expert_imbalance", "%g is more than %" PRIu32 ", where one rank receives all tokens",
                        p->expert_imbalance, p->ep);
}

void dtp_plan_derive_experts(struct dtp_resolver *r)
{
    struct dtp_plan *p = r->plan;
    const bool folds = r->transformer->experts && p->ep > 1 && p->tp, wide = p->ep < 2 || p->megatron.etp > 1;
    p->expert_fold = folds ? p->tp : 1;
    p->expert_shards = dtp_plan_routes_all(p) && wide ? 1 : p->sequence_shards;
}

void dtp_plan_check_experts(struct dtp_resolver *r)
{
    const struct dtp_transformer *t = r->transformer;
    check_expert_parallel(r);
    if (t->experts)
        check_runtime(r);
    else if (r->plan->grouped_experts)
        dtp_plan_refuse(r, "grouped_experts", "is of experts, of which this model has none; leave it out");
    else if (r->plan->megatron.etp > 1)
        dtp_plan_refuse(r, "etp", "above 1 divides experts, of which this model has none; use 1");
    if (t->kv_latent)
        check_latent(r);
    if (t->mtp_layers)
        check_ahead(r);
    if (t->attention_sinks)
        check_sinks(r);
    if (t->chunked_attention)
        check_chunks(r);
    if (t->activation == DTP_SWIGLU_CLAMPED && !r->plan->runtime->clamped_swiglu)
        dtp_plan_refuse(r, "activation", "swiglu_clamped is not modelled under runtime %s; use runtime torch",
                        r->plan->runtime->name);
}
