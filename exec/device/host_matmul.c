#include "device/host_matmul.h"

#include "kernels/element.h"
#include "kernels/gelu.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#if DTP_WITH_OPENBLAS
#include <cblas.h>

/* BLAS itself and not CBLAS: GSL brings a slow cblas_sgemm of its own, and the order of libraries would decide whose is
 * called. Column-major, so a row-major product is asked for as its transpose. */
void sgemm_(const char *transposed_a, const char *transposed_b, const blasint *m, const blasint *n, const blasint *k,
            const float *alpha, const float *a, const blasint *lda, const float *b, const blasint *ldb,
            const float *beta, float *c, const blasint *ldc);
#endif

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

struct layout {
    uint64_t a_rows, a_stride, b_rows, b_stride;      /* as stored */
    uint64_t a_elements, b_elements, result_elements; /* of scratch; 0: used where it lies */
};

static struct layout layout_of(const struct dtp_matmul_args *g)
{
    struct layout l = {.a_rows = g->a_transposed ? g->k : g->m,
                       .a_stride = g->a_transposed ? g->m : g->k,
                       .b_rows = g->b_transposed ? g->n : g->k,
                       .b_stride = g->b_transposed ? g->k : g->n};
    bool wide = g->element == DTP_ELEMENT_FP32;
    l.a_elements = wide ? 0 : l.a_rows * l.a_stride;
    l.b_elements = wide ? 0 : l.b_rows * l.b_stride;
    /* An epilogue reads the product before it rounds; a result of fp32 without one is written in place. */
    bool in_place = g->result_element == DTP_ELEMENT_FP32 && g->epilogue == DTP_EPILOGUE_NONE && !g->a_scale;
    l.result_elements = in_place ? 0 : g->m * g->n;
    return l;
}

enum dtp_status dtp_host_matmul_prepare(struct dtp_host_matmul *state, const struct dtp_matmul_args *g,
                                        struct dtp_faults *faults)
{
    struct layout l = layout_of(g);
    uint64_t needed = l.a_elements + l.b_elements + l.result_elements;
    uint64_t largest = g->m > g->n ? g->m : g->n;
    largest = g->k > largest ? g->k : largest;
    if (largest > INT_MAX || g->lda > INT_MAX || g->ldb > INT_MAX || g->ldd > INT_MAX)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "a matmul of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " is beyond the host device", g->m, g->n,
                         g->k);
    if (needed <= state->scratch_elements)
        return DTP_OK;
    float *scratch = realloc(state->scratch, needed * sizeof *scratch);
    if (!scratch)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory: %" PRIu64 " bytes to widen a matmul",
                         needed * (uint64_t)sizeof *scratch);
    state->scratch = scratch;
    state->scratch_elements = needed;
    return DTP_OK;
}

void dtp_host_matmul_release(struct dtp_host_matmul *state)
{
    free(state->scratch);
    *state = (struct dtp_host_matmul){0};
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* Scales of rows and blocks, powers of two, are taken in here: no number is rounded. */
static const float *widened(const void *values, enum dtp_element element, uint64_t rows, uint64_t width,
                            uint64_t stride, enum dtp_scaling scaling, const float *scales, float *scratch)
{
    const uint16_t *from = values;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < width; j++)
            scratch[i * width + j] = element == DTP_ELEMENT_BF16 ? dtp_bf16_to_float(from[i * stride + j])
                                                                 : dtp_load_float(values, element, i * stride + j);
    for (uint64_t i = 0; i < rows && scaling != DTP_SCALED_WHOLE; i++)
        for (uint64_t first = 0; first < width; first += DTP_SCALED_RUN) { /* neighbours in a run have one scale */
            float scale = dtp_operand_scale(scales, scaling, rows, width, i, first);
            for (uint64_t j = first; j < first + DTP_SCALED_RUN && j < width; j++)
                scratch[i * width + j] *= scale;
        }
    return scratch;
}

static void multiply(const struct dtp_matmul_args *g, const float *a, uint64_t lda, const float *b, uint64_t ldb,
                     float *result, uint64_t ldd, bool add)
{
#if DTP_WITH_OPENBLAS
    const blasint m = (blasint)g->m, n = (blasint)g->n, k = (blasint)g->k;
    const blasint row_a = (blasint)lda, row_b = (blasint)ldb, row_d = (blasint)ldd;
    const float scale = dtp_matmul_scale(g), beta = add ? 1.0f : 0.0f;
    sgemm_(g->b_transposed ? "T" : "N", g->a_transposed ? "T" : "N", &n, &m, &k, &scale, b, &row_b, a, &row_a, &beta,
           result, &row_d);
#else
    struct dtp_matmul_args plain = {.a = a,
                                    .b = b,
                                    .addend = add ? result : NULL,
                                    .result = result,
                                    .m = g->m,
                                    .n = g->n,
                                    .k = g->k,
                                    .lda = lda,
                                    .ldb = ldb,
                                    .ldd = ldd,
                                    .scale = g->scale,
                                    .a_transposed = g->a_transposed,
                                    .b_transposed = g->b_transposed};
    dtp_reference_matmul(NULL, &plain, NULL);
#endif
}

/* What the product is added to: the addend, the bias, or nothing. False: nothing, and `start` is not written. */
static bool write_start(const struct dtp_matmul_args *g, float *start, uint64_t stride)
{
    if ((!g->addend && !g->bias) || g->a_scale) /* the product is scaled first */
        return false;
    if (g->addend == start && !g->bias)
        return true;
    const double scale = (double)dtp_matmul_addend_scale(g);
    for (uint64_t i = 0; i < g->m; i++)
        for (uint64_t j = 0; j < g->n; j++) {
            double value = g->addend ? scale * dtp_load(g->addend, g->result_element, i * g->ldd + j) : 0;
            start[i * stride + j] = (float)(value + (g->bias ? dtp_load(g->bias, g->element, j) : 0));
        }
    return true;
}

/* ---- epilogues --------------------------------------------------------------------------------------------------- */

static void finish(const struct dtp_matmul_args *g, const float *product)
{
    for (uint64_t i = 0; i < g->m; i++)
        for (uint64_t j = 0; j < g->n; j++) {
            double value = (double)product[i * g->n + j];
            uint64_t at = i * g->ldd + j;
            if (g->a_scale)
                value = value * dtp_product_scale(g) + (g->addend ? dtp_load(g->addend, g->result_element, at) : 0) +
                        (g->bias ? dtp_load(g->bias, dtp_matmul_bias_element(g->element, g->result_element), j) : 0);
            if (g->epilogue == DTP_EPILOGUE_GELU_AUX) {
                dtp_store(g->aux, g->element, at, value);
                value = dtp_gelu(dtp_load(g->aux, g->element, at));
            } else if (g->epilogue == DTP_EPILOGUE_DGELU) {
                value *= dtp_gelu_slope(dtp_load(g->aux, g->element, at));
            }
            dtp_store(g->result, g->result_element, at, value);
        }
}

static void sum_columns(const struct dtp_matmul_args *g, const float *a, uint64_t lda)
{
    for (uint64_t j = 0; j < g->m; j++) {
        double sum = g->addend == g->result ? dtp_load(g->bias_gradient, g->result_element, j) : 0;
        for (uint64_t i = 0; i < g->k; i++)
            sum += (double)a[i * lda + j];
        dtp_store(g->bias_gradient, g->result_element, j, sum);
    }
}

int dtp_host_matmul(struct dtp_host_matmul *state, const struct dtp_matmul_args *g)
{
    struct layout l = layout_of(g);
    if (l.a_elements + l.b_elements + l.result_elements > state->scratch_elements)
        return DTP_HOST_UNPREPARED;
    const float *a = g->a, *b = g->b;
    uint64_t lda = g->lda, ldb = g->ldb;
    if (l.a_elements) {
        a = widened(g->a, g->element, l.a_rows, l.a_stride, g->lda, g->a_scaling, g->a_scale, state->scratch);
        b = widened(g->b, dtp_matmul_b_element(g), l.b_rows, l.b_stride, g->ldb, g->b_scaling, g->b_scale,
                    state->scratch + l.a_elements);
        lda = l.a_stride;
        ldb = l.b_stride;
    }
    bool in_place = l.result_elements == 0;
    float *product = in_place ? g->result : state->scratch + l.a_elements + l.b_elements;
    uint64_t ldd = in_place ? g->ldd : g->n;
    multiply(g, a, lda, b, ldb, product, ldd, write_start(g, product, ldd));
    if (!in_place)
        finish(g, product);
    if (g->bias_gradient)
        sum_columns(g, a, lda);
    return 0;
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

uint32_t dtp_host_matmul_threads(uint32_t threads)
{
#if DTP_WITH_OPENBLAS
    if (threads > 0)
        openblas_set_num_threads((int)threads);
    return (uint32_t)openblas_get_num_threads();
#else
    (void)threads;
    return 1;
#endif
}

const char *dtp_host_matmul_library(void)
{
#if DTP_WITH_OPENBLAS
    return openblas_get_config();
#else
    return "loops of our own (built without OpenBLAS)";
#endif
}
