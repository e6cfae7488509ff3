/* What the files of lowering share: the step as it is being built, its buffers by layer, and a draft of one operation.
 *
 * What a block consists of, and which of its tensors stay, is the kind's table by the runtime's habits
 * (plan/layer_tensors.h). Notation: T tokens of a micro-step, h hidden, d_q, d_kv, f ffn, V vocab, c bytes
 * of the compute dtype, e of the residual stream. Backward orders are those of allocation traces of PyTorch 2.11. */
#ifndef DTP_LOWERING_H
#define DTP_LOWERING_H

#include "base/host_arena.h"
#include "lower/flight.h"
#include "lower/lower.h"
#include "lower/lower_hooks.h"
#include "lower/posted.h"
#include "plan/fp8_casts.h"
#include "plan/context.h"
#include "plan/layer_tensors.h"
#include "plan/slice.h"
#include "cost/op_cost.h"
#include "closed/sharding.h"
#include "schedule/schedule.h"

#include <assert.h>

#define DTP_MAX_PARTS (2 * DTP_LAYER_MATRICES + 1) /* matrices, then all vectors as one, then matrices' adapters */

/* Parameters of a block, or of the root: what is one tensor for buckets, shards and gradients. `shard` is what one rank
 * stores: under FSDP2 ceil(rows/N) rows of each tensor, under ZeRO-3 ceil(elements/N) elements. */
struct dtp_lower_module {
    int parts;
    uint64_t elements[DTP_MAX_PARTS], shard[DTP_MAX_PARTS];
    uint64_t largest[DTP_MAX_PARTS];                      /* tensor of a part */
    uint64_t rows[DTP_MAX_PARTS], columns[DTP_MAX_PARTS]; /* of its matrices, of experts each one's; 0: vectors */
    bool matrix[DTP_MAX_PARTS];
    const char *weight_name[DTP_MAX_PARTS], *gradient_name[DTP_MAX_PARTS];
    uint32_t tensors[DTP_MAX_PARTS]; /* a part is one but for the vectors */
    uint64_t all_elements, all_shard;
    bool trained[DTP_MAX_PARTS]; /* it has a gradient and optimizer state */
    uint64_t bytes[DTP_MAX_PARTS], shard_bytes[DTP_MAX_PARTS], wire_bytes[DTP_MAX_PARTS]; /* at rest: whole, a rank's;
                                                                                            of that, in a gather */
    uint64_t all_bytes, scale_bytes /* beside all shards */, trained_elements, trained_shard;
    int adapter[DTP_LAYER_MATRICES]; /* the part with a matrix's adapter, A and B as one; 0: it has none */
};
enum { DTP_ROOT_EMBEDDING, DTP_ROOT_POSITION, DTP_ROOT_VECTORS, DTP_ROOT_HEAD, DTP_ROOT_PARTS };
/* What lies outside of blocks, where its two ends are modules of their own to the runtime (dtp_plan_wraps_ends): the
 * hooks around forward and backward stand around each then, and around the whole model with DTP_END_NONE. */
enum dtp_model_end { DTP_END_NONE, DTP_END_EMBEDDING, DTP_END_HEAD };

/* The optimizer's tensors of some parameters, buffers that follow each other. One by one, for the allocator makes them
 * so and fits them into what the first backward left. */
struct dtp_lower_moments {
    dtp_buffer_id first;
    uint32_t count;
};

/* Buffers of one module that all micro-batches share. */
struct dtp_module_state {
    dtp_buffer_id weight[DTP_MAX_PARTS];   /* gathered or cast; DTP_NO_INDEX: read `params` */
    dtp_buffer_id gradient[DTP_MAX_PARTS]; /* as autograd made it in this micro-step */
    dtp_buffer_id kept[DTP_MAX_PARTS];     /* .grad, or what micro-steps accumulate into */
    dtp_buffer_id params;                  /* at rest; modules of one FSDP unit share theirs */
    dtp_buffer_id whole[DTP_MAX_PARTS];    /* at rest, where each part is a tensor of its own; else DTP_NO_BUFFER */
    struct dtp_lower_moments moments;
    dtp_buffer_id gradient_buffer;  /* that matmuls write into; DTP_NO_BUFFER: each makes a tensor */
    uint32_t bucket[DTP_MAX_PARTS]; /* the reduction bucket each part lies in */
};

/* Groups of transfers: of passes by way, direction and sender; at the end of a step of those that send to a rank behind
 * them, and before them. */
enum { DTP_TRANSFER_TO_LATER = 12, DTP_TRANSFER_TO_EARLIER, DTP_TRANSFER_GROUPS };

/* Consecutive layers of the model that a rank holds: all of them, or a stage of a pipeline. */
struct dtp_lower_chunk {
    uint64_t first, layers;  /* of the rank's own */
    uint64_t first_of_model; /* the model's layer that `first` is */
    uint64_t ahead_layers;   /* of these, the last so many are of modules that predict further ahead */
    bool embedding, head;    /* and what lies before its first layer, behind its last */
};
/* What one rank does of the step, and with what of the model. */
struct dtp_lower_role {
    const struct dtp_lower_chunk *chunks;
    uint32_t chunk_count;
    const struct dtp_pass *passes; /* in the order of the rank */
    uint32_t pass_count;
    const struct dtp_lower_pipeline *pipeline; /* NULL: the rank has the whole model */
    uint32_t rank;                             /* of the pipeline */
    const struct dtp_program_reader *reader;   /* NULL: operations are kept in the program */
    struct dtp_live_runs *fills;               /* is told when a bucket is filled, which then is not reduced; or NULL */
    struct dtp_live_runs *runs;                /* what the reader makes; or NULL */
    struct dtp_lower_blocks *blocks;           /* what is known of blocks; or NULL */
};
/* The pipeline that a role is of. */
struct dtp_lower_pipeline {
    const struct dtp_schedule *schedule;
    const struct dtp_lower_chunk *chunks; /* those of rank r from r x schedule->shape.chunks on */
    bool blocking;                        /* a rank goes on when what it sends is taken (schedule_order.h) */
    const struct dtp_posted *posted;      /* NULL: sends and receives of both ways are on streams of their own */
};
/* With avoid_record_streams what another stream reads is let go by the host, one behind the other, when the compute
 * stream waits for that. */
enum dtp_lent { DTP_LENT_FORWARD, DTP_LENT_BACKWARD, DTP_LENT_GRADIENTS, DTP_LENT_COUNT };

/* Layers with such an MLP: their tensors by the runtime's habits, their parameters, bytes of all tokens. */
struct dtp_lower_kind {
    struct dtp_layer_tensors tensors;
    struct dtp_lower_module block;
    uint64_t tensor_bytes[DTP_TENSOR_COUNT];
};

struct dtp_lowering {
    const struct dtp_transformer *transformer; /* a rank's slice of the model, with the layers that it holds */
    const struct dtp_transformer *model;       /* all of it */
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    struct dtp_transformer slice;
    uint32_t tp, tp_stride;
    uint32_t vocab_ranks;                          /* of these, who share out the vocabulary: tp, or 1 */
    struct dtp_context context;                    /* how context parallel ranks share attention */
    uint32_t tp_group, exchange_group, ring_group; /* of the program; DTP_NO_INDEX where they are 1 */
    uint32_t expert_group, expert_tensor_group;    /* of ranks that divide experts, and each of them; the same */
    uint32_t data_ranks, data_stride;              /* with the same slice, over which gradients are summed */
    struct dtp_program *program;
    struct dtp_faults *faults;

    struct dtp_element_bytes bytes, ends_bytes;
    struct dtp_plan ends; /* of embedding and head (dtp_plan_of_ends) */
    uint64_t tokens, compute, residual, d_q, d_kv, d_v;
    uint64_t results; /* bytes of what matrices return that read a norm's result */
    uint64_t between; /* elements of a token between the matmuls: hidden, or a rank's part under sequence parallelism */
    uint64_t scores_bytes; /* of math attention: one tensor [heads, s] for every token; 0 otherwise */
    bool autocast, compiled, fused, gated, rope;
    struct dtp_fp8_casts casts; /* around fp8 matmuls */
    bool wraps_ends;
    bool adapts;          /* adapters alone are trained (plan/adapters.h) */
    bool whole_gradients; /* gradients of several micro-steps are added up before one reduction */
    enum dtp_loss loss;

    struct dtp_lower_kind kind[DTP_LAYER_MLPS];
    /* Of layers that stay in bf16; their plan and the others', of which `plan` is that at hand, as `casts` are. */
    struct dtp_lower_kind wide_kind[DTP_LAYER_MLPS];
    const struct dtp_plan *narrow_plan;
    struct dtp_plan wide_plan;
    struct dtp_fp8_casts narrow_casts;
    bool wide;
    /* The kind of the layer at which the skeleton stands, or stood last (dtp_lower_stand). */
    enum dtp_layer_mlp mlp;
    struct dtp_layer_tensors tensors;      /* of a block: its kind by the runtime's habits */
    const struct dtp_layer_matrix *matrix; /* the kind's */
    int matrices;
    struct dtp_checkpoint_rule checkpointing;
    struct dtp_lower_module block, root;
    uint64_t tensor_bytes[DTP_TENSOR_COUNT]; /* of all tokens */

    struct dtp_module_state *state;      /* of each layer; [layers]: of the root */
    const struct dtp_lower_hooks *hooks; /* of the plan's runtime */
    void *own;                           /* what they keep */

    struct dtp_lower_role role;
    const struct dtp_pass *pass; /* where the skeleton stands */
    const struct dtp_lower_chunk *chunk;
    uint16_t layer, micro_step; /* of the rank's layers, of the step */
    enum dtp_model_end end;     /* outside of the layers: at which end */
    bool recompute;
    enum dtp_issue issue;                   /* of kernels at the operator at hand: APART, or REPLAYED by a graph */
    bool first_micro_step, last_micro_step; /* of those that pass through the chunk */
    bool last_pass;                         /* of the rank's: gradients of all its weights are whole behind it */
    bool reduces;
    dtp_op_id last_op[DTP_STREAM_COUNT]; /* issued last to each stream */
    dtp_op_id awaited;                   /* what the next operation of the compute stream waits for */
    enum dtp_owner gradient_owner;       /* GRADS where autograd's own tensor becomes .grad */

    struct dtp_flight *flight;    /* of the micro-batch at hand */
    dtp_buffer_id user_buffer;    /* that pieces of collectives beside matmuls pass through */
    dtp_buffer_id rows_under_way; /* of experts, of the micro-batch that is paired with the one at hand */
    dtp_buffer_id gathered;       /* what the matmuls at hand read in place of a rank's rows of it */
    struct dtp_host_arena arena;
    struct dtp_handed *handed[2]; /* to forwards, to backwards of each chunk and micro-batch; of a pipeline */
    dtp_op_id *sent;              /* what sent a forward's result, of each chunk and micro-batch */
    dtp_buffer_id arrived[2];     /* where those are received that stand for the whole run; or none */
    struct dtp_handed *held;      /* gradients that stay until the next step, with what sent them */
    uint32_t held_count;
    struct dtp_lower_sent *kept_sent; /* lower_sent.c; each until a pass of the rank */
    uint32_t kept_sent_count, *pass_at;
    struct dtp_handed lent[DTP_LENT_COUNT]; /* with the operation that reads it */
    struct dtp_received received;           /* by this rank, so far */
    dtp_buffer_id given, given_by_first;    /* what the pass at hand, and the first of a pair, made for another rank */
    dtp_op_id before_next;                  /* a transfer that the next pass waits for besides what it takes */
    uint32_t transfer_group[DTP_TRANSFER_GROUPS];
    dtp_buffer_id tokens_in, norm; /* norm: of all gradients, where a step is validated after it */
    dtp_op_id norm_sent;
    struct dtp_handed norm_before; /* of the ranks before this one */
    bool validates;                /* the step before, in the warm-up of this one */
};

/* lower.c: refuses what has no step program, or one of more than `op_limit` operations on a rank of its pipeline. */
enum dtp_status dtp_lower_check(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, uint32_t op_limit, struct dtp_faults *faults);
/* The program of one rank, of a job that has one. */
enum dtp_status dtp_lower_role_program(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                       const struct dtp_plan *plan, const struct dtp_lower_role *role,
                                       uint32_t op_limit, struct dtp_program **out, struct dtp_faults *faults);

/* ---- a draft of one operation ------------------------------------------------------------------------------------ */

#define DTP_DRAFT_OPERANDS 64
#define DTP_DRAFT_AFTER 8
struct dtp_draft {
    struct dtp_new_op op;
    struct dtp_operand operands[DTP_DRAFT_OPERANDS];
    dtp_op_id after[DTP_DRAFT_AFTER];
    uint32_t operand_count, after_count;
};

/* An operation of the compute stream at the skeleton's layer and micro-step. Inline, as what follows is, for a step has
 * thousands. */
static inline void dtp_draft_begin(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_op_kind kind,
                                   const char *name)
{
    draft->op = (struct dtp_new_op){
        .kind = kind, .stream = DTP_STREAM_COMPUTE, .layer = l->layer, .micro_step = l->micro_step, .name = name};
    draft->op.demand.recompute = l->recompute;
    draft->op.demand.issue = (uint8_t)l->issue;
    draft->operand_count = draft->after_count = 0;
}
/* Of a buffer that is none of its operands yet. */
static inline void dtp_draft_add(struct dtp_draft *draft, dtp_buffer_id buffer, uint32_t access)
{
    assert(draft->operand_count < DTP_DRAFT_OPERANDS);
    struct dtp_operand *operand = &draft->operands[draft->operand_count++];
    /* field by field: as one struct it would be put together elsewhere and wait for its own bytes to be read back */
    operand->buffer = buffer;
    operand->access = (uint8_t)access;
    operand->role = operand->shard = 0;
    operand->offset_bytes = operand->bytes = 0;
}
/* Adds bits of access; a buffer DTP_NO_INDEX is no operand. */
static inline void dtp_draft_use(struct dtp_draft *draft, dtp_buffer_id buffer, uint32_t access)
{
    if (buffer.index == DTP_NO_INDEX)
        return;
    for (uint32_t i = 0; i < draft->operand_count; i++)
        if (draft->operands[i].buffer.index == buffer.index) {
            draft->operands[i].access |= (uint8_t)access;
            return;
        }
    dtp_draft_add(draft, buffer, access);
}
/* The same with a role, from `offset_bytes` on: an operand of its own. */
struct dtp_operand *dtp_draft_role(struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer, uint32_t access,
                                   uint64_t offset_bytes);
void dtp_draft_after(struct dtp_draft *draft, dtp_op_id earlier);
/* A fresh buffer from the pool of the operation's stream, with ALLOC and the bits given; none for 0 bytes. */
dtp_buffer_id dtp_draft_new(struct dtp_lowering *l, struct dtp_draft *draft, const char *name, enum dtp_owner owner,
                            uint64_t bytes, uint32_t access);
/* Bytes and launches of a memory-bound operation; `elements`: those that eager kernels take one at a time. */
void dtp_draft_memory(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes, uint32_t kernels);
void dtp_draft_pass(const struct dtp_lowering *l, struct dtp_draft *draft, double bytes, double elements,
                    uint32_t kernels);
dtp_op_id dtp_draft_end(struct dtp_lowering *l, struct dtp_draft *draft);

/* A buffer without an operation that makes it; `persistent` ones live for the whole step. */
dtp_buffer_id dtp_lower_buffer(struct dtp_lowering *l, const char *name, enum dtp_owner owner, enum dtp_stream pool,
                               uint64_t bytes, bool persistent);
dtp_buffer_id dtp_lower_host_buffer(struct dtp_lowering *l, const char *name, enum dtp_owner owner, uint64_t bytes);
#define DTP_NO_BUFFER ((dtp_buffer_id){DTP_NO_INDEX})
#define DTP_NO_OP ((dtp_op_id){DTP_NO_INDEX})

/* lower_tensors.c: what the layers at hand are of, and whether they stay in bf16 (dtp_plan_layer_is_wide). */
void dtp_lower_take_kind(struct dtp_lowering *l, enum dtp_layer_mlp mlp);
void dtp_lower_take_width(struct dtp_lowering *l, bool wide);

/* [m,k] x [k,n] in the compute dtype; fp8 only inside blocks. */
void dtp_draft_matmul(const struct dtp_lowering *l, struct dtp_draft *draft, uint64_t m, uint64_t n, uint64_t k,
                      bool head);
/* Rows that a matrix of a block multiplies: the rank's tokens, or all those together that its experts receive. */
uint64_t dtp_lower_matrix_rows(const struct dtp_lowering *l, const struct dtp_layer_matrix *matrix);
/* A product of a block's matrix, forward or of one of its gradients; of experts all of them, each with the rows of its
 * tokens. */
void dtp_draft_product(const struct dtp_lowering *l, struct dtp_draft *draft, const struct dtp_layer_matrix *matrix,
                       enum dtp_product product);
/* The program's group of `ranks` of those with the same slice, `apart` of them from one to the next: 1, neighbours. */
uint32_t dtp_lower_data_group(struct dtp_lowering *l, uint32_t ranks, uint32_t apart);
/* What each rank sends around a ring of a tensor of `bytes`: the shards of all others, padded to whole bytes. */
uint64_t dtp_lower_ring(uint64_t bytes, uint64_t ranks);
static inline struct dtp_module_state *dtp_lower_state(struct dtp_lowering *l)
{
    return &l->state[l->layer == DTP_NO_LAYER ? l->transformer->layers : l->layer];
}
/* A stage of a pipeline whose runtime holds_passes. */
static inline bool dtp_lower_holds(const struct dtp_lowering *l)
{
    return l->role.pipeline && l->plan->runtime->holds_passes;
}
/* One whose runtime copies_passes. */
static inline bool dtp_lower_copies(const struct dtp_lowering *l)
{
    return l->role.pipeline && l->plan->runtime->copies_passes;
}
/* One autocast region is around all passes of such a stage, so its casts of weights are made once a step. */
static inline bool dtp_lower_casts_stay(const struct dtp_lowering *l)
{
    return l->autocast && !l->compiled && dtp_lower_holds(l);
}
/* It is in a backward of inputs alone, and holds all that its forward saved until that of weights is through:
 * autograd's graph is one (stage_backward_input of torch.distributed.pipelining). */
static inline bool dtp_lower_keeps_graph(const struct dtp_lowering *l)
{
    return dtp_lower_holds(l) && l->pass->kind == DTP_PASS_BACKWARD;
}
/* Of tensor parallel ranks, who have so many parts of the tokens between matmuls; 1: each has all of them. */
static inline uint64_t dtp_lower_token_parts(const struct dtp_lowering *l)
{
    return l->plan->sequence_shards > 1 ? l->plan->sequence_shards : 1;
}
/* The model's layer that the rank's is: layers of a stage are some of the model's. */
static inline uint64_t dtp_lower_layer_of_model(const struct dtp_lowering *l, uint64_t layer)
{
    for (uint32_t i = 0; i < l->role.chunk_count; i++) {
        const struct dtp_lower_chunk *chunk = &l->role.chunks[i];
        if (layer >= chunk->first && layer < chunk->first + chunk->layers)
            return layer + chunk->first_of_model - chunk->first;
    }
    return layer;
}
static inline enum dtp_layer_mlp dtp_lower_mlp(const struct dtp_lowering *l, uint64_t layer)
{
    if (!l->transformer->experts)
        return DTP_LAYER_DENSE;
    return dtp_transformer_layer_has_experts(l->transformer, dtp_lower_layer_of_model(l, layer)) ? DTP_LAYER_EXPERTS
                                                                                                 : DTP_LAYER_DENSE;
}
/* The `index`-th module: a block, and behind all of them what lies outside. */
static inline const struct dtp_lower_module *dtp_lower_module_at(const struct dtp_lowering *l, uint64_t index)
{
    return index == l->transformer->layers ? &l->root : &l->kind[dtp_lower_mlp(l, index)].block;
}
static inline bool dtp_lower_is_wide(const struct dtp_lowering *l, uint64_t layer)
{
    const struct dtp_megatron_plan *asked = &l->narrow_plan->megatron;
    return (asked->bf16_first || asked->bf16_last) &&
           dtp_plan_layer_is_wide(l->narrow_plan, l->model, dtp_lower_layer_of_model(l, layer));
}
/* What is drafted is of that layer, or of none. */
static inline void dtp_lower_stand(struct dtp_lowering *l, uint16_t layer)
{
    l->layer = layer;
    if (l->wide || (layer != DTP_NO_LAYER && dtp_lower_is_wide(l, layer)))
        dtp_lower_take_width(l, layer != DTP_NO_LAYER && dtp_lower_is_wide(l, layer));
    if (layer != DTP_NO_LAYER && dtp_lower_mlp(l, layer) != l->mlp)
        dtp_lower_take_kind(l, dtp_lower_mlp(l, layer));
}
/* What is drafted is of that module. */
static inline void dtp_lower_stand_at(struct dtp_lowering *l, uint64_t index)
{
    dtp_lower_stand(l, index == l->transformer->layers ? DTP_NO_LAYER : (uint16_t)index);
}
/* Of all modules: parameters that are trained, and what one rank stores of them. */
uint64_t dtp_lower_all_elements(const struct dtp_lowering *l);
uint64_t dtp_lower_all_shard(const struct dtp_lowering *l);
/* Of one token, an MLP's product in the compute dtype: of experts as many rows as they receive. */
static inline uint64_t dtp_lower_product_bytes(const struct dtp_lowering *l, enum dtp_layer_tensor product)
{
    uint64_t bytes = l->results * dtp_layer_tensor_width(&l->tensors.kind, product);
    if (l->tensors.kind.experts && product == DTP_TENSOR_PRODUCT)
        bytes = dtp_divide_up(bytes, l->plan->expert_shards);
    return product == DTP_TENSOR_PRODUCT ? dtp_layer_received(&l->tensors, bytes) : bytes;
}
/* Of the layer at which the skeleton stands. */
static inline struct dtp_flight_module *dtp_lower_flight_module(const struct dtp_lowering *l)
{
    return &l->flight->module[l->layer - l->chunk->first];
}
/* That layer, as the whole model counts. */
static inline uint64_t dtp_lower_model_layer(const struct dtp_lowering *l)
{
    return l->layer - l->chunk->first + l->chunk->first_of_model;
}
static inline bool dtp_lower_checkpointed(const struct dtp_lowering *l, uint64_t layer)
{
    return dtp_checkpointed(&l->checkpointing, dtp_lower_layer_of_model(l, layer));
}

/* ---- the concerns ------------------------------------------------------------------------------------------------ */

/* lower_passes.c: the rank's passes and the optimizer's step. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_lower_passes(struct dtp_lowering *l);
/* Of these, for who walks them by itself: most micro-batches of chunks that are ever between a forward and the end of
 * their backward, whether a pass is that end, and to stand at the `i`-th pass. */
uint32_t dtp_lower_most_under_way(const struct dtp_lower_role *role);
bool dtp_lower_ends_flight(const struct dtp_pass *pass);
void dtp_lower_stand_at_pass(struct dtp_lowering *l, uint32_t i);
/* `rows` of the residual stream are the input of the rank's `layer`, or what leaves its chunk. */
void dtp_lower_hand_on(struct dtp_lowering *l, uint64_t layer, dtp_buffer_id rows);

/* lower_transfers.c: what the stages of a pipeline send each other. DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_lower_transfers_make(struct dtp_lowering *l);
/* Around the passes of a rank: before the `i`-th, behind it. */
void dtp_lower_before_pass(struct dtp_lowering *l, uint32_t i);
void dtp_lower_after_pass(struct dtp_lowering *l, uint32_t i);
/* What the pass at hand begins with, and what it leaves: activations or their gradient. */
struct dtp_handed dtp_lower_taken(struct dtp_lowering *l);
void dtp_lower_give(struct dtp_lowering *l, dtp_buffer_id rows);
/* What a forward begins with of `rows` that were received: these, or a copy. */
dtp_buffer_id dtp_lower_work_on(struct dtp_lowering *l, dtp_buffer_id rows);
/* Lets go, behind the step, of what was held until then. */
void dtp_lower_forget_sent(struct dtp_lowering *l);
/* A send to `peer`, or a receive from it, in a group of transfers: behind what the rank has computed so far. */
void dtp_lower_transfer_begin(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_op_kind kind,
                              const char *name, uint32_t peer, uint32_t group);
/* The place that a pass takes from, and gives to. False: none. */
bool dtp_lower_taken_from(const struct dtp_lowering *l, const struct dtp_pass *pass, struct dtp_stage_place *out);
bool dtp_lower_given_to(const struct dtp_lowering *l, const struct dtp_pass *pass, struct dtp_stage_place *out);

/* lower_sent.c: what was sent stays until the rank knows that it was taken, for who sends beside the passes.
 * DTP_ENVIRONMENT: no memory. What pass `i` of the rank gave, sent by `sent`; then, behind what a pass waits for, what
 * goes. */
enum dtp_status dtp_lower_sent_make(struct dtp_lowering *l);
void dtp_lower_keep_sent(struct dtp_lowering *l, uint32_t i, dtp_buffer_id rows, dtp_op_id sent);
void dtp_lower_let_sent_go(struct dtp_lowering *l, uint32_t i);
#define DTP_LOWER_STEP_END UINT32_MAX /* for a pass: behind all of them */

/* dtp_draft_use of the draft's next operand, which has a role where the program is run. */
void dtp_lower_run_role(const struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_role role, dtp_buffer_id buffer,
                        uint32_t access);
/* Whether a stage's chunk ends with the head. */
bool dtp_lower_has_head(const struct dtp_lowering *l, struct dtp_stage_place place);

/* lower_joined.c: what stages join at the end of a step. Before the `i`-th pass, what validates the step before. */
void dtp_lower_validate_around(struct dtp_lowering *l, uint32_t i);
/* Behind the last pass: sums gradients of weights that stages hold twice; waits for the norm of all gradients. */
void dtp_lower_join_copies(struct dtp_lowering *l);
void dtp_lower_join_norms(struct dtp_lowering *l);
/* Of these, for who lowers a step by itself: the rank that has the same embedding table, first stage and the one with
 * the head, where the model ties them; false: none has. The sum of what this rank and `peer` have, on both, in the
 * elements' type; `buffer` is final on the compute stream. The sum of what all ranks of the pipeline have, on all. */
bool dtp_lower_tied_peer(const struct dtp_lowering *l, uint32_t *peer);
void dtp_lower_exchange(struct dtp_lowering *l, uint32_t peer, const char *name, dtp_buffer_id buffer,
                        uint64_t offset_bytes, uint64_t bytes);
void dtp_lower_sum_over_stages(struct dtp_lowering *l, const char *name, dtp_buffer_id buffer, uint64_t bytes);

/* torch.distributed.pipelining alone: the host's work for `groups` of parameters whose gradients are made in a pass of
 * their own, before what it then issues. Nothing elsewhere. */
void dtp_lower_group_calls(struct dtp_lowering *l, const char *name, uint64_t groups);

/* DTP_FREE and what else a draft lets `buffer` go by, which is behind it on another stream; 0 where it is lent. Behind
 * the draft: dtp_lower_lend, which takes back what was lent before; so does dtp_lower_take_back. */
uint32_t dtp_lower_let_go(const struct dtp_lowering *l);
void dtp_lower_lend(struct dtp_lowering *l, enum dtp_lent what, dtp_buffer_id buffer, dtp_op_id reader);
void dtp_lower_take_back(struct dtp_lowering *l, enum dtp_lent what);

/* lower_tensors.c: modules and sizes of tensors of the plan's blocks. */
void dtp_lower_tensors(struct dtp_lowering *l);

/* lower_again.c: the block at hand, by its operations or by what is known of one that does the same. */
void dtp_lower_block(struct dtp_lowering *l, bool backward);
/* lower_forward.c */
void dtp_lower_embedding(struct dtp_lowering *l);
void dtp_lower_block_forward(struct dtp_lowering *l);
void dtp_lower_block_recompute(struct dtp_lowering *l);
/* What fp32 RoPE passes over are long rows and no views where q and k are matmuls' own results. Measured where a model
 * is divided; whole models with separate matmuls were not. */
bool dtp_lower_rotates_rows(const struct dtp_lowering *l);
void dtp_lower_rotary_tensors(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t bytes);

/* lower_adapter_parts.c: which parts of a module are trained, bytes of all of them; a block's gets its adapters before.
 */
void dtp_lower_list_adapters(struct dtp_lowering *l);
void dtp_lower_count_bytes(const struct dtp_lowering *l, struct dtp_lower_module *module);
/* The layer at hand is the model's first, and nothing below it is trained. What a stage receives wants a gradient. */
static inline bool dtp_lower_cut(const struct dtp_lowering *l)
{
    return l->tensors.cut && l->chunk->embedding && l->layer == l->chunk->first;
}
/* What operator number `index` reads has a gradient. */
static inline bool dtp_lower_wants_gradient(const struct dtp_lowering *l, int index)
{
    uint64_t reads = l->tensors.op[index].reads;
    if (reads & DTP_TENSOR_BIT(CORE_COPY))
        reads |= DTP_TENSOR_BIT(CORE);
    return !dtp_lower_cut(l) || reads & l->tensors.first_gradients;
}
/* What forward saves of the layer at hand. */
static inline uint64_t dtp_lower_saved(const struct dtp_lowering *l)
{
    return dtp_lower_cut(l) ? l->tensors.saved_first : l->tensors.saved;
}
/* Packed weights in the compute dtype: made, or as they stand. Behind the matmul that reads them, whether they go. */
bool dtp_lower_packs(const struct dtp_lowering *l, int part);
dtp_buffer_id dtp_lower_unpack(struct dtp_lowering *l, int matrix);
uint32_t dtp_lower_unpacked_access(struct dtp_lowering *l, int matrix, bool stays);

/* lower_final_norm.c. Backward: of what reads the norm's result, the gradient; the residual stream's begins here. */
void dtp_lower_final_norm(struct dtp_lowering *l);
void dtp_lower_final_norm_backward(struct dtp_lowering *l, dtp_buffer_id gradient);
/* Eager autocast: the head casts the norm's fp32 result for itself when it is called. */
bool dtp_lower_casts_at_head(const struct dtp_lowering *l);
/* lower_ahead.c: a module that predicts further ahead, behind the final norm: its layer, its norm, head and loss.
 * Backward: behind the head's, of which the final norm has `gradient`; returned with the module's added. */
void dtp_lower_ahead_forward(struct dtp_lowering *l);
dtp_buffer_id dtp_lower_ahead_backward(struct dtp_lowering *l, dtp_buffer_id gradient);
/* Its projection's weight: of both sides, side by side. */
struct dtp_layer_matrix dtp_lower_ahead_projection(const struct dtp_lowering *l);
/* lower_embedding.c: rows of the table for the tokens at hand, and of its gradient by `gradient`, which goes. */
dtp_buffer_id dtp_lower_embedding_rows(struct dtp_lowering *l, const char *name);
dtp_buffer_id dtp_lower_table_gradient(struct dtp_lowering *l, dtp_buffer_id gradient, bool waits);
/* lower_loss.c, lower_shifted_loss.c: `drops_input`: nothing reads what the head did. The gradient is in fp32. */
void dtp_lower_shifted_loss(struct dtp_lowering *l, uint64_t tokens, bool drops_input);
void dtp_lower_shifted_gradient(struct dtp_lowering *l, uint64_t tokens);
void dtp_lower_loss_forward(struct dtp_lowering *l); /* head; chunked: with the loss and their backward */
void dtp_lower_loss_held(struct dtp_lowering *l);    /* behind the forward of a stage that holds it: the loss */
void dtp_lower_loss_backward(struct dtp_lowering *l);
void dtp_lower_head_backward(struct dtp_lowering *l); /* with the final norm's */
/* Of an end that is not the model's own: the loss' backward, whose forward was; the head's, and what flows back. */
void dtp_lower_loss_gradient(struct dtp_lowering *l);
dtp_buffer_id dtp_lower_head_gradients(struct dtp_lowering *l);
void dtp_lower_head_deferred(struct dtp_lowering *l);

/* lower_backward.c */
void dtp_lower_block_backward(struct dtp_lowering *l);
/* Parts of a layer in the order in which their gradients are ready: returns how many. */
int dtp_lower_ready_order(const struct dtp_lowering *l, uint64_t layer, int order[DTP_MAX_PARTS]);
/* lower_linear_backward.c: gradients of weights that a split backward has left for later. */
void dtp_lower_deferred_gradients(struct dtp_lowering *l);
void dtp_lower_embedding_backward(struct dtp_lowering *l);

/* lower_tensor_parallel.c. Of tensor parallel ranks each holds rows of the residual stream alone (T/t tokens), and
 * which way a matrix is cut: by columns where it reads the stream, by rows behind those. All false without them. */
bool dtp_lower_spreads(const struct dtp_lowering *l);
bool dtp_lower_cut_by_columns(const struct dtp_lowering *l, int matrix);
bool dtp_lower_cut_by_rows(const struct dtp_lowering *l, int matrix);
bool dtp_lower_shares_input(const struct dtp_lowering *l, int matrix); /* with its adapter, as it was gathered */
void dtp_lower_tensor_make(struct dtp_lowering *l); /* their group, and what stands for the whole step */
/* Bytes of all tokens' rows: of the stream; of what a matrix reads, as it stands. */
uint64_t dtp_lower_whole_stream(const struct dtp_lowering *l, uint64_t element_bytes);
uint64_t dtp_lower_whole_input(const struct dtp_lowering *l, int index);
/* A draft, begun as one of compute for its buffers are from that pool, becomes a collective of the tensor parallel
 * ranks over `whole_bytes`; it runs behind all compute so far. `in_pieces`: with tp_overlap it is what stays exposed,
 * and dtp_lower_tensor_beside issues the rest, beside a matmul about to come; DTP_NO_OP where all is exposed. */
dtp_op_id dtp_lower_tensor_end(struct dtp_lowering *l, struct dtp_draft *draft, uint64_t whole_bytes, bool in_pieces);
dtp_op_id dtp_lower_tensor_beside(struct dtp_lowering *l, enum dtp_op_kind kind, const char *name,
                                  uint64_t whole_bytes);
/* Parameters that each rank has whole, and whose gradients it has terms of. */
uint64_t dtp_lower_replicated_elements(const struct dtp_lowering *l);
/* Where they are summed at once: of a norm of that width, in gradient `part` of the module. */
void dtp_lower_sum_norm_gradient(struct dtp_lowering *l, int part, uint64_t width);
/* Each is awaited by compute. The draft is an all-gather's that reads a rank's rows; behind the matmul that reads what
 * is returned `*beside` is to be awaited; NULL: none is there. A sum over ranks in place; a rank's rows of one, in
 * `element` bytes, whose terms are used by `access`; of a gradient of rows so wide whichever it takes. */
dtp_buffer_id dtp_lower_gather_rows(struct dtp_lowering *l, struct dtp_draft *draft, enum dtp_owner owner,
                                    uint64_t whole_bytes, dtp_op_id *beside);
void dtp_lower_sum_in_place(struct dtp_lowering *l, const char *name, dtp_buffer_id buffer, uint64_t bytes,
                            bool in_pieces);
dtp_buffer_id dtp_lower_scatter_sum(struct dtp_lowering *l, const char *name, dtp_buffer_id terms, uint32_t access,
                                    const char *result, uint64_t element, bool in_pieces);
dtp_buffer_id dtp_lower_sum_of_rows(struct dtp_lowering *l, const char *name, dtp_buffer_id terms, uint32_t access,
                                    uint64_t width);
/* DTP_DEFER where the terms of a scattered sum are let go while it runs, else 0. */
uint32_t dtp_lower_held_terms(const struct dtp_lowering *l);

/* lower_weights.c: what matmuls read and what becomes of their gradients. dtp_lower_weight: the buffer of part `part`
 * of the module the skeleton stands at; emits the cast where autocast has none yet. dtp_lower_params: what is at rest.
 */
dtp_buffer_id dtp_lower_params(const struct dtp_module_state *state, int part);
dtp_buffer_id dtp_lower_weight(struct dtp_lowering *l, int part);
dtp_buffer_id *dtp_lower_cast_of(struct dtp_lowering *l, int part); /* where the cast stands */
void dtp_lower_forget_casts(struct dtp_lowering *l);                /* autocast's context ends with forward */
void dtp_lower_forget_all_casts(struct dtp_lowering *l);            /* or with the last pass */
void dtp_lower_gradient_made(struct dtp_lowering *l, int part);
void dtp_lower_keep_gradient(struct dtp_lowering *l, int part); /* it becomes .grad, or is added to it */
/* Adds the result of an operation that makes gradient `part`: a fresh tensor, or its place in the gradient buffer. */
void dtp_lower_gradient_result(struct dtp_lowering *l, struct dtp_draft *draft, int part, uint64_t element_bytes);
/* A pass of weights leaves autograd's gradient where it is until a backward of the chunk takes it: what is made
 * meanwhile is added to what was there `before`. */
void dtp_lower_add_gradient(struct dtp_lowering *l, int part, dtp_buffer_id before);
void dtp_lower_cast_gradient(struct dtp_lowering *l, int part); /* autocast: into the parameters' dtype */
/* Elements of the gradient that autograd makes of a part: what the rank has, or more, and what it has cut out of that.
 */
uint64_t dtp_lower_made_elements(const struct dtp_lowering *l, const struct dtp_lower_module *of, int part);
dtp_buffer_id dtp_lower_cut_gradient(struct dtp_lowering *l, dtp_buffer_id whole, uint64_t element_bytes, bool goes);
bool dtp_lower_recasts(const struct dtp_lowering *l, uint64_t layer); /* the layer's casts are made again in backward */

static inline void dtp_lower_around_experts(struct dtp_lowering *l, void (*hook)(struct dtp_lowering *l, bool backward),
                                            bool backward)
{
    if (hook)
        hook(l, backward);
}
/* lower.c: before and behind what reads the weight of part `part` of the module the skeleton stands at. */
void dtp_lower_fetch(struct dtp_lowering *l, int part);
void dtp_lower_unfetch(struct dtp_lowering *l);
uint64_t dtp_lower_largest_tensor(const struct dtp_lowering *l); /* elements of the largest parameter */
/* lower_optimizer.c: bytes of what the module trains; the update of `elements` parameters, with their buffers. */
const struct dtp_element_bytes *dtp_lower_bytes(const struct dtp_lowering *l);
void dtp_lower_update(struct dtp_lowering *l, dtp_buffer_id params, struct dtp_lower_moments moments,
                      const dtp_buffer_id *grads, int grad_count, uint64_t elements);
/* Adds tensors of a parameter of `elements`, or one of `bytes` (0: none), to those made just before ({DTP_NO_BUFFER,
 * 0}). */
void dtp_lower_add_moments(struct dtp_lowering *l, struct dtp_lower_moments *moments, uint64_t elements);
void dtp_lower_add_state(struct dtp_lowering *l, struct dtp_lower_moments *moments, uint64_t bytes);

#endif
