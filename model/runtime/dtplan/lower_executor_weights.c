/* Where operations read weights, and what strategies do about it: gathers ahead of use into a ring.
 *
 * Sharded weights are gathered block by block. The step passes over blocks in a known order (forward 0 .. L-1, backward
 * L-1 .. 0, for each micro-step), so when a pass begins, those it will take next are gathered as far ahead as the ring
 * has slots; a slot's block is replaced by the one needed next only where its own next use lies furthest (Belady 1966).
 * At the turn from forward to backward, and from one micro-step to the next, the last blocks are still there. Where
 * ranks hold the weights whole but update a shard (zero1, zero2, shard_grad_op), the step begins with gathering what
 * the step before updated, module by module in the order of use: forward overlaps with it. */
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"

#define NO_BLOCK UINT64_MAX

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

dtp_op_id dtp_executor_collective(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_stream stream,
                                  uint32_t group, uint64_t sent_bytes)
{
    draft->op.stream = stream;
    draft->op.group = group;
    draft->op.demand.sent_bytes = (double)sent_bytes;
    draft->op.demand.kernels = 1;
    return dtp_draft_end(x->l, draft);
}

static const char *module_name(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return dtp_executor_module_name(x, (uint64_t)(module - x->modules));
}

void dtp_executor_begin_at(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                           enum dtp_op_kind kind, const char *name)
{
    dtp_draft_begin(x->l, draft, kind, name ? name : module_name(x, module));
    draft->op.layer = dtp_executor_layer_of(x, (uint64_t)(module - x->modules));
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

void dtp_executor_weight(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role,
                         struct dtp_executor_module *module, enum dtp_parameter which)
{
    dtp_executor_await(x, DTP_STREAM_GATHER, module->gathered_by);
    module->gathered_by = DTP_NO_OP;
    dtp_draft_role(draft, role, module->gathered, DTP_READ,
                   module->layout->tensor[which].offset_elements * x->element_bytes);
}

/* ---- gathers ----------------------------------------------------------------------------------------------------- */

static uint64_t weight_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return dtp_bytes_product(module->layout->elements, x->element_bytes);
}

/* From this rank's shard into `to`; brings `to` to life where `allocates`. */
static void gather(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id to, bool allocates,
                   dtp_op_id after)
{
    struct dtp_draft draft;
    dtp_buffer_id from = module->shard_ranks == 1 ? to : module->state[DTP_EXECUTOR_WEIGHTS];
    if (x->rules.host_params) {
        dtp_op_id uploaded = dtp_executor_upload(x, module, &from, allocates, after);
        if (module->shard_ranks == 1) {
            module->gathered = to;
            module->gathered_by = uploaded;
            return;
        }
        dtp_executor_begin_at(x, module, &draft, DTP_OP_ALL_GATHER, NULL);
        dtp_draft_after(&draft, uploaded);
    } else {
        dtp_executor_begin_at(x, module, &draft, DTP_OP_ALL_GATHER, NULL);
    }
    struct dtp_operand *input = dtp_draft_role(&draft, DTP_ROLE_INPUT, from, DTP_READ, 0);
    input->shard = from.index == to.index;
    struct dtp_operand *result =
        dtp_draft_role(&draft, DTP_ROLE_RESULT, to, DTP_WRITE | (allocates ? DTP_ALLOC : 0), 0);
    if (x->rules.sharded && dtp_executor_is_block(x, module) &&
        module->layout->elements < dtp_executor_largest_block(x)) /* a slot has room for any */
        result->bytes = weight_bytes(x, module);
    dtp_draft_after(&draft, after);
    module->gathered = to;
    module->gathered_by = dtp_executor_collective(x, &draft, DTP_STREAM_GATHER, module->gather_group,
                                                  dtp_lower_ring(weight_bytes(x, module), module->shard_ranks));
    if (x->rules.host_params)
        x->staging_read[1 - x->staging_next] = module->gathered_by;
}

/* The embedding and the head come and go with their pass. */
static void gather_edge(struct dtp_executor *x, struct dtp_executor_module *module)
{
    if (!x->rules.sharded || module->gathered.index != DTP_NO_INDEX || !module->layout->elements)
        return;
    dtp_buffer_id to = dtp_lower_buffer(x->l, module == x->modules ? "gathered embedding" : "gathered head",
                                        DTP_OWNER_WEIGHTS, DTP_STREAM_COMPUTE, weight_bytes(x, module), false);
    dtp_program_set_element(x->l->program, to, x->rules.compute);
    gather(x, module, to, true, x->l->last_op[DTP_STREAM_COMPUTE]);
}

static void release_edge(struct dtp_executor *x, struct dtp_executor_module *module)
{
    if (!x->rules.sharded || module->gathered.index == DTP_NO_INDEX)
        return;
    dtp_executor_free(x, module->gathered, module_name(x, module));
    module->gathered = DTP_NO_BUFFER;
}

/* ---- the ring ---------------------------------------------------------------------------------------------------- */

static uint64_t use_count(const struct dtp_executor *x)
{
    return 2 * x->t->layers * x->plan->accumulate;
}

/* Block of pass `use`, counted over the step. */
static uint64_t block_of(const struct dtp_executor *x, uint64_t use)
{
    uint64_t layers = x->t->layers, at = use % (2 * layers);
    return at < layers ? at : 2 * layers - 1 - at;
}

/* First pass over `block` at `use` or later; UINT64_MAX: none. */
static uint64_t next_use_of(const struct dtp_executor *x, uint64_t block, uint64_t use)
{
    uint64_t layers = x->t->layers, round = use / (2 * layers) * 2 * layers;
    const uint64_t candidates[] = {round + block, round + 2 * layers - 1 - block, round + 2 * layers + block};
    for (int i = 0; i < 3; i++)
        if (candidates[i] >= use)
            return candidates[i] < use_count(x) ? candidates[i] : UINT64_MAX;
    return UINT64_MAX;
}

/* The slot of a block; ring: none has it. */
static uint64_t slot_of(const struct dtp_executor *x, uint64_t block)
{
    uint64_t slot = 0;
    while (slot < x->rules.ring && x->slot_block[slot] != block)
        slot++;
    return slot;
}

/* An empty slot, or the one whose block is needed last. */
static uint64_t victim(const struct dtp_executor *x)
{
    uint64_t best = 0, best_use = 0;
    for (uint64_t slot = 0; slot < x->rules.ring; slot++) {
        if (x->slot_block[slot] == NO_BLOCK)
            return slot;
        uint64_t use = next_use_of(x, x->slot_block[slot], x->next_use);
        if (use > best_use)
            best = slot, best_use = use;
    }
    return best;
}

static void fill_slot(struct dtp_executor *x, uint64_t slot, uint64_t block)
{
    bool experts = x->expert_slot[slot].index != DTP_NO_INDEX;
    if (x->slot_block[slot] != NO_BLOCK)
        dtp_executor_block(x, x->slot_block[slot])->gathered = DTP_NO_BUFFER;
    if (x->slot_block[slot] != NO_BLOCK && experts)
        dtp_executor_experts(x, x->slot_block[slot])->gathered = DTP_NO_BUFFER;
    x->slot_block[slot] = block;
    gather(x, dtp_executor_block(x, block), x->slot[slot], false, x->slot_read[slot]);
    if (experts && dtp_executor_experts(x, block)->layout->elements)
        gather(x, dtp_executor_experts(x, block), x->expert_slot[slot], false, x->slot_read[slot]);
}

void dtp_executor_before_block(struct dtp_executor *x, uint64_t layer)
{
    (void)layer;
    if (!x->rules.sharded)
        return;
    for (uint64_t use = x->next_use; use < x->next_use + x->rules.ring && use < use_count(x); use++)
        if (slot_of(x, block_of(x, use)) == x->rules.ring)
            fill_slot(x, victim(x), block_of(x, use));
}

void dtp_executor_after_block(struct dtp_executor *x, uint64_t layer)
{
    x->next_use++;
    if (x->rules.sharded)
        x->slot_read[slot_of(x, layer)] = x->l->last_op[DTP_STREAM_COMPUTE];
}

/* ---- points of the skeleton -------------------------------------------------------------------------------------- */

static void make_ring(struct dtp_executor *x)
{
    const bool experts = x->experts.elements && dtp_executor_is_sharded(x, dtp_executor_experts(x, 0));
    for (uint64_t slot = 0; slot < x->rules.ring; slot++) {
        x->slot_block[slot] = NO_BLOCK;
        x->slot_read[slot] = DTP_NO_OP;
        x->slot[slot] = dtp_lower_buffer(x->l, "gathered block", DTP_OWNER_WEIGHTS, DTP_STREAM_COMPUTE,
                                         dtp_bytes_product(dtp_executor_largest_block(x), x->element_bytes), true);
        dtp_program_set_element(x->l->program, x->slot[slot], x->rules.compute);
        x->expert_slot[slot] = DTP_NO_BUFFER;
        if (experts)
            x->expert_slot[slot] = dtp_lower_buffer(x->l, "gathered experts", DTP_OWNER_WEIGHTS, DTP_STREAM_COMPUTE,
                                                    dtp_bytes_product(x->experts.elements, x->element_bytes), true);
        dtp_program_set_element(x->l->program, x->expert_slot[slot], x->rules.compute);
    }
}

uint64_t dtp_executor_largest_shard(const struct dtp_executor *x)
{
    uint64_t shard = dtp_executor_largest_block(x) / x->rules.shard_ranks;
    shard = x->expert_count && x->experts.shard_elements > shard ? x->experts.shard_elements : shard;
    shard = x->embedding.shard_elements > shard ? x->embedding.shard_elements : shard;
    return x->head.shard_elements > shard ? x->head.shard_elements : shard;
}

/* Ranks that have the same experts share their state, and sum their gradients. */
static void give_groups(struct dtp_executor *x)
{
    for (uint64_t i = 0; i < dtp_executor_all_modules(x); i++) {
        struct dtp_executor_module *module = &x->modules[i];
        const bool experts = x->expert_count && i >= x->module_count;
        module->shard_group = experts ? x->same_experts_group : x->shard_group;
        module->gather_group = experts ? x->same_experts_group : x->gather_group;
        module->replica_group = experts ? x->expert_copies_group : x->replica_group;
    }
}

void dtp_executor_make_groups(struct dtp_executor *x)
{
    uint32_t ranks = (uint32_t)x->rules.shard_ranks, replicas = (uint32_t)x->rules.replicas;
    if (ranks > 1)
        x->shard_group = dtp_lower_data_group(x->l, ranks, 1);
    x->gather_group = x->shard_group;
    if (ranks > 1 &&
        x->plan->executor.gather_engine == DTP_ENGINE_COPY) /* not behind reductions in one communicator's queue */
        x->gather_group = dtp_lower_data_group(x->l, ranks, 1);
    if (x->rules.exchanges)
        x->exchange_group = dtp_lower_data_group(x->l, ranks, 1);
    if (replicas > 1)
        x->replica_group = dtp_lower_data_group(x->l, replicas, ranks);
    give_groups(x);
    if (x->rules.sharded)
        make_ring(x);
    uint64_t shard = dtp_executor_largest_shard(x);
    for (int i = 0; i < 2; i++) {
        x->staging_read[i] = DTP_NO_OP;
        x->staging[i] = x->rules.host_params && ranks > 1
                            ? dtp_lower_buffer(x->l, "uploaded shard", DTP_OWNER_GATHER, DTP_STREAM_COMPUTE,
                                               shard * x->element_bytes, true)
                            : DTP_NO_BUFFER;
        dtp_program_set_element(x->l->program, x->staging[i], x->rules.compute);
    }
    dtp_executor_make_reduction_buffers(x);
    dtp_executor_make_hook(x);
}

void dtp_executor_step_begins(struct dtp_executor *x)
{
    for (uint64_t i = 0; i < x->module_count && x->rules.gathers_once; i++) {
        if (x->modules[i].layout->elements)
            gather(x, &x->modules[i], x->modules[i].gathered, false, DTP_NO_OP);
        uint16_t layer = dtp_executor_layer_of(x, i); /* its experts, in the order of use */
        if (layer != DTP_NO_LAYER && x->expert_count && dtp_executor_experts(x, layer)->shard_ranks > 1 &&
            dtp_executor_experts(x, layer)->layout->elements)
            gather(x, dtp_executor_experts(x, layer), dtp_executor_experts(x, layer)->gathered, false, DTP_NO_OP);
    }
}

void dtp_executor_before_embedding(struct dtp_executor *x)
{
    gather_edge(x, &x->modules[0]);
}

void dtp_executor_after_embedding(struct dtp_executor *x)
{
    if (!x->t->tied_head)
        release_edge(x, &x->modules[0]);
}

void dtp_executor_gather_head(struct dtp_executor *x)
{
    gather_edge(x, dtp_executor_head(x));
}

void dtp_executor_after_loss(struct dtp_executor *x)
{
    release_edge(x, dtp_executor_head(x));
    release_edge(x, &x->modules[0]);
}
