/* cuBLASLt and cuDNN as we drive them against the reference in double, on random numbers: check_libraries. Prints the
 * relative error ||ours - reference|| / ||reference|| of every case; exit 1 if one is over its bound. */
#include "device/attention.h"
#include "gpu/gpu_memory.h"
#include "device/matmul.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WORKSPACE_BYTES (32u << 20)
static int failures;
static enum dtp_element halves = DTP_ELEMENT_BF16; /* of attention; then fp16 */

static double relative_error(const void *ours, const void *reference, uint64_t count, enum dtp_element element)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        const double a = dtp_load(ours, element, i), b = dtp_load(reference, element, i);
        difference += (a - b) * (a - b);
        norm += b * b;
    }
    return sqrt(difference / norm);
}

static void judge(const char *what, const char *part, double error, double bound)
{
    const bool good = error <= bound; /* false for NaN */
    printf("%-58s %-14s %9.2e %s\n", what, part, error, good ? "" : "WRONG");
    failures += !good;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

struct attention_case {
    uint32_t batch, sequence, heads, kv_heads, head_dim, window;
};

/* What stands in device memory after both directions, and `gradient`, qkv_gradient on the host, against the reference.
 */
static void judge_attention(const char *what, const struct dtp_attention_args *forward,
                            const struct dtp_attention_backward_args *backward, const void *gradient)
{
    const enum dtp_element bf16 = halves;
    const uint64_t rows = (uint64_t)forward->batch * forward->sequence;
    const uint64_t packed = rows * (forward->heads + 2 * forward->kv_heads) * forward->head_dim;
    const uint64_t result = rows * forward->heads * forward->head_dim, statistics = rows * forward->heads;
    struct dtp_attention_args expected = *forward;
    struct dtp_attention_backward_args expected_backward = *backward;
    expected.qkv = host_copy(forward->qkv, 2 * packed);
    expected.result = malloc(2 * result);
    expected.log_sum_exp = malloc(4 * statistics);
    dtp_reference_attention(NULL, &expected, NULL);
    expected_backward.qkv = expected.qkv;
    expected_backward.result = expected.result;
    expected_backward.log_sum_exp = expected.log_sum_exp;
    expected_backward.gradient = host_copy(backward->gradient, 2 * result);
    expected_backward.qkv_gradient = malloc(2 * packed);
    dtp_reference_attention_backward(NULL, &expected_backward, NULL);

    judge(what, "result", relative_error(host_copy(forward->result, 2 * result), expected.result, result, bf16), 6e-3);
    judge(what, "log_sum_exp",
          relative_error(host_copy(forward->log_sum_exp, 4 * statistics), expected.log_sum_exp, statistics,
                         DTP_ELEMENT_FP32),
          1e-4);
    judge(what, "qkv_gradient", relative_error(gradient, expected_backward.qkv_gradient, packed, bf16), 1e-2);
}

static void check_attention(struct dtp_attention_plans *attention, const struct attention_case *shape,
                            bool deterministic)
{
    struct dtp_faults faults = {0};
    const enum dtp_element bf16 = halves;
    const uint64_t rows = (uint64_t)shape->batch * shape->sequence;
    const uint64_t packed = rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
    const uint64_t result = rows * shape->heads * shape->head_dim, statistics = rows * shape->heads;
    const uint64_t workspace_bytes = 256u << 20;
    char what[100];
    snprintf(what, sizeof what, "attention %ux%u heads %u/%u head_dim %u window %u%s", shape->batch, shape->sequence,
             shape->heads, shape->kv_heads, shape->head_dim, shape->window, deterministic ? " deterministic" : "");

    struct dtp_attention_args forward = {
        .qkv = device_buffer(packed, bf16, 1, 1),
        .result = device_buffer(result, bf16, 0, -1),
        .log_sum_exp = device_buffer(statistics, DTP_ELEMENT_FP32, 0, -1),
        .workspace = device_buffer(workspace_bytes / 4, DTP_ELEMENT_FP32, 0, -1),
        .workspace_bytes = workspace_bytes,
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .window = shape->window,
        .scale = 1 / sqrtf((float)shape->head_dim),
        .element = bf16,
    };
    struct dtp_attention_backward_args backward = {
        .qkv = forward.qkv,
        .result = forward.result,
        .gradient = device_buffer(result, bf16, 2, 1),
        .log_sum_exp = forward.log_sum_exp,
        .qkv_gradient = device_buffer(packed, bf16, 0, -1),
        .workspace = forward.workspace,
        .workspace_bytes = workspace_bytes,
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .window = shape->window,
        .scale = forward.scale,
        .atomic = !deterministic,
        .element = bf16,
    };
    if (dtp_attention_prepare(attention, &forward, &faults) != DTP_OK ||
        dtp_attention_prepare_backward(attention, &backward, &faults) != DTP_OK) {
        printf("%-58s %s\n", what, faults.text[0]);
        failures++;
        return;
    }
    cudnnStatus_t status = dtp_attention_forward(attention, &forward, NULL);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dtp_attention_backward(attention, &backward, NULL);
    if (status != CUDNN_STATUS_SUCCESS) {
        printf("%-58s %s\n", what, cudnnGetErrorString(status));
        failures++;
        return;
    }
    CUDA(cudaDeviceSynchronize());
    void *first = host_copy(backward.qkv_gradient, 2 * packed);
    for (int i = 0; i < 3 && deterministic; i++) {
        dtp_attention_backward(attention, &backward, NULL);
        CUDA(cudaDeviceSynchronize());
        void *again = host_copy(backward.qkv_gradient, 2 * packed);
        if (memcmp(first, again, 2 * packed) != 0)
            judge(what, "repeats", 1, 0);
        free(again);
    }

    judge_attention(what, &forward, &backward, first);
    free(first);
}

static void check_attentions(bool deterministic)
{
    static const struct attention_case cases[] = {
        {2, 128, 2, 2, 64, 0},   {1, 256, 4, 4, 128, 0},    {2, 384, 4, 2, 64, 0}, {1, 256, 8, 1, 128, 0},
        {1, 128, 3, 3, 80, 0},   {3, 128, 2, 1, 32, 0},     {1, 512, 2, 2, 64, 0}, {2, 384, 4, 2, 64, 128},
        {1, 512, 2, 2, 64, 100}, {1, 1024, 8, 1, 128, 300},
    };
    struct dtp_faults faults = {0};
    struct dtp_attention_plans *attention;
    if (dtp_attention_create(&attention, &faults) != DTP_OK) {
        fprintf(stderr, "%s\n", faults.text[0]);
        exit(3);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_attention(attention, &cases[i], deterministic);
    dtp_attention_destroy(attention);
}

/* Shapes that a deterministic backward computes in parts, against the same at one go. */
static void check_parts(void)
{
    static const struct attention_case cases[] = {
        {12, 1024, 80, 8, 64, 0}, /* parts of 6 sequences */
        {2, 8192, 12, 6, 128, 0}, /* parts of 6 heads in 3 groups */
        {1, 16384, 3, 3, 64, 0},  /* parts of 1 head */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct attention_case *shape = &cases[i];
        const uint64_t rows = (uint64_t)shape->batch * shape->sequence;
        const uint64_t packed = rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
        const uint64_t result = rows * shape->heads * shape->head_dim, workspace_bytes = (uint64_t)3 << 29;
        void *gradients[2] = {NULL, NULL};
        char what[100];
        snprintf(what, sizeof what, "attention %ux%u heads %u/%u head_dim %u in parts", shape->batch, shape->sequence,
                 shape->heads, shape->kv_heads, shape->head_dim);
        struct dtp_attention_args forward = {
            .qkv = device_buffer(packed, DTP_ELEMENT_BF16, 1, 1),
            .result = device_buffer(result, DTP_ELEMENT_BF16, 0, -1),
            .log_sum_exp = device_buffer(rows * shape->heads, DTP_ELEMENT_FP32, 0, -1),
            .workspace = device_buffer(workspace_bytes / 4, DTP_ELEMENT_FP32, 0, -1),
            .workspace_bytes = workspace_bytes,
            .batch = shape->batch,
            .sequence = shape->sequence,
            .heads = shape->heads,
            .kv_heads = shape->kv_heads,
            .head_dim = shape->head_dim,
            .scale = 1 / sqrtf((float)shape->head_dim),
            .element = DTP_ELEMENT_BF16,
        };
        struct dtp_attention_backward_args backward = {
            .qkv = forward.qkv,
            .result = forward.result,
            .gradient = device_buffer(result, DTP_ELEMENT_BF16, 2, 1),
            .log_sum_exp = forward.log_sum_exp,
            .qkv_gradient = device_buffer(packed, DTP_ELEMENT_BF16, 0, -1),
            .workspace = forward.workspace,
            .workspace_bytes = workspace_bytes,
            .batch = shape->batch,
            .sequence = shape->sequence,
            .heads = shape->heads,
            .kv_heads = shape->kv_heads,
            .head_dim = shape->head_dim,
            .scale = forward.scale,
            .element = DTP_ELEMENT_BF16,
        };
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            struct dtp_faults faults = {0};
            struct dtp_attention_plans *attention;
            backward.atomic = !deterministic;
            CUDA(cudaMemset(backward.qkv_gradient, 0xFF, 2 * packed));
            if (dtp_attention_create(&attention, &faults) != DTP_OK ||
                dtp_attention_prepare(attention, &forward, &faults) != DTP_OK ||
                dtp_attention_prepare_backward(attention, &backward, &faults) != DTP_OK ||
                dtp_attention_forward(attention, &forward, NULL) != CUDNN_STATUS_SUCCESS ||
                dtp_attention_backward(attention, &backward, NULL) != CUDNN_STATUS_SUCCESS) {
                printf("%-58s %s\n", what, faults.count ? faults.text[0] : "does not run");
                failures++;
                return;
            }
            CUDA(cudaDeviceSynchronize());
            gradients[deterministic] = host_copy(backward.qkv_gradient, 2 * packed);
            dtp_attention_destroy(attention);
        }
        judge(what, "qkv_gradient", relative_error(gradients[1], gradients[0], packed, DTP_ELEMENT_BF16), 3e-3);
        free(gradients[0]);
        free(gradients[1]);
    }
}

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

enum extra { ADD_IN_PLACE = 1, ADD_OTHER = 2, BIAS = 4, BIAS_GRADIENT = 8 };
struct matmul_case {
    uint64_t m, n, k;
    bool a_transposed, b_transposed;
    enum dtp_element element, result_element;
    enum dtp_epilogue epilogue;
    int extras;
    enum dtp_scaling a_scaling, b_scaling;
    bool precise;
};

/* Up to the last element's scale. */
#define SCALES_BYTES(scaling, rows, columns) (4 + 4 * dtp_scale_place(scaling, rows, columns, (rows)-1, (columns)-1))

/* The same on the host, with copies of all that the matmul reads or adds to. */
static struct dtp_matmul_args on_host(const struct dtp_matmul_args *gpu)
{
    const enum dtp_element in = gpu->element, out = gpu->result_element;
    const uint64_t results = gpu->m * gpu->n, bias_bytes = gpu->n * dtp_element_bytes(dtp_matmul_bias_element(in, out));
    const uint64_t result_bytes = results * dtp_element_bytes(out);
    struct dtp_matmul_args host = *gpu;
    host.a = host_copy(gpu->a, gpu->m * gpu->k * dtp_element_bytes(in));
    host.b = host_copy(gpu->b, gpu->n * gpu->k * dtp_element_bytes(dtp_matmul_b_element(gpu)));
    host.a_scale = gpu->a_scale ? host_copy(gpu->a_scale, SCALES_BYTES(gpu->a_scaling, gpu->m, gpu->k)) : NULL;
    host.b_scale = gpu->b_scale ? host_copy(gpu->b_scale, SCALES_BYTES(gpu->b_scaling, gpu->n, gpu->k)) : NULL;
    host.result = host_copy(gpu->result, result_bytes);
    host.addend = !gpu->addend ? NULL : gpu->addend == gpu->result ? host.result : host_copy(gpu->addend, result_bytes);
    host.bias = gpu->bias ? host_copy(gpu->bias, bias_bytes) : NULL;
    host.bias_gradient = gpu->bias_gradient ? host_copy(gpu->bias_gradient, gpu->m * dtp_element_bytes(out)) : NULL;
    host.aux = gpu->aux ? host_copy(gpu->aux, results * dtp_element_bytes(in)) : NULL;
    return host;
}

static void check_matmul(struct dtp_matmul *matmul, const struct matmul_case *from)
{
    struct dtp_faults faults = {0};
    const uint64_t result_bytes = from->m * from->n * dtp_element_bytes(from->result_element);
    const enum dtp_element in = from->element, out = from->result_element;
    const bool narrow = in == DTP_ELEMENT_E4M3 || in == DTP_ELEMENT_E5M2;
    const enum dtp_element in_b = in == DTP_ELEMENT_E5M2 ? DTP_ELEMENT_E4M3 : in;
    static const char *const names[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2"};
    char what[100];
    snprintf(what, sizeof what,
             "matmul %" PRIu64 "x%" PRIu64 "x%" PRIu64 " %c%c %s>%s epilogue %d extras %d scales %d %d", from->m,
             from->n, from->k, from->a_transposed ? 't' : 'n', from->b_transposed ? 't' : 'n', names[in], names[out],
             (int)from->epilogue, from->extras, (int)from->a_scaling, (int)from->b_scaling);
    struct dtp_matmul_args gpu = {
        .a = device_buffer(from->m * from->k, in, 1, 1),
        .b = device_buffer(from->n * from->k, in_b, 2, 1),
        .a_scale = narrow ? device_buffer(from->m * from->k, DTP_ELEMENT_FP32, 8, 1) : NULL,
        .b_scale = narrow ? device_buffer(from->n * from->k, DTP_ELEMENT_FP32, 9, 1) : NULL,
        .result = device_buffer(from->m * from->n, out, 3, 1),
        .workspace_bytes = WORKSPACE_BYTES,
        .workspace = device_buffer(WORKSPACE_BYTES / 4, DTP_ELEMENT_FP32, 0, -1),
        .m = from->m,
        .n = from->n,
        .k = from->k,
        .ldd = from->n,
        .lda = from->a_transposed ? from->m : from->k,
        .ldb = from->b_transposed ? from->k : from->n,
        .element = in,
        .result_element = out,
        .a_transposed = from->a_transposed,
        .b_transposed = from->b_transposed,
        .epilogue = from->epilogue,
        .a_scaling = from->a_scaling,
        .b_scaling = from->b_scaling,
        .fast = in == DTP_ELEMENT_E4M3 && !from->precise,
    };
    if (from->extras & ADD_IN_PLACE)
        gpu.addend = gpu.result;
    if (from->extras & ADD_OTHER)
        gpu.addend = device_buffer(from->m * from->n, out, 4, 3);
    if (from->extras & BIAS)
        gpu.bias = device_buffer(from->n, dtp_matmul_bias_element(in, out), 5, 3);
    if (from->extras & BIAS_GRADIENT)
        gpu.bias_gradient = device_buffer(from->m, out, 6, 1);
    if (from->epilogue != DTP_EPILOGUE_NONE)
        gpu.aux = device_buffer(from->m * from->n, in, 7, 1);

    if (dtp_matmul_prepare(matmul, &gpu, NULL, &faults) != DTP_OK) {
        printf("%-58s %s\n", what, faults.text[0]);
        failures++;
        return;
    }
    const struct dtp_matmul_args host = on_host(&gpu);

    const int code = dtp_matmul_run(matmul, &gpu, NULL);
    if (code) {
        printf("%-58s %s\n", what, dtp_matmul_error_text(code));
        failures++;
        return;
    }
    CUDA(cudaDeviceSynchronize());
    dtp_reference_matmul(NULL, &host, NULL);
    /* Sums of products of fp8 that forward makes in 14 bits (DeepSeek-V3, section 3.3.2). */
    const double bound = out == DTP_ELEMENT_BF16 ? 4e-3 : out == DTP_ELEMENT_FP16 ? 5e-4 : narrow ? 1e-3 : 1e-5;
    judge(what, "result", relative_error(host_copy(gpu.result, result_bytes), host.result, from->m * from->n, out),
          bound);
    if (gpu.bias_gradient)
        judge(what, "bias_gradient",
              relative_error(host_copy(gpu.bias_gradient, from->m * dtp_element_bytes(out)), host.bias_gradient,
                             from->m, out),
              4e-3);
    if (from->epilogue == DTP_EPILOGUE_GELU_AUX)
        judge(what, "aux",
              relative_error(host_copy(gpu.aux, from->m * from->n * dtp_element_bytes(in)), host.aux, from->m * from->n,
                             in),
              4e-3);
}

static void check_matmuls(const char *choices)
{
#define F DTP_ELEMENT_FP32
#define B DTP_ELEMENT_BF16
#define H DTP_ELEMENT_FP16
#define E4 DTP_ELEMENT_E4M3
#define E5 DTP_ELEMENT_E5M2
#define SCALED(m, n, k, out, extras, of_a, of_b, precise)                                                              \
    {                                                                                                                  \
        m, n, k, false, true, E4, out, DTP_EPILOGUE_NONE, extras, DTP_SCALED_##of_a, DTP_SCALED_##of_b, precise        \
    }
    static const struct matmul_case cases[] = {
        {256, 384, 512, false, true, E4, B, DTP_EPILOGUE_NONE, 0},
        {256, 384, 512, false, true, E4, B, DTP_EPILOGUE_NONE, ADD_OTHER},
        {256, 384, 512, false, true, E4, B, DTP_EPILOGUE_NONE, BIAS},
        {256, 384, 512, false, true, E4, B, DTP_EPILOGUE_NONE, BIAS | ADD_OTHER},
        {256, 384, 512, false, true, E5, B, DTP_EPILOGUE_NONE, 0},
        {256, 384, 512, false, true, E5, B, DTP_EPILOGUE_NONE, ADD_IN_PLACE},
        {256, 384, 512, false, true, E5, F, DTP_EPILOGUE_NONE, 0},
        {256, 384, 512, false, true, E5, F, DTP_EPILOGUE_NONE, ADD_IN_PLACE},
        {2048, 1376, 272, false, true, E4, B, DTP_EPILOGUE_NONE, ADD_OTHER},
        SCALED(256, 384, 512, B, 0, ROWS, ROWS, false),
        SCALED(256, 384, 512, B, ADD_OTHER, ROWS, ROWS, false),
        SCALED(256, 384, 512, B, BIAS, ROWS, ROWS, false),
        SCALED(256, 384, 512, B, BIAS | ADD_OTHER, ROWS, ROWS, false),
        SCALED(256, 384, 512, B, 0, ROWS, ROWS, true),
        SCALED(256, 384, 512, F, 0, ROWS, ROWS, true),
        SCALED(256, 384, 512, F, ADD_IN_PLACE, ROWS, ROWS, true),
        SCALED(2048, 1376, 272, B, ADD_IN_PLACE, ROWS, ROWS, true),
        SCALED(256, 384, 512, B, 0, RUNS, SQUARES, true),
        SCALED(256, 384, 512, B, ADD_OTHER, RUNS, SQUARES, true),
        SCALED(256, 384, 512, B, BIAS, RUNS, SQUARES, true),
        SCALED(256, 384, 512, B, BIAS | ADD_OTHER, RUNS, SQUARES, true),
        SCALED(256, 384, 512, B, 0, RUNS, RUNS, true),
        SCALED(256, 384, 512, F, 0, RUNS, RUNS, true),
        SCALED(256, 384, 512, F, ADD_IN_PLACE, RUNS, RUNS, true),
        SCALED(2048, 1376, 1040, B, ADD_OTHER, RUNS, SQUARES, true),
        SCALED(208, 272, 1040, F, ADD_IN_PLACE, RUNS, RUNS, true),
        {256, 384, 128, false, true, H, H, DTP_EPILOGUE_NONE, ADD_OTHER | BIAS},
        {256, 384, 128, false, true, H, H, DTP_EPILOGUE_GELU_AUX, BIAS},
        {256, 384, 128, false, false, H, H, DTP_EPILOGUE_DGELU, 0},
        {256, 384, 512, true, false, H, F, DTP_EPILOGUE_NONE, BIAS_GRADIENT | ADD_IN_PLACE},
        {256, 384, 512, true, false, H, H, DTP_EPILOGUE_NONE, BIAS_GRADIENT},
        {256, 384, 128, false, true, B, B, DTP_EPILOGUE_NONE, 0},
        {256, 384, 128, false, true, B, B, DTP_EPILOGUE_NONE, BIAS},
        {256, 384, 128, false, true, B, B, DTP_EPILOGUE_NONE, ADD_OTHER},
        {256, 384, 128, false, true, B, B, DTP_EPILOGUE_NONE, ADD_OTHER | BIAS},
        {256, 384, 128, false, true, B, B, DTP_EPILOGUE_GELU_AUX, BIAS},
        {256, 384, 128, false, false, B, B, DTP_EPILOGUE_NONE, 0},
        {256, 384, 128, false, false, B, B, DTP_EPILOGUE_DGELU, 0},
        {256, 384, 512, true, false, B, B, DTP_EPILOGUE_NONE, 0},
        {256, 384, 512, true, false, B, B, DTP_EPILOGUE_NONE, BIAS_GRADIENT},
        {256, 384, 512, true, false, B, B, DTP_EPILOGUE_NONE, BIAS_GRADIENT | ADD_IN_PLACE},
        {256, 384, 512, true, false, B, F, DTP_EPILOGUE_NONE, ADD_IN_PLACE},
        {256, 384, 512, true, false, B, F, DTP_EPILOGUE_NONE, BIAS_GRADIENT},
        {256, 384, 512, true, false, B, F, DTP_EPILOGUE_NONE, BIAS_GRADIENT | ADD_IN_PLACE},
        {136, 1000, 264, false, true, B, B, DTP_EPILOGUE_NONE, 0},
        {200, 384, 128, false, true, F, F, DTP_EPILOGUE_NONE, BIAS},
        {200, 384, 128, false, false, F, F, DTP_EPILOGUE_NONE, ADD_OTHER},
        {256, 384, 512, true, false, F, F, DTP_EPILOGUE_NONE, ADD_IN_PLACE},
        {256, 384, 128, false, true, F, F, DTP_EPILOGUE_GELU_AUX, BIAS},
        {256, 384, 128, false, false, F, F, DTP_EPILOGUE_DGELU, 0},
    };
#undef F
#undef B
#undef H
#undef E4
#undef E5
#undef SCALED
    struct dtp_faults faults = {0};
    struct dtp_matmul *matmul;
    if (dtp_matmul_create("GPU", choices, &matmul, &faults) != DTP_OK) {
        fprintf(stderr, "%s\n", faults.text[0]);
        exit(3);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_matmul(matmul, &cases[i]);
    dtp_matmul_destroy(matmul);
}

#define SKIPPED 77 /* what ctest takes for "not run" */
int main(int argc, char **argv)
{
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
        printf("no GPU: cuBLASLt and cuDNN are not checked\n");
        return SKIPPED;
    }
    check_attentions(false);
    check_attentions(true);
    check_parts();
    halves = DTP_ELEMENT_FP16;
    check_attentions(true);
    check_matmuls(argc > 1 ? argv[1] : NULL);
    if (argc > 1)
        check_matmuls(argv[1]); /* the same from the file of choices */
    printf("%d wrong\n", failures);
    return failures > 0;
}
