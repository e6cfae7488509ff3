/* Gradients under ZeRO stage 3: they are copied into a bucket of reduce_bucket_size, which stands all the time; before
 * one that no longer fits, the bucket's tensors are laid side by side by rank, divided, reduce-scattered and added to
 * the partition, all on the reduction stream. That happens in every micro-step, at the end of which the host waits. */
#include "runtime/deepspeed/live_zero3.h"
#include "runtime/deepspeed/lower_zero3.h"
#include "runtime/deepspeed/zeropp.h"

/* Tensors of the bucket side by side by rank, with padding, then divided by the ranks; a tensor alone that needs no
 * padding is reduced where it is. */
static dtp_buffer_id lay_by_rank(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    bool oversized = z->oversized.index != DTP_NO_INDEX, in_place = z->tensors == 1 &&
                                                                    z->filled % l->plan->shard_group == 0 &&
                                                                    (!oversized || l->bytes.reduce == l->bytes.grads);
    dtp_buffer_id source = oversized ? z->oversized : z->bucket, flat = source;
    double bytes = (double)(l->bytes.reduce * l->plan->shard_group * z->filled_shard);
    struct dtp_draft draft;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, "bucket by rank");
    draft.op.stream = DTP_STREAM_REDUCE;
    if (in_place) {
        dtp_draft_use(&draft, source, DTP_UPDATE);
    } else {
        flat = dtp_draft_new(l, &draft, "bucket by rank", DTP_OWNER_REDUCE,
                             l->bytes.reduce * l->plan->shard_group * z->filled_shard, DTP_WRITE);
        dtp_draft_use(&draft, source, oversized ? DTP_READ | DTP_FREE | DTP_DEFER : DTP_READ);
    }
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_memory(l, &draft, (in_place ? 2 : 4) * bytes, in_place ? 1 : 2);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
    return flat;
}

static void scatter(struct dtp_lowering *l, dtp_buffer_id flat)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    uint64_t shard_bytes = l->bytes.reduce * z->filled_shard;
    struct dtp_draft draft;
    if (dtp_zero3_alone(l))
        return;
    dtp_draft_begin(l, &draft, DTP_OP_REDUCE_SCATTER, "bucket");
    draft.op.stream = DTP_STREAM_REDUCE;
    draft.op.group = z->group;
    dtp_draft_use(&draft, flat, DTP_UPDATE);
    draft.op.demand.sent_bytes = (double)(shard_bytes * (l->plan->shard_group - 1));
    draft.op.demand.bytes = (double)(shard_bytes * l->plan->shard_group);
    draft.op.demand.kernels = 1;
    dtp_draft_end(l, &draft);
}

/* This rank's slices become the partition's gradients, or are added to those of earlier micro-steps. */
void dtp_zero3_keep(struct dtp_lowering *l, dtp_buffer_id flat, uint64_t shard)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    bool temporary = flat.index != z->bucket.index;
    struct dtp_draft draft;
    if (l->plan->offload != DTP_OFFLOAD_NONE) {
        dtp_lower_host_gradients(l, DTP_STREAM_REDUCE, flat, shard);
        dtp_draft_begin(l, &draft, DTP_OP_FREE, "bucket by rank");
        draft.op.stream = DTP_STREAM_REDUCE;
        dtp_draft_use(&draft, temporary ? flat : DTP_NO_BUFFER, DTP_FREE | DTP_DEFER);
        if (draft.operand_count)
            dtp_draft_end(l, &draft);
        return;
    }
    dtp_draft_begin(l, &draft, l->micro_step ? DTP_OP_ACCUMULATE : DTP_OP_COPY_OUT, "gradients of the partition");
    draft.op.stream = DTP_STREAM_REDUCE;
    dtp_draft_use(&draft, z->grads, DTP_UPDATE);
    dtp_draft_use(&draft, flat, temporary ? DTP_READ | DTP_FREE | DTP_DEFER : DTP_READ);
    dtp_draft_memory(l, &draft, (double)(((l->micro_step ? 2 : 1) * l->bytes.grads + l->bytes.reduce) * shard), 1);
    draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
    dtp_draft_end(l, &draft);
}

void dtp_zero3_reduce(struct dtp_lowering *l)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    if (!z->filled)
        return;
    dtp_zero3_limit(l, &z->reduced, "reductions");
    if (dtp_zeropp_reduces(l->plan, l->cluster)) {
        dtp_zeropp_reduce(l);
    } else {
        dtp_buffer_id flat = lay_by_rank(l);
        scatter(l, flat);
        dtp_zero3_keep(l, flat, z->filled_shard);
    }
    dtp_zero3_pend(&z->reduced, l->last_op[DTP_STREAM_REDUCE]);
    z->filled = z->filled_shard = z->tensors = z->in_bucket_count = 0;
    z->oversized = DTP_NO_BUFFER;
}

static struct dtp_zero3_gradient gradient_of(const struct dtp_lowering *l, const struct dtp_lower_module *module,
                                             int part)
{
    const struct dtp_transformer *t = l->transformer;
    struct dtp_zero3_gradient gradient = {.elements = module->elements[part], .shard = module->shard[part]};
    if (module == &l->block && part < l->matrices)
        gradient.rows = l->matrix[part].out, gradient.columns = l->matrix[part].in;
    else if (module == &l->root && part != DTP_ROOT_VECTORS)
        gradient.rows = part == DTP_ROOT_POSITION ? t->positions : t->vocab, gradient.columns = t->hidden;
    return gradient;
}

void dtp_zero3_gradient_made(struct dtp_lowering *l, int part)
{
    struct dtp_lower_zero3 *z = dtp_lower_zero3_of(l);
    struct dtp_module_state *state = dtp_lower_state(l);
    const struct dtp_lower_module *module = l->layer == DTP_NO_LAYER ? &l->root : &l->block;
    uint64_t elements = module->elements[part], bucket = l->plan->deepspeed.reduce_bucket_size;
    if (l->role.fills) {
        dtp_zero3_tell(l, DTP_ZERO3_TOLD_GRADIENT + part);
        l->role.fills->overfull |= elements > bucket;
    } else {
        if (z->filled + elements > bucket)
            dtp_zero3_reduce(l);
        z->in_bucket[z->in_bucket_count++] = gradient_of(l, module, part);
        z->filled += elements;
        z->filled_shard += module->shard[part];
        z->tensors += module->tensors[part];
    }
    if (elements > bucket) {
        z->oversized = state->gradient[part];
    } else {
        struct dtp_draft draft;
        dtp_draft_begin(l, &draft, DTP_OP_COPY_IN, module->gradient_name[part]);
        draft.op.stream = DTP_STREAM_REDUCE;
        dtp_draft_use(&draft, z->bucket, DTP_UPDATE);
        dtp_draft_use(&draft, state->gradient[part], DTP_READ | DTP_FREE | DTP_DEFER);
        dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
        dtp_draft_memory(l, &draft, (double)((l->bytes.grads + l->bytes.reduce) * elements), 1);
        draft.op.demand.memory_kernel = DTP_KERNEL_FUSED;
        dtp_draft_end(l, &draft);
    }
    state->gradient[part] = DTP_NO_BUFFER;
}
