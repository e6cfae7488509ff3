/* The critical path in few rows: which phase, which layers, and whether kernels, collectives, copies or the host held
 * it.
 *
 * Micro-steps are added up: sixteen of them are one forward sixteen times. */
#ifndef DTP_CRITICAL_PATH_H
#define DTP_CRITICAL_PATH_H

#include "sim/simulate.h"

struct dtp_path_row {
    const char *phase;                /* name of the mark: "forward", "loss", ...; "start" before the first */
    bool of_layers;                   /* else: embedding, head and what belongs to no layer */
    uint16_t first_layer, last_layer; /* in the order of the path */
    uint32_t micro_steps;             /* that have operations of this row on the path */
    size_t op_count;                  /* that hold the path up */
    double seconds, kernels_s, collectives_s, copies_s, host_s; /* the last four add up to the first */
};

#define DTP_PATH_MAX_ROWS 32

/* Rows in the order in which the path comes to them; their seconds add up to the step. Further rows than
 * DTP_PATH_MAX_ROWS are added to the last. Returns their number. */
size_t dtp_critical_path(const struct dtp_program *program, const struct dtp_timeline *timeline,
                         struct dtp_path_row rows[DTP_PATH_MAX_ROWS]);

#endif
