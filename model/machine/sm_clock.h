/* Rated clock of a GPU's SMs, which the catalogue does not have but its datasheet's fp32 rate says. */
#ifndef DTP_SM_CLOCK_H
#define DTP_SM_CLOCK_H

#include "machine/machine.h"

/* Hz: the fp32 rate is two FLOPs of each lane a cycle. */
double dtp_gpu_sm_clock_hz(const struct dtp_gpu *gpu);

#endif
