/* Checkpoints beside training: the state is copied to the host's memory between two steps, and a thread writes the
 * copy.
 *
 * Ranks agree as they do in the checkpoint itself, but where they meet anyway, behind each step: one begins together
 * (`begin`), each tells where its thread is (`state`), and when all have written, rank 0's thread gives the checkpoint
 * its name (`all_wrote`). Training stands still for the copy alone, and for a checkpoint that is due before the last
 * one is done. */
#ifndef DTP_SAVER_H
#define DTP_SAVER_H

#include "checkpoint/host_copy.h"

#include <pthread.h>
#include <stdatomic.h>

/* WRITTEN, BAD: on this rank, which waits for what the others say. NAMING: rank 0's thread ends it. NAMED: it is done,
 * which rank 0 says once. */
enum dtp_saver_state {
    DTP_SAVER_IDLE,
    DTP_SAVER_WRITING,
    DTP_SAVER_WRITTEN,
    DTP_SAVER_BAD,
    DTP_SAVER_NAMING,
    DTP_SAVER_NAMED
};

struct dtp_saver {
    struct dtp_checkpoint_place place; /* its `agree` is called by `begin` alone */
    struct dtp_checkpoint_identity identity;
    struct dtp_host_copy copy;
    struct dtp_checkpoint_position position;
    pthread_t thread;
    bool joinable, whole;
    atomic_int state;        /* enum dtp_saver_state */
    struct dtp_faults fault; /* the thread's */
    enum dtp_status status;  /* of the last one that ended */
};

/* Before training: takes the memory that copies go into, which pins it and takes longer than many copies do. DTP_NO:
 * the host does not have it. */
enum dtp_status dtp_saver_prepare(struct dtp_saver *saver, struct dtp_device *device, const struct dtp_state_part *own,
                                  size_t count, struct dtp_faults *faults);
/* All ranks call it together, none of them with one that has not ended, with the parts that it was prepared for:
 * *stall_s is what training waited. DTP_ENVIRONMENT: the folder cannot be made or the state not be copied, on any rank.
 */
enum dtp_status dtp_saver_begin(struct dtp_saver *saver, const struct dtp_checkpoint_position *position,
                                const struct dtp_state_part *own, double *stall_s, struct dtp_faults *faults);
enum dtp_saver_state dtp_saver_state(const struct dtp_saver *saver);
/* When no rank's thread is writing any more: `whole`, all of them wrote. */
void dtp_saver_all_wrote(struct dtp_saver *saver, bool whole);
/* Waits for the thread. */
void dtp_saver_wait(struct dtp_saver *saver);
/* The same at its end; what it could not do is in faults, its status is returned. */
enum dtp_status dtp_saver_join(struct dtp_saver *saver, struct dtp_faults *faults);
void dtp_saver_release(struct dtp_saver *saver);

#endif
