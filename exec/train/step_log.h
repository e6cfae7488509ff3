/* The log of a run: a CSV row per step, or where its name has "tfevents" in it a record of TensorBoard's
 * (event_file.h), on disk in whole lines as soon as the step is done.
 *
 * A run that is resumed goes on in the file of the one before: rows beyond the checkpoint, which will be trained again,
 * are cut off. A row that cannot be written whole (full disk) is taken back; what is there stays. */
#ifndef DTP_STEP_LOG_H
#define DTP_STEP_LOG_H

#include "base/status.h"

#include <stdint.h>

struct dtp_step_record {
    uint64_t step;        /* optimizer steps done with this one */
    double loss;          /* mean over the step's tokens on all ranks, nats per token */
    double gradient_norm; /* before clipping; NAN: not computed */
    double learning_rate, seconds, tokens_per_s;
    double loop_s;   /* of the loop that pace.h times, just behind the step, on average of ranks; NAN: not timed */
    bool skipped;    /* loss or gradient was not finite and the update was left out */
    bool overflowed; /* that is so of fp16, whose next loss scale is smaller */
};

struct dtp_step_log; /* opaque */

/* Whether it can be opened, before anything is done for it; writes nothing. DTP_ENVIRONMENT: it cannot. */
enum dtp_status dtp_step_log_check(const char *path, struct dtp_faults *faults);
/* `first_step`: steps done before; 0 begins a new file. `program`: digest of the text that makes the steps, which every
 * row says, for a run may be resumed by another plan. DTP_BAD_INPUT: resuming into a file that is no such log, or
 * an event file that another program began. */
enum dtp_status dtp_step_log_open(const char *path, uint64_t first_step, uint64_t program, struct dtp_step_log **out,
                                  struct dtp_faults *faults);
/* DTP_ENVIRONMENT: the row was not written whole, and is taken back. */
enum dtp_status dtp_step_log_write(struct dtp_step_log *log, const struct dtp_step_record *record,
                                   struct dtp_faults *faults);
void dtp_step_log_close(struct dtp_step_log *log);

#endif
