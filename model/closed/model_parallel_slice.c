/* What one rank has of a plan with tensor or pipeline parallelism, as a data-parallel job of its own. */
#include "closed/model_parallel.h"

#include "base/bytes.h"
#include "plan/degrees.h"
#include "plan/slice.h"

/* Where every so-manieth layer has experts, how many layers the rank with most experts has without: of each chunk that
 * begins wherever, all but one of each so many and of those left. They are taken to be its first. */
static uint64_t layers_without(const struct dtp_transformer *t, uint64_t layers, uint32_t chunks)
{
    const uint64_t with = chunks * dtp_divide_up(dtp_divide_up(layers, chunks), dtp_transformer_kind_period(t));
    return t->experts && with < layers ? layers - with : 0;
}

/* The first stage holds the embedding, the last the head, tied or not: one such matrix each. A rank that holds both
 * stages and as many layers as any has both. */
static struct dtp_transformer slice_of_model(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_transformer s = dtp_plan_slice(t, plan);
    const bool vee = dtp_schedule_row(plan->schedule)->placement == DTP_CHUNKS_VEE;
    bool both_ends = plan->pp < 2 || (vee && plan->head_layers == plan->most_layers);
    s.layers = plan->pp < 2 ? t->layers : plan->most_layers;
    if (plan->pp > 1) { /* most stages have none of the first layers; what these take otherwise: first_of */
        s.dense_layers = layers_without(t, s.layers, plan->virtual_stages);
        s.expert_layer_step = 0;
    }
    s.tied_head = t->tied_head || !(both_ends || t->ahead_layers); /* what predicts further ahead reads both */
    return s;
}

/* The GPUs with the same slice: of a node those that lie their stride apart, as far as they are of one stage. Each of
 * the sets of them on a node uses the network at the same time. */
static struct dtp_cluster slice_of_cluster(const struct dtp_cluster *c, const struct dtp_plan *plan)
{
    struct dtp_cluster s = *c;
    uint32_t in_node = (uint32_t)dtp_part_of(c->gpus_per_node, dtp_plan_group(plan, c, DTP_AXES_DENSE_DATA).stride);
    s.gpus = dtp_plan_gradient_ranks(plan, c);
    while (in_node > 1 && (in_node > s.gpus || s.gpus % in_node))
        in_node--;
    uint32_t sets = c->nodes > 1 ? c->gpus_per_node / in_node : 1; /* of a node's GPUs, that share its network */
    s.gpus_per_node = in_node;
    s.nodes = s.gpus / in_node;
    s.machine.network_bytes_per_s /= sets ? sets : 1;
    s.machine.gpus = (uint32_t)dtp_part_of(c->machine.gpus, sets);
    s.machine.nics = (uint32_t)dtp_part_of(c->machine.nics, sets);
    return s;
}

void dtp_slice_of(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                  const struct dtp_plan *plan, struct dtp_slice *out)
{
    out->transformer = slice_of_model(transformer, plan);
    out->cluster = slice_of_cluster(cluster, plan);
    out->plan = *plan;
    out->plan.tp = out->plan.pp = 1;
    struct dtp_stretch stages = dtp_plan_group(plan, cluster, DTP_AXES(PP));
    out->plan.pipeline_ranks = plan->pp > 1 ? plan->pp : 0;
    out->plan.pipeline_on_sockets =
        cluster->network == DTP_NETWORK_SOCKETS && stages.stride * stages.size > cluster->gpus_per_node;
    out->plan.pipeline_two_tables = /* folded in a V the ends of the model are one rank's */
        plan->pp > 1 && transformer->tied_head && dtp_schedule_row(plan->schedule)->placement != DTP_CHUNKS_VEE;
    out->plan.most_layers = out->plan.head_layers = out->plan.first_layers = out->plan.last_layers = 0;
    out->plan.head_rank = 0;
    out->plan.pass_times = (struct dtp_pass_times){0};
    if (plan->pp > 1) { /* of layers that stay in bf16 those of the first stage, which keeps most of what is saved */
        out->plan.megatron.bf16_first = plan->megatron.bf16_first < out->transformer.layers
                                            ? plan->megatron.bf16_first
                                            : (uint32_t)out->transformer.layers;
        out->plan.megatron.bf16_last = 0;
    }
}
