/* A block as our runtime runs it: the operators of net/layer_kind.def, fused.
 *
 * What a block consists of stands in that table. What this runtime does with it stands here and nowhere else; lowering
 * and the closed form walk the list that comes out:
 *   - q, k and v are one matrix, gate and up another. q and k are normed and turned in place inside the packed result;
 *     where norms need them, they are kept as they were, side by side;
 *   - a sum of the residual stream is the addend of whatever makes its next term, a projection or the norm behind one.
 *     So what attention and MLP return is a tensor only where a norm reads it;
 *   - GELU is the epilogue of the up projection where the plan says so;
 *   - an activation's derivative reads its input, whatever the activation; or that input as the activation wrote it
 *     once more, in 8 bits, where the plan says so: DTP_TENSOR_GATE, which this runtime, whose gate and up are one
 *     matrix, makes of nothing else;
 *   - in fp8 what a projection reads is cast by an operator of its own, by rows for forward and by columns for the
 *     weight's gradient, which stays in its place;
 *   - tensor parallel ranks have a part of the rows of what lies between matmuls; projections into heads and the MLP
 *     read them gathered, those back into the stream make terms of a sum that is scattered over the ranks, and what
 *     came before is added to that behind it;
 *   - of adapters, x A^T of all that a packed projection has is one matmul in front of it, B of each one behind it,
 *     which adds to the projection's result in place (executor_adapters.h);
 *   - rows of tokens that go to experts are multiplied by their weights within the activation, so that what experts
 *     return needs not stay: the weights' gradient is a product of what the activation reads. The last sum over a
 *     token's experts adds what shared experts return and the stream;
 *   - latent attention's norms and projections are operators as others are; one more packs queries, keys and values of
 *     what they made as qkv is packed, with values of their own width, and turns the parts that rope turns;
 *   - backward is the same list from its end, and norms that read the stream add to its gradient. In a parallel block
 *     both branches have to read that gradient first, so the second norm stands before the output projection.
 *
 * Shapes: T rows of a micro-step. All values are plain numbers; nothing fails. */
#ifndef DTP_EXECUTOR_BLOCK_H
#define DTP_EXECUTOR_BLOCK_H

#include "base/fp8_recipe.h"
#include "net/layer_kind.h"
#include "plan/checkpointing.h"
#include "runtime/dtplan/executor_adapters.h"
#include "runtime/dtplan/lower_executor.h"

/* Tensors of a block by enum dtp_layer_tensor; Q_RAW stands for q and k as they were, twelve that only other runtimes
 * make for the casts of what projections read (dtp_executor_cast) and for x A^T of adapters (dtp_executor_low);
 * ROUTER_WEIGHTS are those of a token's experts alone, ROUTES are laid out as routes_layout.h says. Behind them what
 * the block returns, the next block's input, and none at all. */
#define DTP_EXECUTOR_CASTS 4
enum { DTP_EXECUTOR_OUT = DTP_TENSOR_COUNT, DTP_EXECUTOR_TENSORS, DTP_EXECUTOR_NONE = DTP_EXECUTOR_TENSORS };
/* Which cast a tensor is: [0, CASTS) by rows, [CASTS, 2 CASTS) by columns; -1: none. */
int dtp_executor_cast(int tensor);
/* Beside which matrix of DTP_PARAMETER_ADAPTERS a tensor is an adapter's x A^T; -1: it is none. */
int dtp_executor_low(int tensor);
/* NONE has none, and is no shift of 64. */
#define DTP_EXECUTOR_BIT(tensor) ((int)(tensor) < (int)DTP_EXECUTOR_NONE ? UINT64_C(1) << ((int)(tensor)&63) : 0)
_Static_assert(DTP_EXECUTOR_TENSORS <= 64, "a bit for each tensor of a block");

/* Two more that others make otherwise: of rows by ranks and of those that came, what they are multiplied by. */
#define DTP_EXECUTOR_SENT_WEIGHTS DTP_TENSOR_WIDE_RESULTS
#define DTP_EXECUTOR_RECEIVED_WEIGHTS DTP_TENSOR_RECEIVED

struct dtp_executor_operator {
    enum dtp_op_kind kind;                 /* forward's operation */
    const char *name;                      /* of a projection the matrix has names for backward too */
    const struct dtp_layer_matrix *matrix; /* of projections, of the block's kind */
    enum dtp_parameter weight;             /* its bias, where there is one, is the parameter after it */
    int input, result, addend, aux;        /* tensors; the result of QK_NORM and ROTARY is their input, in place; of
                                              QUANTIZE the cast by rows, aux by columns */
    int operand, kept;                     /* of a projection: its input as forward and the weight's gradient read it */
    int statistics, saved;
    uint64_t reads; /* other tensors that forward reads: routes, weights of rows, what shared experts return */
    enum dtp_executor_half half; /* of matmuls of adapters, `matrix` is that beside which they stand */
    const struct dtp_executor_adapter *adapter;
    bool to_stream; /* what is made is added to the stream: whose gradient is the stream's */
    bool reaches;   /* something that is trained lies before its result: backward goes through it */
    bool passes;    /* the same of its input, whose gradient it then makes */
    uint64_t needs; /* tensors that backward reads */
    bool gathers;   /* a projection of tensor parallel ranks that reads its input's rows of all of them */
    bool sums;      /* one whose result is a sum of theirs, of which each has its rows */
};
#define DTP_EXECUTOR_OPERATORS 30

struct dtp_executor_block {
    struct dtp_layer_kind kind;
    /* Context parallel ranks that send keys and values around, or exchange tokens for heads; 1: none do. */
    uint32_t ring, exchanged;
    uint32_t chunks;                          /* of a rank's heads, where they exchange tokens for heads */
    uint64_t tokens, sequence, element_bytes; /* T; of the compute dtype */
    uint64_t stream_tokens;                   /* rows that this rank has of what lies between matmuls */
    uint64_t expert_room;                     /* rows of tokens that the rank's experts have room for */
    bool epilogue, fp8;
    bool narrow_input;                       /* what activations read is kept in 8 bits */
    const struct dtp_fp8_recipe_row *recipe; /* of fp8; else NULL */
    bool adapted;                            /* adapters are trained alone */
    bool packed;                             /* matrices lie in 4 bits, and are unpacked for each product */
    struct dtp_executor_adapter adapter[DTP_PARAMETER_ADAPTERS];
    struct dtp_executor_operator op[DTP_EXECUTOR_OPERATORS];
    int count;
    uint64_t saved;    /* tensors that backward reads */
    uint32_t replayed; /* operators, as bits, that make them of the block's input */
};
/* Of the model's layers with such an MLP. The model's first block has the same operators, but where adapters alone are
 * trained nothing before it is: its backward ends at its first adapter. *out points into itself and is not to be
 * copied. */
void dtp_executor_block_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                           enum dtp_layer_mlp mlp, bool first, struct dtp_executor_block *out);
/* Elements of what a matmul of forward multiplies by; 0 of other operators. And how often backward multiplies by or for
 * as many. */
double dtp_executor_multiplied(const struct dtp_executor_block *block, const struct dtp_executor_operator *op);
int dtp_executor_products(const struct dtp_executor_block *block, const struct dtp_executor_operator *op);

/* A list entry with one input and one result, behind those that there are. */
struct dtp_executor_operator *dtp_executor_add_operator(struct dtp_executor_block *block, enum dtp_op_kind kind,
                                                        const char *name, int input, int result);

const char *dtp_executor_tensor_name(int tensor);
uint64_t dtp_executor_tensor_bytes(const struct dtp_executor_block *block, int tensor);
/* Rows of the rank's tokens that go to experts; where ranks divide these, as many come from all of them on average. */
static inline uint64_t dtp_executor_expert_rows(const struct dtp_executor_block *block)
{
    return block->stream_tokens * block->kind.experts_per_token;
}
/* Whether tensor parallel ranks have the matrix whole, each for its own rows: what scores experts. */
static inline bool dtp_executor_is_whole(const struct dtp_layer_matrix *matrix)
{
    return matrix->id == DTP_MATRIX_ROUTER || matrix->id == DTP_MATRIX_SHARED_WEIGHT;
}
/* Of the matrix: those that there is room for, the rank's own, or all of the micro-step's. */
static inline uint64_t dtp_executor_matrix_rows(const struct dtp_executor_block *block,
                                                const struct dtp_layer_matrix *matrix)
{
    return matrix->expert ? block->expert_room : dtp_executor_is_whole(matrix) ? block->stream_tokens : block->tokens;
}
/* Where ranks divide experts: where rows that came are, and what they are multiplied by. */
static inline int dtp_executor_routes_of(const struct dtp_executor_block *block)
{
    return block->kind.exchanged ? DTP_TENSOR_PLACES : DTP_TENSOR_ROUTES;
}
static inline int dtp_executor_weights_of(const struct dtp_executor_block *block)
{
    return block->kind.exchanged ? DTP_EXECUTOR_RECEIVED_WEIGHTS : DTP_TENSOR_ROUTER_WEIGHTS;
}
/* Whether the copies around exchanges of tokens for heads turn queries and keys in its place. */
static inline bool dtp_executor_turns_on_the_way(const struct dtp_executor_block *block,
                                                 const struct dtp_executor_operator *op)
{
    return op->kind == DTP_OP_ROTARY && block->exchanged > 1 && !block->kind.kv_latent;
}
/* Elements of a latent that its norm is over; 0 of other operators. */
static inline uint64_t dtp_executor_latent_norm_width(const struct dtp_executor_block *block,
                                                      const struct dtp_executor_operator *op)
{
    if (op->kind != DTP_OP_NORM)
        return 0;
    return op->result == DTP_TENSOR_Q_LATENT_NORM    ? block->kind.q_latent
           : op->result == DTP_TENSOR_KV_LATENT_NORM ? block->kind.kv_latent
                                                     : 0;
}
/* Widths that the FLOPs of attention's core go by, of all heads: forward has a product of queries and one of values,
 * backward three and two. */
static inline double dtp_executor_core_width(const struct dtp_executor_block *block)
{
    return (double)(block->kind.d_q + block->kind.d_core) / 2;
}
static inline double dtp_executor_core_backward(const struct dtp_executor_block *block) /* times forward's FLOPs */
{
    double keys = (double)block->kind.d_q, values = (double)block->kind.d_core;
    return (3 * keys + 2 * values) / (keys + values);
}
/* What layers leave out that turn no queries and keys (dtp_transformer_layer_turns): it works in place, so what stands
 * around it stays as it is. */
static inline bool dtp_executor_turns_only(const struct dtp_executor_operator *op)
{
    return op->kind == DTP_OP_ROTARY || op->kind == DTP_OP_QK_NORM;
}

/* Whether the activation is that of experts' rows, which their weights multiply. */
static inline bool dtp_executor_weighs(const struct dtp_executor_block *block, const struct dtp_executor_operator *op)
{
    return block->kind.experts && op->result == DTP_TENSOR_PRODUCT;
}

/* Whether the tensor is what an activation read, in 8 bits. */
static inline bool dtp_executor_is_stored(const struct dtp_executor_block *block, int tensor)
{
    return block->narrow_input && (tensor == DTP_TENSOR_GATE || tensor == DTP_TENSOR_SHARED_GATE);
}

/* Rows of it on this rank. */
uint64_t dtp_executor_tensor_rows(const struct dtp_executor_block *block, int tensor);

/* Tensors that survive forward where a checkpointed block keeps `keeps`. */
uint64_t dtp_executor_block_keeps(const struct dtp_executor_block *block, enum dtp_checkpoint_keeps keeps);
/* The operator that makes a tensor of the block; -1: it is the block's input. */
int dtp_executor_maker(const struct dtp_executor_block *block, int tensor);
/* The operators, as bits, that make a tensor once more of what backward keeps: `there`. Of a cast also who makes what
 * it casts, where that is not kept. */
uint32_t dtp_executor_makers(const struct dtp_executor_block *block, int tensor, uint64_t there);
/* fp8. Whether operands have a scale for each row or block, which the cast finds itself, and not one whose amax is
 * known before; whether a weight's gradient is a product in fp8. */
static inline bool dtp_executor_scales_parts(const struct dtp_executor_block *block)
{
    return block->recipe && block->recipe->granularity != DTP_FP8_BY_TENSOR;
}
/* Whether it is of earlier steps. */
static inline bool dtp_executor_delays_scales(const struct dtp_executor_block *block)
{
    return block->recipe && block->recipe->amax == DTP_FP8_AMAX_HISTORY;
}
/* Whether scales are made of amaxes of this step, for which there are passes where nobody else finds them. */
static inline bool dtp_executor_seeks_amax(const struct dtp_executor_block *block)
{
    return block->fp8 && !dtp_executor_scales_parts(block) && !dtp_executor_delays_scales(block);
}
/* Amaxes that a block keeps of earlier steps: of weights, inputs and gradients of each matrix. */
static inline uint64_t dtp_executor_fp8_history(const struct dtp_executor_block *block)
{
    return dtp_executor_delays_scales(block) ? 3u * (uint64_t)block->kind.matrices * DTP_EXECUTOR_AMAX_HISTORY : 0;
}
static inline bool dtp_executor_narrow_gradients(const struct dtp_executor_block *block)
{
    return block->recipe && block->recipe->narrow >> DTP_PRODUCT_WEIGHT_GRADIENT & 1;
}
/* The form of a cast of what a projection reads, as a matmul reads it. */
enum dtp_executor_cast_of { DTP_EXECUTOR_CAST_WEIGHT, DTP_EXECUTOR_CAST_INPUT, DTP_EXECUTOR_CAST_GRADIENT };
enum dtp_form dtp_executor_cast_form(const struct dtp_executor_block *block, enum dtp_executor_cast_of what,
                                     bool columns);
/* The operator that casts a tensor; -1: none does. Whether the kernel that makes what it casts finds its amax too. */
int dtp_executor_caster(const struct dtp_executor_block *block, int tensor);
bool dtp_executor_amax_found(const struct dtp_executor_block *block, const struct dtp_executor_operator *cast);
/* The first projection that reads the cast, by its place among the block's matrices. */
int dtp_executor_cast_matrix(const struct dtp_executor_block *block, const struct dtp_executor_operator *cast);
/* Whether the gradient of a projection's result is made by a kernel that finds its amax too. */
bool dtp_executor_gradient_amax_found(const struct dtp_executor_operator *projection);

/* What a memory-bound operator moves through HBM, reads and writes of whole tensors, and its launches. Backward without
 * the weights' own gradient, which is the module's; `again`: an activation that makes its result once more. */
struct dtp_executor_traffic {
    double bytes;
    uint32_t kernels;
};
/* Of cuDNN: row sums, the gradients, the cast of dq. */
#define DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES 3u
/* Of an activation whose result is made again of its input in 8 bits, which alone is there. */
struct dtp_executor_traffic dtp_executor_activation_again_traffic(const struct dtp_executor_block *block,
                                                                  const struct dtp_executor_operator *op);
struct dtp_executor_traffic dtp_executor_forward_traffic(const struct dtp_executor_block *block,
                                                         const struct dtp_executor_operator *op);
struct dtp_executor_traffic dtp_executor_backward_traffic(const struct dtp_executor_block *block,
                                                          const struct dtp_executor_operator *op, bool again);
/* executor_latent_work.c: of what latent attention projects, queries, keys and values packed as other attention has
 * them; what norms of latents and that operator, which are latent, move. */
void dtp_executor_add_heads(struct dtp_executor_block *block);
static inline bool dtp_executor_is_latent(const struct dtp_executor_block *block,
                                          const struct dtp_executor_operator *op)
{
    return dtp_executor_latent_norm_width(block, op) || (op->kind == DTP_OP_ROTARY && block->kind.kv_latent);
}
struct dtp_executor_traffic dtp_executor_latent_traffic(const struct dtp_executor_block *block,
                                                        const struct dtp_executor_operator *op, bool backward);
/* Of what came before, added to a sum over tensor parallel ranks; of another projection's gradient of the same input.
 */
double dtp_executor_added_bytes(const struct dtp_executor_block *block);
/* Whether backward of the operator adds its input's gradient, of tensor parallel ranks, to that of another projection,
 * which stands behind it. */
bool dtp_executor_adds_gradient(const struct dtp_executor_block *block, int op);
/* Elements of the operator's vectors of norms, biases with them; 0 for all but norms. */
uint64_t dtp_executor_norm_elements(const struct dtp_executor_block *block, const struct dtp_executor_operator *op);
/* The final norm, and what its backward moves, which makes the stream's gradient instead of adding to it. */
double dtp_executor_final_norm_bytes(const struct dtp_executor_block *block);
double dtp_executor_final_norm_backward_bytes(const struct dtp_executor_block *block);
/* Launches of a norm's backward: its weight's gradient, where it is trained, is added up by a second one. */
static inline uint32_t dtp_executor_norm_launches(const struct dtp_executor_block *block)
{
    return block->adapted ? 1 : 2;
}

#endif
