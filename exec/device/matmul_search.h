/* Which of cuBLASLt's algorithms a matmul takes: timed on the device, alone and under load. The inside of
 * exec/device/matmul.c. */
#ifndef DTP_MATMUL_SEARCH_H
#define DTP_MATMUL_SEARCH_H

#include "device/matmul.h"

#include <cublasLt.h>

struct dtp_matmul_prepared {
    struct dtp_matmul_key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d; /* cuBLASLt's a and b; c lies as d */
    cublasLtMatmulAlgo_t algorithm;
    bool bias_apart;
    struct dtp_matmul_timing timing;
};

/* What of a matmul the choice of its algorithm depends on. */
struct dtp_matmul_key dtp_matmul_key_of(const struct dtp_matmul_args *from);
/* "matmul [4096, 1024] = [512] transposed, bf16 to fp32, added". */
void dtp_matmul_words(const struct dtp_matmul_key *key, char *out, size_t bytes);

/* Makes the descriptors, all but the algorithm; dtp_matmul_forget frees them. `bias_apart`: the bias gradient by our
 * own kernel behind the matmul, for which its workspace must do (dtp_matmul_can_split_bias). */
cublasStatus_t dtp_matmul_describe(const struct dtp_matmul_args *from, bool bias_apart,
                                   struct dtp_matmul_prepared *out);
void dtp_matmul_forget(struct dtp_matmul_prepared *prepared);
bool dtp_matmul_can_split_bias(const struct dtp_matmul_args *arguments);

/* Codes as those of dtp_matmul_run. */
int dtp_matmul_issue(cublasLtHandle_t handle, const struct dtp_matmul_prepared *prepared,
                     const struct dtp_matmul_args *from, void *stream);

/* cuBLASLt 13.1's kernels of algorithm 66 in clusters of 2 x 4 thread blocks were seen to die with "unspecified launch
 * failure" where processes compute on one GPU in turns; no record of those runs is kept, so try it again before
 * building on it. An algorithm without a cluster's shape to tell bears it. */
bool dtp_matmul_bears_sharing(const cublasLtMatmulAlgo_t *algorithm);

/* Describes the shape with the algorithm that is fastest under load, briefly of a load as short as that of a step's
 * single matmul, untimed with the first that runs; of a `shared` GPU of those that bear it; overwrites all the memory
 * that the arguments point to. DTP_BAD_INPUT: cuBLASLt has none. DTP_ENVIRONMENT: none runs. */
enum dtp_status dtp_matmul_search(cublasLtHandle_t handle, const struct dtp_matmul_args *arguments,
                                  enum dtp_matmul_effort effort, bool shared, void *stream,
                                  struct dtp_matmul_prepared *out, struct dtp_faults *faults);

#endif
