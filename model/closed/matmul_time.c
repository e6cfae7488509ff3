/* What matmuls of a block take, alone: products with its weights, with adapters and, of DoRA, of adapters themselves.
 */
#include "closed/closed_form_timing.h"

#include "cost/cluster_cost.h"

static double typed_s(const struct dtp_timing *c, const struct dtp_weight_matmul *matmul, enum dtp_measured_matmul pass,
                      enum dtp_dtype dtype, double m, double n, double k)
{
    return matmul->grouped
               ? dtp_cluster_grouped_matmul_s(c->cluster, &c->execution, pass, dtype, matmul->copies, m, n, k)
               : matmul->copies * dtp_cluster_matmul_s(c->cluster, &c->execution, pass, dtype, m, n, k);
}

static double product_s(const struct dtp_timing *c, const struct dtp_weight_matmul *matmul,
                        enum dtp_measured_matmul pass, double m, double n, double k)
{
    enum dtp_product product = pass == DTP_MEASURED_MATMUL_FORWARD          ? DTP_PRODUCT_FORWARD
                               : pass == DTP_MEASURED_MATMUL_INPUT_GRADIENT ? DTP_PRODUCT_INPUT_GRADIENT
                                                                            : DTP_PRODUCT_WEIGHT_GRADIENT;
    enum dtp_dtype dtype = c->plan->precision.compute;
    if (dtype == DTP_FP8 && (matmul->wide || !dtp_plan_runs_narrow(c->plan, product)))
        dtype = DTP_BF16;
    return typed_s(c, matmul, pass, dtype, m, n, k);
}

/* Of DoRA: B A of an identity; W times what dropout let through, and its gradient. */
static double magnitudes_s(const struct dtp_timing *c, const struct dtp_weight_matmul *m, double rows, bool backward)
{
    bool drops = c->plan->adapters.dropout > 0;
    if (!m->magnitudes)
        return 0;
    if (backward)
        return drops ? product_s(c, m, DTP_MEASURED_MATMUL_INPUT_GRADIENT, rows, m->k, m->n) : 0;
    return (drops ? product_s(c, m, DTP_MEASURED_MATMUL_FORWARD, rows, m->n, m->k) : 0) +
           product_s(c, m, DTP_MEASURED_MATMUL_FORWARD, m->k, m->rank, m->k) +
           product_s(c, m, DTP_MEASURED_MATMUL_FORWARD, m->k, m->n, m->rank);
}

/* Of an adapter: x A^T and B of that; backward gradients of both, of what lies between, of x. */
static double adapter_s(const struct dtp_timing *c, const struct dtp_weight_matmul *m, double rows, bool backward)
{
    const enum dtp_dtype dtype = dtp_plan_adapter_dtype(c->plan);
    if (m->rank <= 0)
        return 0;
    if (!backward)
        return typed_s(c, m, DTP_MEASURED_MATMUL_FORWARD, dtype, rows, m->a_rows, m->k) +
               typed_s(c, m, DTP_MEASURED_MATMUL_FORWARD, dtype, rows, m->b_rows, m->rank) +
               magnitudes_s(c, m, rows, false);
    return magnitudes_s(c, m, rows, true) +
           typed_s(c, m, DTP_MEASURED_MATMUL_WEIGHT_GRADIENT, dtype, m->b_rows, m->rank, rows) +
           typed_s(c, m, DTP_MEASURED_MATMUL_INPUT_GRADIENT, dtype, rows, m->rank, m->b_rows) +
           typed_s(c, m, DTP_MEASURED_MATMUL_WEIGHT_GRADIENT, dtype, m->a_rows, m->k, rows) +
           typed_s(c, m, DTP_MEASURED_MATMUL_INPUT_GRADIENT, dtype, rows, m->k, m->a_rows);
}

/* W + B A, made twice; of its gradient those of B and A. All experts' are one product. */
static double folded_s(const struct dtp_timing *c, const struct dtp_weight_matmul *m, bool backward)
{
    const enum dtp_dtype dtype = c->plan->precision.compute;
    const enum dtp_measured_matmul pass = DTP_MEASURED_MATMUL_FORWARD;
    if (m->folded <= 0)
        return 0;
    if (!backward)
        return 2 * dtp_cluster_matmul_s(c->cluster, &c->execution, pass, dtype, m->copies * m->n, m->k, m->folded);
    return dtp_cluster_matmul_s(c->cluster, &c->execution, pass, dtype, m->copies * m->n, m->folded, m->k) +
           dtp_cluster_matmul_s(c->cluster, &c->execution, pass, dtype, m->copies * m->k, m->folded, m->n);
}

double dtp_timing_matmul_s(const struct dtp_timing *c, const struct dtp_weight_matmul *m, bool backward)
{
    double rows = c->tokens * m->rows;
    double weight_s =
        backward && !m->frozen ? product_s(c, m, DTP_MEASURED_MATMUL_WEIGHT_GRADIENT, m->n, m->k, rows) : 0;
    double once = backward ? product_s(c, m, DTP_MEASURED_MATMUL_INPUT_GRADIENT, rows, m->k, m->n) + weight_s
                           : product_s(c, m, DTP_MEASURED_MATMUL_FORWARD, rows, m->n, m->k);
    return once + adapter_s(c, m, rows, backward) + folded_s(c, m, backward);
}

double dtp_timing_matmul_again_s(const struct dtp_timing *c, const struct dtp_weight_matmul *m)
{
    double rows = c->tokens * m->rows;
    return product_s(c, m, DTP_MEASURED_MATMUL_FORWARD, rows, m->n, m->k) + magnitudes_s(c, m, rows, false) +
           folded_s(c, m, false);
}

double dtp_timing_projections_s(const struct dtp_timing *c)
{
    static const enum dtp_measured_matmul kinds[] = {DTP_MEASURED_MATMUL_FORWARD, DTP_MEASURED_MATMUL_INPUT_GRADIENT,
                                                     DTP_MEASURED_MATMUL_WEIGHT_GRADIENT};
    double rows = (double)dtp_transformer_ahead_rows(c->transformer);
    double shape[] = {c->tokens, rows, 2 * (double)c->transformer->hidden}, seconds = 0;
    const int turned[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 2, 0}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        seconds += dtp_cluster_matmul_s(c->cluster, &c->execution, kinds[i], c->plan->precision.compute,
                                        shape[turned[i][0]], shape[turned[i][1]], shape[turned[i][2]]);
    return (double)c->transformer->ahead_layers * seconds;
}
