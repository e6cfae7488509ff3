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

/* at[s]: 1 + the latest operation of stream s that is done when this one is (itself on its own), 0: none. */
struct dtp_clock {
    uint32_t at[DTP_STREAM_COUNT];
};

/* Whether all that `clock` holds by stream is at least what `uses` holds. Without a branch a stream. */
static inline bool dtp_clock_covers(const struct dtp_clock *clock, const struct dtp_clock *uses)
{
    int32_t late = 0;
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        late |= uses->at[s] > clock->at[s];
    return !late;
}

/* Each stream's later one of both. */
static inline void dtp_clock_join(struct dtp_clock *clock, const struct dtp_clock *other)
{
    for (int s = 0; s < DTP_STREAM_COUNT; s++)
        clock->at[s] = other->at[s] > clock->at[s] ? other->at[s] : clock->at[s];
}

/* Clocks of the first `op_count` operations, from `arena`; NULL: no memory. Dependency `left_out` of the last of them
 * is taken as absent; DTP_NO_INDEX: none. */
struct dtp_clock *dtp_happens_before(const struct dtp_program *program, size_t op_count, uint32_t left_out,
                                     struct dtp_host_arena *arena);

#endif
