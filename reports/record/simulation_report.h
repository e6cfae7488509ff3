/* What a simulated step was: for people (text), programs (JSON, schema dtplan.simulation/1), trace viewers
 * (Perfetto, chrome://tracing) and spreadsheets (CSV). */
#ifndef DTP_SIMULATION_REPORT_H
#define DTP_SIMULATION_REPORT_H

#include "page/page.h"
#include "sim/pipeline_stages.h"

/* `stages` of the same simulation. */
void dtp_simulation_text(const struct dtp_simulated *simulated, const struct dtp_pipeline_stages *stages,
                         const struct dtp_page *page);
enum dtp_status dtp_simulation_json(const struct dtp_simulated *simulated, const struct dtp_pipeline_stages *stages,
                                    FILE *file, struct dtp_faults *faults);

/* The trace event format, of a pipeline a process a rank with arrows from sends to receives: a row a stream, an event
 * an operation, an arrow a dependency, a counter of device memory. */
enum dtp_status dtp_simulation_write_trace(const struct dtp_simulated *simulated, FILE *file,
                                           struct dtp_faults *faults);
/* A row an operation, of a pipeline rank by rank with the rank's name. */
void dtp_simulation_write_timeline(const struct dtp_simulated *simulated, FILE *file);
/* A row a pass of a pipeline's ranks, in milliseconds, as dtp_schedule_report_passes writes them. */
void dtp_simulation_write_passes(const struct dtp_pipeline_stages *stages, FILE *file);
/* A row a rank of a pipeline, which there is: the values of its object in the JSON. */
enum dtp_status dtp_simulation_write_ranks(const struct dtp_pipeline_stages *stages, FILE *file,
                                           struct dtp_faults *faults);
/* A row a change of the bytes on the device, a column an owner. */
enum dtp_status dtp_simulation_write_memory(const struct dtp_simulated *simulated, FILE *file,
                                            struct dtp_faults *faults);

/* `explain --program`: operations in the order of issue, layer by layer, with what each would take alone; layers and
 * micro-steps that repeat the one before are one line. */
enum dtp_status dtp_program_listing(const struct dtp_simulated *simulated, const struct dtp_page *page,
                                    struct dtp_faults *faults);
/* The same, every operation: schema dtplan.program/1. */
enum dtp_status dtp_program_json(const struct dtp_simulated *simulated, FILE *file, struct dtp_faults *faults);

enum { DTP_RANK_SECONDS = 8 };
/* What a table of ranks says of one's time: compute, optimizer, exposed transfers, exposed collectives of tp and cp,
 * other exposed collectives, and what it idles as it warms up, in between and as it drains. */
void dtp_simulation_rank_seconds(const struct dtp_pipeline_rank *rank, double out[DTP_RANK_SECONDS]);

/* "down, layer 3", "all_gather, layer 4", "head": at most `bytes` bytes. */
void dtp_op_words(const struct dtp_op *op, char *out, size_t bytes);
/* "matmul", "memory", "collective", ... */
const char *dtp_op_class_text(enum dtp_op_class class);

#endif
