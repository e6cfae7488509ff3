/* PyTorch's parts of the closed form, between the files that have them. */
#ifndef DTP_CLOSED_FORM_TORCH_H
#define DTP_CLOSED_FORM_TORCH_H

#include "closed/closed_form_hooks.h"

void dtp_torch_traffic(struct dtp_traffic *job);

#endif
