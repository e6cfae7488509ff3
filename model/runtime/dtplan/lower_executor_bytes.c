/* Bytes through HBM of our executor's memory-bound kernels, reads and writes of whole tensors, and attention's FLOPs.
 *
 * Notation: T rows of a micro-step, h hidden, f ffn, c bytes of the compute dtype, g of the module's gradients. */
#include "runtime/dtplan/lower_executor_state.h"

static double rows_of(const struct dtp_executor *x, uint64_t width)
{
    return (double)x->rules.tokens * (double)width * (double)x->element_bytes;
}

/* Causal: s/2 tokens seen on average, less under a window; two products of d_q. */
double dtp_executor_attention_flops(const struct dtp_executor *x, uint64_t layer)
{
    double length = dtp_transformer_layer_attention_length(x->t, layer, x->plan->sequence);
    return 2 * length * (double)x->d_q * (double)x->rules.tokens;
}

/* Rows of the table and of the positions (once a sequence position), tokens, the result. */
double dtp_executor_embedding_bytes(const struct dtp_executor *x)
{
    double positions = x->t->position == DTP_POSITION_LEARNED ? (double)x->plan->sequence : 0;
    return 2 * rows_of(x, x->h) + positions * (double)(x->h * x->element_bytes) + 4 * (double)x->rules.tokens;
}

static double norm_parameters(const struct dtp_executor *x)
{
    return (double)(x->h * (x->t->norm_bias ? 2 : 1));
}

double dtp_executor_norm_bytes(const struct dtp_executor *x)
{
    return 2 * rows_of(x, x->h) + (double)(x->rules.statistics_bytes * x->rules.tokens) +
           norm_parameters(x) * (double)x->element_bytes;
}

/* Gradient and x read, the residual's gradient written, or read too where it is added to; partial sums of the weight's
 * (and bias's) gradient written and read. */
double dtp_executor_norm_backward_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module,
                                        bool adds_to_residual, bool adds_to_weight)
{
    double partial = 2 * 4.0 * DTP_EXECUTOR_PARTIAL_ROWS * norm_parameters(x);
    return (adds_to_residual ? 4 : 3) * rows_of(x, x->h) + (double)(x->rules.statistics_bytes * x->rules.tokens) +
           (double)(x->h * x->element_bytes) + partial +
           (adds_to_weight ? 2 : 1) * norm_parameters(x) * (double)module->gradient_element_bytes;
}

/* q and k in place; cosines and sines of each position. */
double dtp_executor_rotary_bytes(const struct dtp_executor *x)
{
    return 2 * rows_of(x, x->d_q + x->d_kv) + 4 * (double)(x->t->head_dim * x->plan->sequence);
}

/* q and k read, kept as they were, and overwritten; an inverse deviation (fp32) of each head. */
double dtp_executor_qk_norm_bytes(const struct dtp_executor *x)
{
    return 3 * rows_of(x, x->d_q + x->d_kv) + 4 * (double)((x->t->heads + x->t->kv_heads) * x->rules.tokens) +
           (double)(2 * x->t->head_dim * x->element_bytes);
}

/* The gradient in place, what forward kept; partial sums of the weights' gradient written and read. */
double dtp_executor_qk_norm_backward_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module,
                                           bool adds_to_weight)
{
    double weights = (double)(2 * x->t->head_dim);
    return dtp_executor_qk_norm_bytes(x) + 2 * 4.0 * DTP_EXECUTOR_PARTIAL_ROWS * weights +
           (adds_to_weight ? 2 : 1) * weights * (double)module->gradient_element_bytes;
}

double dtp_executor_activation_bytes(const struct dtp_executor *x)
{
    return rows_of(x, x->rules.up_width + x->f);
}

double dtp_executor_activation_backward_bytes(const struct dtp_executor *x, bool makes_product)
{
    return rows_of(x, 2 * x->rules.up_width + (makes_product ? 2 : 1) * x->f);
}

/* Logits read for the sum and again for the gradient, which is written; targets and losses. */
double dtp_executor_loss_bytes(const struct dtp_executor *x, uint64_t rows)
{
    return 3 * (double)rows * (double)(x->t->vocab * x->element_bytes) + 8 * (double)rows;
}

/* The gradient, tokens with their order, and the rows of the tables that are added to: at most one for each token. */
double dtp_executor_embedding_backward_bytes(const struct dtp_executor *x)
{
    uint64_t tokens = x->rules.tokens, rows = tokens < x->t->vocab ? tokens : x->t->vocab;
    rows += x->t->position == DTP_POSITION_LEARNED ? x->plan->sequence : 0;
    return rows_of(x, x->h) + 12 * (double)tokens +
           2 * (double)rows * (double)(x->h * x->modules[0].gradient_element_bytes);
}

/* Gradient read; weights written, and read where they are their own master; master and moments both. */
double dtp_executor_optimizer_bytes(const struct dtp_executor *x, const struct dtp_executor_module *module)
{
    double weights = (x->rules.master ? 1 : 2) * (double)x->element_bytes, master = x->rules.master ? 8 : 0;
    double moments = 4 * (double)dtp_dtype_bytes(x->rules.moments);
    return (double)module->layout->shard_elements * ((double)module->shard_element_bytes + weights + master + moments);
}
