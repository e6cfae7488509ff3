#include "kernels/amax.cuh"

#include <cuda_fp8.h>

/* fp8 of a matrix by rows, by columns or both. A block takes a tile of 128 by 128 elements, a thread eight rows of
 * eight, so that what it reads and what it writes by rows are whole sectors; columns are put together in shared memory.
 */
namespace dtp
{
namespace
{

constexpr int threads = 256, edge = 128, piece = 8, pieces = edge / piece;
constexpr float least_amax = 1e-12f;

template <enum dtp_element E> constexpr float largest_of = E == DTP_ELEMENT_E4M3 ? 448.0f : 57344.0f;

/* Eight elements, the first in the lowest byte. */
template <enum dtp_element E> __device__ uint2 eight_of(const float (&values)[piece])
{
    constexpr __nv_fp8_interpretation_t kind = E == DTP_ELEMENT_E4M3 ? __NV_E4M3 : __NV_E5M2;
    uint32_t two[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        two[i] = __nv_cvt_float2_to_fp8x2(make_float2(values[2 * i], values[2 * i + 1]), __NV_SATFINITE, kind);
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}

/* Four words of four bytes each as a matrix, transposed. */
__device__ void transpose_bytes(uint32_t (&w)[4])
{
    const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    const uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

/* Rows of eight bytes become columns: of[c] has byte c of each row. */
__device__ void transpose_piece(const uint2 (&row)[piece], uint2 (&of)[piece])
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

template <typename T, enum dtp_element E, bool ROWS, bool COLUMNS>
__global__ void __launch_bounds__(threads) quantize(const __grid_constant__ struct dtp_quantize_args a)
{
    __shared__ columns_tile tile;
    const float scale = __fdiv_rn(largest_of<E>, fmaxf(*a.amax, least_amax));
    const int x = threadIdx.x % pieces, y = threadIdx.x / pieces;
    const uint64_t row = (uint64_t)blockIdx.y * edge + y * piece, column = (uint64_t)blockIdx.x * edge + x * piece;
    const bool inside = row < a.rows && column < a.columns;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *a.scale = __fdiv_rn(1.0f, scale);
    uint2 rows[piece], columns[piece];
    if (inside) {
        packed<T, piece> values[piece];
#pragma unroll
        for (int r = 0; r < piece; r++)
            values[r] = load_once<piece>((const T *)a.values + (row + r) * a.columns + column);
#pragma unroll
        for (int r = 0; r < piece; r++) {
            float scaled[piece];
#pragma unroll
            for (int e = 0; e < piece; e++)
                scaled[e] = values[r][e] * scale;
            rows[r] = eight_of<E>(scaled);
            if constexpr (ROWS)
                *reinterpret_cast<uint2 *>((char *)a.result + (row + r) * a.columns + column) = rows[r];
        }
    }
    if constexpr (COLUMNS) {
        if (inside) {
            transpose_piece(rows, columns);
#pragma unroll
            for (int c = 0; c < piece; c++)
                tile.slot(x * piece + c, y) = columns[c];
        }
        __syncthreads();
        /* Sixteen rows of a column at a time: eight threads write the 128 bytes that a column has of the tile. */
#pragma unroll
        for (int turn = 0; turn < edge * edge / 16 / threads; turn++) {
            const int at = turn * threads + threadIdx.x, c = at / (edge / 16), r = at % (edge / 16) * 2;
            const uint64_t to = (uint64_t)blockIdx.x * edge + c, first = (uint64_t)blockIdx.y * edge + r * piece;
            if (to >= a.columns || first >= a.rows)
                continue;
            const uint2 low = tile.slot(c, r), high = tile.slot(c, r + 1);
            *reinterpret_cast<uint4 *>((char *)a.transposed + to * a.rows + first) =
                make_uint4(low.x, low.y, high.x, high.y);
        }
    }
}

template <typename T, enum dtp_element E> int launch(const struct dtp_quantize_args &a, cudaStream_t stream)
{
    const dim3 grid((unsigned)((a.columns + edge - 1) / edge), (unsigned)((a.rows + edge - 1) / edge));
    if (a.result && a.transposed)
        quantize<T, E, true, true><<<grid, threads, 0, stream>>>(a);
    else if (a.result)
        quantize<T, E, true, false><<<grid, threads, 0, stream>>>(a);
    else
        quantize<T, E, false, true><<<grid, threads, 0, stream>>>(a);
    return launched();
}

template <typename T> __global__ void __launch_bounds__(threads) amax(const struct dtp_amax_args a)
{
    constexpr int N = full<T>, ahead = 4;
    const T *values = (const T *)a.values;
    const uint64_t stride = (uint64_t)gridDim.x * threads * N;
    float largest = 0;
    uint64_t i = ((uint64_t)blockIdx.x * threads + threadIdx.x) * N;
    for (; i + (ahead - 1) * stride + N <= a.count; i += ahead * stride) {
        packed<T, N> of[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            of[k] = load_once<N>(values + i + k * stride);
#pragma unroll
        for (int k = 0; k < ahead; k++)
#pragma unroll
            for (int e = 0; e < N; e++)
                largest = fmaxf(largest, fabsf(of[k][e]));
    }
    for (; i < a.count; i += stride)
        for (int e = 0; e < N && i + e < a.count; e++)
            largest = fmaxf(largest, fabsf(to_float(values[i + e])));
    raise_amax<T>(a.amax, largest);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_amax(void *self, const struct dtp_amax_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        constexpr uint64_t per_block = dtp::threads * dtp::full<T>;
        uint64_t blocks = (a->count + per_block - 1) / per_block, most = 16 * (uint64_t)dtp::multiprocessors();
        dtp::amax<T><<<(unsigned)(blocks < most ? blocks : most), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_quantize(void *self, const struct dtp_quantize_args *a, void *stream)
{
    (void)self;
    if (a->rows % DTP_FP8_MULTIPLE || a->columns % DTP_FP8_MULTIPLE || a->element != DTP_ELEMENT_BF16 ||
        a->rows / dtp::edge >= UINT16_MAX || (!a->result && !a->transposed))
        return (int)cudaErrorInvalidValue;
    if (a->rows == 0 || a->columns == 0)
        return 0;
    if (a->result_element == DTP_ELEMENT_E4M3)
        return dtp::launch<dtp::bf16, DTP_ELEMENT_E4M3>(*a, dtp::stream_of(stream));
    return dtp::launch<dtp::bf16, DTP_ELEMENT_E5M2>(*a, dtp::stream_of(stream));
}
