#include "kernels/vector.cuh"

/* Rows of tokens pushed to where they belong, here and through NVLink. A warp has a row at a time. Stores to a peer
 * need no answer, so that a row's loads alone are waited for; warps of even number go through pieces from the first
 * on and those of odd number from the last back: whoever lists another rank's pieces first and its own last has links
 * and own memory busy at once. */
namespace dtp
{
namespace
{

constexpr int threads = 512, warps = threads / 32, in_flight = 8;

/* A step of OLMoE on two H200 takes 183.5 ms by 48 thread blocks, 180.2 by 132 (reports/h200/exchanges_in_turn.csv). */
constexpr uint32_t most_blocks = 128;

__device__ uint32_t piece_of(const struct dtp_push_rows_args &a, uint32_t row)
{
    uint32_t low = 0, high = a.pieces - 1;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (a.piece[middle].before <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

template <typename W> __device__ void copy_row(W *to, const W *from, uint32_t words)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t first = lane; first < words; first += 32 * in_flight) {
        W held[in_flight];
#pragma unroll
        for (int i = 0; i < in_flight; i++)
            if (first + i * 32 < words)
                held[i] = from[first + i * 32];
#pragma unroll
        for (int i = 0; i < in_flight; i++)
            if (first + i * 32 < words)
                to[first + i * 32] = held[i];
    }
}

template <typename W>
__global__ void __launch_bounds__(threads) push(const __grid_constant__ struct dtp_push_rows_args a)
{
    const uint32_t step = gridDim.x * warps, words = a.row_bytes / (uint32_t)sizeof(W);
    for (uint32_t i = blockIdx.x * warps + threadIdx.x / 32; i < a.count; i += step) {
        const uint32_t row = i % 2 ? a.count - 1 - i / 2 : i / 2;
        const struct dtp_push_piece p = a.piece[piece_of(a, row)];
        const uint64_t from = p.from + (row - p.before), to = p.to + (row - p.before);
        copy_row((W *)a.result[p.target] + to * words, (const W *)a.rows + from * words, words);
        if (a.more && threadIdx.x % 32 == 0)
            a.more_result[p.target][to] = a.more[from];
    }
    __threadfence_system();
}

} // namespace
} // namespace dtp

static_assert(sizeof(struct dtp_push_rows_args) <= 4096, "arguments of a kernel");

extern "C" int dtp_cuda_push_rows(void *self, const struct dtp_push_rows_args *a, void *stream)
{
    (void)self;
    if (a->pieces > DTP_PUSH_PIECES || a->row_bytes % 2)
        return (int)cudaErrorInvalidValue;
    if (a->count == 0)
        return 0;
    const uint32_t needed = (a->count - 1) / dtp::warps + 1;
    const uint32_t most = a->most_blocks ? a->most_blocks : dtp::most_blocks;
    const uint32_t blocks = needed < most ? needed : most;
    if (a->row_bytes % sizeof(uint4))
        dtp::push<uint16_t><<<blocks, dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
    else
        dtp::push<uint4><<<blocks, dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}
