/* Tiles of a matrix on their way to fp8, by rows and by columns. A block takes a tile of 128 by 128 elements, a thread
 * eight rows of eight, so that what it reads and what it writes by rows are whole sectors; columns are put together in
 * shared memory. */
#ifndef DTP_QUANTIZE_CUH
#define DTP_QUANTIZE_CUH

#include "kernels/amax.cuh"

#include <cuda_fp8.h>

namespace dtp
{
namespace quantizing
{

constexpr int threads = 256, edge = 128, piece = 8, pieces = edge / piece;

template <enum dtp_element E> constexpr float largest_of = E == DTP_ELEMENT_E4M3 ? 448.0f : 57344.0f;

/* Eight elements, the first in the lowest byte. */
template <enum dtp_element E> __device__ inline uint2 eight_of(const float (&values)[piece])
{
    constexpr __nv_fp8_interpretation_t kind = E == DTP_ELEMENT_E4M3 ? __NV_E4M3 : __NV_E5M2;
    uint32_t two[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        two[i] = __nv_cvt_float2_to_fp8x2(make_float2(values[2 * i], values[2 * i + 1]), __NV_SATFINITE, kind);
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}

/* Four words of four bytes each as a matrix, transposed. */
__device__ inline void transpose_bytes(uint32_t (&w)[4])
{
    const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    const uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

/* Rows of eight bytes become columns: of[c] has byte c of each row. */
__device__ inline void transpose_piece(const uint2 (&row)[piece], uint2 (&of)[piece])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t upper[4], lower[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            upper[r] = half ? row[r].y : row[r].x;
            lower[r] = half ? row[r + 4].y : row[r + 4].x;
        }
        transpose_bytes(upper);
        transpose_bytes(lower);
#pragma unroll
        for (int c = 0; c < 4; c++)
            of[4 * half + c] = make_uint2(upper[c], lower[c]);
    }
}

/* A column of the tile lies in 128 bytes, its pieces of eight rows exchanged by the thread's column so that sixteen
 * threads that write the same rows of other columns meet no bank twice. */
struct columns_tile {
    uint2 at[edge][pieces];

    __device__ uint2 &slot(int column, int row_piece)
    {
        return at[column][row_piece ^ (column / piece)];
    }
};

/* A thread's eight rows of eight, which become columns of the tile: x and y are their places in it, in pieces. */
__device__ inline void put_columns(columns_tile &tile, const uint2 (&rows)[piece], int x, int y)
{
    uint2 columns[piece];
    transpose_piece(rows, columns);
#pragma unroll
    for (int c = 0; c < piece; c++)
        tile.slot(x * piece + c, y) = columns[c];
}

/* What the tile holds, to the matrix's columns: sixteen rows of a column at a time, eight threads write the 128 bytes
 * that a column has of the tile. All threads of the block come here. */
__device__ inline void write_columns(columns_tile &tile, char *transposed, uint64_t rows, uint64_t columns)
{
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < edge * edge / 16 / threads; turn++) {
        const int at = turn * threads + threadIdx.x, c = at / (edge / 16), r = at % (edge / 16) * 2;
        const uint64_t to = (uint64_t)blockIdx.x * edge + c, first = (uint64_t)blockIdx.y * edge + r * piece;
        if (to >= columns || first >= rows)
            continue;
        const uint2 low = tile.slot(c, r), high = tile.slot(c, r + 1);
        *reinterpret_cast<uint4 *>(transposed + to * rows + first) = make_uint4(low.x, low.y, high.x, high.y);
    }
}

} // namespace quantizing
} // namespace dtp

#endif
