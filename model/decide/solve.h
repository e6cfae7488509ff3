/* Solvers: the largest micro batch or sequence, or the smallest number of GPUs, with which a job fits.
 *
 * "Fits" is the verdict fits: with the margin. Where no value leaves a margin (layers so large that the allocator's
 * cache fills any GPU), a tight one is the answer and is marked: such jobs run. Memory grows with batch and sequence
 * and shrinks with GPUs, so doubling brackets the answer and bisection finds it; because allocators round and rules
 * switch, monotony is an assumption, and the neighbours of every answer are verified. */
#ifndef DTP_SOLVE_H
#define DTP_SOLVE_H

#include "job/variant.h"

enum dtp_solve_goal { DTP_SOLVE_MAX_MICRO_BATCH, DTP_SOLVE_MAX_SEQUENCE, DTP_SOLVE_MIN_GPUS };

/* Sequences are searched in multiples of this many tokens: kernels want it, and nobody trains at 8191. */
#define DTP_SOLVE_SEQUENCE_STEP 128
/* Most GPUs considered: the largest training clusters known. */
#define DTP_SOLVE_MAX_GPUS 131072u

struct dtp_solution {
    enum dtp_solve_goal goal;
    bool found;
    bool tight;                 /* the answer is tight: no value fits with the margin */
    uint64_t value;             /* the answer; when not found, the smallest value tried (GPUs: the job's own) */
    uint64_t tight_value;       /* the answer if tight counted as fitting; 0 = none, or the same as value */
    struct dtp_variant variant; /* the job at `value`; valid when `variant_valid` */
    bool variant_valid;
    uint64_t next_value; /* the neighbour that no longer fits; 0 = none was tried */
    enum dtp_verdict next_verdict;
    uint64_t next_device_bytes; /* what it would take; 0 when it is refused, and then next_reason says why */
    char next_reason[DTP_FAULT_TEXT_BYTES];
    unsigned predictions_count; /* how many variants were predicted */
};

/* DTP_OK when found, DTP_NO when nothing fits. */
enum dtp_status dtp_solve(const struct dtp_job *job, enum dtp_solve_goal goal, struct dtp_solution *out);

#endif
