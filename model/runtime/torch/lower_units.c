/* What is a unit of FSDP: `wrap_layers` blocks; and what lies outside of blocks, or all where nothing is wrapped.
 *
 * Embeddings, final norm and head are the root's, or, where the ends are wrapped, two units: the embedding, and the
 * final norm with the head, which is not resharded after forward (torchtitan's parallelize.py: fully_shard of
 * tok_embeddings, and of [norm, output] with reshard_after_forward=False). fully_shard of the model then has nothing
 * left of its own. */
#include "runtime/torch/lower_units.h"

#include "base/bytes.h"

#include <stdlib.h>

/* ---- parts of a unit --------------------------------------------------------------------------------------------- */

uint64_t dtp_unit_modules(const struct dtp_lower_unit *unit)
{
    return unit->end - unit->first + (unit->root ? 1 : 0);
}

struct dtp_unit_module dtp_unit_module(struct dtp_lowering *l, const struct dtp_lower_unit *unit, uint64_t index)
{
    bool block = index < unit->end - unit->first;
    uint64_t layer = block ? unit->first + index : l->transformer->layers;
    struct dtp_unit_module at = {.module = dtp_lower_module_at(l, layer), .state = &l->state[layer]};
    dtp_lower_stand(l, block ? (uint16_t)layer : DTP_NO_LAYER);
    at.first = block ? 0 : unit->part;
    at.end = block ? at.module->parts : unit->part_end;
    for (int part = 0; block && dtp_lower_sharding_of(l)->experts && part < l->matrices; part++)
        if (l->matrix[part].expert != unit->experts)
            at.others |= UINT64_C(1) << part;
    if (unit->experts)
        at.others |= UINT64_C(1) << l->matrices; /* vectors, which experts have none of */
    while (at.others >> at.first & 1)
        at.first++;
    for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
        at.elements += at.module->trained[part] ? at.module->elements[part] : 0;
    return at;
}

static void add_module(struct dtp_lowering *l, struct dtp_lower_unit *unit, uint64_t index)
{
    struct dtp_unit_module at = dtp_unit_module(l, unit, index);
    uint64_t shard = 0, bytes = 0, rest = 0;
    unit->scale_bytes += at.first ? 0 : at.module->scale_bytes;
    for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part)) {
        shard += at.module->trained[part] ? at.module->shard[part] : 0;
        bytes += at.module->wire_bytes[part];
        rest += at.module->shard_bytes[part];
    }
    if (l->plan->fsdp1 && !l->adapts) { /* cut across tensors; of adapters each is a unit (lower_held.c) */
        shard = at.module->all_shard;
        bytes = shard * l->bytes.compute;
        rest = shard * l->bytes.params;
    }
    unit->elements += at.elements;
    unit->shard += shard;
    unit->rest_bytes += rest;
    unit->gathered_shard_bytes += bytes;
}

/* Tensor by tensor where the unit is one module; together where it has too many for one operation, or one flat one. */
static void make_moments(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    unit->moments = (struct dtp_lower_moments){DTP_NO_BUFFER, 0};
    if (dtp_unit_modules(unit) > 1 || l->plan->fsdp1) {
        if (unit->shard)
            dtp_lower_add_moments(l, &unit->moments, unit->shard);
        return;
    }
    struct dtp_unit_module at = dtp_unit_module(l, unit, 0);
    for (int part = at.first; part < at.end; part = dtp_unit_next(&at, part))
        if (at.module->trained[part] && at.module->shard[part])
            dtp_lower_add_moments(l, &unit->moments, at.module->shard[part]);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static void make_unit(struct dtp_lowering *l, struct dtp_lower_unit *unit)
{
    const struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    unit->ranks = unit->experts ? dtp_plan_expert_shard_ranks(l->cluster, l->plan) : l->plan->shard_group;
    unit->group = unit->experts ? s->expert_shard_group : s->shard_group;
    unit->post_forward = DTP_NO_BUFFER;
    unit->flat = unit->scatter_input = unit->grads = unit->accumulated = unit->named = DTP_NO_BUFFER;
    unit->gathered = unit->scattered = DTP_NO_OP;
    for (uint64_t i = 0; i < dtp_unit_modules(unit); i++)
        add_module(l, unit, i);
    dtp_lower_stand(l, unit->root ? DTP_NO_LAYER : (uint16_t)unit->first);
    dtp_lower_buffer(l, "scales of packed weights", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, unit->scale_bytes, true);
    if (dtp_lower_offloads(l)) {
        dtp_lower_host_state(l, unit);
        return;
    }
    unit->params = dtp_lower_buffer(l, "params", DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, unit->rest_bytes, true);
    make_moments(l, unit);
}

/* No unit reaches from one chunk of a pipeline's rank into another. */
static uint64_t units_of(const struct dtp_lowering *l)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < l->role.chunk_count; i++)
        units += dtp_divide_up(l->role.chunks[i].layers, l->plan->wrap_layers);
    return units;
}

static void cut_chunk(struct dtp_lowering *l, const struct dtp_lower_chunk *chunk)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    uint64_t width = l->plan->wrap_layers, end = chunk->first + chunk->layers;
    for (uint64_t first = chunk->first; first < end; first += width) {
        struct dtp_lower_unit *unit = &s->unit[s->count];
        unit->first = first;
        unit->end = first + width < end ? first + width : end;
        for (uint64_t layer = unit->first; layer < unit->end; layer++)
            s->of_layer[layer] = (uint32_t)s->count;
        s->count++;
        make_unit(l, unit);
    }
}

/* Experts that ranks divide are a unit of their own within their block's, of fewer ranks (torchtitan's parallelize.py:
 * fully_shard of moe.experts on the mesh efsdp, before that of the block). */
static void cut_experts(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    for (uint64_t layer = 0; s->experts && layer < l->transformer->layers; layer++) {
        if (dtp_lower_mlp(l, layer) != DTP_LAYER_EXPERTS)
            continue;
        s->experts[layer] = (struct dtp_lower_unit){.first = layer, .end = layer + 1, .experts = true};
        make_unit(l, &s->experts[layer]);
    }
}

/* A unit of the root's parts from `part` on, behind those of blocks; `blocks` are in it. */
static void add_root(struct dtp_lowering *l, int part, int part_end, uint64_t blocks)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    struct dtp_lower_unit *unit = &s->unit[s->count + s->roots++];
    *unit = (struct dtp_lower_unit){.root = true, .part = part, .part_end = part_end, .end = blocks};
    make_unit(l, unit);
}

static void cut_root(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (!l->wraps_ends) {
        add_root(l, 0, DTP_ROOT_PARTS, s->count ? 0 : l->transformer->layers);
        return;
    }
    for (uint32_t i = 0; i < l->role.chunk_count; i++) {
        if (l->role.chunks[i].embedding)
            add_root(l, DTP_ROOT_EMBEDDING, DTP_ROOT_VECTORS, 0);
        if (l->role.chunks[i].head)
            add_root(l, DTP_ROOT_VECTORS, DTP_ROOT_PARTS, 0);
    }
}

static void make_groups(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    uint32_t ranks = l->plan->shard_group, replicas = l->data_ranks / ranks;
    uint32_t experts = (uint32_t)dtp_plan_expert_shard_ranks(l->cluster, l->plan);
    s->shard_group = ranks > 1 ? dtp_lower_data_group(l, ranks, 1) : DTP_NO_INDEX;
    s->replica_group = replicas > 1 ? dtp_lower_data_group(l, replicas, ranks) : DTP_NO_INDEX;
    if (l->plan->reshard_group)
        s->reshard_group = dtp_lower_data_group(l, l->plan->reshard_group, 1);
    s->expert_shard_group = DTP_NO_INDEX;
    if (l->plan->ep > 1 && experts > 1) /* of all ranks of a stage, tensor parallel ones among them */
        s->expert_shard_group = dtp_program_add_group(
            l->program, (struct dtp_program_group){experts, dtp_plan_group(l->plan, l->cluster, DTP_AXES(EDP)).stride});
}

enum dtp_status dtp_lower_units_make(struct dtp_lowering *l)
{
    struct dtp_lower_sharding *s = l->own = calloc(1, sizeof *s);
    uint64_t count = l->plan->wrap_layers ? units_of(l) : 0;
    if (s) {
        s->unit = calloc(count + 2, sizeof *s->unit);
        s->of_layer = calloc(l->transformer->layers + 1, sizeof *s->of_layer);
    }
    bool holds = dtp_lower_hooks_hold(l);
    if (s && holds && (s->hooked = calloc(2 * l->transformer->layers, sizeof *s->hooked)))
        for (uint64_t i = 0; i < 2 * l->transformer->layers; i++)
            s->hooked[i] = DTP_NO_BUFFER;
    if (s && l->plan->ep > 1)
        s->experts = calloc(l->transformer->layers + 1, sizeof *s->experts);
    if (!s || !s->unit || !s->of_layer || (l->plan->ep > 1 && !s->experts) || (holds && !s->hooked))
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    s->copied = s->awaited = DTP_NO_OP;
    make_groups(l);
    for (uint32_t i = 0; count && i < l->role.chunk_count; i++)
        cut_chunk(l, &l->role.chunks[i]);
    cut_root(l);
    cut_experts(l);
    dtp_lower_stand(l, DTP_NO_LAYER);
    return DTP_OK;
}

void dtp_lower_units_release(struct dtp_lowering *l)
{
    if (l->own) {
        free(dtp_lower_sharding_of(l)->unit);
        free(dtp_lower_sharding_of(l)->of_layer);
        free(dtp_lower_sharding_of(l)->experts);
        free(dtp_lower_sharding_of(l)->hooked);
    }
    free(l->own);
}

/* ---- which one --------------------------------------------------------------------------------------------------- */

struct dtp_lower_unit *dtp_lower_unit_of_end(const struct dtp_lowering *l, enum dtp_model_end end)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    int part = end == DTP_END_HEAD && l->wraps_ends ? DTP_ROOT_VECTORS : DTP_ROOT_EMBEDDING;
    for (uint32_t i = 0; i < s->roots; i++)
        if (s->unit[s->count + i].part == part)
            return &s->unit[s->count + i];
    return NULL;
}

struct dtp_lower_unit *dtp_lower_unit_here(const struct dtp_lowering *l)
{
    const struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (l->layer != DTP_NO_LAYER)
        return s->count ? &s->unit[s->of_layer[l->layer]] : NULL;
    if (l->wraps_ends)
        return l->end == DTP_END_NONE ? NULL : dtp_lower_unit_of_end(l, l->end);
    /* of a pipeline's chunks the first and the last have what the root unit holds */
    return !l->role.pipeline || l->chunk->embedding || l->chunk->head ? &s->unit[s->count] : NULL;
}

struct dtp_lower_unit *dtp_lower_unit_below(const struct dtp_lowering *l, const struct dtp_lower_unit *unit)
{
    struct dtp_lower_sharding *s = dtp_lower_sharding_of(l);
    if (dtp_unit_is_last(l, unit))
        return l->wraps_ends || !s->count ? NULL : &s->unit[s->count - 1];
    if (unit->root)
        return &s->unit[s->count - 1];
    if (unit == s->unit)
        return l->wraps_ends ? dtp_lower_unit_of_end(l, DTP_END_EMBEDDING) : NULL;
    return &s->unit[unit - s->unit - 1];
}
