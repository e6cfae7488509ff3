/* nanotron's parts of the closed form: what it sends, what its step does beside the update. */
#include "closed/closed_form_hooks.h"
#include "closed/model_parallel.h"

#include "base/bytes.h"
#include "cost/calibration.h"
#include "runtime/nanotron/nanotron.h"

#include <math.h>

bool dtp_nanotron_wraps_ddp(const struct dtp_plan *plan, uint64_t data_ranks)
{
    return plan->strategy == DTP_DDP && data_ranks > 1;
}

double dtp_nanotron_scatter_s(double bytes_per_s, uint64_t elements, uint64_t tensors, uint64_t ranks)
{
    double moved_s = (double)(DTP_NANOTRON_GATHER_BYTES * elements) / bytes_per_s;
    return fmax(moved_s, (double)tensors * (double)ranks * dtp_calibration.nanotron_copy_s);
}

/* Sums in fp32 are all-reduced once a step, by DDP bucket for bucket of the 16-bit gradients, else in one piece; ZeRO-1
 * gathers the updated weights besides. */
static void traffic(struct dtp_traffic *job)
{
    uint64_t gpus = job->cluster->gpus, total = job->units.total;
    bool ddp = dtp_nanotron_wraps_ddp(job->plan, gpus);
    uint64_t pieces = ddp ? dtp_traffic_ddp_buckets(job, job->bytes.params).count : 1;
    dtp_traffic_add(job, DTP_ALL_REDUCE, job->reductions * 2 * dtp_traffic_ring(total * job->bytes.reduce, gpus),
                    job->reductions * pieces, gpus, 1);
    if (job->plan->strategy == DTP_ZERO1)
        dtp_traffic_add(job, DTP_ALL_GATHER, dtp_traffic_ring(total * job->bytes.params, gpus), 1, gpus, 1);
}

/* Norm, clipping and zeros of all sums, the weights again of the rank's own part; ZeRO-1's copies. */
static double beside_update_s(const struct dtp_timing *c)
{
    uint64_t gpus = c->cluster->gpus;
    double whole = (double)(DTP_NANOTRON_NORM_BYTES + DTP_NANOTRON_CLIP_BYTES + DTP_NANOTRON_ZERO_BYTES);
    double bytes = whole * (double)c->count.total + DTP_NANOTRON_REFRESH_BYTES * dtp_timing_optimizer_shard(c);
    if (c->plan->strategy != DTP_ZERO1 || gpus == 1)
        return bytes / c->streaming_bytes_per_s;
    struct dtp_units units;
    dtp_units_count(c->transformer, c->cluster, c->plan, &units);
    double flat = (double)((DTP_NANOTRON_GATHER_PASSES - 1) * DTP_NANOTRON_GATHER_BYTES) * (double)c->count.total;
    return (bytes + flat) / c->streaming_bytes_per_s +
           dtp_nanotron_scatter_s(c->streaming_bytes_per_s, c->count.total, units.tensors, gpus);
}

/* lower_wide_sums.c, end_backward. */
static bool sums_before_sending(const struct dtp_plan *plan)
{
    (void)plan;
    return true;
}

const struct dtp_closed_form_hooks dtp_nanotron_closed_form = {
    .traffic = traffic,
    .beside_update_s = beside_update_s,
    .slice = dtp_slice_of,
    .sums_before_sending = sums_before_sending,
    .add_stages = dtp_stages_of_slice,
    .add_stages_memory = dtp_stages_memory_of_slice,
};
