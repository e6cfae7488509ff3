/* Hooks around experts whose tensors for backward Megatron-Core stashes in pages (struct dtp_lower_hooks); they do
 * nothing where it does not. */
#ifndef DTP_MEGATRON_LOWER_STASH_H
#define DTP_MEGATRON_LOWER_STASH_H

#include "lower/lowering.h"

void dtp_megatron_before_experts(struct dtp_lowering *l, bool backward);
void dtp_megatron_after_experts(struct dtp_lowering *l, bool backward);

#endif
