#include "plan/second_matmuls.h"

#define BIT(suffix) DTP_TENSOR_BIT(suffix)

static bool stays(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan, int matrix)
{
    uint64_t result = UINT64_C(1) << tensors->kind.matrix[matrix].result;
    return !plan->compile || matrix < tensors->kind.matrices - 1 || tensors->saved & result;
}

static bool is_counted(const struct dtp_layer_matrix *matrix)
{
    return !matrix->expert && matrix->id != DTP_MATRIX_ROUTER;
}

bool dtp_second_matmul(const struct dtp_layer_kind *kind, int matrix)
{
    int before = 0;
    for (int i = 0; i < matrix; i++)
        before += is_counted(&kind->matrix[i]);
    return is_counted(&kind->matrix[matrix]) && before % 2 == 0;
}

uint64_t dtp_packed_matmuls(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan)
{
    const struct dtp_layer_kind *kind = &tensors->kind;
    uint64_t kept = 0;
    for (int i = 0; i < kind->matrices; i++)
        if (stays(tensors, plan, i))
            kept |= UINT64_C(1) << kind->matrix[i].result;
    return kept;
}

static bool keeps_sums(const struct dtp_plan *plan)
{
    return dtp_plan_checkpoint_rule(plan).keeps == DTP_KEEPS_SECOND_MATMULS && plan->runtime->dtensor &&
           plan->sequence_shards > 1;
}

bool dtp_second_matmul_again(const struct dtp_layer_kind *kind, const struct dtp_plan *plan, int matrix)
{
    const enum dtp_layer_matrix_id id = kind->matrix[matrix].id;
    const bool sum_alone = keeps_sums(plan) && plan->compile && id == DTP_MATRIX_OUTPUT;
    return !dtp_second_matmul(kind, matrix) && !sum_alone;
}

bool dtp_keeps_eager_sums(const struct dtp_plan *plan)
{
    return keeps_sums(plan) && !plan->compile;
}

uint64_t dtp_second_matmuls(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan)
{
    const struct dtp_layer_kind *kind = &tensors->kind;
    uint64_t kept = plan->attention == DTP_ATTENTION_MATH ? 0 : BIT(CORE) | BIT(CORE_STATE);
    for (int i = 0; i < kind->matrices; i++)
        if (dtp_second_matmul(kind, i) && stays(tensors, plan, i))
            kept |= UINT64_C(1) << kind->matrix[i].result;
    if (keeps_sums(plan))
        kept |= BIT(MIDDLE) | (plan->compile ? 0 : BIT(DOWN));
    if (kind->exchanged && kind->kv_latent)
        kept |= BIT(RECEIVED) | BIT(RETURNED);
    return kept;
}

bool dtp_keeps_terms(const struct dtp_layer_tensors *tensors, const struct dtp_plan *plan)
{
    return dtp_keeps_eager_sums(plan) && dtp_second_matmul(&tensors->kind, tensors->kind.matrices - 1);
}
