/* Where operations write gradients, and what strategies do about it: reductions behind backward.
 *
 * Whole gradients of a module go when their reduction has read them; two such buffers exist at once. A shard's sum is
 * scattered by NCCL's kernels, or its parts are exchanged by copy engines and added up by a kernel of ours. */
#include "runtime/dtplan/lower_executor_experts.h"
#include "runtime/dtplan/lower_executor_tensor.h"

#include "base/bytes.h"

#define PADDING_ZEROED (UINT64_C(1) << 63)

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static uint64_t shard_bytes(const struct dtp_executor_module *module)
{
    return dtp_bytes_product(module->layout->shard_elements, module->shard_element_bytes);
}

/* What the module's gradients are made in, and what the optimizer reads. */
static struct dtp_gradient_dtypes dtypes_of(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return dtp_executor_gradient_dtypes(x->t, &x->rules, (uint64_t)(module - x->modules));
}

static void make_turns(struct dtp_executor *x)
{
    for (int i = 0; i < 2 * DTP_LAYER_MLPS; i++)
        x->turns[i / 2].shard[i % 2] = DTP_NO_BUFFER, x->turns[i / 2].read[i % 2] = DTP_NO_OP;
    uint64_t made[DTP_LAYER_MLPS] = {0};
    for (uint64_t layer = 0; layer < x->t->layers && x->rules.streams_gradients; layer++) {
        struct dtp_executor_module *module = dtp_executor_block(x, layer);
        uint64_t *count = &made[dtp_executor_mlp_of(x, layer)];
        if (*count == 2)
            continue;
        dtp_buffer_id *shard = &dtp_executor_turns_of(x, module)->shard[(*count)++];
        *shard = dtp_lower_buffer(x->l, DTP_EXECUTOR_GRADIENT_SHARD, DTP_OWNER_GRADS, DTP_STREAM_COMPUTE,
                                  shard_bytes(module), true);
        dtp_program_set_element(x->l->program, *shard, dtypes_of(x, module).shard);
    }
}

/* Shards that do not stay, and where a reduction's result is before it is added to what is there; exchanged
 * gradients always are. */
void dtp_executor_make_reduction_buffers(struct dtp_executor *x)
{
    uint64_t largest = dtp_executor_largest_shard(x) * dtp_dtype_bytes(x->plan->precision.reduce);
    make_turns(x);
    if (x->rules.shard_ranks == 1)
        return;
    if (x->rules.exchanges)
        x->exchanged = dtp_lower_buffer(x->l, "exchanged gradients", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                                        dtp_bytes_product(largest, x->rules.shard_ranks), true);
    else if (x->rules.reduces_always)
        x->scattered =
            dtp_lower_buffer(x->l, "scattered gradients", DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, largest, true);
    dtp_program_set_element(x->l->program, x->exchanged, x->plan->precision.reduce);
    dtp_program_set_element(x->l->program, x->scattered, x->plan->precision.reduce);
}

/* ---- whole gradients --------------------------------------------------------------------------------------------- */

bool dtp_executor_gradient(struct dtp_draft *draft, enum dtp_role role, struct dtp_executor_module *module,
                           enum dtp_parameter which)
{
    bool adds = module->written & dtp_executor_written_bit(which);
    const struct dtp_parameter_tensor *tensor = &module->layout->tensor[which];
    struct dtp_operand *operand = dtp_draft_role(draft, role, module->gradient,
                                                 (module->allocates ? DTP_ALLOC : 0) | (adds ? DTP_UPDATE : DTP_WRITE),
                                                 tensor->offset_elements * module->gradient_element_bytes);
    operand->bytes = tensor->extent_elements * module->gradient_element_bytes;
    module->allocates = false;
    module->written |= dtp_executor_written_bit(which);
    return adds;
}

void dtp_executor_gradient_part(struct dtp_draft *draft, struct dtp_executor_module *module, enum dtp_parameter which,
                                uint64_t begin, uint64_t elements, bool adds)
{
    const struct dtp_parameter_tensor *tensor = &module->layout->tensor[which];
    struct dtp_operand *operand = dtp_draft_role(draft, DTP_ROLE_WEIGHT_GRADIENT, module->gradient,
                                                 (module->allocates ? DTP_ALLOC : 0) | (adds ? DTP_UPDATE : DTP_WRITE),
                                                 (tensor->offset_elements + begin) * module->gradient_element_bytes);
    operand->bytes = elements * module->gradient_element_bytes;
    module->allocates = false;
    module->written |= dtp_executor_written_bit(which);
}

/* [begin, end) elements of the module's gradients. */
static void zero(struct dtp_executor *x, struct dtp_executor_module *module, uint64_t begin, uint64_t end)
{
    struct dtp_draft draft;
    if (begin >= end)
        return;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_ZERO, "gradients");
    struct dtp_operand *operand =
        dtp_draft_role(&draft, DTP_ROLE_RESULT, module->gradient, DTP_WRITE | (module->allocates ? DTP_ALLOC : 0),
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
        end = tensor->offset_elements + tensor->extent_elements;
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
    x->l->layer = dtp_executor_layer_of(x, index);
    const char *name = index >= x->module_count      ? (x->expert_count ? "expert gradients" : "adapter gradients")
                       : x->l->layer != DTP_NO_LAYER ? "gradients"
                       : index == 0                  ? "embedding gradients"
                                                     : "head gradients";
    bool rests = module->shard_ranks == 1 || (x->plan->accumulate > 1 && !x->rules.reduces_always);
    module->gradient =
        dtp_lower_buffer(x->l, name, rests ? DTP_OWNER_GRADS : DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE,
                         dtp_bytes_product(module->layout->elements, module->gradient_element_bytes), false);
    dtp_program_set_element(x->l->program, module->gradient, dtypes_of(x, module).whole);
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
    bool written = module->written & dtp_executor_written_bit(DTP_PARAMETER_EMBEDDING);
    zero(x, module, written ? table->extent_elements : 0, module->layout->elements);
    module->written |= PADDING_ZEROED | dtp_executor_written_bit(DTP_PARAMETER_EMBEDDING) |
                       dtp_executor_written_bit(DTP_PARAMETER_POSITION) |
                       dtp_executor_written_bit(DTP_PARAMETER_EMBEDDING_NORM) |
                       dtp_executor_written_bit(DTP_PARAMETER_EMBEDDING_NORM_BIAS);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

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

/* `values` are added to what the module has reduced so far, behind the reduction that made them. */
static dtp_op_id accumulate(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id values,
                            dtp_buffer_id total, uint64_t elements)
{
    struct dtp_draft draft;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_ACCUMULATE, "gradients");
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
    dtp_op_id reduced = dtp_executor_sum_replicas(x, module, module->gradient, module->layout->elements,
                                                  DTP_STREAM_REDUCE, x->l->last_op[DTP_STREAM_COMPUTE]);
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

/* Of the two shards the one that has been read, or will be first. */
static dtp_buffer_id take_shard(struct dtp_executor_turns *turns, struct dtp_draft *draft)
{
    dtp_buffer_id shard = turns->shard[0];
    dtp_draft_after(draft, turns->read[0]);
    dtp_draft_role(draft, DTP_ROLE_RESULT, shard, DTP_WRITE, 0);
    turns->shard[0] = turns->shard[1], turns->shard[1] = shard;
    turns->read[0] = turns->read[1], turns->read[1] = DTP_NO_OP;
    return shard;
}

/* The shard that the module's first reduction of a step writes. */
static void make_shard(struct dtp_executor *x, struct dtp_executor_module *module, struct dtp_draft *draft)
{
    if (dtp_executor_streams(x, module))
        module->reduced = take_shard(dtp_executor_turns_of(x, module), draft);
    else
        module->reduced = dtp_executor_new(x, draft, DTP_ROLE_RESULT, DTP_EXECUTOR_GRADIENT_SHARD, DTP_OWNER_GRADS,
                                           shard_bytes(module), DTP_WRITE);
    dtp_program_set_element(x->l->program, module->reduced, dtypes_of(x, module).shard);
}

/* A collective of the shard group on the module's whole gradients. */
static void begin_reduction(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                            enum dtp_op_kind kind)
{
    dtp_executor_begin_at(x, module, draft, kind, NULL);
    dtp_draft_role(draft, DTP_ROLE_INPUT, module->gradient, DTP_READ, 0);
}

static dtp_op_id end_reduction(struct dtp_executor *x, const struct dtp_executor_module *module,
                               struct dtp_draft *draft, uint32_t group)
{
    uint64_t bytes = module->layout->elements * module->gradient_element_bytes;
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_TENSOR]);
    return dtp_executor_collective(x, draft, DTP_STREAM_REDUCE, group, dtp_lower_ring(bytes, module->shard_ranks));
}

/* What the others sent is added up here; later reductions of a step add to the first one's sum in the same pass. */
static dtp_op_id sum_parts(struct dtp_executor *x, struct dtp_executor_module *module)
{
    uint64_t bytes = dtp_bytes_product(module->layout->elements, module->gradient_element_bytes);
    bool first = module->reduced.index == DTP_NO_INDEX;
    struct dtp_draft draft;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_SUM_PARTS, "gradients");
    draft.op.stream = DTP_STREAM_REDUCE;
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->exchanged, DTP_READ, 0)->bytes = bytes;
    if (first)
        make_shard(x, module, &draft);
    else
        dtp_draft_role(&draft, DTP_ROLE_RESULT, module->reduced, DTP_UPDATE, 0);
    dtp_executor_memory(&draft, module->layout->shard_elements, (double)(bytes + (first ? 1 : 2) * shard_bytes(module)),
                        1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    return dtp_draft_end(x->l, &draft);
}

/* Part j of rank i's gradients becomes part i of what rank j adds up: no SM moves them. Peers write here when this rank
 * has come to the exchange, in the order of its stream: behind the sum that read what they sent before. */
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
    module->reduced_by = end_reduction(x, module, &draft, module->shard_group);
    drain_later(x, module->gradient, module->reduced_by);
    if (!first)
        module->reduced_by = accumulate(x, module, x->scattered, module->reduced, module->layout->shard_elements);
}

/* Each rank gets the sum of its shard, from its group and then from the other copies of it. */
static void reduce_shards(struct dtp_executor *x, struct dtp_executor_module *module)
{
    (x->rules.exchanges ? exchange_shards : scatter_shards)(x, module);
    module->gradient = DTP_NO_BUFFER;
    bool last = x->l->last_micro_step;
    if (last && module->replicas > 1)
        module->reduced_by = dtp_executor_sum_replicas(x, module, module->reduced, module->layout->shard_elements,
                                                       DTP_STREAM_REPLICATE, module->reduced_by);
    if (last && x->rules.streams_gradients && x->rules.gradient_norm)
        module->reduced_by = dtp_executor_square_sum_behind(x, module);
    if (x->rules.updates_in_backward && dtp_executor_streams(x, module))
        dtp_executor_turns_of(x, module)->read[1] = dtp_executor_update_behind(x, module);
}

void dtp_executor_close_gradient(struct dtp_executor *x, struct dtp_executor_module *module)
{
    bool last = x->l->last_micro_step;
    if (x->rules.host_optimizer)
        dtp_executor_await_gradient(x, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    if (!module->layout->elements || (!last && !x->rules.reduces_always))
        return;
    bool reduces = module->shard_ranks > 1 || module->replicas > 1;
    if (dtp_executor_is_cut(x) && (last || reduces))
        dtp_executor_sum_replicated(x, module);
    if (module->shard_ranks > 1)
        reduce_shards(x, module);
    else if (module->replicas > 1)
        reduce_whole(x, module);
    if (last && x->rules.host_optimizer)
        dtp_executor_download(x, module);
    if (last && dtp_executor_updates_alone(x, module))
        dtp_executor_update_alone(x, module);
}

/* ---- of a matrix ----------------------------------------------------------------------------------------------- */

void dtp_executor_weight_gradient(struct dtp_executor *x, struct dtp_draft *draft, uint64_t layer, int op,
                                  dtp_buffer_id gradient, uint32_t gradient_frees, dtp_buffer_id input,
                                  uint32_t input_frees, const struct dtp_executor_moved *rows)
{
    const struct dtp_executor_operator *of = &x->shape->op[op];
    struct dtp_executor_module *module = dtp_executor_module_of(x, layer, of);
    bool apart = x->plan->executor.gradient_stream;
    struct dtp_executor_moved gathered = {DTP_NO_BUFFER, DTP_NO_OP};
    if (of->gathers)
        gathered = rows ? *rows : dtp_executor_gather_beside(x, of->matrix->gradient_name, input);
    dtp_executor_await(x, DTP_STREAM_TENSOR, gathered.by);
    dtp_executor_begin(x, draft, of->kind, of->matrix->gradient_name);
    dtp_draft_role(draft, DTP_ROLE_GRADIENT, gradient, DTP_READ | gradient_frees, 0);
    if (of->gathers)
        dtp_draft_role(draft, DTP_ROLE_INPUT, gathered.buffer, DTP_READ | DTP_FREE, 0);
    else
        dtp_draft_role(draft, DTP_ROLE_INPUT, input, DTP_READ | input_frees, 0);
    if (of->gathers && input_frees)
        dtp_draft_use(draft, input, input_frees);
    dtp_executor_gradient(draft, DTP_ROLE_WEIGHT_GRADIENT, module, of->weight);
    if (of->kind != DTP_OP_GROUPED_MATMUL && dtp_executor_has(module, of->weight + 1))
        dtp_executor_gradient(draft, DTP_ROLE_BIAS_GRADIENT, module, of->weight + 1);
    if (of->kind == DTP_OP_GROUPED_MATMUL) {
        /* Read, though a device may count in the routes (kernels/experts.h): whoever reads them beside this reads other
         * words, and all weights' gradients of a layer are on one stream, one after the other. */
        dtp_draft_role(draft, DTP_ROLE_ROUTES, x->tensors[layer][dtp_executor_routes_of(x->shape)], DTP_READ, 0);
        dtp_executor_grouped(x, draft, of, DTP_PRODUCT_WEIGHT_GRADIENT);
        return;
    }
    dtp_draft_matmul(x->l, draft, of->matrix->out, of->matrix->in, dtp_executor_matrix_rows(x->shape, of->matrix),
                     false);
    dtp_draft_role(draft, DTP_ROLE_WORKSPACE, apart ? x->gradient_workspace : x->workspace, DTP_UPDATE, 0);
}
