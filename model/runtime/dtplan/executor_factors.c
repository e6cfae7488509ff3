#include "runtime/dtplan/executor_factors.h"

#include "plan/comm_hook.h"

static uint64_t aligned(uint64_t elements)
{
    return (elements + DTP_PARAMETER_ALIGNMENT - 1) / DTP_PARAMETER_ALIGNMENT * DTP_PARAMETER_ALIGNMENT;
}

static void add_factor(uint64_t begin, uint64_t rows, uint64_t columns, uint64_t rank, struct dtp_executor_factors *out)
{
    out->factor[out->count++] = (struct dtp_executor_factor){.begin = begin,
                                                             .rows = rows,
                                                             .columns = columns,
                                                             .rank = rank,
                                                             .lost = out->lost_elements,
                                                             .p = out->p_elements,
                                                             .q = out->q_elements};
    out->lost_elements += aligned(rows * columns);
    out->p_elements += aligned(rows * rank);
    out->q_elements += aligned(rank * columns);
}

/* Neighbours are one run. */
static void add_run(uint64_t begin, uint64_t elements, bool follows, struct dtp_executor_factors *out)
{
    if (follows)
        out->run[out->run_count - 1].elements = begin + elements - out->run[out->run_count - 1].begin;
    else
        out->run[out->run_count++] = (struct dtp_executor_run){.begin = begin, .elements = elements};
}

/* Rows of the head beyond the vocabulary have a gradient of zero on every rank, and stay out of its factors. */
static void factor_tensors(const struct dtp_parameter_module *layout, uint64_t rank, struct dtp_executor_factors *out)
{
    bool follows = false;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *tensor = &layout->tensor[i];
        if (!tensor->exists)
            continue;
        uint64_t r = dtp_factored_rank(tensor->rows, tensor->columns, rank);
        if (r)
            add_factor(tensor->offset_elements, tensor->rows, tensor->columns, r, out);
        else
            add_run(tensor->offset_elements, tensor->extent_elements, follows, out);
        follows = !r;
    }
}

static void factor_shard(const struct dtp_parameter_module *layout, uint64_t rank, struct dtp_executor_factors *out)
{
    const uint64_t shards = layout->elements / layout->shard_elements;
    uint64_t matrices = 0, columns = 0, place = 0;
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *tensor = &layout->tensor[i];
        if (!tensor->exists || !dtp_factored_rank(tensor->rows, tensor->columns, rank))
            continue;
        columns = columns ? columns : tensor->columns;
        matrices++;
    }
    if (!matrices)
        return;
    const uint64_t parts = (matrices + shards - 1) / shards, all = layout->shard_elements / columns;
    for (uint64_t i = 0; i < parts; i++) {
        const uint64_t rows = all * (i + 1) / parts - all * i / parts, r = dtp_factored_rank(rows, columns, rank);
        if (!r) /* all are of a height, but for a row: the rest is sent as it is */
            break;
        add_factor(place, rows, columns, r, out);
        place += rows * columns;
    }
    if (out->count && place < layout->shard_elements)
        add_run(place, layout->shard_elements - place, false, out);
}

void dtp_executor_factors_of(const struct dtp_parameter_module *layout, uint64_t rank, struct dtp_executor_factors *out)
{
    *out = (struct dtp_executor_factors){.count = 0};
    if (!layout->elements)
        return;
    (layout->shard_elements < layout->elements ? factor_shard : factor_tensors)(layout, rank, out);
    for (uint32_t i = 0; i < out->run_count && out->count; i++) {
        out->run[i].p = out->p_elements;
        out->p_elements += aligned(out->run[i].elements);
    }
}
