/* Casts to fp8 and the matmuls that read them. */
#include "bind/binder.h"

_Static_assert(DTP_AMAX_HISTORY == DTP_EXECUTOR_AMAX_HISTORY, "amaxes of earlier steps");
_Static_assert(DTP_FP8_BLOCK == DTP_SCALED_RUN && DTP_FP8_BLOCKS_PADDED == DTP_SCALED_PADDING, "scales of blocks");

/* Blockwise scaling: activations have a scale for each run of 128 neighbours in a row, weights one for each square of
 * 128 x 128. */
enum dtp_form dtp_bind_weight_form(const struct dtp_binder *b)
{
    enum dtp_form form = (enum dtp_form)b->op->demand->form;
    return form == DTP_FORM_E4M3_RUNS && operand(b, DTP_ROLE_WEIGHT) ? DTP_FORM_E4M3_SQUARES : form;
}

static enum dtp_scaling scaling_of(enum dtp_form form)
{
    switch (form) {
    case DTP_FORM_E4M3_ROWS: return DTP_SCALED_ROWS;
    case DTP_FORM_E4M3_ALIKE: return DTP_SCALED_ALIKE;
    case DTP_FORM_E4M3_RUNS: return DTP_SCALED_RUNS;
    case DTP_FORM_E4M3_SQUARES: return DTP_SCALED_SQUARES;
    default: return DTP_SCALED_WHOLE;
    }
}

/* Scales that lie behind the bytes of a matrix (fp8_layout.h); NULL where there is no matrix. */
static float *scales_behind(const void *matrix, uint64_t rows, uint64_t columns)
{
    return matrix ? (float *)((char *)(uintptr_t)matrix + rows * columns) : NULL;
}

/* fp8 matmuls want both operands stored along the dimension that is summed over, whichever of the three products it is.
 * `fast` lets tensor cores keep sums in fewer bits than fp32's: forward, as torchao and Transformer Engine do it, but
 * not of blocks; sums of gradients keep all. */
void dtp_bind_matmul_fp8(struct dtp_binder *b, struct dtp_matmul_args *g)
{
    enum dtp_form form = (enum dtp_form)b->op->demand->form;
    if (g->element != DTP_ELEMENT_E4M3)
        return;
    g->fast = !operand(b, DTP_ROLE_GRADIENT) && form != DTP_FORM_E4M3_RUNS;
    if (dtp_fp8_scales_behind(form)) {
        g->a_scaling = scaling_of(form), g->b_scaling = scaling_of(dtp_bind_weight_form(b));
        g->a_scale = scales_behind(g->a, g->m, g->k);
        g->b_scale = scales_behind(g->b, g->n, g->k);
    } else {
        g->element = operand(b, DTP_ROLE_GRADIENT) ? DTP_ELEMENT_E5M2 : DTP_ELEMENT_E4M3;
        g->a_scale = need(b, DTP_ROLE_SCALE);
        g->b_scale = need(b, DTP_ROLE_OTHER_SCALE);
    }
    g->a_transposed = false;
    g->b_transposed = true;
    g->lda = g->ldb = g->k;
}

static void fill_scaled_quantize(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t columns = whole(b->op->demand->n), own_rows = rows(b);
    struct dtp_scaled_quantize_args a = {.values = need(b, DTP_ROLE_INPUT),
                                         .result = maybe(b, DTP_ROLE_RESULT),
                                         .transposed = maybe(b, DTP_ROLE_TRANSPOSED),
                                         .rows = own_rows,
                                         .columns = columns,
                                         .element = element_of(b, DTP_ROLE_INPUT),
                                         .scaling = scaling_of((enum dtp_form)b->op->demand->form)};
    a.result_scales = scales_behind(a.result, own_rows, columns);
    a.transposed_scales = scales_behind(a.transposed, own_rows, columns);
    bool by_rows = dtp_fp8_by_rows((enum dtp_form)b->op->demand->form);
    a.result_maxima = by_rows && a.result ? a.result_scales + own_rows : NULL;
    a.transposed_maxima = by_rows && a.transposed ? a.transposed_scales + columns : NULL;
    out->kernel = DTP_KERNEL_scaled_quantize;
    out->arguments.scaled_quantize = a;
}

/* A cast without a result only finds the largest magnitude (amax). */
void dtp_bind_quantize(struct dtp_binder *b, struct dtp_bound_op *out)
{
    uint64_t columns = whole(b->op->demand->n);
    if (dtp_fp8_scales_behind((enum dtp_form)b->op->demand->form)) {
        fill_scaled_quantize(b, out);
        return;
    }
    bool history = b->op->demand->form == DTP_FORM_FROM_HISTORY;
    if (!history && !operand(b, DTP_ROLE_RESULT) && !operand(b, DTP_ROLE_TRANSPOSED)) {
        out->kernel = DTP_KERNEL_amax;
        out->arguments.amax = (struct dtp_amax_args){.values = need(b, DTP_ROLE_INPUT),
                                                     .amax = need(b, DTP_ROLE_AMAX),
                                                     .count = rows(b) * columns,
                                                     .element = element_of(b, DTP_ROLE_INPUT)};
        return;
    }
    if (history) {
        out->kernel = DTP_KERNEL_from_history;
        out->arguments.from_history = (struct dtp_from_history_args){.history = need(b, DTP_ROLE_AMAX),
                                                                     .scale = need(b, DTP_ROLE_SCALE),
                                                                     .count = columns,
                                                                     .wide = whole(b->op->demand->k)};
        return;
    }
    const struct dtp_operand *scale = operand(b, DTP_ROLE_SCALE);
    bool gradient = b->op->demand->form == DTP_FORM_E5M2, delayed = scale && !(scale->access & DTP_WRITE);
    out->kernel = DTP_KERNEL_quantize;
    out->arguments.quantize =
        (struct dtp_quantize_args){.values = need(b, DTP_ROLE_INPUT),
                                   .amax = delayed ? maybe(b, DTP_ROLE_AMAX) : need(b, DTP_ROLE_AMAX),
                                   .delayed = delayed,
                                   .scale = need(b, DTP_ROLE_SCALE),
                                   .result = maybe(b, DTP_ROLE_RESULT),
                                   .transposed = maybe(b, DTP_ROLE_TRANSPOSED),
                                   .rows = rows(b),
                                   .columns = columns,
                                   .element = element_of(b, DTP_ROLE_INPUT),
                                   .result_element = gradient ? DTP_ELEMENT_E5M2 : DTP_ELEMENT_E4M3};
}
