/* The interpreter: walks a bound program, issuing each operation to its stream.
 *
 * A step begins on the compute stream; every stream that has operations waits for that beginning, and the end of the
 * compute stream waits for all of them, live as in a captured graph. Inside a step nothing is allocated and the host
 * waits for nothing. A measured step costs two events per operation; an isolated one also waits after each, so that no
 * two run together: the difference of the two is what operations do to each other. Transfers between stages it does not
 * wait for, whose other end may not come before what is behind them. */
#ifndef DTP_RUN_H
#define DTP_RUN_H

#include "bind/bind.h"

enum dtp_run_mode {
    DTP_RUN_PLAIN,    /* as fast as it goes; captured into a graph at the first of these where the plan says so */
    DTP_RUN_MEASURED, /* live, each operation between two events */
    DTP_RUN_ISOLATED  /* live, one operation at a time, each between two events */
};

struct dtp_run; /* opaque */

/* `poison`: host device only. Bytes are filled with NaN patterns when a buffer is allocated and when it is freed, so
 * that reading what nobody wrote, or what is gone, shows in the loss. Caller destroys. */
enum dtp_status dtp_run_create(struct dtp_binding *binding, bool poison, struct dtp_run **out,
                               struct dtp_faults *faults);
void dtp_run_destroy(struct dtp_run *run);

/* Launches every kernel of the step once, on an arena of zeros, before dtp_run_initialise fills it. CUDA loads a kernel
 * when it is first launched, and may wait for all that runs to do so (CUDA C++ Programming Guide, lazy loading,
 * "concurrent execution"): for a receive, say, that waits for a stage which waits the same way for this one. */
enum dtp_status dtp_run_rehearse(struct dtp_run *run, struct dtp_faults *faults);

/* Fills weights and optimizer state with what training starts from and all else with zero: parameter_layout.h says how.
 * `seed` decides the weights, on any number of ranks and any device alike. */
enum dtp_status dtp_run_initialise(struct dtp_run *run, uint64_t seed, struct dtp_faults *faults);

/* Where the optimizer rests on the host and weights do not: its copies of them are made of the device's. After these
 * were initialised, or read from a checkpoint. */
enum dtp_status dtp_run_copy_weights_down(struct dtp_run *run, struct dtp_faults *faults);

/* The binding's operations are others from the next step on: a graph of them is captured anew. */
void dtp_run_rebound(struct dtp_run *run);

/* Address in the host arena of what a step uploads: batches of all micro-steps, one after the other; its scalars. And
 * of the scalars it downloads at its end. */
void *dtp_run_host_batch(struct dtp_run *run, uint32_t micro_step);
struct dtp_step_scalars *dtp_run_host_scalars(struct dtp_run *run);
const struct dtp_step_scalars *dtp_run_host_results(struct dtp_run *run);

/* Issues one step. What the host wrote for it may be overwritten, and what it downloads read, when it is finished. Of
 * this and the verbs around it DTP_ENVIRONMENT is a device or communicator that failed, with its words and the
 * operation. */
enum dtp_status dtp_run_begin(struct dtp_run *run, enum dtp_run_mode mode, struct dtp_faults *faults);
/* Waits until the device is done with it. *seconds is what it took, on the device's clock. */
enum dtp_status dtp_run_finish(struct dtp_run *run, double *seconds, struct dtp_faults *faults);

/* Bytes that the steps so far have copied, counted where copies are issued; a step replayed from a graph copies what it
 * did when it was captured. */
struct dtp_copied_bytes {
    uint64_t host_to_device, device_to_host;
};
struct dtp_copied_bytes dtp_run_copied(const struct dtp_run *run);

/* Where ranks divide experts: rows of tokens that each expert got of the ranks that divide them with this one, in all
 * steps so far. Borrowed. A stage of a pipeline heard nothing of others' layers. */
struct dtp_expert_rows {
    uint64_t *rows; /* [layers of the model, experts] */
    uint32_t layers, experts;
};
const struct dtp_expert_rows *dtp_run_heard(const struct dtp_run *run);

/* When operation `op` of the last measured or isolated step began and ended, in seconds since the step began. */
enum dtp_status dtp_run_span(struct dtp_run *run, size_t op, double *start_s, double *end_s, struct dtp_faults *faults);

#endif
