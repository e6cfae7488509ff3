#include "runtime/runtimes.h"

#include "base/nearest.h"

#include <stddef.h>

const struct dtp_runtime *const dtp_runtimes[DTP_RUNTIMES] = {&dtp_runtime_torch,    &dtp_runtime_deepspeed,
                                                              &dtp_runtime_megatron, &dtp_runtime_dtplan,
                                                              &dtp_runtime_nanotron, &dtp_runtime_peft};

const struct dtp_runtime *dtp_runtime_find(const char *word)
{
    for (int i = 0; word && i < DTP_RUNTIMES; i++)
        if (dtp_names_equal(dtp_runtimes[i]->name, word) ||
            (dtp_runtimes[i]->synonym && dtp_names_equal(dtp_runtimes[i]->synonym, word)))
            return dtp_runtimes[i];
    return NULL;
}

const struct dtp_runtime *dtp_runtime_of_strategy(enum dtp_strategy strategy)
{
    for (int i = 0; i < DTP_RUNTIMES; i++)
        if (dtp_runtimes[i]->strategies & 1u << strategy)
            return dtp_runtimes[i];
    return dtp_runtimes[0];
}

struct dtp_plan dtp_plan_default(void)
{
    struct dtp_plan plan = dtp_plan_unchosen();
    plan.runtime = dtp_runtimes[0];
    return plan;
}

enum dtp_status dtp_plan_resolve_from(struct dtp_plan *plan, const struct dtp_transformer *transformer,
                                      const struct dtp_cluster *cluster, const struct dtp_plan_source *source,
                                      struct dtp_faults *faults)
{
    struct dtp_resolver r = {plan, transformer, cluster, source, faults, DTP_OK};
    if (!dtp_plan_choices_exist(&r))
        return r.status;
    dtp_plan_derive(&r);
    if (plan->runtime->derive)
        plan->runtime->derive(plan);
    dtp_plan_check(&r);
    for (int i = 0; i < DTP_RUNTIMES; i++)
        if (dtp_runtimes[i] != plan->runtime && dtp_runtimes[i]->check_elsewhere)
            dtp_runtimes[i]->check_elsewhere(&r);
    dtp_plan_cut_stages(&r);
    return r.status;
}

enum dtp_status dtp_plan_resolve(struct dtp_plan *plan, const struct dtp_transformer *transformer,
                                 const struct dtp_cluster *cluster, struct dtp_faults *faults)
{
    return dtp_plan_resolve_from(plan, transformer, cluster, NULL, faults);
}
