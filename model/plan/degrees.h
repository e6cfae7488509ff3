/* What the degrees of a plan's parallelism come to: the schedule that its pipeline runs and the layers that each stage
 * holds, and which combinations there are.
 *
 * A plan says tp, pp, cp and their choices; model/schedule knows schedules and stages as numbers. Here the former
 * becomes the latter, and what is impossible is refused with the rule and the nearest choice that is none. */
#ifndef DTP_DEGREES_H
#define DTP_DEGREES_H

#include "plan/rules.h"
#include "schedule/stages.h"

/* The schedule of a resolved plan, of which pp 1 is a pipeline of one rank: a micro-batch a micro-step. */
struct dtp_schedule_shape dtp_plan_schedule(const struct dtp_plan *plan);

/* Stages that each micro-batch goes through: pp x virtual_stages, of a schedule that goes two ways pp. */
uint32_t dtp_plan_stage_count(const struct dtp_plan *plan);

/* most_layers, head_layers and head_rank of a plan that is resolved but for these, by its `stages`. */
void dtp_plan_count_layers(struct dtp_plan *plan, const struct dtp_stages *stages);

/* What is cut: layers, and those of modules that predict further ahead. */
struct dtp_stages_model dtp_plan_stages_model(const struct dtp_transformer *transformer);

/* Which layers each of these stages holds, embedding and head where they belong: of a resolved plan, in the order in
 * which a micro-batch goes through them. Caller destroys; after a failure *out is empty. Cut `even`, stages differ by
 * one layer at most: where layers are no multiple of them, embedding and head count as a layer each, as they do always
 * where they are `counted`, and what is left over goes to the first ones. */
enum dtp_status dtp_plan_stages(const struct dtp_plan *plan, const struct dtp_transformer *transformer,
                                struct dtp_stages *out, struct dtp_faults *faults);

/* Whether tp, cp and pp exist for the model under the runtime on so many GPUs, whatever the batch, the strategy and the
 * rest of the plan are: what is refused for them alone need not be tried with others of these. Reads of the plan
 * besides seq, sequence_parallel and cp_comm. */
bool dtp_plan_layout_exists(const struct dtp_plan *plan, const struct dtp_transformer *transformer,
                            const struct dtp_cluster *cluster);

/* Inside of dtp_plan_resolve: what follows from schedule and stages, and what is refused of tp, pp and cp. */
void dtp_plan_check_degrees(struct dtp_resolver *resolver);
/* expert_rules.c: the same of experts, latent attention and modules that predict further ahead. */
/* What follows of tp and ep for layers of experts. */
void dtp_plan_derive_experts(struct dtp_resolver *resolver);
void dtp_plan_check_experts(struct dtp_resolver *resolver);

#endif
