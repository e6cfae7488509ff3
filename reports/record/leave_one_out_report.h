/* The leave-one-source-out table written for programs (JSON) and for people (text). */
#ifndef DTP_LEAVE_ONE_OUT_REPORT_H
#define DTP_LEAVE_ONE_OUT_REPORT_H

#include "runs/leave_one_out.h"

#include <stdio.h>

/* One object of schema dtplan.leave_one_out/1. */
enum dtp_status dtp_leave_one_out_write_json(FILE *file, const struct dtp_leave_one_out *result,
                                             struct dtp_faults *faults);
void dtp_leave_one_out_write_text(FILE *file, const struct dtp_leave_one_out *result);

#endif
