/* What the operations of a program take by what was measured of the machine (measured.h). */
#ifndef DTP_MEASURED_TIME_H
#define DTP_MEASURED_TIME_H

#include "cost/cluster_cost.h"
#include "program/program.h"

/* Seconds of each operation, gaps between its kernels not counted; NAN where nothing measured counts for it:
 * collectives, whose cost knows it by itself, and what the runtime does with other kernels. NULL: no memory. Caller
 * frees. */
double *dtp_measured_op_seconds(const struct dtp_program *program, const struct dtp_cluster *cluster);

#endif
