/* From tensor bytes to what the driver shows: the caching allocator's segments, the CUDA context, NCCL.
 *
 * PyTorch's allocator keeps one pool per stream; a block freed in one pool is no use to another, so pools add up with
 * their own peaks even where the step's peak has one of them empty (CUDACachingAllocator.cpp). Fragmentation inside the
 * compute stream's pool is an empirical factor (calibration.h). Our executor's arena has no segments: reserved equals
 * allocated. */
#ifndef DTP_ALLOCATOR_H
#define DTP_ALLOCATOR_H

#include "closed/memory_instant.h"

/* Each adds what it returns to the chain, part by part. */
uint64_t dtp_allocator_reserved_bytes(const struct dtp_memory_job *job, uint64_t allocated_peak_bytes,
                                      struct dtp_part_chain *chain);
/* CUDA context with the modules a training step loads. */
uint64_t dtp_context_bytes(const struct dtp_memory_job *job, struct dtp_part_chain *chain);
/* NCCL's kernels and the buffers of every communicator the strategy opens; its library alone. */
uint64_t dtp_nccl_bytes(const struct dtp_memory_job *job, struct dtp_part_chain *chain);
uint64_t dtp_nccl_library_bytes(struct dtp_part_chain *chain);

#endif
