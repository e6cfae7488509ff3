/* Bytes through HBM of our executor's memory-bound kernels outside of blocks, reads and writes of whole tensors, and
 * attention's FLOPs. Blocks' stand in executor_block.c. */
#include "runtime/dtplan/lower_executor_state.h"

#include "cost/calibration.h"

static double rows_of(const struct dtp_executor *x, uint64_t width)
{
    return (double)x->rules.tokens * (double)width * (double)x->element_bytes;
}

/* Of the layer at which the skeleton stands. Causal: s/2 tokens seen on average, less under a window; two products of
 * d_q, or one of values' width. */
double dtp_executor_attention_flops(const struct dtp_executor *x)
{
    double length = dtp_transformer_layer_attention_length(x->t, dtp_lower_model_layer(x->l), x->plan->sequence);
    return 2 * length * dtp_executor_core_width(x->shape) * (double)x->rules.tokens;
}

/* Rows of the table, of tensor parallel ranks those of its tokens, and of the positions (once a sequence position),
 * tokens, the result. */
double dtp_executor_embedding_bytes(const struct dtp_executor *x)
{
    double positions = x->t->position == DTP_POSITION_LEARNED ? (double)x->rules.sequence : 0;
    return (1 + 1 / (double)x->rules.tensor_ranks) * rows_of(x, x->h) + positions * (double)(x->h * x->element_bytes) +
           4 * (double)x->rules.tokens;
}

double dtp_executor_loss_passes(double row_bytes, bool summed)
{
    const double kept_bytes = dtp_calibration.native_loss_kept_bytes;
    return 2 + (summed || row_bytes <= kept_bytes ? 0 : 1 - kept_bytes / row_bytes);
}

/* Targets and losses besides. Where the sum was made before, what is known of it. */
double dtp_executor_loss_bytes(const struct dtp_executor *x, uint64_t rows)
{
    double passes = dtp_executor_loss_passes((double)(x->t->vocab * x->element_bytes), dtp_executor_is_cut(x));
    double parts = dtp_executor_is_cut(x) ? DTP_EXECUTOR_LOSS_PART_BYTES * (double)x->rules.tensor_ranks : 0;
    return passes * (double)rows * (double)(x->t->vocab * x->element_bytes) + (8 + parts) * (double)rows;
}

double dtp_executor_loss_parts_bytes(const struct dtp_executor *x, uint64_t rows)
{
    return (double)rows * (double)(x->t->vocab * x->element_bytes) + (4 + DTP_EXECUTOR_LOSS_PART_BYTES) * (double)rows;
}

/* The gradient, tokens with their order, and the rows of the tables that are added to: at most one for each token. */
double dtp_executor_embedding_backward_bytes(const struct dtp_executor *x)
{
    uint64_t tokens = x->rules.tokens, rows = tokens < x->t->vocab ? tokens : x->t->vocab;
    rows += x->t->position == DTP_POSITION_LEARNED ? x->rules.sequence : 0;
    return rows_of(x, x->h) + 12 * (double)tokens +
           2 * (double)rows * (double)(x->h * x->modules[0].gradient_element_bytes);
}

double dtp_executor_moment_bytes(const struct dtp_executor_rules *rules)
{
    double scale = rules->moments == DTP_INT8 ? (double)4 / DTP_EXECUTOR_MOMENT_BLOCK : 0;
    return 2 * rules->moment_count * (dtp_dtype_bytes(rules->moments) + scale);
}

/* Gradient read; weights written, and read where they are their own master; master and moments both. */
double dtp_executor_update_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module,
                                 uint64_t elements)
{
    double weights = (x->rules.master ? 1 : 2) * (double)x->element_bytes, master = x->rules.master ? 8 : 0;
    double moments = dtp_executor_moment_bytes(&x->rules);
    return (double)elements * ((double)module->shard_element_bytes + weights + master + moments);
}

double dtp_executor_optimizer_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    return dtp_executor_update_bytes(x, module, module->layout->shard_elements);
}

/* Of Muon's passes over a matrix: the gradient into the momentum and both into what is multiplied, with its squares;
 * that divided in place; the step added to weights. */
double dtp_executor_muon_momentum_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module,
                                        uint64_t elements)
{
    uint64_t state = 2 * dtp_dtype_bytes(x->rules.moments), narrow = dtp_dtype_bytes(DTP_BF16);
    return (double)(elements * (module->shard_element_bytes + state + narrow) + 4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS);
}

double dtp_executor_muon_unit_bytes(uint64_t elements)
{
    return (double)(2 * elements * dtp_dtype_bytes(DTP_BF16) + 4 * DTP_EXECUTOR_SQUARE_SUM_PARTIALS);
}

double dtp_executor_muon_step_bytes(const struct dtp_executor *x, uint64_t elements)
{
    uint64_t weights = (x->rules.master ? 1 : 2) * x->element_bytes + (x->rules.master ? 8 : 0);
    return (double)(elements * (weights + dtp_dtype_bytes(DTP_BF16)));
}
