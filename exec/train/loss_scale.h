/* The loss scale of fp16: gradients of activations lie below fp16's smallest number, so that of the loss is made larger
 * by a factor which the optimizer takes out again (Micikevicius et al. 2018, "Mixed Precision Training"). A step whose
 * gradients overflow is left out. As torch.amp.GradScaler has it: the scale begins at 2^16, is halved by such a step
 * and doubled by 2,000 others in a row. `--loss-scale X` keeps it at X. */
#ifndef DTP_LOSS_SCALE_H
#define DTP_LOSS_SCALE_H

#include "checkpoint/checkpoint.h"
#include "device/settings.h"

#include <stdbool.h>

/* Fills what a checkpoint has not set. `fp16`: gradients are made in it. DTP_BAD_INPUT: a scale is asked for and they
 * are not. */
enum dtp_status dtp_loss_scale_start(const struct dtp_settings *settings, bool fp16,
                                     struct dtp_checkpoint_position *position, struct dtp_faults *faults);
/* Called behind each step. True: the step was left out, and the next is worth a try with half the scale. */
bool dtp_loss_scale_step(const struct dtp_settings *settings, bool skipped, struct dtp_checkpoint_position *position);

#endif
