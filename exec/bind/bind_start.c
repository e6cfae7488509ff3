/* Steps before PowerSGD begins (powersgd_start_step): replicas sum a module's gradients as they are, in place of the
 * first of its two sums; whatever else touches what was lost, P or Q of the module is left out. Operations keep their
 * streams and events, so that all that is around them stays in order, and memory is that of the steps behind. */
#include "bind/binder.h"

#include <stdlib.h>
#include <string.h>

/* ---- whose operations -------------------------------------------------------------------------------------------- */

static enum dtp_content content_of(const struct dtp_binding *b, const struct dtp_operand *operand)
{
    return dtp_program_buffers(b->job.program)[operand->buffer.index].content;
}

static bool is_state(enum dtp_content content)
{
    return content == dtp_executor_content(DTP_EXECUTOR_LOST) || content == dtp_executor_content(DTP_EXECUTOR_FACTOR_Q);
}

/* P of all modules: what is made orthonormal and is no state. */
static dtp_buffer_id find_p(const struct dtp_binding *b)
{
    for (size_t i = 0; i < b->op_count; i++) {
        const struct dtp_op *op = &dtp_program_ops(b->job.program)[i];
        const struct dtp_operand *operands = dtp_program_operands(b->job.program, op);
        for (uint32_t k = 0; op->kind == DTP_OP_ORTHOGONALIZE && k < op->operand_count; k++)
            if (operands[k].role == DTP_ROLE_RESULT && !is_state(content_of(b, &operands[k])))
                return operands[k].buffer;
    }
    return (dtp_buffer_id){DTP_NO_INDEX};
}

static bool factors(const struct dtp_binding *b, const struct dtp_op *op, dtp_buffer_id p)
{
    const struct dtp_operand *operands = dtp_program_operands(b->job.program, op);
    for (uint32_t k = 0; k < op->operand_count; k++)
        if (operands[k].buffer.index == p.index || is_state(content_of(b, &operands[k])))
            return true;
    return false;
}

/* The whole gradients of a module that what was lost is added to; NULL: it is another operation. */
static const struct dtp_operand *whole_gradients(const struct dtp_binding *b, const struct dtp_op *op)
{
    const struct dtp_operand *operands = dtp_program_operands(b->job.program, op), *gradients = NULL;
    for (uint32_t k = 0; op->kind == DTP_OP_ACCUMULATE && k < op->operand_count; k++)
        if (operands[k].role == DTP_ROLE_INPUT)
            gradients = &operands[k];
    return gradients;
}

/* ---- held, and begun --------------------------------------------------------------------------------------------- */

enum dtp_status dtp_binding_hold_factors(struct dtp_binding *b, struct dtp_faults *faults)
{
    const dtp_buffer_id p = find_p(b);
    const struct dtp_operand *gradients = NULL;
    if (p.index == DTP_NO_INDEX)
        return DTP_OK;
    b->factored = malloc(b->op_count * sizeof *b->factored);
    if (!b->factored)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    memcpy(b->factored, b->ops, b->op_count * sizeof *b->factored);
    for (size_t i = 0; i < b->op_count; i++) {
        const struct dtp_op *op = &dtp_program_ops(b->job.program)[i];
        struct dtp_bound_op *bound = &b->ops[i];
        if (!factors(b, op, p))
            continue;
        const struct dtp_operand *begins = whole_gradients(b, op);
        gradients = begins ? begins : gradients;
        if (bound->kind == DTP_BOUND_COLLECTIVE && gradients) {
            struct dtp_collective_args *sum = &bound->arguments.collective;
            sum->input = sum->result = dtp_binding_address(b, gradients->buffer);
            sum->bytes = dtp_program_buffers(b->job.program)[gradients->buffer.index].bytes;
            gradients = NULL; /* the module's second sum has nothing left to do */
        } else {
            bound->kind = DTP_BOUND_NOTHING;
        }
    }
    return DTP_OK;
}

bool dtp_binding_begin_factors(struct dtp_binding *b)
{
    if (!b->factored)
        return false;
    memcpy(b->ops, b->factored, b->op_count * sizeof *b->factored);
    free(b->factored);
    b->factored = NULL;
    return true;
}
