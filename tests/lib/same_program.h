/* Whether two programs are the same in everything a reader can see. */
#ifndef SAME_PROGRAM_H
#define SAME_PROGRAM_H

#include "program/program.h"

#include <string.h>

static inline bool same_buffer(const struct dtp_buffer *a, const struct dtp_buffer *b)
{
    return !strcmp(a->name, b->name) && a->bytes == b->bytes && a->owner == b->owner && a->space == b->space &&
           a->pool == b->pool && a->layer == b->layer && a->micro_step == b->micro_step &&
           a->persistent == b->persistent && a->element == b->element && a->content == b->content &&
           a->module == b->module;
}

/* Bits, not values: what was read must be what was written. */
static inline bool same_number(double a, double b)
{
    return !memcmp(&a, &b, sizeof a);
}

static inline bool same_demand(const struct dtp_demand *a, const struct dtp_demand *b)
{
    return same_number(a->flops, b->flops) && same_number(a->m, b->m) && same_number(a->n, b->n) &&
           same_number(a->k, b->k) && same_number(a->bytes, b->bytes) && same_number(a->sent_bytes, b->sent_bytes) &&
           same_number(a->tokens, b->tokens) && a->kernels == b->kernels && a->dtype == b->dtype &&
           a->groups == b->groups && a->attention.heads == b->attention.heads &&
           a->attention.kv_heads == b->attention.kv_heads && a->attention.head_dim == b->attention.head_dim &&
           a->attention.window == b->attention.window && a->attention.queries == b->attention.queries &&
           a->attention.keys == b->attention.keys && a->attention.causal == b->attention.causal &&
           a->attention.kernel == b->attention.kernel && a->attention.wide == b->attention.wide &&
           a->attention.atomic == b->attention.atomic && same_number(a->attention.softcap, b->attention.softcap) &&
           a->memory_kernel == b->memory_kernel && a->recompute == b->recompute && a->form == b->form &&
           a->issue == b->issue;
}

static inline bool same_op(const struct dtp_program *p, const struct dtp_op *a, const struct dtp_program *q,
                           const struct dtp_op *b)
{
    if (a->kind != b->kind || a->stream != b->stream || a->layer != b->layer || a->micro_step != b->micro_step ||
        a->group != b->group || a->operand_count != b->operand_count || a->dependency_count != b->dependency_count ||
        a->peer != b->peer || a->tag != b->tag || strcmp(a->name, b->name) || !same_demand(a->demand, b->demand))
        return false;
    for (uint32_t i = 0; i < a->operand_count; i++) {
        struct dtp_operand x = dtp_program_operands(p, a)[i], y = dtp_program_operands(q, b)[i];
        if (x.buffer.index != y.buffer.index || x.access != y.access || x.role != y.role || x.shard != y.shard ||
            x.offset_bytes != y.offset_bytes || x.bytes != y.bytes)
            return false;
    }
    for (uint32_t i = 0; i < a->dependency_count; i++)
        if (dtp_program_dependencies(p, a)[i].index != dtp_program_dependencies(q, b)[i].index)
            return false;
    return true;
}

static inline bool same_execution(const struct dtp_execution *a, const struct dtp_execution *b)
{
    return a->issuer == b->issuer && a->allocator == b->allocator && a->compute == b->compute &&
           a->reduce == b->reduce && a->own_kernels == b->own_kernels && a->graph == b->graph &&
           a->plain_host_adam == b->plain_host_adam && a->launch_blocking == b->launch_blocking &&
           a->windows == b->windows && a->matmul_sms == b->matmul_sms &&
           a->stochastic_rounding == b->stochastic_rounding && a->shards == b->shards &&
           same_number(a->clip_norm, b->clip_norm) && a->collective_ctas == b->collective_ctas &&
           a->copied == b->copied;
}

static inline bool same_tensor(const struct dtp_program_tensor *a, const struct dtp_program_tensor *b)
{
    const struct dtp_parameter_tensor *x = &a->at, *y = &b->at;
    return a->first_module == b->first_module && a->modules == b->modules && a->parameter == b->parameter &&
           x->rows == y->rows && x->columns == y->columns && x->offset_elements == y->offset_elements &&
           x->extent_elements == y->extent_elements && x->saved_offset_elements == y->saved_offset_elements &&
           x->decays == y->decays && same_number(x->mean, y->mean) && same_number(x->deviation, y->deviation);
}

static inline bool same_program(const struct dtp_program *p, const struct dtp_program *q)
{
    if (dtp_program_op_count(p) != dtp_program_op_count(q) ||
        dtp_program_buffer_count(p) != dtp_program_buffer_count(q) ||
        dtp_program_group_count(p) != dtp_program_group_count(q) ||
        dtp_program_tensor_count(p) != dtp_program_tensor_count(q) ||
        !same_execution(dtp_program_execution(p), dtp_program_execution(q)))
        return false;
    for (size_t i = 0; i < dtp_program_group_count(p); i++)
        if (dtp_program_groups(p)[i].ranks != dtp_program_groups(q)[i].ranks ||
            dtp_program_groups(p)[i].stride != dtp_program_groups(q)[i].stride)
            return false;
    for (size_t i = 0; i < dtp_program_tensor_count(p); i++)
        if (!same_tensor(&dtp_program_tensors(p)[i], &dtp_program_tensors(q)[i]))
            return false;
    for (size_t i = 0; i < dtp_program_buffer_count(p); i++)
        if (!same_buffer(&dtp_program_buffers(p)[i], &dtp_program_buffers(q)[i]))
            return false;
    for (size_t i = 0; i < dtp_program_op_count(p); i++)
        if (!same_op(p, &dtp_program_ops(p)[i], q, &dtp_program_ops(q)[i]))
            return false;
    return true;
}

#endif
