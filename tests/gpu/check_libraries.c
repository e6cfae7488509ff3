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

/* key_count > 0: a later step of a ring. */
struct attention_case {
    uint32_t batch, sequence, heads, kv_heads, head_dim, window, first_query, key_count;
};

/* Elements of packed rows, of results, of a step's keys and values; log-sum-exps of all queries and of those there are.
 */
struct counts {
    uint64_t packed, result, keys, statistics, own_statistics;
};
static struct counts count(const struct attention_case *shape)
{
    const uint64_t rows = (uint64_t)shape->batch * shape->sequence;
    return (struct counts){.packed = rows * (shape->heads + 2 * shape->kv_heads) * shape->head_dim,
                           .result = rows * shape->heads * shape->head_dim,
                           .keys = rows * 2 * shape->kv_heads * shape->head_dim,
                           .statistics = rows * shape->heads,
                           .own_statistics =
                               (uint64_t)shape->batch * shape->heads * (shape->sequence - shape->first_query)};
}

static void describe(const struct attention_case *shape, const char *how, char *what, size_t size)
{
    char step[48] = "";
    if (shape->key_count)
        snprintf(step, sizeof step, " from %u, %u keys", shape->first_query, shape->key_count);
    snprintf(what, size, "attention %ux%u heads %u/%u of %u window %u%s%s", shape->batch, shape->sequence, shape->heads,
             shape->kv_heads, shape->head_dim, shape->window, step, how);
}

/* What a step leaves as it is, here 0. */
static void *zeros(uint64_t count, enum dtp_element element)
{
    void *memory = device_buffer(count, element, 0, -1);
    CUDA(cudaMemset(memory, 0, count * dtp_element_bytes(element)));
    return memory;
}

/* Of all steps together: with six more than its own scores' no weight is above 1. */
static float *larger_statistics(uint64_t statistics)
{
    float *memory = device_buffer(statistics, DTP_ELEMENT_FP32, 4, 1), *host = host_copy(memory, 4 * statistics);
    for (uint64_t i = 0; i < statistics; i++)
        host[i] += 6;
    CUDA(cudaMemcpy(memory, host, 4 * statistics, cudaMemcpyHostToDevice));
    free(host);
    return memory;
}

/* On the device, forward of random numbers and backward from it, of a step from something like all steps' result. */
static void make_arguments(const struct attention_case *shape, uint64_t workspace_bytes, bool deterministic,
                           struct dtp_attention_args *forward, struct dtp_attention_backward_args *backward)
{
    const enum dtp_element element = halves;
    const struct counts n = count(shape);
    const bool step = shape->key_count;
    *forward = (struct dtp_attention_args){
        .qkv = device_buffer(n.packed, element, 1, 1),
        .keys = step ? device_buffer(n.keys, element, 5, 1) : NULL,
        .result = step ? zeros(n.result, element) : device_buffer(n.result, element, 0, -1),
        .log_sum_exp = device_buffer(n.statistics, DTP_ELEMENT_FP32, 0, -1),
        .workspace = device_buffer(workspace_bytes / 4, DTP_ELEMENT_FP32, 0, -1),
        .workspace_bytes = workspace_bytes,
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .window = shape->window,
        .first_query = shape->first_query,
        .key_count = shape->key_count,
        .scale = 1 / sqrtf((float)shape->head_dim),
        .element = element,
    };
    *backward = (struct dtp_attention_backward_args){
        .qkv = forward->qkv,
        .keys = forward->keys,
        .result = step ? device_buffer(n.result, element, 3, 1) : forward->result,
        .gradient = device_buffer(n.result, element, 2, 1),
        .log_sum_exp = step ? larger_statistics(n.statistics) : forward->log_sum_exp,
        .qkv_gradient = step ? NULL : device_buffer(n.packed, element, 0, -1),
        .query_gradient = step ? zeros(n.result, element) : NULL,
        .keys_gradient = step ? zeros(n.keys, element) : NULL,
        .workspace = forward->workspace,
        .workspace_bytes = workspace_bytes,
        .batch = shape->batch,
        .sequence = shape->sequence,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .window = shape->window,
        .first_query = shape->first_query,
        .key_count = shape->key_count,
        .scale = forward->scale,
        .atomic = !deterministic,
        .element = element,
    };
}

/* Both directions; false with what is said of it where one does not run. */
static bool run(struct dtp_attention_plans *attention, const char *what, const struct dtp_attention_args *forward,
                const struct dtp_attention_backward_args *backward)
{
    struct dtp_faults faults = {0};
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    const bool prepared = dtp_attention_prepare(attention, forward, &faults) == DTP_OK &&
                          dtp_attention_prepare_backward(attention, backward, &faults) == DTP_OK;
    if (prepared)
        status = dtp_attention_forward(attention, forward, NULL);
    if (prepared && status == CUDNN_STATUS_SUCCESS)
        status = dtp_attention_backward(attention, backward, NULL);
    if (!prepared || status != CUDNN_STATUS_SUCCESS) {
        printf("%-58s %s\n", what, prepared ? cudnnGetErrorString(status) : faults.text[0]);
        failures++;
        return false;
    }
    CUDA(cudaDeviceSynchronize());
    return true;
}

/* The gradients that stand in device memory: one behind the other. */
static void *gradients_of(const struct attention_case *shape, const struct dtp_attention_backward_args *backward)
{
    const struct counts n = count(shape);
    if (!shape->key_count)
        return host_copy(backward->qkv_gradient, 2 * n.packed);
    char *both = malloc(2 * (n.result + n.keys));
    if (!both)
        exit(3);
    CUDA(cudaMemcpy(both, backward->query_gradient, 2 * n.result, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(both + 2 * n.result, backward->keys_gradient, 2 * n.keys, cudaMemcpyDeviceToHost));
    return both;
}

/* What stands in device memory after both directions, and `gradients` on the host, against the reference. */
static void judge_attention(const char *what, const struct attention_case *shape,
                            const struct dtp_attention_args *forward,
                            const struct dtp_attention_backward_args *backward, const void *gradients)
{
    const struct counts n = count(shape);
    const bool step = shape->key_count;
    struct dtp_attention_args expected = *forward;
    struct dtp_attention_backward_args back = *backward;
    expected.qkv = host_copy(forward->qkv, 2 * n.packed);
    expected.keys = step ? host_copy(forward->keys, 2 * n.keys) : NULL;
    expected.result = calloc(n.result, 2);
    expected.log_sum_exp = malloc(4 * n.statistics);
    dtp_reference_attention(NULL, &expected, NULL);
    back.qkv = expected.qkv, back.keys = expected.keys;
    back.result = step ? host_copy(backward->result, 2 * n.result) : expected.result;
    back.log_sum_exp = step ? host_copy(backward->log_sum_exp, 4 * n.statistics) : expected.log_sum_exp;
    back.gradient = host_copy(backward->gradient, 2 * n.result);
    back.qkv_gradient = malloc(2 * n.packed);
    back.query_gradient = calloc(n.result, 2), back.keys_gradient = calloc(n.keys, 2);
    dtp_reference_attention_backward(NULL, &back, NULL);

    judge(what, "result", relative_error(host_copy(forward->result, 2 * n.result), expected.result, n.result, halves),
          6e-3);
    judge(what, "log_sum_exp",
          relative_error(host_copy(forward->log_sum_exp, 4 * n.own_statistics), expected.log_sum_exp, n.own_statistics,
                         DTP_ELEMENT_FP32),
          1e-4);
    if (!step) {
        judge(what, "qkv_gradient", relative_error(gradients, back.qkv_gradient, n.packed, halves), 1e-2);
        return;
    }
    judge(what, "query_gradient", relative_error(gradients, back.query_gradient, n.result, halves), 1e-2);
    judge(what, "keys_gradient",
          relative_error((const char *)gradients + 2 * n.result, back.keys_gradient, n.keys, halves), 1e-2);
}

static void check_attention(struct dtp_attention_plans *attention, const struct attention_case *shape,
                            bool deterministic)
{
    const struct counts n = count(shape);
    const uint64_t bytes = 2 * (shape->key_count ? n.result + n.keys : n.packed);
    struct dtp_attention_args forward;
    struct dtp_attention_backward_args backward;
    char what[120];
    describe(shape, deterministic ? " deterministic" : "", what, sizeof what);
    make_arguments(shape, 256u << 20, deterministic, &forward, &backward);
    if (!run(attention, what, &forward, &backward))
        return;
    void *first = gradients_of(shape, &backward);
    for (int i = 0; i < 3 && deterministic; i++) {
        dtp_attention_backward(attention, &backward, NULL);
        CUDA(cudaDeviceSynchronize());
        void *again = gradients_of(shape, &backward);
        if (memcmp(first, again, bytes) != 0)
            judge(what, "repeats", 1, 0);
        free(again);
    }
    judge_attention(what, shape, &forward, &backward, first);
    free(first);
}

static struct dtp_attention_plans *create(void)
{
    struct dtp_faults faults = {0};
    struct dtp_attention_plans *attention;
    if (dtp_attention_create(&attention, &faults) != DTP_OK) {
        fprintf(stderr, "%s\n", faults.text[0]);
        exit(3);
    }
    return attention;
}

static void check_attentions(bool deterministic)
{
    static const struct attention_case cases[] = {
        {2, 128, 2, 2, 64, 0},
        {1, 256, 4, 4, 128, 0},
        {2, 384, 4, 2, 64, 0},
        {1, 256, 8, 1, 128, 0},
        {1, 128, 3, 3, 80, 0},
        {3, 128, 2, 1, 32, 0},
        {1, 512, 2, 2, 64, 0},
        {2, 384, 4, 2, 64, 128},
        {1, 512, 2, 2, 64, 100},
        {1, 1024, 8, 1, 128, 300},
        /* steps of a ring, of keys before all queries and of those before the later half of them */
        {1, 256, 2, 2, 64, .key_count = 128},
        {1, 256, 2, 2, 64, .first_query = 128, .key_count = 256},
        {2, 512, 4, 2, 64, .key_count = 256},
        {2, 512, 4, 2, 64, .first_query = 256, .key_count = 512},
        {3, 768, 8, 2, 128, .key_count = 384},
        {3, 768, 8, 2, 128, .first_query = 384, .key_count = 768},
        {2, 256, 3, 1, 80, .first_query = 128, .key_count = 256},
    };
    struct dtp_attention_plans *attention = create();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_attention(attention, &cases[i], deterministic);
    dtp_attention_destroy(attention);
}

/* Shapes that a deterministic backward computes in parts, against the same at one go. */
static void check_parts(void)
{
    static const struct attention_case cases[] = {
        {12, 1024, 80, 8, 64, 0},                                     /* parts of 6 sequences */
        {2, 8192, 12, 6, 128, 0},                                     /* parts of 6 heads in 3 groups */
        {1, 16384, 3, 3, 64, 0},                                      /* parts of 1 head */
        {1, 16384, 8, 4, 64, .key_count = 8192},                      /* parts of 4 heads in 2 groups */
        {2, 16384, 8, 4, 64, .first_query = 8192, .key_count = 16384} /* the same of each sequence */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct attention_case *shape = &cases[i];
        const struct counts n = count(shape);
        const uint64_t gradients = shape->key_count ? n.result + n.keys : n.packed;
        struct dtp_attention_args forward;
        struct dtp_attention_backward_args backward;
        void *made[2] = {NULL, NULL};
        char what[120];
        describe(shape, " in parts", what, sizeof what);
        make_arguments(shape, (uint64_t)3 << 29, false, &forward, &backward);
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            struct dtp_attention_plans *attention = create();
            backward.atomic = !deterministic;
            if (!shape->key_count)
                CUDA(cudaMemset(backward.qkv_gradient, 0xFF, 2 * n.packed));
            const bool ran = run(attention, what, &forward, &backward);
            dtp_attention_destroy(attention);
            if (!ran)
                return;
            made[deterministic] = gradients_of(shape, &backward);
        }
        judge(what, "gradients", relative_error(made[1], made[0], gradients, DTP_ELEMENT_BF16), 3e-3);
        free(made[0]);
        free(made[1]);
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
