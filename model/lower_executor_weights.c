/* Where operations read weights and write their gradients, and what strategies do about it: gathers ahead of use into a
 * ring, reductions behind backward.
 *
 * Sharded weights are gathered block by block. The step passes over blocks in a known order (forward 0 .. L-1, backward
 * L-1 .. 0, for each micro-step), so when a pass begins, those it will take next are gathered as far ahead as the ring
 * has slots; a slot's block is replaced by the one needed next only where its own next use lies furthest (Belady 1966).
 * At the turn from forward to backward, and from one micro-step to the next, the last blocks are still there. Where
 * ranks hold the weights whole but update a shard (zero1, zero2, shard_grad_op), the step begins with gathering what
 * the step before updated, module by module in the order of use: forward overlaps with it.
 *
 * Whole gradients of a module go when their reduction is done; two such buffers exist at once. */
#include "lower_executor_state.h"

#include "bytes.h"

#define NO_BLOCK UINT64_MAX
#define PADDING_ZEROED (1u << 31)

/* ---- operands ---------------------------------------------------------------------------------------------------- */

void dtp_executor_weight(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role,
                         struct dtp_executor_module *module, enum dtp_parameter which)
{
    dtp_executor_await(x, DTP_STREAM_GATHER, module->gathered_by);
    module->gathered_by = DTP_NO_OP;
    dtp_draft_role(draft, role, module->gathered, DTP_READ,
                   module->layout->tensor[which].offset_elements * x->element_bytes);
}

bool dtp_executor_gradient(struct dtp_draft *draft, enum dtp_role role, struct dtp_executor_module *module,
                           enum dtp_parameter which)
{
    bool adds = module->written & 1u << which;
    const struct dtp_parameter_tensor *tensor = &module->layout->tensor[which];
    struct dtp_operand *operand = dtp_draft_role(draft, role, module->gradient,
                                                 (module->allocates ? DTP_ALLOC : 0) | (adds ? DTP_UPDATE : DTP_WRITE),
                                                 tensor->offset_elements * module->gradient_element_bytes);
    operand->bytes = tensor->rows * tensor->columns * module->gradient_element_bytes;
    module->allocates = false;
    module->written |= 1u << which;
    return adds;
}

/* ---- gathers ----------------------------------------------------------------------------------------------------- */

static dtp_op_id collective(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_stream stream, uint32_t group,
                            uint64_t sent_bytes)
{
    draft->op.stream = stream;
    draft->op.group = group;
    draft->op.demand.sent_bytes = (double)sent_bytes;
    draft->op.demand.kernels = 1;
    return dtp_draft_end(x->l, draft);
}

static uint64_t weight_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return dtp_bytes_product(module->layout->elements, x->element_bytes);
}

static void begin_at(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                     enum dtp_op_kind kind, const char *name)
{
    uint64_t index = (uint64_t)(module - x->modules);
    bool edge = index == 0 || index + 1 == x->module_count;
    dtp_draft_begin(x->l, draft, kind, name);
    draft->op.layer = edge ? DTP_NO_LAYER : (uint16_t)(index - 1);
}

static const char *module_name(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return module == x->modules ? "embedding" : module == &x->modules[x->module_count - 1] ? "head" : "block";
}

void dtp_executor_begin_at(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                           enum dtp_op_kind kind)
{
    begin_at(x, module, draft, kind, module_name(x, module));
}

/* From this rank's shard into `to`; brings `to` to life where `allocates`. */
static void gather(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id to, bool allocates,
                   dtp_op_id after)
{
    struct dtp_draft draft;
    dtp_buffer_id from = x->rules.shard_ranks == 1 ? to : module->state[DTP_EXECUTOR_WEIGHTS];
    if (x->rules.host_params) {
        dtp_op_id uploaded = dtp_executor_upload(x, module, &from, allocates, after);
        if (x->rules.shard_ranks == 1) {
            module->gathered = to;
            module->gathered_by = uploaded;
            return;
        }
        begin_at(x, module, &draft, DTP_OP_ALL_GATHER, module_name(x, module));
        dtp_draft_after(&draft, uploaded);
    } else {
        begin_at(x, module, &draft, DTP_OP_ALL_GATHER, module_name(x, module));
    }
    struct dtp_operand *input = dtp_draft_role(&draft, DTP_ROLE_INPUT, from, DTP_READ, 0);
    input->shard = from.index == to.index;
    dtp_draft_role(&draft, DTP_ROLE_RESULT, to, DTP_WRITE | (allocates ? DTP_ALLOC : 0), 0);
    dtp_draft_after(&draft, after);
    module->gathered = to;
    module->gathered_by = collective(x, &draft, DTP_STREAM_GATHER, x->gather_group,
                                     dtp_lower_ring(weight_bytes(x, module), x->rules.shard_ranks));
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
    if (x->slot_block[slot] != NO_BLOCK)
        dtp_executor_block(x, x->slot_block[slot])->gathered = DTP_NO_BUFFER;
    x->slot_block[slot] = block;
    gather(x, dtp_executor_block(x, block), x->slot[slot], false, x->slot_read[slot]);
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
    for (uint64_t slot = 0; slot < x->rules.ring; slot++) {
        x->slot_block[slot] = NO_BLOCK;
        x->slot_read[slot] = DTP_NO_OP;
        x->slot[slot] = dtp_lower_buffer(x->l, "gathered block", DTP_OWNER_WEIGHTS, DTP_STREAM_COMPUTE,
                                         weight_bytes(x, dtp_executor_block(x, 0)), true);
    }
}

/* Reductions exchange gradients by copies and add them up by a kernel. */
static bool exchanges(const struct dtp_executor *x)
{
    return x->plan->reduce_engine == DTP_ENGINE_COPY;
}

static uint64_t largest_shard(const struct dtp_executor *x)
{
    uint64_t shard = x->block.shard_elements;
    shard = x->embedding.shard_elements > shard ? x->embedding.shard_elements : shard;
    return x->head.shard_elements > shard ? x->head.shard_elements : shard;
}

/* Where a reduction's result is before it is added to what is there; exchanged gradients always are. */
static void make_reduction_buffer(struct dtp_executor *x)
{
    uint64_t shard_bytes = largest_shard(x) * dtp_dtype_bytes(x->plan->precision.reduce);
    if (x->rules.shard_ranks == 1)
        return;
    if (exchanges(x))
        x->exchanged = dtp_lower_buffer(x->l, "exchanged gradients", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                                        dtp_bytes_product(shard_bytes, x->rules.shard_ranks), true);
    else if (x->rules.reduces_always)
        x->scattered =
            dtp_lower_buffer(x->l, "scattered gradients", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, shard_bytes, true);
}

void dtp_executor_make_groups(struct dtp_executor *x)
{
    uint32_t ranks = (uint32_t)x->rules.shard_ranks, replicas = (uint32_t)x->rules.replicas;
    if (ranks > 1)
        x->shard_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){ranks, 1});
    x->gather_group = x->shard_group;
    if (ranks > 1 && x->plan->gather_engine == DTP_ENGINE_COPY) /* not behind reductions in one communicator's queue */
        x->gather_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){ranks, 1});
    if (ranks > 1 && exchanges(x))
        x->exchange_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){ranks, 1});
    if (replicas > 1)
        x->replica_group = dtp_program_add_group(x->l->program, (struct dtp_program_group){replicas, ranks});
    if (x->rules.sharded)
        make_ring(x);
    uint64_t shard = largest_shard(x);
    for (int i = 0; i < 2; i++) {
        x->staging_read[i] = DTP_NO_OP;
        x->staging[i] = x->rules.host_params && ranks > 1
                            ? dtp_lower_buffer(x->l, "uploaded shard", DTP_OWNER_GATHER, DTP_STREAM_COMPUTE,
                                               shard * x->element_bytes, true)
                            : DTP_NO_BUFFER;
    }
    for (int i = 0; i < 2; i++) {
        x->shard_downloaded[i] = DTP_NO_OP;
        x->shard[i] = x->rules.streams_gradients && (uint64_t)i < x->t->layers
                          ? dtp_lower_buffer(x->l, "gradient shard", DTP_OWNER_GRADS, DTP_STREAM_COMPUTE,
                                             x->block.shard_elements * dtp_dtype_bytes(x->rules.gradient), true)
                          : DTP_NO_BUFFER;
    }
    make_reduction_buffer(x);
}

void dtp_executor_step_begins(struct dtp_executor *x)
{
    for (uint64_t i = 0; i < x->module_count && x->rules.gathers_once; i++)
        if (x->modules[i].layout->elements)
            gather(x, &x->modules[i], x->modules[i].gathered, false, DTP_NO_OP);
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

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* [begin, end) elements of the module's gradients. */
static void zero(struct dtp_executor *x, struct dtp_executor_module *module, uint64_t begin, uint64_t end)
{
    struct dtp_draft draft;
    if (begin >= end)
        return;
    begin_at(x, module, &draft, DTP_OP_ZERO, "gradients");
    struct dtp_operand *operand = dtp_draft_role(&draft, DTP_ROLE_RESULT, module->gradient,
                                                 DTP_WRITE | (module->allocates ? DTP_ALLOC : 0),
                                                 begin * module->gradient_element_bytes);
    operand->bytes = (end - begin) * module->gradient_element_bytes;
    module->allocates = false;
    dtp_executor_memory(&draft, 0, (double)((end - begin) * module->gradient_element_bytes), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_executor_end(x, &draft);
}

static void zero_padding(struct dtp_executor *x, struct dtp_executor_module *module)
{
    uint64_t end = 0;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *tensor = &module->layout->tensor[i];
        if (!tensor->exists)
            continue;
        zero(x, module, end, tensor->offset_elements);
        end = tensor->offset_elements + tensor->rows * tensor->columns;
    }
    zero(x, module, end, module->layout->elements);
}

void dtp_executor_open_gradient(struct dtp_executor *x, struct dtp_executor_module *module)
{
    dtp_executor_drain(x, 1);
    if (module->gradient.index != DTP_NO_INDEX || !module->layout->elements)
        return;
    uint64_t index = (uint64_t)(module - x->modules);
    uint16_t layer = x->l->layer;
    x->l->layer = index == 0 || index + 1 == x->module_count ? DTP_NO_LAYER : (uint16_t)(index - 1);
    const char *name = x->l->layer != DTP_NO_LAYER ? "gradients" : index == 0 ? "embedding gradients" : "head gradients";
    bool rests = x->rules.shard_ranks == 1 || (x->plan->accumulate > 1 && !x->rules.reduces_always);
    module->gradient =
        dtp_lower_buffer(x->l, name, rests ? DTP_OWNER_GRADS : DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                         dtp_bytes_product(module->layout->elements, module->gradient_element_bytes), false);
    x->l->layer = layer;
    module->allocates = true;
    module->written = 0;
    if (index)
        zero_padding(x, module);
}

void dtp_executor_zero_unwritten(struct dtp_executor *x, struct dtp_executor_module *module)
{
    const struct dtp_parameter_tensor *table = &module->layout->tensor[DTP_PARAMETER_EMBEDDING];
    if (module->written & PADDING_ZEROED)
        return;
    bool written = module->written & 1u << DTP_PARAMETER_EMBEDDING;
    zero(x, module, written ? table->rows * table->columns : 0, module->layout->elements);
    module->written |= PADDING_ZEROED | 1u << DTP_PARAMETER_EMBEDDING | 1u << DTP_PARAMETER_POSITION;
}

void dtp_executor_drain(struct dtp_executor *x, int left)
{
    while (x->draining_count > left) {
        dtp_executor_await(x, DTP_STREAM_REDUCE, x->draining[0].reader);
        dtp_executor_free(x, x->draining[0].buffer, "gradients");
        x->draining[0] = x->draining[1];
        x->draining_count--;
    }
}

static void drain_later(struct dtp_executor *x, dtp_buffer_id buffer, dtp_op_id reader)
{
    dtp_executor_drain(x, 1);
    x->draining[x->draining_count++] = (struct dtp_executor_draining){buffer, reader};
}

/* Sums of all ranks of `group`, in place. */
static dtp_op_id all_reduce(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id buffer,
                            uint64_t bytes, enum dtp_stream stream, dtp_op_id after)
{
    struct dtp_draft draft;
    begin_at(x, module, &draft, DTP_OP_ALL_REDUCE, module_name(x, module));
    dtp_draft_role(&draft, DTP_ROLE_INPUT, buffer, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, buffer, DTP_WRITE, 0);
    dtp_draft_after(&draft, after);
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    return collective(x, &draft, stream, x->replica_group, 2 * dtp_lower_ring(bytes, x->rules.replicas));
}

/* `values` are added to what the module has reduced so far, behind the reduction that made them. */
static dtp_op_id accumulate(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id values,
                            dtp_buffer_id total, uint64_t elements)
{
    struct dtp_draft draft;
    begin_at(x, module, &draft, DTP_OP_ACCUMULATE, "gradients");
    draft.op.stream = DTP_STREAM_REDUCE;
    dtp_draft_role(&draft, DTP_ROLE_INPUT, values, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, total, DTP_UPDATE, 0);
    dtp_executor_memory(&draft, elements, 3 * (double)(elements * module->gradient_element_bytes), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    return dtp_draft_end(x->l, &draft);
}

/* One copy of the gradients a rank: summed where they are. Later micro-steps that reduce too are added. */
static void reduce_whole(struct dtp_executor *x, struct dtp_executor_module *module)
{
    uint64_t bytes = module->layout->elements * module->gradient_element_bytes;
    dtp_op_id reduced =
        all_reduce(x, module, module->gradient, bytes, DTP_STREAM_REDUCE, x->l->last_op[DTP_STREAM_COMPUTE]);
    if (!x->rules.reduces_always) {
        module->reduced_by = reduced;
        return;
    }
    if (module->reduced.index == DTP_NO_INDEX) {
        module->reduced = module->gradient;
        module->reduced_by = reduced;
    } else {
        module->reduced_by = accumulate(x, module, module->gradient, module->reduced, module->layout->elements);
        drain_later(x, module->gradient, module->reduced_by);
    }
    module->gradient = DTP_NO_BUFFER;
}

/* Of the two shards the one that has been downloaded, or will be first. */
static dtp_buffer_id take_shard(struct dtp_executor *x, struct dtp_draft *draft)
{
    dtp_buffer_id shard = x->shard[0];
    dtp_draft_after(draft, x->shard_downloaded[0]);
    dtp_draft_role(draft, DTP_ROLE_RESULT, shard, DTP_WRITE, 0);
    x->shard[0] = x->shard[1], x->shard[1] = shard;
    x->shard_downloaded[0] = x->shard_downloaded[1], x->shard_downloaded[1] = DTP_NO_OP;
    return shard;
}

/* The shard that the module's first reduction of a step writes. */
static void make_shard(struct dtp_executor *x, struct dtp_executor_module *module, struct dtp_draft *draft)
{
    uint64_t shard_bytes = module->layout->shard_elements * module->gradient_element_bytes;
    if (dtp_executor_streams(x, module))
        module->reduced = take_shard(x, draft);
    else
        module->reduced =
            dtp_executor_new(x, draft, DTP_ROLE_RESULT, "gradient shard", DTP_OWNER_GRADS, shard_bytes, DTP_WRITE);
}

/* A collective of the shard group on the module's whole gradients. */
static void begin_reduction(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                            enum dtp_op_kind kind)
{
    begin_at(x, module, draft, kind, module_name(x, module));
    dtp_draft_role(draft, DTP_ROLE_INPUT, module->gradient, DTP_READ, 0);
}

static dtp_op_id end_reduction(struct dtp_executor *x, const struct dtp_executor_module *module,
                               struct dtp_draft *draft, uint32_t group)
{
    uint64_t bytes = module->layout->elements * module->gradient_element_bytes;
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    return collective(x, draft, DTP_STREAM_REDUCE, group, dtp_lower_ring(bytes, x->rules.shard_ranks));
}

/* What the others sent is added up here; later reductions of a step add to the first one's sum in the same pass. */
static dtp_op_id sum_parts(struct dtp_executor *x, struct dtp_executor_module *module)
{
    uint64_t shard_bytes = module->layout->shard_elements * module->gradient_element_bytes;
    uint64_t bytes = dtp_bytes_product(shard_bytes, x->rules.shard_ranks);
    bool first = module->reduced.index == DTP_NO_INDEX;
    struct dtp_draft draft;
    begin_at(x, module, &draft, DTP_OP_SUM_PARTS, "gradients");
    draft.op.stream = DTP_STREAM_REDUCE;
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->exchanged, DTP_READ, 0)->bytes = bytes;
    if (first)
        make_shard(x, module, &draft);
    else
        dtp_draft_role(&draft, DTP_ROLE_RESULT, module->reduced, DTP_UPDATE, 0);
    dtp_executor_memory(&draft, module->layout->shard_elements, (double)(bytes + (first ? 1 : 2) * shard_bytes), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    return dtp_draft_end(x->l, &draft);
}

/* Part j of rank i's gradients becomes part i of what rank j adds up: no SM moves them. */
static void exchange_shards(struct dtp_executor *x, struct dtp_executor_module *module)
{
    struct dtp_draft draft;
    begin_reduction(x, module, &draft, DTP_OP_ALL_TO_ALL);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->exchanged, DTP_WRITE, 0)->bytes =
        module->layout->elements * module->gradient_element_bytes;
    dtp_op_id exchanged = end_reduction(x, module, &draft, x->exchange_group);
    module->reduced_by = sum_parts(x, module);
    drain_later(x, module->gradient, exchanged);
}

static void scatter_shards(struct dtp_executor *x, struct dtp_executor_module *module)
{
    bool first = module->reduced.index == DTP_NO_INDEX;
    struct dtp_draft draft;
    begin_reduction(x, module, &draft, DTP_OP_REDUCE_SCATTER);
    if (first)
        make_shard(x, module, &draft);
    else
        dtp_draft_role(&draft, DTP_ROLE_RESULT, x->scattered, DTP_WRITE, 0);
    module->reduced_by = end_reduction(x, module, &draft, x->shard_group);
    drain_later(x, module->gradient, module->reduced_by);
    if (!first)
        module->reduced_by = accumulate(x, module, x->scattered, module->reduced, module->layout->shard_elements);
}

/* Each rank gets the sum of its shard, from its group and then from the other copies of it. */
static void reduce_shards(struct dtp_executor *x, struct dtp_executor_module *module)
{
    uint64_t shard_bytes = module->layout->shard_elements * module->gradient_element_bytes;
    (exchanges(x) ? exchange_shards : scatter_shards)(x, module);
    module->gradient = DTP_NO_BUFFER;
    bool last = x->l->micro_step + 1u == x->plan->accumulate;
    if (last && x->rules.replicas > 1)
        module->reduced_by =
            all_reduce(x, module, module->reduced, shard_bytes, DTP_STREAM_REPLICATE, module->reduced_by);
    if (last && x->rules.streams_gradients && x->rules.gradient_norm)
        module->reduced_by = dtp_executor_square_sum_behind(x, module);
}

void dtp_executor_close_gradient(struct dtp_executor *x, struct dtp_executor_module *module)
{
    bool last = x->l->micro_step + 1u == x->plan->accumulate;
    if (x->rules.host_optimizer)
        dtp_executor_await_gradient(x, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    if (!module->layout->elements || (!last && !x->rules.reduces_always))
        return;
    if (x->rules.shard_ranks > 1)
        reduce_shards(x, module);
    else if (x->rules.replicas > 1)
        reduce_whole(x, module);
    if (last && x->rules.host_optimizer)
        dtp_executor_download(x, module);
}
