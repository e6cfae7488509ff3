#include "runtime/dtplan/executor_factors.h"

#include "plan/comm_hook.h"

static uint64_t aligned(uint64_t elements)
{
    return (elements + DTP_PARAMETER_ALIGNMENT - 1) / DTP_PARAMETER_ALIGNMENT * DTP_PARAMETER_ALIGNMENT;
}

/* Rows of the head beyond the vocabulary have a gradient of zero on every rank, and stay out of its factors. */
static void add_factor(const struct dtp_parameter_tensor *tensor, enum dtp_parameter which, uint64_t rank,
                       struct dtp_executor_factors *out)
{
    out->factor[out->count++] = (struct dtp_executor_factor){.which = which,
                                                             .rows = tensor->rows,
                                                             .columns = tensor->columns,
                                                             .rank = rank,
                                                             .lost = out->lost_elements,
                                                             .p = out->p_elements,
                                                             .q = out->q_elements};
    out->lost_elements += aligned(tensor->rows * tensor->columns);
    out->p_elements += aligned(tensor->rows * rank);
    out->q_elements += aligned(rank * tensor->columns);
}

void dtp_executor_factors_of(const struct dtp_parameter_module *layout, uint64_t rank, struct dtp_executor_factors *out)
{
    bool follows = false;
    *out = (struct dtp_executor_factors){.count = 0};
    for (int i = 0; i < DTP_PARAMETER_COUNT; i++) {
        const struct dtp_parameter_tensor *tensor = &layout->tensor[i];
        if (!tensor->exists)
            continue;
        uint64_t r = dtp_factored_rank(tensor->rows, tensor->columns, rank);
        uint64_t end = tensor->offset_elements + tensor->extent_elements;
        if (r)
            add_factor(tensor, (enum dtp_parameter)i, r, out);
        else if (follows)
            out->run[out->run_count - 1].elements = end - out->run[out->run_count - 1].begin;
        else
            out->run[out->run_count++] =
                (struct dtp_executor_run){.begin = tensor->offset_elements, .elements = tensor->extent_elements};
        follows = !r;
    }
    for (uint32_t i = 0; i < out->run_count && out->count; i++) {
        out->run[i].p = out->p_elements;
        out->p_elements += aligned(out->run[i].elements);
    }
}
