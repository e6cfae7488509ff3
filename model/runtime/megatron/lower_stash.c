/* Where all passes are one CUDA graph, what experts keep for backward lies in buffers of fixed size, of which a copy of
 * the rows that there are is stashed in pages behind the experts' products, and put back before their backward
 * (transformer/moe/paged_stash.py, moe_paged_stash). Both are kernels of a stream beside the computing one, which
 *
 *   forward    begins behind the layer's experts, and is through before the next layer's
 *   backward   begins behind the experts of the next layer that has some, of the last such layer at its own, and is
 *              through before the layer's own
 *
 * and moves each byte twice. The last layer's is left where it is when its backward is what comes next. That buffers
 * and pages are larger than the rows, by factors that a recipe chooses, is not counted. */
#include "runtime/megatron/lower_stash.h"

#include "plan/graph_modules.h"

#include <assert.h>

/* A tensor's page_record.zero_, spilled_to_host.zero_, copy and free_list_head.copy_, or copy and free_list_tail.copy_;
 * of rows by columns and their scales, what the activation is made of, weights, and its result and scales. */
#define STASHED_TENSORS 6
#define STASHING_KERNELS (4 * STASHED_TENSORS)
#define RELOADING_KERNELS (2 * STASHED_TENSORS)

static bool stashes(const struct dtp_lowering *l)
{
    return l->tensors.kind.experts && !l->recompute && dtp_plan_fuses_experts(l->plan, l->cluster);
}

/* Of what the experts' products and activation keep. */
static uint64_t stashed_bytes(const struct dtp_lowering *l)
{
    static const enum dtp_layer_tensor kept[] = {DTP_TENSOR_PERMUTED, DTP_TENSOR_GATE, DTP_TENSOR_UP,
                                                 DTP_TENSOR_PRODUCT};
    uint64_t saved = dtp_lower_checkpointed(l, l->layer) ? l->tensors.kept : dtp_lower_saved(l), bytes = 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        bytes += saved >> kept[i] & 1 ? l->tensor_bytes[kept[i]] : 0;
    return bytes;
}

/* Whether one of the chunk's layers from `first` to before `end` has experts. */
static bool has_experts(const struct dtp_lowering *l, uint64_t first, uint64_t end)
{
    while (first < end && dtp_lower_mlp(l, first) != DTP_LAYER_EXPERTS)
        first++;
    return first < end;
}

/* Whether no layer with experts comes behind this one in forward. */
static bool is_last(const struct dtp_lowering *l)
{
    return !has_experts(l, l->layer + 1u, l->chunk->first + l->chunk->layers);
}

/* Whether the micro-batch's backward through the chunk follows its forward at once. */
static bool turns(const struct dtp_lowering *l)
{
    const struct dtp_pass *pass = l->pass, *first = l->role.passes, *end = first + l->role.pass_count;
    const struct dtp_pass *other = pass->kind == DTP_PASS_FORWARD ? pass + 1 : pass - 1;
    return other >= first && other < end && other->kind != pass->kind && other->micro_batch == pass->micro_batch &&
           other->chunk == pass->chunk;
}

static void copy(struct dtp_lowering *l, const char *name, uint32_t kernels)
{
    struct dtp_draft draft;
    double bytes = 2 * (double)stashed_bytes(l);
    if (bytes <= 0)
        return;
    dtp_draft_begin(l, &draft, DTP_OP_COPY_OUT, name);
    draft.op.stream = DTP_STREAM_COPY;
    dtp_draft_after(&draft, l->last_op[DTP_STREAM_COMPUTE]);
    dtp_draft_memory(l, &draft, bytes, kernels);
    dtp_draft_end(l, &draft);
}

void dtp_megatron_before_experts(struct dtp_lowering *l, bool backward)
{
    if (!stashes(l))
        return;
    if (backward && is_last(l) && !turns(l))
        copy(l, "experts' tensors back", RELOADING_KERNELS);
    assert(l->awaited.index == DTP_NO_INDEX); /* rows that came were put in the order of experts */
    l->awaited = l->last_op[DTP_STREAM_COPY];
}

/* All layers of experts keep as much. */
void dtp_megatron_after_experts(struct dtp_lowering *l, bool backward)
{
    if (!stashes(l))
        return;
    if (backward && has_experts(l, l->chunk->first, l->layer))
        copy(l, "experts' tensors back", RELOADING_KERNELS);
    else if (!backward && !(is_last(l) && turns(l)))
        copy(l, "experts' tensors", STASHING_KERNELS);
}
