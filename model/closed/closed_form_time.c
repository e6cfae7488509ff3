/* The closed form of a step's time: device work per micro-step from block_work and op_cost, and the whole of it, with
 * collectives (closed_form_collectives.c) and offload (closed_form_offload.c). */
#include "closed/closed_form_hooks.h"

#include "closed/activations.h"
#include "closed/adapted_work.h"
#include "cost/calibration.h"
#include "cost/cluster_cost.h"
#include "cost/collective_choice.h"
#include "cost/op_cost.h"
#include "closed/sharding.h"
#include "plan/graph_modules.h"
#include "plan/optimizer_state.h"

#include <math.h>

/* Device seconds of one micro-step. */
struct micro_step {
    double matmul_forward_s, matmul_backward_s, attention_forward_s, attention_backward_s;
    double memory_forward_s, memory_backward_s, loss_s, head_s;
    double recompute_matmul_s, recompute_attention_s, recompute_other_s;
    double weights_s; /* casts and copies of weights and gradients */
    double fp8_s;
    double kernels;
};

/* The matmuls of a block. */
static double sum_matmuls(const struct dtp_timing *c, const struct dtp_block_work *block, bool backward)
{
    double total = 0;
    for (int i = 0; i < block->matmul_count; i++)
        total += dtp_timing_matmul_s(c, &block->matmul[i], backward);
    return total;
}

static bool trains_head(const struct dtp_timing *c)
{
    return !dtp_plan_adapts(c->plan) || c->plan->adapters.train_ends;
}

static enum dtp_dtype head_dtype(const struct dtp_timing *c)
{
    return c->plan->precision.compute == DTP_FP8 && !dtp_plan_narrows_head(c->plan) ? DTP_BF16
                                                                                    : c->plan->precision.compute;
}

double dtp_timing_head_columns(const struct dtp_timing *c)
{
    return c->own ? c->own->head_columns : (double)dtp_plan_head_columns(c->plan, c->transformer->vocab);
}

/* Of the head, over some tokens. */
static double head_rows_s(const struct dtp_timing *c, double rows)
{
    enum dtp_dtype dtype = head_dtype(c);
    const struct dtp_cluster *on = c->cluster;
    double h = (double)c->transformer->hidden, vocab = dtp_timing_head_columns(c);
    return dtp_cluster_matmul_s(on, &c->execution, DTP_MEASURED_MATMUL_FORWARD, dtype, rows, vocab, h) +
           dtp_cluster_matmul_s(on, &c->execution, DTP_MEASURED_MATMUL_INPUT_GRADIENT, dtype, rows, h, vocab) +
           (trains_head(c)
                ? dtp_cluster_matmul_s(on, &c->execution, DTP_MEASURED_MATMUL_WEIGHT_GRADIENT, dtype, vocab, h, rows)
                : 0);
}

static double head_matmuls_s(const struct dtp_timing *c)
{
    if (!c->own)
        return head_rows_s(c, c->tokens);
    double rows = c->own->head_rows, left = fmod(c->tokens, rows);
    return floor(c->tokens / rows) * head_rows_s(c, rows) + (left > 0 ? head_rows_s(c, left) : 0);
}

double dtp_timing_losses(const struct dtp_timing *c)
{
    return 1 + (double)c->transformer->ahead_layers;
}

/* Blocks whose forward runs again in backward. */
static double recomputed_layers(const struct dtp_timing *c)
{
    double layers = 0;
    EACH_KIND(c, block)
    layers += block->layers_again;
    return layers;
}

/* Non-reentrant checkpointing stops its replay at the last saved tensor: the block's last matmul (down) is not run
 * again (torch.utils.checkpoint early_stop; profiled: 3 matmuls a layer are replayed, not 4). */
static bool stops_early(const struct dtp_plan *plan, const struct dtp_transformer *transformer)
{
    bool normed = transformer->norm_place != DTP_NORMS_BEFORE; /* its result is what the norm behind it saves */
    return plan->runtime->stops_replay && !normed && plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_MATMUL;
}

bool dtp_timing_runs_again(const struct dtp_timing *c, const struct dtp_weight_matmul *matmul)
{
    if (c->plan->megatron.recompute || c->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_MATMUL)
        return c->plan->megatron.recompute ? matmul->again : matmul->recomputed;
    return dtp_plan_checkpoint_rule(c->plan).keeps != DTP_KEEPS_PACKED_MATMULS &&
           (!matmul->ends || !stops_early(c->plan, c->transformer));
}

static double replayed_matmuls_s(const struct dtp_timing *c, const struct dtp_block_work *block)
{
    double total = 0;
    for (int i = 0; i < block->matmul_count; i++) {
        const struct dtp_weight_matmul *m = &block->matmul[i];
        if (dtp_timing_runs_again(c, m))
            total += dtp_timing_matmul_again_s(c, m);
    }
    return total;
}

/* Op-level checkpointing keeps what fused attention returns; math attention is matmuls of batches and pointwise
 * operations, none of which is on its list (torchtitan: mm and the fused attentions). */
static bool replays_attention(const struct dtp_plan *plan)
{
    if (plan->megatron.recompute)
        return dtp_plan_recomputes(plan, DTP_RECOMPUTE_CORE_ATTN);
    return plan->checkpointing != DTP_CHECKPOINT_SELECTIVE_MATMUL || plan->attention == DTP_ATTENTION_MATH;
}

/* FLOPs of attention in the layers that run again, over the mean of all: where windows alternate. */
static double attention_again(const struct dtp_timing *c)
{
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(c->plan);
    return dtp_checkpointed_attention(&rule, c->transformer, c->plan->sequence);
}

/* Seconds of it in one such layer; math attention computes what a window hides as well. */
static double attention_again_s(const struct dtp_timing *c, const struct dtp_attention_time *attention)
{
    if (!replays_attention(c->plan))
        return 0;
    return attention->forward_s * (c->plan->attention == DTP_ATTENTION_MATH ? 1 : attention_again(c));
}

static void add_recompute(const struct dtp_timing *c, const struct dtp_attention_time *attention, struct micro_step *m)
{
    double layers = recomputed_layers(c);
    bool attention_only = c->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    EACH_KIND(c, block) m->kernels += c->own ? 0 : block->layers_again * block->again_kernels;
    if (attention_only) {
        m->recompute_attention_s = layers * attention->forward_s;
        return;
    }
    EACH_KIND(c, block)
    m->recompute_matmul_s += block->layers_again * replayed_matmuls_s(c, block);
    m->recompute_attention_s = layers * attention_again_s(c, attention);
    if (c->own) { /* its launches are counted with the others */
        m->recompute_other_s = c->own->recompute_bytes / c->eager_bytes_per_s;
        return;
    }
    EACH_KIND(c, block)
    {
        bool parts = c->plan->megatron.recompute;
        double parts_s = block->again_bytes * c->tokens / c->eager_bytes_per_s;
        m->recompute_other_s += block->layers_again * (parts ? parts_s : dtp_timing_passes_s(c, block, false));
    }
}

/* Bytes the device moves to turn stored weights into usable ones and gradients into what the optimizer takes, in one
 * micro-step; `reduces` says whether gradients leave in this one. internals: DDP under autocast casts every weight
 * (4+w) and every gradient back (w+4) and copies it into its bucket (4+4); FSDP2 copies each gathered unit out (w+w)
 * and its gradients in (w+r); Megatron adds a weight gradient to the sum of earlier micro-steps in the matmul's own
 * output pass (the sum is read and written instead of the gradient written); FSDP1 gathers in place but concatenates
 * gradients (w+w) before the cast (w+r). */
static double weight_traffic_bytes(const struct dtp_timing *c, bool reduces)
{
    const struct dtp_plan *plan = c->plan;
    double w = dtp_plan_compute_bytes(plan), r = dtp_dtype_bytes(plan->precision.reduce);
    double total = (double)c->count.total;
    bool alone = c->cluster->gpus == 1;
    if (dtp_plan_adapts(plan) && !c->own)
        return dtp_adapted_traffic_bytes(c->transformer, plan, reduces && !alone);
    double hook =
        reduces && !alone ? dtp_comm_hook_bytes(plan, c->cluster->gpus, dtp_dtype_bytes(plan->precision.params)) : 0;
    if (dtp_plan_autocast(plan))
        return dtp_timing_cast_bytes(c) + total * (reduces && !alone ? 8 + hook : 0);
    if (c->own)
        return (c->own->gradient_bytes + c->own->product_bytes) / plan->accumulate;
    bool in_matmul = plan->runtime->gradients_in_matmul;
    const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
    double own = hooks->gradient_bytes ? hooks->gradient_bytes(plan, reduces && !alone) : 0;
    if (own > 0)
        return total * own;
    if (plan->runtime->sums_gradients) { /* DDP's buckets are copied into and out of besides */
        bool buckets = plan->strategy == DTP_DDP && reduces && !alone;
        return total * (2 * r + w + (buckets ? 4 * w : 0));
    }
    if (!dtp_plan_shards_params(plan)) {
        double adding = in_matmul ? 2 * r - w : 2 * r + w;
        bool adds = plan->accumulate > 1 || in_matmul; /* its first sum is of zeros */
        return total * ((adds ? adding : 0) + (reduces && !alone ? 2 * r + hook : 0));
    }
    double gathers = plan->pipeline_ranks          ? 1.0 / plan->accumulate /* a stage keeps them */
                     : plan->reshard_after_forward ? 2
                                                   : 1;
    double per_gather = plan->fsdp1 ? 0 : 2 * w;
    double per_reduce = w + r + (plan->fsdp1 ? 2 * w : 0);
    if (plan->runtime->closed->add_wire_casts)
        plan->runtime->closed->add_wire_casts(c, &per_gather, &per_reduce);
    double accumulate = plan->accumulate > 1 && !plan->accumulate_sync ? w + 2 * r : 0;
    if (plan->pipeline_ranks && plan->accumulate == 1 && !plan->fsdp1) /* kept whole all the same, then copied */
        per_reduce += 2 * r;
    return total * (gathers * per_gather + (reduces ? per_reduce : 0) + accumulate);
}

/* Sums of gradients are streams of long tensors. */
static double weight_traffic_bytes_per_s(const struct dtp_timing *c)
{
    return dtp_cluster_memory_kernel_bytes_per_s(
        c->cluster, &c->execution, dtp_plan_sums_gradients(c->plan) ? DTP_KERNEL_STREAMING : DTP_KERNEL_FUSED);
}

/* Seconds of weight_traffic_bytes. */
static double weight_traffic_s(const struct dtp_timing *c, bool reduces)
{
    double bytes = weight_traffic_bytes(c, reduces), rate = weight_traffic_bytes_per_s(c);
    return dtp_timing_casts_s(c, rate) + (bytes - dtp_timing_cast_bytes(c)) / rate;
}

static double loss_bytes(const struct dtp_timing *c)
{
    return c->own ? c->own->loss_bytes
                  : dtp_timing_losses(c) * dtp_loss_bytes_per_token(c->transformer, c->plan) * c->tokens;
}

/* Of packed weights; a replay unpacks them as forward did. */
static void add_unpacking(const struct dtp_timing *c, struct micro_step *m)
{
    const struct dtp_adapted_work *a = &c->adapted;
    const double rate = a->compares
                            ? dtp_cluster_memory_kernel_bytes_per_s(c->cluster, &c->execution, DTP_KERNEL_UNPACKING)
                            : c->eager_bytes_per_s;
    m->memory_forward_s += c->layers * a->forward_unpacked_bytes / rate;
    m->memory_backward_s += c->layers * a->backward_unpacked_bytes / rate;
    m->kernels += c->layers * (a->forward_kernels + a->backward_kernels);
    enum dtp_checkpoint_keeps keeps = dtp_plan_checkpoint_rule(c->plan).keeps;
    if (c->adapted.replay_flops > 0 && keeps != DTP_KEEPS_ALL_BUT_CORE && keeps != DTP_KEEPS_PACKED_MATMULS)
        m->recompute_other_s += recomputed_layers(c) * a->forward_unpacked_bytes / rate;
}

/* What a block's bytes of a kind of kernel take beyond what they would among the others, in all such blocks. */
static double slow_s(const struct dtp_timing *c, const struct dtp_block_work *block, double bytes,
                     enum dtp_memory_kernel kind)
{
    double rate = dtp_cluster_memory_kernel_bytes_per_s(c->cluster, &c->execution, kind);
    return bytes > 0 ? block->layers * bytes * c->tokens * (1 / rate - 1 / c->eager_bytes_per_s) : 0;
}

static struct micro_step of_one_width(const struct dtp_timing *c)
{
    struct micro_step m = {0};
    struct dtp_attention_time attention = dtp_cluster_attention_time(c->cluster, c->transformer, c->plan, c->tokens);
    m.head_s = dtp_timing_losses(c) * head_matmuls_s(c) + dtp_timing_projections_s(c);
    m.attention_forward_s = c->layers * attention.forward_s;
    m.attention_backward_s = c->layers * attention.backward_s;
    m.memory_forward_s = dtp_timing_memory_s(c, false) + dtp_timing_ahead_s(c, false);
    m.memory_backward_s = dtp_timing_memory_s(c, true) + dtp_timing_ahead_s(c, true);
    EACH_KIND(c, block)
    {
        m.matmul_forward_s += block->layers * sum_matmuls(c, block, false);
        m.matmul_backward_s += block->layers * sum_matmuls(c, block, true);
        m.kernels += block->layers * (block->forward_kernels + block->backward_kernels);
        m.memory_forward_s += slow_s(c, block, block->indexed_bytes, DTP_KERNEL_INDEXED);
        m.memory_backward_s += slow_s(c, block, block->indexed_back_bytes, DTP_KERNEL_INDEXED) +
                               slow_s(c, block, block->outer_bytes, DTP_KERNEL_OUTER);
    }
    m.loss_s = dtp_timing_loss_s(c, loss_bytes(c));
    m.weights_s = weight_traffic_s(c, true);
    m.fp8_s = dtp_timing_fp8_s(c);
    add_unpacking(c, &m);
    m.kernels += dtp_timing_losses(c) * c->block->root_kernels;
    m.kernels = c->own ? c->own->kernels + c->own->step_kernels / c->plan->accumulate : m.kernels;
    add_recompute(c, &attention, &m);
    return m;
}

/* Where some layers stay in bf16: of these as many parts of a step without others as they are of all layers. All but
 * the ends is linear in layers, and the ends are the same. */
static struct micro_step micro_step(const struct dtp_timing *c)
{
    struct micro_step m = of_one_width(c);
    double share = (double)dtp_plan_wide_layers(c->plan, c->transformer, 0, c->transformer->layers) / c->layers;
    if (share <= 0)
        return m;
    const struct dtp_plan plan = dtp_plan_of_wide_layers(c->plan);
    struct dtp_timing wide = *c;
    wide.plan = &plan;
    for (int mlp = 0; mlp < DTP_LAYER_MLPS; mlp++)
        wide.block[mlp] = dtp_block_work(c->transformer, (enum dtp_layer_mlp)mlp, c->cluster, &plan);
    const struct micro_step other = of_one_width(&wide);
    const double projections = m.head_s; /* a module that predicts further ahead is none of those layers */
    double *part = (double *)&m;
    for (size_t i = 0; i < sizeof m / sizeof *part; i++)
        part[i] += share * (((const double *)&other)[i] - part[i]);
    m.head_s = projections;
    return m;
}

static double device_optimizer_s(const struct dtp_timing *c)
{
    if (c->own)
        return c->own->update_bytes / c->streaming_bytes_per_s + dtp_timing_newton_schulz_s(c);
    if (c->plan->offload != DTP_OFFLOAD_NONE)
        return 0;
    const struct dtp_closed_form_hooks *hooks = c->plan->runtime->closed;
    double apart = (double)dtp_optimizer_matrix_elements(c->transformer, c->plan);
    double bytes = (dtp_timing_optimizer_shard(c) - apart) * dtp_optimizer_bytes_per_parameter(c->plan);
    bytes += apart * dtp_optimizer_matrix_bytes_per_parameter(c->plan) + dtp_adapted_ends(c->plan, c->transformer);
    return fmax(dtp_timing_optimizer_launch_s(c),
                bytes / c->update_bytes_per_s + (hooks->beside_update_s ? hooks->beside_update_s(c) : 0));
}

/* ---- the record for explain -------------------------------------------------------------------------------------- */

/* Seconds and bytes of the step's device work: `n` micro-steps `m`, of which some reduce nothing. */
static void note_compute(const struct dtp_timing *c, const struct micro_step *m, double weights_s, double gaps_s,
                         double speedup, double n)
{
    double reductions = dtp_plan_reductions(c->plan);
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
        .recompute_other_s = n * (m->recompute_attention_s + m->recompute_other_s),
        .loss_s = n * m->loss_s,
        .kernels_count = n * m->kernels,
        .block_forward_bytes = n * dtp_timing_memory_bytes(c, false),
        .block_backward_bytes = n * dtp_timing_memory_bytes(c, true),
        .block_bytes_per_s = c->eager_bytes_per_s,
        .loss_bytes = n * loss_bytes(c),
        .weights_bytes = reductions * weight_traffic_bytes(c, true) + (n - reductions) * weight_traffic_bytes(c, false),
    };
}

/* ---- the whole -------------------------------------------------------------------------------------------------- */

/* Of matmuls; attention that has it too is sped up. Of matmuls those of the head alone can have odd rows: each of its
 * three products has vocabulary along rows, and widths of blocks are even. */
static double speed_up(const struct dtp_timing *c, double matmul_s, double passes_s, struct micro_step *m)
{
    const struct dtp_attention_shape shape = dtp_plan_attention(c->transformer, c->cluster, c->plan, 0);
    double *attention[] = {&m->attention_forward_s, &m->attention_backward_s, &m->recompute_attention_s};
    bool fused = dtp_attention_at_power_limit(&c->cluster->gpu, &shape, &c->execution);
    double attention_s = *attention[0] + *attention[1] + *attention[2];
    double odd_s = dtp_matmul_has_odd_rows(head_dtype(c), false, c->tokens, dtp_timing_head_columns(c),
                                           (double)c->transformer->hidden)
                       ? m->head_s
                       : 0;
    double clock = dtp_cluster_matmul_speedup(c->cluster, matmul_s - odd_s, odd_s + (fused ? attention_s : 0),
                                              passes_s + (fused ? 0 : attention_s));
    for (int i = 0; i < 3 && fused; i++)
        *attention[i] /= clock;
    return clock;
}

static void add_compute(const struct dtp_timing *c, struct dtp_time *time, struct dtp_windows *window)
{
    const struct dtp_plan *plan = c->plan;
    double n = plan->accumulate, reductions = dtp_plan_reductions(plan);
    struct micro_step m = micro_step(c);
    double matmul = m.matmul_forward_s + m.matmul_backward_s + m.head_s + m.recompute_matmul_s;
    double launch_s = dtp_cluster_kernel_launch_s(c->cluster, &c->execution), more_s = 0;
    EACH_KIND(c, block) more_s += dtp_block_more_host_s(block, launch_s);
    double host_s = m.kernels * launch_s + more_s; /* which the device idles in where the host waits for each kernel */
    if (dtp_plan_replays_all(plan)) /* ends and what runs again too: one call for all passes, as in programs */
        host_s = 0;
    double gaps =
        m.kernels * dtp_cluster_kernel_gap_s(c->cluster, &c->execution) + (c->execution.launch_blocking ? host_s : 0);
    double passes = m.memory_forward_s + m.memory_backward_s + m.loss_s + m.recompute_other_s + m.fp8_s + gaps;
    double quiet_s = n > reductions ? weight_traffic_s(c, false) : 0; /* of a micro-step that reduces nothing */
    double weights = (reductions * m.weights_s + (n - reductions) * quiet_s) / n;
    double clock = speed_up(c, matmul, passes + weights + time->optimizer_s / n, &m);
    double speedup = clock * dtp_matmul_share(&c->cluster->gpu, &c->execution);
    double other = m.attention_forward_s + m.attention_backward_s + m.recompute_attention_s + passes;
    time->matmul_s = n * matmul / speedup;
    time->attention_s = n * (m.attention_forward_s + m.attention_backward_s);
    time->memory_bound_s = n * (m.memory_forward_s + m.memory_backward_s + m.fp8_s + weights + gaps);
    time->loss_s = n * m.loss_s;
    time->recompute_s = n * (m.recompute_matmul_s / speedup + m.recompute_attention_s + m.recompute_other_s);
    time->compute_s = n * (matmul / speedup + other + weights);
    time->host_launch_s = n * host_s;
    window->head_s = m.head_s / speedup + m.loss_s;
    window->forward_s = m.matmul_forward_s / speedup + m.attention_forward_s + m.memory_forward_s;
    window->backward_s = time->compute_s / n - window->forward_s - window->head_s;
    note_compute(c, &m, weights, gaps, speedup, n);
    c->parts->launch_s = launch_s, c->parts->host_s = time->host_launch_s;
    c->parts->forward_window_s = window->forward_s;
    c->parts->backward_window_s = window->backward_s;
    c->parts->head_window_s = window->head_s;
}

static double model_flops(const struct dtp_timing *c)
{
    return dtp_plan_model_flops_per_token(c->transformer, c->plan) * c->tokens * c->plan->accumulate;
}

/* What the hardware multiplies beyond the model's FLOPs: recomputed blocks, rows that fill experts up, and flash
 * attention's backward, which forms QK^T again (7/6 of the core), of padded values with their padding. */
static double hardware_flops(const struct dtp_timing *c)
{
    double s = dtp_transformer_attention_length(c->transformer, c->plan->sequence);
    const struct dtp_attention_shape shape = dtp_plan_attention(c->transformer, c->cluster, c->plan, 0);
    double of_head = 2 * s * (double)c->transformer->heads * c->layers, tokens = c->tokens * c->plan->accumulate;
    double core_forward = of_head * dtp_attention_forward_width(&shape);
    double core_model = 3 * s * (double)(dtp_transformer_core_width(c->transformer) * 2) * c->layers;
    double extra = c->plan->attention != DTP_ATTENTION_MATH
                       ? core_forward + of_head * dtp_attention_backward_width(&shape) - core_model
                       : 0;
    double share = recomputed_layers(c) / c->layers, matmuls = 0;
    bool core_alone = c->plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    EACH_KIND(c, block)
    for (int i = 0; i < block->matmul_count; i++) {
        const struct dtp_weight_matmul *m = &block->matmul[i];
        double filled = m->expert ? 3 * (1 - 1 / dtp_plan_padded_rows(c->plan)) * block->layers : 0;
        double again = dtp_timing_runs_again(c, m) && !core_alone ? block->layers_again : 0;
        matmuls += m->copies * m->rows * 2 * m->n * m->k * (again + filled);
    }
    double norms = c->adapted.norm_flops * (c->layers + (core_alone ? 0 : recomputed_layers(c)));
    if (dtp_plan_adapts(c->plan))
        matmuls = (2 * c->adapted.dropped_flops + c->adapted.folded_flops) * c->layers +
                  (core_alone ? 0 : c->adapted.replay_flops * recomputed_layers(c) + c->adapted.first_again_flops);
    extra -= dtp_adapted_unneeded_flops(c->transformer, c->plan, &c->adapted);
    extra += replays_attention(c->plan) ? share * core_forward * attention_again(c) : 0;
    norms += c->adapted.fold_back_flops * c->layers;
    return model_flops(c) + tokens * (extra + matmuls) + norms * c->plan->accumulate;
}

static void add_throughput(const struct dtp_timing *c, const struct dtp_time *time, struct dtp_throughput *out)
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
    time->launch_wait_s = idle_s;
    time->exposed_communication_s = fmax(0, time->exposed_communication_s - idle_s);
}

static struct dtp_timing context_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan)
{
    return (struct dtp_timing){.transformer = transformer,
                               .cluster = cluster,
                               .plan = plan,
                               .execution = dtp_plan_execution(plan),
                               .count = dtp_transformer_count(transformer),
                               .adapted = dtp_adapted_work_of(transformer, cluster, plan),
                               .block = {dtp_block_work(transformer, DTP_LAYER_DENSE, cluster, plan),
                                         dtp_block_work(transformer, DTP_LAYER_EXPERTS, cluster, plan)},
                               .context = dtp_context_moved_of(transformer, cluster, plan),
                               .tokens = (double)dtp_plan_tokens(plan),
                               .layers = (double)transformer->layers};
}

double dtp_closed_form_hardware_flops(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                      const struct dtp_plan *plan)
{
    struct dtp_timing c = context_of(transformer, cluster, plan);
    return hardware_flops(&c);
}

static void predict(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                    const struct dtp_plan *plan, const struct dtp_communication *communication, struct dtp_time *out,
                    struct dtp_throughput *throughput, struct dtp_time_parts *parts)
{
    struct dtp_timing c = context_of(transformer, cluster, plan);
    c.parts = parts;
    c.eager_bytes_per_s = dtp_cluster_memory_kernel_bytes_per_s(cluster, &c.execution,
                                                                c.block->fused ? DTP_KERNEL_FUSED : DTP_KERNEL_EAGER);
    c.pass_bytes_per_s = dtp_cluster_memory_kernel_bytes_per_s(cluster, &c.execution, DTP_KERNEL_PASS);
    c.passes = dtp_cluster_pass_rates(cluster);
    c.streaming_bytes_per_s = dtp_cluster_memory_kernel_bytes_per_s(cluster, &c.execution, DTP_KERNEL_STREAMING);
    c.update_bytes_per_s = dtp_cluster_memory_kernel_bytes_per_s(cluster, &c.execution, dtp_update_kernel(plan));
    if (plan->runtime->closed->work) {
        plan->runtime->closed->work(transformer, cluster, plan, &c.work);
        c.own = &c.work;
    }
    *out = (struct dtp_time){.optimizer_s = device_optimizer_s(&c)};
    struct dtp_windows window;
    add_compute(&c, out, &window);
    dtp_timing_add_collectives(&c, communication, out);
    parts->not_hidden_s = dtp_timing_exposed_s(&c, out, &window);
    parts->contention_s = dtp_timing_contention_s(&c, communication, out, parts->not_hidden_s);
    const struct dtp_time of_state = *out;
    parts->exchanged_s = dtp_context_add_time(&c, communication, out);
    const struct dtp_expert_exposed experts = dtp_expert_add_time(&c, communication, out);
    parts->exchanged_s += experts.rows_s;
    parts->gathered_s = of_state.collective_s[DTP_ALL_GATHER], parts->experts_gathered_s = experts.gathers_s;
    parts->not_hidden_s += parts->exchanged_s + experts.weights_s;
    out->exposed_communication_s = parts->not_hidden_s + parts->contention_s;
    parts->device_s = out->compute_s;
    add_launch_bound(out);
    dtp_timing_add_offload(&c, communication, &window, out);
    parts->slowest_rank = dtp_cluster_slowest_rank(cluster, dtp_rank_deviation(&c.execution));
    parts->optimizer_bytes = out->optimizer_s * c.update_bytes_per_s;
    double device_s = (out->compute_s + out->optimizer_s) * parts->slowest_rank;
    double longest_s =
        fmax(dtp_timing_longest_communicator_s(&c, &of_state), out->communication_s - of_state.communication_s);
    /* Each kind of collective was hidden by itself; no communicator hides more than there is computing. */
    out->exposed_communication_s = fmax(out->exposed_communication_s, longest_s - device_s);
    out->step_s = device_s + out->exposed_communication_s + out->exposed_offload_s;
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

enum dtp_status dtp_closed_form(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, struct dtp_prediction *out)
{
    const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
    if (dtp_plan_model_parallel(plan)) {
        struct dtp_slice slice;
        hooks->slice(transformer, cluster, plan, &slice);
        if (plan->pp > 1) /* most stages have none of the layers that stay in bf16 */
            slice.plan.megatron.bf16_first = 0;
        dtp_closed_form(&slice.transformer, &slice.cluster, &slice.plan, out);
        return hooks->add_stages(transformer, cluster, plan, out);
    }
    dtp_closed_form_communication(transformer, cluster, plan, &out->communication);
    dtp_closed_form_time(transformer, cluster, plan, &out->communication, &out->time, &out->throughput);
    return DTP_OK;
}
