/* The stages of a pipeline as they ran: what was predicted of them, with the spans that were measured. */
#ifndef DTP_MEASURED_STAGES_H
#define DTP_MEASURED_STAGES_H

#include "sim/simulated.h"

/* Seconds of each operation of a role on a clock that all roles share; NAN: it takes no time. */
struct dtp_measured_spans {
    const double *start_s, *end_s;
};

/* The simulated set with these spans, `spans` one a role, for whoever reads timelines: dtp_pipeline_stages_of, writers
 * of traces. A transfer begins where both its ends have come, as it does when it is simulated: until then a rank waits
 * for the other. *out borrows all but its timelines of `simulated`, which outlives it; release it by
 * dtp_simulated_measured_release alone. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_simulated_as_measured(const struct dtp_simulated *simulated, const struct dtp_measured_spans *spans,
                                          struct dtp_simulated *out, struct dtp_faults *faults);
void dtp_simulated_measured_release(struct dtp_simulated *measured);

#endif
