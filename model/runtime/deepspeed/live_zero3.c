#include "runtime/deepspeed/live_zero3.h"

#include "base/bytes.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Of the tensors of a layer, or of the root. */
struct sizes {
    uint64_t elements[DTP_ZERO3_PARTS], shard[DTP_ZERO3_PARTS], tensors[DTP_ZERO3_PARTS];
};

/* Tensors gathered in one collective, as lower_zero3.c has them; flat_bytes 0: one, straight into its weight. */
struct fetch {
    uint32_t first, count, unused;
    bool copied;
    uint64_t flat_bytes;
};
struct entry {
    uint32_t layer;
    int part;
};

struct live {
    struct sizes of[2]; /* of a layer, of the root */
    struct dtp_zero3_shape shape;
    struct dtp_plan plan;
    struct dtp_element_bytes bytes;
    uint64_t largest, ranks; /* largest: of the tensors that gradients are carried one by one, elements of a rank */
    bool uploads, last;      /* fetches come from the host; the micro-step at hand is the last */
    bool open, leaves;       /* a use has not ended; the bytes of some that have are to go */
    uint64_t leaving_bytes;
    uint64_t filled, filled_shard, tensors; /* in the bucket */
    struct fetch *fetches;
    struct entry *entries;
    uint32_t *fetch_of; /* per tensor: its newest fetch */
    uint32_t fetch_count, entry_count;
    struct dtp_live_walk *walk;
    struct dtp_zero3_walk fetching; /* last: cleared as far as it is used, each micro-step */
};

static uint64_t layer_of(uint64_t index, const struct live *live)
{
    return index < live->shape.layers ? index : DTP_NO_LAYER;
}

static const struct sizes *sizes_at(const struct live *live, uint64_t layer)
{
    return &live->of[layer >= live->shape.layers];
}

static uint32_t *fetch_of(const struct live *live, uint64_t layer, int part)
{
    return &live->fetch_of[layer * DTP_ZERO3_PARTS + (uint64_t)part];
}

/* ---- fetches ----------------------------------------------------------------------------------------------------- */

static void gather(struct live *live, struct fetch *fetch)
{
    const struct entry *entry = &live->entries[fetch->first];
    uint64_t shard = 0;
    for (uint32_t i = 0; i < fetch->count; i++)
        shard += sizes_at(live, entry[i].layer)->shard[entry[i].part];
    uint64_t bytes = live->bytes.compute * shard;
    dtp_live_stand(live->walk, layer_of(entry->layer, live));
    if (live->uploads)
        dtp_live_come(live->walk, DTP_OWNER_GATHER, DTP_STREAM_COPY, bytes);
    fetch->flat_bytes = fetch->count > 1 ? live->ranks * bytes : 0;
    dtp_live_come(live->walk, fetch->flat_bytes ? DTP_OWNER_GATHER : DTP_OWNER_WEIGHTS, DTP_STREAM_COPY,
                  live->ranks * bytes);
    if (live->uploads)
        dtp_live_go(live->walk, DTP_OWNER_GATHER, DTP_STREAM_COPY, bytes);
}

static void take_all(struct live *live)
{
    struct dtp_zero3_tensor tensor;
    uint32_t from = live->fetch_count;
    while (dtp_zero3_take(&live->fetching, &tensor)) {
        if (tensor.starts)
            live->fetches[live->fetch_count++] = (struct fetch){.first = live->entry_count};
        struct fetch *fetch = &live->fetches[live->fetch_count - 1];
        *fetch_of(live, tensor.layer, tensor.part) = live->fetch_count - 1;
        live->entries[live->entry_count++] = (struct entry){(uint32_t)tensor.layer, tensor.part};
        fetch->count++;
        fetch->unused++;
    }
    for (uint32_t i = from; i < live->fetch_count; i++)
        gather(live, &live->fetches[i]);
}

static void await(struct live *live, const struct dtp_zero3_tensor *used)
{
    if (!dtp_zero3_awaits(&live->fetching))
        return;
    struct fetch *fetch = &live->fetches[*fetch_of(live, used->layer, used->part)];
    for (uint32_t i = fetch->first; !fetch->copied && fetch->flat_bytes && i < fetch->first + fetch->count; i++) {
        const struct entry *entry = &live->entries[i];
        dtp_live_stand(live->walk, layer_of(entry->layer, live));
        dtp_live_come(live->walk, DTP_OWNER_WEIGHTS, DTP_STREAM_COPY,
                      live->bytes.compute * sizes_at(live, entry->layer)->elements[entry->part]);
    }
    fetch->copied = true;
    if (--fetch->unused == 0)
        dtp_live_go(live->walk, DTP_OWNER_GATHER, DTP_STREAM_COPY, fetch->flat_bytes);
}

static void end_use(struct live *live)
{
    const struct dtp_zero3_tensor *used = &live->fetching.at_hand;
    if (!live->open)
        return;
    live->open = false;
    if (!dtp_zero3_end(&live->fetching))
        return;
    const struct sizes *sizes = sizes_at(live, used->layer);
    bool flat = live->fetches[*fetch_of(live, used->layer, used->part)].flat_bytes;
    live->leaving_bytes +=
        live->bytes.compute * (flat ? sizes->elements[used->part] : live->ranks * sizes->shard[used->part]);
}

static void unfetch(struct live *live)
{
    end_use(live);
    dtp_live_go(live->walk, DTP_OWNER_WEIGHTS, DTP_STREAM_COPY, live->leaving_bytes);
    live->leaving_bytes = 0;
}

static bool step_on(struct live *live, struct dtp_zero3_tensor *used)
{
    if (!dtp_zero3_begin(&live->fetching, used))
        return false;
    live->open = true;
    take_all(live);
    await(live, used);
    return true;
}

static void fetch_part(struct live *live, uint64_t layer, int part)
{
    struct dtp_zero3_tensor used;
    end_use(live);
    while (step_on(live, &used) && (used.layer != layer || used.part != part))
        unfetch(live);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void pass(struct live *live, enum dtp_owner owner, uint64_t bytes)
{
    dtp_live_come(live->walk, owner, DTP_STREAM_REDUCE, bytes);
    dtp_live_go(live->walk, owner, DTP_STREAM_REDUCE, bytes);
}

/* This rank's slices go down, tensor by tensor: sums of several micro-steps in the gradients' format, which come up
 * again, in the last one all in fp32 (lower_infinity.h). */
static void carry(struct live *live)
{
    uint64_t own = live->filled_shard, at_a_time = own < live->largest ? own : live->largest;
    bool on_nvme = live->plan.offload == DTP_OFFLOAD_NVME;
    pass(live, DTP_OWNER_REDUCE, live->bytes.grads * at_a_time);
    if (live->last && live->bytes.grads < 4)
        pass(live, DTP_OWNER_WORKSPACE, 4 * (on_nvme ? own : at_a_time));
}

static void reduce(struct live *live)
{
    if (!live->filled)
        return;
    bool in_place = live->tensors == 1 && live->filled % live->ranks == 0;
    uint64_t laid = in_place ? 0 : live->bytes.reduce * live->ranks * live->filled_shard;
    dtp_live_come(live->walk, DTP_OWNER_REDUCE, DTP_STREAM_REDUCE, laid);
    if (live->plan.offload != DTP_OFFLOAD_NONE)
        carry(live);
    dtp_live_go(live->walk, DTP_OWNER_REDUCE, DTP_STREAM_REDUCE, laid);
    live->filled = live->filled_shard = live->tensors = 0;
}

static void take_gradient(struct live *live, uint64_t layer, int part)
{
    const struct sizes *sizes = sizes_at(live, layer);
    if (live->filled + sizes->elements[part] > live->plan.deepspeed.reduce_bucket_size)
        reduce(live);
    live->filled += sizes->elements[part];
    live->filled_shard += sizes->shard[part];
    live->tensors += sizes->tensors[part];
}

/* ---- what is told ------------------------------------------------------------------------------------------------ */

static void begin(struct live *live, bool last)
{
    live->last = last;
    live->open = false;
    live->leaving_bytes = 0;
    live->fetch_count = live->entry_count = 0;
    live->filled = live->filled_shard = live->tensors = 0;
    dtp_zero3_start(&live->fetching, &live->shape, &live->plan, true);
}

static void end(struct live *live)
{
    struct dtp_zero3_tensor used;
    unfetch(live);
    while (step_on(live, &used))
        unfetch(live);
    reduce(live);
}

static void said(void *context, uint8_t what, uint64_t layer, uint32_t micro_step, struct dtp_live_walk *walk)
{
    (void)micro_step;
    struct live *live = context;
    uint64_t index = layer == DTP_NO_LAYER ? live->shape.layers : layer;
    live->walk = walk;
    if (what >= DTP_ZERO3_TOLD_GRADIENT)
        take_gradient(live, index, what - DTP_ZERO3_TOLD_GRADIENT);
    else if (what >= DTP_ZERO3_TOLD_FETCH)
        fetch_part(live, index, what - DTP_ZERO3_TOLD_FETCH);
    else if (what == DTP_ZERO3_TOLD_UNFETCH)
        unfetch(live);
    else if (what == DTP_ZERO3_TOLD_END)
        end(live);
    else
        begin(live, what == DTP_ZERO3_TOLD_BEGIN_LAST);
}

bool dtp_zero3_may_tell(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    const struct dtp_deepspeed_plan *d = &plan->deepspeed;
    return plan->shard_group > 1 && !transformer->experts && !d->zero_quantized_weights &&
           !d->zero_quantized_gradients && d->zero_hpz_partition_size <= 1;
}

static void measure(struct sizes *sizes, const struct dtp_lower_module *module)
{
    for (int part = 0; part < module->parts; part++) {
        sizes->elements[part] = module->elements[part];
        sizes->shard[part] = module->shard[part];
        sizes->tensors[part] = module->tensors[part];
    }
}

enum dtp_status dtp_zero3_teller(const struct dtp_lowering *l, const struct dtp_zero3_shape *shape,
                                 struct dtp_live_teller *out)
{
    const uint64_t tensors = (shape->layers + 1) * DTP_ZERO3_PARTS, uses = 3 * tensors; /* of a micro-step at most */
    struct live *live = out->context;
    if (!live)
        live = malloc(sizeof *live + uses * (sizeof *live->fetches + sizeof *live->entries) +
                      tensors * sizeof *live->fetch_of);
    if (!live)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    memset(live, 0, offsetof(struct live, fetching));
    live->fetches = (struct fetch *)(live + 1);
    live->entries = (struct entry *)(live->fetches + uses);
    live->fetch_of = (uint32_t *)(live->entries + uses);
    live->shape = *shape;
    live->plan = *l->plan;
    live->bytes = l->bytes;
    live->ranks = l->plan->shard_group;
    live->largest = dtp_divide_up(dtp_lower_largest_tensor(l), live->ranks);
    live->uploads = l->plan->offload == DTP_OFFLOAD_PARAMS || l->plan->offload == DTP_OFFLOAD_NVME;
    measure(&live->of[0], &l->block);
    measure(&live->of[1], &l->root);
    *out = (struct dtp_live_teller){said, live};
    return DTP_OK;
}

void dtp_zero3_tell(struct dtp_lowering *l, int what)
{
    struct dtp_live_runs *runs = l->role.fills;
    runs->overfull |= !dtp_live_runs_tell(runs, (uint8_t)what, l->layer, l->micro_step);
}
