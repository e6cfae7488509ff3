/* Weights that rest in 4 bits start as those that the same seed draws wider, packed. */
#ifndef DTP_PACKED_WEIGHTS_H
#define DTP_PACKED_WEIGHTS_H

#include "bind/bind.h"

/* Packs all such weights that the binding holds, drawing them in pieces into memory of the device that is given back.
 * Waits for it.
 * DTP_BAD_INPUT: a program whose packed weights have no scales, or no whole blocks. */
enum dtp_status dtp_packed_weights_initialise(const struct dtp_binding *binding, uint64_t seed,
                                              struct dtp_faults *faults);
static inline bool dtp_packed_weights_are(const struct dtp_state_part *part)
{
    return part->kind == DTP_STATE_WEIGHTS && part->element == DTP_ELEMENT_INT8;
}

#endif
