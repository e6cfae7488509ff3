/* A kind of layer by a runtime's habits: which tensors a block's forward makes, of what size, and which of them stay
 * for backward.
 *
 * What stays follows from the operators' needs (net/layer_kind.def) and from what runs them: eager autograd saves what
 * each derivative reads; a compiler recomputes silu(gate) and the sum after attention; Transformer Engine keeps matmul
 * inputs as fp8; autocast norms in fp32 and casts. A checkpointed layer keeps less, by the rule of its word. */
#ifndef DTP_LAYER_TENSORS_H
#define DTP_LAYER_TENSORS_H

#include "net/layer_kind.h"
#include "plan/checkpointing.h"
#include "plan/rules.h"

#include <math.h>

struct dtp_layer_tensors {
    struct dtp_layer_kind kind;
    struct dtp_layer_operator op[DTP_LAYER_OPERATORS]; /* as the runtime runs them: on the tensors it has */
    int operators;                                     /* so many of them; behind these `op` holds nothing */
    enum dtp_layer_tensor input[DTP_LAYER_MATRICES];   /* that each of the kind's matrices reads */
    uint64_t bytes[DTP_TENSOR_COUNT];                  /* of one token; 0: the runtime makes no such tensor */
    /* Sets, bits by enum dtp_layer_tensor. */
    uint64_t saved;          /* what backward reads */
    uint64_t kept;           /* what a checkpointed layer keeps; `saved` where none is */
    uint64_t again;          /* where parts run again: what they make, to be kept or not */
    uint64_t locals;         /* variables of the layer's function, which live until it returns */
    uint64_t locals_again;   /* of these, those that a replay's function holds until it ends too */
    bool fused;              /* one kernel between matmuls, by a compiler or by the runtime's own */
    double sent;             /* rows that a rank sends, over those of its tokens (dtp_plan_padded_rows) */
    double crossed;          /* that come to the rank */
    double arriving;         /* of these, those that do not come as one with another's of their token */
    double received;         /* that its experts get, those of ranks that have other parts of them with them */
    uint32_t gathered_ranks; /* whose keys and values are kept as they were gathered; 0: they are not */
    /* Of the model's first layer, where what it reads has no gradient, for nothing below is trained: tensors that have
     * one, and what its backward reads. */
    bool cut;
    uint64_t first_gradients, saved_first;
    uint64_t terms_kept; /* bytes of a token that a checkpointed layer keeps of the last matmul, before ranks sum it */
    bool added_again;    /* the sum after attention is made again in backward, not kept */
    bool casts_apart;    /* dtp_plan_casts_apart */
};
/* Of rows of the rank's tokens so many bytes: of those that it sends, that it gets, that come to it. */
static inline uint64_t dtp_layer_sent(const struct dtp_layer_tensors *tensors, uint64_t bytes)
{
    return tensors->sent > 1 ? (uint64_t)ceil((double)bytes * tensors->sent) : bytes;
}
static inline uint64_t dtp_layer_received(const struct dtp_layer_tensors *tensors, uint64_t bytes)
{
    return tensors->received > 1 ? (uint64_t)ceil((double)bytes * tensors->received) : bytes;
}
static inline uint64_t dtp_layer_crossed(const struct dtp_layer_tensors *tensors, uint64_t bytes)
{
    return tensors->crossed > 1 ? (uint64_t)ceil((double)bytes * tensors->crossed) : bytes;
}
/* Operators of shared experts that work while rows are on their way: the first projection and the activation behind it
 * beside the exchange to experts, the second beside the one back. */
enum dtp_exchange { DTP_EXCHANGE_DISPATCH, DTP_EXCHANGE_COMBINE };
static inline bool dtp_plan_works_beside(const struct dtp_plan *plan, const struct dtp_layer_kind *kind, uint64_t makes,
                                         enum dtp_exchange exchange)
{
    uint64_t first = DTP_TENSOR_BIT(SHARED_GATE) | DTP_TENSOR_BIT(SHARED_UP) | DTP_TENSOR_BIT(SHARED_PRODUCT);
    return plan->megatron.shared_overlap && kind->exchanged &&
           makes & (exchange == DTP_EXCHANGE_DISPATCH ? first : DTP_TENSOR_BIT(SHARED_DOWN));
}
/* Of the model's layers with such an MLP. */
void dtp_layer_tensors_of(const struct dtp_transformer *transformer, enum dtp_layer_mlp mlp,
                          const struct dtp_cluster *cluster, const struct dtp_plan *plan,
                          struct dtp_layer_tensors *out);

/* The sum whose result `tensor` is; NULL where it is none. */
const struct dtp_layer_operator *dtp_layer_tensors_sum(const struct dtp_layer_tensors *tensors,
                                                       enum dtp_layer_tensor tensor);

/* The norm of a branch that runs in the pass of the sum behind it, whose `result` is no tensor; NULL: it is one. */
const struct dtp_layer_operator *dtp_layer_tensors_fused_norm(const struct dtp_layer_tensors *tensors,
                                                              enum dtp_layer_tensor result);
/* Whether sequence parallel ranks divide the rows of the tensor: those of the stream and of norms. */
bool dtp_layer_lies_between_matmuls(enum dtp_layer_tensor tensor);
/* A norm before a branch that is a chain of operators (norm_chain.h). */
bool dtp_layer_tensors_chain(const struct dtp_layer_tensors *tensors, const struct dtp_layer_operator *op);
/* The sum number `index` is formed by the norm behind it; with dropout it is a kernel of its own (Megatron-LM's
 * bias_dropout_add_fused_train). */
bool dtp_layer_tensors_sum_in_norm(const struct dtp_layer_tensors *tensors, int index);

static inline enum dtp_layer_tensor dtp_layer_first(uint64_t set)
{
    return (enum dtp_layer_tensor)__builtin_ctzll(set);
}
/* Of what a sum reads, the results of branches; the rest is the residual stream. */
static inline uint64_t dtp_layer_branches(const struct dtp_layer_operator *sum)
{
    return sum->reads & ~DTP_LAYER_STREAM;
}
/* No matrix behind this one reads its input. */
bool dtp_layer_tensors_last_reader(const struct dtp_layer_tensors *tensors, int matrix);
/* An operator before number `index`, whose backward comes later, reads the tensor there. */
bool dtp_layer_tensors_needed_before(const struct dtp_layer_tensors *tensors, int index, enum dtp_layer_tensor tensor);
/* Number of the operators up to the one that makes the last saved tensor. */
int dtp_layer_tensors_saved_end(const struct dtp_layer_tensors *tensors);

/* Whether backward of the first layer goes through operator number `index`; so it does through all of others. */
bool dtp_layer_tensors_first_runs(const struct dtp_layer_tensors *tensors, int index);

/* Bytes of one token of a set. */
uint64_t dtp_layer_tensors_bytes(const struct dtp_layer_tensors *tensors, uint64_t set);

#endif
