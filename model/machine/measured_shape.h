/* Measured times of operations that have a shape instead of a size: matmuls and attention.
 *
 * A formula with a handful of fitted parameters says how time goes with the shape; what it gets wrong near a shape is
 * taken from the rows measured near it: the weighted mean of their residuals, by distance in the logarithms of the
 * dimensions. */
#ifndef DTP_MEASURED_SHAPE_H
#define DTP_MEASURED_SHAPE_H

#include "base/log_fit.h"
#include "machine/machine.h"
#include "machine/measured_row.h"

#define DTP_MEASURED_DIMENSIONS 5

/* A row of either, or a question: of a matmul log m, log n, log k, which pass and log of groups; of attention
 * log (sequences * heads), log sequence, log head_dim, log of query heads per key head, and 0. */
struct dtp_measured_shape {
    double at[DTP_MEASURED_DIMENSIONS];
};

struct dtp_measured_shape_fit {
    const struct dtp_gpu *gpu; /* borrowed, while fitting and asking */
    enum dtp_dtype dtype;
    bool attention, backward;
    size_t count;
    struct dtp_measured_shape *shape; /* [count] each */
    double *log_s, *residual, *weight;
    struct dtp_log_fit fit;
};

/* The shape of a row of matmul or attention. */
struct dtp_measured_shape dtp_measured_shape_of(const struct dtp_measured_row *row);

/* Bytes, a power of two up to 16, at whose multiples all rows of a matmul's three matrices begin. Tensor cores are fed
 * in 16 bytes; with less libraries take other kernels, several times slower, of which aligned ones say nothing and
 * which say nothing of those. */
unsigned dtp_measured_matmul_alignment(const struct dtp_measured_row *row);

/* Fits rows of one dtype (and of attention, one direction; of matmuls, one alignment, grouped or not). Caller releases;
 * releasable after failure. */
enum dtp_status dtp_measured_shape_fit_make(const struct dtp_gpu *gpu, const struct dtp_measured_row *const *rows,
                                            size_t count, struct dtp_measured_shape_fit *out,
                                            struct dtp_faults *faults);
void dtp_measured_shape_fit_release(struct dtp_measured_shape_fit *fit);

/* Seconds of a shape; `without` is a row that is left out of the residuals, SIZE_MAX: none. */
double dtp_measured_shape_s(const struct dtp_measured_shape_fit *fit, const struct dtp_measured_shape *shape,
                            size_t without);
/* The formula alone. */
double dtp_measured_shape_fit_s(const struct dtp_measured_shape_fit *fit, const struct dtp_measured_shape *shape);

/* measured_matmul.c, measured_attention.c: log seconds by parameters, and what is expected of those. */
#define DTP_MEASURED_MATMUL_PARAMETERS(X)                                                                              \
    X(RATE, "rate of all SMs in full waves", "FLOP/s")                                                                 \
    X(PROLOGUE, "prologue and epilogue of a tile, as k", "")                                                           \
    X(LATENCY, "of a kernel", "s")                                                                                     \
    X(QUANTISATION, "odds that a last wave counts whole", "")                                                          \
    X(MEMORY, "share of HBM's rate", "")                                                                               \
    X(SMALL_TILE, "rate in tiles of 128 x 128 / of 128 x 256", "")
#define DTP_MEASURED_ATTENTION_PARAMETERS(X)                                                                           \
    X(RATE, "rate of long sequences, head 128", "FLOP/s")                                                              \
    X(HALF, "sequence of half that rate", "tokens")                                                                    \
    X(HEAD, "rate in heads of 64 / of 128", "")                                                                        \
    X(LATENCY, "of a kernel", "s")
double dtp_measured_matmul_log_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype,
                                 const struct dtp_measured_shape *shape, const double *parameters);
double dtp_measured_attention_log_s(bool backward, const struct dtp_measured_shape *shape, const double *parameters);

#endif
