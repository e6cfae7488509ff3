#include "cost/collective_choice.h"

#include "cost/calibration.h"
#include "machine/measured.h"

#include <math.h>

static bool is_direct(const struct dtp_execution *execution, enum dtp_collective collective)
{
    return execution->windows || dtp_execution_copies(execution, collective);
}

bool dtp_collective_is_librarys(const struct dtp_execution *execution, enum dtp_collective collective)
{
    return !execution->collective_ctas && !is_direct(execution, collective);
}

struct dtp_execution dtp_collective_execution(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                              const struct dtp_execution *execution)
{
    struct dtp_execution out = *execution;
    const uint32_t stride = out.tensor_stride ? out.tensor_stride : 1;
    const enum dtp_link link = dtp_cluster_link(cluster);
    const bool tensor = out.tensor_ranks > 1 && group->ranks == out.tensor_ranks && group->stride == stride;
    const bool mapped = group->nodes == 1 && group->ranks <= DTP_PEERS_MOST &&
                        (link == DTP_LINK_NVLINK || link == DTP_LINK_XGMI) && !out.windows;
    if (out.own_kernels && tensor && mapped)
        out.copied |= 1u << DTP_ALL_GATHER;
    return out;
}

/* One way, whatever the size. */
static void one_way(double latency_s, double bytes_per_s, struct dtp_collective_cost *cost)
{
    for (int p = 0; p < DTP_PROTOCOL_COUNT; p++)
        cost->latency_s[p] = INFINITY;
    cost->latency_s[DTP_PROTOCOL_SIMPLE] = latency_s;
    cost->s_per_byte[DTP_PROTOCOL_SIMPLE] = 1 / bytes_per_s;
}

void dtp_collective_choose(const struct dtp_cluster *cluster, const struct dtp_group *group,
                           const struct dtp_execution *execution, enum dtp_collective collective,
                           struct dtp_collective_cost *cost)
{
    double link = dtp_cluster_link_bytes_per_s(cluster);
    double cta_bytes_per_s = dtp_calibration.ring_cta_bytes_per_s;
    if (group->nodes == 1 && group->ranks > 1 && is_direct(execution, collective)) {
        bool copies = dtp_execution_copies(execution, collective);
        one_way(copies ? dtp_calibration.copy_gather_s : dtp_calibration.symmetric_barrier_s,
                link * (copies ? dtp_calibration.copy_link_fraction : dtp_calibration.symmetric_link_fraction), cost);
        if (copies)
            return;
        cost->latency_s[DTP_PROTOCOL_LL] = dtp_calibration.symmetric_flag_s;
        cta_bytes_per_s = dtp_calibration.symmetric_cta_bytes_per_s;
    }
    for (int p = 0; p < DTP_PROTOCOL_COUNT && execution->collective_ctas; p++)
        cost->s_per_byte[p] = fmax(cost->s_per_byte[p], 1 / (execution->collective_ctas * cta_bytes_per_s));
}

static bool as_measured(const struct dtp_cluster *cluster, const struct dtp_group *group,
                        const struct dtp_execution *execution, enum dtp_collective collective,
                        struct dtp_collective_load *out)
{
    if (!cluster->measured || !dtp_collective_is_librarys(execution, collective))
        return false;
    struct dtp_measured_group asked = {group->ranks, group->stride, group->nodes};
    struct dtp_measured_contention of = dtp_measured_contention(cluster->measured, collective, &asked);
    *out = (struct dtp_collective_load){of.kernels, 0, of.collective, true};
    return isfinite(of.kernels);
}

struct dtp_collective_load dtp_collective_load(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                               const struct dtp_execution *execution, enum dtp_collective collective)
{
    struct dtp_collective_load load;
    if (as_measured(cluster, group, execution, collective, &load))
        return load;
    load = (struct dtp_collective_load){dtp_calibration.contention_sm_share, dtp_calibration.contention_memory_passes,
                                        1, false};
    if (is_direct(execution, collective))
        load.memory_passes = dtp_calibration.direct_memory_passes;
    if (dtp_execution_copies(execution, collective))
        load.sm_share = 0;
    else if (execution->collective_ctas && cluster->gpu.sm_count)
        load.sm_share = fmin(load.sm_share, (double)execution->collective_ctas / cluster->gpu.sm_count);
    return load;
}
