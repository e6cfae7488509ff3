/* DeepSpeed's parts of the closed form, between the files that have them. */
#ifndef DTP_DEEPSPEED_HOOKS_H
#define DTP_DEEPSPEED_HOOKS_H

#include "closed/closed_form_hooks.h"

void dtp_memory_zero12(struct dtp_memory_job *job); /* stages 1 and 2 */
void dtp_memory_zero3(struct dtp_memory_job *job);
void dtp_deepspeed_traffic(struct dtp_traffic *job);

#endif
