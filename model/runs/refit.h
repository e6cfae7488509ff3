/* A machine file corrected by whole runs: what operations took inside their steps against what the file says of them.
 *
 * Few things are learnt, each shrunk towards none by how well it is known, in logarithms of seconds:
 *   - a factor of each class (matmul, attention, kernels, collectives, copies, host AdamW), and one of each kind in it
 *     (a pass of matmuls, RMSNorm, an all-gather of four ranks): each the mean of its shapes, weighted by the time that
 *     runs spent in them and drawn to 0 by a Gaussian prior; ridge regression, which one column at a time is a division
 *   - what is left of each shape of a matmul or of attention, which becomes a row of its own; curves over bytes are
 *     only scaled, for rows of sizes that nearly agree would bend them
 *   - contention of each collective with the kernels beside it, the file's figure counting as much as one run
 *   - the gap after each kernel: what steps take beyond what is simulated with the times of their operations, pooled
 *     with the file's figure likewise
 *
 * Times that kernels took beside a collective are contention's, the others the factors'. */
#ifndef DTP_REFIT_H
#define DTP_REFIT_H

#include "machine/measured.h"
#include "job/scenario.h"

/* Borrowed. Seconds per operation, NAN: not measured; spans on one clock. */
struct dtp_refit_run {
    const struct dtp_job *job;
    const struct dtp_program *program;
    const double *alone_s, *start_s, *end_s;
    double rest_s; /* of the step, beyond what is simulated with the times of its operations in it; NAN: not known */
};

struct dtp_refit; /* what runs said; opaque */
/* Caller destroys. NULL: no memory. */
struct dtp_refit *dtp_refit_create(void);
void dtp_refit_destroy(struct dtp_refit *refit);
/* The runs are numbered from 0 in the order they are added. */
enum dtp_status dtp_refit_add(struct dtp_refit *refit, const struct dtp_refit_run *run, struct dtp_faults *faults);

struct dtp_refit_factor {
    char words[96]; /* "matmul", "matmul forward bf16", "collective all_gather 4 ranks" */
    size_t shapes;  /* that it is from */
    double factor;  /* on what the file says; of a kind that of its class is counted in */
    bool is_class;
};
#define DTP_REFIT_MAX_FACTORS 96
struct dtp_refit_factors {
    struct dtp_refit_factor factor[DTP_REFIT_MAX_FACTORS];
    size_t count;
};

#define DTP_REFIT_ALL SIZE_MAX
/* The rows of `base` as all runs but `without` correct them. Caller releases *out (or dtp_measured_create takes it
 * over). `factors` may be NULL. DTP_BAD_INPUT: no run is left that says anything. */
enum dtp_status dtp_refit_make(const struct dtp_refit *refit, const struct dtp_measured *base, size_t without,
                               struct dtp_measured_rows *out, struct dtp_refit_factors *factors,
                               struct dtp_faults *faults);

#endif
