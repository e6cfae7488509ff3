/* The pieces that dtp_closed_form_time adds up, for `dtplan explain`: nothing here is computed twice, the closed form
 * fills this record while it works. Seconds are of one optimizer step (all micro-steps) on one GPU. */
#ifndef DTP_TIME_PARTS_H
#define DTP_TIME_PARTS_H

#include "closed/closed_form.h"

struct dtp_time_parts {
    /* Matmuls at the sustained rate of long runs; divided by matmul_speedup they are dtp_time.matmul_s. */
    double matmul_forward_s, matmul_backward_s, matmul_head_s, matmul_recompute_s;
    double matmul_speedup; /* chips at their power limit clock up while other kernels run */
    double attention_forward_s, attention_backward_s;
    double memory_forward_s, memory_backward_s; /* memory-bound kernels of the blocks */
    double weights_s;                           /* casts and copies of weights and gradients */
    double fp8_s;                               /* scaling and casting around fp8 matmuls */
    double gaps_s;                              /* between kernels of one stream */
    double recompute_other_s;                   /* recomputed attention and memory-bound kernels */
    double loss_s;
    double device_s;                /* sum of the above; compute_s is the larger of it and the launch time, and a device
                                       that idles for launches hides that much more communication */
    double kernels_count, launch_s; /* kernels of a step, host time of one */
    double host_s;                  /* of a step's launches and calls */
    /* Bytes behind some of them, and the rate of kernels that are priced by it alone. */
    double block_forward_bytes, block_backward_bytes, loss_bytes, weights_bytes;
    double block_bytes_per_s, optimizer_bytes;
    /* Communication: what cannot hide, and what hidden collectives take from compute. */
    double not_hidden_s, contention_s;
    double gathered_s, experts_gathered_s; /* all-gathers of a step; of experts that ranks divide, apart from these */
    double exchanged_s; /* of what cannot: between layers, of context parallel ranks and of ranks that divide experts */
    double forward_window_s, backward_window_s, head_window_s; /* of one micro-step */
    /* Host copies and the optimizer on the host. */
    double host_to_device_s, device_to_host_s, host_adam_s, nvme_s;
    double slowest_rank; /* factor on device time: collectives wait for the slowest rank */
};

void dtp_closed_form_time_parts(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                const struct dtp_plan *plan, const struct dtp_communication *communication,
                                struct dtp_time_parts *out);

#endif
