/* Expert parallelism in the closed form: rows of tokens that ranks which divide the experts send each other, and the
 * collectives of these experts' weights. Of a layer and micro-step a rank that receives I times the mean sends and
 * receives I T k h c (e - 1) / e bytes four times: to the experts and back, and their gradients the other way; a layer
 * that runs again in backward exchanges again what forward did. With each dispatch goes how many rows do: 8 bytes an
 * expert. */
#include "closed/adapted_work.h"
#include "closed/closed_form_hooks.h"
#include "closed/closed_form_timing.h"

#include "base/bytes.h"
#include "cost/cluster_cost.h"
#include "cost/collective_choice.h"
#include "plan/checkpointing.h"
#include "plan/layer_tensors.h"

#include <math.h>

uint64_t dtp_expert_layers_again(const struct dtp_transformer *t, const struct dtp_plan *plan)
{
    struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    bool others = rule.keeps == DTP_KEEPS_PARTS && !dtp_plan_recomputes(plan, DTP_RECOMPUTE_MOE);
    return others || rule.keeps == DTP_KEEPS_ALL_BUT_CORE ? 0 : dtp_checkpointed_layers_with(&rule, t, true);
}

struct dtp_cluster dtp_expert_cluster(const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    struct dtp_cluster c = *cluster;
    uint32_t fold = plan->tp > 1 ? 1 : dtp_plan_expert_fold(plan); /* else it is the whole cluster */
    c.gpus *= fold;
    c.gpus_per_node *= fold;
    c.machine.gpus *= fold;
    c.machine.nics *= fold;
    c.machine.network_bytes_per_s *= fold;
    return c;
}

void dtp_expert_traffic_add(struct dtp_traffic *traffic, enum dtp_collective collective, const struct dtp_scales *sent,
                            uint64_t ranks, uint64_t stride)
{
    const struct dtp_cluster *slice = traffic->cluster;
    struct dtp_cluster all = dtp_expert_cluster(slice, traffic->plan);
    traffic->cluster = &all;
    dtp_traffic_add(traffic, collective, sent->bytes, sent->count, ranks, stride);
    traffic->cluster = slice;
}

/* Rows that came are gathered by the ranks that have a part each of these experts, and what they make of them is
 * summed; backward is the same the other way. */
static void add_expert_rows(struct dtp_traffic *traffic, uint64_t crossed, uint64_t passes)
{
    uint64_t etp = dtp_plan_row_gatherers(traffic->plan);
    struct dtp_scales *out = &traffic->out->expert_rows;
    if (etp < 2)
        return;
    out->count = traffic->plan->accumulate * passes;
    out->bytes = dtp_bytes_product(out->count, dtp_traffic_ring(dtp_bytes_product(etp, crossed), etp));
    dtp_expert_traffic_add(traffic, DTP_ALL_GATHER, out, etp, 1);
    dtp_expert_traffic_add(traffic, DTP_REDUCE_SCATTER, out, etp, 1);
}

void dtp_expert_traffic(struct dtp_traffic *traffic)
{
    const struct dtp_transformer *t = traffic->transformer;
    const struct dtp_plan *plan = traffic->plan;
    if (plan->ep < 2 || plan->runtime->executed) /* whose traffic says it */
        return;
    uint64_t all = dtp_bytes_product(dtp_plan_tokens(plan), t->experts_per_token * t->hidden * traffic->bytes.compute);
    uint64_t sent = dtp_divide_up(all, plan->expert_shards > 1 ? plan->expert_shards : 1);
    double part = dtp_plan_expert_sent_part(plan, traffic->cluster, t->experts_per_token);
    uint64_t fullest = (uint64_t)((double)(uint64_t)ceil((double)sent * dtp_plan_crossed_rows(plan)) * part);
    bool counted = !plan->megatron.pad_to_capacity && !dtp_plan_slots_rows(plan); /* how many rows there are */
    uint64_t rows = dtp_traffic_ring(fullest, plan->ep),
             splits = dtp_traffic_ring(counted ? 8 * t->experts : 0, plan->ep);
    uint64_t backwards = dtp_transformer_expert_layers(t, t->layers),
             forwards = backwards + dtp_expert_layers_again(t, plan);
    struct dtp_scales *out = &traffic->out->experts[DTP_ALL_TO_ALL];
    out->bytes =
        dtp_bytes_product(plan->accumulate, forwards * splits + 2 * dtp_bytes_product(forwards + backwards, rows));
    out->count = (uint64_t)plan->accumulate * ((counted ? 3 : 2) * forwards + 2 * backwards);
    dtp_expert_traffic_add(traffic, DTP_ALL_TO_ALL, out, plan->ep, plan->megatron.etp);
    if (dtp_plan_slots_rows(plan) && !plan->deepspeed.drop_tokens) /* ranks agree on the number of slots */
        dtp_traffic_add(traffic, DTP_ALL_REDUCE, plan->accumulate * forwards * 2 * dtp_traffic_ring(8, plan->ep),
                        plan->accumulate * forwards, plan->ep, 1);
    add_expert_rows(traffic, fullest, forwards + backwards);
}

/* Of so many bytes of all `ranks`. */
static void exchange(struct dtp_tensor_exchanges *out, enum dtp_collective collective, uint64_t times, uint64_t bytes,
                     uint64_t ranks)
{
    out->count[collective] += times;
    out->bytes[collective] += times * (collective == DTP_ALL_REDUCE ? 2 : 1) * dtp_traffic_ring(bytes, ranks);
}

/* Of latents: attention gathers what it reads, forward and in a replay, and its result's gradient, and scatters its
 * result and, unless both of queries and keys are projected down whole, its input's gradient. Terms of gradients of
 * latents that are projected up, and of the keys' part that heads share, are summed. */
static void exchange_latents(struct dtp_tensor_exchanges *out, const struct dtp_transformer *slice,
                             const struct dtp_plan *plan, uint64_t token_bytes)
{
    const struct dtp_checkpoint_rule rule = dtp_plan_checkpoint_rule(plan);
    const uint64_t layers = slice->layers, ranks = plan->sequence_shards, stream = token_bytes * slice->hidden;
    const uint64_t checkpointed = dtp_checkpointed_layers_with(&rule, slice, true) +
                                  dtp_checkpointed_layers_with(&rule, slice, false),
                   again = rule.keeps == DTP_KEEPS_ALL_BUT_CORE ? 0 : checkpointed;
    exchange(out, DTP_ALL_GATHER, 2 * layers + again, stream, ranks);
    exchange(out, DTP_REDUCE_SCATTER,
             layers + (slice->q_latent ? 0 : layers) + (rule.keeps == DTP_KEEPS_SECOND_MATMULS ? 0 : again), stream,
             ranks);
    exchange(out, DTP_ALL_REDUCE, layers, token_bytes * slice->kv_latent, ranks);
    exchange(out, DTP_ALL_REDUCE, layers, token_bytes * slice->rope_head_dim, ranks);
    if (slice->q_latent)
        exchange(out, DTP_ALL_REDUCE, layers, token_bytes * slice->q_latent, ranks);
}

/* Rows of all are gathered forward, in a replay and, of the gradient, backward; the sum is scattered forward alone, for
 * each rank keeps its rows of gradients that are whole: parts of the width of experts and of shared ones return terms,
 * which are summed in all of them. */
struct dtp_tensor_exchanges dtp_routed_exchanges_of(const struct dtp_transformer *slice, const struct dtp_plan *plan)
{
    const uint64_t layers = dtp_transformer_expert_layers(slice, slice->layers), ranks = plan->sequence_shards;
    const uint64_t token_bytes = dtp_plan_tokens(plan) * dtp_plan_compute_bytes(plan),
                   stream = dtp_bytes_product(token_bytes, slice->hidden);
    const uint64_t shared = slice->shared_expert_ffn ? dtp_activation_is_gated(slice->activation) ? 2 : 1 : 0;
    struct dtp_tensor_exchanges out = {{0}, {0}};
    exchange(&out, DTP_ALL_GATHER, 2 * layers + dtp_expert_layers_again(slice, plan), stream, ranks);
    exchange(&out, DTP_REDUCE_SCATTER, layers, stream, ranks);
    exchange(&out, DTP_ALL_REDUCE, layers * shared, stream, ranks);
    if (slice->kv_latent)
        exchange_latents(&out, slice, plan, token_bytes);
    if (layers && dtp_plan_width_ranks(plan) > 1)
        exchange(&out, DTP_ALL_REDUCE, layers, dtp_bytes_product(slice->experts_per_token, stream), ranks);
    return out;
}

static double seconds_of(const struct dtp_timing *c, enum dtp_collective collective, const struct dtp_scales *sent,
                         uint32_t ranks, uint32_t stride)
{
    struct dtp_cluster all = dtp_expert_cluster(c->cluster, c->plan);
    if (!sent->count)
        return 0;
    struct dtp_group group = dtp_group_of(&all, ranks, stride);
    const bool uneven = collective == DTP_ALL_TO_ALL && c->execution.own_kernels; /* whose routers decide */
    struct dtp_collective_cost cost = dtp_collective_cost_chosen(&all, &group, &c->execution, collective,
                                                                 uneven ? DTP_CARRIED_UNEVEN : DTP_CARRIED_PLAIN);
    return (double)sent->count * dtp_collective_time(&cost, (double)sent->bytes / (double)sent->count);
}

/* Matmuls of shared experts that work beside an exchange, in the whole step. */
static double beside_s(const struct dtp_timing *c, enum dtp_exchange exchange)
{
    const struct dtp_block_work *block = &c->block[DTP_LAYER_EXPERTS];
    double total = 0;
    for (int i = 0; i < block->matmul_count; i++)
        if (block->matmul[i].beside == 1 + exchange)
            total += dtp_timing_matmul_s(c, &block->matmul[i], false) + dtp_timing_matmul_s(c, &block->matmul[i], true);
    return total * block->layers * c->plan->accumulate;
}

/* Of the rows' exchanges, as many there as back, what is waited for. */
static double waited_for_s(const struct dtp_timing *c, double exchanged_s)
{
    double half_s = exchanged_s / 2;
    if (c->plan->megatron.expert_overlap)
        return exchanged_s / c->plan->accumulate;
    return fmax(0, half_s - beside_s(c, DTP_EXCHANGE_DISPATCH)) + fmax(0, half_s - beside_s(c, DTP_EXCHANGE_COMBINE));
}

/* Of these weights' collectives: FSDP2 reduces a stage's behind its last backward. DeepSpeed's engine gathers updated
 * weights behind the step, and without overlap_comm reduces on compute's stream. Who keeps weights whole hides
 * neither: also where they are sent beside compute the passes of one micro-batch alone hide some of what a whole step
 * sends. */
static bool blocks(const struct dtp_plan *plan, enum dtp_collective collective)
{
    const bool gather = collective == DTP_ALL_GATHER;
    if (plan->runtime->overlap_comm)
        return gather || !plan->deepspeed.overlap_comm;
    if (plan->pipeline_ranks && dtp_plan_shards_params(plan))
        return !gather;
    return !dtp_plan_shards_params(plan);
}

/* Paired with another micro-batch, of all passes the first forward and the last backward stand alone. */
struct dtp_expert_exposed dtp_expert_add_time(const struct dtp_timing *c, const struct dtp_communication *communication,
                                              struct dtp_time *time)
{
    struct dtp_expert_exposed exposed = {0};
    const uint32_t ep = c->plan->ep, etp = c->plan->megatron.etp,
                   shards = (uint32_t)dtp_plan_expert_shard_ranks(c->cluster, c->plan),
                   copies = dtp_plan_expert_replicas(c->plan, c->cluster); /* who add up whole gradients */
    for (int i = DTP_ALL_GATHER; etp > 1; i = DTP_REDUCE_SCATTER) {
        double s = seconds_of(c, (enum dtp_collective)i, &communication->expert_rows, etp, 1);
        time->collective_s[i] += s, time->communication_s += s, exposed.rows_s += s;
        if (i == DTP_REDUCE_SCATTER)
            break;
    }
    for (int i = 0; i < DTP_COLLECTIVE_COUNT && ep > 1; i++) {
        bool rows = i == DTP_ALL_TO_ALL;
        const uint32_t same = i == DTP_ALL_REDUCE ? copies : shards;
        double s =
            seconds_of(c, (enum dtp_collective)i, &communication->experts[i], rows ? ep : same, rows ? etp : ep * etp);
        time->collective_s[i] += s;
        time->communication_s += s;
        exposed.rows_s += rows ? waited_for_s(c, s) : 0;
        exposed.weights_s += !rows && blocks(c->plan, (enum dtp_collective)i) ? s : 0;
        exposed.gathers_s += i == DTP_ALL_GATHER ? s : 0;
    }
    return exposed;
}
