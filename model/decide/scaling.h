/* Scaling efficiency: tokens/s per GPU of the job over tokens/s per GPU of a reference, the same job on one GPU or,
 * where one GPU cannot hold it, on the smallest count that can. Micro batch and accumulation stay in weak scaling: the
 * global batch grows with the GPUs. In strong scaling the global batch stays: fewer GPUs accumulate more micro-steps.
 */
#ifndef DTP_SCALING_H
#define DTP_SCALING_H

#include "job/variant.h"

struct dtp_scaling {
    uint32_t reference_gpus;
    bool reference_fits; /* false: no count up to the job's fits, so one GPU of unlimited memory is the reference */
    double reference_tokens_per_s_per_gpu;
    double efficiency;              /* fraction of 1; weak scaling */
    uint32_t strong_reference_gpus; /* the job's own count where no smaller one can take its global batch */
    double strong_efficiency;
};

void dtp_scaling_of(const struct dtp_job *job, const struct dtp_prediction *prediction, struct dtp_scaling *out);

#endif
