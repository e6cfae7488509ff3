#include "kernels/element.h"
#include "kernels/soft_cap.h"

#include <math.h>

static double logit(const struct dtp_loss_args *a, uint64_t at)
{
    return dtp_soft_cap(dtp_load(a->logits, a->element, at), (double)a->softcap);
}

static double gradient_scale(const struct dtp_loss_args *a)
{
    return (double)a->scale * (a->scalars && a->scalars->loss_scale > 0 ? (double)a->scalars->loss_scale : 1);
}

/* The largest logit is taken out first, so that nothing overflows and large logits do not swallow the logarithm. */
static void loss_row(const struct dtp_loss_args *a, uint64_t i)
{
    uint64_t row = i * a->stride;
    int32_t target = a->targets[i];
    double largest = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < a->vocab; j++)
        largest = fmax(largest, logit(a, row + j));
    for (uint32_t j = 0; j < a->vocab; j++)
        sum += exp(logit(a, row + j) - largest);
    if (target < 0)
        a->row_loss[i] = 0;
    else
        a->row_loss[i] = (float)(log(sum) - (logit(a, row + (uint64_t)target) - largest));
    for (uint32_t j = 0; j < a->vocab; j++) {
        double x = logit(a, row + j), probability = exp(x - largest) / sum;
        double gradient = (probability - ((int64_t)j == target)) * gradient_scale(a);
        gradient *= dtp_soft_cap_slope(x, (double)a->softcap);
        dtp_store(a->logits, a->element, row + j, target < 0 ? 0 : gradient);
    }
    for (uint32_t j = a->vocab; j < a->stride; j++)
        dtp_store(a->logits, a->element, row + j, 0);
}

int dtp_reference_loss(void *self, const struct dtp_loss_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->rows; i++)
        loss_row(a, i);
    return 0;
}
