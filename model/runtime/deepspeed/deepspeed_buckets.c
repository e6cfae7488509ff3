#include "runtime/deepspeed/deepspeed_buckets.h"

struct buckets {
    uint64_t count, filled, size; /* elements: of the last one so far | of one at most */
};

static void add(struct buckets *b, const struct dtp_deepspeed_part *part)
{
    bool begins = part->elements && (!b->filled || b->filled + part->elements > b->size);
    b->count += begins;
    b->filled = (begins ? 0 : b->filled) + part->elements;
}

/* Of adapters alone, each matrix' A and B together, as backward goes through the matrices. */
static uint64_t adapters_count(const struct dtp_transformer *t, const struct dtp_deepspeed_parts *parts,
                               struct buckets *b)
{
    int order[DTP_ZERO3_PARTS], count = dtp_deepspeed_backward_order(parts, order);
    for (uint64_t layer = 0; layer < t->layers; layer++)
        for (int i = 0; i < count; i++)
            if (parts->adapter[order[i]])
                add(b, &parts->block[parts->adapter[order[i]]]);
    return b->count;
}

uint64_t dtp_buckets_count(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_deepspeed_parts parts;
    struct buckets b = {.size = plan->deepspeed.reduce_bucket_size};
    int order[DTP_ZERO3_PARTS];
    dtp_deepspeed_list_parts(t, plan, 1, &parts);
    if (dtp_plan_adapts(plan))
        return adapters_count(t, &parts, &b);
    int count = dtp_deepspeed_backward_order(&parts, order);
    add(&b, &parts.root[DTP_ZERO3_HEAD]);
    add(&b, &parts.root[DTP_ZERO3_VECTORS]);
    for (uint64_t layer = 0; layer < t->layers; layer++)
        for (int i = 0; i < count; i++)
            add(&b, &parts.block[order[i]]);
    add(&b, &parts.root[DTP_ZERO3_POSITION]);
    add(&b, &parts.root[DTP_ZERO3_EMBEDDING]);
    return b.count;
}
