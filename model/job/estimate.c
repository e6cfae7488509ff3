#include "job/estimate.h"

#include "bounds/bound_fit.h"
#include "lower/lower.h"
#include "lower/miniature.h"

void dtp_estimate_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_slice *out)
{
    if (dtp_plan_model_parallel(plan))
        plan->runtime->closed->slice(transformer, cluster, plan, out);
    else
        *out = (struct dtp_slice){.transformer = *transformer, .cluster = *cluster, .plan = *plan};
}

/* Where all ranks run one program it is the plan's own, tensor parallel collectives and all; of a pipeline that of a
 * slice. Why there is no step program is told by who asks for one; here it is no fault. */
static enum dtp_status base_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                               const struct dtp_plan *plan, const struct dtp_slice *slice,
                               struct dtp_estimate_base *out, struct dtp_faults *faults)
{
    struct dtp_miniature miniature;
    bool one = plan->pp == 1;
    enum dtp_status status = dtp_miniature_of(one ? transformer : &slice->transformer, one ? cluster : &slice->cluster,
                                              one ? plan : &slice->plan, DTP_LOWER_MOST_OPS, &miniature, NULL);
    out->bound = status == DTP_BAD_INPUT;
    if (status == DTP_OK)
        out->live = miniature.live;
    else if (status != DTP_BAD_INPUT)
        dtp_fault(faults, status, NULL, 0, "no memory to lower the step");
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
    struct dtp_slice slice;
    struct dtp_estimate_base base;
    dtp_estimate_slice(transformer, cluster, plan, &slice);
    enum dtp_status status = base_of(transformer, cluster, plan, &slice, &base, faults);
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
    struct dtp_slice slice;
    dtp_estimate_slice(transformer, cluster, plan, &slice);
    return base_of(transformer, cluster, plan, &slice, out, faults);
}

void dtp_estimate_from(const struct dtp_estimate_base *base, const struct dtp_transformer *transformer,
                       const struct dtp_cluster *cluster, const struct dtp_plan *plan, struct dtp_prediction *out)
{
    struct dtp_slice slice;
    dtp_estimate_slice(transformer, cluster, plan, &slice);
    dtp_closed_form(transformer, cluster, plan, out);
    memory_from(base, &slice, transformer, cluster, plan, &out->memory, NULL);
}
