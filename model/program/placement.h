/* Liveness of buffers and their offsets in one arena. */
#ifndef DTP_PLACEMENT_H
#define DTP_PLACEMENT_H

#include "program/program.h"

/* Issue-order lifetime of a buffer: [first, last] operation indices, those that allocate and free it; persistent
 * buffers span the step. DTP_NO_INDEX, 0: never allocated. */
struct dtp_lifetime {
    uint32_t first, last;
};

struct dtp_placement {
    uint64_t *offset_bytes; /* per buffer; UINT64_MAX where it is not on the device or never allocated */
    struct dtp_lifetime *lifetime;
    uint64_t arena_bytes;     /* extent of the arena: what an executor must own */
    uint64_t live_peak_bytes; /* largest sum of live device bytes in issue order: no placement needs less */
    uint32_t live_peak_op;    /* first operation at which it is reached */
    uint64_t live_peak_owner_bytes[DTP_OWNER_COUNT];
};

/* Of a program that dtp_program_verify accepts. Caller releases *out. Offsets are multiples of DTP_PLACEMENT_ALIGNMENT.
 *
 * Buffers whose lifetimes overlap never share bytes, nor do buffers of different pools, for the verifier proves reuse
 * within a pool only. What is freed with DTP_DEFER stays taken until all buffers that its pool hands out from then on
 * are first written after its users are done. So whoever runs a verified program at these offsets sees no byte
 * overwritten that is still to be read. DTP_BAD_INPUT where buffers sum to 2^63 bytes or more. About linear in
 * operations, operands and buffers. */
#define DTP_PLACEMENT_ALIGNMENT 512u
enum dtp_status dtp_program_place(const struct dtp_program *program, struct dtp_placement *out,
                                  struct dtp_faults *faults);
/* The same in an arena close to the live peak, in quadratic time (4 s for 42,000 buffers): for those who own one. */
enum dtp_status dtp_program_place_tight(const struct dtp_program *program, struct dtp_placement *out,
                                        struct dtp_faults *faults);
void dtp_placement_release(struct dtp_placement *placement);

#endif
