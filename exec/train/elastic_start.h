/* Elastic runs before any rank trains: which numbers of ranks a job can be planned for, and what starts them.
 *
 * The sequences of a step stay as many whatever the number of ranks, so that learning rate and samples of each step
 * stay what they were: with fewer ranks each takes more micro-steps. A number of ranks that does not divide them, or
 * that the plan refuses for another reason, is left out. */
#ifndef DTP_ELASTIC_START_H
#define DTP_ELASTIC_START_H

#include "job/scenario.h"
#include "device/settings.h"
#include "ranks/ranks.h"

#include <stdio.h>

/* Turns *job, which `scenario` was resolved to, into that of `ranks` ranks of the same batch; the scenario is changed
 * with it. DTP_BAD_INPUT: a pipeline, or no such plan. */
enum dtp_status dtp_elastic_job(struct dtp_scenario *scenario, const struct dtp_catalog *catalog, uint32_t ranks,
                                struct dtp_job *job, struct dtp_faults *faults);

struct dtp_elastic_start {
    char **argv;
    const struct dtp_settings *settings;
    struct dtp_scenario *scenario; /* is changed */
    const struct dtp_catalog *catalog;
    const struct dtp_job *job; /* of the most ranks */
    FILE *events;              /* NULL: silent */
};
/* Starts the ranks on this machine, again and again where some are lost, and takes their snapshots away in the end.
 * DTP_BAD_INPUT: --elastic does not fit the job; which numbers of ranks are possible is said on standard error. */
enum dtp_status dtp_elastic_launch(const struct dtp_elastic_start *start, struct dtp_faults *faults);

/* Folder of the memory that this rank keeps snapshots in: below --snapshots or /dev/shm, by the run, which the launcher
 * names, and the rank's slot. False: too long a name. */
bool dtp_elastic_folder(const struct dtp_settings *settings, const struct dtp_ranks *ranks, char *out, size_t bytes);
/* Whether what is found there is of this very run: ranks were started before. */
bool dtp_elastic_restarted(const struct dtp_settings *settings, const struct dtp_ranks *ranks);

#endif
