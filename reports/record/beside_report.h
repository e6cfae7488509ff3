/* A recorded run beside its plan, for people and programs. Schema of the JSON: dtplan.beside/1. */
#ifndef DTP_BESIDE_REPORT_H
#define DTP_BESIDE_REPORT_H

#include "page/page.h"
#include "sim/beside/beside.h"

void dtp_beside_text(const struct dtp_compared *beside, const struct dtp_page *page);
enum dtp_status dtp_beside_json(const struct dtp_compared *beside, FILE *file, struct dtp_faults *faults);

/* Lines that both have; predicted 0 where no plan was given. */
#define DTP_BESIDE_MOST_LINES 30
struct dtp_beside_line {
    const char *words;
    double predicted, measured; /* seconds or bytes */
};
size_t dtp_beside_time_lines(const struct dtp_compared *beside, const struct dtp_observed_time *time,
                             struct dtp_beside_line out[DTP_BESIDE_MOST_LINES]);
size_t dtp_beside_memory_lines(const struct dtp_compared *beside, const struct dtp_observed_memory *memory,
                               struct dtp_beside_line out[DTP_BESIDE_MOST_LINES]);

#endif
