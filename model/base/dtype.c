#include "base/dtype.h"

#include "base/word_table.h"

const uint8_t dtp_dtype_widths[DTP_DTYPE_COUNT] = {DTP_DTYPE_TABLE(DTP_ROW_SECOND)};
DTP_TEXT_AND_PARSE(dtype, DTP_DTYPE_TABLE, 0)

unsigned dtp_alignment_bytes(double elements, unsigned element_bytes)
{
    if (!(elements >= 0 && elements < 0x1p53))
        return DTP_ALIGNED_BYTES;
    uint64_t whole = (uint64_t)elements, bytes = whole * element_bytes;
    if ((double)whole != elements || bytes % DTP_ALIGNED_BYTES == 0)
        return DTP_ALIGNED_BYTES;
    return (unsigned)(bytes & (~bytes + 1)); /* its lowest bit */
}

unsigned dtp_row_alignment_bytes(enum dtp_dtype dtype, double elements)
{
    return dtp_alignment_bytes(elements, dtp_dtype_bytes(dtype));
}
