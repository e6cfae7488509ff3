/* PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), replayed without a GPU.
 *
 * Requests are rounded up to 512 bytes. Each stream has two pools of cached blocks: small (requests up to 1 MiB, out of
 * segments of 2 MiB) and large (segments of 20 MiB for requests below 10 MiB, else the request rounded up to 2 MiB).
 * The smallest cached block that is large enough is taken, the lowest address among equals; where more than 1 MiB
 * (small pool: 512 bytes) would be left, the rest stays cached, otherwise the request gets all of it, which counts as
 * allocated. Of segments each lies below the one before, as the driver hands out addresses (histories of an H200 in
 * reports/h200/compare), so that of equal blocks the newest segment's goes first. Freed blocks join free neighbours of
 * their segment. Segments are never given back until memory runs out.
 *
 * Expandable segments: one range of addresses per pool that grows by 20 MiB (small: 2 MiB) at its end, and is split
 * down to 512 bytes. */
#ifndef DTP_CACHING_ALLOCATOR_H
#define DTP_CACHING_ALLOCATOR_H

#include "sim/simulate.h"

struct dtp_caching_allocator; /* opaque */

/* Stands for a block that could not be had: no host memory. */
#define DTP_NO_BLOCK UINT32_MAX

/* `capacity_bytes`: where segments would exceed it, those without a block in use are given back first; 0: unlimited.
 * NULL: no memory. */
struct dtp_caching_allocator *dtp_caching_allocator_create(bool expandable_segments, uint64_t capacity_bytes);
void dtp_caching_allocator_destroy(struct dtp_caching_allocator *allocator);

/* A block of at least `bytes` > 0 for a stream. Logarithmic in the blocks cached, save for moving their list. */
uint32_t dtp_caching_allocator_take(struct dtp_caching_allocator *allocator, enum dtp_stream stream, uint64_t bytes);
/* Freed, so no longer counted as allocated, but not to be handed out before it is given. */
void dtp_caching_allocator_release(struct dtp_caching_allocator *allocator, uint32_t block);
/* False: no host memory. */
bool dtp_caching_allocator_give(struct dtp_caching_allocator *allocator, uint32_t block);

struct dtp_caching_allocator_state {
    uint64_t allocated_bytes, reserved_bytes, allocated_peak_bytes, reserved_peak_bytes;
    uint64_t segments, retries; /* segments held; times that cached ones were given back */
    bool out_of_memory;         /* capacity exceeded in spite of that */
};
/* Peaks from now on. */
void dtp_caching_allocator_reset_peaks(struct dtp_caching_allocator *allocator);
struct dtp_caching_allocator_state dtp_caching_allocator_look(const struct dtp_caching_allocator *allocator);

/* ---- a program's steps ------------------------------------------------------------------------------------------ */

struct dtp_allocator_replay {
    struct dtp_caching_allocator_state state; /* peaks are those of the last step */
    uint32_t steps;                           /* replayed until segments stopped growing, at most DTP_REPLAY_STEPS */
};
#define DTP_REPLAY_STEPS 6

/* Replays what device buffers do in issue order, step after step. As in training, persistent buffers come first except
 * those of the optimizer, which the first update makes out of what the first backward left, and DDP's buckets, which
 * are laid out anew after the first backward. `timeline` says when the bytes of deferred frees (DTP_DEFER) come back;
 * NULL: at once. */
enum dtp_status dtp_allocator_replay(const struct dtp_program *program, const struct dtp_timeline *timeline,
                                     bool expandable_segments, uint64_t capacity_bytes,
                                     struct dtp_allocator_replay *out, struct dtp_faults *faults);

#endif
