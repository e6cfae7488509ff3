/* Our executor's parts of the closed form, between the files that have them. */
#ifndef DTP_CLOSED_FORM_EXECUTOR_H
#define DTP_CLOSED_FORM_EXECUTOR_H

#include "closed/closed_form_hooks.h"

void dtp_memory_executor(struct dtp_memory_job *job); /* with what rests, which at_rest does not hold */
uint64_t dtp_executor_nccl_bytes(const struct dtp_memory_job *job, struct dtp_part_chain *chain);
void dtp_executor_traffic(struct dtp_traffic *job);

#endif
