/* Parts of buffers. An operation that says how many bytes of a buffer it touches (dtp_operand.bytes) may run beside one
 * that touches other bytes of it, so who wrote a buffer and who reads it is known part by part: a buffer is cut where
 * such operands begin and end. One of which nobody says so is a single part. */
#ifndef DTP_BUFFER_PARTS_H
#define DTP_BUFFER_PARTS_H

#include "base/host_arena.h"
#include "program/program.h"

struct dtp_buffer_parts {
    uint32_t *first;       /* per buffer its first part, and behind them the number of parts */
    uint64_t *begin_bytes; /* per part, in its buffer */
};
/* Of a sealed program, in memory of `arena`. False: there is none. */
bool dtp_buffer_parts_find(const struct dtp_program *program, struct dtp_host_arena *arena,
                           struct dtp_buffer_parts *out);

/* Parts [first, end) that an operand of the program touches. */
struct dtp_part_range {
    uint32_t first, end;
};
/* Of one that says how many bytes it touches. */
struct dtp_part_range dtp_cut_operand_parts(const struct dtp_buffer_parts *parts, const struct dtp_operand *operand);
static inline struct dtp_part_range dtp_operand_parts(const struct dtp_buffer_parts *parts,
                                                      const struct dtp_operand *operand)
{
    uint32_t buffer = operand->buffer.index;
    if (operand->bytes)
        return dtp_cut_operand_parts(parts, operand);
    return (struct dtp_part_range){parts->first[buffer], parts->first[buffer + 1]};
}

#endif
