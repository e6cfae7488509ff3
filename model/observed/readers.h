/* The readers of each kind of file; observed.c tells which. */
#ifndef DTP_OBSERVED_READERS_H
#define DTP_OBSERVED_READERS_H

#include "observed/observed.h"

/* A Chrome trace, as PyTorch's profiler (Kineto) writes it. */
enum dtp_status dtp_read_kineto(const char *path, const char *text, size_t bytes, struct dtp_observed *out,
                                struct dtp_faults *faults);
/* `nsys stats --report cuda_gpu_trace --format csv`. */
enum dtp_status dtp_read_nsys(const char *path, const char *text, struct dtp_observed *out, struct dtp_faults *faults);
/* torch.cuda.memory._dump_snapshot. */
enum dtp_status dtp_read_snapshot(const char *path, const char *bytes, size_t count, struct dtp_observed *out,
                                  struct dtp_faults *faults);
/* Lines of torchtitan and Megatron-LM. */
bool dtp_is_train_log(const char *text);
enum dtp_status dtp_read_train_log(const char *path, const char *text, struct dtp_observed *out,
                                   struct dtp_faults *faults);

#endif
