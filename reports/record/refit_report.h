/* What runs correct of a machine file, and whether that helps on runs it was not fitted to. */
#ifndef DTP_REFIT_REPORT_H
#define DTP_REFIT_REPORT_H

#include "page/page.h"
#include "runs/refit.h"
#include "record/validation.h"

#include <jansson.h>

struct dtp_refit_result {
    const struct dtp_validation *run;
    double left_out_s; /* its step predicted by what the other runs correct */
    double all_s;      /* by what all runs correct, it among them */
};
struct dtp_refit_report {
    const char *machine; /* file; borrowed */
    char *written;       /* file */
    struct dtp_refit_factors factors;
    struct dtp_refit_result *results;
    size_t count;
};

void dtp_refit_text(const struct dtp_refit_report *report, const struct dtp_page *page);
/* NULL: no memory. */
json_t *dtp_refit_json(const struct dtp_refit_report *report);

#endif
