#include "base/dtype.h"

#include <stdint.h>
#include <string.h>

static const struct {
    const char *text;
    unsigned bytes;
} dtypes[DTP_DTYPE_COUNT] = {
#define DTP_DTYPE_ROW(suffix, name, width) {name, width},
    DTP_DTYPE_TABLE(DTP_DTYPE_ROW)
#undef DTP_DTYPE_ROW
};

unsigned dtp_dtype_bytes(enum dtp_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *dtp_dtype_text(enum dtp_dtype dtype)
{
    return dtypes[dtype].text;
}

bool dtp_dtype_parse(const char *text, enum dtp_dtype *out)
{
    for (int i = 0; i < DTP_DTYPE_COUNT; i++)
        if (!strcmp(text, dtypes[i].text)) {
            *out = (enum dtp_dtype)i;
            return true;
        }
    return false;
}

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
