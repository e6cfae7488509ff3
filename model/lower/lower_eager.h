/* Eager PyTorch under autocast, tensor by tensor: which casts each linear makes for itself, what lives until a module
 * returns, RoPE by complex numbers. */
#ifndef DTP_LOWER_EAGER_H
#define DTP_LOWER_EAGER_H

#include "lower/block_backward.h"
#include "lower/block_forward.h"

/* Each linear casts what it reads of a norm's fp32 result for itself, when it is called, and keeps that; what it
 * returns in backward is cast back before it is added to the others'. Where a norm has more readers than linears, or
 * other ranks have rows of it, the casts are one tensor that the norm makes. */
static inline bool dtp_lower_casts_apart(const struct dtp_layer_tensors *tensors, enum dtp_layer_tensor input)
{
    return (input == DTP_TENSOR_NORM1 || input == DTP_TENSOR_NORM2) && tensors->casts_apart;
}
/* Linears that read a norm's result; under eager autocast each casts it for itself. */
int dtp_lower_readers(const struct dtp_lowering *l, enum dtp_layer_tensor input);
/* So does eager RoPE by complex numbers take q and k one after the other. */
bool dtp_lower_turns_apart(const struct dtp_lowering *l);

/* What a linear makes for itself of a norm's fp32 result; the same where a replay does not run its matmul. What goes
 * with the matmul that is the last of attention or of an MLP: as modules they let go of what they were called with and
 * of their variables when they return, before their result is added to the stream; where q, k and v are one matmul the
 * block is taken to be one function, which holds its own to its end. */
void dtp_forward_cast(const struct pass *pass, struct dtp_draft *draft, int index);
void dtp_forward_cast_again(const struct pass *pass, int index);
void dtp_forward_return(const struct pass *pass, struct dtp_draft *draft, int index);
/* Heads of a projection as complex numbers: a copy in fp32, its product, and a cast of that. */
void dtp_forward_turn(const struct pass *pass, enum dtp_layer_tensor made, uint64_t width);

/* Of a linear that read a cast of its own: its input's gradient is cast back and added to that of others. Gradients of
 * heads that were turned as complex numbers: a copy in fp32, which lets them go, its product, a cast. */
dtp_buffer_id dtp_backward_add_cast(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient);
void dtp_backward_turn(struct dtp_block_backward *b, enum dtp_layer_tensor of, uint64_t width);

#endif
