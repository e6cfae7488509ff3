/* Gradients to 8 bits before ranks exchange them, and the sum of what all sent: a run of numbers to a warp, of which
 * each lane has neighbours, so that both ends of the run are known before its codes are written. */
#include "kernels/pack8.h"
#include "kernels/vector.cuh"

namespace dtp
{
namespace
{

constexpr int threads = 256, lanes = 32, per_lane = (int)DTP_PACK8_RUN / lanes;
constexpr int piece = 4, pieces = per_lane / piece; /* a lane's neighbours, and how often */

/* The lane's elements are piece by piece, a warp's pieces side by side. */
__device__ uint64_t place_of(uint64_t run, int p)
{
    return run * DTP_PACK8_RUN + (uint64_t)(p * lanes + threadIdx.x % lanes) * piece;
}

__device__ float beyond(float end, float value, float sign)
{
    return sign * value > sign * end || isnan(value) ? value : end;
}

template <typename T>
__global__ void __launch_bounds__(threads) pack8(const T *values, char *part, uint64_t count, uint64_t runs)
{
    const uint64_t run = ((uint64_t)blockIdx.x * threads + threadIdx.x) / lanes;
    if (run >= runs)
        return;
    float value[pieces][piece] = {}, least = 0, largest = 0;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        const uint64_t at = place_of(run, p);
        if (at + piece <= count) {
            packed<T, piece> read = load<piece>(values + at);
#pragma unroll
            for (int e = 0; e < piece; e++)
                value[p][e] = read[e];
        } else {
            for (int e = 0; e < piece; e++)
                value[p][e] = at + e < count ? to_float(values[at + e]) : 0;
        }
#pragma unroll
        for (int e = 0; e < piece; e++)
            least = beyond(least, value[p][e], -1), largest = beyond(largest, value[p][e], 1);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        least = beyond(least, __shfl_xor_sync(~0u, least, distance), -1);
        largest = beyond(largest, __shfl_xor_sync(~0u, largest, distance), 1);
    }
    float *ends = reinterpret_cast<float *>(part);
    uint8_t *codes = reinterpret_cast<uint8_t *>(ends + 2 * runs);
    if (threadIdx.x % lanes == 0)
        ends[2 * run] = least, ends[2 * run + 1] = largest;
    const struct dtp_pack8_codes of = dtp_pack8_codes(least, largest);
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        const uint64_t at = place_of(run, p);
        if (at + piece <= count) {
            uint32_t word = 0;
#pragma unroll
            for (int e = 0; e < piece; e++)
                word |= (uint32_t)dtp_pack8_code(of, value[p][e]) << 8 * e;
            *reinterpret_cast<uint32_t *>(codes + at) = word;
        } else {
            for (int e = 0; e < piece && at + e < count; e++)
                codes[at + e] = dtp_pack8_code(of, value[p][e]);
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(threads)
    sum_packed8(const char *parts, T *total, uint64_t count, uint64_t runs, uint64_t part_bytes, uint32_t part_count)
{
    const uint64_t run = ((uint64_t)blockIdx.x * threads + threadIdx.x) / lanes;
    if (run >= runs)
        return;
    float sum[pieces][piece] = {};
    for (uint32_t rank = 0; rank < part_count; rank++) {
        const float *ends = reinterpret_cast<const float *>(parts + rank * part_bytes);
        const uint8_t *codes = reinterpret_cast<const uint8_t *>(ends + 2 * runs);
        const struct dtp_pack8_codes of = dtp_pack8_codes(ends[2 * run], ends[2 * run + 1]);
#pragma unroll
        for (int p = 0; p < pieces; p++) {
            const uint64_t at = place_of(run, p);
            uint32_t word = 0;
            if (at + piece <= count)
                word = *reinterpret_cast<const uint32_t *>(codes + at);
            else
                for (int e = 0; e < piece && at + e < count; e++)
                    word |= (uint32_t)codes[at + e] << 8 * e;
#pragma unroll
            for (int e = 0; e < piece; e++)
                sum[p][e] = __fadd_rn(sum[p][e], __fmul_rn(of.step, (float)(word >> 8 * e & 255) - of.zero));
        }
    }
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        const uint64_t at = place_of(run, p);
        if (at + piece <= count)
            store(total + at, sum[p]);
        else
            for (int e = 0; e < piece && at + e < count; e++)
                total[at + e] = from_float<T>(sum[p][e]);
    }
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_pack8(void *self, const struct dtp_pack8_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        const uint64_t runs = dtp_pack8_runs(a->count);
        dtp::pack8<<<dtp::blocks_for(runs, dtp::threads / dtp::lanes), dtp::threads, 0, dtp::stream_of(stream)>>>(
            (const T *)a->values, (char *)a->part, a->count, runs);
        return dtp::launched();
    });
}

extern "C" int dtp_cuda_sum_packed8(void *self, const struct dtp_sum_packed8_args *a, void *stream)
{
    (void)self;
    if (a->count == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        const uint64_t runs = dtp_pack8_runs(a->count);
        dtp::sum_packed8<<<dtp::blocks_for(runs, dtp::threads / dtp::lanes), dtp::threads, 0, dtp::stream_of(stream)>>>(
            (const char *)a->parts, (T *)a->total, a->count, runs, a->part_bytes, a->part_count);
        return dtp::launched();
    });
}
