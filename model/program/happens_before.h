/* Which operations are certainly done when another starts: vector clocks (Mattern 1989) over the streams.
 *
 * An operation starts after the one before it on its stream, after its dependencies, after the collective before it in
 * its group, and after every DTP_OP_HOST_WAIT issued before it, for the issuing thread stood still until that was done.
 * As streams are FIFOs, the latest operation of each stream that is before an operation says it all: one number per
 * operation and stream. */
#ifndef DTP_HAPPENS_BEFORE_H
#define DTP_HAPPENS_BEFORE_H

#include "base/host_arena.h"
#include "program/program.h"

#include <assert.h>

/* at[s]: 1 + the latest operation of stream s that is done when this one is (itself on its own), 0: none. Behind the
 * streams stand zeros up to a whole number of vectors. No program comes near 2^31 operations, so that the highest bit
 * of a difference says which of two is later, and any processor compares vectors so. */
#define DTP_CLOCK_ENTRIES ((DTP_STREAM_COUNT + 3) / 4 * 4)
struct dtp_clock {
    _Alignas(16) uint32_t at[DTP_CLOCK_ENTRIES];
};
static_assert(DTP_PROGRAM_MAX_OPS < INT32_MAX, "clocks are compared by the highest bit of their difference");
/* Later than any operation. */
#define DTP_CLOCK_END ((uint32_t)INT32_MAX)

/* Whether all that `clock` holds by stream is at least what `uses` holds. Without a branch a stream. */
static inline bool dtp_clock_covers(const struct dtp_clock *clock, const struct dtp_clock *uses)
{
    uint32_t late = 0; /* its highest bit: that of a difference below 0 */
    for (int s = 0; s < DTP_CLOCK_ENTRIES; s++)
        late |= clock->at[s] - uses->at[s];
    return !(late >> 31);
}

/* Each stream's later one of both, which are two. */
static inline void dtp_clock_join(struct dtp_clock *restrict clock, const struct dtp_clock *restrict other)
{
    for (int s = 0; s < DTP_CLOCK_ENTRIES; s++)
        clock->at[s] = (clock->at[s] - other->at[s]) >> 31 ? other->at[s] : clock->at[s];
}

/* Clocks of the first `op_count` operations, from `arena`; NULL: no memory. Dependency `left_out` of the last of them
 * is taken as absent; DTP_NO_INDEX: none. */
struct dtp_clock *dtp_happens_before(const struct dtp_program *program, size_t op_count, uint32_t left_out,
                                     struct dtp_host_arena *arena);

#endif
