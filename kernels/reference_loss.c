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

/* What the logits at hand say of a row: the largest, the sum of exp(logit - largest), in which nothing overflows, and
 * the target's. */
struct sum_of_row {
    double largest, sum, target;
};

static struct sum_of_row sum_row(const struct dtp_loss_args *a, uint64_t row, int64_t target)
{
    struct sum_of_row of = {.largest = -INFINITY};
    for (uint32_t j = 0; j < a->vocab; j++)
        of.largest = fmax(of.largest, logit(a, row + j));
    for (uint32_t j = 0; j < a->vocab; j++)
        of.sum += exp(logit(a, row + j) - of.largest);
    of.target = target >= 0 && target < a->vocab ? logit(a, row + (uint64_t)target) : 0;
    return of;
}

static struct sum_of_row sum_parts(const struct dtp_loss_args *a, uint64_t i)
{
    struct sum_of_row of = {.largest = -INFINITY};
    for (uint32_t p = 0; p < a->part_count; p++)
        of.largest = fmax(of.largest, (double)a->parts[p * a->rows + i].largest);
    for (uint32_t p = 0; p < a->part_count; p++) {
        const struct dtp_loss_part *part = &a->parts[p * a->rows + i];
        of.sum += (double)part->sum * exp((double)part->largest - of.largest);
        of.target += (double)part->target;
    }
    return of;
}

static void loss_row(const struct dtp_loss_args *a, uint64_t i)
{
    uint64_t row = i * a->stride;
    int32_t target = a->targets[i];
    int64_t here = target < 0 ? -1 : (int64_t)target - a->first_token;
    struct sum_of_row of = a->parts ? sum_parts(a, i) : sum_row(a, row, here);
    a->row_loss[i] = target < 0 ? 0 : (float)(log(of.sum) - (of.target - of.largest));
    for (uint32_t j = 0; j < a->vocab; j++) {
        double x = logit(a, row + j), probability = exp(x - of.largest) / of.sum;
        double gradient = (probability - ((int64_t)j == here)) * gradient_scale(a);
        gradient *= dtp_soft_cap_slope(x, (double)a->softcap);
        dtp_store(a->logits, a->element, row + j, target < 0 ? 0 : gradient);
    }
    for (uint32_t j = a->vocab; j < a->stride; j++)
        dtp_store(a->logits, a->element, row + j, 0);
}

int dtp_reference_loss_parts(void *self, const struct dtp_loss_parts_args *a, void *stream)
{
    const struct dtp_loss_args of = {.logits = (void *)(uintptr_t)a->logits,
                                     .vocab = a->vocab,
                                     .stride = a->stride,
                                     .softcap = a->softcap,
                                     .element = a->element};
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->rows; i++) {
        int64_t here = a->targets[i] < 0 ? -1 : (int64_t)a->targets[i] - a->first_token;
        struct sum_of_row row = sum_row(&of, i * a->stride, here);
        a->part[i] = (struct dtp_loss_part){(float)row.largest, (float)row.sum, (float)row.target};
    }
    return 0;
}

int dtp_reference_loss(void *self, const struct dtp_loss_args *a, void *stream)
{
    (void)self, (void)stream;
    for (uint64_t i = 0; i < a->rows; i++)
        loss_row(a, i);
    return 0;
}
