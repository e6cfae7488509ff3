#include "kernels/vector.cuh"

#include <math.h>

namespace dtp
{
namespace
{

/* Largest value and sum of exp(x - largest), as they come (Milakov & Gimelshein 2018, "Online normalizer calculation
 * for softmax"). */
struct normaliser {
    float largest = -2.0e38f, sum = 0; /* finite times log2(e), too: padding is minus infinity */

    template <int N> __device__ void add(const float (&x)[N])
    {
        float above = largest;
#pragma unroll
        for (int e = 0; e < N; e++)
            above = fmaxf(above, x[e]);
        sum *= exp2_fast((largest - above) * log2_e);
        largest = above;
        const float taken = above * log2_e; /* of each in one instruction */
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += exp2_fast(fmaf(x[e], log2_e, -taken));
    }

    __device__ void across_warp()
    {
        float above = warp_max(largest);
        sum = warp_sum(sum * exp2_fast((largest - above) * log2_e));
        largest = above;
    }

    /* For all threads of a block; the caller's scratch must not be in use since the last barrier. */
    __device__ void across_block(normaliser *of_warp)
    {
        across_warp();
        if (threadIdx.x % 32 == 0)
            of_warp[threadIdx.x / 32] = *this;
        __syncthreads();
        *this = normaliser();
        if (threadIdx.x % 32 < blockDim.x / 32)
            *this = of_warp[threadIdx.x % 32];
        across_warp();
    }
};

/* The soft cap of logits; where there is none it is compiled away. A row is capped twice, once for its sum and once for
 * its gradient. */
template <bool CAPPED> struct cap {
    float limit, inverse;

    __device__ explicit cap(float softcap) : limit(softcap), inverse(CAPPED ? 1 / softcap : 0)
    {
    }

    __device__ float operator()(float x) const
    {
        return CAPPED ? limit * tanh_fast(x * inverse) : x;
    }

    /* By the capped value; 1 of padding, which is minus infinity. */
    __device__ float slope(float capped) const
    {
        const float part = capped * inverse;
        return CAPPED && capped > -INFINITY ? 1 - part * part : 1.0f;
    }
};

/* A row lies in shared memory while it is summed and turned into its gradient, each thread its own vectors, so that
 * copies, sums and results need no barrier but the one of the sum. When a thread has used a slot for the last time it
 * lets the copy of the next row into it begin: reading is under way all the time. Rows longer than what is kept are
 * read a second time, then from the L2. Copies are waited for in four parts, slots s with s * 4 / kept = 0, 1, 2, 3. */
template <typename T, bool CAPPED> struct row_in_parts {
    static constexpr int N = full<T>;
    static constexpr int parts = 4;
    uint4 *slots; /* [kept][blockDim.x] */
    uint32_t kept, vectors, vocab;
    cap<CAPPED> capped;

    __device__ uint32_t part_begin(int part) const
    {
        return (kept * part + parts - 1) / parts;
    }

    __device__ void fetch(const T *row, uint32_t slot) const
    {
        uint32_t vector = slot * blockDim.x + threadIdx.x;
        if (vector < vectors)
            copy_async(slots + vector, row + (uint64_t)vector * N);
    }

    /* Padding counts as minus infinity: its probability is 0. */
    __device__ void unpack(const packed<T, N> &values, uint32_t vector, float (&x)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] = capped(values[e]);
        if ((vector + 1) * N > vocab) {
#pragma unroll
            for (int e = 0; e < N; e++)
                x[e] = vector * N + e < vocab ? x[e] : -INFINITY;
        }
    }

    /* What is not kept: four vectors under way at a time. */
    template <typename Body> __device__ void for_four(const T *row, uint32_t first, Body body) const
    {
        packed<T, N> values[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            if (first + k * blockDim.x < vectors)
                values[k] = load<N>(row + (uint64_t)(first + k * blockDim.x) * N);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            if (first + k * blockDim.x < vectors) {
                float x[N];
                unpack(values[k], first + k * blockDim.x, x);
                body(first + k * blockDim.x, x);
            }
    }

    template <int PART> __device__ void add_part(normaliser &to) const
    {
        wait_for_all_but<parts - 1 - PART>();
        for (uint32_t slot = part_begin(PART); slot < part_begin(PART + 1); slot++) {
            uint32_t vector = slot * blockDim.x + threadIdx.x;
            float x[N];
            if (vector < vectors) {
                unpack(kept_vector(vector), vector, x);
                to.add(x);
            }
        }
    }

    __device__ packed<T, N> kept_vector(uint32_t vector) const
    {
        return load<N>(reinterpret_cast<const T *>(slots + vector));
    }
};

/* What all parts of a row say together; *aimed: the target's logit. */
__device__ normaliser of_parts(const struct dtp_loss_args &a, uint64_t row, float *aimed)
{
    normaliser of;
    *aimed = 0;
    for (uint32_t p = 0; p < a.part_count; p++)
        of.largest = fmaxf(of.largest, a.parts[p * a.rows + row].largest);
    for (uint32_t p = 0; p < a.part_count; p++) {
        const struct dtp_loss_part part = a.parts[p * a.rows + row];
        of.sum += part.sum * exp2_fast((part.largest - of.largest) * log2_e);
        *aimed += part.target;
    }
    return of;
}

/* The target among a part's tokens; beyond them: it is another part's, or none. */
__device__ uint32_t target_here(int32_t target, uint32_t first_token, uint32_t vocab)
{
    uint32_t here = (uint32_t)target - first_token;
    return target >= 0 && here < vocab ? here : UINT32_MAX;
}

struct row_result {
    float largest, factor; /* gradient = exp(x - largest) * factor */
    float scale;
    uint32_t target; /* beyond the vocabulary: none */
};

template <int N, bool CAPPED>
__device__ void make_gradient(float (&x)[N], uint32_t vector, const row_result &r, const cap<CAPPED> &capped)
{
    float slope[N];
    const float taken = r.largest * log2_e;
#pragma unroll
    for (int e = 0; e < N; e++) {
        slope[e] = capped.slope(x[e]);
        x[e] = r.factor == 0 ? 0.0f : exp2_fast(fmaf(x[e], log2_e, -taken)) * r.factor;
    }
    if (r.target / N == vector) {
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] -= r.target % N == e ? r.scale : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] *= slope[e];
}

/* Rows of which two or more fit into a multiprocessor's shared memory have a block of 512 threads each; longer ones
 * have it alone, with as many threads as a block can. */
constexpr int short_threads = 512, long_threads = 1024;

template <typename T, int THREADS, bool CAPPED>
__global__ void __launch_bounds__(THREADS) loss(struct dtp_loss_args a, uint32_t kept)
{
    constexpr int N = full<T>;
    constexpr bool all_kept = THREADS == short_threads;
    extern __shared__ uint4 slots[];
    __shared__ normaliser of_warp[2][32];
    const row_in_parts<T, CAPPED> part = {slots, kept, a.stride / N, a.vocab, cap<CAPPED>(a.softcap)};
    const uint32_t beyond = kept * THREADS + threadIdx.x;
    const float scale = a.scalars && a.scalars->loss_scale > 0 ? a.scale * a.scalars->loss_scale : a.scale;
    T *row = (T *)a.logits + (uint64_t)blockIdx.x * a.stride;
    for (int p = 0; p < part.parts; p++) {
        for (uint32_t s = part.part_begin(p); s < part.part_begin(p + 1); s++)
            part.fetch(row, s);
        end_of_group();
    }
    int turn = 0;
    for (uint64_t i = blockIdx.x; i < a.rows; i += gridDim.x, turn ^= 1) {
        const int32_t target = a.targets[i];
        const uint32_t here = target_here(target, a.first_token, a.vocab);
        float aimed = here != UINT32_MAX ? part.capped(to_float(row[here])) : 0.0f;
        normaliser of;
        if (!all_kept && !a.parts)
            for (uint32_t vector = beyond; vector < part.vectors; vector += 4 * THREADS)
                part.for_four(row, vector, [&](uint32_t, float(&x)[N]) { of.add(x); });
        part.template add_part<0>(of);
        part.template add_part<1>(of);
        part.template add_part<2>(of);
        part.template add_part<3>(of);
        if (a.parts)
            of = of_parts(a, i, &aimed);
        else
            of.across_block(of_warp[turn]);
        if (threadIdx.x == 0)
            a.row_loss[i] = target < 0 ? 0.0f : logf(of.sum) - (aimed - of.largest);
        const row_result result = {of.largest, target < 0 ? 0.0f : scale / of.sum, scale, here};
        if constexpr (!all_kept)
            for (uint32_t vector = beyond; vector < part.vectors; vector += 4 * THREADS)
                part.for_four(row, vector, [&](uint32_t at, float(&x)[N]) {
                    make_gradient(x, at, result, part.capped);
                    store(row + (uint64_t)at * N, x);
                });
        T *next = row + (uint64_t)gridDim.x * a.stride;
        const bool more = i + gridDim.x < a.rows;
        for (int p = 0; p < part.parts; p++) {
            for (uint32_t s = part.part_begin(p); s < part.part_begin(p + 1); s++) {
                uint32_t vector = s * THREADS + threadIdx.x;
                if (vector >= part.vectors)
                    continue;
                float x[N];
                part.unpack(part.kept_vector(vector), vector, x);
                make_gradient(x, vector, result, part.capped);
                store(row + (uint64_t)vector * N, x);
                if (more)
                    part.fetch(next, s);
            }
            end_of_group();
        }
        row = next;
    }
}

/* A block of threads a row, which is read once. */
template <typename T, bool CAPPED>
__global__ void __launch_bounds__(short_threads) loss_parts(struct dtp_loss_parts_args a)
{
    constexpr int N = full<T>;
    __shared__ normaliser of_warp[2][32];
    const row_in_parts<T, CAPPED> part = {nullptr, 0, a.stride / N, a.vocab, cap<CAPPED>(a.softcap)};
    int turn = 0;
    for (uint64_t i = blockIdx.x; i < a.rows; i += gridDim.x, turn ^= 1) {
        const T *row = (const T *)a.logits + i * a.stride;
        normaliser of;
        for (uint32_t vector = threadIdx.x; vector < part.vectors; vector += 4 * blockDim.x)
            part.for_four(row, vector, [&](uint32_t, float(&x)[N]) { of.add(x); });
        of.across_block(of_warp[turn]);
        if (threadIdx.x == 0) {
            const uint32_t here = target_here(a.targets[i], a.first_token, a.vocab);
            const float aimed = here != UINT32_MAX ? part.capped(to_float(row[here])) : 0.0f;
            a.part[i] = {of.largest, of.sum, aimed};
        }
    }
}

/* What a block may ask for at launch. */
uint32_t most_shared_bytes()
{
    static const int most = [] {
        int device = 0, bytes = 0;
        if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
            return 0;
        return bytes - (int)(2 * 32 * sizeof(normaliser));
    }();
    return (uint32_t)most;
}

template <bool CAPPED> struct is_capped {
    constexpr bool operator()() const
    {
        return CAPPED;
    }
};

/* Calls `body` with whether logits are capped, known while it is compiled. */
template <typename Body> int with_cap(float softcap, Body body)
{
    return softcap > 0 ? body(is_capped<true>()) : body(is_capped<false>());
}

template <typename T, int THREADS, bool CAPPED> int launch(const struct dtp_loss_args &a, cudaStream_t stream)
{
    constexpr uint32_t slot_bytes = THREADS * 16;
    uint32_t vectors = a.stride / full<T>, wanted = (vectors + THREADS - 1) / THREADS;
    uint32_t fitting = most_shared_bytes() / slot_bytes, kept = wanted < fitting ? wanted : fitting;
    int resident = 1, bytes = (int)(kept * slot_bytes);
    int status =
        (int)cudaFuncSetAttribute(loss<T, THREADS, CAPPED>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (!status)
        status = (int)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, loss<T, THREADS, CAPPED>, THREADS,
                                                                    (size_t)bytes);
    if (status)
        return status;
    uint64_t most = (uint64_t)resident * standing_multiprocessors();
    loss<T, THREADS, CAPPED><<<(unsigned)(a.rows < most ? a.rows : most), THREADS, (size_t)bytes, stream>>>(a, kept);
    return launched();
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_loss(void *self, const struct dtp_loss_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        if (a->stride % dtp::full<T>)
            return (int)cudaErrorInvalidValue;
        uint64_t row_bytes = (a->stride * sizeof(T) + dtp::short_threads * 16 - 1) / (dtp::short_threads * 16) *
                             (dtp::short_threads * 16);
        return dtp::with_cap(a->softcap, [&](auto capped) {
            if (2 * row_bytes <= dtp::most_shared_bytes())
                return dtp::launch<T, dtp::short_threads, capped()>(*a, dtp::stream_of(stream));
            return dtp::launch<T, dtp::long_threads, capped()>(*a, dtp::stream_of(stream));
        });
    });
}

extern "C" int dtp_cuda_loss_parts(void *self, const struct dtp_loss_parts_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        if (a->stride % dtp::full<T>)
            return (int)cudaErrorInvalidValue;
        uint64_t most = 4 * (uint64_t)dtp::standing_multiprocessors();
        return dtp::with_cap(a->softcap, [&](auto capped) {
            dtp::loss_parts<T, capped()>
                <<<(unsigned)(a->rows < most ? a->rows : most), dtp::short_threads, 0, dtp::stream_of(stream)>>>(*a);
            return dtp::launched();
        });
    });
}
