#include "closed/pipeline_time.h"

#include "closed/closed_form_hooks.h"
#include "cost/calibration.h"
#include "cost/collective_cost.h"
#include "net/layer_kind.h"
#include "plan/degrees.h"
#include "plan/graph_modules.h"
#include "plan/slice.h"

#include <math.h>
#include <stdlib.h>

uint32_t dtp_stages_apart(const struct dtp_cluster *cluster, const struct dtp_plan *plan)
{
    return (uint32_t)dtp_plan_group(plan, cluster, DTP_AXES(PP)).stride;
}

double dtp_stage_transfer_s(const struct dtp_cluster *cluster, const struct dtp_plan *plan, uint32_t from, uint32_t to,
                            uint64_t bytes)
{
    const uint32_t apart = dtp_stages_apart(cluster, plan);
    const struct dtp_group pair = dtp_group_pair(cluster, from * apart, to * apart, apart);
    const struct dtp_collective_cost sends = dtp_collective_cost(cluster, &pair, DTP_SEND_RECV);
    return dtp_collective_time(&sends, (double)bytes);
}

static void add(struct dtp_stage_time *to, const struct dtp_stage_time *part, double times)
{
    to->device_s += times * part->device_s;
    to->launched_s += times * part->launched_s;
    to->exchanged_s += times * part->exchanged_s;
}

static double layers_without_experts(const struct dtp_pipeline_parts *p, const struct dtp_stage_parts *stage)
{
    uint64_t without = 0;
    for (uint64_t i = 0; i < stage->layers; i++)
        without += !dtp_transformer_layer_has_experts(p->transformer, stage->first_layer + i);
    return (double)without;
}

static struct dtp_stage_time time_of(const struct dtp_pipeline_parts *p, const struct dtp_stage_parts *stage)
{
    struct dtp_stage_time t = {.exchanged_s = p->gathered_s};
    add(&t, &p->layer, stage->layers + stage->mtp_layers);
    add(&t, &p->first, layers_without_experts(p, stage));
    add(&t, &p->table, stage->embedding);
    add(&t, &p->ends, stage->head);
    return t;
}

/* Python walks the graph for B and calls the engine for W, group of parameters by group (split_group_s): a layer's
 * matrices and the head; B walks two norms of a layer as well, and the head's. */
static double split_s(const struct dtp_pipeline_parts *p, const struct dtp_stage_parts *stage, bool norms)
{
    struct dtp_layer_kind kind;
    if (!p->plan->runtime->holds_passes)
        return 0;
    dtp_layer_kind_of(p->transformer, dtp_layer_mlp_of(p->transformer), p->plan->fused_qkv, p->plan->fused_gate_up,
                      &kind);
    const double of_layer = kind.matrices + (norms ? 2 : 0), of_head = stage->head ? 1 + norms : 0;
    return (stage->layers * of_layer + of_head) * dtp_calibration.split_group_s;
}

/* Whether a host reads how many rows came to its experts from other ranks. Who has all experts leaves the counts to the
 * grouped matmuls, padded rows are as many each time, and a graph of all passes reads them on the device. */
static bool reads_rows(const struct dtp_pipeline_parts *p)
{
    return p->transformer->experts && p->plan->ep > 1 && !p->plan->megatron.pad_to_capacity &&
           !dtp_plan_replays_all(p->plan);
}

/* A host that does waits for its GPU in each such layer of a forward, and of its replay: launches and kernels there
 * take turns, and none of what follows has been launched. */
static struct dtp_stage_cost never_ahead(const struct dtp_pipeline_parts *p, struct dtp_stage_cost c)
{
    c.forward_s = fmax(c.forward_s, c.launch_forward_s);
    c.launch_forward_s = 0;
    c.waits_forward = true;
    if (!dtp_expert_layers_again(p->transformer, p->plan))
        return c;
    c.backward_s = fmax(c.backward_s, c.launch_backward_s);
    c.weight_s = fmax(c.weight_s, c.launch_weight_s);
    c.launch_backward_s = c.launch_weight_s = 0;
    c.waits_backward = true;
    return c;
}

/* What FSDP2's gathers add to a stage's first forward, whose host waits in each layer of experts: behind that wait it
 * gathers these, the first layer's beside nothing, and with them all of the next layer but one, which are hidden behind
 * a layer's kernels. */
static double gathers_s(const struct dtp_pipeline_parts *p, const struct dtp_stage_parts *stage,
                        const struct dtp_stage_cost *cost)
{
    const double layers = stage->layers - layers_without_experts(p, stage);
    if (!reads_rows(p) || layers < 1)
        return 0;
    const double layer_s = fmax(cost->forward_s, cost->launch_forward_s) / stage->layers;
    return p->experts_gather_s + fmax(0, layers - 2) * fmax(0, p->layer_gather_s + p->experts_gather_s - layer_s);
}

struct dtp_part_cost dtp_passes_of_head(const struct dtp_plan *plan, double head_s)
{
    const bool frozen = dtp_plan_adapts(plan);
    const double each_s = head_s / (frozen ? 2 : 3);
    return (struct dtp_part_cost){.forward_s = each_s, .backward_s = each_s, .weight_s = frozen ? 0 : each_s};
}

/* Half of what is exchanged is forward's. Of kernels backward is taken to launch twice forward's, as many for weights
 * as for inputs: assumed, no count says it. */
static struct dtp_stage_cost cost_of(const struct dtp_pipeline_parts *p, const struct dtp_stage_parts *stage,
                                     bool exchanges)
{
    const struct dtp_stage_time t = time_of(p, stage);
    const double ends_s = stage->head ? p->ends.device_s : 0, layers_s = t.device_s - ends_s,
                 half_s = exchanges ? t.exchanged_s / 2 : 0;
    const struct dtp_part_cost ends = dtp_passes_of_head(p->plan, ends_s);
    const bool frozen = dtp_plan_adapts(p->plan); /* weights have no pass */
    const double delayed = fmin(p->plan->executor.delay_wgrad, stage->layers);
    struct dtp_stage_cost cost = {
        .forward_s = layers_s * p->shares.forward_s + ends.forward_s + half_s,
        .backward_s = layers_s * p->shares.backward_s + ends.backward_s + half_s,
        .weight_s = layers_s * p->shares.weight_s + ends.weight_s,
        .delayed_s = delayed * p->layer.device_s * p->shares.weight_s,
        .last_s = exchanges ? stage->layers * p->last_layer_s + (stage->embedding || stage->head) * p->last_table_s : 0,
        .launch_forward_s = t.launched_s / 3,
        .launch_backward_s = (frozen ? 2 : 1) * t.launched_s / 3,
        .launch_weight_s = frozen ? 0 : t.launched_s / 3,
        .launch_walk_s = split_s(p, stage, true),
        .launch_engine_s = split_s(p, stage, false),
    };
    cost.first_s = exchanges ? gathers_s(p, stage, &cost) : 0;
    return reads_rows(p) ? never_ahead(p, cost) : cost;
}

/* Of ranks on average; of a schedule that goes two ways a micro-batch passes one of a rank's stages. */
static void add_means(const struct dtp_pipeline_parts *p, const struct dtp_schedule *schedule,
                      const struct dtp_stages *stages, struct dtp_pipeline_time *out)
{
    const double share = p->plan->accumulate / ((double)dtp_schedule_lines(schedule) * p->plan->pp);
    for (uint32_t rank = 0; rank < p->plan->pp; rank++) {
        struct dtp_stage_time of_rank = {0};
        for (uint32_t chunk = 0; chunk < p->plan->virtual_stages; chunk++) {
            const struct dtp_stage_time t = time_of(p, &stages->parts[dtp_schedule_stage(schedule, rank, chunk)]);
            add(&of_rank, &t, 1);
        }
        const double wait_s = fmax(0, of_rank.launched_s - of_rank.device_s);
        add(&out->mean, &of_rank, share);
        out->launch_wait_s += share * wait_s;
        out->exchange_s += share * fmax(0, of_rank.exchanged_s - wait_s);
    }
}

enum dtp_status dtp_pipeline_time_of(const struct dtp_pipeline_parts *parts, struct dtp_pipeline_time *out)
{
    const struct dtp_plan *plan = parts->plan;
    const struct dtp_schedule schedule = {.shape = dtp_plan_schedule(plan)};
    struct dtp_stages stages;
    const bool blocks = plan->schedule == DTP_SCHEDULE_1F1B && !plan->runtime->sends_beside;
    double step_s[2] = {0}, sent_s = 0, boundaries = 0;
    *out = (struct dtp_pipeline_time){0};
    enum dtp_status status = dtp_plan_stages(plan, parts->transformer, &stages, NULL);
    if (status != DTP_OK)
        return status;
    struct dtp_stage_cost *costs = malloc(2 * (size_t)stages.count * sizeof *costs);
    if (!costs) {
        dtp_stages_destroy(&stages);
        return DTP_ENVIRONMENT;
    }
    struct dtp_stage_cost *const all = costs + stages.count;
    for (uint32_t i = 0; i < stages.count; i++) {
        const uint32_t from = dtp_schedule_place(&schedule, 0, i).rank,
                       to = i + 1 < stages.count ? dtp_schedule_place(&schedule, 0, i + 1).rank : from;
        costs[i] = cost_of(parts, &stages.parts[i], false);
        all[i] = cost_of(parts, &stages.parts[i], true);
        all[i].send_s = from == to ? 0 : dtp_stage_transfer_s(parts->cluster, plan, from, to, parts->sent_bytes);
        sent_s += all[i].send_s;
        boundaries += from != to;
    }
    add_means(parts, &schedule, &stages, out);
    out->sent_s = 2.0 * plan->virtual_stages * plan->accumulate * sent_s / fmax(1, boundaries);
    const bool posted = plan->runtime->holds_passes && !blocks;
    const struct dtp_schedule_costs of_step[2] = {
        {.stages = costs, .pair_fraction = 1, .early = true, .posted = posted},
        {.stages = all, .pair_fraction = 1, .early = true, .posted = posted}};
    status = dtp_schedule_steps(&schedule.shape, blocks ? DTP_SEND_BLOCKING : DTP_SEND_RENDEZVOUS, of_step, 2, step_s);
    out->computing_s = step_s[0];
    out->passes_s = step_s[1];
    free(costs);
    dtp_stages_destroy(&stages);
    return status;
}
