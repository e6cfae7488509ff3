/* Number formats of tensors. */
#ifndef DTP_DTYPE_H
#define DTP_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

/* X(enum suffix, spelling, bytes per element) */
#define DTP_DTYPE_TABLE(X)                                                                                             \
    X(FP32, "fp32", 4)                                                                                                 \
    X(TF32, "tf32", 4)                                                                                                 \
    X(BF16, "bf16", 2)                                                                                                 \
    X(FP16, "fp16", 2)                                                                                                 \
    X(FP8, "fp8", 1)                                                                                                   \
    X(INT8, "int8", 1)

enum dtp_dtype {
#define DTP_DTYPE_ENUM(suffix, text, bytes) DTP_##suffix,
    DTP_DTYPE_TABLE(DTP_DTYPE_ENUM)
#undef DTP_DTYPE_ENUM
        DTP_DTYPE_COUNT
};

extern const uint8_t dtp_dtype_widths[DTP_DTYPE_COUNT];
static inline unsigned dtp_dtype_bytes(enum dtp_dtype dtype)
{
    return dtp_dtype_widths[dtype];
}
const char *dtp_dtype_text(enum dtp_dtype dtype);
/* Returns false when `text` names no format. */
bool dtp_dtype_parse(const char *text, enum dtp_dtype *out);

/* Most of 16 bytes at whose multiples rows of so many elements begin: what tensor cores' loads and stores take at once.
 * A width that is not whole is an average over layers and has no alignment of its own. */
#define DTP_ALIGNED_BYTES 16
unsigned dtp_alignment_bytes(double elements, unsigned element_bytes);
unsigned dtp_row_alignment_bytes(enum dtp_dtype dtype, double elements);

#endif
