#include "matmul.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Row-major through a column-major library. Our [m, n] = [m, k] [k, n] is, read column by column, the transposed
 * product [n, m] = [n, k] [k, m]: cuBLASLt's first operand is our b, its second our a, its rows our n and its columns
 * our m, and leading dimensions stay what they are. A matrix stored as the contract's untransposed one needs no
 * transposition there either. Its bias runs along its rows, our n; the gradient of a bias, sums over k of our a, is its
 * BGRADB. */

#define CANDIDATES 16     /* asked for */
#define FINALISTS 4       /* timed twice */
#define FIRST_ROUNDS 3
#define FINAL_ROUNDS 15
#define ROUND_S 200e-6    /* a short matmul is repeated within a round until it lasts this long */
#define MOST_REPEATS 20

struct prepared {
    struct dtp_matmul_key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d; /* cuBLASLt's a and b; c lies as d */
    cublasLtMatmulAlgo_t algorithm;
    bool bias_apart;
    struct dtp_matmul_timing timing;
};

#define MOST_SHAPES 256
struct dtp_matmul {
    cublasLtHandle_t handle;
    struct dtp_matmul_choices choices;
    uint32_t count;
    struct prepared prepared[MOST_SHAPES];
};

static cudaDataType_t data_type(uint64_t element)
{
    return element == DTP_ELEMENT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static struct dtp_matmul_key key_of(const struct dtp_matmul_args *from)
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
        .addend = !from->addend ? 0 : from->addend == from->result ? 1 : 2,
        .bias = from->bias != NULL,
        .bias_gradient = from->bias_gradient != NULL,
        .workspace_bytes = from->workspace_bytes,
    };
}

static void words_of(const struct dtp_matmul_key *key, char *out, size_t bytes)
{
    static const char *const epilogues[] = {"", ", GELU kept", ", gradient of GELU"};
    snprintf(out, bytes, "matmul [%llu, %llu] = %s[%llu] %s, %s to %s%s%s%s%s", (unsigned long long)key->m,
             (unsigned long long)key->n, key->a_transposed ? "transposed " : "", (unsigned long long)key->k,
             key->b_transposed ? "transposed" : "plain", key->element == DTP_ELEMENT_BF16 ? "bf16" : "fp32",
             key->result_element == DTP_ELEMENT_BF16 ? "bf16" : "fp32", epilogues[key->epilogue % 3],
             key->addend ? ", added" : "", key->bias ? ", bias" : "", key->bias_gradient ? ", bias gradient" : "");
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
    if (bias)
        status = SET(operation, BIAS_POINTER, bias);
    if (status == CUBLAS_STATUS_SUCCESS && from->epilogue != DTP_EPILOGUE_NONE)
        status = SET(operation, EPILOGUE_AUX_POINTER, from->aux);
    return status;
}

static cublasStatus_t describe_operation(const struct dtp_matmul_key *key, bool bias_apart, cublasLtMatmulDesc_t out)
{
    const cublasOperation_t first = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(key, bias_apart);
    const int64_t aux_leading = (int64_t)key->ldd;
    const cudaDataType_t element = data_type(key->element), result_element = data_type(key->result_element);
    cublasStatus_t status = SET(out, TRANSA, first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(out, TRANSB, second);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = SET(out, EPILOGUE, epilogue);
    if (status == CUBLAS_STATUS_SUCCESS && (key->bias || epilogue == CUBLASLT_EPILOGUE_BGRADB)) {
        const cudaDataType_t type = key->bias ? element : result_element;
        status = SET(out, BIAS_DATA_TYPE, type);
    }
    if (status == CUBLAS_STATUS_SUCCESS && key->epilogue != DTP_EPILOGUE_NONE)
        status = SET(out, EPILOGUE_AUX_LD, aux_leading);
    if (status == CUBLAS_STATUS_SUCCESS && key->epilogue != DTP_EPILOGUE_NONE && element != result_element)
        status = SET(out, EPILOGUE_AUX_DATA_TYPE, element);
    return status;
}

static void free_descriptors(struct prepared *prepared)
{
    if (prepared->operation)
        cublasLtMatmulDescDestroy(prepared->operation);
    if (prepared->a)
        cublasLtMatrixLayoutDestroy(prepared->a);
    if (prepared->b)
        cublasLtMatrixLayoutDestroy(prepared->b);
    if (prepared->d)
        cublasLtMatrixLayoutDestroy(prepared->d);
    *prepared = (struct prepared){0};
}

static cublasStatus_t describe(const struct dtp_matmul_args *from, bool bias_apart, struct prepared *out)
{
    const struct dtp_matmul_key key = key_of(from);
    const cudaDataType_t element = data_type(key.element);
    *out = (struct prepared){.key = key, .bias_apart = bias_apart};
    cublasStatus_t status = cublasLtMatmulDescCreate(&out->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = describe_operation(&key, bias_apart, out->operation);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_pointers(out->operation, from, bias_apart);
    if (status == CUBLAS_STATUS_SUCCESS) /* stored rows of ours are columns there */
        status = cublasLtMatrixLayoutCreate(&out->a, element, key.b_transposed ? key.k : key.n,
                                            key.b_transposed ? key.n : key.k, (int64_t)key.ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&out->b, element, key.a_transposed ? key.m : key.k,
                                            key.a_transposed ? key.k : key.m, (int64_t)key.lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&out->d, data_type(key.result_element), key.n, key.m, (int64_t)key.ldd);
    if (status != CUBLAS_STATUS_SUCCESS)
        free_descriptors(out);
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

static int run(cublasLtHandle_t handle, const struct prepared *prepared, const struct dtp_matmul_args *from,
               void *stream)
{
    const float one = 1, beta = from->addend ? 1 : 0;
    cublasStatus_t status = set_pointers(prepared->operation, from, prepared->bias_apart);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(handle, prepared->operation, &one, from->b, prepared->a, from->a, prepared->b, &beta,
                                from->addend ? from->addend : from->result, prepared->d, from->result, prepared->d,
                                &prepared->algorithm, from->workspace, from->workspace_bytes, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        return (int)status;
    return prepared->bias_apart ? run_bias_gradient(from, stream) : 0;
}

static const struct prepared *find(const struct dtp_matmul *matmul, const struct dtp_matmul_key *key)
{
    for (uint32_t i = 0; i < matmul->count; i++)
        if (dtp_matmul_key_equal(&matmul->prepared[i].key, key))
            return &matmul->prepared[i];
    return NULL;
}

int dtp_matmul_run(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, void *stream)
{
    const struct dtp_matmul_key key = key_of(arguments);
    const struct prepared *prepared = find(matmul, &key);
    return prepared ? run(matmul->handle, prepared, arguments, stream) : DTP_MATMUL_UNPREPARED;
}

const char *dtp_matmul_error_text(int code)
{
    if (code == DTP_MATMUL_UNPREPARED)
        return "a matmul of a shape that was not prepared";
    return code >= DTP_MATMUL_KERNEL ? dtp_cuda_error_text(code - DTP_MATMUL_KERNEL)
                                     : cublasLtGetStatusString((cublasStatus_t)code);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

static int fill(const void *values, uint64_t rows, uint64_t columns, uint64_t leading, uint64_t element,
                uint32_t tensor, void *stream)
{
    if (!values || !rows || !columns)
        return 0;
    const struct dtp_initialise_args arguments = {
        .values = (void *)(uintptr_t)values, /* an operand that prepare may write */
        .count = (rows - 1) * leading + columns,
        .seed = 1,
        .tensor = tensor,
        .deviation = 1,
        .element = element == DTP_ELEMENT_BF16 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32,
    };
    return dtp_cuda_initialise(NULL, &arguments, stream);
}

/* Random numbers everywhere: GEMMs on zeros run 13 % faster, on constants too (power). */
static int fill_operands(const struct dtp_matmul_args *to, void *stream)
{
    int code = fill(to->a, to->a_transposed ? to->k : to->m, to->a_transposed ? to->m : to->k, to->lda, to->element, 0,
                    stream);
    if (!code)
        code = fill(to->b, to->b_transposed ? to->n : to->k, to->b_transposed ? to->k : to->n, to->ldb, to->element, 1,
                    stream);
    if (!code)
        code = fill(to->addend, to->m, to->n, to->ldd, to->result_element, 2, stream);
    if (!code)
        code = fill(to->bias, 1, to->n, to->n, to->element, 3, stream);
    if (!code && to->epilogue == DTP_EPILOGUE_DGELU)
        code = fill(to->aux, to->m, to->n, to->ldd, to->element, 4, stream);
    return code;
}

static int compare_times(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

struct candidate {
    cublasLtMatmulAlgo_t algorithm;
    bool bias_apart;
    int repeats;
    double times_s[FINAL_ROUNDS], time_s; /* of a matmul in each round; their median */
};

static int compare_candidates(const void *a, const void *b)
{
    return compare_times(&((const struct candidate *)a)->time_s, &((const struct candidate *)b)->time_s);
}

/* Seconds per matmul of so many in a row; negative where it fails. */
static double time_round(cublasLtHandle_t handle, const struct prepared *prepared,
                         const struct dtp_matmul_args *arguments, int repeats, cudaEvent_t events[2], void *stream)
{
    float elapsed_ms = 0;
    if (cudaEventRecord(events[0], stream) != cudaSuccess)
        return -1;
    for (int i = 0; i < repeats; i++)
        if (run(handle, prepared, arguments, stream))
            return -1;
    if (cudaEventRecord(events[1], stream) != cudaSuccess || cudaEventSynchronize(events[1]) != cudaSuccess ||
        cudaEventElapsedTime(&elapsed_ms, events[0], events[1]) != cudaSuccess)
        return -1;
    return (double)elapsed_ms * 1e-3 / repeats;
}

static uint32_t ask_heuristics(cublasLtHandle_t handle, const struct prepared *prepared, uint64_t workspace_bytes,
                               struct candidate out[CANDIDATES])
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    cublasLtMatmulPreference_t preference = NULL;
    const uint32_t alignment = 16; /* of what the contract promises; the default supposes 256 */
    int count = 0;
    if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS)
        return 0;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                         sizeof workspace_bytes);
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++)
        cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment);
    if (cublasLtMatmulAlgoGetHeuristic(handle, prepared->operation, prepared->a, prepared->b, prepared->d, prepared->d,
                                       preference, CANDIDATES, results, &count) != CUBLAS_STATUS_SUCCESS)
        count = 0;
    cublasLtMatmulPreferenceDestroy(preference);
    uint32_t kept = 0;
    for (int i = 0; i < count; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS)
            out[kept++] = (struct candidate){.algorithm = results[i].algo, .bias_apart = prepared->bias_apart};
    return kept;
}

/* Where a matmul has a bias gradient there are two ways, cuBLASLt's epilogue (which overwrites, so not where it is
 * added to) and our own kernel after it: candidates of each, described apart. */
struct way {
    bool possible;
    struct prepared prepared;
};

static bool can_split_bias(const struct dtp_matmul_args *arguments)
{
    const uint64_t partial_bytes = 2 * (uint64_t)DTP_PARTIAL_SUM_ROWS * arguments->m * sizeof(float);
    return arguments->bias_gradient && arguments->lda == arguments->m && partial_bytes <= arguments->workspace_bytes;
}

static uint32_t gather_candidates(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments,
                                  struct way ways[2], struct candidate out[2 * CANDIDATES])
{
    const bool adds_to_bias = arguments->bias_gradient && arguments->addend == arguments->result;
    uint32_t count = 0;
    for (int apart = 0; apart < 2; apart++) {
        const bool wanted = apart ? can_split_bias(arguments) : !adds_to_bias;
        ways[apart].possible = wanted && describe(arguments, apart, &ways[apart].prepared) == CUBLAS_STATUS_SUCCESS;
        if (ways[apart].possible)
            count += ask_heuristics(matmul->handle, &ways[apart].prepared, arguments->workspace_bytes, out + count);
    }
    return count;
}

#define FAILS 1e30 /* seconds of a candidate that does not run: heuristics name a few such */

/* One round of each candidate after the other, so that all of them see the same clocks and power. Round -1 warms up and
 * tells how often a short matmul is to be repeated. */
static void time_candidates(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, struct way ways[2],
                            struct candidate *candidates, uint32_t count, int rounds, cudaEvent_t events[2],
                            void *stream)
{
    for (int round = -1; round < rounds; round++) {
        for (uint32_t i = 0; i < count; i++) {
            struct candidate *candidate = &candidates[i];
            struct prepared *prepared = &ways[candidate->bias_apart].prepared;
            prepared->algorithm = candidate->algorithm;
            if (round < 0)
                candidate->repeats = 1;
            double time_s = candidate->time_s >= FAILS ? FAILS
                                                       : time_round(matmul->handle, prepared, arguments,
                                                                    candidate->repeats, events, stream);
            if (time_s < 0)
                candidate->time_s = time_s = FAILS;
            if (round >= 0)
                candidate->times_s[round] = time_s;
            else
                candidate->repeats = time_s * MOST_REPEATS < ROUND_S ? MOST_REPEATS : (int)(ROUND_S / time_s) + 1;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        qsort(candidates[i].times_s, (size_t)rounds, sizeof candidates[i].times_s[0], compare_times);
        candidates[i].time_s = candidates[i].times_s[rounds / 2];
    }
}

static enum dtp_status choose(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, struct way ways[2],
                              struct candidate *candidates, uint32_t count, void *stream, struct prepared *out,
                              struct dtp_faults *faults)
{
    cudaEvent_t events[2] = {NULL, NULL};
    char words[200];
    words_of(&ways[0].prepared.key, words, sizeof words);
    int code = fill_operands(arguments, stream);
    if (code)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s: its operands cannot be filled: %s", words,
                         dtp_cuda_error_text(code));
    if (cudaEventCreate(&events[0]) != cudaSuccess || cudaEventCreate(&events[1]) != cudaSuccess)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s: no events to time it with", words);
    time_candidates(matmul, arguments, ways, candidates, count, FIRST_ROUNDS, events, stream);
    const double first_s = candidates[0].time_s;
    qsort(candidates, count, sizeof candidates[0], compare_candidates);
    const uint32_t finalists = count < FINALISTS ? count : FINALISTS;
    time_candidates(matmul, arguments, ways, candidates, finalists, FINAL_ROUNDS, events, stream);
    qsort(candidates, finalists, sizeof candidates[0], compare_candidates);
    cudaEventDestroy(events[0]);
    cudaEventDestroy(events[1]);
    if (candidates[0].time_s >= FAILS)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s: none of cuBLASLt's %u algorithms runs", words, count);

    *out = ways[candidates[0].bias_apart].prepared;
    ways[candidates[0].bias_apart].possible = false; /* its descriptors went to `out` */
    out->algorithm = candidates[0].algorithm;
    out->timing = (struct dtp_matmul_timing){count, first_s, candidates[0].time_s};
    return DTP_OK;
}

static enum dtp_status search(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, void *stream,
                              struct prepared *out, struct dtp_faults *faults)
{
    struct way ways[2] = {{0}};
    struct candidate candidates[2 * CANDIDATES];
    const uint32_t count = gather_candidates(matmul, arguments, ways, candidates);
    enum dtp_status status = DTP_OK;
    if (!count) {
        const struct dtp_matmul_key key = key_of(arguments);
        char words[200];
        words_of(&key, words, sizeof words);
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "cuBLASLt %zu has no algorithm for %s; take another precision "
                           "or the epilogue apart",
                           cublasLtGetVersion(), words);
    } else {
        status = choose(matmul, arguments, ways, candidates, count, stream, out, faults);
    }
    for (int apart = 0; apart < 2; apart++)
        if (ways[apart].possible)
            free_descriptors(&ways[apart].prepared);
    return status;
}

/* The algorithm of the file, if cuBLASLt still takes it for this shape. */
static bool restore(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, struct prepared *out)
{
    const struct dtp_matmul_key key = key_of(arguments);
    const struct dtp_matmul_choice *choice = dtp_matmul_choices_find(&matmul->choices, &key);
    cublasLtMatmulHeuristicResult_t result;
    if (!choice || (choice->bias_apart && !can_split_bias(arguments)) ||
        describe(arguments, choice->bias_apart != 0, out) != CUBLAS_STATUS_SUCCESS)
        return false;
    memcpy(&out->algorithm, choice->algorithm, sizeof out->algorithm);
    if (cublasLtMatmulAlgoCheck(matmul->handle, out->operation, out->a, out->b, out->d, out->d, &out->algorithm,
                                &result) == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= arguments->workspace_bytes)
        return true;
    free_descriptors(out);
    return false;
}

static enum dtp_status pin(struct dtp_matmul *matmul, const struct prepared *prepared, struct dtp_faults *faults)
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
    const struct dtp_matmul_key key = key_of(arguments);
    if (find(matmul, &key))
        return DTP_OK;
    if (matmul->count == MOST_SHAPES)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "more than %d shapes of matmuls in one program", MOST_SHAPES);
    struct prepared *next = &matmul->prepared[matmul->count];
    enum dtp_status status = DTP_OK;
    if (!restore(matmul, arguments, next)) {
        status = search(matmul, arguments, stream, next, faults);
        if (status == DTP_OK)
            status = pin(matmul, next, faults);
    }
    if (status == DTP_OK)
        matmul->count++;
    return status;
}

bool dtp_matmul_timing(const struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments,
                       struct dtp_matmul_timing *out)
{
    const struct dtp_matmul_key key = key_of(arguments);
    const struct prepared *prepared = find(matmul, &key);
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
    enum dtp_status loaded =
        dtp_matmul_choices_load(choices_path, gpu, cublasLtGetVersion(), &matmul->choices, faults);
    if (loaded == DTP_OK)
        *out = matmul;
    else
        dtp_matmul_destroy(matmul);
    return loaded;
}

void dtp_matmul_destroy(struct dtp_matmul *matmul)
{
    if (!matmul)
        return;
    for (uint32_t i = 0; i < matmul->count; i++)
        free_descriptors(&matmul->prepared[i]);
    dtp_matmul_choices_free(&matmul->choices);
    cublasLtDestroy(matmul->handle);
    free(matmul);
}

uint32_t dtp_matmul_damaged_lines(const struct dtp_matmul *matmul)
{
    return matmul->choices.damaged;
}
