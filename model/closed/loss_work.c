/* Bytes that the loss moves through HBM. */
#include "closed/block_work.h"
#include "plan/rules.h"

/* Of a column of the logits. */
static double loss_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    double w = dtp_plan_compute_bytes(plan);
    double cap = transformer->final_softcap > 0 ? 13 * w : 0; /* divide, tanh, multiply 2 w each; backward 2, 3, 2 */
    if (plan->loss == DTP_LOSS_NATIVE)
        /* to fp32, with the maximum, w+4; exponentials and their sum 8; quotient 8; backward the targets' in a copy 8,
         * times the loss's gradient, in the copy's stead and cast, 8+w */
        return 2 * w + 4 + 16 + 16;
    if (dtp_plan_softmax_in_place(plan))
        /* logits.float(): w+4; maximum 4, difference 8, exponential 8, sum 4, quotient 8; times the loss's gradient 8;
         * cast back 4+w */
        return 2 * (4 + w) + 32 + 8;
    double state = (double)dtp_plan_shifted_loss_bytes(plan);
    if (plan->narrow_logits) /* shifted 2 w, cast there and back, log_softmax 2 and 3, of the shift 3 w */
        return 5 * w + (state == w ? 0 : 2 * (w + state)) + 5 * state + cap;
    if (dtp_plan_shifts_logits(plan))
        /* to fp32 w+4, shifted 4+4, log_softmax 4+4 (one kernel: read 4, and its gradient over them 4+4); backward of
         * it 12, of the shift zeros 4 and 4+4; cast back 4+w */
        return 2 * (4 + w) + 8 + (dtp_plan_loss(plan) == DTP_LOSS_EAGER ? 20 : 12) + 12 + cap;
    if (dtp_plan_loss_over_dtensors(plan) && w < 4)
        /* loss_parallel: maximum w; eager w+12 less that, zeros, exponential and their sum 24, times the gradient 8,
         * cast back 4+w; compiled sum w and log_softmax w+4, zeros 4, the gradient 8+w */
        return dtp_plan_loss(plan) == DTP_LOSS_EAGER ? 2 * w + 48 : 4 * w + 16;
    if (dtp_plan_loss(plan) == DTP_LOSS_EAGER)
        /* logits.float(): w+4; log_softmax 4+4; its backward reads 4+4 writes 4, where nll has written zeros 4; cast
         * back 4+w */
        return 2 * (4 + w) + 8 + 12 + 4 + cap;
    return dtp_plan_fused_loss_passes(plan) * w;
}

/* Gathered logits are put side by side, 2 w, and of their gradient a rank's are cut out, 2 w of those. */
double dtp_loss_bytes_per_token(const struct dtp_transformer *transformer, const struct dtp_plan *plan)
{
    double own = (double)transformer->vocab, columns = (double)dtp_plan_loss_columns(plan, transformer->vocab),
           w = dtp_plan_compute_bytes(plan);
    return columns * loss_bytes(transformer, plan) + (columns > own ? 2 * w * (columns + own) : 0);
}
