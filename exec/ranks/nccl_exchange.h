/* What ranks exchange without reducing it: rows of experts, parts of an all_to_all, steps around a ring, rows that
 * tensor parallel ranks gather. Where arenas of the group are mapped, a kernel stores rows and parts straight into the
 * peers', copy engines carry a step of a ring and what is gathered, and NCCL only waits, by an all-reduce of four bytes
 * before and after, which no count of bytes has: no buffers of transfers, no SMs of a ring's. Where a rank is lost,
 * what is queued behind a barrier that was aborted may still store into peers, which all end. Elsewhere NCCL sends, an
 * expert's rows a transfer. Only in builds with CUDA. */
#ifndef DTP_NCCL_EXCHANGE_H
#define DTP_NCCL_EXCHANGE_H

#include "ranks/communicator.h"
#include "ranks/peer_arenas.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

/* The first NCCL that lets copy engines carry collectives, and has ncclAlltoAll. */
#define DTP_NCCL_WITH_COPIES 22800

/* A group as this rank is in it: member i is rank first + i * stride. */
struct dtp_nccl_group {
    ncclComm_t comm;
    uint32_t ranks, first, stride, index;
    const struct dtp_peer_arenas *peers; /* of all members; NULL: NCCL sends */
    int32_t *token;       /* on the device, this group's own: what ranks that wait for each other reduce */
    uint32_t most_blocks; /* thread blocks of an exchange; 0: any number */
};

/* An all_to_all, a send_recv that shifts, or an all_gather `into_peers`, on `stream`. Results lie at the same place in
 * each member's arena: members run one program. A code of NCCL's. */
int dtp_nccl_exchange(const struct dtp_nccl_group *group, const struct dtp_collective_args *args, cudaStream_t stream);
/* Of an element as NCCL counts it; bytes: UINT8. */
ncclDataType_t dtp_nccl_type(enum dtp_element element);

#endif
