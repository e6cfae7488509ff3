/* Matmuls and attention of real models, as the executor runs them: bench_device [attention|matmul] [FILE of choices].
 * Random data; matmul times are those of the search, attention's the median of 9 rounds. Also what workspace cuDNN asks
 * for, which model/cost/attention_workspace.c must foresee. */
#include "device/attention.h"
#include "gpu/gpu_memory.h"
#include "device/matmul.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WORKSPACE_BYTES (32u << 20)
#define ROUNDS 9

static int compare_times(const void *a, const void *b)
{
    const float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

struct shape {
    const char *model;
    uint32_t batch, sequence, heads, kv_heads, head_dim, first_query, key_count; /* key_count > 0: a step of a ring */
};

static float median_ms(struct dtp_attention_plans *attention, const struct dtp_attention_args *forward,
                       const struct dtp_attention_backward_args *backward)
{
    float times_ms[ROUNDS];
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int round = -2; round < ROUNDS; round++) {
        CUDA(cudaEventRecord(begin, NULL));
        cudnnStatus_t status = forward ? dtp_attention_forward(attention, forward, NULL)
                                       : dtp_attention_backward(attention, backward, NULL);
        CUDA(cudaEventRecord(end, NULL));
        CUDA(cudaEventSynchronize(end));
        if (status != CUDNN_STATUS_SUCCESS) {
            printf("%s\n", cudnnGetErrorString(status));
            return NAN;
        }
        if (round >= 0)
            CUDA(cudaEventElapsedTime(&times_ms[round], begin, end));
    }
    qsort(times_ms, ROUNDS, sizeof times_ms[0], compare_times);
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    return times_ms[ROUNDS / 2];
}

/* Random numbers, of which a step leaves some results and statistics as they are. */
static void make_arguments(const struct shape *shape, uint64_t workspace_bytes, bool deterministic,
                           struct dtp_attention_args *forward, struct dtp_attention_backward_args *backward)
{
    const uint64_t rows = (uint64_t)shape->batch * shape->sequence;
    const uint64_t packed = rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    const uint64_t result = rows * shape->heads * shape->head_dim, keys = packed - result;
    *forward = (struct dtp_attention_args){
        .qkv = device_buffer(packed, DTP_ELEMENT_BF16, 1, 1),
        .keys = shape->key_count ? device_buffer(keys, DTP_ELEMENT_BF16, 3, 1) : NULL,
        .result = device_buffer(result, DTP_ELEMENT_BF16, 4, 1),
        .log_sum_exp = device_buffer(rows * shape->heads, DTP_ELEMENT_FP32, 5, 1),
        .workspace = device_buffer(workspace_bytes / 4, DTP_ELEMENT_FP32, 0, -1),
        .workspace_bytes = workspace_bytes,
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .first_query = shape->first_query,
        .key_count = shape->key_count,
        .scale = 1 / sqrtf((float)shape->head_dim),
        .element = DTP_ELEMENT_BF16,
    };
    *backward = (struct dtp_attention_backward_args){
        .qkv = forward->qkv,
        .keys = forward->keys,
        .result = forward->result,
        .gradient = device_buffer(result, DTP_ELEMENT_BF16, 2, 1),
        .log_sum_exp = forward->log_sum_exp,
        .qkv_gradient = device_buffer(packed, DTP_ELEMENT_BF16, 0, -1),
        .query_gradient = device_buffer(result, DTP_ELEMENT_BF16, 0, -1),
        .keys_gradient = device_buffer(keys, DTP_ELEMENT_BF16, 0, -1),
        .workspace = forward->workspace,
        .workspace_bytes = workspace_bytes,
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .first_query = shape->first_query,
        .key_count = shape->key_count,
        .scale = forward->scale,
        .atomic = !deterministic,
        .element = DTP_ELEMENT_BF16,
    };
}

static void free_arguments(const struct dtp_attention_args *forward, const struct dtp_attention_backward_args *backward)
{
    void *const made[] = {(void *)(uintptr_t)forward->qkv,
                          (void *)(uintptr_t)forward->keys,
                          forward->result,
                          forward->log_sum_exp,
                          forward->workspace,
                          (void *)(uintptr_t)backward->gradient,
                          backward->qkv_gradient,
                          backward->query_gradient,
                          backward->keys_gradient};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        CUDA(cudaFree(made[i]));
}

static void bench_attention_shape(struct dtp_attention_plans *attention, const struct dtp_cudnn *cudnn,
                                  const struct shape *shape, bool deterministic)
{
    struct dtp_faults faults = {0};
    struct dtp_attention_size size = {.batch = shape->batch,
                                      .sequence = shape->sequence,
                                      .heads = shape->heads,
                                      .kv_heads = shape->kv_heads,
                                      .head_dim = shape->head_dim,
                                      .deterministic = deterministic,
                                      .first_query = shape->first_query,
                                      .key_count = shape->key_count};
    struct dtp_cudnn_plan plans[2];
    for (int backward = 0; backward < 2; backward++) {
        size.backward = backward;
        if (dtp_attention_plan(cudnn, &size, &plans[backward], &faults) != DTP_OK) {
            printf("%s\n", faults.text[0]);
            return;
        }
    }
    const uint64_t workspace_bytes = dtp_attention_workspace_bytes(&size);
    struct dtp_attention_args forward;
    struct dtp_attention_backward_args backward;
    make_arguments(shape, workspace_bytes, deterministic, &forward, &backward);
    if (dtp_attention_prepare(attention, &forward, &faults) != DTP_OK ||
        dtp_attention_prepare_backward(attention, &backward, &faults) != DTP_OK) {
        printf("%s\n", faults.text[0]);
        return;
    }
    const float forward_ms = median_ms(attention, &forward, NULL), backward_ms = median_ms(attention, NULL, &backward);
    /* two products of 2 D for each query and key, of a causal square half of them; five of them backward */
    const double scores = shape->key_count ? (shape->sequence - shape->first_query) * (double)shape->key_count
                                           : shape->sequence * (double)shape->sequence / 2;
    const double flops = 4.0 * shape->batch * shape->heads * scores * shape->head_dim;
    printf("%-11s %3u x %5u %2u/%2u x %3u %5u %5u %-6s %8.3f %5.0f %8.3f %5.0f  %12" PRIu64 " %12" PRIu64 "  %2d %2d\n",
           shape->model, shape->batch, shape->sequence, shape->heads, shape->kv_heads, shape->head_dim,
           shape->first_query, shape->key_count, deterministic ? "order" : "atomic", (double)forward_ms,
           flops / forward_ms * 1e-9, (double)backward_ms, 2.5 * flops / backward_ms * 1e-9, plans[0].workspace_bytes,
           plans[1].workspace_bytes, (int)plans[0].engine, (int)plans[1].engine);
    dtp_cudnn_plan_free(&plans[0]);
    dtp_cudnn_plan_free(&plans[1]);
    free_arguments(&forward, &backward);
}

static void bench_attention(void)
{
    static const struct shape shapes[] = {
        {"gpt2-124m", 32, 1024, 12, 12, 64},
        {"llama-1.3b", 4, 2048, 16, 16, 128},
        {"llama-1.3b", 16, 2048, 16, 16, 128},
        {"llama-7b", 1, 2048, 32, 32, 128},
        {"llama-7b", 4, 2048, 32, 32, 128},
        {"llama-8b", 1, 8192, 32, 8, 128},
        {"llama-8b", 2, 4096, 32, 8, 128},
        {"tiny", 2, 256, 4, 2, 64},
        {"llama-8b", 1, 4096, 32, 8, 128, .key_count = 2048},
        {"llama-8b", 1, 4096, 32, 8, 128, .first_query = 2048, .key_count = 4096},
        {"llama-8b", 1, 8192, 32, 8, 128, .key_count = 4096},
        {"llama-8b", 1, 8192, 32, 8, 128, .first_query = 4096, .key_count = 8192},
        {"llama-8b", 1, 16384, 32, 8, 128, .key_count = 8192},
        {"llama-8b", 1, 16384, 32, 8, 128, .first_query = 8192, .key_count = 16384},
    };
    printf("attention (cuDNN %zu)            from keys         forward ms TF/s  backward ms TF/s  workspace forward, "
           "backward  engines\n",
           cudnnGetVersion());
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        struct dtp_faults faults = {0};
        struct dtp_attention_plans *attention;
        struct dtp_cudnn cudnn;
        if (dtp_attention_create(&attention, &faults) != DTP_OK || dtp_cudnn_open(&cudnn, &faults) != DTP_OK) {
            fprintf(stderr, "%s\n", faults.text[0]);
            exit(3);
        }
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            bench_attention_shape(attention, &cudnn, &shapes[i], deterministic);
        dtp_cudnn_close(&cudnn);
        dtp_attention_destroy(attention);
    }
}

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

struct layer {
    const char *model, *name;
    uint64_t out, in;
    bool adds; /* the residual is added to its result */
};
static const struct layer layers[] = {
    {"gpt2-124m", "qkv", 2304, 768, false},     {"gpt2-124m", "output", 768, 768, true},
    {"gpt2-124m", "up", 3072, 768, false},      {"gpt2-124m", "down", 768, 3072, true},
    {"gpt2-124m", "head", 50304, 768, false},   {"llama-1.3b", "qkv", 6144, 2048, false},
    {"llama-1.3b", "output", 2048, 2048, true}, {"llama-1.3b", "up", 11008, 2048, false},
    {"llama-1.3b", "down", 2048, 5504, true},   {"llama-1.3b", "head", 32000, 2048, false},
    {"llama-7b", "qkv", 12288, 4096, false},    {"llama-7b", "output", 4096, 4096, true},
    {"llama-7b", "up", 22016, 4096, false},     {"llama-7b", "down", 4096, 11008, true},
    {"llama-7b", "head", 32000, 4096, false},
};
static const struct {
    const char *model;
    uint64_t tokens;
} batches[] = {{"gpt2-124m", 32768}, {"llama-1.3b", 8192}, {"llama-1.3b", 32768},
               {"llama-7b", 2048},   {"llama-7b", 8192},   {"llama-7b", 16384}};

static void *arena; /* every operand is random numbers anyway: all shapes share one allocation */
static struct dtp_matmul_args pass_arguments(const struct layer *layer, uint64_t tokens, int pass)
{
    const uint64_t in_bytes = 2 * tokens * layer->in, out_bytes = 2 * tokens * layer->out;
    char *x = arena, *y = x + in_bytes, *w = y + out_bytes, *extra = w + 2 * layer->in * layer->out;
    struct dtp_matmul_args common = {
        .workspace = extra + out_bytes,
        .workspace_bytes = WORKSPACE_BYTES,
        .element = DTP_ELEMENT_BF16,
        .result_element = DTP_ELEMENT_BF16,
    };
    switch (pass) {
    case 0: /* y[T, out] = x w^T (+ residual) */
        common.a = x, common.b = w, common.result = y, common.addend = layer->adds ? extra : NULL;
        common.m = tokens, common.n = layer->out, common.k = layer->in, common.b_transposed = true;
        common.lda = common.ldb = layer->in, common.ldd = layer->out;
        break;
    case 1: /* dx[T, in] = dy w */
        common.a = y, common.b = w, common.result = x;
        common.m = tokens, common.n = layer->in, common.k = layer->out;
        common.lda = layer->out, common.ldb = common.ldd = layer->in;
        break;
    default: /* dw[out, in] = dy^T x */
        common.a = y, common.b = x, common.result = w;
        common.m = layer->out, common.n = layer->in, common.k = tokens, common.a_transposed = true;
        common.lda = layer->out, common.ldb = common.ldd = layer->in;
    }
    return common;
}

static void bench_matmul(const char *choices)
{
    static const char *const passes[] = {"forward", "input gradient", "weight gradient"};
    struct dtp_faults faults = {0};
    struct dtp_matmul *matmul;
    if (dtp_matmul_create("GPU", choices, &matmul, &faults) != DTP_OK) {
        fprintf(stderr, "%s\n", faults.text[0]);
        exit(3);
    }
    CUDA(cudaMalloc(&arena, (size_t)8 << 30));
    printf("matmul                                      first us  chosen us  TF/s  gain  candidates\n");
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        double total_s = 0, total_first_s = 0, total_flops = 0;
        for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
            /* the head works in chunks of 4096 rows */
            const uint64_t tokens =
                strcmp(layers[i].name, "head") == 0 && batches[b].tokens > 4096 ? 4096 : batches[b].tokens;
            for (int pass = 0; pass < 3 && strcmp(layers[i].model, batches[b].model) == 0; pass++) {
                struct dtp_matmul_args arguments = pass_arguments(&layers[i], tokens, pass);
                struct dtp_matmul_timing timing;
                if (dtp_matmul_prepare(matmul, &arguments, NULL, &faults) != DTP_OK ||
                    !dtp_matmul_timing(matmul, &arguments, &timing)) {
                    printf("%s\n", faults.text[0]);
                    continue;
                }
                const double flops = 2.0 * (double)tokens * (double)layers[i].in * (double)layers[i].out;
                printf("%-10s %5" PRIu64 " %-6s %-15s %9.1f %10.1f %5.0f %4.1f%% %3u\n", layers[i].model, tokens,
                       layers[i].name, passes[pass], timing.first_s * 1e6, timing.chosen_s * 1e6,
                       flops / timing.chosen_s * 1e-12, 100 * (timing.first_s / timing.chosen_s - 1),
                       timing.candidates);
                total_s += timing.chosen_s, total_first_s += timing.first_s, total_flops += flops;
            }
        }
        printf("%-10s %5" PRIu64 " together %33.1f %10.1f %5.0f %4.1f%%\n", batches[b].model, batches[b].tokens,
               total_first_s * 1e6, total_s * 1e6, total_flops / total_s * 1e-12, 100 * (total_first_s / total_s - 1));
    }
    dtp_matmul_destroy(matmul);
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "matmul") != 0)
        bench_attention();
    if (strcmp(which, "attention") != 0)
        bench_matmul(argc > 2 ? argv[2] : NULL);
    return 0;
}
