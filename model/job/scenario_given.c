/* Keys of the plan that were given and that rules made something else of: what was asked for is not what would be
 * predicted, so they are refused. Words that stand for what is found (attention flash, stages best) and a recipe of
 * several formats (precision) are no such keys. */
#include "job/job_values.h"
#include "job/scenario_resolution.h"
#include "plan/degrees.h"
#include "plan/optimizer_state.h"
#include "plan/rules.h"

#include <string.h>

/* A switch that the rules of the runtime turned the other way. */
static void check_switches(struct dtp_resolution *r, const struct dtp_draft *asked, const struct dtp_draft *is)
{
    const struct dtp_plan *plan = &r->job->plan;
    for (int i = 0; i < DTP_KEY_COUNT; i++) {
        enum dtp_key key = (enum dtp_key)i;
        struct dtp_job_value value;
        if (!given(r, key) || !dtp_key_is_switch(key) || !dtp_key_is_of_plan(key))
            continue;
        bool no_difference = (key == DTP_KEY_accumulate_sync && plan->accumulate == 1) ||
                             (key == DTP_KEY_wrap_ends && asked->plan.wrap_ends_auto);
        if (no_difference || dtp_key_same(key, asked, is))
            continue;
        dtp_key_value(key, is, &value);
        if (key == DTP_KEY_wrap_ends)
            refuse(r, key, "is always true with tp, pp or cp above 1; leave it out, or give keep_root");
        else
            refuse(r, key, "is always %s with strategy %s under runtime %s; leave it out",
                   value.whole ? "true" : "false", dtp_strategy_text(plan->strategy), plan->runtime->name);
    }
}

/* A format that follows from others: of the optimizer's own moments, of a base that stays frozen and what is added to
 * it, of a runtime that keeps the master itself. Not reduce_dtype, which frameworks' files say beside adapters too
 * (note_useless). */
static void check_formats(struct dtp_resolution *r, const struct dtp_draft *asked, const struct dtp_draft *is)
{
    static const enum dtp_key keys[] = {DTP_KEY_param_dtype, DTP_KEY_compute_dtype, DTP_KEY_master_dtype,
                                        DTP_KEY_moment_dtype, DTP_KEY_lora_dtype};
    const struct dtp_plan *plan = &r->job->plan;
    const struct dtp_optimizer_row *row = dtp_optimizer_row(plan->optimizer);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        struct dtp_job_value value;
        if (!given(r, keys[i]) || dtp_key_same(keys[i], asked, is))
            continue;
        dtp_key_value(keys[i], is, &value);
        if (keys[i] == DTP_KEY_moment_dtype && row->bits)
            refuse(r, keys[i],
                   "is not chosen with %s, whose moments have a format of their own; leave it out, or use optimizer "
                   "adamw or lion",
                   row->word);
        else if (plan->adapters.rank)
            refuse(r, keys[i],
                   "is not chosen with adapters (lora), where it follows from precision%s: %s; leave it out, or "
                   "choose %s",
                   keys[i] == DTP_KEY_moment_dtype ? " and lora_dtype" : "", value.word,
                   keys[i] == DTP_KEY_moment_dtype ? "those" : "that");
        else
            refuse(r, keys[i], "is %s with precision %s under runtime %s; leave it out, or choose precision",
                   value.word, dtp_precision_name(&plan->precision), plan->runtime->name);
    }
}

/* One chunk of a schedule that has more: 1 is the default and means what the schedule has, but who writes it does not.
 */
static void check_chunks(struct dtp_resolution *r)
{
    const struct dtp_plan *plan = &r->job->plan;
    struct dtp_schedule_shape one = dtp_plan_schedule(plan);
    struct dtp_faults faults = {0};
    if (!given(r, DTP_KEY_virtual_stages) || r->job->asked.virtual_stages == plan->virtual_stages)
        return;
    one.chunks = r->job->asked.virtual_stages;
    dtp_schedule_resolve(&one, &faults);
    const char *why = faults.count ? strchr(faults.text[0], ':') : NULL;
    if (why)
        refuse(r, DTP_KEY_virtual_stages, "%s", why + 2);
    else
        refuse(r, DTP_KEY_virtual_stages, "is %u by stages %s; leave it out", plan->virtual_stages,
               dtp_stage_choice_text(&plan->stages));
}

void dtp_check_given(struct dtp_resolution *r)
{
    const struct dtp_draft asked = {.plan = r->job->asked}, is = {.plan = r->job->plan};
    check_switches(r, &asked, &is);
    check_formats(r, &asked, &is);
    check_chunks(r);
}
