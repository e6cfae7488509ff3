/* Which operators the rank's blocks have, and where parameters of its modules lie: kind by kind of the model's layers.
 */
#include "runtime/dtplan/lower_executor_state.h"

/* Of a stage: the ends of the model that it has not are modules without parameters. Where head and embedding are one
 * matrix, a stage with the head has that module too. */
static void take_ends(struct dtp_executor *x)
{
    const struct dtp_lower_role *role = &x->l->role;
    bool embedding = false, head = false;
    for (uint32_t i = 0; i < role->chunk_count; i++) {
        embedding |= role->chunks[i].embedding || (role->chunks[i].head && x->t->tied_head);
        head |= role->chunks[i].head;
    }
    if (!embedding)
        x->embedding = (struct dtp_parameter_module){.elements = 0};
    if (!head)
        x->head = (struct dtp_parameter_module){.elements = 0};
}

static uint64_t layers_of_model(const struct dtp_lowering *l)
{
    const struct dtp_lower_pipeline *pipeline = l->role.pipeline;
    uint64_t layers = l->transformer->layers;
    for (uint32_t i = 0; pipeline && i < pipeline->schedule->shape.ranks * pipeline->schedule->shape.chunks; i++)
        if (pipeline->chunks[i].first_of_model + pipeline->chunks[i].layers > layers)
            layers = pipeline->chunks[i].first_of_model + pipeline->chunks[i].layers;
    return layers;
}

void dtp_executor_derive_blocks(struct dtp_executor *x)
{
    const struct dtp_transformer *model = x->l->model; /* kinds that other stages have are asked for their shapes */
    for (uint64_t layer = 0; layer < model->layers; layer++) {
        const bool experts = model->experts && dtp_transformer_layer_has_experts(model, layer);
        enum dtp_layer_mlp mlp = experts ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE;
        if (!x->shapes[mlp].count)
            dtp_executor_block_of(x->t, x->plan, mlp, false, &x->shapes[mlp]);
    }
    dtp_executor_block_of(x->t, x->plan, dtp_executor_mlp_of(x, 0), true, &x->first_shape);
    x->shape = &x->shapes[dtp_layer_mlp_of(model)];
}

/* A module a layer, without parameters where the layer has no experts. */
static void split_experts(struct dtp_executor *x)
{
    const struct dtp_transformer alike = dtp_transformer_all_alike(x->l->model, true);
    x->expert_count = x->t->layers;
    if (!x->block[DTP_LAYER_EXPERTS].elements) /* a stage without such layers */
        return;
    dtp_parameter_split_experts(x->l->model, x->t, x->rules.shard_ranks, dtp_executor_expert_shards(x->plan, &x->rules),
                                &x->block[DTP_LAYER_EXPERTS], &x->experts);
    dtp_parameter_cut_module(&alike, x->l->tp, 1, &x->block[DTP_LAYER_EXPERTS]);
}

void dtp_executor_derive_layouts(struct dtp_executor *x)
{
    const struct dtp_lowering *l = x->l;
    const uint64_t shards = x->rules.shard_ranks;
    x->model_layers = layers_of_model(l);
    struct dtp_transformer model = *x->t; /* by whose depth weights are initialised */
    model.layers = x->model_layers;
    dtp_parameter_module(&model, shards, 0, &x->embedding);
    dtp_parameter_module(&model, shards, model.layers + 1, &x->head);
    dtp_parameter_cut_module(l->model, l->tp, 0, &x->embedding);
    dtp_parameter_cut_module(l->model, l->tp, l->model->layers + 1, &x->head);
    for (uint64_t layer = 0; layer < x->t->layers; layer++) {
        struct dtp_parameter_module *block = &x->block[dtp_executor_mlp_of(x, layer)];
        if (block->elements)
            continue;
        const uint64_t module = dtp_executor_model_module(x, layer + 1);
        dtp_parameter_module(&model, shards, module, block);
        dtp_parameter_cut_module(l->model, l->tp, module, block);
    }
    dtp_executor_adapter_module(x->t, x->plan, shards, &x->adapters);
    if (dtp_executor_is_cut(x))
        dtp_executor_cut_adapters(l->model, x->t, x->plan, &x->adapters);
    if (x->shape->packed && x->t->layers)
        dtp_parameter_split_packed(&x->block[DTP_LAYER_DENSE], shards, &x->block[DTP_LAYER_DENSE], &x->packed);
    if (dtp_executor_divides_experts(x))
        split_experts(x);
    take_ends(x);
}
