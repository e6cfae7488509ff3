/* Bytes that kernels of a block move of one token, operator by operator: what they are counted with, and those around
 * experts' matmuls. */
#ifndef DTP_OPERATOR_BYTES_H
#define DTP_OPERATOR_BYTES_H

#include "net/layer_kind.h"
#include "plan/rules.h"

/* What the operators of a block are counted with. */
struct dtp_counted {
    const struct dtp_transformer *transformer;
    const struct dtp_plan *plan;
    const struct dtp_layer_kind *block;
    double h, f, q, kv, w, p;
    double r;         /* bytes of what matrices return that read a norm's result (dtp_plan_result_bytes) */
    double parts;     /* of the tokens, one of which each tensor parallel rank has between matmuls */
    double cast;      /* a row of the stream between fp32 and the compute dtype, under autocast */
    double norm_cast; /* of a norm's fp32 result, for each linear behind it */
    bool autocast;
    bool within; /* experts' activations and biases are part of their products */
};
/* Of one token: what an operator's kernels read and write. */
struct dtp_moved {
    double forward, backward;
};

/* Rows that a rank's experts get, over those that it sends. */
double dtp_received_rows(const struct dtp_counted *c);

/* Rows that are added up by index (lower_experts.c). */
double dtp_added_by_index(const struct dtp_counted *c);

/* What lower_experts.c and lower_called_experts.c derive: router, rows to experts and back, their weighed sum. They are
 * eager, but the router's softmax where a compiler has it. */
struct dtp_moved dtp_expert_moved(const struct dtp_counted *c, const struct dtp_layer_operator *op, bool compiled);

#endif
