/* Instructions that compute capability 9.0 alone has: boxes of a tensor brought to shared memory by the tensor memory
 * accelerator, barriers in shared memory that count their bytes, and products of matrices that lie there by a
 * warpgroup, four warps of which the first one's number is a multiple of four. PTX ISA 8.0 and later, "Asynchronous
 * Warpgroup Level Matrix Instructions" and "Tensor copy".
 *
 * An operand of 16 bits stands in shared memory in atoms of 8 rows of 128 bytes, at multiples of 1024 bytes, in which
 * the 16-byte word w of row r is the (w ^ r)-th: what a copy with a swizzle of 128 bytes writes. A row runs along k
 * ("along": 64 of k, rows are of m or n), or across it ("across": 64 of m or n, rows are of k). */
#ifndef DTP_HOPPER_CUH
#define DTP_HOPPER_CUH

#include "kernels/vector.cuh"

#include <cuda.h>

namespace dtp
{

constexpr int atom_bytes = 1024, swizzled_row = 64, sums_of_warpgroup = 128;

__device__ inline uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* Registers that each thread of this warpgroup has from here on: fewer, or more once others gave some up. Of all warps
 * of the warpgroup, a multiple of 8. */
template <int COUNT> __device__ inline void registers_give_up()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ inline void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

/* A phase ends when `arrivals` have arrived and as many bytes as were expected. */
__device__ inline void barrier_begin(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* So that copies see barriers that were begun. */
__device__ inline void barriers_begun()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline void barrier_arrive_expecting(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* Until the phase of this parity has ended: of a barrier just begun the one before its first, odd, has. */
__device__ inline void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t ended;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ended)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!ended);
}

/* Barrier `name` of `threads` threads of a block, whole warps; 0 is __syncthreads'. */
__device__ inline void meet(int name, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* The box of a map of three dimensions that begins at these, innermost first; zeros beyond the tensor. All its bytes
 * count for the barrier. One thread. */
__device__ inline void copy_box(void *to, const CUtensorMap *map, int32_t inner, int32_t row, int32_t group,
                                uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(shared_address(to)),
        "l"(map), "r"(inner), "r"(row), "r"(group), "r"(shared_address(barrier))
        : "memory");
}

/* So that products see what this thread wrote to shared memory itself. */
__device__ inline void show_to_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Descriptor of an operand that begins at an atom: in units of 16 bytes its address, at bit 16 the distance of the next
 * 64 of m or n where they lie in rows (elsewhere unused), at bit 32 that of the next 8 rows; at bit 62 the swizzle, 1:
 * of 128 bytes. `next` is in bytes. 16 further of k are 32 bytes further along, 16 rows across. */
__device__ inline uint64_t operand_of(const void *at, uint32_t next)
{
    return (uint64_t)(shared_address(at) >> 4 & 0x3FFF) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(atom_bytes >> 4) << 32 | (uint64_t)1 << 62;
}

template <bool ALONG> constexpr uint64_t next_16_of_k = (ALONG ? 32 : 16 * 128) >> 4;

/* Before the first product, and after sums were touched otherwise. */
__device__ inline void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until all but the last PENDING groups are done. */
template <int PENDING> __device__ inline void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* What reads sums afterwards is not moved before here. */
__device__ inline void sums_settle(float (&sums)[sums_of_warpgroup])
{
#pragma unroll
    for (int i = 0; i < sums_of_warpgroup; i++)
        asm volatile("" : "+f"(sums[i])::"memory");
}

/* clang-format off */
#define DTP_TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" \
    #t "9, "
#define DTP_SUMS "{" DTP_TEN() DTP_TEN(1) DTP_TEN(2) DTP_TEN(3) DTP_TEN(4) DTP_TEN(5) DTP_TEN(6) DTP_TEN(7) DTP_TEN(8) \
    DTP_TEN(9) DTP_TEN(10) DTP_TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127}"
#define DTP_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define DTP_16(i) DTP_4(i), DTP_4(i + 4), DTP_4(i + 8), DTP_4(i + 12)
#define DTP_64(i) DTP_16(i), DTP_16(i + 16), DTP_16(i + 32), DTP_16(i + 48)
#define DTP_WARPGROUP_PRODUCT(types)                                                                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32." types " "   \
                 DTP_SUMS ", %128, %129, p, 1, 1, %131, %132;\n}"                                                      \
                 : DTP_64(0), DTP_64(64)                                                                               \
                 : "l"(a), "l"(b), "r"((int)add), "n"(A_ALONG ? 0 : 1), "n"(B_ALONG ? 0 : 1))
/* clang-format on */

/* sums [64, 256] = a [64, 16] by b [16, 256], or where `add` that more. Of thread t of the warpgroup sums 4 j + 2 h + c
 * are of row 16 (t / 32) + 8 h + t % 32 / 4, column 8 j + 2 (t % 4) + c. */
template <typename T, bool A_ALONG, bool B_ALONG>
__device__ inline void multiply_64x256(float (&sums)[sums_of_warpgroup], uint64_t a, uint64_t b, bool add)
{
    if constexpr (same<T, bf16>)
        DTP_WARPGROUP_PRODUCT("bf16.bf16");
    else
        DTP_WARPGROUP_PRODUCT("f16.f16");
}

#undef DTP_WARPGROUP_PRODUCT
#undef DTP_64
#undef DTP_16
#undef DTP_4
#undef DTP_SUMS
#undef DTP_TEN

} // namespace dtp

#endif
