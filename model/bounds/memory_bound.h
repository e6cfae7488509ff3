/* What the files of the memory bound share (bounds.h has the derivation). */
#ifndef DTP_MEMORY_BOUND_H
#define DTP_MEMORY_BOUND_H

#include "base/pick.h"
#include "bounds/bounds.h"
#include "closed/activations.h"
#include "closed/fetched.h"

/* Of a block's backward: bytes of a token, elements of weight gradients finished and at work, a kernel's own bytes. */
struct dtp_bound_stage {
    uint64_t token_bytes, elements, current, bytes;
};
enum { DTP_BOUND_STAGES = 5, DTP_BOUND_EXECUTOR_STAGES = 3 }; /* of a kind of layer */

struct dtp_bound {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    /* Of each kind, [0] where all are alike: a token's bytes saved, kept where checkpointed; elements that are cast,
     * have gradients, run in fewer bits; of a token of layers that stay in bf16 how much more; elements in shards, of
     * all ranks, a rank's of those that have gradients. */
    uint64_t layer_all[DTP_LAYER_MLPS], layer_kept[DTP_LAYER_MLPS];
    uint64_t layer_cast[DTP_LAYER_MLPS], layer_trained[DTP_LAYER_MLPS], layer_narrow[DTP_LAYER_MLPS];
    uint64_t wider[DTP_LAYER_MLPS], layer_padded[DTP_LAYER_MLPS], layer_own[DTP_LAYER_MLPS];
    const struct dtp_units *units, *trained; /* all parameters; those that have gradients: all, or adapters alone */
    struct dtp_element_bytes bytes;
    uint64_t tokens, layers, partition; /* the latter: elements that a rank updates */
    bool uniform;                       /* all layers are of one kind */
    /* Bytes that stay beside a layer's activations, fp8 weights by columns, unpacked ones: of one that keeps all, of
     * one at work that is replayed; what the first layer does not keep, whose input has no gradient; while a block's
     * largest packed matrix is unpacked, of that what its product reads and nothing keeps. */
    uint64_t kept_weights, again_weights, cut, unpacking, unpacked_one;
    uint64_t checkpointed_weights; /* of them, what a checkpointed block keeps (DTP_KEEPS_PACKED_MATMULS) */
    /* Of a token: x A^T of all adapters of a layer, and what dropout made; with its terms, of one; an adapter's term of
     * what down reads, while that is unpacked; what a frozen head and down read, which nothing keeps for them. */
    uint64_t low, low_one, term, head_input, unkept;
    uint64_t narrow_input; /* bytes that the first layer keeps less of its input than others (dtp_plan_widens_norms) */
    uint64_t rest_bytes, forward_bytes;   /* parameters, optimizer, workspaces | beside what the last block saves */
    int stages, matrices[DTP_LAYER_MLPS]; /* of the kinds that there are */
    /* Our executor's: beside what forward keeps and all of a block, by kind; of the block above; a block before its
     * first norm; made again. */
    uint64_t passing[DTP_LAYER_MLPS], returned[DTP_LAYER_MLPS], carried, opened, replayed;
    /* Of the instants so far; those at which a block is all that stands of activations; what surely stands at one;
     * those at which a block's backward is at work. */
    uint64_t most_bytes, late_bytes, least_bytes, block_bytes;
    /* As a hook reduces DDP's buckets: behind the head | learned positions | the embedding. */
    uint64_t first_bytes, positions_bytes, gradients_bytes;
    /* What follows holds nothing before it is counted. Layer figures of activations: of the kind that saves more;
     * matrices in the order of forward. */
    struct dtp_activations activations;
    struct dtp_bound_stage stage[DTP_LAYER_MLPS * DTP_BOUND_STAGES];
    struct dtp_fetched_matrix matrix[DTP_LAYER_MLPS][DTP_LAYER_MATRICES];
};

static inline uint64_t dtp_bound_tokens(const struct dtp_bound *b, uint64_t token_bytes)
{
    return dtp_bytes_product(b->tokens, token_bytes);
}
/* An instant at which so many bytes stand beyond what rests. */
static inline void dtp_bound_keep(struct dtp_bound *b, uint64_t bytes)
{
    b->most_bytes = larger(b->most_bytes, b->rest_bytes + bytes);
}
/* One in backward's lower half of layers, to which a pipeline adds activations of micro-batches that are under way. */
static inline void dtp_bound_keep_late(struct dtp_bound *b, uint64_t bytes)
{
    dtp_bound_keep(b, bytes);
    b->late_bytes = larger(b->late_bytes, b->rest_bytes + bytes);
}
/* So many bytes surely stand beyond what rests at an instant that every such program has (the folder's page). */
static inline void dtp_bound_hold(struct dtp_bound *b, uint64_t bytes)
{
    b->least_bytes = larger(b->least_bytes, b->rest_bytes + bytes);
}

/* Elements of a table's rows that other ranks have, and whose gradient this one makes as well. */
static inline uint64_t dtp_bound_others_rows(const struct dtp_bound *b)
{
    return (dtp_plan_table_gradient_ranks(b->plan, b->transformer->tied_head) - 1) * b->trained->embedding;
}
/* Elements of the factors that PowerSGD makes of all gradients. */
uint64_t dtp_bound_factors(const struct dtp_bound *b);
/* Activations and stages of layers of one kind, number `index` of those that there are. */
void dtp_bound_kind(struct dtp_bound *b, const struct dtp_job_layers *layers, int index);
/* The last block in forward, which has all that it saves. */
uint64_t dtp_bound_forward(const struct dtp_bound *b);
/* Sum over the first `layers`: `kept` of those that are checkpointed, `whole` of the others, by kind. */
uint64_t dtp_bound_layers(const struct dtp_bound *b, uint64_t layers, const uint64_t *kept, const uint64_t *whole);
/* Of the first `layers`, those that stay in bf16, by kind. */
uint64_t dtp_bound_wide(const struct dtp_bound *b, uint64_t layers, const uint64_t *of_kind);
/* Layers of the first so many that are not checkpointed, as every so many of them are. */
static inline uint64_t dtp_bound_whole(const struct dtp_bound *b, uint64_t layers)
{
    const uint64_t every = b->activations.checkpoint_every;
    return layers - (every > 1 ? dtp_divide_up(layers, every) : every * layers);
}
/* Kept activations of the first `layers`. */
static inline uint64_t dtp_bound_saved(const struct dtp_bound *b, uint64_t asked)
{
    const uint64_t layers = dtp_plan_standing(b->plan, asked, b->layers), whole = dtp_bound_whole(b, layers),
                   bytes = b->uniform ? (layers - whole) * b->layer_kept[0] + whole * b->layer_all[0]
                                      : dtp_bound_layers(b, layers, b->layer_kept, b->layer_all),
                   more = b->wider[0] | b->wider[1] ? dtp_bound_wide(b, layers, b->wider) : 0;
    return dtp_bound_tokens(b, bytes + more + b->activations.embedding) + whole * b->kept_weights +
           (layers - whole) * b->checkpointed_weights - b->cut - (layers ? b->narrow_input : 0);
}
/* Of layers from `begin` on, before `end`, of which those of each kind have so much. */
static inline uint64_t dtp_bound_between(const struct dtp_bound *b, const uint64_t *of, uint64_t begin, uint64_t end)
{
    return b->uniform ? (end - begin) * of[0] : dtp_bound_layers(b, end, of, of) - dtp_bound_layers(b, begin, of, of);
}
/* The worst stage of a block of that kind, DTP_LAYER_MLPS: of any; of a finished weight gradient `element_bytes`, of
 * the one at work `current` more. */
uint64_t dtp_bound_block(const struct dtp_bound *b, int kind, uint64_t element_bytes, uint64_t current_bytes);
/* Of layer number `layer`, as lists by kind have it. */
static inline int dtp_bound_kind_of(const struct dtp_bound *b, uint64_t layer)
{
    return !b->uniform && dtp_transformer_layer_has_experts(b->transformer, layer);
}

/* Bytes beside activations and rest at the instants that every strategy has: weights, gradients, what is on its way. */
struct dtp_bound_beside {
    uint64_t forward, logits, loss; /* the last block in forward | the logits behind it | the loss */
    uint64_t head;                  /* the head's gradients, but for the weight's */
    uint64_t head_gradient;         /* of its weight as it is made */
    uint64_t ends;                  /* the embedding's backward */
};
void dtp_bound_steps(struct dtp_bound *b, const struct dtp_bound_beside *beside);

void dtp_bound_replicated(struct dtp_bound *b);
void dtp_bound_fsdp(struct dtp_bound *b);
void dtp_bound_fetched(struct dtp_bound *b);
void dtp_bound_executor(struct dtp_bound *b);
/* What a layer of the kind keeps, and the stages of its backward: two, with no gradients of weights. */
void dtp_bound_executor_kind(struct dtp_bound *b, const struct dtp_layer_kind *kind, int index,
                             struct dtp_activations *a);

#endif
