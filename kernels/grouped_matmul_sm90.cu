#include "kernels/grouped_matmul_sm90.h"

#include "kernels/hopper.cuh"

/* Products of rows by experts (grouped_matmul.cu) by what compute capability 9.0 has. Compiled for sm_90a alone.
 *
 * One block an SM takes tiles of 128 x 256 in turn. A thread of its last warpgroup brings operands, 64 deep, into a
 * ring of stages; two warpgroups multiply them, each 64 rows of the tile, and give a stage back when they have. While
 * they write a tile's result the ring is filled for the next. Where an expert's tiles begin each block counts when it
 * starts, as only the device knows how many rows each has. Tiles that blocks have at a time are neighbours: they share
 * rows and columns of operands in the L2.
 *
 * Rows beyond an expert's are the next one's: they are multiplied but not written, and 64 of them at once are not even
 * multiplied. Of weights' gradients, which sum over rows, they are set to zero in shared memory.
 *
 * A tile of weights' gradients takes as long as its expert has rows, which routers do not divide evenly. So experts
 * with many rows come first, and a block takes its next tile by a counter in the routes, one ahead: when it begins to
 * bring the operands of the one before. The thread that brings operands takes it, and leaves its number with the tile's
 * first stage. */
namespace dtp
{
namespace
{

constexpr int tile_rows = 128, tile_columns = 256, depth = 64, stages = 4;
constexpr int warpgroup = 128, groups = tile_rows / 64, consumers = groups * warpgroup;
constexpr int threads = consumers + warpgroup, few_registers = 40, many_registers = 232; /* 512 for the three of them */
constexpr int box_bytes = depth * swizzled_row * 2; /* 64 rows of k across, or 64 rows along it */
constexpr int a_bytes = tile_rows / 64 * box_bytes, b_bytes = tile_columns / 64 * box_bytes;
constexpr int stage_bytes = a_bytes + b_bytes;
constexpr int band = 16; /* tiles of rows that take a column of tiles before its neighbour is taken */
constexpr uint32_t most_experts = DTP_ROUTER_EXPERTS;

/* Whether rows of an operand run along what is summed over. */
template <enum dtp_grouped_product PRODUCT> constexpr bool a_along = PRODUCT != DTP_GROUPED_WEIGHT_GRADIENT;
template <enum dtp_grouped_product PRODUCT> constexpr bool b_along = PRODUCT == DTP_GROUPED_FORWARD;

/* What a block has in shared memory. */
struct room {
    unsigned char *stage; /* [stages][stage_bytes] */
    uint64_t *full, *empty;
    int32_t *number;         /* [stages]: of the tile that begins there */
    int32_t *tiles, *starts; /* [experts + 1]: numbers of each expert's first tile, row */
    int32_t *order;          /* [experts]: by falling rows, of weights' gradients */
};

size_t room_bytes(uint32_t experts)
{
    return atom_bytes + (size_t)stages * stage_bytes + 2 * stages * sizeof(uint64_t) +
           (stages + 2 * ((size_t)experts + 1) + experts) * sizeof(int32_t);
}

__device__ struct room room_at(unsigned char *shared, uint32_t experts)
{
    struct room r;
    r.stage = shared + (atom_bytes - shared_address(shared) % atom_bytes) % atom_bytes;
    r.full = (uint64_t *)(r.stage + stages * stage_bytes), r.empty = r.full + stages;
    r.number = (int32_t *)(r.empty + stages), r.tiles = r.number + stages;
    r.starts = r.tiles + experts + 1, r.order = r.starts + experts + 1;
    return r;
}

struct tile {
    int32_t place, expert, row, column; /* place of the expert in the order of tiles; row and column of its result */
    int32_t begin, rows;                /* the expert's rows */
};

/* Tiles of a result that stand side by side. */
template <enum dtp_grouped_product PRODUCT> __device__ int32_t columns_of(const struct dtp_grouped_matmul_args &a)
{
    const uint64_t n = PRODUCT == DTP_GROUPED_FORWARD ? a.out : a.in;
    return (int32_t)((n + tile_columns - 1) / tile_columns);
}

/* Counts tiles, by the first warp. Each lane counts some experts. */
template <enum dtp_grouped_product PRODUCT>
__device__ void count_tiles(const struct dtp_grouped_matmul_args &a, const struct room &room)
{
    const int32_t *starts = dtp_routes_at((void *)a.routes, a.rows).starts, columns = columns_of<PRODUCT>(a);
    const uint32_t each = (a.experts + 31) / 32, lane = threadIdx.x, first = lane * each;
    const uint32_t end = first + each < a.experts ? first + each : a.experts;
    const auto tiles_of = [&](uint32_t e) {
        const int64_t rows = PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT ? (int64_t)a.out : starts[e + 1] - starts[e];
        return (int32_t)((rows + tile_rows - 1) / tile_rows) * columns;
    };
    int32_t mine = 0;
    for (uint32_t e = first; e < end; e++)
        mine += tiles_of(e);
    int32_t sum = mine;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, distance);
        sum += (int)lane >= distance ? other : 0;
    }
    int32_t before = sum - mine;
    for (uint32_t e = first; e < end; e++) {
        room.tiles[e] = before, room.starts[e] = starts[e];
        before += tiles_of(e);
    }
    if (lane == 31) {
        room.tiles[a.experts] = sum, room.starts[a.experts] = starts[a.experts];
    }
}

/* Orders experts by falling rows, of equal ones that of lower number first. All threads. */
__device__ void sort_experts(const struct room &room, int32_t experts)
{
    const auto rows_of = [&](int32_t e) { return room.starts[e + 1] - room.starts[e]; };
    for (int32_t e = (int32_t)threadIdx.x; e < experts; e += threads) {
        int32_t place = 0;
        for (int32_t other = 0; other < experts; other++)
            place += rows_of(other) > rows_of(e) || (rows_of(other) == rows_of(e) && other < e);
        room.order[place] = e;
    }
}

/* The tile of this number, of an expert whose place is not before the last one's asked for, which `t` has. All experts
 * have as many tiles of weights' gradients, so that numbers hold in any order. */
template <enum dtp_grouped_product PRODUCT>
__device__ void find_tile(const struct room &room, int32_t columns, int32_t number, struct tile &t)
{
    while (number >= room.tiles[t.place + 1])
        t.place++;
    t.expert = PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT ? room.order[t.place] : t.place;
    const int32_t within = number - room.tiles[t.place], of_band = band * columns;
    const int32_t high = (room.tiles[t.place + 1] - room.tiles[t.place]) / columns, above = within / of_band * band;
    const int32_t here = high - above < band ? high - above : band, rest = within % of_band;
    t.row = (above + rest % here) * tile_rows, t.column = rest / here * tile_columns;
    t.begin = room.starts[t.expert], t.rows = room.starts[t.expert + 1] - t.begin;
}

/* Length of the dimension that is summed over. */
template <enum dtp_grouped_product PRODUCT>
__device__ int32_t depth_of(const struct dtp_grouped_matmul_args &a, const struct tile &t)
{
    return PRODUCT == DTP_GROUPED_FORWARD ? (int32_t)a.in
                                          : (PRODUCT == DTP_GROUPED_INPUT_GRADIENT ? (int32_t)a.out : t.rows);
}

/* ---- the thread that brings operands ----------------------------------------------------------------------------- */

/* WIDE rows or columns of an operand from `first` on, 64 deep from k on. */
template <bool ALONG, int WIDE>
__device__ void bring(unsigned char *to, const CUtensorMap *map, int32_t first, int32_t k, int32_t group,
                      uint64_t *barrier)
{
    if constexpr (ALONG)
        copy_box(to, map, k, first, group, barrier);
    else
#pragma unroll
        for (int i = 0; i < WIDE / swizzled_row; i++)
            copy_box(to + i * box_bytes, map, first + i * swizzled_row, k, group, barrier);
}

/* Counters of tiles that blocks took beyond their first and of blocks that took their last. */
__device__ int32_t *turns_of(const struct dtp_grouped_matmul_args &a)
{
    return dtp_routes_at((void *)a.routes, a.rows).starts + a.experts + 1;
}

/* Leaves the counters as they were found: the last block to come here, when no other takes a tile any more. What the
 * others took is behind their fences, what is written here behind this block's own. */
__device__ void end_turns(int32_t *turns)
{
    __threadfence();
    if (atomicAdd(&turns[1], 1) != (int32_t)gridDim.x - 1)
        return;
    __threadfence();
    atomicExch(&turns[0], 0);
    atomicExch(&turns[1], 0);
}

/* Waits until a stage of the ring is free. */
__device__ uint32_t free_stage(const struct room &room, uint32_t step)
{
    barrier_wait(&room.empty[step % stages], (step / stages & 1) ^ 1);
    return step % stages;
}

/* Says of which tile the stages from here on are, of none if `number` is negative: an empty stage. */
__device__ void announce(const struct room &room, uint32_t step, int32_t number)
{
    const uint32_t at = free_stage(room, step);
    room.number[at] = number;
    barrier_arrive(&room.full[at]);
}

template <enum dtp_grouped_product PRODUCT>
__device__ void bring_all(const struct dtp_grouped_matmul_args &a, const struct room &room, const CUtensorMap *a_map,
                          const CUtensorMap *b_map)
{
    constexpr bool weights = PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT;
    const int32_t columns = columns_of<PRODUCT>(a), all = room.tiles[a.experts], blocks = (int32_t)gridDim.x;
    struct tile t = {};
    uint32_t step = 0;
    for (int32_t number = (int32_t)blockIdx.x, next; number < all; number = next) {
        next = weights ? blocks + atomicAdd(turns_of(a), 1) : number + blocks; /* long before it is needed */
        find_tile<PRODUCT>(room, columns, number, t);
        const int32_t deep = depth_of<PRODUCT>(a, t), from = weights ? t.begin : 0;
        if (weights && deep == 0)
            announce(room, step++, number);
        for (int32_t k = 0; k < deep; k += depth, step++) {
            const uint32_t at = free_stage(room, step);
            unsigned char *to = room.stage + at * stage_bytes;
            uint64_t *full = &room.full[at];
            if (weights && k == 0)
                room.number[at] = number;
            barrier_arrive_expecting(full, stage_bytes);
            bring<a_along<PRODUCT>, tile_rows>(to, a_map, t.row + (weights ? 0 : t.begin), from + k, 0, full);
            bring<b_along<PRODUCT>, tile_columns>(to + a_bytes, b_map, t.column, from + k, weights ? 0 : t.expert,
                                                  full);
        }
    }
    if (weights)
        announce(room, step, -1), end_turns(turns_of(a));
}

/* ---- warpgroups that multiply ------------------------------------------------------------------------------------ */

/* Zeros for rows of k from `exist` on of a stage that has them across. All consumers. */
__device__ void clear_rows(unsigned char *stage, int32_t exist)
{
    const int32_t words = (depth - exist) * 8; /* of a box, 16 bytes each */
    for (int32_t i = (int32_t)threadIdx.x; i < stage_bytes / box_bytes * words; i += consumers)
        ((uint4 *)(stage + i / words * box_bytes))[exist * 8 + i % words] = make_uint4(0, 0, 0, 0);
    show_to_products();
    meet(1, consumers);
}

/* A stage's products by this warpgroup. */
template <typename T, enum dtp_grouped_product PRODUCT>
__device__ void multiply_stage(float (&sums)[sums_of_warpgroup], const unsigned char *stage, bool add)
{
    constexpr bool a_k = a_along<PRODUCT>, b_k = b_along<PRODUCT>;
    const uint64_t a = operand_of(stage + threadIdx.x / warpgroup * box_bytes, box_bytes);
    const uint64_t b = operand_of(stage + a_bytes, box_bytes);
    products_begin();
#pragma unroll
    for (int i = 0; i < depth / 16; i++)
        multiply_64x256<T, a_k, b_k>(sums, a + i * next_16_of_k<a_k>, b + i * next_16_of_k<b_k>, add || i > 0);
    products_commit();
}

/* Transposes 4 x 4 words among four neighbouring lanes: before, lane q has word q of each of four blocks; then it has
 * all words of block q. */
__device__ void turn(uint32_t (&words)[4])
{
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    const auto swap = [](uint32_t &low, uint32_t &high, bool has_high, int distance) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, has_high ? low : high, distance);
        (has_high ? low : high) = other;
    };
    swap(words[0], words[1], odd, 1), swap(words[2], words[3], odd, 1);
    swap(words[0], words[2], upper, 2), swap(words[1], words[3], upper, 2);
}

/* Where a thread's sums go: its first row and column, in a result of these rows and columns. */
struct corner {
    uint64_t first; /* element at which the expert's result begins */
    int32_t row, column, rows, columns;
};

/* Writes sums in 16 bits, 16 bytes at a time. */
template <typename R>
__device__ void write_words(const float (&sums)[sums_of_warpgroup], R *result, const struct corner &c)
{
    const int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < tile_columns / 8; j += 4)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                words[i] = pair_of<R>(sums[(j + i) * 4 + half * 2], sums[(j + i) * 4 + half * 2 + 1]);
            turn(words);
            const int32_t row = c.row + 8 * half, column = c.column + (j + lane) * 8;
            if (row < c.rows && column < c.columns)
                *(uint4 *)(result + c.first + (uint64_t)row * (uint64_t)c.columns + (uint64_t)column) =
                    make_uint4(words[0], words[1], words[2], words[3]);
        }
}

__device__ inline float2 read_pair(const float *from)
{
    return *(const float2 *)from;
}

template <typename R> __device__ float2 read_pair(const R *from)
{
    const packed<R, 2> pair = load<2>(from);
    return make_float2(pair[0], pair[1]);
}

__device__ inline void write_pair(float *to, float2 pair)
{
    *(float2 *)to = pair;
}

template <typename R> __device__ void write_pair(R *to, float2 pair)
{
    *(uint32_t *)to = pair_of<R>(pair.x, pair.y);
}

/* Writes sums by pairs of columns. Where sums are added to what is there, some are read at a time before they are
 * written. */
template <typename R>
__device__ void write_pairs(const float (&sums)[sums_of_warpgroup], R *result, const struct corner &c, bool accumulate)
{
    constexpr int at_once = 16;
    const int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int first = 0; first < sums_of_warpgroup / 2; first += at_once) {
        float2 before[at_once];
#pragma unroll
        for (int pass = 0; pass < 2; pass++)
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                const int pair = first + i;
                const int32_t row = c.row + pair % 2 * 8, column = c.column + pair / 2 * 8 + lane * 2;
                const bool exists = row < c.rows && column < c.columns;
                R *at = result + c.first + (uint64_t)row * (uint64_t)c.columns + (uint64_t)column;
                if (pass == 0)
                    before[i] = exists && accumulate ? read_pair(at) : make_float2(0, 0);
                else if (exists)
                    write_pair(at, make_float2(before[i].x + sums[2 * pair], before[i].y + sums[2 * pair + 1]));
            }
    }
}

/* Adds sums to what is there, which the L2 does: nobody waits until it has been read. Each sum is added once, so that
 * it is the same in any order of tiles; what is less than FLT_MIN counts as 0. */
__device__ void add_pairs(const float (&sums)[sums_of_warpgroup], float *result, const struct corner &c)
{
    const int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int pair = 0; pair < sums_of_warpgroup / 2; pair++) {
        const int32_t row = c.row + pair % 2 * 8, column = c.column + pair / 2 * 8 + lane * 2;
        float *at = result + c.first + (uint64_t)row * (uint64_t)c.columns + (uint64_t)column;
        if (row < c.rows && column < c.columns)
            asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(sums[2 * pair]),
                         "f"(sums[2 * pair + 1])
                         : "memory");
    }
}

template <enum dtp_grouped_product PRODUCT>
__device__ void write(const float (&sums)[sums_of_warpgroup], const struct dtp_grouped_matmul_args &a,
                      const struct tile &t)
{
    constexpr bool weights = PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT;
    const uint64_t n = PRODUCT == DTP_GROUPED_FORWARD ? a.out : a.in;
    struct corner c;
    c.first = weights ? (uint64_t)t.expert * a.out * a.in : (uint64_t)t.begin * n;
    c.rows = weights ? (int32_t)a.out : t.rows, c.columns = (int32_t)n;
    c.row = t.row + (int32_t)threadIdx.x / 32 * 16 + (int32_t)threadIdx.x % 32 / 4, c.column = t.column;
    if (weights && a.result_element == DTP_ELEMENT_FP32 && a.accumulate)
        add_pairs(sums, (float *)a.result, c);
    else if (a.result_element == DTP_ELEMENT_FP32)
        write_pairs(sums, (float *)a.result, c, a.accumulate);
    else if (a.result_element == DTP_ELEMENT_BF16 && a.accumulate)
        write_pairs(sums, (bf16 *)a.result, c, true);
    else if (a.result_element == DTP_ELEMENT_BF16)
        write_words(sums, (bf16 *)a.result, c);
    else if (a.accumulate)
        write_pairs(sums, (fp16 *)a.result, c, true);
    else
        write_words(sums, (fp16 *)a.result, c);
}

/* A stage of the ring is free once each warp of both warpgroups has said so. A lane that still waited for it to be full
 * could miss that it was. */
__device__ void give_back(const struct room &room, uint32_t step)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&room.empty[step % stages]);
}

/* Number of the tile whose stages begin at this step: of weights' gradients what the thread that brings them has left
 * there, else as far on as there are blocks. Negative: there is none. */
template <enum dtp_grouped_product PRODUCT>
__device__ int32_t next_number(const struct room &room, uint32_t step, int32_t last, int32_t all)
{
    if (PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT) {
        barrier_wait(&room.full[step % stages], step / stages & 1);
        return room.number[step % stages];
    }
    const int32_t number = last < 0 ? (int32_t)blockIdx.x : last + (int32_t)gridDim.x;
    return number < all ? number : -1;
}

template <typename T, enum dtp_grouped_product PRODUCT>
__device__ void multiply_all(const struct dtp_grouped_matmul_args &a, const struct room &room)
{
    constexpr bool weights = PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT;
    const int32_t columns = columns_of<PRODUCT>(a), all = room.tiles[a.experts];
    struct tile t = {};
    uint32_t step = 0;
    float sums[sums_of_warpgroup] = {};
    for (int32_t number = -1; (number = next_number<PRODUCT>(room, step, number, all)) >= 0;) {
        find_tile<PRODUCT>(room, columns, number, t);
        const int32_t deep = depth_of<PRODUCT>(a, t);
        const bool idle = !weights && t.row + (int32_t)threadIdx.x / warpgroup * 64 >= t.rows;
        for (int32_t k = 0; idle && k < deep; k += depth, step++) {
            barrier_wait(&room.full[step % stages], step / stages & 1);
            give_back(room, step);
        }
        if (idle)
            continue;
        for (int32_t k = 0; k < deep; k += depth, step++) {
            unsigned char *stage = room.stage + step % stages * stage_bytes;
            barrier_wait(&room.full[step % stages], step / stages & 1);
            if (weights && deep - k < depth)
                clear_rows(stage, deep - k);
            multiply_stage<T, PRODUCT>(sums, stage, k > 0);
            products_wait<1>();
            if (k > 0)
                give_back(room, step - 1);
        }
        step += weights && deep == 0; /* the stage that said so */
        products_wait<0>();
        sums_settle(sums);
        if (deep > 0 || weights)
            give_back(room, step - 1);
#pragma unroll
        for (int i = 0; weights && i < sums_of_warpgroup; i++)
            sums[i] = deep > 0 ? sums[i] : 0;
        if (deep > 0 || !a.accumulate) /* of no rows there is nothing to add */
            write<PRODUCT>(sums, a, t);
    }
}

template <typename T, enum dtp_grouped_product PRODUCT>
__global__ void __launch_bounds__(threads, 1)
    product(const struct dtp_grouped_matmul_args args, const __grid_constant__ CUtensorMap a_map,
            const __grid_constant__ CUtensorMap b_map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char shared[];
    const struct room room = room_at(shared, args.experts);
    if (threadIdx.x == threads - 1) {
        for (int i = 0; i < stages; i++) {
            barrier_begin(&room.full[i], 1);
            barrier_begin(&room.empty[i], consumers / 32);
        }
        barriers_begun();
    }
    if (threadIdx.x < 32)
        count_tiles<PRODUCT>(args, room);
    __syncthreads();
    if (PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT) {
        sort_experts(room, (int32_t)args.experts);
        __syncthreads();
    }
    if (threadIdx.x < consumers) {
        registers_take<many_registers>();
        multiply_all<T, PRODUCT>(args, room);
    } else {
        registers_give_up<few_registers>();
        if (threadIdx.x == consumers)
            bring_all<PRODUCT>(args, room, &a_map, &b_map);
    }
#endif
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* A call of the driver, which is found at run time, for the driver is not linked. */
using encode = decltype(&cuTensorMapEncodeTiled);

encode encoder()
{
    static const auto found = [] {
        void *entry = nullptr;
        cudaDriverEntryPointQueryResult result;
        const cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (encode)entry : nullptr;
    }();
    return found;
}

/* Map of [count, rows, width] elements, of which boxes have `high` rows of 64. */
bool map_of(CUtensorMap *map, const void *at, enum dtp_element element, uint64_t width, uint64_t rows, uint64_t count,
            uint32_t high)
{
    const cuuint64_t sizes[] = {width, rows, count}, strides[] = {2 * width, 2 * width * rows};
    const cuuint32_t box[] = {(cuuint32_t)swizzled_row, high, 1}, every[] = {1, 1, 1};
    return encoder() &&
           encoder()(
               map, element == DTP_ELEMENT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
               (void *)at, sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Tiles of the result for any counts. */
uint64_t most_tiles(const struct dtp_grouped_matmul_args &a)
{
    const uint64_t n = a.product == DTP_GROUPED_FORWARD ? a.out : a.in, columns = (n + tile_columns - 1) / tile_columns;
    return columns * (a.product == DTP_GROUPED_WEIGHT_GRADIENT ? a.experts * ((a.out + tile_rows - 1) / tile_rows)
                                                               : a.rows / tile_rows + a.experts);
}

template <typename T, enum dtp_grouped_product PRODUCT>
int launch(const struct dtp_grouped_matmul_args &a, cudaStream_t stream)
{
    constexpr bool weights = PRODUCT == DTP_GROUPED_WEIGHT_GRADIENT;
    static const cudaError_t large = cudaFuncSetAttribute(
        product<T, PRODUCT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room_bytes(most_experts));
    CUtensorMap a_map, b_map;
    const uint64_t width = PRODUCT == DTP_GROUPED_FORWARD ? a.in : a.out;
    const bool mapped =
        map_of(&a_map, a.a, a.element, width, a.rows, 1, a_along<PRODUCT> ? tile_rows : depth) &&
        (weights ? map_of(&b_map, a.b, a.element, a.in, a.rows, 1, depth)
                 : map_of(&b_map, a.b, a.element, a.in, a.out, a.experts, b_along<PRODUCT> ? tile_columns : depth));
    if (large != cudaSuccess || !mapped)
        return (int)(large != cudaSuccess ? large : cudaErrorInvalidValue);
    const uint64_t tiles = most_tiles(a), blocks = (uint64_t)multiprocessors();
    product<T, PRODUCT>
        <<<(unsigned)(tiles < blocks ? tiles : blocks), threads, room_bytes(a.experts), stream>>>(a, a_map, b_map);
    return launched();
}

template <typename T> int launch_any(const struct dtp_grouped_matmul_args &a, cudaStream_t stream)
{
    return a.product == DTP_GROUPED_FORWARD          ? launch<T, DTP_GROUPED_FORWARD>(a, stream)
           : a.product == DTP_GROUPED_INPUT_GRADIENT ? launch<T, DTP_GROUPED_INPUT_GRADIENT>(a, stream)
                                                     : launch<T, DTP_GROUPED_WEIGHT_GRADIENT>(a, stream);
}

} // namespace

bool grouped_matmul_sm90_takes(const struct dtp_grouped_matmul_args &a)
{
    static const bool hopper = [] {
        int device = 0, major = 0, minor = 0;
        return !cudaGetDevice(&device) && !cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) &&
               !cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) && major == 9 && minor == 0;
    }();
    const bool narrow = a.element == DTP_ELEMENT_BF16 || a.element == DTP_ELEMENT_FP16;
    return hopper && encoder() && narrow && a.rows && a.rows <= INT32_MAX && a.out && a.in && a.out % 8 == 0 &&
           a.in % 8 == 0 && a.out <= INT32_MAX - tile_columns && a.in <= INT32_MAX - tile_columns && a.experts &&
           a.experts <= most_experts && most_tiles(a) <= INT32_MAX / 2;
}

int grouped_matmul_sm90(const struct dtp_grouped_matmul_args &a, cudaStream_t stream)
{
    return a.element == DTP_ELEMENT_BF16 ? launch_any<bf16>(a, stream) : launch_any<fp16>(a, stream);
}

} // namespace dtp
