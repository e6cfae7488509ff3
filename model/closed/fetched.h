/* Bytes of weights that stand under DeepSpeed's ZeRO-3 as a micro-step goes on, derived from its rule alone: who asks
 * for bounds of memory goes along with it use by use. runtime/deepspeed/zero3_fetch.h is the same rule as lowering goes
 * along; the two share nothing, and test_bounds holds one against the other.
 *
 * A micro-step's trace uses embeddings, blocks, final norm and head in forward, then the same in backward, where blocks
 * that are replayed come twice. Two places move along it: that of the tensor in use, and the head of what has been
 * fetched. Before a use its tensor is fetched, if it does not stand, and the head moves over the next ones until what
 * they fetch reaches stage3_prefetch_bucket_size, or all that stands stage3_max_live_parameters; behind it the tensor
 * goes. It stays where the head has passed its next use, or where that is less than stage3_max_reuse_distance away.
 * So a tensor that the head meets stands if its use before is not behind the one at work, or is that near; and what
 * stands is known from both places and the sum of it.
 *
 * What is fetched ahead of one use comes in a flat buffer. Its tensors are copied out as the first of them is used, and
 * it stands beside them until the last of them is first used. Uses come in the order of fetches: at most one flat
 * buffer stands beside its copies. Where ZeRO++ gathers int8, that becomes weights then; the second copies that it
 * keeps of all that has been given back stand to the end of the step.
 *
 * Where a layer leaves both places as far apart as it found them, and as much standing, so do the next ones. Tensors up
 * to stage3_param_persistence_threshold stand all the time, and in no trace. */
#ifndef DTP_FETCHED_H
#define DTP_FETCHED_H

#include "closed/sharding.h"

/* Visits of modules, in their order; of a root that is tied the embedding is the head. */
enum dtp_fetched_visit {
    DTP_FETCHED_FIRST, /* embedding, positions */
    DTP_FETCHED_FORWARD,
    DTP_FETCHED_LAST, /* final norm, head */
    DTP_FETCHED_LAST_BACK,
    DTP_FETCHED_REPLAY,
    DTP_FETCHED_BACKWARD,
    DTP_FETCHED_FIRST_BACK,
    DTP_FETCHED_END
};
enum { DTP_FETCHED_EMBEDDING, DTP_FETCHED_POSITION, DTP_FETCHED_NORM, DTP_FETCHED_HEAD, DTP_FETCHED_ROOT };
/* Tensors of a layer with m matrices: these, what is no matrix, as one, adapters. Flat buffers that are told apart: the
 * last is taken with all that is fetched beyond. */
enum { DTP_FETCHED_PARTS = 2 * DTP_LAYER_MATRICES + 1, DTP_FETCHED_FLATS = 64 };

/* A matrix of a layer, in the order of forward: elements, of its gradient (with an adapter this one's), of the larger
 * half of the adapter, 0 without one. What its gradient is made in is the caller's. */
struct dtp_fetched_matrix {
    uint64_t elements, trained, half;
    int stage;
};

/* Tensors of a visit in the order of their uses: which, and where each is; elements, 0 where it is in no trace. */
struct dtp_fetched_order {
    int count, part[DTP_FETCHED_PARTS], index[DTP_FETCHED_PARTS];
    uint64_t size[DTP_FETCHED_PARTS], before[DTP_FETCHED_PARTS + 1];
};
/* A place in the trace, behind so many elements. */
struct dtp_fetched_place {
    int visit, index;
    uint64_t layer, at;
};
struct dtp_fetched {
    uint64_t copied, now;        /* bytes as the tensor in use was copied out; behind its use */
    uint64_t persistent, others; /* elements that stand all the time, and that do not */
    struct dtp_fetched_place use, head;
    uint64_t live, given;    /* elements that stand of the latter; that were given back */
    uint64_t apart, copying; /* of those not copied out yet; of a flat buffer beside its copies */
    uint64_t flats, gone;    /* flat buffers so far, and those that have gone */
    uint64_t layers, every, replays, live_most, reuse, prefetch;
    uint64_t element_bytes, second, narrow; /* ranks of a second copy; gathered as int8 */
    bool grows;                             /* second copies are made in this micro-step */
    struct dtp_fetched_start {
        int64_t ahead; /* of the use, in layers, as the pass goes; on the way back below zero */
        uint64_t visit, index, live, apart, copying, flats;
    } start;              /* as the layer before began: the head, elements, flat buffers */
    uint64_t reach;       /* place of the head when layers began to be alike */
    uint64_t block, turn; /* elements of a block's visit; before those of backward */
    struct dtp_fetched_order order[DTP_FETCHED_END];
    struct dtp_fetched_flat {
        uint64_t first, last, elements, tensors; /* places of its first and last tensor */
    } flat[DTP_FETCHED_FLATS];
};

/* At the begin of a micro-step. `every`: blocks 0, every, 2 every, ... are replayed and call their modules; 0: none. */
void dtp_fetched_start(struct dtp_fetched *f, const struct dtp_plan *plan, const struct dtp_units *units,
                       const struct dtp_fetched_matrix *matrix, int matrices, uint64_t every);
/* The next use of all that there are, in no trace or in it: bytes that stand as it works, with its second copy. */
uint64_t dtp_fetched_use(struct dtp_fetched *f, enum dtp_fetched_visit visit, int index);
/* Before a layer's visits, behind another one's: how many layers, this one the first, are as the one before was, for
 * neither place comes near the ends. They are passed over; the last of a pass never is. */
uint64_t dtp_fetched_pass_over(struct dtp_fetched *f, uint64_t layer, bool backward);
static inline bool dtp_fetched_replayed(const struct dtp_fetched *f, uint64_t layer)
{
    return f->every && layer % f->every == 0;
}

#endif
