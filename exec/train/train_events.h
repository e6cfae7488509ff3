/* What a run says to whoever started it: one JSON object per line, flushed as it is said.
 *
 *   start       program (digest of its text), device, libraries, how collectives are carried, gpu (false: the host
 *               device), parameters, operations, bytes of the arenas and by owner, words and entropy of the data, first
 *               step and last, ranks_a_gpu that share the first rank's GPU (1: none does), bytes of the host that
 *               checkpoints and snapshots are copied to
 *   step        step, loss, gradient_norm (null: not computed), learning_rate, step_s, loop_s (of pace.h; null: not
 *               timed), tokens, skipped, mode
 *   memory      used_bytes and total_bytes of the GPU after the first step, where no other rank shares it
 *   checkpoint  step, directory, stall_s that training waited for it, whether it was written beside training
 *   snapshot    step, stall_s: whole on all ranks
 *   generation  of an elastic run, before its ranks are started: number, ranks, why the one before ended; how its lost
 *               rank was noticed (enum dtp_rank_loss), noticed_s and ended_s behind its last step (null: nobody knew)
 *   begin       behind start: ranks, from ("start", "checkpoint", "snapshot")
 *   roles       of a set: what each role's ranks did in the measured step
 *   ranks       of a set, for each rank: its role, arena, bytes sent per collective, in how many steps
 *   experts     where ranks divide experts: rows of tokens that each expert of each layer got
 *   end         steps done, bytes sent per collective, bytes copied, interrupted
 *   fault       words: what ended it, of each rank that says so */
#ifndef DTP_TRAIN_EVENTS_H
#define DTP_TRAIN_EVENTS_H

#include "bind/bind.h"
#include "ranks/generations.h"
#include "train/run.h"
#include "train/step_log.h"
#include "data/token_source.h"

#include <jansson.h>
#include <stdio.h>

/* One line of it; takes the object over, NULL: says nothing. */
void dtp_event_say(FILE *file, json_t *event);
/* All do nothing where `file` is NULL. */
struct dtp_run_start {
    uint64_t digest; /* of the program's text */
    const struct dtp_token_source *source;
    uint64_t first_step, steps;
    uint32_t ranks_a_gpu;                                /* that share the first rank's */
    uint64_t checkpoint_copy_bytes, snapshot_copy_bytes; /* of the host's memory, which the state is copied to */
};
void dtp_event_start(FILE *file, const struct dtp_binding *binding, const struct dtp_run_start *start);
void dtp_event_step(FILE *file, const struct dtp_step_record *record, uint64_t tokens, enum dtp_run_mode mode);
void dtp_event_memory(FILE *file, const struct dtp_device_memory *memory);
void dtp_event_checkpoint(FILE *file, uint64_t step, const char *directory, double stall_s, bool beside);
void dtp_event_snapshot(FILE *file, uint64_t step, double stall_s);
void dtp_event_generation(FILE *file, const struct dtp_generation *generation);
void dtp_event_begin(FILE *file, uint32_t ranks, const char *from);
/* What a role's ranks did in the step that was measured, on average: seconds with a kernel, of how many. */
struct dtp_role_times {
    double busy_s, step_s;
};
void dtp_event_roles(FILE *file, const struct dtp_role_times *roles, uint32_t count);
/* What each rank of a set took, sent and copied, counted where it was: in all steps that were run. used_bytes: of its
 * GPU after the first step; 0: it has none of its own. */
struct dtp_rank_account {
    uint64_t role, device_arena_bytes, used_bytes, steps, host_to_device_bytes, device_to_host_bytes;
    uint64_t sent_bytes[DTP_COLLECTIVE_COUNT];
};
void dtp_event_ranks(FILE *file, const struct dtp_rank_account *ranks, uint32_t count);
void dtp_event_experts(FILE *file, const struct dtp_expert_rows *rows);
void dtp_event_end(FILE *file, uint64_t step, const struct dtp_communicator *communicator,
                   const struct dtp_copied_bytes *copied, bool interrupted);
void dtp_event_fault(FILE *file, const char *words);

/* Spans of the last isolated and the last measured step: op,alone_s,start_s,end_s, a row per operation that takes time.
 */
struct dtp_op_times {
    double *alone_s, *start_s, *end_s; /* per operation; NAN: not measured */
};
/* The same of a set, by one rank of each role, in seconds since the first of them began: role,op,alone_s,start_s,end_s.
 * DTP_ENVIRONMENT of either: the file was not written whole. */
struct dtp_role_spans {
    const double *alone_s, *start_s, *end_s;
    size_t op_count;
};
enum dtp_status dtp_role_spans_write(const char *path, const struct dtp_role_spans *roles, uint32_t role_count,
                                     struct dtp_faults *faults);
enum dtp_status dtp_op_times_write(const char *path, const struct dtp_binding *binding,
                                   const struct dtp_op_times *times, struct dtp_faults *faults);

#endif
