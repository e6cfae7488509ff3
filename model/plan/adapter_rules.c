/* What plans with adapters are resolved to, and what they are refused. */
#include "plan/degrees.h"
#include "plan/rules.h"
#include "plan/slice.h"

#include <inttypes.h>

bool dtp_plan_picks_ddp(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    return plan->picks_strategy && dtp_plan_is_fsdp(plan) && cluster->gpus == 1;
}

/* Frozen weights are kept as matmuls read them: 16-bit ones have no wider copy, for nothing is added to them. So a
 * mixed recipe means a 16-bit base, and optimizer state and reductions in the adapters' dtype, as PyTorch's optimizers
 * make state like the parameter. torchao's 4 bits have packed scales always. */
void dtp_plan_derive_adapters(struct dtp_resolver *r)
{
    struct dtp_plan *p = r->plan;
    struct dtp_adapter_choice *a = &p->adapters;
    struct dtp_precision *d = &p->precision;
    p->adapter_ranks = dtp_plan_divides_adapters(p) ? p->tp : 1;
    if (!a->rank) {
        d->autocast = false;
        return;
    }
    enum dtp_dtype narrow = d->compute == DTP_TF32 ? DTP_FP32 : d->compute == DTP_FP8 ? DTP_BF16 : d->compute;
    if (a->dtype != DTP_FP32)
        a->dtype = narrow;
    if (p->runtime->adapters_as_weights) {
        d->autocast = false;
        return;
    }
    const bool mixed = dtp_dtype_bytes(d->params) > dtp_dtype_bytes(narrow);
    d->autocast = dtp_plan_casts_to_adapters(p) && (d->autocast || mixed);
    if (mixed) {
        d->params = d->master = narrow;
        d->moments = d->moments == DTP_INT8 ? d->moments : a->dtype == DTP_FP16 ? DTP_FP32 : a->dtype;
    }
    /* PyTorch's optimizers make state like the parameter beside a base in 16 bits, too; our executor's is a choice. */
    if ((dtp_plan_widens_adapters(p) || p->runtime->foreach_optimizer) && a->dtype == DTP_FP32 &&
        d->moments != DTP_INT8)
        d->moments = DTP_FP32;
    d->reduce = a->dtype;
    if (a->base == DTP_BASE_NF4 && p->runtime->packs_scales)
        a->base = DTP_BASE_NF4_DOUBLE;
}

/* A fused linear of Transformers' has one A and one B, whose result is that of all. */
static void check_fused(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const uint32_t targets = p->adapters.targets, qkv = targets & DTP_TARGETS_QKV, up = targets & DTP_TARGETS_UP;
    bool knows = p->runtime->inputs_require_grad || p->runtime->adapters_as_weights;
    bool modelled = knows && !p->compile && !p->adapters.dora && !p->adapters.prepare_kbit;
    if ((p->fused_qkv || p->fused_gate_up) && !modelled)
        dtp_plan_refuse(r, p->fused_qkv ? "fused_qkv" : "fused_gate_up",
                        "with adapters (lora) is modelled under runtimes peft and megatron, without dora and "
                        "prepare_kbit: elsewhere each projection has its own; leave it out");
    else if (p->fused_qkv && qkv && qkv != DTP_TARGETS_QKV)
        dtp_plan_refuse(r, "lora_targets", "names a part of the one linear of q, k and v (fused_qkv); name all of it");
    else if (p->fused_gate_up && up && up != DTP_TARGETS_UP)
        dtp_plan_refuse(r, "lora_targets", "names a part of the one linear of gate and up (fused_gate_up); name both");
}

static void check_runtime(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!p->runtime->adapters) { /* whose defaults the rules below would refuse as well */
        dtp_plan_refuse(r, "lora", "is not modelled under runtime %s; use runtime torch", p->runtime->name);
        return;
    }
    const struct {
        const char *key;
        uint32_t degree;
        bool known;
    } degrees[] = {{"tp", p->tp, p->runtime->adapters_under.tp},
                   {"pp", p->pp, p->runtime->adapters_under.pp},
                   {"cp", p->cp, p->runtime->adapters_under.cp}};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        if (degrees[i].degree > 1 && !degrees[i].known)
            dtp_plan_refuse(r, degrees[i].key,
                            "above 1 with adapters (lora) is not modelled under runtime %s yet; use 1",
                            p->runtime->name);
    if (p->offload != DTP_OFFLOAD_NONE && !(p->fsdp1 && p->runtime->inputs_require_grad))
        dtp_plan_refuse(
            r, "offload",
            "with adapters (lora) is modelled of FSDP1 under runtime peft; use runtime peft with fsdp1, or none");
    else if (p->offload != DTP_OFFLOAD_NONE && (p->adapters.dora || p->wrap_layers != 1))
        dtp_plan_refuse(r, p->adapters.dora ? "dora" : "wrap_layers",
                        "%s with adapters whose base is offloaded is not modelled; leave it out",
                        p->adapters.dora ? "on" : "other than 1");
    if (p->comm_hook != DTP_COMM_HOOK_NONE)
        dtp_plan_refuse(r, "comm_hook", "with adapters (lora) is not modelled; leave it out");
    if (p->fsdp1 && (!p->runtime->inputs_require_grad || p->adapters.train_ends))
        dtp_plan_refuse(r, "fsdp1",
                        "with adapters (lora) is modelled under runtime peft with checkpointing full and without "
                        "train_ends; leave it out");
    else if (p->fsdp1 && p->checkpointing != DTP_CHECKPOINT_FULL)
        dtp_plan_refuse(r, "fsdp1",
                        "with adapters (lora) is modelled with checkpointing full alone; give checkpointing full, or "
                        "leave fsdp1 out");
    if (p->strategy == DTP_HYBRID_SHARD || p->reshard_group)
        dtp_plan_refuse(r, p->reshard_group ? "reshard_after_forward" : "strategy",
                        "%s with adapters (lora) is not modelled yet; use full_shard",
                        p->reshard_group ? "to fewer GPUs" : "hybrid_shard");
    if (p->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
        dtp_plan_refuse(r, "checkpointing",
                        "selective with adapters (lora) is not modelled; use full, every-N or none");
    check_fused(r);
}

/* Eager operators of one linear alone are what is counted (lower_magnitudes.c). */
static void check_dora(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!p->adapters.dora)
        return;
    if (!p->runtime->magnitudes)
        dtp_plan_refuse(r, "dora", "is not modelled under runtime %s; use runtime peft or torch", p->runtime->name);
    if (p->compile)
        dtp_plan_refuse(r, "dora", "compiled is not modelled; leave compile out");
    if (r->transformer->experts)
        dtp_plan_refuse(r, "dora", "with experts is not modelled; use a model without");
    if (dtp_plan_widens_adapters(p))
        dtp_plan_refuse(r, "dora",
                        "with adapters that compute in fp32 (lora_dtype fp32 without autocast) is not modelled; leave "
                        "lora_dtype out, or use precision bf16-mixed or fp16-mixed");
    if (p->adapters.base != DTP_BASE_NONE)
        dtp_plan_refuse(r, "dora", "of packed weights (base %s) is not modelled yet; use base none",
                        dtp_base_text(p->adapters.base));
}

static void check_formats(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_adapter_choice *a = &p->adapters;
    if (p->precision.compute == DTP_FP8 && !p->runtime->adapters_as_weights)
        dtp_plan_refuse(r, "precision", "fp8 matmuls with adapters (lora) are not modelled; use bf16");
    bool whole = p->strategy == DTP_DDP;
    const bool copies = dtp_plan_layers(p)->copies_trained;
    if (dtp_plan_mixes_ends(p) && !whole && !copies)
        dtp_plan_refuse(r, "train_ends",
                        "in shards is not modelled beside adapters of another dtype than the base (those of peft are "
                        "fp32 where nothing is said); use strategy ddp, or lora_dtype %s",
                        dtp_dtype_text(p->precision.params));
    if (dtp_plan_mixes_ends(p) && p->precision.params == DTP_FP16)
        dtp_plan_refuse(r, "train_ends",
                        "of a 16-bit base in fp16 has gradients that GradScaler does not unscale; use bf16");
    if (a->train_ends && copies && !whole)
        dtp_plan_refuse(r, "train_ends",
                        "in shards is not modelled under runtime %s, which keeps a frozen copy as well; "
                        "use ddp, or runtime torch",
                        p->runtime->name);
    if (a->train_ends && p->pp > 1)
        dtp_plan_refuse(r, "train_ends", "in stages of a pipeline is not modelled; use pp 1, or leave it out");
    if (a->train_ends && r->transformer->tied_head)
        dtp_plan_refuse(r, "train_ends", "of a head that is tied to the embedding is not modelled; leave it out");
    if (!(a->dropout >= 0 && a->dropout < 1))
        dtp_plan_refuse(r, "lora_dropout", "is %g; it must be at least 0 and below 1", a->dropout);
}

/* What is counted (lower_wide_norms.c): chains of RMSNorm before both branches, RoPE, a flash core, bf16 autocast. */
static void check_prepared(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct dtp_transformer *t = r->transformer;
    const char *what = "with prepare_kbit is not modelled";
    if (!p->adapters.prepare_kbit)
        return;
    if (p->strategy != DTP_DDP)
        dtp_plan_refuse(r, "prepare_kbit",
                        "is not what TRL does where FSDP shards packed weights; leave it out, or use "
                        "strategy ddp");
    if (!p->precision.autocast || p->precision.compute != DTP_BF16)
        dtp_plan_refuse(r, "prepare_kbit",
                        "is modelled with bf16 autocast; use precision bf16-mixed with lora_dtype "
                        "fp32, or leave it out");
    if (p->adapters.dora || p->adapters.train_ends)
        dtp_plan_refuse(r, p->adapters.dora ? "dora" : "train_ends", "%s; leave it out", what);
    if (p->fast_kernels)
        dtp_plan_refuse(r, "fast_kernels", "%s; leave it out", what);
    if (p->attention == DTP_ATTENTION_MATH)
        dtp_plan_refuse(r, "attention", "math %s; use flash", what);
    if (t->norm != DTP_RMS_NORM || t->norm_without_weight || t->qk_norm || t->parallel_block || t->embedding_norm ||
        !t->final_norm)
        dtp_plan_refuse(r, "prepare_kbit",
                        "is modelled of RMSNorms with weights before attention, before the MLP and before the head "
                        "alone; leave it out");
    if (t->position != DTP_POSITION_ROPE || t->attention_sinks)
        dtp_plan_refuse(r, "prepare_kbit", "is modelled of attention with RoPE and without sinks; leave it out");
}

/* Where scales are packed always, as people name it. */
static const char *base_words(const struct dtp_plan *plan)
{
    bool nf4 = plan->runtime->packs_scales && plan->adapters.base == DTP_BASE_NF4_DOUBLE;
    return dtp_base_text(nf4 ? DTP_BASE_NF4 : plan->adapters.base);
}

/* torchao asks for whole blocks of 64 and of 256 of these (NF4Tensor.double_quantize_scalers). */
#define NF4_WHOLE 16384u

static void check_matrices(struct dtp_resolver *r)
{
    const struct dtp_adapter_choice *a = &r->plan->adapters;
    struct dtp_layer_kind kind;
    uint32_t adapted = 0, absent = a->targets;
    bool parameters = r->transformer->experts && !dtp_plan_calls_experts(r->plan); /* whose base is refused above */
    bool torchao = r->plan->runtime->packs_scales && a->base == DTP_BASE_NF4_DOUBLE && !parameters;
    const struct dtp_transformer kept = dtp_plan_packed_experts(r->transformer, r->plan);
    dtp_layer_kind_of(&kept, dtp_layer_mlp_of(&kept), false, false, &kind);
    dtp_plan_adapt_kind(r->plan, &kind);
    for (int i = 0; i < kind.matrices; i++) {
        const struct dtp_layer_matrix *matrix = &kind.matrix[i];
        uint64_t least = matrix->in < matrix->out ? matrix->in : matrix->out;
        adapted += matrix->rank != 0;
        if (matrix->rank > least)
            dtp_plan_refuse(r, "lora", "is rank %" PRIu64 ", but matrix %s is %" PRIu64 " x %" PRIu64 " only; use less",
                            matrix->rank, matrix->name, matrix->out, matrix->in);
        if (torchao && matrix->out * matrix->in % NF4_WHOLE)
            dtp_plan_refuse(r, "base",
                            "%s packs whole blocks of %u weights, and matrix %s has %" PRIu64 "; use base int8, or "
                            "nf4 under runtime peft",
                            base_words(r->plan), NF4_WHOLE, matrix->name, matrix->out * matrix->in);
    }
    bool gate = absent & 1u << DTP_TARGET_GATE && !kind.gated && absent != DTP_TARGETS_ALL;
    if (parameters && !r->transformer->shared_expert_ffn && absent != DTP_TARGETS_ALL && absent & DTP_TARGETS_MLP) {
        dtp_plan_refuse(r, "lora_targets",
                        "names matrices of experts, which are parameters of three dimensions under runtime %s and no "
                        "linears; use attention, or all, which are the linears that there are",
                        r->plan->runtime->name);
        return;
    }
    if (!adapted || gate)
        dtp_plan_refuse(r, "lora_targets", "names %s, and the model has %s", gate ? "gate" : "no linear of it",
                        gate ? "no gate: its MLP is up and down" : "others");
}

/* ParamWrapper of peft's tuners/lora/layer.py, which refuses dropout itself. */
static void check_parameters(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (!p->adapters.parameters)
        return;
    if (p->strategy != DTP_DDP)
        dtp_plan_refuse(r, "lora_parameters", "in shards is not modelled; use strategy ddp");
    if (p->adapters.dropout > 0)
        dtp_plan_refuse(r, "lora_dropout", "is not what adapters of parameters can have (peft refuses it); use 0");
}

/* Experts in one tensor of each matrix are no linears: target_modules does not reach them, nor do packed formats. */
static void check_expert_parameters(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    if (p->ep > 1)
        dtp_plan_refuse(r, "ep", "above 1 with adapters (lora) is not modelled yet; use 1");
    if (p->adapters.base != DTP_BASE_NONE)
        dtp_plan_refuse(r, "base",
                        "%s packs linears, and experts of this model are parameters of three dimensions under runtime "
                        "%s, which stay in 16 bits; use base none",
                        base_words(p), p->runtime->name);
}

void dtp_plan_check_adapters(struct dtp_resolver *r)
{
    if (!dtp_plan_adapts(r->plan))
        return;
    const struct dtp_transformer *t = r->transformer;
    if (t->experts && !dtp_plan_calls_experts(r->plan))
        check_expert_parameters(r);
    check_parameters(r);
    if (t->experts && !dtp_transformer_is_uniform(t))
        dtp_plan_refuse(r, "lora", "with experts in some of the layers only is not modelled yet");
    else if (r->transformer->kv_latent)
        dtp_plan_refuse(r, "lora", "with latent attention is not modelled yet; use a model without");
    else
        check_matrices(r);
    check_runtime(r);
    check_dora(r);
    check_prepared(r);
    check_formats(r);
}
