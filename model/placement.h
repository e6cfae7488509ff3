/* Liveness of buffers and their offsets in one arena. */
#ifndef DTP_PLACEMENT_H
#define DTP_PLACEMENT_H

#include "program.h"

/* Issue-order lifetime of a buffer: [first, last] operation indices, those that allocate and free it; persistent buffers
 * span the step. */
struct dtp_lifetime {
    uint32_t first, last;
};

struct dtp_placement {
    uint64_t *offset_bytes;      /* per buffer of DTP_SPACE_DEVICE; UINT64_MAX for others */
    struct dtp_lifetime *lifetime;
    uint64_t arena_bytes;        /* extent of the arena: what an executor must own */
    uint64_t live_peak_bytes;    /* largest sum of live bytes: no placement needs less */
    uint32_t live_peak_op;       /* operation at which it is reached */
    uint64_t live_peak_owner_bytes[DTP_OWNER_COUNT];
};

/* Caller frees with dtp_placement_release. Alignment 512 bytes. Greedy by size within lifetimes (Pisarchyk & Lee 2020);
 * overlapping lifetimes never share bytes. */
enum dtp_status dtp_program_place(const struct dtp_program *program, struct dtp_placement *out, struct dtp_faults *faults);
void dtp_placement_release(struct dtp_placement *placement);

#endif
