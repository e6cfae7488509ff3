/* After the last micro-step: the gradient norm, clipping and AdamW, module by module in the order in which their
 * reductions end. AdamW of blocks stands behind each reduction instead where the plan wants it there: backward is done
 * with the block's weights when its gradients are reduced, and with the last micro-step nothing else reads them. On one
 * rank it stands behind the block's backward. */
#include "runtime/dtplan/lower_executor_state.h"

dtp_buffer_id dtp_executor_gradients_of(const struct dtp_executor_module *module)
{
    return module->reduced.index == DTP_NO_INDEX ? module->gradient : module->reduced;
}

static uint64_t module_end(const struct dtp_executor *x)
{
    return x->module_count + x->adapter_count + x->expert_count;
}

static bool is_updated(const struct dtp_executor *x, uint64_t index)
{
    return x->modules[index].layout->elements && dtp_executor_is_trained(x, &x->modules[index]);
}

static void begin(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind, uint64_t index)
{
    x->l->layer = dtp_executor_layer_of(x, index);
    dtp_executor_begin(x, draft, kind, dtp_executor_module_name(x, index));
}

static enum dtp_stream last_reducing(const struct dtp_executor_module *module)
{
    return module->shard_ranks > 1 && module->replicas > 1 ? DTP_STREAM_REPLICATE : DTP_STREAM_REDUCE;
}

static void await_reduced(struct dtp_executor *x, struct dtp_executor_module *module)
{
    if (module->reduced_by.index == DTP_NO_INDEX)
        return;
    dtp_executor_await(x, last_reducing(module), module->reduced_by);
    module->reduced_by = DTP_NO_OP;
}

/* In line with the module's last reduction, which is the last operation of its stream. */
static void begin_behind(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind,
                         const struct dtp_executor_module *module)
{
    dtp_executor_begin_at(x, module, draft, kind, NULL);
    draft->op.stream = last_reducing(module);
}

/* Where its partial sums stand among those of all modules of the model. */
static uint64_t partials_place(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    const uint64_t modules = x->model_layers + 2,
                   of_model = dtp_executor_model_module(x, (uint64_t)(module - x->modules));
    if (x->shape->adapted)
        return of_model - modules;
    return of_model < modules ? of_model
                              : modules + dtp_transformer_expert_layers(x->l->transformer, of_model - modules);
}

static void square_sum_draft(struct dtp_executor *x, struct dtp_draft *draft, struct dtp_executor_module *module)
{
    uint64_t partial_bytes = 4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS, index = partials_place(x, module);
    dtp_draft_role(draft, DTP_ROLE_INPUT, dtp_executor_gradients_of(module), DTP_READ, 0);
    dtp_draft_role(draft, DTP_ROLE_PARTIALS, x->partials, DTP_WRITE, index * partial_bytes);
    dtp_executor_memory(draft, 0,
                        (double)(module->layout->shard_elements * module->shard_element_bytes + partial_bytes), 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
}

static void square_sum(struct dtp_executor *x, uint64_t index)
{
    struct dtp_draft draft;
    begin(x, &draft, DTP_OP_SQUARE_SUM, index);
    await_reduced(x, &x->modules[index]);
    square_sum_draft(x, &draft, &x->modules[index]);
    dtp_executor_end(x, &draft);
}

dtp_op_id dtp_executor_square_sum_behind(struct dtp_executor *x, struct dtp_executor_module *module)
{
    struct dtp_draft draft;
    begin_behind(x, &draft, DTP_OP_SQUARE_SUM, module);
    square_sum_draft(x, &draft, module);
    return dtp_draft_end(x->l, &draft);
}

static void sum_bytes(struct dtp_executor *x, uint64_t begin, uint64_t bytes, uint32_t group, uint64_t ranks)
{
    struct dtp_draft draft;
    dtp_draft_begin(x->l, &draft, DTP_OP_ALL_REDUCE, "square sums");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = group;
    draft.op.demand.sent_bytes = 2 * (double)dtp_lower_ring(bytes, ranks);
    draft.op.demand.kernels = 1;
    const uint64_t said = begin + bytes < dtp_executor_partials_bytes(x) ? bytes : 0; /* 0: up to the end */
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->partials, DTP_READ, begin)->bytes = said;
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->partials, DTP_WRITE, begin)->bytes = said;
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_REDUCE]);
    dtp_draft_after(&draft, x->l->last_op[DTP_STREAM_REPLICATE]);
    dtp_executor_await(x, DTP_STREAM_REDUCE, dtp_draft_end(x->l, &draft));
}

/* Ranks that hold different shards add up their partial sums, and so do those that hold different slices, of which the
 * first counted what all of them have. Where nothing is sharded, those of experts are added up by the ranks that divide
 * these: where state is, shard groups of all slices together have each part of the experts once. */
static void reduce_partials(struct dtp_executor *x)
{
    const uint64_t all = dtp_executor_partials_bytes(x);
    const bool apart = dtp_executor_divides_experts(x) && x->rules.shard_ranks == 1;
    const uint64_t experts = apart ? 4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS * (x->model_layers + 2) : all;
    if (x->rules.shard_ranks > 1)
        sum_bytes(x, 0, all, x->shard_group, x->rules.shard_ranks);
    if (dtp_executor_is_cut(x))
        sum_bytes(x, 0, experts, x->tensor_group, x->rules.tensor_ranks);
    if (x->expert_count && apart)
        sum_bytes(x, experts, all - experts, x->expert_group, x->plan->ep);
}

/* Of modules that other stages hold there is nothing to add here. */
static void clear_partials(struct dtp_executor *x)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_ZERO, "square sums");
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->partials, DTP_WRITE, 0);
    dtp_executor_memory(&draft, 0, (double)dtp_executor_partials_bytes(x), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_executor_end(x, &draft);
}

/* What the next compute operation awaits is awaited here, so that transfers behind it do too. */
static void settle(struct dtp_executor *x)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_MARK, "square sums");
    dtp_executor_end(x, &draft);
}

static void gradient_norm(struct dtp_executor *x)
{
    struct dtp_draft draft;
    if (x->l->role.pipeline)
        clear_partials(x);
    for (uint64_t left = module_end(x); left > 0 && !x->rules.streams_gradients; left--)
        if (is_updated(x, left - 1) && dtp_executor_owns(x, left - 1))
            square_sum(x, left - 1);
    x->l->layer = DTP_NO_LAYER;
    reduce_partials(x);
    if (x->l->role.pipeline) {
        settle(x);
        dtp_lower_sum_over_stages(x->l, "square sums", x->partials, dtp_executor_partials_bytes(x));
    }
    dtp_executor_begin(x, &draft, DTP_OP_CLIP_SCALE, "gradient norm");
    dtp_draft_role(&draft, DTP_ROLE_PARTIALS, x->partials, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_SCALARS, x->scalars, DTP_UPDATE, 0);
    dtp_executor_memory(&draft, 0, (double)dtp_executor_partials_bytes(x), 1);
    dtp_executor_end(x, &draft);
}

static void update_draft(struct dtp_executor *x, struct dtp_draft *draft, struct dtp_executor_module *module)
{
    uint32_t frees = dtp_executor_streams(x, module) ? 0 : DTP_FREE;
    dtp_draft_role(draft, DTP_ROLE_WEIGHT_GRADIENT, dtp_executor_gradients_of(module), DTP_READ | frees, 0);
    struct dtp_operand *weight = dtp_draft_role(draft, DTP_ROLE_WEIGHT, module->state[DTP_EXECUTOR_WEIGHTS],
                                                x->rules.master ? DTP_WRITE : DTP_UPDATE, 0);
    weight->shard = x->rules.gathers_once && module->shard_ranks > 1;
    if (x->rules.master)
        dtp_draft_role(draft, DTP_ROLE_MASTER, module->state[DTP_EXECUTOR_MASTER], DTP_UPDATE, 0);
    if (x->rules.moment_count)
        dtp_draft_role(draft, DTP_ROLE_MOMENT1, module->state[DTP_EXECUTOR_MOMENT1], DTP_UPDATE, 0);
    if (x->rules.moment_count > 1)
        dtp_draft_role(draft, DTP_ROLE_MOMENT2, module->state[DTP_EXECUTOR_MOMENT2], DTP_UPDATE, 0);
    if (x->rules.moment_count && x->rules.moments == DTP_INT8) {
        dtp_draft_role(draft, DTP_ROLE_SCALE, module->state[DTP_EXECUTOR_SCALES1], DTP_UPDATE, 0);
        dtp_draft_role(draft, DTP_ROLE_OTHER_SCALE, module->state[DTP_EXECUTOR_SCALES2], DTP_UPDATE, 0);
    }
    dtp_draft_role(draft, DTP_ROLE_SCALARS, x->scalars, DTP_READ, 0);
    dtp_executor_memory(draft, 0, dtp_executor_optimizer_bytes(x, module), 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
}

static void update(struct dtp_executor *x, uint64_t index)
{
    struct dtp_draft draft;
    await_reduced(x, &x->modules[index]);
    if (x->rules.orthogonal && dtp_executor_is_block(x, &x->modules[index])) {
        x->l->layer = dtp_executor_layer_of(x, index);
        dtp_executor_muon(x, &x->modules[index]);
        return;
    }
    begin(x, &draft, DTP_OP_OPTIMIZER, index);
    update_draft(x, &draft, &x->modules[index]);
    dtp_executor_end(x, &draft);
}

dtp_op_id dtp_executor_update_behind(struct dtp_executor *x, struct dtp_executor_module *module)
{
    struct dtp_draft draft;
    begin_behind(x, &draft, DTP_OP_OPTIMIZER, module);
    update_draft(x, &draft, module);
    return dtp_draft_end(x->l, &draft);
}

void dtp_executor_update_alone(struct dtp_executor *x, struct dtp_executor_module *module)
{
    uint16_t layer = x->l->layer;
    dtp_executor_await_gradient(x, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    update(x, (uint64_t)(module - x->modules));
    module->gradient = DTP_NO_BUFFER;
    x->l->layer = layer;
}

static bool is_updated_already(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return dtp_executor_streams(x, module) || dtp_executor_updates_alone(x, module);
}

void dtp_executor_update(struct dtp_executor *x)
{
    if (x->rules.gradient_norm)
        gradient_norm(x);
    for (uint64_t left = module_end(x); left > 0 && !x->rules.host_optimizer; left--)
        if (is_updated(x, left - 1) && !is_updated_already(x, &x->modules[left - 1]))
            update(x, left - 1);
    x->l->layer = DTP_NO_LAYER;
}
