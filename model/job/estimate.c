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

void dtp_estimate_stage(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_slice *out)
{
    dtp_estimate_slice(transformer, cluster, plan, out);
    if (plan->pp > 1 && plan->accumulate == 1 && plan->runtime->holds_passes && dtp_plan_is_fsdp(plan))
        out->plan.accumulate = 2;
}

/* ---- what was lowered before ------------------------------------------------------------------------------------- */

#define REMEMBERED 64       /* enough for a sweep whose innermost axes are batches, three kB each */
#define THREE_MICRO_STEPS 3 /* stand for any number of several: of two they know as well */

/* What lowering has read: its input, to the byte, with THREE_MICRO_STEPS for any number of them that gives the same. */
struct lowered {
    struct dtp_slice slice;
    struct dtp_estimate_base base, of_two;
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

static void remember(const struct dtp_slice *slice, const struct dtp_estimate_base *base,
                     const struct dtp_estimate_base *of_two)
{
    struct lowered *place = &lately.list[lately.oldest];
    place->slice = *slice;
    place->base = *base;
    place->of_two = *of_two;
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
        dtp_estimate_stage(transformer, cluster, plan, out);
    else
        *out = (struct dtp_slice){.transformer = *transformer, .cluster = *cluster, .plan = *plan};
}

static enum dtp_status lower(const struct dtp_slice *slice, struct dtp_estimate_base *out,
                             struct dtp_miniature_shorter *shorter)
{
    struct dtp_miniature miniature;
    enum dtp_status status = dtp_miniature_of_many(&slice->transformer, &slice->cluster, &slice->plan,
                                                   DTP_LOWER_MOST_OPS, &miniature, shorter, NULL);
    out->bound = status == DTP_BAD_INPUT;
    if (status == DTP_OK)
        out->live = miniature.live;
    return status;
}

/* By the step of three micro-steps, of which that of two is a part. False: that has to be lowered itself. */
static bool lower_two(const struct dtp_slice *three, struct dtp_estimate_base *out)
{
    struct dtp_miniature_shorter shorter;
    struct dtp_estimate_base base;
    if (lower(three, &base, &shorter) != DTP_OK || !shorter.known)
        return false;
    *out = (struct dtp_estimate_base){.live = shorter.live};
    remember(three, &base, out);
    return true;
}

/* Why there is no step program is told by who asks for one; here it is no fault. */
static enum dtp_status base_of_lowered(const struct dtp_slice *slice, struct dtp_estimate_base *out,
                                       struct dtp_faults *faults)
{
    struct dtp_miniature_shorter shorter;
    struct dtp_slice input = *slice;
    const bool several = input.plan.accumulate > 1, two = input.plan.accumulate == 2;
    if (several)
        input.plan.accumulate = THREE_MICRO_STEPS;
    const struct lowered *before = recall(&input);
    if (before) {
        *out = two ? before->of_two : before->base;
        return DTP_OK;
    }
    if (two && lower_two(&input, out))
        return DTP_OK;
    enum dtp_status status = lower(slice, out, &shorter);
    if (status != DTP_OK && status != DTP_BAD_INPUT)
        return dtp_fault(faults, status, NULL, 0, "no memory to lower the step");
    if (status == DTP_OK && shorter.known)
        remember(&input, out, &(struct dtp_estimate_base){.live = shorter.live});
    else if (status == DTP_OK && !several)
        remember(&input, out, out);
    return DTP_OK;
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
    dtp_estimate_stage(transformer, cluster, plan, &slice);
    find_lowered(transformer, cluster, plan, &lowered);
    enum dtp_status status = base_of_lowered(&lowered, &base, faults);
    if (status == DTP_OK)
        memory_from(&base, &slice, transformer, cluster, plan, out, parts);
    return status;
}

enum dtp_status dtp_estimate_time(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                  const struct dtp_plan *plan, struct dtp_prediction *out, struct dtp_faults *faults)
{
    enum dtp_status status = dtp_closed_form(transformer, cluster, plan, out);
    return status == DTP_OK ? DTP_OK : dtp_fault(faults, status, NULL, 0, "no memory for the passes of a pipeline");
}

enum dtp_status dtp_estimate(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, struct dtp_prediction *out, struct dtp_faults *faults)
{
    enum dtp_status status = dtp_estimate_time(transformer, cluster, plan, out, faults);
    return status == DTP_OK ? dtp_estimate_memory(transformer, cluster, plan, &out->memory, NULL, faults) : status;
}

enum dtp_status dtp_estimate_base_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                     const struct dtp_plan *plan, struct dtp_estimate_base *out,
                                     struct dtp_faults *faults)
{
    struct dtp_slice lowered;
    find_lowered(transformer, cluster, plan, &lowered);
    return base_of_lowered(&lowered, out, faults);
}

enum dtp_status dtp_estimate_from(const struct dtp_estimate_base *base, const struct dtp_transformer *transformer,
                                  const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                                  struct dtp_prediction *out)
{
    struct dtp_slice slice;
    dtp_estimate_stage(transformer, cluster, plan, &slice);
    memory_from(base, &slice, transformer, cluster, plan, &out->memory, NULL);
    return dtp_closed_form(transformer, cluster, plan, out);
}
