#include "device/matmul_search.h"

#include "kernels/element.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#define CANDIDATES 16 /* asked for */
#define ROUNDS 3
#define ROUND_S 200e-6 /* a short matmul is repeated within a round until it lasts this long */
#define MOST_REPEATS 20
#define NEAR_UNDER_LOAD 1.03 /* who is timed under load again */
#define FINALISTS 4
#define MOST_UNDER_LOAD 2000

/* How long it may take. Brief searches follow each other, so the clock is that of work before they begin. */
struct effort {
    double near;             /* of the shortest time: who is timed under load */
    uint32_t most;           /* of those */
    double settle_s, load_s; /* until the clock is that of this candidate, and from then on */
    int final_rounds;        /* under load once more, of those that are NEAR_UNDER_LOAD */
};
static const struct effort thorough = {1.25, UINT32_MAX, 40e-3, 100e-3, 4}, brief_effort = {1.06, 4, 4e-3, 12e-3, 0};

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
        .element = (enum dtp_element)element,
    };
    return dtp_cuda_initialise(NULL, &arguments, stream);
}

/* All that lie before the last one's. */
static uint64_t scales_of(enum dtp_scaling scaling, uint64_t rows, uint64_t columns)
{
    return 1 + dtp_scale_place(scaling, rows, columns, rows - 1, columns - 1);
}

/* Random numbers everywhere: GEMMs on zeros run 13 % faster, on constants too (power). */
static int fill_operands(const struct dtp_matmul_args *to, void *stream)
{
    const struct dtp_initialise_args ones[] = {
        {.values = (void *)(uintptr_t)to->a_scale, .count = scales_of(to->a_scaling, to->m, to->k), .mean = 1},
        {.values = (void *)(uintptr_t)to->b_scale, .count = scales_of(to->b_scaling, to->n, to->k), .mean = 1}};
    int code = to->a_scale ? dtp_cuda_initialise(NULL, &ones[0], stream) : 0;
    if (!code && to->b_scale)
        code = dtp_cuda_initialise(NULL, &ones[1], stream);
    if (!code)
        code = fill(to->a, to->a_transposed ? to->k : to->m, to->a_transposed ? to->m : to->k, to->lda, to->element, 0,
                    stream);
    if (!code)
        code = fill(to->b, to->b_transposed ? to->n : to->k, to->b_transposed ? to->k : to->n, to->ldb,
                    dtp_matmul_b_element(to), 1, stream);
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
    bool first; /* of the heuristics */
    bool bias_apart;
    int repeats;
    double times_s[ROUNDS], time_s; /* of a matmul in each round; their median; of finalists under load */
};

static int compare_candidates(const void *a, const void *b)
{
    return compare_times(&((const struct candidate *)a)->time_s, &((const struct candidate *)b)->time_s);
}

/* The two between which candidates are timed, and what the last of these that failed said (dtp_matmul_error_text). */
struct timer {
    cudaEvent_t events[2];
    int code;
};

/* Seconds per matmul of so many in a row; negative where it fails. */
static double time_round(cublasLtHandle_t handle, const struct dtp_matmul_prepared *prepared,
                         const struct dtp_matmul_args *arguments, int repeats, struct timer *timer, void *stream)
{
    float elapsed_ms = 0;
    int code = 0;
    cudaError_t error = cudaEventRecord(timer->events[0], stream);
    for (int i = 0; i < repeats && error == cudaSuccess && !code; i++)
        code = dtp_matmul_issue(handle, prepared, arguments, stream);
    if (error == cudaSuccess && !code)
        error = cudaEventRecord(timer->events[1], stream);
    if (error == cudaSuccess && !code)
        error = cudaEventSynchronize(timer->events[1]);
    if (error == cudaSuccess && !code)
        error = cudaEventElapsedTime(&elapsed_ms, timer->events[0], timer->events[1]);
    if (error == cudaSuccess && !code)
        return (double)elapsed_ms * 1e-3 / repeats;
    timer->code = code ? code : DTP_MATMUL_KERNEL + (int)error;
    return -1;
}

#define DIES_SHARED_ALGORITHM 66
#define DIES_SHARED_CLUSTER 9 /* CUBLASLT_CLUSTER_SHAPE_2x4x1 */

bool dtp_matmul_bears_sharing(const cublasLtMatmulAlgo_t *algorithm)
{
    int32_t id = 0;
    uint16_t cluster = 0;
    size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof cluster,
                                             &written) != CUBLAS_STATUS_SUCCESS)
        return true;
    bool known = cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written) ==
                 CUBLAS_STATUS_SUCCESS;
    return !known || id != DIES_SHARED_ALGORITHM || cluster != DIES_SHARED_CLUSTER;
}

static uint32_t ask_heuristics(cublasLtHandle_t handle, const struct dtp_matmul_prepared *prepared,
                               uint64_t workspace_bytes, bool shared, struct candidate out[CANDIDATES])
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
        if (results[i].state == CUBLAS_STATUS_SUCCESS && (!shared || dtp_matmul_bears_sharing(&results[i].algo)))
            out[kept++] = (struct candidate){.algorithm = results[i].algo, .bias_apart = prepared->bias_apart};
    return kept;
}

/* Where a matmul has a bias gradient there are two ways, cuBLASLt's epilogue (which overwrites, so not where it is
 * added to) and our own kernel after it: candidates of each, described apart. */
struct way {
    bool possible;
    struct dtp_matmul_prepared prepared;
};

static uint32_t gather_candidates(cublasLtHandle_t handle, const struct dtp_matmul_args *arguments, bool shared,
                                  struct way ways[2], struct candidate out[2 * CANDIDATES])
{
    const bool adds_to_bias = arguments->bias_gradient && arguments->addend == arguments->result;
    uint32_t count = 0;
    for (int apart = 0; apart < 2; apart++) {
        const bool wanted = apart ? dtp_matmul_can_split_bias(arguments) : !adds_to_bias;
        ways[apart].possible =
            wanted && dtp_matmul_describe(arguments, apart, &ways[apart].prepared) == CUBLAS_STATUS_SUCCESS;
        if (ways[apart].possible)
            count += ask_heuristics(handle, &ways[apart].prepared, arguments->workspace_bytes, shared, out + count);
    }
    return count;
}

#define FAILS 1e30 /* seconds of a candidate that does not run: heuristics name a few such */

/* One round of each candidate after the other, so that all of them see the same clocks and power. Round -1 warms up and
 * tells how often a short matmul is to be repeated. */
static void time_candidates(cublasLtHandle_t handle, const struct dtp_matmul_args *arguments, struct way ways[2],
                            struct candidate *candidates, uint32_t count, struct timer *timer, void *stream)
{
    for (int round = -1; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < count; i++) {
            struct candidate *candidate = &candidates[i];
            struct dtp_matmul_prepared *prepared = &ways[candidate->bias_apart].prepared;
            prepared->algorithm = candidate->algorithm;
            if (round < 0)
                candidate->repeats = 1;
            double time_s = candidate->time_s >= FAILS
                                ? FAILS
                                : time_round(handle, prepared, arguments, candidate->repeats, timer, stream);
            if (time_s < 0)
                candidate->time_s = time_s = FAILS;
            if (round >= 0)
                candidate->times_s[round] = time_s;
            else
                candidate->repeats = time_s * MOST_REPEATS < ROUND_S ? MOST_REPEATS : (int)(ROUND_S / time_s) + 1;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        qsort(candidates[i].times_s, ROUNDS, sizeof candidates[i].times_s[0], compare_times);
        candidates[i].time_s = candidates[i].times_s[ROUNDS / 2];
    }
}

static int times_in(double seconds, double time_s)
{
    return seconds < MOST_UNDER_LOAD * time_s ? (int)(seconds / time_s) + 1 : MOST_UNDER_LOAD;
}

/* A GPU at its power limit runs a matmul as fast as its energy allows, and in a training step it is there: an H200
 * takes 1.98 GHz down to 1.48. Single matmuls in turn give all candidates the same clock and tell their cycles apart;
 * their energy shows where one of them runs for so long that the clock follows it. The tiles that need the fewest
 * cycles lost up to 9 % so (reports/h200). There and back, for the GPU grows warmer; time_s becomes the mean of the
 * rounds. */
static void time_under_load(cublasLtHandle_t handle, const struct dtp_matmul_args *arguments, struct way ways[2],
                            const struct effort *effort, struct candidate *candidates, uint32_t count, int rounds,
                            struct timer *timer, void *stream)
{
    double total_s[2 * CANDIDATES] = {0};
    for (uint32_t i = 0; i < (uint32_t)rounds * count; i++) {
        const uint32_t at = i / count % 2 ? count - 1 - i % count : i % count;
        const struct candidate *candidate = &candidates[at];
        struct dtp_matmul_prepared *prepared = &ways[candidate->bias_apart].prepared;
        prepared->algorithm = candidate->algorithm;
        double time_s =
            time_round(handle, prepared, arguments, times_in(effort->settle_s, candidate->time_s), timer, stream);
        if (time_s >= 0)
            time_s =
                time_round(handle, prepared, arguments, times_in(effort->load_s, candidate->time_s), timer, stream);
        total_s[at] += time_s < 0 ? FAILS : time_s;
    }
    for (uint32_t i = 0; i < count; i++)
        candidates[i].time_s = total_s[i] / rounds;
    qsort(candidates, count, sizeof candidates[0], compare_candidates);
}

/* How many candidates, which are in order of time, took at most `factor` times as long as the first. */
static uint32_t nearest(const struct candidate *candidates, uint32_t count, double factor)
{
    uint32_t near = 1;
    while (near < count && candidates[near].time_s < factor * candidates[0].time_s)
        near++;
    return near;
}

/* The first that runs becomes candidates[0]; its time is FAILS where none does. */
static void take_first(cublasLtHandle_t handle, const struct dtp_matmul_args *arguments, struct way ways[2],
                       struct candidate *candidates, uint32_t count, struct timer *timer, void *stream)
{
    double time_s = -1;
    for (uint32_t i = 0; i < count && time_s < 0; i++) {
        struct dtp_matmul_prepared *prepared = &ways[candidates[i].bias_apart].prepared;
        prepared->algorithm = candidates[i].algorithm;
        time_s = time_round(handle, prepared, arguments, 1, timer, stream);
        candidates[0] = candidates[i];
    }
    candidates[0].time_s = time_s < 0 ? FAILS : time_s;
}

/* `effort` NULL: untimed. */
static enum dtp_status choose(cublasLtHandle_t handle, const struct dtp_matmul_args *arguments,
                              const struct effort *effort, struct way ways[2], struct candidate *candidates,
                              uint32_t count, void *stream, struct dtp_matmul_prepared *out, struct dtp_faults *faults)
{
    struct timer timing = {0}, *timer = &timing;
    char words[200];
    dtp_matmul_words(&ways[0].prepared.key, words, sizeof words);
    int code = fill_operands(arguments, stream);
    if (code)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s: its operands cannot be filled: %s", words,
                         dtp_cuda_error_text(code));
    if (cudaEventCreate(&timer->events[0]) != cudaSuccess || cudaEventCreate(&timer->events[1]) != cudaSuccess)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s: no events to time it with", words);
    candidates[0].first = true;
    if (effort)
        time_candidates(handle, arguments, ways, candidates, count, timer, stream);
    else
        take_first(handle, arguments, ways, candidates, count, timer, stream);
    double first_s = candidates[0].time_s;
    if (effort)
        qsort(candidates, count, sizeof candidates[0], compare_candidates);
    if (effort && candidates[0].time_s < FAILS) {
        const uint32_t near = nearest(candidates, count < effort->most ? count : effort->most, effort->near);
        time_under_load(handle, arguments, ways, effort, candidates, near, 1, timer, stream);
        for (uint32_t i = 0; i < near; i++)
            first_s = candidates[i].first ? candidates[i].time_s : first_s;
        const uint32_t finalists = nearest(candidates, near < FINALISTS ? near : FINALISTS, NEAR_UNDER_LOAD);
        if (finalists > 1 && effort->final_rounds > 0)
            time_under_load(handle, arguments, ways, effort, candidates, finalists, effort->final_rounds, timer,
                            stream);
    }
    cudaEventDestroy(timer->events[0]);
    cudaEventDestroy(timer->events[1]);
    if (candidates[0].time_s >= FAILS)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "%s: none of cuBLASLt's %u algorithms runs, the last: %s",
                         words, count, dtp_matmul_error_text(timer->code));

    *out = ways[candidates[0].bias_apart].prepared;
    ways[candidates[0].bias_apart].possible = false; /* its descriptors went to `out` */
    out->algorithm = candidates[0].algorithm;
    out->timing = (struct dtp_matmul_timing){count, first_s, candidates[0].time_s};
    return DTP_OK;
}

enum dtp_status dtp_matmul_search(cublasLtHandle_t handle, const struct dtp_matmul_args *arguments,
                                  enum dtp_matmul_effort effort, bool shared, void *stream,
                                  struct dtp_matmul_prepared *out, struct dtp_faults *faults)
{
    static const struct effort *const efforts[] = {
        [DTP_MATMUL_THOROUGHLY] = &thorough, [DTP_MATMUL_BRIEFLY] = &brief_effort, [DTP_MATMUL_UNTIMED] = NULL};
    struct way ways[2] = {{0}};
    struct candidate candidates[2 * CANDIDATES];
    const uint32_t found = gather_candidates(handle, arguments, shared, ways, candidates);
    const uint32_t count = arguments->alike && found ? 1 : found;
    enum dtp_status status = DTP_OK;
    if (!count) {
        const struct dtp_matmul_key key = dtp_matmul_key_of(arguments);
        char words[200];
        dtp_matmul_words(&key, words, sizeof words);
        status = dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                           "cuBLASLt %zu has no algorithm for %s; take another precision or the epilogue apart",
                           cublasLtGetVersion(), words);
    } else {
        status = choose(handle, arguments, efforts[effort], ways, candidates, count, stream, out, faults);
    }
    for (int apart = 0; apart < 2; apart++)
        if (ways[apart].possible)
            dtp_matmul_forget(&ways[apart].prepared);
    return status;
}
