/* The closed form of a step's time: device work per micro-step from block_work and op_cost, collectives from the
 * communication totals, and how much of them hides behind which window of compute.
 *
 * Windows. A sharded step gathers unit i+1 while unit i computes, so of U equal units the first gather is exposed and the
 * others hide behind the block time; in backward gathers and reduce-scatters share one communicator (a FIFO), so their
 * sum competes with the backward time; the last reduce-scatter has nothing to hide behind. Sums of maxima over equal
 * units are maxima of sums, which is what makes the form closed. */
#include "closed_form_counted.h"

#include "activations.h"
#include "block_work.h"
#include "calibration.h"
#include "cluster_cost.h"
#include "collective_choice.h"
#include "model_parallel.h"
#include "deepspeed.h"
#include "executor_work.h"
#include "op_cost.h"
#include "sharding.h"
#include "time_parts.h"
#include "zeropp.h"

#include <math.h>

/* Device seconds of one micro-step. */
struct micro_step {
    double matmul_forward_s, matmul_backward_s, attention_forward_s, attention_backward_s;
    double memory_forward_s, memory_backward_s, loss_s, head_s;
    double recompute_matmul_s, recompute_other_s;
    double weights_s;  /* casts and copies of weights and gradients */
    double fp8_s;
    double kernels;
};

struct context {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_parameter_count count;
    struct dtp_block_work block;
    double tokens;      /* of one micro-step */
    double layers;
    double eager_bytes_per_s, streaming_bytes_per_s;
    double narrow_gather_s; /* of all-gathers: within the group that parameters are resharded to */
    bool ours; /* runtime dtplan: */
    struct dtp_executor_work work;
    struct dtp_executor_rules rules;
    struct dtp_time_parts *parts;
};

static double sum_matmuls(const struct context *c, bool backward, bool only_recomputed)
{
    double total = 0;
    const struct dtp_cluster *on = c->cluster;
    enum dtp_dtype dtype = c->plan->precision.compute;
    for (int i = 0; i < c->block.matmul_count; i++) {
        const struct dtp_weight_matmul *m = &c->block.matmul[i];
        if (only_recomputed && !m->recomputed)
            continue;
        double once = backward
                          ? dtp_cluster_matmul_s(on, DTP_MEASURED_MATMUL_INPUT_GRADIENT, dtype, c->tokens, m->k, m->n) +
                                dtp_cluster_matmul_s(on, DTP_MEASURED_MATMUL_WEIGHT_GRADIENT, dtype, m->n, m->k, c->tokens)
                          : dtp_cluster_matmul_s(on, DTP_MEASURED_MATMUL_FORWARD, dtype, c->tokens, m->n, m->k);
        total += m->copies * once;
    }
    return total;
}

static double head_matmuls_s(const struct context *c)
{
    enum dtp_dtype dtype = c->plan->precision.compute == DTP_FP8 ? DTP_BF16 : c->plan->precision.compute;
    const struct dtp_cluster *on = c->cluster;
    double h = (double)c->transformer->hidden, vocab = (double)c->transformer->vocab;
    double chunks = c->ours ? (double)c->rules.chunk_count : 1, rows = c->tokens / chunks;
    return chunks * (dtp_cluster_matmul_s(on, DTP_MEASURED_MATMUL_FORWARD, dtype, rows, vocab, h) +
                     dtp_cluster_matmul_s(on, DTP_MEASURED_MATMUL_INPUT_GRADIENT, dtype, rows, h, vocab) +
                     dtp_cluster_matmul_s(on, DTP_MEASURED_MATMUL_WEIGHT_GRADIENT, dtype, vocab, h, rows));
}

/* Blocks whose forward runs again in backward. */
static double recomputed_layers(const struct context *c)
{
    switch (c->plan->checkpointing) {
    case DTP_CHECKPOINT_NONE: return 0;
    case DTP_CHECKPOINT_EVERY_N: return ceil(c->layers / c->plan->checkpoint_every);
    case DTP_CHECKPOINT_FULL:
    case DTP_CHECKPOINT_SELECTIVE_ATTENTION:
    case DTP_CHECKPOINT_SELECTIVE_MATMUL: return c->layers;
    }
    return 0;
}

/* Non-reentrant checkpointing stops its replay at the last saved tensor: the block's last matmul (down) is not run again
 * (torch.utils.checkpoint early_stop; profiled: 3 matmuls a layer are replayed, not 4). */
static bool stops_early(const struct dtp_plan *plan)
{
    bool stops = plan->runtime == DTP_RUNTIME_TORCH || plan->runtime == DTP_RUNTIME_DTPLAN;
    return stops && plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_MATMUL;
}

static double early_stop_s(const struct context *c)
{
    const struct dtp_weight_matmul *down = &c->block.matmul[c->block.matmul_count - 1];
    return stops_early(c->plan)
               ? dtp_cluster_matmul_s(c->cluster, DTP_MEASURED_MATMUL_FORWARD, c->plan->precision.compute, c->tokens,
                                      down->n, down->k)
               : 0;
}

/* Op-level checkpointing keeps what fused attention returns; math attention is matmuls of batches and pointwise operations,
 * none of which is on its list (torchtitan: mm and the fused attentions). */
static bool replays_attention(const struct dtp_plan *plan)
{
    return plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_MATMUL || plan->attention == DTP_ATTENTION_MATH;
}

static void add_recompute(const struct context *c, const struct dtp_attention_time *attention, struct micro_step *m)
{
    double layers = recomputed_layers(c);
    bool matmul_selective = c->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL;
    bool attention_only = c->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    if (attention_only) {
        m->recompute_other_s = layers * attention->forward_s;
        return;
    }
    m->recompute_matmul_s = layers * (sum_matmuls(c, false, matmul_selective) - early_stop_s(c));
    if (c->ours) { /* its launches are counted with the others */
        m->recompute_other_s =
            (replays_attention(c->plan) ? layers * attention->forward_s : 0) + c->work.recompute_bytes / c->eager_bytes_per_s;
        return;
    }
    m->recompute_other_s = layers * ((replays_attention(c->plan) ? attention->forward_s : 0) +
                                     c->block.forward_bytes_per_token * c->tokens / c->eager_bytes_per_s);
    m->kernels += layers * c->block.forward_kernels;
}

/* Bytes the device moves to turn stored weights into usable ones and gradients into what the optimizer takes, in one
 * micro-step; `reduces` says whether gradients leave in this one. internals: DDP under autocast casts every weight
 * (4+w) and every gradient back (w+4) and copies it into its bucket (4+4); FSDP2 copies each gathered unit out (w+w)
 * and its gradients in (w+r); Megatron adds a weight gradient to the sum of earlier micro-steps in the matmul's own
 * output pass (the sum is read and written instead of the gradient written); FSDP1 gathers in place but concatenates
 * gradients (w+w) before the cast (w+r). */
static double weight_traffic_bytes(const struct context *c, bool reduces)
{
    const struct dtp_plan *plan = c->plan;
    double w = dtp_plan_compute_bytes(plan), r = dtp_dtype_bytes(plan->precision.reduce);
    double total = (double)c->count.total;
    bool alone = c->cluster->gpus == 1;
    if (dtp_plan_autocast(plan))
        return total * ((4 + w) + (w + 4) + (plan->accumulate > 1 ? 12 : 0) + (reduces && !alone ? 8 : 0));
    if (c->ours)
        return c->work.gradient_bytes / plan->accumulate;
    bool in_matmul = plan->runtime == DTP_RUNTIME_MEGATRON;
    if (!dtp_plan_shards_params(plan)) {
        double adding = in_matmul ? 2 * r - w : 2 * r + w;
        bool adds = plan->accumulate > 1 || plan->runtime == DTP_RUNTIME_MEGATRON; /* its first sum is of zeros */
        return total * ((adds ? adding : 0) + (reduces && !alone ? 2 * r : 0));
    }
    double gathers = plan->reshard_after_forward ? 2 : 1;
    double per_gather = plan->fsdp1 ? 0 : 2 * w;
    double per_reduce = w + r + (plan->fsdp1 ? 2 * w : 0);
    if (plan->zero_quantized_weights) /* a shard into int8, all of it back */
        per_gather += (1 + w) * (1 + 1.0 / plan->shard_group);
    if (dtp_zeropp_reduces(plan, c->cluster)) /* a gradient into int4, a node's sum, and back */
        per_reduce += 0.5 + (1 + 2 * r) / c->cluster->gpus_per_node;
    double accumulate = plan->accumulate > 1 && !plan->accumulate_sync ? w + 2 * r : 0;
    return total * (gathers * per_gather + (reduces ? per_reduce : 0) + accumulate);
}

/* fp8: inputs, weights and output gradients are scaled and cast around every matmul; bytes of one micro-step.
 *   torchao               reads each tensor for its amax (2), reads and writes it for the cast (2+1), forward and backward
 *   te.Linear in eager    one pass reads (2) and writes both layouts (1+1)
 *   megatron, dtplan      the kernel before the matmul writes fp8 instead of bf16, so an input costs its second layout
 *                         (1); weights are cast once a step for all micro-steps */
static double fp8_cast_bytes(const struct context *c)
{
    const struct dtp_plan *plan = c->plan;
    if (plan->precision.compute != DTP_FP8)
        return 0;
    bool torchao = plan->runtime == DTP_RUNTIME_TORCH && !plan->fsdp1, fused = plan->runtime != DTP_RUNTIME_TORCH;
    double per_input = torchao ? 10 : fused ? 1 : 4, per_output = torchao ? 5 : 4;
    double per_weight = torchao ? 10 : fused ? 4.0 / plan->accumulate : 4, bytes = 0;
    for (int i = 0; i < c->block.matmul_count; i++) {
        const struct dtp_weight_matmul *m = &c->block.matmul[i];
        bytes += m->copies * (per_input * m->k * c->tokens + per_output * m->n * c->tokens + per_weight * m->n * m->k);
    }
    return bytes * c->layers;
}

/* Seconds of weight_traffic_bytes. */
static double weight_traffic_s(const struct context *c, bool reduces)
{
    return weight_traffic_bytes(c, reduces) / dtp_cluster_memory_kernel_bytes_per_s(c->cluster, c->plan, DTP_KERNEL_FUSED);
}

/* Bytes through HBM of a micro-step's memory-bound kernels. */
static double forward_bytes(const struct context *c)
{
    return c->ours ? c->work.forward_bytes : c->layers * c->block.forward_bytes_per_token * c->tokens;
}

static double backward_bytes(const struct context *c)
{
    return c->ours ? c->work.backward_bytes : c->layers * c->block.backward_bytes_per_token * c->tokens;
}

static double loss_bytes(const struct context *c)
{
    return c->ours ? c->work.loss_bytes : dtp_loss_bytes_per_token(c->transformer, c->plan) * c->tokens;
}

/* A micro-step that reduces its gradients. */
static struct micro_step micro_step(const struct context *c)
{
    struct micro_step m = {0};
    struct dtp_attention_time attention = dtp_cluster_attention_time(c->cluster, c->transformer, c->plan, c->tokens);
    m.matmul_forward_s = c->layers * sum_matmuls(c, false, false);
    m.matmul_backward_s = c->layers * sum_matmuls(c, true, false);
    m.head_s = head_matmuls_s(c);
    m.attention_forward_s = c->layers * attention.forward_s;
    m.attention_backward_s = c->layers * attention.backward_s;
    m.memory_forward_s = forward_bytes(c) / c->eager_bytes_per_s;
    m.memory_backward_s = backward_bytes(c) / c->eager_bytes_per_s;
    m.loss_s = loss_bytes(c) / c->eager_bytes_per_s;
    m.weights_s = weight_traffic_s(c, true);
    m.fp8_s = fp8_cast_bytes(c) / c->eager_bytes_per_s;
    m.kernels = c->layers * (c->block.forward_kernels + c->block.backward_kernels) + c->block.root_kernels;
    m.kernels = c->ours ? c->work.kernels + c->work.step_kernels / c->plan->accumulate : m.kernels;
    add_recompute(c, &attention, &m);
    return m;
}

static double optimizer_shard(const struct context *c)
{
    return (double)c->count.total / (dtp_plan_shards_optimizer(c->plan) ? c->plan->shard_group : 1);
}

static double device_optimizer_s(const struct context *c)
{
    if (c->ours)
        return c->work.update_bytes / c->streaming_bytes_per_s;
    if (c->plan->offload != DTP_OFFLOAD_NONE)
        return 0;
    return optimizer_shard(c) * dtp_optimizer_bytes_per_parameter(c->plan) / c->streaming_bytes_per_s;
}

/* ---- collectives ------------------------------------------------------------------------------------------------ */

/* Seconds of `count` equal operations of one collective over a group, alone. */
static double group_total_s(const struct context *c, const struct dtp_group *group, enum dtp_collective collective,
                            uint64_t bytes, uint64_t count)
{
    if (!count)
        return 0;
    struct dtp_collective_cost cost = dtp_collective_cost(c->cluster, group, collective);
    dtp_collective_choose(c->cluster, group, c->plan, collective, &cost);
    return (double)count * dtp_collective_time(&cost, (double)bytes / (double)count);
}

/* The same of values and their scales. */
static double with_scales_s(const struct context *c, const struct dtp_group *group, enum dtp_collective collective,
                            uint64_t bytes, uint64_t count, struct dtp_scales scales)
{
    return group_total_s(c, group, collective, bytes - scales.bytes, count - scales.count) +
           group_total_s(c, group, collective, scales.bytes, scales.count);
}

/* Neighbours that gather among themselves what the shard group has gathered before; 0: none do. */
static uint32_t narrow_group(const struct dtp_plan *plan)
{
    return plan->reshard_group ? plan->reshard_group : plan->zero_hpz_partition_size > 1 ? plan->zero_hpz_partition_size : 0;
}

/* All-gathers within it. */
static double narrow_gather_s(const struct context *c, const struct dtp_communication *communication)
{
    struct dtp_group group = dtp_group_consecutive(c->cluster, narrow_group(c->plan));
    return with_scales_s(c, &group, DTP_ALL_GATHER, communication->narrow_gather_bytes,
                         communication->narrow_gather_count, communication->narrow_gather_scales);
}

/* Seconds of all operations of one collective, alone. */
static double collective_total_s(const struct context *c, const struct dtp_communication *communication,
                                 enum dtp_collective collective)
{
    const struct dtp_plan *plan = c->plan;
    uint64_t bytes = communication->bytes[collective], count = communication->count[collective];
    bool replicas = collective == DTP_ALL_REDUCE && plan->shard_group < c->cluster->gpus;
    struct dtp_group group = replicas ? dtp_group_strided(c->cluster, plan->shard_group)
                                      : dtp_group_consecutive(c->cluster, plan->shard_group > 1 ? plan->shard_group
                                                                                               : c->cluster->gpus);
    if (collective == DTP_ALL_TO_ALL && !c->ours) { /* within nodes, and between */
        struct dtp_group between = dtp_group_strided(c->cluster, c->cluster->gpus_per_node);
        struct dtp_group node = dtp_group_consecutive(c->cluster, c->cluster->gpus_per_node);
        uint64_t inside = communication->narrow_exchange_bytes, insides = communication->narrow_exchange_count;
        return with_scales_s(c, &node, collective, inside, insides, communication->narrow_exchange_scales) +
               with_scales_s(c, &between, collective, bytes - inside, count - insides, communication->exchange_scales);
    }
    if (collective != DTP_ALL_GATHER)
        return group_total_s(c, &group, collective, bytes, count);
    return c->narrow_gather_s +
           with_scales_s(c, &group, collective, bytes - communication->narrow_gather_bytes,
                         count - communication->narrow_gather_count, communication->gather_scales);
}

/* Compute windows of one micro-step behind which collectives can hide. */
struct windows {
    double forward_s, backward_s, head_s;
};

/* Share of the parameters in the root unit (embeddings, head, final norm). */
static double root_share(const struct context *c)
{
    return 1 - (double)c->transformer->layers * (double)c->count.block / (double)c->count.total;
}

static double exposed_gathering(const struct context *c, const struct dtp_time *time, const struct windows *window)
{
    const struct dtp_plan *plan = c->plan;
    double units = plan->wrap_layers ? ceil(c->layers / plan->wrap_layers) : 1;
    double micro_steps = plan->accumulate, reductions = dtp_plan_reductions(plan);
    double root = plan->wrap_layers ? root_share(c) : 1, unit = (1 - root) / units, tail = root + unit;
    double prefetched = plan->prefetch ? 1 - tail : 0, hide = (units - 1) / units;
    /* Backward gathers what was released after forward: all but a root that is kept. */
    double again = !plan->reshard_after_forward ? 0 : dtp_plan_keeps_root(plan) ? 1 - root : 1;
    double narrow_s = c->narrow_gather_s, wide_s = time->collective_s[DTP_ALL_GATHER] - narrow_s;
    bool apart = narrow_group(plan);
    double gather_s = apart ? wide_s / micro_steps : wide_s / (micro_steps * (1 + again));
    double again_s = apart ? narrow_s / (micro_steps * again) : gather_s;
    double reduce_s = (time->collective_s[DTP_REDUCE_SCATTER] + time->collective_s[DTP_ALL_TO_ALL]) / reductions;
    double all_reduce_s = time->collective_s[DTP_ALL_REDUCE] / reductions;
    double forward = gather_s * (1 - prefetched) + fmax(0, gather_s * prefetched - window->forward_s * hide);
    /* Into backward: the root comes back exposed, the last unit behind the head's and loss's backward. */
    double backward = 0, behind_blocks = 0;
    if (again > 0) {
        backward = again_s * (again - (1 - root)) + fmax(0, again_s * unit - (plan->prefetch ? window->head_s : 0));
        behind_blocks = again_s * prefetched;
        backward += again_s * (1 - tail) - behind_blocks;
    }
    /* In micro-steps that reduce: gathers and reduce-scatters share a FIFO, unless the gathers are within a group of their
     * own; the replicas' all-reduce has another. */
    double scatters = reduce_s * (1 - tail);
    double shared = apart ? fmax(behind_blocks, scatters) : behind_blocks + scatters;
    double fifo = fmax(shared, all_reduce_s * (1 - tail));
    double with_reduce = fmax(0, fifo - window->backward_s * hide) + (reduce_s + all_reduce_s) * tail;
    double without = fmax(0, behind_blocks - window->backward_s * hide);
    return micro_steps * (forward + backward) + reductions * with_reduce + (micro_steps - reductions) * without;
}

static double exposed_replicated(const struct context *c, const struct dtp_time *time, const struct windows *window)
{
    const struct dtp_plan *plan = c->plan;
    double reductions = dtp_plan_reductions(plan);
    double reduce_s = (time->collective_s[DTP_ALL_REDUCE] + time->collective_s[DTP_REDUCE_SCATTER]) / reductions;
    /* Megatron's overlap_param_gather hides it behind the next step's forward. */
    double after_step_s = fmax(0, time->collective_s[DTP_ALL_GATHER] - (plan->megatron_overlap ? window->forward_s : 0));
    bool overlaps = plan->runtime == DTP_RUNTIME_TORCH || plan->deepspeed_overlap ||
                    plan->megatron_overlap;
    if (!overlaps)
        return reductions * reduce_s + after_step_s;
    /* The embedding's gradient is the last to be ready and its bucket has no compute left to hide behind. */
    double last = (double)(c->count.embedding + c->count.position) / (double)c->count.total;
    struct dtp_element_bytes element;
    dtp_element_bytes_count(plan, &element);
    double bucket = (double)plan->ddp_bucket_bytes / ((double)element.grads * (double)c->count.total);
    double tail = fmin(1, fmax(last, bucket));
    double exposed = reduce_s * tail + fmax(0, reduce_s * (1 - tail) - window->backward_s);
    return reductions * exposed + after_step_s;
}

/* Ours. The embedding is gathered with nothing to hide behind, in every micro-step where weights are sharded, and so is
 * the first block at the step's begin; the others are gathered while the blocks before them compute. In backward
 * gathers and reductions share a FIFO, unless copy engines carry one of them. The embedding's gradient is reduced last;
 * the next micro-step's first block hides it, the step's end does not. */
static double exposed_ours(const struct context *c, const struct dtp_time *time, const struct windows *window)
{
    const struct dtp_executor_rules *r = &c->rules;
    double k = c->plan->accumulate, reductions = r->reduces_always ? k : 1, total = (double)c->count.total;
    double embedding = (double)(c->count.embedding + c->count.position) / total,
           block = (1 - root_share(c)) / c->layers;
    double gather_s = time->collective_s[DTP_ALL_GATHER];
    double reduce_s = (time->collective_s[DTP_ALL_REDUCE] + time->collective_s[DTP_REDUCE_SCATTER] +
                       time->collective_s[DTP_ALL_TO_ALL]) /
                      reductions;
    double block_s = window->forward_s / c->layers, backward_s = 0;
    double exposed = reduce_s * embedding + (reductions - 1) * fmax(0, reduce_s * embedding - block_s);
    if (r->gathers_once) {
        double first = embedding + block;
        exposed += gather_s * first + fmax(0, gather_s * (1 - first) - window->forward_s);
    } else if (r->sharded) {
        double ring = (double)r->ring, passes = c->layers + (2 * k - 1) * (c->layers - ring);
        double edges = k * (root_share(c) / block), one_s = gather_s / (passes + edges); /* of a block */
        double head = root_share(c) - embedding;
        double forward_s = (c->layers - 1 + (k - 1) * (c->layers - ring) + k * head / block) * one_s;
        double hidden = c->plan->prefetch ? fmax(0, forward_s / k - window->forward_s) * k : forward_s;
        exposed += one_s * (1 + k * embedding / block) + hidden;
        backward_s = (c->layers - ring) * one_s;
        exposed += c->plan->prefetch ? 0 : k * backward_s;
        backward_s = c->plan->prefetch ? backward_s : 0;
    }
    double reductions_s = reduce_s * (1 - embedding);
    bool apart = dtp_collective_copies(c->plan, DTP_ALL_GATHER) ||
                 dtp_collective_copies(c->plan, DTP_ALL_TO_ALL); /* two queues, which overlap each other */
    double queue_s = apart ? fmax(backward_s, reductions_s) : backward_s + reductions_s;
    double with_reduction = fmax(0, queue_s - window->backward_s);
    return exposed + reductions * with_reduction + (k - reductions) * fmax(0, backward_s - window->backward_s);
}

/* Hidden collectives are not free: NCCL's CTAs sit on SMs for as long as they run and its buffers pass through HBM. Of
 * each kind the same share is hidden. The loss cannot exceed what is hidden. */
static double contention_s(const struct context *c, const struct dtp_communication *communication,
                           const struct dtp_time *time, double exposed_s)
{
    double hidden_s = time->communication_s - exposed_s, loss = 0;
    struct dtp_group group =
        dtp_group_consecutive(c->cluster, c->plan->shard_group > 1 ? c->plan->shard_group : c->cluster->gpus);
    double free_share = 1 - dtp_matmul_share(&c->cluster->gpu, c->plan); /* SMs that nothing loses */
    if (time->communication_s <= 0)
        return 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        struct dtp_collective_load load = dtp_collective_load(c->cluster, &group, c->plan, (enum dtp_collective)i);
        loss += fmax(0, load.sm_share - free_share) * load.slowdown * time->collective_s[i] +
                load.memory_passes * (double)communication->bytes[i] / c->cluster->gpu.memory_bytes_per_s;
    }
    return fmin(loss * hidden_s / time->communication_s, hidden_s);
}

/* ---- offload ---------------------------------------------------------------------------------------------------- */

/* Seconds of NVMe, which all ranks of a node share. Optimizer: reads p, m, v, g in fp32, writes p, m, v and the parameters.
 * Micro-steps: reads the parameters as often as they go up, writes fp32 gradients. */
struct nvme_time {
    double optimizer_s, micro_steps_s;
};

/* Of what goes up, parameters that are gathered from the host; DeepSpeed's sums of gradients go up as well. */
static double params_up_bytes(const struct context *c, const struct dtp_communication *communication)
{
    struct dtp_element_bytes element;
    dtp_element_bytes_count(c->plan, &element);
    bool deepspeed = c->plan->runtime == DTP_RUNTIME_DEEPSPEED;
    double sums = deepspeed ? optimizer_shard(c) * (double)element.grads * c->plan->accumulate : 0;
    return c->plan->offload == DTP_OFFLOAD_OPTIMIZER ? 0 : fmax(0, (double)communication->host_to_device_bytes - sums);
}

static struct nvme_time nvme_time(const struct context *c, const struct dtp_communication *communication, double params_bytes)
{
    const struct dtp_machine *machine = &c->cluster->machine;
    double ranks = c->cluster->gpus_per_node, shard = optimizer_shard(c) * ranks;
    if (c->plan->offload != DTP_OFFLOAD_NVME)
        return (struct nvme_time){0, 0};
    return (struct nvme_time){
        shard * (16 / machine->nvme_read_bytes_per_s + (12 + params_bytes) / machine->nvme_write_bytes_per_s),
        params_up_bytes(c, communication) * ranks / machine->nvme_read_bytes_per_s +
            shard * 4 / machine->nvme_write_bytes_per_s};
}

/* What the copies add to the path of compute and exposed collectives. On two engines, up and down, beside it: gathered
 * parameters go up in forward and backward, gradients come down from the start of backward, so with a path of p, of which f
 * is forward, the micro-steps end no earlier than p, up, f + down, and what NVMe takes for them. DeepSpeed's stages 1 and 2
 * copy gradients on the stream that reduces them, the compute stream unless overlap_comm is on; in stage 3 the host stands
 * still for them and issues nothing. */
static double exposed_copies_s(const struct context *c, const struct dtp_communication *communication,
                               const struct windows *window, const struct dtp_time *time, double bytes_per_s,
                               double nvme_s)
{
    const struct dtp_plan *plan = c->plan;
    double down_s = (double)communication->device_to_host_bytes / bytes_per_s;
    double params_s = params_up_bytes(c, communication) / bytes_per_s;
    double other_up_s = (double)communication->host_to_device_bytes / bytes_per_s - params_s;
    double path_s = time->compute_s + time->exposed_communication_s, beside_s = fmax(params_s, nvme_s);
    bool blocks = plan->runtime == DTP_RUNTIME_DEEPSPEED && (!plan->deepspeed_overlap || plan->strategy == DTP_ZERO3);
    if (blocks)
        return down_s + other_up_s + fmax(0, beside_s - path_s);
    return fmax(0, fmax(plan->accumulate * window->forward_s + down_s, beside_s) - path_s) + other_up_s;
}

/* Our executor's copies and updates follow the reductions module by module from the head's on, beside the blocks' backward
 * with its exposed collectives, and end with those of the embedding; where the norm must be known first, all updates come
 * after it. Uploads of parameters stay ahead of what they are for unless they take longer than all of it. */
static double exposed_ours_offload(const struct context *c, const struct dtp_communication *communication,
                                   const struct windows *window, const struct dtp_time *time, double bytes_per_s,
                                   double adam_s)
{
    double down_s = (double)communication->device_to_host_bytes / bytes_per_s;
    double up_s = (double)communication->host_to_device_bytes / bytes_per_s;
    double embedding = (double)(c->count.embedding + c->count.position) / (double)c->count.total;
    double path_s = time->compute_s + time->exposed_communication_s;
    bool params = c->plan->offload != DTP_OFFLOAD_OPTIMIZER;
    double micro_steps_s = params ? fmax(path_s, up_s) : path_s, last_up_s = params ? 0 : up_s * embedding;
    /* the last micro-step's backward has its part of what is exposed */
    double windows_s = window->forward_s + window->head_s + window->backward_s;
    double beside_s = path_s - path_s / c->plan->accumulate * window->backward_s / windows_s + adam_s;
    double end_s = c->rules.gradient_norm ? micro_steps_s + adam_s
                                          : fmax(micro_steps_s + (down_s + adam_s) * embedding, beside_s);
    return end_s + last_up_s - path_s;
}

/* An optimizer on the host updates after the last gradient is down, and its weights go up after that. From NVMe it works
 * in sub-groups, reading one and writing another meanwhile: the longer of the two, and of the shorter one sub-group. */
static void add_offload(const struct context *c, const struct dtp_communication *communication,
                        const struct windows *window, struct dtp_time *time)
{
    const struct dtp_plan *plan = c->plan;
    if (plan->offload == DTP_OFFLOAD_NONE)
        return;
    struct dtp_element_bytes element;
    dtp_element_bytes_count(plan, &element);
    double up_bytes = (double)communication->host_to_device_bytes, down_bytes = (double)communication->device_to_host_bytes;
    double pcie = dtp_cluster_copy_bytes_per_s(c->cluster, true, up_bytes);
    double down_s = down_bytes / dtp_cluster_copy_bytes_per_s(c->cluster, false, down_bytes);
    double up_s = up_bytes / pcie;
    /* AdamW on the host: reads p, g, m, v and writes p, m, v in fp32, 28 B a parameter. */
    double adam_bytes = c->ours ? c->work.host_update_bytes : 28 * optimizer_shard(c);
    double host = dtp_cluster_host_adam_bytes_per_s(c->cluster, plan, adam_bytes);
    struct nvme_time nvme = nvme_time(c, communication, (double)element.params);
    double adam_s = adam_bytes / host, groups = ceil(optimizer_shard(c) / (double)DTP_DEEPSPEED_SUB_GROUP);
    double step_s = fmax(adam_s, nvme.optimizer_s) + fmin(adam_s, nvme.optimizer_s) / fmax(1, groups);
    c->parts->host_to_device_s = up_s;
    c->parts->device_to_host_s = down_s;
    c->parts->host_adam_s = adam_s;
    c->parts->nvme_s = nvme.optimizer_s + nvme.micro_steps_s;
    time->offload_s = up_s + down_s + adam_s + c->parts->nvme_s;
    double exposed_s =
        c->ours && plan->offload != DTP_OFFLOAD_NVME
            ? exposed_ours_offload(c, communication, window, time, pcie, adam_s)
            : exposed_copies_s(c, communication, window, time, pcie, nvme.micro_steps_s) + step_s;
    time->exposed_offload_s = fmin(exposed_s, time->offload_s);
}

/* ---- the record for explain -------------------------------------------------------------------------------------- */

/* Seconds and bytes of the step's device work: `n` micro-steps `m`, of which some reduce nothing. */
static void note_compute(const struct context *c, const struct micro_step *m, double weights_s, double gaps_s,
                         double speedup, double n)
{
    double fused = dtp_cluster_memory_kernel_bytes_per_s(c->cluster, c->plan, DTP_KERNEL_FUSED);
    *c->parts = (struct dtp_time_parts){
        .matmul_forward_s = n * m->matmul_forward_s,
        .matmul_backward_s = n * m->matmul_backward_s,
        .matmul_head_s = n * m->head_s,
        .matmul_recompute_s = n * m->recompute_matmul_s,
        .matmul_speedup = speedup,
        .attention_forward_s = n * m->attention_forward_s,
        .attention_backward_s = n * m->attention_backward_s,
        .memory_forward_s = n * m->memory_forward_s,
        .memory_backward_s = n * m->memory_backward_s,
        .weights_s = n * weights_s,
        .fp8_s = n * m->fp8_s,
        .gaps_s = n * gaps_s,
        .recompute_other_s = n * m->recompute_other_s,
        .loss_s = n * m->loss_s,
        .kernels_count = n * m->kernels,
        .block_forward_bytes = n * forward_bytes(c),
        .block_backward_bytes = n * backward_bytes(c),
        .block_bytes_per_s = c->eager_bytes_per_s,
        .loss_bytes = n * loss_bytes(c),
        .weights_bytes = n * weights_s * fused,
        .weights_bytes_per_s = fused,
    };
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

static void add_compute(const struct context *c, struct dtp_time *time, struct windows *window)
{
    const struct dtp_plan *plan = c->plan;
    double n = plan->accumulate, reductions = dtp_plan_reductions(plan);
    struct micro_step m = micro_step(c);
    double matmul = m.matmul_forward_s + m.matmul_backward_s + m.head_s + m.recompute_matmul_s;
    double gaps = m.kernels * dtp_cluster_kernel_gap_s(c->cluster, plan);
    double other = m.attention_forward_s + m.attention_backward_s + m.memory_forward_s + m.memory_backward_s + m.loss_s +
                   m.recompute_other_s + m.fp8_s + gaps;
    double quiet_s = n > reductions ? weight_traffic_s(c, false) : 0; /* of a micro-step that reduces nothing */
    double weights = (reductions * m.weights_s + (n - reductions) * quiet_s) / n;
    double speedup = dtp_cluster_matmul_speedup(c->cluster, matmul, other + weights + time->optimizer_s / n) *
                     dtp_matmul_share(&c->cluster->gpu, plan);
    time->matmul_s = n * matmul / speedup;
    time->attention_s = n * (m.attention_forward_s + m.attention_backward_s);
    time->memory_bound_s = n * (m.memory_forward_s + m.memory_backward_s + m.fp8_s + weights + gaps);
    time->loss_s = n * m.loss_s;
    time->recompute_s = n * (m.recompute_matmul_s / speedup + m.recompute_other_s);
    time->compute_s = n * (matmul / speedup + other + weights);
    double launch_s = dtp_cluster_kernel_launch_s(c->cluster, plan);
    time->host_launch_s = n * m.kernels * launch_s;
    window->head_s = m.head_s / speedup + m.loss_s;
    window->forward_s = m.matmul_forward_s / speedup + m.attention_forward_s + m.memory_forward_s;
    window->backward_s = time->compute_s / n - window->forward_s - window->head_s;
    note_compute(c, &m, weights, gaps, speedup, n);
    c->parts->launch_s = launch_s;
    c->parts->forward_window_s = window->forward_s;
    c->parts->backward_window_s = window->backward_s;
    c->parts->head_window_s = window->head_s;
}

static double model_flops(const struct context *c)
{
    return dtp_transformer_model_flops_per_token(c->transformer, c->plan->sequence) * c->tokens * c->plan->accumulate;
}

/* What the hardware multiplies beyond the model's FLOPs: recomputed blocks, and flash attention's backward, which forms
 * QK^T again (7/6 of the core). */
static double hardware_flops(const struct context *c)
{
    double s = dtp_transformer_attention_length(c->transformer, c->plan->sequence);
    double d_q = (double)(c->transformer->heads * c->transformer->head_dim);
    double core_forward = 2 * s * d_q * c->layers, tokens = c->tokens * c->plan->accumulate;
    double extra = c->plan->attention != DTP_ATTENTION_MATH ? core_forward / 2 : 0;
    double share = recomputed_layers(c) / c->layers, matmuls = 0;
    int replayed = c->block.matmul_count - (stops_early(c->plan) ? 1 : 0);
    for (int i = 0; i < replayed; i++)
        if (c->plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_MATMUL || c->block.matmul[i].recomputed)
            matmuls += c->block.matmul[i].copies * 2 * c->block.matmul[i].n * c->block.matmul[i].k * c->layers;
    if (c->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION)
        matmuls = 0;
    if (replays_attention(c->plan))
        extra += share * core_forward;
    return model_flops(c) + tokens * (extra + share * matmuls);
}

static void add_throughput(const struct context *c, const struct dtp_time *time, struct dtp_throughput *out)
{
    enum dtp_dtype dtype = c->plan->precision.compute;
    double peak = c->cluster->gpu.peak_flops_per_s[dtype], gpus = c->cluster->gpus;
    out->tokens_per_s_per_gpu = c->tokens * c->plan->accumulate / time->step_s;
    out->tokens_per_s = out->tokens_per_s_per_gpu * gpus;
    out->flops_per_s_per_gpu = model_flops(c) / time->step_s;
    out->mfu = out->flops_per_s_per_gpu / peak;
    out->hfu = hardware_flops(c) / time->step_s / peak;
}

/* Where the host issues kernels more slowly than the device runs them, the device idles between kernels and collectives
 * hide in those gaps too: the step takes the longer of the host's time and of the device's with what it exposes. */
static void add_launch_bound(struct dtp_time *time)
{
    double idle_s = time->host_launch_s - time->compute_s;
    if (idle_s <= 0)
        return;
    time->compute_s = time->host_launch_s;
    time->exposed_communication_s = fmax(0, time->exposed_communication_s - idle_s);
}

static struct context context_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                 const struct dtp_plan *plan)
{
    return (struct context){.transformer = transformer, .cluster = cluster, .plan = plan,
                            .count = dtp_transformer_count(transformer), .block = dtp_block_work(transformer, plan),
                            .tokens = (double)plan->micro_batch * (double)plan->sequence,
                            .layers = (double)transformer->layers};
}

double dtp_closed_form_hardware_flops(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                      const struct dtp_plan *plan)
{
    struct context c = context_of(transformer, cluster, plan);
    return hardware_flops(&c);
}

static void predict(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                    const struct dtp_plan *plan, const struct dtp_communication *communication, struct dtp_time *out,
                    struct dtp_throughput *throughput, struct dtp_time_parts *parts)
{
    struct context c = context_of(transformer, cluster, plan);
    c.parts = parts;
    c.eager_bytes_per_s =
        dtp_cluster_memory_kernel_bytes_per_s(cluster, plan, c.block.fused ? DTP_KERNEL_FUSED : DTP_KERNEL_EAGER);
    c.streaming_bytes_per_s = dtp_cluster_memory_kernel_bytes_per_s(cluster, plan, DTP_KERNEL_STREAMING);
    c.ours = plan->runtime == DTP_RUNTIME_DTPLAN;
    if (c.ours) {
        dtp_executor_rules(transformer, cluster, plan, &c.rules);
        dtp_executor_work(transformer, cluster, plan, &c.work);
    }
    *out = (struct dtp_time){.optimizer_s = device_optimizer_s(&c)};
    struct windows window;
    add_compute(&c, out, &window);
    c.narrow_gather_s = narrow_group(plan) ? narrow_gather_s(&c, communication) : 0;
    for (int i = 0; i < DTP_COLLECTIVE_COUNT; i++) {
        out->collective_s[i] = collective_total_s(&c, communication, (enum dtp_collective)i);
        out->communication_s += out->collective_s[i];
    }
    double exposed = c.ours                         ? exposed_ours(&c, out, &window)
                     : dtp_plan_shards_params(plan) ? exposed_gathering(&c, out, &window)
                                                    : exposed_replicated(&c, out, &window);
    exposed = fmin(exposed, out->communication_s);
    parts->not_hidden_s = exposed;
    parts->contention_s = contention_s(&c, communication, out, exposed);
    out->exposed_communication_s = exposed + parts->contention_s;
    parts->device_s = out->compute_s;
    add_launch_bound(out);
    add_offload(&c, communication, &window, out);
    parts->slowest_rank = dtp_cluster_slowest_rank(cluster, dtp_calibration.rank_speed_deviation);
    parts->optimizer_bytes = out->optimizer_s * c.streaming_bytes_per_s;
    parts->optimizer_bytes_per_s = c.streaming_bytes_per_s;
    double device_s = (out->compute_s + out->optimizer_s) * parts->slowest_rank;
    out->step_s = device_s + out->exposed_communication_s + out->exposed_offload_s;
    /* Shard and replica collectives run on two communicators, which at best overlap each other as well: whichever
     * strategy it is called, a group smaller than the cluster has both; so does the group that parameters are resharded to. */
    double longest_s = out->communication_s - c.narrow_gather_s - out->collective_s[DTP_ALL_TO_ALL];
    if (dtp_plan_shards_params(plan) && plan->shard_group < cluster->gpus)
        longest_s = fmax(out->collective_s[DTP_ALL_REDUCE], longest_s - out->collective_s[DTP_ALL_REDUCE]);
    if (dtp_collective_copies(plan, DTP_ALL_GATHER))
        longest_s = fmax(out->collective_s[DTP_ALL_GATHER], longest_s - out->collective_s[DTP_ALL_GATHER]);
    if (dtp_collective_copies(plan, DTP_ALL_TO_ALL))
        longest_s = fmax(longest_s, out->collective_s[DTP_ALL_TO_ALL]);
    longest_s = fmax(longest_s, c.narrow_gather_s);
    out->step_perfect_overlap_s = fmax(out->compute_s + out->optimizer_s, fmax(longest_s, out->exposed_offload_s));
    out->step_no_overlap_s = device_s + out->communication_s + out->offload_s;
    add_throughput(&c, out, throughput);
}

void dtp_closed_form_time(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                          const struct dtp_plan *plan, const struct dtp_communication *communication,
                          struct dtp_time *out, struct dtp_throughput *throughput)
{
    struct dtp_time_parts parts;
    predict(transformer, cluster, plan, communication, out, throughput, &parts);
}

void dtp_closed_form_time_parts(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, const struct dtp_communication *communication,
                                struct dtp_time_parts *out)
{
    struct dtp_time time;
    struct dtp_throughput throughput;
    predict(transformer, cluster, plan, communication, &time, &throughput, out);
}

void dtp_closed_form(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                     const struct dtp_plan *plan, struct dtp_prediction *out)
{
    if (dtp_plan_model_parallel(plan)) {
        dtp_closed_form_model_parallel(transformer, cluster, plan, out);
        return;
    }
    struct dtp_counts counts;
    dtp_counts_of(transformer, cluster, plan, &counts);
    dtp_counted_memory(transformer, cluster, plan, &counts, &out->memory, NULL);
    dtp_counted_communication(transformer, cluster, plan, &counts, &out->communication);
    dtp_closed_form_time(transformer, cluster, plan, &out->communication, &out->time, &out->throughput);
}
