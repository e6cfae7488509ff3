#include "kernels/quantize.cuh"
#include "kernels/scale_factor.h"

/* E4M3 of a matrix whose rows, runs or squares have scales of their own. Runs and squares are those of a tile, which
 * sees their largest magnitudes before it casts. By rows alone a block takes a row, reads it twice, the second time out
 * of cache. Largest magnitudes of columns are of many tiles: a pass over the matrix finds them first, and those of rows
 * with them; maxima are the same in whatever order they are taken. */
namespace dtp
{
namespace
{

using namespace quantizing;
using args = struct dtp_scaled_quantize_args;

__device__ void raise(float *maximum, float largest)
{
    if (largest > *(volatile float *)maximum)
        atomicMax((int *)maximum, __float_as_int(largest));
}

/* ---- a thread's piece of a tile ---------------------------------------------------------------------------------- */

struct piece_of {
    packed<bf16, piece> row[piece];
    int x, y;               /* its place in the tile, in pieces */
    uint64_t first, column; /* in the matrix */
    bool inside;

    __device__ explicit piece_of(const args &a)
    {
        x = threadIdx.x % pieces, y = threadIdx.x / pieces;
        first = (uint64_t)blockIdx.y * edge + y * piece, column = (uint64_t)blockIdx.x * edge + x * piece;
        inside = first < a.rows && column < a.columns;
#pragma unroll
        for (int r = 0; r < piece; r++) {
            if (inside)
                row[r] = load_once<piece>((const bf16 *)a.values + (first + r) * a.columns + column);
            else
                *reinterpret_cast<uint4 *>(&row[r]) = make_uint4(0, 0, 0, 0);
        }
    }

    /* The largest magnitude in each of the piece's rows over the whole tile, which sixteen threads have pieces of. */
    __device__ void row_maxima(float (&out)[piece]) const
    {
#pragma unroll
        for (int r = 0; r < piece; r++) {
            float largest = 0;
#pragma unroll
            for (int e = 0; e < piece; e++)
                largest = fmaxf(largest, fabsf(row[r][e]));
            out[r] = warp_max(largest, pieces);
        }
    }

    __device__ float column_maximum(int e) const
    {
        float largest = 0;
#pragma unroll
        for (int r = 0; r < piece; r++)
            largest = fmaxf(largest, fabsf(row[r][e]));
        return largest;
    }
};

/* Largest magnitudes of the tile's columns. All threads of the block come here. */
struct column_maxima {
    float at[edge];

    __device__ void find(const piece_of &mine)
    {
        if (threadIdx.x < edge)
            at[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < piece; e++)
            raise(&at[mine.x * piece + e], mine.column_maximum(e));
        __syncthreads();
    }
};

/* ---- maxima of rows and columns ---------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(threads) zero(float *a, uint64_t a_count, float *b, uint64_t b_count)
{
    const uint64_t i = (uint64_t)blockIdx.x * threads + threadIdx.x;
    if (i < a_count)
        a[i] = 0;
    if (i < b_count)
        b[i] = 0;
}

template <bool ROWS, bool ALIKE> __global__ void __launch_bounds__(threads) maxima(const __grid_constant__ args a)
{
    __shared__ column_maxima columns;
    const piece_of mine(a);
    if constexpr (ROWS) {
        float rows[piece];
        mine.row_maxima(rows);
#pragma unroll
        for (int r = 0; r < piece; r++)
            if (mine.x == 0 && mine.inside)
                raise(&a.result_maxima[mine.first + r], rows[r]);
    }
    columns.find(mine);
    const uint64_t column = (uint64_t)blockIdx.x * edge + threadIdx.x;
    if constexpr (ALIKE) {
        const float largest = warp_max(threadIdx.x < edge ? columns.at[threadIdx.x] : 0);
        if (threadIdx.x < edge && threadIdx.x % 32 == 0)
            raise(a.transposed_maxima, largest);
    } else if (threadIdx.x < edge && column < a.columns) {
        raise(&a.transposed_maxima[column], columns.at[threadIdx.x]);
    }
}

/* ---- casts ------------------------------------------------------------------------------------------------------- */

__device__ uint2 cast_row(const packed<bf16, piece> &row, const float (&factor)[piece])
{
    float scaled[piece];
#pragma unroll
    for (int e = 0; e < piece; e++)
        scaled[e] = row[e] * factor[e];
    return eight_of<DTP_ELEMENT_E4M3>(scaled);
}

/* What each of the thread's eight rows, or columns, is multiplied by; who sees a scale first writes its inverse. */
template <enum dtp_scaling S>
__device__ void row_factors(const args &a, const piece_of &mine, float square, float (&out)[piece])
{
    float found[piece];
    if constexpr (S == DTP_SCALED_RUNS)
        mine.row_maxima(found);
#pragma unroll
    for (int r = 0; r < piece; r++) {
        const uint64_t row = mine.first + r;
        if constexpr (S == DTP_SCALED_SQUARES)
            found[r] = square;
        else if constexpr (S != DTP_SCALED_RUNS)
            found[r] = mine.inside ? a.result_maxima[row] : 0;
        out[r] = dtp_scale_factor(S, found[r]);
        const bool writes = S == DTP_SCALED_ROWS      ? mine.x == 0 && blockIdx.x == 0
                            : S == DTP_SCALED_SQUARES ? threadIdx.x == 0 && r == 0
                                                      : mine.x == 0;
        if (writes && mine.inside)
            a.result_scales[dtp_scale_place(S, a.rows, a.columns, row, mine.column)] = 1 / out[r];
    }
}

template <enum dtp_scaling S>
__device__ void column_factors(const args &a, const piece_of &mine, const column_maxima &columns, float square,
                               float (&out)[piece])
{
#pragma unroll
    for (int e = 0; e < piece; e++) {
        const uint64_t column = mine.column + e;
        const float largest = S == DTP_SCALED_RUNS      ? columns.at[mine.x * piece + e]
                              : S == DTP_SCALED_SQUARES ? square
                              : S == DTP_SCALED_ALIKE   ? *a.transposed_maxima
                              : mine.inside             ? a.transposed_maxima[column]
                                                        : 0;
        out[e] = dtp_scale_factor(S, largest);
        const bool writes = S == DTP_SCALED_SQUARES ? threadIdx.x == 0 && e == 0
                            : S == DTP_SCALED_RUNS  ? mine.y == 0
                                                    : mine.y == 0 && blockIdx.y == 0;
        if (writes && mine.inside)
            a.transposed_scales[dtp_scale_place(S, a.columns, a.rows, column, mine.first)] = 1 / out[e];
    }
}

template <enum dtp_scaling S, bool ROWS, bool COLUMNS>
__global__ void __launch_bounds__(threads) scaled_quantize(const __grid_constant__ args a)
{
    __shared__ columns_tile tile;
    __shared__ column_maxima columns;
    const piece_of mine(a);
    float square = 0;
    if constexpr (S == DTP_SCALED_SQUARES || (S == DTP_SCALED_RUNS && COLUMNS))
        columns.find(mine);
    if constexpr (S == DTP_SCALED_SQUARES) {
#pragma unroll
        for (int i = 0; i < edge / 32; i++)
            square = fmaxf(square, columns.at[32 * i + threadIdx.x % 32]);
        square = warp_max(square);
    }
    if constexpr (ROWS) {
        float factors[piece];
        row_factors<S>(a, mine, square, factors);
#pragma unroll
        for (int r = 0; r < piece; r++) {
            const float factor[piece] = {factors[r], factors[r], factors[r], factors[r],
                                         factors[r], factors[r], factors[r], factors[r]};
            if (mine.inside)
                *reinterpret_cast<uint2 *>((char *)a.result + (mine.first + r) * a.columns + mine.column) =
                    cast_row(mine.row[r], factor);
        }
    }
    if constexpr (COLUMNS) {
        float factor[piece];
        uint2 rows[piece];
        column_factors<S>(a, mine, columns, square, factor);
#pragma unroll
        for (int r = 0; r < piece; r++)
            rows[r] = cast_row(mine.row[r], factor);
        put_columns(tile, rows, mine.x, mine.y);
        write_columns(tile, (char *)a.transposed, a.rows, a.columns);
    }
}

/* A block casts a row. */
__global__ void __launch_bounds__(threads) quantize_row(const __grid_constant__ args a)
{
    __shared__ float of_warps[threads / 32];
    const bf16 *values = (const bf16 *)a.values + blockIdx.x * a.columns;
    float largest = 0;
    for (uint64_t i = threadIdx.x * piece; i < a.columns; i += threads * piece) {
        const packed<bf16, piece> eight = load<piece>(values + i);
#pragma unroll
        for (int e = 0; e < piece; e++)
            largest = fmaxf(largest, fabsf(eight[e]));
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < threads / 32; w++)
        largest = fmaxf(largest, of_warps[w]);
    const float f = dtp_scale_factor(DTP_SCALED_ROWS, largest), factor[piece] = {f, f, f, f, f, f, f, f};
    if (threadIdx.x == 0)
        a.result_scales[blockIdx.x] = 1 / f;
    for (uint64_t i = threadIdx.x * piece; i < a.columns; i += threads * piece)
        *reinterpret_cast<uint2 *>((char *)a.result + blockIdx.x * a.columns + i) =
            cast_row(load<piece>(values + i), factor);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

dim3 tiles_of(const args &a)
{
    return dim3((unsigned)((a.columns + edge - 1) / edge), (unsigned)((a.rows + edge - 1) / edge));
}

template <enum dtp_scaling S> int in_tiles(const args &a, cudaStream_t stream)
{
    if (a.result && a.transposed)
        scaled_quantize<S, true, true><<<tiles_of(a), threads, 0, stream>>>(a);
    else if (a.result)
        scaled_quantize<S, true, false><<<tiles_of(a), threads, 0, stream>>>(a);
    else
        scaled_quantize<S, false, true><<<tiles_of(a), threads, 0, stream>>>(a);
    return launched();
}

int with_columns(const args &a, cudaStream_t stream)
{
    const uint64_t rows = a.result ? a.rows : 0, columns = a.scaling == DTP_SCALED_ALIKE ? 1 : a.columns;
    const uint64_t most = rows > columns ? rows : columns;
    zero<<<(unsigned)((most + threads - 1) / threads), threads, 0, stream>>>(a.result_maxima, rows, a.transposed_maxima,
                                                                             columns);
    if (a.scaling == DTP_SCALED_ALIKE) {
        maxima<false, true><<<tiles_of(a), threads, 0, stream>>>(a);
        scaled_quantize<DTP_SCALED_ALIKE, false, true><<<tiles_of(a), threads, 0, stream>>>(a);
    } else if (a.result) {
        maxima<true, false><<<tiles_of(a), threads, 0, stream>>>(a);
        scaled_quantize<DTP_SCALED_ROWS, true, true><<<tiles_of(a), threads, 0, stream>>>(a);
    } else {
        maxima<false, false><<<tiles_of(a), threads, 0, stream>>>(a);
        scaled_quantize<DTP_SCALED_ROWS, false, true><<<tiles_of(a), threads, 0, stream>>>(a);
    }
    return launched();
}

bool can_take(const args &a)
{
    const bool maxima = (a.scaling != DTP_SCALED_ROWS && a.scaling != DTP_SCALED_ALIKE) || !a.transposed ||
                        (a.transposed_maxima && (!a.result || a.result_maxima));
    return a.rows % DTP_FP8_MULTIPLE == 0 && a.columns % DTP_FP8_MULTIPLE == 0 && a.element == DTP_ELEMENT_BF16 &&
           a.rows / edge < UINT16_MAX && (a.result || a.transposed) && a.scaling != DTP_SCALED_WHOLE && maxima &&
           !(a.scaling == DTP_SCALED_ALIKE && a.result);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_scaled_quantize(void *self, const struct dtp_scaled_quantize_args *a, void *stream)
{
    (void)self;
    if (!dtp::can_take(*a))
        return (int)cudaErrorInvalidValue;
    if (a->rows == 0 || a->columns == 0)
        return 0;
    switch (a->scaling) {
    case DTP_SCALED_RUNS: return dtp::in_tiles<DTP_SCALED_RUNS>(*a, dtp::stream_of(stream));
    case DTP_SCALED_SQUARES: return dtp::in_tiles<DTP_SCALED_SQUARES>(*a, dtp::stream_of(stream));
    default: break;
    }
    if (a->transposed)
        return dtp::with_columns(*a, dtp::stream_of(stream));
    dtp::quantize_row<<<(unsigned)a->rows, dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}
