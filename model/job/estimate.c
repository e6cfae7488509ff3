#include "job/estimate.h"

#include "bounds/bound_fit.h"
#include "closed/closed_form_hooks.h"
#include "lower/miniature.h"

#define MOST_OPS 4000000u /* of a step whose layers are all lowered: about 1 GiB */

/* Of a plan on one rank's slice. Why it has no step program is told by who asks for one; here it is no fault. */
static enum dtp_status memory_of_slice(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                       const struct dtp_plan *plan, struct dtp_memory *out,
                                       struct dtp_memory_parts *parts, struct dtp_faults *faults)
{
    struct dtp_miniature miniature;
    enum dtp_status status = dtp_miniature_of(transformer, cluster, plan, MOST_OPS, &miniature, NULL);
    if (status == DTP_OK)
        dtp_memory_of_live(&miniature.live, transformer, cluster, plan, out, parts);
    else if (status == DTP_BAD_INPUT)
        dtp_bound_memory_of(transformer, cluster, plan, out, parts);
    else
        dtp_fault(faults, status, NULL, 0, "no memory to lower the step");
    return status == DTP_BAD_INPUT ? DTP_OK : status;
}

enum dtp_status dtp_estimate_memory(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                    const struct dtp_plan *plan, struct dtp_memory *out, struct dtp_memory_parts *parts,
                                    struct dtp_faults *faults)
{
    struct dtp_slice slice;
    if (!dtp_plan_model_parallel(plan))
        return memory_of_slice(transformer, cluster, plan, out, parts, faults);
    plan->runtime->closed->slice(transformer, cluster, plan, &slice);
    enum dtp_status status = memory_of_slice(&slice.transformer, &slice.cluster, &slice.plan, out, parts, faults);
    if (status == DTP_OK)
        plan->runtime->closed->add_stages_memory(transformer, cluster, plan, out);
    return status;
}

enum dtp_status dtp_estimate(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                             const struct dtp_plan *plan, struct dtp_prediction *out, struct dtp_faults *faults)
{
    dtp_closed_form(transformer, cluster, plan, out);
    return dtp_estimate_memory(transformer, cluster, plan, &out->memory, NULL, faults);
}
