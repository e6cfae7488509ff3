/* The backward of a block as its files share it: the walk over the operators from the last, and what a saved tensor's
 * reader does.
 *
 * Linears are in lower_linear_backward.c, all else in lower_backward.c. Where a schedule splits backward, gradients of
 * weights come in a pass of their own: what their matmuls read, saved inputs and gradients of results, is kept until
 * then, and a residual gradient that is kept is not added to in place. */
#ifndef DTP_LOWER_BLOCK_BACKWARD_H
#define DTP_LOWER_BLOCK_BACKWARD_H

#include "base/bytes.h"
#include "lower/lowering.h"

/* A tensor's gradient stands from the last operator that reads the tensor to the one that makes it; that of the
 * residual stream is one buffer, l->flight->gradient, for all of its sums. */
struct dtp_block_backward {
    struct dtp_lowering *l;
    struct dtp_flight_module *module;
    int index; /* of the operator at hand */
    dtp_buffer_id gradient[DTP_TENSOR_COUNT];
    dtp_buffer_id summed[2];   /* terms of gradients of all keys, of all values, that context parallel ranks sum */
    uint64_t kept_for_weights; /* saved tensors that matmuls of a later pass read; 0: there is none */
};

/* Uses a saved tensor, where it exists; its last reader frees it, of what is kept for weights their pass. */
void dtp_backward_consume(const struct dtp_block_backward *b, struct dtp_draft *draft, enum dtp_layer_tensor tensor,
                          uint32_t access);
/* The tensor's buffer, which its gradient is written over. */
dtp_buffer_id dtp_backward_take_over(const struct dtp_block_backward *b, struct dtp_draft *draft,
                                     enum dtp_layer_tensor tensor);
/* The residual gradient, or what was cast of it, is that of several branches: the last of them lets it go. */
bool dtp_backward_shared(const struct dtp_block_backward *b, dtp_buffer_id gradient);
/* Whether the gradient of a weight of this layer that is left for later is made of it. */
bool dtp_backward_deferred(const struct dtp_lowering *l, dtp_buffer_id gradient);
/* Backward of linears that read one tensor, in forward's order. */
void dtp_backward_projection(struct dtp_block_backward *b);
/* `sum` with a gradient of the same tensor added to it, if there is one. */
dtp_buffer_id dtp_backward_add(const struct dtp_block_backward *b, enum dtp_layer_tensor of, dtp_buffer_id sum,
                               dtp_buffer_id gradient);
/* Of the gradient of what a linear reads. */
uint64_t dtp_backward_input_bytes(const struct dtp_lowering *l, int index);
/* Gradient of what a linear reads, and lets go of the result's where it is its last reader. */
dtp_buffer_id dtp_backward_input_gradient(const struct dtp_block_backward *b, int index, dtp_buffer_id output_gradient,
                                          bool last, bool frees_input);
/* lower_folded.c: the same of a matrix that its adapter is folded into, as below. */
dtp_buffer_id dtp_backward_folded(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient,
                                  bool last_reader);
/* lower_adapters.c: of a linear whose matrix is frozen, with its adapter; none below the first of the model, whose
 * block's backward then ends. */
dtp_buffer_id dtp_backward_frozen(const struct dtp_block_backward *b, int index, dtp_buffer_id output_gradient,
                                  bool last_reader);
/* lower_magnitudes.c: what an adapter's result gets through DoRA's magnitudes; what its linear gets, where that is
 * `wanted`, stands until one of the next: multiplied by W and added to the gradient `input` of what dropout let
 * through, or added to that of the result. */
dtp_buffer_id dtp_backward_magnitudes(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient,
                                      bool wanted);
/* lower_divided_adapters.c: columns of the result's gradient that a rank's B made; of x A^T the sum over ranks of it,
 * and its own columns; the gradients of an adapter's input and of its linear's as one, summed over ranks. */
dtp_buffer_id dtp_backward_cut_scaled(const struct dtp_block_backward *b, int matrix, dtp_buffer_id scaled);
dtp_buffer_id dtp_backward_sum_low(const struct dtp_block_backward *b, int matrix, dtp_buffer_id low);
dtp_buffer_id dtp_backward_sum_adapted(const struct dtp_block_backward *b, int matrix, dtp_buffer_id adapter,
                                       dtp_buffer_id linear);
/* Of a matrix cut by rows, whose result's rows are each rank's: all of the gradient, which goes with its last matmul;
 * behind that `*beside` is to be awaited. */
dtp_buffer_id dtp_backward_gather_result(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient,
                                         dtp_op_id *beside);
/* lower_recast_adapters.c: of a gradient through an adapter the casts, with dropout's between. */
void dtp_backward_recast(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient);
dtp_buffer_id dtp_backward_dropped_linear(const struct dtp_block_backward *b, int index, dtp_buffer_id input);
dtp_buffer_id dtp_backward_add_linear(const struct dtp_block_backward *b, int index, dtp_buffer_id gradient);
uint64_t dtp_backward_terms_bytes(const struct dtp_lowering *l, const struct dtp_layer_activation *at);
void dtp_backward_end_frozen(const struct dtp_block_backward *b);
/* lower_backward.c: what works beside the exchange of gradients of rows that compute would wait for next. */
void dtp_backward_beside_exchange(struct dtp_block_backward *b, enum dtp_exchange exchange);
/* lower_experts.c */
void dtp_backward_router(struct dtp_block_backward *b);
void dtp_backward_permute(struct dtp_block_backward *b);
void dtp_backward_unpermute(struct dtp_block_backward *b);
/* Of what shared experts add to a block's result, whose gradient is this. */
void dtp_backward_shared_experts(struct dtp_block_backward *b, dtp_buffer_id gradient);
/* lower_wide_norms.c: casts of a result's gradient for its matrix, with which it goes, and for the adapter beside; of
 * an input's, whose narrow one goes; gradients of heads in fp32. */
dtp_buffer_id dtp_backward_narrow(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient);
dtp_buffer_id dtp_backward_narrow_for_adapter(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient);
dtp_buffer_id dtp_backward_widen_input(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient);
void dtp_backward_widen_heads(struct dtp_block_backward *b);
/* lower_routed_experts.c: the gradient of the layer's result, of all rows; of what shared experts read and of so many
 * bytes of rows that were sent, terms summed; the rank's rows of a gradient of all. Elsewhere what is given. Of a
 * latent that is projected up by parts, and of the keys' part that all heads share, terms summed. */
dtp_buffer_id dtp_backward_sum_latent(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient);
dtp_buffer_id dtp_backward_sum_shared_keys(const struct dtp_block_backward *b, dtp_buffer_id gradient, uint64_t bytes);
dtp_buffer_id dtp_backward_gather_terms(const struct dtp_block_backward *b, dtp_buffer_id gradient);
dtp_buffer_id dtp_backward_sum_shared(const struct dtp_block_backward *b, int matrix, dtp_buffer_id gradient);
void dtp_backward_sum_rows(struct dtp_block_backward *b, uint64_t bytes);
dtp_buffer_id dtp_backward_own_rows(const struct dtp_block_backward *b, dtp_buffer_id gradient);
/* lower_sorted_experts.c */
void dtp_backward_sorted_unpermute(struct dtp_block_backward *b);
/* lower_called_experts.c */
void dtp_backward_called_unpermute(struct dtp_block_backward *b);
void dtp_backward_called_permute(struct dtp_block_backward *b);
void dtp_backward_slotted_unpermute(struct dtp_block_backward *b);
void dtp_backward_slotted_permute(struct dtp_block_backward *b);
void dtp_backward_slotted_router(struct dtp_block_backward *b);
/* lower_experts.c: gradients of biases that are weighed as rows are; false: it is none of such experts. */
bool dtp_backward_weighed_bias(struct dtp_lowering *l, const struct dtp_layer_matrix *matrix,
                               dtp_buffer_id output_gradient);
/* lower_sinks.c: the gradient of the core's result, and of what it was weighed by; nothing without sinks. */
void dtp_backward_sinks(struct dtp_block_backward *b);
/* lower_latent.c */
void dtp_backward_latent_norm(struct dtp_block_backward *b);
void dtp_backward_latent_heads(struct dtp_block_backward *b);
void dtp_backward_latent_pad(struct dtp_block_backward *b);

static inline const struct dtp_layer_operator *dtp_backward_operator(const struct dtp_block_backward *b)
{
    return &b->l->tensors.op[b->index];
}
/* Backward of an operator that is still to come reads the saved tensor too. */
static inline bool dtp_backward_needed_later(const struct dtp_block_backward *b, enum dtp_layer_tensor tensor)
{
    return dtp_layer_tensors_needed_before(&b->l->tensors, b->index, tensor);
}
static inline double dtp_backward_per_token(const struct dtp_lowering *l, double bytes)
{
    return bytes * (double)l->tokens;
}
static inline uint64_t dtp_backward_token_bytes(const struct dtp_lowering *l, uint64_t bytes)
{
    return dtp_bytes_product(l->tokens, bytes);
}
/* Of what an MLP works on in backward, where experts are called: one expert's. */
static inline uint64_t dtp_backward_called_bytes(const struct dtp_lowering *l, bool expert, uint64_t bytes)
{
    return expert ? dtp_divide_up(bytes, dtp_layer_calls(&l->tensors.kind)) : bytes;
}
static inline dtp_buffer_id dtp_backward_workspace(struct dtp_lowering *l, struct dtp_draft *draft, const char *name,
                                                   uint64_t bytes, uint32_t access)
{
    return dtp_draft_new(l, draft, name, DTP_OWNER_WORKSPACE, bytes, access);
}

#endif
