/* The instructions that mma.cuh is made of: what a warp's lanes have in which register stands there. */
#ifndef DTP_TENSOR_CORE_CUH
#define DTP_TENSOR_CORE_CUH

#include "kernels/vector.cuh"

namespace dtp
{

/* Four squares of 8 x 8 elements of 16 bits: lane 8 i + r names row r of square i; register i of a lane becomes
 * elements 2 t, 2 t + 1 of row g of square i, or, turned, rows 2 t, 2 t + 1 of its column g. */
__device__ inline void load_matrices(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ inline void load_matrices_turned(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* sums += a b, of a warp: 16 x 8 sums, 16 x 16 elements of a, 16 x 8 of b. */
template <typename T>
__device__ inline void multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t upper_b, uint32_t lower_b)
{
    if constexpr (same<T, bf16>)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(upper_b), "r"(lower_b));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(upper_b), "r"(lower_b));
}

/* Four bytes to shared memory as copy_async has sixteen. */
__device__ inline void copy_word_async(float *to, const float *from, bool exists)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(exists ? 4 : 0)
                 : "memory");
}

} // namespace dtp

#endif
