#include "kernels/element.h"
#include "kernels/scale_factor.h"

/* The cast of a matrix [rows, columns] whose element (i, j) is values[i * row + j * column]. */
struct cast {
    const struct dtp_scaled_quantize_args *args;
    uint64_t rows, columns, row, column;
    void *result;
    float *scales;
};

static float value_at(const struct cast *c, uint64_t i, uint64_t j)
{
    return dtp_load_float(c->args->values, c->args->element, i * c->row + j * c->column);
}

/* The elements from (row, column) on that share a scale. */
static void cast_part(const struct cast *c, uint64_t row, uint64_t column, uint64_t rows, uint64_t columns)
{
    float largest = 0;
    for (uint64_t i = row; i < row + rows && i < c->rows; i++)
        for (uint64_t j = column; j < column + columns && j < c->columns; j++)
            largest = fmaxf(largest, fabsf(value_at(c, i, j)));
    const float factor = dtp_scale_factor(c->args->scaling, largest);
    uint8_t *result = c->result;
    for (uint64_t i = row; i < row + rows && i < c->rows; i++) {
        c->scales[dtp_scale_place(c->args->scaling, c->rows, c->columns, i, column)] = 1 / factor;
        for (uint64_t j = column; j < column + columns && j < c->columns; j++)
            result[i * c->columns + j] = dtp_e4m3_from_float(value_at(c, i, j) * factor);
    }
}

static void cast_all(const struct cast *c)
{
    bool runs = c->args->scaling == DTP_SCALED_RUNS, squares = c->args->scaling == DTP_SCALED_SQUARES;
    uint64_t rows = squares ? DTP_SCALED_RUN : c->args->scaling == DTP_SCALED_ALIKE ? c->rows : 1;
    uint64_t columns = runs || squares ? DTP_SCALED_RUN : c->columns;
    for (uint64_t i = 0; i < c->rows; i += rows)
        for (uint64_t j = 0; j < c->columns; j += columns)
            cast_part(c, i, j, rows, columns);
}

int dtp_reference_scaled_quantize(void *self, const struct dtp_scaled_quantize_args *a, void *stream)
{
    (void)self, (void)stream;
    if (a->result)
        cast_all(&(struct cast){a, a->rows, a->columns, a->columns, 1, a->result, a->result_scales});
    if (a->transposed)
        cast_all(&(struct cast){a, a->columns, a->rows, 1, a->columns, a->transposed, a->transposed_scales});
    return 0;
}
