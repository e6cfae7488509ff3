/* How long one NCCL collective takes when it runs alone.
 *
 * The model is NCCL's own (src/graph/tuning.cc): for each protocol a base latency, a latency per hop and a bus
 * bandwidth; the cheapest protocol is taken. Latencies are NCCL's tables; bandwidths are what rings reach on measured
 * machines (calibration.h), not NCCL's optimistic estimates. */
#ifndef DTP_COLLECTIVE_COST_H
#define DTP_COLLECTIVE_COST_H

#include "base/words.h"
#include "machine/group.h"
#include "machine/measured_row.h"

enum dtp_protocol { DTP_PROTOCOL_LL, DTP_PROTOCOL_LL128, DTP_PROTOCOL_SIMPLE, DTP_PROTOCOL_TREE, DTP_PROTOCOL_COUNT };

struct dtp_measured_curve;

/* Time of one operation = min over protocols of latency_s[p] + bus_bytes * s_per_byte[p]; unusable ones have infinite
 * latency. Prepared once per (cluster, group, collective), then evaluated for any size.
 *
 * Where the cluster was measured it is the measured time of the group that is most like this one, times what the model
 * says of this one / of that one. For the very group, used as it was measured, that factor is 1. */
struct dtp_collective_cost {
    double latency_s[DTP_PROTOCOL_COUNT];
    double s_per_byte[DTP_PROTOCOL_COUNT];
    const struct dtp_measured_curve *measured; /* NULL: none; borrowed from the cluster's */
    double of_latency_s[DTP_PROTOCOL_COUNT],
        of_s_per_byte[DTP_PROTOCOL_COUNT]; /* the model of the group that it is of */
};
struct dtp_collective_cost dtp_collective_cost(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                               enum dtp_collective collective);
/* The same where it is carried in its other way, which the model prices alike and a machine file may not. */
struct dtp_collective_cost dtp_collective_cost_carried(const struct dtp_cluster *cluster, const struct dtp_group *group,
                                                       enum dtp_collective collective, enum dtp_carried carried);

/* Seconds for one operation in which each rank sends `sent_bytes` (ring accounting, closed_form.h); 0 for 0 bytes. */
double dtp_collective_time(const struct dtp_collective_cost *cost, double sent_bytes);

/* Of a node's network that one ring over so many nodes reaches; 2: a send's. */
double dtp_network_fraction(const struct dtp_cluster *cluster, uint32_t nodes);
/* Bytes/s one GPU of the group can send in a long operation: the lesser of its link and its share of the network. */
double dtp_group_bus_bytes_per_s(const struct dtp_cluster *cluster, const struct dtp_group *group);

#endif
