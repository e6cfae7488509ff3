/* Micro-batches, made ahead of the step that needs them by a thread of their own.
 *
 * A batch is laid out as batch_layout.h says: tokens, targets, and the index by which the embedding's gradient is
 * summed in a fixed order. Which sample stands where is arithmetic: sequence b of micro-step m of rank r reads sample
 * ((step * accumulate + m) * ranks + r) * micro_batch + b. So N ranks with K micro-steps train on the samples of one
 * rank with N K of them, and a run that is resumed goes on where it stopped. Ranks that share each sequence read the
 * same samples, of which each has its own tokens (dtp_context_position), and count as one of these ranks. */
#ifndef DTP_BATCHES_H
#define DTP_BATCHES_H

#include "bind/bind.h"
#include "device/device.h"
#include "data/token_source.h"

struct dtp_batch_job {
    const struct dtp_token_source *source; /* borrowed until dtp_batches_stop */
    uint64_t vocab, sequence, first_step;
    uint32_t micro_batch, accumulate, rank, ranks;
    struct dtp_context_place context; /* who of those that share each sequence this is; all 0: nobody does */
};

/* Samples all ranks read in one step. */
uint64_t dtp_batch_step_samples(const struct dtp_batch_job *job);

struct dtp_batches; /* opaque */

/* Begins with the batches of `first_step`, in host memory of the device. Caller stops it. DTP_BAD_INPUT: 2^31 tokens
 * and more in a micro-batch. */
enum dtp_status dtp_batches_start(const struct dtp_batch_job *job, struct dtp_device *device, struct dtp_batches **out,
                                  struct dtp_faults *faults);
/* The `accumulate` batches of the next step, one after the other; valid until the next call. Waits for the thread where
 * it is behind. What the source refused is reported here. */
enum dtp_status dtp_batches_take(struct dtp_batches *batches, const void **out, struct dtp_faults *faults);
void dtp_batches_stop(struct dtp_batches *batches);

/* The index of `rows` tokens below `vocab`; starts has rows + 1 entries, `scratch` vocab. About rows + vocab steps. */
void dtp_batch_index(const int32_t *tokens, uint64_t rows, uint64_t vocab, int32_t *order, int32_t *starts,
                     int32_t *distinct, int32_t *scratch);

#endif
