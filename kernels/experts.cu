#include "kernels/vector.cuh"

/* Experts: a warp a token chooses and, backward, passes gradients through the affinities; rows to experts and back are
 * a block each, or a warp where they are short. Rows of an expert stand in the order of their tokens: each chunk of
 * tokens is counted by a block; then the blocks find where their rows of each expert begin and place them in order. */
namespace dtp
{
namespace
{

constexpr int threads = 256, warps = threads / 32, staged = 2048;
constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ float exact_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The largest of a warp's scores, of equal ones that of the lowest number; in every lane. */
__device__ void warp_best(float &score, int &expert)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        float other = __shfl_xor_sync(all_lanes, score, distance);
        int of = __shfl_xor_sync(all_lanes, expert, distance);
        if (other > score || (other == score && of < expert))
            score = other, expert = of;
    }
}

/* Lane l has the scores of experts l, l + 32, ...; those beyond the last are the least and never chosen. */
template <typename T, int PER>
__device__ void load_scores(const void *scores, uint64_t token, uint32_t experts, float (&score)[PER])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PER; i++)
        score[i] = i * 32 + lane < experts ? to_float(((const T *)scores)[token * experts + i * 32 + lane]) : -INFINITY;
}

/* Largest and sum of exponentials of a softmax. */
template <int PER> __device__ float2 softmax_of(const float (&score)[PER], uint32_t experts)
{
    const uint32_t lane = threadIdx.x % 32;
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++)
        largest = fmaxf(largest, score[i]);
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < PER; i++)
        sum += i * 32 + lane < experts ? expf(score[i] - largest) : 0.0f;
    return make_float2(largest, warp_sum(sum));
}

/* Bits of the groups that a token's experts are of: lane g has the score of group g. */
template <int PER> __device__ uint32_t choose_groups(const struct dtp_router_args &a, const float (&score)[PER])
{
    const int lane = (int)(threadIdx.x % 32), each = (int)(a.experts / a.groups);
    const bool softmax = a.kind == DTP_ROUTER_KIND_SOFTMAX;
    float mine = -INFINITY;
    uint32_t chosen = 0;
    for (int group = 0; group < (int)a.groups; group++) {
        float sum = 0;
        int first = -1;
        for (int round = 0; round < (softmax ? 1 : 2); round++) {
            float best = -INFINITY;
            int expert = INT32_MAX;
#pragma unroll
            for (int i = 0; i < PER; i++) {
                const int e = i * 32 + lane;
                const float value = isnan(score[i]) ? -INFINITY : score[i];
                const bool there = e / each == group && e < (int)a.experts && e != first;
                if (there && (value > best || expert == INT32_MAX))
                    best = value, expert = e;
            }
            warp_best(best, expert);
            sum += softmax ? best : exact_sigmoid(best), first = expert;
        }
        mine = lane == group ? sum : mine;
    }
    for (uint32_t i = 0; i < a.groups_chosen; i++) {
        const bool there = lane < (int)a.groups && !(chosen >> lane & 1);
        float best = there ? mine : -INFINITY;
        int group = there ? lane : INT32_MAX;
        warp_best(best, group);
        chosen |= 1u << group;
    }
    return chosen;
}

template <typename T, int PER> __global__ void __launch_bounds__(threads) choose(struct dtp_router_args a)
{
    const uint64_t token = (uint64_t)blockIdx.x * warps + threadIdx.x / 32;
    const int lane = (int)(threadIdx.x % 32);
    if (token >= a.tokens)
        return;
    const bool softmax = a.kind == DTP_ROUTER_KIND_SOFTMAX;
    float score[PER], weight = 0, sum = DTP_ROUTER_LEAST_SUM;
    int mine = 0;
    uint32_t taken = 0; /* bits of this lane's experts */
    load_scores<T>(a.scores, token, a.experts, score);
    if (a.groups_chosen && !a.in_turns) { /* no other group's experts are there to be chosen */
        const uint32_t of = choose_groups(a, score), each = a.experts / a.groups;
#pragma unroll
        for (int i = 0; i < PER; i++)
            taken |= i * 32 + lane < (int)a.experts && !(of >> (i * 32 + lane) / each & 1) ? 1u << i : 0;
    }
    const float2 all = softmax ? softmax_of(score, a.experts) : make_float2(0, 1);
    for (uint32_t j = 0; j < a.chosen; j++) {
        float best = -INFINITY;
        int expert = INT32_MAX;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            float value = isnan(score[i]) ? -INFINITY : score[i];
            bool there = i * 32 + lane < (int)a.experts && !(taken >> i & 1);
            if (there && (value > best || expert == INT32_MAX))
                best = value, expert = i * 32 + lane;
        }
        warp_best(best, expert);
        if (a.in_turns)
            expert = (int)((a.experts / a.chosen * j + token) % a.experts);
        float raw = 0;
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (i * 32 + lane == expert)
                taken |= 1u << i, raw = score[i];
        raw = __shfl_sync(all_lanes, raw, expert % 32);
        float affinity = softmax ? expf(raw - all.x) / all.y : exact_sigmoid(raw);
        sum += affinity;
        if (lane == (int)j)
            weight = affinity, mine = expert;
    }
    if (lane < (int)a.chosen) {
        a.weights[token * a.chosen + lane] = a.scale * (a.normalise ? weight / sum : weight);
        dtp_routes_at(a.routes, a.tokens * a.chosen).expert[token * a.chosen + lane] = mine;
    }
}

/* Rows [*begin, *end) of a chunk of tokens. */
__device__ void chunk_of(uint64_t tokens, uint32_t chosen, uint64_t *begin, uint64_t *end)
{
    const uint64_t each = (tokens + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    *begin = (first < tokens ? first : tokens) * chosen;
    *end = (first + each < tokens ? first + each : tokens) * chosen;
}

/* Counts take atomics, of integers: in any order they come to the same. */
__global__ void __launch_bounds__(threads) count_rows(struct dtp_router_args a)
{
    __shared__ int32_t count[DTP_ROUTER_EXPERTS];
    const struct dtp_routes routes = dtp_routes_at(a.routes, a.tokens * a.chosen);
    uint64_t begin, end;
    chunk_of(a.tokens, a.chosen, &begin, &end);
    for (uint32_t e = threadIdx.x; e < a.experts; e += threads)
        count[e] = 0;
    __syncthreads();
    for (uint64_t row = begin + threadIdx.x; row < end; row += threads)
        atomicAdd(&count[routes.expert[row]], 1);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.experts; e += threads)
        a.workspace[(uint64_t)blockIdx.x * a.experts + e] = count[e];
}

/* Where each expert's rows begin, and in *next those of this chunk: counts of all chunks, which each block adds up for
 * itself, in `next` of those before. A thread an expert, and all threads all counts. */
__device__ void find_starts(const struct dtp_router_args &a, int32_t *starts, int32_t *next)
{
    __shared__ int32_t before[DTP_ROUTER_EXPERTS];
    const uint32_t e = threadIdx.x, counts = DTP_ROUTER_CHUNKS * a.experts;
    before[e] = next[e] = 0;
    __syncthreads();
    for (uint32_t i = e; i < counts; i += DTP_ROUTER_EXPERTS) {
        const int32_t count = a.workspace[i];
        atomicAdd(&before[i % a.experts], count);
        if (i / a.experts < blockIdx.x)
            atomicAdd(&next[i % a.experts], count);
    }
    __syncthreads();
    const int32_t total = before[e];
    for (uint32_t distance = 1; distance < DTP_ROUTER_EXPERTS; distance *= 2) {
        __syncthreads();
        const int32_t add = e >= distance ? before[e - distance] : 0;
        __syncthreads();
        before[e] += add;
    }
    next[e] += before[e] - total;
    if (blockIdx.x == 0 && e < a.experts)
        starts[e] = before[e] - total;
    if (blockIdx.x == 0 && e + 1 == a.experts)
        starts[a.experts] = before[e];
    if (blockIdx.x == 0 && e < DTP_ROUTES_TURNS)
        starts[a.experts + 1 + e] = 0;
    __syncthreads();
}

/* A warp takes the chunk's rows in their order, 32 at a time: those of one expert stand behind each other. */
__global__ void __launch_bounds__(DTP_ROUTER_EXPERTS) place_rows(struct dtp_router_args a)
{
    __shared__ int32_t next[DTP_ROUTER_EXPERTS], stage[staged];
    const struct dtp_routes routes = dtp_routes_at(a.routes, a.tokens * a.chosen);
    const uint32_t lane = threadIdx.x % 32;
    uint64_t begin, end;
    chunk_of(a.tokens, a.chosen, &begin, &end);
    find_starts(a, routes.starts, next);
    for (uint64_t at = begin; at < end; at += staged) {
        const uint32_t count = end - at < staged ? (uint32_t)(end - at) : staged;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += DTP_ROUTER_EXPERTS)
            stage[i] = routes.expert[at + i];
        __syncthreads();
        for (uint32_t i = lane; threadIdx.x < 32 && i - lane < count; i += 32) {
            const int32_t expert = i < count ? stage[i] : -1;
            const unsigned alike = __match_any_sync(all_lanes, expert), earlier = alike & ((1u << lane) - 1);
            const int32_t place = expert < 0 ? 0 : next[expert] + __popc(earlier);
            __syncwarp();
            if (expert >= 0 && !earlier)
                next[expert] += __popc(alike);
            __syncwarp();
            if (expert < 0)
                continue;
            routes.order[place] = (int32_t)(at + i);
            routes.place[at + i] = place;
        }
    }
}

/* reference_experts.c has the derivation. */
template <typename T, int PER> __global__ void __launch_bounds__(threads) choose_back(struct dtp_router_backward_args a)
{
    const uint64_t token = (uint64_t)blockIdx.x * warps + threadIdx.x / 32;
    const int lane = (int)(threadIdx.x % 32);
    if (token >= a.tokens)
        return;
    const bool softmax = a.kind == DTP_ROUTER_KIND_SOFTMAX;
    const int32_t *chosen = (const int32_t *)a.routes + token * a.chosen;
    float p[PER], of_chosen[PER], sum = 0, mean = 0, inner = 0;
    load_scores<T>(a.scores, token, a.experts, p);
    const float2 all = softmax ? softmax_of(p, a.experts) : make_float2(0, 1);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        p[i] = softmax ? expf(p[i] - all.x) / all.y : exact_sigmoid(p[i]);
        of_chosen[i] = 0;
    }
    for (uint32_t j = 0; j < a.chosen; j++) {
        const float g = a.gradient[token * a.chosen + j];
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (i * 32 + lane == chosen[j])
                of_chosen[i] = a.scale * g, sum += p[i], mean += g * p[i];
    }
    sum = warp_sum(sum) + DTP_ROUTER_LEAST_SUM, mean = warp_sum(mean) / sum;
    for (uint32_t j = 0; j < a.chosen; j++) {
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (i * 32 + lane == chosen[j]) {
                if (a.normalise)
                    of_chosen[i] = (of_chosen[i] - a.scale * mean) / sum;
                inner += of_chosen[i] * p[i];
            }
    }
    inner = warp_sum(inner);
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (i * 32 + lane < (int)a.experts)
            ((T *)a.score_gradient)[token * a.experts + i * 32 + lane] =
                from_float<T>(softmax ? p[i] * (of_chosen[i] - inner) : of_chosen[i] * p[i] * (1 - p[i]));
}

__global__ void __launch_bounds__(threads) rows_received(struct dtp_received_args a)
{
    const struct dtp_routes routes = dtp_routes_at(a.routes, a.rows);
    const uint64_t i = (uint64_t)blockIdx.x * threads + threadIdx.x;
    if (i < a.rows)
        routes.order[i] = (int32_t)i;
    if (i > a.own)
        return;
    int32_t start = 0;
    for (uint32_t rank = 0; rank < a.ranks; rank++) {
        const int32_t *begins = a.begins + (uint64_t)rank * (a.experts + 1) + a.first;
        start += begins[i] - begins[0];
    }
    routes.starts[i] = start;
    if (i < DTP_ROUTES_TURNS)
        routes.starts[a.own + 1 + i] = 0;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

template <typename T, int N> __global__ void __launch_bounds__(threads) to_experts(struct dtp_permute_args a)
{
    const uint64_t row = blockIdx.x;
    const int32_t *order = dtp_routes_at((void *)a.routes, a.tokens * a.chosen).order;
    const T *from = (const T *)a.values + (uint64_t)((uint32_t)order[row] / a.chosen) * a.width;
    T *to = (T *)a.rows + row * a.width;
    if (a.weights && threadIdx.x == 0)
        a.row_weights[row] = a.weights[order[row]];
    for (uint32_t i = threadIdx.x * N; i < a.width; i += threads * N)
        store(to + i, load<N>(from + i));
}

template <typename T, int N> __global__ void __launch_bounds__(threads) to_tokens(struct dtp_unpermute_args a)
{
    const uint64_t token = blockIdx.x, first = token * a.width;
    const int32_t *place = dtp_routes_at((void *)a.routes, a.tokens * a.chosen).place + token * a.chosen;
    for (uint32_t j = threadIdx.x; a.row_weights && j < a.chosen; j += threads)
        a.weights[token * a.chosen + j] = a.row_weights[place[j]];
    const float gate = a.shared_score ? exact_sigmoid(to_float(((const T *)a.shared_score)[token])) : 1.0f;
    for (uint32_t i = threadIdx.x * N; i < a.width; i += threads * N) {
        float sum[N] = {};
        if (a.addend) {
            packed<T, N> value = load<N>((const T *)a.addend + first + i);
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] = value[e];
        }
        for (uint32_t j = 0; j < a.chosen; j++) {
            packed<T, N> value = load<N>((const T *)a.rows + (uint64_t)place[j] * a.width + i);
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] += value[e];
        }
        if (a.shared) {
            packed<T, N> value = load<N>((const T *)a.shared + first + i);
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] += gate * value[e];
        }
        store((T *)a.result + first + i, sum);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(threads) shared_gate_back(struct dtp_shared_gate_backward_args a)
{
    const uint64_t token = blockIdx.x, first = token * a.width;
    const float gate = exact_sigmoid(to_float(((const T *)a.shared_score)[token]));
    double sum = 0;
    for (uint32_t i = threadIdx.x * N; i < a.width; i += threads * N) {
        packed<T, N> gradient = load<N>((const T *)a.gradient + first + i);
        packed<T, N> shared = load<N>((const T *)a.shared + first + i);
        float made[N], part = 0;
#pragma unroll
        for (int e = 0; e < N; e++)
            made[e] = gate * gradient[e], part += gradient[e] * shared[e];
        sum += (double)part;
        store((T *)a.shared_gradient + first + i, made);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        ((T *)a.score_gradient)[token] = from_float<T>((float)sum * gate * (1 - gate));
}

/* silu, clamped or not, or gelu (tanh form) of x, and its slope. */
__device__ float2 gate_of(enum dtp_activation_kind kind, float x)
{
    if (kind == DTP_ACTIVATION_SWIGLU_CLAMPED)
        return clamped_gate(x);
    if (kind == DTP_ACTIVATION_SWIGLU) {
        float s = sigmoid(x), silu = x * s;
        return make_float2(silu, s + silu * (1 - s));
    }
    float s = sigmoid(1.5957691216057308f * x * (1.0f + 0.044715f * x * x));
    return make_float2(x * s, s + x * s * (1 - s) * 1.5957691216057308f * (1.0f + 3 * 0.044715f * x * x));
}

/* Of `LANES` threads that have a row, all of a block or a warp: which row, and which of them this is. */
template <int LANES> __device__ uint64_t row_of(uint32_t *lane)
{
    *lane = threadIdx.x % LANES;
    return (uint64_t)blockIdx.x * (threads / LANES) + threadIdx.x / LANES;
}

template <typename T, int N, int LANES>
__global__ void __launch_bounds__(threads) activate_rows(struct dtp_expert_activation_args a)
{
    uint32_t lane;
    const uint64_t row = row_of<LANES>(&lane), rows = a.tokens * a.chosen;
    const struct dtp_routes routes = dtp_routes_at((void *)a.routes, rows);
    if (row >= (a.experts ? (uint64_t)routes.starts[a.experts] : rows))
        return;
    const float weight = a.weights[routes.order[row]], before = a.weighs_input ? weight : 1.0f;
    const T *up = (const T *)a.up + 2 * row * a.width;
    for (uint32_t i = lane * N; i < a.width; i += LANES * N) {
        packed<T, N> gate = load<N>(up + i), value = load<N>(up + a.width + i);
        float result[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            result[e] = weight * gate_of(a.kind, before * gate[e]).x * gated_up(a.kind, value[e]).x;
        store((T *)a.result + row * a.width + i, result);
    }
}

template <typename T, int N, int LANES>
__global__ void __launch_bounds__(threads) activate_rows_back(struct dtp_expert_activation_backward_args a)
{
    uint32_t lane;
    const uint64_t row = row_of<LANES>(&lane), rows = a.tokens * a.chosen;
    const struct dtp_routes routes = dtp_routes_at((void *)a.routes, rows);
    if (row >= (a.experts ? (uint64_t)routes.starts[a.experts] : rows))
        return;
    const int32_t whose = routes.order[row];
    const float weight = a.weights[whose], before = a.weighs_input ? weight : 1.0f;
    const T *up = (const T *)a.up + 2 * row * a.width;
    T *made = (T *)a.up_gradient + 2 * row * a.width;
    double sum = 0;
    for (uint32_t i = lane * N; i < a.width; i += LANES * N) {
        packed<T, N> gradient = load<N>((const T *)a.gradient + row * a.width + i);
        packed<T, N> gate = load<N>(up + i), value = load<N>(up + a.width + i);
        float of_gate[N], of_up[N], part = 0;
#pragma unroll
        for (int e = 0; e < N; e++) {
            float2 at = gate_of(a.kind, before * gate[e]), times = gated_up(a.kind, value[e]);
            part += gradient[e] * times.x * (a.weighs_input ? at.x + weight * gate[e] * at.y : at.x);
            of_gate[e] = weight * before * gradient[e] * times.x * at.y;
            of_up[e] = weight * gradient[e] * at.x * times.y;
        }
        sum += (double)part;
        store(made + i, of_gate);
        store(made + a.width + i, of_up);
    }
    if constexpr (LANES == 32)
        sum = warp_sum(sum);
    else
        sum = block_sum(sum);
    if (lane == 0)
        a.weight_gradient[whose] = (float)sum + (a.accumulate ? a.weight_gradient[whose] : 0.0f);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Experts that a lane of a warp has. */
template <typename Body> int with_lanes(uint32_t experts, Body body)
{
    if (experts <= 32)
        return body.template operator()<1>();
    if (experts <= 64)
        return body.template operator()<2>();
    if (experts <= 128)
        return body.template operator()<4>();
    if (experts <= 256)
        return body.template operator()<8>();
    if (experts <= 512)
        return body.template operator()<16>();
    return body.template operator()<32>();
}

bool fits(uint64_t tokens, uint32_t experts, uint32_t chosen)
{
    return experts >= 1 && experts <= DTP_ROUTER_EXPERTS && chosen >= 1 && chosen <= DTP_ROUTER_CHOSEN &&
           chosen <= experts && tokens * chosen <= INT32_MAX;
}

bool fit_groups(const struct dtp_router_args &a)
{
    return !a.groups_chosen || (a.groups <= DTP_ROUTER_GROUPS && a.groups_chosen <= a.groups &&
                                a.experts % a.groups == 0 && a.groups_chosen * (a.experts / a.groups) >= a.chosen);
}

template <typename T> struct chooses {
    const struct dtp_router_args &a;
    cudaStream_t stream;
    template <int PER> int operator()()
    {
        choose<T, PER><<<blocks_for(a.tokens, warps), threads, 0, stream>>>(a);
        return launched();
    }
};

template <typename T> struct chooses_back {
    const struct dtp_router_backward_args &a;
    cudaStream_t stream;
    template <int PER> int operator()()
    {
        choose_back<T, PER><<<blocks_for(a.tokens, warps), threads, 0, stream>>>(a);
        return launched();
    }
};

} // namespace
} // namespace dtp

/* A block for each of `rows`, of whole vectors where rows hold them. */
#define LAUNCH_ROWS(kernel, a, rows, stream)                                                                           \
    do {                                                                                                               \
        if ((rows) == 0 || (a)->width == 0)                                                                            \
            return 0;                                                                                                  \
        if ((rows) > INT32_MAX)                                                                                        \
            return (int)cudaErrorInvalidValue;                                                                         \
        return dtp::with_element((a)->element, [&](auto of) {                                                          \
            using T = decltype(of);                                                                                    \
            if ((a)->width % dtp::full<T>)                                                                             \
                dtp::kernel<T, 1><<<(unsigned)(rows), dtp::threads, 0, dtp::stream_of(stream)>>>(*(a));                \
            else                                                                                                       \
                dtp::kernel<T, dtp::full<T>><<<(unsigned)(rows), dtp::threads, 0, dtp::stream_of(stream)>>>(*(a));     \
            return dtp::launched();                                                                                    \
        });                                                                                                            \
    } while (0)

/* A warp a row where a block would have fewer than two turns of it, and where rows are no whole vectors. */
#define LAUNCH_SHORT_ROWS(kernel, a, rows, stream)                                                                     \
    do {                                                                                                               \
        if ((rows) == 0 || (a)->width == 0)                                                                            \
            return 0;                                                                                                  \
        if ((rows) > INT32_MAX)                                                                                        \
            return (int)cudaErrorInvalidValue;                                                                         \
        return dtp::with_element((a)->element, [&](auto of) {                                                          \
            using T = decltype(of);                                                                                    \
            const unsigned all = (unsigned)(rows), few = dtp::blocks_for(rows, dtp::warps);                            \
            cudaStream_t on = dtp::stream_of(stream);                                                                  \
            if ((a)->width % dtp::full<T>)                                                                             \
                dtp::kernel<T, 1, 32><<<few, dtp::threads, 0, on>>>(*(a));                                             \
            else if ((a)->width < 2 * dtp::threads * dtp::full<T>)                                                     \
                dtp::kernel<T, dtp::full<T>, 32><<<few, dtp::threads, 0, on>>>(*(a));                                  \
            else                                                                                                       \
                dtp::kernel<T, dtp::full<T>, dtp::threads><<<all, dtp::threads, 0, on>>>(*(a));                        \
            return dtp::launched();                                                                                    \
        });                                                                                                            \
    } while (0)

extern "C" int dtp_cuda_router(void *self, const struct dtp_router_args *a, void *stream)
{
    (void)self;
    if (!dtp::fits(a->tokens, a->experts, a->chosen) || !dtp::fit_groups(*a))
        return (int)cudaErrorInvalidValue;
    if (a->tokens == 0)
        return 0;
    cudaStream_t on = dtp::stream_of(stream);
    int status = dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        return dtp::with_lanes(a->experts, dtp::chooses<T>{*a, on});
    });
    if (status)
        return status;
    dtp::count_rows<<<DTP_ROUTER_CHUNKS, dtp::threads, 0, on>>>(*a);
    dtp::place_rows<<<DTP_ROUTER_CHUNKS, DTP_ROUTER_EXPERTS, 0, on>>>(*a);
    return dtp::launched();
}

extern "C" int dtp_cuda_router_backward(void *self, const struct dtp_router_backward_args *a, void *stream)
{
    (void)self;
    if (!dtp::fits(a->tokens, a->experts, a->chosen))
        return (int)cudaErrorInvalidValue;
    if (a->tokens == 0)
        return 0;
    return dtp::with_element(a->element, [&](auto of) {
        using T = decltype(of);
        return dtp::with_lanes(a->experts, dtp::chooses_back<T>{*a, dtp::stream_of(stream)});
    });
}

extern "C" int dtp_cuda_received(void *self, const struct dtp_received_args *a, void *stream)
{
    (void)self;
    if (a->rows > INT32_MAX / 2 || a->experts > DTP_ROUTER_EXPERTS || a->own > a->experts)
        return (int)cudaErrorInvalidValue;
    const uint64_t most = a->rows > a->own ? a->rows : a->own + 1;
    dtp::rows_received<<<dtp::blocks_for(most, dtp::threads), dtp::threads, 0, dtp::stream_of(stream)>>>(*a);
    return dtp::launched();
}

extern "C" int dtp_cuda_permute(void *self, const struct dtp_permute_args *a, void *stream)
{
    (void)self;
    LAUNCH_ROWS(to_experts, a, a->tokens * a->chosen, stream);
}

extern "C" int dtp_cuda_unpermute(void *self, const struct dtp_unpermute_args *a, void *stream)
{
    (void)self;
    LAUNCH_ROWS(to_tokens, a, a->tokens, stream);
}

extern "C" int dtp_cuda_shared_gate_backward(void *self, const struct dtp_shared_gate_backward_args *a, void *stream)
{
    (void)self;
    LAUNCH_ROWS(shared_gate_back, a, a->tokens, stream);
}

extern "C" int dtp_cuda_expert_activation(void *self, const struct dtp_expert_activation_args *a, void *stream)
{
    (void)self;
    LAUNCH_SHORT_ROWS(activate_rows, a, a->tokens * a->chosen, stream);
}

extern "C" int dtp_cuda_expert_activation_backward(void *self, const struct dtp_expert_activation_backward_args *a,
                                                   void *stream)
{
    (void)self;
    LAUNCH_SHORT_ROWS(activate_rows_back, a, a->tokens * a->chosen, stream);
}
