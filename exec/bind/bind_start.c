/* Steps of PowerSGD that send no factors (plan/comm_hook.h): replicas sum a module's gradients as they are, in place of
 * the first of its two sums; whatever else touches what was lost, P or Q of the module is left out. Those that return
 * what was lost add it to gradients before, where else they are added to it, and clear it in place of taking from it
 * what went. Operations keep their streams and events, so that all that is around them stays in order, and memory is
 * that of the steps with factors. */
#include "bind/binder.h"

#include <math.h>
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

static const struct dtp_operand *operand_of(const struct dtp_binding *b, const struct dtp_op *op, enum dtp_role role)
{
    const struct dtp_operand *operands = dtp_program_operands(b->job.program, op);
    for (uint32_t k = 0; k < op->operand_count; k++)
        if (operands[k].role == role)
            return &operands[k];
    return NULL;
}

/* ---- such steps -------------------------------------------------------------------------------------------------- */

/* E += G becomes G += E. */
static void add_what_was_lost(struct dtp_bound_op *out)
{
    struct dtp_add_args *add = &out->arguments.add;
    void *gradients = (void *)(uintptr_t)add->values;
    add->values = add->total;
    add->total = gradients;
}

/* Of what was lost, from which P Q would be taken. */
static bool clear(const struct dtp_binding *b, const struct dtp_op *op, struct dtp_bound_op *out)
{
    const struct dtp_operand *lost = operand_of(b, op, DTP_ROLE_INPUT_GRADIENT);
    if (op->kind != DTP_OP_MATMUL || !lost || content_of(b, lost) != dtp_executor_content(DTP_EXECUTOR_LOST))
        return false;
    out->kernel = DTP_KERNEL_zero;
    out->arguments.zero = (struct dtp_zero_args){
        .values = (char *)dtp_binding_address(b, lost->buffer) + lost->offset_bytes, .bytes = lost->bytes};
    return true;
}

static void sum_whole(struct dtp_binding *b, dtp_buffer_id p, bool returns, struct dtp_bound_op *ops)
{
    const struct dtp_operand *gradients = NULL;
    for (size_t i = 0; i < b->op_count; i++) {
        const struct dtp_op *op = &dtp_program_ops(b->job.program)[i];
        const bool adds = op->kind == DTP_OP_ACCUMULATE;
        if (!factors(b, op, p))
            continue;
        gradients = adds ? operand_of(b, op, DTP_ROLE_INPUT) : gradients;
        if (ops[i].kind == DTP_BOUND_COLLECTIVE && gradients) {
            struct dtp_collective_args *sum = &ops[i].arguments.collective;
            sum->input = sum->result = dtp_binding_address(b, gradients->buffer);
            sum->bytes = dtp_program_buffers(b->job.program)[gradients->buffer.index].bytes;
            gradients = NULL; /* the module's second sum has nothing left to do */
        } else if (returns && adds) {
            add_what_was_lost(&ops[i]);
        } else if (!returns || !clear(b, op, &ops[i])) {
            ops[i].kind = DTP_BOUND_NOTHING;
        }
    }
}

/* Second moments stay as they are; the norm of what is returned clips nothing. */
static void leave_moments(const struct dtp_binding *b, bool returns, struct dtp_bound_op *ops)
{
    for (size_t i = 0; i < b->op_count; i++) {
        if (ops[i].kind == DTP_BOUND_HOST)
            ops[i].arguments.host.adamw.beta2 = 1;
        else if (ops[i].kind != DTP_BOUND_COMPUTE)
            continue;
        else if (ops[i].kernel == DTP_KERNEL_adamw || ops[i].kernel == DTP_KERNEL_adamw8)
            ops[i].arguments.adamw.beta2 = 1;
        else if (ops[i].kernel == DTP_KERNEL_clip_scale && returns)
            ops[i].arguments.clip_scale.clip = INFINITY;
    }
}

enum dtp_status dtp_binding_make_sums(struct dtp_binding *b, bool returns, struct dtp_faults *faults)
{
    const dtp_buffer_id p = find_p(b);
    if (p.index == DTP_NO_INDEX)
        return DTP_OK;
    for (int i = 0; i < DTP_POWERSGD_SUMS; i++) {
        b->summed[i] = malloc(b->op_count * sizeof *b->ops);
        if (!b->summed[i])
            return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
        memcpy(b->summed[i], b->ops, b->op_count * sizeof *b->ops);
        if (i != DTP_POWERSGD_FACTORS)
            sum_whole(b, p, i == DTP_POWERSGD_RETURNED, b->summed[i]);
        if (i != DTP_POWERSGD_WHOLE && returns)
            leave_moments(b, i == DTP_POWERSGD_RETURNED, b->summed[i]);
    }
    b->sums = DTP_POWERSGD_SUMS; /* none has been taken */
    return DTP_OK;
}

bool dtp_binding_take_sums(struct dtp_binding *b, enum dtp_powersgd_sums sums)
{
    if (!b->summed[sums] || b->sums == sums)
        return false;
    memcpy(b->ops, b->summed[sums], b->op_count * sizeof *b->ops);
    b->sums = sums;
    return true;
}
