/* DeepSpeed's defaults that sizes depend on (runtime/zero/config.py, runtime/swap_tensor), in elements unless named
 * otherwise. */
#ifndef DTP_DEEPSPEED_H
#define DTP_DEEPSPEED_H

#include <stdint.h>

#define DTP_DEEPSPEED_BUCKET UINT64_C(500000000)        /* reduce_bucket_size; stages 1 to 3 */
#define DTP_DEEPSPEED_LIVE UINT64_C(1000000000)         /* stage3_max_live_parameters */
#define DTP_DEEPSPEED_REUSE UINT64_C(1000000000)        /* stage3_max_reuse_distance */
#define DTP_DEEPSPEED_PREFETCH UINT64_C(50000000)       /* stage3_prefetch_bucket_size */
#define DTP_DEEPSPEED_PERSISTENCE UINT64_C(100000)      /* stage3_param_persistence_threshold */
#define DTP_DEEPSPEED_SUB_GROUP UINT64_C(1000000000)    /* sub_group_size: what the optimizer works on at a time */
#define DTP_DEEPSPEED_SWAP_BUFFERS 4u                   /* of the largest sub-group: fp32 weight, moments, gradient */
#define DTP_DEEPSPEED_PARAM_BUFFERS UINT64_C(500000000) /* 5 buffers of 1e8 for parameters read from NVMe */

#endif
