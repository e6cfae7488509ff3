/* The one table of empirical constants: everything that was fitted to or read off a measurement instead of derived.
 *
 * Each row says what it is, its unit and what it was fitted on. Rates of a particular GPU do not belong here but in
 * scenarios/gpus.csv. `dtplan explain` prints this table. */
#ifndef DTP_CALIBRATION_H
#define DTP_CALIBRATION_H

#include <stddef.h>

/* X(name, value, unit, what it is; what it was fitted on) */
#define DTP_CALIBRATION_TABLE(X)                                                                                     \
    /* -- matmul, attention, memory-bound operations ---------------------------------------------------------- */ \
    X(memory_bandwidth_fraction, 0.80, "1",                                                                          \
      "achieved / datasheet HBM bandwidth of long elementwise kernels; h200_copies.csv reaches 0.89 on pure copies") \
    /* -- collectives ------------------------------------------------------------------------------------------ */ \
    X(ring_link_fraction, 0.79, "1",                                                                                 \
      "bus bandwidth of a long ring / one-direction link rate, many ranks; A100 x8 235/300, B200 x8 682/900")        \
    X(ring_few_ranks_loss, 0.33, "1",                                                                                \
      "that fraction falls by (1 - this/n) for n ranks; vTrain's A100 all-reduce tables, n = 2..8")                  \
    X(network_fraction, 0.93, "1",                                                                                   \
      "bus bandwidth of a long multi-node ring / node network rate; H100 64 GPUs 386/400, B200 32 GPUs 382/400")

struct dtp_calibration {
#define DTP_CALIBRATION_FIELD(name, value, unit, words) double name;
    DTP_CALIBRATION_TABLE(DTP_CALIBRATION_FIELD)
#undef DTP_CALIBRATION_FIELD
};

extern const struct dtp_calibration dtp_calibration;

/* The same as a list, for printing. */
struct dtp_calibration_row {
    const char *name;
    double value;
    const char *unit, *words;
};
extern const struct dtp_calibration_row dtp_calibration_rows[];
extern const size_t dtp_calibration_row_count;

#endif
