#include "kernels/grouped_matmul_sm90.h"
#include "kernels/tensor_core.cuh"

/* Products of rows by experts, of which only the device knows how many each has. A grid as large as any counts need: of
 * rows' products tiles of 128 rows of one expert, at most rows / 128 + experts of them, each of which finds its expert
 * by counting tiles; a block that finds none returns. Of weights' gradients one tile of one expert's matrix a block,
 * which sums over that expert's rows.
 *
 * In 16 bits: tiles of 128 x 128 by tensor cores (mma.m16n8k16, sums in fp32), 32 deep, one tile's operands on their
 * way while the one before is multiplied. Operands stand in shared memory as they lie in memory, by rows of the
 * dimension that is summed over or across it, and ldmatrix turns what lies across. Rows of 40 and of 136 elements there
 * begin at different banks. Compute capability 9.0 has a kernel of its own, grouped_matmul_sm90.cu.
 * In fp32: 64 x 64 tiles without tensor cores, for tests. */
namespace dtp
{
namespace
{

constexpr int tile = 128, depth = 32, threads = 256, along = depth + 8, across = tile + 8;
constexpr int stage_elements = tile * along > depth *across ? tile *along : depth *across;

/* Result [m, n] of one expert: operands' first elements and strides. `k` lies in a row of A (B) where it is summed
 * `along`, else rows of A (B) are what is summed over. */
struct job {
    const void *a, *b;
    uint64_t a_stride, b_stride, first, n_stride; /* elements; the result begins at `first` */
    int64_t m, n, k, row, column;                 /* rows and columns of the result; the tile's */
    bool found;
};

/* A warp's sum of what the lanes before have. */
__device__ int32_t sum_before(int32_t value)
{
    int32_t sum = value;
    for (int distance = 1; distance < 32; distance *= 2) {
        int32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
        sum += (int)(threadIdx.x % 32) >= distance ? other : 0;
    }
    return sum - value;
}

/* Expert of the `slot`-th tile of rows, and its row there; x -1: there are fewer tiles. Each lane counts some experts.
 */
template <int TILE> __device__ int2 tile_of(const int32_t *starts, uint32_t experts, int32_t slot)
{
    const uint32_t each = (experts + 31) / 32, lane = threadIdx.x % 32, first = lane * each;
    const uint32_t end = first + each < experts ? first + each : experts;
    int32_t tiles = 0;
    for (uint32_t e = first; e < end; e++)
        tiles += (starts[e + 1] - starts[e] + TILE - 1) / TILE;
    int32_t left = slot - sum_before(tiles);
    bool here = left >= 0 && left < tiles;
    int2 found = make_int2(-1, 0);
    for (uint32_t e = first; here && e < end; e++) {
        const int32_t of = (starts[e + 1] - starts[e] + TILE - 1) / TILE;
        if (left < of) {
            found = make_int2((int)e, left * TILE);
            break;
        }
        left -= of;
    }
    const unsigned who = __ballot_sync(0xFFFFFFFFu, here);
    if (!who)
        return found;
    const int from = __ffs((int)who) - 1;
    return make_int2(__shfl_sync(0xFFFFFFFFu, found.x, from), __shfl_sync(0xFFFFFFFFu, found.y, from));
}

/* What this block multiplies. Columns of the result follow each other fastest. */
template <int TILE, enum dtp_grouped_product PRODUCT>
__device__ struct job job_of(const struct dtp_grouped_matmul_args &a)
{
    const int32_t *starts = dtp_routes_at((void *)a.routes, a.rows).starts;
    const uint64_t n = PRODUCT == DTP_GROUPED_FORWARD ? a.out : a.in, matrix = a.out * a.in;
    const uint64_t columns = (n + TILE - 1) / TILE, slot = blockIdx.x / columns;
    struct job j = {};
    j.n = (int64_t)n, j.column = (int64_t)(blockIdx.x % columns) * TILE, j.n_stride = n;
    if constexpr (PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT) {
        const uint64_t rows = (a.out + TILE - 1) / TILE, e = slot / rows;
        const uint64_t begin = (uint64_t)starts[e];
        j.m = (int64_t)a.out, j.k = starts[e + 1] - starts[e], j.row = (int64_t)(slot % rows) * TILE;
        j.a = (const char *)a.a + begin * a.out * (a.element == DTP_ELEMENT_FP32 ? 4 : 2);
        j.b = (const char *)a.b + begin * a.in * (a.element == DTP_ELEMENT_FP32 ? 4 : 2);
        j.a_stride = a.out, j.b_stride = a.in, j.first = e * matrix, j.found = true;
        return j;
    }
    const int2 at = tile_of<TILE>(starts, a.experts, (int32_t)slot);
    if (at.x < 0)
        return j;
    const uint64_t width = PRODUCT == DTP_GROUPED_FORWARD ? a.in : a.out, begin = (uint64_t)starts[at.x];
    const uint64_t bytes = a.element == DTP_ELEMENT_FP32 ? 4 : 2;
    j.a = (const char *)a.a + begin * width * bytes, j.b = (const char *)a.b + (uint64_t)at.x * matrix * bytes;
    j.a_stride = width, j.b_stride = a.in, j.first = begin * n;
    j.m = starts[at.x + 1] - starts[at.x], j.k = (int64_t)width, j.row = at.y, j.found = true;
    return j;
}

/* ---- tensor cores ------------------------------------------------------------------------------------------------ */

/* A tile of an operand: `first` .. of its `count` rows or columns, `k` .. of what is summed over, `depths`; zeros
 * beyond either. All widths are multiples of 8 elements, 16 bytes. */
template <typename T, bool ALONG>
__device__ void fetch(T *to, const void *from, uint64_t stride, int64_t first, int64_t count, int64_t k, int64_t depths)
{
    constexpr int per_row = ALONG ? depth / 8 : tile / 8, rows = ALONG ? tile : depth;
#pragma unroll
    for (int i = 0; i < per_row * rows / threads; i++) {
        const int vector = (int)threadIdx.x + i * threads, row = vector / per_row, column = vector % per_row * 8;
        const int64_t at_row = ALONG ? first + row : k + row, at_column = ALONG ? k + column : first + column;
        const bool exists = ALONG ? at_row < count && at_column < depths : at_row < depths && at_column < count;
        const T *source = (const T *)from + (exists ? (uint64_t)at_row * stride + (uint64_t)at_column : 0);
        copy_async((uint4 *)(to + row * (ALONG ? along : across) + column), source, exists);
    }
}

template <typename T, enum dtp_grouped_product PRODUCT>
__global__ void __launch_bounds__(threads) product(struct dtp_grouped_matmul_args args)
{
    constexpr bool a_along = PRODUCT != DTP_GROUPED_WEIGHT_GRADIENT, b_along = PRODUCT == DTP_GROUPED_FORWARD;
    __shared__ __align__(16) T stage[2][2][stage_elements];
    const struct job j = job_of<tile, PRODUCT>(args);
    if (!j.found)
        return;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, m0 = warp / 4 * 64, n0 = warp % 4 * 32;
    float sum[4][4][4] = {};
    const auto bring = [&](int64_t k, int into) {
        if (k < j.k) {
            fetch<T, a_along>(stage[into][0], j.a, j.a_stride, j.row, j.m, k, j.k);
            fetch<T, b_along>(stage[into][1], j.b, j.b_stride, j.column, j.n, k, j.k);
        }
        end_of_group();
    };
    bring(0, 0);
    for (int64_t k = 0, step = 0; k < j.k; k += depth, step++) {
        bring(k + depth, (int)(step + 1) % 2);
        wait_for_all_but<1>();
        __syncthreads();
        const T *as = stage[step % 2][0], *bs = stage[step % 2][1];
#pragma unroll
        for (int inner = 0; inner < depth; inner += 16) {
            uint32_t a[4][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int m = m0 + i * 16;
                if constexpr (a_along)
                    load_matrices(a[i], as + (m + lane % 16) * along + inner + lane / 16 * 8);
                else
                    load_matrices_turned(a[i], as + (inner + lane / 16 * 8 + lane % 8) * across + m + lane / 8 % 2 * 8);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int n = n0 + i * 16;
                if constexpr (b_along)
                    load_matrices(b[i], bs + (n + lane / 16 * 8 + lane % 8) * along + inner + lane / 8 % 2 * 8);
                else
                    load_matrices_turned(b[i], bs + (inner + lane / 8 % 2 * 8 + lane % 8) * across + n + lane / 16 * 8);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    multiply<T>(sum[i][c], a[i], b[c / 2][c % 2 * 2], b[c / 2][c % 2 * 2 + 1]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t row = j.row + m0 + i * 16 + half * 8 + lane / 4;
                const int64_t column = j.column + n0 + c * 8 + lane % 4 * 2;
                if (row >= j.m || column >= j.n)
                    continue;
                const uint64_t at = j.first + (uint64_t)row * j.n_stride + (uint64_t)column;
                float low = sum[i][c][2 * half], high = sum[i][c][2 * half + 1];
                if (args.accumulate) {
                    low += load_any(args.result, args.result_element, at);
                    high += load_any(args.result, args.result_element, at + 1);
                }
                if (args.result_element == DTP_ELEMENT_FP32)
                    *(float2 *)((float *)args.result + at) = make_float2(low, high);
                else
                    *(uint32_t *)((uint16_t *)args.result + at) =
                        args.result_element == DTP_ELEMENT_BF16 ? pair_of<bf16>(low, high) : pair_of<fp16>(low, high);
            }
}

/* ---- fp32 -------------------------------------------------------------------------------------------------------- */

constexpr int plain_tile = 64, plain_depth = 16;

/* Four rows by four columns a thread. */
template <enum dtp_grouped_product PRODUCT>
__global__ void __launch_bounds__(threads) plain_product(struct dtp_grouped_matmul_args args)
{
    constexpr bool a_along = PRODUCT != DTP_GROUPED_WEIGHT_GRADIENT, b_along = PRODUCT == DTP_GROUPED_FORWARD;
    __shared__ float as[plain_depth][plain_tile + 1], bs[plain_depth][plain_tile + 1];
    const struct job j = job_of<plain_tile, PRODUCT>(args);
    if (!j.found)
        return;
    const int m0 = (int)threadIdx.x / 16 * 4, n0 = (int)threadIdx.x % 16 * 4;
    float sum[4][4] = {};
    for (int64_t k = 0; k < j.k; k += plain_depth) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < plain_depth * plain_tile; i += threads) {
            const int of_a = a_along ? i / plain_depth : i % plain_tile,
                      ka = a_along ? i % plain_depth : i / plain_tile;
            const int of_b = b_along ? i / plain_depth : i % plain_tile,
                      kb = b_along ? i % plain_depth : i / plain_tile;
            const int64_t row = j.row + of_a, column = j.column + of_b;
            const uint64_t at_a = a_along ? (uint64_t)row * j.a_stride + (uint64_t)(k + ka)
                                          : (uint64_t)(k + ka) * j.a_stride + (uint64_t)row;
            const uint64_t at_b = b_along ? (uint64_t)column * j.b_stride + (uint64_t)(k + kb)
                                          : (uint64_t)(k + kb) * j.b_stride + (uint64_t)column;
            as[ka][of_a] = row < j.m && k + ka < j.k ? ((const float *)j.a)[at_a] : 0.0f;
            bs[kb][of_b] = column < j.n && k + kb < j.k ? ((const float *)j.b)[at_b] : 0.0f;
        }
        __syncthreads();
        for (int inner = 0; inner < plain_depth; inner++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[i][c] += as[inner][m0 + i] * bs[inner][n0 + c];
    }
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 4; c++) {
            const int64_t row = j.row + m0 + i, column = j.column + n0 + c;
            if (row >= j.m || column >= j.n)
                continue;
            const uint64_t at = j.first + (uint64_t)row * j.n_stride + (uint64_t)column;
            const float before = args.accumulate ? load_any(args.result, args.result_element, at) : 0.0f;
            store_any(args.result, args.result_element, at, before + sum[i][c]);
        }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Tiles of the result for any counts. */
uint64_t tiles_of(const struct dtp_grouped_matmul_args &a, uint64_t edge)
{
    const uint64_t n = a.product == DTP_GROUPED_FORWARD ? a.out : a.in, columns = (n + edge - 1) / edge;
    return columns * (a.product == DTP_GROUPED_WEIGHT_GRADIENT ? a.experts * ((a.out + edge - 1) / edge)
                                                               : a.rows / edge + a.experts);
}

template <typename T> void launch(const struct dtp_grouped_matmul_args &a, unsigned blocks, cudaStream_t stream)
{
    if (a.product == DTP_GROUPED_FORWARD)
        product<T, DTP_GROUPED_FORWARD><<<blocks, threads, 0, stream>>>(a);
    else if (a.product == DTP_GROUPED_INPUT_GRADIENT)
        product<T, DTP_GROUPED_INPUT_GRADIENT><<<blocks, threads, 0, stream>>>(a);
    else
        product<T, DTP_GROUPED_WEIGHT_GRADIENT><<<blocks, threads, 0, stream>>>(a);
}

template <> void launch<float>(const struct dtp_grouped_matmul_args &a, unsigned blocks, cudaStream_t stream)
{
    if (a.product == DTP_GROUPED_FORWARD)
        plain_product<DTP_GROUPED_FORWARD><<<blocks, threads, 0, stream>>>(a);
    else if (a.product == DTP_GROUPED_INPUT_GRADIENT)
        plain_product<DTP_GROUPED_INPUT_GRADIENT><<<blocks, threads, 0, stream>>>(a);
    else
        plain_product<DTP_GROUPED_WEIGHT_GRADIENT><<<blocks, threads, 0, stream>>>(a);
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_grouped_matmul(void *self, const struct dtp_grouped_matmul_args *a, void *stream)
{
    (void)self;
    const bool narrow = a->element != DTP_ELEMENT_FP32;
    const bool aligned = a->out % 8 == 0 && a->in % 8 == 0;
    const uint64_t blocks = dtp::tiles_of(*a, narrow ? dtp::tile : dtp::plain_tile);
    if (blocks > INT32_MAX || a->rows > INT32_MAX || (narrow && !aligned))
        return (int)cudaErrorInvalidValue;
    if (blocks == 0)
        return 0;
#ifdef DTP_WITH_SM90
    if (dtp::grouped_matmul_sm90_takes(*a))
        return dtp::grouped_matmul_sm90(*a, dtp::stream_of(stream));
#endif
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        dtp::launch<T>(*a, (unsigned)blocks, dtp::stream_of(stream));
        return dtp::launched();
    });
}
