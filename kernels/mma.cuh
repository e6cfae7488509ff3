/* Tensor cores by the warp: products of 16 x 8 x 16 with 16-bit operands and sums in fp32, whose fragments are read
 * from shared memory 8 x 8 elements at a time (PTX ISA: mma.m16n8k16, ldmatrix). With g = lane / 4 and t = lane % 4 a
 * lane has of the left operand rows g and g + 8 at columns 2 t, 2 t + 1 and those 8 further on; of the right one,
 * column g at rows 2 t, 2 t + 1 and 8 further on; of the sums columns 2 t, 2 t + 1 of row g, then those of row g + 8.
 * Two neighbouring squares of sums, rounded, so are a left operand of the next product.
 *
 * Tiles lie in shared memory with rows `padding` longer than they are wide: widths are multiples of 16 elements, so
 * that rows are an odd number of 16-byte words and eight of them at one column lie in all banks. */
#ifndef DTP_MMA_CUH
#define DTP_MMA_CUH

#include "kernels/tensor_core.cuh"

namespace dtp
{

constexpr int padding = 8; /* elements */

__device__ inline uint32_t lane_id()
{
    return threadIdx.x % 32;
}

/* The row and column of a square of 16 x 16 that a lane names to ldmatrix: squares of 8 x 8 one below the other, then
 * side by side (left operands; right ones whose rows are summed over), or side by side first (right ones that lie as
 * columns: products of rows with rows). */
template <int WIDTH, typename T> __device__ inline const T *down_first(const T *tile)
{
    return tile + lane_id() % 16 * (WIDTH + padding) + lane_id() / 16 * 8;
}

template <int WIDTH, typename T> __device__ inline const T *across_first(const T *tile)
{
    return tile + (lane_id() / 16 * 8 + lane_id() % 8) * (WIDTH + padding) + lane_id() / 8 % 2 * 8;
}

/* products[i][j] += row i of 16 of a . row j of COUNT of b, over WIDTH columns */
template <int WIDTH, int COUNT, typename T>
__device__ inline void multiply_rows(float (&products)[COUNT / 8][4], const T *a, const T *b)
{
    const T *left = down_first<WIDTH>(a), *right = across_first<WIDTH>(b);
#pragma unroll
    for (int k = 0; k < WIDTH; k += 16) {
        uint32_t rows[4], columns[4];
        load_matrices(rows, left + k);
#pragma unroll
        for (int n = 0; n < COUNT; n += 16) {
            load_matrices(columns, right + n * (WIDTH + padding) + k);
            multiply<T>(products[n / 8], rows, columns[0], columns[1]);
            multiply<T>(products[n / 8 + 1], rows, columns[2], columns[3]);
        }
    }
}

/* sums[i][c] += weights[i][0..15] . rows[0..15][c], for COLUMNS columns; rows lie WIDTH + padding apart. */
template <int WIDTH, int COLUMNS, typename T>
__device__ inline void add_rows(float (&sums)[COLUMNS / 8][4], const uint32_t (&weights)[4], const T *rows)
{
    const T *right = down_first<WIDTH>(rows);
#pragma unroll
    for (int n = 0; n < COLUMNS; n += 16) {
        uint32_t columns[4];
        load_matrices_turned(columns, right + n);
        multiply<T>(sums[n / 8], weights, columns[0], columns[1]);
        multiply<T>(sums[n / 8 + 1], weights, columns[2], columns[3]);
    }
}

/* The same for COUNT weights of each row, which are sums of products before. */
template <int WIDTH, int COLUMNS, int COUNT, typename T>
__device__ inline void add_weighted(float (&sums)[COLUMNS / 8][4], const float (&weights)[COUNT / 8][4], const T *rows)
{
#pragma unroll
    for (int k = 0; k < COUNT / 8; k += 2) {
        const uint32_t rounded[4] = {pair_of<T>(weights[k][0], weights[k][1]), pair_of<T>(weights[k][2], weights[k][3]),
                                     pair_of<T>(weights[k + 1][0], weights[k + 1][1]),
                                     pair_of<T>(weights[k + 1][2], weights[k + 1][3])};
        add_rows<WIDTH, COLUMNS>(sums, rounded, rows + k * 8 * (WIDTH + padding));
    }
}

/* ROWS rows of `dim` elements, a multiple of 8, the first at element `first`, on their way to shared memory; rows past
 * `rows` and columns past `dim` become zero. */
template <int ROWS, int WIDTH, int THREADS, typename T>
__device__ inline void copy_tile(T *tile, const void *from, uint64_t first, uint64_t stride, uint32_t rows,
                                 uint32_t dim)
{
    constexpr int words = WIDTH / 8;
#pragma unroll
    for (int i = 0; i < (ROWS * words + THREADS - 1) / THREADS; i++) {
        const uint32_t at = threadIdx.x + i * THREADS, row = at / words, column = at % words * 8;
        const bool exists = row < rows && column < dim;
        if (ROWS * words % THREADS == 0 || row < ROWS)
            copy_async((uint4 *)(tile + row * (WIDTH + padding) + column),
                       (const T *)from + (exists ? first + row * stride + column : 0), exists);
    }
}

/* The 16 rows of a warp's sums, each rounded, into rows `stride` elements apart; those past `rows` and columns past
 * `columns` are not written. */
template <int COLUMNS, typename T>
__device__ inline void store_sums(T *to, uint64_t stride, int64_t rows, int32_t columns,
                                  const float (&sums)[COLUMNS / 8][4])
{
    const int32_t row = (int32_t)lane_id() / 4, pair = (int32_t)lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row + 8 * half < rows && n * 8 + pair < columns)
                *(uint32_t *)(to + (uint64_t)(row + 8 * half) * stride + n * 8 + pair) =
                    pair_of<T>(sums[n][2 * half], sums[n][2 * half + 1]);
}

} // namespace dtp

#endif
