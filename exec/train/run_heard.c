#include "train/run_heard.h"

#include <inttypes.h>
#include <stdlib.h>

static uint64_t layer_of(const struct dtp_heard *heard, const struct dtp_op *op)
{
    return op->layer == DTP_NO_LAYER ? UINT64_MAX : heard->model_layer[op->layer];
}

/* Weights say which of the model's layers the layers of a stage are. */
enum dtp_status dtp_heard_make(const struct dtp_binding *binding, struct dtp_heard *out, struct dtp_faults *faults)
{
    const struct dtp_program *program = binding->job.program;
    const struct dtp_buffer *buffers = dtp_program_buffers(program);
    const uint32_t experts = dtp_program_execution(program)->expert_modules;
    struct dtp_expert_rows *got = &out->got;
    for (size_t i = 0; i < binding->op_count; i++)
        if (binding->ops[i].kind == DTP_BOUND_HEARD)
            got->experts = binding->ops[i].arguments.heard.rows.experts;
    got->layers = experts > 2 ? experts - 2 : 0; /* modules before these are blocks and the model's ends */
    got->rows = calloc((size_t)got->layers * got->experts + 1, sizeof *got->rows);
    out->model_layer = calloc(got->layers ? DTP_NO_LAYER : 1, sizeof *out->model_layer);
    if (!got->rows || !out->model_layer)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (size_t i = 0; i < dtp_program_buffer_count(program); i++)
        if (buffers[i].content == DTP_CONTENT_WEIGHTS && buffers[i].layer != DTP_NO_LAYER && buffers[i].module &&
            buffers[i].module + 1 < experts)
            out->model_layer[buffers[i].layer] = buffers[i].module - 1;
    return DTP_OK;
}

void dtp_heard_release(struct dtp_heard *heard)
{
    free(heard->got.rows);
    free(heard->model_layer);
}

/* A pass that recomputation runs again was counted when it ran first. */
int dtp_heard_count(struct dtp_heard *heard, const struct dtp_binding *binding, size_t i)
{
    const struct dtp_op *op = &dtp_program_ops(binding->job.program)[i];
    const struct dtp_heard_args *said = &binding->ops[i].arguments.heard;
    const struct dtp_exchange *rows = &said->rows;
    if (!dtp_exchange_holds(rows, said->made))
        return DTP_HEARD_NO_ROOM;
    for (uint32_t rank = 0; rank < rows->ranks; rank++)
        if (dtp_exchange_received(rows, rank) > said->room)
            return DTP_HEARD_NO_ROOM;
    const uint64_t layer = layer_of(heard, op);
    for (uint32_t e = 0; e < rows->experts && !op->demand->recompute && layer < heard->got.layers; e++)
        for (uint32_t rank = 0; rank < rows->ranks; rank++) {
            const int32_t *begins = rows->begins + (uint64_t)rank * (rows->experts + 1);
            heard->got.rows[layer * rows->experts + e] += (uint64_t)(begins[e + 1] - begins[e]);
        }
    return 0;
}

/* One rank has less room than its experts get rows: each has heard it, and ends here. */
enum dtp_status dtp_heard_no_room(const struct dtp_heard *heard, const struct dtp_binding *binding, size_t i,
                                  struct dtp_faults *faults)
{
    const struct dtp_heard_args *said = &binding->ops[i].arguments.heard;
    const uint64_t layer = layer_of(heard, &dtp_program_ops(binding->job.program)[i]);
    uint64_t most = 0;
    uint32_t fullest = 0;
    if (!dtp_exchange_holds(&said->rows, said->made))
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                         "layer %" PRIu64 ": what the ranks say of their rows of tokens by experts cannot be", layer);
    for (uint32_t rank = 0; rank < said->rows.ranks; rank++)
        if (dtp_exchange_received(&said->rows, rank) > most)
            most = dtp_exchange_received(&said->rows, rank), fullest = rank;
    return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0,
                     "layer %" PRIu64 ": the experts of rank %u of %u get %" PRIu64
                     " rows of tokens, %.2f times the mean, and its "
                     "arena has room for %" PRIu64 "; raise expert_room, or leave it out: then any number has room",
                     layer, fullest, said->rows.ranks, most, (double)most / (double)said->made, said->room);
}
