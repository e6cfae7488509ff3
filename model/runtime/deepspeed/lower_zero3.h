/* What lowering keeps of ZeRO stage 3, between lower_zero3.c, lower_zero3_reduce.c and lower_zeropp.c. */
#ifndef DTP_LOWER_ZERO3_H
#define DTP_LOWER_ZERO3_H

#include "runtime/deepspeed/lower_infinity.h"
#include "runtime/deepspeed/zero3_fetch.h"

#define DTP_ZERO3_PENDING 2 /* __max_ongoing_fetch_events, max_param_reduce_events */

/* Tensors gathered in one collective: entries first to first + count. */
struct dtp_zero3_fetch {
    uint32_t first, count, unused; /* unused: modules that have not asked for theirs */
    bool copied, second;           /* second: of the second copy (zeropp.h) */
    dtp_buffer_id flat, scales;    /* scales: of what was gathered as int8 */
    dtp_op_id ready;               /* what compute waits for */
};

struct dtp_zero3_entry {
    uint64_t layer;
    int part;
    dtp_buffer_id weight;
};

/* What the host waits for when more are pending. */
struct dtp_zero3_pending {
    dtp_op_id op[DTP_ZERO3_PENDING + 1];
    uint32_t count;
};

/* A part in the bucket: its shape (0 of vectors), elements, of a rank padded. */
struct dtp_zero3_gradient {
    uint64_t rows, columns, elements, shard;
};

struct dtp_lower_zero3 {
    struct dtp_lower_host host;   /* first: lower_infinity.h */
    struct dtp_zero3_walk *ahead; /* of what NVMe is asked for, one fetch before */
    struct dtp_zero3_tensor next; /* the first tensor of its next fetch */
    bool ahead_open, has_next;
    uint32_t reads, gathers; /* of the step */
    struct dtp_zero3_shape shape;
    struct dtp_zero3_fetch *fetches;
    struct dtp_zero3_entry *entries;
    uint32_t *fetch_of; /* per tensor: its newest fetch */
    uint32_t fetch_count, entry_count, limit;
    bool open; /* the walk stands at a use that has not ended */
    struct dtp_zero3_leaving {
        dtp_buffer_id weight, *copy; /* copy: where a second copy is to be kept; NULL: nowhere */
        uint64_t bytes;              /* of it */
    } leaving[DTP_ZERO3_ROOT_PARTS]; /* weights whose use has ended, but not the operation that reads them */
    uint32_t leaving_count;
    dtp_buffer_id *second_of; /* per tensor: its second copy */
    struct dtp_zero3_pending fetched, reduced;
    uint32_t group, second_group, node_group, between_group;

    dtp_buffer_id params, persistent, grads;
    struct dtp_lower_moments moments;
    uint64_t shard, trained;      /* elements of this rank: of all parameters, of those that are trained */
    uint64_t persistent_shard[2]; /* of a block, of the root: elements each rank sends */

    dtp_buffer_id bucket, oversized;
    uint64_t filled, filled_shard, tensors; /* in the bucket: elements, of a rank padded, tensors */
    struct dtp_zero3_gradient *in_bucket;
    uint32_t in_bucket_count;
    struct dtp_zero3_walk
        walk; /* last: it has room for the most layers, and clears what it uses of that as it starts */
};

static inline struct dtp_lower_zero3 *dtp_lower_zero3_of(const struct dtp_lowering *l)
{
    return l->own;
}

/* A single rank: nothing is gathered, nothing reduced. */
static inline bool dtp_zero3_alone(const struct dtp_lowering *l)
{
    return l->plan->shard_group == 1;
}

/* lower_zero3.c */
const struct dtp_lower_module *dtp_zero3_module(const struct dtp_lowering *l, uint64_t layer);
/* Elements of a tensor that this rank holds, in the shard or in a second copy. */
uint64_t dtp_zero3_shard_of(const struct dtp_lowering *l, uint64_t layer, int part, bool second);
dtp_buffer_id dtp_zero3_new_weight(struct dtp_lowering *l, const struct dtp_zero3_entry *entry, uint64_t bytes);
void dtp_zero3_wait_for(struct dtp_lowering *l, dtp_op_id op, const char *name);
/* The host waits for the oldest of what is pending while too much is; one more is. */
void dtp_zero3_limit(struct dtp_lowering *l, struct dtp_zero3_pending *pending, const char *name);
void dtp_zero3_pend(struct dtp_zero3_pending *pending, dtp_op_id op);

/* lower_zero3_reduce.c: a gradient goes into the bucket; the bucket is reduced; this rank's slices become the
 * partition's gradients. */
void dtp_zero3_gradient_made(struct dtp_lowering *l, int part);
void dtp_zero3_reduce(struct dtp_lowering *l);
void dtp_zero3_keep(struct dtp_lowering *l, dtp_buffer_id slices, uint64_t shard);

/* lower_zeropp.c: shards of a fetch side by side into a new buffer of the copy stream's pool; the gather of a fetch as
 * int8, and what becomes of it when it is needed; a second copy; the bucket's gradients as int4. */
dtp_buffer_id dtp_zeropp_lay(struct dtp_lowering *l, const struct dtp_zero3_fetch *fetch, dtp_buffer_id shards,
                             const char *name, uint64_t buffer_bytes, uint64_t shard_bytes);
void dtp_zeropp_gather(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch, uint64_t elements);
void dtp_zeropp_dequantize(struct dtp_lowering *l, struct dtp_zero3_fetch *fetch);
void dtp_zeropp_copy(struct dtp_lowering *l, const struct dtp_zero3_leaving *leaving);
void dtp_zeropp_drop_copies(struct dtp_lowering *l);
void dtp_zeropp_reduce(struct dtp_lowering *l);

#endif
