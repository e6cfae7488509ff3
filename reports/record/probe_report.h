/* What a probe measured beside what the catalogue's row says of the same shapes. */
#ifndef DTP_PROBE_REPORT_H
#define DTP_PROBE_REPORT_H

#include "machine/measured_row.h"
#include "page/page.h"

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
