/* How long products of rows by experts take alone, all groups in one persistent kernel. */
#ifndef DTP_GROUPED_MATMUL_H
#define DTP_GROUPED_MATMUL_H

#include "cost/op_cost.h"

/* `groups` of [m,k] x [k,n], m rows of each expert on average (a weight's gradient: that sums over k), as if it were
 * one product of all rows, and each group had some more. */
double dtp_grouped_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, enum dtp_fp8_recipe recipe,
                            enum dtp_product product, double groups, double m, double n, double k);
/* The same by PyTorch's kernel of 16 bits on Hopper, by its tiles. */
double dtp_torch_grouped_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, enum dtp_product product,
                                  double groups, double m, double n, double k);
/* The same by our executor's kernels on a GPU, in 16 bits (kernels/grouped_matmul.cu). */
double dtp_native_grouped_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, enum dtp_product product,
                                   double groups, double m, double n, double k);

#endif
