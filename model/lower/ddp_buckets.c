#include "lower/ddp_buckets.h"

#include "plan/runtime_sizes.h"

#include <stdlib.h>

struct layout {
    struct dtp_lowering *l;
    struct dtp_ddp_buckets *buckets;
    uint64_t element_bytes, cap_bytes, before;
};

/* The next gradient that becomes ready. */
static void place(struct layout *layout, struct dtp_module_state *state, const struct dtp_lower_module *module,
                  int part)
{
    struct dtp_ddp_buckets *buckets = layout->buckets;
    uint64_t bytes = layout->element_bytes * module->elements[part], limit = layout->cap_bytes;
    if (!bytes || !module->trained[part])
        return;
    if (buckets->count <= 1 && limit == DTP_DDP_BUCKET_BYTES)
        limit = DTP_DDP_FIRST_BUCKET_BYTES;
    if (!buckets->count || buckets->bucket[buckets->count - 1].bytes >= limit)
        buckets->bucket[buckets->count++] = (struct dtp_ddp_bucket){.before = layout->before};
    struct dtp_ddp_bucket *bucket = &buckets->bucket[buckets->count - 1];
    bucket->bytes += bytes;
    bucket->parts++;
    layout->before += bytes;
    state->bucket[part] = buckets->count - 1;
}

/* Order of readiness: lower_backward.c's. */
static void place_all(struct layout *layout)
{
    struct dtp_lowering *l = layout->l;
    uint64_t layers = l->transformer->layers;
    struct dtp_module_state *root = &l->state[layers];
    place(layout, root, &l->root, DTP_ROOT_HEAD);
    place(layout, root, &l->root, DTP_ROOT_VECTORS);
    for (uint64_t left = layers; left > 0; left--) {
        int order[DTP_MAX_PARTS], parts = dtp_lower_ready_order(l, left - 1, order);
        for (int i = 0; i < parts; i++)
            place(layout, &l->state[left - 1], dtp_lower_module_at(l, left - 1), order[i]);
    }
    place(layout, root, &l->root, DTP_ROOT_POSITION);
    place(layout, root, &l->root, DTP_ROOT_EMBEDDING);
}

enum dtp_status dtp_ddp_buckets_lay_out(struct dtp_lowering *l, uint64_t element_bytes, uint64_t cap_bytes,
                                        struct dtp_ddp_buckets *out)
{
    size_t most = (l->transformer->layers + 1) * DTP_MAX_PARTS;
    *out = (struct dtp_ddp_buckets){.bucket = calloc(most, sizeof *out->bucket)};
    if (!out->bucket)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    struct layout layout = {l, out, element_bytes, cap_bytes, 0};
    place_all(&layout);
    return DTP_OK;
}

void dtp_ddp_buckets_release(struct dtp_ddp_buckets *buckets)
{
    free(buckets->bucket);
    *buckets = (struct dtp_ddp_buckets){0};
}
