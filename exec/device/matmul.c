#include "device/matmul_search.h"

#include "kernels/element.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Row-major through a column-major library. Our [m, n] = [m, k] [k, n] is, read column by column, the transposed
 * product [n, m] = [n, k] [k, m]: cuBLASLt's first operand is our b, its second our a, its rows our n and its columns
 * our m, and leading dimensions stay what they are. A matrix stored as the contract's untransposed one needs no
 * transposition there either. Its bias runs along its rows, our n; the gradient of a bias, sums over k of our a, is its
 * BGRADB. */

#define MOST_SHAPES 1024
struct dtp_matmul {
    cublasLtHandle_t handle;
    struct dtp_matmul_choices choices;
    enum dtp_matmul_effort effort;
    bool shared;
    uint32_t count;
    struct dtp_matmul_prepared prepared[MOST_SHAPES];
};

static cudaDataType_t data_type(uint64_t element)
{
    switch (element) {
    case DTP_ELEMENT_BF16: return CUDA_R_16BF;
    case DTP_ELEMENT_FP16: return CUDA_R_16F;
    case DTP_ELEMENT_E4M3: return CUDA_R_8F_E4M3;
    case DTP_ELEMENT_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
    }
}

struct dtp_matmul_key dtp_matmul_key_of(const struct dtp_matmul_args *from)
{
    return (struct dtp_matmul_key){
        .m = from->m,
        .n = from->n,
        .k = from->k,
        .lda = from->lda,
        .ldb = from->ldb,
        .ldd = from->ldd,
        .element = from->element,
        .result_element = from->result_element,
        .a_transposed = from->a_transposed,
        .b_transposed = from->b_transposed,
        .epilogue = from->epilogue,
        .addend = (from->alike ? DTP_MATMUL_ALIKE : 0) + (!from->addend                  ? 0
                                                          : from->addend == from->result ? 1
                                                                                         : 2),
        .bias = from->bias != NULL,
        .bias_gradient = from->bias_gradient != NULL,
        .workspace_bytes = from->workspace_bytes,
        .scaling = from->a_scaling + DTP_MATMUL_SCALINGS * (uint64_t)from->b_scaling,
        .fast = from->fast,
    };
}

void dtp_matmul_words(const struct dtp_matmul_key *key, char *out, size_t bytes)
{
    static const char *const epilogues[] = {"", ", GELU kept", ", gradient of GELU"};
    static const char *const elements[] = {"fp32", "bf16", "fp16", "e4m3", "e5m2"};
    static const char *const scalings[] = {"", ", scales of rows", ", scales of rows", ", scales of runs",
                                           ", scales of squares"};
    snprintf(out, bytes, "matmul [%llu, %llu] = %s[%llu] %s, %s to %s%s%s%s%s%s%s", (unsigned long long)key->m,
             (unsigned long long)key->n, key->a_transposed ? "transposed " : "", (unsigned long long)key->k,
             key->b_transposed ? "transposed" : "plain", elements[key->element % 5], elements[key->result_element % 5],
             epilogues[key->epilogue % 3], key->addend % DTP_MATMUL_ALIKE ? ", added" : "", key->bias ? ", bias" : "",
             key->bias_gradient ? ", bias gradient" : "", scalings[key->scaling % DTP_MATMUL_SCALINGS % 5],
             scalings[key->scaling / DTP_MATMUL_SCALINGS % 5]);
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

static cublasLtEpilogue_t epilogue_of(const struct dtp_matmul_key *key, bool bias_apart)
{
    if (key->bias_gradient && !bias_apart)
        return CUBLASLT_EPILOGUE_BGRADB;
    switch ((enum dtp_epilogue)key->epilogue) {
    case DTP_EPILOGUE_GELU_AUX: return key->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case DTP_EPILOGUE_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    case DTP_EPILOGUE_NONE: break;
    }
    return key->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

#define SET(descriptor, name, value)                                                                                   \
    cublasLtMatmulDescSetAttribute(descriptor, CUBLASLT_MATMUL_DESC_##name, &(value), sizeof(value))

static cublasStatus_t set_pointers(cublasLtMatmulDesc_t operation, const struct dtp_matmul_args *from, bool bias_apart)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    const void *bias = from->bias_gradient && !bias_apart ? from->bias_gradient : from->bias;
    if (from->a_scale) {
        status = SET(operation, A_SCALE_POINTER, from->b_scale);
        status = status == CUBLAS_STATUS_SUCCESS ? SET(operation, B_SCALE_POINTER, from->a_scale) : status;
    }
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (bias)
        status = SET(operation, BIAS_POINTER, bias);
    if (status == CUBLAS_STATUS_SUCCESS && from->epilogue != DTP_EPILOGUE_NONE)
        status = SET(operation, EPILOGUE_AUX_POINTER, from->aux);
    return status;
}

/* Scales of parts; rows of ours are columns there, and so the outer ones of either operand. */
static cublasStatus_t describe_scales(const struct dtp_matmul_key *key, cublasLtMatmulDesc_t out)
{
#if CUBLAS_VERSION >= 120900
    static const int32_t modes[] = {
        [DTP_SCALED_WHOLE] = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        [DTP_SCALED_ROWS] = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
        [DTP_SCALED_ALIKE] = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
        [DTP_SCALED_RUNS] = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        [DTP_SCALED_SQUARES] = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
    };
    const int32_t a = modes[key->scaling % DTP_MATMUL_SCALINGS], b = modes[key->scaling / DTP_MATMUL_SCALINGS];
    cublasStatus_t status = key->scaling ? SET(out, A_SCALE_MODE, b) : CUBLAS_STATUS_SUCCESS;
    return key->scaling && status == CUBLAS_STATUS_SUCCESS ? SET(out, B_SCALE_MODE, a) : status;
#else
    (void)out;
    return key->scaling ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
#endif
}

static cublasStatus_t describe_operation(const struct dtp_matmul_key *key, bool bias_apart, cublasLtMatmulDesc_t out)
{
    const cublasOperation_t first = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(key, bias_apart);
    const int64_t aux_leading = (int64_t)key->ldd;
    const cudaDataType_t element = data_type(key->element), result_element = data_type(key->result_element);
    const int8_t fast = key->fast != 0;
    cublasStatus_t status = SET(out, TRANSA, first);
    if (status == CUBLAS_STATUS_SUCCESS && fast)
        status = SET(out, FAST_ACCUM, fast);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_scales(key, out);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(out, TRANSB, second);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(out, EPILOGUE, epilogue);
    if (status == CUBLAS_STATUS_SUCCESS && (key->bias || epilogue == CUBLASLT_EPILOGUE_BGRADB)) {
        const cudaDataType_t type =
            key->bias ? data_type(dtp_matmul_bias_element(key->element, key->result_element)) : result_element;
        status = SET(out, BIAS_DATA_TYPE, type);
    }
    if (status == CUBLAS_STATUS_SUCCESS && key->epilogue != DTP_EPILOGUE_NONE)
        status = SET(out, EPILOGUE_AUX_LD, aux_leading);
    if (status == CUBLAS_STATUS_SUCCESS && key->epilogue != DTP_EPILOGUE_NONE && element != result_element)
        status = SET(out, EPILOGUE_AUX_DATA_TYPE, element);
    return status;
}

void dtp_matmul_forget(struct dtp_matmul_prepared *prepared)
{
    if (prepared->operation)
        cublasLtMatmulDescDestroy(prepared->operation);
    if (prepared->a)
        cublasLtMatrixLayoutDestroy(prepared->a);
    if (prepared->b)
        cublasLtMatrixLayoutDestroy(prepared->b);
    if (prepared->d)
        cublasLtMatrixLayoutDestroy(prepared->d);
    *prepared = (struct dtp_matmul_prepared){0};
}

cublasStatus_t dtp_matmul_describe(const struct dtp_matmul_args *from, bool bias_apart, struct dtp_matmul_prepared *out)
{
    const struct dtp_matmul_key key = dtp_matmul_key_of(from);
    const cudaDataType_t element = data_type(key.element), b_element = data_type(dtp_matmul_b_element(from));
    const int32_t sms = (int32_t)from->sms;
    *out = (struct dtp_matmul_prepared){.key = key, .bias_apart = bias_apart};
    cublasStatus_t status = cublasLtMatmulDescCreate(&out->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_operation(&key, bias_apart, out->operation);
    if (status == CUBLAS_STATUS_SUCCESS && sms)
        status = SET(out->operation, SM_COUNT_TARGET, sms);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_pointers(out->operation, from, bias_apart);
    if (status == CUBLAS_STATUS_SUCCESS) /* stored rows of ours are columns there */
        status = cublasLtMatrixLayoutCreate(&out->a, b_element, key.b_transposed ? key.k : key.n,
                                            key.b_transposed ? key.n : key.k, (int64_t)key.ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&out->b, element, key.a_transposed ? key.m : key.k,
                                            key.a_transposed ? key.k : key.m, (int64_t)key.lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&out->d, data_type(key.result_element), key.n, key.m, (int64_t)key.ldd);
    if (status != CUBLAS_STATUS_SUCCESS)
        dtp_matmul_forget(out);
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int run_bias_gradient(const struct dtp_matmul_args *from, void *stream)
{
    const struct dtp_bias_backward_args arguments = {
        .gradient = from->a,
        .bias_gradient = from->bias_gradient,
        .workspace = from->workspace,
        .rows = from->k,
        .width = (uint32_t)from->m,
        .element = from->element,
        .gradient_element = from->result_element,
        .accumulate = from->addend == from->result,
    };
    const int code = dtp_cuda_bias_backward(NULL, &arguments, stream);
    return code ? DTP_MATMUL_KERNEL + code : 0;
}

int dtp_matmul_issue(cublasLtHandle_t handle, const struct dtp_matmul_prepared *prepared,
                     const struct dtp_matmul_args *from, void *stream)
{
    const float scale = dtp_matmul_scale(from), beta = from->addend ? dtp_matmul_addend_scale(from) : 0;
    cublasStatus_t status = set_pointers(prepared->operation, from, prepared->bias_apart);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(handle, prepared->operation, &scale, from->b, prepared->a, from->a, prepared->b, &beta,
                                from->addend ? from->addend : from->result, prepared->d, from->result, prepared->d,
                                &prepared->algorithm, from->workspace, from->workspace_bytes, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        return (int)status;
    return prepared->bias_apart ? run_bias_gradient(from, stream) : 0;
}

static const struct dtp_matmul_prepared *find(const struct dtp_matmul *matmul, const struct dtp_matmul_key *key)
{
    for (uint32_t i = 0; i < matmul->count; i++)
        if (dtp_matmul_key_equal(&matmul->prepared[i].key, key))
            return &matmul->prepared[i];
    return NULL;
}

int dtp_matmul_run(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, void *stream)
{
    const struct dtp_matmul_key key = dtp_matmul_key_of(arguments);
    const struct dtp_matmul_prepared *prepared = find(matmul, &key);
    return prepared ? dtp_matmul_issue(matmul->handle, prepared, arguments, stream) : DTP_MATMUL_UNPREPARED;
}

const char *dtp_matmul_error_text(int code)
{
    if (code == DTP_MATMUL_UNPREPARED)
        return "a matmul of a shape that was not prepared";
    return code >= DTP_MATMUL_KERNEL ? dtp_cuda_error_text(code - DTP_MATMUL_KERNEL)
                                     : cublasLtGetStatusString((cublasStatus_t)code);
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

bool dtp_matmul_can_split_bias(const struct dtp_matmul_args *arguments)
{
    const uint64_t partial_bytes = 2 * (uint64_t)DTP_PARTIAL_SUM_ROWS * arguments->m * sizeof(float);
    return arguments->bias_gradient && arguments->lda == arguments->m && partial_bytes <= arguments->workspace_bytes;
}

/* The algorithm of the file, if cuBLASLt still takes it for this shape, and it bears who else uses the GPU. */
static bool restore(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, struct dtp_matmul_prepared *out)
{
    const struct dtp_matmul_key key = dtp_matmul_key_of(arguments);
    const struct dtp_matmul_choice *choice = dtp_matmul_choices_find(&matmul->choices, &key);
    cublasLtMatmulHeuristicResult_t result;
    if (!choice || (choice->bias_apart && !dtp_matmul_can_split_bias(arguments)) ||
        dtp_matmul_describe(arguments, choice->bias_apart != 0, out) != CUBLAS_STATUS_SUCCESS)
        return false;
    memcpy(&out->algorithm, choice->algorithm, sizeof out->algorithm);
    bool bears = !matmul->shared || dtp_matmul_bears_sharing(&out->algorithm);
    if (bears &&
        cublasLtMatmulAlgoCheck(matmul->handle, out->operation, out->a, out->b, out->d, out->d, &out->algorithm,
                                &result) == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= arguments->workspace_bytes)
        return true;
    dtp_matmul_forget(out);
    return false;
}

static enum dtp_status pin(struct dtp_matmul *matmul, const struct dtp_matmul_prepared *prepared,
                           struct dtp_faults *faults)
{
    struct dtp_matmul_choice choice = {
        .key = prepared->key,
        .bias_apart = prepared->bias_apart,
        .time_s = prepared->timing.chosen_s,
    };
    _Static_assert(sizeof choice.algorithm == sizeof prepared->algorithm, "cublasLtMatmulAlgo_t is 64 bytes");
    memcpy(choice.algorithm, &prepared->algorithm, sizeof choice.algorithm);
    return dtp_matmul_choices_add(&matmul->choices, &choice, faults);
}

enum dtp_status dtp_matmul_prepare(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, void *stream,
                                   struct dtp_faults *faults)
{
    const struct dtp_matmul_key key = dtp_matmul_key_of(arguments);
    if (find(matmul, &key))
        return DTP_OK;
    if (matmul->count == MOST_SHAPES)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "more than %d shapes of matmuls in one program", MOST_SHAPES);
    struct dtp_matmul_prepared *next = &matmul->prepared[matmul->count];
    enum dtp_status status = DTP_OK;
    if (!restore(matmul, arguments, next)) {
        status = dtp_matmul_search(matmul->handle, arguments, matmul->effort, matmul->shared, stream, next, faults);
        if (status == DTP_OK && matmul->effort == DTP_MATMUL_THOROUGHLY)
            status = pin(matmul, next, faults);
    }
    if (status == DTP_OK)
        matmul->count++;
    return status;
}

bool dtp_matmul_timing(const struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments,
                       struct dtp_matmul_timing *out)
{
    const struct dtp_matmul_key key = dtp_matmul_key_of(arguments);
    const struct dtp_matmul_prepared *prepared = find(matmul, &key);
    if (prepared)
        *out = prepared->timing;
    return prepared != NULL;
}

enum dtp_status dtp_matmul_create(const char *gpu, const char *choices_path, struct dtp_matmul **out,
                                  struct dtp_faults *faults)
{
    struct dtp_matmul *matmul = calloc(1, sizeof *matmul);
    *out = NULL;
    if (!matmul)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "no memory for matmul's plans");
    cublasStatus_t status = cublasLtCreate(&matmul->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(matmul);
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "cuBLASLt does not start: %s",
                         cublasLtGetStatusString(status));
    }
    enum dtp_status loaded = dtp_matmul_choices_load(choices_path, gpu, cublasLtGetVersion(), &matmul->choices, faults);
    if (loaded == DTP_OK)
        *out = matmul;
    else
        dtp_matmul_destroy(matmul);
    return loaded;
}

void dtp_matmul_search_as(struct dtp_matmul *matmul, enum dtp_matmul_effort effort)
{
    matmul->effort = effort;
}

void dtp_matmul_on_shared_gpu(struct dtp_matmul *matmul)
{
    matmul->shared = true;
}

void dtp_matmul_destroy(struct dtp_matmul *matmul)
{
    if (!matmul)
        return;
    for (uint32_t i = 0; i < matmul->count; i++)
        dtp_matmul_forget(&matmul->prepared[i]);
    dtp_matmul_choices_free(&matmul->choices);
    cublasLtDestroy(matmul->handle);
    free(matmul);
}

uint32_t dtp_matmul_damaged_lines(const struct dtp_matmul *matmul)
{
    return matmul->choices.damaged;
}
