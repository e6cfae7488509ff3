/* Our executor's parts of the closed form, between the files that have them. */
#ifndef DTP_CLOSED_FORM_EXECUTOR_H
#define DTP_CLOSED_FORM_EXECUTOR_H

#include "closed/closed_form_hooks.h"

uint64_t dtp_executor_nccl_bytes(const struct dtp_beside *beside, struct dtp_memory_list *list);
void dtp_executor_traffic(struct dtp_traffic *job);
/* Of a slice's embedding with its positions and norm, as lower_executor_stages.c joins it: of the rank's shard. */
uint64_t dtp_executor_table_gradient_bytes(const struct dtp_slice *slice);

#endif
