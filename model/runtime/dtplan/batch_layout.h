/* The buffer of one micro-batch: what the loader writes on the host and one copy brings to the device. Arrays of int32,
 * T rows (tokens of the micro-step) each unless said otherwise, each at a multiple of 256 bytes:
 *
 *   tokens      input of each row
 *   targets     token that follows it; negative: none, the row counts for nothing
 *   order       rows sorted by their token, equal ones in their order
 *   starts      [T + 1]: where in `order` the rows of the u-th distinct token begin; starts[distinct] = T
 *   distinct    [1]: number of distinct tokens
 *
 * The last three make the embedding's gradient a sum in a fixed order. Operand BATCH begins at tokens for EMBEDDING and
 * EMBEDDING_BACKWARD (which reads all), at the target of its first row for LOSS_BACKWARD. */
#ifndef DTP_BATCH_LAYOUT_H
#define DTP_BATCH_LAYOUT_H

#include "base/bytes.h"

#define DTP_BATCH_ALIGNMENT 256u

struct dtp_batch_layout {
    uint64_t tokens_offset_bytes, targets_offset_bytes, order_offset_bytes, starts_offset_bytes, distinct_offset_bytes;
    uint64_t bytes;
};

static inline struct dtp_batch_layout dtp_batch_layout_of(uint64_t rows)
{
    uint64_t array = dtp_divide_up(4 * rows, DTP_BATCH_ALIGNMENT) * DTP_BATCH_ALIGNMENT;
    uint64_t starts = dtp_divide_up(4 * (rows + 1), DTP_BATCH_ALIGNMENT) * DTP_BATCH_ALIGNMENT;
    return (struct dtp_batch_layout){.tokens_offset_bytes = 0,
                                     .targets_offset_bytes = array,
                                     .order_offset_bytes = 2 * array,
                                     .starts_offset_bytes = 3 * array,
                                     .distinct_offset_bytes = 3 * array + starts,
                                     .bytes = 3 * array + starts + DTP_BATCH_ALIGNMENT};
}

#endif
