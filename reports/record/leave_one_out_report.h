/* The leave-one-source-out table written for programs (JSON, CSV) and for people (text). */
#ifndef DTP_LEAVE_ONE_OUT_REPORT_H
#define DTP_LEAVE_ONE_OUT_REPORT_H

#include "page/page.h"
#include "runs/leave_one_out.h"

#include <stdio.h>

/* One object of schema dtplan.leave_one_out/2. */
enum dtp_status dtp_leave_one_out_write_json(FILE *file, const struct dtp_leave_one_out *result,
                                             struct dtp_faults *faults);
/* A row a source, and a last one with the means of the medians. */
void dtp_leave_one_out_write_csv(FILE *file, const struct dtp_leave_one_out *result);
void dtp_leave_one_out_write_text(const struct dtp_page *page, const struct dtp_leave_one_out *result);

#endif
