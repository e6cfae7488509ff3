/* Where ranks divide experts, what a run says of them. */
#ifndef DTP_RUN_EXPERTS_TEXT_H
#define DTP_RUN_EXPERTS_TEXT_H

#include "page/page.h"
#include "record/run_report.h"

/* `ranks` divide the experts; nothing where the run said nothing of them. */
void dtp_run_experts_text(const struct dtp_run_outcome *outcome, uint32_t ranks, const struct dtp_page *page);

#endif
