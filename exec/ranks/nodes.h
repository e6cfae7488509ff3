/* Whether the ranks stand on machines as the plan has them, and what NCCL must be told about its nodes.
 *
 * Groups of a plan (shards inside a node, replicas across) are ranks by number, so ranks must be numbered machine by
 * machine. A single machine can pretend to be several: NCCL takes ranks whose NCCL_HOSTID differs for ranks of
 * different hosts, lets them talk neither over NVLink nor shared memory, and takes the network, here sockets of the
 * loopback device. Bytes, choices of algorithms and waiting are those of several machines; the rate is this machine's.
 *
 * The same name lets ranks share a GPU: NCCL refuses two ranks of one host on one GPU (init.cc, "Duplicate GPU
 * detected"), and each that is a host of its own has none beside it. Their kernels take turns, since each process has a
 * context of its own, and one that waits for another waits for whole turns. So what such ranks compute, hold and send
 * is that of ranks with a GPU each, and no time is. */
#ifndef DTP_NODES_H
#define DTP_NODES_H

#include "machine/machine.h"
#include "ranks/ranks.h"

struct dtp_nodes {
    const struct dtp_cluster *cluster;
    bool pretend, cuda, share;
};

/* Before ranks are started on this machine alone. DTP_BAD_INPUT: the plan has several nodes and they are not to be
 * pretended; to be pretended although there is one, or on the host device, or where the plan's network is not sockets.
 */
enum dtp_status dtp_nodes_check_launch(const struct dtp_nodes *nodes, struct dtp_faults *faults);
/* In a rank. DTP_BAD_INPUT: its number on its machine is not what the plan's GPUs per node make of its rank. The host
 * device's ranks may as well be all on one machine; those that share GPUs must be. */
enum dtp_status dtp_nodes_check_rank(const struct dtp_nodes *nodes, const struct dtp_ranks *ranks,
                                     struct dtp_faults *faults);

/* Sets NCCL's variables in this process by `set`, which is setenv but for tests; before NCCL is first used. On
 * pretended nodes which node this is, of ranks that share GPUs that each is one, on sockets several threads and
 * connections for each ring, as one thread's copies do not fill a fast network. What the user has set stays, but for
 * the node's name. */
void dtp_nodes_environment(const struct dtp_nodes *nodes, const struct dtp_ranks *ranks,
                           int (*set)(const char *name, const char *value, int overwrite));

#endif
