/* What the files of training share: one rank's run, from what it was asked to where it stands. */
#ifndef DTP_TRAINER_H
#define DTP_TRAINER_H

#include "checkpoint/saver.h"
#include "snapshot/snapshot.h"
#include "train/batches.h"
#include "train/run.h"
#include "train/train.h"
#include "train/train_events.h"

struct dtp_trainer {
    const struct dtp_train_job *of;
    const struct dtp_job *job;         /* NULL where `set` stands alone */
    const struct dtp_program_set *set; /* NULL: all ranks run the job's program */
    const struct dtp_settings *settings;
    struct dtp_faults *faults;
    FILE *events;
    bool first_rank, reported, steps_measured;
    uint32_t ranks;
    uint32_t ranks_a_gpu; /* that share this rank's; 1: it has one of its own */

    struct dtp_batch_job batch;  /* what the program says of batches, and which part of them is this rank's */
    double step_tokens;          /* of the loss of a step on all ranks */
    uint32_t loss_copies;        /* ranks that have the loss of the same tokens, which divide the vocabulary */
    struct dtp_program *program; /* the set's, where there is one */
    uint64_t digest;             /* of it */
    struct dtp_world world;
    struct dtp_executor_arena arena;
    struct dtp_device *device;
    void *device_base, *host_base;
    struct dtp_binding binding;
    struct dtp_run *run;
    struct dtp_token_source *source;
    struct dtp_batches *batches;
    struct dtp_step_log *log;
    struct dtp_op_times times;

    struct dtp_snapshots *snapshots; /* of elastic runs */
    struct dtp_saver saver;          /* of asynchronous checkpoints */
    bool saving, naming;             /* a checkpoint has begun and not ended; all have written it, it gets its name */
    bool snapping;                   /* the same of a snapshot */
    bool regroups;                   /* ranks end to begin again with others */
    uint64_t snapshot_step;
    double save_stall_s, snapshot_stall_s; /* of those that were begun last */
    const char *from;                      /* "start", "checkpoint" or "snapshot": what the run went on from */
    char memory[DTP_SNAPSHOT_PATH_BYTES];  /* folder of this rank's snapshots */

    char model[400]; /* identity of checkpoints */
    struct dtp_checkpoint_position position;
    enum dtp_run_mode mode;          /* of the step that was begun last */
    struct dtp_step_scalars results; /* of the step that ended last */
    double begun_s;                  /* host clock when the measured step was issued */
    double last_step_s;              /* seconds the last step took */
    uint64_t steps_run;              /* by this process */
    uint64_t used_bytes;             /* of its GPU after the first step; 0: it has none of its own */
    uint32_t paced;                  /* steps beside which pace.h's loop was timed */
    double last_end_s;               /* host clock when a step ended, or the next could begin */
    enum dtp_status unwritten;       /* of logs and checkpoints: training goes on, its status says so in the end */
};

/* train_steps.c: all steps that are left, with what is said and saved between them. */
enum dtp_status dtp_train_steps(struct dtp_trainer *trainer);
/* train_roles.c: what the roles of a set say of batches, into trainer->batch and step_tokens; a program alone is its
 * own only role. DTP_BAD_INPUT: they say different things. */
enum dtp_status dtp_train_shape(struct dtp_trainer *trainer);
/* What each role's ranks did in the measured step, gathered and said. All ranks call it together. */
enum dtp_status dtp_train_say_roles(struct dtp_trainer *trainer);
/* What each rank took and sent, the same way; and spans of operations of the measured step to settings->op_times. */
enum dtp_status dtp_train_say_ranks(struct dtp_trainer *trainer);
enum dtp_status dtp_train_write_spans(struct dtp_trainer *trainer);
/* train_experts.c: rows that each expert got, the same way. */
enum dtp_status dtp_train_say_experts(struct dtp_trainer *trainer);
/* train_keep.c: checkpoints and snapshots. Before ranks meet; when they have; the host's memory that the state is
 * copied to between steps; and the state that training goes on from, where that is not its beginning. */
enum dtp_status dtp_keep_prepare(struct dtp_trainer *trainer);
enum dtp_status dtp_keep_open(struct dtp_trainer *trainer);
enum dtp_status dtp_keep_take_memory(struct dtp_trainer *trainer);
enum dtp_status dtp_keep_resume(struct dtp_trainer *trainer);
/* Whether the state is to be kept before the next step begins; what this rank tells the others behind each step, and
 * what follows from what all told; the keeping itself. */
bool dtp_keep_due(const struct dtp_trainer *trainer);
void dtp_keep_tell(const struct dtp_trainer *trainer, struct dtp_world_sums *sums);
void dtp_keep_hear(struct dtp_trainer *trainer, const struct dtp_world_sums *sums);
void dtp_keep_step(struct dtp_trainer *trainer);
/* Behind the last step: what was begun ends, and the run is left so that it can go on. */
void dtp_keep_end(struct dtp_trainer *trainer, bool regroups);
void dtp_keep_close(struct dtp_trainer *trainer, bool failed);
/* Identity of its checkpoints; borrowed from the trainer. */
struct dtp_checkpoint_identity dtp_train_identity(const struct dtp_trainer *trainer);

#endif
