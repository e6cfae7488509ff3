/* Matmuls by cuBLASLt: the fastest of its candidates for each shape, found by timing on the device before step 0.
 *
 * cuBLASLt's heuristics name algorithms in the order in which they guess their speed; the first is a few percent slower
 * than the best on many shapes, and its guess knows nothing of beta or of the GPU's power. So all candidates are run on
 * random numbers, the best ones again for as long as the GPU's clock takes to follow their power, and the choice is
 * pinned: in memory for this process, and in the file of exec/device/matmul_choices.h for the next. A pinned algorithm
 * adds up in one order, so a step repeats bit for bit.
 *
 * Refused with DTP_BAD_INPUT: what cuBLASLt has no algorithm for, in words that name the shape. */
#ifndef DTP_MATMUL_H
#define DTP_MATMUL_H

#include "kernels/kernels.h"
#include "device/matmul_choices.h"

struct dtp_matmul;

/* On the current CUDA device, named `gpu`. `choices_path` (may be NULL) is borrowed. DTP_ENVIRONMENT with the library's
 * words. Damaged lines of the file are not used; dtp_matmul_damaged_lines tells how many there were. */
enum dtp_status dtp_matmul_create(const char *gpu, const char *choices_path, struct dtp_matmul **out,
                                  struct dtp_faults *faults);
/* How shapes that the file does not have are searched from now on: as long as it takes, at first; for a tenth of a
 * second each; not at all, then the first algorithm that runs is taken. Only what was searched for thoroughly is added
 * to the file. */
enum dtp_matmul_effort { DTP_MATMUL_THOROUGHLY, DTP_MATMUL_BRIEFLY, DTP_MATMUL_UNTIMED };
void dtp_matmul_search_as(struct dtp_matmul *matmul, enum dtp_matmul_effort effort);
/* From now on the GPU is another process's too: algorithms that do not bear that are not taken, those of the file
 * neither; it keeps them for who has the GPU alone. */
void dtp_matmul_on_shared_gpu(struct dtp_matmul *matmul);
void dtp_matmul_destroy(struct dtp_matmul *matmul);
uint32_t dtp_matmul_damaged_lines(const struct dtp_matmul *matmul);

/* Once for each shape, outside of capture; times candidates on `stream` (0.1 to 4 s) unless the shape's algorithm is
 * known. Overwrites all the memory that the arguments point to. DTP_BAD_INPUT also beyond 1024 shapes. */
enum dtp_status dtp_matmul_prepare(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, void *stream,
                                   struct dtp_faults *faults);

/* A prepared shape. 0, or: a cublasStatus_t; DTP_MATMUL_UNPREPARED; DTP_MATMUL_KERNEL + a code of our kernels. */
#define DTP_MATMUL_UNPREPARED 99
#define DTP_MATMUL_KERNEL 1000
int dtp_matmul_run(struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments, void *stream);
const char *dtp_matmul_error_text(int code);

/* For benchmarks: what was found when a shape was timed in this process. */
struct dtp_matmul_timing {
    uint32_t candidates;
    double first_s, chosen_s; /* of the heuristics' first candidate (under load, if it is near the best); of the chosen
                                 one. 0 where read from the file */
};
bool dtp_matmul_timing(const struct dtp_matmul *matmul, const struct dtp_matmul_args *arguments,
                       struct dtp_matmul_timing *out);

#endif
