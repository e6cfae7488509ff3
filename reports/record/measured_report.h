/* What a measured machine file says: how good its fits are, and every row beside its fit. */
#ifndef DTP_MEASURED_REPORT_H
#define DTP_MEASURED_REPORT_H

#include "record/catalog_report.h"

/* Of each of `names`, machine files that the catalogue has read. Text: what was measured, a row a fit, its parameters
 * with 95 % intervals. JSON: the same. CSV: a row each measured time, with the fit's (`dtplan chart
 * machine-residuals`). */
enum dtp_status dtp_report_measured(const struct dtp_catalog *catalog, enum dtp_catalog_form form,
                                    const char *const *names, size_t count, const struct dtp_page *page,
                                    struct dtp_faults *faults);

#endif
