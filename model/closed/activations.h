/* What forward leaves behind for backward: bytes of one token in one layer, and of one token at the model's head.
 *
 * A runtime keeps what its autograd saves, not what the mathematics needs, so every term below is one saved tensor.
 * Notation: e bytes of the residual stream, c bytes of the compute dtype, h hidden, d_q = heads*head_dim,
 * d_kv = kv_heads*head_dim, f ffn, V vocab, s sequence. */
#ifndef DTP_ACTIVATIONS_H
#define DTP_ACTIVATIONS_H

#include "plan/layer_tensors.h"

/* Bytes per token; layer figures are of one layer. */
struct dtp_activations {
    uint64_t layer_all;                               /* a layer that keeps everything, its input included */
    uint64_t layer_input;                             /* of those the input, e*h: what full checkpointing keeps */
    uint64_t layer_norms, layer_attention, layer_mlp; /* of layer_all; the rest is the residual stream */
    uint64_t layer_kept;    /* a checkpointed layer under the plan's rule; equals layer_all without checkpointing */
    uint64_t gradient;      /* gradient of the residual stream, e*h */
    uint64_t norm_gradient; /* gradient of a norm's result as a matmul makes it, c*h */
    uint64_t head;          /* what the head reads, and the input of a final norm */
    uint64_t embedding;     /* input of a norm of the embedding, kept to the end of backward; 0 without one */
    uint64_t logits;        /* logits at the end of forward */
    uint64_t loss;          /* logits, losses and their gradients at the worst instant of the loss */
    uint64_t logits_gradient;
    uint64_t checkpoint_every;   /* layers 0, N, 2N, ... keep layer_kept instead of layer_all; 0: none does */
    uint64_t embedding_backward; /* fp32 partial sums of the embedding's gradient, bytes of the whole micro-step */
};

/* Of a layer whose tensors are known already. */
void dtp_activations_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                        const struct dtp_layer_tensors *tensors, struct dtp_activations *out);
void dtp_activations_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                           const struct dtp_plan *plan, struct dtp_activations *out);

/* Of a token in one layer, what gradients of weights read where they are made in a pass of their own: what trained
 * matrices read, and gradients of what they make (arXiv:2401.10241, table 1: 32 h of GPT's layers in 16 bits). */
uint64_t dtp_activations_for_weights(const struct dtp_plan *plan, const struct dtp_layer_tensors *tensors);

#endif
