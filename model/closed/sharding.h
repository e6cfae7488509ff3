/* Who holds which part of parameters, gradients and optimizer state: counts of elements per unit, and the bytes a
 * runtime keeps for them.
 *
 * A unit is what is gathered and reduced in one collective: wrap_layers layers, and the root (embeddings, final norm,
 * head). FSDP2 shards every parameter by itself along its rows, so each rank stores ceil(rows/N) rows of each. */
#ifndef DTP_SHARDING_H
#define DTP_SHARDING_H

#include "machine/machine.h"
#include "closed/memory_parts.h"
#include "plan/rules.h"
#include "net/layer_kind.h"

/* Elements. "shard" is what one rank stores, padding included. */
struct dtp_units {
    uint64_t ranks;    /* N: ranks that share one copy of what the strategy shards */
    uint64_t replicas; /* R: copies of that, each on its own ranks */
    uint64_t total, total_shard, layers;
    uint64_t layer, layer_shard, layer_matmul; /* where layers differ, here and below the mean of all */
    uint64_t largest_layer, largest_layer_shard;
    uint64_t expert_elements;             /* of a layer, of the rank's experts where ranks divide them */
    uint64_t expert_shard, expert_layers; /* of layers whose experts ranks divide (ep), of these; else 0 */
    uint64_t expert_ranks;                /* that share one copy of them */
    uint64_t layer_matmul_shard;          /* of layer_shard: the matrices */
    uint64_t layer_narrow;                /* of layer_matmul: what recipes of fewer than 16 bits take */
    uint64_t narrow;                      /* all of that, where all layers are in the recipe */
    uint64_t layer_cast;                  /* of a layer: matmul weights and biases, what autocast casts */
    uint64_t largest, down;               /* largest matrix of a layer | the MLP's down matrix [f, h] */
    uint64_t qkv, output;                 /* q, k and v, with their latents | attention's output matrix */
    uint64_t root, root_shard;
    uint64_t head_end, head_end_shard; /* of the root, what is a unit of its own (dtp_plan_wraps_ends); else 0 */
    uint64_t position;                 /* learned positions, [positions, h] */
    uint64_t embedding, head;          /* V*h each; head is 0 elements when tied, but its gradient is V*h */
    uint64_t count, layers_per_unit, last_unit_layers; /* units of layers: 0 units when the whole model is the root */
    uint64_t tensors;                                  /* parameters as tensors, in the whole model */
    uint64_t tensors_per_layer;
    /* What is trained: all, or adapters (plan/adapters.h). Bytes of a rank's shard of a layer, and of the root, as they
     * are gathered; counted with adapters alone. */
    uint64_t trained, trained_shard, root_trained, trained_tensors;
    uint64_t layer_wire, root_wire;
    uint64_t layer_pinned; /* of a layer on the host, where it is offloaded: once, as PyTorch's allocator rounds */
    uint64_t layer_scales; /* of a layer, on each GPU whole (dtp_plan_keeps_scales) */
    uint64_t layer_trained;
};

void dtp_units_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                     const struct dtp_plan *plan, struct dtp_units *out);

/* Of a model whose layers are all of one kind, which is known: the rank's part of the experts, and gets the plan's
 * adapters here. */
void dtp_units_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                  const struct dtp_plan *plan, struct dtp_layer_kind *kind, struct dtp_units *out);

/* Of a plan with adapters those parameters alone that have gradients, as if there were no others. */
void dtp_units_trained(const struct dtp_units *units, const struct dtp_plan *plan, struct dtp_units *out);

/* Elements as FSDP gathers so many, of which a rank has `shard`: FSDP2 pads each parameter to equal shards; experts
 * that ranks divide, `expert_shard` of these, are gathered among those that have the same. */
static inline uint64_t dtp_units_padded(const struct dtp_units *units, const struct dtp_plan *plan, uint64_t elements,
                                        uint64_t shard, uint64_t expert_shard)
{
    return expert_shard  ? (shard - expert_shard) * units->ranks + expert_shard * units->expert_ranks
           : plan->fsdp1 ? elements
                         : shard * units->ranks;
}

/* Bytes at rest on one GPU, and on its share of host and NVMe; elements of what stays on the GPU. */
struct dtp_state_bytes {
    uint64_t params_elements, grads_elements, optimizer_elements;
    uint64_t params, grads, optimizer; /* grads: at the optimizer step */
    uint64_t host, nvme;               /* per GPU; pinned host buffers as the runtime's allocator rounds them */
    const struct dtp_cluster *cluster;
    bool gpu_alone;                 /* nobody asks for host and nvme */
    struct dtp_memory_parts *parts; /* that get what is added to host and nvme; NULL: none do */
};
/* `parts` gets those of host and NVMe bytes; NULL: none. */
void dtp_state_bytes_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                           const struct dtp_units *units, const struct dtp_plan *plan,
                           const struct dtp_element_bytes *bytes, struct dtp_memory_parts *parts,
                           struct dtp_state_bytes *out);

/* Of the GPU alone, whose host and NVMe bytes nobody reads. */
void dtp_state_bytes_at_rest(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_units *units, const struct dtp_plan *plan,
                             const struct dtp_element_bytes *bytes, struct dtp_state_bytes *out);

/* For the hooks that fill it. What PyTorch's pinned allocator takes for so many bytes: it rounds every allocation up to
 * a power of two (CachingHostAllocator.h), so that a 9 GB flat buffer pins 16 GB. */
uint64_t dtp_pinned_bytes(uint64_t bytes);
void dtp_state_add_host(struct dtp_state_bytes *state, enum dtp_memory_term term, uint64_t count, uint64_t elements,
                        uint64_t element_bytes);
void dtp_state_add_nvme(struct dtp_state_bytes *state, enum dtp_memory_term term, uint64_t elements,
                        uint64_t element_bytes);
/* The shards of a layer's tensors and of the root's, each pinned by itself. */
void dtp_state_pinned_tensors(const struct dtp_transformer *transformer, const struct dtp_units *units,
                              const struct dtp_plan *plan, uint64_t element_bytes, uint64_t *layer_bytes,
                              uint64_t *root_bytes);

#endif
