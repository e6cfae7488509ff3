/* Adapters as our runtime runs them, beside the packed matrices of its blocks.
 *
 * q, k and v are one matrix, and so are gate and up: x A^T of all adapters beside one is one product low[T, parts
 * rank], each B adds to its own columns of the projection's result. The scale alpha / rank is a factor of low, forward,
 * and of its gradient, backward, so that nothing wide is multiplied by it. */
#ifndef DTP_EXECUTOR_ADAPTERS_H
#define DTP_EXECUTOR_ADAPTERS_H

#include "net/parameter_layout.h"
#include "plan/plan.h"

/* Of an operator: no adapter's, x A^T, or what B makes of that. */
enum dtp_executor_half { DTP_EXECUTOR_PLAIN, DTP_EXECUTOR_A, DTP_EXECUTOR_B };

/* Beside one packed matrix. */
struct dtp_executor_adapter {
    enum dtp_layer_matrix_id matrix;
    enum dtp_parameter a; /* B is the parameter after it */
    uint64_t in, rank;
    int parts; /* linears of the matrix that have one; 0: none has */
    struct dtp_executor_adapter_part {
        uint64_t column, out; /* of the packed result */
    } part[3];
};
void dtp_executor_adapters_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                              struct dtp_executor_adapter out[DTP_PARAMETER_ADAPTERS]);
/* The module of one block's adapters; without elements where the plan has none. */
void dtp_executor_adapter_module(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                 uint64_t shard_group, struct dtp_parameter_module *out);

/* Says of each tensor of a slice's module how the model's was divided (lower_executor_adapters.c). */
void dtp_executor_cut_adapters(const struct dtp_transformer *whole, const struct dtp_transformer *slice,
                               const struct dtp_plan *plan, struct dtp_parameter_module *out);

/* To unpack a matrix of so many elements from NF4 to `element_bytes` each, in one pass: codes and scales read, the
 * result written. */
double dtp_executor_unpacked_bytes(uint64_t elements, uint64_t element_bytes);

/* Columns of x A^T. */
static inline uint64_t dtp_executor_low_width(const struct dtp_executor_adapter *adapter)
{
    return (uint64_t)adapter->parts * adapter->rank;
}
/* Rows of B. */
uint64_t dtp_executor_adapter_out(const struct dtp_executor_adapter *adapter);

#endif
