#include "cost/collective_choice.h"

#include "cost/calibration.h"
#include "machine/measured.h"

#include <math.h>

/* BY_STORES: a kernel's, into peers' memory (exec/ranks/nccl_exchange.h). */
enum way { BY_LIBRARY, BY_WINDOWS, BY_COPIES, BY_STORES };

bool dtp_collective_is_librarys(const struct dtp_execution *execution, enum dtp_collective collective)
{
    return !execution->collective_ctas && !execution->windows && !dtp_execution_copies(execution, collective);
}

/* Whether runtime dtplan maps the arenas of a group's ranks into each other. Windows, and arenas of which NCCL's copy
 * engines know, are of another kind of memory. */
static bool maps_arenas(const struct dtp_cluster *cluster, const struct dtp_group *group,
                        const struct dtp_execution *execution)
{
    const enum dtp_link link = dtp_cluster_link(cluster);
    return execution->own_kernels && group->nodes == 1 && group->ranks > 1 && group->ranks <= DTP_PEERS_MOST &&
           (link == DTP_LINK_NVLINK || link == DTP_LINK_XGMI) && !execution->windows;
}

static enum way way_of(const struct dtp_cluster *cluster, const struct dtp_group *group,
                       const struct dtp_execution *execution, enum dtp_collective collective, enum dtp_carried carried)
{
    const uint32_t stride = execution->tensor_stride ? execution->tensor_stride : 1;
    const bool maps = maps_arenas(cluster, group, execution), apart = execution->copied == 0;
    const bool tensor =
        execution->tensor_ranks > 1 && group->ranks == execution->tensor_ranks && group->stride == stride;
    if (maps && apart && collective == DTP_ALL_TO_ALL)
        return BY_STORES;
    if (maps && ((tensor && collective == DTP_ALL_GATHER) || (apart && carried == DTP_CARRIED_AROUND)))
        return BY_COPIES;
    return dtp_execution_copies(execution, collective) ? BY_COPIES : execution->windows ? BY_WINDOWS : BY_LIBRARY;
}

/* One way, whatever the size. */
static void one_way(double latency_s, double bytes_per_s, struct dtp_collective_cost *cost)
{
    for (int p = 0; p < DTP_PROTOCOL_COUNT; p++)
        cost->latency_s[p] = INFINITY;
    cost->latency_s[DTP_PROTOCOL_SIMPLE] = latency_s;
    cost->s_per_byte[DTP_PROTOCOL_SIMPLE] = 1 / bytes_per_s;
}

/* Turns the cost of NCCL's own choice for this group into that of `way`. */
static void choose(const struct dtp_cluster *cluster, const struct dtp_group *group,
                   const struct dtp_execution *execution, enum way way, struct dtp_collective_cost *cost)
{
    const double link = dtp_cluster_link_bytes_per_s(cluster);
    double cta_bytes_per_s = dtp_calibration.ring_cta_bytes_per_s;
    const bool direct = way != BY_LIBRARY && group->nodes == 1 && group->ranks > 1;
    if (direct && way == BY_COPIES) {
        one_way(dtp_calibration.copy_gather_s, link * dtp_calibration.copy_link_fraction, cost);
        return;
    }
    if (direct && way == BY_STORES)
        one_way(dtp_calibration.store_exchange_s, link * dtp_calibration.store_link_fraction, cost);
    if (direct && way == BY_WINDOWS) {
        one_way(dtp_calibration.symmetric_barrier_s, link * dtp_calibration.symmetric_link_fraction, cost);
        cost->latency_s[DTP_PROTOCOL_LL] = dtp_calibration.symmetric_flag_s;
        cta_bytes_per_s = dtp_calibration.symmetric_cta_bytes_per_s;
    }
    for (int p = 0; p < DTP_PROTOCOL_COUNT && execution->collective_ctas; p++)
        cost->s_per_byte[p] = fmax(cost->s_per_byte[p], 1 / (execution->collective_ctas * cta_bytes_per_s));
}

struct dtp_collective_cost dtp_collective_cost_chosen(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                                      const struct dtp_execution *execution,
                                                      enum dtp_collective collective, enum dtp_carried carried)
{
    const enum way way = way_of(cluster, group, execution, collective, carried);
    const bool measured = way == BY_STORES && cluster->measured && !execution->collective_ctas &&
                          dtp_measured_has_collective(cluster->measured,
                                                      dtp_measured_collective_text(DTP_ALL_TO_ALL, DTP_CARRIED_UNEVEN));
    struct dtp_collective_cost cost =
        dtp_collective_cost_carried(cluster, group, collective, measured ? DTP_CARRIED_UNEVEN : carried);
    if (!measured)
        choose(cluster, group, execution, way, &cost);
    return cost;
}

static bool as_measured(const struct dtp_cluster *cluster, const struct dtp_group *group,
                        enum dtp_collective collective, struct dtp_collective_load *out)
{
    if (!cluster->measured)
        return false;
    struct dtp_measured_group asked = {group->ranks, group->stride, group->nodes};
    struct dtp_measured_contention of = dtp_measured_contention(cluster->measured, collective, &asked);
    *out = (struct dtp_collective_load){of.kernels, 0, of.collective, true};
    return isfinite(of.kernels);
}

struct dtp_collective_load dtp_collective_load(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                               const struct dtp_execution *execution, enum dtp_collective collective,
                                               enum dtp_carried carried)
{
    struct dtp_collective_load load;
    const enum way way = way_of(cluster, group, execution, collective, carried);
    if (way == BY_LIBRARY && !execution->collective_ctas && as_measured(cluster, group, collective, &load))
        return load;
    load = (struct dtp_collective_load){dtp_calibration.contention_sm_share, dtp_calibration.contention_memory_passes,
                                        1, false};
    if (way != BY_LIBRARY)
        load.memory_passes = dtp_calibration.direct_memory_passes;
    if (way == BY_COPIES)
        load.sm_share = 0;
    else if (execution->collective_ctas && cluster->gpu.sm_count)
        load.sm_share = fmin(load.sm_share, (double)execution->collective_ctas / cluster->gpu.sm_count);
    return load;
}
