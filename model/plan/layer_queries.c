/* What is asked of a layer's tensors and operators once they are listed (layer_tensors.c). */
#include "plan/layer_tensors.h"

#include <stddef.h>

#define BIT(suffix) DTP_TENSOR_BIT(suffix)

uint64_t dtp_layer_tensors_bytes(const struct dtp_layer_tensors *tensors, uint64_t set)
{
    uint64_t bytes = 0;
    for (; set; set &= set - 1)
        bytes += tensors->bytes[__builtin_ctzll(set)];
    return bytes;
}

const struct dtp_layer_operator *dtp_layer_tensors_sum(const struct dtp_layer_tensors *tensors,
                                                       enum dtp_layer_tensor tensor)
{
    for (int i = 0; i < tensors->operators; i++)
        if (tensors->op[i].kind == DTP_LAYER_OP_RESIDUAL && tensors->op[i].makes & UINT64_C(1) << tensor)
            return &tensors->op[i];
    return NULL;
}

const struct dtp_layer_operator *dtp_layer_tensors_fused_norm(const struct dtp_layer_tensors *tensors,
                                                              enum dtp_layer_tensor result)
{
    for (int i = 0; i < tensors->operators && !tensors->bytes[result]; i++)
        if (tensors->op[i].kind == DTP_LAYER_OP_NORM && tensors->op[i].makes & UINT64_C(1) << result)
            return &tensors->op[i];
    return NULL;
}

bool dtp_layer_tensors_sum_in_norm(const struct dtp_layer_tensors *tensors, int index)
{
    const struct dtp_layer_operator *op = &tensors->op[index];
    return tensors->fused && !tensors->kind.dropout && index + 1 < tensors->operators &&
           op[1].kind == DTP_LAYER_OP_NORM && op[1].reads == op->makes;
}

bool dtp_layer_tensors_last_reader(const struct dtp_layer_tensors *tensors, int matrix)
{
    for (int later = matrix + 1; later < tensors->kind.matrices; later++)
        if (tensors->input[later] == tensors->input[matrix])
            return false;
    return true;
}

bool dtp_layer_tensors_needed_before(const struct dtp_layer_tensors *tensors, int index, enum dtp_layer_tensor tensor)
{
    for (int i = 0; i < index; i++) {
        const struct dtp_layer_operator *op = &tensors->op[i];
        uint64_t needs = (op->needs & DTP_NEEDS_INPUT ? op->reads : 0) | (op->needs & DTP_NEEDS_RESULT ? op->makes : 0);
        if (needs & UINT64_C(1) << tensor)
            return true;
    }
    return false;
}

int dtp_layer_tensors_saved_end(const struct dtp_layer_tensors *tensors)
{
    int end = tensors->operators;
    while (end > 0) {
        const struct dtp_layer_operator *op = &tensors->op[end - 1];
        uint64_t gated = op->kind == DTP_LAYER_OP_ACTIVATION ? BIT(SILU) | BIT(SHARED_SILU) : 0; /* no operator's own */
        if ((op->makes | op->statistics | gated) & tensors->saved)
            break;
        end--;
    }
    return end;
}
