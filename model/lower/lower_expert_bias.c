/* Biases of experts: rows of them added to what grouped matmuls return. */
#include "base/bytes.h"
#include "lower/block_backward.h"
#include "lower/block_forward.h"
#include "lower/expert_rows.h"
#include "lower/lower_graphs.h"

/* Megatron-Core (experts.py): the first product's biases are added in its epilogue, and their gradients are sums of its
 * casts' or products' epilogues (Transformer Engine's grouped_linear.py). Those of the second, weighed as rows are, are
 * added expert by expert to views of the result and put side by side (_apply_bias), in fp32, as weights of rows are: b
 * p written (4), added (c + 8), the cat (8) and its cast (4 + c): two kernels an expert and two. Where nothing of how
 * many rows there are comes to the host, rows of biases are made whole (_apply_packed_bias): cast c + 4, made 4,
 * weighed 8, added 12, cast 4 + c; fused experts have them in the product, but for the gradients of the second's and of
 * what they were weighed by, which one kernel sums of the rows' gradient, c (compute_grouped_dbias_dscales of
 * grouped_mlp.py). */
static void add_weighed_bias(const struct pass *pass, const struct dtp_layer_matrix *matrix)
{
    struct dtp_lowering *l = pass->l;
    struct rows r = rows_of(l);
    if (matrix->result != DTP_TENSOR_EXPERT_DOWN || dtp_plan_fuses_experts(l->plan, l->cluster))
        return;
    bool packed = dtp_plan_replays_all(l->plan);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "biases of experts");
    dtp_draft_use(&draft, pass->module->tensor[matrix->result], DTP_UPDATE);
    dtp_draft_new(l, &draft, "rows of biases and their sum", DTP_OWNER_WORKSPACE,
                  dtp_bytes_product(4, l->tensor_bytes[matrix->result]), DTP_UPDATE | DTP_FREE);
    draft_eager(l, &draft, received(l) * (packed ? 2 * r.c + 28 : 2 * r.c + 24) * r.k * r.h, 6);
    draft.op.demand.memory_kernel = DTP_KERNEL_EAGER;
    if (!packed)
        dtp_draft_loop(&draft, 2, (uint32_t)matrix->groups);
    dtp_draft_end(l, &draft);
}

/* Of the gradient g of such rows in fp32 (c + 4), what goes on cast (4 + c) and put side by side (2 c); g p (8) and its
 * sum over rows (4), g b (8) and its sums (4). */
bool dtp_backward_weighed_bias(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix,
                               dtp_buffer_id output_gradient)
{
    struct rows r = rows_of(l);
    if (!matrix->expert || !weighs(l))
        return false;
    if (matrix->result != DTP_TENSOR_EXPERT_DOWN)
        return true;
    bool packed = dtp_plan_replays_all(l->plan);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_BIAS_BACKWARD, matrix->name);
    dtp_draft_use(&draft, output_gradient, DTP_READ);
    if (dtp_plan_fuses_experts(l->plan, l->cluster)) {
        draft_eager(l, &draft, received(l) * r.c * r.k * r.h, 1);
        dtp_draft_end(l, &draft);
        return true;
    }
    dtp_draft_new(l, &draft, "weighed gradients of rows", DTP_OWNER_WORKSPACE,
                  dtp_bytes_product(4, l->tensor_bytes[matrix->result]), DTP_UPDATE | DTP_FREE);
    draft_eager(l, &draft, received(l) * (4 * r.c + 32) * r.k * r.h, 8);
    draft.op.demand.memory_kernel = DTP_KERNEL_EAGER;
    if (!packed)
        dtp_draft_loop(&draft, 4, (uint32_t)matrix->groups);
    dtp_draft_end(l, &draft);
    return true;
}

/* b.repeat_interleave(tokens of each expert) makes a row for each of theirs, which is added to the matmul's result in a
 * new tensor (torchtitan's models/gpt_oss/moe.py): c out written, 3 c out; compiled in one pass of 2 c out. */
void dtp_forward_expert_bias(const struct pass *pass, int matrix)
{
    struct dtp_lowering *l = pass->l;
    const struct dtp_layer_matrix *m = &l->matrix[matrix];
    if (m->groups < 2 || !m->bias)
        return;
    if (weighs(l)) {
        add_weighed_bias(pass, m);
        return;
    }
    double out = rows_of(l).c * rows_of(l).k * (double)m->out;
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_RESIDUAL, "biases of experts");
    dtp_draft_use(&draft, pass->module->tensor[m->result], DTP_UPDATE);
    if (!l->compiled)
        dtp_draft_new(l, &draft, "rows of biases and their sum", DTP_OWNER_WORKSPACE,
                      dtp_bytes_product(2, l->tensor_bytes[m->result]), DTP_UPDATE | DTP_FREE);
    draft_eager(l, &draft, (l->compiled ? 2 : 4) * out, l->compiled ? 1 : 3);
    if (l->compiled)
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
}
