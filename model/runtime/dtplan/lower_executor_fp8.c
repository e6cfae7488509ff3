/* fp8 of the projections of blocks, by recipe (base/fp8_recipe.def). With a scale for each tensor, of its amax in this
 * step, what they read is E4M3, gradients are E5M2, as torchao's tensorwise recipe (Float8LinearConfig) has it; the
 * same by the largest of the last DTP_EXECUTOR_AMAX_HISTORY steps, this one left out (Transformer Engine's
 * DelayedScaling with reduce_amax=False, each rank by its own; delayed_scaling.cu), where casts and the kernels before
 * them raise the amax of this step. With scales of rows (its rowwise, rowwise_with_gw_hp) or blocks (Transformer
 * Engine's Float8BlockScaling) all is E4M3, and scales lie behind what they belong to (fp8_layout.h); a cast then finds
 * them itself.
 *
 * Tensor cores take both operands by the dimension that is summed over. So an input is cast by rows for forward and by
 * columns for the weight's gradient, which alone stays; the gradient of a result both ways; a weight by rows for
 * forward and by columns for the input's gradient, each time anew, for the two casts would stand in as many bytes as
 * the weight. Its amax, of a tensor's scale, is found once a step. Kernels that make an operand find its amax on the
 * way. */
#include "runtime/dtplan/executor_fp8_work.h"
#include "runtime/dtplan/fp8_layout.h"
#include "runtime/dtplan/lower_executor_state.h"

#define AMAX_BYTES 4u
#define SCALE_BYTES 16u /* apart by as much as any of cuBLASLt's pointers asks for */

static uint64_t matrices(const struct dtp_executor *x)
{
    return (uint64_t)x->shape->kind.matrices;
}

/* Weights come first: theirs stand for the whole step, the others for a micro-step. Where scales are of earlier steps,
 * in each layer: weights, inputs, gradients. */
uint64_t dtp_executor_fp8_slot(const struct dtp_executor *x, enum dtp_executor_cast_of what, uint64_t layer, int matrix)
{
    if (dtp_executor_delays_scales(x->shape))
        return (3 * layer + (uint64_t)what) * matrices(x) + (uint64_t)matrix;
    uint64_t place = what == DTP_EXECUTOR_CAST_WEIGHT ? layer : x->t->layers + 2 * layer;
    place += what == DTP_EXECUTOR_CAST_GRADIENT;
    return place * matrices(x) + (uint64_t)matrix;
}

uint64_t dtp_executor_fp8_stream_slot(const struct dtp_executor *x, uint64_t layer, int index)
{
    if (!x->shape->fp8 || dtp_executor_scales_parts(x->shape))
        return 0;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = index - 1; i >= 0; i--)
            if (x->shape->op[i].matrix && x->shape->op[i].addend != DTP_EXECUTOR_NONE)
                return 1 + dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_GRADIENT, layer,
                                                 (int)(x->shape->op[i].matrix - x->shape->kind.matrix));
        if (layer == 0)
            return 0;
        layer--;
        index = x->shape->count;
    }
    return 0;
}

void dtp_executor_fp8_make(struct dtp_executor *x)
{
    uint64_t slots = 3 * x->t->layers * matrices(x);
    x->amax = x->scales = DTP_NO_BUFFER;
    if (!x->shape->fp8 || dtp_executor_scales_parts(x->shape))
        return;
    x->scales = dtp_lower_buffer(x->l, "scales", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, slots * SCALE_BYTES, true);
    dtp_program_set_element(x->l->program, x->scales, DTP_FP32);
    if (dtp_executor_delays_scales(x->shape)) /* each block's amaxes are state of its module */
        return;
    x->amax = dtp_lower_buffer(x->l, "amax", DTP_OWNER_WORKSPACE, DTP_STREAM_COMPUTE, slots * AMAX_BYTES, true);
    dtp_program_set_element(x->l->program, x->amax, DTP_FP32);
}

/* Scales of a layer's tensors, of what was largest in the last steps; weights' once a step. */
static void delayed_scales(struct dtp_executor *x, uint64_t layer, bool weights)
{
    struct dtp_draft draft;
    uint64_t first = weights ? 0 : matrices(x), count = 3 * matrices(x) - first;
    dtp_executor_begin(x, &draft, DTP_OP_QUANTIZE, "scales of earlier steps");
    dtp_draft_role(&draft, DTP_ROLE_AMAX, dtp_executor_block(x, layer)->state[DTP_EXECUTOR_AMAX], DTP_UPDATE,
                   first * DTP_EXECUTOR_AMAX_HISTORY * AMAX_BYTES)
        ->bytes = count * DTP_EXECUTOR_AMAX_HISTORY * AMAX_BYTES;
    dtp_draft_role(&draft, DTP_ROLE_SCALE, x->scales, DTP_WRITE, (3 * layer * matrices(x) + first) * SCALE_BYTES)
        ->bytes = count * SCALE_BYTES;
    dtp_executor_memory(&draft, 0, dtp_executor_history_bytes((double)count), 1);
    draft.op.demand.n = (double)count, draft.op.demand.k = (double)(count - matrices(x));
    draft.op.demand.form = DTP_FORM_FROM_HISTORY;
    dtp_executor_end(x, &draft);
}

void dtp_executor_fp8_begins(struct dtp_executor *x, uint32_t micro_step)
{
    struct dtp_draft draft;
    uint64_t first = micro_step ? x->t->layers * matrices(x) : 0, bytes;
    for (uint64_t layer = 0; layer < x->t->layers && dtp_executor_delays_scales(x->shape); layer++)
        delayed_scales(x, layer, micro_step == 0);
    if (x->amax.index == DTP_NO_INDEX)
        return;
    bytes = (3 * x->t->layers * matrices(x) - first) * AMAX_BYTES;
    dtp_executor_begin(x, &draft, DTP_OP_ZERO, "amax");
    struct dtp_operand *operand = dtp_draft_role(&draft, DTP_ROLE_RESULT, x->amax, DTP_WRITE, first * AMAX_BYTES);
    operand->bytes = bytes;
    dtp_executor_memory(&draft, 0, (double)bytes, 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_STREAMING;
    dtp_executor_end(x, &draft);
}

void dtp_executor_fp8_amax(struct dtp_executor *x, struct dtp_draft *draft, uint64_t slot, uint32_t access)
{
    const uint64_t of_layer = 3 * matrices(x);
    if (dtp_executor_delays_scales(x->shape))
        dtp_draft_role(draft, DTP_ROLE_AMAX, dtp_executor_block(x, slot / of_layer)->state[DTP_EXECUTOR_AMAX], access,
                       slot % of_layer * DTP_EXECUTOR_AMAX_HISTORY * AMAX_BYTES)
            ->bytes = AMAX_BYTES;
    else if (x->amax.index != DTP_NO_INDEX) /* scales are not of rows or blocks */
        dtp_draft_role(draft, DTP_ROLE_AMAX, x->amax, access, slot * AMAX_BYTES)->bytes = AMAX_BYTES;
}

void dtp_executor_fp8_scale(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, uint64_t slot,
                            uint32_t access)
{
    if (x->scales.index == DTP_NO_INDEX)
        return;
    dtp_draft_role(draft, role, x->scales, access, slot * SCALE_BYTES)->bytes = SCALE_BYTES;
}

void dtp_executor_fp8_scales(struct dtp_executor *x, struct dtp_draft *draft, uint64_t slot, bool finds)
{
    bool delayed = dtp_executor_delays_scales(x->shape);
    if (!delayed || finds)
        dtp_executor_fp8_amax(x, draft, slot, delayed ? DTP_UPDATE : DTP_READ);
    dtp_executor_fp8_scale(x, draft, DTP_ROLE_SCALE, slot, delayed ? DTP_READ : DTP_WRITE);
}

/* ---- what is cast ------------------------------------------------------------------------------------------------ */

static void take_source(struct dtp_executor *x, struct dtp_draft *draft, const struct dtp_executor_cast *cast,
                        uint32_t frees)
{
    if (cast->weight)
        dtp_executor_weight(x, draft, DTP_ROLE_INPUT, dtp_executor_block(x, cast->layer), cast->weight->weight);
    else
        dtp_draft_role(draft, DTP_ROLE_INPUT, cast->tensor, DTP_READ | frees, 0);
}

void dtp_executor_fp8_demand(struct dtp_draft *draft, enum dtp_form form, uint64_t rows, uint64_t columns, bool by_rows,
                             bool by_columns)
{
    struct dtp_executor_traffic traffic =
        dtp_executor_cast_traffic(form, (double)rows * (double)columns, by_rows, by_columns);
    dtp_executor_memory(draft, rows, traffic.bytes, traffic.kernels);
    draft->op.demand.n = (double)columns;
    draft->op.demand.form = (uint8_t)form;
}

void dtp_executor_fp8_product(struct dtp_executor *x, struct dtp_draft *draft, uint64_t slot, uint64_t other_slot)
{
    dtp_executor_fp8_scale(x, draft, DTP_ROLE_SCALE, slot, DTP_READ);
    dtp_executor_fp8_scale(x, draft, DTP_ROLE_OTHER_SCALE, other_slot, DTP_READ);
    draft->op.demand.dtype = DTP_FP8;
    if (dtp_executor_scales_parts(x->shape))
        draft->op.demand.form = (uint8_t)dtp_executor_cast_form(x->shape, DTP_EXECUTOR_CAST_INPUT, false);
}

void dtp_executor_fp8_measure(struct dtp_executor *x, const struct dtp_executor_cast *cast)
{
    struct dtp_draft draft;
    dtp_executor_begin(x, &draft, DTP_OP_QUANTIZE, "amax");
    take_source(x, &draft, cast, 0);
    dtp_executor_fp8_amax(x, &draft, cast->slot, DTP_UPDATE);
    dtp_executor_fp8_demand(&draft, DTP_FORM_NONE, cast->rows, cast->columns, false, false);
    dtp_executor_end(x, &draft);
}

static dtp_buffer_id result(struct dtp_executor *x, struct dtp_draft *draft, bool columns,
                            const struct dtp_executor_cast *cast, const char *name)
{
    enum dtp_form form = dtp_executor_cast_form(x->shape, cast->what, columns);
    uint64_t bytes =
        dtp_fp8_matrix_bytes(form, columns ? cast->columns : cast->rows, columns ? cast->rows : cast->columns);
    dtp_buffer_id made = dtp_executor_new(x, draft, columns ? DTP_ROLE_TRANSPOSED : DTP_ROLE_RESULT, name,
                                          DTP_OWNER_WORKSPACE, bytes, DTP_WRITE);
    dtp_program_set_element(x->l->program, made, DTP_FP8);
    return made;
}

struct dtp_executor_casts dtp_executor_fp8_cast(struct dtp_executor *x, const struct dtp_executor_cast *cast)
{
    struct dtp_executor_casts made = {DTP_NO_BUFFER, DTP_NO_BUFFER};
    struct dtp_draft draft;
    bool gradient = cast->what == DTP_EXECUTOR_CAST_GRADIENT;
    dtp_executor_begin(x, &draft, DTP_OP_QUANTIZE, cast->name);
    take_source(x, &draft, cast, cast->frees ? DTP_FREE : 0);
    dtp_executor_fp8_scales(x, &draft, cast->slot, cast->finds);
    if (cast->by_rows)
        made.rows = result(x, &draft, false, cast, gradient ? "fp8 gradient" : "fp8 weight");
    if (cast->by_columns)
        made.columns = result(x, &draft, true, cast, gradient ? "fp8 gradient columns" : "fp8 weight columns");
    dtp_executor_fp8_demand(&draft, dtp_executor_cast_form(x->shape, cast->what, !cast->by_rows), cast->rows,
                            cast->columns, cast->by_rows, cast->by_columns);
    dtp_executor_end(x, &draft);
    return made;
}

dtp_buffer_id dtp_executor_fp8_weight(struct dtp_executor *x, const struct dtp_executor_operator *op, uint64_t layer,
                                      bool columns)
{
    const bool first = !columns && !x->l->recompute && x->l->micro_step == 0;
    const struct dtp_executor_cast cast = {
        .name = op->name,
        .finds = first,
        .weight = op,
        .layer = layer,
        .rows = op->matrix->out,
        .columns = op->matrix->in,
        .slot = dtp_executor_fp8_slot(x, DTP_EXECUTOR_CAST_WEIGHT, layer, (int)(op->matrix - x->shape->kind.matrix)),
        .by_rows = !columns,
        .by_columns = columns};
    if (first && dtp_executor_seeks_amax(x->shape))
        dtp_executor_fp8_measure(x, &cast);
    struct dtp_executor_casts made = dtp_executor_fp8_cast(x, &cast);
    return columns ? made.columns : made.rows;
}
