/* Which parameters DeepSpeed's ZeRO-3 gathers before which module, and which it gives back after it.
 *
 * The rule of its coordinator once a step has been traced (runtime/zero/partitioned_param_coordinator.py):
 *   before a module   what it needs and nobody gathered yet is gathered; then the next tensors of the trace, in its
 *                     order, as long as they are fewer than stage3_prefetch_bucket_size and all that is gathered is
 *                     less than stage3_max_live_parameters (each may be overshot by one tensor). Those that are
 *                     gathered already are passed over
 *   after a module    its tensors go, unless that prefetch has passed over a later use of them, or they are used again
 *                     within stage3_max_reuse_distance elements of the trace
 *
 * Tensors of at most stage3_param_persistence_threshold elements are gathered once a step and never given back; they
 * are in no trace. A micro-step's trace: embeddings, blocks, final norm and head forward; the same backward, replayed
 * blocks forward before they go backward. Assumed: the vectors of a block are used where it begins and ends, and an
 * embedding is given back after its backward (release_backward_leftovers).
 *
 * peft's linears call the frozen one, then A and B (tuners/lora/layer.py), and autograd goes back in that order: an
 * adapter is used behind its matrix in forward and before it in backward. Assumed: A and B are used at once.
 *
 * The closed form adds up what a walk says, lowering makes operations of it; the sizes are each caller's own. */
#ifndef DTP_ZERO3_FETCH_H
#define DTP_ZERO3_FETCH_H

#include "plan/plan.h"

#define DTP_ZERO3_PARTS 16 /* of a block: at most 7 matrices, its vectors, 7 adapters; bits of 16 */
#define DTP_ZERO3_MAX_LAYERS 65534u
enum dtp_zero3_root {
    DTP_ZERO3_EMBEDDING,
    DTP_ZERO3_POSITION,
    DTP_ZERO3_VECTORS,
    DTP_ZERO3_HEAD,
    DTP_ZERO3_ROOT_PARTS
};

/* Elements of the tensors that are gathered and given back; 0 where there is none, or where it persists. Block parts:
 * the matrices in the order forward uses them (`inputs` that read the first norm, the output, the rest up to down),
 * then all vectors as one, then adapters. A tied head has none of its own. */
struct dtp_zero3_shape {
    uint64_t layers;
    int matrices, inputs;
    int adapter[DTP_ZERO3_PARTS]; /* the part that is a matrix' adapter; 0: it has none */
    uint64_t block[DTP_ZERO3_PARTS], root[DTP_ZERO3_ROOT_PARTS];
    bool tied;
};
/* 0 where a tensor of `largest` elements persists under the plan, else `elements`. */
uint64_t dtp_zero3_gathered(const struct dtp_plan *plan, uint64_t elements, uint64_t largest);

enum dtp_zero3_stage {
    DTP_ZERO3_FIRST,
    DTP_ZERO3_FORWARD,
    DTP_ZERO3_LAST,
    DTP_ZERO3_LAST_BACK,
    DTP_ZERO3_REPLAY,
    DTP_ZERO3_BACKWARD,
    DTP_ZERO3_FIRST_BACK,
    DTP_ZERO3_END
};
/* A place in the trace, with what comes before it. */
struct dtp_zero3_use {
    enum dtp_zero3_stage stage;
    uint64_t layer; /* `layers` for the root */
    int index;      /* into the stage's list of parts */
    uint64_t position, elements;
};

/* One tensor: `layer` is `layers` for the root. */
struct dtp_zero3_tensor {
    uint64_t layer;
    int part;
    uint64_t elements;
    bool starts; /* of those gathered in one collective the first */
    bool second; /* from the second copy */
};

struct dtp_zero3_walk {
    struct dtp_zero3_shape shape;
    uint64_t max_live, max_reuse, prefetch; /* elements */
    uint64_t replay_every;
    /* per stage its parts in order, where each stands, their elements and the sums of those before */
    int list[DTP_ZERO3_END][DTP_ZERO3_PARTS], count[DTP_ZERO3_END + 1], index_of[DTP_ZERO3_END][DTP_ZERO3_PARTS];
    uint64_t size[DTP_ZERO3_END][DTP_ZERO3_PARTS], before[DTP_ZERO3_END][DTP_ZERO3_PARTS + 1];
    uint64_t replays;                /* blocks that are replayed */
    struct dtp_zero3_use use, queue; /* the module at hand; what prefetch has not passed yet */
    struct dtp_zero3_tensor at_hand; /* what that module uses */
    bool started, prefetching;
    uint64_t live_elements;   /* gathered or being gathered */
    uint64_t budget, fetched; /* of the prefetch at hand */
    bool seconds, second;     /* released tensors get a second copy (zeropp.h); of the fetch at hand: from there */
    /* bits of parts; copied: has a second copy, since some micro-step */
    uint16_t live[DTP_ZERO3_MAX_LAYERS + 1], awaited[DTP_ZERO3_MAX_LAYERS + 1], copied[DTP_ZERO3_MAX_LAYERS + 1];
};

/* At the begin of a micro-step; `first`: of a step, in which no tensor has a second copy yet. */
void dtp_zero3_start(struct dtp_zero3_walk *walk, const struct dtp_zero3_shape *shape, const struct dtp_plan *plan,
                     bool first);
/* For each module use: begin (false: the trace is over), take until it is false, awaits, end (does its tensor go?). */
bool dtp_zero3_begin(struct dtp_zero3_walk *walk, struct dtp_zero3_tensor *used);
bool dtp_zero3_take(struct dtp_zero3_walk *walk, struct dtp_zero3_tensor *gathered);
/* Whether the module is the first to use its tensor since it was gathered, so that somebody must wait for it. */
bool dtp_zero3_awaits(struct dtp_zero3_walk *walk);
bool dtp_zero3_end(struct dtp_zero3_walk *walk);
/* Before end: whether the tensor would be copied a second time on its release. */
bool dtp_zero3_copies(const struct dtp_zero3_walk *walk);

#endif
