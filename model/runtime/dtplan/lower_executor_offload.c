/* State in host memory: gradients go down as soon as they are reduced, those of blocks out of two shards by turns, so
 * that the device holds no more of them; the host updates its shard of master and moments, and the new weights go up
 * again, all beside the backward that is still running; with clipping, after the norm is known. Under offload params
 * the weights rest on the host too and come up before each gather, shard by shard through two staging buffers, or into
 * the ring itself where one rank has all of them. */
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"

void dtp_executor_make_host(struct dtp_executor *x, uint64_t index)
{
    struct dtp_executor_module *module = &x->modules[index];
    uint64_t elements = module->layout->shard_elements;
    module->host_gradient = dtp_lower_host_buffer(x->l, "host gradients", DTP_OWNER_GRADS,
                                                  dtp_bytes_product(elements, module->shard_element_bytes));
    module->host_weights = x->rules.host_params ? module->state[DTP_EXECUTOR_WEIGHTS]
                                                : dtp_lower_host_buffer(x->l, "host weights", DTP_OWNER_PARAMS,
                                                                        dtp_bytes_product(elements, x->element_bytes));
    dtp_program_set_element(x->l->program, module->host_gradient,
                            dtp_executor_gradient_dtypes(x->t, &x->rules, index).shard);
    dtp_program_set_element(x->l->program, module->host_weights, x->rules.compute);
}

static uint64_t shard_weight_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return dtp_bytes_product(module->layout->shard_elements, x->element_bytes);
}

/* A copy of the module's on its way. */
static dtp_op_id copy(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_stream stream, uint64_t bytes)
{
    draft->op.stream = stream;
    draft->op.demand.sent_bytes = (double)bytes;
    return dtp_draft_end(x->l, draft);
}

dtp_op_id dtp_executor_upload(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id *to,
                              bool allocates, dtp_op_id after)
{
    struct dtp_draft draft;
    bool staged = x->rules.shard_ranks > 1;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_UPLOAD, NULL);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, module->host_weights, DTP_READ, 0);
    if (staged) {
        *to = x->staging[x->staging_next];
        dtp_draft_after(&draft, x->staging_read[x->staging_next]);
        x->staging_next = 1 - x->staging_next;
    } else {
        dtp_draft_after(&draft, after);
    }
    dtp_draft_role(&draft, DTP_ROLE_RESULT, *to, DTP_WRITE | (allocates && !staged ? DTP_ALLOC : 0), 0);
    return copy(x, &draft, DTP_STREAM_UPLOAD, shard_weight_bytes(x, module));
}

void dtp_executor_download(struct dtp_executor *x, struct dtp_executor_module *module)
{
    struct dtp_draft draft;
    dtp_op_id reduced =
        module->reduced_by.index == DTP_NO_INDEX ? x->l->last_op[DTP_STREAM_COMPUTE] : module->reduced_by;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_DOWNLOAD, NULL);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, dtp_executor_gradients_of(module), DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, module->host_gradient, DTP_WRITE, 0);
    dtp_draft_after(&draft, reduced);
    module->downloaded = copy(x, &draft, DTP_STREAM_DOWNLOAD,
                              dtp_bytes_product(module->layout->shard_elements, module->shard_element_bytes));
    if (dtp_executor_streams(x, module))
        dtp_executor_turns_of(x, module)->read[1] = module->downloaded;
    if (!x->rules.gradient_norm)
        dtp_executor_host_update(x, module, DTP_NO_OP);
}

/* On the host, then back to where the device reads its weights from. */
void dtp_executor_host_update(struct dtp_executor *x, struct dtp_executor_module *module, dtp_op_id scalars)
{
    struct dtp_draft draft;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_HOST_OPTIMIZER, NULL);
    draft.op.stream = DTP_STREAM_HOST;
    dtp_draft_role(&draft, DTP_ROLE_WEIGHT_GRADIENT, module->host_gradient, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_WEIGHT, module->host_weights, x->rules.master ? DTP_WRITE : DTP_UPDATE, 0);
    if (x->rules.master)
        dtp_draft_role(&draft, DTP_ROLE_MASTER, module->state[DTP_EXECUTOR_MASTER], DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_MOMENT1, module->state[DTP_EXECUTOR_MOMENT1], DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_MOMENT2, module->state[DTP_EXECUTOR_MOMENT2], DTP_UPDATE, 0);
    dtp_draft_role(&draft, DTP_ROLE_SCALARS, scalars.index == DTP_NO_INDEX ? x->host_scalars : x->host_results,
                   DTP_READ, 0);
    draft.op.demand.bytes = dtp_executor_optimizer_bytes(x, module);
    dtp_draft_after(&draft, module->downloaded);
    dtp_draft_after(&draft, scalars);
    dtp_op_id updated = dtp_draft_end(x->l, &draft);
    if (x->rules.host_params)
        return;
    dtp_executor_begin_at(x, module, &draft, DTP_OP_UPLOAD, NULL);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, module->host_weights, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, module->state[DTP_EXECUTOR_WEIGHTS], DTP_WRITE, 0)->shard =
        x->rules.gathers_once;
    dtp_draft_after(&draft, updated);
    copy(x, &draft, DTP_STREAM_UPLOAD, shard_weight_bytes(x, module));
}

/* What is left of the step: the updates that waited for the norm, and gradients that have been downloaded. */
void dtp_executor_host_step(struct dtp_executor *x, dtp_op_id scalars)
{
    for (uint64_t left = x->module_count; left > 0; left--) {
        struct dtp_executor_module *module = &x->modules[left - 1];
        if (!module->layout->elements)
            continue;
        if (x->rules.gradient_norm)
            dtp_executor_host_update(x, module, scalars);
        if (dtp_executor_streams(x, module))
            continue;
        dtp_executor_await(x, DTP_STREAM_DOWNLOAD, module->downloaded);
        dtp_executor_free(x, dtp_executor_gradients_of(module), "gradients");
    }
}
