/* The widths and element bytes that activations.c and block_places.c write their tensors with. */
#ifndef DTP_ACTIVATION_SHAPE_H
#define DTP_ACTIVATION_SHAPE_H

#include "closed/activations.h"
#include "closed/sharding.h"

#define DTP_DDP_FIRST_BUCKET_BYTES (1u << 20) /* DDPOptimizer ends its first graph there */

struct dtp_activation_shape {
    const struct dtp_transformer *t;
    const struct dtp_plan *plan;
    uint64_t h, f, d_q, d_kv, c, e;
    uint64_t input;          /* bytes of a matmul's input as it is kept for the weight gradient */
    bool autocast, compiled; /* pointwise results are recomputed in backward instead of saved */
    bool cut;                /* compiled layers are cut at the ends of DDP's buckets */
};

static inline struct dtp_activation_shape
dtp_activation_shape_of(const struct dtp_transformer *t, const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    uint64_t c = dtp_plan_compute_bytes(plan);
    bool ddp = dtp_plan_has_ddp_buckets(plan, cluster);
    return (struct dtp_activation_shape){.t = t,
                                         .plan = plan,
                                         .h = t->hidden / (plan->sequence_shards > 1 ? plan->sequence_shards : 1),
                                         .f = t->ffn,
                                         .d_q = t->heads * t->head_dim,
                                         .d_kv = t->kv_heads * t->head_dim,
                                         .c = c,
                                         .input = dtp_plan_keeps_fp8(plan) ? 1 : c,
                                         .autocast = dtp_plan_autocast(plan),
                                         .e = dtp_plan_autocast(plan) ? 4 : c,
                                         .compiled = plan->compile,
                                         .cut = ddp && plan->compile &&
                                                4 * t->hidden * t->ffn >= DTP_DDP_FIRST_BUCKET_BYTES};
}

/* Statistics of one norm, fp32: RMSNorm the reciprocal root mean square, LayerNorm mean and reciprocal deviation. */
static inline uint64_t dtp_norm_statistics_bytes(const struct dtp_transformer *t)
{
    return t->norm == DTP_RMS_NORM ? 4 : 8;
}

/* What the attention core saves beside q, k, v and its result: the fp32 log-sum-exp; math attention the probabilities
 * [heads, s], and where those are wider than q, k and v, their casts, k and v repeated for each query head. */
static inline uint64_t dtp_core_state_bytes(const struct dtp_activation_shape *s)
{
    if (s->plan->attention != DTP_ATTENTION_MATH)
        return 4 * s->t->heads;
    uint64_t score = dtp_plan_score_bytes(s->plan);
    return score * s->t->heads * s->plan->sequence + (score > s->c ? 3 * score * s->d_q : 0);
}

#endif
