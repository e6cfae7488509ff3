/* Norms of heads, and what stands around context parallel ranks' attention. */
#include "gpu/bench_kernels.h"

static const enum dtp_element bf16 = DTP_ELEMENT_BF16, fp32 = DTP_ELEMENT_FP32;

static void bench_qk_norm(uint64_t rows, uint32_t heads, uint32_t kv_heads, uint32_t dim)
{
    const uint64_t normed = rows * (heads + kv_heads), packed = rows * (heads + 2 * kv_heads) * dim;
    struct dtp_qk_norm_args a = {.qkv = bench_take(packed, bf16),
                                 .raw = bench_take(normed * dim, bf16),
                                 .weight = bench_take(2 * dim, bf16),
                                 .inverse_deviation = bench_take(normed, fp32),
                                 .rows = rows,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .head_dim = dim,
                                 .epsilon = 1e-6f,
                                 .element = bf16,
                                 .weight_element = bf16};
    struct dtp_qk_norm_backward_args back = {.qkv_gradient = bench_take(packed, bf16),
                                             .raw = a.raw,
                                             .weight = a.weight,
                                             .inverse_deviation = a.inverse_deviation,
                                             .weight_gradient = bench_take(2 * dim, bf16),
                                             .workspace = bench_take(DTP_PARTIAL_SUM_ROWS * (uint64_t)2 * dim, fp32),
                                             .rows = rows,
                                             .heads = heads,
                                             .kv_heads = kv_heads,
                                             .head_dim = dim,
                                             .element = bf16,
                                             .weight_element = bf16,
                                             .gradient_element = bf16};
    const uint64_t kept = bench_pool_used;
    BENCH(qk_norm, a, 6 * normed * dim, 0, "qk_norm %llu x %u:%u heads of %u", (unsigned long long)rows, heads,
          kv_heads, dim);
    bench_pool_used = kept;
    BENCH(qk_norm_backward, back, 6 * normed * dim, 0, "qk_norm backward %llu x %u:%u heads of %u",
          (unsigned long long)rows, heads, kv_heads, dim);
}

/* The steps of a ring of two ranks: the first has all queries, the second half of them. */
static void bench_merge(uint32_t sequence, uint32_t heads, uint32_t dim)
{
    const uint64_t all = (uint64_t)sequence * heads;
    struct dtp_merge_attention_args a = {.parts = bench_take(2 * all * dim, bf16),
                                         .part_log_sum_exp = bench_take(2 * all, fp32),
                                         .result = bench_take(all * dim, bf16),
                                         .log_sum_exp = bench_take(all, fp32),
                                         .steps = 2,
                                         .whole = 1,
                                         .batch = 1,
                                         .sequence = sequence,
                                         .heads = heads,
                                         .head_dim = dim,
                                         .element = bf16};
    BENCH(merge_attention, a, 5 * all * dim, 0, "merge attention %u x %u heads of %u", sequence, heads, dim);
}

/* Rows of q, k and v to parts by rank, as an all-to-all takes them. */
static void bench_columns(uint64_t rows, uint32_t parts, uint64_t width)
{
    struct dtp_columns_args a = {.from = bench_take(rows * parts * width, bf16),
                                 .to = bench_take(rows * parts * width, bf16),
                                 .width = width,
                                 .count = {1, rows, parts},
                                 .from_step = {0, parts * width, width},
                                 .to_step = {0, width, rows * width},
                                 .element = bf16};
    BENCH(columns, a, 4 * rows * parts * width, 0, "columns %llu x %u x %llu", (unsigned long long)rows, parts,
          (unsigned long long)width);
}

/* Rows of q, k and v as ranks of context parallel exchange them, turned on the way. */
static void bench_lay_out(uint32_t sequence, uint32_t heads, uint32_t kv_heads, uint32_t dim)
{
    const uint64_t all = (uint64_t)sequence * (heads + 2 * kv_heads) * dim;
    struct dtp_lay_out_heads_args a = {.rows = bench_take(all, bf16),
                                       .laid_out = bench_take(all, bf16),
                                       .cosines = bench_take((uint64_t)sequence * dim / 2, fp32),
                                       .sines = bench_take((uint64_t)sequence * dim / 2, fp32),
                                       .batch = 1,
                                       .sequence = sequence,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .head_dim = dim,
                                       .ranks = 2,
                                       .chunks = 2,
                                       .element = bf16};
    BENCH(lay_out_heads, a, 4 * all + 4 * (uint64_t)sequence * dim, 0, "lay out heads %u x %u:%u heads of %u", sequence,
          heads, kv_heads, dim);
}

void bench_heads(void)
{
    bench_qk_norm(4096, 16, 8, 128);
    bench_qk_norm(8192, 16, 16, 128);
    bench_qk_norm(16384, 32, 8, 128);
    bench_merge(8192, 24, 128);
    bench_merge(32768, 16, 128);
    bench_columns(16384, 2, 2048);
    bench_columns(32768, 2, 512);
    bench_lay_out(32768, 32, 8, 64);
    bench_lay_out(16384, 32, 8, 128);
}
