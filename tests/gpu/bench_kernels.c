/* Bytes a second of every kernel, beside a copy measured in the same run. Bytes are what a kernel must move: inputs
 * read once, results written once. Random data, tensors larger than the L2, warm-up, median of 20. */
#include "gpu/bench_kernels.h"

#include <math.h>
#include <stdlib.h>

static char *pool;
static uint64_t pool_bytes = (uint64_t)14 << 30;
uint64_t bench_pool_used;
static double copy_bytes_per_s;
cudaEvent_t bench_begin, bench_end;
const char *bench_wanted;

void bench_need(int code)
{
    if (code == 0)
        return;
    fprintf(stderr, "%s\n", dtp_cuda_error_text(code));
    exit(1);
}

/* Random elements from the pool; its contents are normal numbers whatever the type read into them. */
void *bench_take(uint64_t count, enum dtp_element element)
{
    uint64_t bytes = (count * dtp_element_bytes(element) + 255) / 256 * 256;
    if (bench_pool_used + bytes > pool_bytes) {
        fprintf(stderr, "the pool of %llu bytes is too small\n", (unsigned long long)pool_bytes);
        exit(1);
    }
    void *at = pool + bench_pool_used;
    bench_pool_used += bytes;
    struct dtp_initialise_args a = {.values = at,
                                    .count = count,
                                    .seed = random_state,
                                    .tensor = (uint32_t)(bench_pool_used >> 8),
                                    .deviation = 1,
                                    .element = element};
    bench_need(dtp_cuda_initialise(NULL, &a, NULL));
    return at;
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double bench_median(double *seconds)
{
    qsort(seconds, TIMES, sizeof *seconds, by_value);
    return (seconds[TIMES / 2 - 1] + seconds[TIMES / 2]) / 2;
}

void bench_report(const char *name, double bytes, double flops, double seconds)
{
    printf("%-52s %9.1f us %8.0f GB/s", name, seconds * 1e6, bytes / seconds / 1e9);
    if (copy_bytes_per_s > 0)
        printf(" %5.1f %% of copy", bytes / seconds / copy_bytes_per_s * 100);
    if (flops > 0)
        printf(" %6.2f TFLOP/s", flops / seconds / 1e12);
    printf("\n");
    fflush(stdout);
}

static const enum dtp_element bf16 = DTP_ELEMENT_BF16, fp32 = DTP_ELEMENT_FP32;

static void bench_copy(void)
{
    uint64_t bytes = (uint64_t)2 << 30;
    TIME(seconds, cudaMemcpyAsync(pool, pool + bytes, bytes, cudaMemcpyDeviceToDevice, NULL));
    copy_bytes_per_s = 2 * (double)bytes / seconds;
    bench_report("copy", 2 * (double)bytes, 0, seconds);
}

/* What a line's time contains beside the kernel's: of a kernel that does nothing worth mentioning. */
static void bench_launch(void)
{
    struct dtp_sum_args a = {.values = bench_take(1, fp32), .total = bench_take(1, fp32), .count = 1};
    BENCH(sum, a, 4, 0, "launch of a kernel");
}

static void bench_norm(uint64_t rows, uint32_t width, bool layer)
{
    uint64_t all = rows * width;
    float *statistics = bench_take(2 * rows, fp32);
    struct dtp_norm_args a = {.x = bench_take(all, bf16),
                              .weight = bench_take(width, bf16),
                              .result = bench_take(all, bf16),
                              .inverse_deviation = statistics,
                              .mean = layer ? statistics + rows : NULL,
                              .rows = rows,
                              .width = width,
                              .epsilon = 1e-5f,
                              .element = bf16,
                              .bias = layer ? bench_take(width, bf16) : NULL,
                              .weight_element = bf16};
    BENCH(norm, a, 4 * all, 0, "norm %s %llu x %u", layer ? "layer" : "rms", (unsigned long long)rows, width);
    statistics = bench_take(2 * rows, fp32);
    struct dtp_norm_backward_args b = {.gradient = bench_take(all, bf16),
                                       .x = bench_take(all, bf16),
                                       .weight = bench_take(width, bf16),
                                       .inverse_deviation = statistics,
                                       .mean = layer ? statistics + rows : NULL,
                                       .residual_gradient = bench_take(all, bf16),
                                       .weight_gradient = bench_take(width, bf16),
                                       .bias_gradient = layer ? bench_take(width, bf16) : NULL,
                                       .workspace = bench_take(2 * DTP_PARTIAL_SUM_ROWS * (uint64_t)width, fp32),
                                       .rows = rows,
                                       .width = width,
                                       .element = bf16,
                                       .weight_element = bf16,
                                       .gradient_element = bf16,
                                       .add_to_residual = true};
    BENCH(norm_backward, b, 8 * all, 0, "norm_backward %s %llu x %u", layer ? "layer" : "rms", (unsigned long long)rows,
          width);
}

static void bench_activation(uint64_t rows, uint32_t width, enum dtp_activation_kind kind)
{
    uint64_t all = rows * width, inputs = kind == DTP_ACTIVATION_SWIGLU ? 2 * all : all;
    const char *name = kind == DTP_ACTIVATION_SWIGLU ? "swiglu" : "gelu";
    struct dtp_activation_args a = {.up = bench_take(inputs, bf16),
                                    .result = bench_take(all, bf16),
                                    .rows = rows,
                                    .width = width,
                                    .kind = kind,
                                    .element = bf16};
    BENCH(activation, a, 2 * (inputs + all), 0, "%s %llu x %u", name, (unsigned long long)rows, width);
    struct dtp_activation_backward_args b = {.gradient = bench_take(all, bf16),
                                             .up = bench_take(inputs, bf16),
                                             .rows = rows,
                                             .width = width,
                                             .kind = kind,
                                             .element = bf16};
    b.up_gradient = (void *)b.up, b.result = (void *)b.gradient;
    BENCH(activation_backward, b, 4 * (inputs + all), 0, "%s backward, in place, result %llu x %u", name,
          (unsigned long long)rows, width);
}

static void bench_rotary(uint64_t rows, uint32_t heads, uint32_t kv_heads, uint32_t dim)
{
    struct dtp_rotary_args a = {.qkv = bench_take(rows * (heads + 2 * kv_heads) * dim, bf16),
                                .cosines = bench_take(2048 * dim / 2, fp32),
                                .sines = bench_take(2048 * dim / 2, fp32),
                                .rows = rows,
                                .sequence = 2048,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = dim,
                                .element = bf16};
    BENCH(rotary, a, 4 * rows * (heads + kv_heads) * dim, 0, "rotary %llu x %u:%u heads of %u",
          (unsigned long long)rows, heads, kv_heads, dim);
}

static void bench_loss(uint64_t rows, uint32_t vocab, uint32_t stride, float softcap)
{
    int32_t *targets = bench_take(rows, fp32);
    bench_need(cudaMemset(targets, 0, rows * 4));
    struct dtp_loss_args a = {.logits = bench_take(rows * stride, bf16),
                              .targets = targets,
                              .row_loss = bench_take(rows, fp32),
                              .rows = rows,
                              .vocab = vocab,
                              .stride = stride,
                              .scale = 1,
                              .softcap = softcap,
                              .element = bf16};
    BENCH(loss, a, 4 * rows * stride, 0, "loss %llu x %u%s", (unsigned long long)rows, vocab,
          softcap > 0 ? " capped" : "");
}

static void bench_adamw(uint64_t count, bool pure)
{
    struct dtp_step_scalars scalars = {
        .learning_rate = 1e-4f, .correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 1};
    struct dtp_step_scalars *on_device = bench_take(sizeof scalars, fp32);
    bench_need(cudaMemcpy(on_device, &scalars, sizeof scalars, cudaMemcpyHostToDevice));
    struct dtp_adamw_args a = {.gradient = bench_take(count, bf16),
                               .weights = bench_take(count, bf16),
                               .master = pure ? NULL : bench_take(count, fp32),
                               .moment1 = bench_take(count, pure ? bf16 : fp32),
                               .moment2 = bench_take(count, pure ? bf16 : fp32),
                               .count = count,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .epsilon = 1e-8f,
                               .decay = 0.1f,
                               .range_count = 4,
                               .range_end = {count / 8, count / 4, count / 2, count},
                               .range_begin = {0, count / 8, count / 4, count / 2},
                               .scalars = on_device,
                               .gradient_element = bf16,
                               .weight_element = bf16,
                               .moment_element = pure ? bf16 : fp32,
                               .stochastic_rounding = pure};
    BENCH(adamw, a, count * (pure ? 14 : 28), 0, "adamw %s %llu", pure ? "bf16-pure stochastic" : "bf16-mixed",
          (unsigned long long)count);
}

/* Four vectors of PowerSGD: columns of P [length, 4], or rows of Q [4, length]. */
static void bench_orthogonalize(uint64_t length, bool of_p)
{
    struct dtp_orthogonalize_args a = {.values = bench_take(4 * length, fp32),
                                       .length = length,
                                       .element_stride = of_p ? 4 : 1,
                                       .vector_stride = of_p ? 1 : length,
                                       .vectors = 4};
    BENCH(orthogonalize, a, 32 * length, 0, "orthogonalize %s of 4 x %llu", of_p ? "P" : "Q",
          (unsigned long long)length);
}

/* Token ids of rank r with a probability of about 1 / r (text), or all alike (bytes of a small vocabulary). */
static int32_t draw(uint32_t vocab, bool text)
{
    uint32_t token = text ? (uint32_t)exp(random_below(1 << 24) / 16777216.0 * log(vocab)) : random_below(vocab);
    return (int32_t)(token < vocab ? token : vocab - 1);
}

static void bench_embedding(uint64_t rows, uint32_t width, uint32_t vocab, bool text)
{
    int32_t *host = calloc(4 * rows + 4 + (size_t)vocab * 2 + 2, 4), *order = host + rows, *starts = host + 2 * rows,
            distinct = 0;
    int32_t *at = host + 4 * rows + 4, *device = bench_take(4 * rows + 4, fp32);
    if (!host)
        exit(1);
    for (uint64_t i = 0; i < rows; i++)
        at[(host[i] = draw(vocab, text)) + 1]++;
    for (uint32_t token = 0; token < vocab; token++) {
        if (at[token + 1] > 0)
            starts[distinct++] = at[token];
        at[token + 1] += at[token];
    }
    starts[distinct] = (int32_t)rows;
    for (uint64_t i = 0; i < rows; i++)
        order[at[host[i]]++] = (int32_t)i;
    host[3 * rows + 2] = distinct;
    bench_need(cudaMemcpy(device, host, (3 * rows + 3) * 4, cudaMemcpyHostToDevice));
    uint64_t kept = bench_pool_used;
    struct dtp_embedding_args a = {.tokens = device,
                                   .table = bench_take((uint64_t)vocab * width, bf16),
                                   .result = bench_take(rows * width, bf16),
                                   .rows = rows,
                                   .width = width,
                                   .vocab = vocab,
                                   .sequence = 2048,
                                   .scale = 1,
                                   .element = bf16,
                                   .result_element = bf16};
    BENCH(embedding, a, 2 * rows * width + 2 * (uint64_t)distinct * width, 0, "embedding %llu x %u of %u",
          (unsigned long long)rows, width, vocab);
    bench_pool_used = kept;
    struct dtp_embedding_backward_args b = {.gradient = bench_take(rows * width, bf16),
                                            .tokens = device,
                                            .order = device + rows,
                                            .starts = device + 2 * rows,
                                            .distinct = device + 3 * rows + 2,
                                            .table_gradient = bench_take((uint64_t)vocab * width, fp32),
                                            .rows = rows,
                                            .width = width,
                                            .vocab = vocab,
                                            .sequence = 2048,
                                            .scale = 1,
                                            .element = bf16,
                                            .gradient_element = fp32};
    BENCH(embedding_backward, b, 2 * rows * width + 8 * (uint64_t)distinct * width, 0,
          "embedding_backward %llu x %u of %u%s", (unsigned long long)rows, width, vocab, text ? ", text" : "");
    free(host);
}

static void bench_sums(void)
{
    uint64_t rows = 32768, count = 400000000;
    struct dtp_bias_backward_args a = {.gradient = bench_take(rows * 3072, bf16),
                                       .bias_gradient = bench_take(3072, bf16),
                                       .rows = rows,
                                       .width = 3072,
                                       .workspace = bench_take(2 * DTP_PARTIAL_SUM_ROWS * (uint64_t)3072, fp32),
                                       .element = bf16,
                                       .gradient_element = bf16};
    BENCH(bias_backward, a, 2 * rows * 3072, 0, "bias_backward %llu x 3072", (unsigned long long)rows);
    struct dtp_square_sum_args b = {
        .values = bench_take(count, bf16), .partial = bench_take(512, fp32), .count = count, .element = bf16};
    BENCH(square_sum, b, 2 * count, 0, "square_sum bf16 %llu", (unsigned long long)count);
    struct dtp_sum_args c = {.values = bench_take(rows, fp32), .total = bench_take(1, fp32), .count = rows};
    BENCH(sum, c, 4 * rows, 0, "sum %llu", (unsigned long long)rows);
    struct dtp_clip_scale_args d = {
        .partials = bench_take(34 * 512, fp32), .count = 34 * 512, .clip = 1, .scalars = bench_take(64, fp32)};
    BENCH(clip_scale, d, 4 * 34 * 512, 0, "clip_scale 34 modules");
    struct dtp_cast_args e = {.values = bench_take(count, fp32),
                              .result = bench_take(count, bf16),
                              .count = count,
                              .element = fp32,
                              .result_element = bf16};
    BENCH(cast, e, 6 * count, 0, "cast fp32 to bf16 %llu", (unsigned long long)count);
    struct dtp_add_args f = {.values = bench_take(count, bf16),
                             .total = bench_take(count, fp32),
                             .count = count,
                             .element = bf16,
                             .total_element = fp32};
    BENCH(add, f, 10 * count, 0, "add bf16 to fp32 %llu", (unsigned long long)count);
    struct dtp_sum_parts_args h = {.parts = bench_take(4 * count, fp32),
                                   .total = bench_take(count, fp32),
                                   .count = count,
                                   .part_count = 4,
                                   .element = fp32,
                                   .total_element = fp32};
    BENCH(sum_parts, h, 20 * count, 0, "sum_parts fp32 4 x %llu", (unsigned long long)count);
    h.parts = bench_take(4 * count, bf16), h.element = bf16;
    BENCH(sum_parts, h, 12 * count, 0, "sum_parts bf16 to fp32 4 x %llu", (unsigned long long)count);
    struct dtp_zero_args g = {.values = bench_take(count, fp32), .bytes = 4 * count};
    BENCH(zero, g, 4 * count, 0, "zero %llu bytes", (unsigned long long)(4 * count));
}

static void bench_attention(uint32_t batch, uint32_t sequence, uint32_t heads, uint32_t dim)
{
    uint64_t out = (uint64_t)batch * sequence * heads * dim;
    double flops = 2.0 * batch * heads * (double)sequence * sequence * dim; /* two products, half of each */
    struct dtp_attention_args a = {.qkv = bench_take(3 * out, bf16),
                                   .result = bench_take(out, bf16),
                                   .batch = batch,
                                   .sequence = sequence,
                                   .heads = heads,
                                   .log_sum_exp = bench_take((uint64_t)batch * heads * sequence, fp32),
                                   .kv_heads = heads,
                                   .head_dim = dim,
                                   .scale = (float)(1 / sqrt((double)dim)),
                                   .element = bf16};
    BENCH(attention, a, 8 * out, flops, "attention_simple %u x %u, %u heads of %u", batch, sequence, heads, dim);
    struct dtp_attention_backward_args b = {.qkv = bench_take(3 * out, bf16),
                                            .result = bench_take(out, bf16),
                                            .gradient = bench_take(out, bf16),
                                            .qkv_gradient = bench_take(3 * out, bf16),
                                            .batch = batch,
                                            .log_sum_exp = bench_take((uint64_t)batch * heads * sequence, fp32),
                                            .sequence = sequence,
                                            .heads = heads,
                                            .kv_heads = heads,
                                            .head_dim = dim,
                                            .scale = (float)(1 / sqrt((double)dim)),
                                            .element = bf16};
    BENCH(attention_backward, b, 16 * out, 2.5 * flops, "attention_simple backward %u x %u, %u heads of %u", batch,
          sequence, heads, dim);
}

/* Attention of a model that cuDNN does not compute. FLOPs are those of keys that queries see: a product with keys and
 * one with values forward, three and two backward, those made twice counted once. */
struct model_attention {
    const char *model;
    uint32_t heads, kv_heads, dim, value_dim, window;
    float softcap;
    bool alibi;
};

static void bench_mma(const struct model_attention *m, uint32_t batch, uint32_t sequence)
{
    const uint64_t rows = (uint64_t)batch * sequence, out = rows * m->heads * m->value_dim;
    const uint64_t packed = rows * ((m->heads + m->kv_heads) * m->dim + m->kv_heads * m->value_dim);
    const double s = sequence, w = m->window && m->window < sequence ? m->window : s;
    const double products = (double)rows * m->heads * (2 * w - w * w / s);
    struct dtp_attention_args a = {.qkv = bench_take(packed, bf16),
                                   .result = bench_take(out, bf16),
                                   .batch = batch,
                                   .sequence = sequence,
                                   .heads = m->heads,
                                   .log_sum_exp = bench_take(rows * m->heads, fp32),
                                   .kv_heads = m->kv_heads,
                                   .head_dim = m->dim,
                                   .value_dim = m->value_dim,
                                   .window = m->window,
                                   .softcap = m->softcap,
                                   .alibi = m->alibi,
                                   .scale = (float)(1 / sqrt((double)m->dim)),
                                   .element = bf16};
    BENCH(attention_mma, a, 2 * (packed + out), products * (m->dim + m->value_dim), "attention_mma %s %u x %u",
          m->model, batch, sequence);
    struct dtp_attention_backward_args b = {.qkv = bench_take(packed, bf16),
                                            .result = bench_take(out, bf16),
                                            .gradient = bench_take(out, bf16),
                                            .qkv_gradient = bench_take(packed, bf16),
                                            .batch = batch,
                                            .log_sum_exp = bench_take(rows * m->heads, fp32),
                                            .workspace = bench_take(rows * m->heads, fp32),
                                            .workspace_bytes = rows * m->heads * sizeof(float),
                                            .sequence = sequence,
                                            .heads = m->heads,
                                            .kv_heads = m->kv_heads,
                                            .head_dim = m->dim,
                                            .value_dim = m->value_dim,
                                            .window = m->window,
                                            .softcap = m->softcap,
                                            .alibi = m->alibi,
                                            .scale = (float)(1 / sqrt((double)m->dim)),
                                            .element = bf16};
    BENCH(attention_mma_backward, b, 2 * (2 * packed + 2 * out), products * (3 * m->dim + 2 * m->value_dim),
          "attention_mma backward %s %u x %u", m->model, batch, sequence);
}

static void bench_mma_models(void)
{
    static const struct model_attention models[] = {
        {"Gemma 3 1B", 4, 1, 256, 256, 512, 0, false}, {"Gemma 2 2B", 8, 4, 256, 256, 4096, 50, false},
        {"GPT-J 6B", 16, 16, 256, 256, 0, 0, false},   {"MPT-7B", 32, 32, 128, 128, 0, 0, true},
        {"BLOOM 1b7", 16, 16, 128, 128, 0, 0, true},   {"DeepSeek-V2-Lite", 16, 16, 192, 128, 0, 0, false},
        {"heads of 64", 32, 32, 64, 64, 0, 0, false}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        bench_mma(&models[i], 1, 1024);
        bench_mma(&models[i], 4, 2048);
    }
}

/* Rows by experts that begin anywhere: each has its share, some dozens more or less; `uneven`: one to eight shares. */
static void *bench_routes(uint64_t rows, uint32_t experts, bool uneven)
{
    const uint64_t count = experts + 1 + DTP_ROUTES_TURNS;
    int32_t *device = bench_take(DTP_ROUTES_INTS(rows, experts), fp32), *starts = calloc(count, sizeof *starts);
    if (!starts)
        exit(1);
    double shares = 0, before = 0;
    for (uint32_t e = 0; e < experts; e++)
        shares += exp2(3.0 * (e * 7919 % experts) / experts);
    for (uint32_t e = 1; e <= experts; e++) {
        before += exp2(3.0 * ((e - 1) * 7919 % experts) / experts);
        uint64_t end = uneven ? (uint64_t)((double)rows * before / shares) : rows * e / experts;
        starts[e] = (int32_t)(e == experts ? rows : end) + (e < experts ? (int32_t)(e * 7919 % 97) - 48 : 0);
    }
    bench_need(cudaMemcpy(device + 3 * rows, starts, count * sizeof *starts, cudaMemcpyHostToDevice));
    free(starts);
    return device;
}

/* The three products of a matrix of each expert; the last once more as a sum in fp32; then all of uneven rows. */
static void bench_grouped(const char *model, uint64_t rows, uint32_t experts, uint64_t out, uint64_t in)
{
    static const char *const names[] = {"forward", "input gradient", "weight gradient", "weight gradient +"};
    const double flops = 2.0 * (double)rows * (double)out * (double)in;
    for (int each = 0; each < 8; each++) {
        const int k = each % 4;
        const bool uneven = each >= 4, sum = k == 3;
        const bool weights = k >= DTP_GROUPED_WEIGHT_GRADIENT, forward = k == DTP_GROUPED_FORWARD;
        const uint64_t matrices = experts * out * in;
        struct dtp_grouped_matmul_args a = {
            .a = bench_take(rows * (forward ? in : out), bf16),
            .b = bench_take(weights ? rows * in : matrices, bf16),
            .routes = bench_routes(rows, experts, uneven),
            .result = bench_take(weights ? matrices : rows * (forward ? out : in), sum ? fp32 : bf16),
            .rows = rows,
            .out = out,
            .in = in,
            .experts = experts,
            .product = sum ? DTP_GROUPED_WEIGHT_GRADIENT : (enum dtp_grouped_product)k,
            .element = bf16,
            .result_element = sum ? fp32 : bf16,
            .accumulate = sum};
        BENCH(grouped_matmul, a, 2 * (rows * (out + in) + (sum ? 4 : 1) * matrices), flops,
              "grouped_matmul %s %s%s %llu x %llu", model, names[k], uneven ? " uneven" : "", (unsigned long long)out,
              (unsigned long long)in);
    }
}

/* What a layer of experts does beside its products, `width` that of an expert. All that it holds is taken first, for
 * BENCH gives the pool back. */
static void bench_experts(const char *model, uint64_t tokens, uint32_t hidden, uint32_t width, uint32_t experts,
                          uint32_t chosen)
{
    const uint64_t rows = tokens * chosen;
    struct dtp_router_args router = {.scores = bench_take(tokens * experts, bf16),
                                     .weights = bench_take(rows, fp32),
                                     .routes = bench_take(DTP_ROUTES_INTS(rows, experts), fp32),
                                     .workspace = bench_take(DTP_ROUTER_CHUNKS * experts, fp32),
                                     .tokens = tokens,
                                     .experts = experts,
                                     .chosen = chosen,
                                     .scale = 1,
                                     .element = bf16};
    struct dtp_permute_args permute = {.values = bench_take(tokens * hidden, bf16),
                                       .routes = router.routes,
                                       .rows = bench_take(rows * hidden, bf16),
                                       .tokens = tokens,
                                       .width = hidden,
                                       .chosen = chosen,
                                       .element = bf16};
    struct dtp_unpermute_args unpermute = {.rows = permute.rows,
                                           .addend = permute.values,
                                           .routes = router.routes,
                                           .result = bench_take(tokens * hidden, bf16),
                                           .tokens = tokens,
                                           .width = hidden,
                                           .chosen = chosen,
                                           .element = bf16};
    struct dtp_expert_activation_args forward = {.up = bench_take(rows * 2 * width, bf16),
                                                 .weights = router.weights,
                                                 .routes = router.routes,
                                                 .result = bench_take(rows * width, bf16),
                                                 .tokens = tokens,
                                                 .width = width,
                                                 .chosen = chosen,
                                                 .kind = DTP_ACTIVATION_SWIGLU,
                                                 .element = bf16};
    struct dtp_expert_activation_backward_args backward = {.gradient = forward.result,
                                                           .up = forward.up,
                                                           .weights = router.weights,
                                                           .routes = router.routes,
                                                           .up_gradient = bench_take(rows * 2 * width, bf16),
                                                           .weight_gradient = bench_take(rows, fp32),
                                                           .tokens = tokens,
                                                           .width = width,
                                                           .chosen = chosen,
                                                           .kind = DTP_ACTIVATION_SWIGLU,
                                                           .element = bf16};
    bench_need(dtp_cuda_router(NULL, &router, NULL)); /* the others need its routes */
    BENCH(router, router, 2 * tokens * experts + 16 * rows, 0, "router %s %u of %u", model, chosen, experts);
    BENCH(permute, permute, 2 * hidden * (tokens + rows), 0, "permute %s", model);
    BENCH(unpermute, unpermute, 2 * hidden * (2 * tokens + rows), 0, "unpermute %s", model);
    BENCH(expert_activation, forward, 6 * rows * width, 0, "expert activation %s", model);
    BENCH(expert_activation_backward, backward, 10 * rows * width, 0, "expert activation backward %s", model);
}

int bench(const char *part_of_name)
{
    bench_wanted = part_of_name;
    bench_need(cudaMalloc((void **)&pool, pool_bytes));
    bench_need(cudaEventCreate(&bench_begin));
    bench_need(cudaEventCreate(&bench_end));
    bench_take(pool_bytes / 4, fp32);
    bench_pool_used = 0;
    bench_copy();
    bench_launch();
    bench_norm(32768, 4096, false);
    bench_norm(16384, 4096, false);
    bench_norm(8192, 2048, false);
    bench_norm(32768, 768, true);
    bench_norm(8192, 1600, true);
    bench_norm(16384, 8192, false);
    bench_activation(16384, 11008, DTP_ACTIVATION_SWIGLU);
    bench_activation(8192, 5632, DTP_ACTIVATION_SWIGLU);
    bench_activation(32768, 3072, DTP_ACTIVATION_GELU);
    bench_rotary(16384, 32, 32, 128);
    bench_rotary(16384, 32, 8, 128);
    bench_loss(8192, 32000, 32000, 0);
    bench_loss(8192, 50257, 50304, 0);
    bench_loss(4096, 128256, 128256, 0);
    bench_loss(2048, 256000, 256000, 0);
    bench_loss(2048, 256000, 256000, 30);
    bench_heads();
    bench_adamw(400000000, false);
    bench_adamw(400000000, true);
    for (uint64_t length = 2048; length <= 32768; length *= 4) {
        bench_orthogonalize(length, true);
        bench_orthogonalize(length, false);
    }
    bench_embedding(32768, 4096, 32000, true);
    bench_embedding(32768, 768, 50257, true);
    bench_embedding(32768, 2048, 256, false);
    bench_sums();
    bench_attention(4, 2048, 16, 128);
    bench_attention(8, 1024, 12, 64);
    bench_mma_models();
    bench_experts("OLMoE", 8192, 2048, 1024, 64, 8);
    bench_experts("Granite 3B", 8192, 1536, 512, 40, 8);
    bench_experts("Qwen1.5", 8192, 2048, 1408, 60, 4);
    bench_experts("DeepSeek-V3", 4096, 7168, 2048, 256, 8);
    bench_experts("Mixtral", 8192, 4096, 14336, 8, 2);
    bench_grouped("OLMoE up", 65536, 64, 2048, 2048);
    bench_grouped("OLMoE down", 65536, 64, 2048, 1024);
    bench_grouped("8 experts up", 16384, 8, 8192, 2048);
    bench_grouped("8 experts down", 16384, 8, 2048, 4096);
    bench_grouped("Granite 1B up", 131072, 32, 1024, 1024);
    bench_grouped("Granite 1B down", 131072, 32, 1024, 512);
    bench_copy();
    return 0;
}
