/* The runtime PyTorch, of plan/runtime.h. */
#ifndef DTP_TORCH_RUNTIME_H
#define DTP_TORCH_RUNTIME_H

extern const struct dtp_runtime dtp_runtime_torch;

#endif
