/* GELU as a chain of PyTorch's operators, as Transformers writes gelu_new (NewGELUActivation of its activations.py):
 * 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 pow(x, 3)))). A kernel each. Autocast has powers in fp32 (fp32 list of
 * aten's autocast_mode.h), so that all behind the cast of x is fp32, the product with 0.5 x too, which the linear
 * behind casts. What is one kernel there: gelu, gelu_pytorch_tanh, relu, silu; BLOOM's own GELU saves x alone. */
#ifndef DTP_GELU_CHAIN_H
#define DTP_GELU_CHAIN_H

#include "plan/rules.h"

bool dtp_plan_chains_gelu(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* The power and all behind it are fp32: fp32 weights under DDP, or 16-bit ones under autocast. */
bool dtp_plan_widens_gelu(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* Which of a kind's operators are such chains, and norms (norm_chain.h). */
void dtp_plan_chain_kind(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                         struct dtp_layer_kind *kind);

/* Of an element of x: bytes that its kernels read and write, elements that these take one at a time (op_cost.h),
 * kernels; bytes that stay for backward beside x, which stays where nothing casts it; bytes that stand besides while
 * forward makes them and while backward reads them, with the gradients of x and of the product. */
struct dtp_gelu_chain {
    double forward, backward;
    double forward_elements, backward_elements;
    uint32_t forward_kernels, backward_kernels;
    uint64_t saved, forward_room, backward_room;
};
struct dtp_gelu_chain dtp_gelu_chain_of(const struct dtp_plan *plan, bool wide);

#endif
