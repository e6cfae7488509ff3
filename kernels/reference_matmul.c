#include "kernels/element.h"
#include "kernels/gelu.h"

#include <stdlib.h>

/* Columns of b turned to double at a time: a panel [k, PANEL], so that every row of a meets it in cache. */
#define PANEL 64u

struct matmul {
    const struct dtp_matmul_args *args;
    double *panel; /* [k, PANEL] */
    double *row;   /* [k] of a */
};

static double stored(const void *values, enum dtp_element element, uint64_t i, uint64_t j, uint64_t leading,
                     bool transposed)
{
    return dtp_load(values, element, transposed ? j * leading + i : i * leading + j);
}

static void load_panel(const struct matmul *m, uint64_t first, uint64_t columns)
{
    const struct dtp_matmul_args *a = m->args;
    for (uint64_t p = 0; p < a->k; p++)
        for (uint64_t j = 0; j < PANEL; j++)
            m->panel[p * PANEL + j] =
                j < columns ? stored(a->b, dtp_matmul_b_element(a), p, first + j, a->ldb, a->b_transposed) *
                                  (double)dtp_operand_scale(a->b_scale, a->b_scaling, a->n, a->k, first + j, p)
                            : 0;
}

static void store_result(const struct dtp_matmul_args *a, uint64_t at, uint64_t column, double value)
{
    if (a->scale > 0)
        value *= (double)a->scale;
    if (a->a_scale)
        value *= dtp_product_scale(a);
    if (a->addend)
        value += (double)dtp_matmul_addend_scale(a) * dtp_load(a->addend, a->result_element, at);
    if (a->bias)
        value += dtp_load(a->bias, dtp_matmul_bias_element(a->element, a->result_element), column);
    if (a->epilogue == DTP_EPILOGUE_GELU_AUX) {
        dtp_store(a->aux, a->element, at, value);
        value = dtp_gelu(value);
    } else if (a->epilogue == DTP_EPILOGUE_DGELU) {
        value *= dtp_gelu_slope(dtp_load(a->aux, a->element, at));
    }
    dtp_store(a->result, a->result_element, at, value);
}

static void multiply_row(const struct matmul *m, uint64_t i, uint64_t first, uint64_t columns)
{
    const struct dtp_matmul_args *a = m->args;
    double sums[PANEL] = {0};
    for (uint64_t p = 0; p < a->k; p++)
        m->row[p] = stored(a->a, a->element, i, p, a->lda, a->a_transposed) *
                    (double)dtp_operand_scale(a->a_scale, a->a_scaling, a->m, a->k, i, p);
    for (uint64_t p = 0; p < a->k; p++)
        for (uint64_t j = 0; j < PANEL; j++)
            sums[j] += m->row[p] * m->panel[p * PANEL + j];
    for (uint64_t j = 0; j < columns; j++)
        store_result(a, i * a->ldd + first + j, first + j, sums[j]);
}

static void sum_bias_gradient(const struct dtp_matmul_args *a)
{
    for (uint64_t i = 0; i < a->m; i++) {
        double sum = 0;
        for (uint64_t p = 0; p < a->k; p++)
            sum += stored(a->a, a->element, i, p, a->lda, a->a_transposed);
        dtp_accumulate(a->bias_gradient, a->result_element, i, sum, a->addend == a->result);
    }
}

int dtp_reference_matmul(void *self, const struct dtp_matmul_args *a, void *stream)
{
    (void)self, (void)stream;
    struct matmul m = {
        .args = a, .panel = malloc((a->k + 1) * PANEL * sizeof(double)), .row = malloc((a->k + 1) * sizeof(double))};
    int status = m.panel && m.row ? 0 : DTP_REFERENCE_NO_MEMORY;
    for (uint64_t first = 0; !status && first < a->n; first += PANEL) {
        uint64_t columns = a->n - first < PANEL ? a->n - first : PANEL;
        load_panel(&m, first, columns);
        for (uint64_t i = 0; i < a->m; i++)
            multiply_row(&m, i, first, columns);
    }
    if (!status && a->bias_gradient)
        sum_bias_gradient(a);
    free(m.panel);
    free(m.row);
    return status;
}
