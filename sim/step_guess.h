/* About how long a set's step takes: the longest path through its operations, each as long as alone.
 *
 * A tenth of the event simulation, which knows how operations share the machine besides. It says how much of a step a
 * rank of a pipeline idles, and with that how fast its matmuls may run, before anything is simulated. */
#ifndef DTP_STEP_GUESS_H
#define DTP_STEP_GUESS_H

#include "sim/engine.h"

/* Arguments as dtp_engine_run's; of the jobs' arrays `span` is scratch. False: no memory. */
bool dtp_step_guess(const struct dtp_engine_job *job, const struct dtp_engine_graph *graph, uint32_t *const *pending,
                    uint32_t count, double *step_s);

#endif
