/* Inside of struct dtp_measured: its rows, and the fits of those that belong together. */
#ifndef DTP_MEASURED_PARTS_H
#define DTP_MEASURED_PARTS_H

#include "machine/measured.h"

/* Rows of one fit: a shape's (matmul, attention) or a curve's. */
struct dtp_measured_part {
    const struct dtp_measured_row **rows; /* in `sorted` */
    size_t count;
    struct dtp_measured_shape_fit shape;
    struct dtp_measured_curve curve;
};

struct dtp_measured {
    char *name;
    struct dtp_gpu gpu;
    struct dtp_measured_rows rows;
    const struct dtp_measured_row **sorted; /* by alignment and dtp_measured_row_compare */
    struct dtp_measured_part *part;
    size_t part_count;
    /* Sums over rows, which the closed form asks for in every prediction. */
    double kernel_bytes[DTP_OP_KIND_COUNT], kernel_s[DTP_OP_KIND_COUNT];
    double pass_bytes[DTP_MEASURED_PASS_COUNT], pass_s[DTP_MEASURED_PASS_COUNT];
    bool sustained, of_framework;
    bool knows[DTP_DTYPE_COUNT][DTP_MEASURED_MATMUL_COUNT];
};

#endif
