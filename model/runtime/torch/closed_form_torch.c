/* PyTorch's hooks of the closed form: pools of its allocator, state on the host. */
#include "runtime/torch/closed_form_torch.h"

#include "base/bytes.h"
#include "runtime/torch/torch.h"

/* ---- pools of the allocator -------------------------------------------------------------------------------------- */

/* Pool of the all-gather stream under FSDP2: the root's cast shard and flat buffer are its first segments; a unit's
 * flat buffer is needed while the root's still stands, and a second one while the first still stands, so each takes a
 * new segment unless a free one is large enough; so does each that is gathered further ahead. */
static uint64_t gather_pool(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_units *u = &job->units;
    uint64_t w = job->bytes.compute, unit_elements = u->layers_per_unit * u->layer;
    uint64_t root = w * u->root, unit = w * unit_elements;
    bool cast = job->bytes.params != w;
    uint64_t root_cast = cast ? root / u->ranks : 0, unit_cast = cast ? unit / u->ranks : 0;
    uint64_t units = root_cast < unit + unit_cast;
    units += root < unit && u->count > 1;
    units += u->count > job->plan->prefetch_depth ? job->plan->prefetch_depth - 1 : 0;
    return dtp_memory_part(chain, DTP_TERM_POOL_ROOT, 1, u->root, w) +
           dtp_memory_part(chain, DTP_TERM_POOL_CAST, 1, 1, root_cast) +
           dtp_memory_part(chain, DTP_TERM_POOL_UNITS, units, unit_elements, w);
}

/* Pool of the reduce-scatter stream under FSDP2: its outputs are the sharded gradients, all of them at the end of
 * backward; with CPU offload they leave at once and one root and one unit remain. */
static uint64_t reduce_pool(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_units *u = &job->units;
    bool offloaded = job->plan->offload != DTP_OFFLOAD_NONE;
    uint64_t elements = offloaded ? u->root_shard + u->layers_per_unit * u->layer_shard : u->total_shard;
    return dtp_memory_part(chain, offloaded ? DTP_TERM_POOL_NEWEST_GRADS : DTP_TERM_POOL_GRADS, 1, elements,
                           job->bytes.grads);
}

/* DDP lays its buckets anew after the first backward, in the order gradients came; the segments of the first ones go to
 * activations and optimizer state in pieces, so that the peak of later steps needs fresh ones. */
static uint64_t made_anew(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    if (job->plan->expandable_segments || !dtp_plan_has_ddp_buckets(job->plan, job->cluster))
        return 0;
    return dtp_memory_part(chain, DTP_TERM_REBUILT_BUCKETS, 1, job->units.total, job->bytes.grads);
}

/* The root's reduce-scatter input [r R] is one block, needed at the very end of backward. Where nothing freed before it
 * is as long in one piece (the loss's blocks, a unit's own input), it takes a new segment, although much more than
 * that lies free in pieces. */
static uint64_t root_reduce_segment(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    const struct dtp_units *u = &job->units;
    uint64_t r = job->bytes.reduce, input = r * u->root, unit = r * u->layers_per_unit * u->layer;
    enum dtp_loss loss = dtp_plan_loss(job->plan);
    uint64_t token_bytes = loss == DTP_LOSS_EAGER   ? 4 * job->transformer->vocab
                           : loss == DTP_LOSS_FUSED ? job->activations.logits
                                                    : 0; /* no block of all logits */
    uint64_t loss_block = dtp_bytes_product(job->tokens, token_bytes);
    return input > loss_block && input > unit ? dtp_memory_part(chain, DTP_TERM_ROOT_SEGMENT, 1, u->root, r) : 0;
}

static uint64_t other_pools(const struct dtp_memory_job *job, struct dtp_part_chain *chain)
{
    if (!dtp_plan_shards_params(job->plan))
        return 0;
    uint64_t reduce = reduce_pool(job, chain);
    uint64_t root = job->plan->expandable_segments ? 0 : root_reduce_segment(job, chain);
    return reduce + root + (job->plan->fsdp1 ? 0 : gather_pool(job, chain));
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
    dtp_state_pinned_tensors(transformer, units, plan, bytes->params, &layer, &root);
    dtp_state_add_host(out, DTP_TERM_HOST_LAYERS, 2 * transformer->layers, 1, layer);
    dtp_state_add_host(out, DTP_TERM_HOST_ROOT, 2, 1, root);
    dtp_state_add_host(out, DTP_TERM_HOST_MOMENTS, 1, units->total_shard, bytes->moments);
    out->params_elements = out->grads_elements = out->optimizer_elements = 0;
}

/* ---- what they are ----------------------------------------------------------------------------------------------- */

static void memory(struct dtp_memory_job *job)
{
    if (dtp_plan_shards_params(job->plan))
        dtp_memory_fsdp(job);
    else
        dtp_memory_ddp(job);
}

const struct dtp_closed_form_hooks dtp_torch_closed_form = {
    .memory = memory,
    .offload_state = offload_state,
    .other_pools = other_pools,
    .made_anew = made_anew,
    .traffic = dtp_torch_traffic,
};
