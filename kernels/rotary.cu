#include "kernels/vector.cuh"

namespace dtp
{
namespace
{

/* A block per row; a thread keeps its vector's cosines and sines for all the heads it turns. */
template <typename T, int N> __global__ void __launch_bounds__(256) rotate(struct dtp_rotary_args a)
{
    const uint32_t half = a.head_dim / 2, vectors = half / N, position = blockIdx.x % a.sequence;
    const uint32_t turned = a.heads + a.kv_heads, heads_at_once = max(blockDim.x / vectors, 1u);
    if (threadIdx.x >= heads_at_once * vectors)
        return;
    T *row = (T *)a.qkv + (uint64_t)blockIdx.x * (a.heads + 2 * a.kv_heads) * a.head_dim;
    /* With more vectors in a head than threads (never with N > 1), a thread takes several. */
    for (uint32_t v = threadIdx.x % vectors; v < vectors; v += blockDim.x) {
        uint64_t table = (uint64_t)position * half + v * N;
        packed<float, N> cosine = load<N>(a.cosines + table), sine = load<N>(a.sines + table);
#pragma unroll 2
        for (uint32_t head = threadIdx.x / vectors; head < turned; head += heads_at_once) {
            T *at = row + (uint64_t)head * a.head_dim + v * N;
            packed<T, N> x = load<N>(at), y = load<N>(at + half);
            float first[N], second[N];
#pragma unroll
            for (int e = 0; e < N; e++) {
                float s = a.inverse ? -sine[e] : sine[e];
                first[e] = x[e] * cosine[e] - y[e] * s;
                second[e] = x[e] * s + y[e] * cosine[e];
            }
            store(at, first);
            store(at + half, second);
        }
    }
}

} // namespace
} // namespace dtp

extern "C" int dtp_cuda_rotary(void *self, const struct dtp_rotary_args *a, void *stream)
{
    (void)self;
    if (a->rows == 0 || a->head_dim < 2)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        constexpr int full = dtp::full<T>;
        bool whole = a->head_dim / 2 % full == 0;
        uint64_t vectors = (uint64_t)(a->heads + a->kv_heads) * (a->head_dim / 2 / (whole ? full : 1));
        unsigned rows = dtp::blocks_for(a->rows, 1), threads = vectors < 256 ? (unsigned)(vectors + 31) / 32 * 32 : 256;
        if (whole)
            dtp::rotate<T, full><<<rows, threads, 0, dtp::stream_of(stream)>>>(*a);
        else
            dtp::rotate<T, 1><<<rows, threads, 0, dtp::stream_of(stream)>>>(*a);
        return dtp::launched();
    });
}
