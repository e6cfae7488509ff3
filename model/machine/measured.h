/* What was measured of a machine, and what it says of sizes and shapes that were not.
 *
 * `dtplan probe` writes a machine file (measured_row.h says of what rows); `--machine FILE.csv` reads it. The row of
 * the catalogue that it names in gpu_key stays what it is; the cost functions (op_cost.h, collective_cost.h,
 * sim/op_time.h) take seconds from here where there are some:
 *
 *   matmul, attention       of a shape measured: that time; else a fitted formula, corrected by near shapes
 *                           (measured_shape.h)
 *   kernel, collective,     a curve over bytes (measured_curve.h) for each kind and, where they matter, ranks
 *   copy, host_adam
 *   step, contention        the figures themselves
 *
 * Nothing here changes after it was made: threads share it. */
#ifndef DTP_MEASURED_H
#define DTP_MEASURED_H

#include "machine/machine.h"
#include "machine/measured_curve.h"
#include "machine/measured_row.h"
#include "machine/measured_shape.h"
#include "base/table.h"

struct dtp_measured; /* opaque */

/* Rows of a machine file with the line each stands on. Caller frees with dtp_measured_rows_release. */
struct dtp_measured_rows {
    struct dtp_measured_row *row;
    size_t *line;
    size_t count;
};
/* Refused, each with its line and all at once: a word that is none of measured_row.h, a missing or superfluous cell,
 * what is no amount or none that a machine has, a shape twice, a file without gpu_key, without a time, or with fewer
 * rows than it says. */
enum dtp_status dtp_measured_rows_of(const struct dtp_table *table, struct dtp_measured_rows *out,
                                     struct dtp_faults *faults);
void dtp_measured_rows_release(struct dtp_measured_rows *rows);
/* Order by what a row is of: measurement, dtype, what, shape and, if so, bytes. */
int dtp_measured_row_compare(const struct dtp_measured_row *a, const struct dtp_measured_row *b, bool with_bytes);
/* The value of a row about, or NULL; borrowed. */
const char *dtp_measured_rows_about(const struct dtp_measured_rows *rows, const char *what);

/* Takes the rows over, also when it fails, and fits them for `gpu` (the catalogue's row of gpu_key; copied). Refused: a
 * matmul faster than the GPU's peak. Caller destroys. */
enum dtp_status dtp_measured_create(const char *name, struct dtp_measured_rows *rows, const struct dtp_gpu *gpu,
                                    struct dtp_measured **out, struct dtp_faults *faults);
void dtp_measured_destroy(struct dtp_measured *measured);

/* The name it was made by (the file's). */
const char *dtp_measured_name(const struct dtp_measured *measured);
const struct dtp_measured_rows *dtp_measured_all(const struct dtp_measured *measured);
const char *dtp_measured_about(const struct dtp_measured *measured, const char *what);
/* A whole number from a row about, 0 where there is none. */
uint32_t dtp_measured_count(const struct dtp_measured *measured, const char *what);

/* Seconds of what a row would stand for (its results are not read): measured, or by what was fitted. NAN where nothing
 * like it was measured. Of collectives only the very group: collective_cost.h knows how others compare. */
double dtp_measured_s(const struct dtp_measured *measured, const struct dtp_measured_row *question);
/* Whether a matmul's pass was measured itself, or is told by the others of its shape. */
bool dtp_measured_knows_pass(const struct dtp_measured *measured, enum dtp_measured_matmul pass, enum dtp_dtype dtype);
/* Whether its matmuls are of the sustained rate (DTP_MEASURED_SUSTAINED). */
bool dtp_measured_sustained(const struct dtp_measured *measured);
/* Whether its kernels are a framework's (about, runtime), not ours. */
bool dtp_measured_of_framework(const struct dtp_measured *measured);
/* Seconds of a matmul of a GPU; NAN as above. */
double dtp_measured_matmul_s(const struct dtp_measured *measured, enum dtp_measured_matmul pass, enum dtp_dtype dtype,
                             double m, double n, double k);
/* Bytes/s of all measured kernels of these kinds together, as the closed form counts their bytes; NAN: none. */
double dtp_measured_kernels_bytes_per_s(const struct dtp_measured *measured, bool (*is_one)(enum dtp_op_kind kind));
/* Bytes/s of all rows of a framework's kernels with that word; NAN: none. */
double dtp_measured_pass_bytes_per_s(const struct dtp_measured *measured, enum dtp_measured_pass pass);
/* Of a row of step: "gap_live", "gap_graph", "launch", "launch_pytorch", DTP_MEASURED_PACE; NAN: not measured. */
double dtp_measured_step_s(const struct dtp_measured *measured, const char *what);

/* The curve of a collective whose group is most like the one asked for: the same kind, then carried otherwise
 * (all-gather and reduce-scatter stand for each other, and for all-to-all), inside nodes or between them, then ranks,
 * then stride. NULL: none measured. */
struct dtp_measured_group {
    uint32_t ranks, stride, nodes;
};
const struct dtp_measured_curve *dtp_measured_collective(const struct dtp_measured *measured,
                                                         enum dtp_collective collective, enum dtp_carried carried,
                                                         const struct dtp_measured_group *group,
                                                         enum dtp_collective *as, struct dtp_measured_group *of);
/* Whether there is a row of that collective, whatever its shape. */
bool dtp_measured_has_collective(const struct dtp_measured *measured, const char *what);

/* What a collective and kernels beside it do to each other. */
struct dtp_measured_contention {
    double kernels;    /* seconds that kernels take longer per second of it; NAN: not measured */
    double collective; /* its time beside them / alone; 1 where not measured */
};
struct dtp_measured_contention dtp_measured_contention(const struct dtp_measured *measured,
                                                       enum dtp_collective collective,
                                                       const struct dtp_measured_group *group);
/* A copy's time with the other direction at work / without; 1 where not measured. */
double dtp_measured_duplex(const struct dtp_measured *measured, uint32_t ranks);

/* How good the fits are, for printing. */
struct dtp_measured_parameter {
    const char *words, *unit;
    double value, low, high; /* 95 % */
};
struct dtp_measured_quality {
    char what[64];
    size_t rows;
    int parameter_count;
    struct dtp_measured_parameter parameter[DTP_LOG_FIT_PARAMETERS];
    double r2, median_residual, largest_residual; /* of the fit, |exp(residual) - 1| */
    double left_out_residual; /* median, of what is said of a row that was left out of what corrects the fit; NAN: one
                                 row */
};
size_t dtp_measured_quality_count(const struct dtp_measured *measured);
/* False: no memory. */
bool dtp_measured_quality(const struct dtp_measured *measured, size_t index, struct dtp_measured_quality *out);
/* Seconds of row `index` by the fit alone; NAN for rows that are no times of a fit. */
double dtp_measured_fit_s(const struct dtp_measured *measured, size_t index);

#endif
