/* What an operation of our executor says of shapes beside its operands, so that whoever binds it needs no model; and
 * the tensors of its modules. */
#include "runtime/dtplan/lower_executor_state.h"

#include "plan/rules.h"
#include "plan/slice.h"

static enum dtp_form norm_form(const struct dtp_transformer *t)
{
    if (t->norm == DTP_LAYER_NORM)
        return t->norm_unit_offset ? DTP_FORM_LAYER_NORM_PLUS_ONE : DTP_FORM_LAYER_NORM;
    return t->norm_unit_offset ? DTP_FORM_RMS_NORM_PLUS_ONE : DTP_FORM_RMS_NORM;
}

static enum dtp_form activation_form(const struct dtp_transformer *t)
{
    switch (t->activation) {
    case DTP_GELU:
    case DTP_GELU_NEW: return DTP_FORM_GELU;
    case DTP_RELU: return DTP_FORM_RELU;
    case DTP_GEGLU: return DTP_FORM_GEGLU;
    case DTP_SWIGLU_CLAMPED: return DTP_FORM_SWIGLU_CLAMPED;
    case DTP_RELU2: break; /* refused */
    case DTP_SWIGLU: break;
    }
    return DTP_FORM_SWIGLU;
}

static enum dtp_form router_form(const struct dtp_transformer *t)
{
    if (t->router == DTP_ROUTER_SIGMOID)
        return t->router_norm ? DTP_FORM_SIGMOID_NORMALISED : DTP_FORM_SIGMOID;
    return t->router_norm ? DTP_FORM_SOFTMAX_NORMALISED : DTP_FORM_SOFTMAX;
}

static void take_heads(const struct dtp_executor *x, struct dtp_demand *demand)
{
    demand->attention.heads = (uint32_t)x->t->heads;
    demand->attention.kv_heads = (uint32_t)x->t->kv_heads;
    demand->attention.head_dim = (uint32_t)x->t->head_dim;
    demand->attention.queries = x->rules.sequence;
    if (x->t->kv_latent && x->t->value_head_dim != x->t->head_dim)
        demand->attention.value_dim = (uint32_t)x->t->value_head_dim;
}

void dtp_executor_shape(const struct dtp_executor *x, struct dtp_draft *draft)
{
    struct dtp_demand *demand = &draft->op.demand;
    switch (draft->op.kind) {
    case DTP_OP_EMBEDDING:
    case DTP_OP_EMBEDDING_BACKWARD:
        demand->n = (double)x->h;
        demand->k = (double)x->l->model->vocab;
        demand->attention.queries = x->rules.sequence;
        break;
    case DTP_OP_NORM:
    case DTP_OP_NORM_BACKWARD:
        if (demand->n > 0) /* a latent's says so itself */
            break;
        demand->n = (double)x->h;
        demand->form = (uint8_t)norm_form(x->t);
        break;
    case DTP_OP_SINKS:
    case DTP_OP_SINKS_BACKWARD:
    case DTP_OP_ROTARY:
    case DTP_OP_ROTARY_BACKWARD:
    case DTP_OP_COPY_IN:
    case DTP_OP_COPY_OUT:
    case DTP_OP_MERGE: take_heads(x, demand); break;
    case DTP_OP_QK_NORM:
    case DTP_OP_QK_NORM_BACKWARD:
        take_heads(x, demand);
        demand->attention.wide = x->t->qk_norm_wide;
        demand->form = (uint8_t)(x->t->norm_unit_offset ? DTP_FORM_RMS_NORM_PLUS_ONE : DTP_FORM_RMS_NORM);
        break;
    case DTP_OP_ACTIVATION:
    case DTP_OP_ACTIVATION_BACKWARD:
        demand->n = demand->n > 0 ? demand->n : (double)x->t->ffn; /* experts' say so themselves */
        demand->form = (uint8_t)activation_form(x->t);
        if (demand->groups && x->t->router_on_input) /* of experts' rows */
            demand->form = DTP_FORM_SWIGLU_WEIGHED;
        break;
    case DTP_OP_ROUTER:
    case DTP_OP_ROUTER_BACKWARD:
        demand->form = (uint8_t)router_form(x->t);
        demand->scale = x->t->router_scale;
        break;
    case DTP_OP_LOSS_PARTS:
    case DTP_OP_LOSS_BACKWARD:
        if (!x->t->layers) /* no attention of the stage says it */
            demand->attention.queries = x->rules.sequence;
        demand->m = (double)x->rules.tokens * x->plan->accumulate * x->l->data_ranks;
        demand->n = (double)x->rules.vocab_stride;
        demand->k = (double)x->l->model->vocab;
        demand->attention.softcap = x->t->final_softcap;
        break;
    default: break;
    }
}

static void add_tensors(struct dtp_executor *x, const struct dtp_parameter_module *module, uint64_t first,
                        uint64_t modules)
{
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++)
        if (module->tensor[i].exists)
            dtp_program_add_tensor(x->l->program, &(struct dtp_program_tensor){.first_module = (uint32_t)first,
                                                                               .modules = (uint32_t)modules,
                                                                               .parameter = (enum dtp_parameter)i,
                                                                               .at = module->tensor[i]});
}

/* Neighbours of one kind together: blocks, or their experts, where ranks divide them. */
static void add_blocks(struct dtp_executor *x, const struct dtp_lower_chunk *chunk, bool experts)
{
    uint64_t first = chunk->first, end = chunk->first + chunk->layers;
    for (uint64_t layer = first; layer < end; layer++) {
        const enum dtp_layer_mlp mlp = dtp_executor_mlp_of(x, first);
        if (layer + 1 < end && dtp_executor_mlp_of(x, layer + 1) == mlp)
            continue;
        const uint64_t of_model = chunk->first_of_model + first - chunk->first;
        if (!experts)
            add_tensors(x, &x->block[mlp], of_model + 1, layer + 1 - first);
        else if (mlp == DTP_LAYER_EXPERTS)
            add_tensors(x, &x->experts, x->model_layers + 2 + of_model, layer + 1 - first);
        first = layer + 1;
    }
}

/* What each block has besides, behind modules that end before `begin`. */
static void add_beside(struct dtp_executor *x, const struct dtp_parameter_module *module, uint64_t begin)
{
    for (uint32_t i = 0; i < x->l->role.chunk_count; i++) {
        const struct dtp_lower_chunk *chunk = &x->l->role.chunks[i];
        if (chunk->layers)
            add_tensors(x, module, begin + chunk->first_of_model, chunk->layers);
    }
}

/* Ranks so far apart in the job as ranks of a role: stages may stand between them. */
static uint32_t of_role(const struct dtp_executor *x, uint32_t stride)
{
    struct dtp_stretch stages = dtp_plan_group(x->plan, x->l->cluster, DTP_AXES(PP));
    return stages.size > 1 && stages.stride < stride ? stride / stages.size : stride;
}

void dtp_executor_describe(struct dtp_executor *x)
{
    const uint64_t packed = 2 * x->model_layers + 2; /* behind adapters */
    struct dtp_execution execution = dtp_plan_execution(x->plan);
    execution.shards = (uint32_t)x->rules.shard_ranks;
    if (dtp_executor_is_cut(x)) {
        execution.tensor_ranks = x->l->tp;
        execution.tensor_stride = of_role(x, x->l->tp_stride);
        execution.shard_stride = of_role(x, x->l->data_stride);
    }
    if (dtp_executor_shares_sequence(x)) {
        execution.context_ranks = x->plan->cp;
        execution.context_pieces = dtp_context_exchanged(x->plan, x->l->cluster) > 1 ? 1 : 2;
    }
    if (dtp_executor_divides_experts(x)) {
        execution.expert_ranks = x->plan->ep;
        execution.expert_modules = (uint32_t)x->model_layers + 2;
    }
    if (x->adapter_count)
        execution.adapter_modules = (uint32_t)x->model_layers + 2;
    dtp_program_set_execution(x->l->program, &execution);
    add_tensors(x, &x->embedding, 0, 1);
    for (uint32_t i = 0; i < x->l->role.chunk_count; i++)
        add_blocks(x, &x->l->role.chunks[i], false);
    add_tensors(x, &x->head, x->model_layers + 1, 1);
    if (x->adapter_count)
        add_beside(x, &x->adapters, x->model_layers + 2);
    for (uint32_t i = 0; i < x->l->role.chunk_count && x->expert_count; i++)
        add_blocks(x, &x->l->role.chunks[i], true);
    if (x->packed_count)
        add_beside(x, &x->packed, packed);
}
