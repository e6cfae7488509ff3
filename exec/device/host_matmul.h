/* The host device's matmul: OpenBLAS on fp32, with everything the contract of dtp_matmul_args asks for around it.
 *
 * bf16 operands are widened to fp32 first, so products and sums are those of fp32 and only the result is rounded, as on
 * a GPU. A build without OpenBLAS uses the reference's loops; the device's name says which. */
#ifndef DTP_HOST_MATMUL_H
#define DTP_HOST_MATMUL_H

#include "kernels/kernels.h"
#include "base/status.h"

/* Zero-initialise; grown by dtp_host_matmul_prepare, so that nothing is allocated while a step runs. */
struct dtp_host_matmul {
    float *scratch; /* a, then b, then the result, widened */
    uint64_t scratch_elements;
};

/* Grows the scratch memory to what this shape takes. DTP_BAD_INPUT: sides beyond what the BLAS counts. Caller releases.
 */
enum dtp_status dtp_host_matmul_prepare(struct dtp_host_matmul *state, const struct dtp_matmul_args *arguments,
                                        struct dtp_faults *faults);
void dtp_host_matmul_release(struct dtp_host_matmul *state);
/* As the kernel table's matmul. Returns 0, or DTP_HOST_UNPREPARED where the shape was never prepared. */
#define DTP_HOST_UNPREPARED 100
#define DTP_HOST_LANE_FAILED 101 /* device_host.c */
int dtp_host_matmul(struct dtp_host_matmul *state, const struct dtp_matmul_args *arguments);

/* Threads that OpenBLAS uses; 0 keeps its default. Returns how many it uses, 1 in a build without it. */
uint32_t dtp_host_matmul_threads(uint32_t threads);
const char *dtp_host_matmul_library(void);

#endif
