#include "job/estimate.h"

#include "job/bound_fit.h"
#include "lower/lower.h"
#include "lower/miniature.h"

#include <string.h>

void dtp_estimate_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_slice *out)
{
    if (dtp_plan_model_parallel(plan))
        plan->runtime->closed->slice(transformer, cluster, plan, out);
    else
        *out = (struct dtp_slice){.transformer = *transformer, .cluster = *cluster, .plan = *plan};
}

/* ---- what was lowered before ------------------------------------------------------------------------------------- */

#define REMEMBERED 64      /* enough for a sweep whose innermost axes are batches, two kB each */
#define MANY_MICRO_STEPS 4 /* stands for any number above those that miniatures lower */

/* What lowering has read: its input, to the byte, with MANY_MICRO_STEPS for any number of them that gives the same. */
struct lowered {
    struct dtp_slice slice;
    struct dtp_estimate_base base;
};

/* No constant of the model moves a live byte (dtp_estimate_base), so that nothing here grows old. */
static _Thread_local struct {
    uint32_t count, oldest;
    struct lowered list[REMEMBERED];
} lately;

static bool same_input(const struct dtp_slice *a, const struct dtp_slice *b)
{
    return !memcmp(&a->plan, &b->plan, sizeof a->plan) && !memcmp(&a->cluster, &b->cluster, sizeof a->cluster) &&
           !memcmp(&a->transformer, &b->transformer, sizeof a->transformer);
}

static const struct lowered *recall(const struct dtp_slice *slice)
{
    for (uint32_t i = 0; i < lately.count; i++)
        if (same_input(&lately.list[i].slice, slice))
            return &lately.list[i];
    return NULL;
}

static void remember(const struct dtp_slice *slice, const struct dtp_estimate_base *base)
{
    struct lowered *place = &lately.list[lately.oldest];
    place->slice = *slice;
    place->base = *base;
    lately.oldest = (lately.oldest + 1) % REMEMBERED;
    lately.count += lately.count < REMEMBERED;
}

/* ---- the estimate ------------------------------------------------------------------------------------------------ */

/* What is lowered: where all ranks run one program the plan itself, tensor parallel collectives and all; of a pipeline
 * a slice. */
static void find_lowered(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                         const struct dtp_plan *plan, struct dtp_slice *out)
{
    if (plan->pp > 1)
        dtp_estimate_slice(transformer, cluster, plan, out);
    else
        *out = (struct dtp_slice){.transformer = *transformer, .cluster = *cluster, .plan = *plan};
}

/* Why there is no step program is told by who asks for one; here it is no fault. */
static enum dtp_status base_of_lowered(const struct dtp_slice *slice, struct dtp_estimate_base *out,
                                       struct dtp_faults *faults)
{
    struct dtp_miniature miniature = {.micro_steps = slice->plan.accumulate};
    struct dtp_slice input = *slice;
    const struct lowered *before;
    if (input.plan.accumulate > MANY_MICRO_STEPS)
        input.plan.accumulate = MANY_MICRO_STEPS;
    before = recall(&input);
    if (before) {
        *out = before->base;
        return DTP_OK;
    }
    enum dtp_status status =
        dtp_miniature_of(&slice->transformer, &slice->cluster, &slice->plan, DTP_LOWER_MOST_OPS, &miniature, NULL);
    out->bound = status == DTP_BAD_INPUT;
    if (status == DTP_OK)
        out->live = miniature.live;
    else if (status != DTP_BAD_INPUT)
        dtp_fault(faults, status, NULL, 0, "no memory to lower the step");
    bool repeats = miniature.micro_steps < slice->plan.accumulate;
    if (status == DTP_OK && (repeats || slice->plan.accumulate < MANY_MICRO_STEPS))
        remember(&input, out);
    return out->bound ? DTP_OK : status;
}

static void memory_from(const struct dtp_estimate_base *base, const struct dtp_slice *slice,
                        const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts)
{
    if (base->bound)
        dtp_bound_memory_of(&slice->transformer, &slice->cluster, &slice->plan, out, parts);
    else
        dtp_memory_of_live(&base->live, &slice->transformer, &slice->cluster, &slice->plan, out, parts);
    if (plan->pp > 1 || (plan->tp > 1 && base->bound))
        plan->runtime->closed->add_stages_memory(transformer, cluster, plan, out);
}

enum dtp_status dtp_estimate_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts,
                                    struct dtp_faults *faults)
{
    struct dtp_slice slice, lowered;
    struct dtp_estimate_base base;
    dtp_estimate_slice(transformer, cluster, plan, &slice);
    find_lowered(transformer, cluster, plan, &lowered);
    enum dtp_status status = base_of_lowered(&lowered, &base, faults);
    if (status == DTP_OK)
        memory_from(&base, &slice, transformer, cluster, plan, out, parts);
    return status;
}

enum dtp_status dtp_estimate(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, struct dtp_prediction *out, struct dtp_faults *faults)
{
    dtp_closed_form(transformer, cluster, plan, out);
    return dtp_estimate_memory(transformer, cluster, plan, &out->memory, NULL, faults);
}

enum dtp_status dtp_estimate_base_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                     const struct dtp_plan *plan, struct dtp_estimate_base *out,
                                     struct dtp_faults *faults)
{
    struct dtp_slice lowered;
    find_lowered(transformer, cluster, plan, &lowered);
    return base_of_lowered(&lowered, out, faults);
}

void dtp_estimate_from(const struct dtp_estimate_base *base, const struct dtp_transformer *transformer,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan, struct dtp_prediction *out)
{
    struct dtp_slice slice;
    dtp_estimate_slice(transformer, cluster, plan, &slice);
    dtp_closed_form(transformer, cluster, plan, out);
    memory_from(base, &slice, transformer, cluster, plan, &out->memory, NULL);
}
