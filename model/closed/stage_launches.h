/* Kernels that a pipeline's stages launch for a micro-batch, operator by operator, as runtimes issue them. A stage has
 * few layers and its host is often what bounds it, so that ends and sums of gradients, which a whole model hardly
 * feels, are counted here: of models without experts, latent attention, sinks, dropout and adapters; of others stands
 * what block_work.c takes for all. */
#ifndef DTP_STAGE_LAUNCHES_H
#define DTP_STAGE_LAUNCHES_H

#include "closed/block_work.h"
#include "closed/operator_bytes.h"

/* False, and nothing done, of others, and of a plan that is no slice of a pipeline. */
bool dtp_count_stage_launches(const struct dtp_counted *counted, const struct dtp_cluster *cluster,
                              struct dtp_block_work *work);
/* Host seconds of hooks around FSDP2's root unit, which each stage with an end of the model has, of a micro-batch. */
double dtp_root_hooks_s(const struct dtp_plan *plan);

#endif
