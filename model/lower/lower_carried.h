/* Checkpoints that wait on the host (activation_offload): the input of each layer, which is all that checkpointing full
 * keeps of it, goes down in forward and comes back before the layer's backward. Nothing happens without.
 *
 * Between the kernels, as unsloth's checkpoint function does (axolotl, gradient_checkpointing/offload_cpu.py): down
 * before the layer's forward, and the rows go when the layer has returned; those of the first layer, which
 * Transformers' model names until it returns (inputs_embeds), with the final norm.
 *
 * Beside them on a stream of its own, as torchtune's OffloadActivations does. What is on its way stays in a stash, from
 * which tensors go whose number is 5 less than that of the one at hand (max_fwd_stash_size). A checkpoint counts as
 * two: torch.utils.checkpoint saves an empty tensor beside its input (_NoopSaveInputs), so three layers' inputs stand.
 * The final norm saves three, of which its weight stays and its input and statistics go down; so behind it the last
 * layer's input is all that stands, and never comes up: backward takes it from the stash, the norm's too. What comes up
 * is of the copies' stream, let go by record_stream. */
#ifndef DTP_LOWER_CARRIED_H
#define DTP_LOWER_CARRIED_H

#include "lower/lowering.h"

/* Around the forward of the layer at which the skeleton stands; behind the final norm. */
void dtp_lower_carry_down(struct dtp_lowering *l);
void dtp_lower_carried_down(struct dtp_lowering *l);
void dtp_lower_carried_all(struct dtp_lowering *l);
/* Where backward begins, behind the loss; before that of the layer at which the skeleton stands. */
void dtp_lower_carry_turns(struct dtp_lowering *l);
void dtp_lower_carry_up(struct dtp_lowering *l);

#endif
