#include "runtime/dtplan/executor_adapters.h"

/* Of a linear the packed matrix that it is a part of, by its place in DTP_PARAMETER_ADAPTERS. */
static int packed_place(enum dtp_layer_matrix_id id)
{
    switch (id) {
    case DTP_MATRIX_Q:
    case DTP_MATRIX_K:
    case DTP_MATRIX_V: return 0;
    case DTP_MATRIX_OUTPUT: return 1;
    case DTP_MATRIX_GATE:
    case DTP_MATRIX_UP: return 2;
    case DTP_MATRIX_DOWN: return 3;
    default: return -1; /* of models that are refused */
    }
}

void dtp_executor_adapters_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                              struct dtp_executor_adapter out[DTP_PARAMETER_ADAPTERS])
{
    static const enum dtp_layer_matrix_id packed[DTP_PARAMETER_ADAPTERS] = {DTP_MATRIX_QKV, DTP_MATRIX_OUTPUT,
                                                                            DTP_MATRIX_UP, DTP_MATRIX_DOWN};
    uint64_t column[DTP_PARAMETER_ADAPTERS] = {0};
    struct dtp_layer_kind kind;
    for (int i = 0; i < DTP_PARAMETER_ADAPTERS; i++)
        out[i] = (struct dtp_executor_adapter){.matrix = packed[i],
                                               .a = (enum dtp_parameter)(DTP_PARAMETER_QKV_ADAPTER_A + 2 * i)};
    if (!dtp_plan_adapts(plan))
        return;
    dtp_layer_kind_of(transformer, DTP_LAYER_DENSE, false, false, &kind);
    dtp_plan_adapt_kind(plan, &kind);
    for (int i = 0; i < kind.matrices; i++) {
        const struct dtp_layer_matrix *matrix = &kind.matrix[i];
        int place = packed_place(matrix->id);
        if (place < 0)
            continue;
        struct dtp_executor_adapter *adapter = &out[place];
        if (matrix->rank) {
            adapter->in = matrix->in, adapter->rank = matrix->rank;
            adapter->part[adapter->parts++] = (struct dtp_executor_adapter_part){column[place], matrix->out};
        }
        column[place] += matrix->out;
    }
}

double dtp_executor_unpacked_bytes(uint64_t elements, uint64_t element_bytes)
{
    return (double)(dtp_base_bytes(DTP_BASE_NF4, 1, elements, element_bytes) + elements * element_bytes);
}

uint64_t dtp_executor_adapter_out(const struct dtp_executor_adapter *adapter)
{
    uint64_t out = 0;
    for (int i = 0; i < adapter->parts; i++)
        out += adapter->part[i].out;
    return out;
}

void dtp_executor_adapter_module(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                 uint64_t shard_group, struct dtp_parameter_module *out)
{
    struct dtp_executor_adapter adapters[DTP_PARAMETER_ADAPTERS];
    struct dtp_parameter_adapter beside[DTP_PARAMETER_ADAPTERS];
    dtp_executor_adapters_of(transformer, plan, adapters);
    for (int i = 0; i < DTP_PARAMETER_ADAPTERS; i++)
        beside[i] = (struct dtp_parameter_adapter){adapters[i].in, dtp_executor_low_width(&adapters[i]),
                                                   dtp_executor_adapter_out(&adapters[i])};
    dtp_parameter_adapter_module(beside, plan->adapters.rank, shard_group, out);
}

void dtp_executor_cut_adapters(const struct dtp_transformer *whole, const struct dtp_transformer *slice,
                               const struct dtp_plan *plan, struct dtp_parameter_module *out)
{
    struct dtp_executor_adapter adapters[DTP_PARAMETER_ADAPTERS];
    struct dtp_parameter_module model;
    dtp_executor_adapters_of(slice, plan, adapters);
    dtp_executor_adapter_module(whole, plan, 1, &model);
    for (int i = 0; i < 2 * DTP_PARAMETER_ADAPTERS; i++) {
        const enum dtp_parameter which = (enum dtp_parameter)(DTP_PARAMETER_QKV_ADAPTER_A + i);
        const struct dtp_parameter_tensor *of = &model.tensor[which];
        struct dtp_parameter_tensor *tensor = &out->tensor[which];
        const enum dtp_parameter_way way = dtp_parameter_cut_way_of(which);
        const bool rows = way == DTP_PARAMETER_CUT_ROWS; /* of B: those of each linear */
        if (!tensor->exists)
            continue;
        tensor->deviation = of->deviation;
        tensor->cut = (struct dtp_parameter_cut){.way = way,
                                                 .parts = rows ? (uint32_t)adapters[i / 2].parts : 1,
                                                 .first_part = rows ? adapters[i / 2].part[0].out
                                                               : way == DTP_PARAMETER_CUT_COLUMNS ? tensor->columns
                                                                                                  : of->columns,
                                                 .whole_rows = of->rows,
                                                 .whole_columns = of->columns,
                                                 .whole_saved_offset_elements = of->saved_offset_elements};
    }
}
