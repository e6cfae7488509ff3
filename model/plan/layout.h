/* Which rank is where in the mesh of a job: data, context, tensor and pipeline parallel ranks, and experts folded into
 * them.
 *
 * The ranks of a job are the points of a grid with an axis each way to be parallel. An *order* says which axis' ranks
 * are neighbours: "tp-cp-dp_shard-dp_replicate-pp" has tensor parallel ranks next to each other and stages farthest
 * apart, as Megatron-LM numbers them. Each axis cuts the ranks into groups, those whose other coordinates are equal; so
 * do several axes together, as dp_shard and cp, over which gradients are reduced. A group is a (stride, size) for each
 * stretch of the order that its axes fill, axes that are neighbours in the order joined into one: from its first rank
 * members are sums of stride x (0 ... size - 1).
 *
 * Experts divide the same ranks another way: etp x ep x edp = tp x cp x dp_shard x dp_replicate, within each stage. The
 * fold takes the ranks of a stage in their order: etp are the nearest neighbours, then ep, then edp (Megatron-LM,
 * parallel folding). Expert weights are data parallel over edp alone.
 *
 * Nothing here knows plans, whose rules say which sizes go together (degree_rules.c, expert_rules.c). */
#ifndef DTP_LAYOUT_H
#define DTP_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(suffix, word). In the order that ranks have by default, nearest neighbours first. */
#define DTP_AXIS_TABLE(X)                                                                                              \
    X(TP, "tp")                                                                                                        \
    X(CP, "cp")                                                                                                        \
    X(DP_SHARD, "dp_shard")                                                                                            \
    X(DP_REPLICATE, "dp_replicate")                                                                                    \
    X(PP, "pp")
enum dtp_mesh_axis {
#define DTP_AXIS_ENUM(suffix, word) DTP_AXIS_##suffix,
    DTP_AXIS_TABLE(DTP_AXIS_ENUM)
#undef DTP_AXIS_ENUM
        DTP_AXIS_COUNT,
    /* of experts; no part of the order */
    DTP_AXIS_ETP = DTP_AXIS_COUNT,
    DTP_AXIS_EP,
    DTP_AXIS_EDP,
    DTP_AXIS_ALL_COUNT
};

/* The default order, to initialise one. */
#define DTP_AXIS_IN_ORDER(suffix, word) DTP_AXIS_##suffix,
#define DTP_LAYOUT_ORDER                                                                                               \
    {                                                                                                                  \
        DTP_AXIS_TABLE(DTP_AXIS_IN_ORDER)                                                                              \
    }

/* Sets of axes, a bit 1u << axis each. */
#define DTP_AXES(axis) (1u << DTP_AXIS_##axis)
/* Over which dense weights' gradients are reduced and state is sharded: each context parallel rank has other tokens. */
#define DTP_AXES_DENSE_DATA (DTP_AXES(CP) | DTP_AXES(DP_SHARD) | DTP_AXES(DP_REPLICATE))

struct dtp_layout {
    uint32_t size[DTP_AXIS_ALL_COUNT];        /* of each axis, 1: not parallel that way */
    enum dtp_mesh_axis order[DTP_AXIS_COUNT]; /* nearest neighbours first */
};

/* Sizes of 1 in the default order. */
struct dtp_layout dtp_layout_default(void);
/* "tp-cp-dp_shard-dp_replicate-pp", each axis once; "dp" stands for dp_shard and dp_replicate behind it. Axes that are
 * not named follow in the default order, pp last. False: a word is none, or stands twice. */
bool dtp_layout_parse_order(const char *text, struct dtp_layout *layout);
/* Writes at most `bytes` bytes and returns `out`. */
char *dtp_layout_order_text(const struct dtp_layout *layout, char *out, size_t bytes);
/* How far neighbours along an axis of the order are apart. */
uint32_t dtp_layout_stride(const struct dtp_layout *layout, enum dtp_mesh_axis axis);

/* A stretch of equal strides. */
struct dtp_stretch {
    uint32_t stride, size;
};
struct dtp_rank_group {
    uint32_t size, stretch_count;
    struct dtp_stretch stretches[2 * DTP_AXIS_COUNT]; /* nearest neighbours first, sizes above 1 */
};
/* The groups along some axes, either of the order, or of experts; 0: each rank is alone. */
struct dtp_rank_group dtp_layout_group(const struct dtp_layout *layout, unsigned axes);

#endif
