/* Memory and communication for a caller that has counted units, bytes of elements and ZeRO-3's fetches already:
 * dtp_closed_form needs both and counts once, which is a twentieth of its time, and half of it under ZeRO-3. */
#ifndef DTP_CLOSED_FORM_COUNTED_H
#define DTP_CLOSED_FORM_COUNTED_H

#include "runtime/deepspeed/closed_form_deepspeed.h"
#include "closed/memory_parts.h"
#include "closed/sharding.h"

struct dtp_counts {
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    struct dtp_activations activations;
    struct dtp_block_places places; /* not of our executor's blocks */
    struct dtp_zero3_counts zero3;  /* of DeepSpeed's stage 3; others leave it unset */
};

static inline void dtp_counts_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                 const struct dtp_plan *plan, struct dtp_counts *out)
{
    dtp_units_count(transformer, cluster, plan, &out->units);
    dtp_element_bytes_count(plan, &out->bytes);
    dtp_activations_count(transformer, cluster, plan, &out->activations);
    if (plan->runtime->arena)
        return;
    dtp_block_places_count(transformer, cluster, plan, &out->places);
    if (!plan->runtime->fetches_modules || !dtp_plan_shards_params(plan))
        return;
    const struct dtp_activations *a = &out->activations;
    uint64_t tokens = dtp_bytes_product(plan->micro_batch, plan->sequence);
    const struct dtp_zero3_load load = {.tokens = tokens,
                                        .compute = out->bytes.compute,
                                        .grads = out->bytes.grads,
                                        .layer_all = dtp_bytes_product(tokens, a->layer_all),
                                        .layer_kept = dtp_bytes_product(tokens, a->layer_kept),
                                        .every = a->checkpoint_every,
                                        .stream = dtp_bytes_product(tokens, a->gradient),
                                        .sums = a->embedding_backward,
                                        .total = out->units.total,
                                        .cluster = cluster,
                                        .places = &out->places};
    dtp_zero3_count(transformer, plan, out->units.ranks, &load, &out->zero3);
}

/* `parts` gets the record; NULL: none. */
void dtp_counted_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, const struct dtp_counts *counts, struct dtp_memory *out,
                        struct dtp_memory_parts *parts);
void dtp_counted_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                               const struct dtp_plan *plan, const struct dtp_counts *counts,
                               struct dtp_communication *out);

#endif
