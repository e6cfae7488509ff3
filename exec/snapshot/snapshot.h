/* Snapshots in memory: what a run goes on from when ranks are lost.
 *
 * After every so many steps each rank copies its part of the state (the parts it would write to a checkpoint) to memory
 * of the host; while training goes on, a thread writes the copy with its sums to the rank's own memory (store.h) and
 * sends it to a neighbour (peers.h): the next rank, or, where ranks are on several nodes, the same place on the next
 * node. So all of the state is left when one rank or node is, and the two last snapshots of it: one is only written
 * over when all ranks have said that another is whole.
 *
 * Ranks that meet again, as many as before or not, tell each other what their memories hold, take the newest snapshot
 * of which every part is there and undamaged, and read the ranges they need from whoever holds them. */
#ifndef DTP_SNAPSHOT_H
#define DTP_SNAPSHOT_H

#include "ranks/world.h"
#include "snapshot/store.h"

struct dtp_snapshots;

struct dtp_snapshot_options {
    struct dtp_world *world;   /* borrowed, joined */
    struct dtp_device *device; /* borrowed */
    const char *folder;        /* of this rank's memory, or of all ranks of its machine */
    uint64_t identity;         /* of model, data, seed and batch, on all ranks the same */
    uint32_t neighbour;        /* distance to the rank that keeps this one's copy; 0: none */
};

/* All ranks call it together. Makes the folder. Caller closes. DTP_ENVIRONMENT, on all: a folder cannot be made, or a
 * rank cannot serve its files. */
enum dtp_status dtp_snapshots_open(const struct dtp_snapshot_options *options, struct dtp_snapshots **out,
                                   struct dtp_faults *faults);
/* The newest snapshot that is whole, into all parts of this rank, and its position; all ranks call it together. *found
 * is false where there is none; damage that was found is a remark in `faults`. What was made before step `least` is not
 * taken. */
enum dtp_status dtp_snapshots_restore(struct dtp_snapshots *snapshots, const struct dtp_state_part *parts, size_t count,
                                      uint64_t least, struct dtp_checkpoint_position *position, bool *found,
                                      struct dtp_faults *faults);

/* Before training: takes the memory that the state is copied to. DTP_NO: the host does not have it. */
enum dtp_status dtp_snapshots_prepare(struct dtp_snapshots *snapshots, const struct dtp_state_part *own, size_t count,
                                      struct dtp_faults *faults);
/* Copies the state, which takes *stall_s, and has a thread write it. The last one must have been settled. Whatever is
 * wrong shows in `ended`. */
void dtp_snapshots_begin(struct dtp_snapshots *snapshots, const struct dtp_checkpoint_position *position,
                         const struct dtp_state_part *own, double *stall_s);
/* Where the snapshot is that was begun last. DTP_SNAPSHOT_NONE: it was settled, or none was begun. */
enum dtp_snapshot_state { DTP_SNAPSHOT_NONE, DTP_SNAPSHOT_WRITING, DTP_SNAPSHOT_WRITTEN, DTP_SNAPSHOT_FAILED };
enum dtp_snapshot_state dtp_snapshots_state(const struct dtp_snapshots *snapshots);
/* When it has ended on all ranks: `whole` says whether on all of them well. Why not on this one is in `faults` then,
 * the first time. */
void dtp_snapshots_settle(struct dtp_snapshots *snapshots, bool whole, struct dtp_faults *faults);
/* Waits for the thread. */
void dtp_snapshots_wait(struct dtp_snapshots *snapshots);

/* `forget`: the run has ended, its snapshots go. */
void dtp_snapshots_close(struct dtp_snapshots *snapshots, bool forget);

/* ---- shared by the files of this module -------------------------------------------------------------------------- */

#include "checkpoint/host_copy.h"
#include "snapshot/peers.h"

#include <pthread.h>
#include <stdatomic.h>

struct dtp_snapshots {
    struct dtp_snapshot_options options;
    struct dtp_peer_server *server;
    struct dtp_peer *peers; /* of the world */
    uint64_t secret;
    struct dtp_host_copy copy;
    struct dtp_snapshot_block *blocks;
    struct dtp_checkpoint_position position; /* of the one being written */
    pthread_t thread;
    bool joinable, said_failure;
    atomic_int state;        /* enum dtp_snapshot_state */
    struct dtp_faults fault; /* the thread's */
    uint64_t whole_step;     /* the last one that all ranks have; 0: none */
    uint32_t whole_world;
};

#endif
