#include "kernels/element.h"

int dtp_reference_embedding(void *self, const struct dtp_embedding_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->rows; i++) {
        int64_t token = (int64_t)a->tokens[i] - a->first_token;
        bool here = token >= 0 && token < a->vocab;
        uint64_t row = here ? (uint64_t)token * a->width : 0, position = i % a->sequence * a->width;
        for (uint32_t j = 0; j < a->width; j++) {
            double value = here ? (double)a->scale * dtp_load(a->table, a->element, row + j) : 0;
            if (here && a->positions)
                value += dtp_load(a->positions, a->element, position + j);
            dtp_store(a->result, a->result_element, i * a->width + j, value);
        }
    }
    return 0;
}

static void add_token(const struct dtp_embedding_backward_args *a, int32_t u)
{
    int64_t token = (int64_t)a->tokens[a->order[a->starts[u]]] - a->first_token;
    if (token < 0 || token >= a->vocab)
        return;
    for (uint32_t j = 0; j < a->width; j++) {
        double sum = 0;
        for (int32_t i = a->starts[u]; i < a->starts[u + 1]; i++)
            sum += dtp_load(a->gradient, a->element, (uint64_t)a->order[i] * a->width + j);
        dtp_accumulate(a->table_gradient, a->gradient_element, (uint64_t)token * a->width + j, (double)a->scale * sum,
                       true);
    }
}

/* A position's rows are `sequence` apart. Positions past the last row have none: zero, unless they accumulate. */
static void add_position(const struct dtp_embedding_backward_args *a, uint64_t position)
{
    for (uint32_t j = 0; j < a->width; j++) {
        double sum = 0;
        for (uint64_t i = position; i < a->rows; i += a->sequence)
            sum += dtp_load(a->gradient, a->element, i * a->width + j);
        dtp_accumulate(a->positions_gradient, a->gradient_element, position * a->width + j, sum,
                       a->accumulate_positions);
    }
}

int dtp_reference_embedding_backward(void *self, const struct dtp_embedding_backward_args *a, void *stream)
{
    (void)self, (void)stream;
    for (int32_t u = 0; u < *a->distinct; u++)
        add_token(a, u);
    for (uint64_t position = 0; a->positions_gradient && position < a->sequence; position++)
        add_position(a, position);
    return 0;
}
