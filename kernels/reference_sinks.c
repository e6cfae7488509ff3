#include "kernels/element.h"

#include <math.h>

/* Place of a query's log-sum-exp; its result stands at `row` of [batch, sequence, heads]. */
static uint64_t statistic(uint64_t row, uint32_t sequence, uint32_t heads)
{
    uint64_t token = row / heads;
    return (token / sequence * heads + row % heads) * sequence + token % sequence;
}

int dtp_reference_sinks(void *self, const struct dtp_sinks_args *a, void *stream)
{
    (void)self, (void)stream;
    const uint64_t rows = (uint64_t)a->batch * a->sequence * a->heads;
    for (uint64_t row = 0; row < rows; row++) {
        float *place = &a->log_sum_exp[statistic(row, a->sequence, a->heads)];
        const double sink = dtp_load(a->sinks, a->sinks_element, row % a->heads), without = (double)*place;
        const double largest = fmax(sink, without);
        const double with = largest + log(exp(sink - largest) + exp(without - largest));
        for (uint64_t i = row * a->head_dim; i < (row + 1) * a->head_dim; i++)
            dtp_store(a->result, a->element, i, dtp_load(a->result, a->element, i) * exp(without - with));
        *place = (float)with;
    }
    return 0;
}

int dtp_reference_sinks_backward(void *self, const struct dtp_sinks_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    const uint64_t tokens = (uint64_t)a->batch * a->sequence;
    for (uint64_t head = 0; head < a->heads; head++) {
        const double sink = dtp_load(a->sinks, a->sinks_element, head);
        double sum = 0;
        for (uint64_t token = 0; token < tokens; token++) {
            const uint64_t row = token * a->heads + head;
            double taken_back = 0;
            for (uint64_t i = row * a->head_dim; i < (row + 1) * a->head_dim; i++)
                taken_back += dtp_load(a->gradient, a->element, i) * dtp_load(a->result, a->element, i);
            sum -= taken_back * exp(sink - (double)a->log_sum_exp[statistic(row, a->sequence, a->heads)]);
        }
        dtp_accumulate(a->sinks_gradient, a->gradient_element, head, sum, a->accumulate);
    }
    return 0;
}
