/* What stands of a block at each place of its forward and backward: bytes a token of its own tensors and of what is
 * computed beside them, elements of its weights' gradients and casts. Places are kernels; between two of them nothing
 * larger stands. Not of our executor's blocks, which memory_executor.c knows.
 *
 * Forward and replay have one place that counts, backward has as many as a strategy can tell apart: which of them is
 * worst depends on what becomes of gradients, on the place of the block in the model it does not.
 * Tensors are those of activations.h, and sums of them the same. */
#ifndef DTP_BLOCK_PLACES_H
#define DTP_BLOCK_PLACES_H

#include "closed/activations.h"

enum dtp_place_kind {
    DTP_PLACE_PLAIN,    /* no weight's gradient is at hand */
    DTP_PLACE_GRADIENT, /* `current` elements of one stand as autograd makes them */
    DTP_PLACE_HANDED,   /* they are taken over: cast, copied into a bucket, added up */
    DTP_PLACE_KINDS
};

struct dtp_block_place {
    uint64_t saved, work;       /* bytes a token: of tensors that forward makes; of gradients and workspaces */
    uint64_t casts;             /* elements of the block's own weights that autocast has cast and that still stand */
    uint64_t finished, current; /* elements: of gradients before the one at hand; of that one */
    uint64_t before;            /* of those before it the last */
    enum dtp_place_kind kind;
};

/* Most places of one block's backward: 7 matrices three each, vectors two, and ten between them. */
#define DTP_BLOCK_PLACES 36

/* Where weights come and go matrix by matrix (ZeRO-3). Forward and replay: the worst place before the first matrix is
 * needed, while it is read, until the second is, and so on, matrices in the order forward uses them. Backward: three of
 * each matrix in its order, vectors last: while the two products read it, when its gradient is handed over, and behind.
 */
#define DTP_BLOCK_SEGMENTS 24
struct dtp_block_segments {
    struct dtp_block_place of[DTP_BLOCK_SEGMENTS];
    struct dtp_block_place entry[8]; /* what stands when each matrix comes to be needed */
};
enum {
    DTP_SEGMENTS_FORWARD,
    DTP_SEGMENTS_CHECKPOINTED,
    DTP_SEGMENTS_REPLAY,
    DTP_SEGMENTS_BACKWARD,
    DTP_SEGMENTS_PASSES
};

struct dtp_block_places {
    struct dtp_block_place forward[2], replay; /* the worst; forward of a block that keeps everything, that is
                                                  checkpointed; unset where no block is such */
    struct dtp_block_place
        backward[DTP_BLOCK_PLACES]; /* in their order; the gradient of the residual stream is beside */
    int count;
    struct dtp_block_segments segments[DTP_SEGMENTS_PASSES]; /* of DeepSpeed's stage 3 only; others leave it unset */
};

void dtp_block_places_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                            const struct dtp_plan *plan, struct dtp_block_places *out);

/* Bytes of an element: of finished gradients, of the one at hand by kind of place, of casts. May be negative where a
 * gradient that was there goes with being finished. */
struct dtp_place_weights {
    uint64_t tokens;
    int64_t finished, current[DTP_PLACE_KINDS];
    uint64_t casts;
    uint64_t lingering, lingers_above; /* of the last gradient before the one at hand, where it has more elements */
};
static inline uint64_t dtp_place_lingering(const struct dtp_block_place *place, const struct dtp_place_weights *weights)
{
    return place->before > weights->lingers_above ? place->before * weights->lingering : 0;
}

/* The place of backward with most bytes. */
const struct dtp_block_place *dtp_block_worst(const struct dtp_block_places *places,
                                              const struct dtp_place_weights *weights);

#endif
