/* The least seconds that what a row is of can take on any machine of its kind: what no measurement may be below.
 *
 * By the catalogue's peaks, with room above them: clocks that boost, caches, switches that add up on the way. It bounds
 * what is recorded, and predicts nothing. */
#ifndef DTP_MEASURED_LEAST_H
#define DTP_MEASURED_LEAST_H

#include "machine/machine.h"
#include "machine/measured_row.h"

#include <stddef.h>

/* `gpu`: the catalogue's row that is measured; DTP_GPU_HOST: cores of this machine, whose peaks nobody knows, so that
 * no core is as fast. 0 of what is no time (about, contention). */
double dtp_measured_least_s(const struct dtp_measured_row *row, const struct dtp_gpu *gpu);
/* Of a row below that: "kernel norm of 4096 bytes in 0.5 ns, the least is 5 ns". */
void dtp_measured_too_fast(const struct dtp_measured_row *row, const struct dtp_gpu *gpu, char *out, size_t bytes);
/* How a warning of such rows, or of times that became none, goes on; %s%s: ": first ", the first of them. */
#define DTP_MEASURED_LEFT_OUT "left out, for no such machine is as fast%s%s; end what else runs here and probe again"

#endif
