/* The grouped matmul for compute capability 9.0, which grouped_matmul.cu calls where it can. */
#ifndef DTP_GROUPED_MATMUL_SM90_H
#define DTP_GROUPED_MATMUL_SM90_H

#include "kernels/kernels.h"

#include <cuda_runtime.h>

namespace dtp
{

/* Whether this device and these arguments are ones it is made for: 16 bits, widths that are multiples of 8. */
bool grouped_matmul_sm90_takes(const struct dtp_grouped_matmul_args &args);

/* As dtp_cuda_grouped_matmul. */
int grouped_matmul_sm90(const struct dtp_grouped_matmul_args &args, cudaStream_t stream);

} // namespace dtp

#endif
