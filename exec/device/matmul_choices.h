/* The file of matmul algorithms: which of cuBLASLt's candidates was fastest for a shape, so that a second run of the
 * same plan starts at once and computes the same bits.
 *
 * One line of text per choice, appended as soon as it is made (one write, so that ranks that share the file do not tear
 * lines). A line belongs to a GPU and a version of cuBLASLt; those of others are kept and not used. A damaged line is
 * skipped and counted: its checksum does not match. Where a shape occurs twice the later line counts. */
#ifndef DTP_MATMUL_CHOICES_H
#define DTP_MATMUL_CHOICES_H

#include "base/status.h"

#include <stdint.h>

/* All that a matmul's fastest algorithm depends on. X(field) in the order of the file's columns. */
/* The formatter never settles on one form of this table. */
/* clang-format off */
#define DTP_MATMUL_KEY(X) \
    X(m) X(n) X(k) X(lda) X(ldb) X(ldd) X(element) X(result_element) X(a_transposed) X(b_transposed) X(epilogue) \
    X(addend)                /* 0: none, 1: the result itself, 2: another matrix; with DTP_MATMUL_ALIKE on top */ \
    X(bias) X(bias_gradient) /* 0 or 1 */ \
    X(workspace_bytes)       /* at its disposal */ \
    X(scaling) X(fast)       /* of fp8: enum dtp_scaling of a, and DTP_MATMUL_SCALINGS times that of b; 0 or 1 */
/* clang-format on */
struct dtp_matmul_key {
#define X(field) uint64_t field;
    DTP_MATMUL_KEY(X)
#undef X
};
/* All ranks need the same algorithm: it is the first of cuBLASLt's own order, and not the fastest on one of them. */
#define DTP_MATMUL_ALIKE 4u
#define DTP_MATMUL_SCALINGS 8u
bool dtp_matmul_key_equal(const struct dtp_matmul_key *a, const struct dtp_matmul_key *b);

#define DTP_MATMUL_ALGORITHM_WORDS 8
struct dtp_matmul_choice {
    struct dtp_matmul_key key;
    uint64_t algorithm[DTP_MATMUL_ALGORITHM_WORDS]; /* cublasLtMatmulAlgo_t */
    uint64_t bias_apart;                            /* 1: the bias gradient by a kernel of its own */
    double time_s;                                  /* of the matmul when it was chosen */
};

/* Those of one GPU and version. Zero-initialise; `path` is borrowed. */
struct dtp_matmul_choices {
    const char *path; /* NULL: kept in memory only */
    char owner[160];  /* "NVIDIA_H200 130100": name without blanks, version */
    uint32_t count, capacity, damaged;
    struct dtp_matmul_choice *choices;
};

/* A file that does not exist yet is an empty one. DTP_BAD_INPUT for one that holds other things alone; DTP_ENVIRONMENT
 * if it cannot be read, or without memory. */
enum dtp_status dtp_matmul_choices_load(const char *path, const char *gpu, uint64_t version,
                                        struct dtp_matmul_choices *out, struct dtp_faults *faults);
void dtp_matmul_choices_free(struct dtp_matmul_choices *choices);
const struct dtp_matmul_choice *dtp_matmul_choices_find(const struct dtp_matmul_choices *choices,
                                                        const struct dtp_matmul_key *key);
/* Adds to memory and to the file. DTP_ENVIRONMENT: the file cannot be written, or not whole. */
enum dtp_status dtp_matmul_choices_add(struct dtp_matmul_choices *choices, const struct dtp_matmul_choice *choice,
                                       struct dtp_faults *faults);

#endif
