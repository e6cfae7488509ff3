#include "closed/activations.h"

#include "base/bytes.h"
#include "plan/norm_chain.h"

/* Chunks of the head and loss under DTP_LOSS_CHUNKED: torchtitan's ChunkedLossWrapper default. */
#define LOSS_CHUNKS 8

/* Bytes of a layer's saved tensors by the part they belong to. */
static void count_layer(const struct dtp_layer_tensors *tensors, struct dtp_activations *out)
{
    uint64_t part[DTP_PART_COUNT] = {0};
    for (uint64_t left = tensors->saved; left; left &= left - 1) {
        enum dtp_layer_tensor tensor = (enum dtp_layer_tensor)__builtin_ctzll(left);
        part[dtp_layer_tensor_part(tensor)] += tensors->bytes[tensor];
    }
    out->layer_norms = part[DTP_PART_NORMS];
    out->layer_attention = part[DTP_PART_ATTENTION];
    out->layer_mlp = part[DTP_PART_MLP];
    out->layer_all = part[DTP_PART_RESIDUAL] + out->layer_norms + out->layer_attention + out->layer_mlp;
    out->layer_kept = dtp_layer_tensors_bytes(tensors, tensors->kept) + tensors->terms_kept;
}

/* What the counts of head, loss and embedding are made of: h as between matmuls, bytes of compute dtype and residual.
 */
struct ends {
    const struct dtp_transformer *t;
    const struct dtp_plan *plan;
    uint64_t h, c, e, statistics;
};

/* Head and loss, per token, c bytes a logit:
 *   eager   forward: logits c + fp32 copy 4 (none if c is 4) + log-softmax 4; backward: log-softmax 4, its gradient 4,
 *           the fp32 logits' gradient 4 = 12 V; then the cast gradient c
 *           shifted: logits c, fp32 copy 4, the copy without the last token 4, log-softmax 4: c + 12 in forward; one
 *           kernel that writes the gradient over what it read has no log-softmax
 *           in place: the fp32 copy, then that and the probabilities, 8; the gradient is these
 *   fused   logits and their gradient: 2 c V
 *   chunked the same for one chunk of the tokens, and fp32 gradients of the hidden states (torch) */
static void count_loss(const struct ends *s, struct dtp_activations *out)
{
    uint64_t vocab = dtp_plan_loss_columns(s->plan, s->t->vocab), chunk_vocab = (vocab + LOSS_CHUNKS - 1) / LOSS_CHUNKS;
    bool shifts = dtp_plan_shifts_logits(s->plan);
    uint64_t shifted = shifts && s->c != 4 ? s->c : 0;                    /* whose forward is the more */
    uint64_t eager = 12 + shifted + (s->t->final_softcap > 0 ? s->c : 0); /* of a logit; soft caps keep their tanh */
    if (s->plan->narrow_logits) { /* logits, the copy, its cast, log-softmax; backward three of these */
        uint64_t state = dtp_plan_shifted_loss_bytes(s->plan), cast = state == s->c ? 0 : state;
        eager = 2 * s->c + cast + state > 3 * state ? 2 * s->c + cast + state : 3 * state;
    }
    switch (dtp_plan_loss(s->plan)) {
    case DTP_LOSS_NATIVE: /* which dtp_plan_loss calls eager */
    case DTP_LOSS_EAGER:
        out->logits = (dtp_plan_softmax_in_place(s->plan) ? s->c + 4 : s->c) * vocab;
        out->loss = (s->plan->loss == DTP_LOSS_NATIVE     ? 8 + s->c
                     : dtp_plan_softmax_in_place(s->plan) ? (s->plan->runtime->subtracts_in_place ? s->c + 4 : 8)
                                                          : eager) *
                    vocab;
        out->logits_gradient = s->c * vocab;
        break;
    case DTP_LOSS_FUSED:
        out->logits = s->c * vocab;
        out->loss = (shifts ? 8 + shifted : 2 * s->c) * vocab;
        out->logits_gradient = s->c * vocab;
        break;
    case DTP_LOSS_CHUNKED:
        out->logits = s->c * chunk_vocab;
        out->loss = eager * chunk_vocab + 4 * s->h;
        out->logits_gradient = 4 * s->h; /* the hidden states' gradient, made with the loss */
        break;
    }
    if (vocab > s->t->vocab) { /* gathered: as they are put side by side, and their gradient as it is cut */
        out->logits += s->c * (vocab + s->t->vocab);
        out->logits_gradient += s->c * s->t->vocab;
    }
}

/* What a module that predicts further ahead keeps until its backward, which is that of the head: rows of following
 * tokens, statistics of both norms and what these make, side by side; an end like the model's; of its loss logits in
 * the compute dtype, or probabilities in fp32. */
static uint64_t ahead(const struct ends *s, uint64_t end)
{
    uint64_t sides = 2 * s->h, whole = s->t->hidden - s->h; /* the layer's input is a view of all tokens' rows */
    if (!s->t->ahead_layers)
        return 0;
    uint64_t kept = dtp_plan_keeps_fp8(s->plan) ? dtp_fp8_bytes(s->plan->precision.fp8_recipe, sides) : s->c * sides;
    uint64_t loss = dtp_plan_loss(s->plan) == DTP_LOSS_FUSED ? s->c : 4;
    return s->t->ahead_layers * (s->e * (s->h + whole) + 2 * s->statistics + kept + end + loss * s->t->vocab);
}

/* PyTorch's embedding backward sorts the tokens and sums runs of at most 10 equal ones in fp32 first:
 * (distinct tokens + tokens / 10) rows of h (Embedding.cu, embedding_backward_cuda_kernel). */
static uint64_t embedding_backward(const struct ends *s)
{
    uint64_t tokens = dtp_plan_tokens(s->plan);
    uint64_t segments = tokens < s->t->vocab ? tokens : s->t->vocab;
    return dtp_bytes_product(4 * s->h, segments + tokens / 10);
}

void dtp_activations_of(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                        const struct dtp_layer_tensors *tensors, struct dtp_activations *out)
{
    uint64_t c = dtp_plan_compute_bytes(plan), input = tensors->bytes[DTP_TENSOR_INPUT];
    struct ends s = {.t = transformer,
                     .plan = plan,
                     .h = transformer->hidden / (plan->sequence_shards > 1 ? plan->sequence_shards : 1),
                     .c = c,
                     .e = dtp_plan_stream_bytes(plan),
                     .statistics = 4 * tensors->kind.norm_statistics};
    *out = (struct dtp_activations){.layer_input = input,
                                    .gradient = input,
                                    .norm_gradient = s.c * s.h,
                                    .head = s.c * s.h,
                                    .checkpoint_every = dtp_plan_checkpoint_rule(plan).every,
                                    .embedding_backward = embedding_backward(&s)};
    count_layer(tensors, out);
    if (dtp_plan_adapts(plan) && !plan->adapters.train_ends) /* a frozen head keeps nothing of what it reads */
        out->head = 0;
    if (transformer->final_norm) /* the head's matmul stays in the compute dtype, fp8 or not */
        out->head += s.e * s.h + s.statistics + dtp_norm_chain_head(transformer, plan) * s.h;
    out->head += ahead(&s, out->head);
    if (transformer->embedding_norm)
        out->embedding = s.e * s.h + s.statistics;
    count_loss(&s, out);
}

void dtp_activations_count(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                           const struct dtp_plan *plan, struct dtp_activations *out)
{
    struct dtp_layer_tensors tensors;
    dtp_layer_tensors_of(transformer, dtp_layer_mlp_of(transformer), cluster, plan, &tensors);
    dtp_activations_of(transformer, plan, &tensors, out);
}

uint64_t dtp_activations_for_weights(const struct dtp_plan *plan, const struct dtp_layer_tensors *tensors)
{
    uint64_t inputs = 0, outputs = 0;
    for (int i = 0; i < tensors->kind.matrices; i++) {
        const struct dtp_layer_matrix *matrix = &tensors->kind.matrix[i];
        if (matrix->frozen)
            continue;
        inputs |= UINT64_C(1) << tensors->input[i];
        outputs +=
            matrix->expert ? dtp_layer_received(tensors, tensors->kind.experts_per_token * matrix->out) : matrix->out;
    }
    if (plan->runtime->holds_passes) /* autograd's graph is one */
        inputs = tensors->saved;
    return dtp_layer_tensors_bytes(tensors, inputs) + dtp_plan_compute_bytes(plan) * outputs;
}
