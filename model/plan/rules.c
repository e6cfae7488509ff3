#include "plan/rules.h"

#include "base/bytes.h"
#include "net/parameter_layout.h"

unsigned dtp_plan_compute_bytes(const struct dtp_plan *plan)
{
    unsigned bytes = dtp_dtype_bytes(plan->precision.compute);
    return bytes < 2 ? 2 : bytes;
}

bool dtp_plan_autocast(const struct dtp_plan *plan)
{
    bool replicated = plan->strategy == DTP_DDP || plan->strategy == DTP_ZERO1;
    return plan->runtime == DTP_RUNTIME_TORCH && replicated && dtp_dtype_bytes(plan->precision.params) == 4 &&
           dtp_plan_compute_bytes(plan) < 4;
}

bool dtp_plan_keeps_fp8(const struct dtp_plan *plan)
{
    return plan->precision.compute == DTP_FP8 &&
           (plan->runtime == DTP_RUNTIME_MEGATRON || plan->runtime == DTP_RUNTIME_DTPLAN);
}

unsigned dtp_plan_score_bytes(const struct dtp_plan *plan)
{
    bool wide = plan->runtime == DTP_RUNTIME_TORCH || plan->runtime == DTP_RUNTIME_DEEPSPEED;
    return wide ? 4 : dtp_plan_compute_bytes(plan);
}

enum dtp_loss dtp_plan_loss(const struct dtp_plan *plan)
{
    if (plan->runtime == DTP_RUNTIME_DTPLAN)
        return DTP_LOSS_CHUNKED;
    return plan->loss == DTP_LOSS_EAGER && plan->compile && plan->compile_loss ? DTP_LOSS_FUSED : plan->loss;
}

/* torch stores what the recipe calls params and casts on the way to the matmul; the other runtimes hold the weights in
 * the compute dtype and the recipe's master copy beside the moments (DeepSpeed bf16/fp16 engine, Megatron's mixed
 * precision optimizer, our executor). */
static uint64_t stored_bytes(const struct dtp_plan *plan)
{
    unsigned params = dtp_dtype_bytes(plan->precision.params), compute = dtp_plan_compute_bytes(plan);
    return plan->runtime == DTP_RUNTIME_TORCH || params < compute ? params : compute;
}

/* Adam keeps two moments, plain SGD none; 8-bit Adam one byte each (its scales, 4 bytes per 256, are left out). */
static uint64_t moments_bytes(const struct dtp_plan *plan)
{
    switch (plan->optimizer) {
    case DTP_SGD: return 0;
    case DTP_ADAM8BIT: return 2;
    case DTP_ADAMW_FUSED:
    case DTP_ADAMW_FOREACH: break;
    }
    return 2 * (uint64_t)dtp_dtype_bytes(plan->precision.moments);
}

/* Where gradients rest: torch in the dtype of the parameters (FSDP2 casts back to it after reducing), DeepSpeed in the
 * model's dtype, Megatron and our executor in a buffer of the reduce dtype that matmuls accumulate into. */
static uint64_t grads_bytes(const struct dtp_plan *plan, uint64_t stored)
{
    bool buffer = plan->runtime == DTP_RUNTIME_MEGATRON || plan->runtime == DTP_RUNTIME_DTPLAN;
    return buffer ? dtp_dtype_bytes(plan->precision.reduce) : stored;
}

void dtp_element_bytes_count(const struct dtp_plan *plan, struct dtp_element_bytes *out)
{
    uint64_t stored = stored_bytes(plan), master = dtp_dtype_bytes(plan->precision.master);
    bool replicated = plan->strategy == DTP_DDP || plan->strategy == DTP_ZERO1;
    *out = (struct dtp_element_bytes){.params = stored,
                                      .compute = dtp_plan_compute_bytes(plan),
                                      .grads = grads_bytes(plan, stored),
                                      .reduce = dtp_dtype_bytes(plan->precision.reduce),
                                      .moments = moments_bytes(plan),
                                      .master = master > stored ? master : 0};
    out->optimizer = out->moments + out->master;
    out->gathered = plan->precision.fp8_all_gather ? 1 : out->compute;
    /* DDP reduces gradients in their own dtype, fp32 under autocast; DeepSpeed in the model's dtype. */
    if ((plan->runtime == DTP_RUNTIME_TORCH && replicated) || plan->runtime == DTP_RUNTIME_DEEPSPEED)
        out->reduce = out->grads;
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

bool dtp_plan_shards_params(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_ZERO3 || plan->strategy == DTP_FULL_SHARD || plan->strategy == DTP_SHARD_GRAD_OP ||
           plan->strategy == DTP_HYBRID_SHARD;
}

bool dtp_plan_shards_grads(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_ZERO2 || dtp_plan_shards_params(plan);
}

bool dtp_plan_shards_optimizer(const struct dtp_plan *plan)
{
    return plan->strategy != DTP_DDP;
}

bool dtp_plan_keeps_root(const struct dtp_plan *plan)
{
    return plan->keep_root || plan->fsdp1 || plan->runtime == DTP_RUNTIME_DTPLAN;
}

uint32_t dtp_plan_reductions(const struct dtp_plan *plan)
{
    bool deepspeed = plan->runtime == DTP_RUNTIME_DEEPSPEED;
    bool every = plan->accumulate_sync || (deepspeed && (plan->strategy == DTP_ZERO2 || plan->strategy == DTP_ZERO3)) ||
                 (plan->runtime != DTP_RUNTIME_TORCH && plan->strategy == DTP_ZERO2);
    return every ? plan->accumulate : 1;
}

bool dtp_plan_model_parallel(const struct dtp_plan *plan)
{
    return plan->tp > 1 || plan->pp > 1;
}

uint32_t dtp_plan_data_ranks(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    uint64_t slices = (uint64_t)(plan->tp ? plan->tp : 1) * (plan->pp ? plan->pp : 1);
    return slices <= cluster->gpus ? (uint32_t)(cluster->gpus / slices) : 1;
}

enum dtp_measured_attention dtp_measured_attention_of(const struct dtp_plan *plan, bool backward)
{
    return !backward                ? DTP_MEASURED_ATTENTION_FORWARD
           : plan->atomic_attention ? DTP_MEASURED_ATTENTION_BACKWARD_ATOMIC
                                    : DTP_MEASURED_ATTENTION_BACKWARD;
}

/* Megatron pads a vocabulary to a multiple of 128 (--make-vocab-size-divisible-by) of each tensor parallel rank's part.
 */
#define MEGATRON_VOCAB_MULTIPLE 128u

uint64_t dtp_plan_head_columns(const struct dtp_plan *plan, uint64_t vocab)
{
    uint64_t multiple = plan->runtime == DTP_RUNTIME_MEGATRON ? MEGATRON_VOCAB_MULTIPLE
                        : plan->runtime == DTP_RUNTIME_DTPLAN ? DTP_PARAMETER_ALIGNMENT
                                                              : 1;
    return dtp_divide_up(vocab, multiple) * multiple;
}
