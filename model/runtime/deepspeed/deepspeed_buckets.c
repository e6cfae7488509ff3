#include "runtime/deepspeed/deepspeed_buckets.h"

#include "runtime/deepspeed/zeropp.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Sums of a gradient that fp32 is made of are cast on the device; stage 3 brings them up again as they are in any case.
 */
static uint64_t carried_at_a_time(const struct dtp_buckets *b, const struct dtp_transformer *t)
{
    const struct dtp_plan *plan = b->plan;
    if (plan->offload == DTP_OFFLOAD_NONE || (b->grads >= 4 && !b->third))
        return 0;
    if (plan->offload == DTP_OFFLOAD_NVME && b->grads < 4)
        return UINT64_MAX;
    uint64_t largest = dtp_deepspeed_largest_tensor(t, plan);
    return b->third ? dtp_divide_up(largest, b->ranks) : largest;
}

void dtp_buckets_begin(struct dtp_buckets *b, const struct dtp_transformer *transformer,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan, uint64_t ranks,
                       uint64_t total_elements, uint64_t gradient_bytes)
{
    *b = (struct dtp_buckets){.plan = plan, .cluster = cluster, .grads = gradient_bytes, .ranks = ranks};
    b->third = plan->strategy == DTP_ZERO3;
    b->keeps = plan->strategy == DTP_ZERO1;
    b->several = plan->accumulate > 1;
    if (!cluster)
        return;
    b->quantized = b->third && dtp_zeropp_reduces(plan, cluster);
    b->largest = carried_at_a_time(b, transformer);
    bool kept = plan->strategy == DTP_ZERO2 && plan->offload == DTP_OFFLOAD_NONE;
    b->partition = kept ? dtp_divide_up(total_elements, ranks) : 0;
}

/* Of a bucket that is reduced tensor by tensor (zeropp.h): a gradient as int4 with its scales and those of the others,
 * or what is reduce-scattered instead; and when it is on its way to the host. */
static uint64_t exchanged_bytes(const struct dtp_buckets *b, const struct dtp_deepspeed_part *part, uint64_t *first)
{
    struct dtp_zeropp_exchange e;
    uint64_t carried = 4 * smaller(part->shard, b->largest), wide = b->grads * part->shard * b->ranks;
    if (!dtp_zeropp_exchanges(b->cluster, part->rows, part->columns, &e)) {
        *first = wide;
        return wide + carried;
    }
    *first = e.node_bytes + e.node_scale_bytes;
    return larger(2 * *first, b->grads * part->shard + carried);
}

static void close_bucket(struct dtp_buckets *b, uint64_t next, struct dtp_bucket_close *close)
{
    bool oversized = b->filled > b->plan->deepspeed.reduce_bucket_size, first = b->count++ == 0;
    bool in_place = b->third && !b->quantized && b->tensors == 1 && b->filled % b->ranks == 0;
    uint64_t own = b->third ? b->filled_shard
                            : dtp_divide_up(b->reduced + b->filled, b->ranks) - dtp_divide_up(b->reduced, b->ranks);
    uint64_t alone = oversized && !b->keeps ? b->filled : 0;
    *close = (struct dtp_bucket_close){.next = b->keeps ? 0 : next, .made = b->keeps && !b->several ? b->made : 0};
    close->carried = b->quantized ? 0 : smaller(own, b->largest);
    close->partition = first || b->several ? 0 : b->partition;
    if (b->quantized)
        close->copied = b->exchanged;
    else
        close->copied = in_place ? 0 : b->third ? b->ranks * b->filled_shard : b->filled;
    /* an oversized gradient goes when it has been copied, and only then what comes behind the reduction is made */
    uint64_t behind = 4 * close->carried + b->grads * (first && !b->several ? b->partition : 0);
    if (in_place) {
        close->next += alone;
    } else if (b->grads * alone > behind + (b->quantized ? close->copied - b->exchanged_first : 0)) {
        close->next += alone;
        close->carried = 0;
        close->copied = b->quantized ? b->exchanged_first : close->copied;
    } else if (first && !b->several) {
        close->partition = b->partition;
    }
    close->bytes = (b->quantized ? 1 : b->grads) * close->copied +
                   b->grads * (close->next + close->made + close->partition) + 4 * close->carried;
    b->reduced += b->filled;
    b->filled = b->filled_shard = b->tensors = b->exchanged = 0;
}

bool dtp_buckets_add(struct dtp_buckets *b, const struct dtp_deepspeed_part *part, struct dtp_bucket_close *close)
{
    if (!part->elements)
        return false;
    b->made += part->elements;
    bool closes = b->filled && b->filled + part->elements > b->plan->deepspeed.reduce_bucket_size;
    if (closes)
        close_bucket(b, part->elements, close);
    b->filled += part->elements;
    b->filled_shard += part->shard;
    b->tensors += part->tensors;
    if (b->quantized)
        b->exchanged = larger(b->exchanged, exchanged_bytes(b, part, &b->exchanged_first));
    return closes;
}

bool dtp_buckets_end(struct dtp_buckets *b, struct dtp_bucket_close *close)
{
    if (!b->filled)
        return false;
    close_bucket(b, 0, close);
    return true;
}

uint64_t dtp_buckets_count(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_deepspeed_parts parts;
    struct dtp_bucket_close close;
    struct dtp_buckets b;
    int order[DTP_ZERO3_PARTS];
    dtp_deepspeed_list_parts(t, plan, 1, &parts);
    int count = dtp_deepspeed_backward_order(&parts, order);
    dtp_buckets_begin(&b, t, NULL, plan, 1, 0, 0);
    dtp_buckets_add(&b, &parts.root[DTP_ZERO3_HEAD], &close);
    dtp_buckets_add(&b, &parts.root[DTP_ZERO3_VECTORS], &close);
    for (uint64_t layer = 0; layer < t->layers; layer++)
        for (int i = 0; i < count; i++)
            dtp_buckets_add(&b, &parts.block[order[i]], &close);
    dtp_buckets_add(&b, &parts.root[DTP_ZERO3_POSITION], &close);
    dtp_buckets_add(&b, &parts.root[DTP_ZERO3_EMBEDDING], &close);
    dtp_buckets_end(&b, &close);
    return b.count;
}
