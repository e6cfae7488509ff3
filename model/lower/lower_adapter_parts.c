/* Adapters as parts of a module beside frozen matrices, and these where they are kept packed (plan/adapters.h). */
#include "lower/block_backward.h"
#include "lower/block_forward.h"

#include "base/bytes.h"

/* ---- parts of a module ------------------------------------------------------------------------------------------- */

/* A [rank, in] and B [out, rank], each cut by rows. */
void dtp_lower_list_adapters(struct dtp_lowering *l)
{
    struct dtp_lower_module *block = &l->block;
    uint64_t ranks = l->plan->shard_group;
    for (int i = 0; i < l->matrices; i++) {
        const struct dtp_layer_matrix *matrix = &l->matrix[i];
        block->adapter[i] = 0;
        if (!matrix->rank)
            continue;
        int part = block->adapter[i] = block->parts++;
        uint64_t elements = dtp_adapter_elements(matrix);
        bool flat = dtp_plan_shard_cut(l->plan) == DTP_CUT_ELEMENTS;
        block->elements[part] = elements;
        block->largest[part] = (matrix->folded ? matrix->groups : 1) * matrix->rank *
                               (matrix->in > matrix->out ? matrix->in : matrix->out);
        block->shard[part] =
            matrix->groups *
            (flat ? dtp_divide_up(matrix->rank * matrix->in, ranks) + dtp_divide_up(matrix->rank * matrix->out, ranks)
                  : dtp_divide_up(matrix->rank, ranks) * matrix->in + dtp_divide_up(matrix->out, ranks) * matrix->rank);
        block->shard[part] += dtp_divide_up(matrix->magnitudes, ranks);
        block->tensors[part] = 2 * (matrix->folded ? 1 : (uint32_t)matrix->groups) + (matrix->magnitudes ? 1 : 0);
        block->all_elements += elements;
        block->all_shard += block->shard[part];
        block->weight_name[part] = "adapter";
        block->gradient_name[part] = "adapter gradients";
    }
}

static bool is_trained(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part)
{
    if (!l->adapts)
        return true;
    if (module == &l->root)
        return l->plan->adapters.train_ends && part != DTP_ROOT_VECTORS;
    return part > l->matrices;
}

static bool is_packed(const struct dtp_lowering *l, const struct dtp_lower_module *module, int part)
{
    return l->adapts && l->plan->adapters.base != DTP_BASE_NONE && module != &l->root && part < l->matrices;
}

void dtp_lower_count_bytes(const struct dtp_lowering *l, struct dtp_lower_module *module)
{
    module->all_bytes = module->scale_bytes = module->trained_elements = module->trained_shard = 0;
    for (int part = 0; part < module->parts; part++) {
        uint64_t elements = module->elements[part], shard = module->shard[part];
        bool adapter = module != &l->root && part > l->matrices;
        bool own = adapter && !l->plan->runtime->adapters_as_weights;
        uint64_t rest = own ? l->bytes.grads : l->bytes.params; /* an adapter's gradients are as it is */
        bool root = module == &l->root, vectors = part == (root ? DTP_ROOT_VECTORS : l->matrices);
        if (dtp_plan_widens_norms(l->plan) && (vectors || (root && dtp_plan_widens_ends(l->plan))))
            rest = 4;
        uint64_t wire = adapter ? l->bytes.grads : module->matrix[part] ? l->bytes.gathered : l->bytes.compute;
        module->bytes[part] = rest * elements;
        module->shard_bytes[part] = rest * shard;
        module->wire_bytes[part] = wire * shard;
        if (is_packed(l, module, part)) {
            const struct dtp_layer_matrix *matrix = &l->matrix[part];
            enum dtp_base base = l->plan->adapters.base;
            module->bytes[part] = matrix->groups * dtp_base_bytes(base, matrix->out, matrix->in, rest);
            uint64_t rows = dtp_divide_up(shard / matrix->groups, matrix->in); /* of each expert's */
            module->shard_bytes[part] = matrix->groups * dtp_plan_base_shard_bytes(l->plan, rows, matrix->in, rest);
            module->scale_bytes += matrix->groups * dtp_plan_scale_bytes(l->plan, matrix->out, matrix->in);
            module->wire_bytes[part] = module->shard_bytes[part];
        }
        module->all_bytes += module->bytes[part];
        module->trained[part] = is_trained(l, module, part) && elements;
        module->trained_elements += module->trained[part] ? elements : 0;
        module->trained_shard += module->trained[part] ? shard : 0;
    }
    if (module == &l->root && l->adapts && dtp_plan_layers(l->plan)->copies_trained)
        module->all_bytes += l->bytes.params * module->trained_elements;
    if (!l->adapts) /* flat parameters pad their end only */
        module->trained_shard = module->all_shard;
}

/* ---- packed weights ---------------------------------------------------------------------------------------------- */

bool dtp_lower_packs(const struct dtp_lowering *l, int part)
{
    return l->layer != DTP_NO_LAYER && is_packed(l, &l->block, part);
}

/* One matrix; of experts one after the other. */
dtp_buffer_id dtp_lower_unpack(struct dtp_lowering *l, int index)
{
    const struct dtp_layer_matrix *matrix = &l->matrix[index];
    const struct dtp_module_state *state = dtp_lower_state(l);
    dtp_buffer_id *unpacked = &dtp_lower_flight_module(l)->unpacked[index];
    struct dtp_unpacking work = dtp_base_unpacking(l->plan, matrix->out, matrix->in);
    if (unpacked->index != DTP_NO_INDEX)
        return *unpacked;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_CAST, matrix->weight_name);
    bool gathered = state->weight[index].index != DTP_NO_INDEX;
    dtp_draft_use(&draft, gathered ? state->weight[index] : state->params, DTP_READ);
    dtp_draft_new(l, &draft, "unpacking", DTP_OWNER_WORKSPACE, work.workspace_bytes, DTP_UPDATE | DTP_FREE);
    *unpacked = dtp_draft_new(l, &draft, "unpacked weight", DTP_OWNER_WEIGHTS, l->compute * matrix->out * matrix->in,
                              DTP_WRITE);
    dtp_draft_memory(l, &draft, (double)matrix->groups * work.bytes, (uint32_t)matrix->groups * work.kernels);
    if (work.compares)
        draft.op.demand.memory_kernel = DTP_KERNEL_UNPACKING;
    dtp_draft_end(l, &draft);
    return *unpacked;
}

uint32_t dtp_lower_unpacked_access(struct dtp_lowering *l, int matrix, bool stays)
{
    if (stays)
        return DTP_READ;
    dtp_lower_flight_module(l)->unpacked[matrix] = DTP_NO_BUFFER;
    return DTP_READ | DTP_FREE;
}
