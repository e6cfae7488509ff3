/* Where the scales of an fp8 matrix lie that has more than one: behind its bytes, in the same buffer, fp32, in the
 * order of kernels/scaling.h; behind those of rows as many floats of scratch, maxima that a cast finds. */
#ifndef DTP_FP8_LAYOUT_H
#define DTP_FP8_LAYOUT_H

#include "base/words.h"

#include <stdbool.h>
#include <stdint.h>

#define DTP_FP8_BLOCK 128u
#define DTP_FP8_BLOCKS_PADDED 4u

static inline bool dtp_fp8_by_rows(enum dtp_form form)
{
    return form == DTP_FORM_E4M3_ROWS || form == DTP_FORM_E4M3_ALIKE;
}

/* Whether the scales lie behind the bytes, and not in a buffer of their own. */
static inline bool dtp_fp8_scales_behind(enum dtp_form form)
{
    return dtp_fp8_by_rows(form) || form == DTP_FORM_E4M3_RUNS || form == DTP_FORM_E4M3_SQUARES;
}

static inline uint64_t dtp_fp8_scales(enum dtp_form form, uint64_t rows, uint64_t columns)
{
    uint64_t blocks = (columns + DTP_FP8_BLOCK - 1) / DTP_FP8_BLOCK, padding = DTP_FP8_BLOCKS_PADDED;
    if (form == DTP_FORM_E4M3_RUNS)
        return blocks * rows;
    if (form == DTP_FORM_E4M3_SQUARES)
        return (rows + DTP_FP8_BLOCK - 1) / DTP_FP8_BLOCK * ((blocks + padding - 1) / padding * padding);
    return dtp_fp8_by_rows(form) ? rows : 0;
}

/* Of the whole buffer. */
static inline uint64_t dtp_fp8_matrix_bytes(enum dtp_form form, uint64_t rows, uint64_t columns)
{
    return rows * columns + (dtp_fp8_by_rows(form) ? 8u : 4u) * dtp_fp8_scales(form, rows, columns);
}

#endif
