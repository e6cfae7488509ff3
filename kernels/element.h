/* Reading and writing single elements of either type on the host; arithmetic there is double. */
#ifndef DTP_ELEMENT_H
#define DTP_ELEMENT_H

#include "kernels/kernels.h"

#include <string.h>

static inline uint64_t dtp_element_bytes(enum dtp_element element)
{
    return element == DTP_ELEMENT_BF16 ? 2 : 4;
}

static inline float dtp_bf16_to_float(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

/* To nearest, ties to even; a NaN stays one (quiet). */
static inline uint16_t dtp_bf16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

static inline double dtp_load(const void *values, enum dtp_element element, uint64_t i)
{
    return (double)(element == DTP_ELEMENT_BF16 ? dtp_bf16_to_float(((const uint16_t *)values)[i])
                                                : ((const float *)values)[i]);
}

/* By way of float, as the device's kernels do it: their fp32 result is what is rounded to bf16. */
static inline void dtp_store(void *values, enum dtp_element element, uint64_t i, double value)
{
    if (element == DTP_ELEMENT_BF16)
        ((uint16_t *)values)[i] = dtp_bf16_from_float((float)value);
    else
        ((float *)values)[i] = (float)value;
}

static inline void dtp_load_row(const void *values, enum dtp_element element, uint64_t first, uint64_t count,
                                double *row)
{
    if (element == DTP_ELEMENT_BF16)
        for (uint64_t i = 0; i < count; i++)
            row[i] = (double)dtp_bf16_to_float(((const uint16_t *)values)[first + i]);
    else
        for (uint64_t i = 0; i < count; i++)
            row[i] = (double)((const float *)values)[first + i];
}

static inline void dtp_store_row(void *values, enum dtp_element element, uint64_t first, uint64_t count,
                                 const double *row)
{
    for (uint64_t i = 0; i < count; i++)
        dtp_store(values, element, first + i, row[i]);
}

/* Gradients that may be added up: one rounding of the sum. */
static inline void dtp_accumulate(void *values, enum dtp_element element, uint64_t i, double value, bool add)
{
    dtp_store(values, element, i, value + (add ? dtp_load(values, element, i) : 0));
}

#endif
