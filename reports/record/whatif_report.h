/* The table of single changes, for people (text), programs (JSON, schema dtplan.whatif/1) and spreadsheets (CSV). */
#ifndef DTP_WHATIF_REPORT_H
#define DTP_WHATIF_REPORT_H

#include "page/page.h"
#include "decide/whatif.h"

void dtp_whatif_text(const struct dtp_whatif *whatif, const struct dtp_page *page);
enum dtp_status dtp_whatif_json(const struct dtp_whatif *whatif, FILE *file, struct dtp_faults *faults);
/* A row a change, the plan itself first; refused changes have an empty prediction and the reason. */
void dtp_whatif_csv(const struct dtp_whatif *whatif, FILE *file);

#endif
