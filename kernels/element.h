/* Reading and writing single elements of any type on the host; arithmetic there is double. */
#ifndef DTP_ELEMENT_H
#define DTP_ELEMENT_H

#include "kernels/kernels.h"
#include "kernels/small_float.h"

static inline uint64_t dtp_element_bytes(enum dtp_element element)
{
    switch (element) {
    case DTP_ELEMENT_FP32: break;
    case DTP_ELEMENT_BF16:
    case DTP_ELEMENT_FP16: return 2;
    case DTP_ELEMENT_E4M3:
    case DTP_ELEMENT_E5M2:
    case DTP_ELEMENT_INT8: return 1;
    }
    return 4;
}

static inline float dtp_bf16_to_float(uint16_t value)
{
    return dtp_float_of_bits((uint32_t)value << 16);
}

/* To nearest, ties to even; a NaN stays one (quiet). */
static inline uint16_t dtp_bf16_from_float(float value)
{
    uint32_t bits = dtp_bits_of_float(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

static inline float dtp_load_float(const void *values, enum dtp_element element, uint64_t i)
{
    switch (element) {
    case DTP_ELEMENT_FP32: break;
    case DTP_ELEMENT_BF16: return dtp_bf16_to_float(((const uint16_t *)values)[i]);
    case DTP_ELEMENT_FP16: return dtp_fp16_to_float(((const uint16_t *)values)[i]);
    case DTP_ELEMENT_E4M3: return dtp_e4m3_to_float(((const uint8_t *)values)[i]);
    case DTP_ELEMENT_E5M2: return dtp_e5m2_to_float(((const uint8_t *)values)[i]);
    case DTP_ELEMENT_INT8: return (float)((const uint8_t *)values)[i];
    }
    return ((const float *)values)[i];
}

static inline double dtp_load(const void *values, enum dtp_element element, uint64_t i)
{
    return (double)dtp_load_float(values, element, i);
}

/* By way of float, as the device's kernels do it: their fp32 result is what is rounded to fewer bits. */
static inline void dtp_store(void *values, enum dtp_element element, uint64_t i, double value)
{
    switch (element) {
    case DTP_ELEMENT_FP32: ((float *)values)[i] = (float)value; break;
    case DTP_ELEMENT_BF16: ((uint16_t *)values)[i] = dtp_bf16_from_float((float)value); break;
    case DTP_ELEMENT_FP16: ((uint16_t *)values)[i] = dtp_fp16_from_float((float)value); break;
    case DTP_ELEMENT_E4M3: ((uint8_t *)values)[i] = dtp_e4m3_from_float((float)value); break;
    case DTP_ELEMENT_E5M2: ((uint8_t *)values)[i] = dtp_e5m2_from_float((float)value); break;
    case DTP_ELEMENT_INT8: ((uint8_t *)values)[i] = (uint8_t)value; break;
    }
}

static inline void dtp_load_row(const void *values, enum dtp_element element, uint64_t first, uint64_t count,
                                double *row)
{
    if (element == DTP_ELEMENT_BF16)
        for (uint64_t i = 0; i < count; i++)
            row[i] = (double)dtp_bf16_to_float(((const uint16_t *)values)[first + i]);
    else
        for (uint64_t i = 0; i < count; i++)
            row[i] = dtp_load(values, element, first + i);
}

static inline void dtp_store_row(void *values, enum dtp_element element, uint64_t first, uint64_t count,
                                 const double *row)
{
    for (uint64_t i = 0; i < count; i++)
        dtp_store(values, element, first + i, row[i]);
}

/* Element of a matmul's b: as a, but beside gradients in E5M2, which have few bits of mantissa, the other is E4M3. */
static inline enum dtp_element dtp_matmul_b_element(const struct dtp_matmul_args *args)
{
    return args->element == DTP_ELEMENT_E5M2 ? DTP_ELEMENT_E4M3 : args->element;
}

/* The scale of element (row, column) of an fp8 operand, stored [rows, columns]; 1 where the whole has one, which the
 * product is multiplied by. */
static inline float dtp_operand_scale(const float *scales, enum dtp_scaling scaling, uint64_t rows, uint64_t columns,
                                      uint64_t row, uint64_t column)
{
    return scaling == DTP_SCALED_WHOLE ? 1 : scales[dtp_scale_place(scaling, rows, columns, row, column)];
}

/* What a product is multiplied by for those operands that have one scale for the whole. */
static inline double dtp_product_scale(const struct dtp_matmul_args *args)
{
    return (args->a_scaling == DTP_SCALED_WHOLE ? (double)*args->a_scale : 1) *
           (args->b_scaling == DTP_SCALED_WHOLE ? (double)*args->b_scale : 1);
}

/* Element of the bias that a matmul adds: as its operands, of fp8 as its result. */
static inline enum dtp_element dtp_matmul_bias_element(enum dtp_element element, enum dtp_element result_element)
{
    return element == DTP_ELEMENT_E4M3 ? result_element : element;
}

/* reference_quantize.c: *amax, where there is one, raised to the largest magnitude of these elements. */
void dtp_raise_amax(float *amax, const void *values, enum dtp_element element, uint64_t first, uint64_t count);

/* reference_experts.c: of one expert a matmul of its rows, or of its weights' gradient over them; m 0: it has none. */
struct dtp_matmul_args dtp_grouped_matmul_of(const struct dtp_grouped_matmul_args *a, uint32_t expert);
struct dtp_matmul_args dtp_grouped_matmul_of_rows(const struct dtp_grouped_matmul_args *a, uint32_t expert,
                                                  uint64_t begin, uint64_t count);

/* Gradients that may be added up: one rounding of the sum. */
static inline void dtp_accumulate(void *values, enum dtp_element element, uint64_t i, double value, bool add)
{
    dtp_store(values, element, i, value + (add ? dtp_load(values, element, i) : 0));
}

#endif
