/* fp8 with scales of its own for parts of a matrix: a part of kernels.h, which alone includes it.
 *
 * A matrix is stored [rows, columns] by what a matmul sums over, its columns. Its scales, by which a matmul multiplies
 * what it read, are fp32 and powers of two, so that no cast rounds twice:
 *   ROWS     one for each row: torchao's axiswise scaling
 *   ALIKE    the same, all of the largest of the whole matrix: for a matmul whose other operand has rows'
 *   RUNS     one for each DTP_SCALED_RUN of a row's neighbours, [runs of a row, rows]: Transformer Engine's of
 *            activations and gradients (1 x 128)
 *   SQUARES  one for as many rows and columns, [rows' squares, columns' squares padded to 4]: its of weights
 * These are the orders that cuBLASLt reads them in (OUTER_VEC_32F, VEC128_32F, BLK128x128_32F). */
#ifndef DTP_SCALING_H
#define DTP_SCALING_H

enum dtp_scaling { DTP_SCALED_WHOLE, DTP_SCALED_ROWS, DTP_SCALED_ALIKE, DTP_SCALED_RUNS, DTP_SCALED_SQUARES };
#define DTP_SCALED_RUN 128u
#define DTP_SCALED_PADDING 4u

/* result [rows, columns] and transposed [columns, rows], of which one may be NULL, are E4M3 of bf16 `values` times what
 * the scales are the inverse of. `maxima` of ROWS, as many floats as scales, and of ALIKE, one, are scratch: where
 * `transposed` is wanted each result's must be there. ALIKE makes `transposed` alone. Rows and columns are multiples of
 * 16. */
struct dtp_scaled_quantize_args {
    const void *values;
    void *result, *transposed;
    float *result_scales, *transposed_scales;
    float *result_maxima, *transposed_maxima;
    uint64_t rows, columns;
    enum dtp_element element;
    enum dtp_scaling scaling;
};

DTP_ON_DEVICE static inline uint64_t dtp_scale_squares(uint64_t elements)
{
    return (elements + DTP_SCALED_RUN - 1) / DTP_SCALED_RUN;
}

/* Where the scale of an element lies. */
DTP_ON_DEVICE static inline uint64_t dtp_scale_place(enum dtp_scaling scaling, uint64_t rows, uint64_t columns,
                                                     uint64_t row, uint64_t column)
{
    uint64_t squares = dtp_scale_squares(columns), stride = (squares + DTP_SCALED_PADDING - 1) & ~UINT64_C(3);
    switch (scaling) {
    case DTP_SCALED_WHOLE: return 0;
    case DTP_SCALED_ROWS:
    case DTP_SCALED_ALIKE: break;
    case DTP_SCALED_RUNS: return column / DTP_SCALED_RUN * rows + row;
    case DTP_SCALED_SQUARES: return row / DTP_SCALED_RUN * stride + column / DTP_SCALED_RUN;
    }
    return row;
}

#endif
