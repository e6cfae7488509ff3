/* Bytes that the operators of a block (executor_block.h) move through HBM.
 *
 * Notation: T rows of a micro-step, h hidden, f ffn, c bytes of the compute dtype. */
#include "runtime/dtplan/executor_block.h"
#include "runtime/dtplan/executor_context_work.h"
#include "runtime/dtplan/executor_expert_traffic.h"
#include "runtime/dtplan/executor_in_place.h"

#define T(suffix) DTP_TENSOR_##suffix
#define STREAM DTP_LAYER_STREAM

static uint64_t bit_of(int tensor)
{
    return tensor == DTP_EXECUTOR_NONE ? 0 : DTP_EXECUTOR_BIT(tensor);
}

/* Rows of what lies between matmuls. */
static double stream_of(const struct dtp_executor_block *b)
{
    return (double)b->stream_tokens * (double)b->kind.hidden * (double)b->element_bytes;
}

double dtp_executor_added_bytes(const struct dtp_executor_block *block)
{
    return 3 * stream_of(block);
}

bool dtp_executor_adds_gradient(const struct dtp_executor_block *block, int op)
{
    bool stream = bit_of(block->op[op].input) & STREAM, adds = stream && block->op[op].gathers;
    for (int i = op + 1; i < block->count; i++)
        adds |= block->op[i].matrix && block->op[i].input == block->op[op].input;
    adds |= op > 0 && block->op[op - 1].half == DTP_EXECUTOR_A; /* which has made it */
    return adds && block->op[op].gathers;
}

static double rows_of(const struct dtp_executor_block *b, uint64_t width)
{
    return (double)b->tokens * (double)width * (double)b->element_bytes;
}

/* Rows that an operator's matrix multiplies, of a token of all tensor parallel ranks'. */
static double rows_of_token(const struct dtp_executor_block *block, const struct dtp_executor_operator *op)
{
    const double own = (double)block->stream_tokens / (double)block->tokens;
    return op->matrix->expert                  ? own * (double)block->kind.experts_per_token
           : dtp_executor_is_whole(op->matrix) ? own
                                               : 1;
}

double dtp_executor_multiplied(const struct dtp_executor_block *block, const struct dtp_executor_operator *op)
{
    switch (op->half) {
    case DTP_EXECUTOR_A: return (double)(dtp_executor_low_width(op->adapter) * op->adapter->in);
    case DTP_EXECUTOR_B: return (double)(dtp_executor_adapter_out(op->adapter) * op->adapter->rank);
    case DTP_EXECUTOR_PLAIN: break;
    }
    return op->matrix && op->kind != DTP_OP_EXPERT_BIAS
               ? (double)(op->matrix->out * op->matrix->in) * rows_of_token(block, op)
               : 0;
}

/* Gradients of the weight, where it is trained, and of the input, where something before it is. */
int dtp_executor_products(const struct dtp_executor_block *block, const struct dtp_executor_operator *op)
{
    return (op->adapter || !block->adapted ? 1 : 0) + (op->passes ? 1 : 0);
}

/* Launches of a product: of B one for each linear of a packed matrix. */
static uint32_t launches_of(const struct dtp_executor_operator *op)
{
    return op->half == DTP_EXECUTOR_B ? (uint32_t)op->adapter->parts : 1;
}

/* Partial sums of the gradient of a norm's weights, written and read. */
static double partial_bytes(const struct dtp_executor_block *b, const struct dtp_executor_operator *op)
{
    if (b->adapted)
        return 0;
    return 2 * (double)(4 * DTP_EXECUTOR_PARTIAL_ROWS) * (double)dtp_executor_norm_elements(b, op);
}

static double statistics_bytes(const struct dtp_executor_block *b, const struct dtp_executor_operator *op)
{
    return (double)dtp_executor_tensor_bytes(b, op->statistics);
}

/* q and k in place; cosines and sines of each position, which are all that it adds to copies around exchanges. */
static struct dtp_executor_traffic rotary_traffic(const struct dtp_executor_block *b,
                                                  const struct dtp_executor_operator *op)
{
    const double tables = dtp_executor_tables_bytes(b);
    if (dtp_executor_turns_on_the_way(b, op))
        return (struct dtp_executor_traffic){tables, 0};
    return (struct dtp_executor_traffic){2 * rows_of(b, b->kind.d_q + b->kind.d_kv) + tables, 1};
}

/* Passes over what an activation reads and makes, `narrow` of them over its input in 8 bits. `op` may say nothing but
 * its kind: that of the layer's own MLP. */
static double activation_bytes(const struct dtp_executor_block *b, const struct dtp_executor_operator *op, int read,
                               int narrow, int made)
{
    const bool shared = op->result == T(SHARED_PRODUCT);
    uint64_t up = dtp_layer_tensor_width(&b->kind, shared ? T(SHARED_UP) : T(UP));
    uint64_t product = dtp_layer_tensor_width(&b->kind, shared ? T(SHARED_PRODUCT) : T(PRODUCT));
    const bool routed = b->kind.experts && !shared;
    double weighed = routed ? 4.0 * read * (double)dtp_executor_expert_rows(b) : 0;
    const double all =
        rows_of(b, (uint64_t)read * up + (uint64_t)made * product) + (double)narrow * (double)(b->tokens * up);
    return (routed ? all * (double)b->stream_tokens / (double)b->tokens : all) +
           2 * weighed; /* a weight and whose it is */
}

struct dtp_executor_traffic dtp_executor_activation_again_traffic(const struct dtp_executor_block *block,
                                                                  const struct dtp_executor_operator *op)
{
    return (struct dtp_executor_traffic){activation_bytes(block, op, 0, 1, 1), 1};
}

struct dtp_executor_traffic dtp_executor_forward_traffic(const struct dtp_executor_block *block,
                                                         const struct dtp_executor_operator *op)
{
    const struct dtp_layer_kind *k = &block->kind;
    double weights = (double)(dtp_executor_norm_elements(block, op) * block->element_bytes), passes;
    if (dtp_executor_is_latent(block, op))
        return dtp_executor_latent_traffic(block, op, false);
    switch (op->kind) {
    case DTP_OP_NORM:
        passes = op->addend == DTP_EXECUTOR_NONE ? 2 : 3;
        return (struct dtp_executor_traffic){passes * stream_of(block) + statistics_bytes(block, op) + weights, 1};
    case DTP_OP_QK_NORM: /* q and k read, kept as they were, and overwritten */
        return (struct dtp_executor_traffic){
            3 * rows_of(block, k->d_q + k->d_kv) + statistics_bytes(block, op) + weights, 1};
    case DTP_OP_ROTARY: return rotary_traffic(block, op);
    case DTP_OP_SINKS:
    case DTP_OP_EXPERT_BIAS: return dtp_executor_in_place_traffic(block, op, false);
    case DTP_OP_ACTIVATION:
        return (struct dtp_executor_traffic){activation_bytes(block, op, 1, block->narrow_input, 1), 1};
    case DTP_OP_ROUTER:
    case DTP_OP_PERMUTE:
    case DTP_OP_UNPERMUTE:
    case DTP_OP_ALL_TO_ALL: return dtp_executor_expert_forward_traffic(block, op);
    case DTP_OP_MATMUL: /* what came before is added behind a sum over ranks */
        if (op->sums && op->addend != DTP_EXECUTOR_NONE)
            return (struct dtp_executor_traffic){dtp_executor_added_bytes(block), 2};
        return (struct dtp_executor_traffic){0, launches_of(op)};
    case DTP_OP_QUANTIZE: return (struct dtp_executor_traffic){0, 0}; /* by which casts it makes: executor_fp8_work.c */
    case DTP_OP_ATTENTION:
        return block->ring > 1 || block->exchanged > 1 ? dtp_executor_context_forward_traffic(block)
                                                       : (struct dtp_executor_traffic){0, launches_of(op)};
    default: return (struct dtp_executor_traffic){0, launches_of(op)};
    }
}

/* Of a norm: gradient and x read, x's gradient written, or read too where it is added to the stream's. The gradients of
 * q and k, and of what an activation reads, take the place of what they are made of. */
struct dtp_executor_traffic dtp_executor_backward_traffic(const struct dtp_executor_block *block,
                                                          const struct dtp_executor_operator *op, bool again)
{
    const struct dtp_layer_kind *k = &block->kind;
    double passes;
    if (dtp_executor_is_latent(block, op))
        return dtp_executor_latent_traffic(block, op, true);
    switch (op->kind) {
    case DTP_OP_NORM:
        passes = bit_of(op->input) & STREAM ? 4 : 3;
        return (struct dtp_executor_traffic){passes * stream_of(block) + statistics_bytes(block, op) +
                                                 (double)(k->hidden * block->element_bytes) + partial_bytes(block, op),
                                             dtp_executor_norm_launches(block)};
    case DTP_OP_QK_NORM:
        return (struct dtp_executor_traffic){dtp_executor_forward_traffic(block, op).bytes + partial_bytes(block, op),
                                             dtp_executor_norm_elements(block, op) ? dtp_executor_norm_launches(block)
                                                                                   : 1};
    case DTP_OP_ROTARY: return rotary_traffic(block, op);
    case DTP_OP_SINKS:
    case DTP_OP_EXPERT_BIAS: return dtp_executor_in_place_traffic(block, op, true);
    case DTP_OP_ATTENTION:
        return block->ring > 1 || block->exchanged > 1
                   ? dtp_executor_context_backward_traffic(block)
                   : (struct dtp_executor_traffic){0, DTP_EXECUTOR_ATTENTION_BACKWARD_LAUNCHES};
    case DTP_OP_MATMUL:
        if (dtp_executor_adds_gradient(block, (int)(op - block->op)))
            return (struct dtp_executor_traffic){dtp_executor_added_bytes(block),
                                                 (uint32_t)dtp_executor_products(block, op) + 1};
        return (struct dtp_executor_traffic){0, (uint32_t)dtp_executor_products(block, op) * launches_of(op)};
    case DTP_OP_GROUPED_MATMUL: return (struct dtp_executor_traffic){0, (uint32_t)dtp_executor_products(block, op)};
    case DTP_OP_ROUTER:
    case DTP_OP_PERMUTE:
    case DTP_OP_UNPERMUTE:
    case DTP_OP_ALL_TO_ALL: return dtp_executor_expert_backward_traffic(block, op);
    case DTP_OP_QUANTIZE: return (struct dtp_executor_traffic){0, 0};
    default:
        return (struct dtp_executor_traffic){
            activation_bytes(block, op, block->narrow_input ? 1 : 2, block->narrow_input, again ? 2 : 1), 1};
    }
}
