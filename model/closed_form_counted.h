/* Memory and communication for a caller that has counted units and bytes of elements already: dtp_closed_form needs
 * both and counts once, which is a twentieth of its time. */
#ifndef DTP_CLOSED_FORM_COUNTED_H
#define DTP_CLOSED_FORM_COUNTED_H

#include "memory_parts.h"
#include "sharding.h"

struct dtp_counts {
    struct dtp_units units;
    struct dtp_element_bytes bytes;
};

static inline void dtp_counts_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                 const struct dtp_plan *plan, struct dtp_counts *out)
{
    dtp_units_count(transformer, cluster, plan, &out->units);
    dtp_element_bytes_count(plan, &out->bytes);
}

/* `parts` gets the record; NULL: none. */
void dtp_counted_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, const struct dtp_counts *counts, struct dtp_memory *out,
                        struct dtp_memory_parts *parts);
void dtp_counted_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                               const struct dtp_plan *plan, const struct dtp_counts *counts,
                               struct dtp_communication *out);

#endif
