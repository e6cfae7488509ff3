#include "lower/ddp_buckets.h"

#include "plan/runtime_sizes.h"

#include <stdlib.h>
#include <string.h>

/* Buckets of one dtype; `open` takes the next gradient. */
struct filling {
    uint64_t element_bytes;
    uint32_t open, count;
};

struct layout {
    struct dtp_lowering *l;
    struct dtp_ddp_buckets *buckets;
    uint64_t cap_bytes;
    struct filling layers, ends; /* `ends` where embedding and head have gradients of another dtype */
    bool mixed;
    uint32_t *place, placed; /* of a bucket by when it was opened: where it stands */
};

static bool is_full(const struct layout *layout, const struct filling *of)
{
    uint64_t limit = layout->cap_bytes;
    if (of->count <= 1 && limit == DTP_DDP_BUCKET_BYTES)
        limit = DTP_DDP_FIRST_BUCKET_BYTES;
    return layout->buckets->bucket[of->open].bytes >= limit;
}

/* The next gradient that becomes ready. */
static void place(struct layout *layout, struct dtp_module_state *state, const struct dtp_lower_module *module,
                  int part)
{
    struct dtp_ddp_buckets *buckets = layout->buckets;
    struct filling *of = layout->mixed && module == &layout->l->root ? &layout->ends : &layout->layers;
    uint64_t bytes = of->element_bytes * module->elements[part];
    if (!bytes || !module->trained[part])
        return;
    if (!of->count || layout->place[of->open] != UINT32_MAX) {
        of->open = buckets->count++, of->count++;
        layout->place[of->open] = UINT32_MAX;
    }
    struct dtp_ddp_bucket *bucket = &buckets->bucket[of->open];
    bucket->bytes += bytes;
    bucket->parts++;
    state->bucket[part] = of->open;
    if (is_full(layout, of))
        layout->place[of->open] = layout->placed++;
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

static void leave_open(struct layout *layout, const struct filling *of)
{
    if (of->count && layout->place[of->open] == UINT32_MAX)
        layout->place[of->open] = layout->placed++;
}

/* From the order in which buckets were opened to that in which they stand. */
static enum dtp_status put_in_order(struct layout *layout)
{
    struct dtp_lowering *l = layout->l;
    struct dtp_ddp_buckets *buckets = layout->buckets;
    struct dtp_ddp_bucket *opened = calloc((size_t)buckets->count + 1, sizeof *opened);
    uint64_t before = 0;
    if (!opened)
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    memcpy(opened, buckets->bucket, buckets->count * sizeof *opened);
    for (uint32_t i = 0; i < buckets->count; i++)
        buckets->bucket[layout->place[i]] = opened[i];
    free(opened);
    for (uint32_t i = 0; i < buckets->count; i++) {
        buckets->bucket[i].before = before;
        before += buckets->bucket[i].bytes;
    }
    for (uint64_t i = 0; i <= l->transformer->layers; i++) {
        const struct dtp_lower_module *module = dtp_lower_module_at(l, i);
        for (int part = 0; part < module->parts; part++)
            if (module->trained[part])
                l->state[i].bucket[part] = layout->place[l->state[i].bucket[part]];
    }
    return DTP_OK;
}

enum dtp_status dtp_ddp_buckets_lay_out(struct dtp_lowering *l, uint64_t element_bytes, uint64_t end_bytes,
                                        uint64_t cap_bytes, struct dtp_ddp_buckets *out)
{
    size_t most = (l->transformer->layers + 1) * DTP_MAX_PARTS;
    *out = (struct dtp_ddp_buckets){.bucket = calloc(most, sizeof *out->bucket)};
    uint32_t *places = calloc(most, sizeof *places);
    if (!out->bucket || !places) {
        free(places);
        return dtp_fault(l->faults, DTP_ENVIRONMENT, NULL, 0, "no memory to lower the step");
    }
    struct layout layout = {.l = l,
                            .buckets = out,
                            .cap_bytes = cap_bytes,
                            .mixed = end_bytes != element_bytes,
                            .layers.element_bytes = element_bytes,
                            .ends.element_bytes = end_bytes,
                            .place = places};
    place_all(&layout);
    /* std::unordered_map of libstdc++ walks from the dtype that came last: the layers', as the head comes first (tied
     * ones have no such adapters, adapter_rules.c) */
    leave_open(&layout, &layout.layers);
    leave_open(&layout, &layout.ends);
    enum dtp_status status = put_in_order(&layout);
    free(places);
    return status;
}

void dtp_ddp_buckets_release(struct dtp_ddp_buckets *buckets)
{
    free(buckets->bucket);
    *buckets = (struct dtp_ddp_buckets){0};
}
