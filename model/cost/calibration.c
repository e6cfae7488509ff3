#include "cost/calibration.h"

const struct dtp_calibration dtp_calibration = {
#define DTP_CALIBRATION_VALUE(name, value, unit, words) .name = (value),
    DTP_CALIBRATION_TABLE(DTP_CALIBRATION_VALUE)
#undef DTP_CALIBRATION_VALUE
};

const struct dtp_calibration_row dtp_calibration_rows[] = {
#define DTP_CALIBRATION_ROW(name, value, unit, words) {#name, value, unit, words},
    DTP_CALIBRATION_TABLE(DTP_CALIBRATION_ROW)
#undef DTP_CALIBRATION_ROW
};
const size_t dtp_calibration_row_count = sizeof dtp_calibration_rows / sizeof dtp_calibration_rows[0];
