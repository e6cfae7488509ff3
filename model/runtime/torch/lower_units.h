/* Units of sharded parameters (lower_units.c), between lower_sharding.c (gathers) and lower_scatter.c (reductions). */
#ifndef DTP_LOWER_UNITS_H
#define DTP_LOWER_UNITS_H

#include "lower/lowering.h"

/* A unit's shard on the device, tensor by tensor: `ready` to be gathered, and what that was cast from where it stays.
 * In FSDP2's forward all of it `stays` until the weights have been copied out (measured: the root of 3.6B with a
 * vocabulary of 128256 on 2 H200), in its backward it goes as soon as it has been read. */
struct dtp_lower_uploads {
    dtp_buffer_id ready[DTP_MAX_PARTS], uploaded[DTP_MAX_PARTS];
    int count;
    bool stays;
};

struct dtp_lower_unit {
    uint64_t first, end; /* blocks */
    bool root, weights_live, gathering;
    bool experts;       /* those of the block `first`, where ranks divide them: the block's own unit has the rest */
    uint32_t group;     /* the program's, of those who share it; DTP_NO_INDEX where there is one */
    uint64_t ranks;     /* these */
    int part, part_end; /* root: which parts of the root module */
    uint64_t elements, shard;      /* that are trained; shard: what one rank stores, padded */
    uint64_t rest_bytes;           /* what it stores of all, frozen ones too */
    uint64_t gathered_shard_bytes; /* of it on the wire */
    uint64_t scale_bytes;          /* beside it, whole on each rank (dtp_plan_keeps_scales) */
    dtp_buffer_id params, flat, scatter_input, grads;
    dtp_buffer_id named;        /* FSDP2: the gradient that still stands while the reduce-scatter is issued */
    dtp_buffer_id post_forward; /* what this rank of the smaller group keeps from forward to backward */
    struct dtp_lower_moments moments;
    dtp_buffer_id host_gradients; /* where a download lands before it is added to grads */
    dtp_buffer_id accumulated;    /* FSDP1: whole gradients of micro-steps that did not reduce */
    struct dtp_lower_uploads uploads;
    dtp_op_id resharded; /* what wrote post_forward (_reshard_after_forward_event) */
    dtp_op_id gathered;  /* the gather's last operation */
    dtp_op_id scattered; /* the reduce-scatter, or the copy that stands for it on one rank */
};

struct dtp_lower_sharding {
    struct dtp_lower_unit *unit;    /* units of blocks, then of what lies outside of them */
    uint64_t count;                 /* of blocks */
    uint32_t roots;                 /* of the others: one, or one for each end of the model that the rank has */
    uint32_t *of_layer;             /* its unit */
    struct dtp_lower_unit *experts; /* of each layer; NULL: they are in their blocks' units */
    uint32_t shard_group, replica_group, reshard_group, expert_shard_group;
    struct dtp_lower_unit *held;     /* whose flat buffer forward still holds */
    struct dtp_lower_unit *reducing; /* whose reduce-scatter input still stands */
    dtp_op_id copied, awaited;       /* the last copy-out; the one that the gather's streams have waited for */
    dtp_op_id released[2];           /* FSDP1: releases of weights that no gather has waited for, oldest first */
    uint32_t released_count;
    dtp_buffer_id *hooked;     /* of each layer an input and a gradient (lower_held.c); NULL: nothing is held */
    uint64_t replicated_bytes; /* all-reduced so far in this reduction, so that rounding adds up */
};

static inline struct dtp_lower_sharding *dtp_lower_sharding_of(const struct dtp_lowering *l)
{
    return l->own;
}
/* CPUOffloadPolicy: shards, gradients and the step on the host. */
static inline bool dtp_lower_offloads(const struct dtp_lowering *l)
{
    return l->plan->offload != DTP_OFFLOAD_NONE;
}
/* lower_held.c: of each layer, when its backward is through; and when all is. */
bool dtp_lower_hooks_hold(const struct dtp_lowering *l);
void dtp_lower_hook_holds(struct dtp_lowering *l);
void dtp_lower_hooks_end(struct dtp_lowering *l);
/* lower_units.c. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_lower_units_make(struct dtp_lowering *l);
void dtp_lower_units_release(struct dtp_lowering *l);
/* The unit that the module at hand belongs to; NULL for a block of the root unit, and for a root that holds nothing. */
struct dtp_lower_unit *dtp_lower_unit_here(const struct dtp_lowering *l);
/* The unit with an end of the model, of a rank that has it. */
struct dtp_lower_unit *dtp_lower_unit_of_end(const struct dtp_lowering *l, enum dtp_model_end end);
/* The unit whose backward comes after `unit`'s, or NULL. */
struct dtp_lower_unit *dtp_lower_unit_below(const struct dtp_lowering *l, const struct dtp_lower_unit *unit);
/* Its backward ends with the model's: the root, or the embedding. */
static inline bool dtp_unit_is_last(const struct dtp_lowering *l, const struct dtp_lower_unit *unit)
{
    return unit->root && !(l->wraps_ends && unit->part == DTP_ROOT_VECTORS);
}
/* Modules of a unit by index: its blocks, then the root module, of which it may have some parts only; moves the
 * skeleton to it. */
struct dtp_unit_module {
    const struct dtp_lower_module *module;
    struct dtp_module_state *state;
    int first, end;    /* parts, but those */
    uint64_t others;   /* of the block's that are another unit's, as bits */
    uint64_t elements; /* of these */
};
/* The part behind `part`. */
static inline int dtp_unit_next(const struct dtp_unit_module *at, int part)
{
    do
        part++;
    while (part < at->end && at->others >> part & 1);
    return part;
}
/* The unit of a layer's experts, or NULL. */
static inline struct dtp_lower_unit *dtp_lower_unit_of_experts(const struct dtp_lowering *l, uint64_t layer)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    return s->experts && s->experts[layer].ranks ? &s->experts[layer] : NULL;
}
uint64_t dtp_unit_modules(const struct dtp_lower_unit *unit);
struct dtp_unit_module dtp_unit_module(struct dtp_lowering *l, const struct dtp_lower_unit *unit, uint64_t index);
/* lower_scatter.c, when the unit's backward is through, before and after its weights are released; before that, too,
 * what is to be reduced is cut to what the rank has of it. */
void dtp_lower_collect_gradients(struct dtp_lowering *l, struct dtp_lower_unit *unit);
void dtp_lower_cut_gradients(struct dtp_lowering *l, struct dtp_lower_unit *unit);
void dtp_lower_reduce_gradients(struct dtp_lowering *l, struct dtp_lower_unit *unit);
void dtp_lower_await_reduction(struct dtp_lowering *l);
void dtp_lower_all_reduce(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id reduced);

/* lower_offload.c: state on the host; a unit's shard on its way up, its reduced gradients on their way down, and the
 * step on CPU cores. `upload` fills unit->uploads, cast where it is gathered narrower; their user frees them. */
void dtp_lower_host_state(struct dtp_lowering *l, struct dtp_lower_unit *unit);
void dtp_lower_upload(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_op_id after);
void dtp_lower_download(struct dtp_lowering *l, struct dtp_lower_unit *unit, dtp_buffer_id reduced);
void dtp_lower_host_step(struct dtp_lowering *l);

#endif
