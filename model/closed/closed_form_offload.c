/* The closed form of offload: copies between GPU and host, AdamW on the host, NVMe; what of them a step waits for. */
#include "closed/closed_form_hooks.h"

#include "closed/carried.h"

#include "cost/cluster_cost.h"
#include "plan/runtime_sizes.h"
#include "closed/sharding.h"

#include <math.h>

double dtp_timing_optimizer_shard(const struct dtp_timing *c)
{
    struct dtp_trained_count count;
    dtp_plan_trained(c->transformer, c->plan, &count);
    return (double)count.trained / (dtp_plan_shards_optimizer(c->plan) ? c->plan->shard_group : 1);
}

/* Seconds of NVMe, which all ranks of a node share. Optimizer: reads p, m, v, g in fp32, writes p, m, v and the
 * parameters. Micro-steps: reads the parameters as often as they go up, writes fp32 gradients. */
struct nvme_time {
    double optimizer_s, micro_steps_s;
};

/* Of what goes up, parameters that are gathered from the host; a runtime's sums of gradients may go up as well. */
static double params_up_bytes(const struct dtp_timing *c, const struct dtp_communication *communication)
{
    struct dtp_element_bytes element;
    dtp_element_bytes_count(c->plan, &element);
    double sums = c->plan->runtime->closed->sums_go_up
                      ? dtp_timing_optimizer_shard(c) * (double)element.grads * c->plan->accumulate
                      : 0;
    return c->plan->offload == DTP_OFFLOAD_OPTIMIZER ? 0 : fmax(0, (double)communication->host_to_device_bytes - sums);
}

static struct nvme_time nvme_time(const struct dtp_timing *c, const struct dtp_communication *communication,
                                  double params_bytes)
{
    const struct dtp_machine *machine = &c->cluster->machine;
    double ranks = c->cluster->gpus_per_node, shard = dtp_timing_optimizer_shard(c) * ranks;
    if (c->plan->offload != DTP_OFFLOAD_NVME)
        return (struct nvme_time){0, 0};
    return (struct nvme_time){
        shard * (16 / machine->nvme_read_bytes_per_s + (12 + params_bytes) / machine->nvme_write_bytes_per_s),
        params_up_bytes(c, communication) * ranks / machine->nvme_read_bytes_per_s +
            shard * 4 / machine->nvme_write_bytes_per_s};
}

/* What the copies add to the path of compute and exposed collectives. On two engines, up and down, beside it: gathered
 * parameters go up in forward and backward, gradients come down from the start of backward, so with a path of p, of
 * which f is forward, the micro-steps end no earlier than p, up, f + down, and what NVMe takes for them. Where copies
 * block, nothing else runs meanwhile. */
static double exposed_copies_s(const struct dtp_timing *c, const struct dtp_communication *communication,
                               const struct dtp_windows *window, const struct dtp_time *time, double bytes_per_s,
                               double nvme_s)
{
    const struct dtp_plan *plan = c->plan;
    double down_s = (double)communication->device_to_host_bytes / bytes_per_s;
    double params_s = params_up_bytes(c, communication) / bytes_per_s;
    double other_up_s = (double)communication->host_to_device_bytes / bytes_per_s - params_s;
    double path_s = time->compute_s + time->exposed_communication_s, beside_s = fmax(params_s, nvme_s);
    const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
    if (hooks->copies_block && hooks->copies_block(plan))
        return down_s + other_up_s + fmax(0, beside_s - path_s);
    return fmax(0, fmax(plan->accumulate * window->forward_s + down_s, beside_s) - path_s) + other_up_s;
}

/* Checkpoints that wait on the host: copied between the kernels, or beside those of forward and those of backward. */
static void add_carried(const struct dtp_timing *c, const struct dtp_windows *window, struct dtp_time *time)
{
    const struct dtp_carried_rows rows = dtp_carried_rows_of(c->transformer, c->plan);
    const double n = c->plan->accumulate, bytes = (double)rows.bytes;
    if (!rows.down)
        return;
    double down_s = (double)rows.down * bytes / dtp_cluster_copy_bytes_per_s(c->cluster, false, bytes),
           up_s = (double)rows.up * bytes / dtp_cluster_copy_bytes_per_s(c->cluster, true, bytes);
    bool beside = dtp_plan_carries_beside(c->plan);
    c->parts->device_to_host_s = n * down_s, c->parts->host_to_device_s = n * up_s;
    time->offload_s = n * (down_s + up_s);
    time->exposed_offload_s =
        beside ? n * (fmax(0, down_s - window->forward_s) + fmax(0, up_s - window->backward_s)) : time->offload_s;
}

/* An optimizer on the host updates after the last gradient is down, and its weights go up after that. From NVMe it
 * works in sub-groups, reading one and writing another meanwhile: the longer of the two, and of the shorter one
 * sub-group. */
void dtp_timing_add_offload(const struct dtp_timing *c, const struct dtp_communication *communication,
                            const struct dtp_windows *window, struct dtp_time *time)
{
    const struct dtp_plan *plan = c->plan;
    add_carried(c, window, time);
    if (plan->offload == DTP_OFFLOAD_NONE)
        return;
    struct dtp_element_bytes element;
    dtp_element_bytes_count(plan, &element);
    double up_bytes = (double)communication->host_to_device_bytes,
           down_bytes = (double)communication->device_to_host_bytes;
    double pcie = dtp_cluster_copy_bytes_per_s(c->cluster, true, up_bytes);
    double down_s = down_bytes / dtp_cluster_copy_bytes_per_s(c->cluster, false, down_bytes);
    double up_s = up_bytes / pcie;
    /* AdamW on the host: reads p, g, m, v and writes p, m, v, in fp32 28 B a parameter; adapters are in their dtype. */
    double once = 7 * (dtp_plan_adapts(plan) ? (double)element.grads : 4);
    if (dtp_plan_clips(plan)) /* read, then read and written */
        once += 3 * (double)element.grads;
    double adam_bytes = c->own ? c->own->host_update_bytes : once * dtp_timing_optimizer_shard(c);
    double host = dtp_cluster_host_adam_bytes_per_s(c->cluster, &c->execution, adam_bytes);
    struct nvme_time nvme = nvme_time(c, communication, (double)element.params);
    double adam_s = adam_bytes / host, groups = ceil(dtp_timing_optimizer_shard(c) / (double)DTP_DEEPSPEED_SUB_GROUP);
    double step_s = fmax(adam_s, nvme.optimizer_s) + fmin(adam_s, nvme.optimizer_s) / fmax(1, groups);
    c->parts->host_to_device_s = up_s;
    c->parts->device_to_host_s = down_s;
    c->parts->host_adam_s = adam_s;
    c->parts->nvme_s = nvme.optimizer_s + nvme.micro_steps_s;
    time->offload_s = up_s + down_s + adam_s + c->parts->nvme_s;
    const struct dtp_closed_form_hooks *hooks = plan->runtime->closed;
    double exposed_s = hooks->exposed_offload_s && plan->offload != DTP_OFFLOAD_NVME
                           ? hooks->exposed_offload_s(c, communication, window, time, pcie, adam_s)
                           : exposed_copies_s(c, communication, window, time, pcie, nvme.micro_steps_s) + step_s;
    time->exposed_offload_s = fmin(exposed_s, time->offload_s);
}
