/* What a measured machine file says: how good its fits are, and every row beside its fit; and what a probe that writes
 * one says of it. */
#ifndef DTP_MEASURED_REPORT_H
#define DTP_MEASURED_REPORT_H

#include "machine/measured_row.h"
#include "page/page.h"
#include "record/catalog_report.h"

/* Of each of `names`, machine files that the catalogue has read. Text: what was measured, a row a fit, its parameters
 * with 95 % intervals. JSON: the same. CSV: a row each measured time, with the fit's (`dtplan chart
 * machine-residuals`). */
enum dtp_status dtp_report_measured(const struct dtp_catalog *catalog, enum dtp_catalog_form form,
                                    const char *const *names, size_t count, const struct dtp_page *page,
                                    struct dtp_faults *faults);

/* What a probe measured beside what the catalogue's row says of the same shapes. */
struct dtp_probe_report {
    const struct dtp_measured_row *rows; /* borrowed */
    size_t count;
    const struct dtp_cluster *cluster; /* of the catalogue; borrowed */
    bool gpu;                          /* false: a host was measured, of which the catalogue says nothing */
    double seconds;                    /* that it took */
    const char *path;                  /* of the file */
};

/* Rates of the largest shape of each kind, as a table, and how to use the file. */
void dtp_probe_text(const struct dtp_probe_report *report, const struct dtp_page *page);

#endif
