/* Training: one rank's run from the first step to the last.
 *
 * The step program that was simulated comes as text, or is lowered from the same job, is placed, bound to the device
 * and walked once per step. Between steps the host does little: it writes the next step's scalars and batches, reads
 * the last one's loss, and says what happened. Every event is one line of JSON, from rank 0 alone. */
#ifndef DTP_TRAIN_H
#define DTP_TRAIN_H

#include "ranks/ranks.h"
#include "job/scenario.h"
#include "program/program_set.h"
#include "device/settings.h"

#include <signal.h>
#include <stdio.h>

/* What a signal asked for: the step at hand is the last, of the run, or of these ranks, which others go on from. */
enum dtp_stop { DTP_STOP_NOT, DTP_STOP_ENDS, DTP_STOP_REGROUPS };

struct dtp_train_job {
    const struct dtp_job *job;         /* NULL: of a set that stands alone */
    const struct dtp_program_set *set; /* that the ranks run, each its role; NULL: the job's program */
    const struct dtp_settings *settings;
    struct dtp_ranks ranks;            /* world 1, or as many as the plan has GPUs */
    FILE *events;                      /* NULL: silent */
    const volatile sig_atomic_t *stop; /* enum dtp_stop, set by signals */
};

/* DTP_NO: the loss was not finite and settings say stop, or the device has too little memory (refused before anything
 * is allocated). DTP_ENVIRONMENT also where training went on to its end but a log or checkpoint could not be written.
 */
enum dtp_status dtp_train(const struct dtp_train_job *job, struct dtp_faults *faults);

#endif
