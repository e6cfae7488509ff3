/* What Megatron's two ways of lowering share: buffers of a rank's parameters and gradients, and the order in which
 * elements lie there (lower_buffered.c, lower_overlapped.c). Elements are of the compute or reduce dtype. */
#ifndef DTP_MEGATRON_BUFFERED_H
#define DTP_MEGATRON_BUFFERED_H

#include "lower/lowering.h"

/* Elements [first, end) of the rank's, which are reduced and gathered together. */
struct dtp_bucket {
    uint64_t first, end;
    uint32_t chunk;
    dtp_op_id gathered; /* DTP_NO_OP: nothing is to be awaited */
    bool reduced;
    dtp_buffer_id gradients; /* of zero2, while they are whole */
};

/* The parameters of layers from one on lie before these elements; `experts`, those that ranks divide. */
struct dtp_layer_place {
    uint64_t dense, experts;
};

/* What more than one data parallel rank have. Experts that ranks divide lie behind the rest, and are reduced among
 * those that have the same ones (distributed_data_parallel.py: expert_parallel_buffers over the expert data parallel
 * group).
 */
struct dtp_buffered {
    uint32_t group, expert_group;  /* DTP_NO_INDEX: no other rank has these experts */
    uint32_t bucket_count;         /* 0: without overlap */
    struct dtp_bucket *bucket;     /* of the lowering's arena */
    struct dtp_layer_place *place; /* of each layer and behind the last, likewise */
    bool within_experts;           /* operations are of a layer's experts */
    dtp_buffer_id shard;           /* of zero2: of gradients */
};

static inline struct dtp_buffered *dtp_buffered_own(const struct dtp_lowering *l)
{
    return l->own;
}

/* Whether a rank keeps its shard of the gradients alone. */
static inline bool dtp_buffered_keeps_shards(const struct dtp_lowering *l)
{
    return l->plan->strategy == DTP_ZERO2 && l->data_ranks > 1;
}

/* The module that names the buffers of all. */
static inline struct dtp_module_state *dtp_buffered_whole(const struct dtp_lowering *l)
{
    return &l->state[l->transformer->layers];
}

/* The standing buffers, and l->own where more than one data parallel rank have what is in them; its end. */
enum dtp_status dtp_buffered_make(struct dtp_lowering *l);
void dtp_buffered_release(struct dtp_lowering *l);

/* Elements that are trained: of all; of a layer with experts those that ranks divide; those before all such. */
uint64_t dtp_buffered_model_elements(const struct dtp_lowering *l);
uint64_t dtp_buffered_divided_elements(const struct dtp_lowering *l);
uint64_t dtp_buffered_dense_elements(const struct dtp_lowering *l);

/* The buffer of trained parameters, and how many bytes lie in it before an element. */
dtp_buffer_id dtp_buffered_trained_params(const struct dtp_lowering *l);
uint64_t dtp_buffered_params_place(const struct dtp_lowering *l, uint64_t element);

/* Of a bucket that is full. */
uint64_t dtp_buffered_bucket_elements(const struct dtp_lowering *l);

/* Over elements [first, end), which are experts that ranks divide or none of these: gradients are divided by the number
 * of ranks, summed, and weights gathered. */
void dtp_buffered_scale_gradients(struct dtp_lowering *l, uint64_t first, uint64_t end);
dtp_op_id dtp_buffered_reduce(struct dtp_lowering *l, uint64_t first, uint64_t end);
dtp_op_id dtp_buffered_gather(struct dtp_lowering *l, uint64_t first, uint64_t end);

/* The optimizer's step, behind the sum of what tensor parallel ranks all have. */
void dtp_buffered_update(struct dtp_lowering *l);

#endif
