/* The catalogues and the table of constants: for people, as JSON, as CSV. */
#ifndef DTP_CATALOG_REPORT_H
#define DTP_CATALOG_REPORT_H

#include "machine/catalog.h"
#include "page/page.h"
#include "runs/constant_effects.h"

enum dtp_catalog_table { DTP_CATALOG_GPUS, DTP_CATALOG_MACHINES, DTP_CATALOG_MODELS };
enum dtp_catalog_form { DTP_CATALOG_TEXT, DTP_CATALOG_JSON, DTP_CATALOG_CSV };

/* All entries of one table. */
enum dtp_status dtp_report_catalog(const struct dtp_catalog *catalog, enum dtp_catalog_table table,
                                   enum dtp_catalog_form form, const struct dtp_page *page, struct dtp_faults *faults);
/* Every figure of the named entries with kind and source. Unknown names are faults with the nearest known ones. */
enum dtp_status dtp_report_catalog_entries(const struct dtp_catalog *catalog, enum dtp_catalog_table table,
                                           enum dtp_catalog_form form, const char *const *names, size_t count,
                                           const struct dtp_page *page, struct dtp_faults *faults);

/* The table of constants (model/cost/constants.def and the catalogue's matmul_fraction) with what each is worth: who
 * predicted the runs that were counted, and of which tables they are. Borrowed. */
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
