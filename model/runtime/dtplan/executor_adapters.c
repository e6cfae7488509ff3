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
