/* The training of a given number of tokens, as a part of a plan's report. */
#ifndef DTP_TRAINING_REPORT_H
#define DTP_TRAINING_REPORT_H

#include "page/page.h"
#include "record/report.h"

#include <jansson.h>

/* Nothing where no number of tokens was given. */
void dtp_training_text(const struct dtp_report *report, const struct dtp_page *page);
/* null where no number of tokens was given. Part of dtplan.plan/1 as cost.training. */
json_t *dtp_training_json(const struct dtp_training_cost *cost, const struct dtp_money *money);

#endif
