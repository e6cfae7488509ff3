/* DeepSpeed's parts of the closed form, between the files that have them. */
#ifndef DTP_DEEPSPEED_HOOKS_H
#define DTP_DEEPSPEED_HOOKS_H

#include "closed/closed_form_hooks.h"

void dtp_deepspeed_traffic(struct dtp_traffic *job);

#endif
