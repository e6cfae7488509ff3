/* Weight gradients beside exchanges of tokens for heads.
 *
 * In backward a rank waits for two exchanges of a layer: of the gradient of attention's result before the core, of
 * those of queries, keys and values behind it. Nobody waits for a weight gradient. So that of the MLP's first matrix,
 * which is made last before attention, is issued behind the first exchange's sends, that of the output projection
 * behind the second's, and each exchange is as long as none. What they read stands so much longer. They are products of
 * the same operands in any order: no bit differs. */
#include "runtime/dtplan/lower_executor_tensor.h"

#include <assert.h>

static bool is_of_attention(const struct dtp_executor_operator *op)
{
    return op->weight == DTP_PARAMETER_OUTPUT;
}

/* Where weight gradients have a pass of their own they are left to that, where matrices are cut to
 * lower_executor_tensor.c.
 */
bool dtp_executor_leaves(const struct dtp_executor *x, int op)
{
    const struct dtp_executor_operator *of = &x->shape->op[op];
    if (!dtp_executor_exchanges_heads(x) || dtp_executor_splits(x) || dtp_executor_is_cut(x) ||
        of->kind != DTP_OP_MATMUL || (of->weight != DTP_PARAMETER_UP && !is_of_attention(of)))
        return false;
    for (int i = 0; i < op; i++) /* whose backward is still to come */
        if (x->shape->op[i].kind == DTP_OP_ATTENTION)
            return true;
    return false;
}

void dtp_executor_leave(struct dtp_executor *x, const struct dtp_executor_left *left)
{
    assert(x->left_count < (int)(sizeof x->left / sizeof *x->left));
    x->left[x->left_count++] = *left;
}

bool dtp_executor_is_left(const struct dtp_executor *x, dtp_buffer_id input)
{
    for (int i = 0; i < x->left_count; i++)
        if (x->left[i].input.index == input.index)
            return true;
    return false;
}

void dtp_executor_issue_left(struct dtp_executor *x, bool of_attention)
{
    int kept = 0;
    for (int i = 0; i < x->left_count; i++) {
        const struct dtp_executor_left left = x->left[i];
        struct dtp_draft draft;
        if (is_of_attention(&x->shape->op[left.op]) != of_attention) {
            x->left[kept++] = left;
            continue;
        }
        dtp_executor_weight_gradient(x, &draft, x->l->layer, left.op, left.gradient, left.gradient_goes ? DTP_FREE : 0,
                                     left.input, left.input_goes ? DTP_FREE : 0, NULL);
        dtp_executor_end(x, &draft);
    }
    x->left_count = kept;
}
