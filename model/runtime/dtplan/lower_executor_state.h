/* What the files of our executor's lowering share: the step as it is being built.
 *
 * Compute operations are drafted in the order of the step; what they must wait for on other streams (a gather, a batch)
 * is noted with dtp_executor_await and attached to the next one. */
#ifndef DTP_LOWER_EXECUTOR_STATE_H
#define DTP_LOWER_EXECUTOR_STATE_H

#include "runtime/dtplan/executor_block.h"
#include "runtime/dtplan/executor_factors.h"
#include "runtime/dtplan/lower_executor.h"
#include "lower/lowering.h"

/* One module in the step. */
struct dtp_executor_module {
    const struct dtp_parameter_module *layout;
    uint64_t shard_ranks, replicas;                       /* ranks that share a copy of it; copies */
    uint32_t shard_group, gather_group, replica_group;    /* communicators; DTP_NO_INDEX: none */
    uint64_t gradient_element_bytes, shard_element_bytes; /* of whole gradients, of what the optimizer reads */
    dtp_buffer_id state[DTP_EXECUTOR_STATE_COUNT];        /* at rest; whole or this rank's shard */
    dtp_buffer_id gathered;                               /* whole weights that operations read now */
    dtp_op_id gathered_by;                                /* compute has not waited for it yet; DTP_NO_OP: it has */
    dtp_buffer_id gradient;                    /* whole, of this micro-step or added up; DTP_NO_BUFFER: none alive */
    bool allocates;                            /* the next operation on `gradient` brings it to life */
    uint64_t written;                          /* bits of parameters whose gradient holds something */
    dtp_buffer_id reduced;                     /* what the optimizer reads, where that is not `gradient` */
    dtp_op_id reduced_by;                      /* last operation of another stream on gradient or reduced */
    dtp_buffer_id host_gradient, host_weights; /* offloaded: where gradients land, and new weights leave from */
    dtp_op_id downloaded;
};

_Static_assert(DTP_PARAMETER_COUNT < 63, "sets of parameters are bits of 64, the last of which says something else");
static inline uint64_t dtp_executor_written_bit(enum dtp_parameter which)
{
    return UINT64_C(1) << which;
}

/* A buffer that an operation of another stream still reads: whole gradients that are reduced, operands of weight
 * gradients. */
struct dtp_executor_draining {
    dtp_buffer_id buffer;
    dtp_op_id reader;
};
#define DTP_EXECUTOR_MOST_HELD 20

/* A weight gradient that a backward of inputs alone leaves to a pass of its own (lower_executor_split.c). */
struct dtp_executor_deferred {
    uint64_t layer;
    int op; /* of shape.op */
    dtp_buffer_id gradient, input;
    dtp_buffer_id routes; /* of a product of rows by experts: which rows are whose */
};
/* A micro-batch on its way through a chunk, from its forward to the end of its backward. */
struct dtp_executor_flight {
    dtp_buffer_id (*tensors)[DTP_EXECUTOR_TENSORS]; /* [layers of the rank]; DTP_NO_BUFFER: not alive */
    dtp_buffer_id output;                           /* the residual stream behind the chunk's last block */
    struct dtp_executor_deferred *deferred;         /* [layers x DTP_EXECUTOR_OPERATORS], in order of backward */
    uint32_t deferred_count;
    struct dtp_executor_kept { /* what these read and nobody else will */
        uint64_t layer;
        dtp_buffer_id buffer;
    } * kept;
    uint32_t kept_count;
    dtp_buffer_id *host_starts; /* [layers] where ranks divide experts: what was heard of their rows */
};

struct dtp_executor {
    struct dtp_lowering *l;
    const struct dtp_transformer *t;
    const struct dtp_plan *plan;
    struct dtp_executor_rules rules;
    struct dtp_parameter_module embedding, head;       /* layouts */
    struct dtp_parameter_module block[DTP_LAYER_MLPS]; /* of a block with such an MLP; empty: the model has none */
    struct dtp_parameter_module adapters, packed;      /* of a block's; of its matrices in 4 bits */
    struct dtp_parameter_module experts, no_experts;   /* of a block's where ranks divide them; empty: it has none */
    struct dtp_executor_module *modules; /* [module_count + all counts behind it]; of what the rank holds */
    uint64_t module_count, adapter_count, packed_count, expert_count; /* of the latter three one a block, or none */
    uint64_t model_layers;                                            /* of all ranks */

    uint64_t element_bytes, h; /* of the compute dtype; the stream's width */
    struct dtp_executor_block shapes[DTP_LAYER_MLPS],
        first_shape;                                /* of blocks with such an MLP; of the model's first */
    const struct dtp_executor_block *shape;         /* of the block at hand; beside blocks one with experts, if any */
    struct dtp_executor_flight *flight;             /* of the micro-batch at hand */
    struct dtp_executor_flight *flights;            /* room for as many as there ever are, */
    uint32_t *flight_of, *unused, unused_count;     /* which is whose: of each chunk and micro-batch */
    dtp_buffer_id (*tensors)[DTP_EXECUTOR_TENSORS]; /* the flight's */
    dtp_buffer_id gradients[DTP_EXECUTOR_TENSORS];  /* of tensors of the block whose backward runs; the same */

    dtp_buffer_id *batch; /* [batch_count]: two that take turns, or in a pipeline one for each micro-batch */
    uint32_t batch_count;
    dtp_buffer_id host_batch, scalars, host_scalars, host_results, tables, partials, workspace;
    dtp_buffer_id gradient_workspace;  /* of the stream of weight gradients */
    dtp_buffer_id rows, rows_gradient; /* gathered for an adapter, and for the projection beside it */
    dtp_buffer_id stream_input;        /* the residual stream where the next module begins */
    dtp_buffer_id final_norm, final_statistics;
    dtp_buffer_id embedded, embedded_statistics; /* what the embedding's norm read, where there is one */
    dtp_buffer_id gradient;                      /* of the residual stream */
    dtp_op_id await[DTP_STREAM_COUNT];           /* what the next compute operation waits for */
    dtp_op_id batch_read[2];                     /* last operation that read each batch buffer */

    /* Gathered blocks: slots of a ring, filled ahead in the order of use (lower_executor_weights.c). */
    dtp_buffer_id *slot, *expert_slot;
    uint64_t *slot_block;                     /* block in each; UINT64_MAX: none */
    dtp_op_id *slot_read;                     /* last compute operation that read it */
    uint64_t next_use;                        /* position in the step's sequence of block passes */
    struct dtp_executor_draining draining[2]; /* oldest first */
    int draining_count;
    struct dtp_executor_draining held[DTP_EXECUTOR_MOST_HELD]; /* by weight gradients, oldest first */
    int held_count;
    dtp_buffer_id amax, scales; /* fp8: of each tensor that is cast (lower_executor_fp8.c) */
    struct dtp_executor_left {  /* weight gradients of the block at hand that stand beside its exchanges of tokens */
        int op;                 /* of shape->op */
        dtp_buffer_id gradient, input;
        bool gradient_goes, input_goes; /* nobody else reads them behind it */
    } left[2];
    int left_count;
    bool inputs_alone;        /* backward at hand leaves weight gradients for later */
    dtp_op_id gradient_read;  /* weight gradient that reads the residual's gradient last */
    dtp_buffer_id staging[2]; /* offloaded shards on their way into a gather */
    dtp_op_id staging_read[2];
    int staging_next;
    struct dtp_executor_turns { /* gradients of blocks that do not stay, of each kind by turns */
        dtp_buffer_id shard[2];
        dtp_op_id read[2]; /* by what takes them: a download, an update */
    } turns[DTP_LAYER_MLPS];
    dtp_buffer_id scattered; /* shards of later micro-steps before they are added */
    dtp_buffer_id narrow; /* what replicas sum of a module: in a hook's 16 or 8 bits, or P and what is not factored */
    dtp_buffer_id packed_parts; /* what all of them have in 8 bits */
    dtp_buffer_id factor_workspace;
    dtp_buffer_id exchanged; /* all ranks' gradients of this rank's shard, to be added up */
    uint32_t shard_group, gather_group, exchange_group, replica_group; /* communicators; DTP_NO_INDEX: none */
    uint32_t tensor_group, context_group;                              /* of tensor, of context parallel ranks */
    uint32_t expert_group;                                             /* of ranks that divide experts */
    uint32_t same_experts_group,
        expert_copies_group; /* that share a copy of the same ones; that have copies of these */
    dtp_buffer_id heard;     /* on the device, of the block at hand: what flights keep on the host */
    dtp_op_id starts_down;   /* brings it there */
};

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

/* lower_executor_layouts.c */
void dtp_executor_derive_blocks(struct dtp_executor *x);
void dtp_executor_derive_layouts(struct dtp_executor *x);
/* lower_executor_shapes.c: shapes of an operation, as its kind needs them; what all of them have in common. */
void dtp_executor_shape(const struct dtp_executor *x, struct dtp_draft *draft);
void dtp_executor_describe(struct dtp_executor *x);
/* A compute operation; takes over what is awaited. */
void dtp_executor_begin(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_op_kind kind, const char *name);
void dtp_executor_await(struct dtp_executor *x, enum dtp_stream stream, dtp_op_id earlier);
/* A fresh buffer of the compute dtype's activations: ALLOC and the bits given. */
dtp_buffer_id dtp_executor_new(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, const char *name,
                               enum dtp_owner owner, uint64_t bytes, uint32_t access);
/* Bytes through HBM, tokens and launches of a memory-bound operation. */
void dtp_executor_memory(struct dtp_draft *draft, uint64_t rows, double bytes, uint32_t kernels);
/* FLOPs, dtype and workspace of [m,k] x [k,n]. */
void dtp_executor_matmul(struct dtp_executor *x, struct dtp_draft *draft, uint64_t m, uint64_t n, uint64_t k);
void dtp_executor_free(struct dtp_executor *x, dtp_buffer_id buffer, const char *name);
dtp_op_id dtp_executor_end(struct dtp_executor *x, struct dtp_draft *draft);

/* The tokens of the micro-batch at hand, on the device. */
static inline dtp_buffer_id dtp_executor_batch(const struct dtp_executor *x)
{
    return x->batch[x->l->micro_step % x->batch_count];
}

/* lower_executor_backward.c: the next compute operation waits for the weight gradient `until`, and what that one and
 * those before it held goes. */
void dtp_executor_await_gradient(struct dtp_executor *x, dtp_op_id until);

/* Which of the model's kinds a layer is of. */
static inline enum dtp_layer_mlp dtp_executor_mlp_of(const struct dtp_executor *x, uint64_t layer)
{
    return dtp_lower_mlp(x->l, layer);
}
/* Whether ranks divide the experts of the model's layers: also asked on a stage that has none of these. */
static inline bool dtp_executor_divides_experts(const struct dtp_executor *x)
{
    return x->shapes[DTP_LAYER_EXPERTS].kind.exchanged;
}
/* Drafts are of this layer's operators from here on. */
static inline void dtp_executor_stand_at(struct dtp_executor *x, uint64_t layer)
{
    x->l->layer = (uint16_t)layer;
    x->shape = &x->shapes[dtp_executor_mlp_of(x, layer)];
}
/* Whether nothing below the block's first adapter is trained, nor on another rank: the model's first block, unless the
 * embedding is a stage of its own, to which every other stage sends a gradient. */
static inline bool dtp_executor_ends_backward(const struct dtp_executor *x, uint64_t layer)
{
    const struct dtp_lower_role *role = &x->l->role;
    for (uint32_t i = 0; x->shape->adapted && i < role->chunk_count; i++)
        if (role->chunks[i].embedding && role->chunks[i].first == layer)
            return true;
    return false;
}
/* Operators of a block; of the model's first others may be without a backward. */
static inline const struct dtp_executor_block *dtp_executor_shape_of(const struct dtp_executor *x, uint64_t layer)
{
    return dtp_executor_ends_backward(x, layer) ? &x->first_shape : &x->shapes[dtp_executor_mlp_of(x, layer)];
}
/* Of a module, by its place among all: DTP_NO_LAYER of the model's ends. */
static inline uint16_t dtp_executor_layer_of(const struct dtp_executor *x, uint64_t index)
{
    if (index >= x->module_count)
        return (uint16_t)((index - x->module_count) % (x->adapter_count ? x->adapter_count : x->expert_count));
    return index == 0 || index + 1 == x->module_count ? DTP_NO_LAYER : (uint16_t)(index - 1);
}
static inline const char *dtp_executor_module_name(const struct dtp_executor *x, uint64_t index)
{
    if (index >= x->module_count)
        return x->expert_count ? "experts" : "adapters";
    return index == 0 ? "embedding" : index + 1 == x->module_count ? "head" : "block";
}
/* Modules that have gradients and state of the optimizer: all, or adapters alone. */
static inline bool dtp_executor_is_trained(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    uint64_t index = (uint64_t)(module - x->modules);
    return !x->shape->adapted || (index >= x->module_count && index < x->module_count + x->adapter_count);
}
static inline uint64_t dtp_executor_all_modules(const struct dtp_executor *x)
{
    return x->module_count + x->adapter_count + x->packed_count + x->expert_count;
}
static inline struct dtp_executor_module *dtp_executor_adapters(struct dtp_executor *x, uint64_t layer)
{
    return &x->modules[x->module_count + layer];
}

/* Of its matrices in 4 bits. */
static inline struct dtp_executor_module *dtp_executor_packed(struct dtp_executor *x, uint64_t layer)
{
    return &x->modules[x->module_count + x->adapter_count + layer];
}

/* Of its experts, where ranks divide them. */
static inline struct dtp_executor_module *dtp_executor_experts(struct dtp_executor *x, uint64_t layer)
{
    return &x->modules[x->module_count + x->adapter_count + x->packed_count + layer];
}

/* Module of a block: layer + 1. */
static inline struct dtp_executor_module *dtp_executor_block(struct dtp_executor *x, uint64_t layer)
{
    return &x->modules[layer + 1];
}
/* That of an operator's weight. */
static inline struct dtp_executor_module *dtp_executor_module_of(struct dtp_executor *x, uint64_t layer,
                                                                 const struct dtp_executor_operator *op)
{
    return x->expert_count && op->matrix && op->matrix->expert ? dtp_executor_experts(x, layer)
                                                               : dtp_executor_block(x, layer);
}
/* Elements of the largest of the model's blocks. */
static inline uint64_t dtp_executor_largest_block(const struct dtp_executor *x)
{
    const uint64_t dense = x->block[DTP_LAYER_DENSE].elements, experts = x->block[DTP_LAYER_EXPERTS].elements;
    return dense > experts ? dense : experts;
}
static inline bool dtp_executor_is_block(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return module->layout == &x->block[DTP_LAYER_DENSE] || module->layout == &x->block[DTP_LAYER_EXPERTS];
}
static inline struct dtp_executor_turns *dtp_executor_turns_of(struct dtp_executor *x,
                                                               const struct dtp_executor_module *module)
{
    return &x->turns[module->layout == &x->block[DTP_LAYER_EXPERTS] ? DTP_LAYER_EXPERTS : DTP_LAYER_DENSE];
}
/* Whether its weights rest as shards, and are gathered when they are read. */
static inline bool dtp_executor_is_sharded(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return x->rules.sharded && (module->shard_ranks > 1 || x->rules.host_params);
}
static inline struct dtp_executor_module *dtp_executor_head(struct dtp_executor *x)
{
    return &x->modules[x->module_count - 1];
}

/* ---- lower_executor_weights.c: where weights are read ------------------------------------------------------------ */

/* The weights of parameter `which` as an operand; waits for their gather. */
void dtp_executor_weight(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role,
                         struct dtp_executor_module *module, enum dtp_parameter which);
static inline bool dtp_executor_has(const struct dtp_executor_module *module, enum dtp_parameter which)
{
    return module->layout->tensor[which].exists;
}

/* Drafts stand at the module's layer, wherever the skeleton is. Without a name they have the module's. */
void dtp_executor_begin_at(struct dtp_executor *x, const struct dtp_executor_module *module, struct dtp_draft *draft,
                           enum dtp_op_kind kind, const char *name);
/* Ends a draft as a collective of one kernel. */
dtp_op_id dtp_executor_collective(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_stream stream,
                                  uint32_t group, uint64_t sent_bytes);

/* Points of the skeleton. Of a micro-step's passes, in order: embedding, blocks forward, head with loss, blocks
 * backward, embedding backward. */
void dtp_executor_make_groups(struct dtp_executor *x);             /* communicators and standing buffers */
uint64_t dtp_executor_largest_shard(const struct dtp_executor *x); /* elements */
void dtp_executor_step_begins(struct dtp_executor *x);
void dtp_executor_before_embedding(struct dtp_executor *x);
void dtp_executor_after_embedding(struct dtp_executor *x);
void dtp_executor_before_block(struct dtp_executor *x, uint64_t layer); /* forward or backward: the next pass */
void dtp_executor_after_block(struct dtp_executor *x, uint64_t layer);
void dtp_executor_gather_head(
    struct dtp_executor *x); /* before the last block's forward with prefetch, else before the loss */
void dtp_executor_after_loss(struct dtp_executor *x);

/* ---- lower_executor_gradients.c: where gradients are written ----------------------------------------------------- */

void dtp_executor_make_reduction_buffers(struct dtp_executor *x);
/* The gradient of parameter `which` as an operand: brings the buffer to life, overwrites what it holds first and adds
 * later. True: it adds. */
bool dtp_executor_gradient(struct dtp_draft *draft, enum dtp_role role, struct dtp_executor_module *module,
                           enum dtp_parameter which);
/* Of a part of it, which is the first to be written or not, as the whole is: [begin, begin + elements) of the tensor.
 */
void dtp_executor_gradient_part(struct dtp_draft *draft, struct dtp_executor_module *module, enum dtp_parameter which,
                                uint64_t begin, uint64_t elements, bool adds);
/* A gradient buffer for the module's pass, with zero padding; nothing if micro-steps before made it. */
void dtp_executor_open_gradient(struct dtp_executor *x, struct dtp_executor_module *module);
/* Zeros where no operation has written a gradient: the embedding's, whose backward adds rows to it. */
void dtp_executor_zero_unwritten(struct dtp_executor *x, struct dtp_executor_module *module);
/* All of the module's gradients of this micro-step are written. */
void dtp_executor_close_gradient(struct dtp_executor *x, struct dtp_executor_module *module);
/* All reductions are issued: what they read goes. */
void dtp_executor_drain(struct dtp_executor *x, int left);

/* lower_executor_hook.c: sums over replicas, as the plan's communication hook has them. */
void dtp_executor_make_hook(struct dtp_executor *x);
/* `elements` of the module in `buffer` become the sum over replicas, behind `after` on `stream`: its last operation. */
dtp_op_id dtp_executor_sum_replicas(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id buffer,
                                    uint64_t elements, enum dtp_stream stream, dtp_op_id after);
/* What a sum over replicas must wait for: `after`, and who else writes gradients. */
void dtp_executor_await_gradients(const struct dtp_executor *x, struct dtp_draft *draft, dtp_op_id after);
/* lower_executor_factors.c: the same where PowerSGD factors them. */
void dtp_executor_make_factors(struct dtp_executor *x);
dtp_op_id dtp_executor_sum_factored(struct dtp_executor *x, struct dtp_executor_module *module,
                                    const struct dtp_executor_factors *factors, dtp_buffer_id gradient,
                                    enum dtp_stream stream, dtp_op_id after);

/* ---- the others -------------------------------------------------------------------------------------------------- */

/* lower_executor_forward.c */
void dtp_executor_embedding(struct dtp_executor *x);
void dtp_executor_block_forward(struct dtp_executor *x, uint64_t layer);
/* The operators whose bits are set once more, which keep what backward reads. */
void dtp_executor_block_again(struct dtp_executor *x, uint64_t layer, uint32_t operators);

/* lower_executor_loss.c: final norm, head and loss, each with its backward. */
void dtp_executor_loss(struct dtp_executor *x);

/* lower_executor_norm.c. A norm that stands by itself, of the residual stream: `norm` its weight, whose bias is behind;
 * makes *result and *statistics. */
void dtp_executor_norm_forward(struct dtp_executor *x, struct dtp_executor_module *module, const char *name,
                               enum dtp_parameter norm, dtp_buffer_id input, dtp_buffer_id *result,
                               dtp_buffer_id *statistics);
/* block_backward: lower_executor_backward.c */
struct dtp_executor_norm_gradient {
    const char *name;
    enum dtp_parameter weight; /* its bias is the parameter after it */
    dtp_buffer_id gradient, input, statistics;
    bool gradient_stays, input_stays; /* others read them later */
    bool apart;                       /* makes a buffer of its own, also where the stream has a gradient */
    uint64_t amax;                    /* fp8: 1 + the slot for the amax of what it makes; 0: nobody asks */
    double bytes;                     /* without the weight's own gradient */
};
/* lower_executor_norm.c: adds to the residual's gradient, or makes it where there is none; returns what it wrote. What
 * the norm's forward left goes. */
dtp_buffer_id dtp_executor_norm_backward(struct dtp_executor *x, struct dtp_executor_module *module,
                                         const struct dtp_executor_norm_gradient *norm);
void dtp_executor_block_backward(struct dtp_executor *x, uint64_t layer);
void dtp_executor_embedding_backward(struct dtp_executor *x);

/* lower_executor_tensor.h: what tensor parallel ranks do besides. */
static inline bool dtp_executor_is_cut(const struct dtp_executor *x)
{
    return x->rules.tensor_ranks > 1;
}

/* lower_executor_context.c: attention of context parallel ranks. Without such ranks nobody calls these but the first.
 */
static inline bool dtp_executor_shares_sequence(const struct dtp_executor *x)
{
    return x->plan->cp > 1;
}
void dtp_executor_context_make(struct dtp_executor *x);
/* All of attention but the end of its last operation, a draft in which the caller makes the result, in role RESULT, and
 * its log-sum-exp, in role STATISTICS. */
void dtp_executor_context_forward(struct dtp_executor *x, struct dtp_draft *draft, dtp_buffer_id qkv);
/* What backward reads, which goes behind its last use: of the result the caller says how it is read then. */
struct dtp_executor_core {
    dtp_buffer_id qkv, result, statistics, gradient;
    uint32_t result_access;
};
/* The gradient of the packed qkv, fresh. */
dtp_buffer_id dtp_executor_context_backward(struct dtp_executor *x, const struct dtp_executor_core *core);

/* lower_executor_exchange.c: where they exchange tokens for heads. */
static inline bool dtp_executor_exchanges_heads(const struct dtp_executor *x)
{
    return x->l->context.exchanged > 1;
}
/* Tensors of one attention. The packed qkv of all tokens takes the place of the rank's, unless it has come in a pass
 * before; the log-sum-exp is made where it is not there. Each goes, or stays for backward. */
struct dtp_executor_exchanged {
    dtp_buffer_id *qkv, *statistics;
    bool inputs_came, inputs_go, statistics_go;
};
/* All of attention but the end of its last operation, a draft in which the caller makes the result, in role RESULT. */
void dtp_executor_exchange_forward(struct dtp_executor *x, struct dtp_draft *draft,
                                   const struct dtp_executor_exchanged *of);
dtp_buffer_id dtp_executor_exchange_backward(struct dtp_executor *x, const struct dtp_executor_core *core);
/* lower_executor_left.c: whether a projection's weight gradient is left to stand beside an exchange of the block's
 * attention backward; those that are, issued there. */
bool dtp_executor_leaves(const struct dtp_executor *x, int op);
void dtp_executor_leave(struct dtp_executor *x, const struct dtp_executor_left *left);
bool dtp_executor_is_left(const struct dtp_executor *x, dtp_buffer_id input);
void dtp_executor_issue_left(struct dtp_executor *x, bool of_attention);
/* lower_executor_attention.c: however attention is shared. */
dtp_buffer_id dtp_executor_attention_backward(struct dtp_executor *x, const struct dtp_executor_core *core);

/* lower_executor_adapters.c: an adapter's half, forward and backward. The gradients of its result and of its input are
 * `result` and `input`, of which the latter is added to. `frees`: nobody else reads the former. */
/* A matmul reads what it adds to while it computes, but one of a few columns by a few rows is nothing but reads and
 * writes. So B writes the projection's result first (`leads`) and the projection adds to that, where B writes all of
 * it; else B adds to what the projection has written. Likewise A's part of the input's gradient comes first. */
bool dtp_executor_adapter_leads(const struct dtp_executor *x, int projection);
void dtp_executor_adapter_forward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                  dtp_buffer_id low, uint32_t low_frees, dtp_buffer_id *result, bool leads);
dtp_buffer_id dtp_executor_adapter_b_backward(struct dtp_executor *x, uint64_t layer,
                                              const struct dtp_executor_operator *op, dtp_buffer_id gradient,
                                              bool frees, dtp_buffer_id low);
void dtp_executor_adapter_a_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                     dtp_buffer_id low_gradient, dtp_buffer_id input, bool input_goes,
                                     dtp_buffer_id *input_gradient);
/* WEIGHT of a product with a block's matrix: where it rests, or unpacked, which is there for that product alone. */
dtp_buffer_id dtp_executor_unpack(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op);
void dtp_executor_matrix(struct dtp_executor *x, struct dtp_draft *draft, uint64_t layer,
                         const struct dtp_executor_operator *op, dtp_buffer_id unpacked);
/* Factor of what goes through an adapter: alpha / rank. */
double dtp_executor_adapter_scale(const struct dtp_executor *x);

/* lower_executor_latent.c: latent attention. What a norm of a latent says besides what others say; nothing of others.
 */
void dtp_executor_latent_norm(const struct dtp_executor *x, struct dtp_draft *draft,
                              const struct dtp_executor_operator *op);
/* Columns that rope turns, and those of a row of the kv latent, of what packs heads. */
void dtp_executor_latent_shape(const struct dtp_executor *x, struct dtp_draft *draft);
/* Gradients of what was projected of those of packed heads, which go; of a latent of its norm's, whose forward left
 * `latent`, which goes. */
void dtp_executor_latent_heads_backward(struct dtp_executor *x, const struct dtp_executor_operator *op);
void dtp_executor_latent_norm_backward(struct dtp_executor *x, uint64_t layer, const struct dtp_executor_operator *op,
                                       dtp_buffer_id latent);

/* lower_executor_split.c: backward in two passes, or in two parts of one. In a backward of inputs alone: */
static inline bool dtp_executor_splits(const struct dtp_executor *x)
{
    return x->inputs_alone;
}
/* So many layers of the chunk, the first ones, have in a whole backward theirs behind what it gives to another rank. */
uint64_t dtp_executor_delayed_layers(const struct dtp_executor *x);
/* The weight gradient of the operator is left for later. */
void dtp_executor_defer(struct dtp_executor *x, uint64_t layer, int op, dtp_buffer_id gradient, dtp_buffer_id input);
/* Whether one that was left reads the buffer, which then may not change. */
bool dtp_executor_is_deferred(const struct dtp_executor *x, dtp_buffer_id buffer);
/* What the last operation of backward that reads a buffer does to it: DTP_FREE, or 0 where it stays for those. */
uint32_t dtp_executor_lets_go(struct dtp_executor *x, dtp_buffer_id buffer);
/* All of them, in the order of backward; what they read goes. */
void dtp_executor_weights_backward(struct dtp_executor *x);
/* What another stream's operation makes: who reads it waits for that. */
struct dtp_executor_moved {
    dtp_buffer_id buffer;
    dtp_op_id by;
};
/* lower_executor_gradients.c: one of them, or one that is not left. `rows`: what tensor parallel ranks have gathered of
 * its input; NULL: it gathers them. */
void dtp_executor_weight_gradient(struct dtp_executor *x, struct dtp_draft *draft, uint64_t layer, int op,
                                  dtp_buffer_id gradient, uint32_t gradient_frees, dtp_buffer_id input,
                                  uint32_t input_frees, const struct dtp_executor_moved *rows);

/* lower_executor_stages.c: what the stages of a pipeline join behind their last pass. */
void dtp_executor_join_copies(struct dtp_executor *x);
/* Behind a backward: gradients of the embedding's module are written, if no later pass of the rank adds to them. */
void dtp_executor_close_table(struct dtp_executor *x);
/* The model's number of a module. */
uint64_t dtp_executor_model_module(const struct dtp_executor *x, uint64_t index);
/* Partial sums of squares of all modules of the model that are trained; those of divided experts, of the layers that
 * have any, stand behind all others. */
static inline uint64_t dtp_executor_partials_bytes(const struct dtp_executor *x)
{
    uint64_t experts =
        dtp_executor_divides_experts(x) ? dtp_transformer_expert_layers(x->l->transformer, x->model_layers) : 0;
    uint64_t modules = x->shape->adapted ? x->model_layers : x->model_layers + 2 + experts;
    return 4 * (uint64_t)DTP_EXECUTOR_SQUARE_SUM_PARTIALS * modules;
}
/* Whether no rank before this one holds the module too: of several copies one is counted, and saved. */
bool dtp_executor_owns(const struct dtp_executor *x, uint64_t index);

/* lower_executor_fp8.c: casts of matmuls' operands. Where one scale is for a whole tensor, a slot has the amax of a
 * tensor and, once it was cast, what its numbers are to be multiplied by. */
uint64_t dtp_executor_fp8_slot(const struct dtp_executor *x, enum dtp_executor_cast_of what, uint64_t layer,
                               int matrix);
/* That of the stream's gradient which the backward of operator `index` makes, plus 1; 0: no projection reads it.
 * Index -1: the final norm's. */
uint64_t dtp_executor_fp8_stream_slot(const struct dtp_executor *x, uint64_t layer, int index);
void dtp_executor_fp8_make(struct dtp_executor *x);
void dtp_executor_fp8_begins(struct dtp_executor *x, uint32_t micro_step);
/* Roles AMAX and scale of an operation. */
void dtp_executor_fp8_amax(struct dtp_executor *x, struct dtp_draft *draft, uint64_t slot, uint32_t access);
void dtp_executor_fp8_scale(struct dtp_executor *x, struct dtp_draft *draft, enum dtp_role role, uint64_t slot,
                            uint32_t access);
/* What a cast needs for its scale, which it makes of the amax, or which was made of earlier steps': then it may find
 * that of this step on the way. */
void dtp_executor_fp8_scales(struct dtp_executor *x, struct dtp_draft *draft, uint64_t slot, bool finds);
/* A pass over what is to be cast, for its amax. `weight`: of the module in place of `tensor`. */
struct dtp_executor_cast {
    const char *name;
    dtp_buffer_id tensor;
    const struct dtp_executor_operator *weight;
    uint64_t layer, rows, columns, slot;
    enum dtp_executor_cast_of what;
    bool frees, by_rows, by_columns;
    bool finds; /* the amax, for later steps, where nobody before it has */
};
void dtp_executor_fp8_measure(struct dtp_executor *x, const struct dtp_executor_cast *cast);
/* The casts, which are fresh buffers. */
struct dtp_executor_casts {
    dtp_buffer_id rows, columns;
};
struct dtp_executor_casts dtp_executor_fp8_cast(struct dtp_executor *x, const struct dtp_executor_cast *cast);
/* Bytes, shape and form of a draft that casts by rows, by columns or both; by neither it finds the amax. */
void dtp_executor_fp8_demand(struct dtp_draft *draft, enum dtp_form form, uint64_t rows, uint64_t columns, bool by_rows,
                             bool by_columns);
/* The form and the scales of a product of two casts, of which `gradient` is the first in backward; those of tensors lie
 * in slots. */
void dtp_executor_fp8_product(struct dtp_executor *x, struct dtp_draft *draft, uint64_t slot, uint64_t other_slot);
/* A projection's weight, by rows or columns; its amax comes first where this is its first use of the step. */
dtp_buffer_id dtp_executor_fp8_weight(struct dtp_executor *x, const struct dtp_executor_operator *op, uint64_t layer,
                                      bool columns);

/* lower_executor_offload.c: state in host memory. `upload` brings a module's shard, to `to` where one rank has all of
 * it (returns the operation) or into a staging shard that *from then names. */
void dtp_executor_make_host(struct dtp_executor *x, uint64_t index);
dtp_op_id dtp_executor_upload(struct dtp_executor *x, struct dtp_executor_module *module, dtp_buffer_id *to,
                              bool allocates, dtp_op_id after);
void dtp_executor_download(struct dtp_executor *x, struct dtp_executor_module *module);
void dtp_executor_host_update(struct dtp_executor *x, struct dtp_executor_module *module, dtp_op_id scalars);
void dtp_executor_host_step(struct dtp_executor *x, dtp_op_id scalars);

/* lower_executor_step.c: norm, clipping, update. What the optimizer reads: reduced shards, or the whole gradients. */
dtp_buffer_id dtp_executor_gradients_of(const struct dtp_executor_module *module);
/* The module's sum of squares behind its last reduction, on that one's stream, where gradients do not stay. */
dtp_op_id dtp_executor_square_sum_behind(struct dtp_executor *x, struct dtp_executor_module *module);
/* AdamW of the module there, of what that stream has made; its gradients may go then. */
dtp_op_id dtp_executor_update_behind(struct dtp_executor *x, struct dtp_executor_module *module);
/* Whether the module's do not: a block's, on their way to the host or into the optimizer behind their reduction. */
static inline bool dtp_executor_streams(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return x->rules.streams_gradients && dtp_executor_is_block(x, module);
}
/* On one rank nothing is reduced: a block's gradients are final behind its backward, and go into its weights there. */
static inline bool dtp_executor_updates_alone(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return x->rules.updates_in_backward && x->rules.shard_ranks == 1 && x->rules.replicas == 1 &&
           dtp_executor_is_block(x, module) && dtp_executor_is_trained(x, module);
}
/* AdamW of such a block, in line with its backward; its gradients go. */
void dtp_executor_update_alone(struct dtp_executor *x, struct dtp_executor_module *module);
void dtp_executor_update(struct dtp_executor *x);

/* lower_executor_muon.c: Muon of a block's matrices, AdamW of its vectors; its gradients go. */
void dtp_executor_muon(struct dtp_executor *x, struct dtp_executor_module *module);

/* lower_executor_bytes.c */
double dtp_executor_attention_flops(const struct dtp_executor *x); /* forward */
double dtp_executor_embedding_bytes(const struct dtp_executor *x);
double dtp_executor_embedding_backward_bytes(const struct dtp_executor *x);
double dtp_executor_loss_bytes(const struct dtp_executor *x, uint64_t rows);
double dtp_executor_loss_parts_bytes(const struct dtp_executor *x, uint64_t rows);
double dtp_executor_optimizer_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module);
double dtp_executor_update_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module,
                                 uint64_t elements); /* of AdamW and its like, for so many of the module's */
double dtp_executor_muon_momentum_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module,
                                        uint64_t elements);
double dtp_executor_muon_unit_bytes(uint64_t elements);
double dtp_executor_muon_step_bytes(const struct dtp_executor *x, uint64_t elements);

/* lower_executor_again.c: operators of a block, or what is known of one that does the same. */
enum dtp_executor_sweep { DTP_EXECUTOR_FORWARD, DTP_EXECUTOR_REPLAY, DTP_EXECUTOR_BACKWARD };
void dtp_executor_repeat(struct dtp_executor *x, uint64_t layer, enum dtp_executor_sweep sweep,
                         void (*operators)(struct dtp_executor *x, uint64_t layer));

/* Tensors that survive forward in block `layer`. */
uint64_t dtp_executor_kept(const struct dtp_executor *x, uint64_t layer);

/* lower_executor.c: the step of l->program, as dtp_lower_hooks.whole. */
enum dtp_status dtp_lower_executor(struct dtp_lowering *l);

#endif
