/* AdamW on cores of the host, as offload runs it: one rank alone and all of a machine at once, on pinned memory. */
#include "probe/prober.h"

#include "base/clock.h"
#include "kernels/element.h"

#include <math.h>
#include <string.h>

#define BYTES_PER_ELEMENT 16 /* fp32 master and both moments, bf16 gradient and weight */
#define MOVED_PER_ELEMENT 28 /* as demand.bytes of a host_optimizer counts them: read and write of the first three */
#define LEAST_ELEMENTS (UINT64_C(1) << 17)
#define STEP 4
/* Arrays that begin at multiples of a large power of two share the sets of every cache: 6 GB/s, not 24, on a Zen 3. */
#define APART_BYTES UINT64_C(4352)
#define SAMPLES 5

struct update {
    struct dtp_prober *p;
    struct dtp_host_adam *adam;
    struct dtp_step_scalars scalars;
    uint64_t elements;
    bool everyone;
};

uint64_t dtp_probe_host_count(const struct dtp_prober *p)
{
    return dtp_probe_both_ways_of_sharing(p) ? 2 : 1;
}

static struct dtp_adamw_args arguments_of(const struct update *u)
{
    char *at = u->p->host_base;
    uint64_t n = u->elements;
    return (struct dtp_adamw_args){.master = (float *)at,
                                   .moment1 = at + 4 * n + APART_BYTES,
                                   .moment2 = at + 8 * n + 2 * APART_BYTES,
                                   .gradient = at + 12 * n + 3 * APART_BYTES,
                                   .weights = at + 14 * n + 4 * APART_BYTES,
                                   .count = n,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .epsilon = 1e-8f,
                                   .scalars = &u->scalars,
                                   .gradient_element = DTP_ELEMENT_BF16,
                                   .weight_element = DTP_ELEMENT_BF16,
                                   .moment_element = DTP_ELEMENT_FP32};
}

/* Weights and gradients by the counter's normal numbers, repeated: the processor's speed does not depend on them. */
static int fill(const struct update *u)
{
    enum { TILE = 4096 };
    struct dtp_adamw_args a = arguments_of(u);
    char *gradient = u->p->host_base + 12 * u->elements + 3 * APART_BYTES;
    struct dtp_initialise_args tile = {
        .values = gradient, .count = TILE, .seed = 1, .tensor = 1, .deviation = 1, .element = DTP_ELEMENT_BF16};
    int code = dtp_reference_initialise(NULL, &tile, NULL);
    memset(a.master, 0, 4 * u->elements);
    memset(a.moment1, 0, 4 * u->elements);
    memset(a.moment2, 0, 4 * u->elements);
    memset(a.weights, 0, 2 * u->elements);
    for (uint64_t done = TILE; done < u->elements; done += TILE)
        memcpy(gradient + 2 * done, gradient, 2 * TILE);
    return code;
}

/* Kingma & Ba 2015: from zero moments the first update is -lr g / (|g| + eps'), so a weight of 0 becomes -lr, with the
 * sign of its gradient. */
static enum dtp_status check(const struct update *u)
{
    struct dtp_adamw_args a = arguments_of(u);
    for (uint64_t i = 0; i < u->elements; i += u->elements / 64 + 1) {
        double gradient = dtp_load(a.gradient, DTP_ELEMENT_BF16, i),
               wanted = -copysign(u->scalars.learning_rate, gradient);
        if (fabs(gradient) > 1e-3 && fabs((double)a.master[i] - wanted) > 1e-3 * fabs(wanted))
            return dtp_fault(u->p->faults, DTP_NO, NULL, 0,
                             "AdamW on the host made %g of a weight that must become %g: its time says nothing",
                             (double)a.master[i], wanted);
    }
    return DTP_OK;
}

static enum dtp_status run_once(void *of, double *seconds)
{
    struct update *u = of;
    struct dtp_adamw_args a = arguments_of(u);
    enum dtp_status status = dtp_prober_barrier(u->p);
    *seconds = (double)NAN;
    if (status != DTP_OK || (!u->everyone && u->p->of->ranks.local_rank != 0))
        return status;
    double begin_s = dtp_now_s();
    dtp_host_adam_step(u->adam, &a);
    *seconds = dtp_now_s() - begin_s;
    return DTP_OK;
}

static enum dtp_status measure_size(struct update *u)
{
    struct dtp_measured_row row = dtp_measured_row_of(DTP_MEASUREMENT_HOST_ADAM, "update");
    bool takes_part = u->everyone || u->p->of->ranks.local_rank == 0;
    double samples[SAMPLES], first;
    if (fill(u))
        return dtp_fault(u->p->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    enum dtp_status status = run_once(u, &first);
    if (status == DTP_OK && takes_part)
        status = check(u);
    row.number[DTP_MEASURED_bytes] = (double)(MOVED_PER_ELEMENT * u->elements);
    row.number[DTP_MEASURED_ranks] = u->everyone ? u->p->ranks / u->p->nodes : 1;
    if (status == DTP_OK)
        status = dtp_prober_sample(u->p, &row, SAMPLES, run_once, u, samples);
    return status == DTP_OK ? dtp_prober_add(u->p, &row, samples, SAMPLES) : status;
}

static enum dtp_status measure(struct update *u)
{
    enum dtp_status status = DTP_OK;
    for (int everyone = dtp_probe_both_ways_of_sharing(u->p) ? 0 : u->p->ranks > 1;
         everyone < (u->p->ranks > 1 ? 2 : 1) && status == DTP_OK; everyone++) {
        u->everyone = everyone;
        if (!dtp_prober_next(u->p, everyone ? "AdamW on the host, all at once" : "AdamW on the host, one rank alone",
                             &status))
            return status;
        for (u->elements = LEAST_ELEMENTS;
             BYTES_PER_ELEMENT * u->elements + 4 * APART_BYTES <= u->p->host_bytes && status == DTP_OK;
             u->elements *= STEP)
            status = measure_size(u);
    }
    return status;
}

enum dtp_status dtp_probe_host(struct dtp_prober *p)
{
    struct update u = {.p = p,
                       .scalars = {.learning_rate = 1e-3f, .correction1 = 0.1f, .correction2 = 0.05f, .clip_scale = 1}};
    struct dtp_host_adam_options options = {.parts = 1, .spare = p->device->asynchronous ? 2 : 0}; /* as bind.c's */
    if (!p->device->asynchronous && p->of->ranks.local_world > 1)
        options = (struct dtp_host_adam_options){.index = p->of->ranks.local_rank, .parts = p->of->ranks.local_world};
    enum dtp_status status = dtp_host_adam_create(&options, &u.adam, p->faults);
    if (status == DTP_OK)
        status = measure(&u);
    dtp_host_adam_destroy(u.adam);
    return status;
}
