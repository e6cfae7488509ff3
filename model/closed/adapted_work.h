/* What adapters change of a step's work in the closed form: FLOPs that a replay multiplies, FLOPs of the first layer
 * that nothing below the first adapter needs, bytes that weights and gradients take.
 *
 * lower_adapters.c derives the same operation by operation; the tests hold both against each other and against counts
 * by hand. All are 0, or as without, where a plan has no adapters. */
#ifndef DTP_ADAPTED_WORK_H
#define DTP_ADAPTED_WORK_H

#include "closed/block_work.h"

struct dtp_adapted_work {
    double replay_flops;      /* of a token in one checkpointed layer */
    double norm_flops;        /* in one layer's forward, whatever its tokens: of DoRA B A of an identity, or W + B A */
    double fold_back_flops;   /* and backward, of gradients of B and A of its gradient */
    double folded_flops;      /* of a token and layer: that gradient, less what the model's FLOPs have of adapters */
    double dropped_flops;     /* and of a token: W times what dropout let through; as much backward */
    double first_again_flops; /* of a token, in the first layer: of matmuls that others keep (KEEPS_PACKED_MATMULS) */
    double unneeded_flops;    /* of a token, in the first layer: gradients of what lies below the first adapter */
    bool unneeded_attention;  /* so is the gradient of that layer's attention core */
    double forward_unpacked_bytes, backward_unpacked_bytes; /* of one layer, to unpack its weights */
    bool compares;                                          /* by comparisons (struct dtp_unpacking) */
    double forward_kernels, backward_kernels;               /* of one layer, beside those of its matrices */
};
struct dtp_adapted_work dtp_adapted_work_of(const struct dtp_transformer *transformer,
                                            const struct dtp_cluster *cluster, const struct dtp_plan *plan);
/* Of a token: bytes that eager or fused kernels of adapters move in one layer. */
void dtp_adapted_bytes(const struct dtp_layer_kind *kind, const struct dtp_plan *plan, double *forward,
                       double *backward);

/* Of a micro-step: gradients of adapters alone are added up and copied into buckets or reductions, `reduces` where they
 * leave; gathered weights are copied out as they are kept. */
double dtp_adapted_traffic_bytes(const struct dtp_transformer *transformer, const struct dtp_plan *plan, bool reduces);
/* Of a token in the model's first layer: FLOPs of gradients that nothing below the first adapter needs. */
double dtp_adapted_unneeded_flops(const struct dtp_transformer *transformer, const struct dtp_plan *plan,
                                  const struct dtp_adapted_work *work);

/* What the update of trained ends moves beyond so many elements of adapters, in their own dtype (dtp_plan_of_ends). */
double dtp_adapted_ends(const struct dtp_plan *plan, const struct dtp_transformer *transformer);

/* One rank's bytes that tensor parallel ranks send in a micro-step beside what all layers have, of a slice with so many
 * layers: for adapters that they divide (lower_divided_adapters.c; all of a first layer is counted, whose lowest
 * adapter needs no gradient of its input); in layers of experts that route all tokens (expert_parallel.c). */
struct dtp_tensor_exchanges {
    uint64_t bytes[DTP_COLLECTIVE_COUNT], count[DTP_COLLECTIVE_COUNT];
};
struct dtp_tensor_exchanges dtp_routed_exchanges_of(const struct dtp_transformer *slice, const struct dtp_plan *plan);
struct dtp_tensor_exchanges dtp_adapter_exchanges_of(const struct dtp_transformer *slice, const struct dtp_plan *plan);

#endif
