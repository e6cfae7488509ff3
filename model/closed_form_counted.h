/* Memory and communication for a caller that has counted units, bytes of elements and ZeRO-3's fetches already:
 * dtp_closed_form needs both and counts once, which is a twentieth of its time, and half of it under ZeRO-3. */
#ifndef DTP_CLOSED_FORM_COUNTED_H
#define DTP_CLOSED_FORM_COUNTED_H

#include "closed_form_deepspeed.h"
#include "memory_parts.h"
#include "sharding.h"

struct dtp_counts {
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    struct dtp_zero3_counts zero3; /* of DeepSpeed's stage 3; others leave it unset */
};

static inline void dtp_counts_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                 const struct dtp_plan *plan, struct dtp_counts *out)
{
    dtp_units_count(transformer, cluster, plan, &out->units);
    dtp_element_bytes_count(plan, &out->bytes);
    if (plan->runtime == DTP_RUNTIME_DEEPSPEED && dtp_plan_shards_params(plan))
        dtp_zero3_count(transformer, plan, out->units.ranks, &out->zero3);
}

/* `parts` gets the record; NULL: none. */
void dtp_counted_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, const struct dtp_counts *counts, struct dtp_memory *out,
                        struct dtp_memory_parts *parts);
void dtp_counted_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                               const struct dtp_plan *plan, const struct dtp_counts *counts,
                               struct dtp_communication *out);

#endif
