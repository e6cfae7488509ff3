/* Casts around fp8 and fp4 matmuls, as plan/fp8_casts.h counts them: an operation a tensor, and the cast where it is
 * not kept for backward, of which it then is the tensor. */
#include "lower/lower_fp8.h"

#include "lower/lower_graphs.h"

static const char *const names[DTP_FP8_OPERAND_COUNT] = {
    [DTP_FP8_INPUT] = "input in fp8",
    [DTP_FP8_WEIGHT] = "weight in fp8",
    [DTP_FP8_INPUT_AGAIN] = "input in fp8 by columns",
    [DTP_FP8_WEIGHT_AGAIN] = "weight in fp8 by columns",
    [DTP_FP8_GRADIENT_ROWS] = "gradient in fp8",
    [DTP_FP8_GRADIENT_COLUMNS] = "gradient in fp8 by columns",
};

/* Of experts, all of the rank's and the rows that they receive. */
static uint64_t elements_of(const struct dtp_lowering *l, enum dtp_fp8_operand operand,
                            const struct dtp_layer_matrix *matrix)
{
    uint64_t rows = dtp_lower_matrix_rows(l, matrix);
    switch (operand) {
    case DTP_FP8_INPUT:
    case DTP_FP8_INPUT_AGAIN: return dtp_bytes_product(rows, matrix->in);
    case DTP_FP8_WEIGHT:
    case DTP_FP8_WEIGHT_AGAIN: return dtp_bytes_product(matrix->groups * matrix->out, matrix->in);
    case DTP_FP8_GRADIENT_ROWS:
    case DTP_FP8_GRADIENT_COLUMNS:
    case DTP_FP8_OPERAND_COUNT: break;
    }
    return dtp_bytes_product(rows, matrix->out);
}

/* Casts that the kernel before makes where experts are fused: of what the first product's and the activation's give the
 * second, and of the gradient that these give the first. */
static bool in_product(enum dtp_fp8_operand operand, const struct dtp_layer_matrix *matrix)
{
    bool down = matrix->result == DTP_TENSOR_EXPERT_DOWN;
    return down ? operand == DTP_FP8_INPUT : operand == DTP_FP8_GRADIENT_ROWS;
}

/* Along rows is what the lowering's other kernels do. */
static const enum dtp_memory_kernel walking_kernel[DTP_FP8_WALK_COUNT] = {
    [DTP_FP8_TRANSPOSING] = DTP_KERNEL_TRANSPOSING,
    [DTP_FP8_DOWN_COLUMNS] = DTP_KERNEL_COLUMNS,
    [DTP_FP8_STREAMING] = DTP_KERNEL_STREAMING,
};

/* Whether tensor parallel ranks gather a cast: of what a matrix cut by columns reads, of the gradient of one cut by
 * rows. The projection of a module that predicts further ahead, which is none of the layer's, is cut by columns. */
static bool is_gathered(const struct dtp_lowering *l, enum dtp_fp8_operand operand,
                        const struct dtp_layer_matrix *matrix)
{
    int index = 0;
    while (index < l->matrices && matrix != &l->matrix[index])
        index++;
    bool listed = index < l->matrices;
    if (operand == DTP_FP8_INPUT)
        return !listed || (dtp_lower_cut_by_columns(l, index) && !dtp_lower_shares_input(l, index));
    return operand == DTP_FP8_GRADIENT_ROWS && listed && dtp_lower_cut_by_rows(l, index);
}

dtp_buffer_id dtp_lower_fp8_cast(struct dtp_lowering *l, enum dtp_fp8_operand operand,
                                 const struct dtp_layer_matrix *matrix, dtp_buffer_id source)
{
    const struct dtp_fp8_cast *cast = &l->casts.of[operand];
    if (cast->bytes <= 0 || matrix->wide ||
        (operand == DTP_FP8_WEIGHT && l->casts.weights_once && !l->first_micro_step))
        return DTP_NO_BUFFER;
    uint64_t elements = elements_of(l, operand, matrix);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, matrix->name);
    dtp_draft_use(&draft, source, DTP_READ);
    dtp_draft_new(l, &draft, "operand in fp32", DTP_OWNER_WORKSPACE,
                  dtp_bytes_product(l->casts.scratch_bytes, elements), DTP_UPDATE | DTP_FREE);
    dtp_buffer_id made =
        dtp_draft_new(l, &draft, names[operand], DTP_OWNER_WORKSPACE,
                      l->casts.kept ? 0 : dtp_fp8_bytes(l->plan->precision.fp8_recipe, elements), DTP_WRITE);
    bool gathered = dtp_plan_gathers_casts(l->plan) && is_gathered(l, operand, matrix);
    double bytes = gathered ? cast->gathered_bytes : cast->bytes;
    bool within = matrix->expert && dtp_plan_fuses_experts(l->plan, l->cluster) && in_product(operand, matrix);
    dtp_draft_memory(l, &draft, within ? 0 : bytes * (double)elements, within ? 0 : cast->kernels);
    if (matrix->expert && !within)
        dtp_draft_loop(&draft, cast->kernels, dtp_plan_expert_casts(l->plan, matrix->groups));
    if (cast->walk != DTP_FP8_ALONG_ROWS)
        draft.op.demand.memory_kernel = (uint8_t)walking_kernel[cast->walk];
    dtp_draft_end(l, &draft);
    return made;
}

void dtp_lower_fp8_keep(struct dtp_lowering *l, struct dtp_flight_module *module, int index, dtp_buffer_id weight)
{
    if (dtp_fp8_keeps_matrix(&l->casts, l->matrix[index].id) && module->columns[index].index == DTP_NO_INDEX)
        module->columns[index] = dtp_lower_fp8_cast(l, DTP_FP8_WEIGHT_AGAIN, &l->matrix[index], weight);
}

dtp_buffer_id dtp_lower_fp8_weight_again(struct dtp_lowering *l, struct dtp_flight_module *module, int index,
                                         dtp_buffer_id weight)
{
    dtp_buffer_id kept = module->columns[index];
    module->columns[index] = DTP_NO_BUFFER;
    return kept.index != DTP_NO_INDEX ? kept : dtp_lower_fp8_cast(l, DTP_FP8_WEIGHT_AGAIN, &l->matrix[index], weight);
}

/* Kernels of a tensor: its cast, and its scales put in the order of heads and in that of the matmul's tiles. */
#define CORE_CAST_KERNELS 3

static void draft_cast(struct dtp_lowering *l, struct dtp_draft *draft, double bytes, uint32_t kernels, uint64_t made)
{
    dtp_draft_new(l, draft, "casts", DTP_OWNER_WORKSPACE, made, DTP_UPDATE | DTP_FREE);
    dtp_draft_memory(l, draft, bytes, kernels);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_draft_end(l, draft);
}

static uint64_t both_ways(const struct dtp_lowering *l, uint64_t elements)
{
    return dtp_bytes_product(2, dtp_fp8_bytes(l->plan->precision.fp8_recipe, elements));
}

void dtp_lower_fp8_core(struct dtp_lowering *l, bool backward)
{
    struct dtp_fp8_core core = dtp_fp8_core_bytes(&l->casts, l->plan, l->transformer);
    struct dtp_draft draft;
    if (!dtp_plan_attends_narrowly(l->plan))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, backward ? "attention's gradient" : "attention's inputs");
    dtp_draft_loop(&draft, backward ? 1 : 3, CORE_CAST_KERNELS); /* the library launches all of a tensor in a call */
    draft_cast(l, &draft, (double)l->tokens * (backward ? core.backward : core.forward),
               (backward ? 1 : 3) * CORE_CAST_KERNELS,
               backward ? both_ways(l, dtp_bytes_product(l->tokens, l->tensors.kind.d_core)) : 0);
}

void dtp_lower_fp8_head(struct dtp_lowering *l, enum dtp_fp8_operand operand, uint64_t tokens, dtp_buffer_id source)
{
    const uint64_t vocab = dtp_plan_head_columns(l->plan, l->transformer->vocab), hidden = l->transformer->hidden;
    struct dtp_draft draft;
    if (!dtp_plan_narrows_head(l->plan) || (operand == DTP_FP8_WEIGHT && !l->first_micro_step))
        return;
    uint64_t elements = operand == DTP_FP8_WEIGHT  ? dtp_bytes_product(vocab, hidden)
                        : operand == DTP_FP8_INPUT ? dtp_bytes_product(tokens, hidden)
                                                   : dtp_bytes_product(tokens, vocab);
    dtp_draft_begin(l, &draft, DTP_OP_QUANTIZE, "head");
    dtp_draft_use(&draft, source, DTP_READ);
    draft_cast(l, &draft, l->casts.of[operand].bytes * (double)elements, l->casts.of[operand].kernels,
               operand == DTP_FP8_WEIGHT ? 0 : both_ways(l, elements));
}
