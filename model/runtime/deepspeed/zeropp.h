/* ZeRO++ (Wang et al. 2023, arXiv 2306.10209) as DeepSpeed does it: what is sent in few bits, and over whom.
 *
 *   hpZ  zero_hpz_partition_size n: when a parameter is given back for the first time in a step, n neighbours keep a
 *        second copy of it, an n-th each (partition_parameters.py, _partition_param_sec); every later gather of the
 *        step, backward's and those of other micro-steps, is among them. The host waits for each copy to be made
 *   qwZ  a gather sends int8 and an fp32 scale for about 8000 elements, in a second collective (CUDAQuantizer).
 *        Assumed: one scale for every 8000 elements begun; DeepSpeed looks for a group that divides what it gathers
 *   qgZ  with several nodes, a matrix whose elements are a multiple of twice the ranks is reduced tensor by tensor:
 *        int4 by all-to-all within the node, reduced, int4 again by all-to-all between nodes (coalesced_collectives.py,
 *        all_to_all_quant_reduce), with fp32 scales of max(rows, columns, ranks) groups, in collectives of their own.
 *        Everything else of a bucket is reduce-scattered tensor by tensor; assumed: the vectors of a block in one */
#ifndef DTP_ZEROPP_H
#define DTP_ZEROPP_H

#include "base/bytes.h"
#include "machine/machine.h"
#include "plan/plan.h"

#define DTP_QUANTIZED_GROUP 8000u /* target_group_size */

static inline uint64_t dtp_zeropp_scale_bytes(uint64_t elements)
{
    return 4 * dtp_divide_up(elements, DTP_QUANTIZED_GROUP);
}

/* Whether gradients are reduced by all-to-all at all. */
static inline bool dtp_zeropp_reduces(const struct dtp_plan *plan, const struct dtp_cluster *cluster)
{
    return plan->deepspeed.zero_quantized_gradients && cluster->nodes > 1;
}

/* Bytes that all ranks of a node, then all nodes, exchange of a gradient. */
struct dtp_zeropp_exchange {
    uint64_t node_bytes, node_scale_bytes, between_bytes, between_scale_bytes;
};

/* False where a gradient of [rows, columns] (0: vectors) is reduce-scattered instead. */
static inline bool dtp_zeropp_exchanges(const struct dtp_cluster *cluster, uint64_t rows, uint64_t columns,
                                        struct dtp_zeropp_exchange *out)
{
    uint64_t elements = rows * columns, ranks = cluster->gpus, local = cluster->gpus_per_node;
    uint64_t groups = rows > columns ? rows : columns;
    groups = groups > ranks ? groups : ranks;
    *out = (struct dtp_zeropp_exchange){elements / 2, 4 * groups, elements / 2 / local, 4 * (groups / local)};
    return elements && elements % (2 * ranks) == 0;
}

#endif
