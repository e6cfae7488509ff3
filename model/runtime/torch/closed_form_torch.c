/* PyTorch's hooks of the closed form: segments of its allocator, state on the host. */
#include "runtime/torch/closed_form_torch.h"

#include "base/bytes.h"
#include "closed/closed_form_timing.h"
#include "closed/model_parallel.h"
#include "cost/cluster_cost.h"
#include "cost/op_cost.h"
#include "net/layer_kind.h"
#include "plan/optimizer_state.h"
#include "plan/runtime_sizes.h"
#include "runtime/torch/torch.h"

/* ---- segments of the allocator ----------------------------------------------------------------------------------- */

/* DDP lays its buckets anew after the first backward, in the order gradients came; the segments of the first ones go to
 * activations and optimizer state in pieces, so that the peak of later steps needs fresh ones. */
static uint64_t rebuilt_buckets(const struct dtp_beside *b, struct dtp_memory_list *list)
{
    if (!dtp_plan_has_ddp_buckets(b->plan, b->cluster))
        return 0;
    uint64_t ends = dtp_plan_mixes_ends(b->plan) ? dtp_plan_trained_ends(b->transformer, b->plan) : 0;
    return dtp_memory_part(list, DTP_TERM_REBUILT_BUCKETS, 1, b->units.trained - ends, b->bytes.grads) +
           (ends ? dtp_memory_part(list, DTP_TERM_REBUILT_BUCKETS, 1, ends, dtp_plan_ends_gradient_bytes(b->plan)) : 0);
}

/* The root's reduce-scatter input [r R] is one block, needed at the very end of backward. Where nothing freed before it
 * is as long in one piece (the loss's blocks, a unit's own input), it takes a new segment, although much more than
 * that lies free in pieces. */
static uint64_t root_reduce_segment(const struct dtp_beside *b, struct dtp_memory_list *list)
{
    const struct dtp_units *u = &b->units;
    uint64_t ends = u->root - u->head_end, root = u->head_end > ends ? u->head_end : ends; /* the larger of two */
    uint64_t r = b->bytes.reduce, input = r * root, unit = r * u->layers_per_unit * u->largest_layer;
    enum dtp_loss loss = dtp_plan_loss(b->plan);
    if (!u->root_trained)
        return 0;
    uint64_t token_bytes = loss == DTP_LOSS_EAGER   ? 4 * b->transformer->vocab
                           : loss == DTP_LOSS_FUSED ? b->bytes.compute * b->transformer->vocab
                                                    : 0; /* no block of all logits */
    uint64_t loss_block = dtp_bytes_product(dtp_plan_tokens(b->plan), token_bytes);
    return input > loss_block && input > unit ? dtp_memory_part(list, DTP_TERM_ROOT_SEGMENT, 1, root, r) : 0;
}

static uint64_t own_segments(const struct dtp_beside *b, struct dtp_memory_list *list, uint64_t *made_anew)
{
    if (dtp_plan_shards_params(b->plan))
        return root_reduce_segment(b, list);
    *made_anew = rebuilt_buckets(b, list);
    return *made_anew;
}

/* ---- state on the host ------------------------------------------------------------------------------------------- */

/* CPUOffloadPolicy: every sharded parameter and every gradient is a pinned tensor of its own, the moments (zeros_like
 * of a parameter) are pageable. */
static void offload_state(const struct dtp_transformer *transformer, const struct dtp_units *units,
                          const struct dtp_plan *plan, const struct dtp_element_bytes *bytes, uint64_t shard,
                          struct dtp_state_bytes *out)
{
    uint64_t layer, root;
    (void)shard;
    out->params_elements = out->grads_elements = out->optimizer_elements = 0;
    if (out->gpu_alone)
        return;
    dtp_state_pinned_tensors(transformer, units, plan, bytes->params, &layer, &root);
    dtp_state_add_host(out, DTP_TERM_HOST_LAYERS, 2 * transformer->layers, 1, layer);
    dtp_state_add_host(out, DTP_TERM_HOST_ROOT, 2, 1, root);
    dtp_state_add_host(out, DTP_TERM_HOST_MOMENTS, 1, units->total_shard, bytes->moments);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Products of GaLore and APOLLO, and passes beside them. */
static double projections_s(const struct dtp_timing *timing, const struct dtp_layer_kind *kind)
{
    const struct dtp_plan *plan = timing->plan;
    double bytes = 0, all_s = 0;
    for (int i = 0; i < kind->matrices; i++) {
        struct dtp_projection p;
        dtp_projection_of(plan, kind->matrix[i].out, kind->matrix[i].in, &p);
        bytes += p.bytes;
        for (int product = 0; product < p.products; product++)
            all_s += dtp_cluster_matmul_s(timing->cluster, &timing->execution, DTP_MEASURED_MATMUL_FORWARD,
                                          plan->precision.params, p.m, product ? p.n : p.rank, product ? p.rank : p.n);
    }
    return timing->layers * (all_s + bytes / timing->streaming_bytes_per_s);
}

/* Copies into the results of Muon's products, and these. */
static double products_s(const struct dtp_timing *timing)
{
    const struct dtp_plan *plan = timing->plan;
    struct dtp_layer_kind kind;
    double bytes = 0;
    if (!dtp_optimizer_matrix_elements(timing->transformer, plan))
        return 0;
    dtp_layer_kind_of(timing->transformer, DTP_LAYER_DENSE, plan->fused_qkv, plan->fused_gate_up, &kind);
    if (dtp_optimizer_row(plan->optimizer)->shape == DTP_STATE_PROJECTED)
        return projections_s(timing, &kind);
    for (int i = 0; i < kind.matrices; i++) {
        struct dtp_newton_schulz p;
        dtp_newton_schulz_of(plan, kind.matrix[i].out, kind.matrix[i].in, &p);
        bytes += p.bytes;
    }
    return dtp_timing_newton_schulz_s(timing) + timing->layers * bytes / timing->streaming_bytes_per_s;
}

/* PowerSGD's factors are orthogonalised one after another, by small kernels. */
static double factors_s(const struct dtp_timing *timing)
{
    const struct dtp_plan *plan = timing->plan;
    if (plan->comm_hook != DTP_COMM_HOOK_POWERSGD || timing->cluster->gpus == 1)
        return 0;
    struct dtp_traffic job = {.transformer = timing->transformer, .cluster = timing->cluster, .plan = plan};
    dtp_units_count(timing->transformer, timing->cluster, plan, &job.units);
    dtp_element_bytes_count(plan, &job.bytes);
    struct dtp_ddp_bucket_count buckets = dtp_traffic_ddp_buckets(&job, job.bytes.grads);
    double kernels = 2 * (double)buckets.factored.matrices * dtp_powersgd_orthogonalize_kernels(plan);
    return kernels * dtp_cluster_kernel_launch_s(timing->cluster, &timing->execution) * dtp_plan_reductions(plan);
}

/* One pass that reads the rank's gradients and one that reads and writes them (lower_clip.h). */
static double clip_s(const struct dtp_timing *timing)
{
    const struct dtp_plan *plan = timing->plan;
    struct dtp_units units;
    struct dtp_element_bytes element;
    if (!dtp_plan_clips(plan))
        return 0;
    dtp_units_count(timing->transformer, timing->cluster, plan, &units);
    dtp_element_bytes_count(plan, &element);
    uint64_t elements = dtp_plan_shards_grads(plan) ? units.trained_shard : units.trained;
    uint64_t bytes = dtp_plan_adapts(plan) ? dtp_plan_gradients_bytes(timing->transformer, plan, elements)
                                           : dtp_bytes_product(element.grads, elements);
    return 3 * (double)bytes / timing->streaming_bytes_per_s;
}

static double beside_update_s(const struct dtp_timing *timing)
{
    return factors_s(timing) + products_s(timing) + clip_s(timing);
}

/* What FSDP2 copies out is as wide as what is gathered. A group of one rank casts each weight itself where it is wanted
 * (lower_sharding.c, copy_own): in one pass, or before a gather in fp8, of a matrix of `stored` bytes, by operators:
 * widened, multiplied by its scale, clamped and cast (casts_of). Of several ranks each casts its shard ahead of the
 * gather, beside computing. */
static void add_wire_casts(const struct dtp_timing *timing, double *per_gather, double *per_reduce)
{
    const struct dtp_plan *plan = timing->plan;
    const double w = dtp_plan_compute_bytes(plan), stored = dtp_dtype_bytes(plan->precision.params), wide = 4;
    double narrow = 0;
    (void)per_reduce;
    if (plan->fsdp1)
        return;
    EACH_KIND(timing, block)
    for (int i = 0; plan->precision.fp8_all_gather && i < block->matmul_count; i++)
        if (!block->matmul[i].wide)
            narrow += block->layers * block->matmul[i].copies * block->matmul[i].n * block->matmul[i].k;
    const double share = narrow / (double)timing->count.total, gathered = 1, rest = 1 - share;
    *per_gather -= 2 * (w - gathered) * share;
    if (plan->shard_group > 1)
        return;
    *per_gather += share * ((stored < wide ? stored + wide : 0) + 2 * wide + 2 * wide + wide + gathered) +
                   rest * (stored != w ? stored + w : 0);
}

/* DDP's (finalize_backward; lower_replicated.c, end_backward); FSDP's are reduced behind it. */
static bool sums_before_sending(const struct dtp_plan *plan)
{
    return plan->strategy == DTP_DDP;
}

/* ---- what they are ----------------------------------------------------------------------------------------------- */

const struct dtp_closed_form_hooks dtp_torch_closed_form = {
    .offload_state = offload_state,
    .own_segments = own_segments,
    .add_wire_casts = add_wire_casts,
    .beside_update_s = beside_update_s,
    .traffic = dtp_torch_traffic,
    .slice = dtp_slice_of,
    .sums_before_sending = sums_before_sending,
    .add_stages = dtp_stages_of_slice,
    .add_stages_memory = dtp_stages_memory_of_slice,
};
