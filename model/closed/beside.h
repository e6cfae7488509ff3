/* Inside of memory.h: what stands beside a step program, reckoned by formulas and by hooks of the runtime. */
#ifndef DTP_BESIDE_H
#define DTP_BESIDE_H

#include "closed/memory_parts.h"
#include "closed/sharding.h"

struct dtp_beside {
    const struct dtp_transformer *transformer;
    const struct dtp_cluster *cluster;
    const struct dtp_plan *plan;
    const struct dtp_live_bytes *live;
    struct dtp_units units;
    struct dtp_element_bytes bytes;
};

/* NCCL's kernels and the buffers of every communicator the strategy opens; its library alone. Each adds what it returns
 * to the list, part by part. */
uint64_t dtp_nccl_bytes(const struct dtp_beside *beside, struct dtp_memory_list *list);
uint64_t dtp_nccl_library_bytes(struct dtp_memory_list *list);

#endif
