/* Rows of a machine file that a command measured or fitted. */
#ifndef DTP_MACHINE_ROWS_H
#define DTP_MACHINE_ROWS_H

#include "job/scenario.h"
#include "machine/measured.h"

/* Writes them, behind the line `remark` where there is one. */
enum dtp_status dtp_machine_rows_write(const char *path, const char *remark, const struct dtp_measured_row *rows,
                                       size_t count, struct dtp_faults *faults);
/* Seconds of the job's step, simulated, on the machine that the rows describe; takes them over. */
enum dtp_status dtp_machine_rows_step(const struct dtp_job *job, const char *name, struct dtp_measured_rows *rows,
                                      double *out_s, struct dtp_faults *faults);

#endif
