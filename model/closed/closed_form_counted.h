/* Memory and communication for a caller that has counted units, bytes of elements and what the runtime counts besides
 * (ZeRO-3's fetches) already: dtp_closed_form needs both and counts once, which is a twentieth of its time, and half of
 * it under ZeRO-3. */
#ifndef DTP_CLOSED_FORM_COUNTED_H
#define DTP_CLOSED_FORM_COUNTED_H

#include "closed/memory_parts.h"
#include "closed/activations.h"
#include "closed/block_places.h"
#include "closed/sharding.h"

#include <stddef.h>

#define DTP_OWN_COUNTS_BYTES 640

struct dtp_counts {
    struct dtp_units units;
    struct dtp_element_bytes bytes;
    struct dtp_activations activations;
    struct dtp_block_places places; /* unset where the runtime weighs its own blocks */
    /* A struct of the runtime's, which alone looks at it; unset where it counts nothing. It has a place here, for to
     * allocate one would take longer than the closed form. */
    _Alignas(max_align_t) unsigned char own[DTP_OWN_COUNTS_BYTES];
};

void dtp_counts_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                   const struct dtp_plan *plan, struct dtp_counts *out);

/* `parts` gets the record; NULL: none. */
void dtp_counted_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, const struct dtp_counts *counts, struct dtp_memory *out,
                        struct dtp_memory_parts *parts);
void dtp_counted_communication(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                               const struct dtp_plan *plan, const struct dtp_counts *counts,
                               struct dtp_communication *out);

#endif
