/* The backtest written for programs (JSON, CSV) and for people (text). */
#ifndef DTP_BACKTEST_REPORT_H
#define DTP_BACKTEST_REPORT_H

#include "page/page.h"
#include "runs/backtest.h"
#include "runs/leave_one_out.h"

#include <stdio.h>

/* One object of schema dtplan.backtest/1; null where nothing was scored. */
enum dtp_status dtp_backtest_write_json(FILE *file, const struct dtp_backtest *backtest, struct dtp_faults *faults);
/* Tables: sources, memory, reasons of refusal, and the `worst` rows furthest off. */
void dtp_backtest_write_text(const struct dtp_backtest *backtest, size_t worst, const struct dtp_page *page);
/* One CSV line a row, below a header where wanted. */
void dtp_backtest_print_rows(FILE *file, const struct dtp_backtest *backtest, bool header);
/* One CSV line a row of the table, in its order. The file appears whole or not at all (written beside and renamed). */
enum dtp_status dtp_backtest_write_rows(const char *path, const struct dtp_backtest *backtest,
                                        struct dtp_faults *faults);

/* ---- without one source ------------------------------------------------------------------------------------------ */

/* The leave-one-source-out table, likewise: one object of schema dtplan.leave_one_out/2. */
enum dtp_status dtp_leave_one_out_write_json(FILE *file, const struct dtp_leave_one_out *result,
                                             struct dtp_faults *faults);
/* A row a source, and a last one with the means of the medians. */
void dtp_leave_one_out_write_csv(FILE *file, const struct dtp_leave_one_out *result);
void dtp_leave_one_out_write_text(const struct dtp_page *page, const struct dtp_leave_one_out *result);

#endif
