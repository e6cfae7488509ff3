/* The table of constants (model/cost/constants.def and the catalogue's matmul_fraction) with what each is worth. */
#ifndef DTP_CONSTANTS_REPORT_H
#define DTP_CONSTANTS_REPORT_H

#include "page/page.h"
#include "record/catalog_report.h"
#include "runs/constant_effects.h"

/* Who predicted the runs that were counted, and of which tables they are; borrowed. */
struct dtp_constants_counted {
    const char *fidelity;
    const char *const *tables;
    size_t table_count;
};

/* One object of schema dtplan.catalog_constants/1, a CSV table, or a page. */
enum dtp_status dtp_report_constants(const struct dtp_catalog *catalog, const struct dtp_constant_effects *effects,
                                     const struct dtp_constants_counted *counted, enum dtp_catalog_form form,
                                     const struct dtp_page *page, struct dtp_faults *faults);

#endif
