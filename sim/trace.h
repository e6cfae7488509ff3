/* A simulated step as files: a trace that Perfetto and chrome://tracing open, spans as CSV, memory over time as CSV.
 *
 * Written operation by operation; only memory over time needs a list, of its changes. DTP_ENVIRONMENT where writing
 * failed (or no memory for that list). */
#ifndef DTP_TRACE_H
#define DTP_TRACE_H

#include "sim/simulate.h"

#include <stdio.h>

/* Trace event JSON: one row per stream, one slice per operation that takes time, an arrow for every dependency between
 * streams that an operation waited for. Microseconds, as the format wants. */
enum dtp_status dtp_trace_write_json(const struct dtp_program *program, const struct dtp_timeline *timeline,
                                     FILE *file);

/* op,kind,name,stream,layer,micro_step,issue_s,start_s,end_s,critical */
enum dtp_status dtp_trace_write_timeline_csv(const struct dtp_program *program, const struct dtp_timeline *timeline,
                                             FILE *file);

/* The same of a set: a process a role, with arrows from sends to receives. `timelines` has one for each role. */
enum dtp_status dtp_trace_write_set_json(const struct dtp_program_set *set, const struct dtp_timeline *timelines,
                                         FILE *file, struct dtp_faults *faults);

/* time_s and one column of bytes per owner: device buffers in use, a row wherever that changes. A buffer counts from
 * the start of the operation that allocates it to the end of the one that frees it, so this is the device's view; what
 * the allocator holds while the host runs ahead is dtp_allocator_replay's. */
enum dtp_status dtp_trace_write_memory_csv(const struct dtp_program *program, const struct dtp_timeline *timeline,
                                           FILE *file);

#endif
