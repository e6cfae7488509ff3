/* What replicas sum of gradients: whole ones under ddp, shards under hybrid_shard, a module at a time, in place; or
 * what a communication hook (plan/comm_hook.h) makes of them. A module is what a bucket is to DDP.
 *
 * fp16, bf16: the module is cast into a buffer that stands, for one is on its way at a time; that is summed and cast
 * back. The factor 1/ranks, by which PyTorch divides behind its cast, is in the gradient of the loss already. All of it
 * stands on the stream of the sum, beside backward. int8: it is packed with the ranges of its runs, all ranks' parts
 * are gathered, and each adds them up where the gradient was. powersgd: lower_executor_factors.c. */
#include "runtime/dtplan/lower_executor_state.h"

#include "base/bytes.h"
#include "plan/comm_hook.h"

static dtp_buffer_id make_narrow(struct dtp_executor *x, const char *name, uint64_t bytes)
{
    dtp_buffer_id buffer = dtp_lower_buffer(x->l, name, DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, bytes, true);
    dtp_program_set_element(x->l->program, buffer, x->rules.wire);
    return buffer;
}

void dtp_executor_make_hook(struct dtp_executor *x)
{
    if (x->rules.hook == DTP_COMM_HOOK_POWERSGD)
        dtp_executor_make_factors(x);
    const uint64_t largest = dtp_executor_largest_shard(x);
    if (dtp_executor_casts_sums(&x->rules))
        x->narrow = make_narrow(x, "gradients in 16 bits", dtp_bytes_product(largest, dtp_dtype_bytes(x->rules.wire)));
    if (x->rules.hook != DTP_COMM_HOOK_INT8)
        return;
    const uint64_t part_bytes = dtp_int8_part_bytes(largest);
    x->narrow = make_narrow(x, "gradients in 8 bits", part_bytes);
    x->packed_parts =
        make_narrow(x, "all ranks' gradients in 8 bits", dtp_bytes_product(x->rules.replicas, part_bytes));
}

void dtp_executor_await_gradients(const struct dtp_executor *x, struct dtp_draft *draft, dtp_op_id after)
{
    dtp_draft_after(draft, after);
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_WEIGHT_GRADIENT]);
    dtp_draft_after(draft, x->l->last_op[DTP_STREAM_TENSOR]);
}

/* The first `bytes` of a buffer, in place. */
static void begin_sum(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                      dtp_buffer_id buffer, uint64_t bytes)
{
    dtp_executor_begin_at(x, module, draft, DTP_OP_ALL_REDUCE, NULL);
    dtp_draft_role(draft, DTP_ROLE_INPUT, buffer, DTP_READ, 0)->bytes = bytes;
    dtp_draft_role(draft, DTP_ROLE_RESULT, buffer, DTP_WRITE, 0)->bytes = bytes;
}

static dtp_op_id end_sum(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                         uint64_t bytes, enum dtp_stream stream)
{
    return dtp_executor_collective(x, draft, stream, module->replica_group,
                                   2 * dtp_lower_ring(bytes, module->replicas));
}

/* `elements` from one of the buffers into the other, of which `narrow` has room for more. */
static void begin_cast(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                       const char *name, enum dtp_stream stream, uint64_t elements)
{
    const uint64_t element = module->shard_element_bytes + dtp_dtype_bytes(x->rules.wire);
    dtp_executor_begin_at(x, module, draft, DTP_OP_CAST, name);
    draft->op.stream = stream;
    dtp_executor_memory(draft, elements, (double)dtp_bytes_product(elements, element), 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
}

static dtp_op_id sum_cast(struct dtp_executor *x, const struct dtp_executor_module *module, dtp_buffer_id buffer,
                          uint64_t elements, enum dtp_stream stream, dtp_op_id after)
{
    const uint64_t bytes = dtp_bytes_product(elements, dtp_dtype_bytes(x->rules.wire));
    struct dtp_draft draft;
    begin_cast(x, module, &draft, "gradients to 16 bits", stream, elements);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, buffer, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->narrow, DTP_WRITE, 0)->bytes = bytes;
    dtp_executor_await_gradients(x, &draft, after);
    dtp_draft_end(x->l, &draft);
    begin_sum(x, module, &draft, x->narrow, bytes);
    end_sum(x, module, &draft, bytes, stream);
    begin_cast(x, module, &draft, "gradients from 16 bits", stream, elements);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->narrow, DTP_READ, 0)->bytes = bytes;
    dtp_draft_role(&draft, DTP_ROLE_RESULT, buffer, DTP_WRITE, 0);
    return dtp_draft_end(x->l, &draft);
}

/* An operation on the elements of a module and `packed_bytes` of packed ones. */
static void begin_packed(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                         enum dtp_op_kind kind, enum dtp_stream stream, uint64_t elements, uint64_t packed_bytes)
{
    dtp_executor_begin_at(x, module, draft, kind, "gradients");
    draft->op.stream = stream;
    dtp_executor_memory(draft, elements,
                        (double)(dtp_bytes_product(elements, module->shard_element_bytes) + packed_bytes), 1);
    draft->op.demand.memory_kernel = DTP_KERNEL_STREAMING;
}

static dtp_op_id sum_packed(struct dtp_executor *x, const struct dtp_executor_module *module, dtp_buffer_id buffer,
                            uint64_t elements, enum dtp_stream stream, dtp_op_id after)
{
    const uint64_t part_bytes = dtp_int8_part_bytes(elements), all_bytes = part_bytes * x->rules.replicas;
    struct dtp_draft draft;
    begin_packed(x, module, &draft, DTP_OP_PACK8, stream, elements, part_bytes);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, buffer, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->narrow, DTP_WRITE, 0)->bytes = part_bytes;
    dtp_executor_await_gradients(x, &draft, after);
    dtp_draft_end(x->l, &draft);
    dtp_executor_begin_at(x, module, &draft, DTP_OP_ALL_GATHER, NULL);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->narrow, DTP_READ, 0)->bytes = part_bytes;
    dtp_draft_role(&draft, DTP_ROLE_RESULT, x->packed_parts, DTP_WRITE, 0)->bytes = all_bytes;
    dtp_executor_collective(x, &draft, stream, x->replica_group, dtp_lower_ring(all_bytes, x->rules.replicas));
    begin_packed(x, module, &draft, DTP_OP_SUM_PACKED8, stream, elements, all_bytes);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, x->packed_parts, DTP_READ, 0)->bytes = all_bytes;
    dtp_draft_role(&draft, DTP_ROLE_RESULT, buffer, DTP_WRITE, 0);
    return dtp_draft_end(x->l, &draft);
}

dtp_op_id dtp_executor_sum_replicas(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id buffer,
                                    uint64_t elements, enum dtp_stream stream, dtp_op_id after)
{
    const uint64_t bytes = dtp_bytes_product(elements, module->shard_element_bytes);
    struct dtp_draft draft;
    if (dtp_executor_casts_sums(&x->rules))
        return sum_cast(x, module, buffer, elements, stream, after);
    if (x->rules.hook == DTP_COMM_HOOK_INT8)
        return sum_packed(x, module, buffer, elements, stream, after);
    struct dtp_executor_factors factors = {.count = 0};
    if (x->rules.hook == DTP_COMM_HOOK_POWERSGD)
        dtp_executor_factors_of(module->layout, x->plan->powersgd_rank, &factors);
    if (factors.count)
        return dtp_executor_sum_factored(x, module, &factors, buffer, stream, after);
    dtp_executor_begin_at(x, module, &draft, DTP_OP_ALL_REDUCE, NULL);
    dtp_draft_role(&draft, DTP_ROLE_INPUT, buffer, DTP_READ, 0);
    dtp_draft_role(&draft, DTP_ROLE_RESULT, buffer, DTP_WRITE, 0);
    dtp_executor_await_gradients(x, &draft, after);
    return end_sum(x, module, &draft, bytes, stream);
}
