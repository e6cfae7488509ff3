/* AdamW on a range of elements in host memory: what each thread of host_adam.h does. */
#ifndef DTP_HOST_ADAM_UPDATE_H
#define DTP_HOST_ADAM_UPDATE_H

#include "kernels/kernels.h"

/* Elements [begin, end) of `args`. In fp32, so within rounding of the reference, whatever the range is cut into. Where
 * values of 16 bits are rounded stochastically it is the reference itself. */
void dtp_host_adam_update(const struct dtp_adamw_args *args, uint64_t begin, uint64_t end);

#endif
