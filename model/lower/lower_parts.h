/* Rows between stages of which a tensor parallel rank sends and holds a part: DeepSpeed's pipeline engine
 * (lower_parts.c). */
#ifndef DTP_LOWER_PARTS_H
#define DTP_LOWER_PARTS_H

#include "lower/lowering.h"

/* A stage whose runtime copies_passes, and of whose rows a tensor parallel rank sends its part. */
static inline bool dtp_lower_copies_parts(const struct dtp_lowering *l)
{
    return dtp_lower_copies(l) && dtp_plan_scatters_sends(l->plan);
}

/* Bytes of a part of the rows between stages; a copy in fresh memory, `access` that of the copied rows. */
uint64_t dtp_lower_part_bytes(const struct dtp_lowering *l);
dtp_buffer_id dtp_lower_copy(struct dtp_lowering *l, const char *name, dtp_buffer_id rows, uint32_t access,
                             uint64_t bytes, enum dtp_owner owner);
/* Where dtp_lower_copies_parts: all rows of a part that came, of activations, or of the gradient, before which the
 * flight's result is gathered again; the part of rows that a pass made, which lets them go. */
dtp_buffer_id dtp_lower_whole_rows(struct dtp_lowering *l, dtp_buffer_id standing);
dtp_buffer_id dtp_lower_whole_gradient(struct dtp_lowering *l, dtp_buffer_id standing);
dtp_buffer_id dtp_lower_part_of(struct dtp_lowering *l, dtp_buffer_id rows);

#endif
