/* Arenas of GPUs of one machine in each other's address space (CUDA IPC), so that a kernel can store into a peer's.
 * Unlike NCCL's windows they take neither memory of another kind nor buffers of NCCL's. Only in builds with CUDA. */
#ifndef DTP_PEER_ARENAS_H
#define DTP_PEER_ARENAS_H

#include "ranks/control.h"

struct dtp_peer_arenas {
    char **at;     /* [world]: where a rank's arena begins here; NULL of ranks whose was not asked for */
    char *own;     /* this rank's, which is its `at` too */
    uint32_t rank; /* this one's */
    char why[128]; /* "" where all are mapped that were asked for, on all ranks; else the reason, and none is */
};

/* Every rank calls it with the arena that it has allocated by cudaMalloc, and `wanted` [world], those that it is to
 * see, which are of its machine. Where a machine cannot, on no rank is any mapped: all then know it, which is no fault.
 * A fault (DTP_ENVIRONMENT): ranks cannot hear each other. Closed by dtp_peer_arenas_close, on all ranks before any
 * frees its arena, as cudaIpcCloseMemHandle asks. */
enum dtp_status dtp_peer_arenas_map(const struct dtp_ranks *ranks, struct dtp_control *control, void *arena,
                                    const bool *wanted, struct dtp_peer_arenas *out, struct dtp_faults *faults);
void dtp_peer_arenas_close(struct dtp_peer_arenas *peers, uint32_t world);

#endif
