/* The least seconds that what a row is of can take on any machine of its kind: what no measurement may be below.
 *
 * By the catalogue's peaks, with room above them: clocks that boost, caches, switches that add up on the way. It bounds
 * what is recorded, and predicts nothing. */
#ifndef DTP_MEASURED_LEAST_H
#define DTP_MEASURED_LEAST_H

#include "machine/machine.h"
#include "machine/measured_row.h"

/* `gpu`: the catalogue's row that is measured; DTP_GPU_HOST: cores of this machine, whose peaks nobody knows, so that
 * no core is as fast. 0 of what is no time (about, contention). */
double dtp_measured_least_s(const struct dtp_measured_row *row, const struct dtp_gpu *gpu);

#endif
