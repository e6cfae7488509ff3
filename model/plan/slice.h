/* What one rank has of a model, and with whom it shares the rest, where a plan is more than data parallel.
 *
 * Tensor parallel ranks divide each layer: heads, key/value heads, the MLP's width and the vocabulary; what stands
 * between the matmuls has the model's width in all of them (Shoeybi 2019). The ranks with the same slice train it
 * data-parallel: their gradients are summed and their state is sharded over context and data parallel ranks together,
 * for each context parallel rank has other tokens. Which ranks these are says the mesh (layout.h). Pure functions of
 * numbers; nothing fails. A plan is resolved, or has degrees of parallelism above 0. */
#ifndef DTP_SLICE_H
#define DTP_SLICE_H

#include "plan/layout.h"
#include "plan/plan.h"

/* The model whose experts have gate and up in one matrix, where the plan keeps them so. */
struct dtp_transformer dtp_plan_packed_experts(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* The model with what of each layer's experts one rank has, and how their matrices lie; all else whole. */
struct dtp_transformer dtp_plan_own_experts(const struct dtp_transformer *transformer, const struct dtp_plan *plan);
/* One of `tp` parts of the model: parts of a head or of a column exist once at least, rows of the vocabulary are
 * rounded up. Layers are all of them. tp 1: the model itself. */
struct dtp_transformer dtp_plan_slice(const struct dtp_transformer *transformer, const struct dtp_plan *plan);

/* The mesh of the plan's ranks: data parallel ones as shards and replicas of the shard group. */
struct dtp_layout dtp_plan_layout(const struct dtp_plan *plan, const struct dtp_cluster *cluster);

/* Of rank 0's group along some axes how many ranks it has, and how far neighbours are apart; 1 apart where it is alone.
 * Those of tp, of cp, of pp and of DTP_AXES_DENSE_DATA are evenly spaced: other orders are refused (degree_rules.c). */
struct dtp_stretch dtp_plan_group(const struct dtp_plan *plan, const struct dtp_cluster *cluster, unsigned axes);

#endif
