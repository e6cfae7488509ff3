/* A simulated step as a trace that Perfetto and chrome://tracing open. Written operation by operation. */
#ifndef DTP_TRACE_H
#define DTP_TRACE_H

#include "sim/simulate.h"

#include <stdio.h>

/* Trace event JSON: a process a role, in it one row per stream, one slice per operation that takes time, an arrow for
 * every dependency between streams that an operation waited for and from each send to its receive. Microseconds, as the
 * format wants. `timelines` has one for each role. DTP_ENVIRONMENT where writing failed, or no memory. */
enum dtp_status dtp_trace_write_set_json(const struct dtp_program_set *set, const struct dtp_timeline *timelines,
                                         FILE *file, struct dtp_faults *faults);

#endif
