/* Control connections between the ranks of a run: they meet, agree, beat, and fall together.
 *
 * A star of TCP connections around rank 0, beside NCCL and independent of it, for NCCL cannot say who is missing. Each
 * rank has one connection for what is said in turn (broadcast, gather, barrier) and one for heartbeats, which a thread
 * of its own serves. A rank that ends without a word or is silent for DTP_SILENCE_S (stopped, or its machine
 * gone) is a failure; so is the one furthest behind when a rank makes no progress before its own deadline. Rank 0 tells
 * all others, and on every rank `on_failure` is called once, from that thread, with who failed and where it was. It
 * should say so, abort the device's communicator and end the process; nothing else of this rank can be trusted to
 * return. */
#ifndef DTP_CONTROL_H
#define DTP_CONTROL_H

#include "base/rank_loss.h"
#include "ranks/ranks.h"

/* Where a rank is: optimizer step and index of the operation of its step program. */
struct dtp_control_place {
    uint64_t step;
    uint32_t op;
};

struct dtp_control_failure {
    uint32_t rank;
    enum dtp_rank_loss how;
    enum dtp_status status;         /* that every rank ends with: what a rank that gave up said, else DTP_ENVIRONMENT */
    struct dtp_control_place place; /* last told by that rank */
    char words[256]; /* "has been silent for 10 s, last heard of", "gave up, disk full;": before its place */
};

struct dtp_control_options {
    double join_timeout_s; /* for all ranks to come; 0: 20 */
    double silence_s;      /* after which a rank counts as stopped; 0: DTP_SILENCE_S */
    uint64_t hash;         /* of program and settings: ranks that differ are refused */
    /* Where this rank is, where that is more than what dtp_control_at told last, which it gets; from the thread of the
     * heartbeats. NULL: what was told. */
    struct dtp_control_place (*where)(void *context, struct dtp_control_place told);
    void (*on_failure)(void *context, const struct dtp_control_failure *failure);
    void *context;
};

struct dtp_control;

/* All ranks call it; it returns when all have come. DTP_ENVIRONMENT on every rank that is there, with the reason: a
 * port in use, ranks that did not come in time (named), rank 0 that does not answer; DTP_BAD_INPUT: ranks that disagree
 * on the world's size or on the hash, or two of the same number. For a world of 1 nothing is opened. */
enum dtp_status dtp_control_join(const struct dtp_ranks *ranks, const struct dtp_control_options *options,
                                 struct dtp_control **out, struct dtp_faults *faults);
/* Says goodbye, so that the end of this process is no failure to the others, and frees. */
void dtp_control_leave(struct dtp_control *control);

/* Said in turn: every rank makes the same calls in the same order, from one thread. `broadcast` copies rank 0's bytes
 * to all; `gather` puts bytes of each rank, in the order of ranks, into rank 0's `all` [world * bytes] (NULL
 * elsewhere). DTP_ENVIRONMENT: a rank is gone, or silent for DTP_CONTROL_TURN_TIMEOUT_S. */
enum dtp_status dtp_control_broadcast(struct dtp_control *control, void *data, uint32_t bytes,
                                      struct dtp_faults *faults);
enum dtp_status dtp_control_gather(struct dtp_control *control, const void *data, uint32_t bytes, void *all,
                                   struct dtp_faults *faults);
/* Every rank's bytes to all: `all` is [world * bytes] on each. */
enum dtp_status dtp_control_exchange(struct dtp_control *control, const void *data, uint32_t bytes, void *all,
                                     struct dtp_faults *faults);
enum dtp_status dtp_control_barrier(struct dtp_control *control, struct dtp_faults *faults);

/* Never blocks; from any thread. */
void dtp_control_at(struct dtp_control *control, struct dtp_control_place place);
struct dtp_control_place dtp_control_where(const struct dtp_control *control);
/* This rank's own IPv4 address as text, as the others reach it over the network that control takes. */
void dtp_control_address(const struct dtp_control *control, char *out, size_t bytes);
/* Unless called again within `seconds` (0: no deadline any more), this rank reports itself as one that hangs. */
void dtp_control_deadline(struct dtp_control *control, double seconds);
/* Tells all others that this rank gives up with this status, and why; they get it as a failure of this rank. Where the
 * others have told of a failure before, that one ends this rank too: which of two ranks' words counts is not left to
 * whose thread runs first. */
void dtp_control_give_up(struct dtp_control *control, enum dtp_status status, const char *words);

#endif
