/* One simulated step as inline SVG: which stream does what when, and what device memory holds meanwhile. */
#ifndef DTP_SVG_STEP_H
#define DTP_SVG_STEP_H

#include "sim/simulated.h"

#include <stdio.h>

/* A lane a stream. A pixel shows what took most of its time. */
void dtp_svg_lanes(const struct dtp_simulated *simulated, FILE *file);
/* Tensors on the device by owner, stacked; of each pixel the instant with most. DTP_ENVIRONMENT: out of memory. */
enum dtp_status dtp_svg_memory(const struct dtp_simulated *simulated, FILE *file, struct dtp_faults *faults);

#endif
